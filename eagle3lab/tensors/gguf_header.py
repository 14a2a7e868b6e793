"""The header of a GGUF file, read with bounds: a count or a length that the file cannot hold is refused at once.

The format is GGUF 2 and 3 (ggml ``docs/gguf.md``). ``gguf.GGUFReader`` is not used for it: it walks every token of the
vocabulary in Python objects, and believes every length that a file claims.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3lab.errors import BadFile
from eagle3lab.tensors.plain import POINTER, is_pointer

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value types of one number → `struct` letter."""

STRING, ARRAY = 8, 9
MOST_KEYS, MOST_TENSORS, MOST_NAME, MOST_AXES, MOST_DEEP = 1 << 16, 1 << 17, 1 << 12, 8, 4
MOST_STRINGS = 1 << 21
"""Strings in all arrays of one file; the largest vocabulary with its merges has about one million."""

NESTED = 64
"""Strings that an array within an array counts as: nobody writes them, and each costs more to walk."""

INLINE = 4096
"""Arrays of up to so many elements are plain lists; longer ones are decoded when they are looked at."""


@dataclass(frozen=True)
class Entry:
    """One tensor as the header lists it: torch's axis order, GGML's number for its type, place in the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself.

    Attributes:
        fields: key → plain value; long arrays are `LongArray`.
        entries: its tensors, in file order.
        start: byte at which tensor data begins.
        size: bytes of the file.
    """

    fields: dict[str, Any]
    entries: list[Entry]
    start: int
    size: int


class LongArray(Sequence[Any]):
    """A long array of the header (tokens, merges, scores), decoded on the first look.

    Args:
        length: its elements.
        decode: reads them all.
    """

    def __init__(self, length: int, decode: Callable[[], list[Any]]):
        self._length, self._decode = length, decode
        self._values: list[Any] | None = None

    def __len__(self) -> int:
        """Number of elements, without decoding."""
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Element or slice."""
        return self._all()[index]

    def __iter__(self) -> Iterator[Any]:
        """All elements in order."""
        return iter(self._all())

    def _all(self) -> list[Any]:
        if self._values is None:
            self._values = self._decode()
        return self._values


class _Fault(Exception):
    """What is wrong, in words; the file is added where it is known."""


class _Scan:
    """A cursor over the header's bytes that never goes past their end."""

    def __init__(self, buffer: Any, size: int, file: Path, place: int = 0):
        self.buffer, self.size, self.file, self.place, self.strings = buffer, size, file, place, 0

    def take(self, letter: str) -> Any:
        """One little-endian number."""
        try:
            (value,) = struct.unpack_from(f"<{letter}", self.buffer, self.place)
        except struct.error as error:
            raise _Fault(f"cut off: ends at byte {self.size}, inside its header") from error
        self.place += struct.calcsize(f"<{letter}")
        return value

    def text(self, what: str, most: int | None = None) -> str:
        """A string: its length, then its bytes; text that is not UTF-8 shows U+FFFD."""
        begin, end = self._string(what, most)
        return bytes(self.buffer[begin:end]).decode("utf-8", "replace")

    def _string(self, what: str, most: int | None = None) -> tuple[int, int]:
        length = self.take("Q")
        left = self.size - self.place
        if length > (left if most is None else min(left, most)):
            raise _Fault(f"{what} claims {length} bytes where {left} are left: cut off, or not a sound GGUF header")
        self.place += length
        return self.place - length, self.place

    def value(self, key: str, kind: int, deep: int = 0) -> Any:
        """A value of type ``kind``."""
        if kind in SCALARS:
            return self.take(SCALARS[kind])
        if kind == STRING:
            return self.text(f"key {key!r}")
        if kind != ARRAY:
            raise _Fault(f"key {key!r} has value type {kind}; known: 0 to 12")
        if deep > MOST_DEEP:
            raise _Fault(f"key {key!r} nests arrays {deep} deep")
        inner, length = self.take("I"), self.take("Q")
        smallest = struct.calcsize(f"<{SCALARS[inner]}") if inner in SCALARS else 8 if inner == STRING else 12
        if length * smallest > self.size - self.place:
            raise _Fault(f"key {key!r} claims {length} elements where {self.size - self.place} bytes are left")
        if inner in SCALARS:
            return self._numbers(SCALARS[inner], length)
        self.strings += length if inner == STRING else length * NESTED
        if self.strings > MOST_STRINGS:
            raise _Fault(f"key {key!r}: more than {MOST_STRINGS} strings or arrays in arrays, as no vocabulary has")
        if inner == STRING and length > INLINE:
            return self._texts(key, length)
        return [self.value(key, inner, deep + 1) for _ in range(length)]

    def _numbers(self, letter: str, length: int) -> Any:
        begin, width = self.place, struct.calcsize(f"<{letter}")
        self.place += length * width
        if length <= INLINE:
            return list(struct.unpack_from(f"<{length}{letter}", self.buffer, begin))

        def decode() -> list[Any]:
            with self.file.open("rb") as stream:
                stream.seek(begin)
                return list(struct.unpack(f"<{length}{letter}", stream.read(length * width)))

        return LongArray(length, decode)

    def _texts(self, key: str, length: int) -> LongArray:
        begin = self.place
        for _ in range(length):
            self._string(f"a string of key {key!r}")
        end, file = self.place, self.file

        def decode() -> list[str]:
            with file.open("rb") as stream:
                stream.seek(begin)
                again = _Scan(stream.read(end - begin), end - begin, file)
            return [again.text(key) for _ in range(length)]

        return LongArray(length, decode)


