"""What can have been done to a recorded state, one test a kind: each says in words what it sees, or None.

Every test takes the slot as measured, the rows that meet at the expected boundary (``mine``, ``theirs``, their
``numbers`` in the engine's dump), the slot's states and training's, and the lag that the tokens say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.gap import rows as rows_of

SAME = 0.05
"""Median relative error of a row up to which two recordings are the same: bfloat16 arithmetic gives up to 0.02."""

EIGHT_BITS = 0.015
"""Median relative error from which on 8-bit rounding is looked for; bfloat16 storage alone gives 0.002."""

ALIKE = 0.999
"""Agreement of inner products that only an orthogonal map leaves."""

PARTS = (2, 4, 8, 16)
"""Tensor-parallel sizes looked for."""


@dataclass(frozen=True)
class SlotMatch:
    """One slot of an engine's dump beside training's boundaries.

    Attributes:
        slot: what the engine's dump calls boundary ``slot``.
        verdict: one of `MEANINGS`.
        sentence: the verdict in words.
        rows: rows compared at the expected boundary, tokens aligned.
        cosine: median cosine there.
        cosine_low: its 5 % quantile.
        error: median relative error there.
        scale: median of |engine row| / |training row|.
        best: boundary that fits best by cosine, None when none was there.
        lag: and its lag: the engine's row i goes with training's row i + lag.
        best_cosine: median cosine there.
        shape: agreement of inner products at the expected boundary (1 under any rotation).
        procrustes: what the best orthogonal map leaves, at the expected boundary.
        normed: error of a norm with a weight a column, the engine's state after it.
        blocks: relative error of each of 8 column blocks at the expected boundary.
        bad_rows: rows with NaN, infinities or only zeros in the engine's slot.
        by_row: relative error of each row at the expected boundary, and the row numbers.
    """

    slot: int
    verdict: str
    sentence: str
    rows: int = 0
    cosine: float = math.nan
    cosine_low: float = math.nan
    error: float = math.nan
    scale: float = math.nan
    best: int | None = None
    lag: int = 0
    best_cosine: float = math.nan
    shape: float = math.nan
    procrustes: float = math.nan
    normed: float = math.nan
    blocks: tuple[float, ...] = ()
    bad_rows: int = 0
    by_row: tuple[tuple[int, float], ...] = ()


def blocks(mine: Tensor, theirs: Tensor, count: int) -> list[float]:
    """Relative error of each of ``count`` column blocks: median over rows; [] where the width does not divide."""
    if mine.shape[1] % count:
        return []
    parts = zip(mine.chunk(count, 1), theirs.chunk(count, 1), strict=True)
    return [float(rows_of.errors(a, b).median()) for a, b in parts]


def error_of(states: Tensor, truth: Tensor, lag: int) -> float:
    """Median relative error of the rows that meet under ``lag``; infinite below 6 of them."""
    mine, theirs, _ = rows_of.pairs(states, truth, lag)
    return float(rows_of.errors(mine, theirs).median()) if len(mine) >= 6 else math.inf


Found = tuple[str, str] | None


def tail(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
          lag: int) -> Found:  # fmt: skip
    """Right up to some row and wrong after it (or the other way round): rows of another request."""
    if len(mine) < 12:
        return None
    good = (rows_of.errors(mine, theirs) <= SAME).double()
    if not 0.1 <= float(good.mean()) <= 0.95:
        return None
    # the cut that parts good rows from bad ones best: good before it and bad after it, or bad before and good after
    ahead = torch.cat([good.new_zeros(1), good.cumsum(0)])
    at = torch.arange(len(good) + 1)
    first_good = ahead + (len(good) - at) - (ahead[-1] - ahead)
    cut = int(first_good[4:-4].argmax()) + 4
    right = float(first_good[cut]) / len(good)
    back = len(good) - first_good
    other = int(back[4:-4].argmax()) + 4
    if float(back[other]) / len(good) > max(right, 0.9):
        begins = f"boundary {m.slot} from row {int(numbers[other])} on"
        return (
            "foreign",
            f"{begins}; the rows before it are of something else (another request's, or a buffer not written)",
        )
    if right < 0.9:
        return None
    row = int(numbers[cut])
    rest = rows_of.best_lags(states[row:], {m.slot: training[m.slot]})[0]
    moved = rest.lag - row
    if rest.cosine > 0.995 and moved != lag:
        how, why = ("later", "dropped") if moved > lag else ("earlier", "repeated")
        off = f"its rows are {abs(moved - lag)} {how} than the tokens say: rows were {why}"
        return "shifted", f"boundary {m.slot} up to row {row}; from there on {off}"
    return (
        "foreign",
        f"boundary {m.slot} up to row {row}; from there on its rows belong to another request or another text",
    )


def elsewhere(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
               lag: int) -> Found:  # fmt: skip
    """Another boundary, or the same one some rows off."""
    if m.best is None or m.best_cosine < 0.99:
        return None
    if error_of(states, training[m.best], m.lag) > SAME:
        return None
    moved = m.lag - lag
    if m.best == m.slot or not moved:
        if not moved:
            return "boundary", f"it is boundary {m.best} of training's dump, not {m.slot}"
        words = "missing at its start" if moved > 0 else "too many at its start"
        return (
            "shifted",
            f"boundary {m.slot}, {abs(moved)} rows off: its row i is training's row i{moved:+d} "
            f"({abs(moved)} rows {words})",
        )
    return "boundary", f"it is boundary {m.best} of training's dump, not {m.slot}, and {moved:+d} rows off"


def scaled(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
            lag: int) -> Found:  # fmt: skip
    """The same directions, all longer or shorter by one factor."""
    for boundary in dict.fromkeys(b for b in (m.slot, m.best) if b in training):
        assert boundary is not None
        off = lag if boundary == m.slot else m.lag
        a, b, _ = rows_of.pairs(states, training[boundary], off)
        if len(a) < 6 or float(rows_of.cosines(a, b).median()) < 1 - SAME**2:
            continue
        ratio = a.norm(dim=1) / b.norm(dim=1)
        middle = float(ratio.median())
        spread = float((ratio / middle - 1).abs().median())
        own = a.norm(dim=1)
        even = float((own / own.median() - 1).abs().median())
        # rows of one length where training's are not: a norm, however alike training's rows are in length
        if spread > SAME or (spread > 0.003 and even < 0.25 * spread):
            factors = f"{float(ratio.min()):.3g} … {float(ratio.max()):.3g}"
            return "normed", (
                f"boundary {boundary}, every row brought to a length of its own (factors {factors}): a norm without a "
                "weight lies between the two"
            )
        if abs(middle - 1) <= SAME:  # near in direction and length, and yet not it: a neighbour, or a part of a sum
            continue
        parts = next((n for n in PARTS if abs(middle * n - 1) < SAME or abs(middle / n - 1) < SAME), None)
        why = f": {'1/' if middle < 1 else ''}{parts}, as where {parts} tensor-parallel ranks were " \
              f"{'not added up' if middle < 1 else 'added up twice'}" if parts else ""  # fmt: skip
        return "scaled", f"boundary {boundary} times {middle:.4g}{why}"
    return None


def normed(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
            lag: int) -> Found:  # fmt: skip
    """One of the two went through an RMSNorm with a weight."""
    for boundary in dict.fromkeys(b for b in (m.slot, m.best, *training) if b in training):
        assert boundary is not None
        a, b, _ = rows_of.pairs(states, training[boundary], lag)
        if len(a) < 8:
            continue
        after, before = rows_of.column_fit(a, b), rows_of.column_fit(b, a)
        if min(after, before) > SAME:
            continue
        who = f"the engine's state is boundary {boundary} after an RMSNorm, training's is before it"
        if before < after:
            who = f"training's boundary {boundary} is after an RMSNorm, the engine's state before it"
        return "normed", f"{who} (one factor a column leaves an error of {min(after, before):.3f})"
    return None


def columns(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
             lag: int) -> Found:  # fmt: skip
    """Right in some column blocks only, as where one rank's columns, or stale ones, stand beside the right ones."""
    for count in PARTS if len(mine) else ():
        errors = blocks(mine, theirs, count)
        good = [i for i, e in enumerate(errors) if e <= SAME]
        bad = [i for i, e in enumerate(errors) if e > 4 * SAME]
        if good and bad and len(good) + len(bad) == count:
            width = mine.shape[1] // count
            named = ", ".join(f"{i * width} … {(i + 1) * width - 1}" for i in good[:4])
            off = min(errors[i] for i in bad)
            return "columns", (
                f"boundary {m.slot} in {len(good)} of {count} column blocks only (columns {named}); the others differ "
                f"(median error {off:.2f} or more): the states of {count} tensor-parallel ranks were not gathered"
            )
    return None


