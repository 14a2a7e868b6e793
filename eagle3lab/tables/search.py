"""Tables of the search: its repairs, and every engine's reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3lab.tables.html import Table, interval, rate, rates, table


def repairs(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Each repair with its gain and its signature by draft step.

    Args:
        rows: ``repair``, ``field``, ``from``, ``to``, ``gain``, ``low``, ``high``, ``before``, ``after``, ``nats``.
    """
    return table(
        [
            {
                "repair": str(row["repair"]),
                "field": row["field"],
                "from": row["from"],
                "to": row["to"],
                "accuracy gained": f"{rate(row['gain'])} {interval(row['low'], row['high'])}",
                "by step before": rates(row["before"]),
                "by step after": rates(row["after"]),
                "nats gained": rates(row["nats"]),
            }
            for row in rows
        ],
        "repair",
        empty="nothing to repair: no change helps beyond its interval",
    )


def served_as(rows: Sequence[Mapping[str, Any]], *, definition: str = "") -> Table:
    """How each engine and version would serve the checkpoint.

    Args:
        rows: ``program``, ``boundaries``, ``differs``, ``length``, ``low``, ``high``, ``rounds``.
        definition: what the accept length means.
    """
    return table(
        [
            {
                "engine": row["program"],
                "boundaries": row["boundaries"] or "–",
                "against the fitted reading": row["differs"],
                "accept length": f"{rate(row['length'])} {interval(row['low'], row['high'])}"
                if row["length"] is not None
                else "–",
                "rounds": str(row["rounds"] or "–"),
            }
            for row in rows
        ],
        "engine",
        empty="no engine is known",
        note=definition,
    )
