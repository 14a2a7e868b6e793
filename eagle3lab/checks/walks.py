"""The walk taken apart: what the recorded text stands for, replies too short for K, costly tokens, a temperature."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eagle3lab.acceptance import (
    RULES,
    Acceptance,
    Drift,
    Evaluation,
    steps_that_fit,
)
from eagle3lab.checks.evidence import Opened
from eagle3lab.checks.text import GREEDY, at_temperature
from eagle3lab.errors import LabError
from eagle3lab.records import Finding, Sample, Severity
from eagle3lab.tokens import REASONS, Judged, costs, judge

CODES = {
    "A020": "the walk against the target's own greedy choice",
    "A021": "replies too short for K",
    "A022": "which tokens cost most accept length, and why",
    "A023": "expected acceptance at temperature 1",
    "A024": "accuracy on texts that it was trained on, and on others",
}

TEMPERATURE = 1.0


def check(case: Opened, fitted: Evaluation, samples: Mapping[str, Sample], text: Callable[[int], str]) -> list[Finding]:
    """All findings about the walk under the fitted reading.

    Args:
        case: the case.
        fitted: acceptance under its fitted reading.
        samples: those that were walked, by name.
        text: a token's own text.
    """
    walked = [(samples[name], part) for name, part in fitted.parts.items() if name in samples]
    if not walked:
        return []
    return [
        *_choice(case, fitted, walked),
        *_short(fitted, samples),
        *_costs(case, fitted, walked, text),
        *_sampling(case, fitted, walked),
    ]


Walked = list[tuple[Sample, Acceptance]]


def _choice(case: Opened, fitted: Evaluation, walked: Walked) -> list[Finding]:
    """A020."""
    own = case.evaluate(fitted.reading, fitted.steps, fed="self").parts
    pairs = [(part, own[sample.name]) for sample, part in walked if sample.name in own]
    drift = Drift.of([a for a, _ in pairs], [b for _, b in pairs])
    fed = f"{drift.equal} of {drift.rounds} rounds keep as many drafts when later steps read the draft's own tokens"
    try:
        found, partly = case.choice(fitted.reading)
    except LabError as error:
        return [Finding("A020", Severity.BLOCKED, "whether the walk is the engine's at temperature 0 is not known", "samples",
                        error.line, "a recorded final state and the target's head", fed,
                        "record the last residual, and give the target's head rows and final norm")]  # fmt: skip
    measured = (
        f"{found.met} of {found.rounds} rounds judge a token that is not the target's choice; the first draft equals the "
        f"recorded token in {found.right} of {found.rows} rows, the target's choice in {found.chosen}"
    )
    evidence = f"{found.greedy} of {found.tokens} reply tokens are its choice, over the rows held; {fed}"
    evidence = "; ".join(filter(None, [evidence, partly]))
    if found.share >= GREEDY:
        return [Finding("A020", Severity.PASS, "the text is the target's greedy output, so the walk is an engine's at "
                        "temperature 0", "samples", measured, evidence=evidence)]  # fmt: skip
    return [Finding(
        "A020", Severity.WARN, f"the text is not the target's greedy output ({found.share:.1%}): the walk is an estimate",
        "samples", measured, f"at least {GREEDY:.0%} its own choices", evidence,
        "record the target's own greedy replies; until then compare readings with each other, not with an engine's figure",
    )]  # fmt: skip


def _short(fitted: Evaluation, samples: Mapping[str, Sample]) -> list[Finding]:
    """A021."""
    short = {name: fit for name in fitted.parts if name in samples
             and (fit := steps_that_fit(samples[name], fitted.steps)) < fitted.steps}  # fmt: skip
    if not short:
        return []
    scored = fitted.counts.scored
    some = ", ".join(f"{name} holds {fit}" for name, fit in list(short.items())[:5])
    empty = scored[-1] == 0
    return [Finding(
        "A021", Severity.WARN if empty else Severity.LIMIT,
        f"{len(short)} of {len(fitted.parts)} samples have no reply long enough for K={fitted.steps}: partial", "samples",
        f"drafts that fit: {some}; rows scored by position {', '.join(map(str, scored))}",
        f"replies of {fitted.steps + 2} tokens or more",
        "their rounds count with the drafts that fit, so late positions rest on the other samples and accept length is "
        "a little low",
        "record longer replies, or ask for fewer steps",
    )]  # fmt: skip


def _costs(case: Opened, fitted: Evaluation, walked: Walked, text: Callable[[int], str]) -> list[Finding]:
    """A022."""
    judged: list[Judged] = []
    for sample, part in walked:
        texts = [text(token) for token in sample.input_ids.tolist()]
        judged += judge(case.model, sample, fitted.reading, part, texts)
    if not any(token.lost for token in judged):
        return []
    parts = [part for _, part in walked]
    kinds = sorted(costs(judged, parts, lambda token: token.kind), key=lambda cost: -cost.lost)
    worst = kinds[0]
    words = "; ".join(
        f"{c.group} {c.a_round.value:.2f} [{c.a_round.low:.2f}, {c.a_round.high:.2f}] a round, "
        f"{c.share.value:.0%} of {c.judged} refused" for c in kinds[:3]
    )  # fmt: skip
    refused = [sum(cost.refused[i] for cost in kinds) for i in range(len(REASONS))]
    why = ", ".join(f"{reason} {n}" for reason, n in zip(REASONS, refused, strict=True) if n)
    return [Finding(
        "A022", Severity.INFO, f"most accept length is lost on tokens of kind {worst.group!r}", "samples", f"lost: {words}",
        evidence=f"{sum(c.judged for c in kinds)} judged tokens, refused: {why}; {worst.a_round.method}",
    )]  # fmt: skip


def _sampling(case: Opened, fitted: Evaluation, walked: Walked) -> list[Finding]:
    """A023."""
    names = [sample.name for sample, _ in walked]
    try:
        total, partly = at_temperature(case, names, fitted.reading, fitted.steps, TEMPERATURE)
    except LabError as error:
        return [Finding("A023", Severity.BLOCKED, "acceptance at a temperature is not known", "target", error.line,
                        "a recorded final state and the target's head",
                        remedy="record the last residual, and give the target's head rows and final norm")]  # fmt: skip
    if total is None:
        return []
    most = "" if total.exact else "at most "
    held = sum(n > 0 for n in total.reached)
    rates = ", ".join(f"{rate:.3f}" for rate in total.cumulative[:held])
    rates += f" (no row reaches draft {held + 1})" if held < len(total.reached) else ""
    return [Finding(
        "A023", Severity.INFO if total.exact else Severity.LIMIT,
        f"accept length at temperature {TEMPERATURE:g}: {most}{total.accept_length:.2f}", "samples",
        f"cumulative {most}{rates}, {RULES[0]} (the default of vLLM and SGLang)",
        evidence=f"{total.reached[0]:.0f} rows, expected and not drawn; exact for draft 1; later drafts are judged where the "
        "earlier ones are the recorded tokens: on a greedy text that is the greedy path, no sampled one" + ("" if total.exact else "; only some rows of the target's head are held")
        + (f"; {partly}" if partly else ""),
        remedy="" if total.exact else "give the whole target for exact numbers",
    )]  # fmt: skip
