"""Intervals of differences: whole samples are drawn, and both sides of a difference from the same draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.acceptance import times
from eagle3lab.counts import Counts
from eagle3lab.records import Interval

FEWEST = 5
"""Samples below which no interval is drawn: single rounds of one text are alike, and would make it too narrow."""


@dataclass(frozen=True)
class Sums:
    """Counts added up, one row a draw [D] (or a single row, the pooled counts themselves).

    Attributes:
        rounds: float64 [D].
        accepted: float64 [D].
        correct: float64 [D, K].
        scored: float64 [D, K].
        covered: float64 [D, K].
    """

    rounds: Tensor
    accepted: Tensor
    correct: Tensor
    scored: Tensor
    covered: Tensor

    @property
    def length(self) -> Tensor:
        """Accept length, bonus included, [D]."""
        return 1 + self.accepted / self.rounds

    @property
    def product(self) -> Tensor:
        """Accept length if the marginal accuracies were conditional rates: 1 + Σ_k Π_{i≤k} acc_i, [D]."""
        return 1 + (self.correct / self.scored).nan_to_num(0.0).cumprod(-1).sum(-1)


class Draws:
    """The same draws of samples for every statistic of one comparison.

    Args:
        names: the samples; draws are by position in this list.
    """

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        count = len(self.names)
        self.weights = times(max(count, 1))
        self.method = (
            f"bootstrap over {count} samples"
            if count >= FEWEST
            else f"no interval: {count} samples are too few to draw"
        )

    def pooled(self, counts: Mapping[str, Counts]) -> Sums:
        """The counts of all samples, one row."""
        return self._sums(counts, torch.ones(1, self.weights.shape[1], dtype=torch.float64))

    def drawn(self, counts: Mapping[str, Counts]) -> Sums:
        """The counts of every draw."""
        return self._sums(counts, self.weights)

    def _sums(self, counts: Mapping[str, Counts], weights: Tensor) -> Sums:
        parts = [counts[name] for name in self.names]

        def one(values: Sequence[float]) -> Tensor:
            return weights @ torch.tensor(list(values), dtype=torch.float64)

        def many(values: Sequence[Sequence[int]]) -> Tensor:
            return weights @ torch.tensor([list(v) for v in values], dtype=torch.float64)  # [D, K]

        return Sums(
            one([p.rounds for p in parts]),
            one([p.accepted for p in parts]),
            many([p.correct for p in parts]),
            many([p.scored for p in parts]),
            many([p.covered for p in parts]),
        )

    def interval(
        self,
        value: float,
        n: int,
        statistic: Callable[[Callable[[Mapping[str, Counts]], Sums]], Tensor],
        note: str = "",
        level: float = 0.95,
    ) -> Interval:
        """``value`` with the percentile interval of ``statistic`` over the draws; NaN ends below `FEWEST` samples.

        Args:
            value: the number itself, from the pooled counts.
            n: what it rests on.
            statistic: takes `drawn` and returns one number a draw [D].
            note: added to the method's words.
            level: of the interval.
        """
        method = self.method + (f"; {note}" if note else "")
        if len(self.names) < FEWEST:
            return Interval(value, float("nan"), float("nan"), n, method)
        found = statistic(self.drawn)
        found = found[found.isfinite()]
        if not len(found):
            return Interval(value, float("nan"), float("nan"), n, method)
        edges = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
        low, high = found.quantile(edges).tolist()
        return Interval(value, low, high, n, method)
