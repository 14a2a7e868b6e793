"""Which text of one recording is which of another: by tokens, never by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

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
