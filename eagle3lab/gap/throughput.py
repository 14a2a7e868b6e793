"""What a round costs: from measured throughputs to a model of the cost; `tuning` finds the setting that pays most.

A cost is in units of one plain decoding step of the same server under the same load. Draft tokens are counted without
the root: a chain of K steps has K of them (SGLang's ``--speculative-num-draft-tokens`` is one more).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

SLACK = 0.02
"""How far timing noise may bring a round below one plain step, as a share."""

APART = 0.1
"""Share by which the rounds of two runs with one setting may differ before the lab says that they do."""

CHECK = "check seconds and tokens"
"""What to do about a round that no server runs."""

BELOW = "below one plain step, which no server does"
"""What is wrong with a price under 1."""

TREE = "one timed run with a tree (SGLang: --speculative-eagle-topk above 1)"
"""The measurement that tells a draft step from a draft token; for engines that grow trees."""


def length_from_accuracy(accuracy: Sequence[float]) -> float:
    """Accept length (bonus included) if per-step accuracies were conditional rates: 1 + Σ_k Π_{i≤k} acc_i.

    SpecForge's ``simulated_acc_len`` plus one. An estimate: training's accuracies are marginal, and hits go together.
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
        """Whether it branches nowhere and verifies just what its steps draft."""
        return self.topk == 1 and self.draft_tokens == self.steps

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
        contrary: runs of one setting whose rounds cost more than `APART` apart, in words.
        refits: the same law from other choices among the measurements: how far they leave the cost open.
        covers: what `refits` are, in words.
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
    contrary: tuple[str, ...] = ()
    refits: tuple[CostModel, ...] = ()
    covers: str = "the cost itself is taken as exact"

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


Point = tuple[Setting, float]


def fit_cost(points: Sequence[Point]) -> CostModel | None:
    """A cost model from measured round costs, one (setting, cost) a run; None without any.

    Three numbers need three settings, a tree among them: on chains steps and draft tokens are the same, so only b + c
    shows (kept as ``b``). With one setting ``a`` is taken as one plain step, and the model says so. Trees alone, where
    they do not give all three numbers, price no chain: what a tree's tokens cost is no price of a step. Runs of one
    setting count one each, and their spread stands in ``refits``.
    """
    usable = [(s, v) for s, v in points if math.isfinite(v) and v > 0]
    if not usable:
        return None
    model, ends, fewer = _fit(usable), list(map(_fit, _ends(usable))), _spared(usable)
    kinds = [f"with the cheapest and the dearest run of each setting timed more than once ({len(ends)} ways)"] * bool(
        ends
    )
    kinds += [f"without each setting that the law can spare ({len(fewer)} ways)"] * bool(fewer)
    words = f"the cost refitted {' and '.join(kinds)}" if kinds else "the cost itself is taken as exact"
    sound = [one for one in (*ends, *fewer) if not one.impossible]
    if left := len(ends) + len(fewer) - len(sound):
        words += f"; {left} of them cost what no server does and are left out"
    return replace(model, contrary=_contrary(usable), refits=tuple(sound), covers=words)


def _fit(points: Sequence[Point]) -> CostModel:
    rows = torch.tensor([[1.0, s.steps, s.draft_tokens] for s, _ in points], dtype=torch.float64)
    costs = torch.tensor([v for _, v in points], dtype=torch.float64)
    kept = torch.tensor([s.chain for s, _ in points])  # of trees a step's price would hold their tokens' too
    distinct = len({s for s, _ in points})
    if _rank(rows) == 3:
        (a, b, c), noise = _solve(rows, costs)
        return _judged(CostModel(a, b, c, settings=distinct, worst=_worst(rows, costs, (a, b, c))), points, noise)
    apart = "b and c apart: every setting was a chain, where steps and draft tokens are the same; b stands for both"
    if not kept.all():
        apart = "b and c apart: the trees timed lie on one line with the chains; b stands for both on a chain"
    if _rank(rows[kept]) == 2:
        (a, b), noise = _solve(rows[kept][:, :2], costs[kept])
        worst = _worst(rows[kept], costs[kept], (a, b, 0.0))
        return _judged(CostModel(a, b, 0.0, (), (apart,), (TREE,), distinct, worst, trees=False), points, noise)
    if not kept.any():
        only = "b and c: only trees were timed, so a step's price holds their tokens' too, and no chain can be priced"
        asks = ("two timed runs with chains (SGLang: --speculative-eagle-topk 1) of different K",)
        model = CostModel(1.0, math.nan, math.nan, (), (only,), asks, distinct, trees=False, chains=False)
        return _judged(model, points)
    longest = max(s.steps for s, _ in points)
    other = f"a timed run with another K, e.g. {max(longest - 2, 1) if longest > 1 else longest + 2}"
    b = float(((costs - 1) / rows[:, 1].clamp(min=1))[kept].mean())
    few = f"a and b: {distinct} setting{'s' * (distinct != 1)} of 3 timed"
    if _rank(rows) == 2:
        few = "a, b and c: the settings timed lie on one line"
    return _judged(CostModel(
        1.0, b, 0.0, ("a = 1: a round without drafts is taken to cost one plain step",),
        (few, apart) if kept.all() else (few,), (other, TREE), distinct,
        _worst(rows[kept], costs[kept], (1.0, b, 0.0)), trees=False,
    ), points)  # fmt: skip


