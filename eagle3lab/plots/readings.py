"""Pictures of the search: which reading predicts the recording, and how well step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from eagle3lab.plots.picture import (
    CONFIGURED,
    FAINT,
    FITTED,
    INK,
    OTHER,
    SOFT,
    TIE,
    TRAINING,
    Picture,
    beside,
    boundaries,
    colour_of,
    count,
    drawn,
    first,
    floats,
    headroom,
    key,
    known,
    label,
    listing,
    marker_of,
    new,
    note,
    nothing,
    number,
    rows_of,
    show,
)

GREYS = LinearSegmentedColormap.from_list("lab_greys", colormaps["Greys"](np.linspace(0.0, 0.5, 64)))
A_ROW = 31
"""Boundaries side by side in the wiring matrix; more go into a further block of rows."""


@drawn
def wiring_matrix(
    matrix: Mapping[tuple[int, Any], float], *, configured: Sequence[Any], fitted: Sequence[Any], n: int
) -> Picture:
    """Accuracy by slot and boundary, the other slots as fitted; the two readings outlined in their colours.

    Args:
        matrix: (slot, boundary) → accuracy at draft step 0.
        configured: boundaries of the configured reading, one a slot.
        fitted: boundaries of the fitted one.
        n: rows scored.
    """
    if not matrix:
        return nothing("The search tried no other wiring, so there is no matrix to draw.")
    columns = sorted({k for _, k in matrix} | set(configured) | set(fitted), key=lambda k: (isinstance(k, str), k))
    slots = range(max([len(configured), len(fitted), *(slot + 1 for slot, _ in matrix)]))
    blocks = [columns[i : i + A_ROW] for i in range(0, len(columns), A_ROW)]
    figure = new(0.95 + len(blocks) * (0.42 + 0.36 * len(slots)))
    top = max([number(v) for v in matrix.values() if known(v)], default=1.0) or 1.0
    widest = max(len(block) for block in blocks)
    digits, size = (3, 8.0) if widest <= 14 else (2, 6.6)
    for place, block in enumerate(blocks):
        axes = figure.add_subplot(len(blocks), 1, place + 1)
        grid = np.array([[number(matrix.get((slot, k))) for k in block] for slot in slots])
        axes.imshow(grid, cmap=GREYS, vmin=0, vmax=top, aspect="auto")
        for i, j in np.ndindex(grid.shape):
            text = show(grid[i, j], digits).removeprefix("0" if digits == 2 else "")
            axes.text(
                j,
                i,
                text if text != "–" else "·",
                ha="center",
                va="center",
                size=size,
                color=INK if text != "–" else FAINT,
            )
        for aux, colour in ((configured, CONFIGURED), (fitted, FITTED)):
            for slot, k in enumerate(aux):
                if k in block:
                    both = colour == FITTED and slot < len(configured) and configured[slot] == k
                    side, up = (0.5 - (0.1 if both else 0.02), 0.44 - (0.1 if both else 0))
                    look: dict[str, Any] = {"fill": False, "ec": colour, "lw": 2.2, "zorder": 5, "clip_on": False}
                    axes.add_patch(Rectangle((block.index(k) - side, slot - up), 2 * side, 2 * up, **look))
        axes.set_xticks(range(len(block)), [str(k) for k in block])
        axes.set_yticks(slots, [f"slot {slot}" for slot in slots])
        axes.set_xlim(-0.5, widest - 0.5)
        axes.tick_params(length=0, labelsize=8 if widest <= 14 else 7)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        if place == 0:
            axes.set_title(f"Accuracy at draft step 0 by wiring, other slots as fitted (n = {count(n)})", pad=24)
            for x, colour, name, aux in ((0, CONFIGURED, "configured", configured), (0.3, FITTED, "fitted", fitted)):
                text = f"▢ {name} {label(boundaries(aux), 30)}"
                note(axes, text, (x, 1), (0, 6), xycoords="axes fraction", size=8.5, color=colour, weight="bold")
    axes.set_xlabel("boundary")
    best = max(matrix, key=lambda cell: number(matrix[cell]) if known(matrix[cell]) else -1.0)
    alt = (
        f"Accuracy at draft step 0 by slot and boundary over {count(n)} rows: configured {boundaries(configured)}, "
        f"fitted {boundaries(fitted)}; the best cell is boundary {best[1]} in slot {best[0]} with {show(matrix[best])}."
    )
    return Picture(figure, alt)


@drawn
def ranking(rows: Sequence[Mapping[str, Any]], *, n: int, limit: int = 24) -> Picture:
    """The readings tried last, best first, each with its interval.

    Args:
        rows: ``label``, ``accuracy``, ``low``, ``high``, ``kind`` (``fitted``, ``tie``, ``configured``, ``other``).
        n: rows scored, the same for all.
        limit: readings shown at most; a configured one is always among them.
    """
    if not rows:
        return nothing("No reading was scored, so there is no ranking.")
    ordered = sorted(rows, key=lambda row: -number(row["accuracy"]) if known(row["accuracy"]) else 2.0)
    shown = [row for place, row in enumerate(ordered) if place < limit or row.get("kind") == "configured"]
    figure = new(1.15 + 0.235 * max(len(shown), 3))
    axes = figure.add_subplot()
    palette = {"fitted": FITTED, "tie": TIE, "configured": CONFIGURED}
    seen: set[str] = set()
    for y, row in enumerate(shown):
        kind = str(row.get("kind", "other"))
        colour, value = palette.get(kind, OTHER), number(row["accuracy"])
        named = {"tie": "cannot be told from it", "other": "other"}.get(kind, kind) if kind not in seen else None
        seen.add(kind)
        if not known(value):
            axes.text(0, y, " not scored", va="center", color=FAINT, size=8)
            continue
        low, high = (number(row.get(end)) for end in ("low", "high"))
        if known(low) and known(high):
            axes.plot([low, high], [y, y], color=colour, lw=1.6)
        axes.plot(
            [value], [y], "o", color="white" if kind == "tie" else colour, mec=colour, mew=1.4, label=named, ls="none"
        )
        if known(row.get("behind")) and kind != "fitted":
            spread = (
                f" [{show(row.get('behind_low'))}, {show(row.get('behind_high'))}]"
                if known(row.get("behind_low"))
                else ""
            )
            text = f"{show(value)}   behind by {show(row['behind'])}{spread}"
        else:
            text = show(value) + (f"  [{show(low)}, {show(high)}]" if known(low) and known(high) else "")
        beside(axes, y, text, colour if kind in ("fitted", "configured") else SOFT)
    rows_of(axes, [label(row["label"], 40) for row in shown])
    for tick, row in zip(axes.get_yticklabels(), shown, strict=True):
        if row.get("kind") in ("fitted", "configured"):
            tick.set_color(palette[row["kind"]])
            tick.set_fontweight("bold")
    axes.set_xlim(left=-0.012 * axes.get_xlim()[1])
    axes.set_xlabel(f"accuracy at draft step 0, same {count(n)} rows for all")
    axes.set_title("Readings tried, best first" + first(ordered, limit, "readings"), pad=26)
    key(axes)
    said = [(str(row["label"]), f"{show(row['accuracy'])} ({row.get('kind', 'other')})") for row in shown]
    return Picture(figure, f"Accuracy of {len(ordered)} readings over {count(n)} rows: {listing(said, 6)}.")


@drawn
def accuracy_by_step(
    series: Mapping[str, Sequence[float]], *, n: Sequence[int], training: Sequence[float] | None = None
) -> Picture:
    """Accuracy at each draft step, a line a reading.

    Args:
        series: name → accuracy per step; the name's first word gives the colour.
        n: rows scored at each step.
        training: what the trainer reported per step.
    """
    lines = {name: floats(values).ravel() for name, values in series.items()}
    if training is not None and len(training):
        lines["training"] = floats(training).ravel()
    lines = {name: values for name, values in lines.items() if values.size}
    if not lines:
        return nothing("No step was scored, so there is no accuracy to draw.")
    steps = max(values.size for values in lines.values())
    figure = new(3.4)
    axes = figure.add_subplot()
    for place, (name, values) in enumerate(lines.items()):
        colour = colour_of(name, place)
        hollow = colour == TRAINING
        look: dict[str, Any] = {"ls": "--", "mfc": "white", "lw": 1.4, "zorder": 2} if hollow else {"zorder": 3}
        axes.plot(np.arange(values.size), values, color=colour, marker=marker_of(colour), mew=1.4, **look)
    headroom(axes, np.concatenate(list(lines.values())))
    _place_numbers(axes, lines)
    scored = [f"{k}\nn = {count(n[k])}" if k < len(n) else str(k) for k in range(steps)]
    axes.set_xticks(range(steps), scored)
    axes.set_xlim(-0.3, steps - 0.7)
    axes.set(xlabel="draft step", ylabel="accuracy", title="Accuracy by draft step, teacher-forced on the recording")
    said = [(name, " ".join(show(v) for v in values)) for name, values in lines.items()]
    return Picture(figure, f"Accuracy per draft step, n = {', '.join(count(m) for m in n)}: {listing(said)}.")


def _place_numbers(axes: Axes, lines: Mapping[str, Any]) -> None:
    """Names at the right ends, and the numbers at each point where few lines leave room for them."""
    high = axes.get_ylim()[1]
    gap, at = 0.075 * high, -1.0
    last = {name: values[np.isfinite(values)][-1] for name, values in lines.items() if np.isfinite(values).any()}
    for place, name in enumerate(sorted(last, key=lambda name: last[name])):
        at = max(last[name], at + gap)
        colour = colour_of(name, list(lines).index(name))
        place_at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center"}
        note(axes, label(name, 30), (1, at), (4, 0), color=colour, weight="bold", size=8.5, **place_at)
        if len(last) <= 4:
            # The upper of two close lines carries its numbers above, every other one below; the lowest above again.
            below = place > 0 and any(0 < last[other] - last[name] < 3 * gap for other in last)
            for step, value in enumerate(lines[name]):
                if known(value):
                    side, up = ("top", -8) if below else ("bottom", 7)
                    note(axes, show(value), (step, value), (0, up), size=7.5, ha="center", va=side, color=colour)
