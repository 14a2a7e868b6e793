"""``eagle3lab check --json``: findings and readings, for machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3lab.acceptance import Evaluation, definition
from eagle3lab.case import Case
from eagle3lab.checks import CODES, STAGES, inputs
from eagle3lab.dialects.resolve import accepts_nothing
from eagle3lab.errors import LabError
from eagle3lab.reading import Reading
from eagle3lab.records import Finding, Interpretation, by_severity


def check_json(case: Case, findings: list[Finding], stages: Sequence[str]) -> dict[str, Any]:
    """What ``check --json`` prints: the findings, worst first, and the readings beside their numbers."""
    initials = {stage[0].upper() if stage != "serving" else "E" for stage in stages or STAGES}
    return {
        "schema": 1,
        "case": case.file.path.name if case.root == Path() else f"{case.root.name}/{case.file.path.name}",
        "title": case.title,
        "checked": sorted(code for code in CODES if code[0] in initials | {"C"}),
        "findings": [f.to_dict() for f in by_severity(findings)],
        "readings": _readings(case),
    }


def _readings(case: Case) -> dict[str, Any]:
    """Configured, trained, fitted and served readings; one that cannot be had is null."""

    def fitted() -> dict[str, Any] | None:
        try:
            scan = case.scan
        except LabError:
            return None
        return _reading(case, scan.fitted) | {
            "ties": [
                *({k: v[1] for k, v in scan.fitted.diff(tie).items()} for tie in scan.ties),
                *({entry.field: value} for entry in scan.open if not entry.same for value in entry.values),
            ],
            "undetermined": list(scan.undetermined),
            "margin": {
                "value": _number(scan.margin.value),
                "low": _number(scan.margin.low),
                "high": _number(scan.margin.high),
            },
        }

    def of(found: Interpretation | None) -> dict[str, Any] | None:
        if found is None or found.reading is None:
            return None
        made = accepts_nothing(found)
        return _made_up(case, found.reading, made) if made else _reading(case, found.reading)

    return {
        "configured": of(case.attempt("configured")),
        "trained": of(case.attempt("trained") if case.file.program else None),
        "fitted": fitted(),
        "served": {name: of(found) for name, found in (case.attempt("everyone") or {}).items()},
    }


def _reading(case: Case, reading: Reading) -> dict[str, Any]:
    found = _unmeasured(reading)
    try:
        return found | _measured(case.evaluate(reading))
    except LabError as error:
        return found | {"blocked": inputs.shown(str(error), case.root, inputs.places(case.file))}


def _unmeasured(reading: Reading) -> dict[str, Any]:
    return {
        "reading": reading.to_dict(),
        "ties": [],
        "undetermined": [],
        "margin": None,
        "correct": None,
        "scored": None,
        "accuracy": None,
        "accept_length": None,
    }


def _made_up(case: Case, reading: Reading, made: str) -> dict[str, Any]:
    """A run without a reading of its own: the engine makes up what decides every draft, and none is accepted."""
    length = {"value": 1.0, "low": 1.0, "high": 1.0, "rounds": 0, "accepted": 0, "per_position": [],
              "definition": definition(case.steps)}  # fmt: skip
    return _unmeasured(reading) | {"accept_length": length, "blocked": f"it makes up {made}"}


def _measured(found: Evaluation) -> dict[str, Any]:
    length, c = found.length, found.counts
    return {
        "correct": list(c.correct),
        "scored": list(c.scored),
        "accuracy": [_number(a) for a in c.accuracy],
        "accept_length": {
            "value": _number(length.value),
            "low": _number(length.low),
            "high": _number(length.high),
            "rounds": c.rounds,
            "accepted": c.accepted,
            "per_position": [_number(p) for p in c.cumulative],
            "definition": definition(found.steps),
        },
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
