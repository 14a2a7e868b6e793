"""Tensor files mapped lazily: safetensors, sharded indexes, torch archives.

Opening reads headers only. `TensorFiles.read` maps one tensor, `TensorFiles.rows` touches just the rows asked for.
Torch archives are opened with ``weights_only=True``; a file that needs more is refused.
"""

from __future__ import annotations

import json
import pickle
import re
import struct
import warnings
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
            try:
                opened = _open_torch(file) if file.suffix in TORCH_SUFFIXES else _open_safetensors(file)
            except OSError as error:
                raise BadFile(file, f"cannot be read ({error.strerror or error}); check its permissions") from error
            infos, source, metadata = opened
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
        try:
            return source[name] if isinstance(source, dict) else source.get_tensor(name)
        except (SafetensorError, KeyError, AttributeError) as error:  # a dtype that torch lacks
            info = self._infos[name]
            raise BadFile(self.path, f"tensor {name!r} is {info.dtype}, which cannot be read ({error})") from error

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
        return _sharded(path, path) if path.suffix == ".json" else TensorFiles(path, [path])
    for name in INDEXES:
        if (path / name).is_file():
            return _sharded(path, path / name)
    for name in SINGLES:
        if (path / name).is_file():
            return TensorFiles(path, [path / name])
    found = sorted(p.name + ("/" if p.is_dir() else "") for p in path.iterdir())
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
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError, OSError) as error:
        with path.open("rb") as stream:
            fault = _POINTER if _is_pointer(stream.read(64)) else f"not JSON ({error}); save it again as UTF-8"
        raise BadFile(path, fault) from error
    if not isinstance(value, dict):
        raise BadFile(path, f"holds a JSON {type(value).__name__}, expected an object")
    return value


def _sharded(path: Path, index: Path) -> TensorFiles:
    """The shards an index names; every tensor it promises must be in the shard it names."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFile(index, "key 'weight_map' is missing or empty, expected tensor name → file name")
    foreign = [name for name in weight_map.values() if not isinstance(name, str) or Path(name).name != name]
    if foreign:
        raise BadFile(index, [f"names {name!r}, expected the name of a file beside it" for name in foreign])
    named = list(dict.fromkeys(weight_map.values()))
    missing = [name for name in named if not (index.parent / name).is_file()]
    if missing:
        raise BadFile(index, [f"names {name}, which is not in the folder; download it again" for name in missing])
    tensors = TensorFiles(path, [index.parent / name for name in named])
    absent = [f"{name!r} in {file}" for name, file in weight_map.items()
              if name not in tensors or tensors[name].file != file]  # fmt: skip
    if absent:
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        fault = f"promises {', '.join(absent[:5])}{more}, not found there; the shards belong to another export"
        raise BadFile(index, fault)
    return tensors


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
        if _is_pointer(start):
            return _POINTER
        if start[8:9] != b"{" and (start.startswith(b"PK\x03\x04") or start[:1] == b"\x80"):
            return "a torch pickle under a .safetensors name; rename it to .bin, or export it as safetensors"
        if size < 10:
            return f"holds {size} bytes, too short for a safetensors file; copy or export it again"
        (length,) = struct.unpack("<Q", start[:8])
        if length > min(size - 8, _MAX_HEADER):
            return (
                f"its header claims {length} bytes in a file of {size}: cut off, or not a safetensors file; "
                "copy or export it again"
            )
        stream.seek(8)
        try:
            header = json.loads(stream.read(length))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return "its header is not a safetensors header; export it again"
    payload, claimed = size - 8 - length, max(ends, default=0)
    if payload < claimed:
        return f"cut off: holds {payload} bytes of tensors, its header lists {claimed}; copy it again"
    return ""


_POINTER = "a Git LFS pointer, not the file itself; run 'git lfs pull'"


def _is_pointer(start: bytes) -> bool:
    return start.startswith(b"version https://git-lfs")


def _open_torch(file: Path) -> tuple[dict[str, TensorInfo], dict[str, Tensor], dict[str, str]]:
    with file.open("rb") as stream:
        start = stream.read(64)
    if _is_pointer(start) or not start:
        raise BadFile(file, _POINTER if start else "holds 0 bytes; copy or save it again")
    try:
        state = _load(file)
    except Exception as error:  # a damaged pickle fails in any way it likes
        called = re.search(r"GLOBAL (\S+)", str(error))
        if called and isinstance(error, pickle.UnpicklingError):
            fault = f"wants {called[1]} called on loading, and the lab runs no code of a file; export it as safetensors"
        else:
            fault = f"not a sound torch archive ({type(error).__name__}); copy or save it again"
        raise BadFile(file, fault) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    items = state.items() if isinstance(state, dict) else ()
    tensors = {k: v for k, v in items if isinstance(k, str) and isinstance(v, Tensor)}
    if not tensors:
        raise BadFile(file, f"holds a {type(state).__name__} without named tensors, expected a state dict")
    infos = {
        name: TensorInfo(name, tuple(t.shape), _DTYPES.get(t.dtype, str(t.dtype)), t.nbytes, file.name)
        for name, t in tensors.items()
    }
    return infos, tensors, {}


def _load(file: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of old pickles, which are refused or read all the same
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except (RuntimeError, ValueError):  # the pre-1.6 format cannot be mapped
            return torch.load(file, map_location="cpu", weights_only=True)