def partial(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
             lag: int) -> Found:  # fmt: skip
    """State before the block plus a part of what the block adds: a sum over ranks that was not finished.

    With d what the block adds and e what the engine has of it, a rank's part p (d = Σ p over N ranks) has
    ⟨e, d⟩ ≈ |d|²/N, and ⟨e, e⟩ the same where the parts are unrelated; a neighbouring layer would have e = 0 or d.
    """
    if m.slot - 1 not in training or not len(mine):
        return None
    first, last = int(numbers[0]), int(numbers[-1]) + 1
    before = training[m.slot - 1][first + lag : last + lag].float()
    keep = numbers - first
    d, e = theirs - before[keep], mine - before[keep]
    size = d.square().sum(1).clamp(min=1e-30)
    share = float(((e * d).sum(1) / size).median())
    own = float((e.square().sum(1) / size).median())
    left = float(((e - share * d).square().sum(1) / size).median()) ** 0.5
    if not 0.02 < share < 0.85 or own > 1.5 * share or left > 1.2 * max(share * (1 - share), 1e-9) ** 0.5:
        return None
    ranks = min(PARTS, key=lambda n: abs(math.log(share * n)))
    return "partial", (
        f"boundary {m.slot - 1} plus {share:.2f} of what its block adds: a partial sum, as from one of about {ranks} "
        "tensor-parallel ranks before their all-reduce; the error is spread over all columns"
    )


