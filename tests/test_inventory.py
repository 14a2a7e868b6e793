"""Every trainer's checkpoint opens, and every tensor and key of it is in exactly one list.

The synthetic checkpoints are written from the fact sheets (engines.md 2, trainers.md 2 to 8); those under ``golden`` by
the real programs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import save_file

from eagle3lab import views
from eagle3lab.case import open_case
from eagle3lab.checks import weights
from eagle3lab.dialects import ENGINES, TRAINERS, keys
from eagle3lab.draft import Draft
from eagle3lab.errors import BadFile
from eagle3lab.inventory import Inventory, inventory
from eagle3lab.records import Finding, Severity

H, V, VD, HEADS = tiny.H, tiny.V, tiny.VD, tiny.HEADS
ROOT = Path(__file__).parent
GOLDEN = sorted((ROOT / "golden").glob("*/checkpoint"))
GGUF = sorted((ROOT / "fixtures" / "gguf").rglob("*draft*.gguf"))
RQ, RKV, DN, DR, DV = 6, 8, 4, 2, 3
DIMS = {"q_lora_rank": RQ, "kv_lora_rank": RKV, "qk_nope_head_dim": DN, "qk_rope_head_dim": DR, "v_head_dim": DV}


def renamed(tensors: tiny.Tensors, **prefixes: str) -> tiny.Tensors:
    """Tensors with prefixes replaced: ``midlayer_=...`` stands for ``midlayer.``."""
    return {name.replace("midlayer.", prefixes.get("midlayer", "midlayer.")): t for name, t in tensors.items()}


def latent(low: bool = True, prefix: str = "midlayer.") -> tiny.Tensors:
    """A draft with MLA in place of q, k and v; queries through a low rank, or from a plain ``q_proj``."""
    out = {n: t for n, t in tiny.draft_tensors().items() if ".self_attn." not in n}
    shapes = {
        "kv_a_proj_with_mqa": (RKV + DR, 2 * H), "kv_a_layernorm": (RKV,), "kv_b_proj": (HEADS * (DN + DV), RKV),
        "o_proj": (H, HEADS * DV),
        **({"q_a_proj": (RQ, 2 * H), "q_a_layernorm": (RQ,), "q_b_proj": (HEADS * (DN + DR), RQ)} if low
           else {"q_proj": (HEADS * (DN + DR), 2 * H)}),
    }  # fmt: skip
    out |= {f"midlayer.self_attn.{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    return renamed(out, midlayer=prefix)


def with_table(tensors: tiny.Tensors) -> tiny.Tensors:
    return {**tensors, "embed_tokens.weight": torch.ones(V, H)}


def without(tensors: tiny.Tensors, *names: str) -> tiny.Tensors:
    return {name: t for name, t in tensors.items() if name not in names}


def speculators(tensors: tiny.Tensors, layer: dict[str, Any] | None = None, **top: Any) -> tuple[tiny.Tensors, dict]:
    """The nested config of speculators over ``layers.0.`` names."""
    flat = tiny.draft_config(eagle_config=None, architectures=None, draft_vocab_size=None) | (layer or {})
    config = {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": "0.9.0",
        "draft_vocab_size": VD, "norm_before_residual": True, "norm_before_fc": False, "fc_norm": False,
        "norm_output": False, "target_hidden_size": None, "has_no_defaults_at_init": False,
        "eagle_aux_hidden_state_layer_ids": list(tiny.AUX), "transformer_layer_config": flat,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy", "verifier": {"name_or_path": "x", "architectures": ["L"]},
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1,
                                  "accept_tolerance": 0.0}],
        },
    }  # fmt: skip
    return renamed(with_table(tensors), midlayer="layers.0."), config | top


def extras(*names: str) -> tiny.Tensors:
    """q and k norms, and biases, as ``midlayer.`` tensors."""
    sizes = {"q_norm.weight": 4, "k_norm.weight": 4, "q_proj.bias": 16, "k_proj.bias": 8, "v_proj.bias": 8,
             "o_proj.bias": H}  # fmt: skip
    return {f"midlayer.self_attn.{name}": torch.ones(sizes[name]) for name in names}


MODELOPT = {
    "eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True, "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True, "use_mtp_layernorm": False, "next_layer_regular": True, "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": 0,
}  # fmt: skip
SPEC = tiny.draft_tensors
CONFIG = tiny.draft_config
MLA = {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2", "head_dim": None, **DIMS}
WRITTEN: dict[str, tuple[str, Callable[[], tuple[tiny.Tensors, dict[str, Any]]]]] = {
    # name: (program, tensors and config)
    "specforge, serving export": ("specforge", lambda: (SPEC(), CONFIG())),
    "specforge, hf export": (
        "specforge", lambda: (with_table(SPEC()), CONFIG(rope_parameters={"rope_type": "default", "rope_theta": 1e4}))),
    "specforge's trainer": (
        "specforge", lambda: ({f"draft_model.{n}": t for n, t in SPEC().items()}, CONFIG())),
    "specforge, p-eagle": ("specforge", lambda: (
        renamed({**with_table(SPEC()), "mask_hidden": torch.ones(1, 1, 3 * H)}, midlayer="layers.0."),
        CONFIG(architectures=["PEagleDraftModel"], norm_before_residual=False))),
    "specforge, another width": ("specforge", lambda: (
        {**SPEC(target=24), "embed_tokens.weight": torch.ones(V, H)},
        CONFIG(target_hidden_size=24, rope_parameters={"rope_type": "default", "rope_theta": 1e4}))),
    "eagle": ("eagle", lambda: (SPEC(), CONFIG(architectures=["LlamaForCausalLM"], eagle_config=None, bias=False))),
    "speculators": ("speculators", lambda: speculators(SPEC())),
    "speculators, Eagle3Speculator": (
        "speculators", lambda: speculators(SPEC(), architectures=["Eagle3Speculator"], speculators_version="0.2.0")),
    "speculators, qwen3 with biases": ("speculators", lambda: speculators(
        {**SPEC(), **extras("q_norm.weight", "k_norm.weight", "q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias")},
        {"model_type": "qwen3", "attention_bias": True, "use_sliding_window": False, "max_window_layers": 28,
         "layer_types": ["full_attention"], "sliding_window": None})),
    "speculators, all norms": ("speculators", lambda: speculators(
        {**SPEC(), "input_norm.weight": torch.ones(3 * H)}, norm_before_fc=True, norm_output=True)),
    "speculators, two layers": ("speculators", lambda: speculators(
        without(SPEC(layers=2), "layers.1.hidden_norm.weight"), {"num_hidden_layers": 2})),
    "speculators, whole vocabulary": ("speculators", lambda: speculators(
        without(SPEC(size=V), "d2t", "t2d"), draft_vocab_size=V)),
    "speculators, p-eagle": ("speculators", lambda: speculators(
        {**SPEC(), "mask_hidden": torch.ones(1, 1, 3 * H)}, speculators_model_type="peagle", mask_token_id=3)),
    "speculators, flat": ("speculators", lambda: (
        renamed(with_table(SPEC()), midlayer="layers.0."),
        CONFIG(speculators_model_type="eagle3", eagle_config=None, architectures=["Eagle3Speculator"]))),
    "modelopt": ("modelopt", lambda: (
        renamed(without(SPEC(), "t2d"), midlayer="layers.0."), CONFIG(eagle_config=MODELOPT))),
    "modelopt, converted for vllm": ("modelopt", lambda: (
        without(speculators(SPEC())[0], "t2d", "embed_tokens.weight"), speculators(SPEC())[1])),
    "modelopt, MLA": ("modelopt", lambda: (
        without(latent(prefix="layers.0."), "t2d"), CONFIG(**MLA, eagle_config=MODELOPT, n_routed_experts=384))),
    "angelslim": ("angelslim", lambda: (
        with_table(SPEC()), CONFIG(architectures=["Eagle3LlamaForCausalLM"], eagle_config=None))),
    "angelslim, saved with zero-3": ("angelslim", lambda: (
        SPEC(), CONFIG(architectures=["Eagle3LlamaForCausalLM"], eagle_config=None))),
    "torchspec or specforge": ("specforge or torchspec", lambda: (with_table(SPEC()), CONFIG())),
    "torchspec, MLA": ("torchspec", lambda: (with_table(latent()), CONFIG(**MLA))),
    "torchspec, MLA without a low rank": ("torchspec", lambda: (
        with_table(latent(low=False)), CONFIG(**{**MLA, "q_lora_rank": None}))),
    "torchspec, MLA of widths unsaid": ("torchspec", lambda: (
        with_table(latent()), CONFIG(**{k: v for k, v in MLA.items() if k not in DIMS}))),
    "automodel": ("automodel", lambda: (
        {("" if n in ("lm_head.weight", "d2t", "t2d") else "model.") + n: t
         for n, t in renamed(with_table(SPEC()), midlayer="layers.0.").items()},
        CONFIG(eagle_config=None, norm_output=False))),
    "automodel, p-eagle": ("automodel", lambda: (
        {**{("" if n in ("lm_head.weight", "d2t", "t2d") else "model.") + n: t
            for n, t in renamed(with_table(SPEC()), midlayer="layers.0.").items()},
         "model.mask_hidden": torch.ones(1, 1, 3 * H)}, CONFIG(eagle_config=None))),
    "five states with norms": ("specforge", lambda: (
        {**SPEC(aux=5), **{f"fc_norm.{k}.weight": torch.ones(H) for k in range(5)}, "fc.bias": torch.ones(H)},
        CONFIG(fc_norm=True, bias=True, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4, 5]}))),
    "older names of the norms": ("specforge", lambda: (
        {**SPEC(), **{f"aux_norm_{n}.weight": torch.ones(H) for n in ("low", "mid", "high")}},
        CONFIG(use_aux_norm=True))),
    "a shared head": ("specforge", lambda: (
        without(SPEC(size=V), "lm_head.weight", "d2t", "t2d"), CONFIG() | {"draft_vocab_size": None})),
    "the final state": ("specforge", lambda: (
        without(SPEC(aux=1), "fc.weight"), CONFIG(eagle_config={"use_aux_hidden_state": False}))),
    "frequencies saved along": ("specforge", lambda: (
        {**SPEC(), "midlayer.self_attn.rotary_emb.inv_freq": torch.ones(2)}, CONFIG())),
}  # fmt: skip


def complete(draft: Draft) -> Inventory:
    """The inventory, after checking that each tensor and each key is in exactly one list."""
    found = inventory(draft)
    listed = Counter(entry.name for entry in (*found.used, *found.unused, *found.unknown))
    assert listed == Counter([*draft.tensors, *draft.tensors.beside])
    assert all(entry.name not in draft for entry in found.missing)
    paths = Counter(path for path, _ in keys.leaves(draft.raw_config))
    assert Counter(k.path for k in (*found.handled, *found.harmless, *found.unread)) == paths
    assert all(entry.why for entry in (*found.used, *found.unused, *found.unknown, *found.missing))
    assert all(entry.why for entry in (*found.handled, *found.harmless, *found.unread))
    return found


@pytest.mark.parametrize("name", WRITTEN)
def test_every_trainers_checkpoint_opens_and_is_listed_whole(tmp_path, name):
    program, make = WRITTEN[name]
    tensors, config = make()
    draft = Draft(tiny.write_folder(tmp_path, tensors, config))
    assert draft.arch.program == program
    assert [row.stored for row in draft.rows if not row.fits] == []
    found = complete(draft)
    assert (found.unknown, found.unread) == ((), ())
    weights.check(draft)  # no finding raises


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda p: p.parent.name)
def test_golden_checkpoints_are_listed_whole(folder):
    draft = Draft(folder)
    found = complete(draft)
    assert (found.unknown, found.unread) == ((), ())
    assert draft.arch.program == folder.parent.name.split("_")[0]
    assert {f.severity for f in weights.check(draft) if f.code in ("W001", "W008")} == {Severity.PASS}


@pytest.mark.parametrize("file", GGUF, ids=lambda p: p.stem)
def test_gguf_drafts_are_listed_whole(file):
    draft = Draft(file)
    assert draft.arch.program == "llamacpp"
    assert complete(draft).unknown == ()


def mla(tmp_path: Path, **config: Any) -> Draft:
    return Draft(tiny.write_folder(tmp_path, with_table(latent()), CONFIG(**MLA) | config))


def test_mla_is_solved_from_the_config_and_else_from_the_tensors(tmp_path):
    stated = mla(tmp_path / "stated")
    solved = mla(tmp_path / "solved", **dict.fromkeys(DIMS))
    for draft in (stated, solved):
        assert {key: draft.arch.config[key] for key in DIMS} == DIMS
        assert (draft.arch.heads, draft.arch.kv_heads, draft.arch.head_dim) == (HEADS, HEADS, DN + DR)
    wrong = mla(tmp_path / "wrong", v_head_dim=5)
    assert {row.canonical for row in wrong.rows if not row.fits} == {
        "layers.0.self_attn.kv_b_proj.weight", "layers.0.self_attn.o_proj.weight"}  # fmt: skip


def test_an_mla_draft_that_is_not_whole_names_what_is_missing(tmp_path):
    tensors = without(latent(), "midlayer.self_attn.kv_b_proj.weight", "midlayer.self_attn.q_b_proj.weight")
    with pytest.raises(BadFile) as caught:
        Draft(tiny.write_folder(tmp_path, tensors, CONFIG(**MLA)))
    for part in ("layers.0.self_attn.q_b_proj.weight", "layers.0.self_attn.kv_b_proj.weight"):
        assert part in str(caught.value)


def training_state(folder: Path, inner: dict[Any, Any] | None = None, **more: Any) -> Path:
    folder.mkdir(parents=True)
    state, inner = {f"draft_model.{name}": t for name, t in SPEC().items()}, inner or {}
    torch.save({"draft_state_dict": state | inner, "strategy": "eagle3", **more}, folder / "training_state.pt")
    return folder


def test_a_training_checkpoint_opens_where_its_config_is_there(tmp_path):
    folder = training_state(tmp_path / "run-step5")
    (folder / "config.json").write_text(json.dumps(CONFIG()))
    draft = Draft(folder)
    assert (draft.arch.program, draft.unknown) == ("specforge", [])
    assert torch.equal(draft.weight("fc.weight"), SPEC()["fc.weight"])


class Code:
    """A class of whoever saved the file: loading it would import and run its module."""


@pytest.mark.parametrize("config", [True, False], ids=["config.json", "none"])
def test_what_does_not_open_says_which_export_to_run(tmp_path, config):
    """Without config.json, or with pickled code in the archive, which is never run."""
    folder = training_state(tmp_path / "run-step5", args=Code())
    if config:
        (folder / "config.json").write_text(json.dumps(CONFIG()))
    with pytest.raises(BadFile) as caught:
        Draft(folder)
    text = str(caught.value)
    assert "specforge export --to hf --checkpoint" in text
    assert ("wants " in text) is config
    assert ("config.json: no such file" in text or "no such file" in text) is not config


def test_deepspeeds_state_of_eagle_says_what_to_put_beside_it(tmp_path):
    torch.save(SPEC(), tmp_path / "pytorch_model.bin")
    with pytest.raises(BadFile, match=r"copy its eagle/traineagle3/config\.json"):
        Draft(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG(architectures=["LlamaForCausalLM"])))
    assert Draft(tmp_path).arch.program == "eagle"


def test_modelopts_scales_are_listed(tmp_path):
    """fp8 weights with a scale each, an input scale, a cache's scale, and hf_quant_config.json beside config.json."""
    tensors = renamed(without(SPEC(), "t2d"), midlayer="layers.0.")
    name = "layers.0.mlp.up_proj"
    tensors[f"{name}.weight"] = tensors[f"{name}.weight"].to(torch.float8_e4m3fn)
    tensors |= {f"{name}.weight_scale": torch.tensor(0.5), f"{name}.input_scale": torch.tensor(2.0),
                "layers.0.self_attn.k_proj.k_scale": torch.tensor(1.0)}  # fmt: skip
    folder = tiny.write_folder(tmp_path, tensors, CONFIG(eagle_config=MODELOPT))
    (folder / "hf_quant_config.json").write_text(json.dumps(
        {"producer": {"name": "modelopt", "version": "0.47"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    ))  # fmt: skip
    found = inventory(Draft(folder))
    assert found.unknown == ()
    assert f"{name}.weight_scale" in {e.name for e in found.used}
    assert {f"{name}.input_scale", "layers.0.self_attn.k_proj.k_scale"} <= {e.name for e in found.unused}
    assert {"hf_quant_config.producer.name", "hf_quant_config.quantization.quant_algo"} <= {
        k.path for k in found.handled
    }
    assert found.unread == ()


def codes(draft: Draft, code: str) -> list[Finding]:
    return [f for f in weights.check(draft) if f.code == code]


def test_unknown_tensors_have_a_consequence_for_each_engine(tmp_path):
    tensors = {**SPEC(), "midlayer.gate.weight": torch.ones(3), "midlayer.self_attn.qkv_proj.bias": torch.ones(3)}
    draft = Draft(tiny.write_folder(tmp_path, tensors, CONFIG()))
    assert draft.unknown == ["midlayer.gate.weight", "midlayer.self_attn.qkv_proj.bias"]
    assert all(set(entry.engines) == set(ENGINES) for entry in inventory(draft).unknown)
    (found,) = codes(draft, "W001")
    assert (found.severity, found.measured) == (Severity.WARN, "midlayer.gate.weight, midlayer.self_attn.qkv_proj.bias")
    for words in ("sglang: dropped in silence", "ValueError on loading or ignored", "llamacpp: the converter stops"):
        assert words in found.evidence


def test_names_that_an_engine_would_not_find(tmp_path):
    tensors, config = WRITTEN["automodel"][1]()
    (found,) = codes(Draft(tiny.write_folder(tmp_path, tensors, config)), "W001")
    assert "vllm" in found.title
    assert "'model.model.embed_tokens.weight'" in found.measured or "model.model." in found.measured
    assert "sglang" not in found.measured


MISSING = {
    # name: (tensors, config, finding's severity, words of its evidence)
    "biases that the config promises": (SPEC, {"attention_bias": True}, Severity.WARN, "vllm: whatever memory holds"),
    "q and k norms of a qwen3": (SPEC, {"model_type": "qwen3"}, Severity.WARN, "in silence"),
    "a later layer's norm": (
        lambda: without(SPEC(layers=2), "layers.1.hidden_norm.weight"), {"num_hidden_layers": 2}, Severity.INFO, "sglang: keeps"),
    "the table": (SPEC, {}, Severity.INFO, "takes the target's"),
    "a head": (lambda: without(SPEC(), "lm_head.weight"), {}, Severity.FAIL, "sglang: keeps a head of its initial values"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_missing_tensors_have_a_consequence_for_each_engine(tmp_path, name):
    tensors, config, severity, words = MISSING[name]
    findings = codes(Draft(tiny.write_folder(tmp_path, tensors(), CONFIG() | config)), "W006")
    assert any(f.severity == severity and words in f.evidence for f in findings), findings


UNREAD = {
    # name: (config, path, severity)
    "a key that may change numbers": ({"residual_multiplier": 0.22}, "residual_multiplier", Severity.WARN),
    "one that is off": ({"use_magic": False}, "use_magic", Severity.INFO),
    "an empty one": ({"extra": {}}, "extra", Severity.INFO),
    "a comment": ({"_comment": "made by hand"}, "_comment", Severity.INFO),
    "one of eagle_config": ({"eagle_config": {"use_gate": True}}, "eagle_config.use_gate", Severity.WARN),
    "another kind of RoPE": (
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "twist": 3}}, "rope_scaling.twist", Severity.WARN),
    "a known key with a value that is not": ({"pretraining_tp": 2}, "pretraining_tp", Severity.WARN),
    "another wiring of modelopt": (
        {"eagle_config": {"use_mtp_layernorm": True}}, "eagle_config.use_mtp_layernorm", Severity.WARN),
    "a nested window": ({"use_sliding_window": True}, "use_sliding_window", Severity.WARN),
    "a deep one": ({"quantization_config": {"smooth": {"alpha": 0.5}}}, "quantization_config.smooth.alpha", Severity.WARN),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_keys_that_nobody_reads(tmp_path, name):
    config, path, severity = UNREAD[name]
    draft = Draft(tiny.write_folder(tmp_path, SPEC(), CONFIG() | config))
    assert [k.path for k in complete(draft).unread] == [path]
    (found,) = codes(draft, "W008")
    assert (found.severity, path in found.measured) == (severity, True)


def test_flags_are_known_at_both_levels(tmp_path):
    config = CONFIG() | {"eagle_config": {"norm_before_fc": False, "fc_norm": False}, "norm_before_fc": False}
    found = complete(Draft(tiny.write_folder(tmp_path, SPEC(), config)))
    words = {k.path: k.why for k in found.handled}
    assert found.unread == ()
    assert "sglang" in words["eagle_config.fc_norm"]
    assert "trtllm: one norm over all states" in words["eagle_config.norm_before_fc"]


FORMS: dict[str, tuple[Callable[[], tiny.Tensors], dict[str, Any], str]] = {
    "longrope": (SPEC, {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}},
                 "RoPE scaling 'longrope'"),
    "an activation": (SPEC, {"hidden_act": "swiglu"}, "activation 'swiglu'"),
    "experts": (lambda: {**{n: t for n, t in SPEC().items() if ".mlp." not in n},
                         "midlayer.mlp.experts.0.up_proj.weight": torch.ones(3, H)},
                {"architectures": ["Glm4MoeForCausalLMEagle3"], "use_moe": True}, "a mixture of experts"),
    "parallel drafting": (lambda: {**SPEC(), "mask_hidden": torch.ones(1, 1, 3 * H)}, {}, "parallel drafting"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_open_and_are_not_run(tmp_path, name):
    tensors, config, title = FORMS[name]
    draft = Draft(tiny.write_folder(tmp_path, tensors(), CONFIG() | config))
    complete(draft)
    (found,) = codes(draft, "W009")
    assert found.severity == Severity.UNSUPPORTED
    assert found.title.startswith(title)


def test_plain_drafts_have_no_such_form(tmp_path):
    assert codes(Draft(tiny.write_draft(tmp_path)), "W009") == []


def test_two_schemas_of_rope_that_disagree(tmp_path):
    """faults.md, 'rope_scaling vs rope_parameters': both are read, a difference is named."""
    new = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}
    agree = CONFIG(rope_theta=5e5, rope_parameters=new, rope_scaling={"type": "llama3", "factor": 8})
    assert [f.severity for f in codes(Draft(tiny.write_folder(tmp_path / "a", SPEC(), agree)), "W004")] == [
        Severity.PASS
    ]
    differ = agree | {"rope_theta": 1e4, "rope_scaling": {"type": "llama3", "factor": 4}}
    found = codes(Draft(tiny.write_folder(tmp_path / "b", SPEC(), differ)), "W004")
    assert [f.where for f in found] == ["config.json: rope_theta", "config.json: rope_scaling"]


def test_names_with_html_are_kept_as_they_are(tmp_path):
    tensors = {**SPEC(), "<b>x</b>": torch.ones(1)}
    (tmp_path / "draft").mkdir()
    save_file(tensors, tmp_path / "draft" / "model.safetensors")
    (tmp_path / "draft" / "config.json").write_text(json.dumps(CONFIG() | {"<i>": 1}))
    draft = Draft(tmp_path / "draft")
    assert draft.unknown == ["<b>x</b>"]
    assert [k.path for k in inventory(draft).unread] == ["<i>"]


def test_the_notebooks_rows_hold_every_list(tmp_path):
    """Who drops a used tensor is said by version; the layer ids are there for every program."""
    case = open_case(tiny.write_case(tmp_path))
    tiny.edit(tmp_path / "draft" / "model.safetensors", lambda t: t.update({"fc.bias": torch.ones(H)}))
    tensors, config = views.tensor_lists(case), views.key_lists(case)
    assert [len(rows) for rows in tensors.values()] == [0, 1, 1, 15]
    (bias,) = [row for row in tensors["used tensors"] if row["tensor"] == "fc.bias"]
    assert (
        "vllm 0.33.0 v1, vllm 0.33.0 v2, sglang 0.5.9, sglang 0.5.23, trtllm 00679c66: does not use it" in bias.values()
    )
    assert [len(rows) > 0 for rows in config.values()] == [False, True, False]
    told = dict(views.id_words(case))
    assert set(told) == {"boundaries", "transformers", *TRAINERS, *ENGINES}
    assert "[2, 4, 5]" in told["vllm"]


def test_what_a_training_checkpoint_holds_beside_its_weights_is_listed(tmp_path):
    inner = {"junk": {"w": torch.ones(3)}, 7: torch.ones(2)}
    folder = training_state(tmp_path / "run", inner, ema={"w": torch.ones(4)}, optimizer={"m": torch.ones(4)}, epoch=3)
    (folder / "config.json").write_text(json.dumps(CONFIG()))
    draft = Draft(folder)
    found = complete(draft)
    assert {entry.name for entry in found.unknown} == {"junk", "7", "ema"}
    assert {"optimizer", "epoch", "strategy"} <= {entry.name for entry in found.unused}
    (one,) = codes(draft, "W001")
    assert one.severity == Severity.WARN
    assert one.title == "3 tensors or dicts of tensors are unknown to the lab"
    assert "ema (a dict of 1 with 1 tensors)" in one.measured


def test_a_training_state_alone_is_no_warning(tmp_path):
    folder = training_state(
        tmp_path / "run", optimizer={"m": torch.ones(4)}, lr_scheduler={"x": torch.ones(1)}, global_step=3
    )
    (folder / "config.json").write_text(json.dumps(CONFIG()))
    assert [f.severity for f in codes(Draft(folder), "W001")] == [Severity.PASS]


def beside(folder: Path) -> Any:
    (found,) = codes(Draft(folder), "W013")
    return found


def test_other_weight_files_of_the_folder_are_named(tmp_path):
    folder = tiny.write_draft(tmp_path / "draft")
    assert beside(folder).severity == Severity.PASS
    torch.save(SPEC(), folder / "pytorch_model.bin")
    (folder / "draft-f16.gguf").symlink_to(GGUF[0])
    found = beside(folder)
    assert found.severity == Severity.INFO
    assert "not read: draft-f16.gguf, pytorch_model.bin" in found.measured
    save_file({"d2t": torch.zeros(3)}, folder / "d2t.safetensors")
    assert (beside(folder).severity, "d2t.safetensors" in beside(folder).measured) == (Severity.WARN, True)


def test_a_shard_that_the_index_does_not_name(tmp_path):
    folder = tiny.write_draft(tmp_path / "draft")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(SPEC(), "a.safetensors")})
    )
    assert beside(folder).severity == Severity.PASS
    save_file({"fc.bias": torch.zeros(H)}, folder / "b.safetensors")
    found = beside(folder)
    assert (found.severity, found.measured) == (
        Severity.INFO, "read: a.safetensors, model.safetensors.index.json; not read: b.safetensors")  # fmt: skip


def test_torchspecs_export_for_vllm_is_signed():
    folder = Path(__file__).parent / "fixtures" / "facts" / "draft_torchspec_vllm"
    draft = Draft(folder)
    assert draft.arch.program == "torchspec"
    assert complete(draft).unread == ()
