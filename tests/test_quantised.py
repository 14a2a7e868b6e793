"""Quantised tensors: each known form against its own formula, every other one refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file

from eagle3lab.case import open_case
from eagle3lab.checkpoint import Checkpoint
from eagle3lab.draft import Draft
from eagle3lab.errors import BadFile, Blocked
from eagle3lab.stats import all_stats
from eagle3lab.target import Target
from eagle3lab.tensors import open_tensors, quantised

GENERATOR = torch.Generator().manual_seed(7)
ROWS, WIDTH = 300, 200
FP8 = torch.randn(ROWS, WIDTH, generator=GENERATOR).to(torch.float8_e4m3fn)
INT8 = torch.randint(-128, 128, (ROWS, WIDTH), generator=GENERATOR, dtype=torch.int8)


def scale(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(3)) + 0.5


def grown(grid: torch.Tensor, high: int, wide: int) -> torch.Tensor:
    return grid.repeat_interleave(high, 0).repeat_interleave(wide, 1)[:ROWS, :WIDTH]


def opened(folder: Path, tensors: dict[str, torch.Tensor], config: dict | None = None):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: t.clone() for name, t in tensors.items()}, folder / "model.safetensors")
    files = open_tensors(folder)
    return files, quantised.forms(files, config or {})


KNOWN = {
    "fp8, scalar": (FP8, "weight_scale", scale().reshape(()), {}, lambda s: s, "fp8, one scale a tensor"),
    "fp8, [1]": (FP8, "weight_scale", scale(1), {}, lambda s: s, "fp8, one scale a tensor"),
    "fp8, [1, 1]": (FP8, "weight_scale", scale(1, 1), {}, lambda s: s, "fp8, one scale a tensor"),
    "fp8, [out]": (FP8, "weight_scale", scale(ROWS), {}, lambda s: s[:, None], "fp8, one scale a row"),
    "fp8, [out, 1]": (FP8, "weight_scale", scale(ROWS, 1), {}, lambda s: s, "fp8, one scale a row"),
    "DeepSeek": (FP8, "weight_scale_inv", scale(3, 2), {}, lambda s: grown(s, 128, 128), "fp8, one scale a block of 128 x 128"),
    "DeepSeek converted": (FP8, "scale", scale(3, 2), {}, lambda s: grown(s, 128, 128), "fp8, one scale a block of 128 x 128"),
    "HF blocks": (FP8, "weight_scale_inv", scale(5, 7), {"quantization_config": {"weight_block_size": [64, 32]}},
                  lambda s: grown(s, 64, 32), "fp8, one scale a block of 64 x 32"),
    "compressed-tensors blocks": (FP8, "weight_scale", scale(5, 2), {"quantization_config": {"config_groups": {"group_0": {
        "weights": {"strategy": "block", "block_structure": [64, 128]}}}}}, lambda s: grown(s, 64, 128), "fp8, one scale a block of 64 x 128"),
    "old block structure": (FP8, "weight_scale", scale(5, 2), {"quantization_config": {"config_groups": {"group_0": {
        "weights": {"block_structure": "64x128"}}}}}, lambda s: grown(s, 64, 128), "fp8, one scale a block of 64 x 128"),
    "E5M2": (FP8.float().to(torch.float8_e5m2), "weight_scale", scale(1), {}, lambda s: s, "fp8, one scale a tensor"),
    "int8, rows": (INT8, "weight_scale", scale(ROWS, 1), {}, lambda s: s, "int8, one scale a row"),
    "int8, tensor": (INT8, "scale", scale(1), {}, lambda s: s, "int8, one scale a tensor"),
    "int8, groups": (INT8, "weight_scale", scale(ROWS, 4), {}, lambda s: grown(s, 1, 50), "int8, one scale a block of 1 x 50"),
    "int8, bf16 scales": (INT8, "weight_scale", scale(ROWS, 1).bfloat16(), {}, lambda s: s.float(), "int8, one scale a row"),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_each_form_is_its_stored_number_times_its_scale(tmp_path, monkeypatch, name):
    monkeypatch.setattr(quantised, "AT_ONCE", 7 * WIDTH)  # several chunks, none of them whole blocks
    weight, part, factor, config, grow, words = KNOWN[name]
    files, forms = opened(tmp_path, {"a.weight": weight, f"a.{part}": factor}, config)
    form, expected = forms["a.weight"], weight.float() * grow(factor)
    assert (form.kind, form.scale, form.refused) == (words, f"a.{part}", "")
    assert torch.equal(quantised.read(files, "a.weight", form), expected)
    index = torch.tensor([299, 0, 130, 130])
    assert torch.equal(quantised.rows(files, "a.weight", index, form), expected[index])
    assert quantised.read(files, "a.weight", form, torch.bfloat16).dtype == torch.bfloat16
    assert quantised.companions(files, forms) == {f"a.{part}": "scale of a.weight: multiplied on reading"}


@pytest.mark.parametrize("zero", ["weight_zero_point", "zero_point"])
def test_a_zero_point_is_taken_off_first(tmp_path, zero):
    points = torch.arange(ROWS, dtype=torch.int8)[:, None]
    files, forms = opened(tmp_path, {"a.weight": INT8, "a.weight_scale": scale(ROWS, 1), f"a.{zero}": points})
    expected = (INT8.float() - points.float()) * scale(ROWS, 1)
    assert torch.equal(quantised.read(files, "a.weight", forms["a.weight"]), expected)
    assert "zero point" in quantised.companions(files, forms)[f"a.{zero}"]


def test_a_quantised_vector_has_one_scale(tmp_path):
    files, forms = opened(tmp_path, {"n.weight": FP8[0], "n.weight_scale": scale(1)})
    expected = FP8[0].float() * scale(1)
    assert torch.equal(quantised.read(files, "n.weight", forms["n.weight"]), expected)
    assert torch.equal(quantised.rows(files, "n.weight", torch.tensor([5, 1]), forms["n.weight"]), expected[[5, 1]])


U8 = torch.zeros(8, 4, dtype=torch.uint8)
I32 = torch.zeros(8, 4, dtype=torch.int32)
REFUSED = {
    "gptq": ({"a.qweight": I32, "a.qzeros": I32, "a.scales": scale(8, 4), "a.g_idx": I32[:, 0]}, "GPTQ or AWQ", "a.qweight"),
    "awq": ({"a.qweight": I32, "a.qzeros": I32, "a.scales": scale(8, 4)}, "GPTQ or AWQ", "a.qweight"),
    "compressed-tensors": ({"a.weight_packed": I32, "a.weight_scale": scale(8, 4), "a.weight_shape": torch.tensor([8, 32])}, "compressed-tensors", "a.weight_packed"),
    "nvfp4 of modelopt": ({"a.weight": U8, "a.weight_scale": scale(8, 1).to(torch.float8_e4m3fn), "a.weight_scale_2": scale(1)}, "nvfp4", "a.weight_scale_2"),
    "nvfp4 of compressed-tensors": ({"a.weight_packed": U8, "a.weight_scale": scale(8, 1).to(torch.float8_e4m3fn), "a.weight_global_scale": scale(1)}, "compressed-tensors", "a.weight_packed"),
    "fp8 group scales": ({"a.weight": U8, "a.weight_scale": scale(8, 1).to(torch.float8_e4m3fn)}, "U8 weights", "a.weight"),
    "mxfp8": ({"a.weight": FP8, "a.weight_scale": torch.ones(ROWS, 7, dtype=torch.uint8)}, "scales in U8", "a.weight_scale"),
    "bitsandbytes 4-bit": ({"a.weight": U8, "a.weight.absmax": U8[0], "a.weight.quant_map": scale(16), "a.weight.quant_state.bitsandbytes__nf4": U8[0], "a.weight.nested_absmax": scale(2)}, "bitsandbytes", "a.weight.absmax"),
    "bitsandbytes 8-bit": ({"a.weight": INT8, "a.SCB": scale(ROWS), "a.weight_format": U8[0, 0]}, "LLM.int8()", "a.SCB"),
    "mxfp4": ({"e.gate_up_proj_blocks": U8, "e.gate_up_proj_scales": U8}, "mxfp4", "e.gate_up_proj_blocks"),
    "smoothed": ({"a.weight": INT8, "a.weight_scale": scale(ROWS, 1), "a.pre_quant_scale": scale(WIDTH)}, "SmoothQuant", "a.pre_quant_scale"),
    "fp8 alone": ({"a.weight": FP8}, "F8_E4M3 without a scale", "a.weight"),
    "int8 alone": ({"a.weight": INT8, "a.input_scale": scale(1)}, "I8 without a scale", "a.weight"),
    "int32": ({"a.weight": I32}, "I32 weights", "a.weight"),
    "mlx": ({"a.weight": I32.to(torch.uint32), "a.scales": scale(8, 1).bfloat16(), "a.biases": scale(8, 1).bfloat16()}, "MLX", "a.biases"),
    "mlx mxfp4": ({"a.weight": I32.to(torch.uint32), "a.scales": U8}, "U32 weights", "a.weight"),
    "quanto": ({"a.weight._data": INT8, "a.weight._scale": scale(ROWS, 1), "a.input_scale": scale(1)}, "quanto", "a.weight._data"),
    "torchao": ({"a._weight_qdata": INT8, "a._weight_scale": scale(ROWS, 1)}, "torchao", "a._weight_qdata"),
    "hqq": ({"a.W_q": U8, "a.scale": scale(8), "a.zero": scale(8), "a.nbits": torch.tensor(4), "a.shape": torch.tensor([8, 8])}, "HQQ", "a.W_q"),
    "aqlm": ({"a.codes": I32, "a.codebooks": scale(4, 4), "a.scales": scale(8)}, "AQLM", "a.codes"),
    "quip": ({"a.Qidxs": I32, "a.SU": scale(8), "a.SV": scale(8)}, "QuIP", "a.Qidxs"),
    "eetq": ({"a.weight": INT8, "a.weight_scales": scale(WIDTH)}, "EETQ", "a.weight_scales"),
    **{f"dtype {dtype}": ({"a.weight": torch.ones(8, 4).to(dtype), "a.weight_scale": scale(1)}, f"{word} weights", "a.weight") for dtype, word in {
        torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e8m0fnu: "F8_E8M0", torch.bool: "BOOL",
        torch.uint16: "U16", torch.uint64: "U64", torch.int16: "I16", torch.complex64: "C64"}.items()},
    "a scale of another shape": ({"a.weight": FP8, "a.weight_scale_inv": scale(4, 2)}, "[4, 2] fits [300, 200] neither", "a.weight"),
    "by input channel": ({"a.weight": FP8, "a.weight_scale": scale(WIDTH)}, "[200] fits [300, 200] neither", "a.weight"),
    "zero point of another shape": ({"a.weight": INT8, "a.weight_scale": scale(ROWS, 1), "a.weight_zero_point": INT8[:2, :1]}, "zero point [2, 1]", "a.weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_form_that_is_not_understood_is_refused_by_name(tmp_path, name):
    tensors, words, tensor = REFUSED[name]
    files, forms = opened(tmp_path, tensors)
    ((weight, form),) = forms.items()
    assert words in form.refused
    assert "export" in form.refused
    for call in (
        lambda: quantised.read(files, weight, form),
        lambda: quantised.rows(files, weight, torch.tensor([0]), form),
    ):
        with pytest.raises(Blocked) as caught:
            call()
        assert weight in str(caught.value)
        assert tensor in str(caught.value)
    spare = set(tensors) - set(quantised.companions(files, forms))
    assert spare <= {"a.weight"}  # every other tensor belongs to the form


def test_scales_of_what_is_no_weight_say_why_they_are_not_used(tmp_path):
    tensors = {f"a.{part}": scale(1) for part in quantised.UNUSED} | {"a.weight": torch.ones(2, 2)}
    files, forms = opened(tmp_path, tensors)
    assert forms == {"a.weight": quantised.PLAIN}
    found = quantised.companions(files, forms)
    assert set(found) == set(tensors) - {"a.weight"}
    assert "cache" in found["a.k_scale"]


def test_a_scale_beside_a_plain_weight_is_not_applied(tmp_path):
    files, forms = opened(tmp_path, {"a.weight": torch.ones(2, 2), "a.weight_scale": scale(1)})
    assert forms["a.weight"].plain
    assert torch.equal(quantised.read(files, "a.weight", forms["a.weight"]), torch.ones(2, 2))
    assert "F32: not applied" in quantised.companions(files, forms)["a.weight_scale"]


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": 3},
        {"quantization_config": {"weight_block_size": [0, "x"], "group_size": -1, "config_groups": 5}},
        {"quantization": [1]},
    ],
)
def test_a_config_that_is_none_is_no_hindrance(tmp_path, config):
    files, forms = opened(tmp_path, {"a.weight": FP8, "a.weight_scale": scale(1)}, config)
    assert not forms["a.weight"].refused


def quantise(tensors: dict, names: tuple[str, ...]) -> dict:
    """Blocks of fp8 in DeepSeek's way for the named matrices."""
    out = dict(tensors)
    for name in names:
        weight = tensors[name]
        grid = torch.stack(
            [torch.stack([b.abs().amax() / 448 for b in row.split(128, 1)]) for row in weight.split(128)]
        )
        wide = grid.repeat_interleave(128, 0).repeat_interleave(128, 1)[: len(weight), : weight.shape[1]]
        out[name] = (weight / wide).to(torch.float8_e4m3fn)
        out[f"{name}_scale_inv"] = grid
    return out


