"""Who reads how: layer ids, flags, refusals and silent losses of each program, as tables (engines.md 1, 2, 3, 5).

Expected boundaries are written out by hand from section 5's rules for a target of L = 30 blocks, not computed.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from eagle3lab.counts import ServingRun
from eagle3lab.dialects import ENGINES, TRAINERS, advice, in_words, program_of, resolve, sglang, training_file, vllm
from eagle3lab.dialects.common import canonical, default_boundaries, rope_of
from eagle3lab.dialects.speculators import flatten
from eagle3lab.errors import BadOption
from eagle3lab.reading import FINAL, Rope
from eagle3lab.records import Architecture

L = 30
DEFAULT = (2, 15, 27)
"""(2, L//2, L-3) in boundaries, everywhere (engines.md 5)."""

PLAIN = frozenset((
    "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d",
    *(f"layers.0.{n}.weight" for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")),
    *(f"layers.0.self_attn.{p}_proj.weight" for p in "qkvo"),
    *(f"layers.0.mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
))  # fmt: skip
"""The tensors of the canonical draft (engines.md 2.1)."""


def arch(config=None, tensors=(), without=(), **changes) -> Architecture:
    """A conventional draft; ``tensors`` come on top, ``without`` go."""
    values = {
        "hidden": 64, "target_hidden": 64, "aux": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "layers": 1,
        "intermediate": 128, "draft_vocab": 120, "vocab": 300, "eps": 1e-5, "activation": "silu",
        "program": "specforge",
    }  # fmt: skip
    values |= changes
    stated = {"draft_vocab_size": values["draft_vocab"], **(config or {})}
    return Architecture(**values, config=stated, tensors=(PLAIN | set(tensors)) - set(without))


def nested(ids) -> dict:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}


def top(ids) -> dict:
    return {"eagle_aux_hidden_state_layer_ids": list(ids)}


def run(engine: str, version: str = "", runner: str = "", ids=None) -> ServingRun:
    return ServingRun("run", engine, version, runner, tuple(ids) if ids is not None else None)


def serve(engine, config=None, *, version="", runner="", ids=None, target="llama", layers=L, depth=1, **how):
    """As the engine serves a draft of ``depth`` layers for a target of ``layers``."""
    return ENGINES[engine].served(arch(config, layers=depth, **how), layers, target, run(engine, version, runner, ids))


VLLM = {
    # name: (config, version, runner, run's ids, boundaries)
    "id i is boundary i": ({}, "0.32.0", "v1", (0, 15, 27), (0, 15, 27)),
    "sorted": ({}, "0.32.0", "v1", (30, 15, 27), (15, 27, 30)),
    "L is the last residual": ({}, "0.33.0", "v2", (1, 15, 30), (1, 15, 30)),
    "top-level key, v1": (top((1, 14, 26)), "0.32.0", "v1", None, (1, 14, 26)),
    "top-level key, v2": (top((1, 14, 26)), "0.33.0", "v2", None, (1, 14, 26)),
    "nested key, v1": (nested((1, 14, 26)), "0.32.0", "v1", None, (1, 14, 26)),
    "nested key, v2: not read": (nested((1, 14, 26)), "0.33.0", "v2", None, DEFAULT),
    "both keys: the top one": (top((0, 3, 9)) | nested((1, 14, 26)), "0.32.0", "v1", None, (0, 3, 9)),
    "no key": ({}, "0.33.0", "v2", None, DEFAULT),
    "0.33 runs v2 unless told otherwise": (nested((1, 14, 26)), "0.33.0", "", None, DEFAULT),
    "0.32 runs v1": (nested((1, 14, 26)), "0.32.0", "", None, (1, 14, 26)),
    "an unknown version is the newest": (nested((1, 14, 26)), "", "", None, DEFAULT),
    "the run's ids before the config's": (top((1, 14, 26)), "0.33.0", "v2", (2, 3, 4), (2, 3, 4)),
}


@pytest.mark.parametrize("name", VLLM)
def test_vllms_layer_ids(name):
    config, version, runner, ids, boundaries = VLLM[name]
    found = serve("vllm", config, version=version, runner=runner, ids=ids)
    assert found.reading.aux == boundaries
    assert found.refused == ()


SGLANG = {
    # name: (version, target, ids, boundaries)
    "id i is boundary i + 1": ("0.5.23", "llama", (1, 14, 26), (2, 15, 27)),
    "so the nested default is the default": ("0.5.23", "qwen3", (1, 14, 26), DEFAULT),
    "vllm's ids copied here": ("0.5.23", "llama", (2, 15, 27), (3, 16, 28)),
    "ascending whatever the order": ("0.5.23", "llama", (26, 1, 14), (2, 15, 27)),
    "-1 is the embedding in a patched one": ("0.5.9", "deepseek_v3", (-1, 2, 30), (0, 3, 31)),
    "deepseek, first id 1": ("0.5.23", "deepseek_v3", (1, 14, 26), (2, 15, 27)),
    "deepseek, first id not 1": ("0.5.23", "deepseek_v3", (2, 14, 26), (2, 14, 26)),
    "deepseek, first id 0": ("0.5.23", "kimi_k2", (0, 3, 31), (0, 3, 31)),
    "deepseek in 0.5.9: always one more": ("0.5.9", "deepseek_v3", (2, 30, 58), (3, 31, 59)),
    "glm4 moe lite as deepseek": ("0.5.23", "glm4_moe_lite", (2, 14, 26), (2, 14, 26)),
    "gpt-oss with the last layer": ("0.5.23", "gpt_oss", (0, 15, 30), (0, 15, 30)),
    "gpt-oss without it": ("0.5.23", "gpt_oss", (0, 15, 29), (1, 16, 30)),
    "gpt-oss in 0.5.9: always one more": ("0.5.9", "gpt_oss", (0, 15, 29), (1, 16, 30)),
    "gemma captures the last residual": ("0.5.23", "gemma3", (1, 14, 29), (2, 15, 30)),
    "no ids": ("0.5.23", "llama", None, DEFAULT),
    "no ids, 0.5.9": ("0.5.9", "deepseek_v3", None, DEFAULT),
    "minimax m3 vl's default is one later": ("0.5.23", "minimax_m3_vl", None, (3, 16, 28)),
}


@pytest.mark.parametrize("name", SGLANG)
def test_sglangs_layer_ids(name):
    version, target, ids, boundaries = SGLANG[name]
    layers = 61 if max(boundaries) > L else L
    for config, given in ((nested(ids) if ids else {}, None), ({}, ids)):
        found = serve("sglang", config, version=version, target=target, ids=given, layers=layers)
        assert found.reading.aux == boundaries
        assert found.refused == ()


def test_sglang_does_not_read_vllms_key():
    assert serve("sglang", top((0, 15, 27)), version="0.5.23").reading.aux == DEFAULT


def test_the_storys_ids():
    """[2, 30, 58] in 0.5.9 is boundaries 3, 31, 59; patched, [-1, 2, 30] is 0, 3, 31 (story.md)."""
    for ids, boundaries in (((2, 30, 58), (3, 31, 59)), ((-1, 2, 30), (0, 3, 31))):
        found = serve("sglang", nested(ids), version="0.5.9", target="deepseek_v3", layers=61)
        assert found.reading.aux == boundaries
    assert any("-1" in text and "patched" in text for text in found.replaced)


TRAINED = {
    # name: (trainer, config, boundaries)
    "specforge: output of block i": ("specforge", nested((1, 14, 26)), (2, 15, 27)),
    "specforge keeps the order": ("specforge", nested((26, 1, 14)), (27, 2, 15)),
    "specforge without ids": ("specforge", {}, DEFAULT),
    "specforge does not read the top-level key": ("specforge", top((0, 3, 9)), DEFAULT),
    "speculators: id k is boundary k": ("speculators", top((2, 14, 26)), (2, 14, 26)),
    "speculators without ids": ("speculators", {}, DEFAULT),
    "eagle hard-codes them": ("eagle", nested((1, 2, 3)), DEFAULT),
}


@pytest.mark.parametrize("name", TRAINED)
def test_trainers_layer_ids(name):
    trainer, config, boundaries = TRAINED[name]
    assert TRAINERS[trainer].trained(arch(config), L).reading.aux == boundaries


@pytest.mark.parametrize(
    ("layers", "boundaries"), [(32, (2, 16, 29)), (61, (2, 30, 58)), (36, (2, 18, 33)), (4, (2, 2, 1))]
)
def test_the_default_for_other_targets(layers, boundaries):
    """(2, 18, 33) is what a published 36-layer head needs (trainers.md); 4 layers repeat one (SpecForge #300)."""
    assert default_boundaries(layers) == boundaries


@pytest.mark.parametrize("module", [*ENGINES, *TRAINERS])
def test_a_default_without_the_targets_depth_is_refused(module):
    with pytest.raises(ValueError, match="number of target layers is not known"):
        if module in ENGINES:
            serve(module, layers=None)
        else:
            TRAINERS[module].trained(arch(), None)


LATENT = tuple(f"layers.0.self_attn.{n}.weight" for n in
               ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "q_a_proj", "q_a_layernorm", "q_b_proj"))  # fmt: skip
REFUSED = {
    "vllm: a norm without its flag (row 8)": (
        "vllm", {}, {"ids": (0, 1, 2), "tensors": ("input_norm.weight",)}, "input_norm"),
    "vllm: norms of states without their flag": (
        "vllm", {}, {"ids": (0, 1, 2), "tensors": ("fc_norm.0.weight",)}, "fc_norm.0"),
    "vllm: a map that Vd = V leaves no room for": ("vllm", {}, {"ids": (0, 1, 2), "draft_vocab": 300}, "d2t"),
    "vllm: input_norm of an MLA draft": (
        "vllm", {"norm_before_fc": True}, {"ids": (0, 1, 2), "tensors": ("input_norm.weight", *LATENT)}, "input_norm"),
    "sglang: an ordinary Llama": ("sglang", {"architectures": ["LlamaForCausalLM"]}, {}, "ordinary Llama"),
    "sglang: null target_hidden_size": ("sglang", {"target_hidden_size": None}, {}, "target_hidden_size is null"),
    "sglang: MLA of two layers": ("sglang", {}, {"tensors": LATENT, "depth": 2}, "one layer"),
    "sglang: MLA without q_a_proj": ("sglang", {}, {"tensors": LATENT[:3]}, "q_lora_rank"),
    "sglang 0.5.9: two layers": ("sglang", {}, {"depth": 2, "version": "0.5.9"}, "one layer is run"),
    "sglang: no hidden_norm in layer 1": ("sglang", {}, {"depth": 2}, "layers.1.hidden_norm.weight missing"),
    "trtllm: an id past the last block": ("trtllm", {}, {"ids": (1, 14, 30)}, "30"),
    "trtllm: the embedding": ("trtllm", {}, {"ids": (-1, 14, 26)}, "-1"),
    "trtllm: repeats": ("trtllm", {}, {"ids": (14, 14, 26)}, "2 ids"),
    "trtllm: another wiring": ("trtllm", {"eagle_config": {"next_layer_regular": False}}, {}, "next_layer_regular"),
    "trtllm: the final state": ("trtllm", {"eagle_config": {"use_aux_hidden_state": False}}, {}, "aux states"),
    "llamacpp: two states": ("llamacpp", {}, {"aux": 2, "ids": (2, 15)}, "exactly 3"),
    "llamacpp: two layers": ("llamacpp", {}, {"depth": 2}, "one layer"),
    "llamacpp: the target's layers": ("llamacpp", {"num_hidden_layers": 36}, {}, "one layer"),
    "llamacpp: MLA": ("llamacpp", {}, {"tensors": LATENT}, "MLA"),
    "llamacpp: norms of states": ("llamacpp", {"fc_norm": True}, {"tensors": ("fc_norm.0.weight",)}, "fc_norm.0"),
    "llamacpp: biases": ("llamacpp", {}, {"tensors": ("layers.0.self_attn.q_proj.bias",)}, "q_proj.bias"),
    "llamacpp: -1": ("llamacpp", top((-1, 2, 30)), {}, "-1"),
    **{f"{name}: a GGUF": (name, {}, {"program": "llamacpp"}, "GGUF") for name in ("vllm", "sglang", "trtllm")},
    "vllm: id past the last": ("vllm", {}, {"ids": (2, 15, 31)}, "31"),
    "vllm: -1": ("vllm", {}, {"ids": (-1, 2, 15)}, "-1"),
    "vllm: a repeated id": ("vllm", {}, {"ids": (15, 15, 30)}, "repeat"),
    "vllm: two ids for three states": ("vllm", {}, {"ids": (15, 30)}, "fc takes 3 states"),
    "vllm: q/k norms in a llama draft": (
        "vllm", {}, {"ids": (0, 1, 2), "tensors": ("layers.0.self_attn.q_norm.weight",)}, "q_norm"),
    "sglang: below the embedding": ("sglang", {}, {"ids": (-2, 3, 4)}, "below"),
    "sglang: the last residual of a llama": ("sglang", {}, {"ids": (1, 14, 29)}, "boundary 30"),
    "sglang: a repeated id": ("sglang", {}, {"ids": (14, 14, 20)}, "2 states"),
    "sglang: four ids for three states": ("sglang", {}, {"ids": (1, 2, 3, 4)}, "4 states"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_engine_refuses(name):
    engine, config, how, text = REFUSED[name]
    found = serve(engine, config, **how)
    assert found.reading is None
    assert text in " ".join(found.refused)


def test_what_an_engine_does_not_refuse():
    """q/k norms of a Qwen3 draft in vLLM; the last residual of a gpt-oss in SGLang."""
    found = serve("vllm", {"model_type": "qwen3"}, ids=(0, 1, 2), tensors=("layers.0.self_attn.q_norm.weight",))
    assert found.refused == ()
    assert serve("sglang", ids=(1, 14, 29), target="gpt_oss").refused == ()


BIAS, OUT, QNORM = (
    "layers.0.self_attn.q_proj.bias",
    "layers.0.self_attn.o_proj.bias",
    "layers.0.self_attn.q_norm.weight",
)
DROPPED = {
    "vllm, mask_hidden": ("vllm", {}, {"mask_hidden"}, {"mask_hidden"}),
    "vllm, the final state": ("vllm", {"eagle_config": {"use_aux_hidden_state": False}}, set(), {"fc.weight"}),
    "sglang, mlp biases": ("sglang", {"mlp_bias": True}, {"layers.0.mlp.up_proj.bias"}, {"layers.0.mlp.up_proj.bias"}),
    "trtllm, the top-level flag": ("trtllm", {"norm_before_fc": True}, {"input_norm.weight"}, {"input_norm.weight"}),
    "trtllm, its own flag": ("trtllm", {"eagle_config": {"norm_before_fc": True}}, {"input_norm.weight"}, set()),
    "trtllm, biases with their flags": (
        "trtllm", {"attention_bias": True, "mlp_bias": True, "bias": True},
        {BIAS, "layers.0.mlp.up_proj.bias", "fc.bias"}, set()),
    "trtllm, biases without": ("trtllm", {}, {BIAS, "fc.bias"}, {BIAS, "fc.bias"}),
    "trtllm, q and k norms": ("trtllm", {"model_type": "qwen3"}, {QNORM}, {QNORM}),
    # name: (engine, config, tensors in the file, of those dropped)
    "vllm without attention_bias": ("vllm", {}, {BIAS, "fc.bias"}, {BIAS, "fc.bias"}),
    "vllm with attention_bias": ("vllm", {"attention_bias": True}, {BIAS, OUT, "fc.bias"}, {"fc.bias"}),
    "vllm, mlp biases": (
        "vllm", {"attention_bias": True}, {"layers.0.mlp.up_proj.bias"}, {"layers.0.mlp.up_proj.bias"}),
    "vllm with fc_norm": ("vllm", {"fc_norm": True}, {"fc_norm.0.weight"}, set()),
    "vllm with norm_before_fc": ("vllm", {"norm_before_fc": True}, {"input_norm.weight"}, set()),
    "sglang drops qkv biases whatever the config says": ("sglang", {"attention_bias": True}, {BIAS}, {BIAS}),
    "sglang drops q/k norms": ("sglang", {"model_type": "qwen3"}, {QNORM}, {QNORM}),
    "sglang, fc bias with bias": ("sglang", {"bias": True}, {"fc.bias"}, set()),
    "sglang, fc bias without": ("sglang", {}, {"fc.bias"}, {"fc.bias"}),
    "sglang, norm_before_fc": ("sglang", {"norm_before_fc": True}, {"input_norm.weight"}, set()),
    "sglang without its flag": ("sglang", {}, {"input_norm.weight", "fc_norm.0.weight"},
                                {"input_norm.weight", "fc_norm.0.weight"}),
    "sglang, fc_norm": ("sglang", {"fc_norm": True}, {"fc_norm.0.weight"}, set()),
    "sglang, use_aux_norm": ("sglang", {"use_aux_norm": True}, {"fc_norm.0.weight"}, set()),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPPED)
def test_what_an_engine_drops(name):
    engine, config, tensors, dropped = DROPPED[name]
    found = serve(engine, config, tensors=tensors)
    assert set(found.dropped) == set(found.reading.dropped) == dropped


def test_sglang_059_knows_no_fc_norm():
    """It came with SGLang#24663."""
    old = serve("sglang", {"fc_norm": True, "norm_output": True}, version="0.5.9", tensors=("fc_norm.0.weight",))
    new = serve("sglang", {"fc_norm": True, "norm_output": True}, version="0.5.23", tensors=("fc_norm.0.weight",))
    assert (old.reading.aux_norm, old.reading.feedback, old.dropped) == ("none", "pre_norm", ("fc_norm.0.weight",))
    assert (new.reading.aux_norm, new.reading.feedback, new.dropped) == ("fc_norm", "post_norm", ())


YARN = {"type": "yarn", "factor": 32, "original_max_position_embeddings": 2048}
FLAGS = {
    "trtllm norm_output": ("trtllm", {"norm_output": True}, (), {"feedback": "post_norm"}),
    "trtllm's own flag": ("trtllm", {"eagle_config": {"return_hidden_post_norm": True}}, (), {"feedback": "post_norm"}),
    "trtllm ignores norm_before_residual": ("trtllm", {"norm_before_residual": True}, (), {"residual": "pre_norm"}),
    "trtllm shares the table": ("trtllm", {}, ("embed_tokens.weight",), {"embedding": "target"}),
    "llamacpp keeps the file's table": ("llamacpp", {}, ("embed_tokens.weight",), {"embedding": "own"}),
    "llamacpp norm_before_residual": ("llamacpp", {"norm_before_residual": True}, (), {"residual": "post_norm"}),
    "llamacpp norm_before_fc": (
        "llamacpp", {"norm_before_fc": True}, ("input_norm.weight",), {"aux_norm": "input_norm"}),
    "llamacpp ignores norm_output": ("llamacpp", {"norm_output": True}, (), {"feedback": "pre_norm"}),
    "sglang 0.5.23 shares the head": ("sglang", {"draft_vocab_size": None}, (), {"head": "target"}),
    "modelopt keeps the raw residual": ("modelopt", {"norm_before_residual": True}, (), {"residual": "pre_norm"}),
    "modelopt takes the exported yarn out": ("modelopt", {"rope_scaling": YARN}, (), {"rope": Rope()}),
    "modelopt is fed the final state": (
        "modelopt", {"eagle_config": {"use_aux_hidden_state": False}}, (), {"aux": (FINAL,), "fc": "skipped"}),
    "automodel norm_output": ("automodel", {"norm_output": True}, (), {"feedback": "post_norm"}),
    "automodel fc_norm": ("automodel", {"fc_norm": True}, ("fc_norm.0.weight",), {"aux_norm": "fc_norm"}),
    "torchspec freezes the target's table": ("torchspec", {}, ("embed_tokens.weight",), {"embedding": "target"}),
    "specforge's parallel draft": (
        "specforge", {"architectures": ["PEagleDraftModel"], "norm_before_residual": True, "norm_output": False},
        ("embed_tokens.weight",), {"residual": "post_norm", "embedding": "own", "head_norm": "applied"}),
    "speculators' window": (
        "speculators", {"layer_types": ["sliding_attention"], "sliding_window": 64}, (), {"window": 64}),
    # name: (program, config, tensors, fields of the reading): engines.md table 1, rows 3 to 13
    "vllm norm_output": ("vllm", {"norm_output": True}, (), {"feedback": "post_norm", "head_norm": "applied"}),
    "sglang norm_output": ("sglang", {"norm_output": True}, (), {"feedback": "post_norm", "head_norm": "applied"}),
    "specforge norm_output gates the head's norm": (
        "specforge", {"norm_output": False}, (), {"feedback": "pre_norm", "head_norm": "skipped"}),
    "specforge's default": ("specforge", {}, (), {"feedback": "pre_norm", "head_norm": "applied"}),
    "speculators norm_output": ("speculators", {"norm_output": True}, (), {"feedback": "post_norm"}),
    "vllm norm_before_residual": ("vllm", {"norm_before_residual": True}, (), {"residual": "post_norm"}),
    "vllm's default for a plain config": ("vllm", {}, (), {"residual": "pre_norm"}),
    "vllm's default for speculators": ("vllm", {"speculators_model_type": "eagle3"}, (), {"residual": "post_norm"}),
    "sglang ignores norm_before_residual": ("sglang", {"norm_before_residual": True}, (), {"residual": "pre_norm"}),
    "speculators norm_before_residual": ("speculators", {"norm_before_residual": True}, (), {"residual": "post_norm"}),
    "vllm keeps the file's table": ("vllm", {}, ("embed_tokens.weight",), {"embedding": "own"}),
    "vllm shares the target's": ("vllm", {}, (), {"embedding": "target"}),
    "sglang overwrites the file's": ("sglang", {}, ("embed_tokens.weight",), {"embedding": "target"}),
    "specforge trains with the target's": ("specforge", {}, ("embed_tokens.weight",), {"embedding": "target"}),
    "speculators trains its own": ("speculators", {}, ("embed_tokens.weight",), {"embedding": "own"}),
    "sglang ties the head": ("sglang", {"tie_word_embeddings": True}, (), {"head": "target"}),
    "vllm ignores the tie": ("vllm", {"tie_word_embeddings": True}, (), {"head": "own"}),
    "vllm norm_before_fc": ("vllm", {"norm_before_fc": True}, ("input_norm.weight",), {"aux_norm": "input_norm"}),
    "vllm fc_norm": ("vllm", {"fc_norm": True}, ("fc_norm.0.weight",), {"aux_norm": "fc_norm"}),
    "sglang use_aux_norm": ("sglang", {"use_aux_norm": True}, ("fc_norm.0.weight",), {"aux_norm": "fc_norm"}),
    "sglang flag in eagle_config": (
        "sglang", {"eagle_config": {"norm_before_fc": True}}, ("input_norm.weight",), {"aux_norm": "input_norm"}),
    "specforge fc_norm": ("specforge", {"fc_norm": True}, ("fc_norm.0.weight",), {"aux_norm": "fc_norm"}),
    "no aux states in vllm": (
        "vllm", {"eagle_config": {"use_aux_hidden_state": False}}, (), {"aux": (FINAL,), "fc": "skipped"}),
    "no aux states in sglang": (
        "sglang", {"eagle_config": {"use_aux_hidden_state": False}}, (), {"aux": (FINAL,), "fc": "skipped"}),
    "logit_scale is vllm's": ("vllm", {"logit_scale": 0.5}, (), {"logit_scale": 0.5}),
    "sglang has none": ("sglang", {"logit_scale": 0.5}, (), {"logit_scale": 1.0}),
    "vllm's window": ("vllm", {"layer_types": ["sliding_attention"], "sliding_window": 512}, (), {"window": 512}),
    "a window that no layer uses": (
        "vllm", {"layer_types": ["full_attention"], "sliding_window": 512}, (), {"window": None}),
}  # fmt: skip


def reading_of(program, config, tensors=(), **how):
    if program in ENGINES:
        return serve(program, config, tensors=tensors, **how).reading
    return TRAINERS[program].trained(arch(config, tensors, **how), L).reading


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name):
    program, config, tensors, expected = FLAGS[name]
    found = reading_of(program, config, tensors)
    assert {field: getattr(found, field) for field in expected} == expected


def test_the_norm_before_attention_in_later_layers():
    """Table 1, row 10: SGLang uses that layer's hidden_norm, vLLM (and speculators) its input_layernorm."""
    two = arch(layers=2, tensors=("layers.1.hidden_norm.weight", "layers.1.input_layernorm.weight"))
    runs = {name: ENGINES[name].served(two, L, "llama", run(name)) for name in ("vllm", "sglang", "trtllm")}
    norms = {name: found.reading.second_norm for name, found in runs.items()}
    norms["speculators"] = TRAINERS["speculators"].trained(two, L).reading.second_norm
    assert norms == {"vllm": "input_layernorm", "sglang": "hidden_norm", "trtllm": "hidden_norm",
                     "speculators": "input_layernorm"}  # fmt: skip


def test_a_draft_of_another_width_keeps_its_own_table():
    """target_hidden_size ≠ H disables sharing in SGLang and EAGLE: the target's rows would not fit."""
    for program in ("sglang", "eagle"):
        assert reading_of(program, {}, ("embed_tokens.weight",), target_hidden=96).embedding == "own"


def test_a_missing_map_is_an_identity_and_said_so():
    """Row 7: silent in both engines when Vd < V, and right when Vd = V."""
    for engine in ENGINES:
        small, full = serve(engine, without=("d2t", "t2d")), serve(engine, without=("d2t", "t2d"), draft_vocab=300)
        assert small.reading.vocab_map == full.reading.vocab_map == "identity"
        assert len(small.invented) == 1
        assert full.invented == ()


def test_a_missing_head_is_the_targets():
    for engine in ("vllm", "trtllm", "llamacpp"):
        assert serve(engine, without=("lm_head.weight", "d2t"), draft_vocab=300).reading.head == "target"
    bare = serve("sglang", without=("lm_head.weight", "d2t"), draft_vocab=300)
    assert "initial values" in bare.invented[0]  # sglang#27908


def test_what_sglang_replaces_in_silence():
    config = {"tie_word_embeddings": True, "norm_before_residual": True}
    found = serve("sglang", config, tensors=("embed_tokens.weight",))
    words = ["embed_tokens.weight", "lm_head.weight", "norm_before_residual"]
    assert [text.split()[0] for text in found.replaced] == words
    assert serve("sglang").replaced == ()


THETA = {"rope_theta": 500000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


def test_eagles_base_is_10000_whatever_the_config_says():
    """Row 12: its training never passes the base on; every other program of today reads it."""
    for program in ("eagle", "angelslim"):
        assert reading_of(program, THETA).rope.base == 10000.0
    for program in {*ENGINES, *TRAINERS} - {"eagle", "angelslim"}:
        assert reading_of(program, THETA).rope.base == 500000.0


def test_torchspec_scales_linearly_with_base_10000():
    """``build_rotary_embedding`` passes the base on for yarn and llama3 alone."""
    linear = THETA | {"rope_scaling": {"type": "linear", "factor": 2.0}}
    assert reading_of("torchspec", linear).rope.base == 10000.0
    assert reading_of("torchspec", THETA | {"rope_scaling": LLAMA3}).rope.base == 500000.0


@pytest.mark.parametrize("program", [*ENGINES, *TRAINERS])
def test_latent_attention_rotates_neighbours(program):
    """DeepSeek's convention (``is_neox_style=False``), unless the config says otherwise; llama.cpp runs no such draft."""
    if program == "llamacpp":
        return
    assert reading_of(program, {}, LATENT).rope.layout == "interleaved"
    assert reading_of(program, {"rope_interleave": False}, LATENT).rope.layout == "half"
    assert reading_of(program, {}).rope.layout == "half"


def test_a_gguf_holds_ids():
    found = serve("llamacpp", program="llamacpp")
    assert (
        found.reading.vocab_map == TRAINERS["llamacpp"].trained(arch(program="llamacpp"), L).reading.vocab_map == "ids"
    )
    assert serve("llamacpp").reading.vocab_map == "offsets"  # a checkpoint to be converted


@pytest.mark.parametrize("program", ["eagle", "sglang", "trtllm"])
def test_a_single_state_of_the_drafts_width_skips_fc(program):
    """Table 1, row 11."""
    one = {"aux": 1, "config": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [14]}}}
    if program == "eagle":
        assert TRAINERS["eagle"].trained(arch(aux=1), L).reading.fc == "skipped"
        return
    found = serve(program, one["config"], aux=1, ids=(14,))
    assert (found.reading.fc, "fc.weight" in found.dropped) == ("skipped", True)
    assert serve("vllm", aux=1, ids=(15,)).reading.fc == "applied"


def test_the_traps_of_trainers_are_notes():
    for program, words in {
        "modelopt": "order of frequency", "angelslim": "base 10000", "torchspec": "never loaded", "automodel": "2447",
        "specforge": "#879", "speculators": "captured one block later",
    }.items():  # fmt: skip
        assert words in " ".join(TRAINERS[program].trained(arch(), L).notes), program
    converted = TRAINERS["modelopt"].trained(arch({"speculators_model_type": "eagle3"}), L)
    assert "convert_to_vllm_ckpt.py" in " ".join(converted.notes)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_engines_do_without_a_tensor_or_with_an_unknown_one(engine):
    module, one, wide = ENGINES[engine], arch(), arch(target_hidden=96)
    assert "target's" in module.missing("embed_tokens.weight", one)
    assert module.missing("lm_head.weight", one)
    assert module.missing("d2t", one)
    assert module.missing("t2d", one) == ""
    assert module.missing("embed_tokens.weight", wide)
    assert module.unknown("layers.0.rotary.weight", one)
    wrapped = ("model.fc.weight", "model.layers.0.hidden_norm.weight")
    assert bool(module.names(wrapped)) is (engine != "sglang")
    assert module.names(("fc.weight", "midlayer.hidden_norm.weight", "lm_head.weight")) == ""
    assert module.read_reports(Path(), None, [], None, None) == []


def test_a_missing_head_of_an_mla_draft_in_sglang():
    """sglang#27908: a random head, nothing accepted; a missing bias in vLLM is whatever memory holds."""
    assert "accepts nothing" in ENGINES["sglang"].missing("lm_head.weight", arch())
    assert "memory" in ENGINES["vllm"].missing("layers.0.self_attn.q_proj.bias", arch())
    assert "memory" in serve("vllm", {"attention_bias": True}).invented[0]


def test_an_omitted_default_depends_on_the_release():
    """Wheels 0.1 to 0.6: LlamaConfig; from 0.7 on Qwen3Config."""
    for version, vocab in (("0.1.0", 32000), ("0.6.1", 32000), ("0.7.0", 151936), ("0.9.0", 151936), ("", 151936)):
        raw = {"speculators_model_type": "eagle3", "speculators_version": version, "transformer_layer_config": {}}
        assert flatten(raw)["vocab_size"] == vocab


def test_an_ambiguous_checkpoint_gives_what_both_trainers_imply():
    both = arch(tensors=("embed_tokens.weight",), program="specforge or torchspec")
    found = resolve.trained(both, L, both.program)
    assert found.reading.aux == DEFAULT
    assert found.program == "specforge or torchspec"
    assert "name it under [training] program" in found.notes[0]
    differ = arch({"norm_output": False}, ("embed_tokens.weight",), program="specforge or torchspec")
    found = resolve.trained(differ, L, differ.program)
    assert found.reading is None
    assert "head_norm" in " ".join(found.notes)
    assert resolve.plainest(differ, L).head_norm == "skipped"
    assert resolve.configured(differ, L, "llama", (), "torchspec", None).reading.head_norm == "applied"
    assert resolve.trained(arch(), L, "unknown") is None


def test_without_ids_and_layers_a_search_still_has_a_start():
    """No L and no ids: the wiring cannot be told, everything else can; the file's own table is the only one."""
    own = arch(tensors=("embed_tokens.weight",), program="specforge")
    start = resolve.plainest(own, None)
    assert len(start.aux) == own.aux == 3
    assert start.embedding == "own"
    found = resolve.configured(own, None, "", (), "", None)
    assert found.reading is None
    assert found.refused == ()
    assert "number of target layers is not known" in found.source
    run = ServingRun("r", "sglang", "0.5.23")
    assert "number of target layers is not known" in resolve.configured(own, None, "", (run,), "", None).source
    with_ids = arch({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}}, ("embed_tokens.weight",))
    assert resolve.configured(with_ids, None, "", (), "specforge", None).reading.embedding == "own"
    assert resolve.configured(with_ids, L, "llama", (), "specforge", None).reading.embedding == "target"


