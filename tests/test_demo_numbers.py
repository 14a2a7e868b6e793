"""The demo's numbers: every row of its README's table, and vLLM's counters beside them.

The table was computed by another program (the recipe's own reference forward) from the same stored bf16 states; the
engine's counts are in its files. Rates agree to the four decimals printed, rounds and counts exactly.
"""

from __future__ import annotations

import pytest

from eagle3lab.acceptance import Evaluation, total
from eagle3lab.case import Case
from eagle3lab.counts import EngineReport
from eagle3lab.gap import Comparison, compare_requests, cost, end_effect

RIGHT, WRONG, LATER, SWAPPED = (0, 15, 27), (15, 27, 30), (1, 16, 28), (0, 27, 15)

TABLE = {
    RIGHT: ((0.6186, 0.5381, 0.5070, 0.4706, 0.4314), 2.1933, 538),
    WRONG: ((0.0017, 0.0026, 0.0018, 0.0018, 0.0036), 1.0017, 1170),
    LATER: ((0.0119, 0.0147, 0.0254, 0.0205, 0.0190), 1.0112, 1160),
    (1, 15, 27): ((0.0102, 0.0121, 0.0237, 0.0151, 0.0171), 1.0095, 1161),
    SWAPPED: ((0.1229, 0.1436, 0.1482, 0.1308, 0.1146), 1.1476, 1023),
    (0, 14, 27): ((0.6126, 0.5311, 0.5035, 0.4698, 0.4242), 2.1852, 540),
    (0, 16, 27): ((0.6126, 0.5260, 0.5044, 0.4635, 0.4395), 2.1648, 546),
    (0, 15, 28): ((0.5828, 0.5121, 0.4737, 0.4368, 0.4007), 2.0594, 572),
    (0, 16, 28): ((0.5708, 0.5112, 0.4579, 0.4440, 0.4125), 2.0137, 585),
    (0, 15, 30): ((0.4369, 0.3754, 0.3632, 0.2989, 0.2879), 1.6881, 699),
    (0, 0, 27): ((0.5256, 0.4585, 0.4158, 0.3826, 0.3682), 1.9313, 611),
    (0, 15, 15): ((0.2986, 0.3054, 0.3412, 0.3381, 0.3005), 1.4303, 825),
}
"""README of the demo: accuracy per step, accept length (walk, bonus included), rounds."""

ALWAYS = (RIGHT, WRONG, LATER, SWAPPED)
SCORED = (1172, 1156, 1140, 1124, 1108)
"""Rows from the last prompt position on; one fewer a step for each of the 16 samples."""

RUNS = {
    # run: (wiring, K, drafts, accepted, per position), from the engine's counters as the README prints them
    "as deployed": (WRONG, 5, 1170, 2, (0.0017, 0, 0, 0, 0)),
    "right ids": (RIGHT, 5, 539, 647, (0.5696, 0.2987, 0.1725, 0.0983, 0.0612)),
    "right ids, 3 drafts": (RIGHT, 3, 568, 615, (0.5775, 0.3116, 0.1937)),
    "all ids one later": (LATER, 5, 1160, 13, (0.0112, 0, 0, 0, 0)),
}
PRINTED = 5.1e-5
"""Half a unit of the fourth decimal."""


def evaluation(case: Case, aux: tuple[int, ...], steps: int = 5) -> Evaluation:
    """One run a wiring and session: the case remembers it, and cuts it for fewer steps."""
    reading = case.configured.reading
    assert reading is not None
    return case.evaluate(reading.replace(aux=aux), steps)


def report(case: Case, name: str, source: str = "counters") -> EngineReport:
    run = next(r for r in case.runs if r.name == name)
    return next(r for r in case.reports(run) if r.source == source)


def compared(case: Case, name: str) -> Comparison:
    aux, steps, *_ = RUNS[name]
    return compare_requests(report(case, name, "responses").requests, evaluation(case, aux, steps).parts, case.samples)


@pytest.mark.parametrize(
    "aux", [pytest.param(aux, marks=() if aux in ALWAYS else pytest.mark.long) for aux in TABLE], ids=str
)
def test_a_row_of_the_table(demo_case, aux):
    accuracy, length, rounds = TABLE[aux]
    found = evaluation(demo_case, aux)
    counts = found.counts
    assert (found.skipped, found.nonfinite) == ({}, 0)
    assert counts.scored == SCORED
    assert counts.accuracy == pytest.approx(accuracy, abs=PRINTED)
    assert counts.rounds == rounds
    assert counts.accept_length == pytest.approx(length, abs=PRINTED)


def test_the_right_wirings_rates_by_position(demo_case):
    found = evaluation(demo_case, RIGHT).counts.cumulative
    assert found == pytest.approx((0.5706, 0.2974, 0.1729, 0.0948, 0.0576), abs=PRINTED)


@pytest.mark.parametrize(
    ("split", "size", "accuracy", "length"),
    [
        ("held", 10, (0.673, 0.574, 0.546, 0.506, 0.464), 2.387),
        ("unseen", 6, (0.528, 0.477, 0.441, 0.411, 0.376), 1.930),
    ],
)
def test_topics_seen_and_unseen(demo_case, split, size, accuracy, length):
    parts = [p for name, p in evaluation(demo_case, RIGHT).parts.items() if name.startswith(split)]
    assert len(parts) == size
    counts = total(parts)
    assert counts.accuracy == pytest.approx(accuracy, abs=5.1e-4)
    assert counts.accept_length == pytest.approx(length, abs=5.1e-4)


