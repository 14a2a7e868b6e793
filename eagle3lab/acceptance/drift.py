"""What the recording stands for: chains fed with recorded or own tokens, and the target's own choice beside the text.

A chain's drafts up to the first wrong one are the same whether later steps read the recorded tokens or the draft's
own, so the walk's numbers are. Past a wrong draft the two part: training's accuracy of a later step (recorded tokens)
is not what an engine's chain would reach there. And the walk is the engine's at temperature 0 only where the text is
the target's own greedy choice: elsewhere a draft that says what the target would have said counts as wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.acceptance.chain import Acceptance
from eagle3lab.errors import BadShape, Blocked
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.samples import reply_rows


@dataclass(frozen=True)
class Drift:
    """Chains fed with recorded tokens against chains fed with their own, on the same rows.

    Attributes:
        scored: rows at each step.
        recorded: of these, right when fed with the recorded tokens.
        own: of these, right when fed with the draft's own.
        rounds: rounds of the walk.
        equal: of these, rounds that accept the same number either way: all, unless ties in rounding flip.
    """

    scored: tuple[int, ...]
    recorded: tuple[int, ...]
    own: tuple[int, ...]
    rounds: int
    equal: int

    @classmethod
    def of(cls, recorded: Sequence[Acceptance], own: Sequence[Acceptance]) -> Drift:
        """Both lists hold the same samples in the same order."""
        scored, first, second = (
            tuple(sum(n) for n in zip(*numbers, strict=True))
            for numbers in (
                [p.counts.scored for p in recorded],
                [p.counts.correct for p in recorded],
                [p.counts.correct for p in own],
            )
        )
        equal = 0
        for a, b in zip(recorded, own, strict=True):
            runs = b.runs()
            equal += sum(int(runs[r.row]) == r.accepted for r in a.rounds)
        return cls(scored, first, second, sum(len(p.rounds) for p in recorded), equal)


@dataclass(frozen=True)
class Choice:
    """Reply tokens against the target's own greedy choice, over the head rows held.

    Attributes:
        tokens: reply tokens that a recorded state predicts.
        greedy: of these, tokens that are the target's choice.
        rounds: rounds of the walk.
        met: of these, rounds that judge a token which is not: an engine would have gone another way there.
        rows: rows at which the first draft is scored.
        right: of these, first drafts equal to the recorded token.
        chosen: of these, first drafts equal to the target's choice.
    """

    tokens: int
    greedy: int
    rounds: int
    met: int
    rows: int
    right: int
    chosen: int

    def __add__(self, other: Choice) -> Choice:
        """Counts of both."""
        return Choice(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def share(self) -> float:
        """Greedy tokens / tokens (NaN without any)."""
        return self.greedy / self.tokens if self.tokens else float("nan")


def choices(model: Model, sample: Sample) -> Tensor:
    """int64 [T]: the target's greedy choice after each row that a reply follows, -1 elsewhere.

    Raises:
        Blocked: no final state or no target.
        BadShape: the target's head does not take the recorded state.
    """
    states = model.final_state(sample)
    if model.target is None:
        raise Blocked("the target's own choice needs its lm_head: give the target under [target]")
    if states.shape[-1] != model.target.hidden:
        raise BadShape("target lm_head", f"the recorded final state is {states.shape[-1]} wide",
                       f"the head takes Ht = {model.target.hidden}",
                       ["the samples were recorded from another target than the one under [target]"])  # fmt: skip
    out = torch.full((sample.length,), -1)
    rows = sample.loss_mask[1:].bool().nonzero()[:, 0]  # the row before each reply token
    out[rows] = model.target.lens(states[rows], 0)
    return out


def against_choice(model: Model, sample: Sample, reading: Reading, part: Acceptance) -> Choice:
    """The recorded text, the walk and the first drafts of one sample against the target's own choice."""
    choice, tokens = choices(model, sample), sample.input_ids.long()
    greedy = torch.ones(sample.length, dtype=torch.bool)
    greedy[1:] = (choice[:-1] == tokens[1:]) | (choice[:-1] < 0)  # row t - 1 chooses token t
    places = sample.loss_mask.bool()
    places[0] = False
    met = 0
    for r in part.rounds:
        first = r.row + 1 + reading.shift
        met += not bool(greedy[first : first + min(r.accepted + 1, r.offered)].all())
    said = rollout(model, sample, reading, 1, rows=reply_rows(sample), probabilities=False).steps[0]
    scored = part.scored[said.rows, 0]
    rows, best = said.rows[scored], said.top_ids[scored, 0]
    return Choice(
        tokens=int(places.sum()),
        greedy=int((greedy & places).sum()),
        rounds=len(part.rounds),
        met=met,
        rows=len(rows),
        right=int(said.correct[scored].sum()),
        chosen=int((best == choice[rows + reading.shift]).sum()),
    )
