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

MOST_UNPACKED = 1 << 34
"""Bytes that a compressed dump may unfold to (16 GiB): a few kilobytes of zeros can claim any size."""


class Archive:
    """The named tensors of a torch archive.

    Raises:
        BadFile: not an archive, no named tensors in it, or it wants code run.
    """

    def __init__(self, file: Path, access: str = "mmap"):
        content = load(file, access)
        for key in STATES:
            if isinstance(content, dict) and key in content and not isinstance(content[key], Tensor):
                content = content[key]
                break
        items = content.items() if isinstance(content, dict) else ()
        self.metadata: dict[str, str] = {}
        self._tensors = {k: v for k, v in items if isinstance(k, str) and isinstance(v, Tensor)}
        if not self._tensors:
            fault = f"holds a {type(content).__name__} without named tensors, expected a state dict"
            raise BadFile(file, fault)
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
    out = io.BytesIO()
    try:
        with gzip.open(file, "rb") as stream:
            while piece := stream.read(1 << 24):
                out.write(piece)
                if out.tell() > MOST_UNPACKED:
                    fault = f"unfolds to more than {MOST_UNPACKED >> 30} GiB; unpack it beside the others and remove it"
                    raise BadFile(file, fault)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(file, f"not a sound gzip file ({error}); copy or save it again") from error
    out.seek(0)
    return out
