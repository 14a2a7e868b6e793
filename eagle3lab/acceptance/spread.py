"""The same rollout by other definitions: over all rows, from every offset, the vocabulary's ceiling, per position.

All of it comes from counts that add up over samples; rates and intervals are made last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.acceptance.chain import Acceptance, count, total, walk
from eagle3lab.acceptance.intervals import ratios
from eagle3lab.counts import Counts
from eagle3lab.records import Interval


@dataclass(frozen=True)
class Everywhere:
    """A round begun at every scored row, instead of those that an engine visits.

    Attributes:
        rounds: rows at which the first draft is scored.
        accepted: drafts that would be accepted in them.
        per_position: of these rounds, how many accept at least j+1 drafts.
    """

    rounds: int
    accepted: int
    per_position: tuple[int, ...]

    @classmethod
    def of(cls, counts: Counts) -> Everywhere:
        """From the counts of any number of samples."""
        return cls(counts.scored[0], sum(counts.joint), counts.joint)

    @property
    def accept_length(self) -> float:
        """1 + accepted / rounds (NaN without rounds)."""
        return 1 + self.accepted / self.rounds if self.rounds else float("nan")

    @property
    def cumulative(self) -> tuple[float, ...]:
        """Rate per position over these rounds."""
        return tuple(n / self.rounds if self.rounds else float("nan") for n in self.per_position)


@dataclass(frozen=True)
class Offset:
    """Walks that begin ``offset`` rows after each reply's first: rounds and accepted drafts of all samples."""

    offset: int
    rounds: int
    accepted: int

    @property
    def accept_length(self) -> float:
        """1 + accepted / rounds (NaN without rounds)."""
        return 1 + self.accepted / self.rounds if self.rounds else float("nan")


def offsets(parts: Sequence[Acceptance]) -> list[Offset]:
    """The walk begun at every offset 0 … K of each reply.

    An engine's first round begins at the reply's first row and no round goes further than K + 1 tokens, so these are
    all the ways in which a walk can fall into step with the text. What they differ by is no error of the measurement:
    the same draft on the same text, begun elsewhere.
    """
    steps = total(parts).steps
    out = []
    for offset in range(steps + 1):
        rounds = accepted = 0
        for part in parts:
            for a, b in part.spans:
                # a span that begins at 0 has no row before it: `walk` begins it at row 0, one later
                walked = walk(part.correct, max(a, 1) + offset, b, steps)
                rounds += len(walked)
                accepted += sum(r.accepted for r in walked)
        out.append(Offset(offset, rounds, accepted))
    return out


def everywhere(parts: Sequence[Acceptance], level: float = 0.95) -> Interval:
    """Accept length of a round begun at every row, with an interval over samples (over rows below five)."""
    total(parts)
    if len(parts) >= 5:
        counts = [Everywhere.of(part.counts) for part in parts]
        units = [(c.accepted, c.rounds) for c in counts]
        words = f"bootstrap over {len(parts)} samples"
    else:
        units = [(run, 1) for part in parts for run in part.runs()[part.scored[:, 0]].tolist()]
        words = f"bootstrap over {len(units)} rows: too few samples to draw whole ones, so it is too narrow"
    top, bottom = torch.tensor(units, dtype=torch.float64)[:, None].unbind(-1)  # [U, 1] each
    found = ratios(top, bottom, words, level)[0]
    return Interval(1 + found.value, 1 + found.low, 1 + found.high, found.n, words)


def ceiling(parts: Sequence[Acceptance]) -> Counts:
    """Counts of a draft that says every token of its vocabulary right: what the vocabulary alone allows."""
    out = Counts.zero(total(parts).steps)
    for part in parts:
        steps = part.covered.shape[1]
        inside = part.covered & part.scored
        rounds = [r for a, b in part.spans for r in walk(inside, a, b, steps)]
        out = out + count(inside, part.scored, part.covered, rounds)
    return out


def rates(parts: Sequence[Acceptance], kind: str, level: float = 0.95) -> list[Interval]:
    """One rate for each draft position, with a bootstrap interval over samples (over rounds or rows below five).

    Args:
        parts: acceptance of the samples.
        kind: ``cumulative`` or ``conditional`` over the walk's rounds, ``marginal`` or ``everywhere`` over all rows,
            ``coverage`` for the share of targets inside the draft vocabulary.
        level: of the interval.

    Raises:
        ValueError: an unknown kind.
    """
    total(parts)  # refuses none at all
    if len(parts) >= 5:
        units = [_tops_and_bottoms(part.counts, kind) for part in parts]
        words = f"bootstrap over {len(parts)} samples"
    else:
        units = [unit for part in parts for unit in _single(part, kind)]
        words = f"bootstrap over {len(units)} single units: too few samples to draw whole ones, so it is too narrow"
    top, bottom = (torch.tensor(side, dtype=torch.float64) for side in zip(*units, strict=True))  # [U, K] each
    return ratios(top, bottom, words, level)


def _tops_and_bottoms(c: Counts, kind: str) -> tuple[list[int], list[int]]:
    walked = [c.rounds, *c.per_position]
    pairs = {
        "cumulative": (c.per_position, [c.rounds] * c.steps),
        "conditional": (c.per_position, walked[:-1]),
        "marginal": (c.correct, c.scored),
        "everywhere": (c.joint, [c.scored[0]] * c.steps),
        "coverage": (c.covered, c.scored),
    }
    if kind not in pairs:
        raise ValueError(f"no rate {kind!r}; known: {', '.join(pairs)}")
    top, bottom = pairs[kind]
    return list(top), list(bottom)


def _single(part: Acceptance, kind: str) -> list[tuple[list[int], list[int]]]:
    """The counts of each round (or row) by itself."""
    steps = part.counts.steps
    if kind in ("cumulative", "conditional"):
        return [_tops_and_bottoms(_of_one(r.accepted, steps), kind) for r in part.rounds]
    rows = part.scored[:, 0].nonzero()[:, 0]
    hits = part.correct & part.scored
    joint = hits.long().cumprod(1).bool()
    tops: dict[str, Tensor] = {"marginal": hits, "everywhere": joint, "coverage": part.covered & part.scored}
    bottom = part.scored[:, :1].expand_as(hits) if kind == "everywhere" else part.scored
    if kind not in tops:
        _tops_and_bottoms(part.counts, kind)  # raises
    return [(top, of) for top, of in zip(tops[kind][rows].long().tolist(), bottom[rows].long().tolist(), strict=True)]


def _of_one(accepted: int, steps: int) -> Counts:
    reached = tuple(int(accepted > j) for j in range(steps))
    none = (0,) * steps
    return Counts(steps, none, none, none, none, 1, accepted, reached, (0,) * (steps + 1))
