"""SGLang (0.5.9 and 0.5.23, by reading): how it serves a draft, and its reports."""

from __future__ import annotations

from eagle3lab.dialects.common import default_boundaries, flag, nested_ids, rope_of, uses_aux
from eagle3lab.dialects.sglang.reports import read_reports
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Architecture, Interpretation, ServingRun

__all__ = ["NAME", "VERSIONS", "read_reports", "served", "words"]

NAME = "sglang"
VERSIONS = ("0.5.9", "0.5.23")
FIRST_IS_ONE = ("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe_lite")
"""Targets for which 0.5.23 adds one to the ids only when the list starts with 1 (sglang#25454)."""


def served(arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
    """SGLang's Reading: explicit id i is boundary i + 1, with exceptions by version and target (engines.md 5)."""
    version = run.version or VERSIONS[-1]
    nested = nested_ids(arch.config)
    ids = run.aux_ids if run.aux_ids is not None else nested
    notes = ["SGLang rules are known by reading its source, not by running it"]
    if ids is None:
        boundaries: Aux = default_boundaries(layers)
        ids, source = boundaries, "default [2, L//2, L-3] (boundaries)"  # type: ignore[assignment]
    else:
        shift = _shift(ids, layers, target_type, version)
        boundaries = tuple(sorted(i + shift for i in ids))
        source = (
            "aux_ids of the case's serving run"
            if run.aux_ids is not None
            else "config.json: eagle_config.eagle_aux_hidden_state_layer_ids"
        )
        if -1 in ids:
            notes.append("id -1 is the embedding output in patched SGLang only; stock 0.5.9 crashes on it")
    refused = [] if all(isinstance(b, int) and b >= 0 for b in boundaries) else [f"ids {list(ids or ())} below -1"]
    if not uses_aux(arch.config):
        boundaries = (FINAL,)
    elif len(set(boundaries)) != arch.aux:
        refused.append(f"ids {list(ids or ())} give {len(set(boundaries))} states, but fc takes {arch.aux}: crash")
    new = version not in ("0.5.3", "0.5.9")
    dropped = tuple(sorted(n for n in arch.tensors if _is_dropped(n, arch, new)))
    tied = bool(arch.config.get("tie_word_embeddings"))
    own_embedding = arch.target_hidden != arch.hidden
    aux_norm = "input_norm" if flag(arch.config, "norm_before_fc") else "none"
    reading = None
    if not refused:
        reading = Reading(
            aux=boundaries,
            aux_norm="fc_norm" if new and flag(arch.config, "fc_norm") else aux_norm,
            fc="applied" if uses_aux(arch.config) else "skipped",
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
        ids=tuple(int(i) for i in ids or ()),
        source=source,
        dropped=dropped,
        replaced=_replaced(arch, own_embedding, tied),
        invented=() if "d2t" in arch.tensors or arch.draft_vocab == arch.vocab else ("an identity vocab map",),
        refused=tuple(refused),
        notes=tuple(notes),
    )


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as the ids to put under ``eagle_config``; boundary 0 needs a patched SGLang (-1)."""
    if FINAL in aux:
        return '"eagle_config": {"use_aux_hidden_state": false}'
    ids = [int(b) - 1 for b in aux]
    if target_type in FIRST_IS_ONE and ids[0] != 1:
        ids = [int(b) for b in aux]
        note = " (0.5.23, whose rule for this target depends on the first id)"
    else:
        note = " (-1, the embedding output, needs a patched SGLang)" if -1 in ids else ""
    if list(aux) != sorted(set(aux)):
        note += " (not expressible: SGLang captures in ascending order)"
    return f'"eagle_config": {{"eagle_aux_hidden_state_layer_ids": {ids}}}{note}'


def _shift(ids: tuple[int, ...], layers: int | None, target_type: str, version: str) -> int:
    if version in ("0.5.3", "0.5.9"):
        return 1
    if target_type in FIRST_IS_ONE:
        return 1 if ids[0] == 1 or -1 in ids else 0
    if target_type == "gpt_oss":
        return 0 if layers is not None and max(ids) == layers else 1
    return 1


def _is_dropped(name: str, arch: Architecture, new: bool) -> bool:
    if name == "t2d" or ".self_attn." in name and (name.endswith(".bias") or "_norm" in name):
        return True
    if name == "fc.bias":
        return not arch.config.get("bias")
    if name.startswith("fc_norm"):
        return not (new and (flag(arch.config, "fc_norm") or flag(arch.config, "use_aux_norm")))
    return name.startswith("input_norm") and not flag(arch.config, "norm_before_fc")


def _replaced(arch: Architecture, own_embedding: bool, tied: bool) -> tuple[str, ...]:
    replaced = []
    if "embed_tokens.weight" in arch.tensors and not own_embedding:
        replaced.append("embed_tokens.weight is overwritten by the target's")
    if tied and "lm_head.weight" in arch.tensors:
        replaced.append("lm_head.weight is replaced by embed_tokens (tie_word_embeddings)")
    if flag(arch.config, "norm_before_residual"):
        replaced.append("norm_before_residual is ignored: the residual stays un-normed")
    return tuple(replaced)
