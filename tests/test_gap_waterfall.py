"""The waterfall: every bar by hand on small tables, and all of them adding up, on made cases and on the demo."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from test_acceptance import rolled, sample_of, table_of

from eagle3lab import views
from eagle3lab.acceptance import Evaluation, accept
from eagle3lab.checks import gap as checks
from eagle3lab.errors import Blocked
from eagle3lab.gap.levels import Measured, Waterfall, path
from eagle3lab.gap.waterfall import waterfall
from eagle3lab.reading import Reading, Rope

LENGTH, SPAN = 24, (4, 20)
FITTED = Reading(aux=(0, 1, 2))
SERVED = FITTED.replace(aux=(1, 2, 3), feedback="post_norm", rope=Rope(base=5e5))


def evaluation(reading: Reading, hits: str, steps: int, samples: int = 6, covered: bool = True) -> Evaluation:
    """Samples whose every row is right as ``hits`` says: "110" is two right drafts and a wrong one; "." alternates."""
    parts = {}
    for i in range(samples):
        rows = {t: hits.replace(".", str((t + i) % 2)) for t in range(LENGTH)}
        inside = None if covered else [[(t + k) % 5 > 0 for k in range(steps)] for t in range(LENGTH)]
        part = accept(rolled(table_of(rows, LENGTH, steps), LENGTH, inside), sample_of([SPAN], LENGTH, f"s{i}"))
        parts[f"s{i}"] = part
    return Evaluation(reading, steps, parts, {})


def made(hits: dict[Reading, str], **changes) -> Waterfall:
    """The waterfall of readings that hit as ``hits`` says."""

    def evaluate(reading: Reading, steps: int) -> Evaluation:
        if reading not in hits:
            raise Blocked(f"{reading} is not recorded")
        return evaluation(reading, hits[reading][:steps].ljust(steps, "0"), steps, changes.get("samples", 6))

    given = {"accuracy": [0.5, 0.25], "steps": 2, "fitted": FITTED, "served": SERVED, "evaluate": evaluate,
             "self_fed": evaluate, "measured": Measured(1.25, 100, {}, source="counters")}  # fmt: skip
    return waterfall(**(given | {k: v for k, v in changes.items() if k != "samples"}))


def adds_up(found: Waterfall) -> bool:
    """Every bar begins exactly where the one before ended, so that the changes add up to the whole difference."""
    joined = all(a.end == b.start for a, b in itertools.pairwise(found.bars))
    changes = math.fsum(bar.change.value for bar in found.bars)
    each = all(bar.change.value == pytest.approx(bar.end - bar.start, abs=1e-12) for bar in found.bars)
    return joined and each and changes == pytest.approx(found.bars[-1].end - found.bars[0].start, abs=1e-9)


STEPS = [reading for _, reading in path(FITTED, SERVED)]


def test_every_bar_by_hand():
    """Training says 0.5 and 0.25; the fitted reading is always right at draft 1 and never at draft 2.

    Sum 0.75; bonus 1.75; chain 1 + 0.5 + 0.5·0.25 = 1.625; the recording's marginals 1, 0 give 1 + 1 + 0 = 2. The span
    [4, 20) has 16 tokens, rows 3 … 17: rounds at 3, 5, 7 … 17 accept one draft each (the last is offered one): 2.0.
    """
    found = made({FITTED: "10", STEPS[0]: "00", STEPS[1]: "00", STEPS[2]: "00", SERVED: "00"})
    assert adds_up(found)
    assert [bar.kind for bar in found.bars] == [
        "bonus", "chain", "vocab", "texts", "walk", "reading", "reading", "reading", "self-fed", "rest",
    ]  # fmt: skip
    assert [round(bar.end, 4) for bar in found.bars] == [1.75, 1.625, 1.625, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.25]
    assert found.bars[0].start == 0.75 and found.total == pytest.approx(0.5)
    assert [bar.name for bar in found.bars[5:8]] == [
        "wiring (0, 1, 2) → (1, 2, 3)", "feedback: pre_norm → post_norm", "rope.base: 10000 → 500000",
    ]  # fmt: skip
    assert found.largest_loss is found.bars[5]
    assert not found.missing


def test_one_field_a_bar_in_a_stated_order():
    assert [words.split(":")[0] for words, _ in path(FITTED, SERVED)] == ["aux", "feedback", "rope.base"]
    assert path(FITTED, FITTED) == []
    assert STEPS[-1] == SERVED


def test_intervals_are_paired_and_say_how_they_were_drawn():
    found = made({FITTED: "1.", STEPS[0]: ".0", STEPS[1]: ".0", STEPS[2]: ".0"})
    bars = {bar.kind: bar for bar in found.bars}
    assert math.isnan(bars["chain"].change.low) and "arithmetic" in bars["chain"].change.method
    texts = bars["texts"].change
    assert texts.low <= texts.value <= texts.high and "training's own n is not known" in texts.method
    for bar in found.bars[4:9]:
        assert "bootstrap over 6 samples" in bar.change.method
        assert bar.change.low - 1e-9 <= bar.change.value <= bar.change.high + 1e-9
    # the same reading on both sides: paired, so nothing is left of the spread between samples
    assert (bars["self-fed"].change.low, bars["self-fed"].change.high) == (0, 0)
    assert "only the lab's side is drawn" in bars["rest"].change.method


def test_too_few_samples_have_no_interval_and_say_so():
    found = made({FITTED: "10", **dict.fromkeys(STEPS, "00")}, samples=3)
    assert adds_up(found)
    assert all(math.isnan(bar.change.low) for bar in found.bars)
    assert "3 samples are too few" in found.bars[5].change.method


def test_what_training_left_out_is_its_own_bar():
    """Four of five tokens are in the draft vocabulary; accuracies 0.5 and 0.25 of those are 0.4 and 0.2 of all."""

    def evaluate(reading: Reading, steps: int) -> Evaluation:
        return evaluation(reading, "10", steps, covered=False)

    bars = {}
    for left_out in (True, False, None):
        found = made({}, evaluate=evaluate, self_fed=evaluate, served=FITTED, left_out=left_out)
        assert adds_up(found)
        bars[left_out] = found.bars[2]
    share = evaluate(FITTED, 2).counts
    rates = [c / s for c, s in zip(share.covered, share.scored, strict=True)]
    assert bars[True].end == pytest.approx(1 + 0.5 * rates[0] * (1 + 0.25 * rates[1]))
    assert bars[False].change.value == bars[None].change.value == 0
    assert "already counted" in bars[False].sentence and "not known whether" in bars[None].sentence
    assert f"{bars[True].change.value:+.3f}" in bars[None].sentence


def test_k_of_the_run_against_trainings():
    found = made({FITTED: "11"}, served=FITTED, steps=1, measured=None)
    assert [bar.kind for bar in found.bars][-2:] == ["self-fed", "steps"]
    assert found.bars[-1].name == "K 2 → 1" and (found.bars[-1].start, found.bars[-1].end) != (2, 2)
    assert "the last level is the lab's prediction" in found.missing[0]
    assert adds_up(found)


def test_without_speculation_a_step_is_a_token():
    found = made({FITTED: "11"}, served=FITTED, steps=0, measured=None)
    assert found.bars[-1].end == 1 and not found.missing and adds_up(found)


def test_one_figure_stands_for_every_draft_and_says_so():
    found = made({FITTED: "111"}, accuracy=[0.747], steps=3, served=FITTED)
    assert found.bars[1].end == pytest.approx(1 + 0.747 + 0.747**2 + 0.747**3)
    assert "one figure taken for every draft" in found.begins and adds_up(found)


def test_without_trainings_figure_it_begins_with_the_recording():
    found = made({FITTED: "10", **dict.fromkeys(STEPS, "00")}, accuracy=[])
    assert [bar.kind for bar in found.bars][:1] == ["reading"]
    assert "no training accuracy" in found.missing[0] and found.bars[0].start == 2.0 and adds_up(found)


def test_readings_that_fit_together_only_as_one_share_a_bar():
    found = made({FITTED: "10", SERVED: "00"})
    (bar,) = [bar for bar in found.bars if bar.kind == "reading"]
    assert bar.name.count(";") == 2 and "can only be run together" in bar.sentence and adds_up(found)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"served": None, "why_not_served": "fc gets too few states"},
            "would not run this checkpoint: fc gets too few",
        ),
        ({}, "the run's reading cannot be evaluated here (aux: (0, 1, 2) → (1, 2, 3); feedback"),
        ({"served": FITTED, "self_fed": None}, "was not run on its own drafts"),
    ],
)
def test_what_cannot_be_had_makes_it_partial(changes, says):
    found = made({FITTED: "10"}, **changes)
    assert any(says in text for text in found.missing), found.missing
    assert found.bars and adds_up(found)


def test_requests_of_the_same_texts_are_paired_with_their_samples():
    by_sample = {f"s{i}": (8, 8) for i in range(6)}
    measured = Measured(2.0, 48, by_sample, 0.1, "counters")
    found = made({FITTED: "10"}, served=FITTED, measured=measured)
    rest = found.bars[-1]
    assert "paired by request" in rest.change.method and rest.change.low == rest.change.high == 0
    assert "add at most 0.100" in rest.sentence


def test_self_fed_equals_teacher_forced_where_it_counts(demo_case):
    """The demo's texts are the target's own greedy replies: round by round the same, and past a miss it is not."""
    reading = Reading(aux=(0, 15, 27), rope=Rope(base=100000.0, limit=2048))
    names = ["held_00", "unseen_10"]
    forced, own = (demo_case.evaluate(reading, 5, names, fed) for fed in ("recorded", "self"))
    assert all(forced.parts[n].rounds == own.parts[n].rounds for n in names)
    assert forced.counts.accuracy[4] > own.counts.accuracy[4] + 0.1


LEVELS = {
    # data/demo/README.md: training 0.650 0.570 0.532 0.508 0.465; on the samples 0.6186 … and 2.1933; the engine's own
    "as deployed": (2.725, 2.3643, 2.2339, 2.1933, 1.0017, 1.0017),
    "right ids": (2.725, 2.3643, 2.2339, 2.1933, 2.1933, 2.2004),
    "right ids, 3 drafts": (2.725, 2.3643, 2.2339, 2.1933, 2.0829, 2.0827),
    "all ids one later": (2.725, 2.3643, 2.2339, 2.1933, 1.0112, 1.0112),
    "no speculation": (2.725, 2.3643, 2.2339, 2.1933, None, 1.0),
}


@pytest.mark.parametrize("name", LEVELS)
def test_the_demos_runs(demo_case, demo_scan, name):
    run = next(r for r in demo_case.runs if r.name == name)
    found = checks.explain(demo_case, run)
    assert adds_up(found) and not found.missing
    bars = {bar.kind: bar for bar in found.bars}
    before = found.bars[-1].start if name != "no speculation" else None
    ends = [found.bars[0].start, bars["chain"].end, bars["texts"].end, bars["walk"].end, before, found.bars[-1].end]
    assert ends == [expected if expected is None else pytest.approx(expected, abs=5e-5) for expected in LEVELS[name]]
    wrong = name in ("as deployed", "all ids one later")
    lost = found.largest_loss  # only what surely takes counts: of the repaired runs nothing does, but for their K
    assert (lost is not None and lost.kind == "reading") is wrong
    if wrong:
        assert bars["reading"].change.high < -0.9  # the wiring, clear of 0 by far
        assert bars["rest"].change.value == pytest.approx(0, abs=1e-9)


def test_the_demos_rows(demo_case, demo_scan):
    rows = views.waterfalls(demo_case)
    assert [row["run"] for row in rows] == list(LEVELS)
    assert rows[0]["loss"] == "wiring (0, 15, 27) → (15, 27, 30)"
    found = views.waterfall(demo_case)
    assert found["run"] == "as deployed" and found["total"] == pytest.approx(1.0017 - 2.725, abs=5e-5)
    assert torch.tensor([b["end"] for b in found["bars"]]).isfinite().all()
    with pytest.raises(Blocked, match="no such serving run"):
        views.waterfall(demo_case, "nope")
