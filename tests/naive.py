"""The naive reference: a draft run one token at a time over a KV cache, in float64 numpy, written from the equations.

It shares no code with the package's forward: it takes plain arrays under canonical names and reads the fields of a
`Reading`. Sources: engines.md 3.1 and 3.2 for the equations and the alignment, transformers 5.24's
``modeling_rope_utils`` for RoPE scaling (its formulas, written down again), the DeepSeek-V2 paper (arXiv 2405.04434,
equations 37 to 47) for multi-head latent attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from eagle3lab.reading import Reading, Rope

Array = np.ndarray


@dataclass
class Said:
    """What the draft says at one row of one step."""

    row: int
    token: int
    hidden: Array  # [H], handed on
    logits: Array  # [Vd]
    best: int  # target id


@dataclass
class Cache:
    """Keys and values of one layer, one entry a token, each with its position."""

    keys: list[Array] = field(default_factory=list)  # [nkv, d] each; under MLA [nh, nope + rope]
    values: list[Array] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def cut(self, length: int) -> None:
        """Forgets what came after the first ``length`` tokens, as an engine does after a rejected chain."""
        del self.keys[length:], self.values[length:], self.positions[length:]


@dataclass(frozen=True)
class Latent:
    """Widths of multi-head latent attention, a head's: unrotated and rotated part of the key, value."""

    nope: int
    rope: int
    value: int


