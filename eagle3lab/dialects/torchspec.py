"""lightseekorg TorchSpec (read at 6f21829, 2b242a9 and 1135681): names, layer ids, trained Reading; by reading."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from eagle3lab.dialects.common import is_latent, map_of, output_ids, output_words, own, rope_for
from eagle3lab.dialects.keys import Key, idle
from eagle3lab.reading import Aux, Reading
from eagle3lab.records import Architecture, Interpretation

NAME = "torchspec"
SIGNATURE = "torchspec_version"
"""What its export for vLLM writes into config.json (after a ``_``) and into the file's metadata; names are vLLM's."""

TRAINING_FILES: tuple[str, ...] = ()
UNUSED = {
    r".*\.mlp\.(experts|shared_experts|gate)\..*":
        "of a mixture of experts, which this version opens and does not run (W009)",
}  # fmt: skip
KEYS = {
    "eagle_config.eagle_aux_hidden_state_layer_ids": Key("layer ids: outputs of blocks"),
    "use_moe": Key("a mixture of experts or a dense MLP; told by the tensors"),
    "mla_use_nope": Key("MLA with rotated channels", only=(False, None)),
    "train_router": idle("of training only"),
    f"_{SIGNATURE}": idle("TorchSpec's bookkeeping: who wrote the file"),
}


def recognises(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """``midlayer.`` under its MLA class, or under SpecForge's class together with an ``embed_tokens``.

    The second is also what ``specforge export --to hf`` writes; that export alone mirrors the RoPE, so a config with
    both ``rope_parameters`` and ``rope_theta`` is SpecForge's. What is left is ambiguous, and said to be.
    """
    stored = list(names)
    architectures = config.get("architectures") or []
    if "speculators_model_type" in config or not any(name.startswith("midlayer.") for name in stored):
        return False
    if "Eagle3DeepseekV2ForCausalLM" in architectures or "Glm4MoeForCausalLMEagle3" in architectures:
        return True
    mirrored = bool(config.get("rope_parameters")) and config.get("rope_theta") is not None
    return "LlamaForCausalLMEagle3" in architectures and "embed_tokens.weight" in stored and not mirrored


def advice(files: Collection[str]) -> str:
    """A distributed checkpoint holds its shards as ``*.distcp``."""
    if not any(name.endswith(".distcp") or name == ".metadata" for name in files):
        return ""
    return "this is a distributed training checkpoint: TorchSpec's tools/convert_to_hf.py makes a model of it"


def trained(arch: Architecture, layers: int | None) -> Interpretation:
    """TorchSpec's training-time test: id k is the output of block k; raw residual, pre-norm state handed on.

    RoPE by SpecForge's classes. Linear and dynamic scaling are built with base 10000 whatever ``rope_theta`` says
    (``build_rotary_embedding``); the MLA draft's yarn was too, before that function was shared.
    """
    boundaries, ids, source = output_ids(arch, layers)
    rope = rope_for(arch, rule="specforge")
    scaling = dict(rope.scaling)
    kind = scaling.get("rope_type", scaling.get("type"))
    notes = [
        "the embedding is the target's, frozen; an exported table may hold random rows (TorchSpec#38)",
        "a d2t of zeros with a t2d of ones means that the vocabulary map was never loaded",
    ]
    if kind in ("linear", "dynamic"):
        rope = rope_for(arch, rule="specforge", base=10000.0)
        notes.append(f"{kind} scaling ignores rope_theta (base 10000) in training, engines read it from config.json")
    elif kind == "yarn" and is_latent(arch):
        notes.append("older releases built the MLA draft's yarn with base 10000 whatever rope_theta says")
    reading = Reading(
        aux=boundaries,
        embedding="own" if arch.target_hidden != arch.hidden else "target",
        head=own(arch, "lm_head.weight"),
        vocab_map=map_of(arch),
        rope=rope,
    )
    return Interpretation(program=NAME, reading=reading, ids=ids, source=source, notes=(*notes, "known by reading"))


def words(aux: Aux, arch: Architecture, target_type: str) -> str:
    """Boundaries as TorchSpec's ids; it adds one itself where vLLM makes the states."""
    return output_words(aux)
