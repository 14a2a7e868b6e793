"""Two drafts, or two readings of one, on the same positions: what one gains where, in pairs.

The two are scored on the same recorded tokens: draft 1 of one is held against draft 1 of the other for the same token,
which readings of another shift say at another row. A difference is the second less the first, counted on tokens that
both score; its interval draws whole samples, both sides from the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.acceptance import Acceptance, Evaluation, resampled
from eagle3lab.errors import Blocked
from eagle3lab.gap.resample import FEWEST, Draws
from eagle3lab.records import Interval, Sample

WIDTH = 16
"""Tokens of a reply in one bucket of positions."""


@dataclass(frozen=True)
class Difference:
    """One paired difference.

    Attributes:
        name: of what, e.g. ``accept length``, ``accuracy, draft 1``, ``word start``.
        first: the first's value.
        second: the second's.
        change: second - first with its interval; ``n`` is the rows (or rounds) of the first.
        only_first: rows that only the first gets right, 0 where it is no rate of rows.
        only_second: rows that only the second gets right.
    """

    name: str
    first: float
    second: float
    change: Interval
    only_first: int = 0
    only_second: int = 0


@dataclass(frozen=True)
class Versus:
    """Two evaluations compared.

    Attributes:
        length: accept length.
        by_step: marginal accuracy at each draft.
        by_kind: accuracy of the first draft by the kind of the token to be predicted.
        by_position: accuracy of the first draft by the token's place in its reply.
        samples: names compared.
        left_out: name → why it was not.
        nonfinite: rows of each whose logits were NaN or infinite.
    """

    length: Difference
    by_step: tuple[Difference, ...]
    by_kind: tuple[Difference, ...]
    by_position: tuple[Difference, ...]
    samples: tuple[str, ...]
    left_out: Mapping[str, str]
    nonfinite: tuple[int, int] = (0, 0)


def versus(first: Evaluation, second: Evaluation, kinds: Mapping[str, Sequence[str]] | None = None) -> Versus:
    """Compares two evaluations of the same samples.

    Args:
        first: the one compared with.
        second: the one that gains or loses.
        kinds: sample → kind of each of its tokens; None leaves ``by_kind`` empty.

    Raises:
        Blocked: they have no sample in common.
        ValueError: their K differ.
    """
    if first.steps != second.steps:
        raise ValueError(f"K {first.steps} and {second.steps} cannot be compared on the same positions; cut one")
    names = [name for name in first.parts if name in second.parts]
    left = {n: why for e in (first, second) for n, why in e.skipped.items()}
    left |= dict.fromkeys({*first.parts, *second.parts} - {*names}, "only one of the two has it")
    if not names:
        raise Blocked("the two have no sample in common: they must be scored on the same recorded tokens")
    shifts = first.reading.shift, second.reading.shift
    pairs = [_Pair(first.parts[name], second.parts[name], shifts) for name in names]
    steps = tuple(_rows(f"accuracy, draft {k + 1}", [p.at(k) for p in pairs]) for k in range(first.steps))
    groups = _grouped(pairs, names, kinds) if kinds else {}
    return Versus(
        _length(first, second, names),
        steps,
        tuple(d for name, parts in groups.items() if (d := _rows(name, parts)).change.n),
        tuple(d for name, parts in _places(pairs).items() if (d := _rows(name, parts)).change.n),
        tuple(names),
        left,
        (first.nonfinite, second.nonfinite),
    )


def same_texts(first: Mapping[str, Sample], second: Mapping[str, Sample], names: Iterable[str]) -> dict[str, str]:
    """Name in the first → name in the second with the same tokens and mask; the same name is tried first."""
    keyed = {_key(second[name]): name for name in second}
    out = {}
    for name in names:
        key = _key(first[name])
        same = name if name in second and _key(second[name]) == key else keyed.get(key)
        if same is not None:
            out[name] = same
    return out


def _key(sample: Sample) -> tuple[bytes, bytes]:
    return bytes(sample.input_ids.numpy().tobytes()), bytes(sample.loss_mask.numpy().tobytes())


class _Pair:
    """One sample scored twice, by the place p of the token that the first draft says: the places that both score."""

    def __init__(self, first: Acceptance, second: Acceptance, shifts: tuple[int, int]):
        self.spans = first.spans
        self.correct = tuple(_placed(a.correct, s) for a, s in zip((first, second), shifts, strict=True))  # [T, K]
        scored = [_placed(a.scored, s) for a, s in zip((first, second), shifts, strict=True)]
        self.both = scored[0] & scored[1]  # [T, K]

    def at(self, step: int, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Hits of both at ``step`` on the places that count: bool [R] each."""
        places = self.both[:, step] if keep is None else self.both[:, step] & keep
        return self.correct[0][places, step], self.correct[1][places, step]


