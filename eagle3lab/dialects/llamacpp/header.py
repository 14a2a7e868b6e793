"""What llama.cpp's converter makes of a draft and of a target (GGUF), turned back into canonical terms.

Read from ``conversion/llama.py``, ``conversion/gemma.py`` and ``conversion/qwen.py`` of llama.cpp as in
llama-cpp-python 0.3.36; ``tests/fixtures/gguf`` holds files that its converter wrote.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eagle3lab.records import TensorInfo

ARCHITECTURE = "eagle3"
"""``general.architecture`` of a draft."""

_BLOCK = {
    "attn_norm": "input_layernorm", "attn_norm_2": "hidden_norm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_TOP = {
    "token_embd.weight": "embed_tokens.weight", "output.weight": "lm_head.weight", "output_norm.weight": "norm.weight",
    "enc.output_norm.weight": "input_norm.weight", "fc.weight": "fc.weight", "fc.bias": "fc.bias", "d2t": "d2t",
}  # fmt: skip
TARGET = {"embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
          "norm.weight": "output_norm.weight"}  # fmt: skip
"""The tensors of a target that the lab needs: HF's ending → GGUF's name; without ``output.weight`` it is tied."""

_CONFIG = {
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size", "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta", "context_length": "max_position_embeddings", "vocab_size": "vocab_size",
    "target_hidden_size": "target_hidden_size", "norm_before_residual": "norm_before_residual",
    "norm_before_fc": "norm_before_fc",
}  # fmt: skip
"""Keys of the header, without the architecture before them → config.json's."""

_LAYERS = ("target_layers", "extract_layers")  # the second is what converters before mid-2026 wrote
_SCALING = {
    "factor": "factor", "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow",
}  # fmt: skip
"""Keys under ``rope.scaling.`` → those of config.json's ``rope_scaling``; the others keep their names, and are W008."""

_SAID = ("attention.value_length", "rope.dimension_count", "rope.scale_linear", "rope.scaling.type",
         "nextn_predict_layers", *(f"rope.scaling.{key}" for key in _SCALING))  # fmt: skip
"""Keys that are read here without a key of their own in config.json."""

MODEL_TYPES = {
    "gemma3": "gemma3_text", "glm4moe": "glm4_moe", "gpt-oss": "gpt_oss", "llama4": "llama4_text",
    "qwen2moe": "qwen2_moe", "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text", "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
}  # fmt: skip
"""GGUF's architecture → HF's ``model_type`` where the two words differ; ``deepseek2`` stands for several and stays."""


_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


