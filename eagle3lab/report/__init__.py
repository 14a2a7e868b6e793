"""All notebooks of all cases, headless, to one folder of pages that can be mailed: ``eagle3lab report``."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import nbformat

from eagle3lab import verdict
from eagle3lab.case import open_case
from eagle3lab.errors import BadFile, LabError
from eagle3lab.records import Severity
from eagle3lab.report.index import INDEX, CaseReport, Entry, render_index, status
from eagle3lab.report.pages import Page, clean, heading, render
from eagle3lab.report.run import FAILED, NOT_RUN, OK, Kernels, Run, Usage, fit, run
from eagle3lab.scrub import Scrubber, absolute, scrubber

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
_TAKEN = ("index.html", "status.json")

SEARCHED = "04"
"""Notebooks from this number on use the search's answer."""


@dataclass
class _Plan:
    """One case of the report: its file, its folder there, and what is known of its notebooks."""

    case: Path
    folder: Path
    title: str
    scrub: Scrubber
    names: list[str] = field(default_factory=list)
    kept: list[Entry] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.name


def run_report(
    cases: Sequence[Path],
    out: Path,
    *,
    notebooks: Path | None = None,
    parameters: Mapping[str, object] | None = None,
    only: Sequence[str] = (),
    strict: bool = False,
    timeout: int = 3600,
    jobs: int = 2,
    log: Callable[[str], None] | None = None,
) -> int:
    """Runs every notebook on every case and writes pages, ``index.html`` and ``status.json`` to ``out``.

    A notebook that fails leaves the page of what it got to, and the others run. One that leaves no fresh
    sidecar is "not run", whatever else happened. The index notebook (``00_index``) comes last, because it
    shows the others; by then ``status.json`` tells how they went.

    Args:
        cases: the ``case.toml`` files, or their folders.
        out: the report's folder; each case gets a folder in it. Other files there are left alone.
        notebooks: where the notebooks are, by default beside the package.
        parameters: given to each notebook that declares them; text is read in the type of the default.
        only: notebooks to run, by name or number (``04``); the index keeps what an earlier report into the
            same folder says of the rest.
        strict: gate: any verdict FAIL is an exit code of 3.
        timeout: seconds a cell may take.
        jobs: notebooks at a time, each with a kernel of its own.
        log: takes one line a notebook, and what is wrong with the request.

    Returns:
        0 all ran; 1 something did not run; 2 wrong usage, nothing was run; 3 all ran, ``strict`` was not met.
    """
    say = log or (lambda line: None)
    out = absolute(out)
    try:
        available = _notebooks(absolute(notebooks or NOTEBOOKS))
        chosen = _choose(available, only)
        given = fit(chosen, parameters or {})
        plans = _plan(cases, out, chosen[0].parent)
    except Usage as error:
        say(str(error))
        return 2
    headings = {path.stem: heading(nbformat.read(path, as_version=4), path.stem) for path in available}
    for plan in plans:
        plan.kept = _kept(out, plan, [p for p in available if p not in chosen], headings)
        plan.names = sorted([path.stem for path in chosen] + [entry.name for entry in plan.kept])

    kernels = Kernels(jobs)
    fresh: list[list[Entry]] = [[] for _ in plans]
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            early = [p for p in chosen if p.stem != INDEX and p.stem < SEARCHED]
            late = [p for p in chosen if p.stem != INDEX and p.stem >= SEARCHED]
            searches = [pool.submit(_search, plan, given[path]) for plan in plans for path in late[:1]]
            for phase in (early, late, [p for p in chosen if p.stem == INDEX]):
                if phase is late:
                    wait(searches)
                waiting = [
                    (number, pool.submit(_notebook, plan, path, given[path], timeout, kernels, headings))
                    for number, plan in enumerate(plans)
                    for path in phase
                ]
                for number, future in waiting:
                    entry = future.result()
                    fresh[number].append(entry)
                    say(_line(plans[number], entry))
                reports = [_report(plan, entries) for plan, entries in zip(plans, fresh, strict=True)]
                verdict.save(out / "status.json", status(reports))
        except BaseException:
            # Ctrl-C arrives here while the threads wait for their kernels: without kernels they can end.
            pool.shutdown(wait=False, cancel_futures=True)
            kernels.stop()
            raise
    verdict.replace(out / "index.html", render_index(reports, _facts()))
    done = [entry for entries in fresh for entry in entries]
    if any(entry.status != OK for entry in done):
        return 1
    return 3 if strict and any(entry.severity == Severity.FAIL for entry in done) else 0


def _search(plan: _Plan, given: Mapping[str, object]) -> None:
    """Finds the fitted reading once, while the first notebooks run; the later ones find it remembered in their folder.

    What stands in its way is no matter here: a notebook that needs the answer will meet it and say so.
    """
    with suppress(LabError, OSError):
        plan.folder.mkdir(parents=True, exist_ok=True)
        case = open_case(plan.case, str(given.get("RUN", "")), aux=str(given.get("AUX", "")), out=plan.folder)
        _ = case.scan


