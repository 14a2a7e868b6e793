"""The engine's own numbers beside the prediction under the engine's reading."""

from __future__ import annotations

from eagle3lab.acceptance import definition
from eagle3lab.checks import agreement, doubts, gap
from eagle3lab.checks import cost as costs
from eagle3lab.checks.evidence import Opened, Serving
from eagle3lab.checks.figures import figures, said_steps
from eagle3lab.checks.inputs import stopped
from eagle3lab.checks.served import interpretation, ways
from eagle3lab.checks.trees import predicted
from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.dialects import ENGINES
from eagle3lab.dialects.resolve import accepts_nothing
from eagle3lab.errors import BadShape, Blocked, LabError
from eagle3lab.gap import length_from_accuracy
from eagle3lab.gap.throughput import BELOW, CHECK, SLACK
from eagle3lab.reading import Reading, show
from eagle3lab.records import Finding, Severity

CODES = dict(
    sorted(
        (
            agreement.CODES
            | {
                "E002": "what the engine drops, replaces, invents or refuses",
                "E004": "throughput: what a round costs and which accept length breaks even",
                "E005": "layer ids in the engine's log against those of the case",
                "E006": "accept length after the repair, beside a run that has it",
                "E007": "training's accuracy as an accept length, beside both",
                "E008": "what the engine's files leave out",
                "E009": "how each known engine would read this checkpoint",
            }
        ).items()
    )
)


def check(case: Opened) -> list[Finding]:
    """All findings about serving, for the chosen run first, then what other runs add.

    The engine's own numbers stand for themselves: a prediction that cannot be had does not hide them.
    """
    findings: list[Finding] = []
    errors: list[tuple[str, LabError]] = []
    # what predicts is left out where the draft cannot be judged on this recording
    configured = case.configured.reading
    fed = configured is not None and any(b in doubts.unsound(case) for b in configured.aux)
    unsound = {_repaired, gap.waterfall_of, costs.tuning} if fed else set()
    for part in (interpretation, _chosen, _cost, _repaired, _training, _engines, *gap.PARTS, costs.tuning):
        try:
            findings += [] if part in unsound else part(case)
        except LabError as error:
            errors.append(("serving", error))
    return [*stopped(errors), *findings]


def _chosen(case: Opened) -> list[Finding]:
    run = case.run
    if run is None:
        return [Finding("E001", Severity.BLOCKED, "the case names no serving run: nothing to compare with",
                        "case.toml", remedy="add a [[serving]] table with the engine, its ids, log and metrics")]  # fmt: skip
    if run.engine not in ENGINES:
        return [Finding("E001", Severity.BLOCKED, f"run {run.name!r}: the lab does not know the engine {run.engine!r}",
                        "case.toml: engine", run.engine or "no engine", " or ".join(ENGINES),
                        remedy="correct the name; for another engine, compare its numbers by hand")]  # fmt: skip
    return _run(case, run) if run.speculative else []


def _run(case: Opened, run: ServingRun) -> list[Finding]:
    reports = case.reports(run)
    if not reports:
        return [Finding("E001", Severity.BLOCKED, f"run {run.name!r} has no log, metrics or responses", "case.toml",
                        remedy="save the engine's log or /metrics and name them in [[serving]]")]  # fmt: skip
    findings = _logged_ids(run, reports)
    usable = figures(run, reports)
    best = usable.counted
    notes = list(dict.fromkeys(note for r in reports for note in r.notes))
    if notes:
        # one sentence a line: the first is the title, the rest stands beside it
        first, *rest = (note.rstrip(".") for note in notes)
        files = dict.fromkeys(name for r in reports if r.notes for name in r.files)
        findings.append(Finding("E008", Severity.INFO, first, ", ".join(files), "; ".join(rest)))
    for report in reports:
        if report.remarks:
            first, *rest = (remark.rstrip(".") for remark in report.remarks)
            findings.append(Finding("E002", Severity.INFO, first, ", ".join(report.files), "; ".join(rest),
                                    evidence=f"the {report.source}, in the engine's own words"))  # fmt: skip
    if best is None and usable.why:
        return [*findings, Finding("E001", Severity.NOT_COMPARABLE, f"partial: the engine's figure is compared with nothing: {usable.why}",
                                   ", ".join(f for r in reports for f in r.files), remedy="record the run again")]  # fmt: skip
    counted = best is not None and best.drafts is not None
    if not counted and usable.printed is None:
        return [*findings, Finding("E001", Severity.BLOCKED, f"run {run.name!r}: its files hold no acceptance counts",
                                   ", ".join(f for r in reports for f in r.files),
                                   remedy="give /metrics or per-request responses")]  # fmt: skip
    try:
        way = case.served(run)
        reading = None if accepts_nothing(way) else way.reading
        if bad := [b for b in doubts.unsound(case) if reading is not None and b in reading.aux]:
            raise Blocked(
                f"boundary {', '.join(map(str, bad))} of the recording is not sound, and the engine feeds it (S stage)"
            )
        mine = predicted(case, run, reading, _steps(run, reports)) if reading else None
    except (Blocked, BadShape) as error:
        theirs = usable.length if usable.length is not None else usable.printed and usable.printed.reported_length
        return [*findings, Finding(
            "E001", Severity.BLOCKED, f"the engine reports {theirs:.2f}; there is no prediction to compare it with",
            ", ".join(f for r in reports for f in r.files),
            f"engine {theirs:.3f}" + (f" ({best.drafts} rounds)" if best and counted else " (printed, without counts)"), evidence=str(error).splitlines()[0],
            remedy="give what is named here",
        )]  # fmt: skip
    if mine is None:  # E002 says why the engine would not run it
        return findings
    return [*findings, agreement.length(case, run, reports, mine), *agreement.rounds(case, run, reports, mine)]


