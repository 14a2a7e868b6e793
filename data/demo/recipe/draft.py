"""The draft: what its rows are, its one layer and how it starts from the target.

Row t joins the target's states of position t with token t+1 and predicts token t+2, at RoPE position t.
Step k of the unrolled test takes the hidden state that step k-1 left at row t, joins it with token t+1+k (the
recorded one: teacher-forced) and predicts token t+2+k, at RoPE position t+k. It sees the step-0 keys of rows
up to t and its own chain's keys of steps 1 to k.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from recipe.generate import Reply
from recipe.target import Shape, Target, rms_norm, rotary_table, rotate
from torch import Tensor, nn


def draft_vocab(replies: Iterable[list[int]], size: int) -> Tensor:
    """The ``size`` most frequent tokens of ``replies``, padded with low ids, ascending [Vd]."""
    counts = Counter(token for reply in replies for token in reply)
    ids = [token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]]
    have = set(ids)
    low = (token for token in range(size + len(ids)) if token not in have)
    ids += [next(low) for _ in range(size - len(ids))]
    return torch.tensor(sorted(ids))


@dataclass
class Batch:
    """Some conversations as flat rows; reply rows are those that predict a reply's second token and later.

    Attributes:
        features: [N, A*H], the aux states of every row, one row a position, ready for ``fc``.
        tokens: [N], the token each row joins at step 0.
        conversation: [N], which one a row belongs to.
        position: [N], t.
        reply: [M], numbers of the reply rows.
        place: [M], the reply row's number s within its conversation.
        left: [M], reply rows of its conversation from this one on: step k needs more than k.
        last: [M, H], the target's last residual at position t+1, whose distribution is the label.
        labels: [M], token t+2.
    """

    features: Tensor
    tokens: Tensor
    conversation: Tensor
    position: Tensor
    reply: Tensor
    place: Tensor
    left: Tensor
    last: Tensor
    labels: Tensor


@dataclass
class Feed:
    """Makes batches: what a row takes from a reply, and by what it is divided."""

    embed: Tensor
    aux: tuple[int, ...]
    last: int
    rms: tuple[float, ...] = ()

    def states(self, reply: Reply, k: int) -> Tensor:
        """Boundary ``k`` [T-1, H]; boundary 0 is the embedding."""
        return F.embedding(reply.ids[:-1], self.embed) if k == 0 else reply.states[k].float()

    def measure(self, replies: list[Reply]) -> Feed:
        """The same, dividing each source by its RMS over ``replies``.

        Row 0 is left out: it is an attention sink, hundreds of times larger than all others.
        """
        squares = [torch.cat([self.states(r, k)[1:] for r in replies]).square().mean() for k in self.aux]
        return Feed(self.embed, self.aux, self.last, tuple(s.sqrt().item() for s in squares))

    def rewired(self, aux: tuple[int, ...]) -> Feed:
        """The same draft fed other boundaries: the divisors are its own, folded into its ``fc``."""
        return Feed(self.embed, aux, self.last, self.rms)

    def __call__(self, replies: list[Reply]) -> Batch:
        """One batch."""
        parts: dict[str, list[Tensor]] = {name: [] for name in Batch.__annotations__}
        before = 0
        for number, r in enumerate(replies):
            rows = len(r.ids) - 2  # the last two positions have nothing left to predict
            first = r.start - 1
            count = rows - first
            aux = [self.states(r, k)[:rows] / rms for k, rms in zip(self.aux, self.rms, strict=True)]
            values = {
                "features": torch.cat(aux, -1),
                "tokens": r.ids[1 : rows + 1],
                "conversation": torch.full((rows,), number),
                "position": torch.arange(rows),
                "reply": before + torch.arange(first, rows),
                "place": torch.arange(count),
                "left": count - torch.arange(count),
                "last": self.states(r, self.last)[r.start :],
                "labels": r.ids[r.start + 1 :],
            }
            for name, value in values.items():
                parts[name].append(value)
            before += rows
        return Batch(**{name: torch.cat(values) for name, values in parts.items()})


class Draft(nn.Module):
    """EAGLE-3's layer; ``embed``, ``head`` (the target's rows of the draft vocab) and RoPE are fixed."""

    embed: Tensor
    head: Tensor
    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, aux: int, embed: Tensor, head: Tensor) -> None:
        super().__init__()
        h, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.shape = shape
        sizes = {
            "fc": (h, aux * h),
            "input_norm": (h,),
            "hidden_norm": (h,),
            "q": (q, 2 * h),
            "kv": (2 * kv, 2 * h),
            "o": (h, q),
            "mlp_norm": (h,),
            "gate_up": (2 * shape.intermediate, h),
            "down": (h, shape.intermediate),
            "norm": (h,),
        }
        self.w = nn.ParameterDict({name: nn.Parameter(torch.empty(size)) for name, size in sizes.items()})
        cos, sin = rotary_table(shape.head_dim, shape.rope_base, 2048)
        for name, table in {"embed": embed, "head": head, "cos": cos, "sin": sin}.items():
            self.register_buffer(name, table, persistent=False)

    @torch.no_grad()
    def start(self, target: Target, block: int, scale: float, seed: int) -> None:
        """Begin as the target's ``block`` reading the last aux source through ``fc``.

        ``scale`` is that source's RMS: the draft's residual stream is the target's divided by it, so what the
        block adds is divided too.
        """
        noise = torch.Generator().manual_seed(seed)
        b, w, h = target.blocks[block], self.w, self.shape.hidden
        for name in ("fc", "q", "kv"):
            w[name].normal_(0, 0.01, generator=noise)
        w["fc"][:, -h:] += torch.eye(h)
        queries = len(w["q"])
        w["q"][:, h:], w["kv"][:, h:] = b["qkv"][:queries], b["qkv"][queries:]
        copies = {
            "input_norm": torch.ones(h),
            "hidden_norm": b["attn_norm"],
            "o": b["o"] / scale,
            "mlp_norm": b["mlp_norm"],
            "gate_up": b["gate_up"],
            "down": b["down"] / scale,
            "norm": target.norm,
        }
        for name, value in copies.items():
            w[name].copy_(value)

    def rounded(self, rms: tuple[float, ...]) -> Draft:
        """The draft as its bfloat16 file holds it, ``fc`` rounded after division by ``rms``."""
        other = copy.deepcopy(self)
        scale = torch.tensor(rms).repeat_interleave(self.shape.hidden)
        with torch.no_grad():
            for name, p in other.w.items():
                p.copy_((p / scale).bfloat16().float() * scale if name == "fc" else p.bfloat16().float())
        return other

    def forward(self, batch: Batch, steps: int) -> list[tuple[Tensor, Tensor]]:
        """Every step's reply rows and their logits over the draft vocab: [(rows [Mk], logits [Mk, Vd])]."""
        s, w = self.shape, self.w
        size, most = int(batch.conversation[-1]) + 1, int(batch.place.max()) + 1

        def norm(x: Tensor, name: str) -> Tensor:
            return rms_norm(x, w[name], s.eps)

        def joined(tokens: Tensor, hidden: Tensor) -> Tensor:
            token = norm(F.embedding(tokens, self.embed), "input_norm")
            return torch.cat([token, norm(hidden, "hidden_norm")], -1)  # [n, 2H]

        def heads(x: Tensor, position: Tensor) -> Tensor:
            cos, sin = self.cos[position][:, None], self.sin[position][:, None]
            return rotate(x.view(len(x), -1, s.head_dim), cos, sin)  # [n, heads, d]

        def padded(x: Tensor, conversation: Tensor, place: Tensor, length: int) -> Tensor:
            grid = x.new_zeros(size, length, *x.shape[1:])
            return grid.index_put((conversation, place), x).transpose(1, 2)  # [B, heads, length, d]

        def keys(x: Tensor, conversation: Tensor, place: Tensor, turn: Tensor, length: int) -> list[Tensor]:
            k, v = F.linear(x, w["kv"]).chunk(2, -1)
            k, v = heads(k, turn), v.view(len(v), s.kv_heads, s.head_dim)
            return [padded(part, conversation, place, length) for part in (k, v)]

        hidden = F.linear(batch.features, w["fc"])  # [N, H]
        x = joined(batch.tokens, hidden)  # [N, 2H]
        # Every row leaves keys at step 0, but only reply rows predict anything.
        k0, v0 = keys(x, batch.conversation, batch.position, batch.position, int(batch.position.max()) + 1)
        hidden, x = hidden[batch.reply], x[batch.reply]
        position, conversation = batch.position[batch.reply], batch.conversation[batch.reply]
        tokens = batch.tokens[batch.reply]
        rows, found = torch.arange(len(position)), []
        first = position.new_zeros(size).index_put((conversation,), position - batch.place)
        seen = torch.arange(k0.shape[2]) <= (first[:, None] + torch.arange(most))[..., None]  # [B, S, T]
        own_k: list[Tensor] = []
        own_v: list[Tensor] = []
        for step in range(steps):
            if step:
                more = batch.left[rows] > step
                rows, hidden = rows[more], hidden[more]
                x = joined(tokens[rows + step], hidden)
                turn = position[rows] + step
                k, v = keys(x, conversation[rows], batch.place[rows], turn, most)
                own_k.append(k[:, :, None])  # [B, kv, 1, S, d]
                own_v.append(v[:, :, None])
            q = heads(F.linear(x, w["q"]), position[rows] + step)
            q = padded(q, conversation[rows], batch.place[rows], most)  # [B, heads, S, d]
            q = q.unflatten(1, (s.kv_heads, -1))  # [B, kv, groups, S, d]
            scores = q @ k0[:, :, None].mT  # [B, kv, groups, S, T]
            scores = scores.masked_fill(~seen[:, None, None], -math.inf)
            chain = [(q * k).sum(-1, keepdim=True) for k in own_k]
            weights = (torch.cat([scores, *chain], -1) * s.head_dim**-0.5).softmax(-1)
            out = weights[..., : k0.shape[2]] @ v0[:, :, None]
            for j, v in enumerate(own_v):
                out = out + weights[..., k0.shape[2] + j, None] * v
            out = out.flatten(1, 2).transpose(1, 2)[conversation[rows], batch.place[rows]]  # [Mk, heads, d]
            hidden = hidden + F.linear(out.flatten(1), w["o"])
            gate, up = F.linear(norm(hidden, "mlp_norm"), w["gate_up"]).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, w["down"])  # handed on as it is, before the norm
            found.append((rows, F.linear(norm(hidden, "norm"), self.head)))
        return found

    def target_probabilities(self, last: Tensor, norm: Tensor) -> Tensor:
        """The target's distribution restricted to the draft vocab [M, Vd]."""
        return F.linear(rms_norm(last, norm, self.shape.eps), self.head).softmax(-1)
