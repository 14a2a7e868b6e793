"""NVIDIA-NeMo Automodel (read at 36044ad): names, layer ids, trained Reading; by reading throughout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from eagle3lab.dialects.common import flag, map_of, output_ids, output_words, own, rope_for
from eagle3lab.dialects.keys import Key
from eagle3lab.reading import Aux, Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "automodel"
TRAINING_FILES: tuple[str, ...] = ()
UNUSED = {
    r".*mask_hidden": "state of masked positions in parallel drafting (P-EAGLE); a chain of drafts never feeds it"
}
KEYS = {
    "eagle_config.eagle_aux_hidden_state_layer_ids": Key("layer ids: outputs of blocks"),
    "fc_norm": Key("a norm for each state before fc"),
    "norm_output": Key("the state handed on is taken after the final norm"),
    "parallel_drafting": Key("one token a step", only=(False, None)),
}


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """``model.`` before all but ``lm_head``, ``d2t`` and ``t2d``, and ``layers.0.``: no other trainer writes it so."""
    stored = set(names)
    layer = any(name.startswith("model.layers.0.") for name in stored)
    return layer and "model.norm.weight" in stored and "model.lm_head.weight" not in stored and (
        "model.fc.weight" in stored or "model.layers.0.hidden_norm.weight" in stored
    )  # fmt: skip


def advice(files: Collection[str]) -> str:
    """Nothing: its checkpoints always hold a config."""
    return ""


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """Automodel's training: id k is the output of block k; raw residual; ``fc_norm`` and ``norm_output`` by flag."""
    boundaries, ids, source = output_ids(arch, layers)
    reading = Reading(
        aux=boundaries,
        aux_norm="fc_norm" if flag(arch.config, "fc_norm") else "none",
        feedback="post_norm" if flag(arch.config, "norm_output") else "pre_norm",
        second_norm="input_layernorm" if arch.layers > 1 else "hidden_norm",
        embedding=own(arch, "embed_tokens.weight"),
        head=own(arch, "lm_head.weight"),
        vocab_map=map_of(arch),
        rope=rope_for(arch),
    )
    notes = ["before its PR #2447 no d2t was saved: engines then took draft ids for target ids", "known by reading"]
    if "mask_hidden" in arch.tensors:
        notes.insert(
            0, "P-EAGLE drafts several tokens at once; the lab runs it one by one, which it was not trained for"
        )
    return Interpretation(program=NAME, reading=reading, ids=ids, source=source, notes=tuple(notes))


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as Automodel's ids, which a recipe may write into the config."""
    return output_words(aux)
