"""Acceptance at a temperature, expected rather than drawn: the target's probabilities from its recorded final states.

Two rules. *Greedy drafts*: the draft's best token x is accepted with the target's probability p(x), which is what vLLM
(``draft_sample_method`` greedy, the default) and SGLang (draft probabilities of zero, the default) and EAGLE do.
*Probabilistic drafts*: x is drawn from the draft's q and accepted with min(1, p(x) / q(x)), in all Σ min(p, q) (vLLM's
``draft_sample_method`` probabilistic, SGLang's ``--speculative-use-rejection-sampling``).

The first position is exact for the recorded prefix. A later one needs the target's state after the accepted drafts,
which is recorded only where they are the recorded tokens; each row counts there by the chance that its drafts are
these: 1 where all were the recorded ones (greedy drafts), Π min(1, q(y) / p(y)) over the recorded y (the other rule).
For a text that the target itself sampled at this temperature this makes the mean over rows unbiased; over a greedy text
later positions are those of the greedy path, and the words say so.

Of the vocabulary only the normaliser is needed whole. Over a slice it misses rows, so every p is an upper bound, and so
is every rate: ``exact`` is False then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.errors import BadShape, Blocked
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.samples import reply_rows
from eagle3lab.target import Target

BYTES = 64 * 2**20
"""Bound on the probabilities held at once, the draft's and the target's each."""

HEAD_ROWS = 8192
"""Rows of the target's head read at once."""

RULES = ("greedy drafts", "probabilistic drafts")


@dataclass(frozen=True)
class Sampled:
    """Expected acceptance as sums, which add up over samples.

    Attributes:
        rule: one of `RULES`.
        temperature: T.
        exact: False where the target's normaliser misses rows: rates are then at most what they say.
        reached: Σ over rows of the chance to be at position k with the recorded prefix; rows at k = 0.
        accepted: Σ of the same times the chance that draft k is accepted.
    """

    rule: str
    temperature: float
    exact: bool
    reached: tuple[float, ...]
    accepted: tuple[float, ...]

    def __add__(self, other: Sampled) -> Sampled:
        """Sums of both; rule, temperature and K must agree."""
        if (self.rule, self.temperature, len(self.reached)) != (other.rule, other.temperature, len(other.reached)):
            raise ValueError("sums of different rules, temperatures or K do not add up")
        return Sampled(
            self.rule,
            self.temperature,
            self.exact and other.exact,
            tuple(a + b for a, b in zip(self.reached, other.reached, strict=True)),
            tuple(a + b for a, b in zip(self.accepted, other.accepted, strict=True)),
        )

    @property
    def conditional(self) -> tuple[float, ...]:
        """Expected acceptance of each position given the one before (NaN where no row gets there)."""
        return tuple(a / n if n else float("nan") for a, n in zip(self.accepted, self.reached, strict=True))

    @property
    def cumulative(self) -> tuple[float, ...]:
        """Expected acceptance of each position and all before it; 0 from a position that no row reaches."""
        out, now = [], 1.0
        for rate in self.conditional:
            now *= rate if rate == rate else 0.0
            out.append(now)
        return tuple(out)

    @property
    def accept_length(self) -> float:
        """1 + Σ cumulative, over a round begun at every row."""
        return 1 + sum(self.cumulative)


