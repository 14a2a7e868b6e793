"""Under which reading does the draft predict the recording, and is it the one the engine uses."""

from __future__ import annotations

from eagle3lab.acceptance import Evaluation, accuracy_interval
from eagle3lab.checks.evidence import Evidence
from eagle3lab.checks.inputs import finding as unreadable
from eagle3lab.dialects import ENGINES
from eagle3lab.errors import BadShape, Blocked, LabError
from eagle3lab.reading import Reading, show
from eagle3lab.records import Finding, ScanResult, Severity
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
}


def check(case: Evidence) -> list[Finding]:
    """All findings about the reading."""
    findings = _traced(case)
    if any(f.severity == Severity.FAIL for f in findings):
        return findings
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
        return [*findings, _nothing_fits(case)]
    findings.append(Finding(
        "F005", Severity.PASS, f"the draft predicts this recording under {scan.fitted}",
        measured=f"accuracy {fitted.counts.accuracy[0]:.3f}; with the states of another place {scan.floor:.3f}",
        evidence=f"{scan.evidence}; {scan.tried} readings tried",
    ))  # fmt: skip
    findings += _wiring(case, fitted)
    findings += _other_fields(case, fitted)
    findings += _against_training(case, fitted)
    return findings


def _traced(case: Evidence) -> list[Finding]:
    reading, findings = case.configured.reading, []
    if reading is None and case.configured.refused:
        return [Finding("F008", Severity.FAIL, f"{case.configured.program} would not run this checkpoint: {reason}",
                        "config.json", measured=f"ids {list(case.configured.ids)} ({case.configured.source})",
                        expected="a runnable configuration", evidence="the program's own rules (docs/readings.md)",
                        remedy="mend the ids first") for reason in case.configured.refused]  # fmt: skip
    if reading is None:
        findings = [Finding("F008", Severity.BLOCKED, f"how the draft is run is not known: {case.configured.source}", "case.toml",
                            evidence="the search still finds what fits",
                            remedy="name a [[serving]] run of a known engine, or [training] program")]  # fmt: skip
        reading = case.plainest  # shapes hardly depend on conventions
    if reading is None:
        return findings
    try:
        operations = trace(case.draft, reading, 1)
    except BadShape as error:
        return [*findings, Finding("F001", Severity.FAIL, f"{error.operation}: the widths do not fit", error.operation, error.found,
                        error.expected, "shape trace from headers",
                        "; ".join(f"{i}. {cause}" for i, cause in enumerate(error.hypotheses, 1)))]  # fmt: skip
    return [*findings, Finding("F001", Severity.PASS, f"all {len(operations)} operations of a draft step fit", "shape trace",
                    evidence="headers only")]  # fmt: skip


def _finite(fitted: Evaluation) -> list[Finding]:
    if not fitted.nonfinite:
        return []
    return [Finding("F002", Severity.FAIL, f"{fitted.nonfinite} rows give logits that are not finite", "forward",
                    measured=str(fitted.nonfinite), expected="0", evidence="every row and step; such rows count as misses",
                    remedy="look for NaN in the weights (W003) and in the states (S002)")]  # fmt: skip


def _nothing_fits(case: Evidence) -> Finding:
    scan, configured = case.scan, case.configured.reading
    best = scan.ranking[0].accuracy.value if scan.ranking else float("nan")
    held = {boundary for _, boundary in scan.matrix}
    absent = [k for k in configured.aux if isinstance(k, int) and k not in held] if configured and held else []
    if absent:
        return Finding(
            "F005", Severity.UNDETERMINED, f"no wiring of the recorded boundaries fits, and boundaries {absent}, which the engine "
            "feeds, are not recorded", "samples", measured=f"best of {scan.tried} readings {best:.3f}; recorded {sorted(held)}",
            expected=f"states of boundaries {show(configured.aux) if configured else ''}", evidence=scan.evidence,
            remedy=f"record boundaries {absent} too; without them nothing is said of the draft",
        )  # fmt: skip
    return Finding(
        "F005", Severity.FAIL, "no reading predicts this recording: its content, its tokens or the weights are suspect",
        "samples or draft", measured=f"best of {scan.tried} readings {best:.3f} ({scan.fitted})",
        expected=f"well above {scan.floor:.3f}, the score with the states of another place", evidence=scan.evidence,
        remedy="check that states belong to these tokens (S003, S005), that d2t is the head's own (V001, V007), that the "
               "checkpoint is trained; a wiring whose boundaries are not recorded cannot be found either",
    )  # fmt: skip


def _wiring(case: Evidence, fitted: Evaluation) -> list[Finding]:
    scan, configured = case.scan, case.configured.reading
    held = show(scan.fitted.aux)
    slots = [i for i in range(len(scan.fitted.aux)) if f"aux[{i}]" not in scan.undetermined]
    findings = []
    if configured is None:
        findings.append(Finding("F003", Severity.BLOCKED, f"the draft fits boundaries {held}; which ones are fed to it is not known",
                                "case.toml", measured=f"accuracy {fitted.counts.accuracy[0]:.3f}", evidence=scan.evidence,
                                remedy="name the serving run; " + remedy(case, scan.fitted)))  # fmt: skip
        return findings + _open_slots(scan)
    same = configured.aux == scan.fitted.aux
    tie = configured.aux in [r.aux for r in scan.ties]
    if same or tie:
        findings.append(Finding(
            "F003", Severity.PASS, f"the wiring fits: boundaries {show(configured.aux)}"
            + ("" if same else f" cannot be told from the best, {held}"),
            measured=f"accuracy {fitted.counts.accuracy[0]:.3f}", evidence=scan.evidence,
        ))  # fmt: skip
    else:
        findings.append(_wrong_wiring(case, fitted, slots))
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


