"""The walk, its counts and intervals: by hand on small tables, and against an engine's verify loop written apart."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab import open_case
from eagle3lab.acceptance import (
    accept,
    accept_length,
    accept_length_interval,
    accuracy_interval,
    definition,
    scored_rows,
    steps_that_fit,
    total,
)
from eagle3lab.counts import Counts
from eagle3lab.errors import Blocked
from eagle3lab.forward import Rollout, Step
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.samples import reply_rows

Spans = list[tuple[int, int]]


def sample_of(spans: Spans, length: int, name: str = "s") -> Sample:
    mask = torch.zeros(length, dtype=torch.uint8)
    for a, b in spans:
        mask[a:b] = 1
    return Sample(name, f"{name}.safetensors", torch.arange(length), mask, {0: torch.zeros(length, 2)})


def rolled(table: list[list[bool]], length: int, covered: list[list[bool]] | None = None, shift: int = 1) -> Rollout:
    """A rollout whose draft is right where ``table[row][step]`` says; every row that a rollout has is in it."""
    steps = []
    for k in range(len(table[0])):
        rows = torch.arange(max(length - shift - k, 0))
        truth = torch.where(rows + 1 + shift + k < length, 7, -1)
        right = torch.tensor([table[t][k] for t in rows.tolist()], dtype=torch.bool)
        inside = torch.tensor([covered is None or covered[t][k] for t in rows.tolist()], dtype=torch.bool)
        steps.append(Step(
            rows=rows, tokens=rows, top_ids=torch.where(right, 7, 8)[:, None], top_logprobs=torch.zeros(len(rows), 1),
            truth=truth, truth_logprob=torch.where(inside, -1.0, float("-inf")), truth_rank=torch.zeros_like(rows),
        ))  # fmt: skip
    return Rollout("s", Reading(aux=(0,), shift=shift), "recorded", steps)


def table_of(hits: dict[int, str], length: int, steps: int) -> list[list[bool]]:
    """``{row: "110"}``: right, right, wrong; rows not named are wrong throughout."""
    return [[c == "1" for c in hits.get(t, "").ljust(steps, "0")] for t in range(length)]


def accepted(hits: dict[int, str], spans: Spans, length: int, steps: int):
    return accept(rolled(table_of(hits, length, steps), length), sample_of(spans, length))


def walk(part) -> list[tuple[int, int, int]]:
    return [(r.row, r.accepted, r.offered) for r in part.rounds]


def test_one_span_by_hand():
    """Reply tokens 3 … 9 (span [3, 10)); K 3. Step k is scored on rows 2 … 7-k.

    Row 2 (state of token 2 with token 3) drafts tokens 4, 5, 6: two right, one wrong, so tokens 4, 5 and the target's
    own 6 stand, and the next round starts at row 5. It drafts 7, 8, 9: none right; 7 is the target's. Row 6 drafts 8
    and 9 only, since the recording ends: both right, and nothing is left.
    """
    part = accepted({2: "110", 3: "111", 4: "100", 6: "11"}, [(3, 10)], 12, 3)
    assert walk(part) == [(2, 2, 3), (5, 0, 3), (6, 2, 2)]
    counts = part.counts
    assert counts.scored == (6, 5, 4)
    # step 0: rows 2, 3, 4, 6 of 2…7; step 1: 2, 3, 6 of 2…6; step 2: 3 of 2…5
    assert counts.correct == (4, 3, 1)
    assert counts.joint == (4, 3, 1)
    assert (counts.rounds, counts.accepted) == (3, 4)
    assert counts.per_position == (2, 2, 0)
    assert counts.histogram == (1, 0, 2, 0)
    assert counts.accept_length == 1 + 4 / 3
    assert counts.cumulative == (2 / 3, 2 / 3, 0)
    assert counts.conditional == (2 / 3, 1.0, 0.0)
    assert counts.accuracy == (4 / 6, 3 / 5, 1 / 4)
    assert part.runs().tolist() == [0, 0, 2, 3, 1, 0, 2, 0, 0, 0, 0, 0]


def test_a_later_step_may_be_right_where_an_earlier_is_not():
    """correct counts it, joint and the walk do not."""
    counts = accepted({2: "010"}, [(3, 8)], 8, 3).counts
    assert counts.correct == (0, 1, 0)
    assert counts.joint == (0, 0, 0)
    assert counts.accepted == 0


@pytest.mark.parametrize(
    ("tokens", "rows", "rounds"),
    [
        (0, 0, 0),  # no reply at all
        (1, 0, 0),  # its one token comes from the prompt's last position, no draft is verified
        (2, 1, 1),  # row a-1 predicts the second token
        (3, 2, 2),  # and row a the third, when the first round accepts none
    ],
)
def test_short_spans(tokens, rows, rounds):
    spans = [(4, 4 + tokens), (12, 15)]
    part = accepted({}, spans, 16, 3)
    here = [r for r in part.rounds if r.row < 10]
    assert (int(part.scored[:10, 0].sum()), len(here)) == (rows, rounds)
    # at most b-2-row drafts can be checked against the recording
    assert [r.offered for r in here] == [tokens - 1 - i for i in range(rounds)]


def test_a_span_at_the_start_has_no_row_before_it():
    """Span [0, 4): row 0 joins token 1 and predicts 2, row 1 predicts 3; there is no row -1 to predict 1."""
    part = accepted({0: "11"}, [(0, 4)], 6, 2)
    assert walk(part) == [(0, 2, 2)]
    assert part.counts.scored == (2, 1)


def test_a_span_to_the_end_of_the_text():
    """b = T: the last row scored is T-3, the last that has a token to predict."""
    part = accepted({}, [(5, 9)], 9, 4)
    assert part.counts.scored == (3, 2, 1, 0)
    assert walk(part) == [(4, 0, 3), (5, 0, 2), (6, 0, 1)]


def test_more_steps_than_the_span_has_tokens():
    """K 6, four reply tokens: three can be drafted, all right: one round, and later positions count no acceptance."""
    part = accepted({1: "111111"}, [(2, 6)], 12, 6)
    assert walk(part) == [(1, 3, 3)]
    assert part.counts.scored == (3, 2, 1, 0, 0, 0)
    assert part.counts.per_position == (1, 1, 1, 0, 0, 0)
    assert part.counts.histogram == (0, 0, 0, 1, 0, 0, 0)
    assert math.isnan(part.counts.accuracy[3])


def test_spans_walk_one_by_one_and_no_chain_crosses():
    """The first reply's last round would go on into the user's next turn: it is offered what its own reply holds."""
    hits = dict.fromkeys(range(20), "111")
    part = accepted(hits, [(3, 6), (10, 15)], 20, 3)
    assert walk(part) == [(2, 2, 2), (9, 3, 3)]
    # a-1 … b-3: rows 2, 3 and 9, 10, 11, 12
    assert part.scored[:, 0].nonzero()[:, 0].tolist() == [2, 3, 9, 10, 11, 12]
    assert part.spans == ((3, 6), (10, 15))


def test_a_token_outside_the_draft_vocab_is_a_miss_and_known_as_such():
    length, steps = 8, 2
    covered = [[t != 3, True] for t in range(length)]
    table = table_of({2: "1", 3: "0", 4: "1"}, length, steps)
    part = accept(rolled(table, length, covered), sample_of([(3, 8)], length))
    assert part.counts.scored == (4, 3)
    assert part.counts.covered == (3, 3)
    assert part.counts.correct == (2, 0)


def test_shift_two_has_one_row_less_a_span():
    """A row that joins the token after the next predicts the third: row b-3 has none inside the span."""
    table = table_of(dict.fromkeys(range(9), "11"), 10, 2)
    late = accept(rolled(table, 10, shift=2), sample_of([(3, 9)], 10))
    # rows 2 … b-4-k
    assert late.counts.scored == (4, 3)
    assert late.counts.correct == late.counts.scored
    assert late.cut(1).counts.scored == (4,)


def test_nothing_to_score_is_blocked_with_the_spans():
    with pytest.raises(Blocked, match=r"spans: \[4, 5\)"):
        accepted({}, [(4, 5)], 9, 2)


def test_a_rollout_on_too_few_rows_is_refused():
    full = rolled(table_of({}, 10, 2), 10)
    for step in full.steps:
        keep = step.rows != 4
        for name in ("rows", "tokens", "top_ids", "truth", "truth_logprob"):
            setattr(step, name, getattr(step, name)[keep])
    with pytest.raises(Blocked, match="lacks 2 of the scored rows"):
        accept(full, sample_of([(3, 9)], 10))


def test_reply_rows_are_the_rows_scored_at_step_0():
    for spans in ([(3, 9)], [(0, 5)], [(0, 2), (4, 5), (7, 12)], []):
        rows = scored_rows(spans, 12, 1)[:, 0].nonzero()[:, 0]
        assert torch.equal(reply_rows(sample_of(spans, 12)), rows)


def test_steps_that_fit():
    """The longest span decides how deep a rollout can go: b-2-(a-1) rows at step 0, one fewer a step."""
    assert steps_that_fit(sample_of([(3, 9)], 10), 9) == 5
    assert steps_that_fit(sample_of([(0, 4)], 10), 9) == 2
    assert steps_that_fit(sample_of([(3, 9)], 10), 2) == 2
    assert steps_that_fit(sample_of([], 10), 4) == 1


def test_the_definition_names_all_that_two_people_could_mean():
    text = definition(4)
    for word in (
        "K=4",
        "greedy",
        "chain",
        "cumulative",
        "bonus included",
        "out-of-vocabulary",
        "positions the engine visits",
    ):
        assert word in text


@st.composite
def recordings(draw):
    """A length, disjoint reply spans, K, and a table of hits."""
    length = draw(st.integers(4, 24))
    cuts = sorted(draw(st.lists(st.integers(0, length), min_size=2, max_size=6, unique=True)))
    # spans that touch would be one span in loss_mask, so every second gap stays
    spans = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False)]
    steps = draw(st.integers(1, 6))
    chance = draw(st.sampled_from([0.2, 0.6, 0.9]))
    seed = draw(st.integers(0, 10**6))
    source = random.Random(seed)
    table = [[source.random() < chance for _ in range(steps)] for _ in range(length)]
    return length, spans, steps, table


def scorable(spans: Spans) -> bool:
    return any(b - 2 > max(a - 1, 0) for a, b in spans)


def engine(table: list[list[bool]], a: int, b: int, steps: int) -> list[tuple[int, int]]:
    """An engine's verify loop on the reply [a, b), written from its side: tokens emitted, not rows.

    The prompt's last position emits token a. A round drafts up to K tokens after the last one emitted; those that
    equal the target's stand until the first that does not, then the target's own token is emitted. A recording ends
    with token b-1, so what would come after it is neither drafted nor emitted.
    """
    emitted = max(a, 1)  # index of the last token emitted; a text's first token has no position before it
    rounds = []
    while emitted < b - 1:
        row = emitted - 1
        stands = 0
        for k in range(steps):
            if emitted + 1 + k > b - 1 or not table[row][k]:
                break
            stands += 1
        rounds.append((row, stands))
        emitted += stands + 1
    return rounds


SETTINGS = settings(max_examples=200, derandomize=True, deadline=None, database=None)


@SETTINGS
@given(recordings())
def test_the_walk_is_the_engines(made):
    length, spans, steps, table = made
    if not scorable(spans):
        return
    part = accept(rolled(table, length), sample_of(spans, length))
    expected = [r for a, b in spans for r in engine(table, a, b, steps)]
    assert [(r.row, r.accepted) for r in part.rounds] == expected
    # every reply token is emitted once: the first by the prompt, the others by a round (its drafts and one more);
    # a last round whose drafts reach the end has its own token beyond it
    for a, b in spans:
        here = [r for r in part.rounds if max(a - 1, 0) <= r.row < b]
        beyond = bool(here) and here[-1].row + 2 + here[-1].accepted >= b
        tokens = sum(r.accepted + 1 for r in here) - beyond
        assert tokens == max(b - 1 - max(a, 1), 0)


@SETTINGS
@given(recordings())
def test_identities(made):
    length, spans, steps, table = made
    if not scorable(spans):
        return
    c = accept(rolled(table, length), sample_of(spans, length)).counts
    assert c.accept_length == pytest.approx(1 + sum(c.cumulative))
    assert c.accepted == sum(c.per_position) == sum(j * n for j, n in enumerate(c.histogram))
    assert sum(c.histogram) == c.rounds
    assert list(c.cumulative) == sorted(c.cumulative, reverse=True)
    products = [math.prod(c.conditional[: k + 1]) for k in range(steps)]
    for product, rate, before in zip(products, c.cumulative, (c.rounds, *c.per_position), strict=False):
        if before:  # a position that no round reaches has no conditional rate
            assert product == pytest.approx(rate)
    assert all(j <= h <= s for j, h, s in zip(c.joint, c.correct, c.scored, strict=True))
    assert list(c.scored) == sorted(c.scored, reverse=True)


@SETTINGS
@given(recordings(), st.integers(1, 6))
def test_a_shorter_chain_is_the_beginning_of_a_longer_one(made, fewer):
    length, spans, steps, table = made
    if not scorable(spans):
        return
    fewer = min(fewer, steps)
    sample = sample_of(spans, length)
    cut = accept(rolled(table, length), sample).cut(fewer)
    alone = accept(rolled([row[:fewer] for row in table], length), sample)
    assert cut.counts == alone.counts
    assert cut.rounds == alone.rounds
    assert torch.equal(cut.correct, alone.correct)


@SETTINGS
@given(recordings())
def test_counts_of_the_spans_add_up_to_those_of_the_text(made):
    """One sample with all spans, and one sample a span: the same counts, rates and rounds."""
    length, spans, steps, table = made
    usable = [s for s in spans if scorable([s])]
    if not usable:
        return
    rollout = rolled(table, length)
    whole = accept(rollout, sample_of(spans, length))
    parts = [accept(rollout, sample_of([span], length)) for span in usable]
    assert total(parts) == whole.counts
    assert [r for p in parts for r in p.rounds] == whole.rounds
    assert Counts.zero(steps) + whole.counts == whole.counts


def test_counts_of_different_k_do_not_add_up():
    with pytest.raises(ValueError, match="2 and of 3 steps"):
        Counts.zero(2) + Counts.zero(3)
    with pytest.raises(Blocked, match="loss_mask"):
        total([])


def parts_of(count: int, seed: int = 0):
    source = random.Random(seed)
    out = []
    for i in range(count):
        table = [[source.random() < 0.6 for _ in range(3)] for _ in range(40)]
        out.append(accept(rolled(table, 40), sample_of([(4, 36)], 40, f"s{i}")))
    return out


@pytest.mark.parametrize(("count", "unit"), [(8, "8 samples"), (3, "rounds")])
def test_intervals_are_deterministic_and_hold_the_value(count, unit):
    parts = parts_of(count)
    length = accept_length_interval(parts)
    assert length == accept_length_interval(parts)
    assert length.low < length.value < length.high
    assert length.value == total(parts).accept_length
    assert (length.n, unit in length.method) == (total(parts).rounds, True)
    accuracy = accuracy_interval(parts, step=1)
    assert accuracy == accuracy_interval(parts, step=1)
    assert accuracy.low < accuracy.value < accuracy.high
    assert accuracy.value == total(parts).accuracy[1]
    assert accuracy.n == total(parts).scored[1]
    # a wider level holds a narrower one
    wide, narrow = accept_length_interval(parts, 0.99), accept_length_interval(parts, 0.8)
    assert wide.low < length.low < narrow.low and narrow.high < length.high < wide.high


def test_the_interval_is_as_wide_as_the_spread_of_samples():
    """By hand: ratios of sums over n samples spread by σ/√n; with equal rounds the ratio is a mean of n numbers."""
    parts = parts_of(30)
    for p in parts:  # equal rounds, so that Σaccepted / Σrounds is a plain mean
        p.counts = Counts(**{**vars(p.counts), "rounds": 10})
    means = torch.tensor([p.counts.accepted / 10 for p in parts], dtype=torch.float64)
    expected = 2 * 1.96 * float(means.std(unbiased=False)) / 30**0.5
    found = accept_length_interval(parts)
    assert found.high - found.low == pytest.approx(expected, rel=0.1)


def test_a_draft_without_a_single_hit():
    """Accept length 1, nothing to resample but zeros."""
    parts = [accepted({}, [(3, 12)], 14, 3) for _ in range(6)]
    assert (total(parts).accept_length, total(parts).per_position) == (1.0, (0, 0, 0))
    interval = accept_length_interval(parts)
    assert (interval.low, interval.value, interval.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_the_accept_length_alone_is_the_full_rollouts(tmp_path, steps):
    from planted import Plan, plant

    case = open_case(plant(tmp_path, Plan(linked=2, token_gain=3.0, ids=(1, 4, 5), length=60)), steps=steps)
    samples = [case.samples[name] for name in case.samples]
    for reading in (case.configured.reading, case.configured.reading.replace(aux=(2, 4, 5), shift=2)):
        whole = case.evaluate(reading, steps)
        alone = accept_length(case.model, samples, reading, steps)
        assert (alone.value, alone.n) == (whole.length.value, whole.length.n)
        assert (alone.low, alone.high) == (whole.length.low, whole.length.high)
    assert whole.counts.accepted > 0
