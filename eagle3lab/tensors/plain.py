"""One safetensors file: its header read and checked, tensors mapped or read, rows read alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3lab.errors import BadFile
from eagle3lab.records import TensorInfo

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
"""safetensors' words for dtypes that torch can hold."""

WORDS = {dtype: word for word, dtype in DTYPES.items()}
POINTER = "a Git LFS pointer, not the file itself; run 'git lfs pull'"
_MAX_HEADER = 100_000_000  # safetensors' own limit on the header, bytes
AT_ONCE = 4 << 20  # bytes of rows on their way to their places
_MOST = 1 << 30  # bytes a single read asks for: Linux gives 2 GiB at most


class PlainFile:
    """A safetensors file, open for reading.

    Args:
        file: the file.
        access: ``mmap`` (pages come as they are touched) or ``pread`` (each tensor is read once, whole: network file
            systems serve that faster, and a file that shrinks under a mapping cannot kill the process).

    Attributes:
        infos: name → header entry.
        metadata: the file's own.

    Raises:
        BadFile: what the file looks like instead.
    """

    def __init__(self, file: Path, access: str = "mmap"):
        self.file, self.access = file, access
        header, self._start = _header(file)
        self.metadata: dict[str, str] = dict(header.pop("__metadata__", None) or {})
        try:
            self._handle = safe_open(str(file), framework="pt")  # also checks the header whole
        except (SafetensorError, OSError) as error:
            raise BadFile(file, f"not a sound safetensors file ({error}); copy or export it again") from error
        self._spans = {name: tuple(entry["data_offsets"]) for name, entry in header.items()}
        self.infos = {
            name: TensorInfo(name, tuple(entry["shape"]), str(entry["dtype"]), end - begin, file.name)
            for name, entry in header.items()
            for begin, end in (self._spans[name],)
        }

    def read(self, name: str) -> Tensor:
        """The whole tensor, in the dtype stored."""
        if self.access == "pread":
            begin, end = self._spans[name]
            return self._bytes(begin, end, self._dtype(name)).view(self.infos[name].shape)
        try:
            tensor: Tensor = self._handle.get_tensor(name)
        except (SafetensorError, KeyError, AttributeError) as error:  # a dtype that torch lacks
            raise BadFile(self.file, f"tensor {name!r} is {self.infos[name].dtype}, unreadable ({error})") from error
        return tensor

    def rows(self, name: str, index: Tensor) -> Tensor:
        """Rows ``index`` [R] of a tensor → [R, …]; reads these rows' bytes and no others, whatever ``access`` says."""
        shape, dtype = self.infos[name].shape, self._dtype(name)
        begin, end = self._spans[name]
        place, width = self._start + begin, (end - begin) // max(shape[0], 1)
        wanted, back = torch.unique(index, return_inverse=True)  # ascending
        out = torch.empty(len(index), width, dtype=torch.uint8)
        with self.file.open("rb", buffering=0) as stream:
            if torch.equal(wanted, index):
                _fill_rows(stream, place, wanted, out, self.file)
            else:  # piece by piece, so that nothing of the table's size is held twice
                order, step = back.argsort(), max(1, AT_ONCE // max(width, 1))
                ends = torch.bincount(back, minlength=len(wanted)).cumsum(0).tolist()
                for at in range(0, len(wanted), step):
                    piece = wanted[at : at + step]
                    rows = torch.empty(len(piece), width, dtype=torch.uint8)
                    _fill_rows(stream, place, piece, rows, self.file)
                    for to in order[ends[at - 1] if at else 0 : ends[at + len(piece) - 1]].split(step):
                        out[to] = rows[back[to] - at]
        return out.view(-1).view(dtype).view(len(index), *shape[1:])

    def _dtype(self, name: str) -> torch.dtype:
        word = self.infos[name].dtype
        if word not in DTYPES:
            raise BadFile(self.file, f"tensor {name!r} is {word}, unreadable; known: {', '.join(DTYPES)}")
        return DTYPES[word]

    def _bytes(self, begin: int, end: int, dtype: torch.dtype) -> Tensor:
        out = torch.empty(end - begin, dtype=torch.uint8)
        with self.file.open("rb", buffering=0) as stream:
            _fill(stream, self._start + begin, out, self.file)
        return out.view(dtype)


def _fill(stream: Any, place: int, out: Tensor, file: Path) -> None:
    """Reads ``len(out)`` bytes at ``place`` straight into ``out``."""
    stream.seek(place)
    buffer, done = out.numpy().data, 0
    while done < len(buffer):
        got = stream.readinto(buffer[done : done + _MOST])
        if not got:
            raise BadFile(file, f"ended {len(buffer) - done} bytes early while it was read; copy it again")
        done += got


def _fill_rows(stream: Any, place: int, wanted: Tensor, out: Tensor, file: Path) -> None:
    """Reads rows ``wanted`` [N], ascending, of the table at ``place`` into ``out`` [N, bytes of a row]."""
    cuts = ((wanted[1:] - wanted[:-1]) != 1).nonzero()[:, 0] + 1
    for run in torch.tensor_split(torch.arange(len(wanted)), cuts) if len(wanted) else ():
        first, last = int(run[0]), int(run[-1]) + 1
        _fill(stream, place + int(wanted[first]) * out.shape[1], out[first:last].view(-1), file)


def is_pointer(start: bytes) -> bool:
    """Whether a file's first bytes are those of a Git LFS pointer."""
    return start.startswith(b"version https://git-lfs")


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The JSON header and the byte at which tensors start.

    safetensors itself says neither the file nor what it is instead (huggingface/transformers#27923).
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(64)
        if is_pointer(start):
            raise BadFile(file, POINTER)
        if start[8:9] != b"{" and (start.startswith(b"PK\x03\x04") or start[:1] == b"\x80"):
            fault = "a torch pickle under a .safetensors name; rename it to .bin, or export it as safetensors"
            raise BadFile(file, fault)
        if size < 10:
            raise BadFile(file, f"holds {size} bytes, too short for a safetensors file; copy or export it again")
        (length,) = struct.unpack("<Q", start[:8])
        if length > min(size - 8, _MAX_HEADER):
            raise BadFile(
                file,
                f"its header claims {length} bytes in a file of {size}: cut off, or not a safetensors file; "
                "copy or export it again",
            )
        stream.seek(8)
        try:
            header = json.loads(stream.read(length))
            own = header.get("__metadata__") or {}
            if not isinstance(own, dict) or not all(isinstance(value, str) for value in own.values()):
                fault = f"key '__metadata__' of its header is {str(own)[:100]!r}, expected an object of texts"
                raise BadFile(file, f"{fault}; export it again")
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            ends = [int(entry["data_offsets"][1]) for entry in entries.values()]
            odd = [f"{name!r}: {entry}" for name, entry in entries.items() if not _sound(entry)]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise BadFile(file, "its header is not a safetensors header; export it again") from error
        if odd:
            fault = f"its header lists {odd[0][:200]}, whose bytes are not those of its shape; export it again"
            raise BadFile(file, fault)
    payload, claimed = size - 8 - length, max(ends, default=0)
    if payload < claimed:
        raise BadFile(file, f"cut off: holds {payload} bytes of tensors, its header lists {claimed}; copy it again")
    return header, 8 + length


def _sound(entry: dict[str, Any]) -> bool:
    """Whether an entry's bytes are those of its shape; dtypes that torch lacks are taken at their word."""
    begin, end = entry["data_offsets"]
    count = 1
    for size in entry["shape"]:
        count *= size
    known = DTYPES.get(entry["dtype"])
    return 0 <= begin <= end and count >= 0 and (known is None or end - begin == count * known.itemsize)
