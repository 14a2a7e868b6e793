"""Statistics of tensors, streamed in chunks so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 4 * 2**20
"""Elements converted to float64 at once (32 MB)."""


@dataclass(frozen=True)
class TensorStats:
    """What one tensor holds; shares are of its elements, moments leave NaN and infinities out.

    Attributes:
        norm: Frobenius norm.
        mean: mean.
        std: standard deviation (population).
        low: smallest finite value.
        high: largest finite value.
        zero: share of exact zeros.
        nan: share of NaN.
        inf: share of infinities.
        dead_rows: rows (first axis of a matrix) that are all zero.
    """

    norm: float
    mean: float
    std: float
    low: float
    high: float
    zero: float
    nan: float
    inf: float
    dead_rows: int


def tensor_stats(tensor: Tensor) -> TensorStats:
    """Statistics of ``tensor`` of any dtype, chunk by chunk."""
    count = tensor.numel()
    if not count:
        nan = float("nan")
        return TensorStats(nan, nan, nan, nan, nan, nan, nan, nan, 0)
    matrix = tensor.reshape(len(tensor), -1) if tensor.ndim > 1 else tensor.reshape(1, -1)
    totals = torch.zeros(5, dtype=torch.float64)  # Σx, Σx², zeros, NaNs, infinities
    low, high, dead = float("inf"), float("-inf"), 0
    for rows in matrix.split(max(1, CHUNK // matrix.shape[1])):
        for piece in rows.split(CHUNK, 1):
            values = piece.double()
            finite = values.isfinite()
            kept = values[finite]
            totals += torch.stack([
                kept.sum(), kept.square().sum(), (values == 0).sum().double(),
                values.isnan().sum().double(), values.isinf().sum().double(),
            ])  # fmt: skip
            if kept.numel():
                low, high = min(low, float(kept.min())), max(high, float(kept.max()))
        if tensor.ndim > 1:
            dead += int((rows == 0).all(1).sum())
    total, squares, zeros, nans, infs = totals.tolist()
    kept_count = count - nans - infs
    mean = total / kept_count if kept_count else float("nan")
    variance = max(squares / kept_count - mean**2, 0.0) if kept_count else float("nan")
    return TensorStats(squares**0.5, mean, variance**0.5, low, high, zeros / count, nans / count, infs / count, dead)


def all_stats(names: Iterable[str], read: Callable[[str], Tensor]) -> dict[str, TensorStats]:
    """Statistics by name; each tensor is read, measured and let go before the next."""
    return {name: tensor_stats(read(name)) for name in names}


def histogram(tensor: Tensor, bins: int = 101, spread: float = 5.0) -> tuple[Tensor, Tensor]:
    """Counts of values in ``bins`` equal bins over mean ± ``spread`` standard deviations; the ends take the rest.

    Returns:
        edges float64 [bins + 1] and counts int64 [bins].
    """
    stats = tensor_stats(tensor)
    reach = spread * (stats.std or 1.0)
    edges = torch.linspace(stats.mean - reach, stats.mean + reach, bins + 1, dtype=torch.float64)
    counts = torch.zeros(bins, dtype=torch.int64)
    for piece in tensor.reshape(-1).split(CHUNK):
        values = piece.double()
        places = torch.bucketize(values[values.isfinite()], edges[1:-1])
        counts += torch.bincount(places, minlength=bins)
    return edges, counts


def rms(states: Tensor, rows: int = 4096) -> Tensor:
    """Root mean square of each row, float32 [T]; ``states`` [T, Ht]."""
    return torch.cat([part.float().square().mean(-1).sqrt() for part in states.split(rows)])


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of each pair of rows, float32 [T]."""
    return torch.nn.functional.cosine_similarity(a.float(), b.float(), dim=-1)
