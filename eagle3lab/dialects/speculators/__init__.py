"""vllm-project/speculators (read at c05b95b and in the wheels 0.1.0 to 0.9.0; run against 0.9.0): trained Reading.

The config is nested in every release: ``transformer_layer_config`` holds the layer's, ``speculators_config`` the
proposal. A flat config that says ``speculators_model_type`` is read as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from eagle3lab.dialects.common import (
    KEY,
    default_boundaries,
    flag,
    map_of,
    own,
    rope_for,
    top_level_ids,
    window_of,
)
from eagle3lab.dialects.keys import Key, idle
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "speculators"
TRAINING_FILES: tuple[str, ...] = ()
UNUSED = {
    r"verifier_(lm_head|norm)\.weight": "the verifier's own head and norm, for its training targets only",
    r".*mask_hidden": "state of masked positions in parallel drafting (P-EAGLE); a chain of drafts never feeds it",
}
_SAYS = "what serving is advised to do; the case's run says what ran"
KEYS = {
    KEY: Key("layer ids: boundaries"),
    "norm_before_residual": Key("the residual is taken after hidden_norm"),
    "norm_before_fc": Key("one norm over all states before fc (input_norm)"),
    "fc_norm": Key("a norm for each state before fc"),
    "norm_output": Key("the state handed on is taken after the final norm"),
    "embed_requires_grad": idle("of training only: whether the embedding was frozen"),
    "speculators_model_type": Key("eagle3 or peagle; says that the config is nested", only=("eagle3", "peagle")),
    "speculators_version": Key("the release that wrote the file; decides what an omitted default was"),
    "has_no_defaults_at_init": idle("transformers' bookkeeping"),
    "mask_token_id": idle("of parallel drafting (P-EAGLE); a chain of drafts never feeds it"),
    "sliding_window_indices": Key("no layer with a window", only=([], None)),
    "speculators_config": idle(_SAYS),
    **dict.fromkeys((
        "speculators_config.algorithm", "speculators_config.default_proposal_method",
        "speculators_config.proposal_methods", "speculators_config.proposal_methods.*",
    ), idle(_SAYS)),
    "speculators_config.verifier.*": idle("which model it was trained for; the case names the target"),
}  # fmt: skip

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


LLAMA_UNTIL = (0, 6)
"""Up to here a layer config that does not say its kind is a LlamaConfig, from 0.7 on a Qwen3Config (wheels)."""


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """``speculators_model_type`` in the config, and no ``d2t`` without its ``t2d``: speculators saves both or neither.

    modelopt's conversion for vLLM writes such a config too, over its own tensors (trainers.md 3.1).
    """
    stored = set(names)
    return "speculators_model_type" in config and not ("d2t" in stored and "t2d" not in stored)


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """The nested config as one flat layer config: layer fields with their omitted defaults, then the top level."""
    layer = dict(config.get("transformer_layer_config") or {})
    version = re.match(r"(\d+)\.(\d+)", str(config.get("speculators_version") or ""))
    old = version is not None and (int(version[1]), int(version[2])) <= LLAMA_UNTIL
    kind = str(layer.get("model_type", "llama" if old else "qwen3"))
    top = {k: v for k, v in config.items() if k != "transformer_layer_config" and v is not None}
    return {**LAYER_DEFAULTS.get(kind, {}), **layer, **top}


def advice(files: Collection[str]) -> str:
    """Nothing: its checkpoints always hold a config."""
    return ""


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """Speculators' training forward: id k is boundary k; norms by the config's flags.

    A flag that the config does not hold is the config class's default, false: the command line's own defaults
    (``norm_before_residual`` true; since #692, 0.7, ``norm_before_fc`` and ``norm_output`` true) are always written.
    """
    ids = top_level_ids(arch.config)
    boundaries = ids or default_boundaries(layers)
    aux_norm = "input_norm" if flag(arch.config, "norm_before_fc") else "none"
    reading = Reading(
        aux=boundaries,
        aux_norm="fc_norm" if flag(arch.config, "fc_norm") else aux_norm,
        residual="post_norm" if flag(arch.config, "norm_before_residual") else "pre_norm",
        feedback="post_norm" if flag(arch.config, "norm_output") else "pre_norm",
        second_norm="input_layernorm" if arch.layers > 1 else "hidden_norm",
        embedding=own(arch, "embed_tokens.weight"),
        head=own(arch, "lm_head.weight"),
        vocab_map=map_of(arch),
        rope=rope_for(arch),
        window=window_of(arch.config),
    )
    notes = ["dumps of 0.3 and 0.4 captured one block later than the same ids mean since 0.5 (by reading)"]
    if flag(arch.config, "norm_before_fc") and "input_norm.weight" not in arch.tensors:
        notes.append("norm_before_fc without input_norm.weight loads without a warning, as a norm of ones (by reading)")
    if not ids:
        notes.append("the config names no ids: 0.3 and 0.4 saved none, and loading fills in the default (by reading)")
    if not str(arch.config.get("speculators_version") or ""):
        notes.append(
            "a converted checkpoint keeps its first trainer's conventions, whatever its flags say (by reading)"
        )
    return Interpretation(
        program=NAME,
        reading=reading,
        ids=boundaries,
        source=KEY if ids else "default [2, L//2, L-3]",
        notes=tuple(notes),
    )


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as speculators' ids: the same numbers, in the order of fc."""
    return "not expressible: it always feeds aux states" if FINAL in aux else f'"{KEY}": {list(aux)}'
