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
from naive import Cache, Naive
from safetensors.torch import save_file

from eagle3lab.reading import Reading

Array = np.ndarray


@dataclass(frozen=True)
class Shape:
    """A draft's dimensions, and which optional tensors it carries."""

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

    @property
    def biases(self) -> list[str]:
        """Names of all biases."""
        parts = [f"self_attn.{p}_proj" for p in "qkvo"] + [f"mlp.{p}_proj" for p in ("gate", "up", "down")]
        names = ["fc.bias", *(f"layers.{i}.{p}.bias" for i in range(self.layers) for p in parts)]
        return names if self.bias else []

    @property
    def qk_norms(self) -> list[str]:
        """Names of all q and k norms."""
        names = [f"layers.{i}.self_attn.{p}_norm.weight" for i in range(self.layers) for p in "qk"]
        return names if self.qk_norm else []


def random_weights(
    shape: Shape, rng: np.random.Generator, norms: bool = True, embedding: bool = True
) -> dict[str, Array]:
    """Canonical name → float32 array; ``norms`` adds those before fc, ``embedding`` the draft's own table."""
    s = shape
    wide, q, kv = s.aux * s.target_hidden, s.heads * s.head_dim, s.kv_heads * s.head_dim
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
        attention = {"q_proj": (q, taken), "k_proj": (kv, taken), "v_proj": (kv, taken), "o_proj": (s.hidden, q)}
        mlp = {"gate_proj": (s.intermediate, s.hidden), "up_proj": (s.intermediate, s.hidden),
               "down_proj": (s.hidden, s.intermediate)}  # fmt: skip
        sizes |= {f"layers.{i}.{n}.weight": (s.hidden,)
                  for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}  # fmt: skip
        sizes |= {f"layers.{i}.self_attn.{n}.weight": size for n, size in attention.items()}
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
    gain = 2.0 if ".q_proj" in name or ".k_proj" in name else 1.0
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
    return {
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
        norms: whether the file holds input_norm and fc_norm.
        own_table: whether the file holds embed_tokens.
        token_gain: how much louder than usual the token speaks, against the states.
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
    norms: bool = False
    own_table: bool = False
    token_gain: float = 1.0
    seed: int = 0

    def but(self, **changes: Any) -> Plan:
        """A copy with ``changes``."""
        return dataclasses.replace(self, **changes)


CASE = """title = "planted"
[draft]
path = "draft"
[target]
path = "target"
[samples]
path = "samples"
[[serving]]
name = "run"
engine = "vllm"
version = "0.32.0"
runner = "v1"
aux_ids = {ids}
steps = 3
"""


def plant(folder: Path, plan: Plan) -> Path:
    """Writes draft, target, samples and ``case.toml`` into ``folder``; returns the case file."""
    rng, shape = np.random.default_rng(plan.seed), plan.shape
    weights = random_weights(shape, rng, plan.norms, plan.own_table)
    weights["fc.weight"] = _invertible(shape, rng)
    for name in ("layers.0.input_layernorm.weight", "layers.0.self_attn.o_proj.weight"):
        weights[name] *= np.float32(plan.token_gain)
    if plan.reading.vocab_map == "ids":
        weights["d2t"] = weights["d2t"] + np.arange(shape.draft_vocab)
    source = Source.draw(shape, rng)
    naive = Naive(weights, plan.reading, shape.heads, shape.head_dim, shape.eps, table=source.table,
                  target_head=source.head_rows)  # fmt: skip
    recordings = [record(naive, plan, rng) for _ in range(plan.samples)]
    for name in ("draft", "target", "samples"):
        (folder / name).mkdir(parents=True)
    write_draft(folder / "draft", weights, shape, **plan.config)
    _write_target(folder / "target", source, plan)
    for i, (tokens, states) in enumerate(recordings):
        if plan.foreign:
            states = recordings[(i + 1) % len(recordings)][1]
        mask = (np.arange(plan.length) >= plan.prompt).astype(np.uint8)
        tensors = {"input_ids": torch.tensor(tokens), "loss_mask": torch.tensor(mask)}
        tensors |= {f"h.{k}": torch.tensor(states[k]) for k in plan.held}
        save_file(tensors, folder / "samples" / f"planted_{i}.safetensors", {"format": "eagle3lab-sample/1"})
    case = folder / "case.toml"
    case.write_text(CASE.format(ids=list(plan.ids)))
    return case


def record(naive: Naive, plan: Plan, rng: np.random.Generator) -> tuple[Array, dict[int, Array]]:
    """One recording: int64 tokens [T] and float32 states [T, Ht] of all boundaries 0 … L."""
    r, length = plan.reading, plan.length
    states = {k: np.zeros((length, plan.shape.target_hidden), np.float32) for k in range(plan.blocks + 1)}
    tokens = [int(t) for t in rng.integers(0, plan.shape.vocab, r.shift + 1)]
    caches: list[Cache] = naive.caches()
    handed_on: Array | None = None
    for t in range(length):
        state = naive.table[tokens[t]] if t < len(tokens) else rng.normal(size=plan.shape.target_hidden)
        for k in range(plan.blocks + 1):
            states[k][t] = state
            state = state + plan.walk * rng.normal(size=len(state))
        if handed_on is not None and t % (plan.linked + 1):
            _link(naive, plan, states, t, handed_on, rng)
        if t + r.shift < length:
            fused = naive.fuse([states[int(k)][t] for k in r.aux])
            handed_on, logits = naive.feed(caches, tokens[t + r.shift], fused, t)
            tokens.append(naive.hot[int(np.argmax(logits))])
    return np.array(tokens[:length]), states


def _link(naive: Naive, plan: Plan, states: dict[int, Array], t: int, wanted: Array, rng: np.random.Generator) -> None:
    """Moves the boundary of the last slot so that ``fc`` gives ``wanted`` at row t; its upper neighbours follow."""
    *others, last = (int(k) for k in plan.reading.aux)
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
