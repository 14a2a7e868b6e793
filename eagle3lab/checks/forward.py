"""Under which reading does the draft predict the recording, and is it the one the engine uses."""

from __future__ import annotations

from eagle3lab.acceptance import Evaluation, accuracy_interval
from eagle3lab.checks import conventions, runs
from eagle3lab.checks.doubts import blocked, doubtful
from eagle3lab.checks.evidence import Opened
from eagle3lab.checks.fitted import beside_map, fields, nothing_fits, open_fields, recording, suspects
from eagle3lab.checks.inputs import finding as unreadable
from eagle3lab.dialects.resolve import accepts_nothing
from eagle3lab.errors import BadShape, Blocked, LabError
from eagle3lab.outcome import ScanResult
from eagle3lab.reading import Reading, show
from eagle3lab.records import Finding, Severity
from eagle3lab.trace import trace

CODES = {
    "F001": "the shape trace of one draft step",
    "F002": "logits that are not finite",
    "F003": "wiring: the boundaries the engine feeds against those the draft fits",
    "F004": "slots that the recording cannot tell apart",
    "F005": "whether any reading predicts the recording",
    "F006": "other conventions: the engine's against those that fit",
    "F007": "accuracy on the recording against training's own figure",
    "F008": "the configured reading cannot be run",
} | runs.CODES


def check(case: Opened) -> list[Finding]:
    """All findings about the reading."""
    findings = _traced(case)
    if any(f.code == "F001" and f.severity == Severity.FAIL for f in findings):
        return findings
    if stopped := blocked(case):
        return [*findings, *stopped]
    try:
        scan = case.scan
        fitted = case.evaluate(scan.fitted)
    except Blocked as error:
        return [*findings, Finding("F005", Severity.BLOCKED, f"whether any reading predicts the recording: {error}",
                                   remedy="give what is named here")]  # fmt: skip
    except LabError as error:
        return [*findings, unreadable(error, ["forward"])]
    findings += _finite(fitted)
    if not scan.fits:
        return [*findings, nothing_fits(case), *suspects(case), *beside_map(case)]
    findings.append(Finding(
        "F005", Severity.PASS, f"the draft predicts this recording under {scan.fitted}",
        measured=f"accuracy {_accuracy(scan, fitted):.3f}; with the states of another place {scan.floor:.3f}",
        evidence=f"{scan.evidence}; {scan.tried} readings tried",
    ))  # fmt: skip
    findings += recording(case)
    findings += _wiring(case, fitted)
    findings += _conventions(case)
    findings += runs.check(case)
    findings += [*open_fields(case), *suspects(case)]
    return findings + ([] if scan.lag or scan.form else _against_training(case, fitted))


def _conventions(case: Opened) -> list[Finding]:
    """F006: the fields in which the run differs, and a tensor that its engine makes up, which is no field's value."""
    made = accepts_nothing(case.configured)
    if not made:
        return fields(case)
    return [
        *(f for f in fields(case) if f.severity != Severity.PASS),
        Finding("F006", Severity.FAIL, f"head: {case.configured.program} makes up {made}; the draft fits the {_whose(case)}", "lm_head",
                measured="accept length 1.00 whatever the rest is", expected="the head that the draft was trained with",
                evidence=case.scan.evidence, remedy=conventions.made_up(case)),
    ]  # fmt: skip


def _whose(case: Opened) -> str:
    return "target's" if case.scan.fitted.head == "target" else "file's own"


def _accuracy(scan: ScanResult, fitted: Evaluation) -> float:
    """Step-0 accuracy with the rows read as the search found them."""
    found = next((c.accuracy.value for c in scan.ranking if c.reading == scan.fitted), None)
    return found if found is not None and (scan.lag or scan.form) else fitted.counts.accuracy[0]


def _traced(case: Opened) -> list[Finding]:
    return [*_not_run(case), *runs.not_read(case), *_shapes(case)]


def _not_run(case: Opened) -> list[Finding]:
    """F008: the configured program refuses, or how the run's engine reads the draft is not known."""
    found = case.configured
    if found.reading is None and found.refused:
        return [Finding(
            "F008", Severity.FAIL, f"{found.program} would not run this checkpoint: {reason}",
            conventions.place(case, reason), measured=f"ids {list(found.ids)} ({found.source})",
            expected="a runnable configuration", evidence="the program's own rules (docs/readings.md)",
            remedy=conventions.refusal(case, reason),
        ) for reason in conventions.refusals(case)]  # fmt: skip
    if found.reading is not None and not found.guess:
        return []
    remedy = "give what is named here"
    if found.unknown:
        remedy = "correct engine in case.toml; for another engine, compare the boundaries it feeds with those that fit (F003) by hand"
    elif found.source.startswith("no run"):
        remedy = "name a [[serving]] run of a known engine, or [training] program"
    return [Finding("F008", Severity.BLOCKED, f"how the draft is run is not known: {found.source}", "case.toml",
                    evidence="the search still finds what fits", remedy=remedy)]  # fmt: skip


