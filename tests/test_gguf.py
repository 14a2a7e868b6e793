"""GGUF: against the writer's own package and against the HF twin it was converted from; hostile headers refused."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

from eagle3lab import rope
from eagle3lab.checks import weights
from eagle3lab.dialects import llamacpp
from eagle3lab.dialects.common import canonical
from eagle3lab.draft import Draft
from eagle3lab.errors import BadFile, Blocked
from eagle3lab.tensors import open_tensors
from eagle3lab.tensors.gguf_file import GgufFile

FIXTURES = Path(__file__).parent / "fixtures" / "gguf"
FILES = sorted(FIXTURES.rglob("*.gguf"))
GENERATOR = np.random.default_rng(5)


def written(file: Path, tensors: dict[str, tuple[np.ndarray, Kind]], **fields) -> Path:
    """A GGUF made by the package's own writer; quantised kinds are quantised by it."""
    writer = gguf.GGUFWriter(file, "llama")
    for key, value in fields.items():
        writer.add_key_value(key.replace("__", "."), *value)
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def refused(file: Path) -> str:
    started = time.monotonic()
    with pytest.raises(BadFile) as caught:
        GgufFile(file)
    assert time.monotonic() - started < 3
    assert file.name in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_all_is_read_as_the_package_reads_it(file):
    mine, theirs = GgufFile(file), gguf.GGUFReader(file)
    expected = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert {key: list(v) if isinstance(v, (list, tuple)) else v for key, v in mine.fields.items()} == expected
    assert list(mine.infos) == [t.name for t in theirs.tensors]
    for tensor in theirs.tensors:
        info = mine.infos[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert (info.dtype, info.nbytes) == (tensor.tensor_type.name, tensor.n_bytes)
        values = mine.read(tensor.name)
        if tensor.tensor_type.name.startswith("I"):
            assert torch.equal(values, torch.from_numpy(tensor.data.copy()))
        else:
            assert torch.equal(
                values.float(), torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
            )


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1])
def test_rows_are_those_of_the_whole(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("eagle3lab.tensors.gguf_file.AT_ONCE", 200)  # a few rows at a time
    values = GENERATOR.standard_normal((37, 64), np.float32)
    file = GgufFile(written(tmp_path / "x.gguf", {"a": (values, kind)}))
    whole = file.read("a")
    assert whole.shape == (37, 64)
    assert torch.allclose(whole.float(), torch.from_numpy(values), atol=0.6)
    index = torch.tensor([36, 0, 5, 5])
    assert torch.equal(file.rows("a", index), whole[index])
    assert file.rows("a", torch.empty(0, dtype=torch.long)).shape == (0, 64)
    whole[0] = 0  # ours to change: neither the file nor a second look changes
    assert not torch.equal(file.read("a"), whole)


@pytest.mark.parametrize("shape", [(32,), (3, 4, 32)])
def test_other_numbers_of_axes(tmp_path, shape):
    values = GENERATOR.standard_normal(shape, np.float32)
    file = GgufFile(written(tmp_path / "x.gguf", {"a": (values, Kind.Q8_0)}))
    assert file.read("a").shape == shape
    assert torch.equal(file.rows("a", torch.tensor([2, 0])), file.read("a")[[2, 0]])


def test_plain_values_and_long_arrays(tmp_path):
    words = [f"▁w{i}" for i in range(5000)]
    kind = gguf.GGUFValueType
    file = GgufFile(written(
        tmp_path / "x.gguf", {"a": (np.ones((2, 2), np.float32), Kind.F32)},
        a__flag=(True, kind.BOOL), a__small=(-3, kind.INT8), a__big=(2**63, kind.UINT64), a__real=(0.5, kind.FLOAT64),
        a__words=(words, kind.ARRAY), a__numbers=(list(range(9000)), kind.ARRAY), a__text=("ä", kind.STRING),
    ))  # fmt: skip
    assert [file.fields[f"a.{key}"] for key in ("flag", "small", "big", "real", "text")] == [True, -3, 2**63, 0.5, "ä"]
    assert len(file.fields["a.words"]) == 5000
    assert list(file.fields["a.words"]) == words
    assert file.fields["a.numbers"][8999] == 8999
    assert file.fields["a.numbers"][:2] == [0, 1]
    assert file.metadata["a.small"] == "-3"
    assert "a.words" not in file.metadata


# Hostile and broken files ------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(
    *, magic: bytes = b"GGUF", version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"", order: str = "<"
) -> bytes:
    return magic + struct.pack(f"{order}IQQ", version, tensors, keys) + rest


