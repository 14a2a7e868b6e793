"""States of an engine against those of training: every kind of damage, planted, is named; what must pass passes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagle3lab import plots, tables
from eagle3lab.gap import dumps
from eagle3lab.gap.dumps import compare_states
from eagle3lab.gap.pairing import found_elsewhere, named
from eagle3lab.gap.rows import column_runs, equal_parts, procrustes, shape_agreement, unit

T, H, L = 80, 256, 5
SLOT = 3


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stream(seed: int = 1, rows: int = T, step: float = 0.5) -> dict[int, Tensor]:
    """A residual stream as real ones are: rows share a direction, a few columns are large, row 0 is an attention sink."""
    common, columns = rand(H, seed=97), 1 + 6 * (torch.arange(H) % 61 == 7).float()
    out = {0: 0.3 * rand(rows, H, seed=seed)}
    for k in range(L):
        out[k + 1] = out[k] + step * (rand(rows, H, seed=100 * seed + k) + 0.7 * common) * columns
        if k == 0:
            out[1][0] *= 200
    return out


def norm(states: Tensor, weight: Tensor | None = None) -> Tensor:
    scaled = states / states.square().mean(1, keepdim=True).sqrt()
    return scaled if weight is None else scaled * weight


def fp8(states: Tensor) -> Tensor:
    """Stored as e4m3 with one scale a row, as engines keep activations."""
    scale = states.abs().amax(1, keepdim=True) / 448
    return (states / scale).to(torch.float8_e4m3fn).float() * scale


def part_of_block(ranks: int) -> Callable[[dict[int, Tensor]], Tensor]:
    """What one of ``ranks`` tensor-parallel ranks holds before the all-reduce: the residual and its part of the block."""

    def damage(held: dict[int, Tensor]) -> Tensor:
        block = held[SLOT] - held[SLOT - 1]
        noise = [rand(*block.shape, seed=50 + r) * block.std() for r in range(ranks)]
        mean = sum(noise[1:], noise[0]) / ranks
        parts = [block / ranks + (n - mean) / ranks**0.5 for n in noise]
        torch.testing.assert_close(sum(parts[1:], parts[0]), block, rtol=1e-3, atol=1e-3)  # they add up to the block
        return held[SLOT - 1] + parts[0]

    return damage


def own_columns(first: int, stop: int) -> Callable[[dict[int, Tensor]], Tensor]:
    """Only these columns were gathered; the others hold what was there before."""

    def damage(held: dict[int, Tensor]) -> Tensor:
        out = stream(seed=9)[SLOT].clone()
        out[:, first:stop] = held[SLOT][:, first:stop]
        return out

    return damage


def with_rows(damaged: Tensor, start: int, stop: int | None, value: Tensor | float) -> Tensor:
    out = damaged.clone()
    out[start:stop] = value
    return out


ROTATION = torch.linalg.qr(rand(H, H, seed=5)).Q
ORDER = torch.randperm(H, generator=torch.Generator().manual_seed(6))
WEIGHT = 0.5 + rand(H, seed=8).abs()

DAMAGE: dict[str, tuple[Callable[[dict[int, Tensor]], Tensor], str, str]] = {
    "rotated": (lambda h: h[SLOT] @ ROTATION, "rotated", "boundary 3 rotated"),
    "columns in another order": (lambda h: h[SLOT][:, ORDER], "rotated", "columns in another order"),
    "scaled": (lambda h: 1.7 * h[SLOT], "scaled", "boundary 3 times 1.7"),
    "rotated and doubled": (lambda h: 2 * h[SLOT] @ ROTATION, "rotated", "boundary 3 rotated and times 2: inner"),
    "reordered and doubled": (lambda h: 2 * h[SLOT][:, ORDER], "rotated", "in another order and times 2: inner"),
    "negated": (lambda h: -h[SLOT], "scaled", "boundary 3 times -1: its sign is turned"),
    "negated and longer": (lambda h: -1.7 * h[SLOT], "scaled", "boundary 3 times -1.7: its sign"),
    "a factor a row": (
        lambda h: h[SLOT] * (2 + (torch.arange(T) % 4))[:, None], "scaled", "every row times a factor of its own (2 … 5)"),
    "a little shorter, all rows alike": (lambda h: 0.96 * h[SLOT], "scaled", "boundary 3 times 0.96: all rows alike"),
    "scaled by 1/4, four ranks": (lambda h: h[SLOT] / 4, "scaled", "times 0.25 (1/4: as where 4 tensor-parallel ranks were averaged"),
    "added up twice": (lambda h: 2 * h[SLOT], "scaled", "boundary 3 times 2 (as where 2 tensor-parallel ranks each held the whole"),
    "times 2.1, no number of ranks": (lambda h: 2.1 * h[SLOT], "scaled", "boundary 3 times 2.1"),
    "partial sum, TP 2": (part_of_block(2), "partial", "one of about 2"),
    "partial sum, TP 3": (part_of_block(3), "partial", "one of about 3"),
    "partial sum, TP 6": (part_of_block(6), "partial", "one of about 6"),
    "partial sum, TP 4": (part_of_block(4), "partial", "one of about 4"),
    "partial sum, TP 8": (part_of_block(8), "partial", "one of about 8"),
    "own columns, TP 2": (own_columns(128, 256), "columns", "1 of 2 column blocks only (columns 128 … 255)"),
    "own columns, TP 3, the last one padded": (own_columns(0, 86), "columns", "1 of 3 column blocks only (columns 0 … 85)"),
    "own columns, TP 4": (own_columns(64, 128), "columns", "1 of 4 column blocks only (columns 64 … 127)"),
    "all columns but a rank's, TP 4": (own_columns(0, 192), "columns", "3 of 4 column blocks only (columns 0 … 191)"),
    "own columns, TP 6, the last one padded": (own_columns(0, 43), "columns", "1 of 6 column blocks only (columns 0 … 42)"),
    "own columns, TP 8": (own_columns(32, 64), "columns", "1 of 8 column blocks only (columns 32 … 63)"),
    "columns of no rank": (own_columns(101, 180), "columns", "what is wrong are no equal parts"),
    "first 7 rows missing": (lambda h: h[SLOT][7:], "shifted", "7 rows off: its row i is training's row i+7"),
    "one row late": (lambda h: torch.cat([rand(1, H), h[SLOT][:-1]]), "shifted", "its row i is training's row i-1"),
    "another boundary": (lambda h: h[4], "boundary", "boundary 4 of training's dump, not 3"),
    "another boundary, 5 rows missing": (lambda h: h[2][5:], "boundary", "boundary 2 of training's dump, not 3, and +5 rows off"),
    "normed": (lambda h: norm(h[SLOT], WEIGHT), "normed", "boundary 3 after an RMSNorm"),
    "normed without a weight": (lambda h: norm(h[SLOT]), "normed", "a norm without a weight"),
    "another request from the middle on": (
        lambda h: torch.cat([h[SLOT][:40], stream(seed=9)[SLOT][40:]]), "foreign", "up to row 40"),
    "another request at first": (
        lambda h: torch.cat([stream(seed=9)[SLOT][:30], h[SLOT][30:]]), "foreign", "from row 30 on"),
    "two rows dropped in the middle": (
        lambda h: torch.cat([h[SLOT][:40], h[SLOT][42:]]), "shifted", "up to row 40; from there on its rows are 2 later"),
    "fp8": (lambda h: fp8(h[SLOT]), "rounded", "rounded to 8 bits"),
    "block output without the residual": (lambda h: h[SLOT] - h[SLOT - 1], "increment", "boundary 3 less boundary 2"),
    "another text": (lambda h: stream(seed=9)[SLOT], "unknown", "not boundary 3"),
    "narrower, one rank of four": (lambda h: h[SLOT][:, : H // 4], "unusable", "1 to 4"),
    "wider, three side by side": (lambda h: torch.cat([h[SLOT]] * 3, 1), "unusable", "1 to 3"),
    "only zeros": (lambda h: 0 * h[SLOT], "unusable", "0 sound rows of 80"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_planted_damage_is_named(kind):
    damage, verdict, words = DAMAGE[kind]
    held = stream()
    (found,) = compare_states({SLOT: damage(held)}, held)
    assert (found.verdict, words in found.sentence) == (verdict, True), found.sentence
    assert dumps.MEANINGS[found.verdict] != "PASS"


NEAR_MISSES: dict[str, Callable[[Tensor], Tensor]] = {
    "untouched": lambda s: s,
    "stored in bfloat16": lambda s: s.bfloat16(),
    "stored in float16": lambda s: (s / 8).half().float() * 8,
    "bfloat16 arithmetic": lambda s: s * (1 + 0.01 * rand(*s.shape, seed=3)),
    "arithmetic coarser in one row": lambda s: with_rows(
        s * (1 + 0.02 * rand(*s.shape, seed=3)), 9, 10, s[9] * (1 + 0.06 * rand(H, seed=4))
    ),
    "a shorter dump": lambda s: s[:30],
    "a few rows of NaN": lambda s: with_rows(s, 10, 13, math.nan),
    "an infinite value": lambda s: with_rows(s, 5, 6, math.inf),
    "a zero row": lambda s: with_rows(s, 79, 80, 0.0),
}


@pytest.mark.parametrize("kind", NEAR_MISSES)
def test_what_is_sound_passes(kind):
    held = stream()
    (found,) = compare_states({SLOT: NEAR_MISSES[kind](held[SLOT])}, held)
    assert found.verdict == "same", found.sentence
    bad = {"a few rows of NaN": 3, "an infinite value": 1, "a zero row": 1}.get(kind, 0)
    assert found.bad_rows == bad and (f"{bad} rows hold NaN" in found.sentence) is bool(bad)
    assert found.rows == min(len(NEAR_MISSES[kind](held[SLOT])), T) - bad and found.wrong == 0
    assert dumps.severity(found) == ("WARN" if bad else "PASS")


FOREIGN = stream(seed=9)[SLOT]
SCATTERED = sorted(torch.randperm(T, generator=torch.Generator().manual_seed(2))[:24].tolist())


def put(
    rows: list[int], values: Callable[[dict[int, Tensor], list[int]], Tensor]
) -> Callable[[dict[int, Tensor]], Tensor]:
    def damage(held: dict[int, Tensor]) -> Tensor:
        out = held[SLOT].clone()
        out[rows] = values(held, rows)
        return out

    return damage


def foreign(held: dict[int, Tensor], rows: list[int]) -> Tensor:
    return FOREIGN[rows]


def span(first: int, stop: int, step: int = 1) -> list[int]:
    return list(range(first, stop, step))


WRONG_ROWS: dict[str, tuple[list[int], Callable[[dict[int, Tensor], list[int]], Tensor], str]] = {
    "a quarter in the middle": (span(20, 36), foreign, "not in 16 (20%); rows 20 … 35: nothing of this text"),
    "nearly half in the middle": (span(21, 60), foreign, "not in 39 (49%); rows 21 … 59: nothing of this text"),
    "every second row": (span(1, T, 2), foreign, "not in 40 (50%); 1 row of every 2 from row 1 to row 79: nothing"),
    "most rows": (span(10, 70), foreign, "in 20 of 80 rows, not in 60 (75%); rows 10 … 69: nothing"),
    "both ends": (span(0, 8) + span(72, T), foreign, "rows 0 … 7, 72 … 79: nothing"),
    "scattered": (SCATTERED, foreign, "not in 24 (30%); rows "),
    "one row": ([7], foreign, "not in 1 (1%); row 7: nothing of this text"),
    "two rows": ([7, 50], foreign, "not in 2 (2%); rows 7, 50: nothing"),
    "two of five rows three times as long": (
        [i for i in range(T) if i % 5 < 2], lambda h, r: 3 * h[SLOT][r],
        "not in 32 (40%); 2 rows of every 5 from row 0 to row 76: boundary 3 times 3"),
    "a cache block of another place": (
        span(16, 32), lambda h, r: h[SLOT][:16], "rows 16 … 31: training's rows 0 … 15, 16 before where the tokens put them"),
    "a block of a place further on": (
        span(16, 24), lambda h, r: h[SLOT][40:48], "rows 16 … 23: training's rows 40 … 47, 24 after where the tokens"),
    "rows of the layer below": (
        span(30, 50), lambda h, r: h[2][r], "rows 30 … 49: boundary 2 of training's rows 30 … 49"),
    "the second half of the layer below": (
        span(40, T), lambda h, r: h[2][r], "rows 40 … 79: boundary 2 of training's rows 40 … 79"),
    "the layer below until the middle": (
        span(1, 30), lambda h, r: h[2][r], "rows 1 … 29: boundary 2 of training's rows 1 … 29"),
    "a stale context": (
        span(30, 50), lambda h, r: h[SLOT][r] + 0.15 * h[SLOT][r].norm(dim=1, keepdim=True) * unit(rand(20, H, seed=4)), "rows 30 … 49: near to training's state (median error 0.15)"),
    "half of their columns": (
        span(30, 50), lambda h, r: torch.cat([h[SLOT][r, :128], FOREIGN[r, 128:]], 1), "rows 30 … 49: boundary 3 in about columns 0 … 12"),
    "turned about": (span(30, 50), lambda h, r: -h[SLOT][r], "rows 30 … 49: boundary 3 times -1"),
    "two kinds": (
        span(30, 50), lambda h, r: torch.cat([5 * h[SLOT][r[:8]], FOREIGN[r[8:]]]),
        "(25%); rows 38 … 49: nothing of this text (another request's rows, or a buffer not written); rows 30 … 37: boundary 3 times 5"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG_ROWS)
def test_wrong_rows_are_counted_placed_and_told(kind):
    rows, values, words = WRONG_ROWS[kind]
    held = stream()
    (found,) = compare_states({SLOT: put(rows, values)(held)}, held)
    few = len(rows) <= 4  # 5 % of 80
    assert (found.verdict, found.wrong, found.rows) == ("stray" if few else "mixed", len(rows), T), found.sentence
    assert words in found.sentence, found.sentence
    assert dumps.severity(found) == ("WARN" if few else "FAIL")


def test_wrong_rows_of_a_text_whose_beginning_was_cached():
    """The engine's row i is training's i + 10; its rows 20 … 35 hold what belongs 16 rows before: training's 14 … 29."""
    held = stream()
    states = held[SLOT][10:].clone()
    states[20:36] = held[SLOT][14:30]
    (found,) = compare_states({SLOT: states}, held, lag=10)
    assert "rows 20 … 35: training's rows 14 … 29, 16 before where the tokens put them" in found.sentence