def _notebook(
    plan: _Plan,
    path: Path,
    given: Mapping[str, object],
    timeout: int,
    kernels: Kernels,
    headings: Mapping[str, tuple[str, str]],
) -> Entry:
    """Runs one notebook on one case and writes its files; the sidecar stays only if it ran to the end."""
    name = path.stem
    title, question = headings[name]
    sidecar = plan.folder / f"{name}.json"
    for old in (sidecar, sidecar.with_suffix(".html"), sidecar.with_suffix(".ipynb")):
        old.unlink(missing_ok=True)
    own = {"CASE": str(plan.case), "INTERACTIVE": False, "OUT": str(plan.folder)}
    ran = run(path, {**given, **own}, timeout, kernels)
    content = None
    if ran.status == OK:
        try:
            content = verdict.read(sidecar) if sidecar.exists() else None
            problem = "it ended without writing its verdict"
        except BadFile as error:
            problem = str(error)
        if content is None:
            ran = replace(ran, status=NOT_RUN, error=problem)
    if content is None:
        sidecar.unlink(missing_ok=True)
    else:
        content = plan.scrub.tree(content)
        verdict.save(sidecar, content)
    ran = replace(ran, error=plan.scrub.text(ran.error))
    try:
        _pages(plan, name, ran, headings)
    except Exception as error:  # a page that cannot be made must not take the other notebooks with it
        ran = replace(ran, status=FAILED, error=plan.scrub.text(f"page: {type(error).__name__}: {error}"))
    return Entry(name, title, question, ran.status, ran.seconds, ran.error, content)


def _pages(plan: _Plan, name: str, ran: Run, headings: Mapping[str, tuple[str, str]]) -> None:
    """Writes the notebook as executed and its page, both without private folders."""
    node = clean(ran.node, name, plan.scrub)
    verdict.replace(plan.folder / f"{name}.ipynb", nbformat.writes(node) + "\n")
    place = plan.names.index(name)
    around = [(other, headings[other][0]) for other in plan.names]
    page = Page(
        name=name,
        title=headings[name][0],
        case=plan.title,
        status=ran.status,
        error=ran.error,
        stopped=ran.stopped,
        facts=(
            ("case", f"{plan.case.parent.name}/{plan.case.name}"),
            ("took", f"{ran.seconds:.1f} s"),
            *_facts(),
        ),
        before=around[place - 1] if place else None,
        after=around[place + 1] if place + 1 < len(around) else None,
        pages=frozenset(plan.names),
    )
    verdict.replace(plan.folder / f"{name}.html", render(node, page))


def _notebooks(folder: Path) -> list[Path]:
    found = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not found:
        raise Usage(f"{folder}: no notebook NN_name.ipynb; expected the workbook's notebooks folder")
    return found


def _choose(available: list[Path], only: Sequence[str]) -> list[Path]:
    wanted = [Path(name).name.removesuffix(".ipynb") for name in only]
    unknown = [n for n in wanted if not any(n in (path.stem, path.stem[:2]) for path in available)]
    if unknown:
        raise Usage(f"{', '.join(unknown)}: no such notebook; there are {', '.join(p.stem for p in available)}")
    return [p for p in available if not wanted or p.stem in wanted or p.stem[:2] in wanted]


def _plan(cases: Sequence[Path], out: Path, notebooks: Path) -> list[_Plan]:
    """Gives each case a folder of its own directly in ``out``, named after the case's folder."""
    plans: list[_Plan] = []
    faults = [] if cases else ["no case given"]
    taken = set(_TAKEN)
    for case in map(absolute, cases):
        file = case / "case.toml" if case.is_dir() else case
        try:
            title = tomllib.loads(file.read_text(encoding="utf-8")).get("title")
        except OSError:
            faults.append(f"{file}: no such case; expected a case.toml or its folder")
            continue
        except ValueError as error:
            faults.append(f"{file}: not a case file: {error}")
            continue
        name = base = re.sub(r"[^\w.-]+", "_", file.parent.name).strip(".") or "case"
        number = 1
        while name.lower() in taken:  # some file systems see no difference between Demo and demo
            number += 1
            name = f"{base}-{number}"
        taken.add(name.lower())
        folder = out / name
        if folder.resolve() == file.parent.resolve():
            faults.append(f"{folder}: is the case's own folder; choose another one for the report (-o)")
        scrub = scrubber(case=file.parent, out=folder, notebooks=notebooks)
        plans.append(_Plan(file, folder, title if isinstance(title, str) and title else name, scrub))
    if faults:
        raise Usage("\n".join(faults))
    return plans


def _kept(out: Path, plan: _Plan, paths: list[Path], headings: Mapping[str, tuple[str, str]]) -> list[Entry]:
    """What an earlier report into the same folder says of the notebooks that are not to run now."""
    try:
        cases = json.loads((out / "status.json").read_text(encoding="utf-8"))["cases"]
        rows = {row["name"]: row for case in cases if case["case"] == plan.name for row in case["notebooks"]}
    except (OSError, ValueError, KeyError, TypeError):
        return []
    kept = []
    for name in (path.stem for path in paths):
        if name in rows and (plan.folder / f"{name}.html").is_file():
            try:
                content = verdict.read(plan.folder / f"{name}.json")
            except BadFile:
                content = None
            row = rows[name]
            kept.append(Entry(name, *headings[name], row["status"], row["seconds"], row["error"], content))
    return kept


def _report(plan: _Plan, entries: list[Entry]) -> CaseReport:
    return CaseReport(plan.name, plan.title, sorted(plan.kept + entries, key=lambda entry: entry.name))


def _facts() -> tuple[tuple[str, str], ...]:
    found = verdict.versions()
    revision = verdict.git_revision()
    lab = found.pop("eagle3lab", "")
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        ("run", now),
        ("eagle3lab", f"{lab} ({revision})" if revision else lab),
        *((name, found[name]) for name in ("python", "torch", "safetensors") if name in found),
    )


def _line(plan: _Plan, entry: Entry) -> str:
    says = f"{entry.severity}: {entry.sentence}" if entry.severity else entry.error.strip().splitlines()[0:1]
    text = says if isinstance(says, str) else "".join(says)
    return f"{plan.name}{os.sep}{entry.name}: {entry.status}, {entry.seconds:.1f} s. {text}".rstrip()