def test_engines_are_chosen_by_name_and_version():
    everyone = resolve.everyone(arch(), L, "llama")
    assert list(resolve.everyone(arch(), L, "llama", ["sglang"])) == ["sglang 0.5.9", "sglang 0.5.23"]
    chosen = resolve.everyone(arch(), L, "llama", ["vllm 0.33.0 v2", "sglang 0.5.9"])
    assert chosen == {name: everyone[name] for name in ("vllm 0.33.0 v2", "sglang 0.5.9")}
    with pytest.raises(BadOption, match="engine 'tgi' is not known"):
        resolve.everyone(arch(), L, "llama", ["tgi"])


def test_whose_reading_is_configured_where_an_engine_is_not_known():
    odd, known = run("exllama", ids=(3, 4, 5)), run("vllm", "0.32.0", "v1", ids=(3, 4, 5))
    sound = arch(nested((1, 14, 26)))

    def of(*runs, **how):
        return resolve.configured(
            sound, L, "llama", runs, how.get("program", ""), how.get("aux"), how.get("chosen", False)
        )

    assert of(odd, known).program == "vllm 0.32.0 v1"
    asked = of(odd, odd, known, chosen=True)
    assert (asked.reading, bool(asked.unknown), asked.guess) == (None, True, False)
    assert of(known, odd, chosen=True).program == "vllm 0.32.0 v1"
    guess = of(odd)
    assert (guess.reading.aux, bool(guess.unknown), guess.guess) == ((2, 15, 27), True, True)
    assert "aux_ids [3, 4, 5]" in guess.source
    assert of(odd, program="own").reading is None  # nobody's reading to stand in
    assert "exllama" in of(odd, program="own").source
    by_hand = of(odd, aux=(1, 2, 3))
    assert (by_hand.reading.aux, bool(by_hand.unknown), by_hand.guess) == ((1, 2, 3), True, False)
    assert not of().unknown and not of().guess
    idle = ServingRun("none", "exllama", steps=0)
    assert of(idle) == of()


