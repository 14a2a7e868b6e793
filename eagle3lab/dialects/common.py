"""What every dialect shares: canonical tensor names, RoPE out of a config, the usual layer ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eagle3lab.reading import Aux, Rope
from eagle3lab.records import Architecture

PREFIXES = ("module.", "_orig_mod.", "draft_model.", "model.")
"""Wrappers that trainers put before the draft's names (DDP/FSDP, torch.compile, SpecForge's trainer, Automodel)."""

_LAYER = r"layers\.(?:0|[1-9][0-9]{0,8})\."
CANONICAL = re.compile(
    r"(embed_tokens\.weight|fc\.(weight|bias)|fc_norm\.[0-9]+\.weight|input_norm\.weight|norm\.weight|lm_head\.weight"
    rf"|d2t|t2d|mask_hidden|{_LAYER}(input_layernorm|hidden_norm|post_attention_layernorm)\.weight"
    rf"|{_LAYER}self_attn\.((q|k|v|o)_proj\.(weight|bias)|(q|k)_norm\.weight"
    r"|(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj|q_a_layernorm|kv_a_layernorm)\.weight)"
    rf"|{_LAYER}mlp\.(gate|up|down)_proj\.(weight|bias))"
)
"""Names an EAGLE-3 draft may hold, after renaming; anything else is unknown."""

_AUX_NORMS = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}


def canonical(name: str) -> str | None:
    """The canonical name of a stored tensor, None when no dialect knows it.

    ``midlayer.`` (SpecForge, EAGLE, AngelSlim) is ``layers.0.`` (speculators, modelopt); SGLang's older
    ``aux_norm_low/mid/high`` is ``fc_norm.0/1/2`` (engines.md 2.1).
    """
    stripped = True
    while stripped:
        stripped = False
        for prefix in PREFIXES:
            if name.startswith(prefix):
                name, stripped = name[len(prefix) :], True
    name = re.sub(r"^midlayer\.", "layers.0.", name)
    for old, new in _AUX_NORMS.items():
        name = re.sub(rf"^{old}\.", f"{new}.", name)
    return name if CANONICAL.fullmatch(name) else None


UNUSED: dict[str, str] = {
    r".*rotary_emb\.inv_freq": "RoPE frequencies: every program computes them from config.json",
    r"(.*\.)?t2d": "a mask of training: no program drafts with it; compared with d2t (V004)",
}
"""Stored names that any program may write and no draft needs to run: pattern → why (scales: tensors/quantised.py)."""

GGUF = "llamacpp"
"""`Architecture.program` of a draft that llama.cpp's converter wrote; its ``d2t`` holds ids."""


def is_latent(arch: Architecture) -> bool:
    """Whether attention is MLA (DeepSeek, Kimi)."""
    return "layers.0.self_attn.kv_a_proj_with_mqa.weight" in arch.tensors


def own(arch: Architecture, name: str) -> str:
    """``own`` where the file has the tensor, else ``target``: a field of the Reading."""
    return "own" if name in arch.tensors else "target"


def map_of(arch: Architecture) -> str:
    """How ``d2t`` is read: offsets, in GGUF ids; the identity where there is none."""
    held = "ids" if arch.program == GGUF else "offsets"
    return held if "d2t" in arch.tensors else "identity"


def window_of(config: Mapping[str, Any]) -> int | None:
    """The attention window of the first layer, None without ``layer_types`` that say so."""
    kinds = config.get("layer_types") or []
    sliding = bool(kinds) and kinds[0] == "sliding_attention"
    return int(config["sliding_window"]) if sliding and config.get("sliding_window") else None


def tensors_of(arch: Architecture, *parts: str) -> tuple[str, ...]:
    """Canonical names in the file that contain any of ``parts``, sorted."""
    return tuple(sorted(name for name in arch.tensors if any(part in name for part in parts)))


