"""Which samples a path holds: listed from names alone, so that 100,000 files take a second or two."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eagle3lab.errors import BadFile

SUFFIXES = (".safetensors", ".ckpt", ".ckpt.gz", ".pt", ".pth")
TEXTS = (".json", ".jsonl")
"""Only taken as samples where a path names them, or where a folder holds nothing else."""

OTHER_DUMPS = (
    ".arrow", ".bin", ".gguf", ".gz", ".h5", ".hdf5", ".npy", ".npz", ".parquet", ".pickle", ".pkl", ".tar", ".tmp",
    ".zip",
)  # fmt: skip
"""Files that look like recordings in a form no reader knows: named, never passed over in silence."""

SIDE_FILES = re.compile(
    r"(vocab_mapping|token_freq|[dt]2[dt](-\d+)?|cache|training_state.*)\.(pt|npy)|target_embeddings\.safetensors"
    r"|.*\.lock|(config|data_config|sample_lengths|manifest|dataset_info|state|generation_config|.*\.index)\.json"
    r"|data-\d+-of-\d+\.arrow|cache-.*\.arrow"
)
"""What trainers write beside their samples."""

TRIED = 20
"""Files of a folder that are opened in search of a readable one."""

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
        others: files that look like recordings and are not taken: forms that no reader knows, answers beside tensors.
        missing: (folder, first and last number, how many are missing between them) of numbered files.
        repeated: file names that more than one folder has.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    missing: tuple[tuple[str, int, int, int], ...] = ()
    repeated: tuple[str, ...] = ()


def list_samples(path: Path, count: Callable[[Path], int | None]) -> Listing:
    """Lists a folder (with its subfolders), a file or a glob.

    Args:
        path: where the case's samples are.
        count: how many samples a file holds, 0 where it cannot be told, None where its kind always holds one. Asked
            of a folder's first readable file, and of all files of a folder whose kind may hold several.

    Raises:
        BadFile: nothing there that could be a sample.
    """
    if os.path.isdir(path):
        found, others = _walk(path, count)
        if not found:
            listing = sorted(p.name for p in path.iterdir())
            what = ", ".join(listing[:8]) + (" …" if len(listing) > 8 else "") if listing else "an empty folder"
            raise BadFile(path, f"found {what}; expected recorded samples ({', '.join(SUFFIXES)}; docs/formats.md)")
    else:
        found, others = [path] if os.path.isfile(path) or os.path.islink(path) else _matching(path), []
        if not found:
            raise BadFile(path, "no such file or folder, and nothing matches it as a pattern; check [samples] path")
    base = path if os.path.isdir(path) else path.parent
    names, repeated = _names(found, base)
    return Listing(
        entries=_entries(names, count),
        others=tuple(others),
        missing=tuple(_gaps(found, base)),
        repeated=repeated,
    )


def suffix_of(name: str) -> str:
    """``.ckpt.gz`` for both of its parts, otherwise the last suffix; as spelt in the name."""
    return name[-8:] if name.lower().endswith(".ckpt.gz") else os.path.splitext(name)[1]


def natural(text: str) -> list[str | int]:
    """A key that sorts numbers in names by value; text and numbers alternate, text first."""
    parts: list[str | int] = list(_NUMBERS.split(text))
    parts[1::2] = map(int, parts[1::2])
    return parts


def _matching(path: Path) -> list[Path]:
    """Files that match a pattern, in any part of it, taken at the user's word: no suffix is asked for."""
    found = map(Path, glob.glob(str(path), recursive=True))
    return sorted((f for f in found if not f.is_dir()), key=lambda f: natural(str(f)))


def _walk(root: Path, count: Callable[[Path], int | None]) -> tuple[list[Path], list[str]]:
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
                if _is_folder(entry):
                    if not entry.name.startswith("."):
                        pending.append(entry.path)
                elif not SIDE_FILES.fullmatch(entry.name) and not entry.name.startswith("."):
                    suffix = suffix_of(entry.name).lower()
                    into = {**dict.fromkeys(SUFFIXES, tensors), **dict.fromkeys(TEXTS, texts),
                            **dict.fromkeys(OTHER_DUMPS, others)}.get(suffix)  # fmt: skip
                    if into is not None:
                        into.append(entry.path)
    found = sorted(map(Path, tensors or texts), key=lambda f: natural(str(f)))
    others += [text for text in texts[:TRIED] if count(Path(text))] if tensors else []
    return found, sorted(_shown(os.path.relpath(other, root)) for other in others)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: kept as a file, and reading it says what is wrong
        return False


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
        names[_shown(name if name not in names else os.path.relpath(file, base))] = file
    return names, tuple(sorted(stem for stem, n in stems.items() if n > 1))


def _shown(name: str) -> str:
    """A name that can be printed: bytes that are no UTF-8 are replaced."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _entries(names: dict[str, Path], count: Callable[[Path], int | None]) -> dict[str, Entry]:
    groups: dict[tuple[Path, str], list[Path]] = {}
    for file in names.values():
        groups.setdefault((file.parent, suffix_of(file.name)), []).append(file)
    held: dict[Path, int] = {}
    for files in groups.values():
        if _may_hold_several(files, count):
            counts = {file: count(file) or 1 for file in files}
            held |= counts if max(counts.values()) > 1 else {}
    out: dict[str, Entry] = {}
    for name, file in names.items():
        if file not in held:
            out[name] = Entry(file)
            continue
        for index in range(held[file]):
            place = f"{name}.{index}"
            out[place if place not in names and place not in out else f"{file.name}.{index}"] = Entry(file, index)
    return out


def _may_hold_several(files: list[Path], count: Callable[[Path], int | None]) -> bool:
    """Whether the kind of the first readable file may hold several samples a file."""
    for file in files[:TRIED]:
        if (held := count(file)) != 0:
            return held is not None
    return False


def _gaps(files: list[Path], base: Path) -> Iterator[tuple[str, int, int, int]]:
    """Numbers that are missing between the first and the last of each series of numbered files."""
    series: dict[str, set[int]] = {}
    folders: dict[Path, str] = {}
    for file in files:
        stem = file.name.removesuffix(suffix_of(file.name))
        if numbered := re.fullmatch(r"(.*?)(\d+)", stem):
            # folders of one writer continue each other (rows_0-2000, rows_2000-4000), ranks do not
            if file.parent not in folders:
                folders[file.parent] = re.sub(r"rows_\d+-\d+", "rows_*", os.path.relpath(file.parent, base))
            series.setdefault(os.path.join(folders[file.parent], numbered[1]), set()).add(int(numbered[2]))
    for prefix, numbers in series.items():
        first, last = min(numbers), max(numbers)
        missing = last - first + 1 - len(numbers)
        if 0 < missing < len(numbers):  # with more gaps than files it is no series, but names that end in digits
            yield os.path.normpath(prefix), first, last, missing