def _shapes(case: Opened) -> list[Finding]:
    reading = case.configured.reading or case.plainest  # shapes hardly depend on conventions
    if reading is None:
        return []
    try:
        operations = trace(case.draft, reading, 1)
    except BadShape as error:
        return [Finding(
            "F001", Severity.FAIL, f"{error.operation}: the widths do not fit", error.operation, error.found,
            error.expected, "shape trace from headers", "; ".join(f"{i}. {cause}" for i, cause in enumerate(error.hypotheses, 1)),
        )]  # fmt: skip
    return [Finding("F001", Severity.PASS, f"all {len(operations)} operations of a draft step fit", "shape trace",
                    evidence="headers only")]  # fmt: skip


def _finite(fitted: Evaluation) -> list[Finding]:
    if not fitted.nonfinite:
        return []
    return [Finding("F002", Severity.FAIL, f"{fitted.nonfinite} rows give logits that are not finite", "forward",
                    measured=str(fitted.nonfinite), expected="0", evidence="every row and step; such rows count as misses",
                    remedy="look for NaN in the weights (W003) and in the states (S002)")]  # fmt: skip


def _wiring(case: Opened, fitted: Evaluation) -> list[Finding]:
    scan, configured = case.scan, case.configured.reading
    held, here = show(scan.fitted.aux), _accuracy(scan, fitted)
    findings = []
    if configured is None:
        refused = bool(case.configured.refused)
        known = "the configured ones are refused (F008)" if refused else "which ones are fed to it is not known"
        told = refused or case.configured.unknown
        findings.append(Finding("F003", Severity.BLOCKED, f"the draft fits boundaries {held}; {known}",
                                "case.toml", measured=f"accuracy {here:.3f}", evidence=scan.evidence,
                                remedy=("" if told else "name the serving run; ") + conventions.wiring(case, scan.fitted)))  # fmt: skip
        return findings + _open_slots(scan)
    same = configured.aux == scan.fitted.aux
    tie = configured.aux in [r.aux for r in scan.ties]
    if same or tie:
        findings.append(Finding(
            "F003", Severity.PASS, f"the wiring fits: boundaries {show(configured.aux)}"
            + ("" if same else f" cannot be told from the best, {held}")
            + (f", as read by {case.configured.program}" if case.configured.guess else ""),
            measured=f"accuracy {here:.3f}", evidence=scan.evidence,
        ))  # fmt: skip
    elif case.configured.guess:
        findings.append(Finding(
            "F003", Severity.UNDETERMINED, f"the draft fits boundaries {held}; whether the run feeds them is not known: "
            f"{show(configured.aux)} is what {case.configured.program} reads", "case.toml: engine",
            measured=f"accuracy {here:.3f} under {held}", expected=f"boundaries {held}",
            evidence=f"{scan.evidence}; {case.configured.source}", remedy=conventions.wiring(case, scan.fitted),
        ))  # fmt: skip
    else:
        findings += doubtful(case) or [_wrong_wiring(case, configured, fitted)]
    return findings + _open_slots(scan)


def _open_slots(scan: ScanResult) -> list[Finding]:
    open_slots = [i for i in range(len(scan.fitted.aux)) if f"aux[{i}]" in scan.undetermined]
    if not open_slots:
        return []
    choices = {i: sorted({r.aux[i] for r in (scan.fitted, *scan.ties)}, key=str) for i in open_slots}
    words = "; ".join(f"slot {i} may be any of {', '.join(map(str, c))}" for i, c in choices.items())
    return [Finding(
        "F004", Severity.UNDETERMINED, f"the recording cannot tell neighbours apart: {words}", "aux",
        measured=f"{len(scan.ties)} wirings within the interval of the best: "
                 + ", ".join(show(r.aux) for r in scan.ties),
        expected="one winner", evidence=f"{scan.evidence}, paired differences",
        remedy="ask the training configuration, or record more text; accept length differs little between them",
    )]  # fmt: skip


def _wrong_wiring(case: Opened, configured: Reading, fitted: Evaluation) -> Finding:
    scan = case.scan
    if (
        scan.lag or scan.form
    ):  # the recording as it lies there predicts nothing: the path's own paired rows say what was gained
        measured = "; ".join(f"{r.old} → {r.new}: {r.gain.value:+.3f} accuracy" for r in scan.path if r.field == "aux")
    else:
        try:
            before = case.evaluate(configured)
        except Blocked as error:
            return _unrecorded(case, configured, fitted, error)
        after = fitted.length
        measured = (
            f"configured {show(configured.aux)}: accuracy {before.counts.accuracy[0]:.3f}, accept length "
            f"{before.length.value:.2f}; fitted {show(scan.fitted.aux)}: accuracy {fitted.counts.accuracy[0]:.3f}, "
            f"accept length {after.value:.2f} [{after.low:.2f}, {after.high:.2f}]"
        )
    sure = [i for i in range(len(scan.fitted.aux)) if f"aux[{i}]" not in scan.undetermined]
    certain = f"; certain: {', '.join(f'slot {i} = {_named(scan.fitted.aux[i])}' for i in sure)}" if sure else ""
    return Finding(
        "F003", Severity.FAIL,
        f"wrong wiring: {case.configured.program} feeds boundaries {show(configured.aux)}, "
        f"the draft fits {show(scan.fitted.aux)}{_pattern(configured, scan.fitted)}{certain}",
        f"draft config.json or the run's ids ({case.configured.source})",
        measured=measured, expected=f"boundaries {show(scan.fitted.aux)}",
        evidence=f"{scan.evidence}; next best wiring that is no tie is {scan.margin.value:.3f} "
                 f"[{scan.margin.low:.3f}, {scan.margin.high:.3f}] behind, {scan.margin.method}",
        remedy=conventions.wiring(case, scan.fitted),
    )  # fmt: skip


