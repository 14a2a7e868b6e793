"""Content that is wrong beside what is right: each fault by its own name, and never as a wiring; sound cases raise nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from faults.kinds import BASE, KINDS, WIDE, _engine_low, _rebuilt, _roll, _rotated, _two_swapped, read
from faults.variants import VARIANTS
from naive import Naive
from planted import Plan, World, make

from eagle3lab import open_case
from eagle3lab.reading import Rope
from eagle3lab.records import Finding, Severity
from eagle3lab.samples import Samples, flaws, read_sample

FAIL, WARN, BLOCKED = Severity.FAIL, Severity.WARN, Severity.BLOCKED
STAGES = ("samples", "forward", "acceptance")
Damage = Callable[[World], None]
FREE = WIDE.but(linked=0, samples=5)


def said(tmp_path: Path, plan: Plan, *damage: Damage, stages: tuple[str, ...] = STAGES) -> list[Finding]:
    world = make(plan)
    for one in damage:
        one(world)
    return open_case(world.write(tmp_path)).findings(*stages)


def of(findings: list[Finding], code: str) -> list[Finding]:
    return [f for f in findings if f.code == code]


def failed(findings: list[Finding]) -> set[str]:
    return {f.code for f in findings if f.severity == FAIL}


def each(change: Callable[[dict], None]) -> Damage:
    def damage(world: World) -> None:
        for _, states in world.texts:
            change(states)

    return damage


def of_others(b: int) -> Damage:
    def damage(world: World) -> None:
        own = [states[b].copy() for _, states in world.texts]
        for i, (_, states) in enumerate(world.texts):
            states[b] = own[(i + 1) % len(own)]

    return damage


def added(first: int, end: int) -> Damage:
    """What deepstack adds in an image's span: one vector, at boundary 2 only."""

    def damage(world: World) -> None:
        vector = 2 * world.rng.normal(size=world.plan.shape.target_hidden)
        for _, states in world.texts:
            states[2] = states[2].copy()
            states[2][first:end] += vector

    return damage


CONDEMNED: dict[str, tuple[Damage, str, str]] = {
    "zero": (each(lambda s: s.update({4: s[4] * 0})), "S002", "zero rows"),
    "NaN": (each(lambda s: s[4].__setitem__((20, 3), np.nan)), "S002", "NaN"),
    "the same as another": (each(lambda s: s.update({4: s[5].copy()})), "S007", "same tensor"),
    "a row early": (each(lambda s: s.update({4: np.roll(s[4], -1, 0)})), "S017", "boundary 4 lies 1 rows early"),
    "three rows late": (each(lambda s: s.update({4: np.roll(s[4], 3, 0)})), "S017", "boundary 4 lies 3 rows late"),
    "of other requests": (of_others(4), "S018", "boundary 4 holds rows of another place than boundaries 3 and 5"),
    "an increment": (each(lambda s: s.update({4: s[4] - s[3]})), "S009", "boundaries 3 and 4 are nearly orthogonal"),
    "a span with something added": (added(10, 30), "S018", "rows 10 to 29 of boundary 2"),
}


@pytest.mark.parametrize("name", CONDEMNED)
def test_a_boundary_that_is_not_sound_blocks_the_verdict(tmp_path, name):
    damage, code, words = CONDEMNED[name]
    findings = said(tmp_path, FREE, damage)
    assert any(words in f.title for f in of(findings, code)), [(f.code, f.title) for f in findings]
    assert failed(findings) <= {code}
    for late in ("F003", "F006", "A001"):
        (one,) = of(findings, late)
        assert one.severity == BLOCKED
        assert f"({code} blocks this)" in one.title


def test_a_span_says_what_it_costs_inside_and_outside(tmp_path):
    (one,) = of(said(tmp_path, FREE.but(length=80), added(40, 70)), "F003")
    inside, outside = (float(one.measured.split(word)[1].split()[0]) for word in ("accuracy ", "rows), "))
    assert inside < 0.7 < 0.9 < outside
    assert "inside rows 40 to 69 (150 rows)" in one.measured


def test_an_unsound_neighbour_of_the_fitted_boundary_blocks_a_wiring_verdict(tmp_path):
    """Boundary 4 cannot be tried: that 3 or 5 does best in its place is no wiring."""
    plan = FREE.but(ids=(1, 3, 6), held=(1, 2, 3, 4, 5, 6))
    findings = said(tmp_path, plan, CONDEMNED["zero"][0])
    assert failed(findings) == {"S002"}
    assert [f.severity for f in of(findings, "F003")] == [BLOCKED]
    assert [f.severity for f in of(findings, "A001")] == [BLOCKED]


