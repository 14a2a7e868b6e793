"""SGLang (0.5.9 and 0.5.23, by reading): how it serves a draft, and its reports."""

from __future__ import annotations

import re

from eagle3lab.counts import ServingRun
from eagle3lab.dialects.common import (
    GGUF,
    KEY,
    default_boundaries,
    flag,
    is_latent,
    map_of,
    nested_ids,
    own,
    rope_for,
    uses_aux,
)
from eagle3lab.dialects.keys import Key
from eagle3lab.dialects.sglang.reports import read_reports
from eagle3lab.dialects.sglang.settings import setting_faults
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Architecture, Interpretation

__all__ = [
    "KEYS", "NAME", "VERSIONS", "missing", "names", "read_reports", "served", "setting_faults", "unknown", "words",
]  # fmt: skip

NAME = "sglang"
VERSIONS = ("0.5.9", "0.5.23")
OLD = (0, 5, 9)
"""Up to here always + 1, and no fc_norm, norm_output or further layers (before SGLang#24663 and #25454)."""
LAST_TOO = ("gpt_oss", "gemma3", "gemma3_text", "gemma4", "gemma4_text")
"""Targets for which boundary L, the last residual, can be captured."""

FIRST_IS_ONE = ("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe_lite")
"""Targets for which 0.5.23 adds one to the ids only when the list starts with 1 (sglang#25454)."""

KEYS = {
    f"eagle_config.{KEY}": Key("layer ids and, by their number, A"),
    KEY: Key("A of an MLA draft; the ids are not read"),
    "eagle_config.use_aux_hidden_state": Key("whether aux states or the final state are fed"),
    "num_aux_hidden_states": Key("A; counted from fc instead"),
    "norm_before_fc": Key("one norm over all states before fc (input_norm)"),
    **dict.fromkeys(("fc_norm", "use_aux_norm"), Key("a norm for each state before fc, since sglang#24663")),
    "norm_output": Key("the state handed on is taken after the final norm, since sglang#24663"),
    "intermediate_size_mlp": Key("the MLP's width for llama4_text drafts; taken from gate_proj"),
}

OPTIONS = {"window": "--speculative-draft-window-size"}
"""Field of the Reading → the server's own option for it, where config.json is not asked."""


