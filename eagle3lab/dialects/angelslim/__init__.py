"""Tencent AngelSlim (read at 67394ce and 040c6b7, 0.5.0): names, trained Reading; by reading throughout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from eagle3lab.dialects.common import default_boundaries, map_of, own, rope_for
from eagle3lab.dialects.keys import Key
from eagle3lab.reading import Aux, Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "angelslim"
TRAINING_FILES: tuple[str, ...] = ()
UNUSED: dict[str, str] = {}
KEYS: dict[str, Key] = {}


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """``midlayer.`` names under the class name that AngelSlim gives its draft."""
    named = "Eagle3LlamaForCausalLM" in (config.get("architectures") or [])
    return named and "speculators_model_type" not in config and any("midlayer." in name for name in names)


def advice(files: Collection[str]) -> str:
    """Nothing: its checkpoints always hold a config."""
    return ""


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """AngelSlim's training: default boundaries, which no config names; RoPE base always 10000.

    ``LlamaAttention._init_rope`` never passes ``rope_theta`` on, with or without linear or dynamic scaling; it knows
    no other scaling.
    """
    boundaries = default_boundaries(layers)
    reading = Reading(
        aux=boundaries,
        embedding=own(arch, "embed_tokens.weight"),
        head=own(arch, "lm_head.weight"),
        vocab_map=map_of(arch),
        rope=rope_for(arch, base=10000.0),
    )
    return Interpretation(
        program=NAME,
        reading=reading,
        ids=tuple(b - 1 for b in boundaries),
        source="default [1, L//2-1, L-4]; the draft's config never names them",
        notes=(
            "rope_theta is ignored in training (base 10000), engines read it from config.json",
            "ids given in training (aux_hidden_states_layer_ids) are written nowhere in the checkpoint",
            "a ZeRO-3 save drops embed_tokens",
            "known by reading",
        ),
    )


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as the ids of AngelSlim's training arguments."""
    if 0 in aux or any(isinstance(b, str) for b in aux):
        return "not expressible: its ids are outputs of blocks"
    return f"aux_hidden_states_layer_ids: {[int(b) - 1 for b in aux]}, in training and dumping alike"
