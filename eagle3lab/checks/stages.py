"""The stages of a case, one after another: what one of them cannot open stops no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from eagle3lab.checks import (
    acceptance,
    alignment,
    doubts,
    dumps,
    forward,
    fresh,
    inputs,
    maps,
    masks,
    parity,
    positions,
    precision,
    reports,
    samples,
    serving,
    sizes,
    trained,
    vocab,
    walks,
    weights,
)
from eagle3lab.checks.evidence import Opened
from eagle3lab.errors import LabError
from eagle3lab.records import Finding
from eagle3lab.target import Target


def findings(case: Opened, stages: Sequence[str] = ()) -> list[Finding]:
    """The findings of the named stages, all of them in reading order when none is named."""
    out: list[Finding] = []
    errors: list[tuple[str, LabError]] = []
    chosen = tuple(stages) or tuple(STAGES)
    if chosen != ("weights",):
        try:
            _ = case.target and case.target.tensors
        except LabError as error:
            errors.append(("what needs the target", error))
    for stage in chosen:
        try:
            out += STAGES[stage](case)
        except LabError as error:
            errors.append((stage, error))
    out = [*inputs.consequences(out, chosen), *out]
    first = [*inputs.stopped(errors), *(inputs.unused(case.file.unused, "case.toml") if "weights" in chosen else [])]
    return inputs.relative(inputs.merged([*first, *out]), case.root, inputs.places(case.file))


def _weights(case: Opened) -> list[Finding]:
    longest = None
    if case.attempt("samples") is not None:
        longest = max((s.length for s in map(case.readable, case.samples.looked_at) if s is not None), default=None)
    target = case.attempt("target")
    return [*weights.check(case.draft, longest, case.stats, target), *fresh.check(case.draft, target)]


def _vocab(case: Opened) -> list[Finding]:
    draft, target, given = case.draft, case.attempt("target"), case.attempt("samples")
    held = [s for s in map(case.readable, given.headline) if s is not None] if given is not None else []
    return [
        *vocab.check(draft, target, case.attempt("replies"), case.steps),
        *maps.check(draft, target, given, held, case.steps),
    ]


def _samples(case: Opened) -> list[Finding]:
    names = [n for n in case.samples.looked_at if n not in case.survey.unreadable]
    claimed = case.samples[names[0]].final_norm if names else "none"
    target = case.attempt("target")
    draft, configured = case.attempt("draft"), case.attempt("configured")
    aux = configured.reading.aux if configured and configured.reading else ()
    config = target.config if target else draft.config if draft else {}
    return [
        *samples.check(case.survey, case.samples, draft, target, claimed),
        *dumps.check(case.survey, case.samples, _texts(target)),
        *alignment.check(case.survey, case.samples),
        *masks.check(case.survey, config, _texts(target), case.samples.headline),
        *sizes.check(case.survey, case.samples, draft, aux),
        *trained.check(case),
    ]


def _forward(case: Opened) -> list[Finding]:
    return [*forward.check(case), *parity.check(case)]


def _serving(case: Opened) -> list[Finding]:
    return [*serving.check(case), *reports.check(case)]


def _acceptance(case: Opened) -> list[Finding]:
    if stopped := doubts.blocked(case):
        return [_as_length(stopped[0])]
    out = acceptance.check(case)
    configured = case.configured.reading
    if configured and case.scan.fits and configured.aux != case.scan.fitted.aux and (stopped := doubts.doubtful(case)):
        out = [_as_length(stopped[0]) if f.code == "A001" else f for f in out]
    if not case.scan.fits:
        return out  # A001 says that nothing fits: where it is right means nothing either
    best = case.evaluate(case.scan.fitted)
    held = [s for s in map(case.readable, best.parts) if s is not None]
    return [
        *out,
        *positions.check(case, best, {s.name: s for s in held}),
        *precision.check(case, best.reading, held),
        *walks.check(case, best, {s.name: s for s in held}, _texts(case.attempt("target"))),
        *trained.remembered(case, best),
    ]


def _as_length(wiring: Finding) -> Finding:
    """A001 where F003 is blocked, by the same finding."""
    return replace(wiring, code="A001", title=wiring.title.replace("the wiring", "accept length"))


def _texts(target: Target | None) -> Callable[[int], str]:
    """A token's own text, ``<17>`` where there is no tokenizer, or a broken one."""

    def text(token: int) -> str:
        try:
            return target.text([token])[0] if target else f"<{token}>"
        except LabError:
            return f"<{token}>"

    return text


STAGES: Mapping[str, Callable[[Opened], list[Finding]]] = {
    "weights": _weights, "vocab": _vocab, "samples": _samples, "forward": _forward, "acceptance": _acceptance,
    "serving": _serving,
}  # fmt: skip
"""Reading order: static, then shard, then forward, then engine."""
