"""E001 and E003: when the engine agrees with its own reading, when it does not, and when nobody can say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from planted import CASE, VLLM_RUN, Plan, plant
from test_demo_numbers import RIGHT, compared

from eagle3lab import open_case
from eagle3lab.checks import serving
from eagle3lab.checks.gap import explain
from eagle3lab.checks.text import not_greedy
from eagle3lab.counts import ServingRun
from eagle3lab.gap.rounds import margins
from eagle3lab.records import Severity

RUN = """
[[serving]]
name = "run"
engine = "vllm"
version = "0.32.0"
runner = "v1"
aux_ids = [0, 15, 27]
steps = 5
"""


def only(case, code):
    (found,) = [f for f in serving._chosen(case) if f.code == code]
    return found


@pytest.fixture
def right(demo, tmp_path):
    """The demo's repaired run in a case of its own; takes what the run says of itself, and its answers."""

    def make(said, rows):
        for name in ("draft", "target", "samples"):
            (tmp_path / name).symlink_to(demo.parent / name)
        (tmp_path / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        head = 'title = "one run"\n[draft]\npath = "draft"\n[target]\npath = "target"\n[samples]\npath = "samples"\nexclude = ["turns_*"]\n'
        (tmp_path / "case.toml").write_text(head + RUN + 'responses = "r.jsonl"\n' + said)
        return open_case(tmp_path)

    return make


@pytest.fixture
def answers(demo):
    return [json.loads(line) for line in (demo.parent / "engine" / "right_k5_responses.jsonl").read_text().splitlines()]


def test_the_margin_of_the_demos_near_tie(demo_case):
    """Demo README: unseen_10 differs from step 9 on, at a near-tie with a margin of 0.0011 in the logits."""
    match = next(m for m in compared(demo_case, "right ids").matches if m.sample == "unseen_10")
    (one,) = match.differs
    assert (one.round, one.predicted, one.measured) == (9, 3, 0)
    reading = demo_case.configured.reading.replace(aux=RIGHT)
    (margin,) = margins(demo_case.model, demo_case.samples["unseen_10"], reading, match.differs)
    assert margin.margin == pytest.approx(0.0011, abs=1e-4)  # given with two digits, summed in another order
    assert margin.near and margin.rounding > 0.01


def test_rounds_of_the_right_run(right, answers):
    case = right("", answers)
    found = only(case, "E003")
    assert found.severity is Severity.PASS
    assert found.title == (
        "536 of the engine's 539 rounds accept what its reading predicts; the others: 1 near-tie, 2 past a reply's end"
    )
    assert only(case, "E001").severity is Severity.PASS
    assert "paired by request" in only(case, "E001").measured


def test_a_loss_that_texts_would_hide_is_seen_in_pairs(right, answers):
    """The accept length of 2.07 lies well within what the texts vary by, [1.99, 2.42]."""
    case = right("", split(answers))
    length, rounds = only(case, "E001"), only(case, "E003")
    assert length.severity is Severity.WARN and "less than the 2.19" in length.title
    assert "texts differ" not in length.remedy, "the texts are the same"
    assert rounds.severity is Severity.WARN and "unexplained" in rounds.title and "no near-tie" in rounds.measured


def test_requests_that_were_not_recorded_are_left_out_of_the_comparison(right, answers, tmp_path):
    """Of 16 requests two are recorded; their accept length is far from that of all, and just what is predicted."""
    case = right("", answers)
    (tmp_path / "samples").unlink()
    (tmp_path / "samples").mkdir()
    for name in ("held_00", "held_07"):
        source = Path(__file__).parents[1] / "data/demo/samples" / f"{name}.safetensors"
        (tmp_path / "samples" / source.name).symlink_to(source)
    found = only(open_case(tmp_path), "E001")
    assert found.severity is Severity.PASS, found
    assert "the 2 of 16 requests whose texts are recorded" in found.where
    assert case is not None


def split(answers):
    """Every ninth round that accepted something falls in two: 5 % of the accepted drafts are lost, the tokens are the same."""
    seen = 0
    for row in answers:
        said = (row.get("metrics") or row["choices"][0]["metrics"])["speculative_decoding"]
        rounds = []
        for accepted in said["per_step_accepted"]:
            seen += accepted > 0
            rounds += [accepted - 1, 0] if accepted and seen % 9 == 0 else [accepted]
        said.update(
            per_step_accepted=rounds, per_step_drafted=[5] * len(rounds), num_spec_steps=len(rounds),
            num_accepted_draft_tokens=sum(rounds), num_draft_tokens=5 * len(rounds),
            acceptance_histogram=[rounds.count(n) for n in range(6)], mean_acceptance_length=1 + sum(rounds) / len(rounds),
            draft_acceptance_rate=sum(rounds) / (5 * len(rounds)),
        )  # fmt: skip
    return answers


def test_a_run_at_a_temperature_is_not_compared_with_a_greedy_walk(right, answers):
    case = right("temperature = 0.7\n", split(answers))
    found, rounds = only(case, "E001"), only(case, "E003")
    assert rounds.severity is Severity.NOT_COMPARABLE and "sampled at temperature 0.7" in rounds.title
    assert found.severity is Severity.NOT_COMPARABLE
    assert "at temperature 0.7; the walk is greedy" in found.title and "temperature 0" in found.remedy
    assert "sampling with greedy drafts" in found.evidence


def test_whose_text_it_is():
    run, reading = ServingRun("a"), None
    greedy = SimpleNamespace(choice=lambda reading: (SimpleNamespace(share=0.95), ""))
    other = SimpleNamespace(choice=lambda reading: (SimpleNamespace(share=0.2), ""))
    assert not_greedy(greedy, run, reading) == ""
    assert "20.0% of its tokens are" in not_greedy(other, run, reading)
    assert "temperature 1" in not_greedy(greedy, ServingRun("a", temperature=1.0), reading)


SGLANG = CASE.replace(VLLM_RUN, 'engine = "sglang"\nversion = "0.5.9"\n').replace("{ids}", "[1, 3, 4]")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    out = tmp_path_factory.mktemp("planted")
    plant(out, Plan(samples=5, length=48, linked=2))
    return out


@pytest.fixture
def sglang(planted, tmp_path):
    def make(more, **files):
        for name in ("draft", "target", "samples"):
            shutil.copytree(planted / name, tmp_path / name)
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        (tmp_path / "case.toml").write_text(SGLANG + more)
        return open_case(tmp_path)

    return make


def test_answers_without_rounds_are_not_compared_round_by_round(planted, sglang):
    sound = open_case(planted)
    rows = []
    for name in sound.samples:
        sample = sound.samples[name]
        a, b = sample.spans[0]
        ids = sample.input_ids.tolist()
        meta = {"spec_verify_ct": 10, "completion_tokens": 40, "spec_accept_token_num": 30, "spec_draft_token_num": 30,
                "spec_accept_histogram": [0, 0, 0, 10]}  # fmt: skip
        rows.append(
            json.dumps({"prompt_ids": ids[:a], "input_ids": ids[:a], "output_ids": ids[a:b], "meta_info": meta})
        )
    case = sglang('responses = "rows"\n', rows="\n".join(rows) + "\n")
    found = only(case, "E003")
    assert found.severity is Severity.NOT_COMPARABLE
    assert "lists no rounds" in found.title or "no request has the tokens" in found.title


def test_a_printed_mean_is_compared_and_said_to_be_one(sglang):
    """The story's case: nothing but SGLang's log, whose accept length is well below what its reading predicts."""
    line = ("[2025-10-22 10:27:57 TP0] Decode batch, #running-req: 1, #token: 1234, token usage: 0.01, accept len: {0}, "
            "accept rate: {1}, cuda graph: True, gen throughput (token/s): 90.0, #queue-req: 0, \n")  # fmt: skip
    case = sglang('log = "log"\n', log=line.format("1.60", "0.20") * 5)
    found = only(case, "E001")
    assert found.severity is Severity.WARN
    predicted = case.evaluate(case.configured.reading, 3).counts.accept_length
    assert predicted > 2.5
    assert found.title.startswith(
        f"partial: by its printed mean, the engine reports 1.60, less than the {predicted:.2f}"
    )
    assert "printed, without counts" in found.measured
    waterfall = explain(case, case.run)
    assert waterfall.bars[-1].end == pytest.approx(1.6)
    assert "0 rounds" not in waterfall.bars[-1].sentence
    assert any("printed mean" in text for text in waterfall.missing)