def test_which_refusals_other_ids_would_end():
    norm = arch(tensors=("input_norm.weight",))

    def ended(draft, engine, ids):
        return resolve.id_faults(draft, L, "llama", run(engine, ids=ids))

    assert len(ended(arch(), "vllm", (2, 2, 99))) == 2
    assert ["fc takes 3 states" in r for r in ended(norm, "vllm", (2, 4))] == [True]  # the norm is another matter
    assert ended(norm, "vllm", (2, 4, 5)) == ()
    assert len(ended(arch(), "sglang", (2, 4))) == len(ended(arch(), "trtllm", (2, 4))) == 1
    assert len(ended(arch(), "llamacpp", (2, 4))) == 1
    assert ended(arch(aux=2), "llamacpp", (2, 4, 5)) == ()  # it takes three states whatever the ids


def test_only_a_made_up_head_accepts_nothing():
    """sglang#27908: without lm_head SGLang starts from initial values, and vLLM takes the target's."""
    headless = arch(without=("lm_head.weight",))
    told = {name: resolve.accepts_nothing(way) for name, way in resolve.everyone(headless, L, "llama").items()}
    assert {name for name, words in told.items() if words} == {"sglang 0.5.9", "sglang 0.5.23"}
    assert not any(
        resolve.accepts_nothing(way) for way in resolve.everyone(arch(without=("d2t",)), L, "llama").values()
    )


