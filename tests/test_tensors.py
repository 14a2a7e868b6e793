"""Tensor files: whatever is not what its name says is refused with its name, what it is, and what to do."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file

from eagle3lab.errors import BadFile
from eagle3lab.tensors import open_tensors, read_json


class Evil:
    """Unpickling this runs a command: it makes a file that must never appear."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch '{self.mark}'",)


def refused(path: Path) -> str:
    """The error's text, which must name the file."""
    with pytest.raises(BadFile) as caught:
        open_tensors(path)
    assert caught.value.path.name in str(caught.value)
    return str(caught.value)


def safetensors(header: object, payload: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


def entry(start: object, end: object, shape: object = (2,), dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_headers_are_read_and_nothing_else(tmp_path):
    tiny.write_draft(tmp_path)
    tensors = open_tensors(tmp_path)
    assert tensors["fc.weight"].shape == (16, 48)
    assert tensors["fc.weight"].nbytes == 16 * 48 * 4
    assert tensors["t2d"].dtype == "BOOL"
    assert tensors["t2d"].nbytes == 64
    assert torch.equal(tensors.read("d2t"), tiny.draft_tensors()["d2t"])
    rows = tensors.rows("lm_head.weight", torch.tensor([3, 0]))
    assert torch.equal(rows, tiny.draft_tensors()["lm_head.weight"][[3, 0]])


def test_a_missing_tensor_lists_those_that_are_there(tmp_path):
    tiny.write_draft(tmp_path)
    with pytest.raises(BadFile, match=r"'fc\.bias' is missing; found .*fc\.weight"):
        open_tensors(tmp_path).read("fc.bias")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 30, 500, 3000, -1000, -1])
def test_a_cut_file_says_how_much_is_there(file, size):
    whole = tiny.write_draft(file.parent) / "model.safetensors"
    content = whole.read_bytes()
    file.write_bytes(content[:size])
    text = refused(file)
    held = size if 0 <= size < 10 else None
    if held is not None:
        assert f"holds {held} bytes" in text
    elif size in (30, 500):
        assert f"in a file of {size}" in text
    else:
        (length,) = struct.unpack("<Q", content[:8])
        assert f"holds {len(content[:size]) - 8 - length} bytes of tensors" in text
    assert "again" in text


