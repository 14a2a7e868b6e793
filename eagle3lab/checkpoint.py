"""A checkpoint as files: HF folder or GGUF, its config, and its tensors with quantised ones dequantised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lab.dialects import llamacpp, training_file
from eagle3lab.dialects.common import canonical
from eagle3lab.errors import BadFile
from eagle3lab.records import TensorInfo
from eagle3lab.tensors import INDEXES, TensorFiles, archive, has_tensors, models, open_tensors, quantised, read_json
from eagle3lab.tensors.gguf_file import GgufFile

HF_QUANT = "hf_quant_config.json"
"""modelopt's file beside config.json; it states block sizes (trainers.md 3.1)."""

WEIGHTS = (".safetensors", ".gguf", *archive.SUFFIXES)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""Integers that torch holds and can do little with: maps of token ids are read as int64."""


class Checkpoint:
    """One checkpoint: tensors are read as the numbers they stand for, whatever the form on disk.

    Args:
        path: folder, or a GGUF file.
        partial: accept a sharded set of which only some shards are there.

    Attributes:
        path: as given.
        gguf: the GGUF file behind it, None for all others.
        tensors: the tensors as stored.
        forms: weight → how it is stored (`quantised.Form`).
        companions: stored name of a scale or another part of a quantised weight → what it is for.

    Raises:
        BadFile: what is wrong with the files, or a GGUF of the wrong kind.
    """

    def __init__(self, path: Path, partial: bool = False):
        self.path = path
        self.tensors: TensorFiles = open_tensors(_model_in(path), partial=partial)
        source = self.tensors.source
        self.gguf = source if isinstance(source, GgufFile) else None
        config = self.path / "config.json"
        stated = read_json(config) if path.is_dir() and config.is_file() else {}
        quant = self.path / HF_QUANT
        if "quantization_config" not in stated and path.is_dir() and quant.is_file():
            stated = {**stated, "quantization": read_json(quant).get("quantization")}
        self.forms = quantised.refuse_integers(self.tensors) if self.gguf else quantised.forms(self.tensors, stated)
        self.companions = quantised.companions(self.tensors, self.forms)
        self._heads: dict[str, Any] = {}

    @property
    def measurable(self) -> dict[str, TensorInfo]:
        """The stored tensors that can be read: all but those in a refused form."""
        return {n: info for n, info in self.tensors.items() if not self.forms.get(n, quantised.PLAIN).refused}

    @classmethod
    def of_draft(cls, path: Path) -> Checkpoint:
        """A draft's checkpoint; a folder without tensors but with a config still says what is wrong with the config."""
        if path.is_dir() and not models(path):
            read_json(path / "config.json")
        return cls(path)

    @property
    def config_file(self) -> Path:
        """The file that states the config."""
        return self.gguf.file if self.gguf else self.path / "config.json"

    @property
    def others(self) -> list[str]:
        """Weight files and indexes that lie in the folder and are not read, by name."""
        if not self.path.is_dir():
            return []
        read = {*self.tensors.held, *self.tensors.absent.values()}
        names = [entry.name for entry in self.path.iterdir()]
        return sorted(n for n in names if n not in read and (n in INDEXES or Path(n).suffix in WEIGHTS))

    def draft_config(self) -> dict[str, Any]:
        """The draft's config: config.json, or a GGUF's header, which wins over a config.json beside it.

        Raises:
            BadFile: no config.json, or a GGUF that is no draft.
        """
        file = self.path / "config.json"
        if self.gguf is None:
            return read_json(file)
        kind = self.gguf.architecture
        if not llamacpp.recognises_draft(self.gguf.fields):
            fault = f"key 'general.architecture' is {kind!r}, expected {llamacpp.ARCHITECTURE!r}: not a draft"
            raise BadFile(self.gguf.file, fault)
        found = llamacpp.draft_config(self.gguf.fields, self.tensors, self.tensors.read)
        self._heads = found
        return {**(read_json(file) if self.path.is_dir() and file.is_file() else {}), **found}

    def canonical(self, name: str) -> str | None:
        """The canonical name of a draft's stored tensor, None when no dialect knows it."""
        return llamacpp.canonical(name) if self.gguf else canonical(name)

    def read(self, name: str) -> Tensor:
        """The tensor of the stored ``name``: dequantised to float32 where quantised, rows in canonical order.

        Raises:
            BadFile: it is missing.
            Blocked: it is in a form that is not read.
        """
        out = quantised.read(self.tensors, name, self.forms.get(name, quantised.PLAIN))
        out = out.long() if out.dtype in UNSIGNED else out
        order = self._order(name)
        return out if order is None else out[order]

    def rows(self, name: str, index: Tensor) -> Tensor:
        """Rows ``index`` [R] of the same → [R, …]; only they are read."""
        order = self._order(name)
        index = index if order is None else order[index]
        out = quantised.rows(self.tensors, name, index, self.forms.get(name, quantised.PLAIN))
        return out.long() if out.dtype in UNSIGNED else out

    def _order(self, name: str) -> Tensor | None:
        """Where each canonical row of a GGUF draft's tensor stands in the file, None when in its own place."""
        if not self._heads or name not in self.tensors:
            return None
        return llamacpp.row_order(llamacpp.canonical(name) or "", self.tensors[name].shape[0], self._heads)


def _model_in(path: Path) -> Path:
    """The folder itself, or the file of a training checkpoint that holds the draft where there is no model."""
    if not path.is_dir() or has_tensors(path):
        return path
    file = training_file({entry.name for entry in path.iterdir()})
    return path / file if file else path
