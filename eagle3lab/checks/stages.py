"""The stages of a case, one after another: what one of them cannot open stops no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from eagle3lab.checks import acceptance, forward, inputs, samples, serving, vocab, weights
from eagle3lab.checks.evidence import Opened
from eagle3lab.errors import LabError
from eagle3lab.records import Finding


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
    first = [*inputs.stopped(errors), *(inputs.unused(case.unused, "case.toml") if "weights" in chosen else [])]
    return inputs.relative(inputs.merged([*first, *out]), case.root)


def _weights(case: Opened) -> list[Finding]:
    longest = None
    if case.attempt("samples") is not None:
        longest = max((s.length for s in map(case.readable, case.samples.looked_at) if s is not None), default=None)
    return weights.check(case.draft, longest, case.stats)


def _vocab(case: Opened) -> list[Finding]:
    return vocab.check(case.draft, case.attempt("target"), case.attempt("replies"), case.steps)


def _samples(case: Opened) -> list[Finding]:
    names = [n for n in case.samples.looked_at if n not in case.survey.unreadable]
    claimed = case.samples[names[0]].final_norm if names else "none"
    return samples.check(case.survey, case.samples, case.attempt("draft"), case.attempt("target"), claimed)


STAGES: Mapping[str, Callable[[Opened], list[Finding]]] = {
    "weights": _weights, "vocab": _vocab, "samples": _samples, "forward": forward.check, "acceptance": acceptance.check,
    "serving": serving.check,
}  # fmt: skip
"""Reading order: static, then shard, then forward, then engine."""
