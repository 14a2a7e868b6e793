"""Recorded intermediate states beside the standalone forward's own, module by module."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3lab.tables.html import Table, table


def parity(rows: Sequence[Mapping[str, Any]], words: str = "") -> Table:
    """One row a recorded tensor, in the order of a draft step.

    Args:
        rows: ``name``, ``module``, ``shape``, ``largest``, ``mean``, ``relative``, ``equal``, ``note``.
        words: what was run.
    """
    out = [
        {
            "recorded": str(row["name"]),
            "module": str(row["module"]) or "none of the draft's",
            "shape": str(list(row["shape"])),
            "largest difference": _number(row["largest"]),
            "mean difference": _number(row["mean"]),
            "of its largest entry": _number(row["relative"]),
            "": ("OK" if row["equal"] else "DIFF") if row["module"] else "not compared",
            "note": str(row["note"]),
        }
        for row in rows
    ]
    empty = "no [parity] table in case.toml: another program's intermediate states would be compared here"
    found = table(out, "recorded", empty=empty)
    if words:
        found.attrs["note"] = words
    return found


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2e}"
