"""A run that drafts a tree: its prediction, its bar in the waterfall, and trees among the settings that are priced.

The planted draft says the recorded tokens under boundaries (2, 4, 5); the run reads (1, 4, 5), so that its trees accept
something and not everything. That SGLang's trees grow as they should is test_trees.py's matter.
"""

from __future__ import annotations

import json

import pytest
from planted import CASE, VLLM_RUN, Plan, plant

from eagle3lab import open_case, views
from eagle3lab.acceptance import evaluate_tree, sglang_tree
from eagle3lab.checks.cost import LEVELS, tuned
from eagle3lab.checks.gap import explain
from eagle3lab.checks.trees import TOKENS, grid, predicted, shape_of
from eagle3lab.counts import ServingRun
from eagle3lab.errors import Blocked
from eagle3lab.gap.throughput import CostModel, Setting
from eagle3lab.records import Severity

PLAN = Plan(linked=2, token_gain=3.0, length=60, samples=6)
SGLANG = (
    CASE.replace(VLLM_RUN, 'engine = "sglang"\nversion = "0.5.9"\n').replace("{ids}", "[0, 3, 4]")
    + 'topk = 4\ndraft_tokens = 16\nresponses = "r.jsonl"\n'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The case with a tree of 3 levels, topk 4, 16 draft tokens; its answers hold what that tree should accept."""
    out = tmp_path_factory.mktemp("tree")
    file = plant(out, PLAN)
    file.write_text(SGLANG)
    (out / "r.jsonl").write_text("")
    case = open_case(file)
    found = evaluate_tree(case.model, case.samples, list(case.samples), case.configured.reading, sglang_tree(3, 4, 16))
    rows = []
    for name, part in found.parts.items():
        c = part.counts
        meta = {"spec_verify_ct": c.rounds, "completion_tokens": c.rounds + c.accepted, "spec_accept_token_num": c.accepted,
                "spec_draft_token_num": 15 * c.rounds, "spec_accept_histogram": list(c.histogram)}  # fmt: skip
        ids = case.samples[name].input_ids[case.samples[name].loss_mask.bool()].tolist()
        rows.append(json.dumps({"text": "", "output_ids": ids, "meta_info": meta}) + "\n")
    (out / "r.jsonl").write_text("".join(rows))
    return out


@pytest.fixture(scope="module")
def case(folder):
    return open_case(folder)


def test_the_prediction_of_a_tree_run_is_its_trees(case):
    reading, run = case.configured.reading, case.run
    assert reading.aux == (1, 4, 5)
    tree, chain = predicted(case, run, reading, 3), case.evaluate(reading, 3)
    assert tree.counts.accept_length > chain.counts.accept_length + 0.1
    assert predicted(case, ServingRun("chain", "sglang", steps=3), reading, 3).counts == chain.counts
    (found,) = [f for f in case.findings("serving") if f.code == "E001"]
    assert found.severity is Severity.PASS, found
    assert f"{tree.counts.accept_length:.3f}" in found.measured
    assert "topk 4, 16 draft tokens, a tree by reading SGLang's source" in found.evidence


@pytest.mark.parametrize(("said", "severity"), [(16, Severity.PASS), (8, Severity.WARN)])
def test_what_a_round_verifies_is_held_against_draft_tokens(folder, tmp_path, said, severity):
    """The answers count 15 nodes a round, the root apart."""
    for name in ("draft", "target", "samples", "r.jsonl"):
        (tmp_path / name).symlink_to(folder / name)
    text = (folder / "case.toml").read_text().replace("draft_tokens = 16", f"draft_tokens = {said}")
    (tmp_path / "case.toml").write_text(text)
    (found,) = [f for f in open_case(tmp_path).findings("serving") if f.code == "E012"]
    assert found.severity is severity
    assert "15.00" in found.measured and ("set draft_tokens = 16" in found.remedy) is (said == 8)


def test_the_tree_has_its_own_bar(case):
    found = explain(case, case.run)
    kinds = [bar.kind for bar in found.bars]
    assert kinds[-2:] == ["tree", "rest"]
    for one, other in zip(found.bars, found.bars[1:], strict=False):
        assert one.end == other.start
    tree, rest = found.bars[-2:]
    chain = case.evaluate(case.configured.reading, 3)
    assert tree.end == predicted(case, case.run, case.configured.reading, 3).counts.accept_length
    assert tree.start == pytest.approx(chain.counts.accept_length, abs=0.02)  # fed its own drafts
    assert 0 < tree.change.low <= tree.change.value <= tree.change.high
    assert "SGLang's tree (steps 3, topk 4, draft tokens 16), by reading its source" in tree.sentence
    assert rest.change.value == pytest.approx(0, abs=1e-9)
    assert "best chain" not in " ".join(found.missing)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("draft_tokens = 16\n", "", "give draft_tokens in case.toml"),
        ("draft_tokens = 16\n", "draft_tokens = 70\n", "verifies 69 nodes and has only 36 candidates"),
        ("topk = 4\n", "topk = 200\n", "topk 200 is more than the draft vocabulary"),
        (
            'engine = "sglang"\nversion = "0.5.9"',
            'engine = "vllm"\nversion = "0.32.0"',
            "how vllm grows one is not known",
        ),
    ],
)
def test_a_tree_that_cannot_be_grown_is_said(folder, tmp_path, old, new, says):
    text = (folder / "case.toml").read_text()
    assert old in text
    for name in ("draft", "target", "samples", "r.jsonl"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "case.toml").write_text(text.replace(old, new))
    case = open_case(tmp_path)
    found = explain(case, case.run)
    assert "tree" not in [bar.kind for bar in found.bars]
    assert any("the rest of the tree is in the last bar" in text and says in text for text in found.missing), (
        found.missing
    )
    blocked = [f for f in case.findings("serving") if f.code == "E001"]
    assert all(f.severity is not Severity.PASS for f in blocked)


def test_what_would_take_too_long_is_left_out_on_both_sides(folder, monkeypatch):
    monkeypatch.setattr("eagle3lab.acceptance.budget.WORK", 1.0)
    case = open_case(folder)
    found = explain(case, case.run)
    assert any("the first 1 of 6 samples are taken" in text for text in found.missing)
    one = case.evaluate(case.scan.fitted, 3, [case.samples.headline[0]])
    assert found.bars[0].start == one.counts.accept_length
    tree = next(bar for bar in found.bars if bar.kind == "tree")
    whole = predicted(open_case(folder), case.run, case.configured.reading, 3)
    assert tree.end == whole.parts[case.samples.headline[0]].counts.accept_length or len(whole.parts) == 1


def test_the_grid_holds_what_can_be_verified():
    shapes = grid(3, 100)
    assert all(s.levels <= s.nodes <= s.candidates and s.nodes + 1 in TOKENS for s in shapes)
    assert {s.topk for s in shapes} == {2, 4, 8} and {s.topk for s in grid(3, 5)} == {2, 4}
    assert (3, 2, 7) in {(s.levels, s.topk, s.nodes) for s in shapes}
    assert (1, 4, 7) not in {(s.levels, s.topk, s.nodes) for s in shapes}, "4 candidates hold no 7"


def test_trees_are_priced_beside_chains(case):
    """Where a verified token costs next to nothing, a tree pays more than the chain of the same steps."""
    found = tuned(case, CostModel(1.0, 0.3, 0.0001))
    by = {row.setting: row for row in found.rows}
    assert [s.steps for s in by if s.topk == 1] == [1, 2, 3, 4, 5, 6, 7]
    assert max(s.steps for s in by if s.topk > 1) == LEVELS
    tree = Setting(3, 2, 7)
    shape = sglang_tree(3, 2, 8)
    length = evaluate_tree(
        case.model, case.samples, case.samples.headline, case.scan.fitted, shape
    ).counts.accept_length
    assert by[tree].accept_length == length
    assert by[tree].speedup.value == pytest.approx(length / (1 + 0.9 + 7 * 0.0001))
    assert found.best.speedup.value == max(row.speedup.value for row in found.rows)
    costly = tuned(case, CostModel(1.0, 0.01, 0.5))
    assert costly.best.setting.topk == 1
    none = tuned(case, CostModel(1.0, 0.3, 0.0, trees=False))
    assert all(row.setting.topk == 1 for row in none.rows)


def test_an_engine_of_chains_is_told_no_tree(folder, tmp_path):
    text = (folder / "case.toml").read_text().replace("sglang", "vllm").replace("0.5.9", "0.32.0")
    for name in ("draft", "target", "samples"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "case.toml").write_text(
        text.replace('topk = 4\ndraft_tokens = 16\nresponses = "r.jsonl"\n', "").replace("[0, 3, 4]", "[1, 4, 5]")
    )
    case = open_case(tmp_path)
    found = views.tuning(case, "1, 0.3, 0.0001")
    assert found["best"]["topk"] == 1 and found["framed"] == "the best chain"
    assert any(row["topk"] > 1 and row["speedup"] == row["speedup"] for row in found["rows"])
    assert "the run's engine is not SGLang" in "; ".join(found["notes"])


def test_shapes_of_runs():
    assert shape_of(ServingRun("a", "sglang", steps=5), 5) is None
    assert shape_of(ServingRun("a", "sglang", steps=5, topk=4, draft_tokens=8), 5) == sglang_tree(5, 4, 8)
    with pytest.raises(Blocked, match="draft_tokens"):
        shape_of(ServingRun("a", "sglang", steps=5, topk=4), 5)


def test_a_timed_tree_of_steps_and_one_tokens_is_no_chain_and_is_shown_as_its_tree(folder, tmp_path):
    """SGLang's 3 / 4 / 4: three drafts verified, as many as steps, and yet a tree."""
    for name in ("draft", "target", "samples", "r.jsonl"):
        (tmp_path / name).symlink_to(folder / name)
    none = '[[serving]]\nname = "none"\nengine = "sglang"\nsteps = 0\nseconds = 10.0\ntokens = 1000\n'
    text = (folder / "case.toml").read_text().replace("draft_tokens = 16\n", "draft_tokens = 4\n")
    (tmp_path / "case.toml").write_text(text + f"seconds = 10.0\ntokens = 1500\n{none}")
    case = open_case(tmp_path)
    (one,) = [f for f in case.findings("serving") if f.code == "E013"]
    assert one.severity is Severity.UNDETERMINED and "only trees were timed" in one.evidence
    assert "(K=3, topk 4, 3 draft tokens)" in one.evidence
    row = views.run_rows(case)[0]
    (tree,) = case.evaluate_trees(case.configured.reading, (sglang_tree(3, 4, 4),))
    assert row["predicted"] == tree.counts.accept_length and row["k"] == 3
    (tmp_path / "case.toml").write_text(text.replace("draft_tokens = 4\n", ""))
    row = views.run_rows(open_case(tmp_path))[0]
    assert row["predicted"] is None and "give draft_tokens in case.toml" in row["unpredicted"]
