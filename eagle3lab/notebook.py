"""A notebook's frame: open the case, show where things came from, end in a verdict that programs can read too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from IPython.display import display

from eagle3lab import tables, verdict, views
from eagle3lab.bars import bar
from eagle3lab.case import Case, open_case
from eagle3lab.casefile import find_case
from eagle3lab.errors import BadFile, LabError
from eagle3lab.explore import has_front_end
from eagle3lab.records import Finding, Severity, by_severity

STAGES = {
    "01_weights": ("weights",), "02_vocab_mapping": ("vocab",), "03_hidden_states": ("samples",),
    "04_forward_pass": ("forward",), "05_acceptance": ("acceptance",), "06_serving_gap": ("serving",),
}  # fmt: skip
"""Which checks each notebook's verdict holds."""

QUESTIONS = {
    "01_weights": "Is the checkpoint whole?",
    "02_vocab_mapping": "Do draft and target speak the same tokens?",
    "03_hidden_states": "Is the recording sound?",
    "04_forward_pass": "Under which reading does this draft predict this recording?",
    "05_acceptance": "What acceptance does that give?",
    "06_serving_gap": "Why does the engine report something else?",
}


class Session:
    """One run of one notebook.

    Args:
        name: the notebook's name without suffix.
        parameters: its parameters as run.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any]):
        self.name, self.parameters, self.began = name, dict(parameters), time.monotonic()
        self.case: Case = open_case(
            parameters["CASE"],
            parameters["RUN"],
            aux=parameters["AUX"],
            steps=parameters.get("STEPS", 0),
            out=parameters["OUT"] or _default_out(parameters["CASE"]),
        )
        if parameters.get("INTERACTIVE") and has_front_end():
            self.case.track = bar("statistics")

    def provenance(self) -> Any:
        """Where everything came from, as a table."""
        return tables.provenance(views.provenance(self.case))

    def show(self, draw: Callable[[], Any]) -> None:
        """Displays what ``draw`` returns; where its input is missing or broken, says so and lets the notebook go on."""
        try:
            found = draw()
        except LabError as error:
            found = tables.facts([("not shown", error.line)])
        if found is not None:
            display(found)

    def verdict(
        self,
        counts: Callable[[], Mapping[str, Any]] | None = None,
        findings: Sequence[Finding] | None = None,
        sentence: str = "",
    ) -> Any:
        """The findings table; writes the sidecar ``<OUT>/<notebook>.json``."""
        found = list(findings if findings is not None else self.case.findings(*STAGES[self.name]))
        sentence = sentence or one_sentence(found)
        numbers: dict[str, Any] = {}
        if counts is not None:
            with suppress(LabError):  # the findings say what is missing
                numbers = dict(counts())
        verdict.write(
            self.case.out / f"{self.name}.json",
            notebook=self.name,
            title=QUESTIONS.get(self.name, self.case.title),
            sentence=sentence,
            findings=found,
            parameters=self.parameters,
            inputs=verdict.inputs(self._inputs(), self.case.root),
            counts=numbers,
            seconds=round(time.monotonic() - self.began, 1),
            root=self.case.root,
        )
        return tables.findings(found, sentence=sentence)

    def _inputs(self) -> list[Path]:
        file = self.case.file
        paths = [file.path, file.draft, *([file.target] if file.target else [])]
        if file.samples is not None:
            paths += [self.case.samples.file(name) for name in self.case.samples.looked_at]
        for run in file.runs:
            paths += [file.root / name for name in (run.log, *run.metrics, run.responses, run.dump.get("path")) if name]
        return paths

    def others(self) -> list[dict[str, Any]]:
        """The verdicts that other notebooks have left in the same folder; a missing one says so."""
        rows = []
        for name, question in QUESTIONS.items():
            try:
                content = verdict.read(self.case.out / f"{name}.json")
                rows.append({"notebook": name, "question": question, "severity": content["severity"],
                             "sentence": content["sentence"], "findings": content["findings"]})  # fmt: skip
            except BadFile:
                rows.append(
                    {
                        "notebook": name,
                        "question": question,
                        "severity": "",
                        "sentence": "not run yet",
                        "findings": [],
                    }
                )
        return rows

    def overview(self) -> Any:
        """Every notebook's verdict as a table."""
        return tables.overview(self.others())

    def overall(self) -> Any:
        """The case's verdict over all notebooks that have run, worst first; writes the index's own sidecar."""
        rows = self.others()
        found = [_finding(plain) for row in rows for plain in row["findings"]]
        missing = [row["notebook"] for row in rows if not row["severity"]]
        if missing:
            found.append(Finding("C002", Severity.BLOCKED, f"not run yet: {', '.join(missing)}",
                                 remedy="run 'eagle3lab report', or open them in order"))  # fmt: skip
        return self.verdict(
            findings=by_severity(found), sentence=one_sentence(found) if found else "nothing has run yet"
        )


def start(name: str, **parameters: Any) -> Session:
    """Opens the case for a notebook.

    Args:
        name: the notebook's name without suffix.
        parameters: all its parameters, by their names.

    Raises:
        LabError: what is wrong with the parameters or the case.
    """
    missing = [key for key in ("CASE", "RUN", "AUX", "OUT") if key not in parameters]
    if missing:
        raise LabError(f"notebook {name}: parameters {', '.join(missing)} are missing")
    return Session(name, parameters)


def _default_out(case: str) -> Path:
    # in JupyterLab a kernel works in the notebooks' folder, a report beside it: both must look in one place
    home = Path.cwd()
    home = home.parent if home.name == "notebooks" else home
    return home / "reports" / find_case(case)[0].resolve().parent.name


def _finding(plain: Mapping[str, str]) -> Finding:
    texts = {key: value for key, value in plain.items() if key != "severity"}
    return Finding(severity=Severity(plain["severity"]), **texts)


ROOT_CAUSES = ("C001", "F003", "F006", "F005", "V001", "F001", "F008")
"""Codes that explain others: named first when several findings are equally bad."""


def one_sentence(findings: Sequence[Finding]) -> str:
    """The verdict in one sentence: the worst finding, root causes before their effects, with its numbers."""
    if not findings:
        return "Nothing was checked."
    order = {code: i for i, code in enumerate(ROOT_CAUSES)}
    top = min(findings, key=lambda f: (f.severity.rank, order.get(f.code, len(order))))
    worst_rank = top.severity.rank
    if worst_rank >= Severity.INFO.rank:
        return f"Nothing wrong was found in {len({f.code for f in findings})} checks."
    text = top.title[0].upper() + top.title[1:] + (f" ({top.measured})" if top.measured else "")
    more = sum(f.severity == top.severity for f in findings) - 1
    return text + (f"; {more} more at {top.severity}." if more else ".")