def test_training_checkpoints_are_told_which_export_to_run():
    assert "specforge export --to hf" in advice({"training_state.pt", "training_state_rank0.pt"})
    assert "traineagle3/config.json" in advice({"pytorch_model.bin"})
    assert "convert_to_hf.py" in advice({".metadata", "__0_0.distcp"})
    assert "export_hf_checkpoint" in advice({"modelopt_state.pth"})
    assert advice({"config.json", "model.safetensors"}) == advice({"config.json", "pytorch_model.bin"}) == ""
    assert training_file({"training_state.pt", "x"}) == "training_state.pt"
    assert training_file({"model.safetensors"}) == ""


@pytest.mark.parametrize(
    ("config", "base", "scaling", "partial"),
    [
        ({}, 10000.0, {}, 1.0),
        (THETA, 500000.0, {}, 1.0),
        (THETA | {"rope_scaling": None}, 500000.0, {}, 1.0),
        (THETA | {"rope_scaling": LLAMA3}, 500000.0, LLAMA3, 1.0),
        # transformers 5's schema wins, and holds the base itself
        (THETA | {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, 1e6, {}, 1.0),
        (
            THETA | {"rope_parameters": LLAMA3 | {"rope_theta": 1e6}, "rope_scaling": {"type": "linear"}},
            1e6,
            LLAMA3,
            1.0,
        ),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}, 1e6, {}, 0.5),
        ({"partial_rotary_factor": 0.25}, 10000.0, {}, 0.25),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 10000.0, {"type": "linear", "factor": 2.0}, 1.0),
    ],
)
def test_rope_out_of_a_config(config, base, scaling, partial):
    found = rope_of(config)
    assert (found.base, dict(found.scaling), found.partial) == (base, scaling, partial)
    hash(found)  # a list in a config (mrope_section) must not make a reading unhashable