def served(arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
    """SGLang's Reading: explicit id i is boundary i + 1, with exceptions by version and target (engines.md 5)."""
    version = run.version or VERSIONS[-1]
    new = not _is_old(version)
    ids, source, boundaries = _boundaries(arch, layers, target_type, run, version)
    uses_states = uses_aux(arch.config)
    refused = _refusals(arch, layers, target_type, ids, boundaries) if uses_states else []
    refused += _load_faults(arch, new)
    skips = not uses_states or (arch.aux == 1 and arch.target_hidden == arch.hidden)
    dropped = tuple(sorted(n for n in arch.tensors if _is_dropped(n, arch, new, skips)))
    tied, shared = bool(arch.config.get("tie_word_embeddings")), _shares_head(arch)
    own_embedding = arch.target_hidden != arch.hidden
    normed = flag(arch.config, "norm_before_fc") and not is_latent(arch)
    aux_norm = "fc_norm" if new and _has_fc_norm(arch) else "input_norm" if normed else "none"
    reading = None
    if not refused:
        reading = Reading(
            aux=boundaries if uses_states else (FINAL,),
            aux_norm="none" if skips else aux_norm,
            fc="skipped" if skips else "applied",
            feedback="post_norm" if new and flag(arch.config, "norm_output") else "pre_norm",
            embedding="own" if own_embedding else "target",
            head="target" if tied or shared else own(arch, "lm_head.weight"),
            vocab_map=map_of(arch),
            rope=rope_for(arch),
            dropped=dropped,
        )
    return Interpretation(
        program=f"{NAME} {version}",
        reading=reading,
        ids=ids,
        source=source,
        dropped=dropped,
        replaced=(*_patched(ids), *_replaced(arch, own_embedding, tied, shared, new)),
        invented=_invented(arch, tied or shared),
        refused=tuple(refused),
        notes=_notes(arch, target_type, version, new),
    )


def _notes(arch: Architecture, target_type: str, version: str, new: bool) -> tuple[str, ...]:
    notes = ["SGLang rules are known by reading its source, not by running it"]
    if new and _release(version) < (0, 5, 23):
        notes.append(f"the rules taken for {version} are those of 0.5.23; they changed somewhere after 0.5.9")
    if "speculators_model_type" in arch.config:
        notes.append("no reader of speculators' nested config was found in SGLang: convert it to a flat one first")
    if new and target_type.startswith("gemma3"):
        notes.append("0.5.23's gemma3_causal.py hands over a branch of the block, not the residual stream (by reading)")
    return tuple(notes)


def _load_faults(arch: Architecture, new: bool) -> list[str]:
    """What stops it on loading, and forms that it would run and the lab has no reading for (engines.md 2)."""
    config, later = arch.config, range(1, arch.layers)
    unnormed = [f"layers.{i}.hidden_norm.weight" for i in later if f"layers.{i}.hidden_norm.weight" not in arch.tensors]
    faults = {
        "no EAGLE-3 reader for GGUF is known in it: give it the checkpoint that was converted": arch.program == GGUF,
        "architectures LlamaForCausalLM loads an ordinary Llama: write LlamaForCausalLMEagle3 (by reading)":
            config.get("architectures") == ["LlamaForCausalLM"],
        "config.json has no draft_vocab_size, which it reads unasked: write Vd, or null to share the target's head "
        "(by reading)": "draft_vocab_size" not in config and "speculators_model_type" not in config,
        "target_hidden_size is null, which its llama draft takes as a number: leave the key out (by reading)":
            "target_hidden_size" in config and config["target_hidden_size"] is None and not is_latent(arch),
        "its MLA draft has one layer: ValueError (by reading)": is_latent(arch) and arch.layers > 1,
        "its MLA draft needs q_lora_rank and its q_a_proj (by reading)":
            is_latent(arch) and "layers.0.self_attn.q_a_proj.weight" not in arch.tensors,
        "up to 0.5.9 one layer is run and the others are dropped in silence, which the lab has no reading for":
            not new and not is_latent(arch) and arch.layers > 1,
        f"{', '.join(unnormed)} missing: SGLang would norm with ones there, which the lab has no reading for":
            new and not is_latent(arch) and bool(unnormed),
    }  # fmt: skip
    return [text for text, found in faults.items() if found]


def _shares_head(arch: Architecture) -> bool:
    """``"draft_vocab_size": null``: embedding and head are the target's, Vd = V."""
    return "draft_vocab_size" in arch.config and arch.config["draft_vocab_size"] is None


def _invented(arch: Architecture, borrowed: bool) -> tuple[str, ...]:
    invented = [] if "d2t" in arch.tensors or arch.draft_vocab == arch.vocab else ["an identity vocab map"]
    if "lm_head.weight" not in arch.tensors and not borrowed:
        invented.append("an lm_head of its initial values: nothing would be accepted (sglang#27908)")
    return tuple(invented)


def _patched(ids: tuple[int, ...]) -> tuple[str, ...]:
    known = (
        "id -1 means the embedding output in a patched SGLang only: stock 0.5.9 would crash on it, stock 0.5.23 was "
        "not checked (by reading)"
    )
    return (known,) if -1 in ids else ()


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``v0.5.9.post1`` is (0, 5, 9); () when there are none."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def _is_old(version: str) -> bool:
    release = _release(version)
    return bool(release) and release <= OLD


def _boundaries(
    arch: Architecture, layers: int | None, target_type: str, run: ServingRun, version: str
) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
    """Ids as SGLang is given them, where they come from, and the boundaries they mean, ascending."""
    ids, source = run.aux_ids, "aux_ids of the case's serving run"
    if ids is None:
        ids, source = nested_ids(arch.config), "config.json: eagle_config.eagle_aux_hidden_state_layer_ids"
    if ids is None:
        default = default_boundaries(layers)
        if target_type == "minimax_m3_vl":
            return default, "default [2, L//2, L-3], one later for this target", tuple(b + 1 for b in default)
        return default, "default [2, L//2, L-3] (boundaries)", default
    shift = _shift(ids, layers, target_type, version)
    return ids, source, tuple(sorted(i + shift for i in ids))


def _refusals(
    arch: Architecture, layers: int | None, target_type: str, ids: tuple[int, ...], boundaries: tuple[int, ...]
) -> list[str]:
    if min(boundaries) < 0:
        return [f"ids {list(ids)} name no layer: {min(boundaries)} is below the embedding output"]
    if layers is not None and max(boundaries) >= layers + (target_type in LAST_TOO):
        return [
            f"ids {list(ids)} name boundary {max(boundaries)}, which is never captured for this target: "
            "fc gets too few states, crash at the first request"
        ]
    if len(set(boundaries)) != arch.aux:
        return [f"ids {list(ids)} give {len(set(boundaries))} states, but fc takes {arch.aux}: crash"]
    return []


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as the ids to put under ``eagle_config``; boundary 0 needs a patched SGLang (-1)."""
    if FINAL in aux:
        return '"eagle_config": {"use_aux_hidden_state": false}'
    ids = [int(b) - 1 for b in aux]
    if target_type in FIRST_IS_ONE and ids[0] == 0:
        note = " (up to 0.5.9; 0.5.23 cannot express it: for this target [0, …] is boundary 0 and [1, …] boundary 2)"
    elif target_type in FIRST_IS_ONE and ids[0] != 1:
        note = f" (0.5.23, whose rule for this target depends on the first id; up to 0.5.9 {ids})"
        ids = [int(b) for b in aux]
    else:
        note = " (-1, the embedding output, needs a patched SGLang: stock 0.5.9 crashes on it)" if -1 in ids else ""
    if list(aux) != sorted(set(aux)):
        note += " (not expressible: SGLang captures in ascending order)"
    return f'"eagle_config": {{"eagle_aux_hidden_state_layer_ids": {ids}}}{note}'


def _shift(ids: tuple[int, ...], layers: int | None, target_type: str, version: str) -> int:
    if _is_old(version):
        return 1
    if target_type in FIRST_IS_ONE:
        return 1 if ids[0] == 1 or -1 in ids else 0
    if target_type == "gpt_oss":
        return 0 if layers is not None and max(ids) == layers else 1
    return 1


def unknown(name: str, arch: Architecture) -> str:
    """What it does with a tensor of a name it does not know."""
    return "dropped with a warning" if is_latent(arch) else "dropped in silence"


def missing(name: str, arch: Architecture) -> str:
    """What it does without the canonical tensor ``name``, ``""`` where nothing."""
    if name == "embed_tokens.weight":
        same = arch.target_hidden == arch.hidden
        return "takes the target's, as always" if same else "keeps a table of its initial values, in silence"
    if name == "lm_head.weight":
        borrowed = arch.config.get("tie_word_embeddings") or _shares_head(arch)
        return "takes the target's" if borrowed else "keeps a head of its initial values, in silence: accepts nothing"
    if name == "d2t":
        return "takes draft ids for target ids, in silence"
    if name == "t2d" or name == "mask_hidden" or name.endswith(("q_norm.weight", "k_norm.weight")):
        return ""
    if ".input_layernorm" in name and not name.startswith("layers.0."):
        return ""
    if name.endswith(".bias") and name != "fc.bias":
        return "has none" if "o_proj" not in name else "zeros"
    return "keeps what it was initialised with, in silence"


def names(stored: tuple[str, ...]) -> str:
    """Trouble with the names as stored: none, it tries them with and without ``model.``."""
    return ""


def _is_dropped(name: str, arch: Architecture, new: bool, skips: bool) -> bool:
    if ".self_attn." in name and (name.endswith(".bias") or ".q_norm" in name or ".k_norm" in name):
        return True
    if name == "fc.bias":
        return skips or not arch.config.get("bias")
    if name == "fc.weight":
        return skips
    if name.startswith("fc_norm"):
        return skips or not (new and _has_fc_norm(arch))
    if name.startswith("input_norm"):
        return skips or not flag(arch.config, "norm_before_fc") or is_latent(arch)
    later_input = name.endswith(".input_layernorm.weight") and not name.startswith("layers.0.")
    return later_input or name == "mask_hidden" or (".mlp." in name and name.endswith(".bias"))


def _has_fc_norm(arch: Architecture) -> bool:
    return flag(arch.config, "fc_norm") or flag(arch.config, "use_aux_norm")


def _replaced(arch: Architecture, own_embedding: bool, tied: bool, shared: bool, new: bool) -> tuple[str, ...]:
    replaced = []
    if "embed_tokens.weight" in arch.tensors and not own_embedding:
        replaced.append("embed_tokens.weight is overwritten by the target's")
    if tied and "lm_head.weight" in arch.tensors:
        replaced.append("lm_head.weight is replaced by embed_tokens (tie_word_embeddings)")
    elif shared and "lm_head.weight" in arch.tensors:
        replaced.append("lm_head.weight is replaced by the target's (draft_vocab_size is null)")
    if flag(arch.config, "norm_before_residual"):
        replaced.append("norm_before_residual is ignored: the residual stays un-normed")
    if not new and flag(arch.config, "norm_output"):
        replaced.append("norm_output is ignored: the state handed on stays pre-norm (up to 0.5.9)")
    return tuple(replaced)
