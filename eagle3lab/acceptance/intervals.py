"""Intervals of rates: bootstrap over samples, over rounds or rows where there are too few of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from eagle3lab.acceptance.chain import Acceptance, Round, total
from eagle3lab.records import Interval

RESAMPLES = 2000
SEED = 0

HELD = 2**21
"""Numbers of a table of draws (16 MiB), up to which it is kept for the next interval over as many units."""


def accept_length_interval(parts: Sequence[Acceptance], level: float = 0.95) -> Interval:
    """Accept length of the pooled rounds with a bootstrap interval.

    Whole samples are drawn (rounds of one text are alike); below five samples single rounds are drawn, which is too
    narrow, and ``method`` says so.
    """
    total(parts)  # refuses none at all
    return length_of([(p.counts.accepted, p.counts.rounds) for p in parts], [p.rounds for p in parts], level)


def length_of(counts: Sequence[tuple[int, int]], walks: Sequence[Sequence[Round]], level: float) -> Interval:
    """1 + accepted / rounds: ``counts`` are these two of each sample, ``walks`` their rounds one by one."""
    if len(walks) >= 5:
        accepted, rounds = torch.tensor(counts, dtype=torch.float64).T
        method = f"bootstrap over {len(walks)} samples"
    else:
        accepted = torch.tensor([r.accepted for walk in walks for r in walk], dtype=torch.float64)
        rounds = torch.ones_like(accepted)
        method = f"bootstrap over {len(accepted)} rounds: too few samples to draw whole ones, so it is too narrow"
    low, high = _bootstrap_ratio(accepted, rounds, level)
    value = 1 + float(accepted.sum() / rounds.sum())
    return Interval(value, 1 + low, 1 + high, int(rounds.sum()), method)


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


def resampled(values: Tensor) -> Tensor:
    """Sums over U units drawn with replacement, U of them a draw: of float64 [U, G] → [RESAMPLES, G].

    Seeded: the same units are drawn for whatever is summed, so that a rerun agrees and differences are paired.
    """
    units = len(values)
    size = max(HELD // max(units, 1), 1)
    if size >= RESAMPLES:
        return times(units) @ values
    source = torch.Generator().manual_seed(SEED)
    return torch.cat([_times(min(size, RESAMPLES - at), units, source) @ values for at in range(0, RESAMPLES, size)])


@lru_cache(maxsize=4)
def times(units: int) -> Tensor:
    """How often each of ``units`` is drawn: float64 [RESAMPLES, units], seeded."""
    return _times(RESAMPLES, units, torch.Generator().manual_seed(SEED))


def _times(draws: int, units: int, source: torch.Generator) -> Tensor:
    picks = torch.randint(max(units, 1), (draws, units), generator=source)
    return torch.zeros(draws, units, dtype=torch.float64).scatter_add_(
        1, picks, torch.ones_like(picks, dtype=torch.float64)
    )


def _bootstrap_ratio(top: Tensor, bottom: Tensor, level: float) -> tuple[float, float]:
    """Percentile interval of Σtop / Σbottom, units drawn with replacement; seeded, so that a rerun agrees."""
    over, sums = resampled(torch.stack([top, bottom], 1)).T
    ratios = (over / sums)[sums > 0]
    edges = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = ratios.quantile(edges).tolist()
    return low, high


def ratios(top: Tensor, bottom: Tensor, words: str, level: float = 0.95) -> list[Interval]:
    """Percentile intervals of Σtop / Σbottom for G ratios at once, whole units drawn with replacement, seeded.

    Args:
        top: float64 [U, G], numerators of the units (samples, or rounds).
        bottom: float64 [U, G], denominators.
        words: how the intervals are made; becomes their ``method``.
        level: of the interval.

    Returns:
        G intervals; a ratio without a denominator is NaN throughout.
    """
    drawn = resampled(top) / resampled(bottom)  # [B, G], NaN where nothing was drawn
    edges = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = drawn.nanquantile(edges, 0).tolist()
    values, of = (top.sum(0) / bottom.sum(0)).tolist(), bottom.sum(0).tolist()
    return [Interval(v, a, b, round(n), words) for v, a, b, n in zip(values, low, high, of, strict=True)]
