"""The states an engine recorded against those of training, slot by slot: the same, or what was done to them.

Plain tensors go in. For each slot the verdict is the first of these that holds, from plain agreement to none:

``same``, ``rounded`` (8 bits), ``columns`` (only some column blocks are right), ``foreign`` (rows of something else
from some row on), ``shifted`` (rows missing or moved), ``boundary`` (another layer), ``scaled``, ``normed`` (after an
RMSNorm, or before one), ``partial`` (a tensor-parallel rank's part of the block's output), ``increment`` (the block's
output without the residual), ``rotated``, ``unknown``; ``unusable`` where there is nothing to compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from eagle3lab.gap import damage
from eagle3lab.gap import rows as rows_of
from eagle3lab.gap.damage import SlotMatch

MEANINGS = {
    "same": "PASS", "rounded": "WARN", "foreign": "FAIL", "shifted": "FAIL", "boundary": "FAIL", "scaled": "FAIL",
    "normed": "FAIL", "columns": "FAIL", "partial": "FAIL", "increment": "FAIL", "rotated": "FAIL", "unknown": "WARN",
    "unusable": "BLOCKED",
}  # fmt: skip
"""Verdict → severity."""

TESTS = (
    damage.columns, damage.tail, damage.elsewhere, damage.scaled, damage.normed, damage.partial, damage.increment,
    damage.rotated,
)  # fmt: skip
"""Tried in this order where a slot is not what training recorded."""


def compare_states(engine: Mapping[int, Tensor], training: Mapping[int, Tensor], lag: int = 0) -> list[SlotMatch]:
    """Each slot of an engine's dump against training's dump of the same tokens.

    Args:
        engine: boundary as the engine's dump claims it → [Te, Ht].
        training: boundary → [Tt, Ht]; neighbours of the engine's boundaries make more faults visible.
        lag: where the tokens say that the engine's row i is training's row i + lag.
    """
    return [_slot(slot, states, dict(training), lag) for slot, states in engine.items()]


def _slot(slot: int, states: Tensor, training: dict[int, Tensor], lag: int) -> SlotMatch:
    bad = int((~rows_of.finite(states)).sum())
    widths = {s.shape[1] for s in training.values()}
    if states.shape[1] not in widths:
        words = f"its states are {states.shape[1]} wide, training's {', '.join(map(str, sorted(widths))) or 'none'}"
        parts = [n for n in damage.PARTS if states.shape[1] * n in widths or states.shape[1] in {w * n for w in widths}]
        tell = (
            f": 1 to {parts[0]}, as with the states of one tensor-parallel rank, or of all side by side"
            if parts
            else ""
        )
        return SlotMatch(slot, "unusable", words + tell, bad_rows=bad)
    if len(states) - bad < 6:
        return SlotMatch(
            slot, "unusable", f"{len(states) - bad} sound rows of {len(states)} are too few to compare", bad_rows=bad
        )
    found = rows_of.best_lags(states, training)
    top = found[0]
    match = SlotMatch(slot, "", "", bad_rows=bad, best=top.boundary, lag=top.lag, best_cosine=top.cosine)
    if slot in training:
        match = _measured(match, states, training[slot], lag)
    verdict, sentence = _judged(match, states, training, lag)
    return replace(
        match, verdict=verdict, sentence=sentence + (f"; {bad} rows hold NaN, infinities or only zeros" if bad else "")
    )


def _measured(match: SlotMatch, states: Tensor, truth: Tensor, lag: int) -> SlotMatch:
    mine, theirs, numbers = rows_of.pairs(states, truth, lag)
    if len(mine) < 6:
        return match
    cosines, errors = rows_of.cosines(mine, theirs), rows_of.errors(mine, theirs)
    return replace(
        match, rows=len(mine), cosine=float(cosines.median()), cosine_low=float(cosines.quantile(0.05)),
        error=float(errors.median()), scale=float((mine.norm(dim=1) / theirs.norm(dim=1)).median()),
        shape=rows_of.shape_agreement(mine, theirs), procrustes=rows_of.procrustes(mine, theirs),
        normed=rows_of.column_fit(mine, theirs), blocks=tuple(damage.blocks(mine, theirs, 8)),
        by_row=tuple(zip(numbers.tolist(), errors.tolist(), strict=True)),
    )  # fmt: skip


def _judged(m: SlotMatch, states: Tensor, training: dict[int, Tensor], lag: int) -> tuple[str, str]:
    """The verdict and its sentence, tests in the module's order."""
    if m.rows and m.error <= damage.SAME:
        return _agreeing(m, states, training, lag)
    mine, theirs, numbers = rows_of.pairs(states, training[m.slot], lag) if m.slot in training else (states[:0],) * 3
    for test in TESTS:
        found = test(m, mine, theirs, numbers, states, training, lag)
        if found is not None:
            return found
    if not m.rows:
        return "unknown", f"boundary {m.slot} is not in training's dump, and no recorded boundary is this state"
    return "unknown", (
        f"not boundary {m.slot} as training recorded it (median error {m.error:.3f}, cosine {m.cosine:.4f}), and none "
        f"of the known changes; nearest is boundary {m.best} (cosine {m.best_cosine:.4f}): a layer that training did "
        "not record, a part of a sum, or another precision or text"
    )  # fmt: skip


def _agreeing(m: SlotMatch, states: Tensor, training: dict[int, Tensor], lag: int) -> tuple[str, str]:
    mine, theirs, _ = rows_of.pairs(states, training[m.slot], lag)
    other = next(
        (b for b in training if b != m.slot and damage.error_of(states, training[b], lag) < 0.5 * m.error), None
    )
    if other is not None and m.error > damage.EIGHT_BITS:
        return "boundary", f"it is boundary {other} of training's dump, not {m.slot} (near to each other)"
    wrong = (rows_of.errors(mine, theirs) > 4 * damage.SAME).double()
    if float(wrong.mean()) > 0.05:  # the median hides a bad third
        found = damage.tail(m, mine, theirs, rows_of.pairs(states, training[m.slot], lag)[2], states, training, lag)
        if found is not None:
            return found
    size = rows_of.distinct_sizes(mine)
    if m.error >= damage.EIGHT_BITS and mine.shape[1] >= 256 and size <= 127:
        return (
            "rounded",
            f"boundary {m.slot}, rounded to 8 bits: {size:.0f} distinct sizes a row, median error {m.error:.3f}",
        )
    return (
        "same",
        f"boundary {m.slot} as training recorded it: median error {m.error:.4f}, cosine {m.cosine:.5f}, {m.rows} rows",
    )