def test_a_quantised_draft_gives_its_numbers_and_names_its_scales(tmp_path):
    plain = tiny.draft_tensors()
    names = ("fc.weight", "midlayer.self_attn.q_proj.weight", "midlayer.mlp.down_proj.weight")
    tiny.write_folder(
        tmp_path,
        quantise(plain, names),
        tiny.draft_config(quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}),
    )
    draft = Draft(tmp_path)
    assert draft.unknown == []
    assert set(draft.files.companions) == {f"{name}_scale_inv" for name in names}
    for name in ("fc.weight", "layers.0.self_attn.q_proj.weight"):
        stored = name.replace("layers.0", "midlayer")
        assert draft.weight(name).dtype == torch.float32
        assert torch.allclose(draft.weight(name), plain[stored], atol=0.08 * float(plain[stored].abs().max()))
        assert torch.equal(draft.weight_rows(name, torch.tensor([3, 1])), draft.weight(name)[[3, 1]])
    found = all_stats(draft.files.measurable, draft.files.read, draft.files.rows)
    assert found["fc.weight"].norm == pytest.approx(float(draft.weight("fc.weight").double().norm()))


def test_a_packed_draft_is_refused_with_its_form(tmp_path):
    tensors = tiny.draft_tensors()
    del tensors["midlayer.self_attn.q_proj.weight"]
    tensors |= {"midlayer.self_attn.q_proj.qweight": I32, "midlayer.self_attn.q_proj.scales": scale(8, 4)}
    tiny.write_folder(tmp_path, tensors, tiny.draft_config())
    with pytest.raises(
        BadFile, match=r"q_proj\.weight: GPTQ or AWQ, packed 4-bit integers \(midlayer\.self_attn\.q_proj\.qweight\)"
    ):
        Draft(tmp_path)