def test_lists_in_a_scaling_become_tuples():
    found = rope_of({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}})
    assert dict(found.scaling)["mrope_section"] == (16, 24, 24)
    hash(found)


def test_specforge_scales_by_its_own_rule():
    assert reading_of("specforge", {}).rope.rule == "specforge"
    assert reading_of("vllm", {}).rope.rule == reading_of("sglang", {}).rope.rule == "hf"


def test_speculators_nested_config_takes_its_defaults():
    """The layer config is saved as a difference from transformers' defaults, so what is absent is theirs."""
    golden = Path(__file__).parent / "golden" / "speculators_llama_basic" / "checkpoint" / "config.json"
    raw = json.loads(golden.read_text())
    flat = flatten(raw)
    layer = raw["transformer_layer_config"]
    assert "transformer_layer_config" not in flat
    assert {key: flat[key] for key in layer if raw.get(key) is None} == {
        k: v for k, v in layer.items() if raw.get(k) is None
    }
    # LlamaConfig's own: 4096 wide, 32 heads, 32,000 tokens, eps 1e-6, silu
    bare = flatten({"speculators_model_type": "eagle3", "transformer_layer_config": {"model_type": "llama"}})
    assert (bare["hidden_size"], bare["num_attention_heads"], bare["vocab_size"]) == (4096, 32, 32000)
    assert (bare["rms_norm_eps"], bare["hidden_act"]) == (1e-6, "silu")
    # Qwen3Config's: head_dim 128 and 151,936 tokens, also where the model type is not said
    for layer in ({"model_type": "qwen3"}, {}):
        bare = flatten({"speculators_model_type": "eagle3", "transformer_layer_config": layer})
        assert (bare["head_dim"], bare["vocab_size"]) == (128, 151936)
    # the top level wins, but a null there says nothing
    both = {"transformer_layer_config": {"model_type": "llama", "vocab_size": 7, "hidden_size": 8},
            "vocab_size": 9, "hidden_size": None}  # fmt: skip
    assert (flatten(both)["vocab_size"], flatten(both)["hidden_size"]) == (9, 8)


