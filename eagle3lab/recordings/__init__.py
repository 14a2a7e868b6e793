"""What a dump of hidden states holds, as its reader hands it on, and how that becomes a `Sample`.

A reader (one a file kind, in its program's dialect) knows the keys. What every kind needs is here: files opened once,
tails of padding cut, views instead of copies. `checked.to_sample` names the slots and raises all faults of a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3lab.errors import BadFile
from eagle3lab.records import Distribution
from eagle3lab.tensors import TensorFiles, archive

MOST_JSON = 1 << 32
"""Bytes of a JSON file that is read whole (4 GiB)."""


@dataclass(frozen=True)
class FileKind:
    """One kind of file, as ``docs/formats.md`` lists it.

    Attributes:
        name: short and stable, e.g. ``specforge``; a sample says it as its ``writer``.
        program: who writes it, with the version read or run.
        files: what the files are called.
        holds: keys and shapes.
        traps: what goes wrong with it.
        does: what the lab does with it.
    """

    name: str
    program: str
    files: str
    holds: str
    traps: str
    does: str


@dataclass(frozen=True)
class Known:
    """What is known of a recording from outside its file.

    Attributes:
        layers: L of the target.
        hidden: Ht of the target, else of the draft.
        vocab: V.
        boundaries: ``[samples] boundaries`` of the case: one a slot, in the file's order.
        final: ``[samples] final`` of the case: ``pre``, ``post`` or ``none``.
        access: ``mmap`` or ``pread``.
    """

    layers: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    boundaries: tuple[int, ...] = ()
    final: str = ""
    access: str = "mmap"


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
            if file.suffix == ".safetensors":
                self.value: Any = TensorFiles(file, [file], access)
            elif file.suffix in (".json", ".jsonl"):
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
        """Keys of the mapping, or of the first mapping of a list."""
        return frozenset(k for k in self.item(0) if isinstance(k, str))

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


@dataclass
class Recording:
    """One conversation as its file holds it.

    Attributes:
        input_ids: [T], unshifted.
        loss_mask: [T], unshifted, or None.
        slots: states [T, Ht] in the file's order, without the final one where the file keeps that apart.
        boundaries: the boundary of each slot where the file says so, else None.
        default: the writer's own boundaries for (L, number of slots), None where it has none.
        default_words: that rule in the writer's words.
        final: the final state [T, Ht] where the file keeps it apart.
        final_norm: its norm status as the file or the writer has it.
        distribution: recorded target probabilities.
        origin: free text about where it came from.
        notes: what was done to it, or must be known about it; each becomes part of a finding.
        unused: keys of the file that were not used.
        faults: what makes it unusable.
    """

    input_ids: Any = None
    loss_mask: Any = None
    slots: Sequence[Any] = ()
    boundaries: tuple[int, ...] | None = None
    default: Callable[[int, int], tuple[int, ...] | None] = lambda layers, slots: None
    default_words: str = ""
    final: Any = None
    final_norm: str = "none"
    distribution: Distribution | None = None
    origin: str = ""
    notes: list[str] = field(default_factory=list)
    unused: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reader:
    """One file kind: how it is recognised and read.

    Attributes:
        kind: its row in ``docs/formats.md``.
        fits: whether an opened file is of this kind.
        read: sample ``index`` of the file.
        count: how many samples the file holds.
    """

    kind: FileKind
    fits: Callable[[Content], bool]
    read: Callable[[Content, int, Known], Recording]
    count: Callable[[Content], int] = lambda content: 1


def usual(layers: int, slots: int) -> tuple[int, ...] | None:
    """Boundaries (2, L//2, L-3), with L after them for a fourth slot: what every trainer takes by default."""
    three = (2, layers // 2, layers - 3)
    return {3: three, 4: (*three, layers)}.get(slots)


def tensor(recording: Recording, content: Content, key: str, index: int = 0, axes: int = 1) -> Tensor | None:
    """The tensor under ``key`` with ``axes`` axes; a leading batch axis of one is taken off.

    What is there and is not such a tensor goes into the recording's faults; what is missing is None without one.
    """
    value = content.get(key, index)
    if value is None:
        return None
    if not isinstance(value, Tensor):
        recording.faults.append(f"{key} is a {type(value).__name__}, expected a tensor")
        return None
    if value.ndim == axes + 1 and value.shape[0] == 1:
        value = value[0]
    if value.ndim == axes + 1 and value.shape[0] > 1:
        recording.faults.append(f"{key} is {list(value.shape)}: a batch of {value.shape[0]}, expected one conversation")
        return None
    if value.ndim != axes:
        words = {1: "[T]", 2: "[T, width]", 3: "[T, slots, Ht]"}[axes]
        recording.faults.append(f"{key} is {list(value.shape)}, expected {words}")
        return None
    return value


def split(recording: Recording, key: str, wide: Tensor | None, hidden: int | None) -> list[Tensor]:
    """States [T, n·Ht] side by side → n views [T, Ht]; nothing is copied."""
    if wide is None:
        return []
    if not hidden:
        recording.faults.append(
            f"{key} is {list(wide.shape)} and the width of one state is not known; give [target] with a config.json"
        )
        return []
    if wide.shape[1] % hidden:
        recording.faults.append(
            f"{key} is {wide.shape[1]} wide, no multiple of the target's {hidden}: it comes from another target"
        )
        return []
    return [wide[:, i : i + hidden] for i in range(0, wide.shape[1], hidden)]


def without_padding(recording: Recording, pad: int = 0) -> None:
    """Cuts a tail of ``pad`` tokens outside the reply: batched writers pad to the longest row and store it."""
    ids, mask = recording.input_ids, recording.loss_mask
    if not isinstance(ids, Tensor) or ids.ndim != 1 or not isinstance(mask, Tensor) or mask.shape != ids.shape:
        return
    kept = ((ids != pad) | (mask != 0)).nonzero()[:, 0]
    length = int(kept[-1]) + 1 if len(kept) else len(ids)
    if len(ids) - length < 2:
        return
    recording.notes.append(f"{len(ids) - length} rows of padding at its end are left out")
    recording.input_ids, recording.loss_mask = ids[:length], mask[:length]
    recording.slots = [s[:length] if len(s) == len(ids) else s for s in recording.slots]
    if isinstance(recording.final, Tensor) and len(recording.final) == len(ids):
        recording.final = recording.final[:length]


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
