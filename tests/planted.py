"""Planted heads: random drafts that label their own recordings, as real files (faults.md section D).

A draft with random weights is run by the naive reference (`naive.Naive`, never the package) under the reading that
shall be found, over states that walk at random from boundary to boundary; whatever it says becomes the next recorded
token. Under that reading it then predicts every token, without training; every fault is a changed setting or file.

Step 0 alone cannot show what is handed on from step to step. Rows may therefore be linked: the state of the last
slot is solved so that ``fc`` gives exactly what the row before hands on, and the second draft is right there too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from naive import Cache, Latent, Naive, final_state
from safetensors.torch import save_file

from eagle3lab.reading import Reading

Array = np.ndarray


@dataclass(frozen=True)
class Shape:
    """A draft's dimensions, and which optional tensors it carries; ``latent`` makes its attention MLA."""

    hidden: int = 32
    target_hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    intermediate: int = 48
    layers: int = 1
    aux: int = 3
    vocab: int = 64
    draft_vocab: int = 32
    bias: bool = False
    qk_norm: bool = False
    eps: float = 1e-5
    latent: Latent | None = None
    q_rank: int | None = None
    kv_rank: int = 6

    @property
    def biases(self) -> list[str]:
        """Names of all biases."""
        projections = "o" if self.latent else "qkvo"  # no program names biases of MLA's inner projections
        parts = [f"self_attn.{p}_proj" for p in projections] + [f"mlp.{p}_proj" for p in ("gate", "up", "down")]
        names = ["fc.bias", *(f"layers.{i}.{p}.bias" for i in range(self.layers) for p in parts)]
        return names if self.bias else []

    @property
    def qk_norms(self) -> list[str]:
        """Names of all q and k norms."""
        names = [f"layers.{i}.self_attn.{p}_norm.weight" for i in range(self.layers) for p in "qk"]
        return names if self.qk_norm and not self.latent else []

    def attention(self, taken: int) -> dict[str, tuple[int, ...]]:
        """Shapes of one layer's attention tensors, biases and q/k norms apart, for an input ``taken`` wide."""
        q, kv, m = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.latent
        if m is None:
            return {"q_proj": (q, taken), "k_proj": (kv, taken), "v_proj": (kv, taken), "o_proj": (self.hidden, q)}
        q = self.heads * (m.nope + m.rope)
        rank = self.q_rank or 0
        low = {"q_a_proj": (rank, taken), "q_a_layernorm": (rank,), "q_b_proj": (q, rank)}
        return {
            **(low if rank else {"q_proj": (q, taken)}),
            "kv_a_proj_with_mqa": (self.kv_rank + m.rope, taken), "kv_a_layernorm": (self.kv_rank,),
            "kv_b_proj": (self.heads * (m.nope + m.value), self.kv_rank),
            "o_proj": (self.hidden, self.heads * m.value),
        }  # fmt: skip


def random_weights(
    shape: Shape, rng: np.random.Generator, norms: bool = True, embedding: bool = True
) -> dict[str, Array]:
    """Canonical name → float32 array; ``norms`` adds those before fc, ``embedding`` the draft's own table."""
    s = shape
    wide = s.aux * s.target_hidden
    sizes: dict[str, tuple[int, ...]] = {
        "fc.weight": (s.hidden, wide),
        "norm.weight": (s.hidden,),
        "lm_head.weight": (s.draft_vocab, s.hidden),
    }
    if embedding:
        sizes["embed_tokens.weight"] = (s.vocab, s.hidden)
    if norms:
        sizes |= {"input_norm.weight": (wide,)} | {f"fc_norm.{i}.weight": (s.target_hidden,) for i in range(s.aux)}
    for i in range(s.layers):
        taken = s.hidden * (2 if i == 0 else 1)
        mlp = {"gate_proj": (s.intermediate, s.hidden), "up_proj": (s.intermediate, s.hidden),
               "down_proj": (s.hidden, s.intermediate)}  # fmt: skip
        sizes |= {f"layers.{i}.{n}.weight": (s.hidden,)
                  for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}  # fmt: skip
        sizes |= {f"layers.{i}.self_attn.{n}.weight": size for n, size in s.attention(taken).items()}
        sizes |= {f"layers.{i}.mlp.{n}.weight": size for n, size in mlp.items()}
    sizes |= dict.fromkeys(s.qk_norms, (s.head_dim,))
    sizes |= {name: (sizes[name.removesuffix("bias") + "weight"][0],) for name in s.biases}
    out = {name: _draw(name, size, rng) for name, size in sizes.items()}
    chosen = np.sort(rng.choice(s.vocab, s.draft_vocab, replace=False))
    out["d2t"] = chosen - np.arange(s.draft_vocab)
    out["t2d"] = np.isin(np.arange(s.vocab), chosen)
    return out