def test_the_wrong_rows_of_a_long_text_are_all_found():
    held = stream(rows=900)
    states = held[SLOT].clone()
    states[300:700] = held[SLOT][100:500]
    (found,) = compare_states({SLOT: states}, held)
    assert found.wrong == 400 and "rows 300 … 699: training's rows 100 … 499, 200 before" in found.sentence
    (place,) = found_elsewhere(states, torch.arange(300, 700), held, 0.05)
    assert (place.boundary, place.lag, place.rows) == (SLOT, -200, tuple(range(300, 700)))


def test_embeddings_of_another_text_share_tokens_and_are_still_of_another_text():
    table = rand(40, H, seed=3)
    ids, others = (torch.randint(40, (T,), generator=torch.Generator().manual_seed(s)) for s in (1, 2))
    states = table[torch.cat([ids[:20], others[20:50], ids[50:]])]
    by_chance = int((ids == others)[20:50].sum())
    (found,) = compare_states({0: states}, {0: table[ids]})
    assert (found.verdict, found.wrong) == ("mixed", 30 - by_chance)
    assert "nothing of this text" in found.sentence and "training's rows" not in found.sentence


@pytest.mark.parametrize(("count", "severity"), [(4, "WARN"), (5, "FAIL"), (40, "FAIL")])
def test_rows_that_hold_nothing_are_placed_and_more_than_a_few_fail(count, severity):
    held = stream()
    (found,) = compare_states({SLOT: with_rows(held[SLOT], 30, 30 + count, 0.0)}, held)
    assert dumps.severity(found) == severity
    assert f"{count} rows hold NaN, infinities or only zeros (rows 30 … {29 + count})" in found.sentence


