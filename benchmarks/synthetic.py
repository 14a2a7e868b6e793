"""Drafts and recordings of a given size with random weights, written to disk as SpecForge would."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle3lab.draft import Draft
from eagle3lab.reading import Reading
from eagle3lab.records import Sample

READING = Reading(aux=(0, 1, 2), embedding="own")


@dataclass(frozen=True)
class Size:
    """A draft's dimensions."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    draft_vocab: int
    vocab: int
    tokens: int
    dtype: torch.dtype = torch.float32

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Matrices under SpecForge's names."""
        h, q, kv = self.hidden, self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "fc": (h, 3 * h), "midlayer.self_attn.q_proj": (q, 2 * h), "midlayer.self_attn.k_proj": (kv, 2 * h),
            "midlayer.self_attn.v_proj": (kv, 2 * h), "midlayer.self_attn.o_proj": (h, q),
            "midlayer.mlp.gate_proj": (self.intermediate, h), "midlayer.mlp.up_proj": (self.intermediate, h),
            "midlayer.mlp.down_proj": (h, self.intermediate), "lm_head": (self.draft_vocab, h),
        }  # fmt: skip

    @property
    def config(self) -> dict[str, object]:
        """config.json."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": self.hidden,
            "intermediate_size": self.intermediate, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "num_hidden_layers": 1,
            "vocab_size": self.vocab, "draft_vocab_size": self.draft_vocab, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "max_position_embeddings": 4096, "hidden_act": "silu", "pad_token_id": 0,
            "tie_word_embeddings": False,
        }  # fmt: skip


def write(folder: Path, size: Size) -> Draft:
    """The draft on disk, every matrix of unit gain."""
    generator = torch.Generator().manual_seed(0)
    shapes = size.shapes | {"embed_tokens": (size.vocab, size.hidden)}
    tensors = {}
    for name, shape in shapes.items():
        gain = 1.0 if name == "embed_tokens" else shape[1] ** -0.5
        tensors[f"{name}.weight"] = torch.empty(shape, dtype=size.dtype).normal_(0, gain, generator=generator)
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    for name in ("norm", *(f"midlayer.{n}" for n in norms)):
        tensors[f"{name}.weight"] = torch.ones(size.hidden, dtype=size.dtype)
    places = torch.linspace(0, size.vocab - 1, size.draft_vocab).long()
    tensors["d2t"] = places - torch.arange(size.draft_vocab)
    tensors["t2d"] = torch.zeros(size.vocab, dtype=torch.bool).index_fill_(0, places, True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(size.config))
    return Draft(folder, size.hidden, size.vocab)


def sample(size: Size) -> Sample:
    """A recording of random tokens and states."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(size.vocab, (size.tokens,), generator=generator)
    states = {k: torch.randn(size.tokens, size.hidden, generator=generator).to(size.dtype) for k in range(3)}
    return Sample("synthetic", "synthetic.safetensors", tokens, torch.ones(size.tokens, dtype=torch.uint8), states)


def bare(weights: dict[str, torch.Tensor], size: Size, steps: int, rows: int | None = None, piece: int = 128) -> None:
    """The matrix products of a rollout and nothing else: weights, scores and mixing of values.

    ``fc``, keys and values for every position, the rest for the last ``rows`` (all when None). Scores and values are
    multiplied piece by piece up to the last row a piece sees, as causality allows.
    """
    length, dtype = size.tokens - 1, size.dtype
    rows = length if rows is None else rows
    wide = {n: torch.ones(length, n, dtype=dtype) for n in {w.shape[1] for w in weights.values()}}
    group = size.heads // size.kv_heads
    keys = torch.ones(size.kv_heads, length, size.head_dim, dtype=dtype)
    for k in range(steps):
        for name, weight in weights.items():
            everywhere = k == 0 and name.endswith(("fc", "k_proj", "v_proj"))
            if k == 0 or name != "fc":
                torch.mm(wide[weight.shape[1]][: length if everywhere else rows - k], weight.t())
        for start in range(length - rows, length - k, piece):
            end = min(start + piece, length - k)
            q = torch.ones(size.kv_heads, group * (end - start), size.head_dim, dtype=dtype)
            torch.bmm(torch.bmm(q, keys[:, :end].transpose(1, 2)), keys[:, :end])
