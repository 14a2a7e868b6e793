"""The engine's accept length and rounds beside the prediction under the engine's own reading."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lab.acceptance import Evaluation
from eagle3lab.checks.evidence import Opened
from eagle3lab.checks.gap import measured_of
from eagle3lab.checks.text import at_temperature, not_greedy
from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.errors import LabError
from eagle3lab.gap import compare_requests
from eagle3lab.gap.levels import Measured
from eagle3lab.gap.resample import Draws
from eagle3lab.gap.rounds import Margin, margins
from eagle3lab.gap.waterfall import PAIRED, beyond
from eagle3lab.reading import show
from eagle3lab.records import Finding, Severity

CODES = {
    "E001": "accept length: the engine's against the prediction under its own reading",
    "E003": "accepted drafts round by round: the engine's against the prediction",
}

CLOSE = 0.01
"""A difference that no engine's two printed decimals tell from none."""

ALIKE = 0.01
"""Share of rounds that may differ by more than rounding explains: caches and kernels have their own."""

TEXTS = 8
"""Texts whose margins are measured."""


def length(case: Opened, run: ServingRun, reports: Sequence[EngineReport], mine: Evaluation) -> Finding:
    """E001: agreement within the interval of the difference, paired where the engine gave its requests one by one."""
    theirs = measured_of(case, run, reports, mine)
    assert theirs is not None
    where = f"{theirs.source}: {', '.join(f for r in reports for f in r.files)}"
    own, change = mine.length, beyond(mine, theirs, Draws(list(mine.parts)))
    counted = f"{theirs.rounds} rounds" if theirs.rounds else "printed, without counts"
    measured = f"engine {theirs.length:.3f} ({counted}), predicted {own.value:.3f} [{own.low:.3f}, {own.high:.3f}] ({own.n} rounds)"
    if paired := change.method.endswith(PAIRED) and change.low == change.low:
        measured += f"; difference {change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}], paired by request"
        agrees = change.low <= CLOSE + theirs.extra and change.high >= -CLOSE
    else:  # other texts, or too few of them: the spread between texts is all there is
        agrees = min(own.low, own.value - CLOSE) <= theirs.length <= max(own.high, own.value + CLOSE) + theirs.extra
    tree = f", topk {run.topk}, {run.draft_tokens} draft tokens, a tree by reading SGLang's source" * (run.topk > 1)
    evidence = (
        f"reading of run {run.name!r}: {show(mine.reading.aux)}, K={mine.steps}{tree}; engines count drafts accepted past "
        f"a request's end, which adds at most {theirs.extra:.3f} here"
    )
    partial = "" if theirs.rounds else "partial: by its printed mean, "
    if run.temperature > 0:
        return _sampled(case, run, theirs, mine, where, measured, evidence)
    if agrees:
        return Finding("E001", Severity.PASS, f"{partial}the engine's accept length {theirs.length:.2f} is what its reading "
                       "predicts", where, measured, evidence=evidence)  # fmt: skip
    less = theirs.length < own.value
    title = f"{partial}the engine reports {theirs.length:.2f}, {'less' if less else 'more'} than the {own.value:.2f} its reading predicts"
    if why := not_greedy(case, run, mine.reading):
        return Finding("E001", Severity.NOT_COMPARABLE, f"{title}, which is no prediction of it: {why}", where, measured,
                       "a recording of the engine's own greedy text", evidence,
                       "record the target's own greedy replies to these prompts, or compare readings with each other")  # fmt: skip
    texts = "" if paired else "texts differ, or "
    return Finding(
        "E001", Severity.WARN if less else Severity.INFO, title, where, measured,
        "no difference, within its interval" if paired else "agreement within the interval", evidence,
        f"not on the files' side: {texts}the engine's state (prefix cache, chunked prefill, KV dtype) is suspect",
    )  # fmt: skip