class Naive:
    """One draft under one reading.

    Args:
        weights: canonical name → array, as a checkpoint holds them; ``d2t`` and ``t2d`` included.
        reading: how it is run.
        heads: query heads; kv heads and head_dim follow from the shapes.
        head_dim: d.
        eps: RMSNorm epsilon.
        table: the target's embedding rows by token id, where the reading takes them.
        target_head: the target's ``lm_head`` rows by token id, likewise.
        latent: the widths of MLA, None for ordinary attention.
    """

    def __init__(self, weights: Mapping[str, Array], reading: Reading, heads: int, head_dim: int, eps: float, *,
                 table: Array | None = None, target_head: Array | None = None, latent: Latent | None = None):  # fmt: skip
        self.w = {name: np.asarray(w, np.float64) for name, w in weights.items() if name not in ("d2t", "t2d")}
        self.reading, self.heads, self.head_dim, self.eps = reading, heads, head_dim, eps
        self.latent, self.length = latent, 1  # length: positions of the whole text, which dynamic RoPE scales by
        self.layers = len({name.split(".")[1] for name in weights if name.startswith("layers.")})
        self.table = self.w["embed_tokens.weight"] if reading.embedding == "own" else np.asarray(table, np.float64)
        self.hot = self._hot(weights)
        self.head = self.w["lm_head.weight"] if reading.head == "own" else np.asarray(target_head, np.float64)[self.hot]

    def _hot(self, weights: Mapping[str, Array]) -> list[int]:
        """Target id of each draft id."""
        kind = self.reading.vocab_map
        if kind == "t2d":
            return [token for token, said in enumerate(weights["t2d"]) if said]
        if kind == "identity":
            return list(range(len(weights["lm_head.weight"])))
        return [int(v) + (i if kind == "offsets" else 0) for i, v in enumerate(weights["d2t"])]

    def _optional(self, name: str) -> Array | None:
        return None if name in self.reading.dropped else self.w.get(name)

    def norm(self, x: Array, name: str) -> Array:
        return x / math.sqrt(float(np.mean(x * x)) + self.eps) * self.w[name]

    def linear(self, x: Array, name: str) -> Array:
        out = self.w[name + ".weight"] @ x
        bias = self._optional(name + ".bias")
        return out if bias is None else out + bias

    def fuse(self, states: Sequence[Array]) -> Array:
        """The aux states of one position → the draft's hidden state [H]."""
        parts = [np.asarray(s, np.float64) for s in states]
        if self.reading.aux_norm == "fc_norm":
            parts = [self.norm(part, f"fc_norm.{i}.weight") for i, part in enumerate(parts)]
        wide = np.concatenate(parts)
        if self.reading.aux_norm == "input_norm":
            wide = self.norm(wide, "input_norm.weight")
        return wide if self.reading.fc == "skipped" else self.linear(wide, "fc")

    def caches(self) -> list[Cache]:
        return [Cache() for _ in range(self.layers)]

    def feed(self, caches: list[Cache], token: int, hidden: Array, position: int) -> tuple[Array, Array]:
        """Runs the layers on one token and its hidden state → the state handed on, the logits."""
        r = self.reading
        for i, cache in enumerate(caches):
            p = f"layers.{i}."
            if i == 0:
                state = self.norm(hidden, p + "hidden_norm.weight")
                x = np.concatenate([self.norm(self.table[token], p + "input_layernorm.weight"), state])
                residual = state if r.residual == "post_norm" else hidden
            else:
                x, residual = self.norm(hidden, f"{p}{r.second_norm}.weight"), hidden
            hidden = residual + self._attend(cache, p + "self_attn.", x, position)
            x = self.norm(hidden, p + "post_attention_layernorm.weight")
            gate = self.linear(x, p + "mlp.gate_proj")
            silu = gate / (1 + np.exp(-gate))
            hidden = hidden + self.linear(silu * self.linear(x, p + "mlp.up_proj"), p + "mlp.down_proj")
        normed = self.norm(hidden, "norm.weight")
        logits = self.head @ (normed if r.head_norm == "applied" else hidden) * r.logit_scale
        return normed if r.feedback == "post_norm" else hidden, logits

    def _attend(self, cache: Cache, p: str, x: Array, position: int) -> Array:
        queries, keys, values = self._latent(x, p, position) if self.latent else self._plain(x, p, position)
        cache.keys.append(keys)
        cache.values.append(values)
        cache.positions.append(position)
        group, scale = self.heads // len(keys), 1 / math.sqrt(queries.shape[1])
        if self.latent:  # transformers' DeepseekV3Attention: yarn's mscale of mscale_all_dim, once for q, once for k
            scale *= magnitude(self.reading.rope, "mscale_all_dim") ** 2
        out = np.zeros((self.heads, values.shape[1]))
        for h in range(self.heads):
            scores, seen = [], []
            for key, value, at in zip(cache.keys, cache.values, cache.positions, strict=True):
                if self.reading.window is None or position - at < self.reading.window:
                    scores.append(float(queries[h] @ key[h // group]) * scale)
                    seen.append(value[h // group])
            weights = np.exp(np.array(scores) - max(scores))
            out[h] = weights @ np.array(seen) / weights.sum()
        return self.linear(out.reshape(-1), p + "o_proj")

    def _plain(self, x: Array, p: str, position: int) -> tuple[Array, Array, Array]:
        """Queries [nh, d], keys and values [nkv, d] of one token."""
        q, k = (self._heads(x, p, which, position) for which in "qk")
        return q, k, self.linear(x, p + "v_proj").reshape(-1, self.head_dim)

    def _latent(self, x: Array, p: str, position: int) -> tuple[Array, Array, Array]:
        """Queries and keys [nh, nope + rope], values [nh, dv] of one token: every head has its own of each."""
        m = self.latent
        assert m is not None
        if p + "q_a_proj.weight" in self.w:
            q = self.linear(self.norm(self.linear(x, p + "q_a_proj"), p + "q_a_layernorm.weight"), p + "q_b_proj")
        else:
            q = self.linear(x, p + "q_proj")
        down = self.linear(x, p + "kv_a_proj_with_mqa")
        compressed, shared = down[: len(down) - m.rope], self._turn(down[len(down) - m.rope :], position)
        up = self.linear(self.norm(compressed, p + "kv_a_layernorm.weight"), p + "kv_b_proj")
        queries, keys, values = [], [], []
        for h in range(self.heads):
            one = q[h * (m.nope + m.rope) : (h + 1) * (m.nope + m.rope)]
            queries.append(np.concatenate([one[: m.nope], self._turn(one[m.nope :], position)]))
            own = up[h * (m.nope + m.value) : (h + 1) * (m.nope + m.value)]
            keys.append(np.concatenate([own[: m.nope], shared]))
            values.append(own[m.nope :])
        return np.stack(queries), np.stack(keys), np.stack(values)

    def _heads(self, x: Array, p: str, which: str, position: int) -> Array:
        heads = self.linear(x, f"{p}{which}_proj").reshape(-1, self.head_dim)
        name = f"{p}{which}_norm.weight"
        if self._optional(name) is not None:
            heads = np.stack([self.norm(head, name) for head in heads])
        return np.stack([self._turn(head, position) for head in heads])

    def _turn(self, head: Array, position: int) -> Array:
        return turn(head, position, self.reading.rope, self.length)

    def chains(self, tokens: Sequence[int], states: Mapping[int | str, Array], steps: int,
               fed: str = "recorded") -> list[list[Said]]:  # fmt: skip
        """K steps from every row, one token at a time: ``chains[k]`` holds the rows 0 … T-1-shift-k of step k.

        The prefix is fed once, row by row, with the true states; each chain is fed on top and then forgotten.
        """
        shift, length = self.reading.shift, len(tokens)
        out: list[list[Said]] = [[] for _ in range(steps)]
        caches, self.length = self.caches(), length - shift
        for t in range(length - shift):
            token = int(tokens[t + shift])
            hidden, logits = self.feed(caches, token, self.fuse([states[k][t] for k in self.reading.aux]), t)
            for k in range(steps):
                if k:
                    if t >= length - shift - k:
                        break
                    token = int(tokens[t + shift + k]) if fed == "recorded" else out[k - 1][t].best
                    hidden, logits = self.feed(caches, token, hidden, t + k)
                out[k].append(Said(t, token, hidden, logits, self.hot[int(np.argmax(logits))]))
            for cache in caches:
                cache.cut(t + 1)
        return out


def final_state(last: Array, weight: Array, eps: float) -> Array:
    """The last residual [T, Ht] after the target's final norm, what ``"final"`` names."""
    return last / np.sqrt(np.mean(last * last, -1, keepdims=True) + eps) * weight


def turn(head: Array, position: int, rope: Rope, length: int = 1) -> Array:
    """Rotates one head's vector [d] to ``position``, pair by pair."""
    inverse, factor = inverse_frequencies(rope, len(head), length)
    out, half = head.copy(), len(inverse)
    for i, frequency in enumerate(inverse):
        # transformers rotates channel i with channel i + r/2; GGUF and DeepSeek store the two of a pair side by side
        a, b = (2 * i, 2 * i + 1) if rope.layout == "interleaved" else (i, i + half)
        c, s = math.cos(position * frequency) * factor, math.sin(position * frequency) * factor
        out[a], out[b] = head[a] * c - head[b] * s, head[b] * c + head[a] * s
    return out


def inverse_frequencies(rope: Rope, head_dim: int, length: int = 1) -> tuple[list[float], float]:
    """Frequencies of the rotated pairs and the factor on cos and sin; ``length`` is that of the whole text."""
    width, s = int(head_dim * rope.partial), dict(rope.scaling)
    plain = [rope.base ** (-i / width) for i in range(0, width, 2)]
    kind = s.get("rope_type", "default")
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return [f / s["factor"] for f in plain], 1.0
    if kind == "dynamic":
        limit = rope.limit or length
        # SpecForge builds its table for 20 rows more than the limit, so it scales from the first token on
        reach = max(length, limit + 20 if rope.rule == "specforge" else limit)
        base = rope.base * (s["factor"] * reach / limit - s["factor"] + 1) ** (width / (width - 2))
        return [base ** (-i / width) for i in range(0, width, 2)], 1.0
    if kind == "llama3":
        return [_llama3(f, s) for f in plain], 1.0
    if kind == "yarn":
        return _yarn(plain, rope.base, width, s), _yarn_factor(rope)
    raise ValueError(kind)


def magnitude(rope: Rope, key: str) -> float:
    """Yarn's 0.1 · m · ln(factor) + 1 for the ``m`` under ``key`` of the scaling; 1 without yarn or without m."""
    s = dict(rope.scaling)
    return 0.1 * (s.get(key) or 0) * math.log(s["factor"]) + 1 if s.get("rope_type") == "yarn" else 1.0


def _yarn_factor(rope: Rope) -> float:
    s = dict(rope.scaling)
    given, over_all = s.get("mscale"), s.get("mscale_all_dim")
    usual = 0.1 * math.log(s["factor"]) + 1
    if rope.rule == "specforge":
        return (usual if given is None else magnitude(rope, "mscale")) / magnitude(rope, "mscale_all_dim")
    if "attention_factor" in s:
        return float(s["attention_factor"])
    return magnitude(rope, "mscale") / magnitude(rope, "mscale_all_dim") if given and over_all else usual


def _llama3(frequency: float, s: Mapping[str, float]) -> float:
    turns = s["original_max_position_embeddings"] * frequency / (2 * math.pi)  # full turns within the old context
    if turns > s["high_freq_factor"]:
        return frequency
    if turns < s["low_freq_factor"]:
        return frequency / s["factor"]
    share = (turns - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
    return (1 - share) * frequency / s["factor"] + share * frequency


def _yarn(plain: list[float], base: float, width: int, s: Mapping[str, float]) -> list[float]:
    old = s["original_max_position_embeddings"]

    def dimension(turns: float) -> float:
        return width * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(s.get("beta_fast", 32))), 0)
    high = min(math.ceil(dimension(s.get("beta_slow", 1))), width - 1)
    out = []
    for i, frequency in enumerate(plain):
        stretched = min(max((i - low) / (high - low if high != low else 0.001), 0.0), 1.0)
        out.append(frequency / s["factor"] * stretched + frequency * (1 - stretched))
    return out