E3 = {"architectures": ["LlamaForCausalLMEagle3"]}
MLA = {"architectures": ["Eagle3DeepseekV2ForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "names", "program"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, ["midlayer.hidden_norm.weight"], "specforge"),
        ({"architectures": ["LlamaForCausalLM"]}, ["midlayer.hidden_norm.weight"], "eagle"),
        (
            {"speculators_model_type": "eagle3", "architectures": ["LlamaForCausalLMEagle3"]},
            ["midlayer.x"],
            "speculators",
        ),
        ({"architectures": ["LlamaForCausalLM"]}, ["model.layers.0.mlp.up_proj.weight"], "unknown"),
        ({}, [], "unknown"),
        ({"speculators_model_type": "eagle3"}, ["layers.0.hidden_norm.weight", "d2t", "t2d"], "speculators"),
        ({"speculators_model_type": "eagle3"}, ["layers.0.hidden_norm.weight"], "speculators"),  # Vd = V
        ({"speculators_model_type": "peagle"}, ["layers.0.hidden_norm.weight", "mask_hidden"], "speculators"),
        # modelopt's conversion for vLLM: no t2d
        ({"speculators_model_type": "eagle3"}, ["layers.0.hidden_norm.weight", "d2t"], "modelopt"),
        (E3 | {"eagle_config": {"next_layer_regular": True}}, ["layers.0.hidden_norm.weight"], "modelopt"),
        (E3, ["layers.0.hidden_norm.weight", "d2t"], "modelopt"),
        (E3, ["layers.0.hidden_norm.weight", "d2t", "t2d"], "unknown"),
        (MLA, ["layers.0.self_attn.q_a_proj.weight", "d2t"], "modelopt"),
        (MLA, ["midlayer.self_attn.q_a_proj.weight", "d2t", "t2d"], "torchspec"),
        (MLA, ["layers.0.self_attn.q_a_proj.weight", "d2t", "t2d"], "unknown"),
        ({"architectures": ["Eagle3LlamaForCausalLM"]}, ["midlayer.x", "embed_tokens.weight"], "angelslim"),
        (E3, ["midlayer.x", "embed_tokens.weight"], "specforge or torchspec"),
        (
            E3 | {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e4}},
            ["midlayer.x", "embed_tokens.weight"],
            "specforge",
        ),
        (E3, ["draft_model.midlayer.x", "draft_model.embed_tokens.weight"], "specforge"),
        ({}, ["draft_model.midlayer.x", "draft_model.fc.weight"], "specforge"),
        ({"architectures": ["LlamaForCausalLM"]}, ["draft_model.midlayer.x"], "specforge"),
        ({"architectures": ["PEagleDraftModel"]}, ["layers.0.hidden_norm.weight", "mask_hidden", "t2d"], "specforge"),
        (
            E3,
            ["model.layers.0.hidden_norm.weight", "model.fc.weight", "model.norm.weight", "lm_head.weight"],
            "automodel",
        ),
        (E3, ["model.layers.0.hidden_norm.weight", "model.norm.weight", "model.lm_head.weight"], "unknown"),
        ({}, ["blk.0.attn_q.weight", "d2t"], "llamacpp"),
    ],
)
def test_whose_checkpoint_it_looks_like(config, names, program):
    assert program_of(config, names) == program


