"""What cannot be read, and what is blocked for want of a file: one finding a cause, however many stages it stops."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from eagle3lab import hubcache
from eagle3lab.casefile import CaseFile
from eagle3lab.errors import BadFile, BadShape, Blocked, LabError
from eagle3lab.records import Finding, Severity

CODES = {
    "C001": "an input cannot be read",
    "C002": "a question is blocked: the file that would answer it is not given",
    "C003": "keys of case.toml that this version does not use",
    "C004": "an earlier stage failed: what later numbers do not say then",
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
        return Finding("C001", Severity.FAIL, f"{hubcache.label(error.path)} cannot be used: {found}", str(error.path),
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


UNSOUND = {
    "the checkpoint is not whole": (
        ("W002", "W003", "W010", "W011", "V001", "V002", "V003", "V011"), ("forward", "acceptance", "serving"),
        "what is predicted of it is predicted of this file, not of the draft that was trained: mend it first",
    ),
    "the recording is not sound": (
        ("S003", "S004", "S007", "S017", "S018", "S019"), ("forward", "acceptance"),
        "accuracy and accept length are of these rows: do not grade the draft on them, mend the recording first",
    ),
}  # fmt: skip
"""What a FAIL of these codes makes doubtful: the codes, the later stages, what to do."""


def consequences(findings: Sequence[Finding], stages: Sequence[str]) -> list[Finding]:
    """What the failures of static and recorded files block, among the ``stages`` that were asked for."""
    out = []
    for title, (codes, later, remedy) in UNSOUND.items():
        failed = sorted({f.code for f in findings if f.code in codes and f.severity == Severity.FAIL})
        doubtful = [stage for stage in later if stage in stages]
        if failed and doubtful:
            out.append(Finding("C004", Severity.BLOCKED, f"{title} ({', '.join(failed)}): {', '.join(doubtful)} cannot judge the draft",
                               ", ".join(failed), evidence="reading order: static, recorded, forward, engine", remedy=remedy))  # fmt: skip
    return out


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with each cause once, at its first place: the stages it stops stand together."""
    out: dict[Finding, Finding] = {}
    for f in findings:
        key = replace(f, evidence="") if f.code in CODES else f
        if key in out and f.evidence not in out[key].evidence:
            f = replace(f, evidence=f"{out[key].evidence}, {f.evidence.removeprefix(STOPS)}")
        out[key] = f
    return list(out.values())


def relative(findings: Sequence[Finding], root: Path, places: Sequence[Path] = ()) -> list[Finding]:
    """The findings with paths relative to the case: no home or working folder leaks into a shared report.

    Args:
        findings: with paths as they were opened.
        root: the case's folder.
        places: the case's files and folders; one that lies elsewhere is called by its own name, or its id.
    """
    names = [k.name for k in fields(Finding) if k.name != "severity"]
    return [_mapped(f, {k: shown(getattr(f, k), root, places) for k in names}) for f in findings]


def shown(text: str, root: Path, places: Sequence[Path] = ()) -> str:
    """``text`` with every path in it relative to ``root``, or by the name of the place that it lies in."""
    stands_for = {str(place): hubcache.label(place) for place in places if place.is_absolute()}
    for folder in {root, root.absolute()} - {Path()}:
        stands_for |= {str(p): p.relative_to(folder).as_posix() for p in places if p.is_relative_to(folder)}
        stands_for[f"{folder}/"] = ""
    for path in sorted(stands_for, key=len, reverse=True):
        end = "" if path.endswith("/") else r"(?![\w-]|\.\w)"
        text = re.sub(rf"(?<![\w./-]){re.escape(path)}{end}", lambda _, to=stands_for[path]: to, text)  # type: ignore[misc]
    return hubcache.shown(text)


def places(file: CaseFile) -> list[Path]:
    """Every file and folder that a case names."""
    named = [name for run in file.runs for name in (run.log, *run.metrics, run.responses, run.dump.get("path")) if name]
    given = [file.draft, file.target, file.samples, file.parity, *(file.root / str(name) for name in named)]
    return [place for place in given if place is not None]


def _mapped(found: Finding, texts: dict[str, Any]) -> Finding:
    return replace(found, **texts)
