"""A greedy chain verified against the recorded tokens: the engine's walk over one sample, and its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.counts import Counts
from eagle3lab.errors import Blocked
from eagle3lab.forward import Rollout
from eagle3lab.records import Sample


def definition(steps: int) -> str:
    """The headline's definition in one line, printed beside every accept length."""
    return (
        f"K={steps}, greedy chain, cumulative per position, bonus included (1 + accepted / rounds), "
        "out-of-vocabulary targets are misses, positions the engine visits"
    )


@dataclass(frozen=True)
class Round:
    """One verify round of the walk: it starts at row ``row`` and keeps ``accepted`` of up to ``offered`` drafts."""

    row: int
    accepted: int
    offered: int


@dataclass
class Acceptance:
    """Acceptance of one sample under one rollout.

    Attributes:
        sample: its name.
        counts: see `Counts`.
        rounds: the walk, round by round, all spans in order.
        correct: bool [T, K], right at (row, step); False where not scored.
        scored: bool [T, K].
        covered: bool [T, K], recorded token inside the draft vocab.
        spans: the sample's reply spans, less the last tokens that no row predicts under the rollout's shift.
    """

    sample: str
    counts: Counts
    rounds: list[Round]
    correct: Tensor
    scored: Tensor
    covered: Tensor
    spans: tuple[tuple[int, int], ...]

    def cut(self, steps: int) -> Acceptance:
        """The same sample with only ``steps`` drafts a round."""
        return _verify(self.sample, self.spans, self.correct[:, :steps], self.covered[:, :steps])

    def runs(self) -> Tensor:
        """int64 [T]: drafts accepted if a round started at each row (0 where nothing is scored)."""
        return (self.correct & self.scored).long().cumprod(-1).sum(-1)


def accept(rolled: Rollout, sample: Sample, steps: int | None = None) -> Acceptance:
    """Verifies a rollout against the recorded tokens, as a greedy engine would on this text.

    Args:
        rolled: with the scored rows of the sample.
        sample: the one it was made from.
        steps: K; the rollout may have fewer where the sample's spans are too short for the later ones.

    Raises:
        Blocked: no reply span is long enough for a single row; the text says what is there.
    """
    steps, length = steps or len(rolled.steps), sample.length
    correct = torch.zeros(length, steps, dtype=torch.bool)
    covered = torch.zeros(length, steps, dtype=torch.bool)
    present = torch.zeros(length, steps, dtype=torch.bool)
    for k, step in enumerate(rolled.steps):
        correct[step.rows, k] = step.correct
        covered[step.rows, k] = step.covered
        present[step.rows, k] = True
    # a row that joins a later token than the next (shift 2) predicts a later one: the last rows have none to predict
    late = max(rolled.reading.shift - 1, 0)
    spans = [(a, b - late) for a, b in sample.spans]
    scored = scored_rows(spans, length, steps)
    if not scored.any():
        found = ", ".join(f"[{a}, {b})" for a, b in sample.spans) or "none"
        raise Blocked(f"{sample.path}: no reply span has a row to score (spans: {found}); a span needs two tokens")
    absent = scored & ~present
    if absent.any():
        raise Blocked(f"{sample.path}: the rollout lacks {int(absent.sum())} of the scored rows; run it on more rows")
    return _verify(sample.name, spans, correct, covered)


def _verify(name: str, spans: Sequence[tuple[int, int]], correct: Tensor, covered: Tensor) -> Acceptance:
    length, steps = correct.shape
    scored = scored_rows(spans, length, steps)
    rounds = [r for a, b in spans for r in walk(correct, a, b, steps)]
    return Acceptance(
        name,
        count(correct, scored, covered, rounds),
        rounds,
        correct & scored,
        scored,
        covered,
        tuple(spans),
    )


def scored_rows(spans: Sequence[tuple[int, int]], length: int, steps: int) -> Tensor:
    """Bool [T, K]: which (row, step) are scored, see the module's text."""
    scored = torch.zeros(length, steps, dtype=torch.bool)
    for a, b in spans:
        for k in range(steps):
            # a span at the very start has no row before it
            scored[max(a - 1, 0) : max(b - 2 - k, 0), k] = True
    return scored


def walk(correct: Tensor, a: int, b: int, steps: int) -> list[Round]:
    """The rounds over one reply span [a, b), of up to ``steps`` drafts each; ``correct`` is bool [T, K]."""
    rounds = []
    row = max(a - 1, 0)
    while row <= b - 3:
        offered = min(steps, b - 2 - row)
        hits = correct[row, :offered].tolist()
        accepted = hits.index(False) if False in hits else offered
        rounds.append(Round(row, accepted, offered))
        row += accepted + 1
    return rounds


def count(correct: Tensor, scored: Tensor, covered: Tensor, rounds: Sequence[Round]) -> Counts:
    """The counts of [T, K] hits, scored places and covered tokens, and of the rounds of a walk over them."""
    steps = correct.shape[1]
    hits = correct & scored
    histogram = [0] * (steps + 1)
    for r in rounds:
        histogram[r.accepted] += 1
    return Counts(
        steps=steps,
        scored=tuple(scored.sum(0).tolist()),
        correct=tuple(hits.sum(0).tolist()),
        covered=tuple((covered & scored).sum(0).tolist()),
        joint=tuple(hits.long().cumprod(-1).sum(0).tolist()),
        rounds=len(rounds),
        accepted=sum(r.accepted for r in rounds),
        per_position=tuple(sum(histogram[j + 1 :]) for j in range(steps)),
        histogram=tuple(histogram),
    )


def total(parts: Sequence[Acceptance]) -> Counts:
    """Counts of several samples together.

    Raises:
        Blocked: there is none.
    """
    if not parts:
        raise Blocked("no sample has a reply to score; check loss_mask, or name other samples")
    out = parts[0].counts
    for part in parts[1:]:
        out = out + part.counts
    return out


def steps_that_fit(sample: Sample, steps: int) -> int:
    """K, or fewer where no reply span is long enough for the later steps."""
    longest = max((b - 1 - max(a, 1) for a, b in sample.spans), default=0)
    return max(1, min(steps, longest))
