"""What a round costs: from measured throughputs to a model of the cost, and to the setting that pays most.

A cost is in units of one plain decoding step of the same server under the same load. Draft tokens are counted without
the root: a chain of K steps has K of them (SGLang's ``--speculative-num-draft-tokens`` is one more).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3lab.records import Interval

SLACK = 0.02
"""How far timing noise may bring a round below one plain step."""

CHECK = "check seconds and tokens"
"""What to do about a round that no server runs."""


def length_from_accuracy(accuracy: Sequence[float]) -> float:
    """Accept length (bonus included) if per-step accuracies were conditional rates: 1 + Σ_k Π_{i≤k} acc_i.

    SpecForge's ``simulated_acc_len`` plus one. Upper-biased: training's accuracies are marginal.
    """
    return 1 + sum(math.prod(accuracy[: k + 1]) for k in range(len(accuracy)))


def rate_from_length(accept_length: float, steps: int) -> float:
    """The constant conditional rate q with 1 + Σ_{k=1..K} q^k = ``accept_length``; NaN outside 1 … K+1."""
    if not 1 <= accept_length <= steps + 1:
        return float("nan")
    low, high = 0.0, 1.0
    for _ in range(60):  # the sum grows with q, so halving finds it to the last bit
        middle = (low + high) / 2
        low, high = (middle, high) if length_from_accuracy([middle] * steps) < accept_length else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Cost:
    """Throughput arithmetic of one run beside a baseline without speculation.

    Attributes:
        accept_length: tokens a round.
        speedup: tokens/s of the run over the baseline's.
        round_cost: cost of a round in plain decoding steps: accept length / speedup. It is also the accept length
            that breaks even.
    """

    accept_length: float
    speedup: float
    round_cost: float


def cost(accept_length: float, tokens_per_second: float, baseline: float) -> Cost:
    """Cost of a round from two throughputs (same prompts, same concurrency)."""
    speedup = tokens_per_second / baseline  # above the accept length a round would be cheaper than a plain step
    return Cost(accept_length, speedup, accept_length / speedup)


@dataclass(frozen=True)
class Setting:
    """How much is drafted a round.

    Attributes:
        steps: K, draft steps (levels of a tree).
        topk: branches a node; 1 is a chain.
        draft_tokens: drafts verified a round, root not counted; K for a chain.
    """

    steps: int
    topk: int = 1
    draft_tokens: int = 0

    def __post_init__(self) -> None:
        """A chain verifies what it drafts."""
        if not self.draft_tokens:
            object.__setattr__(self, "draft_tokens", self.steps)

    @property
    def chain(self) -> bool:
        """Whether it verifies just what its steps draft."""
        return self.draft_tokens == self.steps

    @property
    def words(self) -> str:
        """``K=5``, of a tree what it branches into and verifies too."""
        branches = f", topk {self.topk}" if self.topk > 1 else ""
        return f"K={self.steps}{branches}" + ("" if self.chain else f", {self.draft_tokens} draft tokens")


@dataclass(frozen=True)
class CostModel:
    """Round cost = a + b · steps + c · draft tokens, in plain decoding steps.

    Attributes:
        a: what a round costs before anything is drafted.
        b: a draft step.
        c: a draft token verified.
        assumed: what was taken and not measured, in words.
        missing: what the measurements do not tell apart, in words.
        asks: which further measurement would, in words.
        settings: settings behind it.
        worst: largest deviation of a measured round cost from the model.
        trees: whether the cost of a tree can be told (b and c apart).
        chains: whether the cost of a chain can be told.
        impossible: what no server does, in words; nothing is recommended then.
    """

    a: float
    b: float
    c: float
    assumed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    settings: int = 0
    worst: float = 0.0
    trees: bool = True
    chains: bool = True
    impossible: tuple[str, ...] = ()

    @property
    def law(self) -> str:
        """The model in words."""
        if not self.chains:
            return "a round's cost is known of the trees that were timed only"
        tokens = f" + {self.c:.3f} · draft tokens" if self.trees else ""
        return f"a round costs {self.a:.2f} + {self.b:.3f} · K{tokens}"

    def round_cost(self, setting: Setting) -> float:
        """Cost of a round under ``setting``; NaN where b and c are not told apart and ``setting`` needs them so."""
        if not (self.chains if setting.chain else self.trees):
            return float("nan")
        return self.a + self.b * setting.steps + self.c * setting.draft_tokens


def fit_cost(points: Sequence[tuple[Setting, float]]) -> CostModel | None:
    """A cost model from measured round costs, one (setting, cost) a run; None without any.

    Three numbers need three settings, a tree among them: on chains steps and draft tokens are the same, so only b + c
    shows (kept as ``b``). With one setting ``a`` is taken as one plain step, and the model says so. Trees alone, where
    they do not give all three numbers, price no chain: what a tree's tokens cost is no price of a step.
    """
    usable = [(s, v) for s, v in points if math.isfinite(v) and v > 0]
    if not usable:
        return None
    rows = torch.tensor([[1.0, s.steps, s.draft_tokens] for s, _ in usable], dtype=torch.float64)
    costs = torch.tensor([v for _, v in usable], dtype=torch.float64)
    chain = [s.chain for s, _ in usable]
    distinct = len({(s.steps, s.draft_tokens) for s, _ in usable})
    rank = int(torch.linalg.matrix_rank(rows))
    if rank == 3:
        a, b, c = _solve(rows, costs)
        return _judged(CostModel(a, b, c, settings=distinct, worst=_worst(rows, costs, (a, b, c))), usable)
    apart = "b and c apart: every setting was a chain, where steps and draft tokens are the same; b stands for both"
    tree = "one timed run with a tree (SGLang: --speculative-eagle-topk above 1)"
    if rank == 2 and all(chain):
        a, b = _solve(rows[:, :2], costs)
        worst = _worst(rows, costs, (a, b, 0.0))
        return _judged(CostModel(a, b, 0.0, (), (apart,), (tree,), distinct, worst, trees=False), usable)
    if not any(chain):
        only = "b and c: only trees were timed, so a step's price holds their tokens' too, and no chain can be priced"
        asks = ("two timed runs with chains (SGLang: --speculative-eagle-topk 1) of different K",)
        model = CostModel(1.0, math.nan, math.nan, (), (only,), asks, distinct, trees=False, chains=False)
        return _judged(model, usable)
    longest = max(s.steps for s, _ in usable)
    other = f"a timed run with another K, e.g. {max(longest - 2, 1) if longest > 1 else longest + 2}"
    kept = torch.tensor(chain)  # of trees a step's price would hold their tokens' too
    b = float(((costs - 1) / rows[:, 1].clamp(min=1))[kept].mean())
    few = f"a and b: {distinct} setting{'s' * (distinct != 1)} of 3 timed"
    if rank == 2:
        few = "a, b and c: the settings timed lie on one line"
    return _judged(CostModel(
        1.0, b, 0.0, ("a = 1: a round without drafts is taken to cost one plain step",),
        (few, apart) if all(chain) else (few,), (other, tree), distinct,
        _worst(rows[kept], costs[kept], (1.0, b, 0.0)), trees=False,
    ), usable)  # fmt: skip


def _solve(rows: Tensor, costs: Tensor) -> list[float]:
    return [float(x) for x in torch.linalg.lstsq(rows, costs[:, None]).solution[:, 0]]


def _worst(rows: Tensor, costs: Tensor, model: tuple[float, float, float]) -> float:
    return float((rows @ torch.tensor(model, dtype=torch.float64) - costs).abs().max())


def _judged(model: CostModel, points: Sequence[tuple[Setting, float]]) -> CostModel:
    """The model with what no server does: a round below one plain step, a price below 0."""
    cheap = [f"{s.words}: {v:.2f}" for s, v in points if v < 1 - SLACK]
    out = []
    if cheap:
        out.append(f"a measured round costs ({'; '.join(cheap)}) below one plain step, which no server does: {CHECK}")
    prices = (("a", model.a), ("b", model.b), ("c", model.c))
    if wrong := [f"{name} = {value:.2f}" for name, value in prices if value < -1e-9]:
        words = "below 0, which no server costs: the runs were timed under different loads, or too briefly"
        out.append(f"{' and '.join(wrong)} {words}: {CHECK}")
    return replace(model, missing=(*model.missing, *out), impossible=tuple(out))


@dataclass(frozen=True)
class Tuned:
    """One setting's expected throughput.

    Attributes:
        setting: the setting.
        accept_length: on the recording; of a tree by SGLang's rules.
        round_cost: by the model, NaN where it cannot tell.
        speedup: over no speculation, with the interval that the recording's acceptance gives it.
    """

    setting: Setting
    accept_length: float
    round_cost: float
    speedup: Interval


@dataclass(frozen=True)
class Tuning:
    """All settings tried, and the best.

    Attributes:
        rows: every setting, in the order given.
        best: the setting with the highest speed-up, None when no cost is known, or none that can be.
        chosen: share of the draws in which it was the best; NaN when nothing was drawn.
    """

    rows: tuple[Tuned, ...]
    best: Tuned | None
    chosen: float = float("nan")


def tune(
    model: CostModel,
    lengths: Mapping[Setting, tuple[float, Tensor]],
    n: int = 0,
    method: str = "",
    *,
    chains_only: bool = False,
) -> Tuning:
    """Speed-up of each setting: accept length / round cost, and the best of them.

    Args:
        model: what a round costs.
        lengths: setting → accept length on the recording, and the same in every draw of samples [D] (empty: no draws).
        n: rounds behind the lengths, said with the interval.
        method: how the draws were made, in words.
        chains_only: the engine grows no trees: none is called best.
    """
    rows, drawn = [], []
    for setting, (length, draws) in lengths.items():
        price = model.round_cost(setting)
        spread = draws.double() / price
        low, high = spread.quantile(torch.tensor([0.025, 0.975]).double()).tolist() if len(draws) else (math.nan,) * 2
        words = f"{method}; the cost itself is taken as exact"
        rows.append(Tuned(setting, length, price, Interval(length / price, low, high, n, words)))
        drawn.append(spread)
    known = [i for i, row in enumerate(rows) if math.isfinite(row.speedup.value)]
    known = [i for i in known if rows[i].setting.topk == 1 or not chains_only]
    known = [i for i in known if rows[i].round_cost >= 1 - SLACK]  # no server runs a round in less than a plain step
    if not known or model.impossible:
        return Tuning(tuple(rows), None)
    best = max(known, key=lambda i: rows[i].speedup.value)
    share = float("nan")
    if all(len(drawn[i]) for i in known):
        top = torch.stack([drawn[i] for i in known]).argmax(0)  # [D]
        share = float((top == known.index(best)).double().mean())
    return Tuning(tuple(rows), rows[best], share)