@pytest.mark.parametrize(
    ("first", "lag", "words"),
    [
        (
            8,
            10,
            "2 rows off: its row i is training's row i+8, where the tokens say i+10 (2 rows too many at its start)",
        ),
        (
            12,
            10,
            "2 rows off: its row i is training's row i+12, where the tokens say i+10 (2 rows missing at its start)",
        ),
        (0, 3, "3 rows off: its row i is training's row i, where the tokens say i+3 (3 rows too many at its start)"),
        (5, 0, "5 rows off: its row i is training's row i+5 (5 rows missing at its start)"),
    ],
)
def test_a_lag_other_than_the_tokens_say_is_given_in_training_s_rows(first, lag, words):
    held = stream()
    (found,) = compare_states({SLOT: held[SLOT][first:60]}, held, lag)
    assert found.verdict == "shifted" and words in found.sentence, found.sentence


def test_what_is_not_known_says_how_many_rows_agree():
    """More than half of the rows a little off, by 7 to 19 % in all directions: no kind of damage, and no agreement."""
    held = stream()
    states = held[SLOT].clone()
    length = states[30:].norm(dim=1, keepdim=True) * torch.linspace(0.07, 0.19, 50)[:, None]
    states[30:] += length * unit(rand(50, H, seed=4))
    (found,) = compare_states({SLOT: states}, held)
    assert found.verdict == "unknown" and found.wrong == 50 and "30 of 80 rows agree" in found.sentence