def sampled(
    model: Model, sample: Sample, reading: Reading, steps: int, temperatures: Sequence[float], greedy: bool = True
) -> list[Sampled]:
    """Expected acceptance over the reply rows of a sample, at each temperature, under both rules.

    Args:
        model: the draft's weights, with the target.
        sample: recorded tokens and states, the final one among them.
        reading: how the draft is run.
        steps: K.
        temperatures: T > 0 each.
        greedy: whether to give the rule of greedy drafts only; the other takes the draft's whole distribution.

    Returns:
        one a temperature and rule; over a slice that of probabilistic drafts has its first position alone, since the
        chance to get further has no bound there.

    Raises:
        Blocked: no target, no final state, or a reply too short for K.
        BadShape: the target's head does not take the recorded state.
    """
    if min(temperatures, default=1.0) <= 0:
        raise Blocked(f"temperatures {list(temperatures)}: each must be above 0; at 0 acceptance is the greedy chain's")
    target, states = model.target, model.final_state(sample)
    if target is None:
        raise Blocked("sampling needs the target's lm_head: give the target under [target]")
    if states.shape[-1] != target.hidden:
        raise BadShape("target lm_head", f"the recorded final state is {states.shape[-1]} wide",
                       f"the head takes Ht = {target.hidden}",
                       ["the samples were recorded from another target than the one under [target]"])  # fmt: skip
    hot = model.vocab_map(reading).hot_token_id
    held = target.holds(hot)
    if not bool(held.all()):
        missing = hot[~held]
        raise Blocked(f"{target.name}: {len(missing)} tokens of the draft vocabulary have no lm_head row, first "
                      f"{missing[:5].tolist()}; make the slice again for this draft")  # fmt: skip
    needed = sample.loss_mask[1:].bool().nonzero()[:, 0]  # the row before each reply token
    run = _Run(target, states, needed, target.head(hot).float(), temperatures, reading.shift)
    sums = {(t, rule): torch.zeros(2, steps, dtype=torch.float64) for t in temperatures for rule in RULES}
    rows = reply_rows(sample)
    last = {t: b - max(reading.shift - 1, 0) for a, b in sample.spans for t in range(max(a - 1, 0), b)}
    vocab, keep = model.vocab_map(reading), () if greedy else ("logits",)
    for chunk in rows.split(max(1, BYTES // (4 * len(hot)))):
        room = torch.tensor([last[int(t)] - 2 - int(t) for t in chunk])  # drafts that the reply holds from each row
        fit = min(steps, int(room.max()))
        if fit < 1:
            continue
        weights = {key: torch.ones(sample.length, dtype=torch.float64) for key in sums}
        rolled = rollout(model, sample, reading, fit, rows=chunk, keep=keep)
        for k, step in enumerate(rolled.steps):
            inside = room[: len(step.rows)] > k  # later steps lack rows at the text's end only
            best = vocab.to_draft(step.top_ids[inside, 0].clamp(min=0))
            truth = vocab.to_draft(step.truth[inside].clamp(min=0))
            logits = step.logits[inside] if step.logits is not None else None
            for t in temperatures:
                key = (t, RULES[0])
                p = run.of(step.rows[inside] + k, best, t)
                _add(sums[key], k, weights[key], step.rows[inside], p, step.correct[inside])
                if logits is None or (target.sliced and k):
                    continue  # over a slice q / p is no bound from above, so later positions are not known
                key = (t, RULES[1])
                q, whole = (logits / t).softmax(-1), run.whole(step.rows[inside] + k, t)  # [r, Vd] each
                said = truth.clamp(min=0)[:, None]
                chance = torch.where(truth >= 0, (q.gather(1, said) / whole.gather(1, said))[:, 0], 0.0)
                both = torch.minimum(whole, q).sum(-1)
                _add(sums[key], k, weights[key], step.rows[inside], both, chance.nan_to_num(0.0, 1.0).clamp(max=1.0))
    known = {RULES[0]: steps, RULES[1]: 1 if target.sliced else steps}
    return [
        Sampled(rule, t, not target.sliced, *(tuple(side[: known[rule]]) for side in total.tolist()))
        for (t, rule), total in sums.items()
        if rule == RULES[0] or not greedy
    ]


class _Run:
    """The target's side of one sample: states, head rows of the draft vocabulary, normalisers.

    Args:
        target: whose head.
        states: [T, Ht], after the final norm.
        needed: int64 [R]: the rows that will be asked for.
        head: float32 [Vd, Ht].
        temperatures: those asked for.
        shift: the reading's.
    """

    def __init__(
        self, target: Target, states: Tensor, needed: Tensor, head: Tensor, temperatures: Sequence[float], shift: int
    ):
        self.target, self.states, self.head, self.shift = target, states.float(), head, shift
        self.normal = {t: torch.full((len(states),), float("-inf")) for t in temperatures}  # log Σ exp(logit / T), [T]
        for tokens in target.token_ids.split(HEAD_ROWS):
            block = target.head(tokens).float()  # [n, Ht]
            for at in needed.split(max(1, BYTES // (4 * len(tokens)))):
                logits = _shaped(target, self.states[at] @ block.T)
                for t, normal in self.normal.items():
                    normal[at] = torch.logaddexp(normal[at], (logits / t).logsumexp(-1))

    def of(self, rows: Tensor, drafts: Tensor, temperature: float) -> Tensor:
        """Probability of one draft id a row, [r]: that of the token after the one that row + shift holds."""
        at = rows + self.shift
        raw = _shaped(self.target, (self.states[at] * self.head[drafts.clamp(min=0)]).sum(-1))
        return (raw / temperature - self.normal[temperature][at]).exp() * (drafts >= 0)

    def whole(self, rows: Tensor, temperature: float) -> Tensor:
        """The same for the draft vocabulary, [r, Vd]."""
        at = rows + self.shift
        raw = _shaped(self.target, self.states[at] @ self.head.T)
        return (raw / temperature - self.normal[temperature][at, None]).exp()


def _add(total: Tensor, k: int, weights: Tensor, rows: Tensor, chance: Tensor, onward: Tensor) -> None:
    """Adds rows at position k, and hands on the chance to be at the next with the recorded prefix."""
    total[0, k] += weights[rows].sum()
    total[1, k] += (weights[rows] * chance.double().clamp(max=1.0)).sum()
    weights[rows] *= onward.double()


def _shaped(target: Target, logits: Tensor) -> Tensor:
    """What some models do to their logits (transformers: Cohere, Granite, Gemma 2)."""
    config = target.config
    logits = logits * (float(config.get("logit_scale") or 1.0) / float(config.get("logits_scaling") or 1.0))
    cap = config.get("final_logit_softcapping")
    return logits if not cap else float(cap) * (logits / float(cap)).tanh()