@pytest.mark.parametrize(
    "names", [["midlayer.x", "embed_tokens.weight"], ["layers.0.hidden_norm.weight", "d2t", "t2d"]]
)
def test_a_signed_checkpoint_needs_no_further_sign(names):
    assert program_of(E3 | {"_torchspec_version": "unknown"}, names) == "torchspec"
    assert program_of(E3, names, {"torchspec_version": "0.3"}) == "torchspec"
    assert program_of(E3, names, {"format": "pt"}) == program_of(E3, names)


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("midlayer.self_attn.q_proj.weight", "layers.0.self_attn.q_proj.weight"),
        ("layers.0.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("model.layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"),
        ("draft_model.fc.weight", "fc.weight"),
        ("module.draft_model.midlayer.mlp.down_proj.bias", "layers.0.mlp.down_proj.bias"),
        ("aux_norm_low.weight", "fc_norm.0.weight"),
        ("aux_norm_high.weight", "fc_norm.2.weight"),
        ("d2t", "d2t"),
        ("midlayer.self_attn.qkv_proj.weight", None),
        ("lm_head.weights", None),
        ("layers.0.self_attn.rotary_emb.inv_freq", None),
    ],
)
def test_canonical_names(stored, name):
    assert canonical(stored) == name


WIRINGS = [(0, 15, 27), (1, 16, 28), (2, 15, 27), (3, 4, 5), (2, 15, 30), (0, 15, 30), (1, 2, 3)]