def _wrong_wiring(case: Evidence, fitted: Evaluation, sure: list[int]) -> Finding:
    scan, configured = case.scan, case.configured.reading
    assert configured is not None
    try:
        before = case.evaluate(configured)
    except Blocked as error:
        return _unrecorded(case, fitted, error)
    after = fitted.length
    measured = (
        f"configured {show(configured.aux)}: accuracy {before.counts.accuracy[0]:.3f}, accept length "
        f"{before.length.value:.2f}; fitted {show(scan.fitted.aux)}: accuracy {fitted.counts.accuracy[0]:.3f}, "
        f"accept length {after.value:.2f} [{after.low:.2f}, {after.high:.2f}]"
    )
    certain = f"; certain: {', '.join(f'slot {i} = {_named(scan.fitted.aux[i])}' for i in sure)}" if sure else ""
    return Finding(
        "F003", Severity.FAIL,
        f"wrong wiring: {case.configured.program} feeds boundaries {show(configured.aux)}, "
        f"the draft fits {show(scan.fitted.aux)}{certain}",
        f"draft config.json or the run's ids ({case.configured.source})",
        measured=measured, expected=f"boundaries {show(scan.fitted.aux)}",
        evidence=f"{scan.evidence}; next best wiring that is no tie is {scan.margin.value:.3f} "
                 f"[{scan.margin.low:.3f}, {scan.margin.high:.3f}] behind, {scan.margin.method}",
        remedy=remedy(case, scan.fitted),
    )  # fmt: skip


def _unrecorded(case: Evidence, fitted: Evaluation, error: Blocked) -> Finding:
    """The configured states are not there to compare with: only training's own figure could convict them."""
    scan, configured = case.scan, case.configured.reading
    assert configured is not None
    here, stated = accuracy_interval(list(fitted.parts.values())), [*case.training_accuracy, None][0]
    reached = stated is not None and here.high >= stated
    words = f"{case.configured.program} feeds boundaries {show(configured.aux)}, which cannot be run on this recording"
    best = f"of those recorded the draft fits {show(scan.fitted.aux)}"
    return Finding(
        "F003", Severity.FAIL if reached else Severity.UNDETERMINED,
        f"wrong wiring: {words}; {best}, as well as in training" if reached else f"{words}; {best} best",
        f"draft config.json or the run's ids ({case.configured.source})",
        measured=f"fitted {show(scan.fitted.aux)}: accuracy {here.value:.3f} [{here.low:.3f}, {here.high:.3f}], accept length "
                 f"{fitted.length.value:.2f}; training {'not stated' if stated is None else f'{stated:.3f}'}",
        expected=f"states of boundaries {show(configured.aux)}", evidence=error.line,
        remedy=remedy(case, scan.fitted) if reached
        else f"record boundaries {show(configured.aux)} and compare, or state training's accuracy in case.toml",
    )  # fmt: skip


def _named(boundary: int | str) -> str:
    return "0, the embedding output" if boundary == 0 else str(boundary)


def remedy(case: Evidence, reading: Reading) -> str:
    """Which key to set, in each engine's own words, the case's engine first."""
    order = sorted(ENGINES, key=lambda name: name != (case.run.engine if case.run else ""))
    words = [f"{name}: {ENGINES[name].words(reading.aux, case.draft.arch, case.target_type)}" for name in order]
    return "set the layer ids in the draft's config.json. " + "; ".join(words)


def _other_fields(case: Evidence, fitted: Evaluation) -> list[Finding]:
    configured = case.configured.reading
    if configured is None:
        return []
    changed = {k: v for k, v in configured.diff(case.scan.fitted).items() if k not in ("aux", "dtype")}
    gains = {field: gain for field, _, _, gain in case.scan.path}
    findings = []
    for name, (old, new) in changed.items():
        gain = gains.get(name)
        if gain is None:
            continue  # a start other than the configured one differs here without having been tested alone
        findings.append(Finding(
            "F006", Severity.FAIL, f"{name}: {case.configured.program} uses {show(old)}, the draft fits {show(new)}",
            name, measured=f"{gain:+.3f} accuracy over steps 0 and 1", expected=show(new),
            evidence=f"{case.scan.evidence}, paired", remedy=_FIELD_REMEDY.get(name, f"make the engine use {name} = {show(new)}"),
        ))  # fmt: skip
    return findings or [Finding("F006", Severity.PASS, "no other single convention predicts better",
                                evidence=f"{case.scan.evidence}, steps 0 and 1")]  # fmt: skip


_FIELD_REMEDY = {
    "shift": "the weights were trained on shifted data, or the dump is shifted: no config edit helps; check the dump, retrain",
    "vocab_map": "store d2t as offsets (target id = i + d2t[i]); this is how SGLang and vLLM read it",
    "rope.base": "set rope_theta in the draft's config.json to the value the trainer really used",
    "rope.scaling": "remove or correct rope_scaling in the draft's config.json",
    "residual": "set norm_before_residual in the draft's config.json; SGLang has no such flag",
    "feedback": "set norm_output in the draft's config.json",
    "aux_norm": "set norm_before_fc or fc_norm in the draft's config.json as the file's tensors want it",
    "embedding": "vLLM keeps the file's embed_tokens, SGLang overwrites it: remove or restore the table in the file",
}


def _against_training(case: Evidence, fitted: Evaluation) -> list[Finding]:
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