def _draw(name: str, size: tuple[int, ...], rng: np.random.Generator) -> Array:
    if "norm" in name:  # around one, far enough from it that a norm applied twice or not at all shows
        return rng.uniform(0.5, 1.5, size).astype(np.float32)
    if name.endswith("bias"):
        return rng.normal(0, 0.3, size).astype(np.float32)
    # q and k twice as large: attention then prefers some rows to others, and the rotation matters
    gain = 2.0 if any(f".{n}_proj" in name for n in ("q", "k", "q_b", "kv_a", "kv_b")) else 1.0
    return (rng.normal(size=size) * gain / np.sqrt(size[-1])).astype(np.float32)


@dataclass
class Source:
    """The target: what a draft borrows from it."""

    table: Array  # [V, Ht]
    head_rows: Array  # [V, Ht]
    norm_weight: torch.Tensor  # [Ht]
    eps: float = 1e-5

    @classmethod
    def draw(cls, shape: Shape, rng: np.random.Generator) -> Source:
        size = (shape.vocab, shape.target_hidden)
        table, head = (rng.normal(size=size).astype(np.float32) for _ in range(2))
        norm = torch.tensor(rng.uniform(0.5, 1.5, shape.target_hidden), dtype=torch.float32)
        return cls(table, head, norm, shape.eps)

    def embedding(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.table)[tokens]

    def head(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.head_rows)[tokens]


def config_of(shape: Shape) -> dict[str, Any]:
    """config.json in SpecForge's layout."""
    m = shape.latent
    latent = {"q_lora_rank": shape.q_rank, "kv_lora_rank": shape.kv_rank, "qk_nope_head_dim": m.nope,
              "qk_rope_head_dim": m.rope, "v_head_dim": m.value} if m else {}  # fmt: skip
    return latent | {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim, "num_hidden_layers": shape.layers,
        "vocab_size": shape.vocab, "draft_vocab_size": shape.draft_vocab, "rms_norm_eps": shape.eps,
        "rope_theta": 10000.0, "max_position_embeddings": 512, "hidden_act": "silu",
        "target_hidden_size": shape.target_hidden,
    }  # fmt: skip


def write_draft(folder: Path, weights: Mapping[str, Array], shape: Shape, **config: Any) -> None:
    """A checkpoint under SpecForge's names; keys of ``config`` are added to its config.json."""
    stored = {name.replace("layers.0.", "midlayer."): torch.tensor(array) for name, array in weights.items()}
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_of(shape) | config))


@dataclass(frozen=True)
class Plan:
    """What to plant, and how the files and the case describe it.

    Attributes:
        reading: the reading under which the draft says the recorded tokens.
        ids: the ids of the case's vLLM run, which are boundaries.
        shape: the draft's dimensions.
        blocks: L of the target.
        held: the boundaries recorded.
        walk: size of the random step from one boundary to the next; 0 makes all boundaries equal.
        linked: of ``linked + 1`` rows, so many continue the row before.
        samples: number of recordings.
        length: T of each.
        foreign: every sample gets the states of the next one.
        config: further keys of the draft's config.json.
        norms: whether the file holds input_norm and fc_norm, or the one of them that it holds.
        own_table: whether the file holds embed_tokens.
        token_gain: how much louder than usual the token speaks, against the states.
        trained: whether matrices look trained rather than drawn by an initialiser.
        misses: share of rows in which the target says another token than the draft, any of its vocabulary.
        frequent: whether these are drawn as words are, a few of them most of the time.
    """

    reading: Reading = field(default_factory=lambda: Reading(aux=(2, 4, 5)))
    ids: tuple[int, ...] = (2, 4, 5)
    shape: Shape = Shape()
    blocks: int = 10
    held: tuple[int, ...] = (1, 2, 3, 4, 5)
    walk: float = 0.6
    linked: int = 0
    samples: int = 5
    length: int = 40
    prompt: int = 6
    foreign: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    norms: bool | str = False
    own_table: bool = False
    token_gain: float = 1.0
    trained: bool = False
    misses: float = 0.0
    frequent: bool = False
    seed: int = 0

    def but(self, **changes: Any) -> Plan:
        """A copy with ``changes``."""
        return dataclasses.replace(self, **changes)


