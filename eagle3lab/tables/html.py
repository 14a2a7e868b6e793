"""What tables share: escaping, badges, number formats, and a DataFrame that a notebook shows in full."""

from __future__ import annotations

import html as escaping
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from great_tables import GT
from great_tables import html as raw

CONFIGURED, FITTED, ENGINE, TRAINING, PREDICTED = "#d55e00", "#0072b2", "#2b3038", "#009e73", "#8a4f9e"
"""As in the pictures (a test holds the two together)."""
INK, SOFT, FAINT, LINE = "#1d2430", "#4a5361", "#7d8694", "#d8dce2"

FAIL, WARN, NOTE = ("#a4262c", "#fbe9e8"), ("#8a5300", "#fdf0d8"), ("#3f4f6b", "#e9edf4")
OPEN, GOOD = ("#5b3d8a", "#efe9f8"), ("#1f6b3a", "#e3f3e8")
SEVERITY = {
    "FAIL": FAIL,
    "WARN": WARN,
    "LIMIT": NOTE,
    "BLOCKED": OPEN,
    "UNSUPPORTED": OPEN,
    "UNDETERMINED": OPEN,
    "NOT COMPARABLE": NOTE,
    "INFO": NOTE,
    "PASS": GOOD,
}
"""Severity → text and background; the report's pages use the same."""

MOST = 60
"""Rows of an exploration table that a notebook shows; the DataFrame holds them all."""
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', sans-serif"
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'Liberation Mono', monospace"


CELLS = (
    "<style>table.dataframe.lab{border-collapse:collapse;font-size:.83em;font-variant-numeric:tabular-nums}"
    "table.dataframe.lab th,table.dataframe.lab td{text-align:left;vertical-align:top;padding:.3em .45em;border:0;"
    "border-bottom:1px solid rgba(128,136,148,.28)}table.dataframe.lab th{font-weight:500}"
    "table.dataframe.lab thead th{font-weight:600}"
    "table.dataframe.lab .n{text-align:right;white-space:nowrap}table.dataframe.lab .s{white-space:nowrap}"
    "</style>"
)
"""How an exploration table looks: no colours of its own, so that it fits a dark theme as well as a light one."""


@dataclass(frozen=True)
class Html:
    """A piece of HTML that a notebook shows, with its plain text for a terminal."""

    html: str
    text: str = ""

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text or self.html


class Table(pd.DataFrame):
    """A DataFrame of finished texts; in a notebook it shows whole cells, words to the left, numbers to the right."""

    @property
    def _constructor(self) -> type[Table]:
        return Table

    def _repr_html_(self) -> str:
        if not len(self):
            empty = esc(self.attrs.get("empty", "no rows"))
            return f'<p style="color:{FAINT};font-style:italic;margin:.3em 0">{empty}</p>'
        shown = self.head(MOST)
        right = [_numeric(shown.iloc[:, i]) for i in range(shown.shape[1])]
        names = [*([self.index.name or ""]), *map(str, self.columns)]
        head = "".join(_cell("th", n, r) for n, r in zip(names, [False, *right], strict=True))
        head = f"<thead><tr>{head}</tr></thead>" if self.attrs.get("head", True) else ""
        rows = []
        for key, values in zip(shown.index, shown.itertuples(index=False, name=None), strict=True):
            cells = "".join(_cell("td", value, r) for value, r in zip(values, right, strict=True))
            rows.append(f"<tr>{_cell('th', key, False)}{cells}</tr>")
        more = f"the first {MOST} of {len(self):,} rows" if len(self) > MOST else ""
        caption = "; ".join(filter(None, [more, str(self.attrs.get("note", ""))]))
        foot = f'<p style="font-size:.82em;opacity:.75;margin:.35em 0">{esc(caption)}</p>' if caption else ""
        return (
            f'<div style="overflow-x:auto">{CELLS}<table class="dataframe lab">{head}'
            f"<tbody>{''.join(rows)}</tbody></table>{foot}</div>"
        )


def table(rows: Sequence[Mapping[str, Any]], index: str, *, empty: str = "no rows", note: str = "") -> Table:
    """Rows of finished texts as a `Table`, the column ``index`` in front."""
    found = (
        Table(pd.DataFrame(list(rows), dtype=object).set_index(index))
        if rows
        else Table(index=pd.Index([], name=index))
    )
    found.attrs.update(empty=empty, note=note)
    return found


def sections(parts: Sequence[tuple[str, Table, bool]]) -> Html:
    """Tables one after another, each under its title with its number of rows.

    Args:
        parts: title, table, and whether it is shown at once; the others unfold on a click, and without a script.
    """
    out, text = [], []
    for title, found, shown in parts:
        head = f"{title}: {len(found):,}"
        rows = found._repr_html_()
        out.append(
            f'<details{" open" if shown else ""} style="margin:.5em 0"><summary style="cursor:pointer;font-weight:600">'
            f"{esc(head)}</summary>{rows}</details>"
        )
        text.append(f"{head}\n{found.to_string()}" if len(found) else head)
    return Html("".join(out), "\n\n".join(text))