def _placed(rows: Tensor, shift: int) -> Tensor:
    """Row t's values at t + 1 + shift, where the token lies that its first draft says."""
    out = torch.zeros_like(rows)
    out[1 + shift :] = rows[: len(rows) - 1 - shift]
    return out


def _length(first: Evaluation, second: Evaluation, names: list[str]) -> Difference:
    draws = Draws(names)
    a, b = ({n: e.parts[n].counts for n in names} for e in (first, second))
    one, two = (float(draws.pooled(c).length) for c in (a, b))
    rounds = sum((p.rounds for p in a.values()), 0)
    change = draws.interval(two - one, rounds, lambda drawn: drawn(b).length - drawn(a).length, "paired")
    return Difference("accept length", one, two, change)


def _rows(name: str, parts: list[tuple[Tensor, Tensor]]) -> Difference:
    """Difference of two rates over the same rows; whole samples drawn where at least `FEWEST` have any."""
    parts = [(a, b) for a, b in parts if len(a)]
    n = sum(len(a) for a, _ in parts)
    ones, twos = (sum(int(side[i].sum()) for side in parts) for i in (0, 1))
    nan = math.nan
    only = [int((a & ~b).sum()) for a, b in parts], [int((b & ~a).sum()) for a, b in parts]
    if not n:
        return Difference(name, nan, nan, Interval(nan, nan, nan, 0, "no rows"))
    method, low, high = f"no interval: {len(parts)} samples are too few to draw", nan, nan
    if len(parts) >= FEWEST:
        gains = torch.tensor([float(b.sum() - a.sum()) for a, b in ((x.long(), y.long()) for x, y in parts)]).double()
        sizes = torch.tensor([float(len(a)) for a, _ in parts]).double()
        over, under = resampled(torch.stack([gains, sizes], 1)).T
        drawn = over / under
        low, high = drawn.quantile(torch.tensor([0.025, 0.975]).double()).tolist()
        method = f"bootstrap over {len(parts)} samples; paired"
    return Difference(
        name, ones / n, twos / n, Interval((twos - ones) / n, low, high, n, method), sum(only[0]), sum(only[1])
    )


def _grouped(
    pairs: list[_Pair], names: list[str], kinds: Mapping[str, Sequence[str]]
) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Places by the kind of the token there."""
    out: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, pair in zip(names, pairs, strict=True):
        own = list(kinds[name])
        for kind in dict.fromkeys(own):
            keep = torch.tensor([k == kind for k in own])
            out.setdefault(kind, []).append(pair.at(0, keep))
    return dict(sorted(out.items(), key=lambda item: -sum(len(a) for a, _ in item[1])))


def _places(pairs: list[_Pair]) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Places by how far into its reply they are, in buckets of `WIDTH`."""
    out: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for pair in pairs:
        place = torch.full((len(pair.both),), -1)
        for a, b in pair.spans:
            place[a:b] = torch.arange(b - a) // WIDTH
        for bucket in place[place >= 0].unique().tolist():
            out.setdefault(bucket, []).append(pair.at(0, place == bucket))
    return {f"tokens {i * WIDTH + 1} … {(i + 1) * WIDTH}": out[i] for i in sorted(out)}


def restricted(found: Evaluation, names: Mapping[str, str]) -> Evaluation:
    """The evaluation with its samples under other names (old → new), the others left out."""
    parts = {new: found.parts[old] for old, new in names.items() if old in found.parts}
    skipped = {new: found.skipped[old] for old, new in names.items() if old in found.skipped}
    return Evaluation(found.reading, found.steps, parts, skipped, found.nonfinite)
