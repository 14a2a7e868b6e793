"""The engine's own numbers beside the prediction under the engine's reading."""

from __future__ import annotations

from eagle3lab.acceptance import Evaluation
from eagle3lab.checks import cost as costs
from eagle3lab.checks import gap
from eagle3lab.checks.evidence import Opened, Serving
from eagle3lab.checks.figures import figures, said_steps
from eagle3lab.checks.inputs import stopped
from eagle3lab.checks.trees import predicted
from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.dialects import ENGINES
from eagle3lab.errors import BadShape, Blocked, LabError
from eagle3lab.gap import compare_requests, cost, end_effect, length_from_accuracy
from eagle3lab.gap.throughput import CHECK, SLACK
from eagle3lab.reading import Reading, show
from eagle3lab.records import Finding, Severity

CODES = {
    "E001": "accept length: the engine's against the prediction under its own reading",
    "E002": "what the engine drops, replaces, invents or refuses",
    "E003": "accepted drafts round by round: the engine's against the prediction",
    "E004": "throughput: what a round costs and which accept length breaks even",
    "E005": "layer ids in the engine's log against those of the case",
    "E006": "accept length after the repair, beside a run that has it",
    "E007": "training's accuracy as an accept length, beside both",
    "E008": "what the engine's files leave out",
    "E009": "how each known engine would read this checkpoint",
}


def check(case: Opened) -> list[Finding]:
    """All findings about serving, for the chosen run first, then what other runs add.

    The engine's own numbers stand for themselves: a prediction that cannot be had does not hide them.
    """
    findings: list[Finding] = []
    errors: list[tuple[str, LabError]] = []
    for part in (_interpretation, _chosen, _cost, _repaired, _training, _engines, *gap.PARTS, costs.tuning):
        try:
            findings += part(case)
        except LabError as error:
            errors.append(("serving", error))
    return [*stopped(errors), *findings]


def _chosen(case: Serving) -> list[Finding]:
    run = case.run
    if run is None:
        return [Finding("E001", Severity.BLOCKED, "the case names no serving run: nothing to compare with",
                        "case.toml", remedy="add a [[serving]] table with the engine, its ids, log and metrics")]  # fmt: skip
    if run.engine not in ENGINES:
        return [Finding("E001", Severity.BLOCKED, f"run {run.name!r}: the lab does not know the engine {run.engine!r}",
                        "case.toml: engine", run.engine or "no engine", " or ".join(ENGINES),
                        remedy="correct the name; for another engine, compare its numbers by hand")]  # fmt: skip
    return _run(case, run) if run.speculative else []


def _interpretation(case: Serving) -> list[Finding]:
    found = case.configured
    out = [(f"{found.program} would not run it: {text}", Severity.FAIL) for text in found.refused]
    out += [(f"{found.program}: {text}", Severity.WARN) for text in (*found.replaced, *found.invented)]
    out += [(f"{found.program}: {text}", Severity.INFO) for text in found.notes]
    if found.dropped:
        out.append((f"{found.program} does not use {', '.join(found.dropped)}", Severity.WARN))
    return [Finding("E002", severity, title, "draft", evidence="docs/readings.md",
                    remedy="make the file say what the draft was trained with" if severity != Severity.INFO else "")
            for title, severity in out]  # fmt: skip


def _run(case: Serving, run: ServingRun) -> list[Finding]:
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
    if best is None and usable.why:
        return [*findings, Finding("E001", Severity.NOT_COMPARABLE, f"partial: the engine's figure is compared with nothing: {usable.why}",
                                   ", ".join(f for r in reports for f in r.files), remedy="record the run again")]  # fmt: skip
    if best is None or best.drafts is None:
        return [*findings, Finding("E001", Severity.BLOCKED, f"run {run.name!r}: its files hold no acceptance counts",
                                   ", ".join(f for r in reports for f in r.files),
                                   remedy="give /metrics or per-request responses")]  # fmt: skip
    try:
        reading = case.served(run).reading
        mine = predicted(case, run, reading, _steps(run, reports)) if reading else None
    except (Blocked, BadShape) as error:
        return [*findings, Finding(
            "E001", Severity.BLOCKED, f"the engine reports {best.accept_length:.2f}; there is no prediction to compare it with",
            f"{best.source}: {', '.join(best.files)}", f"engine {best.accept_length:.3f} ({best.drafts} rounds)",
            evidence=str(error).splitlines()[0], remedy="give what is named here",
        )]  # fmt: skip
    if mine is None:  # E002 says why the engine would not run it
        return findings
    findings.append(_agreement(run, best, mine))
    return findings + _rounds(case, run, reports, mine)


def _steps(run: ServingRun, reports: list[EngineReport]) -> int:
    """K that the run is predicted at: as its files say, else the case's; 0 for the case's default."""
    return costs.effective_steps(run, None, reports) if run.steps or said_steps(run, reports) else 0


