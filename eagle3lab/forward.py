"""The draft, run standalone under any Reading: K steps from every position of a sample at once.

Row t joins the target's states of position t with the token at t + shift (shift 1: the next token) and, at step k,
predicts the token at t + 1 + shift + k. Its RoPE position is t + k. Attention at step k sees the step-0 keys of rows
up to t and the chain's own keys of steps 1 … k: exactly what decoding with a KV cache computes, one chain a row
(SpecForge's and EAGLE's training-time test, speculators' mask, vLLM's and SGLang's draft steps agree on it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3lab import rope
from eagle3lab.attention import Attention
from eagle3lab.errors import Blocked
from eagle3lab.model import Model
from eagle3lab.norms import rms_norm
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.trace import trace
from eagle3lab.vocab import VocabMap

CHUNK_BYTES = 64 * 2**20
"""Bound on logits held at once."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu}


@dataclass
class Step:
    """What the draft says at one step, row by row.

    Attributes:
        rows: int64 [R], positions t, ascending.
        tokens: int64 [R], target id of the token fed in.
        top_ids: int64 [R, m], target ids of the m best drafts, best first; -1 where the logits are not finite.
        top_logprobs: float32 [R, m], log-softmax over the draft vocab.
        truth: int64 [R], the recorded token to be predicted, -1 past the end.
        truth_logprob: float32 [R], its log-probability; -inf outside the draft vocab, NaN past the end.
        truth_rank: int64 [R], 0 for the best; -1 outside the draft vocab or past the end.
        entropy: float32 [R], of the draft's distribution in nats, when kept.
        hidden: [R, H] state handed on, when kept.
        logits: float32 [R, Vd], when kept.
    """

    rows: Tensor
    tokens: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    truth: Tensor
    truth_logprob: Tensor
    truth_rank: Tensor
    entropy: Tensor | None = None
    hidden: Tensor | None = None
    logits: Tensor | None = None

    @property
    def correct(self) -> Tensor:
        """Bool [R]: best draft equals the recorded token (False past the end)."""
        return (self.top_ids[:, 0] == self.truth) & (self.truth >= 0)


@dataclass
class Rollout:
    """K steps from the rows of one sample under one reading."""

    sample: str
    reading: Reading
    fed: str
    steps: list[Step] = field(default_factory=list)

    @property
    def nonfinite(self) -> int:
        """Rows, over all steps, whose logits hold NaN or infinity."""
        return sum(int((s.top_ids[:, 0] < 0).sum()) for s in self.steps)


