"""vllm-project/speculators (read at c05b95b, 0.9.0; run against 0.9.0): nested config, trained Reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3lab.dialects.common import default_boundaries, flag, rope_of, top_level_ids
from eagle3lab.reading import Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "speculators"

_LLAMA = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
    "vocab_size": 32000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip
_QWEN3 = {
    "hidden_size": 4096, "intermediate_size": 22016, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip
LAYER_DEFAULTS: dict[str, dict[str, Any]] = {"llama": _LLAMA, "qwen3": _QWEN3}
"""transformers' defaults: the nested layer config is saved as a diff against them (trainers.md 2.1)."""


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """``speculators_model_type`` in the config."""
    return "speculators_model_type" in config


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """The nested config as one flat layer config: layer fields with their omitted defaults, then the top level."""
    layer = dict(config.get("transformer_layer_config") or {})
    defaults = LAYER_DEFAULTS.get(str(layer.get("model_type", "qwen3")), {})
    top = {k: v for k, v in config.items() if k != "transformer_layer_config" and v is not None}
    return {**defaults, **layer, **top}


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """Speculators' training forward: id k is boundary k; norms by the config's flags."""
    ids = top_level_ids(arch.config)
    boundaries = ids or default_boundaries(layers)
    aux_norm = "input_norm" if flag(arch.config, "norm_before_fc") else "none"
    reading = Reading(
        aux=boundaries,
        aux_norm="fc_norm" if flag(arch.config, "fc_norm") else aux_norm,
        residual="post_norm" if flag(arch.config, "norm_before_residual") else "pre_norm",
        feedback="post_norm" if flag(arch.config, "norm_output") else "pre_norm",
        second_norm="input_layernorm" if arch.layers > 1 else "hidden_norm",
        embedding="own" if "embed_tokens.weight" in arch.tensors else "target",
        vocab_map="offsets" if "d2t" in arch.tensors else "identity",
        rope=rope_of(arch.config),
    )
    return Interpretation(
        program=NAME,
        reading=reading,
        ids=boundaries,
        source="eagle_aux_hidden_state_layer_ids" if ids else "default [2, L//2, L-3]",
        notes=("dumps of 0.3 and 0.4 captured one block later than the same ids mean since 0.5 (by reading)",),
    )
