"""Files of ``torch.save``: opened with ``weights_only=True`` and mapped; a file that needs more is refused."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import warnings
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lab.errors import BadFile
from eagle3lab.records import TensorInfo
from eagle3lab.tensors.plain import POINTER, WORDS, is_pointer

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
STATES = ("state_dict", "draft_state_dict", "model_state_dict", "module")
"""Keys under which trainers wrap a state dict; ``draft_state_dict`` is SpecForge's (checkpoint_io.py)."""

STRIDED = "save it again as a plain (strided) floating-point tensor"
MOST_NAMED = 5
"""Tensors that an error names."""

MOST_UNPACKED = 1 << 28
MOST_FOLD = 50
"""A compressed dump may unfold to 256 MiB and 50 times its size: states fold to a half, zeros to a thousandth."""


class Archive:
    """The named tensors of a torch archive.

    Attributes:
        infos: name → what is stored.
        metadata: empty; an archive has none.
        beside: what the archive holds and is no named tensor of the state dict, by its key → in words.

    Raises:
        BadFile: not an archive, no named tensors in it, or it wants code run.
    """

    def __init__(self, file: Path, access: str = "mmap"):
        content = load(file, access)
        self.metadata: dict[str, str] = {}
        self.beside: dict[str, str] = {}
        held = [k for k in STATES if isinstance(content, dict) and k in content and not isinstance(content[k], Tensor)]
        if held:
            key = held[0]
            self.beside = {str(name): _words(value) for name, value in content.items() if name != key}
            content = content[key]
        items = content.items() if isinstance(content, dict) else ()
        self._tensors = {k: v for k, v in items if isinstance(k, str) and isinstance(v, Tensor)}
        if not self._tensors:
            fault = f"holds a {type(content).__name__} without named tensors, expected a state dict"
            raise BadFile(file, fault)
        self.beside |= {str(name): _words(value) for name, value in items if name not in self._tensors}
        faults = [f"tensor {name!r} is {odd}; {STRIDED}" for name, t in self._tensors.items() if (odd := _odd(t))]
        if faults:
            raise BadFile(file, faults[:MOST_NAMED])
        self.infos = {
            name: TensorInfo(name, tuple(t.shape), WORDS.get(t.dtype, str(t.dtype)), t.nbytes, file.name)
            for name, t in self._tensors.items()
        }

    def read(self, name: str) -> Tensor:
        """The tensor as stored."""
        return self._tensors[name]

    def rows(self, name: str, index: Tensor) -> Tensor:
        """Rows ``index`` [R] → [R, …]: only their pages are touched."""
        return self._tensors[name][index]


def _odd(tensor: Tensor) -> str:
    """What keeps a tensor from being read as plain numbers, ``""`` when nothing does."""
    if tensor.is_meta:
        return "on the meta device, so that none of its numbers were saved"
    if tensor.is_quantized:
        return f"{tensor.dtype}, packed by torch's own quantisation"
    if tensor.is_nested or tensor.layout != torch.strided:
        return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    return ""


def _words(value: Any) -> str:
    """What a value of an archive is; numbers and text as they are."""
    if isinstance(value, Tensor):
        return "a nested tensor" if value.is_nested else f"a tensor {list(value.shape)}"
    if isinstance(value, dict | list | tuple):
        count = _tensors_in(value)
        return f"a {type(value).__name__} of {len(value)}" + (f" with {count} tensors" if count else "")
    return f"{type(value).__name__} {str(value)[:60]!r}"


def _tensors_in(value: Any) -> int:
    """Tensors at any depth; a pickle may hold itself, so each container counts once."""
    inside, seen, count = [value], set(), 0
    while inside:
        found = inside.pop()
        count += isinstance(found, Tensor)
        if isinstance(found, dict | list | tuple) and id(found) not in seen:
            seen.add(id(found))
            inside += found.values() if isinstance(found, dict) else found
    return count


def load(file: Path, access: str = "mmap") -> Any:
    """What ``torch.save`` wrote, with nothing of it run; ``.gz`` is unpacked into memory first.

    Args:
        file: the file.
        access: ``mmap``: tensors are mapped; ``pread``: read into memory.

    Raises:
        BadFile: a Git LFS pointer, empty, damaged, or it wants code run on loading.
    """
    with file.open("rb") as stream:
        start = stream.read(64)
    if is_pointer(start) or not start:
        raise BadFile(file, POINTER if start else "holds 0 bytes; copy or save it again")
    source = _unpacked(file) if file.suffix == ".gz" else file
    try:
        return _load(source, access == "mmap")
    except Exception as error:  # a damaged pickle fails in any way it likes
        called = re.search(r"GLOBAL (\S+)", str(error))
        if called and isinstance(error, pickle.UnpicklingError):
            fault = f"wants {called[1]} called on loading, and the lab runs no code of a file; export it as safetensors"
        else:
            fault = f"not a sound torch archive ({type(error).__name__}); copy or save it again"
        raise BadFile(file, fault) from error


def _load(source: Path | io.BytesIO, mapped: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of old pickles, which are refused or read all the same
        if mapped and isinstance(source, Path):
            try:
                return torch.load(source, map_location="cpu", weights_only=True, mmap=True)
            except (RuntimeError, ValueError):  # the pre-1.6 format cannot be mapped
                pass
        return torch.load(source, map_location="cpu", weights_only=True)


def _unpacked(file: Path) -> io.BytesIO:
    """A ``.gz`` file's content, piece by piece, so that one that unfolds without end is stopped."""
    out, most = io.BytesIO(), MOST_UNPACKED + MOST_FOLD * file.stat().st_size
    try:
        with gzip.open(file, "rb") as stream:
            while piece := stream.read(1 << 24):
                out.write(piece)
                if out.tell() > most:
                    fault = f"unfolds to more than {most >> 20} MiB; unpack it beside the others and remove it"
                    raise BadFile(file, fault)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(file, f"not a sound gzip file ({error}); copy or save it again") from error
    out.seek(0)
    return out
