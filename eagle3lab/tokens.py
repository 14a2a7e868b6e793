"""Each reply token as the walk's rounds judged it: how likely the draft held it, why it was refused, what that cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from eagle3lab.acceptance import Acceptance, ratios
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.readout import Step
from eagle3lab.records import Interval, Sample
from eagle3lab.textkinds import KINDS, kind_of

ACCEPTED, OUTSIDE, NEAR, FAR, BROKEN = "accepted", "out of draft vocab", "near miss", "far", "not finite"
REASONS = (OUTSIDE, NEAR, FAR, BROKEN)
"""Why a draft was refused."""

WITHIN = 4
"""A refused token is a near miss when it is among the draft's four best: SGLang's default tree (topk 4) offers it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One recorded token that a round offered a draft for.

    Attributes:
        sample: whose.
        place: its position in the text.
        distance: tokens from the start of its reply, 0 for the reply's first.
        round: number of the round in the sample's walk.
        step: which draft of the round, 0 for the first.
        token: target id.
        rank: its place among the draft's candidates, 0 the best; -1 outside the draft vocab or not finite.
        probability: what the draft gave it; 0 outside the draft vocab.
        best: target id of the draft's own first choice, -1 where its logits are not finite.
        confidence: what the draft gave that choice.
        entropy: of the draft's distribution, nats.
        kind: of text, see `textkinds`.
        verdict: ``accepted``, or one of `REASONS`.
        lost: drafts of this round that its refusal cost: itself, and those after it that were right with the
            recorded token fed in its place. 0 when accepted.
    """

    sample: str
    place: int
    distance: int
    round: int
    step: int
    token: int
    rank: int
    probability: float
    best: int
    confidence: float
    entropy: float
    kind: str
    verdict: str
    lost: int


def judge(model: Model, sample: Sample, reading: Reading, part: Acceptance, texts: Sequence[str]) -> list[Judged]:
    """The tokens of a sample that its rounds judged, in their order; tokens that a full round adds are not among them.

    Later steps read the recorded tokens: on the accepted part of a round these are the draft's own.

    Args:
        model: the draft's weights.
        sample: recorded tokens and states.
        reading: how the draft is run.
        part: the walk over it under this reading.
        texts: text of each of the sample's T tokens.
    """
    if not part.rounds:
        return []
    rows = torch.tensor([r.row for r in part.rounds])
    steps = max(r.offered for r in part.rounds)
    rolled = rollout(model, sample, reading, steps, rows=rows, keep=("entropy",))
    places = [{row: i for i, row in enumerate(step.rows.tolist())} for step in rolled.steps]
    out = []
    for number, r in enumerate(part.rounds):
        start = max((a for a, _ in part.spans if max(a - 1, 0) <= r.row), default=0)
        for step in range(min(r.accepted + 1, r.offered)):
            said, at = rolled.steps[step], places[step][r.row]
            place = r.row + 1 + reading.shift + step
            refused = step == r.accepted
            later = part.correct[r.row, step + 1 : r.offered].long().cumprod(0) if refused else None
            out.append(Judged(
                sample.name, place, place - start, number, step, int(said.truth[at]), int(said.truth_rank[at]),
                float(said.truth_logprob[at].exp()), int(said.top_ids[at, 0]), float(said.top_logprobs[at, 0].exp()),
                _entropy(said, at), _kind(texts, place, int(said.truth[at])),
                _reason(said, at) if refused else ACCEPTED, 0 if later is None else 1 + int(later.sum()),
            ))  # fmt: skip
    return out


def _kind(texts: Sequence[str], place: int, token: int) -> str:
    """Kind of the token at ``place``; a token without text (no tokenizer) has none."""
    return "other" if texts[place] == f"<{token}>" else kind_of(texts[place], texts[place - 1])


def _reason(said: Step, at: int) -> str:
    if int(said.top_ids[at, 0]) < 0:
        return BROKEN
    if not bool(said.covered[at]):
        return OUTSIDE
    return NEAR if int(said.truth_rank[at]) < WITHIN else FAR


def _entropy(said: Step, at: int) -> float:
    return float("nan") if said.entropy is None else float(said.entropy[at])


@dataclass(frozen=True)
class Cost:
    """What one group of tokens costs.

    Attributes:
        group: its name.
        judged: tokens that were offered a draft.
        refused: of these, refused ones by reason, in the order of `REASONS`.
        lost: drafts lost by them.
        share: refused / judged.
        a_round: accept length that they cost: drafts lost / rounds of the whole walk.
    """

    group: str
    judged: int
    refused: tuple[int, ...]
    lost: int
    share: Interval
    a_round: Interval


def costs(
    judged: Sequence[Judged], parts: Sequence[Acceptance], by: Callable[[Judged], str], order: Sequence[str] = KINDS
) -> list[Cost]:
    """Tokens by group, with intervals over samples (over rounds below five samples).

    The costs of all groups add up to what the rounds lost in all. They are of the first order: a round that keeps more
    also begins later rounds elsewhere.

    Args:
        judged: of all samples.
        parts: the walks they come from.
        by: gives each token's group.
        order: of the groups; those not named come last, as they appear.
    """
    found = list(dict.fromkeys(by(token) for token in judged))
    groups = [g for g in order if g in found] + [g for g in found if g not in order]
    column = {group: i for i, group in enumerate(groups)}
    whole = len(parts) >= 5
    keys: list[tuple[str, int]] = [(p.sample, i) for p in parts for i in ([0] if whole else range(len(p.rounds)))]
    unit = {key: i for i, key in enumerate(keys)}
    sums = torch.zeros(3, len(keys), len(groups), dtype=torch.float64)  # judged, refused, lost
    reasons = torch.zeros(len(groups), len(REASONS), dtype=torch.long)
    for token in judged:
        u, g = unit[token.sample, 0 if whole else token.round], column[by(token)]
        refused = token.verdict != ACCEPTED
        sums[:, u, g] += torch.tensor([1.0, float(refused), float(token.lost)], dtype=torch.float64)
        if refused:
            reasons[g, REASONS.index(token.verdict)] += 1
    rounds = torch.tensor([len(p.rounds) for p in parts] if whole else [1.0] * len(keys), dtype=torch.float64)
    words = f"bootstrap over {len(parts)} samples" if whole else f"bootstrap over {len(keys)} rounds, too narrow"
    shares = ratios(sums[1], sums[0], words)
    each = ratios(sums[2], rounds[:, None].expand_as(sums[2]), words)
    return [
        Cost(group, int(sums[0, :, i].sum()), tuple(reasons[i].tolist()), int(sums[2, :, i].sum()), shares[i], each[i])
        for group, i in column.items()
    ]


def distance_group(token: Judged, width: int = 16) -> str:
    """Distance from the prompt in steps of ``width`` tokens, as text that sorts as it should."""
    low = token.distance // width * width
    return f"{low}–{low + width - 1}"