def test_a_shift_that_not_all_rows_follow_says_so():
    held = stream()
    states = torch.cat([held[SLOT][7:60], FOREIGN[60:]])
    (found,) = compare_states({SLOT: states}, held)
    assert found.verdict == "shifted" and "of its 73 rows do not agree even so" in found.sentence


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([5], "row 5"),
        ([5, 6, 7], "rows 5 … 7"),
        ([1, 4, 5, 9], "rows 1, 4 … 5, 9"),
        ([1, 3, 5, 7], "1 row of every 2 from row 1 to row 7"),
        ([0, 1, 5, 6, 10, 11, 15, 16], "2 rows of every 5 from row 0 to row 16"),
        ([0, 2, 5, 9, 14, 20, 21, 30], "rows 0, 2, 5, 9, 14 and 3 more up to row 30"),
    ],
)
def test_rows_are_named_in_few_words(rows, words):
    assert named(rows) == words


@pytest.mark.parametrize(
    ("edges", "width", "parts"),
    [
        ([128], 256, 2), ([64, 128], 256, 4), ([43], 256, 6), ([86], 256, 3), ([96], 576, 6), ([97], 576, 6),
        ([101, 180], 256, None), ([32], 256, 8), ([8], 16, 2), ([5], 16, None), ([2048, 2560], 4096, 8), ([126, 1026], 4096, 32),
    ],
)  # fmt: skip
def test_the_number_of_equal_parts_comes_from_the_edges(edges, width, parts):
    assert equal_parts(edges, width) == parts


