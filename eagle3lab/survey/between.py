"""Boundaries of one sample against each other: rows of one position share their residual, and are closest at lag 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from eagle3lab.records import Sample
from eagle3lab.stats import best_step, cosine
from eagle3lab.survey.alignment import LAGS, LEAST
from eagle3lab.survey.found import Odd, Survey
from eagle3lab.survey.repeated import mostly

ROWS = 4096
"""Rows from a sample's start that are compared with each other."""

LAG_ROWS = 256
"""Of these, the rows on which two boundaries are moved against each other."""

STRANGE = 0.25
"""Centred cosine of neighbours below which a lag is looked for."""

FOUND, CLEAR = 0.2, 2.5
"""Centred cosine from which a lag counts as found, and how many times that of every other lag it must be."""

BACK, APART, SPAN = -0.45, 0.3, 8
"""Cosine of a boundary's increment with the next in a strange span, that much below the other rows', and its rows."""

Pair = tuple[int, int]


def between(out: Survey, sample: Sample) -> None:
    """Compares the boundaries of ``sample``, 0 left out: its evidence is the tokens' embedding."""
    states = {b: _centred(_rows(sample, b)) for b in sample.boundaries if b > 0 and _sound(out, sample, b)}
    if len(states) < 2:
        return
    if len(next(iter(states.values()))) < LEAST:
        out.short.append(sample.name)
        return
    held = list(states)
    near = {pair: _near(out, sample.name, states, pair) for pair in zip(held, held[1:], strict=False)}
    lags = {pair: out.apart[sample.name, pair][0] for pair in near if (sample.name, pair) in out.apart}
    late = displaced(held, near, lags)
    for b, lag in late.items():
        out.odd[sample.name, b] = Odd("late", lag, _neighbours(held, b), _at(out, sample.name, held, b))
    if not late:
        out.odd |= {(sample.name, b): odd for b, odd in _strange(states, near, lags).items()}
    every = [b for b in sample.boundaries if b == 0 or b in states]
    for low, b, high in zip(every, every[1:], every[2:], strict=False):
        around = (_rows(sample, low), _rows(sample, b), _rows(sample, high))
        if (sample.name, b) not in out.odd and (odd := _span(*around, (low, high))):
            out.odd[sample.name, b] = odd


def _sound(out: Survey, sample: Sample, b: int) -> bool:
    nan, inf, zero = out.bad_rows[sample.name, b]
    return not nan and not inf and zero <= 1 and not mostly(out, sample, b)


def _rows(sample: Sample, b: int) -> Tensor:
    """Rows of a boundary; the first one, an attention sink, is left out."""
    return sample.states[b][1 : ROWS + 1].float()


def _centred(rows: Tensor) -> Tensor:
    """Rows without their mean row."""
    return rows - rows.mean(0)


