"""Rounds of an engine that differ from their prediction, each begun at the same row, and how near to a tie they are.

A first difference moves every later round of an engine to other rows. So each is held against what the draft accepts
from the row where the engine itself began it, and one difference hides no other.

Engines compute in bfloat16, and so are most recordings stored: two tokens that the draft holds for almost equally
likely may change places. How much rounding moves the distance between the two best is measured, on the same text: the
forward in bfloat16 beside that in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.acceptance import Acceptance
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.samples import reply_rows

ROWS = 256
"""Rows of a text on which rounding is measured."""

ALLOWED = 2.0
"""A margin up to so many times what rounding moves 95 of 100 margins counts as a near-tie."""


@dataclass(frozen=True)
class RoundDifference:
    """One round in which the engine accepted another number of drafts.

    Attributes:
        round: its number in the request, from 0.
        row: the row from which it was begun.
        predicted: drafts the lab accepts from there.
        measured: drafts the engine accepted.
        past_end: the engine counted drafts past the reply's end, where a recording has nothing.
    """

    round: int
    row: int
    predicted: int
    measured: int
    past_end: bool

    @property
    def step(self) -> int:
        """The first draft on which the two disagree."""
        return min(self.predicted, self.measured)


def differing(part: Acceptance, accepted: Sequence[int]) -> tuple[RoundDifference, ...]:
    """The engine's rounds that differ from the prediction at the same row; of a text of one span.

    Args:
        part: the prediction.
        accepted: the engine's, round by round.
    """
    (a, b), runs, out = part.spans[0], part.runs().tolist(), []
    row = max(a - 1, 0)
    for i, measured in enumerate(accepted):
        room = b - 2 - row  # drafts that the reply still holds
        if room < 1 or not bool(part.scored[row, 0]):
            break  # the bonus token ends the reply, or no tree was grown here
        if measured != runs[row]:
            out.append(RoundDifference(i, row, runs[row], measured, measured > room and runs[row] >= room))
        row += measured + 1
    return tuple(out)


@dataclass(frozen=True)
class Margin:
    """How sure the draft was where a round differs.

    Attributes:
        of: the round.
        margin: nats between the token the lab drafts and the one the engine must have drafted, or its own second best
            where the engine's is not known.
        rounding: what rounding moves 95 of 100 such margins of this text by.
    """

    of: RoundDifference
    margin: float
    rounding: float

    @property
    def near(self) -> bool:
        """Whether rounding may have decided."""
        return self.margin <= ALLOWED * self.rounding


def margins(model: Model, sample: Sample, reading: Reading, differ: Sequence[RoundDifference]) -> list[Margin]:
    """The margins of one text's differing rounds; those past the reply's end have none and are left out.

    Raises:
        Blocked: the draft cannot be run.
    """
    asked = [d for d in differ if not d.past_end]
    if not asked:
        return []
    steps = 1 + max(d.step for d in asked)
    every = reply_rows(sample)
    every = every[every < sample.length - reading.shift - steps]
    spread = every[torch.linspace(0, len(every) - 1, min(ROWS, len(every))).round().long()]
    rows = torch.cat([spread, torch.tensor([d.row for d in asked])]).unique()
    exact, rounded = (
        rollout(model, sample, reading.replace(dtype=dtype), steps, rows=rows, topk=2).steps
        for dtype in ("float32", "bfloat16")
    )
    out = []
    for d in asked:
        step, other = exact[d.step], rounded[d.step]
        at = (step.rows == d.row).nonzero()[:, 0]
        if not len(at):
            continue
        best, second = step.top_logprobs[int(at[0])].tolist()
        theirs = second if d.measured < d.predicted else float(step.truth_logprob[int(at[0])])
        moved = (_gap(step.top_logprobs) - _gap(other.top_logprobs[: len(step.rows)])).abs()
        out.append(Margin(d, best - theirs if theirs == theirs else float("inf"), float(moved.quantile(0.95))))
    return out


def _gap(logprobs: Tensor) -> Tensor:
    return (logprobs[:, 0] - logprobs[:, 1]).float()
