"""SpecForge (read at a6b6b023, 0.2.0; run against 0.2.0): names, layer ids, trained Reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eagle3lab.dialects.common import default_boundaries, flag, nested_ids, rope_of
from eagle3lab.reading import Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "specforge"


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """``midlayer.`` names and SpecForge's architecture."""
    is_arch = "LlamaForCausalLMEagle3" in (config.get("architectures") or [])
    return is_arch and any("midlayer." in name for name in names)


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """SpecForge 0.2.0's training-time test.

    Id i is the output of block i, boundary i + 1; without ids [1, L//2-1, L-4]. ``norm_output`` (default true) gates
    the norm before ``lm_head``; the state handed on is always pre-norm (until SpecForge#879). The target's embedding
    is used, frozen. ``rope_theta`` is honoured from 1712b656 (2026-07-17) on, and was not before SpecForge#270.
    """
    ids = nested_ids(arch.config)
    boundaries = tuple(i + 1 for i in ids) if ids else default_boundaries(layers)
    beyond = [b for b in boundaries if layers is not None and b > layers]
    reading = Reading(
        aux=boundaries,
        aux_norm="fc_norm" if flag(arch.config, "fc_norm") else "none",
        head_norm="applied" if flag(arch.config, "norm_output", default=True) else "skipped",
        embedding="target",
        vocab_map="offsets" if "d2t" in arch.tensors else "identity",
        rope=rope_of(arch.config, rule="specforge"),
    )
    return Interpretation(
        program=NAME,
        reading=None if beyond else reading,
        refused=tuple(f"id {b - 1} is the output of block {b - 1}, of {layers} blocks in all" for b in beyond),
        ids=tuple(b - 1 for b in boundaries if isinstance(b, int)),
        source="eagle_config.eagle_aux_hidden_state_layer_ids" if ids else "default [1, L//2-1, L-4]",
        notes=(
            "rope_theta was ignored (base 10000) before 2025-10-30 and again until 2026-07-17",
            "online training between 2025-09-01 and 2025-10-20 used L//2+1 for the middle boundary",
        ),
    )
