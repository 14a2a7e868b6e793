"""The draft vocabulary: ``d2t`` offsets, ``hot_token_id``, coverage of recorded tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class VocabMap:
    """Draft id ↔ target id as one reading of ``d2t`` gives it.

    Attributes:
        hot_token_id: int64 [Vd], target id of each draft id (SGLang's name for ``d2t + arange(Vd)``).
        vocab: V of the target.
        kind: ``offsets``, ``ids``, ``identity`` or ``t2d``: how the map was read.
        d2t: int64 [Vd] as stored, None when the checkpoint has none.
        t2d: bool [V'] as stored, None when the checkpoint has none.
    """

    hot_token_id: Tensor
    vocab: int
    kind: str
    d2t: Tensor | None = None
    t2d: Tensor | None = None

    @classmethod
    def read(cls, kind: str, size: int, vocab: int, d2t: Tensor | None, t2d: Tensor | None) -> VocabMap:
        """Reads the stored tensors as ``kind`` says.

        ``offsets``: target = i + d2t[i] (SpecForge, EAGLE, speculators; SGLang and vLLM read it so).
        ``ids``: target = d2t[i] (GGUF). ``identity``: target = i (what an engine does without a map).
        ``t2d``: the True places of t2d in order.

        Raises:
            ValueError: the tensor that ``kind`` needs is not there, or does not hold ``size`` ids.
        """
        draft_ids = torch.arange(size)  # [Vd]
        if kind == "identity":
            hot = draft_ids
        elif kind == "t2d":
            if t2d is None:
                raise ValueError("vocab map 't2d': the checkpoint holds no t2d")
            hot = torch.nonzero(t2d.bool())[:, 0]
        else:
            if d2t is None:
                raise ValueError(f"vocab map '{kind}': the checkpoint holds no d2t")
            stored = d2t.long()
            hot = stored + torch.arange(len(stored)) if kind == "offsets" else stored
        if len(hot) != size:
            raise ValueError(f"vocab map '{kind}': gives {len(hot)} ids, but lm_head has {size} rows")
        return cls(hot, vocab, kind, d2t, t2d)

    @property
    def size(self) -> int:
        """Vd."""
        return len(self.hot_token_id)

    @property
    def out_of_range(self) -> Tensor:
        """Draft ids whose target id is outside [0, V)."""
        return torch.nonzero((self.hot_token_id < 0) | (self.hot_token_id >= self.vocab))[:, 0]

    @property
    def repeated(self) -> int:
        """Number of draft ids whose target id another draft id has too (first ones not counted)."""
        return self.size - int(self.hot_token_id.unique().numel())

    @property
    def ascending(self) -> bool:
        """True when target ids strictly rise with draft ids (every trainer but modelopt sorts)."""
        return bool((self.hot_token_id[1:] > self.hot_token_id[:-1]).all())

    @property
    def t2d_agrees(self) -> bool | None:
        """Whether t2d marks exactly the target ids of the map; None without t2d."""
        if self.t2d is None:
            return None
        marked = torch.nonzero(self.t2d.bool())[:, 0]
        return bool(torch.equal(marked, self.hot_token_id.sort().values))

    @property
    def leading_zeros(self) -> int:
        """Length of the run of zero offsets at the start: ids below it are themselves (padding of small corpora)."""
        if self.d2t is None or not len(self.d2t):
            return 0
        nonzero = torch.nonzero(self.d2t)[:, 0]
        return int(nonzero[0]) if len(nonzero) else len(self.d2t)

    def to_draft(self, tokens: Tensor) -> Tensor:
        """Draft id of each target token, -1 for tokens outside the draft vocab; same shape as ``tokens``."""
        most = int(tokens.max()) + 1 if tokens.numel() else 0
        table = self._draft_ids if most <= self.vocab else self._table(most)
        return table[tokens.long()]

    @cached_property
    def _draft_ids(self) -> Tensor:
        return self._table(self.vocab)

    def _table(self, size: int) -> Tensor:
        """Int64 [size]: draft id of each target id, -1 where it has none."""
        table = torch.full((size,), -1, dtype=torch.long)
        inside = (self.hot_token_id >= 0) & (self.hot_token_id < size)
        # reversed, so that of two rows with one target the first one counts, as in an engine's argmax on ties
        ids = torch.nonzero(inside)[:, 0].flip(0)
        table[self.hot_token_id[ids]] = ids
        return table

    def covers(self, tokens: Tensor) -> Tensor:
        """Bool mask: which target tokens the draft can say; same shape as ``tokens``."""
        return self.to_draft(tokens) >= 0


def ceiling(coverage: float, steps: int) -> float:
    """Accept length (bonus included) that a perfect draft reaches when each token is covered with ``coverage``.

    1 + Σ_{j=1..K} coverage^j: coverage of neighbouring tokens taken as independent.
    """
    return 1 + sum(coverage**j for j in range(1, steps + 1))
