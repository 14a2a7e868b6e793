"""What verification keeps of a rollout: the engine's walk, counts, intervals, cost.

The lab's definition (design section 6): greedy chain, cumulative per position, bonus included (1 + accepted / rounds),
over the positions an engine visits. For a reply span [a, b) step k is scored on rows t = a-1 … b-3-k, and the walk
starts at t = a-1, accepts n, moves to t + n + 1 and ends when no row is left. A token outside the draft vocab is a
miss. A chain never crosses a span's end, since what follows it is not the target's own text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.counts import Counts
from eagle3lab.errors import BadFile, BadShape, Blocked
from eagle3lab.forward import Rollout, rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Interval, Sample
from eagle3lab.samples import check_scorable, reply_rows

RESAMPLES = 2000
SEED = 0


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
        covered[step.rows, k] = step.truth_logprob > float("-inf")
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
    rounds = [r for a, b in spans for r in _walk(correct, a, b, steps)]
    return Acceptance(
        name,
        _count(correct, scored, covered, rounds),
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


def _walk(correct: Tensor, a: int, b: int, steps: int) -> list[Round]:
    rounds = []
    row = max(a - 1, 0)
    while row <= b - 3:
        offered = min(steps, b - 2 - row)
        hits = correct[row, :offered].tolist()
        accepted = hits.index(False) if False in hits else offered
        rounds.append(Round(row, accepted, offered))
        row += accepted + 1
    return rounds


def _count(correct: Tensor, scored: Tensor, covered: Tensor, rounds: list[Round]) -> Counts:
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


def accept_length_interval(parts: Sequence[Acceptance], level: float = 0.95) -> Interval:
    """Accept length of the pooled rounds with a bootstrap interval.

    Whole samples are drawn (rounds of one text are alike); below five samples single rounds are drawn, which is too
    narrow, and ``method`` says so.
    """
    counts = total(parts)
    if len(parts) >= 5:
        accepted = torch.tensor([p.counts.accepted for p in parts], dtype=torch.float64)
        rounds = torch.tensor([p.counts.rounds for p in parts], dtype=torch.float64)
        method = f"bootstrap over {len(parts)} samples"
    else:
        accepted = torch.tensor([r.accepted for p in parts for r in p.rounds], dtype=torch.float64)
        rounds = torch.ones_like(accepted)
        method = f"bootstrap over {len(accepted)} rounds: too few samples to draw whole ones, so it is too narrow"
    low, high = _bootstrap_ratio(accepted, rounds, level)
    return Interval(counts.accept_length, 1 + low, 1 + high, counts.rounds, method)


def accuracy_interval(parts: Sequence[Acceptance], step: int = 0, level: float = 0.95) -> Interval:
    """Marginal accuracy at ``step`` with a bootstrap interval over samples (over rows below five samples)."""
    counts = total(parts)
    if len(parts) >= 5:
        hits = torch.tensor([p.counts.correct[step] for p in parts], dtype=torch.float64)
        of = torch.tensor([p.counts.scored[step] for p in parts], dtype=torch.float64)
        method = f"bootstrap over {len(parts)} samples"
    else:
        hits = torch.cat([p.correct[p.scored[:, step], step] for p in parts]).double()
        of = torch.ones_like(hits)
        method = f"bootstrap over {len(hits)} rows: too few samples to draw whole ones, so it is too narrow"
    low, high = _bootstrap_ratio(hits, of, level)
    return Interval(counts.accuracy[step], low, high, counts.scored[step], method)


def _bootstrap_ratio(top: Tensor, bottom: Tensor, level: float) -> tuple[float, float]:
    """Percentile interval of Σtop / Σbottom, units drawn with replacement; seeded, so that a rerun agrees."""
    draws = torch.randint(len(top), (RESAMPLES, len(top)), generator=torch.Generator().manual_seed(SEED))
    sums = bottom[draws].sum(1)
    ratios = (top[draws].sum(1) / sums)[sums > 0]
    edges = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = ratios.quantile(edges).tolist()
    return low, high


@dataclass
class Evaluation:
    """One reading over the samples of a case.

    Attributes:
        reading: the reading run.
        steps: K.
        parts: acceptance by sample name.
        skipped: sample name → why it could not be run.
        nonfinite: rows whose logits were not finite, over all samples and steps.
    """

    reading: Reading
    steps: int
    parts: dict[str, Acceptance]
    skipped: dict[str, str]
    nonfinite: int = 0

    @property
    def counts(self) -> Counts:
        """All samples together."""
        return total(list(self.parts.values()))

    @property
    def length(self) -> Interval:
        """Accept length with its interval."""
        return accept_length_interval(list(self.parts.values()))

    def cut(self, steps: int) -> Evaluation:
        """The same with only ``steps`` drafts a round."""
        parts = {name: part.cut(steps) for name, part in self.parts.items()}
        return Evaluation(self.reading, steps, parts, self.skipped, self.nonfinite)


def evaluate(
    model: Model, samples: Mapping[str, Sample], names: Sequence[str], reading: Reading, steps: int
) -> Evaluation:
    """Rolls the draft out over the reply rows of each named sample and verifies it.

    A sample that cannot be run is skipped with its reason; when none can, the first reason is the error.
    """
    out = Evaluation(reading, steps, {}, {})
    misfit: BadShape | None = None
    for name in names:
        try:
            sample = samples[name]
            check_scorable(sample, reading.aux)
            rolled = rollout(model, sample, reading, steps_that_fit(sample, steps), rows=reply_rows(sample))
            out.parts[name] = accept(rolled, sample, steps)
            out.nonfinite += rolled.nonfinite
        except (BadFile, Blocked, BadShape) as error:
            out.skipped[name] = error.line
            misfit = misfit or (error if isinstance(error, BadShape) else None)
    if misfit is not None and not out.parts:
        raise misfit
    if not out.parts and out.skipped:
        reasons = list(dict.fromkeys(out.skipped.values()))
        raise Blocked(
            f"no sample can be run under {reading}: {reasons[0]}"
            + (f" (and {len(reasons) - 1} more reasons)" if len(reasons) > 1 else "")
        )
    return out


def steps_that_fit(sample: Sample, steps: int) -> int:
    """K, or fewer where no reply span is long enough for the later steps."""
    longest = max((b - 1 - max(a, 1) for a, b in sample.spans), default=0)
    return max(1, min(steps, longest))
