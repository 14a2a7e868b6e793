"""vLLM (read at 0.33.0; V1 runner run at 0.32.0): how it serves a draft, and its reports."""

from __future__ import annotations

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
    tensors_of,
    top_level_ids,
    uses_aux,
    window_of,
)
from eagle3lab.dialects.keys import Key, idle
from eagle3lab.dialects.vllm.reports import read_reports
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Architecture, Interpretation

__all__ = ["KEYS", "NAME", "VERSIONS", "missing", "names", "read_reports", "served", "unknown", "words"]

NAME = "vllm"
VERSIONS = ("0.33.0 v1", "0.33.0 v2")
KEYS = {
    KEY: Key("layer ids: boundaries, sorted"),
    f"eagle_config.{KEY}": Key("layer ids of the V1 runner where the top level has none; their number"),
    "eagle_config.layer_ids": Key("layer ids of the V2 runner where the top level has none"),
    "eagle_config.use_aux_hidden_state": Key("whether aux states or the final state are fed"),
    "num_aux_hidden_states": Key("A; counted from fc instead"),
    "num_aux_layers": Key("A of a Qwen3 draft; counted from fc instead"),
    "norm_before_residual": Key("the residual is taken after hidden_norm"),
    "norm_before_fc": Key("one norm over all states before fc (input_norm)"),
    "fc_norm": Key("a norm for each state before fc"),
    "norm_output": Key("the state handed on is taken after the final norm"),
    "logit_scale": Key("factor on the draft's logits"),
    "parallel_drafting": Key("one token a step", only=(False, None)),
    **dict.fromkeys(("mask_token_id", "pard_token", "ptd_token_id"),
                    idle("of parallel drafting (P-EAGLE); a chain of drafts never feeds it")),
    "target_layer_count": idle("set by vLLM itself at run time"),
}  # fmt: skip

CLASSES = (
    "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3vlForCausalLM", "PEagleDraftModel", "PeagleLlamaForCausalLM", "Eagle3Qwen3ForCausalLM",
    "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM",
)  # fmt: skip
"""Draft classes of its registry; ``EAGLEConfig`` puts ``Eagle3`` before a name that neither starts nor ends so."""


