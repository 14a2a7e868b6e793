"""One GGUF file: tensors in torch's axis order, quantised GGML types dequantised by the ``gguf`` package."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eagle3lab.errors import BadFile
from eagle3lab.records import TensorInfo
from eagle3lab.tensors.gguf_header import Entry, LongArray, read_header

PLAIN = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
}  # fmt: skip
"""GGML types that torch holds as they are; all others are dequantised to float32."""

AT_ONCE = 4 << 20  # weights dequantised at once, which bounds memory beside the result


class GgufFile:
    """A GGUF file, open for reading: its header in memory, its tensors mapped.

    Args:
        file: the file.

    Attributes:
        infos: name → header entry; ``dtype`` is GGML's word (``Q8_0``) where the tensor is quantised.
        metadata: the header's short texts and numbers, as text.
        fields: all of the header's values as plain Python; long arrays (tokens) are read when they are looked at.

    Raises:
        BadFile: not a sound GGUF file, or of a type that the ``gguf`` package does not know.
    """

    def __init__(self, file: Path):
        self.file = file
        header = read_header(file)
        self.fields = header.fields
        parts = self.fields.get("split.count", 1)
        if isinstance(parts, int) and parts > 1:
            raise BadFile(file, f"one of {parts} parts of a split model; join them with llama-gguf-split --merge")
        self._start = header.start
        self._entries = {entry.name: entry for entry in header.entries}
        self.metadata = {
            key: str(value) for key, value in self.fields.items() if not isinstance(value, (LongArray, list))
        }
        faults: list[str] = []
        self.infos: dict[str, TensorInfo] = {}
        for entry in header.entries:
            try:
                word, nbytes = _size(entry)
            except ValueError as error:
                faults.append(str(error))
                continue
            self.infos[entry.name] = TensorInfo(entry.name, entry.shape, word, nbytes, file.name)
            end = header.start + entry.offset + nbytes
            if end > header.size:
                faults.append(
                    f"cut off: tensor {entry.name!r} ends at byte {end}, the file holds {header.size}; copy it again"
                )
        if faults:
            raise BadFile(file, faults[:5])

    @cached_property
    def architecture(self) -> str:
        """``general.architecture``, ``""`` where the file does not say."""
        return str(self.fields.get("general.architecture", ""))

    def read(self, name: str) -> Tensor:
        """One tensor: mapped where torch knows its type, else dequantised to float32."""
        entry, info = self._entries[name], self.infos[name]
        if not info.nbytes:
            return torch.empty(entry.shape, dtype=PLAIN.get(info.dtype, torch.float32))
        stored = np.memmap(self.file, np.uint8, "c", self._start + entry.offset, (info.nbytes,))
        if info.dtype in PLAIN:
            return torch.from_numpy(stored).view(PLAIN[info.dtype]).view(entry.shape)
        width = entry.shape[-1]
        table = stored.reshape(math.prod(entry.shape) // width, -1)  # [rows, bytes of a row]
        out = torch.empty(len(table), width)
        step = max(1, AT_ONCE // width)
        for at in range(0, len(table), step):
            out[at : at + step] = self._values(table[at : at + step], name)
        return out.view(entry.shape)

    def rows(self, name: str, index: Tensor) -> Tensor:
        """Rows ``index`` [R] of a tensor → [R, …]; only they are read and dequantised."""
        entry, info = self._entries[name], self.infos[name]
        if len(entry.shape) < 2 or not info.nbytes or not len(index):
            return self.read(name)[index]
        place, count = self._start + entry.offset, entry.shape[0]
        stored = np.memmap(self.file, np.uint8, "r", place, (count, info.nbytes // count))
        shape = (len(index), *entry.shape[1:])
        if info.dtype in PLAIN:
            return torch.from_numpy(stored[index.numpy()]).view(PLAIN[info.dtype]).view(shape)  # a copy
        out = torch.empty(len(index), math.prod(entry.shape[1:]))
        step = max(1, AT_ONCE // out.shape[1])
        for at in range(0, len(out), step):
            table = stored[index[at : at + step].numpy()]  # [r, bytes of a row]
            out[at : at + step] = self._values(table, name).view(-1, out.shape[1])
        return out.view(shape)

    def _values(self, stored: np.ndarray[Any, Any], name: str) -> Tensor:
        """Rows of bytes → float32."""
        from gguf import GGMLQuantizationType, quants

        kind = GGMLQuantizationType(self._entries[name].kind)
        width = self._entries[name].shape[-1]
        per_row = self.infos[name].nbytes // (math.prod(self._entries[name].shape) // width)
        try:
            values = quants.dequantize(np.asarray(stored).reshape(-1, per_row), kind)
        except NotImplementedError as error:
            fault = (
                f"tensor {name!r} is {kind.name}, which the gguf package cannot dequantise; convert it to F16 or Q8_0"
            )
            raise BadFile(self.file, fault) from error
        return torch.from_numpy(np.ascontiguousarray(values, np.float32))


def _size(entry: Entry) -> tuple[str, int]:
    """GGML's word for a tensor's type, and its bytes.

    Raises:
        ValueError: a type that the package does not know, or a row that is no whole number of blocks; in words.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(entry.kind)
    except ValueError as error:
        words = f"tensor {entry.name!r} is of GGML type {entry.kind}, unknown to the gguf package installed; update it"
        raise ValueError(words) from error
    block, width = GGML_QUANT_SIZES[kind]
    row = entry.shape[-1] if entry.shape else 1
    if row % block:
        raise ValueError(
            f"tensor {entry.name!r} is {kind.name} with rows of {row}, no whole number of blocks of {block}"
        )
    return kind.name, math.prod(entry.shape) // block * width
