"""Pictures of the gap between what the lab predicts and what an engine measured, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter

from eagle3lab.plots.picture import (
    ENGINE,
    FAINT,
    LINE,
    OTHER,
    PREDICTED,
    SOFT,
    Picture,
    beside,
    drawn,
    key,
    known,
    label,
    listing,
    new,
    note,
    nothing,
    number,
    rows_of,
    show,
)


@drawn
def engine_beside_prediction(rows: Sequence[Mapping[str, Any]], *, limit: int = 30) -> Picture:
    """Accept length of each serving run: what the engine measured beside what the lab predicts for it.

    Args:
        rows: ``name``, ``measured`` (None when the engine said nothing that can be used), ``predicted``, ``low``,
            ``high`` (its interval), ``k``, ``why`` (why a figure of the engine's is not used, or with what to take it).
        limit: runs shown at most.
    """
    if not rows:
        return nothing("The case names no serving run, so there is nothing to compare.")
    shown = list(rows)[:limit]
    figure = new(1.2 + 0.34 * max(len(shown), 2))
    axes = figure.add_subplot()
    y = np.arange(len(shown))
    predicted, measured = ([number(row.get(kind)) for row in shown] for kind in ("predicted", "measured"))
    axes.hlines(y, predicted, measured, color=LINE, lw=2.4)
    for place, row in enumerate(shown):
        low, high = number(row.get("low")), number(row.get("high"))
        if known(low) and known(high):
            axes.plot([low, high], [place, place], color=PREDICTED, lw=1.4, solid_capstyle="butt")
            for end in (low, high):
                axes.plot([end, end], [place - 0.12, place + 0.12], color=PREDICTED, lw=1.2)
        text = ", ".join(
            f"{show(row.get(w))} {w}" if known(row.get(w)) else _not(row, w) for w in ("measured", "predicted")
        )
        beside(axes, place, text)
    axes.plot(predicted, y, "^", color=PREDICTED, label="predicted by the lab, with interval", ms=6.5)
    axes.plot(measured, y, "s", color=ENGINE, mfc="none", mew=1.3, ms=9, label="measured by the engine")
    rows_of(axes, [f"{label(row['name'], 30)}   K = {row.get('k', '?')}" for row in shown])
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, 0.95), max(right, 1.5))
    axes.axvline(1, color=FAINT, lw=0.8)
    axes.set_xlabel("accept length (tokens a round, bonus included; 1 = nothing accepted)")
    axes.set_title("Engine beside prediction", pad=26)
    key(axes)
    said = [
        (str(r["name"]), f"{show(r.get('measured'))} measured, {show(r.get('predicted'))} predicted"
         + (f" ({r['why']})" if r.get("why") else "")) for r in shown
    ]  # fmt: skip
    return Picture(figure, f"Accept length by serving run: {'; '.join(f'{a}: {b}' for a, b in said)}.")


def _not(row: Mapping[str, Any], what: str) -> str:
    """Why a mark is missing, in a word or two; the table beside it says it in full."""
    return "engine's figure not used" if what == "measured" and row.get("why") else f"not {what}"


@drawn
def throughput(*, baseline: float, points: Sequence[Mapping[str, Any]], round_cost: float) -> Picture:
    """Speed-up against accept length: the line the cost of a round allows, where it breaks even, what was measured.

    Args:
        baseline: tokens/s without speculation.
        points: ``name``, ``accept_length``, ``tokens_per_second``, ``reserved`` (what a point is to be taken with).
        round_cost: time of a round in units of one plain decoding step; speed-up = accept length / round_cost.
    """
    measured = [p for p in points if known(p.get("accept_length")) and known(p.get("tokens_per_second"))]
    if not known(baseline) or number(baseline) <= 0 or not known(round_cost) or number(round_cost) <= 0:
        return nothing("Throughput without speculation or the cost of a round is unknown, so speed-up cannot be drawn.")
    figure = new(3.9)
    axes = figure.add_subplot()
    longest = max([round_cost * 1.35, 2.0, *(number(p["accept_length"]) * 1.32 for p in measured)])
    line = np.array([1.0, longest])
    axes.plot(line, line / round_cost, color=OTHER, lw=1.6)
    fastest = max([longest / round_cost, 1.1, *(number(p["tokens_per_second"]) / baseline * 1.1 for p in measured)])
    axes.axhline(1, color=FAINT, lw=0.9, ls=(0, (4, 3)))
    note(axes, f"no speculation: {baseline:,.1f} tok/s", (1, 1), (2, 4))
    axes.plot([round_cost, round_cost], [0, 1], color=FAINT, lw=0.9, ls=(0, (4, 3)))
    axes.plot([round_cost], [1], "D", color="white", mec=SOFT, mew=1.3, ms=6, zorder=4)
    note(axes, f"breaks even at {round_cost:.2f}", (round_cost, 0), (5, 6))
    for point in measured:
        x, y = number(point["accept_length"]), number(point["tokens_per_second"]) / baseline
        axes.plot([x], [y], "s", color=ENGINE, ms=7, zorder=5)
        text = f"{label(point['name'], 30)}\n{show(x, 2)} tokens a round, {y * baseline:,.1f} tok/s"
        text += f"\n{label(point['reserved'], 60)}" if point.get("reserved") else ""
        paper = {"fc": "white", "ec": "none", "pad": 1.5, "alpha": 0.9}
        note(axes, text, (x, y), (9, -4), va="top", linespacing=1.25, bbox=paper)
    axes.set(
        xlim=(0.9, longest),
        ylim=(0, fastest),
        xlabel="accept length (tokens a round)",
        ylabel="speed-up over no speculation",
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.1f} ×"))

    def times(v: Any) -> Any:
        return v * baseline

    def over(v: Any) -> Any:
        return v / baseline

    absolute = axes.secondary_yaxis("right", functions=(times, over))
    absolute.set_ylabel("tokens/s")
    absolute.spines["right"].set_visible(True)
    axes.set_title(f"What an accept length is worth: a round costs {round_cost:.2f} plain steps")
    said = [
        (
            str(p["name"]),
            f"{number(p['tokens_per_second']) / baseline:.2f} × at {show(p['accept_length'], 2)} tokens a round",
        )
        for p in measured
    ]
    alt = (
        f"Speed-up against accept length at {baseline:,.1f} tokens/s without speculation and a round of "
        f"{round_cost:.2f} plain steps: break-even at {round_cost:.2f} tokens a round; "
        f"{listing(said) or 'no run'} measured."
    )
    return Picture(figure, alt)
