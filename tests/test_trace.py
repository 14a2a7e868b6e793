"""The shape trace: every operation with its numbers, and what a mismatch means, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from eagle3lab.draft import Draft
from eagle3lab.errors import BadShape
from eagle3lab.reading import Reading
from eagle3lab.trace import trace

Q = "midlayer.self_attn.q_proj.weight"
READING = Reading(aux=tiny.AUX)


def draft(folder: Path, change=None, config: dict | None = None, **shape) -> Draft:
    tensors = tiny.draft_tensors(**shape)
    if change:
        change(tensors)
    return Draft(tiny.write_folder(folder, tensors, tiny.draft_config(**config or {})), target_hidden=16, vocab=64)


def misfit(found: Draft, reading: Reading = READING, width: int | None = None) -> BadShape:
    with pytest.raises(BadShape) as caught:
        trace(found, reading, 9, width)
    return caught.value


def test_the_trace_has_every_operation_with_its_shapes(tmp_path):
    steps = {op.name: op for op in trace(draft(tmp_path), READING, 9)}
    assert list(steps) == [
        "aux states", "fc", "embedding", "input_layernorm", "hidden_norm", "cat", "q_proj", "k_proj", "v_proj",
        "attention", "o_proj", "post_attention_layernorm", "gate_proj", "up_proj", "down_proj", "norm", "lm_head",
        "hot_token_id",
    ]  # fmt: skip
    assert (steps["fc"].takes, steps["fc"].weight_shape, steps["fc"].gives) == ((9, 48), (16, 48), (9, 16))
    assert (steps["q_proj"].takes, steps["q_proj"].weight) == ((9, 32), Q)
    assert steps["k_proj"].gives == (9, 8)
    assert steps["lm_head"].gives == (9, 32)


def take_h(tensors: tiny.Tensors, which: str) -> None:
    for p in which:
        name = f"midlayer.self_attn.{p}_proj.weight"
        tensors[name] = tensors[name][:, :16]


@pytest.mark.parametrize("which", ["q", "k", "v", "qkv"])
def test_a_projection_that_takes_h_where_2h_is_fed_is_explained(tmp_path, which):
    error = misfit(draft(tmp_path, lambda t: take_h(t, which)))
    assert error.operation == f"midlayer {which[0]}_proj"
    assert f"{which[0]}_proj.weight" in error.found
    assert "takes width 16" in error.found
    assert error.expected == "width 32 arrives"
    assert "2H = 32" in error.hypotheses[0]
    assert "EAGLE-1/2" in error.hypotheses[0]
    assert "1. the weight takes H = 16" in str(error)


def test_a_later_layer_that_takes_2h_is_numbered_wrongly(tmp_path):
    def widen(tensors):
        for p in "qkv":
            name = f"layers.1.self_attn.{p}_proj.weight"
            tensors[name] = torch.ones(tensors[name].shape[0], 32)

    error = misfit(draft(tmp_path, widen, layers=2))
    assert error.operation == "layer 1 q_proj"
    assert "only the first layer" in error.hypotheses[0]


def test_two_layers_fit(tmp_path):
    names = [op.name for op in trace(draft(tmp_path, layers=2), READING, 9)]
    assert names.count("q_proj") == 2
    assert names.count("cat") == 1


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"num_key_value_heads": 4}, "that is 2 kv heads, config.json says num_key_value_heads = 4"),
        ({"num_key_value_heads": 1}, "that is 2 kv heads, config.json says num_key_value_heads = 1"),
        ({"num_attention_heads": 8}, "with 8 heads of 2 that is 4 kv heads"),
    ],
)
def test_wrong_head_counts_name_the_key(tmp_path, config, says):
    error = misfit(draft(tmp_path, config=config))
    assert error.operation == "midlayer k_proj"
    assert says in error.hypotheses[0]


def test_query_and_key_rows_alike_mean_as_many_kv_heads(tmp_path):
    def alike(tensors):
        for p in "qkv":
            tensors[f"midlayer.self_attn.{p}_proj.weight"] = torch.ones(16, 32)

    assert "num_key_value_heads should be 4" in misfit(draft(tmp_path, alike)).hypotheses[0]


def test_an_eagle_1_fc_is_recognised(tmp_path):
    error = misfit(draft(tmp_path, lambda t: t.update({"fc.weight": torch.ones(16, 32)})))
    assert error.operation == "fc"
    assert "EAGLE-1/2" in error.hypotheses[0]
    assert "takes 2 states of 16, the reading names 3" in error.hypotheses[1]


def test_states_of_another_width_are_recognised(tmp_path):
    error = misfit(draft(tmp_path), width=24)
    assert (error.found, error.expected) == ("model.safetensors: fc.weight [16, 48] takes width 48", "width 72 arrives")
    assert any("recorded from another target" in cause for cause in error.hypotheses)


@pytest.mark.parametrize("aux", [(2, 4), (2, 4, 5, 8)])
def test_too_few_and_too_many_states_say_how_many_fc_takes(tmp_path, aux):
    causes = misfit(draft(tmp_path), Reading(aux=aux)).hypotheses
    assert any("give 3 boundaries" in cause for cause in causes)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("fc.weight", (20, 48)), ("midlayer.hidden_norm.weight", (8,)), ("midlayer.hidden_norm.weight", (1,)),
        ("midlayer.input_layernorm.weight", (1,)), ("midlayer.post_attention_layernorm.weight", (1,)),
        ("midlayer.self_attn.o_proj.weight", (20, 16)), ("midlayer.self_attn.o_proj.weight", (16, 20)),
        ("midlayer.mlp.gate_proj.weight", (24, 20)), ("midlayer.mlp.up_proj.weight", (20, 16)),
        ("midlayer.mlp.down_proj.weight", (16, 20)), ("midlayer.mlp.down_proj.weight", (20, 24)),
        ("lm_head.weight", (32, 8)), ("fc.bias", (1,)), ("midlayer.self_attn.q_proj.bias", (1,)),
    ],
)  # fmt: skip
def test_no_tensor_of_a_wrong_size_gets_through(tmp_path, name, shape):
    """One entry is the trap: torch would stretch it without a word."""
    error = misfit(draft(tmp_path, lambda t: t.update({name: torch.ones(shape)})))
    assert name in error.found
    assert str(list(shape)) in error.found


def test_what_the_reading_does_not_use_may_have_any_size(tmp_path):
    found = draft(tmp_path, lambda t: t.update({"fc.bias": torch.ones(1), "embed_tokens.weight": torch.ones(64, 20)}))
    assert trace(found, READING.replace(dropped=("fc.bias",)), 9)
    with pytest.raises(BadShape, match="embed_tokens"):
        trace(found, READING.replace(dropped=("fc.bias",), embedding="own"), 9)


def latent(tensors):
    for p in "qkv":
        tensors.pop(f"midlayer.self_attn.{p}_proj.weight")
    # heads of 4 unrotated and 2 rotated channels, values of 3, latent of 6
    low = {"q_a_proj": (5, 32), "q_a_layernorm": (5,), "q_b_proj": (24, 5)}
    for name, shape in {**low, "kv_a_proj_with_mqa": (8, 32), "kv_a_layernorm": (6,), "kv_b_proj": (28, 6),
                        "o_proj": (16, 12)}.items():  # fmt: skip
        tensors[f"midlayer.self_attn.{name}.weight"] = torch.ones(shape)


def test_latent_attention_is_traced_and_its_mismatch_named(tmp_path):
    operations = trace(draft(tmp_path / "sound", latent), READING, 9)
    gives = {o.name: o.gives for o in operations}
    assert gives["q_b_proj"] == (9, 24)
    assert gives["kv_a_proj_with_mqa"] == (9, 8)
    assert gives["kv_b_proj"] == (9, 28)
    assert gives["latent attention"] == (9, 12)

    def narrow(tensors):
        latent(tensors)
        tensors["midlayer.self_attn.kv_b_proj.weight"] = torch.ones(28, 7)

    with pytest.raises(BadShape, match=r"(?s)kv_b_proj.*\[28, 7\] takes width 7; width 6 arrives.*kv_lora_rank"):
        trace(draft(tmp_path / "narrow", narrow), READING, 9)


TURNED = {
    "fc.weight": ("[A·Ht, H]", "[48, 16]"),
    "midlayer.self_attn.q_proj.weight": ("[2H, nh·d]", "[32, 16]"),
    "midlayer.self_attn.k_proj.weight": ("[2H, nkv·d]", "[32, 8]"),
    "midlayer.self_attn.v_proj.weight": ("[2H, nkv·d]", "[32, 8]"),
    "midlayer.mlp.gate_proj.weight": ("[H, I]", "[16, 24]"),
    "midlayer.mlp.up_proj.weight": ("[H, I]", "[16, 24]"),
    "midlayer.mlp.down_proj.weight": ("[I, H]", "[24, 16]"),
    "layers.1.self_attn.k_proj.weight": ("[H, nkv·d]", "[16, 8]"),
    "layers.1.mlp.down_proj.weight": ("[I, H]", "[24, 16]"),
    "embed_tokens.weight": ("[H, V]", "[16, 64]"),
}
"""Square ones, here o_proj, show nothing."""


@pytest.mark.parametrize("name", TURNED)
def test_a_transposed_matrix_is_recognised_from_its_shape(tmp_path, name):
    symbols, shape = TURNED[name]

    def turn(tensors):
        tensors["embed_tokens.weight"] = torch.ones(64, 16)
        tensors[name] = tensors[name].T.contiguous()

    error = misfit(draft(tmp_path, turn, layers=2), READING.replace(embedding="own"))
    assert name in error.found
    assert error.hypotheses[0].startswith(f"stored transposed: {name} is {shape} = {symbols}")
    assert "transpose it on export" in error.hypotheses[0]
    assert not any("give 1 boundaries" in cause or "EAGLE-1/2" in cause for cause in error.hypotheses)


def test_o_proj_is_recognised_where_its_heads_are_not_as_wide_as_the_state(tmp_path):
    def wide(tensors):
        for p, rows in (("q", 32), ("k", 16), ("v", 16)):
            tensors[f"midlayer.self_attn.{p}_proj.weight"] = torch.ones(rows, 32)
        tensors["midlayer.self_attn.o_proj.weight"] = torch.ones(32, 16)

    error = misfit(draft(tmp_path, wide, {"head_dim": 8}))
    assert error.hypotheses[0].startswith("stored transposed: midlayer.self_attn.o_proj.weight is [32, 16] = [nh·d, H]")


def test_all_matrices_transposed_show_at_the_first(tmp_path):
    def turn(tensors):
        tensors.update({n: t.T.contiguous() for n, t in tensors.items() if t.dim() == 2 and n != "lm_head.weight"})

    assert misfit(draft(tmp_path, turn)).hypotheses[0].startswith("stored transposed: fc.weight")


def test_a_plain_layer_of_wide_heads_is_no_transposed_one(tmp_path):
    """q_proj [2H, H] of a layer that takes H, with heads of twice the usual width: o_proj tells."""

    def plain(tensors):
        for p, rows in (("q", 32), ("k", 16), ("v", 16)):
            tensors[f"midlayer.self_attn.{p}_proj.weight"] = torch.ones(rows, 16)
        tensors["midlayer.self_attn.o_proj.weight"] = torch.ones(16, 32)

    error = misfit(draft(tmp_path, plain, {"head_dim": None}))
    assert "plain decoder layer" in error.hypotheses[0]