def _rank(rows: Tensor) -> int:
    return int(torch.linalg.matrix_rank(rows)) if len(rows) else 0


def _solve(rows: Tensor, costs: Tensor) -> tuple[list[float], float]:
    """Least squares, and how far timing noise of `SLACK` in every cost can move the first number."""
    inverse = torch.linalg.pinv(rows)
    return (inverse @ costs).tolist(), float(SLACK * (inverse[0].abs() * costs).sum())


def _worst(rows: Tensor, costs: Tensor, model: tuple[float, float, float]) -> float:
    return float((rows @ torch.tensor(model, dtype=torch.float64) - costs).abs().max())


def _judged(model: CostModel, points: Sequence[Point], noise: float = 0.0) -> CostModel:
    """The model with what no server does: a round below one plain step, drafted or not, a price below 0."""
    cheap = [f"{s.words}: {v:.2f}" for s, v in points if v < 1 - SLACK]
    out = []
    if cheap:
        out.append(f"a measured round costs ({'; '.join(cheap)}) {BELOW}: {CHECK}")
    near = f"timing noise of {SLACK:.0%} explains {max(noise, SLACK):.2f}"
    if 0 <= model.a < 1 - max(noise, SLACK):
        out.append(f"a = {model.a:.2f}: a round without drafts would cost less than one plain step, which none does "
                   f"({near}): the runs were timed under different loads, or too briefly: {CHECK}")  # fmt: skip
    elif 0 <= model.a < 1 - SLACK:
        model = replace(model, missing=(*model.missing, f"a = {model.a:.2f} to better than noise: below 1, but {near}"))
    prices = (("a", model.a), ("b", model.b), ("c", model.c))
    if wrong := [f"{name} = {value:.2f}" for name, value in prices if value < -1e-9]:
        words = "below 0, which no server costs: the runs were timed under different loads, or too briefly"
        out.append(f"{' and '.join(wrong)} {words}: {CHECK}")
    return replace(model, missing=(*model.missing, *out), impossible=tuple(out))


def _by_setting(points: Sequence[Point]) -> dict[Setting, list[float]]:
    found: dict[Setting, list[float]] = {}
    for setting, price in points:
        found.setdefault(setting, []).append(price)
    return found


def _contrary(points: Sequence[Point]) -> tuple[str, ...]:
    """Settings whose runs differ by more than `APART`."""
    return tuple(
        f"{len(prices)} runs with {setting.words} cost {min(prices):.2f} to {max(prices):.2f} plain steps a round, "
        f"{max(prices) / min(prices) - 1:.0%} apart, though one setting has one cost"
        for setting, prices in _by_setting(points).items()
        if max(prices) > (1 + APART) * min(prices)
    )


_WIDEST = 5
"""Settings whose cheapest and dearest runs are taken in every combination: those that differ most."""


def _ends(points: Sequence[Point]) -> Iterator[list[Point]]:
    """The measurements with one run of each setting that was timed more than once: the cheapest or the dearest."""
    ends = {s: (min(v), max(v)) for s, v in _by_setting(points).items() if max(v) > min(v)}
    widest = sorted(ends, key=lambda s: ends[s][0] / ends[s][1])[:_WIDEST]
    for chosen in product(*(ends[s] for s in widest)) if widest else ():
        yield [(s, v) for s, v in points if s not in widest] + list(zip(widest, chosen, strict=True))


def _spared(points: Sequence[Point]) -> list[CostModel]:
    """The same law without one setting, for each that it can do without."""
    whole, out = _fit(points), []
    for setting in _by_setting(points):
        some = [(s, v) for s, v in points if s != setting]
        one = _fit(some) if some else None
        if one and (one.trees, one.chains, one.assumed) == (whole.trees, whole.chains, whole.assumed):
            out.append(one)
    return out