NUMBER = re.compile(r"[-−+]?[\d.,]+(e[-+]?\d+)?( ?[kMGT]?B)?")
LONG = re.compile(r"[^\s<>]{24,}")


def _numeric(column: Any) -> bool:
    told = [text for v in column if (text := str(v).strip()) not in ("", "–", "NaN")]
    return bool(told) and all(NUMBER.fullmatch(text) for text in told)


def _cell(tag: str, value: Any, right: bool) -> str:
    text = str(value)
    kind = " class=n" if right else " class=s" if text.startswith("[") and len(text) < 30 else ""
    return f"<{tag}{kind}>{_breakable(esc(text))}</{tag}>"


def _breakable(escaped: str) -> str:
    """Long names may break after a dot or slash; without any, after an underscore."""

    def breaks(word: re.Match[str]) -> str:
        return re.sub(r"([./])(?=\w)" if re.search(r"[./]\w", word[0]) else r"(_)(?=\w)", r"\1<wbr>", word[0])

    return LONG.sub(breaks, escaped)


def esc(text: Any) -> str:
    """``text`` escaped for HTML, quotes included."""
    return escaping.escape(str(text), quote=True)


def lines(text: Any) -> str:
    """Escaped text whose line breaks stay; what stands in backticks is set as code."""
    code = rf'<span style="font-family:{MONO};font-size:.92em">\1</span>'
    return re.sub(r"`([^`\n]+)`", code, _breakable(esc(text))).replace("\n", "<br>")


def badge(severity: Any) -> str:
    """The severity's word on its colour."""
    ink, paper = SEVERITY.get(str(severity), NOTE)
    return (
        f'<span style="display:inline-block;padding:.15em .6em;border-radius:99px;white-space:nowrap;font-weight:650;'
        f'font-size:.8em;letter-spacing:.04em;color:{ink};background:{paper}">{esc(severity) or "–"}</span>'
    )


def small(text: str, colour: str = SOFT) -> str:
    """``text`` (HTML) smaller and softer."""
    return f'<span style="font-size:.86em;color:{colour}">{text}</span>'


def number(value: Any) -> float:
    """``value`` as a float, NaN for None or a word that is none."""
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError):
        return float("nan")


def rate(value: Any, digits: int = 3) -> str:
    """``0.619``; a dash when not known."""
    value = number(value)
    return f"{value:.{digits}f}" if math.isfinite(value) else "–"


def rates(values: Sequence[Any] | None) -> str:
    """``0.619 0.538 …``."""
    return " ".join(rate(v) for v in values) if values is not None and len(values) else "–"


def interval(low: Any, high: Any, digits: int = 3) -> str:
    """``[2.09, 2.30]``, empty when not known."""
    known = math.isfinite(number(low)) and math.isfinite(number(high))
    return f"[{rate(low, digits)}, {rate(high, digits)}]" if known else ""


def count(value: Any) -> str:
    """``1,172``; a dash when not known."""
    value = number(value)
    return f"{int(value):,}" if math.isfinite(value) else "–"


def size(value: Any) -> str:
    """Bytes as a person reads them, decimal units."""
    value = number(value)
    if not math.isfinite(value):
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def figure(value: Any) -> str:
    """A measured number of any size in three digits."""
    value = number(value)
    if 1000 <= abs(value) < 1e5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if math.isfinite(value) else "NaN" if math.isnan(value) else str(value)


def visible(text: Any) -> str:
    """A token's text with its spaces and control characters visible, in quotes."""
    return repr(str(text))


def great(frame: pd.DataFrame, name: str, *, title: str = "", subtitle: str = "", notes: Sequence[str] = ()) -> GT:
    """A great table of cells that are HTML already, in the lab's look; title, subtitle and notes are HTML too."""
    found = GT(frame, id=f"lab-{name}").fmt(str).opt_table_font(font=["system-ui", "Segoe UI", "Roboto", "sans-serif"])
    if title or subtitle:
        found = found.tab_header(raw(title or "&nbsp;"), raw(subtitle) if subtitle else None)
    for text in notes:
        found = found.tab_source_note(raw(text))
    return found.tab_options(
        table_font_size="13px",
        table_font_color=INK,
        table_background_color="#ffffff",
        table_margin_left="0",
        table_width="auto",
        heading_align="left",
        heading_title_font_size="15px",
        heading_title_font_weight="650",
        heading_subtitle_font_size="13px",
        column_labels_font_weight="600",
        column_labels_font_size="12px",
        data_row_padding="6px",
        source_notes_font_size="12px",
        table_border_top_style="none",
        table_border_bottom_color=LINE,
        heading_border_bottom_color=LINE,
        column_labels_border_top_style="none",
        column_labels_border_bottom_color=LINE,
        table_body_hlines_color="#eceef2",
        table_body_border_bottom_color=LINE,
    )
