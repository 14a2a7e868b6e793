"""What can have been done to a recorded state, one test a kind: each says in words what it sees, or None.

Every test takes the slot as measured, the rows that meet at the expected boundary (``mine``, ``theirs``, their
``numbers`` in the engine's dump), the slot's states and training's, and the lag that the tokens say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from eagle3lab.gap import rows as rows_of

SAME = 0.05
"""Median relative error of a row up to which two recordings are the same: bfloat16 arithmetic gives up to 0.02."""

EIGHT_BITS = 0.015
"""Median relative error from which on 8-bit rounding is looked for; bfloat16 storage alone gives 0.002."""

ALIKE = 0.999
"""Agreement of inner products that only an orthogonal map leaves."""

MOST_RANKS = 64
"""Tensor-parallel sizes up to here are thought of."""


@dataclass(frozen=True)
class SlotMatch:
    """One slot of an engine's dump beside training's boundaries.

    Attributes:
        slot: what the engine's dump calls boundary ``slot``.
        verdict: one of `MEANINGS`.
        sentence: the verdict in words.
        rows: rows compared at the expected boundary, tokens aligned.
        wrong: those of them that do not agree within `limit_of` their errors.
        cosine: median cosine there.
        cosine_low: its 5 % quantile.
        error: median relative error there.
        scale: median of |engine row| / |training row|.
        best: boundary that fits best by cosine, None when none was there.
        lag: and its lag: the engine's row i goes with training's row i + lag.
        best_cosine: median cosine there.
        shape: agreement of inner products at the expected boundary (1 under any rotation).
        procrustes: relative error that the best orthogonal map leaves there, rows at length 1.
        normed: error of a norm with a weight a column, the engine's state after it.
        blocks: relative error of each of 8 column blocks at the expected boundary.
        bad_rows: rows with NaN, infinities or only zeros in the engine's slot.
        by_row: (row number, relative error) of each row at the expected boundary.
        cosine_by_row: (row number, cosine), likewise.
    """

    slot: int
    verdict: str
    sentence: str
    rows: int = 0
    wrong: int = 0
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
    cosine_by_row: tuple[tuple[int, float], ...] = ()


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


def limit_of(errors: Tensor) -> float:
    """Relative error up to which a row agrees: `SAME`, or four times what is usual where the arithmetic is coarse."""
    usual = errors[errors <= SAME]
    return max(SAME, 4 * float(usual.median())) if len(usual) else SAME


def elsewhere(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
               lag: int) -> Found:  # fmt: skip
    """Another boundary, or the same one some rows off."""
    if m.best is None or m.best_cosine < 0.99:
        return None
    a, b, _ = rows_of.pairs(states, training[m.best], m.lag)
    off = rows_of.errors(a, b)
    if len(off) < 6 or float(off.median()) > SAME:
        return None
    apart = int((off > limit_of(off)).sum())
    rest = f"; {apart} of its {len(off)} rows do not agree even so" if apart else ""
    moved = m.lag - lag
    by_tokens = f", where the tokens say {_row(lag)}" if lag else ""
    if m.best == m.slot and moved:
        words = "missing at its start" if moved > 0 else "too many at its start"
        return "shifted", (
            f"boundary {m.slot}, {abs(moved)} rows off: its row i is training's row {_row(m.lag)}{by_tokens} "
            f"({abs(moved)} rows {words}){rest}"
        )
    also = f", and {moved:+d} rows off" if moved else ""
    return "boundary", f"it is boundary {m.best} of training's dump, not {m.slot}{also}{rest}"


def _row(lag: int) -> str:
    return f"i{lag:+d}" if lag else "i"


def scaled(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
            lag: int) -> Found:  # fmt: skip
    """The same directions, or all turned about, longer or shorter by one factor or by one a row."""
    for boundary in dict.fromkeys(b for b in (m.slot, m.best) if b in training):
        assert boundary is not None
        off = lag if boundary == m.slot else m.lag
        a, b, _ = rows_of.pairs(states, training[boundary], off)
        cosine = float(rows_of.cosines(a, b).median()) if len(a) >= 6 else 0.0
        if abs(cosine) < 1 - SAME**2:
            continue
        ratio = a.norm(dim=1) / b.norm(dim=1)
        middle = float(ratio.median())
        spread = float((ratio / middle - 1).abs().median())
        even = min(float((n / n.median() - 1).abs().median()) for n in (a.norm(dim=1), b.norm(dim=1)))
        sign = "-" if cosine < 0 else ""
        factors = f"{sign}{float(ratio.min()):.3g} … {sign}{float(ratio.max()):.3g}"
        # rows of one length where the other's are not: a norm, however alike its rows were in length before
        if spread > 0.003 and even < 0.25 * spread:
            return "normed", (
                f"boundary {boundary}, every row brought to a length of its own (factors {factors}): a norm without a "
                "weight lies between the two"
            )
        if spread > SAME:
            return "scaled", f"boundary {boundary}, every row times a factor of its own ({factors})"
        if cosine < 0:
            return "scaled", f"boundary {boundary} times {-middle:.4g}: its sign is turned"
        if abs(middle - 1) <= SAME:  # near in direction and length, and yet not it: a neighbour, or a part of a sum
            continue
        return "scaled", f"boundary {boundary} times {middle:.4g}{_ranks(middle)}"
    return None


def _ranks(factor: float) -> str:
    """What a factor can come from where tensor-parallel ranks are added up."""
    ranks = round(max(factor, 1 / factor))
    if not 2 <= ranks <= 16 or abs(max(factor, 1 / factor) / ranks - 1) > 0.01:
        return ""
    if factor > 1:
        return f" (as where {ranks} tensor-parallel ranks each held the whole and were added up)"
    return f" (1/{ranks}: as where {ranks} tensor-parallel ranks were averaged, not added up)"


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
    """Right in some runs of columns only, as where one rank's columns, or stale ones, stand beside the right ones."""
    runs = rows_of.column_runs(mine, theirs) if len(mine) else []
    if len({right for _, _, right in runs}) < 2:
        return None
    width, trim = mine.shape[1], 2 if mine.shape[1] >= 64 else 0  # an edge may be found a column or two off
    parts = {(a, b): slice(a + trim * (a > 0), b - trim * (b < width)) for a, b, _ in runs}
    errors = {ends: float(rows_of.errors(mine[:, part], theirs[:, part]).median()) for ends, part in parts.items()}
    off = min(errors[a, b] for a, b, right in runs if not right)
    if off <= 4 * SAME or max(errors[a, b] for a, b, right in runs if right) > SAME:
        return None
    ranks = rows_of.equal_parts([a for a, _, _ in runs[1:]], width)
    good, where = [(a, b) for a, b, right in runs if right], "only"
    why = "what is wrong are no equal parts, as tensor-parallel ranks hold"
    if ranks:
        part = -(-width // ranks)
        if width % ranks == 0:
            good = [(part * round(a / part), part * round(b / part)) for a, b in good]
        where = f"of {ranks} column blocks only"
        why = f"as where the states of {ranks} tensor-parallel ranks, or of a multiple, were not gathered"
    named = ", ".join(f"{a} … {b - 1}" for a, b in good[:4]) + (" and more" if len(good) > 4 else "")
    held = (
        f"{sum(max(1, round((b - a) / part)) for a, b in good)} {where} (columns {named})"
        if ranks
        else f"columns {named} only"
    )
    return "columns", f"boundary {m.slot} in {held}; the others differ (median error {off:.2f} or more): {why}"


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
    return "partial", (
        f"boundary {m.slot - 1} plus {share:.3f} of what its block adds: a partial sum, as from one of about "
        f"{round(1 / share)} tensor-parallel ranks before their all-reduce; the error is spread over all columns"
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
        ordered = float(rows_of.errors(rows_of.unit(a).sort(1).values, rows_of.unit(b).sort(1).values).median()) <= SAME
        what = "with its columns in another order" if ordered else "rotated"
        why = (
            ""
            if ordered
            else " (a quantiser's rotation of the residual stream folded into the target's weights does this)"
        )
        alike, apart = rows_of.shape_agreement(a, b), float(rows_of.cosines(a, b).median())
        factor = float((a.norm(dim=1) / b.norm(dim=1)).median())
        times = f" and times {factor:.3g}" if abs(factor - 1) > SAME else ""
        return "rotated", (
            f"boundary {boundary} {what}{times}: inner products between rows agree to {alike:.4f} while the rows have "
            f"cosine {apart:.3f}, and the best rotation leaves an error of {rows_of.procrustes(a, b):.3f}{why}"
        )
    return None
