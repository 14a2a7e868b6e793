"""From training's figure to the engine's, one cause after another: bars that add up to the whole difference.

Every level is an accept length, and every bar the difference of two neighbouring levels, in this order:

1. bonus: the target's own token of each round is counted;
2. chain: a draft counts only when all before it were right (Π of training's accuracies, as if conditional);
3. vocab: tokens outside the draft vocabulary become misses, where training left them out;
4. texts: training's accuracies give way to the fitted reading's own on the recorded texts;
5. walk: the joint rate at the positions an engine visits takes the place of the product of marginals over all rows;
6. one bar a field in which the run's reading differs from the fitted one, the wiring first;
7. self-fed: the draft reads its own drafts and not the recorded tokens;
8. K: the run's number of drafts takes the place of training's;
9. tree: the run's tree takes the place of the chain, where it drafts one;
10. rest: what the engine measured beyond all of this.

From 5 on both ends of a bar are counted on the same positions, and its interval is paired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from eagle3lab.acceptance import Evaluation
from eagle3lab.counts import Counts
from eagle3lab.errors import BadShape, Blocked
from eagle3lab.gap.levels import Bar, Measured, Waterfall, path
from eagle3lab.gap.resample import Draws
from eagle3lab.gap.throughput import length_from_accuracy
from eagle3lab.reading import Reading
from eagle3lab.records import Interval

PAIRED = "paired by request"
"""How an interval was drawn whose two sides are the same requests."""

Evaluate = Callable[[Reading, int], Evaluation]


class _Builder:
    """Collects bars; every bar starts at the level where the one before ended."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []
        self.missing: list[str] = []
        self.level = math.nan

    def add(
        self, kind: str, name: str, end: float, sentence: str, change: Interval | None = None, why: str = ""
    ) -> None:
        """``why`` says why there is no interval, where ``change`` is None."""
        found = change or Interval(end - self.level, math.nan, math.nan, 0, why)
        self.bars.append(Bar(kind, name, self.level, end, found, sentence))
        self.level = end


def waterfall(
    *,
    accuracy: Sequence[float],
    steps: int,
    fitted: Reading,
    served: Reading | None,
    evaluate: Evaluate,
    self_fed: Evaluate | None = None,
    tree: tuple[str, Evaluation] | None = None,
    measured: Measured | None = None,
    left_out: bool | None = None,
    why_not_served: str = "",
    why_not_measured: str = "",
) -> Waterfall:
    """Takes the difference between training's figure and the engine's apart.

    Args:
        accuracy: training's accuracy per step, () when the case says none (the bars then begin with the fitted
            reading), a single number for all steps (an assumption, said in its bar).
        steps: the run's K; 0 without speculation.
        fitted: the reading that fits.
        served: the run's, None when its engine would not run it.
        evaluate: acceptance under a reading, teacher-forced.
        self_fed: the same fed with its own drafts; None leaves bar 7 out, and says so.
        tree: the run's tree in words, and what it accepts under ``served`` on the same samples; None for a chain.
        measured: the engine's number, None when it gave none.
        left_out: whether training left out-of-vocabulary targets out of its accuracies; None when not known.
        why_not_served: why there is no served reading.
        why_not_measured: why a figure that the engine gave is not used.

    Raises:
        Blocked: the fitted reading cannot be evaluated.
    """
    out = _Builder()
    deep = len(accuracy) if len(accuracy) > 1 else max(steps, 1)
    first = evaluate(fitted, deep)
    draws = Draws(list(first.parts))
    begins = f"the fitted reading on the recording, K={deep}"
    if accuracy:
        begins = _training(out, accuracy, deep, first, draws, left_out)
    else:
        out.missing.append("no training accuracy is given: the bars begin with the fitted reading on the recording")
        out.level = first.counts.accept_length
    last = _readings(out, fitted, served, first, draws, evaluate, why_not_served)
    if last is None:
        return Waterfall(tuple(out.bars), begins, "the fitted reading on the recording", tuple(out.missing))
    if self_fed is None:
        out.missing.append("the draft was not run on its own drafts")
    else:
        _self_fed(out, last, self_fed(last.reading, deep), draws)
    if not steps:
        out.add(
            "steps", "no drafts", 1.0, "without speculation every step gives one token", why="one token a step, exactly"
        )
        return Waterfall(tuple(out.bars), begins, "one token a step", tuple(out.missing))
    if steps != deep:
        cut = evaluate(last.reading, steps)
        _paired(out, "steps", f"K {deep} → {steps}", last, cut, draws,
                f"a round offers {steps} drafts, training reported {deep}")  # fmt: skip
        last = cut
    if tree is not None:
        words, grown = tree
        name = f"chain of {steps} → tree"
        more = f"a round's tree offers other tokens beside the best chain: {words}"
        _paired(out, "tree", name, last, grown, draws, more)
        last = grown
    if measured is None:
        why = "the engine gave no accept length"
        if why_not_measured:
            why = f"NOT COMPARABLE with the engine's figure: {why_not_measured}"
        out.missing.append(f"{why}: the last level is the lab's prediction")
        return Waterfall(
            tuple(out.bars),
            begins,
            f"the prediction for this run, K={steps}{', a tree' * (tree is not None)}",
            tuple(out.missing),
        )
    _rest(out, last, measured, draws)
    return Waterfall(tuple(out.bars), begins, f"the engine's own figure ({measured.source})", tuple(out.missing))


