"""Tensor files: whatever is not what its name says is refused with its name, what it is, and what to do."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file

from eagle3lab.errors import BadFile
from eagle3lab.tensors import open_tensors, plain, read_json


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


def test_memory_follows_what_is_asked_for_not_the_size_of_files(tmp_path):
    """Peak memory of a process of its own, in MiB: see memory_probe.py, whose files are holes."""
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from Linux's /proc")
    command = [sys.executable, str(Path(__file__).parent / "memory_probe.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)["MiB"]
    assert found["open and list 5 GB"] < 50
    assert found["8,000 of 163,840 x 7,168 rows"] < 1.3 * 109.4  # the rows' own bytes
    assert found["8,000 of them in no order"] < 1.3 * 109.4
    assert found["lens over 120,000 x 1,024"] < 150  # the whole head in float32 is 469
    assert found["statistics of fp8 and bf16"] < 250  # one of them in float64 is 512


@pytest.mark.parametrize("metadata", ['"pt"', "[1]", '{"a": 1}'])
def test_metadata_that_is_no_object_of_texts_is_refused(tmp_path, metadata):
    header = f'{{"__metadata__": {metadata}}}'.encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "key '__metadata__' of its header is" in refused(tmp_path)


ODD = {
    "qint8": (lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8), "is torch.qint8"),
    "meta": (lambda: torch.ones(2, 3, device="meta"), "is on the meta device"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "is sparse_coo"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "is sparse_csr"),
}


@pytest.mark.filterwarnings("ignore")  # torch warns of its own old forms
@pytest.mark.parametrize("name", ODD)
def test_an_archive_of_other_than_plain_tensors_is_refused_by_name(tmp_path, name):
    make, says = ODD[name]
    torch.save({"b": torch.ones(2), "fc.weight": make()}, tmp_path / "pytorch_model.bin")
    text = refused(tmp_path)
    assert "pytorch_model.bin: tensor 'fc.weight'" in text
    assert says in text


def test_what_an_archive_holds_beside_its_tensors_is_kept_in_words(tmp_path):
    inner = {"a.weight": torch.ones(2), "stuff": {"x": torch.ones(3), "y": [torch.ones(1)]}, 7: torch.ones(2)}
    inner["itself"] = inner
    outer = {"state_dict": inner, "other.weight": torch.ones(3), "optimizer": {}, "epoch": 3}
    torch.save(outer, tmp_path / "pytorch_model.bin")
    files = open_tensors(tmp_path)
    assert list(files) == ["a.weight"]
    assert files.beside == {
        "other.weight": "a tensor [3]", "optimizer": "a dict of 0", "epoch": "int '3'",
        "stuff": "a dict of 2 with 2 tensors", "7": "a tensor [2]", "itself": "a dict of 4 with 4 tensors",
    }  # fmt: skip


@pytest.mark.parametrize("index", [[3, 0, 3, 7, 6, 5, 0], [0, 1, 2], [], [9], [9, 8, 7, 6]])
@pytest.mark.parametrize("at_once", [1, 100, 1 << 20])
def test_rows_in_any_order_are_those_of_the_whole(tmp_path, monkeypatch, index, at_once):
    monkeypatch.setattr(plain, "AT_ONCE", at_once)
    table = torch.randn(10, 6, generator=torch.Generator().manual_seed(1)).bfloat16()
    save_file({"t": table, "i": torch.arange(10).to(torch.uint32)}, tmp_path / "model.safetensors")
    files, index = open_tensors(tmp_path), torch.tensor(index, dtype=torch.long)
    assert torch.equal(files.rows("t", index), table[index])
    assert torch.equal(files.rows("i", index).long(), index)


def test_a_name_that_no_file_can_have_is_not_there(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 300}}))
    assert "which is not in the folder" in refused(tmp_path)


def test_an_image_projector_is_no_second_model(tmp_path):
    for name in ("a.gguf", "mmproj-b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    assert "a.gguf" in refused(tmp_path)  # it is opened, and found to be cut off
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    assert "found a.gguf, b.gguf, mmproj-b.gguf; expected" in refused(tmp_path)