def test_columns_are_parted_where_they_change():
    truth, states = stream()[SLOT], FOREIGN.clone()
    states[:, 43:120] = truth[:, 43:120] * (1 + 0.01 * rand(T, 77, seed=3))
    (a, b, wrong), (c, d, right), (e, f, last) = column_runs(states, truth)
    assert (wrong, right, last) == (False, True, False) and (a, b, d, f) == (0, c, e, H)
    assert abs(c - 43) <= 2 and abs(d - 120) <= 2
    assert column_runs(truth, truth) == [(0, H, True)]


def test_near_layers_are_told_apart():
    """Neighbours of cosine 0.99 and more: the one that it is fits best, and its neighbour is not it."""
    held = stream(step=0.04)
    between = torch.nn.functional.cosine_similarity(held[4], held[5], dim=1).median()
    assert between > 0.96
    (right,) = compare_states({4: held[4].bfloat16()}, held)
    (wrong,) = compare_states({4: held[5].bfloat16()}, held)
    assert (right.verdict, wrong.verdict) == ("same", "boundary")
    assert "boundary 5 of training's dump" in wrong.sentence


def test_tokens_say_where_a_cached_prefix_was_left_out():
    """An engine that answers a prompt's beginning from its cache records the rest only: no fault when tokens align."""
    held = stream()
    (found,) = compare_states({SLOT: held[SLOT][20:]}, held, lag=20)
    assert found.verdict == "same" and found.rows == 60
    assert found.by_row[0][0] == 0 and len(found.by_row) == 60


def test_a_boundary_that_training_did_not_record():
    held = stream()
    unknown, known = held.pop(SLOT), held
    (found,) = compare_states({SLOT: unknown}, known)
    assert found.verdict == "unknown" and "not in training's dump" in found.sentence
    (other,) = compare_states({SLOT: known[1]}, known)
    assert other.verdict == "boundary"


def test_inner_products_are_what_a_rotation_keeps():
    states, other = stream()[SLOT][1:], stream(seed=9)[SLOT][1:]
    assert shape_agreement(states @ ROTATION, states) > 0.9999
    assert shape_agreement(other, states) < 0.5
    # fewer rows than columns: Procrustes alone would call any two sets of nearly orthogonal rows alike
    assert procrustes(states @ ROTATION, states) < 1e-5 < procrustes(other, states) < 1
    assert procrustes(3 * states @ ROTATION, states) < 1e-5  # rows at length 1: a factor is told apart
    # 16 equal rows onto 16 orthogonal ones: |EᵀT|_* = √16, so error² = (16 + 16 - 2·4) / 16
    assert procrustes(torch.ones(16, 1) * torch.eye(16)[0], torch.eye(16)) == pytest.approx(1.5**0.5)
    assert math.isnan(shape_agreement(states[:5], states[:5]))