def _agreement(run: ServingRun, report: EngineReport, found: Evaluation) -> Finding:
    mine, theirs = found.length, report.accept_length
    assert theirs is not None
    extra = end_effect(list(found.parts.values()), found.steps)
    low, high = min(mine.low, mine.value - 0.01), max(mine.high, mine.value + 0.01) + extra
    agrees = low <= theirs <= high
    measured = f"engine {theirs:.3f} ({report.drafts} rounds), predicted {mine.value:.3f} [{mine.low:.3f}, {mine.high:.3f}] " \
               f"({mine.n} rounds)"  # fmt: skip
    where = f"{report.source}: {', '.join(report.files)}"
    tree = (
        f", topk {run.topk}, {run.draft_tokens} draft tokens, a tree by reading SGLang's source" if run.topk > 1 else ""
    )
    evidence = f"reading of run {run.name!r}: {show(found.reading.aux)}, K={found.steps}{tree}; engines count drafts accepted past a request's " \
               f"end, which adds at most {extra:.3f} here"  # fmt: skip
    if agrees:
        return Finding("E001", Severity.PASS, f"the engine's accept length {theirs:.2f} is what its reading predicts", where,
                       measured, evidence=evidence)  # fmt: skip
    below = theirs < mine.value
    return Finding(
        "E001", Severity.WARN if below else Severity.INFO,
        f"the engine reports {theirs:.2f}, {'less' if below else 'more'} than the {mine.value:.2f} its reading predicts",
        where, measured, "agreement within the interval", evidence,
        "not on the files' side: texts differ, or the engine's state (prefix cache, chunked prefill, KV dtype) is suspect",
    )  # fmt: skip


def _rounds(case: Serving, run: ServingRun, reports: list[EngineReport], mine: Evaluation) -> list[Finding]:
    report = next((r for r in reports if r.requests), None)
    if report is None:
        return []
    found = compare_requests(report.requests, mine.parts, case.samples)
    if not found.matches:
        return [Finding("E003", Severity.NOT_COMPARABLE, "no request has the tokens of a sample", ", ".join(report.files),
                        remedy="serve the recorded prompts with return_token_ids to compare round by round")]  # fmt: skip
    counts = found.counts
    differ = [m for m in found.matches if not m.equal]
    words = "; ".join(f"{m.sample} from round {m.first}" + (" (its last)" if m.last_only else "") for m in differ)
    severity = Severity.PASS if counts["equal"] >= 0.7 * counts["matched"] else Severity.WARN
    return [Finding(
        "E003", severity,
        f"accepted drafts equal the engine's round by round in {counts['equal']} of {counts['matched']} requests",
        ", ".join(report.files), measured=words or "all equal", expected="equal, but for the last round and near-ties",
        evidence="a last round may count drafts past the request's end; states are stored in bfloat16",
    )]  # fmt: skip


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
    run, base = case.run, case.baseline
    if run is None or base is None or not run.speculative:
        return []
    if not (run.seconds and run.tokens and base.seconds and base.tokens):
        return []
    measured = figures(run, case.reports(run)).length
    if measured is None:
        return []
    found = cost(measured, run.tokens / run.seconds, base.tokens / base.seconds)
    words = f"{run.tokens / run.seconds:.1f} tok/s against {base.tokens / base.seconds:.1f} without: {found.speedup:.2f}×; " \
            f"a round costs {found.round_cost:.2f} plain steps"  # fmt: skip
    if found.round_cost < 1 - SLACK:
        return [Finding(
            "E004", Severity.WARN, f"speculation is {found.speedup:.2f} times faster than none, more than its accept length {measured:.2f}: a "
            f"round costs below one plain step, which no server does: {CHECK}", "case.toml: seconds, tokens", words,
            f"a speed-up of {measured:.2f} at most", "round cost = accept length / speed-up, both measured",
            "time both runs with the same prompts and concurrency, and count the tokens of both alike",
        )]  # fmt: skip
    slower = found.speedup < 1
    return [Finding(
        "E004", Severity.WARN if slower else Severity.INFO,
        f"speculation is {1 / found.speedup:.1f} times slower than none: it breaks even at accept length {found.round_cost:.2f}"
        if slower else f"speculation is {found.speedup:.2f} times faster than none",
        "case.toml: seconds, tokens", words, f"accept length above {found.round_cost:.2f}",
        "round cost = accept length / speed-up, both measured",
        "mend the acceptance first; then fewer draft tokens" if slower else "",
    )]  # fmt: skip


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
                     + _speed(case, other, measured),
            evidence=f"K={steps or other.steps}, boundaries {show(fitted.aux)}",
        )]  # fmt: skip
    return []


def _speed(case: Serving, run: ServingRun, accept_length: float) -> str:
    """The run's throughput against the baseline's, in words; nothing where one of them was not timed."""
    base = case.baseline
    if base is None or not (run.seconds and run.tokens and base.seconds and base.tokens):
        return ""
    found = cost(accept_length, run.tokens / run.seconds, base.tokens / base.seconds)
    below = f", below one plain step, which no server does: {CHECK}" if found.round_cost < 1 - SLACK else ""
    return f"; {found.speedup:.2f} times the speed without speculation, so that a round costs {found.round_cost:.2f} plain steps there{below}"


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
        evidence="1 + Σ Π accuracy; they are marginal and teacher-forced, so this is an upper estimate, not a promise" + assumed,
    )]  # fmt: skip


def _engines(case: Serving) -> list[Finding]:
    try:
        fitted = case.scan.fitted
    except LabError:  # F005 says why nothing could be fitted
        fitted = None
    lines = []
    for name, found in case.everyone.items():
        if found.reading is None:
            lines.append(f"{name}: refuses ({found.refused[0] if found.refused else 'no reading'})")
        else:
            diff = found.reading.diff(fitted) if fitted else {}
            wrong = ", ".join(k for k in diff if k not in ("dropped", "second_norm", "rope.rule", "dtype"))
            words = "" if fitted is None else f", differs in {wrong}" if wrong else ", as fitted"
            lines.append(f"{name}: reads {show(found.reading.aux)}{words}")
    return [Finding("E009", Severity.INFO, "as its config stands, this checkpoint is read by each engine as follows",
                    "draft config.json", measured="; ".join(lines), evidence="docs/readings.md; SGLang by reading")]  # fmt: skip
