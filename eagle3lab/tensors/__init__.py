"""Tensor files mapped lazily: safetensors, sharded indexes, torch archives, GGUF.

Opening reads headers only. `TensorFiles.read` maps one tensor, `TensorFiles.rows` touches just the rows asked for.
Torch archives are opened with ``weights_only=True``; a file that needs more is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from eagle3lab.errors import BadFile
from eagle3lab.records import TensorInfo
from eagle3lab.tensors import archive
from eagle3lab.tensors.archive import Archive
from eagle3lab.tensors.gguf_file import GgufFile
from eagle3lab.tensors.plain import POINTER, PlainFile, is_pointer

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SINGLES = ("model.safetensors", "pytorch_model.bin")
ACCESS = ("mmap", "pread")


class Source(Protocol):
    """What one open file of any kind offers."""

    infos: dict[str, TensorInfo]
    metadata: dict[str, str]

    def read(self, name: str) -> Tensor:
        """One tensor, whole."""

    def rows(self, name: str, index: Tensor) -> Tensor:
        """Rows of one tensor."""


class TensorFiles(Mapping[str, TensorInfo]):
    """Tensors of one file or of a sharded set: name → `TensorInfo`, nothing loaded.

    Args:
        path: the file or folder that was asked for.
        files: the files that hold the tensors.
        access: ``mmap`` or ``pread``.

    Attributes:
        path: the file or folder opened.
        metadata: the metadata of the (first) file.
        absent: tensors that an index promises in files that are not there → the file's name.
        beside: what a torch archive holds beside its named tensors, by key → in words.
        held: names of the files opened, the index among them.
    """

    def __init__(self, path: Path, files: list[Path], access: str = "mmap"):
        self.path = path
        self.metadata: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        self.beside: dict[str, str] = {}
        self.held = tuple(file.name for file in files)
        self._infos: dict[str, TensorInfo] = {}
        self._sources: dict[str, Source] = {}
        for file in files:
            try:
                source = open_file(file, access)
            except OSError as error:
                raise BadFile(file, f"cannot be read ({error.strerror or error}); check its permissions") from error
            self.metadata = self.metadata or source.metadata
            self.beside |= source.beside if isinstance(source, Archive) else {}
            twice = sorted(set(source.infos) & set(self._infos))
            if twice:
                raise BadFile(file, f"tensor {twice[0]!r} is also in {self._infos[twice[0]].file}; remove one of them")
            self._infos.update(source.infos)
            self._sources.update(dict.fromkeys(source.infos, source))

    def __getitem__(self, name: str) -> TensorInfo:
        """The header entry of ``name``."""
        return self._infos[name]

    def __iter__(self) -> Iterator[str]:
        """Names in file order."""
        return iter(self._infos)

    def __len__(self) -> int:
        """Number of tensors."""
        return len(self._infos)

    @property
    def source(self) -> Source | None:
        """The file behind all tensors where there is one only, else None."""
        sources = {id(s): s for s in self._sources.values()}
        return next(iter(sources.values())) if len(sources) == 1 else None

    def read(self, name: str) -> Tensor:
        """The tensor as stored, mapped from the file where the format allows.

        Raises:
            BadFile: no such tensor; the text lists the names that are there.
        """
        self._present(name)
        return self._sources[name].read(name)

    def rows(self, name: str, index: Tensor) -> Tensor:
        """Rows ``index`` [R] of a matrix → [R, width]: only their bytes of the file are read."""
        self._present(name)
        return self._sources[name].rows(name, index)

    def _present(self, name: str) -> None:
        if name in self.absent:
            file = self.absent[name]
            raise BadFile(self.path, f"tensor {name!r} is in {file}, which is not in the folder; get that file too")
        if name not in self._infos:
            raise BadFile(self.path, f"tensor {name!r} is missing; found {', '.join(sorted(self._infos)) or 'none'}")


def open_file(file: Path, access: str = "mmap") -> Source:
    """One tensor file of any kind, told by its suffix."""
    if file.suffix in archive.SUFFIXES:
        return Archive(file, access)
    return GgufFile(file) if file.suffix == ".gguf" else PlainFile(file, access)


def open_tensors(path: Path, access: str = "mmap", partial: bool = False) -> TensorFiles:
    """Opens a tensor file, a sharded ``*.index.json`` or a folder that holds one of them.

    Args:
        path: file or folder.
        access: ``mmap`` or ``pread``.
        partial: accept an index some of whose shards are not there (a target of which only rows are needed).

    Raises:
        BadFile: nothing there, or the file is not what it should be (the text says what it looks like).
    """
    if not path.exists():
        raise BadFile(path, "no such file or folder; check the path in case.toml")
    if path.is_file():
        return _sharded(path, path, access, partial) if path.suffix == ".json" else TensorFiles(path, [path], access)
    for name in INDEXES:
        if (path / name).is_file():
            return _sharded(path, path / name, access, partial)
    for name in SINGLES:
        if (path / name).is_file():
            return TensorFiles(path, [path / name], access)
    found = sorted(p.name + ("/" if p.is_dir() else "") for p in path.iterdir())
    for stray in ([path / name for name in found if name.endswith(".safetensors")], models(path)):
        if len(stray) == 1:
            return TensorFiles(path, stray, access)
    listing = ", ".join(found[:12]) + (" …" if len(found) > 12 else "") if found else "an empty folder"
    raise BadFile(path, f"found {listing}; expected one of {', '.join(SINGLES + INDEXES)}, or one .gguf file; "
                  "of several, name one in case.toml")  # fmt: skip


def models(folder: Path) -> list[Path]:
    """The GGUF models of a folder; ``mmproj`` files, llama.cpp's image projectors beside them, are none."""
    found = [p for p in folder.iterdir() if p.suffix == ".gguf" and p.is_file()]
    return sorted(p for p in found if not p.name.lower().startswith("mmproj"))