def rollout(
    model: Model,
    sample: Sample,
    reading: Reading,
    steps: int,
    *,
    rows: Tensor | None = None,
    fed: str = "recorded",
    topk: int = 1,
    keep: tuple[str, ...] = (),
    fused: Tensor | None = None,
) -> Rollout:
    """K draft steps from every row of a sample.

    Args:
        model: the draft's weights.
        sample: recorded tokens and states.
        reading: how the draft is run.
        steps: K.
        rows: rows to follow, ascending; all T-1 when None. Keys always come from all rows.
        fed: ``recorded`` feeds the recorded tokens (training's way), ``self`` the draft's own (the engine's).
        topk: drafts kept per row.
        keep: any of ``hidden``, ``logits``, ``entropy``.
        fused: the fused states [T-shift, H] where the caller has them already (search does).

    Returns:
        the rollout; step k holds the given rows up to T-1-shift-k.

    Raises:
        BadShape: widths do not fit; the text explains.
        Blocked: a state, embedding or head is not in the files given.
    """
    dtype = getattr(torch, reading.dtype)
    count = sample.length - reading.shift  # rows at step 0
    if fused is None:
        trace(model.draft, reading, count, sample.width)
        states = model.aux_states(sample, reading.aux)
        fused = model.fuse([s[:count] for s in states], reading, dtype)  # [T0, H]
    everything = torch.arange(count, device=model.device)
    chosen = everything if rows is None else rows.to(model.device)
    chosen = chosen[chosen < count]
    if not len(chosen):
        raise Blocked(f"{sample.path}: no row to run: {sample.length} tokens, shift {reading.shift}")
    tokens = sample.input_ids.long().to(model.device)
    fed_tokens = tokens[reading.shift : reading.shift + count]  # [T0]
    caches = [Attention() for _ in range(model.draft.arch.layers)]
    vocab = model.vocab_map(reading)
    result = Rollout(sample.name, reading, fed)
    hidden, at = fused, everything
    with torch.inference_mode():
        for k in range(steps):
            if k:
                alive = at < count - k
                hidden, at = hidden[alive], at[alive]
                for cache in caches:
                    cache.keep(alive)
                own = result.steps[-1].top_ids[:, 0].to(model.device)[alive].clamp(min=0)
                fed_tokens = tokens[at + reading.shift + k] if fed == "recorded" else own
            out = _layers(model, reading, caches, hidden, fed_tokens, at, k, chosen, dtype)  # [R, H]
            at, fed_tokens = (chosen, fed_tokens[chosen]) if k == 0 else (at, fed_tokens)
            normed = rms_norm(out, model.weight("norm.weight", dtype), model.draft.arch.eps)
            hidden = normed if reading.feedback == "post_norm" else out
            truth = _recorded(tokens, at + 1 + reading.shift + k)
            source = normed if reading.head_norm == "applied" else out
            step = _read_out(model, reading, vocab, source, at, fed_tokens, truth, topk, keep, dtype)
            step.hidden = hidden if "hidden" in keep else None
            result.steps.append(step)
    return result


def _recorded(tokens: Tensor, places: Tensor) -> Tensor:
    inside = places < len(tokens)
    return torch.where(inside, tokens[places.clamp(max=len(tokens) - 1)], torch.full_like(places, -1))


def _layers(model: Model, reading: Reading, caches: list[Attention], hidden: Tensor, tokens: Tensor, at: Tensor,
            step: int, chosen: Tensor, dtype: torch.dtype) -> Tensor:  # fmt: skip
    """All decoder layers for the rows ``at``; at step 0 the last layer answers for ``chosen`` rows only."""
    arch = model.draft.arch
    cos, sin = rope.table(reading.rope, arch.head_dim, at + step)  # [R, r/2]
    for i, cache in enumerate(caches):
        p, eps = f"layers.{i}.", arch.eps
        if i == 0:
            state = rms_norm(hidden, model.weight(p + "hidden_norm.weight", dtype), eps)
            token = rms_norm(
                model.embedding(tokens, reading, dtype),
                model.weight(p + "input_layernorm.weight", dtype),
                eps,
            )
            x = torch.cat((token, state), -1)  # [R, 2H], embedding first
            residual = state if reading.residual == "post_norm" else hidden
        else:
            x = rms_norm(hidden, model.weight(f"{p}{reading.second_norm}.weight", dtype), eps)  # [R, H]
            residual = hidden
        keys = _project(model, reading, p, "k", x, arch.kv_heads, dtype)  # [nkv, R, d]
        values = _project(model, reading, p, "v", x, arch.kv_heads, dtype)
        keys = rope.rotate(keys, cos, sin, reading.rope.layout)
        if step == 0:
            cache.base = (keys, values)
        else:
            cache.chain.append((keys, values))
        take = chosen if step == 0 and i == len(caches) - 1 else None
        rows = at if take is None else take
        if take is not None:
            x, residual, cos, sin = x[take], residual[take], cos[take], sin[take]
        q = rope.rotate(_project(model, reading, p, "q", x, arch.heads, dtype), cos, sin, reading.rope.layout)
        mixed = cache.attend(q, rows, reading.window)  # [R, nh*d]
        hidden = residual + F.linear(mixed, model.weight(p + "self_attn.o_proj.weight", dtype),
                                     model.optional(p + "self_attn.o_proj.bias", reading, dtype))  # fmt: skip
        x = rms_norm(hidden, model.weight(p + "post_attention_layernorm.weight", dtype), eps)
        hidden = hidden + _mlp(model, reading, p + "mlp.", x, dtype)
    return hidden


