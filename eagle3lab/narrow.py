"""A draft with a part of its vocabulary: enough to put many readings in order, never for a number."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.vocab import VocabMap

EVERY = 8
"""Of the rows of ``lm_head`` that no recorded token needs, one in so many is kept in the first rounds of a race."""

WIDE = 4096
"""Rows of ``lm_head`` from which narrowing pays."""


class Narrow(Model):
    """The same draft with fewer rows of ``lm_head``: for the first rounds of a race, which only order candidates.

    Kept are the rows of every token in the recordings, and of the others one in `EVERY`, so that there is still
    something to lose against.
    """

    def __init__(self, model: Model, tokens: Tensor):
        super().__init__(model.draft, model.target, str(model.device))
        self._weights, self._near = model._weights, model._near
        self._tokens, self._kept = tokens, dict[str, Tensor]()
        self._heads: dict[tuple[str, str, torch.dtype], Tensor] = {}
        self._whole = model

    def _rows(self, reading: Reading) -> Tensor:
        if reading.vocab_map not in self._kept:
            hot = self._whole.vocab_map(reading).hot_token_id
            asked = torch.isin(hot, self._tokens)
            asked[::EVERY] = True
            self._kept[reading.vocab_map] = torch.nonzero(asked)[:, 0]
        return self._kept[reading.vocab_map]

    def head(self, reading: Reading, dtype: torch.dtype) -> Tensor:
        """Kept rows of ``lm_head``."""
        key = (reading.head, reading.vocab_map, dtype)
        if key not in self._heads:
            self._heads[key] = self._whole.head(reading, dtype)[self._rows(reading)]
        return self._heads[key]

    def vocab_map(self, reading: Reading) -> VocabMap:
        """The map of the kept rows."""
        kind = reading.vocab_map
        if kind not in self._maps:
            whole = self._whole.vocab_map(reading)
            self._maps[kind] = VocabMap(whole.hot_token_id[self._rows(reading)], whole.vocab, whole.kind)
        return self._maps[kind]
