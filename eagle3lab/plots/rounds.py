"""Pictures of acceptance: rates by position, rounds, samples, and where in a conversation it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eagle3lab.plots.picture import (
    CONFIGURED,
    FAINT,
    FITTED,
    LINE,
    Picture,
    beside,
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
    new,
    note,
    nothing,
    number,
    rows_of,
    show,
)


@drawn
def round_histogram(series: Mapping[str, Sequence[int]]) -> Picture:
    """Share of rounds by the number of drafts they accepted.

    Args:
        series: name → rounds that accepted 0, 1, … K drafts.
    """
    bars = {name: floats(rounds).ravel() for name, rounds in series.items()}
    bars = {name: rounds for name, rounds in bars.items() if rounds.size and np.nansum(rounds) > 0}
    if not bars:
        return nothing("No round was walked, so there is no histogram of rounds.")
    figure = new(3.1)
    axes = figure.add_subplot()
    most = max(rounds.size for rounds in bars.values())
    width = 0.8 / len(bars)
    said = []
    for place, (name, rounds) in enumerate(bars.items()):
        shares = rounds / np.nansum(rounds)
        at = np.arange(rounds.size) + (place - (len(bars) - 1) / 2) * width
        named = f"{label(name, 36)}: {count(np.nansum(rounds))} rounds"
        axes.bar(at, shares, width * 0.94, color=colour_of(name, place), label=named)
        said.append((named, " ".join(show(v) for v in shares)))
        if len(bars) * most <= 30:
            for x, share in zip(at, shares, strict=True):
                text = f"{share:.2f}" if share >= 0.005 else "<.01" if share else "0"
                note(axes, text, (x, share), (0, 2.5), ha="center", size=7)
    headroom(axes, [v for rounds in bars.values() for v in rounds / np.nansum(rounds)])
    axes.set_xticks(range(most))
    axes.set(xlabel="drafts accepted in the round", ylabel="share of rounds")
    axes.set_title("Rounds by number of accepted drafts", pad=26)
    key(axes)
    return Picture(figure, f"Share of rounds that accepted 0 to {most - 1} drafts: {listing(said)}.")


@drawn
def by_sample(rows: Sequence[Mapping[str, Any]], *, limit: int = 40) -> Picture:
    """Accept length of each sample under the configured and the fitted reading, best fitted first.

    Args:
        rows: ``name``, ``configured``, ``fitted`` (accept lengths, either may be None), ``rounds`` (as fitted).
        limit: samples shown at most.
    """
    if not rows:
        return nothing("No sample was walked, so there is no accept length by sample.")

    def order(row: Mapping[str, Any]) -> float:
        return -next((number(row.get(k)) for k in ("fitted", "configured") if known(row.get(k))), 0.0)

    ordered = sorted(rows, key=order)
    shown = ordered[:limit]
    figure = new(1.15 + 0.21 * max(len(shown), 3))
    axes = figure.add_subplot()
    ends = {kind: [number(row.get(kind)) for row in shown] for kind in ("configured", "fitted")}
    y = np.arange(len(shown))
    axes.hlines(y, ends["configured"], ends["fitted"], color=LINE, lw=2.4)
    for kind, colour in (("configured", CONFIGURED), ("fitted", FITTED)):
        if any(known(v) for v in ends[kind]):
            axes.plot(ends[kind], y, "o", color=colour, label=kind)
    for place, row in enumerate(shown):
        numbers = f"{show(row.get('configured'), 2)} → {show(row.get('fitted'), 2)}   {count(row.get('rounds'))} rounds"
        beside(axes, place, numbers)
    rows_of(axes, [label(row["name"], 28) for row in shown])
    left, right = axes.get_xlim()
    axes.set_xlim(min(left, 0.95), max(right, 1.5))
    axes.axvline(1, color=FAINT, lw=0.8)
    axes.set_xlabel("accept length (tokens a round, bonus included; 1 = nothing accepted)")
    axes.set_title("Accept length by sample" + first(ordered, limit, "samples"), pad=26)
    key(axes)
    said = [(str(r["name"]), f"{show(r.get('configured'), 2)} → {show(r.get('fitted'), 2)}") for r in shown]
    return Picture(figure, f"Accept length of {len(ordered)} samples, configured → fitted: {listing(said)}.")


@drawn
def by_position(
    rows: Sequence[Mapping[str, Any]],
    *,
    ylabel: str = "accuracy at draft step 0",
    xlabel: str = "position",
    title: str = "",
) -> Picture:
    """A rate by position in the conversation, a bucket a point, with intervals.

    Args:
        rows: ``low``, ``high`` (token positions [low, high) of the bucket), ``rate``, ``interval_low``,
            ``interval_high``, ``n``.
        ylabel: what the rate is.
        xlabel: what the position counts from.
        title: left out, ``"<ylabel> by <xlabel>"``.
    """
    rows = [row for row in rows if known(row.get("rate"))]
    if not rows:
        return nothing("No position was scored, so there is nothing to draw by position.")
    figure = new(3.1)
    axes = figure.add_subplot()
    rates = floats([row["rate"] for row in rows])
    lows, highs = (floats([row.get(end) for row in rows]) for end in ("interval_low", "interval_high"))
    starts, stops = (floats([row[end] for row in rows]) for end in ("low", "high"))
    middles = (starts + stops) / 2
    axes.hlines(rates, starts, stops, color=FITTED, lw=2.4, alpha=0.35)
    errors = np.nan_to_num(np.maximum([rates - lows, highs - rates], 0))
    axes.errorbar(middles, rates, yerr=errors, fmt="o", color=FITTED, elinewidth=1.3)
    crowded = len(rows) > 14
    for x, row in zip(middles, rows, strict=True):
        if not crowded:
            low = ("data", "axes fraction")
            note(axes, f"n = {count(row.get('n'))}", (x, 0), (0, 4), xycoords=low, ha="center", size=7.2, color=FAINT)
            note(axes, show(row["rate"]), (x, row["rate"]), (5, 4), size=7.5)
    headroom(axes, [*rates, *highs])
    axes.set(ylabel=ylabel, title=title or f"{ylabel[:1].upper()}{ylabel[1:]} by {xlabel}")
    total = (
        f", n = {count(sum(number(row.get('n')) for row in rows))} in all"
        if all(known(r.get("n")) for r in rows)
        else ""
    )
    axes.set_xlabel(f"{xlabel} (tokens{total})")
    said = [(f"{count(row['low'])}–{count(row['high'])}", show(row["rate"])) for row in rows]
    return Picture(figure, f"{ylabel} by {xlabel} (tokens{total}): {listing(said, 12)}.")
