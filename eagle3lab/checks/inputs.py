"""What cannot be read, and what is blocked for want of a file: one finding a cause, however many stages it stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from eagle3lab.errors import BadFile, BadShape, Blocked, LabError
from eagle3lab.records import Finding, Severity

CODES = {
    "C001": "an input cannot be read",
    "C002": "a question is blocked: the file that would answer it is not given",
    "C003": "keys of case.toml that this version does not use",
}
STOPS = "not checked: "


def stopped(errors: Sequence[tuple[str, LabError]]) -> list[Finding]:
    """One finding for each distinct cause.

    Args:
        errors: (what could not go on, why), in order.
    """
    causes: dict[str, tuple[LabError, list[str]]] = {}
    for what, error in errors:
        causes.setdefault(str(error), (error, []))[1].append(what)
    return [finding(error, list(dict.fromkeys(what))) for error, what in causes.values()]


def finding(error: LabError, what: Sequence[str]) -> Finding:
    """The finding that an error is, and what it stops."""
    stops = STOPS + ", ".join(what)
    if isinstance(error, BadFile):
        found = error.faults[0].split("; ")[0] if len(error.faults) == 1 else f"{len(error.faults)} faults"
        return Finding("C001", Severity.FAIL, f"{error.path.name} cannot be used: {found}", str(error.path),
                       "; ".join(error.faults), "a sound file", stops, "mend or replace this file")  # fmt: skip
    if isinstance(error, BadShape):
        return Finding("C002", Severity.BLOCKED, f"the draft cannot be run: {error.operation} does not fit", error.operation,
                       error.found, error.expected, stops, "mend what F001, W002 or S008 name")  # fmt: skip
    if isinstance(error, Blocked):
        return Finding("C002", Severity.BLOCKED, str(error), evidence=stops, remedy="give what is named here")
    return Finding("C001", Severity.FAIL, str(error), evidence=stops, remedy="mend what is named here")


def unused(keys: Sequence[str], file: str) -> list[Finding]:
    """Says which keys of the case file change nothing."""
    if not keys:
        return []
    names = ", ".join(keys)
    return [Finding("C003", Severity.INFO, f"{names}: read, and not used by this version", file, names,
                    remedy="nothing to do; these numbers do not depend on them")]  # fmt: skip


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with each cause once, at its first place: the stages it stops stand together."""
    out: dict[Finding, Finding] = {}
    for f in findings:
        key = replace(f, evidence="") if f.code in CODES else f
        if key in out and f.evidence not in out[key].evidence:
            f = replace(f, evidence=f"{out[key].evidence}, {f.evidence.removeprefix(STOPS)}")
        out[key] = f
    return list(out.values())


def relative(findings: Sequence[Finding], root: Path) -> list[Finding]:
    """The findings with paths relative to the case: no home or working folder leaks into a shared report."""
    start = f"{root}/"
    return [replace(f, **{k.name: getattr(f, k.name).replace(start, "") for k in fields(f) if k.name != "severity"})
            for f in findings]  # fmt: skip