def served(arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
    """VLLM's Reading: id i is boundary i, sorted and de-duplicated (measured, vllm_measured.md 2)."""
    runner = run.runner or ("v2" if _since_033(run.version) else "v1")
    ids, source = _ids(arch, layers, run, runner)
    boundaries: Aux = tuple(sorted(set(ids))) if uses_aux(arch.config) else (FINAL,)
    refused = [*(_id_faults(arch, layers, ids) if uses_aux(arch.config) else []), *_load_faults(arch)]
    dropped = _dropped(arch)
    reading = None
    if not refused:
        aux_norm = "input_norm" if flag(arch.config, "norm_before_fc") else "none"
        reading = Reading(
            aux=boundaries,
            aux_norm="fc_norm" if flag(arch.config, "fc_norm") else aux_norm,
            fc="applied" if uses_aux(arch.config) else "skipped",
            residual="post_norm" if flag(arch.config, "norm_before_residual", _nested(arch)) else "pre_norm",
            feedback="post_norm" if flag(arch.config, "norm_output") else "pre_norm",
            second_norm="input_layernorm" if arch.layers > 1 else "hidden_norm",
            embedding=own(arch, "embed_tokens.weight"),
            head=own(arch, "lm_head.weight"),
            vocab_map=map_of(arch),
            rope=rope_for(arch),
            dropped=dropped,
            window=window_of(arch.config),
            logit_scale=float(arch.config.get("logit_scale") or 1.0),
        )
    invented = [] if "d2t" in arch.tensors or arch.draft_vocab == arch.vocab else ["an identity vocab map"]
    if arch.config.get("attention_bias") and not any(
        n.endswith("_proj.bias") and ".self_attn." in n for n in arch.tensors
    ):
        invented.append("attention biases of whatever memory holds (attention_bias, by reading)")
    return Interpretation(
        program=f"{NAME} {run.version or '0.33.0'} {runner}",
        reading=reading,
        ids=tuple(ids),
        source=source,
        dropped=dropped,
        invented=tuple(invented),
        refused=tuple(refused),
        notes=_notes(arch, ids, run, runner),
    )


def _notes(arch: Architecture, ids: tuple[int, ...], run: ServingRun, runner: str) -> tuple[str, ...]:
    notes = []
    if tuple(ids) != tuple(sorted(set(ids))):
        notes.append(f"ids {list(ids)} are used as {sorted(set(ids))}: vLLM sorts them, so their order cannot be kept")
    if runner == "v2" and run.aux_ids is None and nested_ids(arch.config) and not top_level_ids(arch.config):
        notes.append(f"the V2 runner does not read eagle_config.{KEY}; the default is used instead (by reading)")
    strange = [name for name in arch.config.get("architectures") or () if _class(name) not in CLASSES]
    if strange and not _nested(arch):
        notes.append(f"architectures {', '.join(map(str, strange))}: not among the draft classes known of vLLM")
    if "mask_hidden" in arch.tensors:
        notes.append("mask_hidden is for parallel drafting, which the V1 runner alone does; a chain is predicted here")
    return tuple(notes)


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as vLLM's ids: the same numbers, which only an ascending list can express."""
    if FINAL in aux:
        return '"use_aux_hidden_state": false'
    note = "" if list(aux) == sorted(set(aux)) else " (not expressible: vLLM sorts and de-duplicates)"
    return f'"{KEY}": {list(aux)}{note}'


def setting_faults(run: ServingRun) -> list[tuple[str, str]]:
    """What the case says and vLLM has no setting for: (what it is, what was expected)."""
    if run.topk <= 1:
        return []
    return [(f"topk {run.topk} is no setting of vLLM, which drafts a chain (0.33)", "topk 1, or SGLang as the engine")]


def unknown(name: str, arch: Architecture) -> str:
    """What it does with a tensor of a name it does not know."""
    return "ignored, as any name that ends in .bias" if name.endswith(".bias") else "ValueError on loading"


def missing(name: str, arch: Architecture) -> str:
    """What it does without the canonical tensor ``name``, ``""`` where nothing."""
    if name == "embed_tokens.weight":
        return (
            "takes the target's" if arch.target_hidden == arch.hidden else "takes the target's, whose rows do not fit"
        )
    if name == "lm_head.weight":
        return (
            "takes the target's"
            if arch.draft_vocab == arch.vocab
            else "takes the target's, which has V rows: no map fits"
        )
    if name == "d2t":
        return "takes draft ids for target ids, in silence"
    if (
        name in ("t2d", "fc.bias")
        or (".mlp." in name and name.endswith(".bias"))
        or name.endswith(".hidden_norm.weight")
    ):
        return ""
    if name.endswith(".bias"):
        return "whatever memory holds, in silence"
    return "keeps what it was initialised with, in silence" if name != "mask_hidden" else "cannot draft in parallel"


def names(stored: tuple[str, ...]) -> str:
    """Trouble with the names as stored, ``""`` when there is none."""
    wrapped = [name for name in stored if name.startswith("model.")]
    return f"it puts 'model.' before every name, so {wrapped[0]!r} becomes 'model.{wrapped[0]}'" if wrapped else ""


def _nested(arch: Architecture) -> bool:
    return "speculators_model_type" in arch.config


def _class(name: str) -> str:
    return name if name.startswith("Eagle3") or name.endswith("Eagle3") or name in CLASSES else f"Eagle3{name}"


def _is_qwen3(arch: Architecture) -> bool:
    """Whether its Qwen3 draft class is taken, which alone has q and k norms: by class, else by kind of layer."""
    named = [_class(str(name)) for name in arch.config.get("architectures") or ()]
    if _nested(arch) or not named:
        return arch.config.get("model_type") == "qwen3"
    return named == ["Eagle3Qwen3ForCausalLM"]


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
        return top, f"config.json: {KEY}"
    if nested and runner == "v1":
        return nested, f"config.json: eagle_config.{KEY}"
    other = (arch.config.get("eagle_config") or {}).get("layer_ids")
    if runner == "v2" and isinstance(other, list) and other:
        return tuple(other), "config.json: eagle_config.layer_ids"
    return default_boundaries(layers), "default (2, L//2, L-3)"


def _id_faults(arch: Architecture, layers: int | None, ids: tuple[int, ...]) -> list[str]:
    refused = []
    outside = [i for i in ids if i < 0 or (layers is not None and i > layers)]
    if outside:
        refused.append(f"ids {outside} are never captured (0 to {layers} exist): crash at the first request")
    if len(set(ids)) != len(ids):
        refused.append(f"ids {list(ids)} repeat: fewer states arrive than fc takes, crash at the first request")
    if len(set(ids)) == len(ids) and not outside and len(ids) != arch.aux:
        refused.append(f"{len(ids)} ids {list(ids)}, but fc takes {arch.aux} states: crash at the first request")
    return refused


def _load_faults(arch: Architecture) -> list[str]:
    """Tensors without a parameter: ``ValueError`` on loading, biases apart (engines.md 1.8 and 2.1, by reading)."""
    strange: list[str] = []
    if not flag(arch.config, "norm_before_fc") or is_latent(arch):
        strange += tensors_of(arch, "input_norm.")
    if not flag(arch.config, "fc_norm"):
        strange += tensors_of(arch, "fc_norm.")
    if not _is_qwen3(arch):
        strange += tensors_of(arch, "self_attn.q_norm", "self_attn.k_norm")
    if "d2t" in arch.tensors and arch.draft_vocab == arch.vocab and arch.program != GGUF:
        strange.append("d2t")
    refused = []
    if strange:
        flags = "; without its flag a norm has no parameter, with Vd = V d2t has none"
        refused.append(f"{', '.join(strange)} unknown to its draft class{flags}: ValueError on loading (by reading)")
    if arch.program == GGUF:
        refused.append("no EAGLE-3 reader for GGUF is known in it: give it the checkpoint that was converted")
    return refused


def _dropped(arch: Architecture) -> tuple[str, ...]:
    """Biases without a parameter are passed over; ``fc`` is not made for a draft that is fed the final state."""
    biased = bool(arch.config.get("attention_bias"))
    biases = [n for n in arch.tensors if n.endswith(".bias") and not (biased and ".self_attn." in n)]
    fc = [] if uses_aux(arch.config) else ["fc.weight"]
    return tuple(sorted({*biases, *(n for n in (*fc, "mask_hidden") if n in arch.tensors)}))