def _steps(run: ServingRun, reports: list[EngineReport]) -> int:
    """K that the run is predicted at: as its files say, else the case's; 0 for the case's default."""
    return costs.effective_steps(run, None, reports) if run.steps or said_steps(run, reports) else 0


def _logged_ids(run: ServingRun, reports: list[EngineReport]) -> list[Finding]:
    logged = next((r.ids for r in reports if r.ids), ())
    if not logged or run.aux_ids is None:
        return []
    if sorted(logged) == sorted(run.aux_ids):
        return [Finding("E005", Severity.PASS, f"the log confirms the ids {list(logged)}", run.log or "")]
    return [Finding("E005", Severity.FAIL, "the log names other layer ids than the case", run.log or "",
                    measured=f"log {list(logged)}", expected=f"case.toml {list(run.aux_ids)}", evidence="log line",
                    remedy="correct aux_ids in case.toml, or give the log of this run")]  # fmt: skip


def _cost(case: Serving) -> list[Finding]:
    run = case.run
    found = costs.timed(case, run) if run is not None and run.speculative else ""
    if run is None or isinstance(found, str):  # E013 says what is missing where something was timed
        return []
    times, price, length = found.cost.speedup, found.cost.round_cost, found.cost.accept_length
    words = f"{found.speed:.1f} tok/s against {found.plain:.1f} without: {times:.2f}×; a round costs {price:.2f} plain steps"
    where, behind = "case.toml: seconds, tokens", "round cost = accept length / speed-up, both measured"
    behind += f"; {found.reserved}" if found.reserved else ""
    if price < 1 - SLACK:
        return [Finding(
            "E004", Severity.WARN, f"speculation is {times:.2f} times faster than none, more than its accept length {length:.2f}: a "
            f"round costs below one plain step, which no server does: {CHECK}", where, words,
            f"a speed-up of {length:.2f} at most", behind,
            "time both runs with the same prompts and concurrency, and count the tokens of both alike",
        )]  # fmt: skip
    even, slower = abs(times - 1) <= EVEN, times < 1
    digits = 1 if times < 0.9 else 2
    title = f"speculation is {times:.2f} times faster than none"
    if even:
        title = f"speculation is as fast as none: {found.speed:.1f} against {found.plain:.1f} tok/s"
    elif slower:
        title = (
            f"speculation is {1 / times:.{digits}f} times slower than none: it breaks even at accept length {price:.2f}"
        )
    return [Finding("E004", Severity.WARN if slower and not even else Severity.INFO, title, where, words,
                    f"accept length above {price:.2f}", behind, _faster(case, run) if slower or even else "")]  # fmt: skip


EVEN = 0.03
"""Share within which two throughputs are called equal: timings of one server repeat no better."""


HARMLESS = ("dropped", "second_norm", "rope.rule", "dtype")
"""Fields of a reading in which engines differ from training and lose little by it."""


