"""What a reader is, what it hands on, and what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.recordings.content import Content
from eagle3lab.records import Distribution


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
        final_stated: True where the file itself says so.
        distribution: recorded target probabilities.
        origin: free text about where it came from.
        notes: what was done to it, or must be known about it; each becomes part of a finding.
        unused: keys of the file that were not used.
        faults: what makes it unusable.
    """

    input_ids: Any = None
    loss_mask: Any = None
    slots: list[Any] = field(default_factory=list)
    boundaries: tuple[int, ...] | None = None
    default: Callable[[int, int], tuple[int, ...] | None] = lambda layers, slots: None
    default_words: str = ""
    final: Any = None
    final_norm: str = "none"
    final_stated: bool = False
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
        count: how many samples a file holds, None for kinds that hold one.
    """

    kind: FileKind
    fits: Callable[[Content], bool]
    read: Callable[[Content, int, Known], Recording]
    count: Callable[[Content], int] | None = None
