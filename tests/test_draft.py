"""The draft checkpoint: solved from its shapes; names, ranks and config checked before a number is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from eagle3lab.draft import Draft
from eagle3lab.errors import BadFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_draft(tmp_path / "draft")


def refused(folder: Path) -> str:
    with pytest.raises(BadFile) as caught:
        Draft(folder)
    return str(caught.value)


def change(folder: Path, what) -> Path:
    tiny.edit(folder / "model.safetensors", what)
    return folder


def test_the_architecture_is_solved_from_the_tensors(folder):
    a = Draft(folder, target_hidden=16, vocab=64).arch
    assert (a.hidden, a.target_hidden, a.aux, a.heads, a.kv_heads, a.head_dim) == (16, 16, 3, 4, 2, 4)
    assert (a.layers, a.intermediate, a.draft_vocab, a.vocab, a.program) == (1, 24, 32, 64, "specforge")


@pytest.mark.parametrize(
    ("hidden", "target", "aux"), [(16, 16, 5), (16, 16, 1), (20, 16, 3), (16, 24, 3)], ids=str
)  # fmt: skip
def test_the_number_of_states_comes_from_the_targets_width(tmp_path, hidden, target, aux):
    tensors = tiny.draft_tensors(hidden=hidden, target=target, aux=aux)
    folder = tiny.write_folder(tmp_path, tensors, tiny.draft_config(hidden_size=hidden))
    draft = Draft(folder, target_hidden=target, vocab=64)
    assert (draft.arch.aux, draft.arch.target_hidden) == (aux, target)
    assert all(row.fits for row in draft.rows)


@pytest.mark.parametrize("prefix", ["", "model.", "module.", "draft_model.model."])
@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."])
def test_wrappers_and_both_layer_names_are_one_draft(tmp_path, prefix, layer):
    tensors = {prefix + name.replace("midlayer.", layer): t for name, t in tiny.draft_tensors().items()}
    draft = Draft(tiny.write_folder(tmp_path, tensors, tiny.draft_config()))
    assert draft.unknown == []
    assert draft.shape("layers.0.self_attn.q_proj.weight") == (16, 32)


def test_a_missing_head_dim_is_solved_though_it_is_not_hidden_over_heads(tmp_path):
    """EAGLE #315: H 2560, 32 heads, head_dim 128."""
    tensors = tiny.draft_tensors(hidden=20)
    folder = tiny.write_folder(tmp_path, tensors, tiny.draft_config(hidden_size=20, head_dim=None))
    assert Draft(folder, target_hidden=20).arch.head_dim == 4


@pytest.mark.parametrize(
    "name",
    ["fc.weight", "norm.weight", "midlayer.hidden_norm.weight", "midlayer.self_attn.q_proj.weight",
     "midlayer.self_attn.v_proj.weight", "midlayer.mlp.up_proj.weight"],
)  # fmt: skip
def test_a_missing_tensor_is_named_and_the_others_listed(folder, name):
    text = refused(change(folder, lambda t: t.pop(name)))
    assert f"missing: {name.replace('midlayer.', 'layers.0.')}" in text
    assert "found: d2t" in text
    assert ("cannot combine aux states" in text) == (name == "fc.weight")


def test_all_missing_tensors_are_one_error(folder):
    text = refused(change(folder, lambda t: [t.pop(n) for n in list(t) if n.startswith(("fc", "norm"))]))
    assert "fc.weight, norm.weight" in text


def test_a_layer_that_is_missing_or_not_whole_is_named(tmp_path):
    tensors = tiny.draft_tensors(layers=2)
    tensors.pop("layers.1.mlp.up_proj.weight")
    text = refused(tiny.write_folder(tmp_path, tensors, tiny.draft_config()))
    assert "missing: layers.1.mlp.up_proj.weight" in text
    renumbered = {n.replace("layers.1.", "layers.2."): t for n, t in tiny.draft_tensors(layers=2).items()}
    assert "layers.1.self_attn.q_proj.weight" in refused(tiny.write_folder(tmp_path, renumbered, tiny.draft_config()))