def test_an_fp8_draft_without_scales_opens_and_is_not_read(tmp_path):
    tensors = tiny.draft_tensors()
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.float8_e4m3fn)
    tiny.write_folder(tmp_path, tensors, tiny.draft_config())
    draft = Draft(tmp_path)
    with pytest.raises(Blocked, match=r"'fc\.weight': F8_E4M3 without a scale"):
        draft.weight("fc.weight")
    assert "fc.weight" not in draft.files.measurable


def test_modelopts_own_file_states_the_blocks(tmp_path):
    tensors = {"a.weight": FP8, "a.weight_scale": scale(5, 4)}
    tiny.write_folder(tmp_path, tensors, {})
    assert Checkpoint(tmp_path).forms["a.weight"].refused
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"quantization": {"quant_algo": "FP8_PB_WO", "weight_block_size": [64, 64]}})
    )
    assert Checkpoint(tmp_path).forms["a.weight"].block == (64, 64)


def test_a_quantised_target_gives_rows(tmp_path):
    plain = tiny.target_tensors()
    tiny.write_folder(tmp_path, quantise(plain, ("lm_head.weight",)), tiny.target_config())
    target = Target(tmp_path)
    rows = target.head(torch.tensor([7, 63]))
    assert rows.dtype == torch.float32
    assert torch.allclose(rows, plain["lm_head.weight"][[7, 63]], rtol=0.07)
    assert torch.equal(rows, target.head()[[7, 63]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_plain_floats_of_every_width_are_read(tmp_path, dtype):
    files, forms = opened(tmp_path, {"a.weight": torch.ones(8, 4, dtype=dtype), "a.bias": torch.ones(8, dtype=dtype)})
    assert forms == {"a.weight": quantised.PLAIN}
    assert quantised.read(files, "a.weight", forms["a.weight"]).dtype == dtype


def test_a_bias_of_integers_is_refused(tmp_path):
    files, forms = opened(tmp_path, {"a.weight": torch.ones(8, 4), "a.bias": INT8[0, :8]})
    assert "I8 numbers (a.bias)" in forms["a.bias"].refused
    assert forms["a.weight"].plain


STRANGE = {
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64", torch.bool: "BOOL",
}  # fmt: skip


@pytest.mark.parametrize("archive", [False, True], ids=["safetensors", "torch"])
@pytest.mark.parametrize("dtype", STRANGE, ids=STRANGE.values())
def test_dtypes_that_are_not_known_are_never_read_as_numbers(tmp_path, dtype, archive):
    """AMD's fp8 (FNUZ) has another bias of the exponent: read as plain numbers it is twice too large, unscaled."""
    draft, target = tiny.draft_tensors(), tiny.target_tensors()
    draft["fc.weight"] = draft["fc.weight"].to(dtype)
    draft["fc.weight_scale"] = torch.ones(1)
    target["lm_head.weight"] = target["lm_head.weight"].to(dtype)
    for name, tensors, config in (("d", draft, tiny.draft_config()), ("t", target, tiny.target_config())):
        folder = tiny.write_folder(tmp_path / name, tensors, config)
        if archive:
            (folder / "model.safetensors").unlink()
            torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(Blocked, match=rf"'fc\.weight': {STRANGE[dtype]} weights"):
        Draft(tmp_path / "d").weight("fc.weight")
    with pytest.raises(Blocked, match=rf"'lm_head\.weight': {STRANGE[dtype]} weights"):
        Target(tmp_path / "t").head(torch.tensor([1]))


PACKED = {
    "nvfp4": ({"fc.weight": U8, "fc.weight_scale": scale(8, 1).to(torch.float8_e4m3fn), "fc.weight_scale_2": scale(1)}, "nvfp4 of modelopt"),
    "bnb4": ({"fc.weight": U8.view(-1, 1), "fc.weight.absmax": scale(4), "fc.weight.quant_map": scale(16)}, "bitsandbytes, packed 4-bit"),
    "mlx": ({"fc.weight": I32.to(torch.uint32), "fc.scales": scale(8, 1), "fc.biases": scale(8, 1)}, "MLX"),
    "head": ({"lm_head.qweight": I32, "lm_head.scales": scale(8, 4)}, "GPTQ or AWQ"),
    "embedding": ({"embed_tokens.W_q": U8, "embed_tokens.scale": scale(8)}, "HQQ"),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_weight_is_the_first_thing_said_of_a_draft(tmp_path, name):
    """Its stored shape is not its own: what is solved from it, and every later finding, would be about a phantom."""
    parts, words = PACKED[name]
    layer = next(iter(parts)).split(".")[0]
    case = tiny.write_case(tmp_path)
    tiny.edit(case.parent / "draft" / "model.safetensors", lambda t: (t.pop(f"{layer}.weight", None), t.update(parts)))
    with pytest.raises(BadFile, match=rf"{layer}\.weight: {words}"):
        Draft(case.parent / "draft")
    found = open_case(case).findings("weights", "forward")
    assert [f.code for f in found if f.severity.value == "FAIL"] == ["C001"]
