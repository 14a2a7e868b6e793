"""Pictures of the gap: the waterfall, settings by throughput, paired differences, an engine's states row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from eagle3lab.plots.picture import (
    AMOUNT,
    CONFIGURED,
    ENGINE,
    FAINT,
    FITTED,
    INK,
    LINE,
    OTHER,
    SOFT,
    SPARE,
    TRAINING,
    Picture,
    beside,
    boundaries,
    count,
    drawn,
    floats,
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


def _signed(value: Any, digits: int = 3) -> str:
    value = number(value)
    return f"{value:+.{digits}f}".replace("-", "−") if known(value) else "–"


def _bracket(low: Any, high: Any, digits: int = 2) -> str:
    return f" [{_signed(low, digits)}, {_signed(high, digits)}]" if known(low) and known(high) else ""


@drawn
def waterfall(
    bars: Sequence[Mapping[str, Any]], *, begins: str = "training", ends: str = "engine", title: str = ""
) -> Picture:
    """From training's figure to the engine's: one bar a cause, each beginning where the one before ended.

    Args:
        bars: ``name``, ``start``, ``end``, ``low``, ``high`` (interval of the change, NaN where there is none).
        begins: what the first level is, in words.
        ends: what the last one is.
        title: the picture's title.
    """
    if not bars:
        return nothing("There is no figure to begin with, so there is no waterfall.")
    figure = new(1.0 + 0.36 * (len(bars) + 2))
    axes = figure.add_subplot()
    first, last = number(bars[0]["start"]), number(bars[-1]["end"])
    names = [label(begins, 44), *(label(bar["name"], 44) for bar in bars), label(ends, 44)]
    for place, value, colour in ((0, first, TRAINING), (len(bars) + 1, last, ENGINE)):
        axes.barh(place, value, 0.62, color=colour)
        beside(axes, place, show(value), INK)
    for place, bar in enumerate(bars, 1):
        start, end = number(bar["start"]), number(bar["end"])
        arithmetic = bar.get("kind") in ("bonus", "chain")
        colour = OTHER if abs(end - start) < 5e-4 or arithmetic else CONFIGURED if end < start else FITTED
        unsure = number(bar.get("low")) < 0 < number(bar.get("high"))
        axes.plot([start, start], [place - 1, place], color=LINE, lw=1, zorder=1)
        axes.barh(place, end - start, 0.62, left=start, color=colour, alpha=0.4 if unsure else 1.0, zorder=2)
        if colour == OTHER:  # a bar of no width still has its place
            axes.plot([start], [place], "|", color=OTHER, ms=13, mew=2, zorder=3)
        low, high = number(bar.get("low")), number(bar.get("high"))
        if known(low) and known(high) and high - low > 1e-6:
            axes.plot([start + low, start + high], [place, place], color=INK, lw=1.1, zorder=4)
            for edge in (low, high):
                axes.plot([start + edge] * 2, [place - 0.13, place + 0.13], color=INK, lw=1.1, zorder=4)
        wide = known(low) and known(high) and high - low > 1e-6
        beside(axes, place, _signed(end - start) + (_bracket(low, high) if wide else ""))
    axes.plot([last, last], [len(bars), len(bars) + 1], color=LINE, lw=1, zorder=1)
    rows_of(axes, names)
    axes.set_xlim(0, 1.03 * max(first, *(max(number(b["start"]), number(b["end"])) for b in bars)))
    axes.set_xlabel("accept length; orange: lost, blue: gained, pale: may be neither, grey: arithmetic; line: 95 %")
    axes.set_title(title or "From training's figure to the engine's")
    said = [(str(bar["name"]), _signed(number(bar["end"]) - number(bar["start"]))) for bar in bars]
    return Picture(
        figure,
        f"Waterfall of accept length from {show(first)} ({begins}) to {show(last)} ({ends}): {listing(said, 12)}.",
    )


@drawn
def tuning(
    rows: Sequence[Mapping[str, Any]],
    *,
    best: Mapping[str, Any] | None = None,
    law: str = "",
    framed: str = "the best setting",
) -> Picture:
    """Speed-up of every setting: a column a number of draft steps, a row the chain or a tree's topk and size.

    Args:
        rows: ``steps``, ``topk``, ``draft_tokens``, ``speedup`` (NaN where the cost is not known), ``accept_length``.
        best: ``steps``, ``topk`` and ``draft_tokens`` of the best setting.
        law: said under the picture.
        framed: what the best one is the best of.
    """
    if not any(known(row.get("speedup")) for row in rows):
        return nothing("No run was timed beside one without speculation, so no setting's throughput can be told.")
    ks = sorted({int(row["steps"]) for row in rows})
    kinds = sorted({_kind(row) for row in rows})
    grid = np.full((len(kinds), len(ks)), np.nan)
    for row in rows:
        grid[kinds.index(_kind(row)), ks.index(int(row["steps"]))] = number(row.get("speedup"))
    trees = len(kinds) > 1
    figure = new(1.5 + (0.36 if trees else 0.62) * len(kinds))
    axes = figure.add_subplot()
    reach = max(float(np.nanmax(np.abs(grid - 1))), 0.05)
    # both ends stay light enough for dark text: the colours of lost and gained, as in the waterfall
    colours = LinearSegmentedColormap.from_list("gain", [(1, 0.72, 0.5), (1, 1, 1), (0.5, 0.75, 0.95)])
    axes.imshow(grid, cmap=colours, vmin=1 - reach, vmax=1 + reach, aspect="auto")
    for row in rows:
        x, y = ks.index(int(row["steps"])), kinds.index(_kind(row))
        value = number(row.get("speedup"))
        text = f"{value:.2f} ×" if known(value) else "?"
        own = best is not None and (best["steps"], *_kind(best)) == (row["steps"], *_kind(row))
        axes.text(x, y - 0.17, text, ha="center", va="center", size=9.5, weight="bold" if own else "normal", color=INK)
        length = f"{show(row.get('accept_length'), 2)} tokens{' a round' if len(ks) < 6 else ''}"
        axes.text(x, y + 0.24, length, ha="center", va="center", size=7, color=SOFT)
        if own:
            axes.add_patch(_frame(x, y))
    for place in range(1, len(kinds)):
        if kinds[place][0] != kinds[place - 1][0]:
            axes.axhline(place - 0.5, color=FAINT, lw=0.9)
    axes.set_xticks(range(len(ks)), [f"K = {k}" for k in ks])
    names = [f"topk {topk}, {size} draft tokens" if topk > 1 else "chain" for topk, size in kinds]
    axes.set_yticks(range(len(kinds)), names)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.set_xlabel(label(law, 150) or "draft steps a round")
    doubt = ", ? where the cost is not known" if any(not known(row.get("speedup")) for row in rows) else ""
    axes.set_title(f"Speed-up over no speculation; framed: {framed}{doubt}")
    told = [
        (f"K {row['steps']}, {names[kinds.index(_kind(row))]}", f"{number(row['speedup']):.2f}")
        for row in sorted(rows, key=lambda row: -number(row.get("speedup")))
        if known(row["speedup"])
    ]
    return Picture(figure, f"Speed-up over no speculation by draft steps and branching: {listing(told, 12)}.")


def _kind(row: Mapping[str, Any]) -> tuple[int, int]:
    """The row of a setting: topk and what is verified; a chain verifies its steps."""
    topk = int(row["topk"])
    return topk, int(row["draft_tokens"]) if topk > 1 else 0


def _frame(x: float, y: float) -> Any:
    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, fill=False, lw=1.8, ec=INK)


@drawn
def differences(rows: Sequence[Mapping[str, Any]], *, first: str, second: str, limit: int = 34) -> Picture:
    """Paired differences on the same positions, each with its interval: right of zero the second is better.

    Args:
        rows: ``name``, ``change``, ``low``, ``high``, ``n``, ``group`` (a line parts groups).
        first: the one compared with.
        second: the one that gains or loses.
        limit: rows shown at most.
    """
    shown = [row for row in rows if known(row.get("change"))][:limit]
    if not shown:
        return nothing("The two have no position in common, so nothing can be compared.")
    figure = new(1.2 + 0.27 * len(shown))
    axes = figure.add_subplot()
    axes.axvline(0, color=FAINT, lw=0.9)
    for place, row in enumerate(shown):
        value, low, high = (number(row.get(k)) for k in ("change", "low", "high"))
        clear = known(low) and known(high) and (low > 0 or high < 0)
        colour = (FITTED if value > 0 else CONFIGURED) if clear else OTHER
        if known(low) and known(high):
            axes.plot([low, high], [place, place], color=colour, lw=1.6)
        axes.plot([value], [place], "o", color=colour, ms=6)
        beside(axes, place, f"{_signed(value)}  n = {count(row.get('n'))}")
        if place and row.get("group") != shown[place - 1].get("group"):
            axes.axhline(place - 0.5, color=LINE, lw=0.8)
    rows_of(axes, [label(row["name"], 34) for row in shown])
    axes.set_xlabel("difference in accuracy of the first draft, 95 % interval; grey: no clear sign, or too few samples")
    axes.set_title(f"{label(second, 44)} less {label(first, 44)}, on the same positions")
    said = [(str(row["name"]), _signed(row["change"])) for row in shown]
    return Picture(figure, f"Paired differences, {second} less {first}: {listing(said, 12)}.")


@drawn
def state_errors(
    series: Mapping[int, Sequence[tuple[int, float]]],
    *,
    cosines: Mapping[int, Sequence[tuple[int, float]]] | None = None,
    name: str = "",
    same: float = 0.05,
) -> Picture:
    """Relative error of an engine's recorded states against training's, row by row, a line a slot; under it the cosine.

    Args:
        series: boundary → (row, relative error), rows ascending.
        cosines: boundary → (row, cosine), likewise; left out: no second panel.
        name: the text compared.
        same: error up to which two recordings count as the same.
    """
    lines = {slot: floats([list(pair) for pair in pairs]) for slot, pairs in series.items() if len(pairs)}
    if not lines:
        return nothing("No slot of the engine's dump meets a boundary of training's, so there is no error to draw.")
    near = {slot: floats([list(pair) for pair in pairs]) for slot, pairs in (cosines or {}).items() if len(pairs)}
    figure = new(4.3 if near else 3.2)
    panels = (
        figure.subplots(2, 1, sharex=True, squeeze=False, height_ratios=(2.2, 1))[:, 0]
        if near
        else [figure.add_subplot()]
    )
    axes = panels[0]
    axes.axhspan(1e-6, same, color=LINE, alpha=0.45, lw=0)
    colours = (FITTED, CONFIGURED, TRAINING, *SPARE)
    look: dict[int, dict[str, Any]] = {
        slot: {"color": colours[i % len(colours)], "marker": "o", "ms": 2.5, "lw": 1} for i, slot in enumerate(lines)
    }
    for slot, values in lines.items():
        axes.plot(values[:, 0], np.maximum(values[:, 1], 1e-5), label=f"boundary {slot}", **look[slot])
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(AMOUNT)
    top = max(float(np.nanmax(v[:, 1])) for v in lines.values())
    axes.set_ylim(7e-6, max(2.0, 1.5 * top))
    note(axes, f"up to {same:g}: the same, but for rounding", (0, 2e-5))
    axes.set(ylabel="relative error (0 as 1e-5)")
    axes.set_title(f"The engine's states against training's{': ' + label(name, 60) if name else ''}", pad=26)
    key(axes)
    said = [(f"boundary {slot}", show(float(np.median(v[:, 1])), 4)) for slot, v in lines.items()]
    alt = f"Relative error by row of {boundaries(list(lines))}, medians: {listing(said)}."
    if near:
        for slot, values in near.items():
            panels[1].plot(values[:, 0], values[:, 1], **look.get(slot, {"color": OTHER}))
        span = 1 - min(0.99, *(float(np.nanmin(v[:, 1])) for v in near.values()))
        panels[1].set_ylim(1 - 1.08 * span, 1 + 0.08 * span)
        panels[1].set(ylabel="cosine")
        least = [(f"boundary {slot}", show(float(np.nanmin(v[:, 1])), 4)) for slot, v in near.items()]
        alt += f" Cosine by row, least: {listing(least)}."
    panels[-1].set_xlabel("row of the engine's dump")
    return Picture(figure, alt)