def test_an_unsound_boundary_far_away_does_not_stop_the_search(tmp_path):
    plan = BASE.but(ids=(1, 3, 4), held=(1, 2, 3, 4, 5, 6, 7, 8))
    findings = said(tmp_path, plan, each(lambda s: s.update({8: s[8] * 0})), stages=("samples", "forward"))
    (one,) = of(findings, "F003")
    assert one.severity == FAIL
    assert "draft fits (2, 4, 5)" in one.title


def test_a_padded_tail_is_cut_off_and_the_rest_is_searched(tmp_path):
    findings = said(tmp_path, FREE, each(lambda s: s[4].__setitem__(slice(-8, None), 0)))
    assert failed(findings) == {"S002"}
    assert [f.severity for f in of(findings, "F003")] == [Severity.PASS]


@pytest.mark.parametrize("plan", [FREE, WIDE, BASE.but(samples=6, token_gain=2.0), FREE.but(walk=0.0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sound_recording_condemns_nothing(tmp_path, plan, seed):
    case = open_case(make(plan.but(seed=seed)).write(tmp_path))
    assert case.samples.condemned == {}
    assert case.survey.odd == {}
    assert not failed(case.findings("samples")) - {"S007"}


def test_too_short_a_text_is_said_to_be_too_short(tmp_path):
    findings = said(tmp_path, FREE.but(length=20, prompt=4), CONDEMNED["a row early"][0], stages=("samples",))
    assert [f.severity for f in of(findings, "S017")] == [Severity.INFO]
    assert "5 of 5 samples are too short" in of(findings, "S017")[0].title


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    for i in range(3):
        tiny.write_sample(tmp_path / "samples" / f"s{i}.safetensors", tiny.sample_tensors())
    return Samples(tmp_path / "samples", tmp_path)


def edit(samples: Samples, names: str, change: Callable[[tiny.Tensors], None]) -> Samples:
    for name in names.split():
        tiny.edit(samples.file(name), change)
    return Samples(samples.path, samples.root)


def test_a_boundary_is_condemned_by_most_samples_and_a_sample_by_one_boundary(samples):
    few = edit(samples, "s1", lambda t: t["h.4"].zero_())
    assert few.condemned == {}
    assert [s.name for s in few.searchable(16, {2, 4})] == ["s0", "s2"]
    most = edit(samples, "s0 s1", lambda t: t["h.4"].zero_())
    assert most.condemned == {4: "S002"}
    found = most.searchable(16, {2, 4})
    assert [s.name for s in found] == ["s0", "s1", "s2"]
    assert {b for s in found for b in s.states} == {0, 2, 5, 8}


def test_twins_condemn_both_and_all_alike_condemn_none(samples):
    twins = edit(samples, "s0 s1 s2", lambda t: t["h.4"].copy_(t["h.5"]))
    assert twins.condemned == {4: "S007", 5: "S007"}
    alike = edit(samples, "s0 s1 s2", lambda t: [t[f"h.{k}"].copy_(t["h.5"]) for k in (0, 2, 4, 8)])
    assert alike.condemned == {}
    assert len(alike.searchable(16, {4})) == 3


def test_zeros_that_end_a_text_go_and_zeros_inside_it_condemn(samples):
    tail = read_sample(tiny.edit(samples.file("s0"), lambda t: t["h.4"][-8:].zero_()), samples.root)
    assert (flaws(tail).kept, flaws(tail).by_boundary) == (32, {})
    one = read_sample(tiny.edit(samples.file("s1"), lambda t: t["h.4"][-1:].zero_()), samples.root)
    assert flaws(one).kept == 40
    inside = read_sample(tiny.edit(samples.file("s2"), lambda t: t["h.4"][10:12].zero_()), samples.root)
    assert flaws(inside).by_boundary == {4: "S002"}


def bad_half(world: World) -> None:
    """Head rows of ids from V/2 on are noise."""
    weight = world.weights["lm_head.weight"].copy()
    bad = (world.weights["d2t"] + np.arange(len(weight))) >= world.plan.shape.vocab // 2
    weight[bad] = world.rng.normal(size=weight[bad].shape) * weight.std()
    world.weights["lm_head.weight"] = weight


@pytest.mark.parametrize("seed", [0, 1])
def test_bad_head_rows_are_named_by_block_and_blamed_on_nothing_else(tmp_path, seed):
    findings = said(tmp_path, BASE.but(samples=5, length=80, seed=seed), bad_half)
    (one,) = of(findings, "F011")
    assert one.title.startswith("the head's rows of tokens 32 … ")
    assert one.where == "lm_head.weight"
    assert failed(findings) == {"F011", "A006"}


def test_a_rebuilt_map_is_still_a_map(tmp_path):
    (one,) = of(said(tmp_path, BASE.but(samples=5), _rebuilt, stages=("forward",)), "F011")
    assert "the map was rebuilt without the head" in one.title


@pytest.mark.parametrize("seed", [0, 1])
def test_fresh_weights_are_not_some_sample_of_another_place(tmp_path, seed):
    def fresh(world: World) -> None:
        weight = world.weights["fc.weight"]
        world.weights["fc.weight"] = (world.rng.normal(size=weight.shape) * weight.std()).astype(np.float32)

    findings = said(tmp_path, VARIANTS["yarn"].but(seed=seed), fresh, stages=("forward",))
    (one,) = of(findings, "F011")
    assert (one.severity, one.where) == (WARN, "fc.weight")


@pytest.mark.parametrize("plan", [VARIANTS["own table"], BASE.but(token_gain=2.0), BASE.but(token_gain=4.0)])
def test_swapped_samples_are_named_whatever_the_token_alone_predicts(tmp_path, plan):
    findings = said(tmp_path, plan.but(samples=6), _two_swapped, stages=("forward",))
    named = [f.title for f in of(findings, "F011") if f.severity == FAIL]
    assert [t.split(":")[0] for t in named] == ["planted_0", "planted_1"]
    assert "those of planted_1" in named[0]
    assert not [f for f in of(findings, "F005") if "no reading predicts" in f.title]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_position_limit_blames_no_sample(tmp_path, monkeypatch, seed):
    feed = Naive.feed
    monkeypatch.setattr(
        Naive, "feed", lambda self, caches, token, hidden, at: feed(self, caches, token, hidden, min(at, 40))
    )
    findings = said(tmp_path, BASE.but(samples=5, length=80, seed=seed))
    assert not of(findings, "F011")
    assert [f.severity for f in of(findings, "A004")] == [WARN]


def partial_sums(share: float, noise: float = 0.3) -> Damage:
    """Each boundary holds its block's input and a part of what the block adds."""

    def damage(world: World) -> None:
        for _, states in world.texts:
            own = {k: v.copy() for k, v in states.items() if isinstance(k, int)}
            for k in own.keys() - {0}:
                own_noise = noise * world.rng.normal(size=own[k].shape)
                states[k] = (own[k - 1] + share * (own[k] - own[k - 1]) + own_noise).astype(np.float32)

    return damage


def test_partial_sums_are_undetermined_and_no_wiring(tmp_path):
    findings = said(tmp_path, WIDE.but(linked=0), partial_sums(0.5))
    (one,) = of(findings, "F011")
    assert one.severity == Severity.UNDETERMINED
    assert "partial sums" in one.title
    assert not failed(findings)


@pytest.mark.parametrize("first", [0, 1])
def test_a_tenth_of_each_increment_looks_like_ids_one_too_low_where_boundary_0_is_not_recorded(tmp_path, first):
    """With boundary 0 it is told apart; without it no file can, and the report says wrong wiring: a known limit."""
    plan = WIDE.but(linked=0, held=tuple(range(first, 7)))
    findings = said(tmp_path, plan, partial_sums(0.1, noise=0.02))
    (one,) = of(findings, "F003")
    assert one.severity == (FAIL if first else BLOCKED)
    assert "(3, 5, 6)" in one.title + one.measured


def test_ids_one_too_low_are_still_named_with_boundary_0(tmp_path):
    plan = WIDE.but(linked=0, ids=(1, 3, 4), held=(0, 1, 2, 3, 4, 5))
    (one,) = of(said(tmp_path, plan, stages=("forward",)), "F003")
    assert (one.severity, "draft fits (2, 4, 5)" in one.title) == (FAIL, True)


def test_the_survey_alone_names_a_late_boundary_in_short_texts():
    """Twenty-four rows are enough: noise of unrelated rows stays below a tenth."""
    between = sys.modules["eagle3lab.survey.between"]
    rand = torch.Generator().manual_seed(0)
    first = torch.randn(30, 32, generator=rand)
    moved = between.by_lag(first, (first + 0.5 * torch.randn(30, 32, generator=rand)).roll(2, 0))
    assert max(moved, key=lambda lag: moved[lag]) == 2
    assert moved[2] > 0.7 > 0.3 > max(v for lag, v in moved.items() if lag != 2)


def test_an_unsound_boundary_blocks_the_prediction_too(tmp_path):
    """What the engine measured stands; it is compared with nothing that an overwritten buffer predicts."""
    kind = next(kind for kind in KINDS if kind.name == "two boundaries the same buffer")
    world = make(kind.plan)
    kind.damage(world)
    _engine_low(world)
    codes = {f.code: f for f in open_case(world.write(tmp_path)).findings("serving")}
    assert codes["E001"].severity is Severity.BLOCKED and "1.15" in codes["E001"].title
    assert "boundary 4, 5 of the recording is not sound" in codes["E001"].evidence
    assert not {"E010", "E013", "E006"} & set(codes)


def test_every_sample_that_is_displaced_is_named_with_its_own_lag(tmp_path):
    lags = (2, 4, 0, -3, 0)

    def moved(world):
        world.texts = [
            (tokens, {k: np.roll(v, -lag, 0) for k, v in states.items()})
            for lag, (tokens, states) in zip(lags, world.texts, strict=True)
        ]

    findings = said(tmp_path, BASE.but(samples=5, length=64), moved, stages=("forward",))
    assert {f.title for f in of(findings, "F011")} == {
        f"planted_{i}: its rows are displaced: row r holds the state of position r {lag:+d}"
        for i, lag in enumerate(lags)
        if lag
    }
    (whole,) = of(findings, "F005")
    assert whole.severity == "UNDETERMINED" and "predicts the other 2 samples" in whole.title


def test_a_weak_draft_has_no_bad_rows_in_its_head(tmp_path):
    """Tokens that are rare or hard are drafted seldom; what is said of them is right as often as of others."""
    findings = said(tmp_path, BASE.but(misses=0.65, seed=21, samples=8, length=160))
    assert not failed(findings)


def test_a_rotated_basis_is_not_a_lost_part_of_the_head(tmp_path):
    """Without boundary 0 nothing turns the basis back; blocks of ids are told apart only beside some that are sound."""
    findings = said(tmp_path, BASE.but(samples=5, length=64, seed=1), _rotated, stages=("forward",))
    assert failed(findings) == {"F005"}


def test_rows_too_few_to_tell_give_no_verdict_on_the_content(tmp_path):
    (found,) = of(said(tmp_path, BASE.but(samples=1, length=8, prompt=2), stages=("forward",)), "F005")
    assert found.severity == "UNDETERMINED" and "5 rows are too few" in found.title


def test_a_shift_that_the_recording_may_have_made_is_said_as_such(tmp_path):
    (found,) = of(said(tmp_path / "a", BASE.but(samples=5, length=64), _roll(1), stages=("forward",)), "F006")
    assert found.severity == "FAIL" and "or the recording's rows are one early" in found.title
    plan = BASE.but(samples=5, length=64, held=(0, 2, 3, 4, 5))
    (found,) = of(said(tmp_path / "b", plan, _roll(1), stages=("forward",)), "F006")
    assert found.severity == "BLOCKED" and "S017 blocks this" in found.title


def test_a_refined_value_is_told_from_the_configured_one(tmp_path):
    """The search came by 500000; the engine uses what it is configured with."""
    plan = BASE.but(reading=read(rope=Rope(base=250000.0, limit=512)), samples=5, length=64, seed=5)
    (found,) = of(said(tmp_path, plan, stages=("forward",)), "F006")
    assert found.title == "rope.base: vllm 0.32.0 v1 uses 10000, the draft fits 250000"
    assert found.measured.startswith("500000: +0.") and ", then 250000: +0." in found.measured


def test_a_boundary_of_other_requests_does_not_become_a_wrong_wiring(tmp_path):
    """Its neighbours stand in for it and fit better; without a boundary next to it no other check sees it."""
    plan = BASE.but(linked=0, samples=5, length=64, held=(2, 4, 5))
    (found,) = of(said(tmp_path, plan, of_others(2), stages=("forward",)), "F003")
    assert found.severity == BLOCKED and "boundary 2 as recorded shares nothing with any other" in found.title


@pytest.mark.parametrize(("lag", "shift"), [(-3, 2), (4, 0)])
def test_a_lag_is_the_recording_s_and_what_is_left_of_the_shift_the_draft_s(lag, shift, tmp_path):
    plan = BASE.but(held=(0, 2, 4, 5), reading=read(shift=shift), samples=5, length=64)
    findings = said(tmp_path, plan, _roll(lag), stages=("samples", "forward"))
    (displaced,) = of(findings, "F010")
    assert f"position r {lag:+d}" in displaced.title
    (own,) = of(findings, "F006")
    assert own.severity == FAIL and f"the draft fits {shift}" in own.title and "retrain" in own.remedy
