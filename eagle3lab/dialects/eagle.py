"""SafeAILab EAGLE (read and run at cb7e0841): trained Reading."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from eagle3lab.dialects.common import default_boundaries, map_of, own, rope_for
from eagle3lab.dialects.keys import Key
from eagle3lab.reading import Aux, Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "eagle"
TRAINING_FILES: tuple[str, ...] = ()
UNUSED: dict[str, str] = {}
KEYS: dict[str, Key] = {}


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """``midlayer.`` names under the plain ``LlamaForCausalLM`` that EAGLE's own config ships."""
    stored = list(names)
    trainer = bool(stored) and all(name.startswith("draft_model.") for name in stored)
    architectures = config.get("architectures") or []
    return "LlamaForCausalLM" in architectures and any("midlayer." in name for name in stored) and not trainer


def advice(files: Collection[str]) -> str:
    """What to put beside a state that DeepSpeed saved (``save_16bit_model`` writes no config)."""
    if "pytorch_model.bin" not in files or "config.json" in files:
        return ""
    return "EAGLE's training saves weights alone: copy its eagle/traineagle3/config.json beside them"


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """EAGLE's training-time test: boundaries hard-coded, RoPE base always 10000 whatever the config says."""
    boundaries = default_boundaries(layers)
    reading = Reading(
        aux=boundaries,
        fc="skipped" if arch.aux == 1 and arch.target_hidden == arch.hidden else "applied",
        embedding="own" if arch.target_hidden != arch.hidden else "target",
        head=own(arch, "lm_head.weight"),
        vocab_map=map_of(arch),
        rope=rope_for(arch, base=10000.0),
    )
    return Interpretation(
        program=NAME,
        reading=reading,
        ids=boundaries,
        source="hard-coded idx == L-3, L//2 or 2, before the block",
        notes=(
            "EAGLE's own inference reads rope_theta from the config, its training does not",
            "where both are there it loads pytorch_model.bin, the lab model.safetensors (by reading)",
        ),
    )


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as EAGLE has them: only the default."""
    return f"hard-coded: blocks before which idx is {list(aux)}; others need an edit of modeling_*_kv.py"
