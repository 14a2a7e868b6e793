"""Pictures of recorded states: their size along a conversation, how alike boundaries are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from eagle3lab.plots.picture import (
    AMOUNT,
    FAINT,
    INK,
    Picture,
    amount,
    drawn,
    floats,
    label,
    listing,
    new,
    note,
    nothing,
    number,
    show,
)

SINK = 20.0
"""A first row this many times larger than the median is called an attention sink."""


@drawn
def rms_by_position(rms: Mapping[Any, Any], *, spans: Sequence[tuple[int, int]] = ()) -> Picture:
    """RMS of every recorded state along the conversation, one line a boundary, reply spans shaded.

    Args:
        rms: boundary → RMS of each row [T].
        spans: reply spans [a, b).
    """
    lines = {k: floats(values).ravel() for k, values in rms.items()}
    lines = {k: np.where(values > 0, values, np.nan) for k, values in lines.items() if values.size}
    if not lines:
        return nothing("No states are recorded, so there is no RMS to draw.")
    figure = new(3.5)
    axes = figure.add_subplot()
    for place, (a, b) in enumerate(spans):
        axes.axvspan(a - 0.5, b - 0.5, color="#eef1f4", lw=0, zorder=0)
        if place == 0:
            here = ((a + b) / 2, 1)
            note(axes, "reply", here, (0, -3), xycoords=("data", "axes fraction"), ha="center", va="top", color=FAINT)
    colours = colormaps["viridis"](np.linspace(0.05, 0.76, len(lines)))
    sinks: list[tuple[Any, float]] = []
    ends: list[tuple[float, str, Any]] = []
    for (k, values), colour in zip(lines.items(), colours, strict=True):
        axes.plot(values, color=colour, lw=1.2)
        finite = values[np.isfinite(values)]
        if finite.size:
            ends.append((finite[-1], f"h[{k}]" if not isinstance(k, str) else k, colour))
            middle = float(np.median(finite))
            if np.isfinite(values[0]) and values[0] > SINK * middle:
                sinks.append((k, values[0] / middle))
                axes.plot([0], [values[0]], "o", color=colour, ms=5)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(AMOUNT)
    _end_labels(axes, ends)
    if sinks:
        peak = max(lines[k][0] for k, _ in sinks)
        most = max(times for _, times in sinks)
        note(axes, f"row 0 is an attention sink: up to {most:,.0f} × the median", (0, peak), (9, -2), va="center")
    axes.set(
        xlabel="position (tokens)", ylabel="RMS of the state (log)", title="Size of the recorded states by boundary"
    )
    axes.margins(x=0.01)
    said = [(f"h[{k}]", f"median {amount(float(np.nanmedian(v)))}") for k, v in lines.items() if np.isfinite(v).any()]
    sink = f" Row 0 is an attention sink at {', '.join(f'h[{k}] ({t:,.0f} ×)' for k, t in sinks[:6])}." if sinks else ""
    return Picture(figure, f"RMS by position: {listing(said)}.{sink}")


def _end_labels(axes: Axes, ends: list[tuple[float, str, Any]], gap: float = 0.055) -> None:
    """Names at the lines' right ends, moved apart; of many only as many as fit."""
    low, high = np.log10(axes.get_ylim())
    most = int(1 / gap)
    if len(ends) > most:
        ends = [ends[i] for i in np.unique(np.linspace(0, len(ends) - 1, most).round().astype(int))]
    ends = sorted(ends, key=lambda end: end[0])
    places: list[float] = []
    for value, _, _ in ends:
        places.append(max((np.log10(value) - low) / (high - low), places[-1] + gap if places else 0.0))
    for i in range(len(places) - 1, -1, -1):  # back down where the push went over the top
        places[i] = min(places[i], 1.0 if i == len(places) - 1 else places[i + 1] - gap)
    for (_, name, colour), at in zip(ends, places, strict=True):
        note(axes, name, (1, at), (6, 0), xycoords="axes fraction", va="center", color=colour, weight="bold")


@drawn
def cosine_matrix(boundaries: Sequence[Any], matrix: Any) -> Picture:
    """Mean cosine of every pair of boundaries, printed in the cells where they fit.

    Args:
        boundaries: names of rows and columns.
        matrix: cosines [n, n].
    """
    values = floats(matrix)
    n = len(boundaries)
    if not n or values.shape != (n, n):
        return nothing("No two boundaries are recorded, so there is no cosine to draw.")
    side = min(max(1.6 + 0.42 * n, 3.2), 7.2)
    figure = new(side, side + 1.2)
    axes = figure.add_subplot()
    image = axes.imshow(values, cmap="BrBG", vmin=-1, vmax=1)
    names = [f"h[{k}]" if not isinstance(k, str) else label(k, 10) for k in boundaries]
    step = -(-n // 24)
    axes.set_xticks(range(0, n, step), names[::step], rotation=90 if n > 8 else 0)
    axes.set_yticks(range(0, n, step), names[::step])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    if n <= 16:
        for i, j in np.ndindex(n, n):
            value = number(values[i, j])
            axes.text(
                j, i, show(value, 2), ha="center", va="center", size=7.5, color="white" if abs(value) > 0.58 else INK
            )
    bar = figure.colorbar(image, ax=axes, shrink=0.7, ticks=[-1, -0.5, 0, 0.5, 1])
    bar.outline.set_visible(False)
    bar.set_label("mean cosine")
    axes.set_title("Cosine between boundaries")
    apart = values[~np.eye(n, dtype=bool)]
    apart = apart[np.isfinite(apart)]
    ends = f": from {apart.min():.2f} to {apart.max():.2f} off the diagonal" if apart.size else ""
    return Picture(
        figure, f"Mean cosine between {n} boundaries ({', '.join(names[:12])}{' …' if n > 12 else ''}){ends}."
    )
