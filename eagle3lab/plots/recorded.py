"""Pictures of what a recording's rows belong to, and of parts of a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from eagle3lab.plots.picture import (
    FITTED,
    LINE,
    OTHER,
    SOFT,
    Picture,
    beside,
    drawn,
    label,
    listing,
    new,
    note,
    nothing,
    rows_of,
)


@drawn
def agreement_by_lag(shares: Mapping[int, tuple[int, int]]) -> Picture:
    """Share of recorded next tokens that the last state predicts, if its rows were so many places further on.

    Args:
        shares: lag → (right next tokens, rows).
    """
    rows = {lag: hits / n for lag, (hits, n) in sorted(shares.items()) if n}
    if not rows:
        return nothing("No last state could be sent through the target's head, so no lag was tried.")
    figure = new(2.4)
    axes = figure.add_subplot()
    lags, values = np.array(list(rows)), np.array(list(rows.values()))
    best = int(lags[values.argmax()])
    axes.vlines(lags, 0, values, color=LINE, lw=3)
    axes.plot(lags, values, "o", color=OTHER, ms=4)
    axes.plot([best], [rows[best]], "o", color=FITTED, ms=7, zorder=5)
    note(axes, f"lag {best:+d}: {rows[best]:.3f} of {shares[best][1]:,} rows", (best, rows[best]), (10, 0), va="center")
    axes.set(ylim=(0, 1.08), xlabel="lag: row r holds the state of token r + lag", ylabel="right next tokens",
             title="Whose rows are they? The last state's own predictions against the tokens, lag by lag")  # fmt: skip
    others = [value for lag, value in rows.items() if lag != best]
    rest = f", at every other lag {max(others):.3f} or less" if others else ""
    return Picture(
        figure, f"Right next tokens by lag: {rows[best]:.3f} of {shares[best][1]:,} rows at lag {best:+d}{rest}."
    )


@drawn
def coverage_by_kind(shares: Mapping[str, tuple[int, int]]) -> Picture:
    """Share of reply tokens in the draft vocabulary by kind of text, the most frequent kind first.

    Args:
        shares: kind → (tokens covered, all of them).
    """
    rows = sorted(((n, kind, hits) for kind, (hits, n) in shares.items() if n), reverse=True)
    if not rows:
        return nothing("No token has a text (no tokenizer, or no reply), so kinds of text cannot be told apart.")
    figure = new(1.05 + 0.24 * max(len(rows), 3))
    axes = figure.add_subplot()
    values = [hits / n for n, _, hits in rows]
    y = np.arange(len(rows))
    total = sum(n for n, _, _ in rows)
    overall = sum(hits for _, _, hits in rows) / total
    axes.hlines(y, overall, values, color=LINE, lw=2)
    # as large as their share of the text: a rare kind may be lost at no cost
    axes.scatter(y=y, x=values, s=[18 + 220 * n / total for n, _, _ in rows], color=FITTED, zorder=5, clip_on=False)
    axes.axvline(overall, color=SOFT, lw=1)
    for place, ((n, _, _), value) in enumerate(zip(rows, values, strict=True)):
        beside(axes, place, f"{value:.3f} of {n:,}")
    rows_of(axes, [label(kind, 28) for _, kind, _ in rows])
    low = min(values)
    axes.set_xlim(low - max(0.05 * (1 - low), 0.004), 1.0)
    axes.set(
        xlabel="share in the draft vocabulary",
        title=f"Coverage by kind of text, {total:,} reply tokens; larger dots are frequent kinds",
    )
    said = [(kind, f"{value:.3f} of {n:,}") for (n, kind, _), value in zip(rows, values, strict=True)]
    return Picture(figure, f"Coverage of the draft vocabulary by kind of text, overall {overall:.3f}: {listing(said)}.")
