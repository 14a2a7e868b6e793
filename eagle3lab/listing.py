"""Which samples a path holds: listed from names alone, so that 100,000 files take a second or two."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eagle3lab.errors import BadFile

SUFFIXES = (".safetensors", ".ckpt", ".ckpt.gz", ".pt", ".pth")
TEXTS = (".json", ".jsonl")
"""Only taken as samples where a path names them, or where a folder holds nothing else."""

OTHER_DUMPS = (".arrow", ".bin", ".gguf", ".npy", ".npz", ".parquet")
"""Files that look like recordings in a form no reader knows: named, never passed over in silence."""

SIDE_FILES = re.compile(
    r"(vocab_mapping|token_freq|d2t|t2d|cache|training_state.*)\.(pt|npy)|target_embeddings\.safetensors|.*\.lock"
    r"|data-\d+-of-\d+\.arrow|cache-.*\.arrow"
)
"""What trainers write beside their samples."""

_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class Entry:
    """One sample: its file, and its place in it."""

    file: Path
    index: int = 0


@dataclass
class Listing:
    """What a path holds.

    Attributes:
        entries: name → sample, in natural order (``data_2`` before ``data_10``).
        others: files that look like recordings and are in no known form.
        missing: (folder, first and last number, how many are missing between them) of numbered files.
        repeated: file names that more than one folder has.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    missing: tuple[tuple[str, int, int, int], ...] = ()
    repeated: tuple[str, ...] = ()


def list_samples(path: Path, count: Callable[[Path], int]) -> Listing:
    """Lists a folder (with its subfolders), a file or a glob.

    Args:
        path: where the case's samples are.
        count: how many samples a file holds; asked for one file a folder, and for all of a folder whose first
            file holds several.

    Raises:
        BadFile: nothing there that could be a sample.
    """
    if path.is_dir():
        found, others = _walk(path)
        if not found:
            listing = sorted(p.name for p in path.iterdir())
            what = ", ".join(listing[:8]) + (" …" if len(listing) > 8 else "") if listing else "an empty folder"
            raise BadFile(path, f"found {what}; expected recorded samples ({', '.join(SUFFIXES)}; docs/formats.md)")
    else:
        found, others = [path] if path.is_file() or path.is_symlink() else _matching(path), []
        if not found:
            raise BadFile(path, "no such file or folder, and nothing matches it as a pattern; check [samples] path")
    base = path if path.is_dir() else path.parent
    names, repeated = _names(found, base)
    return Listing(
        entries=dict(_entries(names, count)),
        others=tuple(others),
        missing=tuple(_gaps(found, base)),
        repeated=repeated,
    )


def suffix_of(name: str) -> str:
    """``.ckpt.gz`` for both of its parts, otherwise the last suffix."""
    return ".ckpt.gz" if name.endswith(".ckpt.gz") else os.path.splitext(name)[1]


def natural(text: str) -> list[tuple[int, int, str]]:
    """A key that sorts numbers in names by value."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _NUMBERS.split(text) if part]


def _matching(path: Path) -> list[Path]:
    """Files that match a pattern, taken at the user's word: no suffix is asked for."""
    if not path.parent.is_dir():
        return []
    return sorted((f for f in path.parent.glob(path.name) if not f.is_dir()), key=lambda f: natural(f.name))


def _walk(root: Path) -> tuple[list[Path], list[str]]:
    """Sample files below ``root`` and files in other forms; folders reached twice through links are read once."""
    tensors: list[str] = []
    texts: list[str] = []
    others: list[str] = []
    seen: set[tuple[int, int]] = set()
    pending = [str(root)]
    while pending:
        folder = pending.pop()
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    if not entry.name.startswith("."):
                        pending.append(entry.path)
                elif not SIDE_FILES.fullmatch(entry.name) and not entry.name.startswith("."):
                    suffix = suffix_of(entry.name)
                    into = {**dict.fromkeys(SUFFIXES, tensors), **dict.fromkeys(TEXTS, texts),
                            **dict.fromkeys(OTHER_DUMPS, others)}.get(suffix)  # fmt: skip
                    if into is not None:
                        into.append(entry.path)
    found = sorted(map(Path, tensors or texts), key=lambda f: natural(str(f)))
    return found, sorted(os.path.relpath(other, root) for other in others)


def _names(files: list[Path], base: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Names of samples: stems where they are unique, else paths from ``base`` without the suffix."""
    stems: dict[str, int] = {}
    for file in files:
        stem = file.name.removesuffix(suffix_of(file.name))
        stems[stem] = stems.get(stem, 0) + 1
    names: dict[str, Path] = {}
    for file in files:
        suffix = suffix_of(file.name)
        name = file.name.removesuffix(suffix)
        if stems[name] > 1:
            name = os.path.relpath(file, base).removesuffix(suffix)
        names[name if name not in names else os.path.relpath(file, base)] = file
    return names, tuple(sorted(stem for stem, n in stems.items() if n > 1))


def _entries(names: dict[str, Path], count: Callable[[Path], int]) -> Iterator[tuple[str, Entry]]:
    several: dict[tuple[Path, str], bool] = {}
    for name, file in names.items():
        group = (file.parent, suffix_of(file.name))
        if group not in several:
            several[group] = count(file) > 1
        held = count(file) if several[group] else 1
        for index in range(held):
            yield (name if held == 1 else f"{name}.{index}"), Entry(file, index)


def _gaps(files: list[Path], base: Path) -> Iterator[tuple[str, int, int, int]]:
    """Numbers that are missing between the first and the last of each series of numbered files."""
    series: dict[str, set[int]] = {}
    for file in files:
        stem = file.name.removesuffix(suffix_of(file.name))
        if numbered := re.fullmatch(r"(.*?)(\d+)", stem):
            # folders of one writer continue each other (rows_0-2000, rows_2000-4000), ranks do not
            folder = re.sub(r"rows_\d+-\d+", "rows_*", os.path.relpath(file.parent, base))
            series.setdefault(os.path.join(folder, numbered[1]), set()).add(int(numbered[2]))
    for prefix, numbers in series.items():
        first, last = min(numbers), max(numbers)
        if len(numbers) > 1 and (missing := last - first + 1 - len(numbers)):
            yield os.path.normpath(prefix), first, last, missing
