"""What a draft's ``config.json`` may hold under the keys that the lab reads; every fault of it at once.

A word where a number belongs would otherwise end in a traceback, or worse, in a number: ``bool("false")`` is true.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

MOST = sys.float_info.max


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


def _number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= MOST  # of an int that no float holds, `math.isfinite` would raise


def _share(value: Any) -> bool:
    return _number(value) and value <= 1


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in value)


Kind = tuple[Callable[[Any], bool], str]
WHOLE: Kind = (_whole, "a whole number above 0")
SIZE: Kind = (lambda value: _whole(value) and value < 1 << 24, "a whole number above 0 and below 16777216")
"""Of a vocabulary, or of layers: tables of that size are built."""
NUMBER: Kind = (_number, "a number above 0")
FLAG: Kind = (lambda value: isinstance(value, bool), "true or false")
TEXT: Kind = (lambda value: isinstance(value, str), "text")
TABLE: Kind = (lambda value: isinstance(value, dict), "an object")
IDS: Kind = (_ids, "a list of whole numbers, e.g. [1, 14, 26]")

REQUIRED = ("hidden_size", "num_attention_heads", "vocab_size")
FLAGS = (
    "attention_bias", "bias", "fc_norm", "norm_before_fc", "norm_before_residual", "norm_output", "tie_word_embeddings",
    "use_aux_hidden_state", "use_aux_norm",
)  # fmt: skip
KINDS: dict[str, Kind] = {
    **dict.fromkeys(REQUIRED, WHOLE),
    **dict.fromkeys(("draft_vocab_size", "num_hidden_layers", "target_num_hidden_layers", "vocab_size"), SIZE),
    **dict.fromkeys((
        "head_dim", "intermediate_size", "max_position_embeddings", "kv_lora_rank", "num_key_value_heads",
        "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "sliding_window", "target_hidden_size", "v_head_dim",
    ), WHOLE),
    **dict.fromkeys(("logit_scale", "rms_norm_eps", "rope_theta"), NUMBER),
    **dict.fromkeys(FLAGS, FLAG),
    **dict.fromkeys(("eagle_config", "rope_parameters", "rope_scaling", "transformer_layer_config"), TABLE),
    "eagle_aux_hidden_state_layer_ids": IDS,
    "hidden_act": TEXT,
    "model_type": TEXT,
    "partial_rotary_factor": (_share, "a number above 0 and at most 1"),
}  # fmt: skip
"""Keys at the top level and in ``eagle_config``; a null counts as absent, as every program takes it."""

ROPE_NUMBERS = (
    "attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor", "low_freq_factor", "mscale",
    "mscale_all_dim", "original_max_position_embeddings", "rope_theta",
)  # fmt: skip


def faults(config: Mapping[str, Any]) -> list[str]:
    """One sentence for each key of a flat layer config that does not hold what it should."""
    out = [f"key {key!r} is missing, expected {WHOLE[1]}" for key in REQUIRED if config.get(key) is None]
    tables = {"": config, "eagle_config.": config.get("eagle_config")}
    for prefix, table in tables.items():
        if isinstance(table, Mapping):
            out += [
                f"key '{prefix}{key}' is {table[key]!r}, expected {words}"
                for key, (fits, words) in KINDS.items()
                if table.get(key) is not None and not fits(table[key])
            ]
    for name in ("rope_scaling", "rope_parameters"):
        table = config.get(name)
        if isinstance(table, Mapping):
            out += [
                f"key '{name}.{key}' is {table[key]!r}, expected a number"
                for key in ROPE_NUMBERS
                if table.get(key) is not None and not _rope_number(table[key])
            ]
            out += [
                f"key '{name}.{key}' is an object: RoPE by layer type is not known for EAGLE-3 drafts; give one for all"
                for key, value in table.items()
                if isinstance(value, Mapping)
            ]
    return out


def _rope_number(value: Any) -> bool:
    """A factor may be 0 (``mscale_all_dim``), never text, negative or infinite."""
    return value == 0 or _number(value)
