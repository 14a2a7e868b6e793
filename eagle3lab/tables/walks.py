"""Tables of acceptance taken apart: by definition, by tree, by group of tokens, at a temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from great_tables import GT, loc, style

from eagle3lab.tables.html import FAINT, INK, Html, count, esc, great, interval, lines, number, rate, rates, small


def _strong(text: str) -> str:
    return f'<span style="font-weight:650">{text}</span>'


def _finished(frame: pd.DataFrame, name: str, numbers: Sequence[str], notes: Sequence[str] = ()) -> GT:
    table = great(frame, name, notes=[small(lines(text)) for text in notes if text])
    table = table.cols_align("left").cols_align("right", list(numbers))
    css = "font-variant-numeric: tabular-nums; white-space: nowrap;"
    table = table.tab_style(style.css(css), loc.body(columns=list(numbers)))
    return table.tab_style(style.css("vertical-align: top;"), loc.body())


def _with_interval(row: Mapping[str, Any], value: str = "value", low: str = "low", high: str = "high") -> str:
    return _strong(rate(row.get(value))) + " " + small(interval(row.get(low), row.get(high)))


def definitions(rows: Sequence[Mapping[str, Any]]) -> GT:
    """One rollout counted in several ways.

    Args:
        rows: ``label``, ``value``, ``low``, ``high``, ``n``, ``words``.
    """
    out = [
        {"label": esc(row["label"]), "value": _with_interval(row), "n": count(row.get("n")),
         "words": small(lines(row.get("words") or ""), INK)}
        for row in rows
    ]  # fmt: skip
    frame = pd.DataFrame(out, columns=["label", "value", "n", "words"])
    table = _finished(frame, "definitions", ["value", "n"])
    return table.cols_label(label="counted over", value="tokens a round", words="what it means")


def trees(rows: Sequence[Mapping[str, Any]]) -> GT:
    """A chain beside trees.

    Args:
        rows: ``label``, ``value``, ``low``, ``high``, ``rounds``, ``nodes``, ``forwards``, ``depths`` (``value`` of
            each), ``words``.
    """
    out = [
        {
            "label": esc(row["label"]),
            "value": _with_interval(row),
            "rounds": count(row.get("rounds")),
            "nodes": count(row.get("nodes")),
            "forwards": count(row.get("forwards")),
            "depths": small(rates([p.get("value") for p in row.get("depths", ())]), INK),
        }
        for row in rows
    ]
    columns = ["label", "value", "rounds", "nodes", "forwards", "depths"]
    notes = [str(row.get("words") or "") for row in rows]
    table = _finished(pd.DataFrame(out, columns=columns), "trees", columns[1:], notes)
    return table.cols_label(
        label="drafts", value="accept length", nodes="verified", forwards="draft steps a round",
        depths="share of rounds that go so deep, at least",
    )  # fmt: skip


def token_costs(rows: Sequence[Mapping[str, Any]], *, by: str = "text kind") -> GT:
    """What each group of tokens costs.

    Args:
        rows: ``group``, ``judged``, ``refused`` (reason → tokens), ``lost``, ``share`` with ``share_low`` and
            ``share_high``, ``a_round`` with ``low`` and ``high``.
        by: what the groups are.
    """
    reasons = ("out of draft vocab", "near miss", "far", "not finite")
    used = [name for name in reasons if any(number((r.get("refused") or {}).get(name)) > 0 for r in rows)]
    out = [
        {
            "group": esc(row["group"]),
            "judged": count(row.get("judged")),
            "share": _with_interval(row, "share", "share_low", "share_high"),
            **{name: count((row.get("refused") or {}).get(name, 0)) for name in used},
            "lost": count(row.get("lost")),
            "a_round": _with_interval(row, "a_round"),
        }
        for row in rows
    ]
    columns = ["group", "judged", "share", *used, "lost", "a_round"]
    notes = ["Drafts lost: the refused one, and those after it in its round that were right with the recorded token "
             "fed in its place. Near miss: among the draft's 4 best."]  # fmt: skip
    table = _finished(pd.DataFrame(out, columns=columns), "costs", columns[1:], notes)
    return table.cols_label(group=by, share="share refused", lost="drafts lost", a_round="lost a round")


def sampling(rows: Sequence[Mapping[str, Any]]) -> GT:
    """Expected acceptance at temperatures.

    Args:
        rows: ``temperature``, ``rule``, ``exact``, ``cumulative``, ``accept_length`` (NaN where later positions are
            not known), ``n``.
    """
    out = []
    for row in rows:
        most = "" if row.get("exact") else "≤ "
        length = number(row.get("accept_length"))
        out.append({
            "temperature": rate(row.get("temperature"), 1),
            "rule": esc(row.get("rule") or ""),
            "length": _strong(most + rate(length)) if length == length else small("first position only", FAINT),
            "cumulative": small(esc(most) + rates(row.get("cumulative")), INK),
            "n": count(row.get("n")),
        })  # fmt: skip
    partial = any(not row.get("exact") for row in rows)
    notes = [
        "Over all rows, expected and not drawn. Position 0 is exact for the recorded prefix; later ones count the rows "
        "whose earlier drafts are the recorded tokens, and near a reply's end those that still have room.",
        "≤: over the rows of the target's head that are held the normaliser is too small, so each probability is at "
        "most this; give the whole target for exact numbers."
        if partial
        else "",
    ]
    frame = pd.DataFrame(out, columns=["temperature", "rule", "length", "cumulative", "n"])
    table = _finished(frame, "sampling", ["temperature", "length", "cumulative", "n"], notes)
    return table.cols_label(length="accept length", cumulative="accepted by position, cumulative", n="rows")


def recorded_choice(found: Mapping[str, Any]) -> Html:
    """Whether the recorded text is the target's own greedy choice, and what follows for acceptance.

    Args:
        found: ``rounds``, ``equal``, ``choice`` (``tokens``, ``greedy``, ``rounds``, ``met``, ``rows``, ``right``,
            ``chosen``, ``held``; None where it cannot be said) and ``missing`` (why).
    """
    said = found.get("choice")
    rounds = (
        f"{count(found.get('equal'))} of {count(found.get('rounds'))} rounds keep the same drafts whether later steps "
    )
    parts = [f"{rounds}read the recorded tokens or the draft's own."]
    if said:
        share, tokens = number(said["greedy"]) / max(number(said["tokens"]), 1), count(said["tokens"])
        parts.append(
            f"{share:.1%} of {tokens} recorded reply tokens are the target's own greedy choice over the "
            f"{count(said.get('held'))} rows held"
            + ("." if share > GREEDY else ": this text is not the target's greedy output, so an engine at "
               "temperature 0 would have written another, and the walk is an estimate.")
        )  # fmt: skip
        parts.append(
            f"{count(said['met'])} of {count(said['rounds'])} rounds judge a token that is not. The first draft equals "
            f"the recorded token in {count(said['right'])} of {count(said['rows'])} rows, the target's choice in "
            f"{count(said['chosen'])}."
        )
    else:
        parts.append(
            f"Whether the text is the target's greedy output is not known: {found.get('missing') or 'not asked'}"
        )
    text = " ".join(parts)
    return Html(f'<p style="margin:.3em 0">{esc(text)}</p>', text)


GREEDY = 0.9
"""Below this share of the target's own choices a text is not its greedy output (as S005 has it)."""
