"""Pictures of the checkpoint: values, norms, the vocabulary map and what it covers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter

from eagle3lab.plots.picture import (
    AMOUNT,
    FAINT,
    FITTED,
    INK,
    LINE,
    OTHER,
    SOFT,
    Picture,
    amount,
    beside,
    count,
    drawn,
    first,
    floats,
    known,
    label,
    listing,
    new,
    note,
    nothing,
    rows_of,
    tail,
)


@drawn
def value_histograms(histograms: Mapping[str, tuple[Any, Any]], *, columns: int = 4, limit: int = 24) -> Picture:
    """Small multiples of how the values of each tensor are spread, counts on a log scale.

    Args:
        histograms: tensor → (edges [bins + 1], counts [bins]).
        columns: multiples side by side.
        limit: tensors shown at most; the title says when some are left out.
    """
    if not histograms:
        return nothing("No tensor was measured, so there is no histogram.")
    names = list(histograms)
    shown = names[:limit]
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    figure = new(0.55 + max(1.38 * rows, 1.9))
    for place, name in enumerate(shown):
        axes = figure.add_subplot(rows, columns, place + 1)
        edges, counts = (floats(part) for part in histograms[name])
        if counts.size and np.isfinite(edges).all() and np.nansum(counts) > 0:
            axes.stairs(np.maximum(counts, 0.5), edges, fill=True, color=FITTED, alpha=0.75, baseline=0.5)
            axes.set_yscale("log")
            axes.set_ylim(0.5, np.nanmax(counts) * 3)
            axes.axvline(0, color=SOFT, lw=0.7)
            axes.set_xticks([edges[0], 0, edges[-1]] if edges[0] < 0 < edges[-1] else [edges[0], edges[-1]])
            axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.2g}"))
            axes.yaxis.set_major_formatter(AMOUNT)
        else:
            axes.text(0.5, 0.5, "no finite values", ha="center", va="center", color=FAINT, transform=axes.transAxes)
            axes.set(xticks=[], yticks=[])
        axes.set_title(tail(name, 26), size=7.5, weight="normal", pad=4)
        axes.tick_params(labelsize=6.8)
    title = "Values of each tensor; the end bins hold all beyond" + first(names, limit, "tensors")
    figure.suptitle(title, x=0.012, ha="left", size=10.5, weight="bold")
    figure.supylabel("elements per bin (log)", size=8, color=SOFT)
    return Picture(
        figure,
        f"Histograms of the values of {len(shown)} of {len(names)} tensors, counts on a log scale: "
        f"{', '.join(shown[:8])}{' …' if len(shown) > 8 else ''}.",
    )


@drawn
def norm_weights(weights: Mapping[str, Any], *, limit: int = 24) -> Picture:
    """Each norm's weight vector as a strip of ticks, with its mean, smallest and largest entry.

    Args:
        weights: norm → vector.
        limit: norms shown at most.
    """
    if not weights:
        return nothing("The checkpoint holds no norm weights.")
    names = list(weights)
    rows = [(name, floats(weights[name]).ravel()) for name in names[:limit]]
    finite = {name: values[np.isfinite(values)] for name, values in rows}
    everything = np.concatenate([*finite.values(), np.zeros(0)])
    figure = new(0.95 + 0.36 * len(rows))
    axes = figure.add_subplot()
    said = []
    for y, (name, values) in enumerate(rows):
        kept = finite[name]
        if kept.size:
            axes.vlines(kept, y - 0.3, y + 0.3, color=FITTED, lw=0.6, alpha=min(1.0, 0.1 + 12 / kept.size))
            axes.plot([kept.mean()], [y], marker="o", ms=5, color="white", mec=INK, mew=1.2, zorder=4)
            numbers = f"{amount(kept.mean())}   [{amount(kept.min())}, {amount(kept.max())}]"
            said.append((name, f"mean {amount(kept.mean())} from {amount(kept.min())} to {amount(kept.max())}"))
        else:
            numbers = "no finite values"
            said.append((name, numbers))
        lost = values.size - kept.size
        beside(axes, y, numbers + (f"  {lost} NaN/Inf" if lost else ""))
    if everything.size and everything.min() > 0 and everything.max() > 50 * everything.min():
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(AMOUNT)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel="value of an entry")
    axes.set_yticks(range(len(rows)), [f"{tail(n, 36)}  [{v.size:,}]" for n, v in rows])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(False)
    axes.grid(True, axis="x")
    axes.text(
        1.015, -0.75, "mean   [min, max]", transform=axes.get_yaxis_transform(), size=7.5, color=FAINT, va="bottom"
    )
    axes.set_title("Norm weights, one tick an entry, ○ the mean" + first(names, limit, "norms"))
    return Picture(figure, f"Entries of {len(rows)} norm weights: {listing(said, 12)}.")


@drawn
def vocab_curve(hot_token_id: Any, *, vocab: int) -> Picture:
    """The target id of every draft id, and below it the offset that ``d2t`` adds.

    Args:
        hot_token_id: target id of each draft id [Vd].
        vocab: V of the target.
    """
    ids = floats(hot_token_id).ravel()
    if not ids.size:
        return nothing("The draft has no vocabulary map.")
    drafts = np.arange(ids.size)
    figure = new(4.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    top.plot(drafts, ids, ".", ms=1.8, color=FITTED, mec="none", rasterized=True)
    top.plot([0, ids.size - 1], [0, ids.size - 1], color=OTHER, lw=1.1, ls=(0, (4, 3)))
    end = ids.size * 0.99
    note(top, "identity: draft id = target id", (end, end), (0, -9), ha="right", va="top", color=FAINT)
    top.axhline(vocab, color=LINE, lw=1)
    note(top, f"V = {count(vocab)}", (0, vocab), (2, -3), va="top", color=FAINT)
    outside = (ids < 0) | (ids >= vocab)
    if outside.any():
        top.plot(drafts[outside], ids[outside], "x", ms=5, color=INK, mew=1)
        text = f"× {int(outside.sum()):,} ids outside 0 … {vocab - 1:,}"
        note(top, text, (0.5, 0.97), xycoords="axes fraction", ha="center", va="top", color=INK)
    bottom.plot(drafts, ids - drafts, ".", ms=1.8, color=FITTED, mec="none", rasterized=True)
    top.set(
        ylabel="target id",
        title=f"hot_token_id = d2t + arange: {count(ids.size)} draft ids in a vocabulary of {count(vocab)}",
    )
    bottom.set(ylabel="offset (d2t)", xlabel="draft id", xlim=(-ids.size * 0.01, ids.size * 1.01))
    for axes in (top, bottom):
        axes.yaxis.set_major_formatter(AMOUNT)
        axes.xaxis.set_major_formatter(AMOUNT)
    offsets = ids - drafts
    alt = (
        f"Target id against draft id for {count(ids.size)} draft ids in a vocabulary of {count(vocab)}: from "
        f"{count(ids[0])} to {count(ids[-1])}, offsets between {count(np.nanmin(offsets))} and "
        f"{count(np.nanmax(offsets))}; {count(outside.sum())} ids lie outside the vocabulary."
    )
    return Picture(figure, alt)


@drawn
def coverage(shares: Mapping[str, tuple[int, int]], *, ceiling: float | None, steps: int, limit: int = 40) -> Picture:
    """Share of each sample's reply tokens that the draft vocabulary holds, lowest first.

    Args:
        shares: sample → (tokens covered, reply tokens).
        ceiling: accept length that a perfect draft with this vocabulary could reach, None when unknown.
        steps: K behind the ceiling.
        limit: samples shown at most, the lowest.
    """
    rows = sorted(((h / t, name, h, t) for name, (h, t) in shares.items() if t), key=lambda row: row[0])
    if not rows:
        return nothing("No sample has reply tokens, so coverage cannot be drawn.")
    hits, total = sum(row[2] for row in rows), sum(row[3] for row in rows)
    overall = hits / total
    shown = rows[:limit]
    figure = new(1.05 + 0.2 * max(len(shown), 3))
    axes = figure.add_subplot()
    y = np.arange(len(shown))
    axes.hlines(y, overall, [row[0] for row in shown], color=LINE, lw=2)
    axes.plot([row[0] for row in shown], y, "o", color=FITTED, clip_on=False, zorder=5)
    axes.axvline(overall, color=SOFT, lw=1)
    at_top = ("data", "axes fraction")
    note(axes, f"all: {overall:.3f} of {total:,} tokens", (overall, 1), (0, 4), xycoords=at_top, ha="center")
    for place, (share, _, covered, of) in enumerate(shown):
        beside(axes, place, f"{share:.3f}  {covered:,} of {of:,}")
    rows_of(axes, [label(row[1], 28) for row in shown])
    low = min(row[0] for row in shown)
    axes.set_xlim(low - max(0.05 * (1 - low), 0.004), 1.0)
    axes.set_xlabel("share of reply tokens in the draft vocabulary")
    more = (
        f"; a perfect draft reaches {ceiling:.2f} tokens a round at K = {steps}"
        if ceiling is not None and known(ceiling)
        else ""
    )
    names = [row[1] for row in rows]
    axes.set_title("Coverage of the draft vocabulary" + more + first(names, limit, "samples"), pad=22)
    alt = (
        f"The draft vocabulary covers {overall:.3f} of {total:,} reply tokens in {len(rows)} samples, from "
        f"{rows[0][0]:.3f} ({rows[0][1]}) to {rows[-1][0]:.3f} ({rows[-1][1]}){more}."
    )
    return Picture(figure, alt)