VLLM_RUN = 'engine = "vllm"\nversion = "0.32.0"\nrunner = "v1"\n'
CASE = f"""title = "planted"
[draft]
path = "draft"
[target]
path = "target"
[samples]
path = "samples"
[[serving]]
name = "run"
{VLLM_RUN}aux_ids = {{ids}}
steps = 3
"""


@dataclass
class World:
    """A planted case before it is written: what a fault changes."""

    plan: Plan
    weights: dict[str, Array]
    source: Source
    texts: list[tuple[Array, dict[int | str, Array]]]  # tokens [T], states by boundary or "final" [T, Ht]
    config: dict[str, Any]
    ids: tuple[int, ...]
    held: tuple[int | str, ...]
    rng: np.random.Generator
    masks: list[Array] = field(default_factory=list)
    final_norm: str = "pre"
    toml: str = ""
    extra: dict[str, str] = field(default_factory=dict)  # further files, by name

    def write(self, folder: Path) -> Path:
        """Draft, target, samples and ``case.toml`` in ``folder``; returns the case file."""
        for name in ("draft", "target", "samples"):
            (folder / name).mkdir(parents=True)
        write_draft(folder / "draft", self.weights, self.plan.shape, **self.config)
        _write_target(folder / "target", self.source, self.plan)
        for i, ((tokens, states), mask) in enumerate(zip(self.texts, self.masks, strict=True)):
            tensors = {"input_ids": torch.tensor(tokens), "loss_mask": torch.tensor(mask)}
            tensors |= {
                k if k == "final" else f"h.{k}": torch.tensor(np.ascontiguousarray(states[k])) for k in self.held
            }
            about = {"format": "eagle3lab-sample/1"} | ({"final_norm": self.final_norm} if "final" in self.held else {})
            save_file(tensors, folder / "samples" / f"planted_{i}.safetensors", about)
        for name, text in self.extra.items():
            (folder / name).write_text(text)
        case = folder / "case.toml"
        case.write_text(self.toml or CASE.format(ids=list(self.ids)))
        return case


DULL = 0.3
"""Share of one token in the recordings, above which a head says hardly anything else, and no fault could show."""


def make(plan: Plan) -> World:
    """Draws a draft and lets it label its own recordings; a head that says one token only is drawn again."""
    for again in range(20):
        world = _draw_world(plan, plan.seed + 1000 * again)
        said = np.concatenate([tokens[3:] for tokens, _ in world.texts])
        if not plan.trained or np.unique(said, return_counts=True)[1].max() <= DULL * len(said):
            break
    return world


def _draw_world(plan: Plan, seed: int) -> World:
    rng, shape = np.random.default_rng(seed), plan.shape
    weights = random_weights(shape, rng, bool(plan.norms), plan.own_table)
    if isinstance(plan.norms, str):
        other = {"input_norm": "fc_norm.", "fc_norm": "input_norm."}[plan.norms]
        weights = {name: w for name, w in weights.items() if not name.startswith(other)}
    weights["fc.weight"] = _invertible(shape, rng)
    for name in ("layers.0.input_layernorm.weight", "layers.0.self_attn.o_proj.weight"):
        weights[name] *= np.float32(plan.token_gain)
    if plan.trained:
        season(weights, rng)
    if plan.reading.vocab_map == "ids":
        weights["d2t"] = weights["d2t"] + np.arange(shape.draft_vocab)
    source = Source.draw(shape, rng)
    naive = Naive(weights, plan.reading, shape.heads, shape.head_dim, shape.eps, table=source.table,
                  target_head=source.head_rows, latent=shape.latent)  # fmt: skip
    texts = [record(naive, plan, rng, source) for _ in range(plan.samples)]
    if plan.foreign:
        texts = [(tokens, texts[(i + 1) % len(texts)][1]) for i, (tokens, _) in enumerate(texts)]
    mask = (np.arange(plan.length) >= plan.prompt).astype(np.uint8)
    return World(plan, weights, source, texts, dict(plan.config), plan.ids, plan.held, rng, [mask] * len(texts))


