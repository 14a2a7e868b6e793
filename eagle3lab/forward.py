"""The draft, run standalone under any Reading: K steps from every position of a sample at once.

Row t joins the target's states of position t with the token at t + shift (shift 1: the next token) and, at step k,
predicts the token at t + 1 + shift + k. Its RoPE position is t + k. Attention at step k sees the step-0 keys of rows
up to t and the chain's own keys of steps 1 … k: exactly what decoding with a KV cache computes, one chain a row
(SpecForge's and EAGLE's training-time test, speculators' mask, vLLM's and SGLang's draft steps agree on it).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3lab import rope
from eagle3lab.draft import Draft
from eagle3lab.errors import BadFile, BadShape, Blocked
from eagle3lab.norms import rms_norm
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Sample
from eagle3lab.target import Target
from eagle3lab.trace import trace
from eagle3lab.vocab import VocabMap

CHUNK_BYTES = 64 * 2**20
"""Bound on attention scores and on logits held at once."""

ACTIVATIONS = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu}


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
        entropy: float32 [R], of the draft's distribution, nats.
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
    entropy: Tensor
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


class Model:
    """A draft's weights, loaded once in one dtype on one device, for any Reading.

    Args:
        draft: the checkpoint.
        target: needed where the reading takes the target's embedding, head or final norm.
        device: torch device; the CPU result is deterministic.
    """

    def __init__(self, draft: Draft, target: Target | None = None, device: str = "cpu"):
        self.draft, self.target = draft, target
        self.device = torch.device(device)
        self._weights: dict[tuple[str, torch.dtype], Tensor] = {}

    def weight(self, name: str, dtype: torch.dtype) -> Tensor:
        """The canonical tensor in ``dtype`` on the device, cached."""
        key = (name, dtype)
        if key not in self._weights:
            self._weights[key] = self.draft.weight(name).to(self.device, dtype)
        return self._weights[key]

    def optional(self, name: str, reading: Reading, dtype: torch.dtype) -> Tensor | None:
        """The tensor, or None when the file lacks it or the reading drops it."""
        return self.weight(name, dtype) if name in self.draft and name not in reading.dropped else None

    def embedding(self, tokens: Tensor, reading: Reading, dtype: torch.dtype) -> Tensor:
        """Embedding rows of target ids ``tokens`` [R] → [R, H]."""
        if reading.embedding == "own":
            table = self.draft.weight("embed_tokens.weight")
            if int(tokens.max()) >= len(table):
                raise BadFile(self.draft.path, f"embed_tokens.weight has {len(table)} rows, token {int(tokens.max())} is asked")
            rows = table[tokens.cpu()]
        else:
            rows = self._need_target("its embedding rows").embedding(tokens.cpu())
        if rows.shape[-1] != self.draft.arch.hidden:
            raise BadShape(
                "embedding", f"the target's rows are {rows.shape[-1]} wide", f"the draft takes H = {self.draft.arch.hidden}",
                ["draft and target differ in width, so the draft must carry its own embed_tokens: export it with them"],
            )
        return rows.to(self.device, dtype)

    def head(self, reading: Reading, dtype: torch.dtype) -> Tensor:
        """``lm_head`` [Vd, H]: the draft's own, or the target's rows of the draft vocab."""
        if reading.head == "own":
            return self.weight("lm_head.weight", dtype)
        key = ("target lm_head", dtype)
        if key not in self._weights:
            hot = self.vocab_map(reading).hot_token_id
            self._weights[key] = self._need_target("its lm_head rows").head(hot).to(self.device, dtype)
        return self._weights[key]

    def vocab_map(self, reading: Reading) -> VocabMap:
        """The draft's map as the reading reads it."""
        return self.draft.vocab_map(reading.vocab_map)

    def aux_states(self, sample: Sample, aux: Aux) -> list[Tensor]:
        """The recorded states ``aux`` names, each [T, Ht], as stored.

        Raises:
            Blocked: one is not recorded; the text lists those that are.
        """
        missing = [k for k in aux if k != FINAL and k not in sample.states]
        if missing:
            raise Blocked(
                f"{sample.path}: boundaries {missing} are not recorded; found {list(sample.boundaries)}. "
                "Record them, or choose others"
            )
        return [self.final_state(sample) if k == FINAL else sample.states[int(k)] for k in aux]

    def final_state(self, sample: Sample) -> Tensor:
        """The target's post-norm final state [T, Ht], from the form that is recorded."""
        if sample.final is not None and sample.final_norm == "post":
            return sample.final
        last = sample.final if sample.final is not None else sample.states.get(sample.last or -1)
        if last is None:
            raise Blocked(f"{sample.path}: no final state is recorded; record the last residual or the final state")
        target = self._need_target("its final norm")
        return rms_norm(last, target.norm_weight.to(last.dtype), target.eps)

    def _need_target(self, what: str) -> Target:
        if self.target is None:
            raise Blocked(f"the draft at {self.draft.path.name} needs the target for {what}; give [target] in case.toml")
        return self.target

    def fuse(self, states: list[Tensor], reading: Reading, dtype: torch.dtype) -> Tensor:
        """Aux states, each [R, Ht], → the draft's first hidden state [R, H]."""
        parts = [s.to(self.device, dtype) for s in states]
        eps = self.draft.arch.eps
        if reading.aux_norm == "fc_norm":
            parts = [rms_norm(p, self.weight(f"fc_norm.{i}.weight", dtype), eps) for i, p in enumerate(parts)]
        g = torch.cat(parts, -1)  # [R, A*Ht]
        if reading.aux_norm == "input_norm":
            g = rms_norm(g, self.weight("input_norm.weight", dtype), eps)
        if reading.fc == "skipped":
            return g
        return F.linear(g, self.weight("fc.weight", dtype), self.optional("fc.bias", reading, dtype))  # [R, H]


