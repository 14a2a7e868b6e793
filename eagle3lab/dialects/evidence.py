"""Reading what any engine leaves behind: text, JSON lines, histograms of accepted drafts."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3lab.errors import BadFile

_SHOWN = 5
"""Faults of one file that are spelt out; the rest is counted."""
_WIDTH = 30
"""Characters of a value that cannot be read which are shown."""
_LARGEST = 2**53
"""Counts past this are garbage: JSON's floats no longer hold them."""


def text_lines(root: Path, name: str, expected: str) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file, line ends kept; nothing but one line is held in memory.

    Args:
        root: the case folder.
        name: the file, relative to it.
        expected: what the file should be, for the error's text.

    Raises:
        BadFile: missing, unreadable or binary.
    """
    path = root / name
    try:
        with path.open("rb") as raw:
            mark = raw.read(2)
        # PowerShell's ">" writes UTF-16 with a byte order mark; everything else met so far is UTF-8.
        wide = mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        with path.open(encoding="utf-16" if wide else "utf-8-sig", errors="replace") as stream:
            for number, line in enumerate(stream, 1):
                if "\0" in line:
                    fault = f"line {number}: found a NUL byte; expected {expected}; unpack it or name another"
                    raise BadFile(name, fault)
                yield number, line
    except OSError as error:
        why = error.strerror or type(error).__name__
        fault = f"cannot be read: {why}; expected {expected}; correct its path in the case"
        raise BadFile(name, fault) from error


def json_rows(root: Path, name: str, expected: str) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
    """The objects of a JSON-lines file with their line numbers (a line may hold a list of them), and notes.

    Raises:
        BadFile: no object at all, or lines that are none; a last line cut mid-line is only a note.
    """
    rows: list[tuple[int, dict[str, Any]]] = []
    faults: list[str] = []
    number, ended, bad = 0, True, 0
    for number, line in text_lines(root, name, expected):
        if not line.strip():
            continue
        ended = line.endswith("\n")
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            found, bad = f"{line.strip()[:60]!r} ({error})", number
        else:
            items = value if isinstance(value, list) else [value]
            rows += [(number, item) for item in items if isinstance(item, dict)]
            if all(isinstance(item, dict) for item in items):
                continue
            found = repr(value)[:60]
        faults.append(f"line {number}: found {found}; expected {expected} as JSON, one a line (see jq -c)")
    if rows and len(faults) == 1 and bad == number and not ended:
        return rows, [f"partial: the last line ({number}) is cut and left out"]
    if faults:
        raise BadFile(name, shortened(faults))
    if not rows:
        raise BadFile(name, f"found no line; expected {expected} as JSON, one a line; record the run again")
    return rows, []


def json_file(root: Path, name: str, expected: str) -> dict[str, Any]:
    """The one JSON object that a file holds.

    Raises:
        BadFile: anything else.
    """
    text = "".join(line for _, line in text_lines(root, name, expected))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(name, f"found no valid JSON ({error}); expected {expected}; record it again") from error
    if not isinstance(value, dict):
        raise BadFile(name, f"found a JSON {type(value).__name__}; expected {expected}; record it again")
    return value


def shortened(faults: list[str]) -> list[str]:
    """The first few faults, and how many more there are."""
    more = len(faults) - _SHOWN
    return faults[:_SHOWN] + ([f"and {more} more of this kind"] if more > 0 else [])


def objects(value: Any) -> list[dict[str, Any]]:
    """The JSON objects that ``value`` is or lists; none of anything else."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict)]


def count(value: Any) -> int | None:
    """``value`` as a count, None when it is none (absent, negative, a fraction, text)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        return None
    return int(value) if value == int(value) else None


def number(value: Any) -> float | None:
    """``value`` as a mean or rate, None when it is none (absent, negative, NaN, text, past what is measured)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        return None
    return float(value)


def total(values: Sequence[int | None]) -> int | None:
    """Their sum, None where one of them is unknown: what is not known is not zero."""
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def unreadable(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str], of: str, read: Callable[[Any], Any] = count
) -> list[str]:
    """Sentences about values that are there and cannot be read, [] when all can; null is not there.

    Args:
        rows: objects that hold them.
        keys: their names, each of which a row may lack.
        of: what a row is, in the plural, for the sentence.
        read: gives None for what cannot be.
    """
    out = []
    for key in keys:
        odd = [row[key] for row in rows if row.get(key) is not None and read(row[key]) is None]
        if odd:
            shown = repr(odd[0])
            shown = shown if len(shown) <= _WIDTH else f"{shown[:_WIDTH]}…"
            out.append(f"{key} is {shown} in {len(odd)} of {len(rows)} {of}: that cannot be read")
    return out


def counts(values: Any) -> tuple[int, ...] | None:
    """``values`` as counts, None when it is no list of them."""
    if not isinstance(values, list):
        return None
    found = tuple(count(v) for v in values)
    return None if None in found else tuple(v for v in found if v is not None)


def token_ids(values: Any) -> tuple[int, ...]:
    """``values`` as token ids, empty when the engine gave none."""
    return counts(values) or ()


def histogram(values: Any) -> tuple[int, ...] | None:
    """Rounds by number of drafts accepted, from a list or a sparse ``{accepted: rounds}`` object."""
    if not isinstance(values, dict):
        return counts(values)
    sparse = {int(k): count(v) for k, v in values.items() if str(k).isdecimal() and len(str(k)) < 4}
    if len(sparse) != len(values) or None in sparse.values():
        return None
    return tuple(sparse.get(j) or 0 for j in range(max(sparse, default=-1) + 1))


def at_least(rounds: Sequence[int]) -> tuple[int, ...]:
    """Cumulative counts per position of a histogram: rounds that accepted at least j+1 drafts, j from 0."""
    return tuple(sum(rounds[j:]) for j in range(1, len(rounds)))


def added(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """``a + b`` position by position, the shorter one padded with zeros."""
    length = max(len(a), len(b))
    padded = [(*x, *(0,) * (length - len(x))) for x in (tuple(a), tuple(b))]
    return tuple(x + y for x, y in zip(*padded, strict=True))


def steps_note(said: int | None, given: int | None) -> list[str]:
    """A note when the case and the engine disagree on K."""
    if said is None or given is None or said == given:
        return []
    return [f"the case says {given} draft tokens a round, this file says {said}: the file is followed"]