def season(weights: dict[str, Array], rng: np.random.Generator) -> None:
    """Gives matrices what training gives them: rows of unlike size and a direction that stands out."""
    for name, array in weights.items():
        if array.ndim == 2 and name not in ("d2t", "t2d"):
            sizes = rng.lognormal(0, 0.4, (len(array), 1))
            spike = np.outer(rng.normal(size=len(array)), rng.normal(size=array.shape[1])) / np.sqrt(array.shape[1])
            weights[name] = (array * sizes + 0.7 * spike).astype(np.float32)


def plant(folder: Path, plan: Plan) -> Path:
    """Writes draft, target, samples and ``case.toml`` into ``folder``; returns the case file."""
    return make(plan).write(folder)


def record(naive: Naive, plan: Plan, rng: np.random.Generator, source: Source) -> tuple[Array, dict[int | str, Array]]:
    """One recording: int64 tokens [T] and float32 states [T, Ht] of all boundaries 0 … L."""
    r, length = plan.reading, plan.length
    width = plan.shape.target_hidden
    states: dict[int | str, Array] = {k: np.zeros((length, width), np.float32) for k in range(plan.blocks + 1)}
    states["final"] = np.zeros((length, width), np.float32)
    tokens = [int(t) for t in rng.integers(0, plan.shape.vocab, r.shift + 1)]
    caches: list[Cache] = naive.caches()
    handed_on: Array | None = None
    for t in range(length):
        state = source.table[tokens[t]] if t < len(tokens) else rng.normal(size=width)  # boundary 0 is the embedding
        for k in range(plan.blocks + 1):
            states[k][t] = state
            state = state + plan.walk * rng.normal(size=len(state))
        if handed_on is not None and t % (plan.linked + 1):
            _link(naive, plan, states, t, handed_on, rng)
        states["final"][t] = final_state(states[plan.blocks][t], source.norm_weight.numpy(), source.eps)
        if t + r.shift < length:
            fused = naive.fuse([states[k][t] for k in r.aux])
            handed_on, logits = naive.feed(caches, tokens[t + r.shift], fused, t)
            tokens.append(naive.hot[int(np.argmax(logits))])
            if plan.misses and rng.random() < plan.misses:
                tokens[-1] = (
                    min(int(rng.zipf(1.5)) if plan.frequent else int(rng.integers(1 << 30)), 1 << 30) % plan.shape.vocab
                )
    return np.array(tokens[:length]), states


def _link(
    naive: Naive, plan: Plan, states: dict[int | str, Array], t: int, wanted: Array, rng: np.random.Generator
) -> None:
    """Moves the boundary of the last slot so that ``fc`` gives ``wanted`` at row t; its upper neighbours follow."""
    *others, last = plan.reading.aux
    assert last not in others and plan.reading.aux_norm == "none" and last == max(plan.reading.aux)
    width = plan.shape.target_hidden
    weight = naive.w["fc.weight"]
    rest = sum(weight[:, i * width : (i + 1) * width] @ states[k][t] for i, k in enumerate(others))
    state = np.linalg.solve(weight[:, -width:], wanted - rest)
    for k in range(last, plan.blocks + 1):
        states[k][t] = state
        state = state + plan.walk * rng.normal(size=width)
    if last - 1 not in others:
        states[last - 1][t] = states[last][t] + plan.walk * rng.normal(size=width)


def _invertible(shape: Shape, rng: np.random.Generator) -> Array:
    """``fc`` of orthogonal blocks where they are square: each slot counts alike and can be solved for."""
    if shape.hidden != shape.target_hidden:
        return _draw("fc.weight", (shape.hidden, shape.aux * shape.target_hidden), rng)
    blocks = [np.linalg.qr(rng.normal(size=(shape.hidden, shape.hidden)))[0] for _ in range(shape.aux)]
    return (np.concatenate(blocks, 1) / np.sqrt(shape.aux)).astype(np.float32)


def _write_target(folder: Path, source: Source, plan: Plan) -> None:
    config = {"model_type": "llama", "hidden_size": plan.shape.target_hidden, "num_hidden_layers": plan.blocks,
              "vocab_size": plan.shape.vocab, "rms_norm_eps": source.eps, "tie_word_embeddings": False}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    table, head = torch.tensor(source.table), torch.tensor(source.head_rows)
    tensors = {"model.embed_tokens.weight": table, "lm_head.weight": head, "model.norm.weight": source.norm_weight}
    save_file(tensors, folder / "model.safetensors")
