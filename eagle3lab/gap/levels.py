"""The waterfall's records: bars that begin where the one before ended, and the way from one reading to another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from eagle3lab.reading import Reading
from eagle3lab.records import Interval


@dataclass(frozen=True)
class Bar:
    """One step of the waterfall.

    Attributes:
        kind: ``bonus``, ``chain``, ``vocab``, ``texts``, ``walk``, ``reading``, ``self-fed``, ``steps``, ``tree``,
            ``rest``.
        name: what it is, in a few words.
        start: accept length before.
        end: accept length after.
        change: end - start with its interval; NaN ends where none can be had, and ``method`` says why.
        sentence: what it means, one sentence.
    """

    kind: str
    name: str
    start: float
    end: float
    change: Interval
    sentence: str


@dataclass(frozen=True)
class Waterfall:
    """The bars in order, each beginning where the one before ended.

    Attributes:
        bars: see `Bar`.
        begins: what the first level is, in words.
        ends: what the last one is.
        missing: what could not be told apart or measured, in words; empty when the waterfall is complete.
    """

    bars: tuple[Bar, ...]
    begins: str
    ends: str
    missing: tuple[str, ...] = ()

    @property
    def total(self) -> float:
        """The whole difference; NaN without bars."""
        return self.bars[-1].end - self.bars[0].start if self.bars else math.nan

    @property
    def largest_loss(self) -> Bar | None:
        """The bar that takes most of those that compare like with like (the arithmetic ones apart) and surely take.

        Whose interval holds 0 may as well give; without an interval (too few samples) every loss counts.
        """
        losses = [
            bar for bar in self.bars
            if bar.kind not in ARITHMETIC and bar.end < bar.start - SMALL and not bar.change.high >= 0
        ]  # fmt: skip
        return min(losses, key=lambda bar: bar.end - bar.start, default=None)


SMALL = 0.005
"""A change that two decimals do not show."""

ARITHMETIC = ("bonus", "chain")
"""Bars that follow from training's figure by arithmetic alone."""


@dataclass(frozen=True)
class Measured:
    """What the engine measured of a run.

    Attributes:
        length: accept length, bonus included.
        rounds: behind it.
        by_sample: sample → (rounds, accepted) where requests have the tokens of samples, {} when not said.
        extra: most that drafts accepted past a request's end can add.
        source: which evidence, in words.
    """

    length: float
    rounds: int
    by_sample: Mapping[str, tuple[int, int]]
    extra: float = 0.0
    source: str = ""


def path(start: Reading, end: Reading) -> list[tuple[str, Reading]]:
    """From one reading to another, a field a step: (``field: from → to``, the reading after it), wiring first."""
    out, now = [], start
    for key in sorted(start.diff(end), key=lambda key: key != "aux"):  # sorted keeps the fields' own order otherwise
        field, _, part = key.partition(".")
        value = getattr(end, field)
        if part:
            value = type(now.rope)(**{**vars(now.rope), part: getattr(end.rope, part)})
        after = now.replace(**{field: value})
        out.append((now.words(after), after))
        now = after
    return out
