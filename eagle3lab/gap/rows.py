"""Two recordings of one state, row against row: alignment, agreement, and what orthogonal maps leave alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MOST_ROWS = 256
"""Rows of the engine's dump that the lag search uses: its first half and its last."""


def finite(states: Tensor) -> Tensor:
    """Bool [T]: rows without NaN or infinities that are not all zero."""
    wide = states.float()
    return wide.isfinite().all(1) & (wide != 0).any(1)


def unit(states: Tensor) -> Tensor:
    """Rows of length 1, float32 [T, H]; rows that hold NaN or only zeros become zero."""
    wide = states.float().nan_to_num(0.0, 0.0, 0.0)
    norms = wide.norm(dim=1, keepdim=True)
    return torch.where(finite(states)[:, None], wide / norms.clamp(min=1e-30), torch.zeros_like(wide))


@dataclass(frozen=True)
class Aligned:
    """How well one state of the engine's dump lies on one boundary of training's at one lag.

    Attributes:
        boundary: training's boundary.
        lag: the engine's row i goes with training's row i + lag.
        cosine: median over the rows.
    """

    boundary: int
    lag: int
    cosine: float


def pairs(engine: Tensor, training: Tensor, lag: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that meet under ``lag``: (engine's [R, H], training's [R, H], engine row numbers [R]), sound ones only."""
    first, last = max(0, -lag), min(len(engine), len(training) - lag)
    if last <= first:
        return engine[:0].float(), training[:0].float(), torch.empty(0, dtype=torch.long)
    mine, theirs = engine[first:last], training[first + lag : last + lag]
    keep = finite(mine) & finite(theirs)
    return mine[keep].float(), theirs[keep].float(), torch.arange(first, last)[keep]


def best_lags(engine: Tensor, training: dict[int, Tensor], fewest: int = 8) -> list[Aligned]:
    """The best lag for each boundary by the median cosine of the rows that meet, best boundary first.

    Lags are tried as far as ``fewest`` sound rows still meet, and a quarter of the shorter side.
    """
    chosen = torch.arange(len(engine))
    if len(engine) > MOST_ROWS:
        chosen = torch.cat([chosen[: MOST_ROWS // 2], chosen[-MOST_ROWS // 2 :]])
    mine, sound = unit(engine[chosen]), finite(engine[chosen])
    out = []
    for boundary, states in training.items():
        table = mine @ unit(states).T  # [R, T], cosine of every pair of rows
        there = finite(states)
        least = max(fewest, min(len(chosen), len(states)) // 4)
        found = Aligned(boundary, 0, float("-inf"))
        lags = sorted(range(least - len(engine), len(states) - least + 1), key=abs)  # a tie goes to the nearer lag
        for lag in lags:
            column = chosen + lag
            inside = (column >= 0) & (column < len(states)) & sound
            inside[inside.clone()] = there[column[inside]]
            if int(inside.sum()) < least:
                continue
            cosine = float(table[inside.nonzero()[:, 0], column[inside]].median())
            if cosine > found.cosine + 1e-6:
                found = Aligned(boundary, lag, cosine)
        out.append(found)
    return sorted(out, key=lambda a: -a.cosine)


def errors(engine: Tensor, training: Tensor) -> Tensor:
    """Relative error of each row: |e - t| / |t|, float32 [R]."""
    return (engine - training).norm(dim=1) / training.norm(dim=1).clamp(min=1e-30)


def cosines(engine: Tensor, training: Tensor) -> Tensor:
    """Cosine of each row, float32 [R]."""
    return (unit(engine) * unit(training)).sum(1)


def shape_agreement(engine: Tensor, training: Tensor) -> float:
    """Correlation of the inner products between rows, centred: what rotations and permutations of columns keep.

    An orthogonal map exists exactly where all inner products agree (Procrustes); with fewer rows than columns the map
    itself is not unique and its residual says little, so the inner products are compared. NaN below 6 rows.
    """
    if len(engine) < 6:
        return float("nan")
    a, b = (_products(states) for states in (engine, training))
    upper = torch.triu_indices(len(a), len(a), 1)
    x, y = a[upper[0], upper[1]], b[upper[0], upper[1]]
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x.norm() * y.norm()).clamp(min=1e-30))


def _products(states: Tensor) -> Tensor:
    rows = unit(states[:MOST_ROWS]).double()
    rows = rows - rows.mean(0)
    return rows @ rows.T


def procrustes(engine: Tensor, training: Tensor) -> float:
    """Relative error that the best orthogonal map of the engine's rows leaves, all rows at length 1 (0 … √2).

    min_R |E R - T|² = |E|² + |T|² - 2 |EᵀT|_* (nuclear norm), from matrices of the size of the rows, never [H, H]. With
    fewer rows than columns some map brings unrelated rows near too: `shape_agreement` is what tells them apart.
    """
    a, b = unit(engine[:MOST_ROWS]).double(), unit(training[:MOST_ROWS]).double()
    left = torch.linalg.qr(a.T, mode="r").R  # [min(R, H), R]
    right = torch.linalg.qr(b.T, mode="r").R
    nuclear = float(torch.linalg.svdvals(left @ right.T).sum())
    whole = float(b.square().sum())
    return (max(float(a.square().sum()) + whole - 2 * nuclear, 0.0) / max(whole, 1e-30)) ** 0.5


def column_fit(engine: Tensor, training: Tensor) -> float:
    """Error of engine ≈ normed(training) · w, one factor a column: fitted on every second row, measured on the others.

    Small where the engine's state is training's after an RMSNorm, whatever its weight; NaN below 8 rows.
    """
    if len(engine) < 8:
        return float("nan")
    scaled = training / training.square().mean(1, keepdim=True).sqrt().clamp(min=1e-30)
    fit, test = slice(0, None, 2), slice(1, None, 2)
    weight = (engine[fit] * scaled[fit]).sum(0) / scaled[fit].square().sum(0).clamp(min=1e-30)  # [H]
    return float(errors(scaled[test] * weight, engine[test]).median())


def column_runs(engine: Tensor, training: Tensor, apart: float = 0.3) -> list[tuple[int, int, bool]]:
    """Columns in runs, as (first, one past the last, whether the two agree there); [] where no clear runs are.

    A column agrees where the median difference over rows is below ``apart`` of the column's median size. Single columns
    go with their neighbours: where all rows have nearly one value in a column, two texts agree in it by chance.
    """
    size = training.abs().median(0).values
    off = (engine - training).abs().median(0).values / size.clamp(min=max(0.25 * float(size.median()), 1e-30))
    agree = (off <= apart).float()  # [H]
    window = min(9, len(agree) // 64 | 1)
    padded = torch.nn.functional.pad(agree[None, None], (window // 2, window // 2), "replicate")
    smooth = padded[0, 0].unfold(0, window, 1).mean(1) > 0.5  # [H]
    least, edges = max(2 * window, 3, len(smooth) // 64), [0]
    for edge in ((smooth[1:] != smooth[:-1]).nonzero()[:, 0] + 1).tolist():
        if edge - edges[-1] >= least:
            edges.append(edge)
        elif len(edges) > 1:  # too short a run to be told from chance goes with what was before it
            edges.pop()
    edges.append(len(smooth))
    runs = [(a, b, bool(agree[a:b].mean() > 0.5)) for a, b in zip(edges, edges[1:], strict=False)]
    clear = all(
        (float(agree[a:b].mean()) >= 0.9) if right else (float(agree[a:b].mean()) <= 0.3) for a, b, right in runs
    )
    return runs if clear else []


def equal_parts(edges: list[int], width: int, slack: int = 2) -> int | None:
    """The smallest number of equal parts (the last may be short) whose borders hold all ``edges``, else None.

    Looked for: 2 to 16, 32 and 64 parts, 4 columns wide or more.
    """
    for parts in (n for n in (*range(2, 17), 32, 64) if 4 * n <= width):
        part = -(-width // parts)
        allowed = slack if part >= 32 else 0
        if all(abs(edge - part * round(edge / part)) <= allowed and round(edge / part) > 0 for edge in edges):
            return parts
    return None


def distinct_sizes(states: Tensor) -> float:
    """Median number of distinct magnitudes in a row: at most 127 where a row went through 8-bit floats."""
    rows = states[:64]
    return (
        float(torch.tensor([float(row.abs().unique().numel()) for row in rows]).median()) if len(rows) else float("nan")
    )
