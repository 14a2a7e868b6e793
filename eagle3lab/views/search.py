"""The search as rows: each repair with its signature, and how every engine would serve this checkpoint."""

from __future__ import annotations

from typing import Any

from eagle3lab.case import Case
from eagle3lab.checks.served import Way, ways
from eagle3lab.outcome import Depth
from eagle3lab.reading import show


def repairs(case: Case) -> list[dict[str, Any]]:
    """The search's path: what was changed, what it gained, and accuracy by draft step before and after."""
    return [
        {
            "repair": i, "field": r.field, "from": r.old, "to": r.new, "gain": r.gain.value, "low": r.gain.low,
            "high": r.gain.high, "before": list(r.before.accuracy), "after": list(r.after.accuracy),
            "nats": _nats(r.before, r.after),
        }
        for i, r in enumerate(case.scan.path, 1)
    ]  # fmt: skip


def _nats(before: Depth, after: Depth) -> list[float]:
    """Log-likelihood gained a token, by draft step."""
    return [b - a for a, b in zip(before.loglik, after.loglik, strict=True)] if before.loglik and after.loglik else []


def served_as(case: Case) -> list[dict[str, Any]]:
    """Each engine and version: its reading of this checkpoint, its diff to the fitted one, the accept length it gives.

    Engines that read alike are evaluated once; at most `served.MOST` samples are run.
    """
    return [served_row(way) for way in ways(case, case.everyone)]


def served_row(way: Way) -> dict[str, Any]:
    """One engine's line: ``program``, ``boundaries``, ``differs``, ``length``, ``low``, ``high``, ``rounds``."""
    length = way.length
    same = "as fitted" if way.as_fitted else ""
    return {
        "program": way.program,
        "boundaries": show(way.reading.aux) if way.reading else "",
        "differs": "; ".join(filter(None, (way.words or same, way.why))),
        "length": length.value if length else None,
        "low": length.low if length else None,
        "high": length.high if length else None,
        "rounds": length.n if length else 0,
    }
