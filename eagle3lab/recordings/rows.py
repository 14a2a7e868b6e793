"""What rows give away without any other state: rows that are copies of others, and rows that all have one size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 4096
"""Rows looked at at once."""

RUN, AGAIN = 2, 4
"""Copies of one row, one after another, that are told; and rows of a stretch that stands there twice."""

SINGLE = 8
"""One row in so many must repeat the one before it where no stretch is longer than a pair."""

WINDOW = 128
"""Rows of the smallest attention window known: past as many equal tokens its states are equal, and rightly."""

ONE_SIZE = 0.01
"""Spread of the rows' RMS, relative to it, up to which they were normed: rounding to bfloat16 leaves up to 0.4 %."""

LEAST, MOST = 24, 256
"""Rows of a state below which nothing is said of their sizes, and how many of them are looked at."""


@dataclass(frozen=True)
class Copies:
    """Rows ``first`` … ``last``, each equal, bit by bit, to the row ``lag`` before it."""

    first: int
    last: int
    lag: int

    @property
    def count(self) -> int:
        """How many rows these are."""
        return self.last - self.first + 1

    @property
    def words(self) -> str:
        """What they are, for a finding."""
        if self.lag == 1:
            return f"{_rows(self.first, self.last)} copies of row {self.first - 1}"
        again = " over and over" if self.lag < self.count else ""
        end = self.first - 1 if again else self.last - self.lag
        return f"rows {self.first} … {self.last} repeat rows {self.first - self.lag} … {end}{again}"


def _rows(first: int, last: int) -> str:
    return f"rows {first} … {last} are" if last > first else f"row {first} is"


def copied(state: Tensor, tokens: Tensor, boundary: int) -> Tensor:
    """Rows that hold the states of an earlier row: int64 [T], how many rows before; 0 where a row is its own.

    Two places of a text never have one state: a row attends to all rows before it. Left out, as they may be equal
    rightly: boundary 0, which S003 holds against the tokens themselves, and any other that is a function of the token
    alone; equal tokens that begin a text; equal stretches of text past any attention window; and rows of zeros, which
    say what they are by themselves.

    Args:
        state: [T, Ht].
        tokens: [T].
        boundary: its number.
    """
    lags = _lags(state) if boundary else torch.zeros(len(tokens), dtype=torch.long)
    if not bool(lags.any()):
        return lags
    places = torch.arange(len(lags))
    same = (lags > 0) & (tokens == tokens[places - lags])
    embeds = bool((lags > 1).any()) and torch.equal(lags, _lags(tokens[:, None] + 1))
    if not embeds:
        started = int((tokens != tokens[0]).int().argmax()) or len(tokens)  # tokens that begin it, all equal
        lags[:started] = 0
    kept = torch.zeros_like(lags)
    pairs = []
    for run in runs(lags):
        rows = slice(run.first, run.last + 1)
        if embeds and int((~same[rows]).sum()) < min(run.count, RUN):
            continue
        if not embeds and _past_window(tokens, run):
            continue
        if run.count >= (RUN if run.lag == 1 else AGAIN):
            kept[rows] = run.lag
        elif run.lag == 1:
            pairs.append(run.first)
    if len(pairs) >= max(AGAIN, len(lags) // SINGLE):
        kept[pairs] = 1
    return kept


def runs(lags: Tensor) -> list[Copies]:
    """Stretches of one lag, in order; ``lags`` as `copied` gives them."""
    edges = torch.nonzero(torch.diff(lags, prepend=lags.new_full((1,), -1), append=lags.new_full((1,), -1)))[:, 0]
    places, at = edges.tolist(), lags[edges[:-1]].tolist()
    return [Copies(a, b - 1, lag) for a, b, lag in zip(places, places[1:], at, strict=False) if lag]


def before_copies(lags: Tensor, end: int) -> int:
    """Of the first ``end`` rows, those before copies of one row that stand at their end."""
    own = torch.nonzero(lags[:end] != 1)
    return int(own[-1]) + 1 if len(own) else end


def sizes(state: Tensor, lags: Tensor) -> tuple[float, float] | None:
    """RMS of rows that are no copies, and its spread (largest less smallest) relative to it.

    At most `MOST` rows, evenly spread; None where fewer than `LEAST` hold numbers.
    """
    own = torch.nonzero(lags == 0)[:, 0]
    chosen = own[torch.linspace(0, len(own) - 1, min(len(own), MOST)).round().long()]
    values = state[chosen].float().square().mean(1).sqrt()
    values = values[values.isfinite() & (values > 0)]
    if len(values) < LEAST:
        return None
    middle = float(values.median())
    return middle, float(values.max() - values.min()) / middle


def normed(found: tuple[float, float] | None) -> bool:
    """Whether rows of such `sizes` were all brought to one: a residual stream's differ by tens of percent."""
    return found is not None and found[1] <= ONE_SIZE


def _lags(state: Tensor) -> Tensor:
    """How far before each row the nearest equal one is, 0 for none; zeros and NaN equal nothing."""
    keys = torch.cat([_keys(part) for part in state.split(BLOCK)])
    order = torch.argsort(keys, stable=True)
    twice = keys[order[1:]] == keys[order[:-1]]
    rows, sources = order[1:][twice], order[:-1][twice]
    lags = torch.zeros_like(keys)
    for here, there in zip(rows.split(BLOCK), sources.split(BLOCK), strict=True):
        values = state[here]
        equal = (values == state[there]).all(1) & (values != 0).any(1)  # a key alone proves nothing
        lags[here[equal]] = here[equal] - there[equal]
    return lags


def _keys(rows: Tensor) -> Tensor:
    """One number a row, int64 [n], equal for equal rows: their bits in odd random proportions, modulo 2^64."""
    bits = rows.contiguous()
    if rows.shape[1] * rows.itemsize % 8:
        words = bits.view(torch.int16 if rows.itemsize == 2 else torch.int32).long()
    else:
        words = (bits.clone() if bits.storage_offset() * rows.itemsize % 8 else bits).view(torch.int64)
    random = torch.randint(-(2**62), 2**62, (words.shape[1],), generator=torch.Generator().manual_seed(0))
    return (words * (2 * random + 1)).sum(1)


def _past_window(tokens: Tensor, run: Copies) -> bool:
    """Whether the text had repeated itself at this distance for as long as a window before these rows."""
    start = run.first - WINDOW
    return start >= run.lag and torch.equal(tokens[start : run.first], tokens[start - run.lag : run.first - run.lag])
