"""Statistics of tensors, streamed in chunks so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from eagle3lab.records import TensorInfo

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
    matrix = tensor.reshape(len(tensor), -1) if tensor.ndim > 1 and tensor.numel() else tensor.reshape(1, -1)
    return _measured(matrix.split(_height(matrix.shape)), tensor.ndim > 1)


def _height(shape: Iterable[int]) -> int:
    """Rows of a matrix of ``shape`` that make about one chunk."""
    return max(1, CHUNK // max(_count(tuple(shape)[1:]), 1))


def _measured(blocks: Iterable[Tensor], by_row: bool) -> TensorStats:
    """Statistics over blocks of rows, each [r, …]; dead rows are counted where ``by_row``."""
    totals = torch.zeros(5, dtype=torch.float64)  # Σx, Σx², zeros, NaNs, infinities
    low, high, dead, count = float("inf"), float("-inf"), 0, 0
    for block in blocks:
        rows = block.reshape(len(block), -1) if block.ndim > 1 else block.reshape(1, -1)
        count += rows.numel()
        for piece in rows.split(CHUNK, 1) if rows.numel() else ():
            kept = values = piece.reshape(-1).double()
            finite = values.isfinite()
            if not bool(finite.all()):  # rare, and costly: the mask is applied only where it changes something
                kept = values[finite]
                totals[3:] += torch.stack([values.isnan().sum(), values.isinf().sum()])
            totals[:3] += torch.stack([kept.sum(), torch.dot(kept, kept), (values == 0).sum().double()])
            if kept.numel():
                least, most = kept.aminmax()
                low, high = min(low, float(least)), max(high, float(most))
        if by_row and rows.numel():
            # fp8 compares with nothing, so such rows are widened; the others are looked at as they are
            dead += int((~((rows.float() if rows.dtype.itemsize == 1 else rows) != 0).any(1)).sum())
    if not count:
        nan = float("nan")
        return TensorStats(nan, nan, nan, nan, nan, nan, nan, nan, 0)
    total, squares, zeros, nans, infs = totals.tolist()
    kept_count = count - nans - infs
    mean = total / kept_count if kept_count else float("nan")
    variance = max(squares / kept_count - mean**2, 0.0) if kept_count else float("nan")
    return TensorStats(squares**0.5, mean, variance**0.5, low, high, zeros / count, nans / count, infs / count, dead)


class Track(Protocol):
    """Told elements done and elements in all, as long work goes on."""

    def __call__(self, done: int, total: int) -> None:
        """``done`` of ``total``."""


def all_stats(
    names: Iterable[str],
    read: Callable[[str], Tensor],
    rows: Callable[[str, Tensor], Tensor] | None = None,
    track: Track | None = None,
) -> dict[str, TensorStats]:
    """Statistics by name; each tensor is read, measured and let go before the next.

    Args:
        names: the tensors; with their header entries (a mapping to `TensorInfo`) and ``rows``, a large one is read
            some rows at a time, so that memory stays bounded whatever its size and form on disk.
        read: gives a tensor whole.
        rows: gives some rows of it.
        track: told how far it is, after each block.
    """
    infos: Mapping[str, TensorInfo] = names if isinstance(names, Mapping) else {}
    total, done = sum(_count(info.shape) for info in infos.values()), 0
    out = {}
    for name in names:
        shape = infos[name].shape if name in infos else ()
        if rows is None or len(shape) < 2 or shape[0] <= _height(shape):
            out[name] = tensor_stats(read(name))
        else:
            told = partial(track, total=total) if track else None
            out[name] = _measured(_in_blocks(name, shape, rows, done, told), True)
        done += _count(shape)
        if track:
            track(done, total)
    return out


def _count(shape: Iterable[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _in_blocks(
    name: str, shape: tuple[int, ...], rows: Callable[[str, Tensor], Tensor], before: int, told: Any
) -> Iterator[Tensor]:
    width = _count(shape[1:])
    for index in torch.arange(shape[0]).split(_height(shape)):
        yield rows(name, index)
        if told:
            told(before + (int(index[-1]) + 1) * width)


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


@dataclass(frozen=True)
class Level:
    """The strongest step in a series.

    Attributes:
        place: index of the first value after it.
        before: mean before.
        after: mean after.
        score: difference of the means in standard errors, spread taken within both parts.
        n: values before and after.
    """

    place: int
    before: float
    after: float
    score: float
    n: tuple[int, int]


def best_step(values: Tensor, least: int = 8) -> Level | None:
    """The split of ``values`` [N] whose two means differ most, None below ``2 * least`` values.

    The score is that of the best of all places, so that chance alone reaches about 3.5 on a few hundred values.
    """
    series = values.double()
    n = len(series)
    if n < 2 * least:
        return None
    sums, squares = series.cumsum(0), series.square().cumsum(0)
    places = torch.arange(least, n - least + 1)
    left, right = places.double(), (n - places).double()
    before, after = sums[places - 1] / left, (sums[-1] - sums[places - 1]) / right
    within = squares[-1] - left * before.square() - right * after.square()
    # a series of hits has no spread within a part that is all right or all wrong: one odd value is allowed for
    error = ((within + 1e-12).clamp(min=float(squares[-1]) / n * 0.5) / n * (1 / left + 1 / right)).sqrt()
    scores = (before - after).abs() / error.clamp(min=1e-12)
    at = int(scores.argmax())
    place = int(places[at])
    return Level(place, float(before[at]), float(after[at]), float(scores[at]), (place, n - place))


@dataclass(frozen=True)
class Likeness:
    """How much a matrix looks like independent random numbers, as an initialiser draws them.

    Attributes:
        std: standard deviation.
        kurtosis: 3 for normal, 1.8 for uniform numbers; trained weights have heavy tails.
        spectrum: largest singular value over std (√m + √n), the edge of a random matrix: 1 there, above it in a
            trained one.
        rows: spread of the rows' RMS against what chance gives (1).
        columns: the same of columns.
        count: numbers in the matrix.
    """

    std: float
    kurtosis: float
    spectrum: float
    rows: float
    columns: float
    count: int

    @property
    def random(self) -> bool:
        """Whether all of it is as in independent normal or uniform numbers."""
        reach = max(0.1, 4 * (24 / self.count) ** 0.5)
        shape = abs(self.kurtosis - 3) < reach or abs(self.kurtosis - 1.8) < reach / 2
        return shape and self.spectrum < 1.05 and self.rows < 1.5 and self.columns < 1.5


def likeness(matrix: Tensor) -> Likeness:
    """Compares ``matrix`` [m, n] with independent random numbers of its own spread."""
    values = matrix.float() - matrix.float().mean()
    m, n = values.shape
    std = float(values.square().mean().sqrt()) or 1e-30
    kurtosis = float((values / std).pow(4).mean())
    vector = torch.nn.functional.normalize(torch.randn(n, generator=torch.Generator().manual_seed(0)), dim=0)
    for _ in range(12):  # power iteration: an outlier of a trained matrix is reached in a few rounds
        vector = torch.nn.functional.normalize(values.T @ (values @ vector), dim=0)
    spectrum = float((values @ vector).norm()) / (std * (m**0.5 + n**0.5))
    chance = max(kurtosis - 1, 1e-6) ** 0.5 / 2  # spread of a mean square of n numbers, halved by the root
    spreads = []
    for axis, count in ((1, n), (0, m)):
        sizes = values.square().mean(axis).sqrt()
        spreads.append(float(sizes.std() / sizes.mean()) / (chance / count**0.5))
    return Likeness(std, kurtosis, spectrum, spreads[0], spreads[1], values.numel())
