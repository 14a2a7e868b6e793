"""Pictures of acceptance taken apart: survival by position, chain against trees, costly tokens, small multiples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eagle3lab.plots.picture import (
    CONFIGURED,
    FAINT,
    FITTED,
    INK,
    LINE,
    OTHER,
    PREDICTED,
    SOFT,
    SPARE,
    Picture,
    beside,
    colour_of,
    count,
    drawn,
    first,
    floats,
    headroom,
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

TITLES = {
    "cumulative": "Cumulative: this draft and all before it",
    "conditional": "Conditional: given the one before",
}
REASONS = {"near miss": FITTED, "far": CONFIGURED, "out of draft vocab": PREDICTED, "not finite": INK}
"""Why a draft was refused → its colour."""


def _columns(points: Sequence[Mapping[str, Any]]) -> tuple[Any, Any, Any]:
    """Values, and the lengths of the error bars below and above them."""
    values, lows, highs = (floats([p.get(key) for p in points]).ravel() for key in ("value", "low", "high"))
    below, above = (np.nan_to_num(np.maximum(side, 0)) for side in (values - lows, highs - values))
    return values, below, above


@drawn
def survival(
    series: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], *, ceiling: Sequence[float] = ()
) -> Picture:
    """Acceptance by draft position with intervals, in two panels: cumulative, and conditional on the one before.

    Args:
        series: name → ``cumulative`` and ``conditional``, for each position ``value``, ``low``, ``high``, ``n``.
        ceiling: cumulative rates that the draft vocabulary alone allows; drawn in the first panel.
    """
    if not any(points for kinds in series.values() for points in kinds.values()):
        return nothing("No round was walked, so there are no acceptance rates.")
    figure = new(3.5)
    panels = figure.subplots(1, 2)
    for axes, (kind, title) in zip(panels, TITLES.items(), strict=True):
        everything = [0.5, *([*ceiling] if kind == "cumulative" else [])]
        steps = max((len(kinds.get(kind, ())) for kinds in series.values()), default=0)
        for place, (name, kinds) in enumerate(series.items()):
            points = kinds.get(kind, ())
            values, below, above = _columns(points)
            colour = colour_of(name, place)
            at = np.arange(values.size) + 0.06 * (place - (len(series) - 1) / 2)
            axes.errorbar(at, values, yerr=[below, above], color=colour, marker=marker_of(colour), elinewidth=1.1,
                          capsize=2.5, lw=1.4, label=label(name, 34))  # fmt: skip
            everything += (values + above).tolist()
            if colour == FITTED or len(series) == 1:
                for x, value, point in zip(at, values, points, strict=True):
                    if known(value):
                        note(axes, show(value), (x, value), (6, 3), size=7.5, color=colour)
                    foot = ("data", "axes fraction")
                    note(axes, f"n = {count(point.get('n'))}", (x, 0), (0, 3), xycoords=foot, ha="center", size=6.8,
                         color=FAINT)  # fmt: skip
        if kind == "cumulative" and len(ceiling):
            axes.plot(range(len(ceiling)), ceiling, color=FAINT, ls="--", lw=1.1, label="vocabulary's ceiling")
        headroom(axes, everything)
        axes.set_ylim(-0.13 * axes.get_ylim()[1], axes.get_ylim()[1])
        axes.set_xticks(range(steps))
        axes.set_xlim(-0.35, max(steps, 1) - 0.5)
        axes.set_title(title, size=9, weight="normal", pad=8)
        axes.set_xlabel("draft position in a round (n: rounds behind the rate, fitted)")
    panels[0].set_ylabel("share accepted")
    figure.suptitle("Acceptance by draft position, with 95 % intervals", x=0.012, ha="left", size=10.5, weight="bold")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, labelcolor=SOFT)
    said = [(n, " ".join(show(p.get("value")) for p in kinds.get("cumulative", ()))) for n, kinds in series.items()]
    return Picture(figure, f"Share of drafts accepted by position, cumulative: {listing(said)}.")


@drawn
def chain_and_trees(rows: Sequence[Mapping[str, Any]]) -> Picture:
    """A chain beside trees: accept length with its interval, and how deep the recorded text leads.

    Args:
        rows: ``label``, ``value``, ``low``, ``high`` (accept length), ``nodes`` verified, ``forwards`` of the draft a
            round, ``depths`` (for each depth ``value``, ``low``, ``high``).
    """
    rows = [row for row in rows if known(row.get("value"))]
    if not rows:
        return nothing("No round was walked, so there is no chain or tree to compare.")
    figure = new(2.9 + 0.42 * len(rows))
    top, bottom = figure.subplots(2, 1, height_ratios=[0.5 + 0.42 * len(rows), 2.2])
    colours = [FITTED if i == 0 else SPARE[i % len(SPARE)] for i in range(len(rows))]
    markers = "os^Dv"
    values, below, above = _columns(rows)
    for y, row in enumerate(rows):
        top.errorbar(values[y], y, xerr=[[below[y]], [above[y]]], color=colours[y], marker=markers[y % 5], capsize=3)
        note(top, show(row["value"], 2), (values[y], y), (0, 5), ha="center", size=8, color=INK)
        beside(top, y, f"{count(row.get('nodes'))} verified, {count(row.get('forwards'))} draft steps")
        _, low, high = _columns(row.get("depths", ()))
        depths = floats([p.get("value") for p in row.get("depths", ())]).ravel()
        at = np.arange(1, depths.size + 1) + 0.05 * (y - (len(rows) - 1) / 2)
        bottom.errorbar(at, depths, yerr=[low, high], color=colours[y], marker=markers[y % 5], lw=1.4, elinewidth=1.1,
                        capsize=2.5, label=label(str(row["label"]).partition(",")[0], 30))  # fmt: skip
    rows_of(top, ["\n".join(label(part, 40) for part in str(row["label"]).split(",", 1)) for row in rows])
    top.set_ylim(len(rows) - 0.5, -0.75)
    top.set_xlim(min(0.95, *top.get_xlim()), top.get_xlim()[1])
    top.axvline(1, color=LINE, lw=1)
    top.set_xlabel("accept length (tokens a round, bonus included)")
    top.set_title("Chain and trees on the same recorded text")
    headroom(bottom, [p.get("high") or 0.0 for row in rows for p in row.get("depths", ())], 0.5)
    bottom.set(xlabel="depth: drafts accepted in a row, at least", ylabel="share of rounds")
    bottom.set_xticks(range(1, max((len(r.get("depths", ())) for r in rows), default=1) + 1))
    bottom.legend(loc="upper right", labelcolor=SOFT)
    said = [
        (str(r["label"]), f"{show(r['value'], 2)} [{show(r.get('low'), 2)}, {show(r.get('high'), 2)}]") for r in rows
    ]
    return Picture(figure, f"Accept length of a chain and of trees: {listing(said)}.")


@drawn
def token_costs(rows: Sequence[Mapping[str, Any]], *, by: str = "text kind", limit: int = 20) -> Picture:
    """Which tokens cost accept length: share refused, and drafts lost a round, with intervals.

    Args:
        rows: ``group``, ``judged``, ``refused`` (reason → tokens), ``share`` with ``share_low`` and ``share_high``,
            ``a_round`` with ``low`` and ``high``.
        by: what the groups are.
        limit: groups shown at most.
    """
    if not rows:
        return nothing("No draft was judged, so no token has a cost.")
    shown = rows[:limit]
    figure = new(1.55 + 0.3 * max(len(shown), 3))
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.25], sharey=True)
    y = np.arange(len(shown))
    starts = np.zeros(len(shown))
    for reason, colour in REASONS.items():
        counts = floats([number(r.get("refused", {}).get(reason, 0)) for r in shown]).ravel()
        judged = np.maximum(floats([r.get("judged") for r in shown]).ravel(), 1)
        if np.nansum(counts):
            left.barh(y, counts / judged, left=starts, height=0.55, color=colour, alpha=0.75, label=reason)
        starts = starts + np.nan_to_num(counts / judged)
    shares = [{"value": r.get("share"), "low": r.get("share_low"), "high": r.get("share_high")} for r in shown]
    values, below, above = _columns(shares)
    left.errorbar(values, y, xerr=[below, above], fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
    losses = [{"value": r.get("a_round"), "low": r.get("low"), "high": r.get("high")} for r in shown]
    values, below, above = _columns(losses)
    right.barh(y, values, height=0.55, color=OTHER)
    right.errorbar(values, y, xerr=[below, above], fmt="none", ecolor=INK, elinewidth=1.1, capsize=2.5)
    for place, row in enumerate(shown):
        interval = f"{show(row.get('a_round'), 2)} [{show(row.get('low'), 2)}, {show(row.get('high'), 2)}]"
        beside(right, place, f"{interval}   n = {count(row.get('judged'))}")
    rows_of(left, [label(r["group"], 26) for r in shown])
    left.set_xlim(0, 1)
    left.set_xlabel("share of judged tokens refused")
    right.set_xlim(0, right.get_xlim()[1])
    right.set_xlabel("drafts lost a round (first order)")
    title = f"What refused drafts cost, by {by}" + first(rows, limit, "groups")
    figure.suptitle(title, x=0.012, ha="left", size=10.5, weight="bold")
    handles, names = left.get_legend_handles_labels()
    if handles:
        figure.legend(handles, names, loc="outside lower left", ncols=4, labelcolor=SOFT)
    said = [(str(r["group"]), f"{show(r.get('a_round'), 2)} of n = {count(r.get('judged'))}") for r in shown]
    return Picture(figure, f"Drafts lost a round by {by}: {listing(said)}.")


@drawn
def by_step_fed(*, scored: Sequence[int], recorded: Sequence[float], own: Sequence[float]) -> Picture:
    """Accuracy by step of chains fed with recorded tokens and of chains fed with their own.

    Args:
        scored: rows at each step.
        recorded: accuracy fed with the recorded tokens.
        own: accuracy fed with the draft's own.
    """
    a, b = floats(recorded).ravel(), floats(own).ravel()
    if not a.size:
        return nothing("No step was scored, so there is no chain to compare.")
    figure = new(2.9)
    axes = figure.add_subplot()
    for values, colour, marker, name in (
        (a, FITTED, "o", "fed with the recorded tokens (training's way)"),
        (b, SPARE[1], "s", "fed with its own drafts (an engine's chain)"),
    ):
        axes.plot(np.arange(values.size), values, color=colour, marker=marker, label=name)
    for k in range(a.size):
        note(axes, show(a[k]), (k, a[k]), (4, 5), size=7.5, color=FITTED)
        if k < b.size and k:
            note(axes, show(b[k]), (k, b[k]), (4, 5), size=7.5, color=SPARE[1])
        foot = ("data", "axes fraction")
        n = count(scored[k]) if k < len(scored) else "–"
        note(axes, f"n = {n}", (k, 0), (0, 4), xycoords=foot, ha="center", size=7.2, color=FAINT)
    headroom(axes, [*a, *b], 0.5)
    axes.set_xticks(range(a.size))
    axes.set_xlim(-0.3, max(a.size, 1) - 0.55)
    axes.set(xlabel="draft step", ylabel="accuracy over all rows")
    axes.set_title("Later steps after a wrong draft")
    axes.legend(loc="upper right", labelcolor=SOFT)
    said = [("recorded", " ".join(map(show, a))), ("own", " ".join(map(show, b)))]
    return Picture(figure, f"Accuracy by draft step, fed with recorded or own tokens: {listing(said)}.")


@drawn
def sample_curves(rows: Sequence[Mapping[str, Any]], *, together: Sequence[float] = (), limit: int = 32) -> Picture:
    """One small panel a sample: cumulative acceptance by position, against all samples together.

    Args:
        rows: ``name``, ``cumulative`` (K rates), ``accept_length``, ``rounds``.
        together: the rates of all samples.
        limit: samples shown at most.
    """
    if not rows:
        return nothing("No sample was walked, so there are no curves by sample.")
    shown = rows[:limit]
    wide = min(6, len(shown))
    high = -(-len(shown) // wide)
    figure = new(0.7 + 1.25 * high)
    panels = np.atleast_1d(figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False)).ravel()
    for axes, row in zip(panels, shown, strict=False):
        values = floats(row.get("cumulative", ())).ravel()
        axes.plot(range(len(together)), together, color=OTHER, lw=1.1, ls="--")
        axes.plot(range(values.size), values, color=FITTED, marker="o", ms=3, lw=1.4)
        axes.set_title(f"{label(row['name'], 14)}: {show(row.get('accept_length'), 2)}", size=8, pad=3)
        text = f"{count(row.get('rounds'))} rounds"
        note(axes, text, (1, 1), (-3, -9), xycoords="axes fraction", ha="right", size=6.8, color=FAINT)
        axes.set_ylim(0, 1.05)
        axes.set_xticks(range(max(values.size, len(together), 1)))
        axes.tick_params(labelsize=7)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel("draft position in a round (dashed: all samples together)", size=8, color=SOFT)
    title = "Cumulative acceptance by sample, accept length beside the name" + first(rows, limit, "samples")
    figure.suptitle(title, x=0.012, ha="left", size=10.5, weight="bold")
    said = [(str(r["name"]), show(r.get("accept_length"), 2)) for r in shown]
    return Picture(figure, f"Cumulative acceptance by position in {len(rows)} samples; accept length: {listing(said)}.")
