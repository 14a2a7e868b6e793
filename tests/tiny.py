"""A tiny EAGLE-3 case made on the spot: draft, HF-style target, samples, ``case.toml``.

It is sound: its reply tokens are what the draft itself says under boundaries `AUX`, boundary 0 is the embedding of the
tokens, boundary `LAYERS` leads to the next token through norm and head. A test writes it, damages one thing, and looks
at what the lab says.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle3lab.draft import Draft
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.target import Target

H, HEADS, KV, DIM, INNER, LAYERS, V, VD, T = 16, 4, 2, 4, 24, 8, 64, 32, 40
AUX = (2, 4, 5)
"""The boundaries the draft fits; vLLM's ids are the same numbers."""

PROMPT = 12
"""Tokens before the reply, which runs to the end."""

HELD = (0, 2, 4, 5, 8)
NAMES = ("first", "second")

Tensors = dict[str, Tensor]


def _random(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator)


def draft_tensors(*, hidden: int = H, target: int = H, aux: int = 3, size: int = VD, vocab: int = V,
                  layers: int = 1, seed: int = 1) -> Tensors:  # fmt: skip
    """A draft as SpecForge writes it, with every second token in its vocabulary; further layers as ``layers.1.`` …"""
    rand = _random(seed)
    out = {
        "fc.weight": rand(hidden, aux * target) / (aux * target) ** 0.5,
        "norm.weight": 1 + 0.1 * rand(hidden),
        "lm_head.weight": rand(size, hidden),
        "d2t": torch.arange(size) * (vocab // size) - torch.arange(size),
        "t2d": torch.arange(vocab) % (vocab // size) == 0,
    }
    for layer in range(layers):
        prefix, takes = ("midlayer.", 2 * hidden) if layer == 0 else (f"layers.{layer}.", hidden)
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        out |= {f"{prefix}{norm}.weight": 1 + 0.1 * rand(hidden) for norm in norms}
        for name, rows, columns in (
            ("self_attn.q_proj", HEADS * DIM, takes), ("self_attn.k_proj", KV * DIM, takes),
            ("self_attn.v_proj", KV * DIM, takes), ("self_attn.o_proj", hidden, HEADS * DIM),
            ("mlp.gate_proj", INNER, hidden), ("mlp.up_proj", INNER, hidden), ("mlp.down_proj", hidden, INNER),
        ):  # fmt: skip
            out[f"{prefix}{name}.weight"] = rand(rows, columns) / columns**0.5
    return out


def draft_config(**changes: Any) -> dict[str, Any]:
    """The config beside `draft_tensors`; a change to None takes the key out."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": H,
        "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM,
        "num_hidden_layers": 1,
        "vocab_size": V, "draft_vocab_size": VD, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0,
        "max_position_embeddings": 128, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [k - 1 for k in AUX]},
    }  # fmt: skip
    return {key: value for key, value in (config | changes).items() if value is not None}


def target_tensors(hidden: int = H) -> Tensors:
    rand = _random(2)
    head = torch.nn.functional.normalize(rand(V, hidden), dim=-1) * 4
    return {"model.embed_tokens.weight": rand(V, hidden), "lm_head.weight": head,
            "model.norm.weight": torch.logspace(-1.5, 1, hidden)}  # fmt: skip


def target_config(**changes: Any) -> dict[str, Any]:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": H,
              "num_hidden_layers": LAYERS, "vocab_size": V, "rms_norm_eps": 1e-6}  # fmt: skip
    return config | changes


def write_folder(folder: Path, tensors: Tensors, config: dict[str, Any]) -> Path:
    """A checkpoint folder: ``model.safetensors`` and ``config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_sample(file: Path, tensors: Tensors, **metadata: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    words = {"format": "eagle3lab-sample/1", "origin": "tests/tiny.py"} | metadata
    save_file({name: t.contiguous() for name, t in tensors.items()}, file, metadata=words)
    return file


def write_target(folder: Path) -> Path:
    return write_folder(folder, target_tensors(), target_config())


def write_draft(folder: Path) -> Path:
    return write_folder(folder, draft_tensors(), draft_config())


@cache
def _planted(seed: int) -> Tensors:
    """Tokens that the draft itself says on random states, made once a run."""
    rand = _random(seed)
    states = {2: rand(T, H)}
    states[4] = states[2] + 0.6 * rand(T, H)
    states[5] = states[4] + 0.6 * rand(T, H)
    tokens = (rand(T) * 100).long().abs() % V
    with tempfile.TemporaryDirectory() as folder:
        target = Target(write_target(Path(folder) / "target"))
        model = Model(Draft(write_draft(Path(folder) / "draft"), H, V), target)
        ones = torch.ones(T, dtype=torch.uint8)
        for t in range(T - 2):
            seen = {k: s[: t + 2] for k, s in states.items()}
            sample = Sample("s", "s", tokens[: t + 2], ones[: t + 2], seen)
            rolled = rollout(model, sample, Reading(aux=AUX), 1, rows=torch.tensor([t]))
            tokens[t + 2] = rolled.steps[0].top_ids[0, 0]
        rows = target_tensors()
        states[0] = rows["model.embed_tokens.weight"][tokens]
        following = torch.cat((tokens[1:], tokens[:1]))
        states[8] = 5 * rows["lm_head.weight"][following] / rows["model.norm.weight"]
    mask = torch.zeros(T, dtype=torch.uint8)
    mask[PROMPT:] = 1
    return {"input_ids": tokens, "loss_mask": mask, **{f"h.{k}": states[k] for k in HELD}}


def sample_tensors(seed: int = 11) -> Tensors:
    """A sound sample, [T] tokens and states [T, H]; fresh tensors, to be changed at will."""
    return {name: t.clone() for name, t in _planted(seed).items()}


TOML = """title = "tiny"
[draft]
path = "draft"
[target]
path = "target"
[samples]
path = "samples"
"""

RUN = """[[serving]]
name = "a run"
engine = "vllm"
version = "0.32.0"
runner = "v1"
aux_ids = [2, 4, 5]
steps = 2
"""


def write_case(folder: Path, toml: str = TOML + RUN) -> Path:
    """The whole sound case; returns its ``case.toml``."""
    write_draft(folder / "draft")
    write_target(folder / "target")
    for i, name in enumerate(NAMES):
        write_sample(folder / "samples" / f"{name}.safetensors", sample_tensors(11 + i))
    file = folder / "case.toml"
    file.write_text(toml, encoding="utf-8")
    return file


def edit(file: Path, change: Callable[[Tensors], Any], **metadata: str) -> Path:
    """Changes the tensors of a safetensors file in place; ``change`` works on the dict it is given."""
    with safe_open(file, "pt") as handle:
        tensors = {name: handle.get_tensor(name).clone() for name in handle.keys()}  # noqa: SIM118 (no mapping)
        words = dict(handle.metadata() or {}) | metadata
    change(tensors)
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, file, metadata=words)
    return file


def edit_json(file: Path, **changes: Any) -> Path:
    """Changes keys of a JSON file in place; a change to ``...`` takes the key out."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))
    return file


def pointer(file: Path) -> Path:
    """Puts a Git LFS pointer where the tensors were."""
    file.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456\n")
    return file
