"""TensorRT-LLM (``modeling_speculative.py`` read at 00679c66, ``eagle3.py`` at 001e6700): how it serves a draft.

By reading throughout; the capture rule comes from the older of the two files.
"""

from __future__ import annotations

from eagle3lab.counts import ServingRun
from eagle3lab.dialects.common import (
    GGUF,
    default_boundaries,
    is_latent,
    map_of,
    own,
    rope_for,
    tensors_of,
    uses_aux,
)
from eagle3lab.dialects.keys import Key, idle
from eagle3lab.dialects.trtllm.reports import read_reports as read_reports
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "trtllm"
VERSIONS = ("00679c66",)
"""The commit that was read: no release was."""

KEYS = {
    "norm_output": Key("the state handed on is taken after the final norm"),
    "fc_norm": Key("a norm for each state before fc"),
    "eagle_config.norm_before_fc": Key("one norm over all states before fc; the top-level key is not read"),
    "eagle_config.return_hidden_post_norm": Key("as norm_output"),
    "eagle_config.next_layer_regular": Key("layers after the first take H", only=(True, None)),
    "eagle_config.eh_proj_before_attn": Key("no projection before attention", only=(False, None)),
    "eagle_config.eh_proj_bias": idle("of no account without eh_proj_before_attn"),
    "intermediate_size_mlp": Key("the MLP's width for llama4_text drafts; taken from gate_proj"),
}
FORMS = {"next_layer_regular": True, "eh_proj_before_attn": False}
"""Keys of ``eagle_config`` whose other value is a wiring that the lab has no reading for."""


