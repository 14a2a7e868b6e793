"""Which text, and which row, of one recording is which of another: by tokens and by states, never by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.gap import rows as rows_of

FEWEST = 8
"""Tokens that must agree in a row: fewer may be a chat template's own."""


@dataclass(frozen=True)
class Overlap:
    """A run of equal tokens in two texts.

    Attributes:
        name: the second text.
        first: where it begins in the first text.
        second: where it begins in the second.
        length: tokens.
    """

    name: str
    first: int
    second: int
    length: int


def overlap(mine: Tensor, others: Mapping[str, Tensor]) -> Overlap | None:
    """The text that shares the longest run of tokens with ``mine``, None when none shares `FEWEST`.

    Looked for: a common beginning (causal states depend on nothing after it), and ``mine`` beginning somewhere inside
    the other, as where an engine answered the beginning from its cache.

    Args:
        mine: int64 [T].
        others: name → int64 [T'].
    """
    best: Overlap | None = None
    for name, theirs in others.items():
        for second in _starts(mine, theirs):
            limit = min(len(mine), len(theirs) - second)
            same = int((mine[:limit] == theirs[second : second + limit]).long().cumprod(0).sum())
            if same >= FEWEST and (best is None or same > best.length):
                best = Overlap(name, 0, second, same)
    return best


def _starts(mine: Tensor, theirs: Tensor) -> list[int]:
    """0, and wherever the first `FEWEST` tokens of ``mine`` stand in ``theirs``."""
    if len(mine) < FEWEST or len(theirs) < FEWEST:
        return [0]
    windows = theirs.unfold(0, FEWEST, 1)  # [T' - FEWEST + 1, FEWEST]
    found = (windows == mine[:FEWEST]).all(1).nonzero()[:, 0].tolist()
    return list(dict.fromkeys([0, *found]))


@dataclass(frozen=True)
class Place:
    """Rows of an engine's dump that are rows of training's, all moved alike.

    Attributes:
        boundary: training's boundary.
        lag: the engine's row i is training's row i + lag.
        rows: the engine's rows, ascending.
    """

    boundary: int
    lag: int
    rows: tuple[int, ...]


def found_elsewhere(
    states: Tensor, numbers: Tensor, training: Mapping[int, Tensor], limit: float, lag: int = 0, most: int = 3
) -> list[Place]:
    """Where in training's recording some rows of an engine's dump are, the place that explains most of them first.

    Args:
        states: the engine's slot [T, Ht].
        numbers: the rows asked for, ascending; places are sought with `rows_of.MOST_ROWS` of them, evenly spread.
        training: boundary → [Tt, Ht].
        limit: relative error up to which a row is training's.
        lag: the lag that the tokens say; of equal places the one nearest to it is taken.
        most: places at most, each with a fifth of the rows: in the embeddings two texts share a token here and there.
    """
    asked = numbers
    if len(asked) > rows_of.MOST_ROWS:
        asked = asked[torch.linspace(0, len(asked) - 1, rows_of.MOST_ROWS).long()]
    near = {b: _near(states[asked], truth, limit) for b, truth in training.items()}  # each [R, Tt]
    left, out = numbers, list[Place]()
    while len(left) and len(out) < most:
        open_rows = torch.isin(asked, left)
        votes: list[tuple[int, int, int]] = []
        for boundary, table in near.items():
            row, column = (table & open_rows[:, None]).nonzero(as_tuple=True)
            lags, counts = (column - asked[row]).unique(return_counts=True)
            votes += [(int(n), at, boundary) for at, n in zip(lags.tolist(), counts, strict=True)]
        votes = [vote for vote in votes if 5 * vote[0] >= len(asked)]
        if not votes:
            break
        _, at, boundary = max(votes, key=lambda v: (v[0], -abs(v[1] - lag)))
        there = left[(left + at >= 0) & (left + at < len(training[boundary]))]
        off = rows_of.errors(states[there].float(), training[boundary][there + at].float())
        mine = there[off <= 1.001 * limit]  # the table's arithmetic and this differ in the last digits
        if not len(mine):
            break
        out.append(Place(boundary, at, tuple(mine.tolist())))
        left = left[~torch.isin(left, mine)]
    return out


def _near(some: Tensor, truth: Tensor, limit: float) -> Tensor:
    """Bool [R, Tt]: pairs of rows with a relative error up to ``limit``, from |e - t|² = |e|² + |t|² - 2 e·t."""
    ratio = some.float().norm(dim=1)[:, None] / truth.float().norm(dim=1).clamp(min=1e-30)
    cosine = rows_of.unit(some) @ rows_of.unit(truth).T
    return (ratio.square() + 1 - 2 * ratio * cosine <= limit**2) & rows_of.finite(truth)


def named(numbers: Sequence[int]) -> str:
    """Row numbers in few words: ``row 5``, ``rows 16 … 43``, ``1 row of every 2 from row 1 to row 59``."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    if len(numbers) == 1:
        return f"row {numbers[0]}"
    steps = {b[0] - a[0] for a, b in zip(runs, runs[1:], strict=False)}
    widths = {last - first + 1 for first, last in runs}
    if len(runs) > 3 and len(steps) == len(widths) == 1:
        width = widths.pop()
        each = f"{width} row{'s' if width > 1 else ''} of every {steps.pop()}"
        return f"{each} from row {runs[0][0]} to row {runs[-1][1]}"
    words = ", ".join(f"{a}" if a == b else f"{a} … {b}" for a, b in runs[:5])
    more = sum(b - a + 1 for a, b in runs[5:])
    return f"rows {words}" + (f" and {more} more up to row {runs[-1][1]}" if more else "")
