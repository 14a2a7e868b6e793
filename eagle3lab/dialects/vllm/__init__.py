"""vLLM (read at 0.33.0; V1 runner run at 0.32.0): how it serves a draft, and its reports."""

from __future__ import annotations

from eagle3lab.counts import ServingRun
from eagle3lab.dialects.common import default_boundaries, flag, nested_ids, rope_of, top_level_ids, uses_aux
from eagle3lab.dialects.vllm.reports import read_reports
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Architecture, Interpretation

__all__ = ["NAME", "VERSIONS", "read_reports", "served", "words"]

NAME = "vllm"
VERSIONS = ("0.33.0 v1", "0.33.0 v2")
_KEY = "eagle_aux_hidden_state_layer_ids"


def served(arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
    """VLLM's Reading: id i is boundary i, sorted and de-duplicated (measured, vllm_measured.md 2)."""
    runner = run.runner or ("v2" if _since_033(run.version) else "v1")
    ids, source = _ids(arch, layers, run, runner)
    boundaries: Aux = tuple(sorted(set(ids))) if uses_aux(arch.config) else (FINAL,)
    refused = _refusals(arch, layers, ids) if uses_aux(arch.config) else []
    speculators_format = "speculators_model_type" in arch.config
    aux_norm = "input_norm" if flag(arch.config, "norm_before_fc") else "none"
    dropped = tuple(sorted(n for n in arch.tensors if _is_dropped(n, arch)))
    reading = None
    if not refused:
        reading = Reading(
            aux=boundaries,
            aux_norm="fc_norm" if flag(arch.config, "fc_norm") else aux_norm,
            fc="applied" if uses_aux(arch.config) else "skipped",
            residual="post_norm" if flag(arch.config, "norm_before_residual", speculators_format) else "pre_norm",
            feedback="post_norm" if flag(arch.config, "norm_output") else "pre_norm",
            second_norm="input_layernorm" if arch.layers > 1 else "hidden_norm",
            embedding="own" if "embed_tokens.weight" in arch.tensors else "target",
            head="own" if "lm_head.weight" in arch.tensors else "target",
            vocab_map="offsets" if "d2t" in arch.tensors else "identity",
            rope=rope_of(arch.config),
            dropped=dropped,
            window=_window(arch),
            logit_scale=float(arch.config.get("logit_scale") or 1.0),
        )
    notes = []
    if tuple(ids) != tuple(sorted(set(ids))):
        notes.append(f"ids {list(ids)} are used as {sorted(set(ids))}: vLLM sorts them, so their order cannot be kept")
    if runner == "v2" and run.aux_ids is None and nested_ids(arch.config) and not top_level_ids(arch.config):
        notes.append(f"the V2 runner does not read eagle_config.{_KEY}; the default is used instead (by reading)")
    return Interpretation(
        program=f"{NAME} {run.version or '0.33.0'} {runner}",
        reading=reading,
        ids=tuple(ids),
        source=source,
        dropped=dropped,
        invented=() if "d2t" in arch.tensors or arch.draft_vocab == arch.vocab else ("an identity vocab map",),
        refused=tuple(refused),
        notes=tuple(notes),
    )


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as vLLM's ids: the same numbers, which only an ascending list can express."""
    if FINAL in aux:
        return '"use_aux_hidden_state": false'
    note = "" if list(aux) == sorted(set(aux)) else " (not expressible: vLLM sorts and de-duplicates)"
    return f'"{_KEY}": {list(aux)}{note}'


def _since_033(version: str) -> bool:
    """V2 is the default runner from 0.33 on (engines.md 5); an unknown version counts as the newest."""
    parts = version.split(".")
    return not (len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit()) or (
        int(parts[0]),
        int(parts[1]),
    ) >= (0, 33)


def _ids(arch: Architecture, layers: int | None, run: ServingRun, runner: str) -> tuple[tuple[int, ...], str]:
    if run.aux_ids is not None:
        return run.aux_ids, "aux_ids of the case's serving run"
    top, nested = top_level_ids(arch.config), nested_ids(arch.config)
    if top:
        return top, f"config.json: {_KEY}"
    if nested and runner == "v1":
        return nested, f"config.json: eagle_config.{_KEY}"
    return default_boundaries(layers), "default (2, L//2, L-3)"


def _refusals(arch: Architecture, layers: int | None, ids: tuple[int, ...]) -> list[str]:
    refused = []
    outside = [i for i in ids if i < 0 or (layers is not None and i > layers)]
    if outside:
        refused.append(f"ids {outside} are never captured (0 to {layers} exist): crash at the first request")
    if len(set(ids)) != len(ids):
        refused.append(f"ids {list(ids)} repeat: fewer states arrive than fc takes, crash at the first request")
    if len(set(ids)) == len(ids) and not outside and len(ids) != arch.aux:
        refused.append(f"{len(ids)} ids {list(ids)}, but fc takes {arch.aux} states: crash at the first request")
    if "layers.0.self_attn.q_norm.weight" in arch.tensors and arch.config.get("model_type") != "qwen3":
        refused.append("q_norm and k_norm are unknown to llama_eagle3: ValueError on loading (by reading)")
    return refused


def _is_dropped(name: str, arch: Architecture) -> bool:
    if name.startswith("input_norm") and not flag(arch.config, "norm_before_fc"):
        return True
    if name.startswith("fc_norm") and not flag(arch.config, "fc_norm"):
        return True
    attention_bias = ".self_attn." in name and bool(arch.config.get("attention_bias"))
    return name.endswith(".bias") and not attention_bias


def _window(arch: Architecture) -> int | None:
    kinds = arch.config.get("layer_types") or []
    sliding = bool(kinds) and kinds[0] == "sliding_attention"
    return int(arch.config["sliding_window"]) if sliding and arch.config.get("sliding_window") else None
