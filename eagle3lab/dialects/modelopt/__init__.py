"""NVIDIA Model-Optimizer (read at a2fbac7, 0.47.0): names, layer ids, trained Reading; by reading throughout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from eagle3lab.dialects.common import map_of, output_ids, output_words, own, rope_for, uses_aux
from eagle3lab.dialects.keys import Key, idle
from eagle3lab.reading import FINAL, Aux, Reading, Rope
from eagle3lab.records import Architecture, Interpretation

NAME = "modelopt"
TRAINING_FILES: tuple[str, ...] = ()
UNUSED: dict[str, str] = {}
OWN_KEYS = ("next_layer_regular", "parallel_draft_step", "parallel_draft_heads_num_layers")
"""Keys of ``eagle_config`` that TorchSpec, which writes the others too, does not have (hf_spec_configs.py)."""

KEYS = {
    "eagle_config.eagle_aux_hidden_state_layer_ids": Key("layer ids: outputs of blocks"),
    "eagle_config.use_aux_hidden_state": Key("whether aux states or the final state are fed"),
    "eagle_config.use_input_layernorm_in_first_layer": Key("the embedding is normed, as always", only=(True, None)),
    "eagle_config.use_last_layernorm": Key("the final norm is there, as always", only=(True, None)),
    "eagle_config.use_mtp_layernorm": Key("no further norm", only=(False, None)),
    "eagle_config.next_layer_regular": Key("layers after the first take H", only=(True, None)),
    "eagle_config.parallel_draft_step": Key("one token a step", only=(1, None)),
    "eagle_config.parallel_draft_heads_num_layers": idle("of parallel draft heads, no account with one token a step"),
}  # fmt: skip

INJECTED = {"factor": 32, "original_max_position_embeddings": 2048}
"""The yarn that exporting writes over a plain RoPE (``eagle_export_rope_scaling``)."""


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """``layers.0.`` with its own keys in ``eagle_config``, or with a ``d2t`` and no ``t2d``, as no other trainer does.

    The second sign alone also tells a head that ``convert_to_vllm_ckpt.py`` gave a speculators config.
    """
    stored = set(names)
    if not any(name.startswith("layers.0.") for name in stored):
        return False
    nested = config.get("eagle_config")
    if isinstance(nested, Mapping) and any(key in nested for key in OWN_KEYS):
        return True
    return "d2t" in stored and "t2d" not in stored


def advice(files: Collection[str]) -> str:
    """A training checkpoint is told by the state that modelopt keeps beside it."""
    if "modelopt_state.pth" not in files:
        return ""
    return (
        "this is a modelopt training checkpoint: export it with export_hf_checkpoint() (examples/speculative_decoding)"
    )


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """Modelopt's training: id k is the output of block k; raw residual, pre-norm state handed on, frozen embedding."""
    boundaries, ids, source = (
        output_ids(arch, layers) if uses_aux(arch.config) else ((FINAL,), (), "use_aux_hidden_state")
    )
    rope, injected = _plain(rope_for(arch))
    notes = ["d2t is in order of frequency, not of ids: offsets may be negative, lm_head rows do not follow t2d"]
    if injected:
        notes.append("the yarn of config.json (factor 32 of 2048) is written on export, training used plain RoPE")
    elif rope.scaling:
        notes.append("rope_scaling may have been written on export (eagle_export_rope_scaling) and not be trained")
    if "speculators_model_type" in arch.config:
        notes.append(
            "convert_to_vllm_ckpt.py writes norm_before_residual true into any config; training keeps the raw residual"
        )
    reading = Reading(
        aux=boundaries,
        fc="applied" if uses_aux(arch.config) else "skipped",
        second_norm="input_layernorm" if arch.layers > 1 else "hidden_norm",
        embedding=own(arch, "embed_tokens.weight"),
        head=own(arch, "lm_head.weight"),
        vocab_map=map_of(arch),
        rope=rope,
    )
    return Interpretation(program=NAME, reading=reading, ids=ids, source=source, notes=(*notes, "known by reading"))


def _plain(rope: Rope) -> tuple[Rope, bool]:
    scaling = dict(rope.scaling)
    kind = scaling.get("rope_type", scaling.get("type"))
    injected = kind == "yarn" and all(scaling.get(key) == value for key, value in INJECTED.items())
    return (replace(rope, scaling=()), True) if injected else (rope, False)


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as modelopt's ids, which it also writes into the config."""
    return output_words(aux)
