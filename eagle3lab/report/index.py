"""The report's front page and its status file: every case, every notebook, every finding to act on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eagle3lab.records import Severity
from eagle3lab.report.pages import TEMPLATES

INDEX = "00_index"
_RANK = {str(severity): severity.rank for severity in Severity}


@dataclass
class Entry:
    """One notebook of one case, as the index shows it.

    Attributes:
        name: the notebook without suffix.
        title: its title.
        question: what it asks.
        status: how it went, `run.Run.status`.
        seconds: wall time.
        error: one line, empty when it ran.
        verdict: its sidecar, None when it left none.
    """

    name: str
    title: str
    question: str
    status: str
    seconds: float
    error: str
    verdict: dict[str, Any] | None

    @property
    def severity(self) -> str | None:
        """The verdict's severity, None without one."""
        return self.verdict["severity"] if self.verdict else None

    @property
    def sentence(self) -> str:
        """The verdict's sentence, empty without one."""
        return self.verdict["sentence"] if self.verdict else ""


@dataclass
class CaseReport:
    """One case of the report: its folder's name there, its title, its notebooks in order."""

    name: str
    title: str
    entries: list[Entry] = field(default_factory=list)
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def judged(self) -> list[Entry]:
        """The notebooks that left a verdict."""
        return [entry for entry in self.entries if entry.verdict]

    @property
    def missing(self) -> list[Entry]:
        """The notebooks that did not run to their end."""
        return [entry for entry in self.entries if entry.status != "ok"]

    @property
    def severity(self) -> str | None:
        """The worst severity of all verdicts, None when there are none."""
        return min((e.verdict["severity"] for e in self.judged if e.verdict), key=_RANK.__getitem__, default=None)

    @property
    def sentence(self) -> str:
        """The index notebook's verdict; without it, that of the notebook with the worst one."""
        worst = min(self.judged, key=lambda e: (e.name != INDEX, _RANK[e.severity or "PASS"]), default=None)
        return worst.sentence if worst else "No notebook reached its verdict."

    @property
    def findings(self) -> list[dict[str, Any]]:
        """All findings once, worst first; ``notebooks`` says where each was made."""
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        # The index notebook repeats what the others found, so it comes last and adds nothing to theirs.
        for entry in sorted(self.judged, key=lambda e: e.name == INDEX):
            for finding in entry.verdict["findings"] if entry.verdict else []:
                key = tuple(str(finding.get(k, "")) for k in ("code", "title", "where"))
                row = found.setdefault(key, {**finding, "notebooks": []})
                if entry.name != INDEX or not row["notebooks"]:
                    row["notebooks"].append(entry)
        return sorted(found.values(), key=lambda row: _RANK[row["severity"]])

    @property
    def tally(self) -> list[tuple[str, int]]:
        """Number of findings by severity, worst first."""
        counts = Counter(finding["severity"] for finding in self.findings)
        return sorted(counts.items(), key=lambda item: _RANK[item[0]])


def status(cases: Sequence[CaseReport]) -> dict[str, Any]:
    """The content of ``status.json``."""
    return {
        "schema": 1,
        "cases": [
            {
                "case": case.name,
                "title": case.title,
                "notebooks": [
                    {
                        "name": entry.name,
                        "status": entry.status,
                        "seconds": round(entry.seconds, 3),
                        "severity": entry.severity,
                        "sentence": entry.sentence,
                        "error": entry.error,
                    }
                    for entry in case.entries
                ],
            }
            for case in cases
        ],
    }


def render_index(cases: Sequence[CaseReport], facts: Sequence[tuple[str, str]]) -> str:
    """The front page; everything from the files is escaped."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("cases.html.j2").render(cases=cases, facts=facts, index=INDEX)
