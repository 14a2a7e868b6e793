"""Attention of a chain of draft steps: step-0 keys of every row, and each chain's own later keys."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK_BYTES = 64 * 2**20
"""Bound on attention scores held at once."""


class Attention:
    """Keys and values of one layer: step-0 rows, then each chain's own."""

    def __init__(self) -> None:
        self.base: tuple[Tensor, Tensor] | None = None  # [nkv, T0, d] each
        self.chain: list[tuple[Tensor, Tensor]] = []  # [nkv, R, d] each, one a later step

    def keep(self, mask: Tensor) -> None:
        """Drops chains whose row ends."""
        self.chain = [(k[:, mask], v[:, mask]) for k, v in self.chain]

    def attend(self, q: Tensor, rows: Tensor, window: int | None) -> Tensor:
        """Q [nh, R, d] of the chains that start at ``rows`` [R] (ascending) → [R, nh*d]."""
        assert self.base is not None
        keys, values = self.base
        kv_heads, dim = keys.shape[0], q.shape[-1]
        grouped = q.unflatten(0, (kv_heads, -1)) * dim**-0.5  # [nkv, g, R, d]
        size = max(1, CHUNK_BYTES // (4 * q.shape[0] * max(keys.shape[1], 1)))
        # the window slides over a chain's own keys too: of its k later steps the last ``window`` are in sight
        near = self.chain if window is None else self.chain[-window:]
        out = []
        for at in torch.arange(len(rows)).split(size):
            take, places = grouped[:, :, at], rows[at]
            upto = int(places[-1]) + 1
            scores = take @ keys[:, None, :upto].transpose(-1, -2)  # [nkv, g, r, upto]
            position = torch.arange(upto, device=rows.device)
            hidden = position > places[:, None]
            if window is not None:
                hidden |= position <= places[:, None] + len(self.chain) - window
            scores = scores.masked_fill(hidden, float("-inf"))
            own = [(take * k[:, None, at]).sum(-1, keepdim=True) for k, _ in near]  # [nkv, g, r, 1] each
            weights = torch.cat([scores, *own], -1).float().softmax(-1).to(q.dtype)
            mixed = weights[..., :upto] @ values[:, None, :upto]  # [nkv, g, r, d]
            for i, (_, v) in enumerate(near):
                mixed = mixed + weights[..., upto + i : upto + i + 1] * v[:, None, at]
            out.append(mixed.permute(2, 0, 1, 3).flatten(1))  # [r, nh*d]
        return torch.cat(out) if out else q.new_empty(0, q.shape[0] * dim)
