"""Rows of the Arrow data set that speculators prepares (``datasets.Dataset.save_to_disk``), read with pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lab.errors import BadFile
from eagle3lab.tensors import read_json


def beside(file: Path) -> Path | None:
    """The data set's folder for a shard: by default the parent of its folder, None where neither holds one."""
    return next((f for f in (file.parent, file.parent.parent) if (f / "state.json").is_file()), None)


def row(folder: Path, index: int) -> dict[str, Tensor] | None:
    """The integer lists of row ``index`` → tensors [T]; None when the data set is shorter.

    Raises:
        BadFile: the data set cannot be read, or its rows are reordered by an index file.
    """
    state = read_json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise BadFile(
            folder / "state.json", "rows are reordered by an index file; save it again with flatten_indices()"
        )
    for file in _files(folder, state):
        if not file.is_file():
            raise BadFile(file, "no such file, though state.json names it; copy the whole data set")
        table = _open(file)
        if index < table.num_rows:
            try:
                columns = {name: _list(table, name, index) for name in table.column_names}
            except (ValueError, LookupError) as error:  # Arrow's own errors are these
                raise BadFile(file, f"row {index} is damaged ({error}); prepare the data set again") from error
            return {name: column for name, column in columns.items() if column is not None}
        index -= table.num_rows
    return None


def _files(folder: Path, state: dict[str, Any]) -> list[Path]:
    listed = state.get("_data_files")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    names = [str(entry.get("filename")) for entry in entries]
    if not names or any(Path(name).name != name for name in names):
        raise BadFile(folder / "state.json", f"key '_data_files' is {listed!r}, expected the .arrow files beside it")
    return [folder / name for name in names]


def _open(file: Path) -> Any:
    """The mapped table of one file, a stream as ``datasets`` writes it."""
    import pyarrow

    try:
        with pyarrow.memory_map(str(file)) as source:
            return pyarrow.ipc.open_stream(source).read_all()
    except (OSError, ValueError, LookupError, pyarrow.ArrowException) as error:
        raise BadFile(file, "not a sound Arrow file; prepare the data set again") from error


def _list(table: Any, name: str, index: int) -> Tensor | None:
    """One cell, None where it is no list of integers."""
    import pyarrow

    kind = table.schema.field(name).type
    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    if not is_list or not pyarrow.types.is_integer(kind.value_type):
        return None
    cell = table.column(name).slice(index, 1).combine_chunks()
    cell.validate(full=True)
    return torch.tensor(cell.flatten().to_numpy(zero_copy_only=False), dtype=torch.int64)
