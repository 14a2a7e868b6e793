"""Published numbers turned into each other: what an accuracy would give, what throughputs imply, what breaks even."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3lab.gap.throughput import BELOW, CHECK, cost, length_from_accuracy, rate_from_length


@dataclass(frozen=True)
class Published:
    """What somebody reports of a deployment.

    Attributes:
        accuracy: training's validation accuracy, one figure.
        steps: drafts a round that the report may mean; two where the root may or may not be counted.
        baseline: tokens/s without speculation.
        runs: (name, accept length, tokens/s), in order.
        digits: decimals the accept lengths are given with; their rounding is the only uncertainty known.
    """

    accuracy: float
    steps: tuple[int, ...]
    baseline: float
    runs: tuple[tuple[str, float, float], ...]
    digits: int = 1


STORY = Published(0.747, (5, 6), 90.0, (("first", 1.6, 56.8), ("after the first repair", 1.8, 54.8)))
"""A real case: a target of hidden size 7168 in SGLang, 6 draft tokens. SGLang counts the root among them: 5 drafts."""


@dataclass(frozen=True)
class Line:
    """One statement: what it is, the number in words, and under which assumption it holds."""

    what: str
    number: str
    assumption: str


def worked(case: Published = STORY) -> list[Line]:
    """The arithmetic of a report, line by line.

    - accept length of the accuracy: 1 + Σ_{k=1..K} q^k with the same conditional rate q at every draft;
    - the rate that a measured accept length implies, by the same formula;
    - cost of a round = accept length · baseline / throughput, in plain steps: also the accept length that breaks even;
    - what the accuracy's accept length would give at that cost.
    """
    lines = []
    constant = "the same conditional rate at every draft, bonus token included; accuracy is marginal and teacher-forced"
    for k in case.steps:
        length = length_from_accuracy([case.accuracy] * k)
        lines.append(
            Line(f"accept length that {case.accuracy:.1%} would give, {k} drafts a round", f"{length:.2f}", constant)
        )
    half = 0.5 * 10.0**-case.digits
    for name, length, speed in case.runs:
        found = cost(length, speed, case.baseline)
        low, high = (cost(length + side, speed, case.baseline).round_cost for side in (-half, half))
        behind = "accept length × baseline / throughput; the bracket is the rounding of the accept length alone"
        if high < 1:
            behind = f"{BELOW}: {CHECK}"
        rates = " or ".join(f"{rate_from_length(length, k):.3f} (K={k})" for k in case.steps)
        lines += [
            Line(f"{name}: conditional rate behind {length:.1f} tokens a round", rates, "the same rate at every draft"),
            Line(f"{name}: speed against none", f"{speed:.1f} / {case.baseline:.1f} = {found.speedup:.2f}×",
                 "same prompts, same load"),
            Line(f"{name}: cost of a round, and the accept length that breaks even",
                 f"{found.round_cost:.2f} plain steps [{low:.2f}, {high:.2f}]",
                 behind),
        ]  # fmt: skip
    lines += _after(case, half)
    return lines


def _after(case: Published, half: float) -> list[Line]:
    costs = [cost(length, speed, case.baseline).round_cost for _, length, speed in case.runs]
    best = length_from_accuracy([case.accuracy] * case.steps[0])
    reach = [best / c for c in costs]
    lines = [Line(
        f"speed if {case.accuracy:.1%} became accept length {best:.2f}",
        " or ".join(f"{r:.2f}× ({r * case.baseline:.0f} tok/s)" for r in reach),
        "at the costs above: an upper estimate",
    )]  # fmt: skip
    if len(costs) > 1:
        (_, before, fast), *_, (_, after, slow) = case.runs
        highest = cost(before + half, fast, case.baseline).round_cost
        lowest = cost(after - half, slow, case.baseline).round_cost
        words = "more than rounding explains: the round itself became dearer" if lowest > highest else "within rounding"
        lines.append(
            Line("cost of a round, from the first run to the last", f"{costs[0]:.2f} → {costs[-1]:.2f}", words)
        )
    return lines
