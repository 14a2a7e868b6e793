"""An opened file of recordings: tensors by key, whatever the container."""

from __future__ import annotations

import json
import stat
from functools import cached_property
from pathlib import Path
from typing import Any

from eagle3lab.errors import BadFile
from eagle3lab.tensors import TensorFiles, archive

MOST_JSON = 1 << 32
"""Bytes of a JSON file that is read whole (4 GiB)."""

MOST_LOOKED_AT = 100
"""Entries of a list that are looked at to tell its kind."""


class Content:
    """An opened file: tensors by key, whatever the container.

    Args:
        file: the file; its suffix says the container.
        access: ``mmap`` or ``pread``.

    Attributes:
        value: `TensorFiles` of a safetensors file, else what the torch archive or the JSON holds.

    Raises:
        BadFile: it cannot be opened; the text says what it looks like.
    """

    def __init__(self, file: Path, access: str = "mmap"):
        self.file = file
        try:
            if not stat.S_ISREG(file.stat().st_mode):
                raise BadFile(file, "is no regular file; recordings are read from files")
            suffix = file.suffix.lower()
            if suffix == ".safetensors":
                self.value: Any = TensorFiles(file, [file], access)
            elif suffix in (".json", ".jsonl"):
                self.value = _json(file)
            else:
                self.value = archive.load(file, access)
        except OSError as error:
            raise BadFile(file, f"cannot be read ({error.strerror or error}); check its permissions") from error

    @cached_property
    def metadata(self) -> dict[str, str]:
        """A safetensors file's metadata, {} otherwise."""
        return self.value.metadata if isinstance(self.value, TensorFiles) else {}

    @cached_property
    def keys(self) -> frozenset[str]:
        """Keys of the mapping, or of the mappings of a list."""
        items = self.value[:MOST_LOOKED_AT] if isinstance(self.value, list | tuple) else [self.value]
        return frozenset(
            k for item in items if isinstance(item, dict | TensorFiles) for k in item if isinstance(k, str)
        )

    def item(self, index: int) -> Any:
        """The mapping itself, or element ``index`` of a list of mappings; {} where there is none."""
        value = self.value
        if isinstance(value, list | tuple):
            value = value[index] if index < len(value) else {}
        return value if isinstance(value, dict | TensorFiles) else {}

    def get(self, key: str, index: int = 0) -> Any:
        """The value under ``key``; a tensor for safetensors. None where there is none."""
        item = self.item(index)
        if key not in item:
            return None
        return item.read(key) if isinstance(item, TensorFiles) else item[key]


def _json(file: Path) -> Any:
    """A JSON value, or the list of a JSON-lines file's values."""
    size = file.stat().st_size
    if size > MOST_JSON:
        raise BadFile(file, f"is {size >> 30} GiB of JSON; split it into files of one conversation each")
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(file, f"not JSON ({error}); save it again as UTF-8") from error
