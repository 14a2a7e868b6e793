"""The search as rows: each repair with its signature, and how every engine would serve this checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from eagle3lab.case import Case
from eagle3lab.errors import LabError
from eagle3lab.neighbours import optional_groups
from eagle3lab.outcome import Depth
from eagle3lab.reading import Reading, show
from eagle3lab.samples import spread

MOST = 16
"""Samples on which the engines' readings are compared."""


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

    Engines that read alike are evaluated once; at most `MOST` samples are run.
    """
    names = spread(case.samples.headline, MOST)
    fitted = canonical(case, case.fitted)
    rows = []
    for name, way in case.everyone.items():
        row: dict[str, Any] = {
            "program": name,
            "boundaries": "",
            "differs": "",
            "length": None,
            "low": None,
            "high": None,
            "rounds": 0,
        }
        if way.reading is None:
            rows.append(row | {"differs": "refuses: " + "; ".join(way.refused)})
            continue
        reading = canonical(case, way.reading)
        row |= {"boundaries": show(reading.aux), "differs": fitted.words(reading) or "as fitted"}
        try:
            length = _evaluated(case, reading, fitted, names).length
            row |= {"length": length.value, "low": length.low, "high": length.high, "rounds": length.n}
        except LabError as error:
            row["differs"] += f"; cannot be run here: {error.line}"
        rows.append(row)
    return rows


def _evaluated(case: Case, reading: Reading, fitted: Reading, names: Sequence[str]) -> Any:
    """The reading itself is asked for where an equal one was run before: evaluations are remembered."""
    chosen = () if len(names) == len(case.samples.headline) else names
    same = [case.fitted] if reading == fitted else []
    configured = case.configured.reading
    if configured is not None and canonical(case, configured) == reading:
        same.append(configured)
    return case.evaluate(same[0] if same else reading, 0, chosen)


def canonical(case: Case, reading: Reading) -> Reading:
    """The reading with what is of no account for this draft set to one value, so that equal forwards compare equal."""
    if case.draft.arch.layers == 1:
        reading = reading.replace(second_norm="hidden_norm")
    if not reading.rope.scaling:
        reading = reading.replace(rope=replace(reading.rope, rule="hf", limit=None))
    used = {name for names in optional_groups(case.model).values() for name in names}
    return reading.replace(dropped=tuple(name for name in reading.dropped if name in used))