def read_header(file: Path) -> Header:
    """The header of ``file``; nothing of its tensors is touched.

    Raises:
        BadFile: not GGUF, of another version or byte order, cut off, or with counts and lengths it cannot hold.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(64)
        if is_pointer(start):
            raise BadFile(file, POINTER)
        if start[:4] != b"GGUF":
            raise BadFile(file, f"starts with {start[:4]!r}, not with b'GGUF'; copy or convert it again")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            try:
                return _header(_Scan(buffer, size, file, 4))
            except _Fault as error:
                raise BadFile(file, f"{error}; copy or convert it again") from error


def _header(scan: _Scan) -> Header:
    version = scan.take("I")
    if version not in (2, 3):
        swapped = struct.unpack(">I", struct.pack("<I", version))[0]
        words = "big-endian" if swapped in (2, 3) else f"GGUF version {version}"
        raise _Fault(f"{words}, expected version 2 or 3, little-endian")
    tensors, keys = scan.take("Q"), scan.take("Q")
    for count, most, least, what in ((tensors, MOST_TENSORS, 24, "tensors"), (keys, MOST_KEYS, 13, "keys")):
        if count > min(most, scan.size // least):
            raise _Fault(f"claims {count} {what} in a file of {scan.size} bytes")
    fields: dict[str, Any] = {}
    for _ in range(keys):
        key = scan.text("a key", MOST_NAME)
        if key in fields:
            raise _Fault(f"key {key!r} is there twice")
        fields[key] = scan.value(key, scan.take("I"))
    entries: dict[str, Entry] = {}
    for _ in range(tensors):
        entry = _entry(scan)
        if entry.name in entries:
            raise _Fault(f"tensor {entry.name!r} is there twice")
        entries[entry.name] = entry
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise _Fault(f"key 'general.alignment' is {alignment!r}, expected a power of two")
    return Header(fields, list(entries.values()), -(-scan.place // alignment) * alignment, scan.size)


def _entry(scan: _Scan) -> Entry:
    name = scan.text("a tensor's name", MOST_NAME)
    axes = scan.take("I")
    if axes > MOST_AXES:
        raise _Fault(f"tensor {name!r} has {axes} axes")
    shape = tuple(reversed([scan.take("Q") for _ in range(axes)]))  # GGML counts the fastest axis first
    return Entry(name, shape, scan.take("I"), scan.take("Q"))
