"""The engine's files as evidence: one definition for all of them, and what makes a number of theirs worthless.

Nothing here runs the draft: arithmetic on what the engine wrote, by the lab's definition (design section 6): cumulative
per position, accept length 1 + accepted / rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lab.checks.evidence import Serving
from eagle3lab.checks.figures import TOLERANCE, doubts, figures, settled, sound
from eagle3lab.counts import EngineReport, Flaw, ServingRun
from eagle3lab.dialects import ENGINES
from eagle3lab.errors import LabError
from eagle3lab.records import Finding, Severity

CODES = {
    "E020": "the engine's accept length by the lab's definition, and the file it comes from",
    "E021": "numbers in the engine's files that cannot be",
    "E022": "files of one run against each other",
    "E023": "acceptance that is made up, not measured",
    "E024": "an accept length of exactly 1, or exactly K + 1",
    "E025": "steps and draft tokens in the engine's own settings",
    "E026": "rounds and accepted drafts against the tokens that came out",
    "E027": "pooled acceptance against a mean of means",
    "E028": "a file of another engine, or one without a speculative line",
    "E029": "several servers or several settings in one file",
    "E030": "lines cut in the middle, and figures that are no numbers",
}

MANY = 50
"""Rounds from which an exact 1 is no chance: a draft that is right in 10 % gives it in one such run of 200."""


def check(case: Serving) -> list[Finding]:
    """All findings about the files of the chosen run."""
    run = case.run
    if run is None or run.engine not in ENGINES:
        return []  # E001 says so
    out = _settings(run)
    try:
        reports = case.reports(run)
    except LabError:
        return out  # the check of serving reads the same files and says which cannot be read
    if not run.speculative:
        return out + _baseline(run, reports)
    parts = (_used, _impossible, _against_each_other, _flawed, _exact, _ends, _means)
    return out + [finding for part in parts for finding in part(run, reports)]


def _settings(run: ServingRun) -> list[Finding]:
    """Settings of the case that the engine does not have, or cannot follow."""
    faults = getattr(ENGINES[run.engine], "setting_faults", None)
    return [Finding("E025", Severity.WARN, f"run {run.name!r}: {text}", "case.toml", expected=expected,
                    evidence=f"{run.engine}'s own rules (by reading)",
                    remedy="write the settings that the run was served with")
            for text, expected in (faults(run) if faults else ())]  # fmt: skip


def _where(*reports: EngineReport) -> str:
    return ", ".join(dict.fromkeys(name for report in reports for name in report.files))


def _best(reports: Sequence[EngineReport]) -> EngineReport | None:
    return next((r for r in reports if r.accept_length is not None), None)


def _baseline(run: ServingRun, reports: Sequence[EngineReport]) -> list[Finding]:
    """A run with ``steps = 0`` whose engine did speculate."""
    spoke = [r for r in reports if r.drafts]
    if not spoke:
        return []
    return [Finding("E022", Severity.WARN, f"run {run.name!r} is without speculation in the case, and its engine speculated",
                    _where(*spoke), f"{spoke[0].drafts} rounds", "steps = 0", f"{spoke[0].source}",
                    "correct steps in case.toml, or give the files of the run without speculation")]  # fmt: skip


def _used(run: ServingRun, reports: Sequence[EngineReport]) -> list[Finding]:
    usable = figures(run, reports)
    best, said = usable.counted, usable.printed
    if best is None or best.accept_length is None:
        if usable.why and said is None:
            given = [r for r in settled(run, reports) if r.accept_length or r.reported_length or doubts(r)]
            return [Finding("E020", Severity.NOT_COMPARABLE, f"partial: no figure of the engine is used: {usable.why}", _where(*given),
                            expected="measured counts that go together", remedy="record the run again")]  # fmt: skip
        if said is None:
            return []  # E001 asks for counts, E028 says what is wrong with the files
        return [Finding(
            "E020", Severity.NOT_COMPARABLE, f"{said.engine} prints accept length {said.reported_length:.2f} and no counts behind it",
            _where(said), f"{said.reported_length:.3f}, bonus included, n unknown" + (f", K={said.steps}" if said.steps else ""), "drafts and accepted drafts",
            f"from the {said.source}: a mean of printed means cannot be weighted by its rounds",
            "give per-request answers, or counters from before and after the run",
        )]  # fmt: skip
    rates = ", ".join(f"{rate:.4f}" for rate in best.cumulative)
    measured = f"{best.accept_length:.4f} = 1 + {best.accepted} accepted / {best.drafts} rounds"
    measured += f"; per position, cumulative: {rates}" if rates else "; per position: not said"
    steps = f"K={best.steps}, " if best.steps else ""
    evidence = (
        f"{steps}from the {best.source}: bonus included, over rounds with at least one draft; {_also(best, reports)}"
    )
    evidence += f"; not used: {usable.why}" if usable.why else ""
    partial = bool(usable.why) or any(
        note.startswith("partial:") for note in (*best.notes, *(text for _, text in best.flaws))
    )
    return [Finding("E020", Severity.INFO, f"{run.engine} measured accept length {best.accept_length:.2f}, from the {best.source}"
                    + (" (partial)" if partial else ""), _where(best), measured, evidence=evidence)]  # fmt: skip


def _also(best: EngineReport, reports: Sequence[EngineReport]) -> str:
    """What the other files of the run cover, in words."""
    words = []
    for report in reports:
        if report is best:
            continue
        name = {"log": "the log's intervals"}.get(report.source, f"the {report.source}")
        counts = report.drafts is not None and best.drafts
        words.append(f"{name} hold {report.drafts} of {best.drafts} rounds" if counts else f"{name} hold no counts")
    return "; ".join(words) or "no other file to set beside it"


def _impossible(run: ServingRun, reports: Sequence[EngineReport]) -> list[Finding]:
    out = []
    for report in settled(run, reports):
        if found := doubts(report):
            first, *rest = found
            out.append(Finding(
                "E021", Severity.FAIL, f"the {report.source} of run {run.name!r} cannot be right: {first}", _where(report),
                "; ".join(rest), "counts that go together", "arithmetic on the file's own numbers",
                "record the run again; if it comes back, do not trust any figure of this file",
            ))  # fmt: skip
    return out


def _against_each_other(run: ServingRun, reports: Sequence[EngineReport]) -> list[Finding]:
    # what cannot be is not set against what can: E021 speaks of it
    counted = [r for r in sound(run, reports) if r.drafts is not None and r.accepted is not None and r.drafts > 0]
    out = []
    for report in counted[1:]:
        best = counted[0]
        same = (report.drafts, report.accepted) == (best.drafts, best.accepted)
        words = f"{best.source} {best.accepted} accepted in {best.drafts} rounds, {report.source} {report.accepted} in {report.drafts}"
        if same:
            out.append(Finding("E022", Severity.PASS, f"the {report.source} and the {best.source} agree to the last draft",
                               _where(best, report), words))  # fmt: skip
        elif _more(report, best) or report.drafts == best.drafts:
            out.append(Finding(
                "E022", Severity.WARN, f"the {report.source} and the {best.source} of run {run.name!r} are not of one run",
                _where(best, report), words, f"the {report.source} within the {best.source}",
                f"the {best.source} {'is' if best.source == 'log' else 'are'} used",
                "give files of one run: metrics from just before and just after it, its own log and answers",
            ))  # fmt: skip
    for report in reports:
        if report.version and run.version and not _same_version(report.version, run.version):
            out.append(Finding("E022", Severity.WARN, f"the {report.source} is of version {report.version}, the case says {run.version}",
                               _where(report), report.version, run.version,
                               remedy="correct version in case.toml: layer ids are read by version"))  # fmt: skip
    return out


def _more(report: EngineReport, best: EngineReport) -> bool:
    return (report.drafts or 0) > (best.drafts or 0) or (report.accepted or 0) > (best.accepted or 0)


def _same_version(said: str, given: str) -> bool:
    said, given = (text.removeprefix("v").split("+")[0] for text in (said, given))
    return said == given or said.startswith((f"{given}.", f"{given}rc")) or given.startswith(f"{said}.")


_FLAWS = {
    Flaw.SIMULATED: ("E023", Severity.FAIL, "measured acceptance",
                     "serve without it (SGLANG_SIMULATE_ACC_LEN, rejection_sample_method) and record the run again"),
    Flaw.SETTINGS: ("E025", Severity.WARN, "draft tokens = steps + 1, or leave them out",
                    "K is the number of steps; vLLM's num_speculative_tokens is SGLang's num_draft_tokens less one"),
    Flaw.SERVERS: ("E029", Severity.WARN, "one server", "cut the log at the start of the run that is meant"),
    Flaw.CHANGES: ("E029", Severity.WARN, "one K", "record one run a setting; per-request answers say K of each"),
    Flaw.CUT: ("E030", Severity.WARN, "whole lines", "copy the file again, whole"),
    Flaw.NAN: ("E030", Severity.INFO, "numbers", "nothing, where nothing was drafted; else record the run again"),
}  # fmt: skip
"""Flaw → code, severity, expected, what to do; the rest depends on what else there is."""


def _flawed(run: ServingRun, reports: Sequence[EngineReport]) -> list[Finding]:
    counted = _best(reports) is not None
    out = []
    for report in reports:
        for flaw, text in report.flaws:
            if flaw in _FLAWS:
                code, severity, expected, remedy = _FLAWS[flaw]
                if flaw is Flaw.NAN and report.accept_length is None and report.reported_length is None:
                    severity = Severity.WARN
                out.append(Finding(code, severity, text, _where(report), "", expected, f"the {report.source}", remedy))
            elif flaw in (Flaw.FOREIGN, Flaw.SILENT):
                foreign = flaw is Flaw.FOREIGN
                severity = Severity.FAIL if foreign else Severity.WARN if counted else Severity.BLOCKED
                remedy = f"correct engine in case.toml, or give {run.engine}'s own file" if foreign else \
                    "serve with speculation and log statistics on, long enough for one interval, and record again"  # fmt: skip
                out.append(Finding("E028", severity, text, _where(report), expected=f"a speculating run of {run.engine}",
                                   evidence=f"the {report.source}", remedy=remedy))  # fmt: skip
    return out


def _exact(run: ServingRun, reports: Sequence[EngineReport]) -> list[Finding]:
    good = sound(run, reports)
    best = _best(good) or next((r for r in good if r.reported_length is not None), None)
    if best is None or any(flaw is Flaw.SIMULATED for r in reports for flaw, _ in r.flaws):
        return []
    length = best.accept_length if best.accept_length is not None else best.reported_length
    if length is None or (best.drafts is not None and best.drafts < MANY):
        return []
    measured = (
        f"{best.accepted} accepted in {best.drafts} rounds"
        if best.accept_length is not None
        else f"{length:.3f} as printed"
    )
    if length == 1:
        return [Finding("E024", Severity.WARN, "accept length is exactly 1: not one draft was accepted", _where(best), measured,
                        "some: even wrong wiring is right by chance now and then", f"the {best.source}",
                        "look for a vocabulary map or head that is not there, NaN, or states of other tokens (V001, W003, F002)")]  # fmt: skip
    if best.steps and length == best.steps + 1:
        return [Finding("E024", Severity.WARN, f"accept length is exactly K + 1 = {best.steps + 1}: every draft was accepted",
                        _where(best), measured, "a miss now and then", f"the {best.source}",
                        "look for simulated acceptance, an n-gram drafter, or text that repeats itself")]  # fmt: skip
    return []


def _ends(run: ServingRun, reports: Sequence[EngineReport]) -> list[Finding]:
    """Tokens that the counters count and nobody got: drafts accepted past a request's end (vllm #56101)."""
    report = next((r for r in sound(run, reports) if r.accept_length is not None and r.output), None)
    if (
        report is None
        or report.drafts is None
        or report.accepted is None
        or report.output is None
        or report.accept_length is None
    ):
        return []
    counted, answered, steps = report.drafts + report.accepted, report.answered, report.steps
    excess = counted + (answered or 0) - report.output
    kept = 1 + max(report.accepted - max(excess, 0), 0) / report.drafts
    measured = f"{report.drafts} rounds + {report.accepted} accepted - {report.output} tokens out = {counted - report.output:+d}"
    measured += f"; with the prefills' {answered} tokens {excess:+d}" if answered else ""
    evidence = f"accept length {report.accept_length:.3f} as counted, {kept:.3f} by what came out; engines count drafts accepted past " \
               "a request's end in its last round"  # fmt: skip
    bound = answered * (steps or 0) if answered and steps else None
    if (bound is not None and excess > bound) or excess < -max(0.05 * report.output, 2):
        limit = f"at most {bound} over: K for each request's last round" if bound else "nearly none"
        return [Finding("E026", Severity.WARN, f"rounds and accepted drafts do not fit the {report.output} tokens that came out",
                        _where(report), measured, limit, evidence,
                        "the counts are of other requests than the tokens, or many rounds had no draft: record one run alone")]  # fmt: skip
    title = f"{excess} tokens were counted past the requests' ends" if excess > 0 else \
        f"{-excess} tokens came out of rounds without a draft" if excess < 0 else "what was counted is what came out"  # fmt: skip
    return [
        Finding("E026", Severity.INFO if excess else Severity.PASS, title, _where(report), measured, evidence=evidence)
    ]


def _means(run: ServingRun, reports: Sequence[EngineReport]) -> list[Finding]:
    for report in sound(run, reports):
        mean = report.mean_of_means
        if mean is None and len(report.lengths) > 1:
            mean = sum(report.lengths) / len(report.lengths)
        if mean is None:
            continue
        n = len(report.lengths) or report.answered or 0
        where, how = _where(report), "a plain mean over requests weighs a short one as much as a long one"
        if report.accept_length is None:
            return [Finding("E027", Severity.NOT_COMPARABLE, f"{mean:.2f} is a mean over requests, not over rounds", where,
                            f"{mean:.3f} over {n or 'unknown'} requests", "counts, pooled", how,
                            "give counters or per-request answers")]  # fmt: skip
        gap = mean - report.accept_length
        words = (
            f"pooled {report.accept_length:.3f} over {report.drafts} rounds, mean of means {mean:.3f} over {n} requests"
        )
        title = "pooled and averaged over requests, the accept length is the same" if abs(gap) < TOLERANCE else \
            f"averaged over requests the accept length would be {mean:.2f}; pooled it is {report.accept_length:.2f}"  # fmt: skip
        return [Finding("E027", Severity.INFO, title, where, words, evidence=f"{how}; the lab pools")]
    return []
