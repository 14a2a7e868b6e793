"""llama.cpp: how it runs a draft; its files (GGUF) are turned back into canonical terms by ``header``.

Read, not run, in ``conversion/llama.py``, ``src/models/eagle3.cpp`` and ``common/speculative.cpp`` of llama.cpp as in
llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from eagle3lab.counts import ServingRun
from eagle3lab.dialects import common
from eagle3lab.dialects.common import KEY, own, tensors_of
from eagle3lab.dialects.keys import Key, idle
from eagle3lab.dialects.llamacpp.header import ARCHITECTURE as ARCHITECTURE
from eagle3lab.dialects.llamacpp.header import TARGET as TARGET
from eagle3lab.dialects.llamacpp.header import canonical as canonical
from eagle3lab.dialects.llamacpp.header import draft_config as draft_config
from eagle3lab.dialects.llamacpp.header import recognises_draft as recognises_draft
from eagle3lab.dialects.llamacpp.header import row_order as row_order
from eagle3lab.dialects.llamacpp.header import target_config as target_config
from eagle3lab.dialects.llamacpp.reports import read_reports as read_reports
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "llamacpp"
VERSIONS = ("0.3.36",)
"""Of llama-cpp-python, whose llama.cpp was read; llama.cpp itself numbers its builds."""

TRAINING_FILES: tuple[str, ...] = ()
UNUSED = {r"rope_freqs\.weight": "factors of RoPE: rope_scaling is read from them; those of no known rule are W009"}
KEYS = {
    KEY: Key("layer ids: inputs of blocks, in the listed order"),
    "norm_before_residual": Key("the residual is taken after hidden_norm"),
    "norm_before_fc": Key("one norm over all states before fc (input_norm)"),
    "eagle3.rope.scaling.finetuned": idle("says that the scaling was trained with; the scaling is read all the same"),
}


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """``blk.0.`` names, which only a GGUF has."""
    return any(name.startswith("blk.0.") for name in names)


def advice(files: Collection[str]) -> str:
    """Nothing: a GGUF holds its own config."""
    return ""


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """What the header implies: the converter trains nothing, and drops ``norm_output`` and RoPE rules of trainers."""
    found = served(arch, layers, "", ServingRun("as converted", NAME))
    notes = ("a GGUF does not say who trained it: conventions that its header lacks are lost", *found.notes)
    return replace(found, program=NAME, notes=notes)


def served(arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
    """llama.cpp's Reading: id k is the input of block k, boundary k, L the last residual; in the listed order."""
    ids, source = run.aux_ids, "target_layers, as aux_ids of the case's serving run"
    if ids is None:
        ids, source = common.top_level_ids(arch.config), f"{KEY} at the top level, copied on conversion"
    if ids is None:
        ids, source = common.default_boundaries(layers), "default [2, L//2, L-3], written on conversion"
    refused = _refusals(arch, layers, ids)
    reading = None
    if not refused:
        reading = Reading(
            aux=ids,
            aux_norm="input_norm" if arch.config.get("norm_before_fc") else "none",
            residual="post_norm" if arch.config.get("norm_before_residual") else "pre_norm",
            embedding=own(arch, "embed_tokens.weight"),
            head=own(arch, "lm_head.weight"),
            vocab_map=common.map_of(arch),
            rope=common.rope_for(arch),
        )
    ignored = common.flag(arch.config, "norm_output")
    return Interpretation(
        program=f"{NAME} {run.version or VERSIONS[-1]}",
        reading=reading,
        ids=ids,
        source=source,
        replaced=("norm_output is ignored: the state handed on stays pre-norm",) if ignored else (),
        invented=() if "d2t" in arch.tensors or arch.draft_vocab == arch.vocab else ("an identity vocab map",),
        refused=tuple(refused),
        notes=("llama.cpp's rules are known by reading its source, not by running it",),
    )


def _refusals(arch: Architecture, layers: int | None, ids: tuple[int, ...]) -> list[str]:
    strange = tensors_of(arch, "fc_norm.", "fc.bias", "_proj.bias", "q_norm", "k_norm", "mask_hidden")
    stray = () if arch.config.get("norm_before_fc") else tensors_of(arch, "input_norm")
    outside = [i for i in ids if i < 0 or (layers is not None and i > layers)]
    stated = arch.config.get("num_hidden_layers") or 1
    faults = {
        f"it takes exactly 3 states, fc takes {arch.aux}, {len(ids)} ids are given": (arch.aux, len(ids)) != (3, 3),
        "use_aux_hidden_state: false is not known to it": not common.uses_aux(arch.config),
        f"it runs one layer, the draft has {max(arch.layers, stated)}": (arch.layers, stated) != (1, 1),
        "MLA drafts are not known to it": common.is_latent(arch),
        "config.json has no draft_vocab_size, by which the converter knows a draft":
            "draft_vocab_size" not in arch.config,
        f"{', '.join((*strange, *stray))}: the converter or the loader stops at tensors it has no place for":
            bool(strange or stray),
        f"ids {outside} name no block's input (0 to {layers} exist)": bool(outside),
    }  # fmt: skip
    return [text for text, found in faults.items() if found]


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as the converter takes them from config.json, in any order."""
    return "not expressible: it always feeds aux states" if FINAL in aux else f'"{KEY}": {list(aux)}, before converting'


def unknown(name: str, arch: Architecture) -> str:
    """What it does with a tensor of a name it does not know."""
    return "the converter stops: can not map tensor"


def missing(name: str, arch: Architecture) -> str:
    """What it does without the canonical tensor ``name``, ``""`` where nothing."""
    if name in ("embed_tokens.weight", "lm_head.weight"):
        return "takes the target's"
    if name == "d2t":
        return "takes draft ids for target ids, in silence"
    return "the loader stops" if name == "input_norm.weight" else ""


def names(stored: tuple[str, ...]) -> str:
    """Trouble with the names as stored, ``""`` when there is none."""
    return "the converter does not know 'model.fc.weight'" if "model.fc.weight" in stored else ""