def canonical(name: str) -> str | None:
    """The canonical name of a draft's GGUF tensor, None when it is none of an EAGLE-3 draft."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and _NUMBER.fullmatch(parts[1]) and parts[3] in ("weight", "bias"):
        known = _BLOCK.get(parts[2])
        return f"layers.{parts[1]}.{known}.{parts[3]}" if known else None
    return None


def row_order(name: str, size: int, config: Mapping[str, Any]) -> Tensor | None:
    """Where each row of the canonical tensor ``name`` stands in the GGUF, None where rows keep their places.

    The converter interleaves the two halves of each head of ``q_proj`` and ``k_proj`` (``LlamaModel.permute``), so that
    RoPE turns neighbours; all else keeps HF's order. int64 [size].
    """
    part = name.rpartition(".")[0].rpartition(".")[2]
    if part not in ("q_proj", "k_proj"):
        return None
    heads = config.get("num_attention_heads")
    if part == "k_proj":
        heads = config.get("num_key_value_heads") or heads
    if not isinstance(heads, int) or heads < 1 or size % (2 * heads):
        return None  # the draft's own checks say what does not fit
    return torch.arange(size).view(heads, size // heads // 2, 2).transpose(1, 2).reshape(-1)


def draft_config(
    fields: Mapping[str, Any], infos: Mapping[str, TensorInfo], read: Callable[[str], Tensor]
) -> dict[str, Any]:
    """A draft's header in config.json's words; keys of the architecture that nobody reads keep their own.

    ``target_layers`` comes back as ``eagle_aux_hidden_state_layer_ids``: the converter copied it from there, or wrote
    the default (2, L//2, L-3), and llama.cpp captures the inputs of these layers, so its ids are boundaries.

    Args:
        fields: the header.
        infos: its tensors.
        read: gives one of them.
    """
    out = {**_common(fields, infos), "model_type": "llama", "hidden_act": "silu"}
    prefix = f"{fields.get('general.architecture', '')}."
    layers = next((fields[prefix + key] for key in _LAYERS if prefix + key in fields), None)
    if layers is not None:
        out["eagle_aux_hidden_state_layer_ids"] = list(layers) if isinstance(layers, Sequence) else layers
    head = infos.get("d2t") or infos.get("output.weight")
    out["draft_vocab_size"] = head.shape[0] if head and head.shape else out.get("vocab_size")
    if "rope_freqs.weight" in infos:
        scaling = _factors(read("rope_freqs.weight").float().reshape(-1), out)
        if scaling and out.get("rope_scaling"):  # llama.cpp divides by these factors, and scales as the header says
            scaling = {"rope_type": f"{OWN_FACTORS} with {out['rope_scaling']['rope_type']}"}
        out |= {"rope_scaling": scaling} if scaling else {}
    if "num_key_value_heads" not in out:
        out |= _kv_heads(infos, out)
    return out


def _kv_heads(infos: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> dict[str, int]:
    """Key heads out of the shapes: the converter permuted each by itself, so no other number turns the rows back."""
    query, key = (infos.get(f"blk.0.attn_{name}.weight") for name in "qk")
    heads = config.get("num_attention_heads")
    if not query or not key or not query.shape or not key.shape or not isinstance(heads, int) or heads < 1:
        return {}
    width = query.shape[0] // heads
    return {"num_key_value_heads": key.shape[0] // width} if width and key.shape[0] % width == 0 else {}


def target_config(fields: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
    """A target's header in config.json's words; ``model_type`` is the architecture's, in HF's words where known."""
    kind = str(fields.get("general.architecture", ""))
    out = {**_common(fields, infos), "model_type": MODEL_TYPES.get(kind, kind)}
    out["tie_word_embeddings"] = TARGET["lm_head.weight"] not in infos
    layers = out.get("num_hidden_layers")
    heads = fields.get(f"{kind}.nextn_predict_layers", 0)
    if isinstance(layers, int) and isinstance(heads, int) and 0 < heads < layers:
        # GLM and Qwen3.5 count their prediction heads among the blocks; where the converter left them out or
        # marked them, the last blocks are not the model's
        last = {name.split(".")[2] for name in infos if name.startswith(f"blk.{layers - 1}.")}
        if "nextn" in last or not last:
            out["num_hidden_layers"] = layers - heads
    return out


def recognises_draft(fields: Mapping[str, Any]) -> bool:
    """Whether a GGUF's header is a draft's."""
    return fields.get("general.architecture") == ARCHITECTURE


def _common(fields: Mapping[str, Any], infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
    prefix = f"{fields.get('general.architecture', '')}."
    own = {key.removeprefix(prefix): value for key, value in fields.items() if key.startswith(prefix)}
    out = {name: _short(own[key]) for key, name in _CONFIG.items() if key in own}
    table = infos.get("token_embd.weight")
    tokens = fields.get("tokenizer.ggml.tokens")
    if "vocab_size" not in out and (table or tokens is not None):
        out["vocab_size"] = table.shape[0] if table and table.shape else len(tokens or ())
    turned, dim = own.get("rope.dimension_count"), out.get("head_dim")
    if isinstance(turned, int) and isinstance(dim, int) and 0 < turned < dim:
        out["partial_rotary_factor"] = turned / dim
    scaling = {
        word: _short(own[f"rope.scaling.{key}"]) for key, word in _SCALING.items() if f"rope.scaling.{key}" in own
    }
    if "rope.scale_linear" in own:  # what the factor was called before
        scaling.setdefault("factor", _short(own["rope.scale_linear"]))
    # llama.cpp takes a factor without a type as linear (llama-model.cpp, load_hparams)
    kind = own.get("rope.scaling.type", "linear" if scaling.get("factor", 1.0) not in (0, 1) else "none")
    if kind != "none":
        default = {"factor": 1.0} if kind in ("linear", "yarn") else {}
        out["rope_scaling"] = {"rope_type": kind, **default, **scaling}
    known = {*_CONFIG, *_SAID, *_LAYERS}
    return out | {prefix + key: value for key, value in own.items() if key not in known}


def _short(value: Any) -> Any:
    """A float32 of the header as the number that was meant: 9.99999974e-06 is 1e-05."""
    return float(f"{value:.7g}") if isinstance(value, float) and math.isfinite(value) else value


OWN_FACTORS = "rope_freqs"
"""RoPE's kind of scaling where the factors follow no rule that the lab knows: it is not run (W009)."""


def _factors(factors: Tensor, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The scaling that gives ``rope_freqs`` [d/2], by which llama.cpp divides frequencies; None where they are all 1.

    The converter writes llama3's; low 1 and high 4 are all that is in use. Equal factors are linear scaling.
    """
    if not len(factors) or not bool((factors > 0).all()):
        return {"rope_type": OWN_FACTORS}
    factor = _short(float(factors.max()))
    if bool((factors == factors[0]).all()):
        return {"rope_type": "linear", "factor": factor} if factor != 1 else None
    base, dim = config.get("rope_theta", 10000.0), 2 * len(factors)
    if not isinstance(base, int | float) or not base > 0:
        return {"rope_type": OWN_FACTORS}  # the draft's own checks name the key
    wavelength = 2 * math.pi * base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    for original in (8192, 4096, 2048, 16384, 32768, 65536, 131072):
        smooth = (original / wavelength - 1.0) / (4.0 - 1.0)
        middle = 1 / ((1 - smooth) / factor + smooth)
        expected = torch.where(wavelength < original / 4.0, 1.0, torch.where(wavelength > original, factor, middle))
        if torch.allclose(expected, factors.double(), rtol=1e-4):
            return {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": original}  # fmt: skip
    return {"rope_type": OWN_FACTORS}