def rope_for(arch: Architecture, rule: str = "hf", base: float | None = None) -> Rope:
    """`rope_of` the checkpoint: MLA rotates neighbouring channels, unless ``rope_interleave`` is false.

    (transformers' DeepseekV3Attention; vLLM and SGLang build it with ``is_neox_style=False``, TorchSpec likewise.)
    """
    rope = rope_of(arch.config, rule, base)
    turned = is_latent(arch) and arch.config.get("rope_interleave") is not False
    return replace(rope, layout="interleaved") if turned else rope


def rope_of(config: Mapping[str, Any], rule: str = "hf", base: float | None = None) -> Rope:
    """The Rope a config describes, new schema (``rope_parameters``) first, as transformers 5 and both engines do.

    Args:
        config: flat layer config.
        rule: see `Rope`.
        base: overrides the config's, for programs that never read it.
    """
    parameters = dict(config.get("rope_parameters") or {})
    if not parameters:
        parameters = dict(config.get("rope_scaling") or {})
    theta = parameters.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    partial = parameters.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    scaling = {} if kind in (None, "default") else parameters
    frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in scaling.items()}
    return Rope(
        base=float(theta if base is None else base),
        scaling=tuple(sorted(frozen.items())),
        rule=rule,
        partial=float(partial),
        limit=config.get("max_position_embeddings"),
    )


def default_boundaries(layers: int | None) -> tuple[int, ...]:
    """The boundaries that every program takes when no ids are given: (2, L//2, L-3) (engines.md 5).

    Raises:
        ValueError: L is not known, so the default cannot be.
    """
    if not layers:
        raise ValueError(
            "the draft's config names no layer ids and the number of target layers is not known; "
            "give [target] with a config.json, or aux_ids in the case's [[serving]] table"
        )
    return (2, layers // 2, layers - 3)


def nested_ids(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """``eagle_config.eagle_aux_hidden_state_layer_ids``, None when not there."""
    ids = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return tuple(ids) if ids else None


def output_ids(arch: Architecture, layers: int | None) -> tuple[Aux, tuple[int, ...], str]:
    """Boundaries, ids and their source, for trainers whose id k is the output of block k, boundary k + 1.

    The nested list first, then the top-level one, then the default [1, L//2-1, L-4] (trainers.md 1).

    Raises:
        ValueError: no ids and L not known.
    """
    ids, source = nested_ids(arch.config), "eagle_config.eagle_aux_hidden_state_layer_ids"
    if ids is None:
        ids, source = top_level_ids(arch.config), "eagle_aux_hidden_state_layer_ids"
    if ids is None:
        default = default_boundaries(layers)
        return default, tuple(b - 1 for b in default), "default [1, L//2-1, L-4]"
    return tuple(i + 1 for i in ids), ids, source


KEY = "eagle_aux_hidden_state_layer_ids"


def output_words(aux: Aux) -> str:
    """Boundaries as a nested list of the blocks whose output they are; boundary 0 is no block's."""
    if any(isinstance(b, str) for b in aux):
        return '"eagle_config": {"use_aux_hidden_state": false}'
    ids = [int(b) - 1 for b in aux]
    note = " (not expressible: boundary 0, the embedding, is no block's output)" if -1 in ids else ""
    return f'"eagle_config": {{"{KEY}": {ids}}}{note}'


def top_level_ids(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Top-level ``eagle_aux_hidden_state_layer_ids``, None when not there."""
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    return tuple(ids) if ids else None


def uses_aux(config: Mapping[str, Any]) -> bool:
    """False for drafts fed by the target's final state (``use_aux_hidden_state: false``)."""
    return bool((config.get("eagle_config") or {}).get("use_aux_hidden_state", True))


def flag(config: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """A flag at the top level, else in ``eagle_config``."""
    value = config.get(name)
    if value is None:
        value = (config.get("eagle_config") or {}).get(name)
    return default if value is None else bool(value)
