"""Tensor files mapped lazily: safetensors, sharded indexes, torch archives.

Opening reads headers only. `TensorFiles.read` maps one tensor, `TensorFiles.rows` touches just the rows asked for.
Torch archives are opened with ``weights_only=True``; a file that needs more is refused.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3lab.errors import BadFile
from eagle3lab.records import TensorInfo

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLES = ("model.safetensors", "pytorch_model.bin")
TORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_MAX_HEADER = 100_000_000  # safetensors' own limit on the header, bytes
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class TensorFiles(Mapping[str, TensorInfo]):
    """Tensors of one file or of a sharded set: name → `TensorInfo`, nothing loaded.

    Attributes:
        path: the file or folder opened.
        metadata: the safetensors metadata of the (first) file.
    """

    def __init__(self, path: Path, files: list[Path]):
        self.path = path
        self.metadata: dict[str, str] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._sources: dict[str, Any] = {}
        for file in files:
            infos, source, metadata = _open_torch(file) if file.suffix in TORCH_SUFFIXES else _open_safetensors(file)
            self.metadata = self.metadata or metadata
            twice = sorted(set(infos) & set(self._infos))
            if twice:
                raise BadFile(file, f"tensor {twice[0]!r} is also in {self._infos[twice[0]].file}; remove one of them")
            self._infos.update(infos)
            self._sources.update(dict.fromkeys(infos, source))

    def __getitem__(self, name: str) -> TensorInfo:
        """The header entry of ``name``."""
        return self._infos[name]

    def __iter__(self) -> Iterator[str]:
        """Names in file order."""
        return iter(self._infos)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._infos)

    def read(self, name: str) -> Tensor:
        """The tensor as stored, mapped from the file where the format allows.

        Raises:
            BadFile: no such tensor; the text lists the names that are there.
        """
        if name not in self._infos:
            raise BadFile(self.path, f"tensor {name!r} is missing; found {', '.join(sorted(self._infos)) or 'none'}")
        source = self._sources[name]
        return source[name] if isinstance(source, dict) else source.get_tensor(name)

    def rows(self, name: str, index: Tensor) -> Tensor:
        """Rows ``index`` [R] of a matrix: only those pages of the file are touched."""  # [R, width]
        return self.read(name)[index]


def open_tensors(path: Path) -> TensorFiles:
    """Opens a tensor file, a sharded ``*.index.json`` or a folder that holds one of them.

    Raises:
        BadFile: nothing there, or the file is not what it should be (the text says what it looks like).
    """
    if not path.exists():
        raise BadFile(path, "no such file or folder; check the path in case.toml")
    if path.is_file():
        return TensorFiles(path, _from_index(path) if path.suffix == ".json" else [path])
    for name in INDEXES:
        if (path / name).is_file():
            return TensorFiles(path, _from_index(path / name))
    for name in SINGLES:
        if (path / name).is_file():
            return TensorFiles(path, [path / name])
    found = sorted(p.name for p in path.iterdir())
    stray = [path / name for name in found if name.endswith(".safetensors")]
    if len(stray) == 1:
        return TensorFiles(path, stray)
    listing = ", ".join(found[:12]) + (" …" if len(found) > 12 else "") if found else "an empty folder"
    raise BadFile(path, f"found {listing}; expected one of {', '.join(SINGLES + INDEXES)}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from ``path``.

    Raises:
        BadFile: missing, not JSON, or not an object.
    """
    if not path.is_file():
        raise BadFile(path, "no such file; it should hold the model's configuration as JSON")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadFile(path, f"not JSON ({error}); save it again") from error
    if not isinstance(value, dict):
        raise BadFile(path, f"holds a JSON {type(value).__name__}, expected an object")
    return value


def _from_index(index: Path) -> list[Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFile(index, "key 'weight_map' is missing or empty, expected tensor name → file name")
    files = [index.parent / name for name in dict.fromkeys(weight_map.values())]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise BadFile(index, [f"names {name}, which is not in the folder; download it again" for name in missing])
    return files


def _open_safetensors(file: Path) -> tuple[dict[str, TensorInfo], Any, dict[str, str]]:
    fault = _header_fault(file)
    if fault:
        raise BadFile(file, fault)
    try:
        handle = safe_open(str(file), framework="pt")
    except (SafetensorError, OSError) as error:
        raise BadFile(file, f"not a sound safetensors file ({error}); copy or export it again") from error
    infos = {}
    for name in handle.keys():  # noqa: SIM118 (a safe_open handle is not a mapping)
        piece = handle.get_slice(name)
        shape, dtype = tuple(piece.get_shape()), piece.get_dtype()
        infos[name] = TensorInfo(name, shape, dtype, _nbytes(shape, dtype), file.name)
    return infos, handle, dict(handle.metadata() or {})


def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    bits = 8 if dtype == "BOOL" else int("".join(c for c in dtype.split("_")[0] if c.isdigit()) or 8)
    count = 1
    for size in shape:
        count *= size
    return count * bits // 8


def _header_fault(file: Path) -> str:
    """What a damaged or foreign file looks like, ``""`` when its header is sound.

    safetensors itself says neither the file nor what it is instead (huggingface/transformers#27923).
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(64)
        if start.startswith(b"version https://git-lfs"):
            return f"a Git LFS pointer of {size} bytes, not the tensors; run 'git lfs pull'"
        if start[8:9] != b"{" and (start.startswith(b"PK\x03\x04") or start[:1] == b"\x80"):
            return "a torch pickle under a .safetensors name; rename it to .bin, or export it as safetensors"
        if size < 10:
            return f"{size} bytes, too short for a safetensors file; copy or export it again"
        (length,) = struct.unpack("<Q", start[:8])
        if length > min(size - 8, _MAX_HEADER):
            return f"its header claims {length} bytes in a file of {size}: cut off, or not a safetensors file"
        stream.seek(8)
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return "its header is not a safetensors header; export it again"
    payload, claimed = size - 8 - length, max(ends, default=0)
    if payload < claimed:
        return f"cut off: holds {payload} bytes of tensors, its header lists {claimed}; copy it again"
    return ""


def _open_torch(file: Path) -> tuple[dict[str, TensorInfo], dict[str, Tensor], dict[str, str]]:
    try:
        try:
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, ValueError):  # the pre-1.6 format cannot be mapped
            state = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise BadFile(
            file,
            f"needs code to be run on loading, which the lab never does ({reason}); export it as safetensors",
        ) from error
    except (RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        raise BadFile(
            file, f"not a sound torch archive ({str(error).splitlines()[0]}); copy or save it again"
        ) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)} if isinstance(state, dict) else {}
    if not tensors:
        raise BadFile(file, f"holds a {type(state).__name__} without tensors, expected a state dict")
    infos = {
        name: TensorInfo(name, tuple(t.shape), _DTYPES.get(t.dtype, str(t.dtype)), t.nbytes, file.name)
        for name, t in tensors.items()
    }
    return infos, tensors, {}