def test_the_fit_by_rotation_is_in_the_table_and_in_the_words():
    held = stream()
    (turned,) = compare_states({SLOT: held[SLOT] @ ROTATION}, held)
    assert turned.procrustes < 1e-5 and "the best rotation leaves an error of 0.000" in turned.sentence
    page = tables.dump_slots([vars(turned) | {"text": "a", "procrustes": 0.1234, "wrong": 77}])._repr_html_()
    assert "error after the best rotation" in page and "0.123" in page and ", 77<" in page


def test_the_picture_draws_error_and_cosine_of_each_row():
    held = stream()
    states = held[SLOT].clone()
    states[20], states[40] = -held[SLOT][20], 3 * held[SLOT][40]  # errors 2 and 2, cosines -1 and 1
    (found,) = compare_states({SLOT: states}, held)
    drawn = plots.state_errors({SLOT: found.by_row}, cosines={SLOT: found.cosine_by_row}, name="a")
    errors, cosines = (axes.get_lines()[0].get_ydata() for axes in drawn.figure.axes)
    assert errors[[20, 40, 60]] == pytest.approx([2, 2, 1e-5], rel=1e-5)
    assert cosines[[20, 40, 60]] == pytest.approx([-1, 1, 1], abs=1e-5)
    assert drawn.figure.axes[1].get_ylim()[0] < -1 and "least: boundary 3 -1.0000" in drawn.alt
    assert len(plots.state_errors({SLOT: found.by_row}).figure.axes) == 1


def test_a_long_dump_uses_its_ends():
    held = stream(rows=400)
    (found,) = compare_states({SLOT: held[SLOT][9:]}, held)
    assert found.verdict == "shifted" and found.lag == 9


def test_no_training_states():
    (found,) = compare_states({SLOT: stream()[SLOT]}, {})
    assert found.verdict == "unusable"


@pytest.mark.parametrize("slot", [1, 15, 27])
def test_real_states_damaged(demo_case, slot):
    """The demo's own states: rows of a common direction, an attention sink, outlier columns, a shared system prompt."""
    states = demo_case.samples["held_00"].states
    held = {k: states[k].float() for k in sorted({0, slot - 1, slot, slot + 1})}
    truth, other = held[slot], demo_case.samples["held_01"].states[slot].float()
    rows, width = min(len(truth), len(other)), truth.shape[1]
    block, below = truth - held[slot - 1], held[slot - 1]
    turn = torch.linalg.qr(rand(width, width, seed=5)).Q
    quarter = torch.cat(
        [other[:rows, : width // 4], truth[:rows, width // 4 : width // 2], other[:rows, width // 2 :]], 1
    )
    sixth = torch.cat([truth[:rows, : width // 6], other[:rows, width // 6 :]], 1)
    mixed = rand(*block.shape, seed=4) * block.std(1, keepdim=True)
    stale, twice = truth.clone(), truth.clone()
    stale[40:56] = truth[60:76]
    twice[50:52] *= 2
    cases = {
        "same": [truth.bfloat16(), truth * (1 + 0.01 * rand(*truth.shape, seed=3))],
        "rounded": [fp8(truth)],
        "columns": [quarter, sixth],
        "mixed": [stale, torch.cat([truth[:40], other[40:60], truth[60:]])],
        "stray": [twice],
        "partial": [below + block / 4, below + block / 4 + mixed * (3 / 16) ** 0.5],
        "boundary": [below],
        "shifted": [truth[7:], torch.cat([truth[:50], truth[52:]])],
        "foreign": [torch.cat([truth[: rows // 2], other[rows // 2 : rows]]), other],
        "scaled": [truth / 4],
        "normed": [norm(truth, 0.5 + rand(width, seed=8).abs()), norm(truth)],
        "increment": [block],
        "rotated": [truth @ turn],
    }
    for verdict, damaged in cases.items():
        for one in damaged:
            (found,) = compare_states({slot: one}, held)
            assert found.verdict == verdict, (verdict, found.sentence)


def test_a_part_of_a_sum_without_the_boundary_below_is_not_guessed(demo_case):
    held = {k: v.float() for k, v in demo_case.samples["held_00"].states.items()}
    states = held[15] + 0.25 * (held[16] - held[15])
    (found,) = compare_states({16: states}, {k: held[k] for k in (0, 15, 27, 30)})
    assert found.verdict == "unknown"
