"""The inventory of a checkpoint as rows, and its layer ids in every program's words."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lab import dialects
from eagle3lab.case import Case
from eagle3lab.inventory import Inventory, KeyEntry, TensorEntry, inventory

Row = dict[str, str]


def lists(case: Case) -> Inventory:
    """The inventory, with who drops what by engine and version."""
    return inventory(case.draft, case.everyone)


def tensor_lists(case: Case) -> dict[str, list[Row]]:
    """The four lists of tensors: title → rows."""
    found = lists(case)
    return {
        "unknown tensors": _tensors(found.unknown, "what engines do with it"),
        "missing tensors": _tensors(found.missing, "what engines do without it"),
        "known, and not needed to draft": _tensors(found.unused, "engines"),
        "used tensors": _tensors(found.used, "engines that differ"),
    }


def _tensors(entries: Sequence[TensorEntry], column: str) -> list[Row]:
    return [{"tensor": e.name, "what it is": e.why, column: e.consequence or "–"} for e in entries]


def key_lists(case: Case) -> dict[str, list[Row]]:
    """The three lists of config keys: title → rows."""
    found = lists(case)
    return {
        "unknown keys": _keys(found.unread),
        "keys that are read": _keys(found.handled),
        "keys without effect": _keys(found.harmless),
    }


def _keys(entries: Sequence[KeyEntry]) -> list[Row]:
    return [{"key": e.path, "value": str(e.value), "what it is": e.why} for e in entries]


def id_words(case: Case) -> list[tuple[str, str]]:
    """The configured boundaries in every program's own words, the plainest ones where none are configured."""
    reading = case.configured.reading or case.plainest
    return dialects.in_words(reading.aux, case.draft.arch, case.target_type) if reading else []