def _near(out: Survey, name: str, states: Mapping[int, Tensor], pair: Pair) -> float:
    """Writes down what the two share row by row, its strongest step, and the lag at which they share most."""
    first, second = states[pair[0]], states[pair[1]]
    rows = cosine(first, second)
    out.centred[name, pair] = here = float(rows.mean())
    if (step := best_step(rows, LEAST // 2)) is not None:
        out.steps[name, pair] = step
    if here < STRANGE:
        moved = by_lag(first[:LAG_ROWS], second[:LAG_ROWS])
        best = max(sorted(moved, key=abs), key=lambda lag: moved[lag])
        rest = max(abs(v) for lag, v in moved.items() if lag != best)
        if best and moved[best] > FOUND and moved[best] > CLEAR * rest:
            out.apart[name, pair] = (best, moved[best])
    return here


def by_lag(first: Tensor, second: Tensor) -> dict[int, float]:
    """Lag → mean cosine of row r of ``first`` with row r + lag of ``second``."""
    near = torch.nn.functional.normalize(first, dim=-1) @ torch.nn.functional.normalize(second, dim=-1).T  # [R, R]
    return {lag: float(near.diagonal(lag).mean()) for lag in range(-LAGS, LAGS + 1) if abs(lag) < len(near) // 2}


def displaced(held: list[int], near: Mapping[Pair, float], lags: Mapping[Pair, int]) -> dict[int, int]:
    """Boundaries that lie rows away from most others of a sample → by how many rows they are late.

    Row r of a holds what row r + lag of b holds, for lag above 0 b is late: lags along the boundaries add up.
    """
    places, at = {held[0]: 0}, 0
    for pair in zip(held, held[1:], strict=False):
        if pair not in lags and near[pair] < STRANGE:
            continue  # nothing is known of the second one
        at += lags.get(pair, 0)
        places[pair[1]] = at
    common, count = Counter(places.values()).most_common(1)[0]
    return {b: place - common for b, place in places.items() if place != common} if 2 * count > len(places) else {}


def _strange(states: Mapping[int, Tensor], near: Mapping[Pair, float], lags: Mapping[Pair, int]) -> dict[int, Odd]:
    """Boundaries that share nothing with both neighbours, which share something with each other."""
    held, out = list(states), dict[int, Odd]()
    for i, b in enumerate(held):
        beside = [pair for pair in near if b in pair]
        if any(pair in lags or near[pair] > 0.15 for pair in beside):
            continue
        most = max(abs(near[pair]) for pair in beside)
        if len(beside) == 2:
            low, high = held[i - 1], held[i + 1]
            through = float(cosine(states[low], states[high]).mean())
            step = float(cosine(states[b], states[high] - states[low]).mean())
            if through > max(0.15, 3 * most):
                # the increment of a block is a part of what its neighbours differ by
                kind = "increment" if step > 0.25 else "foreign"
                out[b] = Odd(kind, 0, (low, high), through, most)
    return out


def _span(low: Tensor, middle: Tensor, high: Tensor, beside: Pair) -> Odd | None:
    """Rows inside a text in which a boundary holds something that both neighbours lack: what comes in goes out again.

    Rows up to an end of the text are another thing, see `Survey.steps`.
    """
    coming, going = middle - low, high - middle
    centres = ((0.0, 0.0), (coming.median(0).values, going.median(0).values))
    for one, other in centres:  # what blocks add everywhere may hide it; a long span is in the median itself
        back = cosine(coming - one, going - other)  # near 0 in a stream, towards -1 where the middle one is elsewhere
        first, end = _lowest(back)
        inside, rest = back[first:end], torch.cat([back[:first], back[end:]])
        if len(inside) < SPAN or first < 2 or end > len(back) - 2 or len(rest) < SPAN:
            continue
        here, there = float(inside.mean()), float(rest.mean())
        through = cosine(
            low, high
        )  # what both neighbours share, they share there too: else one of them is the strange one
        alike = through[first:end].mean() > torch.cat([through[:first], through[end:]]).mean() - APART / 2
        if here < BACK and there - here > APART and alike:  # the first row was left out, so that place r is row r + 1
            return Odd("span", 0, beside, here, there, (first + 1, end))
    return None


def _lowest(values: Tensor) -> tuple[int, int]:
    """Start and end of the stretch that lies furthest below the middle of all values."""
    middle = values.quantile(torch.tensor([0.1, 0.9])).mean()
    total = torch.cat([torch.zeros(1), (middle - values).cumsum(0)])
    lowest, at = torch.cummin(total, 0)
    end = int((total - lowest).argmax())
    return int(at[end]), end


def _neighbours(held: list[int], b: int) -> tuple[int, ...]:
    i = held.index(b)
    return tuple(held[j] for j in (i - 1, i + 1) if 0 <= j < len(held))


def _at(out: Survey, name: str, held: list[int], b: int) -> float:
    """The cosine with a neighbour at the lag, the best of both."""
    pairs = [(min(b, c), max(b, c)) for c in _neighbours(held, b)]
    return max((out.apart[name, pair][1] for pair in pairs if (name, pair) in out.apart), default=0.0)