def _faster(case: Serving, run: ServingRun) -> str:
    """What to do about a run that is no faster than none, by whether its reading is the fitted one."""
    fewer = "fewer draft tokens: E013 says what each K would give"
    reading = _reading(case, run)
    try:
        fitted = case.scan.fitted
        apart = [k for k in reading.diff(fitted) if k not in HARMLESS] if reading else None
    except LabError:  # F005 says why nothing could be fitted
        apart = None
    if apart is None:
        return f"whether the run reads the draft as it was trained is not known here: settle that first; then {fewer}"
    if apart and reading:
        words = [f"boundaries {show(reading.aux)}, not {show(fitted.aux)}" if k == "aux" else k for k in apart]
        return f"mend the acceptance first: the run's reading differs from the fitted one in {', '.join(words)}; then {fewer}"
    return f"the run's reading is the fitted one, so that there is no wiring to mend: {fewer}, or a draft that is better or cheaper"


def _repaired(case: Serving) -> list[Finding]:
    """Another run whose reading has the fitted wiring: what the repair is worth in the engine itself."""
    if case.run is None or case.configured.reading is None:
        return []
    fitted, now = case.scan.fitted, case.configured.reading
    if now.aux == fitted.aux:
        return []
    for other in case.runs:
        reading = _reading(case, other)
        if other is case.run or reading is None or reading.aux != fitted.aux or other.steps != case.run.steps:
            continue
        reports = case.reports(other)
        measured = figures(other, reports).length
        if measured is None:
            continue
        steps = _steps(other, reports)
        mine = predicted(case, other, fitted, steps).length
        return [Finding(
            "E006", Severity.INFO, f"after the repair the engine measured accept length {measured:.2f} (run {other.name!r}); "
            f"the lab predicts {mine.value:.2f}", f"run {other.name!r}",
            measured=f"engine {measured:.3f}, predicted {mine.value:.3f} [{mine.low:.3f}, {mine.high:.3f}]"
                     + _speed(case, other),
            evidence=f"K={steps or other.steps}, boundaries {show(fitted.aux)}",
        )]  # fmt: skip
    return []


def _speed(case: Serving, run: ServingRun) -> str:
    """The run's throughput against the baseline's, in words; nothing where one of them was not timed."""
    found = costs.timed(case, run)
    if isinstance(found, str):
        return ""
    below = f", {BELOW}: {CHECK}" if found.cost.round_cost < 1 - SLACK else ""
    also = f" ({found.reserved})" if found.reserved else ""
    return f"; {found.cost.speedup:.2f} times the speed without speculation, so that a round costs " \
           f"{found.cost.round_cost:.2f} plain steps there{below}{also}"  # fmt: skip


def _reading(case: Serving, run: ServingRun) -> Reading | None:
    try:
        return case.served(run).reading if run.speculative else None
    except LabError:
        return None


def _training(case: Serving) -> list[Finding]:
    stated = list(case.training_accuracy)
    if not stated:
        return []
    assumed = ""
    if len(stated) == 1 and case.run is not None:
        try:
            reports = case.reports(case.run)
        except LabError:  # C001 says which file cannot be read
            reports = []
        stated *= max(costs.effective_steps(case.run, None, reports), 1)
        assumed = "; one figure taken for every draft, which is an assumption" if len(stated) > 1 else ""
    length = length_from_accuracy(stated)
    return [Finding(
        "E007", Severity.INFO, f"training's accuracies would give accept length {length:.2f} at K={len(stated)} if they were "
        "conditional rates", "case.toml: [training] accuracy", ", ".join(f"{a:.3f}" for a in stated),
        evidence="1 + Σ Π accuracy; they are marginal and teacher-forced, so this is an estimate, not a promise" + assumed,
    )]  # fmt: skip


def _engines(case: Opened) -> list[Finding]:
    lines, lengths = [], False
    for way in ways(case, case.everyone):
        if way.reading is None:
            lines.append(f"{way.program}: {way.why}")
            continue
        wrong = (
            ""
            if way.diff is None
            else f", differs in {', '.join(way.diff)}"
            if way.diff
            else ""
            if way.why
            else ", as fitted"
        )
        length = (
            ""
            if way.length is None
            else f", accept length {way.length.value:.2f} [{way.length.low:.2f}, {way.length.high:.2f}]"
        )
        lengths = lengths or way.length is not None
        lines.append(f"{way.program}: reads {show(way.reading.aux)}{wrong}{length}{f' ({way.why})' if way.why else ''}")
    counted = f"; accept lengths: {definition(case.steps)}" if lengths else ""
    return [Finding("E009", Severity.INFO, "as its config stands, this checkpoint is read by each engine as follows",
                    "draft config.json", measured="; ".join(lines), evidence=f"docs/readings.md; SGLang by reading{counted}",
                    remedy="'eagle3lab serve-as' says each difference in words" if lengths else "")]  # fmt: skip