def has_tensors(folder: Path) -> bool:
    """Whether a folder holds any file that `open_tensors` would try."""
    return any((folder / name).is_file() for name in INDEXES + SINGLES) or any(
        entry.suffix in (".safetensors", ".gguf") for entry in folder.iterdir()
    )


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
            fault = POINTER if is_pointer(stream.read(64)) else f"not JSON ({error}); save it again as UTF-8"
        raise BadFile(path, fault) from error
    if not isinstance(value, dict):
        raise BadFile(path, f"holds a JSON {type(value).__name__}, expected an object")
    return value


def _sharded(path: Path, index: Path, access: str, partial: bool) -> TensorFiles:
    """The shards an index names; every tensor it promises must be in the shard it names."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFile(index, "key 'weight_map' is missing or empty, expected tensor name → file name")
    foreign = [name for name in weight_map.values() if not isinstance(name, str) or Path(name).name != name]
    if foreign:
        raise BadFile(index, [f"names {name!r}, expected the name of a file beside it" for name in foreign])
    named = list(dict.fromkeys(weight_map.values()))
    # os.path takes a name that no file can have (300 characters) for one that is not there
    missing = {name for name in named if not os.path.isfile(index.parent / name)}  # noqa: PTH113
    if missing and (not partial or len(missing) == len(named)):
        faults = [
            f"names {name[:200]}, which is not in the folder; download it again" for name in named if name in missing
        ]
        raise BadFile(index, faults)
    tensors = TensorFiles(path, [index.parent / name for name in named if name not in missing], access)
    tensors.held += (index.name,)
    tensors.absent = {name: file for name, file in weight_map.items() if file in missing}
    absent = [f"{name!r} in {file}" for name, file in weight_map.items()
              if file not in missing and (name not in tensors or tensors[name].file != file)]  # fmt: skip
    if absent:
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        fault = f"promises {', '.join(absent[:5])}{more}, not found there; the shards belong to another export"
        raise BadFile(index, fault)
    return tensors
