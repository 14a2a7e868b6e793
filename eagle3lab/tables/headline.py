"""The headline tables: acceptance, serving runs, the draft's candidates beside the recorded tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from great_tables import GT, loc, style

from eagle3lab.tables.html import (
    CONFIGURED,
    ENGINE,
    FAINT,
    FITTED,
    GOOD,
    INK,
    MONO,
    OPEN,
    PREDICTED,
    SOFT,
    TRAINING,
    count,
    esc,
    great,
    interval,
    lines,
    number,
    rate,
    rates,
    small,
    visible,
)

DOTS = {
    "configured": CONFIGURED,
    "fitted": FITTED,
    "engine": ENGINE,
    "measured": ENGINE,
    "training": TRAINING,
    "trained": TRAINING,
    "predicted": PREDICTED,
}


def _named(label: Any) -> str:
    """The label, its colour in the pictures before it."""
    words = str(label).split()
    colour = DOTS.get(words[0].lower().strip(":,(") if words else "")
    dot = f'<span style="color:{colour}">●</span> ' if colour else ""
    return f'<span style="white-space:nowrap">{dot}{esc(label)}</span>'


def _strong(text: str) -> str:
    return f'<span style="font-weight:650">{text}</span>'


def acceptance(rows: Sequence[Mapping[str, Any]], *, definition: str = "") -> GT:
    """Accept length and rates per draft step, a reading a row.

    Args:
        rows: ``label``, ``accept_length``, ``low``, ``high``, ``rounds``, ``accuracy``, ``cumulative``,
            ``conditional`` (K rates each).
        definition: what the numbers mean; shown under the table.
    """
    out = [
        {
            "label": _named(row["label"]),
            "length": _strong(rate(row.get("accept_length"))) + " " + small(interval(row.get("low"), row.get("high"))),
            "rounds": count(row.get("rounds")),
            "accuracy": small(rates(row.get("accuracy")), INK),
            "cumulative": small(rates(row.get("cumulative")), INK),
            "conditional": small(rates(row.get("conditional")), INK),
        }
        for row in rows
    ]
    frame = pd.DataFrame(out, columns=["label", "length", "rounds", "accuracy", "cumulative", "conditional"])
    notes = [small(lines(definition))] if definition else []
    table = great(frame, "acceptance", notes=notes).cols_label(
        label="reading",
        length="accept length",
        accuracy="accuracy by step",
        cumulative="accepted by position, cumulative",
        conditional="conditional",
    )
    return _numbers(table, ["length", "rounds", "accuracy", "cumulative", "conditional"])


def runs(rows: Sequence[Mapping[str, Any]]) -> GT:
    """Serving runs: what the engine measured beside what the lab predicts for the same boundaries.

    Args:
        rows: ``name``, ``engine``, ``boundaries``, ``k``, ``measured``, ``predicted``, ``low``, ``high``,
            ``drafts``, ``tokens_per_second``, ``equal`` (requests whose accepted counts agree step by step, in words),
            ``why`` (what is to be said of the measured figure, or why there is none), ``unpredicted`` (why there is no
            prediction).
    """
    out = []
    for row in rows:
        measured, predicted = number(row.get("measured")), number(row.get("predicted"))
        apart = measured - predicted
        out.append(
            {
                "name": _strong(esc(row["name"])) + f"<br>{small(esc(row.get('engine') or ''), FAINT)}",
                "boundaries": esc(row.get("boundaries") or "–"),
                "k": esc(row.get("k") if row.get("k") else "–"),
                "measured": _strong(rate(measured))
                + (f"<br>{small(count(row.get('drafts')) + ' rounds', FAINT)}" if row.get("drafts") else "")
                + _reason(row.get("why")),
                "predicted": _strong(rate(predicted))
                + f"<br>{small(interval(row.get('low'), row.get('high')), FAINT)}"
                + _reason(row.get("unpredicted")),
                "apart": f"{apart:+.3f}" if apart == apart else "–",
                "speed": rate(row.get("tokens_per_second"), 1),
                "equal": esc(row.get("equal") or "–"),
            }
        )
    columns = ["name", "boundaries", "k", "measured", "predicted", "apart", "speed", "equal"]
    table = great(pd.DataFrame(out, columns=columns), "runs", notes=[small("accept length: 1 + accepted / rounds")])
    table = table.cols_label(
        name="run",
        k="K",
        measured="measured",
        predicted="predicted",
        apart="measured − predicted",
        speed="tokens/s",
        equal="requests equal step by step",
    )
    return _numbers(table, ["k", "measured", "predicted", "apart", "speed"])


def _reason(words: Any) -> str:
    """Why a cell holds no figure, or what is to be said of it; it may wrap, the figures may not."""
    look = "display:block;white-space:normal;min-width:11em"
    return f'<span style="{look}">{small(esc(words))}</span>' if words else ""


def _numbers(table: GT, columns: list[str]) -> GT:
    table = table.cols_align("left").cols_align("right", columns)
    css = "font-variant-numeric: tabular-nums; white-space: nowrap;"
    table = table.tab_style(style.css(css), loc.body(columns=columns))
    return table.tab_style(style.css("vertical-align: top;"), loc.body())


def predictions(rows: Sequence[Mapping[str, Any]]) -> GT:
    """The draft's candidates beside the recorded token, a position a row; hits marked, tokens it cannot say named.

    Args:
        rows: ``position``, ``fed``, ``truth``, ``rank`` (0 the best; below 0 or None outside the draft vocabulary),
            ``probability`` of the truth, ``candidates``: (text, probability, is_truth), best first.
    """
    most = max((len(row["candidates"]) for row in rows), default=0)
    out = []
    for row in rows:
        rank = row.get("rank")
        outside = rank is None or number(rank) < 0
        verdict = (
            _chip("not in draft vocab", OPEN)
            if outside
            else _chip("✓ first", GOOD)
            if rank == 0
            else f"no. {int(number(rank)) + 1}"
        )
        cells = {f"c{i}": _candidate(*row["candidates"][i]) if i < len(row["candidates"]) else "" for i in range(most)}
        out.append(
            {
                "position": count(row["position"]),
                "fed": _token(row["fed"]),
                "truth": _strong(_token(row["truth"])),
                "rank": verdict,
                "p": "–" if outside else rate(row.get("probability")),
                **cells,
            }
        )
    frame = pd.DataFrame(out, columns=["position", "fed", "truth", "rank", "p", *(f"c{i}" for i in range(most))])
    notes = ["" if rows else small("No position to show: the reply is shorter than this step.")]
    table = great(frame, "predictions", notes=[n for n in notes if n])
    table = table.cols_label(
        {
            "fed": "token fed in",
            "truth": "recorded next",
            "rank": "its place",
            "p": "its probability",
            **{f"c{i}": f"{i + 1}" for i in range(most)},
        }
    )
    return _numbers(table, ["position", "p"])


def _token(text: Any) -> str:
    shown = esc(visible(text)[1:-1]).replace(" ", "·")
    return f'<span style="font-family:{MONO};font-size:.92em;white-space:pre">{shown}</span>'


def _chip(text: str, colours: tuple[str, str]) -> str:
    look = f"color:{colours[0]};background:{colours[1]};border-radius:4px;padding:.05em .4em;white-space:nowrap"
    return f'<span style="{look}">{text}</span>'


def _candidate(text: Any, probability: Any, is_truth: bool) -> str:
    cell = f"{_token(text)} {small(rate(probability, 2), SOFT)}"
    if not is_truth:
        return f'<span style="white-space:nowrap">{cell}</span>'
    look = f"background:{GOOD[1]};border-bottom:2px solid {GOOD[0]};padding:.05em .3em;white-space:nowrap"
    return f'<span style="{look}">{cell}</span>'