def _sampled(case: Opened, run: ServingRun, theirs: Measured, mine: Evaluation, where: str, measured: str,
             evidence: str) -> Finding:  # fmt: skip
    """A run at a temperature: the greedy walk is no prediction; what sampling would accept on this text is said."""
    title = f"the engine reports {theirs.length:.2f} at temperature {run.temperature:g}; the walk is greedy and gives {mine.length.value:.2f}"
    remedy = "serve the recorded prompts at temperature 0 to compare the two"
    try:
        total, _ = at_temperature(case, list(mine.parts), mine.reading, mine.steps, run.temperature)
    except LabError as error:
        evidence += f"; what sampling would accept is not known: {error.line}"
    else:
        if total is not None:
            most = "" if total.exact else "at most "
            evidence += (f"; sampling with greedy drafts, from a round at every row: {most}{total.accept_length:.3f} "
                         "(later positions on the recorded path)")  # fmt: skip
    return Finding("E001", Severity.NOT_COMPARABLE, title, where, measured, "a run at temperature 0", evidence, remedy)


def rounds(case: Opened, run: ServingRun, reports: Sequence[EngineReport], mine: Evaluation) -> list[Finding]:
    """E003: each of the engine's rounds against what the draft accepts from the row where it began."""
    report = next((r for r in reports if r.requests), None)
    if report is None:
        return []
    files = ", ".join(report.files)
    found = compare_requests(report.requests, mine.parts, case.samples)
    if not found.matches and found.silent:
        return [Finding("E003", Severity.NOT_COMPARABLE, f"{found.silent} requests are texts of samples, but the engine lists "
                        "no rounds of them", files, remedy="vLLM lists them with return_token_ids and per-request metrics; "
                        "SGLang gives sums only")]  # fmt: skip
    if not found.matches:
        return [Finding("E003", Severity.NOT_COMPARABLE, "no request has the tokens of a sample", files,
                        remedy="serve the recorded prompts so that answers hold token ids (vLLM: return_token_ids; SGLang: "
                               "/generate with input_ids)")]  # fmt: skip
    counts, total = found.counts, sum(len(m.measured) for m in found.matches)
    differ = [m for m in found.matches if m.differs]
    said: list[str] = []
    held = [m.sample for m in differ[:TEXTS]]
    near = past = apart = 0
    try:
        for match in differ:
            past += sum(d.past_end for d in match.differs)
            inside = [d for d in match.differs if not d.past_end]
            if match.sample not in held or not inside:
                said += [f"{match.sample}: its last round goes past its end"] * (not inside)
                apart += len(inside) if match.sample not in held else 0
                continue
            judged = margins(case.model, case.samples[match.sample], mine.reading, match.differs)
            near += sum(m.near for m in judged)
            apart += len(inside) - sum(m.near for m in judged)
            said += [_words(match.sample, m) for m in sorted(judged, key=lambda m: m.near)[:2]]
    except LabError as error:
        said.append(f"margins are not known: {error.line}")
        apart = sum(not d.past_end for m in differ for d in m.differs) - near
    wrong = apart > ALIKE * total
    other = not_greedy(case, run, mine.reading) if wrong else ""
    why = ", ".join(filter(None, [f"{near} near-tie{'s' * (near > 1)}" * bool(near), f"{past} past a reply's end" * bool(past),
                                  f"{apart} unexplained" * bool(apart)]))  # fmt: skip
    same = total - near - past - apart
    title = f"{same} of the engine's {total} rounds accept what its reading predicts" + (
        f"; the others: {why}" if why else ""
    )
    return [Finding(
        "E003", Severity.NOT_COMPARABLE if other else Severity.WARN if wrong else Severity.PASS,
        title + (f"; they are no prediction of it: {other}" if other else ""), files, "; ".join(said[:6]) or "all equal",
        "equal, but for near-ties and drafts past a reply's end",
        f"{counts['equal']} of {counts['matched']} requests equal throughout; each round from the row where the engine began it; "
        "near: rounding to bfloat16, measured on the same text, moves such margins as far",
        "" if not wrong else "serve the recorded prompts at temperature 0, and record what the target says" if other
        else "the draft is sure of other drafts than the engine: its state or its weights differ from these files",
    )]  # fmt: skip


def _words(sample: str, m: Margin) -> str:
    judged = "a near-tie" if m.near else "no near-tie"
    return (f"{sample} round {m.of.round}: {m.of.measured} drafts, predicted {m.of.predicted}; margin {m.margin:.3f} nats, {judged} "
            f"(rounding moves {m.rounding:.3f})")  # fmt: skip
