"""An engine's requests beside their predictions, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eagle3lab.acceptance import Acceptance
from eagle3lab.counts import RequestReport
from eagle3lab.gap.rounds import RoundDifference, differing
from eagle3lab.records import Sample


@dataclass(frozen=True)
class RequestMatch:
    """One engine request beside the prediction for the same text.

    Attributes:
        sample: the sample with the same tokens.
        predicted: accepted drafts, round by round.
        measured: the engine's, round by round.
        equal: all rounds equal.
        last_only: they differ in the last round only, where the engine may count drafts past the request's end.
        first: the first round that differs, None when equal.
        differs: the engine's rounds that differ from what the draft accepts from the very row they began at.
    """

    sample: str
    predicted: tuple[int, ...]
    measured: tuple[int, ...]
    equal: bool
    last_only: bool
    first: int | None
    differs: tuple[RoundDifference, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """All requests of a run beside their predictions.

    Attributes:
        matches: those with the tokens of a sample and with their rounds.
        unmatched: those without such tokens.
        silent: those with the tokens of a sample for which the engine listed no rounds.
        counts: how many are what.
    """

    matches: tuple[RequestMatch, ...] = ()
    unmatched: int = 0
    silent: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


def compare_requests(
    requests: Sequence[RequestReport], parts: Mapping[str, Acceptance], samples: Mapping[str, Sample]
) -> Comparison:
    """Pairs an engine's requests with samples of the same tokens and compares their rounds.

    A request matches a sample when prompt and reply equal the recorded tokens from its first span on. The recording
    may close a cut reply with template tokens, so the reply must equal the span, not the rest of the text.
    """
    keyed = {}
    for name, part in parts.items():
        sample = samples[name]
        if len(sample.spans) == 1:
            a, b = sample.spans[0]
            keyed[tuple(sample.input_ids[:a].tolist()), tuple(sample.input_ids[a:b].tolist())] = part
    matches, silent = [], 0
    for request in requests:
        found = keyed.get((request.prompt_ids, request.token_ids))
        if found is None:
            continue
        if found.rounds and not request.accepted:
            silent += 1
            continue
        predicted = tuple(r.accepted for r in found.rounds)
        first = next((i for i, (p, m) in enumerate(zip(predicted, request.accepted, strict=False)) if p != m), None)
        if first is None and len(predicted) != len(request.accepted):
            first = min(len(predicted), len(request.accepted))
        last = (
            first is not None
            and first >= len(request.accepted) - 1
            and abs(len(predicted) - len(request.accepted)) <= 1
        )
        differ = differing(found, request.accepted)
        matches.append(RequestMatch(found.sample, predicted, request.accepted, first is None, last, first, differ))
    return Comparison(
        tuple(matches),
        len(requests) - len(matches) - silent,
        silent,
        {
            "requests": len(requests),
            "matched": len(matches),
            "equal": sum(m.equal for m in matches),
            "last_round_only": sum(m.last_only for m in matches),
        },
    )


def end_effect(parts: Sequence[Acceptance], steps: int) -> float:
    """How much an engine's accept length can exceed the walk's, because a recording stops at the reply's end.

    An engine also counts drafts accepted past the end of a request (vLLM, measured): at most K minus what the last
    rounds of the walk could offer, and one more round a request where the walk ends on its very last row.
    """
    rounds = sum(len(p.rounds) for p in parts)
    last = [p.rounds[-1] for p in parts if p.rounds]
    return sum(steps - r.offered for r in last if r.accepted == r.offered) / rounds if rounds else 0.0