def test_one_tensor_under_two_names_is_refused(folder):
    text = refused(
        change(folder, lambda t: t.update({"layers.0.hidden_norm.weight": t["midlayer.hidden_norm.weight"].clone()}))
    )
    assert "'midlayer.hidden_norm.weight'" in text
    assert "'layers.0.hidden_norm.weight'" in text


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("fc.weight", torch.ones(48), "F32 [48], expected [H, A·Ht]"),
        ("fc.weight", torch.tensor(1.0), "F32 [], expected [H, A·Ht]"),
        ("norm.weight", torch.ones(16, 1), "F32 [16, 1], expected [H]"),
        ("midlayer.self_attn.q_proj.weight", torch.ones(1, 16, 32), "F32 [1, 16, 32], expected [nh·d, 2H]"),
        ("d2t", torch.zeros(32, 1, dtype=torch.long), "I64 [32, 1], expected [Vd]"),
        ("d2t", torch.zeros(32), "F32 [32], expected I64"),
        ("d2t", torch.zeros(32, dtype=torch.bfloat16), "BF16 [32], expected I64"),
    ],
)
def test_a_wrong_number_of_axes_or_a_map_of_floats_is_refused(folder, name, value, says):
    text = refused(change(folder, lambda t: t.update({name: value})))
    assert f"model.safetensors: {name} is {says}" in text