def tensor(
    name: str = "a", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0, axes: int | None = None
) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape) if axes is None else axes, *shape, kind, offset)


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


HOSTILE = {
    "another magic": (header(magic=b"GGML"), "starts with b'GGML'"),
    "empty": (b"", "starts with b''"),
    "a git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    "version 1": (header(version=1), "GGUF version 1, expected version 2 or 3"),
    "version 99": (header(version=99), "GGUF version 99"),
    "big-endian": (header(order=">"), "big-endian"),
    "2^60 tensors": (header(tensors=2**60, rest=bytes(100)), f"claims {2**60} tensors in a file of"),
    "2^60 keys": (header(keys=2**60, rest=bytes(100)), f"claims {2**60} keys in a file of"),
    "more keys than there is room": (header(keys=9, rest=bytes(40)), "claims 9 keys in a file of 64"),
    "a key of 2^60 letters": (header(keys=1, rest=struct.pack("<Q", 2**60) + bytes(50)), f"a key claims {2**60} bytes where 50 are left"),
    "a text of 2^63 letters": (header(keys=1, rest=key("a.b", 8, struct.pack("<Q", 2**63)) + bytes(99)), f"'a.b' claims {2**63} bytes"),
    "an array of 2^60": (header(keys=1, rest=key("a.b", 9, struct.pack("<IQ", 4, 2**60)) + bytes(99)), f"'a.b' claims {2**60} elements"),
    "strings beyond the file": (header(keys=1, rest=key("a.b", 9, struct.pack("<IQ", 8, 50)) + bytes(99)), "'a.b' claims 50 elements where 99 bytes are left"),
    "a string within beyond the file": (header(keys=1, rest=key("a.b", 9, struct.pack("<IQQ", 8, 2, 2**40)) + bytes(99)), f"claims {2**40} bytes"),
    "arrays within arrays": (header(keys=1, rest=key("a.b", 9, struct.pack("<IQ", 9, 1) * 900)), "nests arrays"),
    "an unknown value type": (header(keys=1, rest=key("a.b", 77, bytes(50))), "value type 77"),
    "an unknown element type": (header(keys=1, rest=key("a.b", 9, struct.pack("<IQ", 77, 2)) + bytes(99)), "value type 77"),
    "a key twice": (header(keys=2, rest=2 * key("a.b", 0, b"\1") + bytes(99)), "'a.b' is there twice"),
    "a tensor twice": (header(tensors=2, rest=2 * tensor() + bytes(99)), "tensor 'a' is there twice"),
    "a tensor of 2^32 axes": (header(tensors=1, rest=tensor(axes=2**32 - 1) + bytes(99)), "has 4294967295 axes"),
    "a tensor of 2^80 numbers": (header(tensors=1, rest=tensor(shape=(2**40, 2**40)) + bytes(99)), "cut off: tensor 'a' ends at byte"),
    "a tensor past the end": (header(tensors=1, rest=tensor(offset=2**62) + bytes(99)), "cut off: tensor 'a' ends at byte"),
    "an unknown type": (header(tensors=1, rest=tensor(kind=250) + bytes(99)), "of GGML type 250, unknown"),
    "half a block": (header(tensors=1, rest=tensor(shape=(33,), kind=8) + bytes(99)), "Q8_0 with rows of 33"),
    "alignment 0": (header(keys=1, rest=key("general.alignment", 4, bytes(4)) + bytes(99)), "'general.alignment' is 0"),
    "alignment 33": (header(keys=1, rest=key("general.alignment", 4, struct.pack("<I", 33)) + bytes(99)), "'general.alignment' is 33"),
    "a part of a split model": (header(keys=1, rest=key("split.count", 2, struct.pack("<H", 3)) + bytes(99)), "one of 3 parts"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_or_foreign_file_is_refused_at_once(tmp_path, name):
    content, says = HOSTILE[name]
    (tmp_path / "x.gguf").write_bytes(content)
    assert says in refused(tmp_path / "x.gguf")


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path):
    content = (FIXTURES / "draft" / "draft-q8_0.gguf").read_bytes()
    file = tmp_path / "x.gguf"
    for size in [*range(60), *range(60, len(content), 97), len(content) - 33]:
        file.write_bytes(content[:size])
        refused(file)


def test_no_single_changed_byte_of_the_header_breaks_more_than_the_file(tmp_path):
    content = (FIXTURES / "draft" / "draft-q8_0.gguf").read_bytes()
    file = tmp_path / "x.gguf"
    for place in range(0, 3000, 11):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        file.write_bytes(changed)
        try:
            found = GgufFile(file)
            [found.read(name) for name in found.infos]
        except BadFile as error:
            assert "x.gguf" in str(error)


@pytest.mark.parametrize("start", [
    header(tensors=2**17, keys=0), header(keys=2**16),
    header(keys=1, rest=key("a.b", 9, struct.pack("<IQ", 8, 2**30))),
    header(keys=1, rest=key("a.b", 9, struct.pack("<IQ", 9, 2**20))),
    header(keys=1, rest=key("a.b", 9, struct.pack("<IQ", 0, 2**33))),
])  # fmt: skip
def test_ten_gigabytes_of_nothing_are_refused_fast(tmp_path, start):
    file = tmp_path / "x.gguf"
    file.write_bytes(start)
    os.truncate(file, 10 << 30)
    try:
        refused(file)
    except pytest.fail.Exception:
        assert len(GgufFile(file).infos) == 0  # an array of 8 G small numbers is possible, and nothing of it is read


def test_a_type_that_cannot_be_dequantised_is_named(tmp_path):
    start = header(tensors=1, rest=tensor(shape=(256,), kind=int(Kind.Q8_K)))
    (tmp_path / "x.gguf").write_bytes(start + bytes(2000))
    file = GgufFile(tmp_path / "x.gguf")
    assert file.infos["a"].dtype == "Q8_K"
    with pytest.raises(BadFile, match="'a' is Q8_K, which the gguf package cannot dequantise; convert"):
        file.read("a")


# Drafts ------------------------------------------------------------------------------------------------------------

TWINS = [("draft", "draft-f16", 4e-4), ("draft", "draft-bf16", 4e-3), ("draft", "draft-q8_0", 5e-3),
         ("draft", "draft-f16-extract-layers", 4e-4), ("wide", "draft-q8_0", 5e-3)]  # fmt: skip


@pytest.mark.parametrize(("folder", "name", "error"), TWINS)
def test_a_draft_is_its_hf_twin(folder, name, error):
    mine, theirs = Draft(FIXTURES / folder / f"{name}.gguf"), Draft(FIXTURES / folder / "draft_hf")
    assert set(theirs.stored) - set(mine.stored) == {"t2d"}
    assert mine.unknown == []
    for known in mine.stored:
        found, expected = mine.weight(known), theirs.weight(known).float()
        if known == "d2t":
            assert torch.equal(found, theirs.weight("d2t") + torch.arange(32))
            assert torch.equal(mine.vocab_map("ids").hot_token_id, theirs.vocab_map().hot_token_id)
        else:
            assert float((found.float() - expected).abs().max() / expected.abs().max()) < error, known
            index = torch.tensor([5, 0, 5])
            assert torch.equal(mine.weight_rows(known, index), found[index])
    for field in (
        "hidden",
        "target_hidden",
        "aux",
        "heads",
        "kv_heads",
        "head_dim",
        "layers",
        "intermediate",
        "draft_vocab",
        "vocab",
        "eps",
        "activation",
    ):
        assert getattr(mine.arch, field) == getattr(theirs.arch, field), field
    keys = ("rope_theta", "max_position_embeddings", "hidden_size", "norm_before_residual", "norm_before_fc")
    assert all(mine.config.get(k) == theirs.config[k] for k in keys if theirs.config.get(k) is not None)
    assert mine.config["eagle_aux_hidden_state_layer_ids"] == theirs.config.get(
        "eagle_aux_hidden_state_layer_ids", [2, 4, 5]
    )


def test_a_converted_speculators_draft():
    draft = Draft(FIXTURES / "draft" / "draft-speculators-bf16.gguf")
    assert draft.shape("input_norm.weight") == (48,)
    assert draft.config["norm_before_fc"] is True
    assert draft.config["norm_before_residual"] is True
    hf = load_file(FIXTURES.parent / "speculators" / "checkpoint_eagle31_bf16" / "model.safetensors")
    expected = {canonical(name): t for name, t in hf.items()}
    assert torch.equal(draft.weight("layers.0.self_attn.q_proj.weight"), expected["layers.0.self_attn.q_proj.weight"])
    assert torch.equal(draft.weight("layers.0.self_attn.k_proj.weight"), expected["layers.0.self_attn.k_proj.weight"])


def test_a_folder_with_one_gguf_is_a_draft(tmp_path):
    (tmp_path / "any.gguf").symlink_to(FIXTURES / "draft" / "draft-f16.gguf")
    draft = Draft(tmp_path)
    assert draft.arch.draft_vocab == 32
    (tmp_path / "config.json").write_text('{"hidden_size": 99, "note": 1}')  # the header wins, the rest is kept
    assert (Draft(tmp_path).config["hidden_size"], Draft(tmp_path).config["note"]) == (16, 1)


def test_a_target_is_no_draft():
    with pytest.raises(BadFile, match=r"'general\.architecture' is 'llama', expected 'eagle3': not a draft"):
        Draft(FIXTURES / "target" / "target-f16.gguf")


def test_names_outside_the_list_are_unknown_not_guessed():
    assert llamacpp.canonical("blk.0.attn_sinks.weight") is None
    assert llamacpp.canonical("blk.x.attn_q.weight") is None
    assert llamacpp.canonical("rope_freqs.weight") is None
    assert llamacpp.canonical("blk.1.ffn_up.bias") == "layers.1.mlp.up_proj.bias"


def test_llama3_scaling_is_found_in_its_factors():
    dim, base = 64, 500000.0
    wave = 2 * np.pi * base ** (np.arange(0, dim, 2) / dim)
    smooth = (8192 / wave - 1) / 3
    factors = np.where(wave < 2048, 1.0, np.where(wave > 8192, 32.0, 1 / ((1 - smooth) / 32 + smooth)))
    infos = open_tensors(FIXTURES / "draft" / "draft-f16.gguf")
    fields = {"general.architecture": "eagle3", "eagle3.rope.freq_base": base, "eagle3.new_key": 7}
    infos = dict(infos) | {"rope_freqs.weight": infos["output_norm.weight"]}
    found = llamacpp.draft_config(fields, infos, lambda name: torch.from_numpy(factors.astype(np.float32)))
    assert found["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert found["eagle3.new_key"] == 7  # nobody reads it, so it stays to be listed
    odd = llamacpp.draft_config(fields, infos, lambda name: torch.linspace(1, 9, 32))
    assert odd["rope_scaling"] == {"rope_type": "rope_freqs"}  # of no known rule: W009


FREQS = {
    "of no rule": ([1.0, 3.7], {}, {"rope_type": "rope_freqs"}),
    "all alike": ([2.0, 2.0], {}, {"rope_type": "linear", "factor": 2.0}),
    "all one": ([1.0, 1.0], {}, None),
    "negative": ([1.0, -1.0], {}, {"rope_type": "rope_freqs"}),
    "and a type": ([1.0, 3.7], {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, {"rope_type": "rope_freqs with yarn"}),
    "longrope": (None, {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 64},
                 {"rope_type": "longrope", "original_max_position_embeddings": 64}),
    "llama3": (None, {"rope.scaling.type": "llama3", "rope.scaling.factor": 8.0}, {"rope_type": "llama3", "factor": 8.0}),
    "yarn": (None, {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_beta_fast": 16.0},
             {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0}),
    "a factor alone": (None, {"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "its old name": (None, {"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "none": (None, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", FREQS)
def test_rope_of_the_header_and_of_its_factors_is_read_or_named(name):
    """None is dropped in silence: a kind that the lab does not run is W009, a key that it does not know W008."""
    factors, more, expected = FREQS[name]
    infos = dict(open_tensors(FIXTURES / "draft" / "draft-f16.gguf"))
    infos |= {"rope_freqs.weight": infos["output_norm.weight"]} if factors else {}
    fields = {
        "general.architecture": "eagle3",
        "eagle3.rope.freq_base": 10000.0,
        "eagle3.rope.scaling.attn_factor": 1.5,
    }
    fields |= {f"eagle3.{key}": value for key, value in more.items()}
    found = llamacpp.draft_config(fields, infos, lambda name: torch.tensor(factors))
    assert found.get("rope_scaling") == expected
    assert found["eagle3.rope.scaling.attn_factor"] == 1.5
    kind = (expected or {}).get("rope_type", "default")
    assert (kind in rope.NEEDED) == (name not in ("of no rule", "negative", "and a type", "longrope"))


def copied(file: Path, *, without: tuple[str, ...] = (), more: dict[str, np.ndarray] | None = None) -> Path:
    """The draft's GGUF again, some keys or tensors left out, others added."""
    source = gguf.GGUFReader(str(FIXTURES / "draft" / "draft-f16.gguf"))
    writer = gguf.GGUFWriter(str(file), "eagle3")
    for key, field in source.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture" and key not in without:
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(key, field.contents())
            else:
                writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in source.tensors:
        if tensor.name not in {*without, *(more or {})}:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_without_a_number_of_key_heads_the_rows_are_turned_by_that_of_the_shapes(tmp_path):
    draft = Draft(copied(tmp_path / "d.gguf", without=("eagle3.attention.head_count_kv",)))
    whole = Draft(FIXTURES / "draft" / "draft-f16.gguf")
    name = "layers.0.self_attn.k_proj.weight"
    assert (draft.arch.kv_heads, draft.config["num_key_value_heads"]) == (2, 2)
    assert torch.equal(draft.weight(name), whole.weight(name))


def test_integers_are_no_weights(tmp_path):
    draft = Draft(copied(tmp_path / "d.gguf", more={"fc.weight": np.ones((16, 48), np.int8)}))
    with pytest.raises(Blocked, match=r"'fc\.weight': I8 numbers"):
        draft.weight("fc.weight")
    assert draft.weight("d2t").dtype == torch.int64


def test_a_draft_with_factors_of_no_rule_opens_and_is_not_run(tmp_path):
    file = copied(tmp_path / "d.gguf", more={"rope_freqs.weight": np.array([1.0, 3.7], np.float32)})
    found = weights.check(Draft(file))
    assert [f.title for f in found if f.code == "W009"] == [
        "RoPE scaling 'rope_freqs': this version opens it and does not run it"
    ]


def test_a_layer_far_off_is_refused_at_once(tmp_path):
    file = copied(tmp_path / "d.gguf", more={"blk.5000000.attn_q.weight": np.ones((16, 16), np.float32)})
    with pytest.raises(BadFile, match=r"layers 0, 5000000 are in the file, expected 0, 1, 2"):
        Draft(file)