def _training(out: _Builder, accuracy: Sequence[float], deep: int, first: Evaluation, draws: Draws,
              left_out: bool | None) -> str:  # fmt: skip
    """Bars 1 to 5: from training's accuracies to the fitted reading's walk."""
    stated = [float(a) for a in (accuracy if len(accuracy) > 1 else list(accuracy) * deep)]
    exact = "arithmetic on training's own figure, whose n is not known"
    same = ", one figure taken for every draft" if len(accuracy) == 1 else ""
    out.level = sum(stated)
    out.add("bonus", "bonus token", 1 + sum(stated), "the target's own token of each round counts too", why=exact)
    product = length_from_accuracy(stated)
    words = "a draft counts only if all before it were right: a product of accuracies, not their sum"
    out.add("chain", "a chain ends at its first miss", product, words, why=exact)
    counts = _counts(first)
    pooled = draws.pooled(counts)
    cover = (pooled.covered / pooled.scored).nan_to_num(1.0)[0]
    inside = length_from_accuracy([a * float(c) for a, c in zip(stated, cover, strict=True)])
    n = int(pooled.scored.sum())
    share = f"{float(cover[0]):.1%} of the recorded tokens are in the draft vocabulary"
    if left_out:
        change = draws.interval(inside - product, n, lambda drawn: _covered(drawn(counts), stated) - product)
        words = f"training left tokens outside the draft vocabulary out; {share}"
        out.add("vocab", "vocabulary ceiling", inside, words, change)  # fmt: skip
    else:
        known = "training already counted tokens outside the draft vocabulary as misses"
        if left_out is None:
            due = f"if it did, {inside - product:+.3f} of the next bar is due to it"
            known = f"not known whether training left tokens outside the draft vocabulary out; {due}"
        out.add("vocab", "vocabulary ceiling", product, f"{known}; {share}", why="nothing to measure")
    marginal = float(pooled.product)
    level = out.level
    change = draws.interval(marginal - level, n, lambda drawn: drawn(counts).product - level,
                            "training's own n is not known, so only the recording is drawn")  # fmt: skip
    now = ", ".join(f"{a:.3f}" for a in first.counts.accuracy)
    out.add("texts", "other texts", marginal,
            f"the fitted reading on the recorded texts has accuracies {now}, training stated "
            + ", ".join(f"{a:.3f}" for a in accuracy), change)  # fmt: skip
    walk = first.counts.accept_length
    change = draws.interval(
        walk - marginal, first.counts.rounds, lambda drawn: drawn(counts).length - drawn(counts).product
    )
    out.add("walk", "the positions an engine visits", walk,
            "counted round by round where an engine begins one; a product of marginal rates is not their joint rate",
            change)  # fmt: skip
    return f"training's accuracies added up, K={deep}{same}"


def _covered(sums: Any, stated: Sequence[float]) -> Any:
    rates = (sums.covered / sums.scored).nan_to_num(1.0)
    return 1 + (rates * rates.new_tensor(stated)).cumprod(-1).sum(-1)


