"""SpecForge (read at a6b6b023, 0.2.0; run against 0.2.0): names, layer ids, trained Reading."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from eagle3lab.dialects.common import default_boundaries, flag, map_of, nested_ids, output_words, own, rope_for
from eagle3lab.dialects.keys import Key, idle
from eagle3lab.reading import Aux, Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "specforge"
TRAINING_FILES = ("training_state.pt",)
"""What a training checkpoint holds in place of a model; its ``draft_state_dict`` is the draft (checkpoint_io.py)."""

PARALLEL = "PEagleDraftModel"
UNUSED = {
    r".*mask_hidden": "state of masked positions in parallel drafting (P-EAGLE); a chain of drafts never feeds it"
}
KEYS = {
    "eagle_config.eagle_aux_hidden_state_layer_ids": Key("layer ids: outputs of blocks"),
    "norm_output": Key("the norm before lm_head (default true); the state handed on stays pre-norm"),
    "fc_norm": Key("a norm for each state before fc"),
    "norm_before_residual": Key("P-EAGLE drafts only"),
    "target_model_type": idle("the target's kind, for the record"),
}


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """SpecForge's architectures, or the ``draft_model.`` that its trainer puts before every name.

    ``midlayer.`` under ``LlamaForCausalLMEagle3`` is TorchSpec's layout too; see its own ``recognises``.
    """
    stored = list(names)
    if "speculators_model_type" in config:
        return False
    architectures = config.get("architectures") or []
    layer = any("midlayer." in name for name in stored)
    if layer and stored and all(name.startswith("draft_model.") for name in stored):
        return True
    return (layer and "LlamaForCausalLMEagle3" in architectures) or PARALLEL in architectures


def advice(files: Collection[str]) -> str:
    """What to run where the folder is a training checkpoint and no model."""
    if not any(name.startswith("training_state") for name in files) or "model.safetensors" in files:
        return ""
    return (
        "this is a SpecForge training checkpoint: run 'specforge export --to hf --checkpoint FOLDER --draft-config "
        "CONFIG.json --output-dir OUT' (or --to sglang) and give the lab OUT"
    )


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """SpecForge 0.2.0's training-time test.

    Id i is the output of block i, boundary i + 1; without ids [1, L//2-1, L-4]. ``norm_output`` (default true) gates
    the norm before ``lm_head``; the state handed on is always pre-norm (until SpecForge#879). The target's embedding
    is used, frozen. ``rope_theta`` is honoured from 1712b656 (2026-07-17) on, and was not before SpecForge#270.
    P-EAGLE drafts train their own embedding, honour ``norm_before_residual`` and ignore RoPE scaling (peagle.py).
    """
    ids = nested_ids(arch.config)
    boundaries = tuple(i + 1 for i in ids) if ids else default_boundaries(layers)
    beyond = [b for b in boundaries if layers is not None and b > layers]
    parallel = PARALLEL in (arch.config.get("architectures") or [])
    rope = rope_for(arch, rule="specforge")
    reading = Reading(
        aux=boundaries,
        aux_norm="fc_norm" if flag(arch.config, "fc_norm") and not parallel else "none",
        residual="post_norm" if parallel and flag(arch.config, "norm_before_residual") else "pre_norm",
        head_norm="applied" if parallel or flag(arch.config, "norm_output", default=True) else "skipped",
        second_norm="input_layernorm" if arch.layers > 1 else "hidden_norm",
        embedding=own(arch, "embed_tokens.weight") if parallel else "target",
        head=own(arch, "lm_head.weight"),
        vocab_map=map_of(arch),
        rope=replace(rope, scaling=()) if parallel else rope,
    )
    notes = [
        "rope_theta was ignored (base 10000) before 2025-10-30 and again until 2026-07-17",
        "online training between 2025-09-01 and 2025-10-20 used L//2+1 for the middle boundary",
        "between 2026-07-19 and SpecForge#879 norm_output gated the norm before lm_head instead of the state handed on",
    ]
    if parallel:
        notes.append("P-EAGLE drafts several tokens at once; the lab runs it one by one, which it was not trained for")
    return Interpretation(
        program=NAME,
        reading=None if beyond else reading,
        refused=tuple(f"id {b - 1} is the output of block {b - 1}, of {layers} blocks in all" for b in beyond),
        ids=tuple(b - 1 for b in boundaries if isinstance(b, int)),
        source="eagle_config.eagle_aux_hidden_state_layer_ids" if ids else "default [1, L//2-1, L-4]",
        notes=tuple(notes),
    )


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as SpecForge's ids, which it also writes into the config."""
    return output_words(aux)
