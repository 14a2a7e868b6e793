"""SGLang (0.5.9 and 0.5.23, by reading): how it serves a draft, and its reports."""

from __future__ import annotations

import re

from eagle3lab.counts import ServingRun
from eagle3lab.dialects.common import default_boundaries, flag, nested_ids, rope_of, uses_aux
from eagle3lab.dialects.sglang.reports import read_reports
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Architecture, Interpretation

__all__ = ["NAME", "VERSIONS", "read_reports", "served", "words"]

NAME = "sglang"
VERSIONS = ("0.5.9", "0.5.23")
OLD = (0, 5, 9)
"""Up to here always + 1, and no fc_norm, norm_output or further layers (before SGLang#24663 and #25454)."""
LAST_TOO = ("gpt_oss", "gemma3", "gemma3_text", "gemma4", "gemma4_text")
"""Targets for which boundary L, the last residual, can be captured."""

FIRST_IS_ONE = ("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe_lite")
"""Targets for which 0.5.23 adds one to the ids only when the list starts with 1 (sglang#25454)."""


def served(arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
    """SGLang's Reading: explicit id i is boundary i + 1, with exceptions by version and target (engines.md 5)."""
    version = run.version or VERSIONS[-1]
    ids, source, boundaries = _boundaries(arch, layers, target_type, run, version)
    notes = ["SGLang rules are known by reading its source, not by running it"]
    uses_states = uses_aux(arch.config)
    refused = _refusals(arch, layers, target_type, ids, boundaries) if uses_states else []
    new = not _is_old(version)
    if new and _release(version) < (0, 5, 23):
        notes.append(f"the rules taken for {version} are those of 0.5.23; they changed somewhere after 0.5.9")
    dropped = tuple(sorted(n for n in arch.tensors if _is_dropped(n, arch, new)))
    tied = bool(arch.config.get("tie_word_embeddings"))
    own_embedding = arch.target_hidden != arch.hidden
    aux_norm = "input_norm" if flag(arch.config, "norm_before_fc") else "none"
    reading = None
    if not refused:
        reading = Reading(
            aux=boundaries if uses_states else (FINAL,),
            aux_norm="fc_norm" if new and _has_fc_norm(arch) else aux_norm,
            fc="applied" if uses_states else "skipped",
            feedback="post_norm" if new and flag(arch.config, "norm_output") else "pre_norm",
            embedding="own" if own_embedding else "target",
            head="own" if "lm_head.weight" in arch.tensors and not tied else "target",
            vocab_map="offsets" if "d2t" in arch.tensors else "identity",
            rope=rope_of(arch.config),
            dropped=dropped,
        )
    return Interpretation(
        program=f"{NAME} {version}",
        reading=reading,
        ids=ids,
        source=source,
        dropped=dropped,
        replaced=(*_patched(ids), *_replaced(arch, own_embedding, tied)),
        invented=() if "d2t" in arch.tensors or arch.draft_vocab == arch.vocab else ("an identity vocab map",),
        refused=tuple(refused),
        notes=tuple(notes),
    )


def _patched(ids: tuple[int, ...]) -> tuple[str, ...]:
    known = "id -1 means the embedding output in a patched SGLang only: stock 0.5.9 would crash on it (by reading)"
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
        note = " (-1, the embedding output, needs a patched SGLang)" if -1 in ids else ""
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


def _is_dropped(name: str, arch: Architecture, new: bool) -> bool:
    if ".self_attn." in name and (name.endswith(".bias") or "_norm" in name):
        return True
    if name == "fc.bias":
        return not arch.config.get("bias")
    if name.startswith("fc_norm"):
        return not (new and _has_fc_norm(arch))
    return name.startswith("input_norm") and not flag(arch.config, "norm_before_fc")


def _has_fc_norm(arch: Architecture) -> bool:
    return flag(arch.config, "fc_norm") or flag(arch.config, "use_aux_norm")


def _replaced(arch: Architecture, own_embedding: bool, tied: bool) -> tuple[str, ...]:
    replaced = []
    if "embed_tokens.weight" in arch.tensors and not own_embedding:
        replaced.append("embed_tokens.weight is overwritten by the target's")
    if tied and "lm_head.weight" in arch.tensors:
        replaced.append("lm_head.weight is replaced by embed_tokens (tie_word_embeddings)")
    if flag(arch.config, "norm_before_residual"):
        replaced.append("norm_before_residual is ignored: the residual stays un-normed")
    return tuple(replaced)