def _readings(out: _Builder, fitted: Reading, served: Reading | None, first: Evaluation, draws: Draws,
              evaluate: Evaluate, why_not: str) -> Evaluation | None:  # fmt: skip
    """Bar 6: field after field from the fitted reading to the run's; None when that one cannot be evaluated."""
    if served is None:
        out.missing.append(f"the run's engine would not run this checkpoint: {why_not or 'it has no reading'}")
        return None
    last, waiting, reason = first, [], ""
    for words, reading in path(fitted, served):
        waiting.append(words)
        try:
            now = evaluate(reading, first.steps)
        except (Blocked, BadShape) as error:  # half-way readings need not fit together: the next field may mend it
            reason = str(error).splitlines()[0]
            continue
        if set(now.parts) != set(first.parts):
            reason = "not every sample can be run under it"
            continue
        names = "; ".join(waiting)
        tells = "" if len(waiting) == 1 else ", which can only be run together"
        _paired(out, "reading", names.replace("aux:", "wiring"), last, now, draws,
                f"from the fitted reading to this run's: {names}{tells}")  # fmt: skip
        last, waiting = now, []
    if waiting:
        out.missing.append(f"the run's reading cannot be evaluated here ({'; '.join(waiting)}): {reason}")
        return None
    if served == fitted:
        out.add(
            "reading", "reading", out.level, "the run reads the draft as it fits", why="the two readings are the same"
        )
    return last


def _self_fed(out: _Builder, last: Evaluation, own: Evaluation, draws: Draws) -> None:
    if set(own.parts) != set(draws.names):
        out.missing.append("the draft could not be run on its own drafts on every sample")
        return
    equal = sum(
        a == b for name in draws.names for a, b in zip(last.parts[name].rounds, own.parts[name].rounds, strict=False)
    )
    k = last.steps - 1
    _paired(out, "self-fed", "fed its own drafts", last, own, draws,
            f"{equal} of {last.counts.rounds} rounds are equal: a chain is kept only while it is right, and so far has "
            f"read the recorded tokens; past a miss accuracy at draft {k + 1} goes from {last.counts.accuracy[k]:.3f} "
            f"to {own.counts.accuracy[k]:.3f}, which nothing counts")  # fmt: skip


def _paired(
    out: _Builder, kind: str, name: str, before: Evaluation, after: Evaluation, draws: Draws, sentence: str
) -> None:
    a, b = _counts(before), _counts(after)
    value = after.counts.accept_length - before.counts.accept_length
    change = draws.interval(value, after.counts.rounds, lambda drawn: drawn(b).length - drawn(a).length, "paired")
    out.add(kind, name, after.counts.accept_length, sentence, change)


def _rest(out: _Builder, last: Evaluation, measured: Measured, draws: Draws) -> None:
    past = f"; drafts accepted past a request's end, which a recording cannot show, add at most {measured.extra:.3f}"
    rounds = f"{measured.rounds} rounds" if measured.rounds else "a printed mean, its rounds not said"
    sentence = f"what the engine measured beyond the prediction for its own reading ({rounds})" + (
        past if measured.extra else "")  # fmt: skip
    out.add("rest", "left for the engine", measured.length, sentence, beyond(last, measured, draws))


def beyond(predicted: Evaluation, measured: Measured, draws: Draws) -> Interval:
    """The engine's accept length less the prediction; paired by request where the engine gave them one by one."""
    value, mine = measured.length - predicted.counts.accept_length, _counts(predicted)
    if set(measured.by_sample) >= set(draws.names):
        steps = predicted.steps
        none = (0,) * steps
        theirs = {name: Counts(steps, none, none, none, none, *measured.by_sample[name], none, (0,) * (steps + 1))
                  for name in draws.names}  # fmt: skip
        return draws.interval(value, measured.rounds, lambda drawn: drawn(theirs).length - drawn(mine).length, PAIRED)
    return draws.interval(value, measured.rounds, lambda drawn: measured.length - drawn(mine).length,
                          "the engine gave totals or other texts, so only the lab's side is drawn")  # fmt: skip


def _counts(found: Evaluation) -> dict[str, Counts]:
    return {name: part.counts for name, part in found.parts.items()}
