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

    def _rows(self, kind: str) -> Tensor:
        if kind not in self._kept:
            asked = torch.isin(self._whole.map_of(kind).hot_token_id, self._tokens)
            asked[::EVERY] = True
            self._kept[kind] = torch.nonzero(asked)[:, 0]
        return self._kept[kind]

    def head(self, reading: Reading, dtype: torch.dtype) -> Tensor:
        """Kept rows of ``lm_head``."""
        key = (reading.head, reading.vocab_map, dtype)
        if key not in self._heads:
            self._heads[key] = self._whole.head(reading, dtype)[self._rows(reading.vocab_map)]
        return self._heads[key]

    def _read_map(self, kind: str) -> VocabMap:
        """The map of the kept rows."""
        whole = self._whole.map_of(kind)
        return VocabMap(whole.hot_token_id[self._rows(kind)], whole.vocab, kind)
