"""Attention of a chain of draft steps: step-0 keys of every row, and each chain's own later keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SCORES_BYTES = 8 * 2**20
"""Bound on float32 scores held at once: small enough to stay in a core's cache, a single row of a long text apart."""

WIDTH = 128
"""Scores are taken over so many keys at a time; those that lie ahead are masked."""

Pair = tuple[Tensor, Tensor]
"""Keys [nkv, R, d] and values [nkv, R, dv] of the same rows."""


class Prefix:
    """Step-0 keys and values of one layer, filled row by row from the front.

    Args:
        kv_heads: nkv.
        rows: T0, how many rows there will be.
        dims: width of a key and of a value; they differ under MLA.
        dtype: of the arithmetic.
        device: where they are kept.
    """

    def __init__(self, kv_heads: int, rows: int, dims: tuple[int, int], dtype: torch.dtype, device: torch.device):
        # zeros: rows not filled yet are multiplied, by weights of zero
        self.keys = torch.zeros(kv_heads, rows, dims[0], dtype=dtype, device=device)
        self.values = torch.zeros(kv_heads, rows, dims[1], dtype=dtype, device=device)

    def fill(self, start: int, pair: Pair) -> None:
        """Keeps the rows from ``start`` on."""
        keys, values = pair
        end = start + keys.shape[1]
        self.keys[:, start:end], self.values[:, start:end] = keys, values
        sound = values.isfinite().all(-1)  # [nkv, R]
        if not bool(sound.all()):
            # a weight of zero does not hide a NaN, a masked score does: rows before this one must not see it
            self.keys[:, start:end].masked_fill_(~sound[..., None], float("nan"))
            self.values[:, start:end].masked_fill_(~sound[..., None], 0.0)

    def attend(self, q: Tensor, rows: Tensor, chain: Sequence[Pair], window: int | None, scale: float) -> Tensor:
        """Mixes values for one query a row.

        Args:
            q: [nh, R, d], rotated.
            rows: int64 [R], ascending: the query of row t sees the step-0 rows up to t, and nothing after.
            chain: keys and values of the chain's own later steps, the query's own last; R rows each.
            window: how many tokens a query sees, itself included; None for all.
            scale: factor on the scores before the softmax.

        Returns:
            [R, nh*dv]; the softmax is taken in float32 (EAGLE, SpecForge, HF).
        """
        kv_heads, groups = self.keys.shape[0], q.shape[0] // self.keys.shape[0]
        grouped = q.unflatten(0, (kv_heads, groups))  # [nkv, g, R, d]
        # the window slides over a chain's own keys too: of its k later steps the last ``window`` are in sight
        near = chain if window is None else chain[-window:]
        hidden_behind = None if window is None else len(chain) - window
        out = q.new_empty(len(rows), q.shape[0] * self.values.shape[-1])
        size = max(1, SCORES_BYTES // (4 * q.shape[0] * (self.keys.shape[1] + len(near))))
        size = size // 16 * 16 or size
        for start in range(0, len(rows), size):
            at = slice(start, start + size)
            own = [(k[:, at], v[:, at]) for k, v in near]
            mixed = self._some(grouped[:, :, at], rows[at], own, hidden_behind, scale)  # [nkv, g, r, dv]
            out[at] = mixed.permute(2, 0, 1, 3).flatten(1)
        return out

    def _some(self, q: Tensor, rows: Tensor, own: Sequence[Pair], hidden_behind: int | None, scale: float) -> Tensor:
        """`attend` for the few rows whose scores are held at once: q [nkv, g, r, d] → [nkv, g, r, dv]."""
        kv_heads, groups, count, _ = q.shape
        first, last = int(rows[0]), int(rows[-1])
        # few different widths: in bfloat16 each new one has oneDNN compile a product of its own, and keep it
        upto = min(-(-(last + 1) // WIDTH) * WIDTH, self.keys.shape[1])
        flat = q.flatten(1, 2)  # [nkv, g*r, d]: one product a kv head, keys are never repeated
        scores = q.new_empty(kv_heads, groups * count, upto + len(own))
        scores[..., :upto].baddbmm_(flat, self.keys[:, :upto].transpose(1, 2), beta=0, alpha=scale)
        tall = scores.unflatten(1, (groups, count))  # [nkv, g, r, upto+k]
        position = torch.arange(upto, device=rows.device)
        # only columns past the first row can lie in some row's future
        tall[..., first + 1 : upto].masked_fill_(position[first + 1 :] > rows[:, None], float("-inf"))
        if hidden_behind is not None:
            tall[..., :upto].masked_fill_(position <= rows[:, None] + hidden_behind, float("-inf"))
        for i, (key, _) in enumerate(own):
            tall[..., upto + i] = (q * key[:, None]).sum(-1) * scale
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
        mixed = torch.bmm(weights[..., :upto], self.values[:, :upto]).unflatten(1, (groups, count))
        for i, (_, value) in enumerate(own):
            mixed += weights[..., upto + i].view(kv_heads, groups, count, 1) * value[:, None]
        return mixed