def served(arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
    """TensorRT-LLM's Reading: id k is boundary k + 1, sorted; ids come from the run alone, never from config.json."""
    nested = arch.config.get("eagle_config") or {}
    if run.aux_ids is not None:
        ids, source = run.aux_ids, "eagle3_layers_to_capture, as aux_ids of the case's serving run"
    else:
        ids, source = tuple(b - 1 for b in default_boundaries(layers)), "default (1, L//2-1, L-4)"
    boundaries: Aux = tuple(sorted(i + 1 for i in ids))
    refused = _refusals(arch, layers, ids, run)
    aux_norm = "fc_norm" if arch.config.get("fc_norm") else "input_norm" if nested.get("norm_before_fc") else "none"
    post = bool(arch.config.get("norm_output") or nested.get("return_hidden_post_norm"))
    wide = arch.target_hidden != arch.hidden
    skips = arch.aux == 1 and not wide
    dropped = _dropped(arch, aux_norm, skips, wide)
    reading = None
    if not refused:
        reading = Reading(
            aux=boundaries,
            aux_norm="none" if skips else aux_norm,
            fc="skipped" if skips else "applied",
            feedback="post_norm" if post else "pre_norm",
            embedding="own" if wide else "target",
            head=own(arch, "lm_head.weight"),
            vocab_map=map_of(arch),
            rope=rope_for(arch),
            dropped=dropped,
        )
    replaced = []
    if "embed_tokens.weight" in arch.tensors and not wide:
        replaced.append("embed_tokens.weight is not used: the table is the target's")
    if arch.config.get("norm_before_residual"):
        replaced.append("norm_before_residual is ignored: the residual stays un-normed")
    mapless = "d2t" not in arch.tensors and arch.draft_vocab != arch.vocab
    return Interpretation(
        program=f"{NAME} {run.version or VERSIONS[-1]}",
        reading=reading,
        ids=tuple(ids),
        source=source,
        dropped=dropped,
        replaced=tuple(replaced),
        invented=("a d2t of whatever memory holds",) if mapless else (),
        refused=tuple(refused),
        notes=("TensorRT-LLM's rules are known by reading single files of it, not by running it",),
    )


def _refusals(arch: Architecture, layers: int | None, ids: tuple[int, ...], run: ServingRun) -> list[str]:
    nested = arch.config.get("eagle_config") or {}
    refused = [f"eagle_config.{key} = {nested[key]!r} is another wiring, which the lab has no reading for"
               for key, usual in FORMS.items() if nested.get(key, usual) != usual]  # fmt: skip
    if arch.program == GGUF:
        refused.append("no EAGLE-3 reader for GGUF is known in it: give it the checkpoint that was converted")
    if not uses_aux(arch.config):
        refused.append("use_aux_hidden_state is not among the keys it reads: it would feed aux states")
    if run.aux_ids is None and layers is not None and layers <= 5:
        refused.append(f"its default layers need a target of more than 5 blocks, this one has {layers}")
    outside = [i for i in ids if i < 0 or (layers is not None and i >= layers)]
    if outside:
        refused.append(f"ids {outside} name no block's output (0 to {layers - 1 if layers else 'L-1'} exist)")
    elif uses_aux(arch.config) and len(set(ids)) != arch.aux:
        refused.append(f"{len(set(ids))} ids {list(ids)}, but fc takes {arch.aux} states")
    if is_latent(arch) and "layers.0.self_attn.q_a_proj.weight" not in arch.tensors:
        refused.append("its MLA draft needs q_a_proj (q_lora_rank): it fuses it with kv_a_proj_with_mqa")
    if "target_hidden_size" in arch.config and arch.config["target_hidden_size"] is None:
        refused.append("target_hidden_size is null, which it takes as a number: leave the key out")
    return refused


def _dropped(arch: Architecture, aux_norm: str, skips: bool, wide: bool) -> tuple[str, ...]:
    names = list(tensors_of(arch, "self_attn.q_norm", "self_attn.k_norm", "mask_hidden"))
    names += tensors_of(arch, "fc_norm.") if aux_norm != "fc_norm" or skips else ()
    names += tensors_of(arch, "input_norm.") if aux_norm != "input_norm" or skips else ()
    names += tensors_of(arch, "fc.bias") if skips or not arch.config.get("bias") else ()
    names += ["fc.weight"] if skips and "fc.weight" in arch.tensors else []
    names += [
        n for n in tensors_of(arch, "self_attn.") if n.endswith(".bias") and not arch.config.get("attention_bias")
    ]
    names += [n for n in tensors_of(arch, "mlp.") if n.endswith(".bias") and not arch.config.get("mlp_bias")]
    names += ["d2t"] if "d2t" in arch.tensors and arch.draft_vocab == arch.vocab else []
    return tuple(sorted(names))


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as ``eagle3_layers_to_capture``, which goes into the serving options and not into config.json."""
    if FINAL in aux:
        return "not expressible: it always feeds aux states"
    ids = [int(b) - 1 for b in aux]
    note = " (not expressible: boundary 0, the embedding, is no block's output)" if -1 in ids else ""
    if list(aux) != sorted(set(aux), key=int):
        note += " (not expressible: it sorts them)"
    return f"EagleDecodingConfig(eagle3_layers_to_capture={ids}){note}"


def unknown(name: str, arch: Architecture) -> str:
    """What it does with a tensor of a name it has no parameter for."""
    return "not used (by reading: weights are looked up by parameter)"


def missing(name: str, arch: Architecture) -> str:
    """What it does without the canonical tensor ``name``, ``""`` where nothing."""
    if name == "embed_tokens.weight":
        same = arch.target_hidden == arch.hidden
        return "takes the target's" if same else "has a parameter for it: loading fails or leaves it as it is"
    if name == "lm_head.weight":
        return "takes the target's"
    if name in ("d2t", "fc.bias", "input_norm.weight") or name.startswith("fc_norm."):
        return "has a parameter for it: loading fails or leaves it as it is (not read)"
    if name.endswith(".hidden_norm.weight"):
        return "has a parameter for it in every layer: loading fails or leaves it as it is (not read)"
    return "has a parameter for it: loading fails or leaves it as it is (not read)" if name.endswith(".bias") else ""


def names(stored: tuple[str, ...]) -> str:
    """Trouble with the names as stored, ``""`` when there is none."""
    wrapped = [name for name in stored if name.startswith("model.")]
    return f"it puts 'model.' before every name, so {wrapped[0]!r} becomes 'model.{wrapped[0]}'" if wrapped else ""