@pytest.mark.parametrize(
    ("content", "says"),
    {
        "length 2^60": (safetensors({}, length=2**60), "claims 1152921504606846976 bytes in a file of 10"),
        "length 2^64-1": (safetensors({}, length=2**64 - 1), "claims 18446744073709551615 bytes"),
        "negative offsets": (safetensors({"a": entry(-8, 0)}), "-8"),
        "overlap": (safetensors({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), "not a sound safetensors file"),
        "a hole": (safetensors({"a": entry(4, 12)}, bytes(12)), "not a sound safetensors file"),
        "offsets as text": (safetensors({"a": entry("0", "8")}, bytes(8)), "safetensors"),
        "shape that lies": (safetensors({"a": entry(0, 8, [200])}, bytes(8)), "not those of its shape"),
        "unknown dtype": (safetensors({"a": entry(0, 8, dtype="Q4")}, bytes(8)), "Q4"),
        "a list": (safetensors([1, 2]), "not a safetensors header"),
        "no UTF-8": (safetensors(b"{\xff\xfe}"), "not a safetensors header"),
        "deep": (safetensors(b"[" * 100_000), "not a safetensors header"),
        "a web page": (b"<!DOCTYPE html><html>404, please log in</html>" * 9, "not a safetensors file"),
        "a pickle": (pickle.dumps({"a": 1}), "a torch pickle under a .safetensors name"),
    }.values(),
)
def test_a_hostile_or_foreign_file_is_refused(file, content, says):
    file.write_bytes(content)
    assert says in refused(file)


def test_a_git_lfs_pointer_is_named(file, tmp_path):
    for name in ("model.safetensors", "pytorch_model.bin"):
        assert "git lfs pull" in refused(tiny.pointer(tmp_path / name))
    with pytest.raises(BadFile, match="git lfs pull"):
        read_json(tiny.pointer(tmp_path / "config.json"))


@pytest.mark.parametrize("under", ["pytorch_model.bin", "model.safetensors", "x.pt"])
@pytest.mark.parametrize("save", [torch.save, lambda value, file: file.write_bytes(pickle.dumps(value))])
def test_a_pickle_never_runs_code(tmp_path, under, save):
    mark = tmp_path / "ran"
    save({"fc.weight": Evil(mark)}, tmp_path / under)
    text = refused(tmp_path / under)
    assert not mark.exists()
    assert "weights_only" not in text  # torch's own advice is to switch the protection off
    if save is torch.save and under != "model.safetensors":
        assert "posix.system" in text


def test_a_torch_archive_is_read(tmp_path):
    torch.save({"state_dict": tiny.draft_tensors()}, tmp_path / "pytorch_model.bin")
    assert open_tensors(tmp_path)["fc.weight"].shape == (16, 48)


@pytest.mark.parametrize(
    ("value", "says"),
    [([1, 2], "holds a list"), ({1: torch.ones(2)}, "without named tensors"), ({"state_dict": None}, "NoneType")],
)
def test_an_archive_without_a_state_dict_says_what_it_holds(tmp_path, value, says):
    torch.save(value, tmp_path / "pytorch_model.bin")
    assert says in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello, this is no archive", b"PK\x03\x04 and no more"])
def test_a_damaged_archive_is_refused(tmp_path, content):
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    assert "again" in refused(tmp_path)


def test_an_empty_folder_and_a_folder_of_other_files_are_listed(tmp_path):
    assert "an empty folder" in refused(tmp_path)
    (tmp_path / "README.md").write_text("")
    (tmp_path / "model.safetensors").mkdir()
    text = refused(tmp_path)
    assert "README.md" in text
    assert "model.safetensors/" in text  # a folder of that name, and said to be one
    assert "no such file" in refused(tmp_path / "nowhere")


def test_one_file_of_another_name_is_taken_and_two_are_not(tmp_path):
    tiny.write_draft(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "draft.safetensors")
    assert "fc.weight" in open_tensors(tmp_path)
    (tmp_path / "other.safetensors").write_bytes((tmp_path / "draft.safetensors").read_bytes())
    assert "draft.safetensors, other.safetensors" in refused(tmp_path)


def sharded(folder: Path, **changes: object) -> Path:
    tensors = tiny.draft_tensors()
    names = list(tensors)
    parts = {"model-1.safetensors": names[:7], "model-2.safetensors": names[7:]}
    for file, held in parts.items():
        save_file({name: tensors[name].contiguous() for name in held}, folder / file)
    weight_map = {name: file for file, held in parts.items() for name in held} | changes
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards_are_one_set_of_tensors(tmp_path):
    assert set(open_tensors(sharded(tmp_path))) == set(tiny.draft_tensors())


def test_an_index_that_promises_more_than_there_is_is_refused(tmp_path):
    sharded(tmp_path, extra="model-1.safetensors")
    assert "'extra' in model-1.safetensors" in refused(tmp_path)
    sharded(tmp_path)
    (tmp_path / "model-2.safetensors").unlink()
    text = refused(tmp_path)
    assert "model.safetensors.index.json" in text
    assert "names model-2.safetensors, which is not in the folder" in text


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", 3, ["a"]])
def test_an_index_names_files_beside_it_only(tmp_path, name):
    sharded(tmp_path, extra=name)
    assert "expected the name of a file beside it" in refused(tmp_path)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": ["a"]}'])
def test_an_index_without_a_map_is_refused(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert "weight_map" in refused(tmp_path)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"{oops", "not JSON"), (b"", "not JSON"), (b"[1]", "a JSON list"), (b"[" * 100_000, "not JSON")],
)
def test_json_that_is_none(tmp_path, content, says):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadFile, match="config.json") as caught:
        read_json(tmp_path / "config.json")
    assert says in str(caught.value)


def test_json_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json(tmp_path / "config.json") == {"a": 1}
