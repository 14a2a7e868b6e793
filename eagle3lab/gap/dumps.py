"""The states an engine recorded against those of training, slot by slot: the same, or what was done to them.

Plain tensors go in. For each slot the verdict is the first of these that holds, from plain agreement to none:

``same`` (every row), ``rounded`` (8 bits), ``columns`` (only some column blocks are right), ``foreign`` (rows of
something else from some row on), ``shifted`` (rows missing or moved), ``stray`` (a few rows are wrong), ``mixed`` (more
of them), ``boundary`` (another layer), ``scaled``, ``normed`` (after an RMSNorm, or before one), ``partial`` (a
tensor-parallel rank's part of the block's output), ``increment`` (the block's output without the residual),
``rotated``, ``unknown``; ``unusable`` where there is nothing to compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from eagle3lab.gap import damage
from eagle3lab.gap import rows as rows_of
from eagle3lab.gap.damage import SAME, Found, SlotMatch
from eagle3lab.gap.pairing import found_elsewhere, named

MEANINGS = {
    "same": "PASS", "rounded": "WARN", "stray": "WARN", "mixed": "FAIL", "foreign": "FAIL", "shifted": "FAIL",
    "boundary": "FAIL", "scaled": "FAIL", "normed": "FAIL", "columns": "FAIL", "partial": "FAIL", "increment": "FAIL",
    "rotated": "FAIL", "unknown": "WARN", "unusable": "BLOCKED",
}  # fmt: skip
"""Verdict → severity of sound rows."""

FOREIGN = "nothing of this text (another request's rows, or a buffer not written)"

FEW = 0.05
"""Share of rows up to which wrong ones are a warning."""


def severity(match: SlotMatch) -> str:
    """The severity of a slot's verdict, rows that hold NaN, infinities or only zeros counted in."""
    found = MEANINGS[match.verdict]
    if not match.bad_rows or found not in ("PASS", "WARN"):
        return found
    return "FAIL" if match.bad_rows > FEW * (match.rows + match.bad_rows) else "WARN"


def compare_states(engine: Mapping[int, Tensor], training: Mapping[int, Tensor], lag: int = 0) -> list[SlotMatch]:
    """Each slot of an engine's dump against training's dump of the same tokens.

    Args:
        engine: boundary as the engine's dump claims it → [Te, Ht].
        training: boundary → [Tt, Ht]; neighbours of the engine's boundaries make more faults visible.
        lag: where the tokens say that the engine's row i is training's row i + lag.
    """
    return [_slot(slot, states, dict(training), lag) for slot, states in engine.items()]


def _slot(slot: int, states: Tensor, training: dict[int, Tensor], lag: int) -> SlotMatch:
    unsound = (~rows_of.finite(states)).nonzero()[:, 0].tolist()
    bad = len(unsound)
    widths = {s.shape[1] for s in training.values()}
    if states.shape[1] not in widths:
        words = f"its states are {states.shape[1]} wide, training's {', '.join(map(str, sorted(widths))) or 'none'}"
        parts = [
            n
            for n in range(2, damage.MOST_RANKS + 1)
            if states.shape[1] * n in widths or states.shape[1] in {w * n for w in widths}
        ]
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
    unsound_words = f"; {bad} rows hold NaN, infinities or only zeros ({named(unsound)})" if bad else ""
    return replace(match, verdict=verdict, sentence=sentence + unsound_words)