def increment(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
               lag: int) -> Found:  # fmt: skip
    """What one block adds, or all blocks between two recorded boundaries, without the residual."""
    held = sorted(training)
    for low, high in [(a, b) for a in held for b in held if a < b]:
        if len(training[high]) != len(training[low]):
            continue
        pair = training[high].float() - training[low].float()
        off = error_of(states, pair, lag)
        # less a state that is small beside it says nothing: every boundary is nearly itself less the embedding
        if off <= min(SAME, 0.25 * error_of(states, training[high], lag)):
            return "increment", (
                f"it is boundary {high} less boundary {low}: what the blocks between add, without the residual stream"
            )
    return None


def rotated(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
             lag: int) -> Found:  # fmt: skip
    """All inner products between rows agree, the rows do not: an orthogonal map, or columns in another order."""
    for boundary in dict.fromkeys(b for b in (m.slot, *training) if b in training):
        a, b, _ = rows_of.pairs(states, training[boundary], lag)
        if len(a) < 6 or rows_of.shape_agreement(a, b) < ALIKE or float(rows_of.cosines(a, b).median()) > 0.95:
            continue
        ordered = float(rows_of.errors(a.sort(1).values, b.sort(1).values).median()) <= SAME
        what = "with its columns in another order" if ordered else "rotated"
        why = (
            ""
            if ordered
            else " (a quantiser's rotation of the residual stream folded into the target's weights does this)"
        )
        alike, apart = rows_of.shape_agreement(a, b), float(rows_of.cosines(a, b).median())
        return "rotated", (
            f"boundary {boundary} {what}: inner products between rows agree to {alike:.4f} while the rows have cosine "
            f"{apart:.3f}{why}"
        )
    return None