def typed(text: str) -> tuple[int, ...]:
    """The ids that a user would type after reading ``text``."""
    return tuple(json.loads(re.search(r"layer_ids\"?: (\[[^\]]*\])", text)[1]))


@pytest.mark.parametrize("aux", WIRINGS, ids=str)
def test_words_for_vllm_give_the_boundaries_back(aux):
    text = vllm.words(aux, arch(), "llama")
    for runner in ("v1", "v2"):
        assert serve("vllm", top(typed(text)), runner=runner).reading.aux == aux


@pytest.mark.parametrize(
    ("aux", "target"),
    list(itertools.product(WIRINGS, ("llama", "deepseek_v3", "kimi_k2", "gpt_oss", "gemma3"))),
    ids=str,
)
def test_words_for_sglang_give_the_boundaries_back(aux, target):
    """In every version that the words do not except; what is excepted must be so."""
    text = sglang.words(aux, arch(), target)
    found = {v: serve("sglang", nested(typed(text)), version=v, target=target) for v in sglang.VERSIONS}
    new, old = found["0.5.23"], found["0.5.9"]
    if 30 in aux and target in ("llama", "deepseek_v3", "kimi_k2"):
        assert new.reading is None  # the last residual of these targets is never captured, and refused
        return
    if "0.5.23 cannot express it" in text:
        # for these targets a list that starts with 1 is shifted and one that starts with 0 is not: boundary 1 is lost
        assert (target in sglang.FIRST_IS_ONE, aux[0]) == (True, 1)
        for first in (0, 1):
            ids = (first, *(b - 1 + first for b in aux[1:]))
            tried = serve("sglang", nested(ids), version="0.5.23", target=target)
            assert tried.reading is None or tried.reading.aux != aux
    else:
        assert new.reading.aux == aux
    other = re.search(r"up to 0\.5\.9 (\[[^\]]*\])", text)
    if other:
        old = serve("sglang", nested(json.loads(other[1])), version="0.5.9", target=target)
    assert old.reading.aux == aux
    needs_patch = 0 in aux and typed(text)[0] == -1
    assert ("patched" in text) is needs_patch


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("aux", [(27, 15, 2), (2, 2, 1), (0, 27, 15)], ids=str)
def test_what_cannot_be_typed_is_said(engine, aux):
    """vLLM sorts and de-duplicates, the others capture in ascending order: no list of ids gives these."""
    assert "not expressible" in ENGINES[engine].words(aux, arch(), "llama")


@pytest.mark.parametrize("aux", [(27, 15, 2), (2, 2, 1), (0, 27, 30)], ids=str)
def test_llama_cpp_keeps_the_order(aux):
    """common/speculative.cpp copies the inputs of the listed blocks one after another; L is the last residual."""
    text = ENGINES["llamacpp"].words(aux, arch(), "llama")
    assert serve("llamacpp", top(typed(text))).reading.aux == aux


@pytest.mark.parametrize("engine", ENGINES)
def test_words_for_the_final_state(engine):
    text = ENGINES[engine].words((FINAL,), arch(), "llama")
    assert '"use_aux_hidden_state": false' in text or "not expressible" in text
    assert ("not expressible" in text) is (engine in ("trtllm", "llamacpp"))


@pytest.mark.parametrize("aux", [(2, 15, 27), (0, 15, 27), (27, 2, 15)], ids=str)
def test_every_program_says_the_boundaries_in_its_words(aux):
    """faults.md A1: print all dialects, always; where a trainer's words give ids, they give these boundaries back."""
    rows = dict(in_words(aux, arch(), "llama"))
    assert list(rows)[:2] == ["boundaries", "transformers"]
    assert set(rows) == {"boundaries", "transformers", *TRAINERS, *ENGINES}
    assert ("the embedding output" in rows["boundaries"]) is (0 in aux)
    for name in ("specforge", "modelopt", "torchspec", "automodel", "speculators"):
        if "not expressible" in rows[name]:
            assert (0 in aux, -1 in typed(rows[name])) == (True, True)
            continue
        config = top(typed(rows[name])) if name == "speculators" else nested(typed(rows[name]))
        assert TRAINERS[name].trained(arch(config), L).reading.aux == aux


def test_who_reads_how_has_a_row_for_everyone(repo):
    """docs/readings.md: one row for each program, version and runner that the package knows."""
    text = (repo / "docs" / "readings.md").read_text()
    known = [*TRAINERS, *(f"{name} {version}" for name, engine in ENGINES.items() for version in engine.VERSIONS)]
    for title in ("## Layer ids", "## The other fields"):
        section = text.split(title)[1].split("\n## ")[0]
        assert sorted(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)) == sorted(known), title


def test_the_rows_say_what_the_dialects_do(repo):
    """The id columns of docs/readings.md, typed into each program, give the boundaries named in their heads."""
    section = (repo / "docs" / "readings.md").read_text().split("## Layer ids")[1].split("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    head, _, *rows = lines
    columns = {i: tuple(map(int, re.findall(r"\d+", cell))) for i, cell in enumerate(head) if re.search(r"\(\d", cell)}
    assert list(columns.values()) == [(2, 15, 27), (0, 15, 27), (2, 15, 30)]
    for row in rows:
        name = row[0].strip("`")
        for i, aux in columns.items():
            ids = re.search(r"\[([-\d, ]+)\]", row[i])
            if ids is None:
                continue  # "not possible", and why
            config = {"top": top, "nested": nested}["top" if "top-level" in row[1] else "nested"](json.loads(ids[0]))
            if name in TRAINERS:
                assert TRAINERS[name].trained(arch(config), L).reading.aux == aux, (name, aux)
            else:
                engine, version, *runner = name.split()
                typed_in = json.loads(ids[0]) if "serving option" in row[1] else None
                found = serve(engine, config, version=version, runner=runner[0] if runner else "", ids=typed_in)
                assert found.reading.aux == aux, (name, aux)


def test_the_other_tables_have_everyone_too(repo):
    text = (repo / "docs" / "readings.md").read_text()
    for title, known in (("## What stops an engine", ENGINES), ("## Whose checkpoint it is", TRAINERS)):
        section = text.split(title)[1].split("\n## ")[0]
        assert re.findall(r"^\| `([^`]+)`", section, re.MULTILINE) == list(known), title