def test_the_long_conversation(demo_case):
    reading = demo_case.configured.reading.replace(aux=RIGHT)
    found = demo_case.evaluate(reading, 5, ["turns_00"])
    assert found.counts.accuracy == pytest.approx((0.562, 0.427, 0.361, 0.342, 0.298), abs=5.1e-4)
    assert found.counts.accept_length == pytest.approx(1.90, abs=5.1e-3)
    part = found.parts["turns_00"]
    assert len(part.spans) == 7
    by_turn = [float(part.correct[a - 1 : b - 2, 0].float().mean()) for a, b in part.spans]
    assert by_turn == pytest.approx((0.775, 0.618, 0.551, 0.584, 0.404, 0.640, 0.371), abs=5.1e-4)


@pytest.mark.parametrize("name", RUNS)
def test_what_the_engine_counted(demo_case, name):
    """The README's table of counters, read from /metrics; responses and log say the same."""
    _, steps, drafts, accepted, positions = RUNS[name]
    for source in ("counters", "responses", "log"):
        found = report(demo_case, name, source)
        assert (found.drafts, found.accepted, found.steps) == (drafts, accepted, steps)
        assert found.cumulative == pytest.approx(positions, abs=PRINTED)


@pytest.mark.parametrize("name", RUNS)
def test_predicted_and_measured(demo_case, name):
    """They agree to 0.007 (README); what is missing is within what a recording's end can hide."""
    aux, steps, drafts, accepted, _ = RUNS[name]
    found = evaluation(demo_case, aux, steps)
    measured = 1 + accepted / drafts
    gap = measured - found.counts.accept_length
    assert abs(gap) <= 0.0075
    assert gap <= end_effect(list(found.parts.values()), steps) + 1e-9
    assert found.length.low <= measured <= found.length.high
    if aux != RIGHT:
        assert (found.counts.rounds, found.counts.accepted) == (drafts, accepted)


def test_right_wiring_round_by_round(demo_case):
    """13 of 16 requests equal in every round; two differ in their last, one at a near-tie (margin 0.0011)."""
    found = compared(demo_case, "right ids")
    assert found.counts["matched"] == 16 and found.unmatched == 0
    assert found.counts["equal"] >= 13
    differ = {m.sample: m for m in found.matches if not m.equal}
    assert set(differ) <= {"unseen_10", "unseen_12", "unseen_13"}
    for name in ("unseen_12", "unseen_13"):
        match = differ[name]
        assert match.last_only
        assert match.first == len(match.measured) - 1
        # the engine counts drafts past the request's end: never fewer than the recording shows
        assert match.predicted[-1] < match.measured[-1] <= 5
    if "unseen_10" in differ:
        assert differ["unseen_10"].first == 9
        assert not differ["unseen_10"].last_only


def test_three_drafts_round_by_round(demo_case):
    found = compared(demo_case, "right ids, 3 drafts")
    assert found.counts["matched"] == 16
    assert found.counts["equal"] >= 14
    assert {m.sample for m in found.matches if not m.equal} <= {"unseen_10", "unseen_13"}


@pytest.mark.parametrize("name", ["as deployed", "all ids one later"])
def test_wrong_wirings_round_by_round(demo_case, name):
    assert compared(demo_case, name).counts == {"requests": 16, "matched": 16, "equal": 16, "last_round_only": 0}


def test_three_drafts_are_five_cut_short(demo_case):
    """Cutting five steps to three is running three: the walk then has 567 rounds, one fewer than vLLM counted."""
    reading = demo_case.configured.reading.replace(aux=RIGHT)
    cut = evaluation(demo_case, RIGHT).cut(3)
    name = demo_case.samples.headline[3]
    from eagle3lab.acceptance import evaluate

    alone = evaluate(demo_case.model, demo_case.samples, [name], reading, 3)
    assert cut.parts[name].counts == alone.parts[name].counts
    assert cut.parts[name].rounds == alone.parts[name].rounds
    assert cut.counts.scored == SCORED[:3]
    assert cut.counts.accuracy == evaluation(demo_case, RIGHT).counts.accuracy[:3]
    assert abs(cut.counts.rounds - 568) <= 1


def test_what_the_wrong_wiring_costs(demo_case):
    """42.6 s with speculation against 22.2 without: 1.9 times slower; with the right one it breaks even."""
    base, runs = demo_case.baseline, {r.name: r for r in demo_case.runs}
    plain = base.tokens / base.seconds
    wrong, right = (
        cost(report(demo_case, n).accept_length, runs[n].tokens / runs[n].seconds, plain)
        for n in ("as deployed", "right ids")
    )
    assert 1 / wrong.speedup == pytest.approx(1.9, abs=0.05)
    assert right.speedup == pytest.approx(1.0, abs=0.02)
    # a round of five drafts costs about two plain steps either way; the wrong one gets one token for it
    assert wrong.round_cost == pytest.approx(1.92, abs=0.01)
    assert right.round_cost == pytest.approx(2.22, abs=0.01)