def _project(
    model: Model, reading: Reading, prefix: str, which: str, x: Tensor, heads: int, dtype: torch.dtype
) -> Tensor:
    name = f"{prefix}self_attn.{which}_proj."
    out = F.linear(x, model.weight(name + "weight", dtype), model.optional(name + "bias", reading, dtype))
    out = out.unflatten(-1, (heads, -1)).transpose(0, 1)  # [heads, R, d]
    norm = model.optional(f"{prefix}self_attn.{which}_norm.weight", reading, dtype) if which != "v" else None
    return out if norm is None else rms_norm(out, norm, model.draft.arch.eps)


def _mlp(model: Model, reading: Reading, prefix: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    name = model.draft.arch.activation
    if name not in ACTIVATIONS:
        raise Blocked(f"config.json: hidden_act {name!r} is not known; known: {', '.join(ACTIVATIONS)}")
    act = ACTIVATIONS[name]
    gate, up, down = (
        (
            model.weight(f"{prefix}{p}_proj.weight", dtype),
            model.optional(f"{prefix}{p}_proj.bias", reading, dtype),
        )
        for p in ("gate", "up", "down")
    )
    return F.linear(act(F.linear(x, *gate)) * F.linear(x, *up), *down)  # [R, H]


def _read_out(model: Model, reading: Reading, vocab: VocabMap, normed: Tensor, rows: Tensor, tokens: Tensor,
              truth: Tensor, topk: int, keep: tuple[str, ...], dtype: torch.dtype) -> Step:  # fmt: skip
    """Logits in chunks of rows, reduced to what is asked; they never exist whole unless kept."""
    head = model.head(reading, dtype)  # [Vd, H]
    hot = vocab.hot_token_id.to(head.device)
    wanted = torch.where(truth >= 0, vocab.to_draft(truth.clamp(min=0).cpu()).to(head.device), truth)
    size = max(1, CHUNK_BYTES // (4 * len(head)))
    parts = []
    for x, goal in zip(normed.split(size), wanted.split(size), strict=True):
        logits = F.linear(x, head).float() * reading.logit_scale  # [r, Vd]
        total = logits.logsumexp(-1, keepdim=True)  # [r, 1]; not finite as soon as one logit is NaN or +inf
        best = logits.topk(min(topk, logits.shape[-1]), -1)
        aim = logits.gather(-1, goal.clamp(min=0)[:, None])  # [r, 1]
        known, sound = goal >= 0, total[:, 0].isfinite()
        entropy = (
            torch.special.entr((logits - total).exp()).sum(-1) if "entropy" in keep else total.new_empty(len(x), 0)
        )
        parts.append((
            torch.where(sound[:, None], hot[best.indices], -1),
            best.values - total,
            torch.where(known, (aim - total)[:, 0], float("-inf")),
            torch.where(known & sound, (logits > aim).sum(-1), -1),
            entropy,
            logits if "logits" in keep else logits[:, :0],
        ))  # fmt: skip
    if not parts:
        raise Blocked("the sample is too short: no row is left at this step; choose fewer steps or a longer sample")
    ids, values, goal_logprob, rank, entropy, logits = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    return Step(
        rows=rows.cpu(), tokens=tokens.cpu(), top_ids=ids, top_logprobs=values, truth=truth.cpu(),
        truth_logprob=goal_logprob.masked_fill(truth.cpu() < 0, float("nan")), truth_rank=rank,
        entropy=entropy if "entropy" in keep else None, logits=logits if "logits" in keep else None,
    )  # fmt: skip