@pytest.mark.parametrize("stated", [32, None], ids=["stated", "by d2t"])
def test_a_transposed_head_is_not_taken_for_another_vocabulary(folder, stated):
    tiny.edit_json(folder / "config.json", draft_vocab_size=stated)
    text = refused(change(folder, lambda t: t.update({"lm_head.weight": t["lm_head.weight"].T.contiguous()})))
    assert "lm_head.weight is [16, 32], stored transposed; expected [Vd, H] = [32, 16]" in text
    assert "draft_vocab_size" not in text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"draft_vocab_size": ...}, "'draft_vocab_size' is missing: lm_head.weight has 32 rows, vocab_size is 64"),
        ({"draft_vocab_size": None}, "'draft_vocab_size' is missing"),
        ({"draft_vocab_size": 40}, "'draft_vocab_size' is 40, but lm_head.weight has 32 rows"),
        ({"draft_vocab_size": "32"}, "'draft_vocab_size' is '32', expected a whole number"),
        ({"draft_vocab_size": True}, "'draft_vocab_size' is True"),
        ({"hidden_size": 32}, "'hidden_size' is 32, but norm.weight has 16 entries"),
        ({"hidden_size": "16"}, "'hidden_size' is '16', expected a whole number"),
        ({"hidden_size": ...}, "'hidden_size' is missing"),
        ({"num_attention_heads": 0}, "'num_attention_heads' is 0"),
        ({"num_attention_heads": None}, "'num_attention_heads' is missing"),
        ({"num_key_value_heads": "2"}, "'num_key_value_heads' is '2'"),
        ({"vocab_size": -5}, "'vocab_size' is -5"),
        ({"head_dim": "4"}, "'head_dim' is '4'"),
        ({"rms_norm_eps": "1e-6"}, "'rms_norm_eps' is '1e-6', expected a number"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' is nan"),
        ({"rope_theta": "ten"}, "'rope_theta' is 'ten'"),
        ({"rope_theta": -1}, "'rope_theta' is -1"),
        ({"rope_scaling": "yarn"}, "'rope_scaling' is 'yarn', expected an object"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "'rope_scaling.factor' is '2'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "'rope_parameters.full_attention'"),
        ({"partial_rotary_factor": 2}, "'partial_rotary_factor' is 2"),
        ({"max_position_embeddings": "128"}, "'max_position_embeddings' is '128'"),
        ({"num_hidden_layers": "1"}, "'num_hidden_layers' is '1'"),
        ({"hidden_act": 3}, "'hidden_act' is 3, expected text"),
        ({"norm_before_residual": "false"}, "'norm_before_residual' is 'false', expected true or false"),
        ({"eagle_config": [1]}, "'eagle_config' is [1], expected an object"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1,3,4"}},
         "'eagle_config.eagle_aux_hidden_state_layer_ids' is '1,3,4', expected a list of whole numbers"),
        ({"eagle_config": {"use_aux_hidden_state": "no"}}, "'eagle_config.use_aux_hidden_state' is 'no'"),
        ({"eagle_aux_hidden_state_layer_ids": [[1]]}, "'eagle_aux_hidden_state_layer_ids' is [[1]]"),
        ({"transformer_layer_config": [1]}, "'transformer_layer_config' is [1]"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_config_key_that_does_not_hold_what_it_should(folder, changes, says):
    tiny.edit_json(folder / "config.json", **changes)
    text = refused(folder)
    assert "config.json" in text
    assert says in text


def test_all_faults_of_a_config_are_one_error(folder):
    tiny.edit_json(folder / "config.json", vocab_size="64", rope_theta="x", head_dim=0)
    assert all(key in refused(folder) for key in ("vocab_size", "rope_theta", "head_dim"))


@pytest.mark.parametrize(
    "changes",
    [{"rms_norm_eps": None}, {"rope_theta": None}, {"hidden_act": None}, {"head_dim": None}, {"architectures": None},
     {"num_key_value_heads": None}, {"max_position_embeddings": None}, {"transformer_layer_config": None}],
    ids=str,
)  # fmt: skip
def test_a_null_counts_as_absent(folder, changes):
    tiny.edit_json(folder / "config.json", **changes)
    draft = Draft(folder, target_hidden=16, vocab=64)
    assert all(row.fits for row in draft.rows)
    assert (draft.arch.kv_heads, draft.arch.eps, draft.arch.activation) == (2, 1e-6, "silu")


def test_what_is_no_folder_is_said(folder, tmp_path):
    assert "no such folder; check [draft] path" in refused(tmp_path / "nowhere")
    assert "a file; expected the draft's folder" in refused(folder / "config.json")
    (folder / "config.json").unlink()
    assert "config.json: no such file" in refused(folder)


def test_a_map_that_cannot_be_read_names_the_numbers(folder):
    draft = Draft(change(folder, lambda t: t.update({"d2t": t["d2t"][:20]})), vocab=64)
    with pytest.raises(BadFile, match="gives 20 ids, but lm_head has 32 rows"):
        draft.vocab_map("offsets")


def test_a_full_vocabulary_needs_no_draft_vocab_size(tmp_path):
    tensors = tiny.draft_tensors(size=64)
    draft = Draft(tiny.write_folder(tmp_path, tensors, tiny.draft_config(draft_vocab_size=None)))
    assert draft.arch.draft_vocab == 64


def configured(folder: Path, **changes) -> Path:
    tiny.edit_json(folder / "config.json", **changes)
    return folder


def test_more_heads_than_rows_is_a_fault_of_the_config(folder):
    text = refused(configured(folder, num_attention_heads=1000, num_key_value_heads=None, head_dim=None))
    assert "key 'num_attention_heads' is 1000, but q_proj has 16 rows" in text


@pytest.mark.parametrize("key", ["kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"])
def test_widths_of_mla_are_numbers(folder, key):
    assert f"key {key!r} is '2', expected a whole number above 0" in refused(configured(folder, **{key: "2"}))


@pytest.mark.parametrize("number", ["3000000", "999999999"])
def test_a_layer_far_off_is_refused_at_once(folder, number):
    extra = {f"layers.{number}.self_attn.q_proj.weight": torch.ones(16, 16)}
    text = refused(change(folder, lambda t: t.update(extra)))
    assert f"layers 0, {number} are in the file, expected 0, 1, 2 … without a gap" in text
    assert len(text) < 2000


@pytest.mark.parametrize("number", ["²", "٣", "01", "9" * 5000, "x", "-1"])
def test_what_is_no_number_of_a_layer_is_an_unknown_tensor(tmp_path, number):
    name = f"layers.{number}.self_attn.q_proj.weight"
    tensors = tiny.draft_tensors() | {name: torch.ones(16, 16)}
    assert Draft(tiny.write_folder(tmp_path, tensors, tiny.draft_config())).unknown == [name]


def test_a_fused_export_is_named(tmp_path):
    tensors = tiny.draft_tensors()
    parts = [tensors.pop(f"midlayer.self_attn.{p}_proj.weight") for p in "qkv"]
    tensors["midlayer.self_attn.qkv_proj.weight"] = torch.cat(parts)
    with pytest.raises(BadFile, match="qkv_proj.weight: an engine's own fused form; rows are q, k, v"):
        Draft(tiny.write_folder(tmp_path, tensors, tiny.draft_config()))