def _measured(match: SlotMatch, states: Tensor, truth: Tensor, lag: int) -> SlotMatch:
    mine, theirs, numbers = rows_of.pairs(states, truth, lag)
    if len(mine) < 6:
        return match
    cosines, errors = rows_of.cosines(mine, theirs), rows_of.errors(mine, theirs)
    return replace(
        match, rows=len(mine), wrong=int((errors > damage.limit_of(errors)).sum()),
        cosine=float(cosines.median()), cosine_low=float(cosines.quantile(0.05)),
        error=float(errors.median()), scale=float((mine.norm(dim=1) / theirs.norm(dim=1)).median()),
        shape=rows_of.shape_agreement(mine, theirs), procrustes=rows_of.procrustes(mine, theirs),
        normed=rows_of.column_fit(mine, theirs), blocks=tuple(damage.blocks(mine, theirs, 8)),
        by_row=tuple(zip(numbers.tolist(), errors.tolist(), strict=True)),
        cosine_by_row=tuple(zip(numbers.tolist(), cosines.tolist(), strict=True)),
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
    some = f", {m.rows - m.wrong} of {m.rows} rows agree" if m.wrong < m.rows else ""
    return "unknown", (
        f"not boundary {m.slot} as training recorded it (median error {m.error:.3f}, cosine {m.cosine:.4f}{some}), and "
        f"none of the known changes; nearest is boundary {m.best} (cosine {m.best_cosine:.4f}): a layer that training "
        "did not record, a part of a sum, or another precision or text"
    )  # fmt: skip


def _agreeing(m: SlotMatch, states: Tensor, training: dict[int, Tensor], lag: int) -> tuple[str, str]:
    mine, theirs, numbers = rows_of.pairs(states, training[m.slot], lag)
    other = next(
        (b for b in training if b != m.slot and damage.error_of(states, training[b], lag) < 0.5 * m.error), None
    )
    if other is not None and m.error > damage.EIGHT_BITS:
        return "boundary", f"it is boundary {other} of training's dump, not {m.slot} (near to each other)"
    for test in (tail, mixed):  # the median hides what up to half of the rows are
        found = test(m, mine, theirs, numbers, states, training, lag)
        if found is not None:
            return found
    ratio = mine.norm(dim=1) / theirs.norm(dim=1)
    apart = abs(m.scale - 1)
    if m.error >= damage.EIGHT_BITS and apart > 0.9 * m.error and float((ratio - m.scale).abs().median()) < 0.1 * apart:
        return "scaled", f"boundary {m.slot} times {m.scale:.4g}: all rows alike, which rounding does not do"
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


def tail(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
          lag: int) -> Found:  # fmt: skip
    """Right up to some row and wrong from there on, or the other way round."""
    off = rows_of.errors(mine, theirs)
    good = off <= damage.limit_of(off)
    right = good.nonzero()[:, 0].tolist()
    if len(good) < 12 or not 0.1 <= len(right) / len(good) <= 1 - FEW:
        return None
    wrong = (~good).nonzero()[:, 0].tolist()
    cut, begin, limit = wrong[0], wrong[-1] + 1, damage.limit_of(off)
    after = begin > 3 and len(good) - begin > 3 and float(good[:begin].double().mean()) <= 0.1
    before = cut > 3 and len(good) - cut > 3 and float(good[cut:].double().mean()) <= 0.1
    if not after and not before:
        return None
    row = int(numbers[cut])
    if before:
        rest = rows_of.best_lags(states[row:], {m.slot: training[m.slot]})[0]
        moved = rest.lag - row
        if rest.cosine > 0.995 and moved != lag:
            how, why = ("later", "dropped") if moved > lag else ("earlier", "repeated")
            return (
                "shifted",
                f"boundary {m.slot} up to row {row}; from there on its rows are {abs(moved - lag)} {how} than the "
                f"tokens say: rows were {why}",
            )
    groups = _kinds(m.slot, ~good, mine, theirs, numbers, states, training, lag, limit)
    if groups[0][1] != FOREIGN or len(groups[0][0]) < 0.9 * len(wrong):
        return None  # `mixed` says what they are
    if before:
        return (
            "foreign",
            f"boundary {m.slot} up to row {row}; from there on its rows belong to another request or another text",
        )
    return (
        "foreign",
        f"boundary {m.slot} from row {int(numbers[begin])} on; the rows before it are of something else (another "
        "request's, or a buffer not written)",
    )


def _near_it(off: Tensor, theirs: Tensor) -> Tensor:
    """Bool [R]: rows not half as far from training's as training's rows beside each other usually are."""
    return off < 0.5 * rows_of.errors(theirs.roll(1, 0), theirs).median()


def mixed(m: SlotMatch, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor, training: dict[int, Tensor],
           lag: int) -> Found:  # fmt: skip
    """Some rows right and some wrong, wherever they lie, and what the wrong ones are."""
    off = rows_of.errors(mine, theirs)
    limit = damage.limit_of(off)
    good, bad = int((off <= limit).sum()), off > limit
    if good < max(3, 0.1 * len(off)) or good == len(off):
        return None
    if float(off.median()) > SAME:
        clear = float(((off <= limit) | (off > 4 * SAME)).double().mean())
        best = rows_of.pairs(states, training[m.best], m.lag) if m.best is not None else (mine[:0],) * 3
        whole = float((rows_of.errors(*best[:2]) <= SAME).double().mean()) if len(best[0]) else 0.0
        if clear < 0.9 or whole > 1 - FEW:  # a state near to this one, or all of it elsewhere
            return None
    share = int(bad.sum()) / len(off)
    groups = _kinds(m.slot, bad, mine, theirs, numbers, states, training, lag, limit)
    told = "; ".join(f"{named(rows)}: {what}" for rows, what in groups)
    return (
        "stray" if share <= FEW else "mixed",
        f"boundary {m.slot} in {good} of {len(off)} rows, not in {len(off) - good} ({share:.0%}); {told}",
    )


def _kinds(slot: int, bad: Tensor, mine: Tensor, theirs: Tensor, numbers: Tensor, states: Tensor,
           training: dict[int, Tensor], lag: int, limit: float) -> list[tuple[list[int], str]]:  # fmt: skip
    """Wrong rows by what they are, in words, most rows first."""
    out: list[tuple[list[int], str]] = []
    own_first = {b: training[b] for b in (slot, *training) if training[b].shape[1] == mine.shape[1]}
    for place in found_elsewhere(states, numbers[bad], own_first, limit, lag):
        moved, rows = place.lag - lag, list(place.rows)
        of = f"boundary {place.boundary} of training's" if place.boundary != slot else "training's"
        side = "before" if moved < 0 else "after"
        away = f", {abs(moved)} {side} where the tokens put them" if moved else ""
        out.append((rows, f"{of} {named([r + place.lag for r in rows])}{away}"))
        bad = bad & ~torch.isin(numbers, torch.tensor(rows))
    cosine, ratio = rows_of.cosines(mine, theirs), mine.norm(dim=1) / theirs.norm(dim=1)
    along = bad & (cosine.abs() >= 1 - SAME**2)
    if bool(along.any()):
        factors = (ratio * cosine.sign())[along]
        middle = float(factors.median())
        one = float((factors - middle).abs().max()) <= SAME * abs(middle)
        times = f"{middle:.3g}" if one else f"{float(factors.min()):.3g} … {float(factors.max()):.3g}"
        out.append((numbers[along].tolist(), f"boundary {slot} times {times}"))
    off = rows_of.errors(mine, theirs)
    rest = bad & ~along
    runs = rows_of.column_runs(mine[rest], theirs[rest]) if int(rest.sum()) >= 6 else []
    held = [f"{a} … {b - 1}" for a, b, right in runs if right]
    if held and len(held) < len(runs):
        out.append((numbers[rest].tolist(), f"boundary {slot} in about columns {', '.join(held[:4])} only"))
        rest = torch.zeros_like(rest)
    near = rest & _near_it(off, theirs)
    if bool(near.any()):
        why = (
            f"near to training's state (median error {float(off[near].median()):.2f}), as the same token in another "
            "context: stale or foreign keys and values were read"
        )
        out.append((numbers[near].tolist(), why))
    rest = rest & ~near
    if bool(rest.any()):
        out.append((numbers[rest].tolist(), FOREIGN))
    return sorted(out, key=lambda pair: -len(pair[0]))


TESTS = (
    damage.columns, tail, mixed, damage.elsewhere, damage.scaled, damage.normed, damage.partial, damage.increment,
    damage.rotated,
)  # fmt: skip
"""Tried in this order where a slot is not what training recorded."""