class _Attention:
    """Keys and values of one layer: step-0 rows, then each chain's own."""

    def __init__(self) -> None:
        self.base: tuple[Tensor, Tensor] | None = None  # [nkv, T0, d] each
        self.chain: list[tuple[Tensor, Tensor]] = []  # [nkv, R, d] each, one a later step

    def keep(self, mask: Tensor) -> None:
        """Drops chains whose row ends."""
        self.chain = [(k[:, mask], v[:, mask]) for k, v in self.chain]

    def attend(self, q: Tensor, rows: Tensor, window: int | None) -> Tensor:
        """q [nh, R, d] of the chains that start at ``rows`` [R] (ascending) → [R, nh*d]."""
        assert self.base is not None
        keys, values = self.base
        kv_heads, dim = keys.shape[0], q.shape[-1]
        grouped = q.unflatten(0, (kv_heads, -1)) * dim**-0.5  # [nkv, g, R, d]
        size = max(1, CHUNK_BYTES // (4 * q.shape[0] * max(keys.shape[1], 1)))
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
            own = [(take * k[:, None, at]).sum(-1, keepdim=True) for k, _ in self.chain]  # [nkv, g, r, 1] each
            weights = torch.cat([scores, *own], -1).float().softmax(-1).to(q.dtype)
            mixed = weights[..., :upto] @ values[:, None, :upto]  # [nkv, g, r, d]
            for i, (_, v) in enumerate(self.chain):
                mixed = mixed + weights[..., upto + i : upto + i + 1] * v[:, None, at]
            out.append(mixed.permute(2, 0, 1, 3).flatten(1))  # [r, nh*d]
        return torch.cat(out) if out else q.new_empty(0, q.shape[0] * dim)


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
        keep: any of ``hidden``, ``logits``.
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
    tokens = sample.input_ids.long().to(model.device)
    fed_tokens = tokens[reading.shift : reading.shift + count]  # [T0]
    caches = [_Attention() for _ in range(model.draft.arch.layers)]
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
            step = _read_out(model, reading, vocab, source, at, fed_tokens, truth, topk, "logits" in keep, dtype)
            step.hidden = hidden if "hidden" in keep else None
            result.steps.append(step)
    return result


def _recorded(tokens: Tensor, places: Tensor) -> Tensor:
    inside = places < len(tokens)
    return torch.where(inside, tokens[places.clamp(max=len(tokens) - 1)], torch.full_like(places, -1))


def _layers(model: Model, reading: Reading, caches: list[_Attention], hidden: Tensor, tokens: Tensor, at: Tensor,
            step: int, chosen: Tensor, dtype: torch.dtype) -> Tensor:  # fmt: skip
    """All decoder layers for the rows ``at``; at step 0 the last layer answers for ``chosen`` rows only."""
    arch = model.draft.arch
    cos, sin = rope.table(reading.rope, arch.head_dim, at + step)  # [R, r/2]
    for i, cache in enumerate(caches):
        p, eps = f"layers.{i}.", arch.eps
        if i == 0:
            state = rms_norm(hidden, model.weight(p + "hidden_norm.weight", dtype), eps)
            token = rms_norm(
                model.embedding(tokens, reading, dtype), model.weight(p + "input_layernorm.weight", dtype), eps
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


def _project(model: Model, reading: Reading, prefix: str, which: str, x: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
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
        (model.weight(f"{prefix}{p}_proj.weight", dtype), model.optional(f"{prefix}{p}_proj.bias", reading, dtype))
        for p in ("gate", "up", "down")
    )
    return F.linear(act(F.linear(x, *gate)) * F.linear(x, *up), *down)  # [R, H]


def _read_out(model: Model, reading: Reading, vocab: VocabMap, normed: Tensor, rows: Tensor, tokens: Tensor,
              truth: Tensor, topk: int, keep_logits: bool, dtype: torch.dtype) -> Step:  # fmt: skip
    """Logits in chunks of rows, reduced to what is asked; they never exist whole unless kept."""
    head = model.head(reading, dtype)  # [Vd, H]
    hot = vocab.hot_token_id.to(head.device)
    wanted = torch.where(truth >= 0, vocab.to_draft(truth.clamp(min=0).cpu()).to(head.device), truth)
    size = max(1, CHUNK_BYTES // (4 * len(head)))
    parts = []
    for x, goal in zip(normed.split(size), wanted.split(size), strict=True):
        logits = F.linear(x, head).float() * reading.logit_scale  # [r, Vd]
        logprobs = logits.log_softmax(-1)
        best = logprobs.topk(min(topk, logprobs.shape[-1]), -1)
        goal_logprob = logprobs.gather(-1, goal.clamp(min=0)[:, None])[:, 0]
        rank = (logprobs > goal_logprob[:, None]).sum(-1)
        entropy = torch.special.entr(logprobs.exp()).sum(-1)
        sound = logits.isfinite().all(-1)
        ids = torch.where(sound[:, None], hot[best.indices], -1)
        parts.append((ids, best.values, torch.where(goal >= 0, goal_logprob, float("-inf")),
                      torch.where((goal >= 0) & sound, rank, -1), entropy, logits if keep_logits else logits[:, :0]))
    if not parts:
        raise Blocked("the sample is too short: no row is left at this step; choose fewer steps or a longer sample")
    ids, values, goal_logprob, rank, entropy, logits = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    past = truth.cpu() < 0
    return Step(rows.cpu(), tokens.cpu(), ids, values, truth.cpu(), goal_logprob.masked_fill(past, float("nan")),
                rank, entropy, logits=logits if keep_logits else None)  # fmt: skip
