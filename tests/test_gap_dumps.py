"""States of an engine against those of training: every kind of damage, planted, is named; what must pass passes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eagle3lab.gap import dumps
from eagle3lab.gap.dumps import compare_states
from eagle3lab.gap.rows import procrustes, shape_agreement

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


def own_columns(ranks: int) -> Callable[[dict[int, Tensor]], Tensor]:
    """Only the second rank's columns were gathered; the others hold what was there before."""

    def damage(held: dict[int, Tensor]) -> Tensor:
        width, out = H // ranks, stream(seed=9)[SLOT].clone()
        out[:, width : 2 * width] = held[SLOT][:, width : 2 * width]
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
    "scaled by 1/4, one of four ranks": (lambda h: h[SLOT] / 4, "scaled", "1/4, as where 4 tensor-parallel ranks"),
    "partial sum, TP 2": (part_of_block(2), "partial", "one of about 2"),
    "partial sum, TP 4": (part_of_block(4), "partial", "one of about 4"),
    "partial sum, TP 8": (part_of_block(8), "partial", "one of about 8"),
    "own columns, TP 2": (own_columns(2), "columns", "1 of 2 column blocks only (columns 128 … 255)"),
    "own columns, TP 4": (own_columns(4), "columns", "1 of 4 column blocks only (columns 64 … 127)"),
    "own columns, TP 8": (own_columns(8), "columns", "1 of 8 column blocks only (columns 32 … 63)"),
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
    assert found.rows == min(len(NEAR_MISSES[kind](held[SLOT])), T) - bad


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
    assert procrustes(states @ ROTATION, states) < 1e-6 < procrustes(other, states) < 0.5
    assert math.isnan(shape_agreement(states[:5], states[:5]))


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
    mixed = rand(*block.shape, seed=4) * block.std(1, keepdim=True)
    cases = {
        "same": [truth.bfloat16(), truth * (1 + 0.01 * rand(*truth.shape, seed=3))],
        "rounded": [fp8(truth)],
        "columns": [quarter],
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
