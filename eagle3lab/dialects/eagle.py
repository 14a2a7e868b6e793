"""SafeAILab EAGLE (read and run at cb7e0841): trained Reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3lab.dialects.common import default_boundaries, rope_of
from eagle3lab.reading import Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "eagle"


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """``midlayer.`` names under the plain ``LlamaForCausalLM`` that EAGLE's own config ships."""
    return "LlamaForCausalLM" in (config.get("architectures") or []) and any("midlayer." in name for name in names)


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """EAGLE's training-time test: boundaries hard-coded, RoPE base always 10000 whatever the config says."""
    boundaries = default_boundaries(layers)
    reading = Reading(
        aux=boundaries,
        embedding="own" if arch.target_hidden != arch.hidden else "target",
        vocab_map="offsets" if "d2t" in arch.tensors else "identity",
        rope=rope_of(arch.config, base=10000.0),
    )
    return Interpretation(
        program=NAME,
        reading=reading,
        ids=boundaries,
        source="hard-coded idx == L-3, L//2 or 2, before the block",
        notes=("EAGLE's own inference reads rope_theta from the config, its training does not",),
    )
