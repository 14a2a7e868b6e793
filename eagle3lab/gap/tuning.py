"""Which setting pays most: accept lengths on the recording over what a round costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.gap.throughput import BELOW, SLACK, CostModel, Setting
from eagle3lab.records import Interval


@dataclass(frozen=True)
class Tuned:
    """One setting's expected throughput.

    Attributes:
        setting: the setting.
        accept_length: on the recording; of a tree by SGLang's rules.
        round_cost: by the model, NaN where it cannot tell.
        speedup: over no speculation, with the interval that the recording's acceptance and the cost's spread give it;
            NaN where ``round_cost`` is none that a server has.
        why: why there is no speed-up, "" where there is one or the cost is not known.
    """

    setting: Setting
    accept_length: float
    round_cost: float
    speedup: Interval
    why: str = ""


@dataclass(frozen=True)
class Tuning:
    """All settings tried, and the best.

    Attributes:
        rows: every setting, in the order given.
        best: the setting with the highest speed-up, None when no cost is known, or none that can be.
        chosen: share of the draws, at every fit of the cost, in which it was the best; NaN when nothing was drawn.
        draws: draws of samples, 0 where there were too few to draw.
        fits: fits of the cost.
    """

    rows: tuple[Tuned, ...]
    best: Tuned | None
    chosen: float = float("nan")
    draws: int = 0
    fits: int = 1

    @property
    def sure(self) -> str:
        """How often the best was the best, in words; "" when nothing was drawn."""
        if math.isnan(self.chosen):
            return ""
        fits = f"{self.fits} fits of the cost"
        if not self.draws:
            return f"best in {self.chosen:.0%} of the {fits}"
        return f"best in {self.chosen:.0%} of the draws of samples" + (f" at {fits}" if self.fits > 1 else "")


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
        model: what a round costs, with its refits.
        lengths: setting → accept length on the recording, and the same in every draw of samples [D] (empty: no draws).
        n: rounds behind the lengths, said with the interval.
        method: how the draws were made, in words.
        chains_only: the engine grows no trees: none is called best.
    """
    fits = (model, *model.refits)
    draws = min((len(drawn) for _, drawn in lengths.values()), default=0)
    words = (
        f"{method}; {model.covers}" if draws or len(fits) == 1 else f"{model.covers}, samples are not drawn: {method}"
    )
    rows, spread = [], []
    for setting, (length, drawn) in lengths.items():
        price = model.round_cost(setting)
        why = f"its cost, {price:.2f}, is {BELOW}" if price < 1 - SLACK else ""
        if model.impossible:
            why = model.impossible[0]
        prices = torch.tensor([fit.round_cost(setting) for fit in fits], dtype=torch.float64)  # [R]
        prices[(prices < 1 - SLACK) | bool(why)] = math.nan
        values = drawn.double() if draws else torch.tensor([length], dtype=torch.float64)
        found = values / prices[:, None]  # [R, D]
        spread.append(found)
        low, high = _ends(found) if draws or len(fits) > 1 else (math.nan, math.nan)
        rows.append(Tuned(setting, length, price, Interval(length / float(prices[0]), low, high, n, words), why))
    known = [i for i, row in enumerate(rows) if math.isfinite(row.speedup.value)]
    known = [i for i in known if rows[i].setting.topk == 1 or not chains_only]
    if not known:
        return Tuning(tuple(rows), None)
    best = max(known, key=lambda i: rows[i].speedup.value)
    share = float("nan")
    if draws or len(fits) > 1:
        all_of = torch.stack([spread[i] for i in known])  # [S, R, D]
        priced = all_of.isfinite().any(0)
        share = float((all_of.nan_to_num(nan=-1.0).argmax(0) == known.index(best))[priced].double().mean())
    return Tuning(tuple(rows), rows[best], share, draws, len(fits))


def _ends(found: Tensor) -> tuple[float, float]:
    """The 95 % interval of the draws at each fit of the cost, from the lowest end to the highest; [R, D]."""
    found = found[found.isfinite().all(1)]
    if not len(found):
        return math.nan, math.nan
    low, high = found.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=1)
    return float(low.min()), float(high.max())