def _pattern(configured: Reading, fitted: Reading) -> str:
    """The usual mistakes by name: another program's numbering, another order."""
    mine, theirs = configured.aux, fitted.aux
    if len(mine) != len(theirs) or not all(isinstance(b, int) for b in (*mine, *theirs)):
        return ""
    steps = {int(a) - int(b) for a, b in zip(mine, theirs, strict=True)}
    if len(steps) == 1 and abs(next(iter(steps))) <= 2:
        by = next(iter(steps))
        return f" (every id {abs(by)} too {'high' if by > 0 else 'low'}: another program's numbering)"
    return " (the same boundaries in another order)" if sorted(mine, key=str) == sorted(theirs, key=str) else ""


def _unrecorded(case: Opened, configured: Reading, fitted: Evaluation, error: Blocked) -> Finding:
    """The configured states are not there to compare with: only training's own figure could convict them."""
    scan = case.scan
    here, stated = accuracy_interval(list(fitted.parts.values())), [*case.training_accuracy, None][0]
    # a neighbour that stands in for the right boundary comes near training's figure, and not up to it
    reached = stated is not None and (
        here.value >= stated or (here.high >= stated and not _stands_in(case, configured))
    )
    words = f"{case.configured.program} feeds boundaries {show(configured.aux)}, which cannot be run on this recording"
    best = f"of those recorded the draft fits {show(scan.fitted.aux)}"
    return Finding(
        "F003", Severity.FAIL if reached else Severity.UNDETERMINED,
        f"wrong wiring: {words}; {best}, as well as in training" if reached else f"{words}; {best} best",
        f"draft config.json or the run's ids ({case.configured.source})",
        measured=f"fitted {show(scan.fitted.aux)}: accuracy {here.value:.3f} [{here.low:.3f}, {here.high:.3f}], accept length "
                 f"{fitted.length.value:.2f}; training {'not stated' if stated is None else f'{stated:.3f}'}",
        expected=f"states of boundaries {show(configured.aux)}", evidence=error.line,
        remedy=conventions.wiring(case, scan.fitted) if reached
        else f"record boundaries {show(configured.aux)} and compare, or state training's accuracy in case.toml",
    )  # fmt: skip


def _stands_in(case: Opened, configured: Reading) -> bool:
    """Whether the fitted wiring may only stand in: it differs in slots whose own boundary is not recorded, by next ones."""
    held = sorted({b for _, b in case.scan.matrix if isinstance(b, int)})
    for mine, theirs in zip(configured.aux, case.scan.fitted.aux, strict=False):
        if mine == theirs:
            continue
        if not isinstance(mine, int) or mine in held:
            return False
        sides = [max((b for b in held if b < mine), default=None), min((b for b in held if b > mine), default=None)]
        if theirs not in sides:
            return False
    return len(configured.aux) == len(case.scan.fitted.aux)


def _named(boundary: int | str) -> str:
    return "0, the embedding output" if boundary == 0 else str(boundary)


def _against_training(case: Opened, fitted: Evaluation) -> list[Finding]:
    stated = list(case.training_accuracy)
    if not stated:
        return []
    here = accuracy_interval(list(fitted.parts.values()))
    words = f"training {stated[0]:.3f}, here {here.value:.3f} [{here.low:.3f}, {here.high:.3f}]"
    if here.low <= stated[0] <= here.high:
        return [Finding("F007", Severity.PASS, "accuracy on the recording agrees with training's figure", measured=words,
                        evidence=f"step 0, n={here.n}, {here.method}")]  # fmt: skip
    below = here.value < stated[0]
    return [Finding(
        "F007", Severity.WARN if below else Severity.INFO,
        f"accuracy on the recording is {'below' if below else 'above'} training's figure", measured=words,
        expected="within the interval when texts and definitions are alike", evidence=f"step 0, n={here.n}, {here.method}",
        remedy="compare the texts (topics never trained on score lower) and what training counted: out-of-vocabulary targets, marginal or joint, which rows",
    )]  # fmt: skip
