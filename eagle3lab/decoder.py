"""The draft's decoder layers: the prefix's keys of every row, and chains of later steps on top of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3lab import rope
from eagle3lab.attention import Pair, Prefix
from eagle3lab.dialects.common import is_latent
from eagle3lab.errors import Blocked
from eagle3lab.mla import LatentHeads
from eagle3lab.model import Model
from eagle3lab.norms import rms_norm
from eagle3lab.reading import Reading

BLOCK_BYTES = 256 * 2**20
"""Bound on the activations of one block of rows; wide enough for matrix products at full speed."""

ROUND = 64
"""Rows of a block are a multiple of this."""

Tap = Callable[[str, Tensor], None]
"""Shown what a module gives, under the module's name."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "relu": F.relu, "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}  # fmt: skip


class GroupedHeads:
    """Queries, keys and values of one ordinary layer: GQA, head_dim apart from H, biases, q and k norms.

    Attributes as `LatentHeads`'.
    """

    def __init__(self, model: Model, reading: Reading, prefix: str):
        arch = model.draft.arch
        self.model, self.reading, self.prefix = model, reading, prefix
        self.heads, self.kv_heads = arch.heads, arch.kv_heads
        self.key_dim = self.value_dim = self.rotated = arch.head_dim
        self.scale = arch.head_dim**-0.5

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        """X [R, w] → keys and values, each [nkv, R, d]."""
        return self._turned(x, "k", self.kv_heads, cos, sin), self._project(x, "v", self.kv_heads).transpose(0, 1)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """X [R, w] → [nh, R, d]."""
        return self._turned(x, "q", self.heads, cos, sin)

    def _project(self, x: Tensor, which: str, heads: int) -> Tensor:
        out = self.model.linear(x, f"{self.prefix}{which}_proj", self.reading)
        return out.unflatten(-1, (heads, -1))  # [R, heads, d]

    def _turned(self, x: Tensor, which: str, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
        out = self._project(x, which, heads)
        norm = self.model.optional(f"{self.prefix}{which}_norm.weight", self.reading, x.dtype)
        out = out if norm is None else rms_norm(out, norm, self.model.draft.arch.eps)
        return rope.rotate(out.transpose(0, 1), cos, sin, self.reading.rope.layout)  # [heads, R, d]


class Layer:
    """One decoder layer; the first takes [embedding ; state], the others the state alone."""

    def __init__(self, model: Model, reading: Reading, index: int, rows: int, dtype: torch.dtype):
        arch = model.draft.arch
        if arch.activation not in ACTIVATIONS:
            raise Blocked(f"config.json: hidden_act {arch.activation!r} is not known; known: {', '.join(ACTIVATIONS)}")
        self.model, self.reading, self.first, self.p = model, reading, index == 0, f"layers.{index}."
        attention = self.p + "self_attn."
        takes = arch.hidden * (2 if self.first else 1)
        self.heads = LatentHeads(model, reading, attention, takes) if is_latent(model.draft.arch) else GroupedHeads(
            model, reading, attention)  # fmt: skip
        dims = (self.heads.key_dim, self.heads.value_dim)
        self.prefix = Prefix(self.heads.kv_heads, rows, dims, dtype, model.device)
        self.tap: Tap = lambda name, value: None
        self.cache: torch.dtype | None = None

    def keys_values(self, x: Tensor, turn: Pair) -> Pair:
        """What a cache gives back of the keys and values of ``x``: in fp8 rounded, cut off at its largest number."""
        pair = self.heads.keys_values(x, *turn)
        if self.cache is None:
            return pair
        most = torch.finfo(self.cache).max
        keys, values = (part.clamp(-most, most).to(self.cache).to(part.dtype) for part in pair)
        return keys, values

    def enter(self, hidden: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """State and normed embedding, each [R, H] → what attention takes [R, 2H or H], and the residual."""
        if not self.first:
            return self._norm(hidden, self.reading.second_norm), hidden
        self.tap(f"{self.p}input_layernorm", embedded)
        state = self._norm(hidden, "hidden_norm")
        x = torch.cat((embedded, state), -1)  # [R, 2H], embedding first
        return x, state if self.reading.residual == "post_norm" else hidden

    def leave(self, x: Tensor, residual: Tensor, rows: Tensor, turn: Pair, chain: list[Pair]) -> Tensor:
        """Attention from input ``x`` over prefix and ``chain``, then the MLP → [R, H]."""
        q = self.heads.queries(x, *turn)  # [nh, R, d]
        mixed = self.prefix.attend(q, rows, chain, self.reading.window, self.heads.scale)  # [R, nh*dv]
        mixed = self.model.linear(mixed, self.p + "self_attn.o_proj", self.reading)
        self.tap(f"{self.p}self_attn", mixed)
        hidden = residual + mixed
        x = self._norm(hidden, "post_attention_layernorm")
        gate = ACTIVATIONS[self.model.draft.arch.activation](self._mlp(x, "gate"))  # [R, I]
        out = self._mlp(gate.mul_(self._mlp(x, "up")), "down")
        self.tap(f"{self.p}mlp", out)
        return hidden + out

    def _mlp(self, x: Tensor, which: str) -> Tensor:
        return self.model.linear(x, f"{self.p}mlp.{which}_proj", self.reading)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        out = rms_norm(x, self.model.weight(f"{self.p}{name}.weight", x.dtype), self.model.draft.arch.eps)
        self.tap(f"{self.p}{name}", out)
        return out


class Chains:
    """Drafts under way from some rows: their later keys and values, one list a layer."""

    def __init__(self, rows: Tensor, hidden: Tensor, layers: int):
        self.rows, self.hidden = rows, hidden  # int64 [R], [R, H]: state handed on
        self.keys: list[list[Pair]] = [[] for _ in range(layers)]

    def keep(self, alive: Tensor) -> None:
        """Drops the chains that end; ``alive`` is bool [R]."""
        if not bool(alive.all()):
            self.rows, self.hidden = self.rows[alive], self.hidden[alive]
            self.keys = [[(k[:, alive], v[:, alive]) for k, v in chain] for chain in self.keys]


class Decoder:
    """All layers under one reading, over one text.

    Args:
        model: the draft's weights.
        reading: how it is run.
        rows: T0, rows of the prefix.
        steps: K, of account for the size of a block.
        dtype: of the arithmetic.
    """

    def __init__(self, model: Model, reading: Reading, rows: int, steps: int, dtype: torch.dtype):
        self.model, self.reading, self.rows, self.dtype = model, reading, rows, dtype
        self.layers = [Layer(model, reading, i, rows, dtype) for i in range(model.draft.arch.layers)]
        everything = torch.arange(rows, device=model.device)
        self.turn = rope.table(reading.rope, self.layers[0].heads.rotated, everything, rows)  # [T0, r/2] each
        self.block = block_rows(model, reading, steps)

    def blocks(self, rows: int) -> Iterator[slice]:
        """Even pieces of at most a block each, of a round number of rows: odd ones are slow in bfloat16."""
        count = max(-(-rows // self.block), 1)
        size = min(-(-rows // (count * ROUND)) * ROUND, self.block)
        return (slice(a, min(a + size, rows)) for a in range(0, rows, size))

    def embed(self, tokens: Tensor) -> Tensor:
        """Target ids [N] → the first layer's normed embedding [N, H]."""
        weight = self.model.weight("layers.0.input_layernorm.weight", self.dtype)
        return rms_norm(self.model.embedding(tokens, self.reading, self.dtype), weight, self.model.draft.arch.eps)

    def prefill(self, state: Callable[[slice], Tensor], embedded: Callable[[slice], Tensor], chosen: Tensor) -> Tensor:
        """Keys and values of every row in every layer.

        Args:
            state: rows → the fused states [r, H].
            embedded: rows → the normed embeddings [r, H] of the tokens they join.
            chosen: int64 [C], ascending: the rows from which chains will start.

        Returns:
            [C, H]: what the last layer takes at these rows, from which their chains go on.
        """
        entry = torch.empty(len(chosen), self.model.draft.arch.hidden, dtype=self.dtype, device=self.model.device)
        for block in self.blocks(self.rows):
            hidden, rows = state(block), torch.arange(block.start, block.stop, device=self.model.device)
            turn = self.turn[0][block], self.turn[1][block]
            for layer in self.layers:
                x, residual = layer.enter(hidden, embedded(block))
                layer.prefix.fill(block.start, layer.keys_values(x, turn))
                if layer is not self.layers[-1]:
                    hidden = layer.leave(x, residual, rows, turn, [])
            inside = slice(*torch.searchsorted(chosen, torch.tensor([block.start, block.stop], device=chosen.device)))
            entry[inside] = hidden[chosen[inside] - block.start]
        return entry

    def step(self, chains: Chains, embedded: Tensor, step: int) -> Tensor:
        """One draft step of every chain → the last layer's output [R, H]; at step 0 the earlier layers are done."""
        hidden, position = chains.hidden, chains.rows + step
        turn = self.turn[0][position], self.turn[1][position]
        for layer, keys in zip(self.layers, chains.keys, strict=True):
            if step == 0 and layer is not self.layers[-1]:
                continue
            x, residual = layer.enter(hidden, embedded)
            if step:
                keys.append(layer.keys_values(x, turn))
            hidden = layer.leave(x, residual, chains.rows, turn, keys)
        return hidden


def row_bytes(model: Model, reading: Reading, steps: int) -> int:
    """What one row of a block holds at most at any time, in bytes: inputs, activations, and its chain's own keys."""
    a = model.draft.arch
    dims = _widths(model)
    wide = 2 * len(reading.aux) * a.target_hidden + 12 * a.hidden + 3 * a.intermediate + 4 * dims["q"] + 2 * dims["kv"]
    return _size(reading) * (wide + (steps - 1) * 2 * a.layers * dims["kv"]) + 4 * 4 * a.hidden


def prefix_bytes(model: Model, reading: Reading) -> int:
    """What one row of the text holds throughout, in bytes: keys and values, normed embedding, last layer's input."""
    a = model.draft.arch
    return _size(reading) * (a.layers * _widths(model)["kv"] + 2 * a.hidden) + 8 * a.head_dim


def block_rows(model: Model, reading: Reading, steps: int) -> int:
    """Rows that one block holds."""
    rows = max(1, BLOCK_BYTES // row_bytes(model, reading, steps))
    return rows // ROUND * ROUND or rows


def _size(reading: Reading) -> int:
    dtype: torch.dtype = getattr(torch, reading.dtype)
    return dtype.itemsize


def _widths(model: Model) -> dict[str, int]:
    """Numbers a row: ``q`` for all queries, ``kv`` for keys and values of one layer."""
    a = model.draft.arch
    if not is_latent(model.draft.arch):
        return {"q": a.heads * a.head_dim, "kv": 2 * a.kv_heads * a.head_dim}
    nope, turned, value = (int(a.config[k]) for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    return {"q": a.heads * (nope + turned), "kv": a.heads * (nope + turned + value)}
