"""TensorRT-LLM's reports and specdec_bench's acceptance_rate.json: forms by reading, counts of the demo dressed up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.dialects import ENGINES
from eagle3lab.errors import BadFile

LOGS = Path(__file__).parent / "fixtures/engine_logs"
DEMO = Path(__file__).parents[1] / "data/demo/engine"
# README of the demo: drafts, accepted; per position, cumulative
TABLE = {"wrong_k5": (1170, 2), "right_k5": (539, 647), "right_k3": (568, 615), "plus1_k5": (1160, 13)}
POSITIONS = {"right_k5": (0.5696, 0.2987, 0.1725, 0.0983, 0.0612), "right_k3": (0.5775, 0.3116, 0.1937)}


def read(folder: Path, engine: str = "trtllm", **given_: object) -> EngineReport:
    keys = {"log": None, "metrics": (), "responses": None, "steps": None, **given_}
    (report,) = ENGINES[engine].read_reports(folder, *keys.values())
    return report


def put(folder: Path, content: object) -> str:
    (folder / "x.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return "x.json"


def flaws(report: EngineReport) -> dict[Flaw, str]:
    return dict(report.flaws)


# ---- specdec_bench


def steps_of(run: str) -> list[list[int]]:
    rows = [json.loads(line) for line in (DEMO / f"{run}_responses.jsonl").read_text().splitlines()]
    return [row["metrics"]["speculative_decoding"]["per_step_accepted"] for row in rows]


def bench(requests: list[list[int]], **changes: Any) -> dict[str, Any]:
    """What ``AcceptanceRate`` of specdec_bench writes for these rounds: a chunk of one token first, bonus included."""
    chunks = [[1, *(n + 1 for n in rounds)] for rounds in requests]
    pooled = [n for each in chunks for n in each]
    bins = {k: pooled.count(k) for k in sorted(set(pooled))}
    conditional, joint, before, left, product = {}, {}, 1.0, len(pooled), 1.0
    for k, n in bins.items():
        conditional[k] = left / len(pooled) / before
        before, left = left / len(pooled), left - n
        product *= conditional[k]
        joint[k] = product
    means = {str(i): {"0": sum(each) / len(each)} for i, each in enumerate(chunks)}
    own = {
        "Request_AL": means, "Average_AL": sum(m["0"] for m in means.values()) / len(means),
        "Acceptance_Length_Histogram": bins, "Conditional_Acceptance_Rate": conditional, "Joint_Acceptance_Rate": joint,
    }  # fmt: skip
    return {k: v for k, v in {**own, **changes}.items() if v is not None}


@pytest.mark.parametrize("engine", ["trtllm", "vllm", "sglang"])
@pytest.mark.parametrize("run", TABLE)
def test_the_demos_rounds_as_specdec_bench_counts_them(tmp_path: Path, run: str, engine: str) -> None:
    requests = steps_of(run)
    report = read(tmp_path, engine, metrics=[put(tmp_path, bench(requests))], steps=int(run[-1]))
    assert (report.drafts, report.accepted) == TABLE[run]
    assert (report.engine, report.answered, report.steps) == (engine, 16, int(run[-1]))
    assert report.mean_of_means == pytest.approx(sum(1 + sum(r) / (len(r) + 1) for r in requests) / 16)
    assert len(report.per_position) == int(run[-1])
    if run in POSITIONS:
        assert report.cumulative == pytest.approx(POSITIONS[run], abs=5e-5)
    assert not report.flaws
    assert any("taken for the prefill's" in note for note in report.notes)


def test_the_first_version_says_ar(tmp_path: Path) -> None:
    content = bench([[1, 2, 0]])
    old = {
        "Request_AR": {"0": 1.75},
        "Average_AR": 1.75,
        "Acceptance_Length_Histogram": content["Acceptance_Length_Histogram"],
    }
    report = read(tmp_path, metrics=[put(tmp_path, old)])
    assert (report.drafts, report.accepted, report.mean_of_means, report.per_position) == (3, 3, 1.75, (2, 1))


def test_a_mean_alone_is_a_mean_of_means(tmp_path: Path) -> None:
    report = read(
        tmp_path, metrics=[put(tmp_path, {"Request_AL": {"0": {"0": 2.5}, "1": {"0": 1.5}}, "Average_AL": 2.0})]
    )
    assert (report.drafts, report.reported_length, report.mean_of_means) == (None, 2.0, 2.0)


def test_more_turns_than_single_chunks_is_partial(tmp_path: Path) -> None:
    report = read(tmp_path, metrics=[put(tmp_path, bench([[1]], Acceptance_Length_Histogram={"2": 4}))])
    assert any(note.startswith("partial: 1 turns but 0 chunks") for note in report.notes)


@pytest.mark.parametrize(
    ("changes", "flaw", "words"),
    [
        ({"Average_AL": 3.0}, Flaw.DISAGREES, "the mean is printed as 3"),
        ({"Average_AL": float("nan")}, Flaw.NAN, "1 means or rates are no numbers"),
        ({"Joint_Acceptance_Rate": {"1": 1.0, "2": 0.9}}, Flaw.DISAGREES, "Joint_Acceptance_Rate of 2 is 0.9"),
        ({"Conditional_Acceptance_Rate": {"3": 7.0}}, Flaw.DISAGREES, "Conditional_Acceptance_Rate of 3 is 7"),
        (
            {
                "Acceptance_Length_Histogram": {"0": 3, "1": 2, "2": 1},
                "Conditional_Acceptance_Rate": None,
                "Joint_Acceptance_Rate": None,
            },
            Flaw.DISAGREES,
            "3 chunks of no token",
        ),
    ],
)
def test_what_contradicts_itself_is_said(tmp_path: Path, changes: dict, flaw: Flaw, words: str) -> None:
    report = read(tmp_path, metrics=[put(tmp_path, bench([[1, 2, 0]], **changes))])
    assert words in flaws(report)[flaw]


def test_a_histogram_of_no_counts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="Acceptance_Length_Histogram: found .*expected counts by length"):
        read(tmp_path, metrics=[put(tmp_path, bench([[1]], Acceptance_Length_Histogram={"1": -3}))])


# ---- TensorRT-LLM's own


def test_iteration_statistics_add_up() -> None:
    report = read(LOGS, metrics=["trtllm_metrics.json"], steps=3)
    assert (report.drafts, report.drafted, report.accepted, report.steps) == (8, 24, 12, 3)
    assert report.accept_length == 2.5
    assert not report.flaws


def spec(rounds: int, drafted: int, accepted: int, **more: Any) -> dict[str, Any]:
    stats = {"numDraftTokens": drafted, "numAcceptedTokens": accepted, "numRequestsWithDraftTokens": rounds}
    return {"iter": 1, "specDecodingStats": {**stats, "acceptanceLength": 1 + accepted / rounds}, **more}


def test_ranks_repeat_one_iteration(tmp_path: Path) -> None:
    rows = [spec(4, 12, 5, attentionDpRank=rank) for rank in range(4)]
    assert read(tmp_path, metrics=[put(tmp_path, rows)]).drafts == 4
    lines = "".join(json.dumps({**row, "iter": i}) + "\n" for i, row in enumerate(rows))
    assert read(tmp_path, metrics=[put(tmp_path, lines)]).drafts == 16


def test_iterations_that_say_two_things_or_were_dropped(tmp_path: Path) -> None:
    bad = spec(4, 12, 5, statsDroppedFrames=7)
    bad["specDecodingStats"]["acceptanceLength"] = 3.0
    report = read(tmp_path, metrics=[put(tmp_path, [bad])])
    assert "1 of 1 iterations" in flaws(report)[Flaw.DISAGREES]
    assert "7 iterations were dropped" in flaws(report)[Flaw.CUT]


def test_a_bench_report_gives_counts_where_its_means_are_whole(tmp_path: Path) -> None:
    # 4 requests of 101 tokens in 41 iterations each, the prefill's included: 60 accepted in 40 rounds
    stats = {"acceptance_length_percentiles": {"average": 101 / 41},
             "num_accepted_draft_tokens_percentiles": {"average": 60.0}}  # fmt: skip
    content = {"engine": {"version": "1.2.0"}, "request_info": {"num_requests": 4, "avg_output_length": 101.0},
               "decoding_stats": stats}  # fmt: skip
    report = read(tmp_path, metrics=[put(tmp_path, content)])
    assert (report.drafts, report.accepted, report.accept_length, report.version) == (160, 240, 2.5, "1.2.0")
    assert report.mean_of_means == pytest.approx(101 / 41)
    content["request_info"]["avg_output_length"] = 101.3
    report = read(tmp_path, metrics=[put(tmp_path, content)])
    assert (report.drafts, report.reported_length) == (None, pytest.approx(101 / 41))
    content["decoding_stats"] = {"acceptance_length_percentiles": None}
    assert Flaw.SILENT in flaws(read(tmp_path, metrics=[put(tmp_path, content)]))


def test_answers_give_tokens_a_step(tmp_path: Path) -> None:
    row = {
        "choices": [{"finish_reason": "length", "avg_decoded_tokens_per_iter": 101 / 41}],
        "usage": {"completion_tokens": 101},
    }
    report = read(tmp_path, responses=put(tmp_path, json.dumps(row) + "\n"))
    assert (report.drafts, report.accepted, report.output, report.lengths) == (40, 60, 101, (2.5,))
    perf = {"perf_metrics": {"speculative_decoding": {"acceptance_rate": 0.5, "total_accepted_draft_tokens": 60,
                                                      "total_draft_tokens": 120}}}  # fmt: skip
    report = read(tmp_path, responses=put(tmp_path, json.dumps(perf) + "\n"), steps=3)
    assert (report.drafts, report.drafted, report.accepted) == (40, 120, 60)
    report = read(tmp_path, responses=put(tmp_path, json.dumps(perf) + "\n"))  # without K no rounds
    assert report.drafts is None
    assert any("1 requests left out" in note for note in report.notes)


@pytest.mark.parametrize(
    ("text", "flaw", "words"),
    [
        ("[AL] AVERAGE: 2.46\n", None, ""),
        ("[AL] AVERAGE: nan\n", Flaw.NAN, "is nan"),
        ("[TRT-LLM] [I] started\n", Flaw.SILENT, "the server's own log has none"),
        ("SpecDecoding metrics: x\n", Flaw.FOREIGN, "vLLM's"),
        ("", Flaw.SILENT, "in 0 lines"),
    ],
)
def test_a_log_has_means_at_best(tmp_path: Path, text: str, flaw: Flaw | None, words: str) -> None:
    report = read(tmp_path, log=put(tmp_path, text))
    assert report.accept_length is None
    assert report.mean_of_means == (None if flaw else 2.46)
    assert words in flaws(report).get(flaw, "") if flaw else not report.flaws


def test_others_files_are_named() -> None:
    assert "vLLM's" in flaws(read(DEMO, responses="right_k5_responses.jsonl"))[Flaw.FOREIGN]
    with pytest.raises(BadFile, match="Prometheus text of it has no count of rounds"):
        read(DEMO, metrics=["right_k5_metrics.prom"])


PIECES = st.lists(
    st.sampled_from(
        [
            "[", "]", "{", "}", ",", "\n", "null", '"', "NaN",
            json.dumps(spec(4, 12, 5)) + "\n", '{"specDecodingStats": []}\n', '{"iter": 1e400, "attentionDpRank": 2}\n',
            '{"decoding_stats": {"acceptance_length_percentiles": {"average": 1e999}}, "request_info": 3}\n',
            '{"choices": [{"avg_decoded_tokens_per_iter": 1e-300}], "usage": {"completion_tokens": 9}}\n',
            '{"perf_metrics": {"speculative_decoding": {"total_draft_tokens": 7}}}\n', "[AL] AVERAGE: 0.00\n",
            '{"Acceptance_Length_Histogram": {"1": 0}, "Request_AL": [1, null]}\n', '{"Average_AL": {"a": {"b": true}}}\n',
        ]
    ),
    max_size=6,
).map("".join)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(text=PIECES, steps=st.sampled_from([None, 0, 1, 3]))
def test_garbage_never_crashes(tmp_path_factory: pytest.TempPathFactory, text: str, steps: int | None) -> None:
    folder = tmp_path_factory.mktemp("garbage")
    put(folder, text)
    for given_ in ({"log": "x.json"}, {"metrics": ["x.json"]}, {"responses": "x.json"}):
        try:
            report = read(folder, steps=steps, **given_)
        except BadFile as error:
            assert "expected" in str(error)
        else:
            assert report.accept_length is None or report.accept_length >= 1
