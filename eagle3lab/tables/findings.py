"""Findings, as a table for a notebook and as text for a terminal; and all notebooks' verdicts side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from great_tables import GT, loc, style

from eagle3lab.records import Finding, Severity, by_severity
from eagle3lab.tables.html import FAINT, MONO, SEVERITY, badge, esc, great, lines, small

ANSI = {"FAIL": "31;1", "WARN": "33;1", "PASS": "32", "BLOCKED": "35", "UNSUPPORTED": "35", "UNDETERMINED": "35"}
"""Terminal colours by severity, asked for only with ``colour=True``."""
WIDE = 100
MARGIN = 16


def findings(findings: Sequence[Finding], *, sentence: str = "") -> GT:
    """The findings, worst first; what passed is one condensed row at the end.

    Args:
        findings: in any order.
        sentence: the verdict in one plain sentence, shown above.
    """
    ordered = by_severity(list(findings))
    told = [f for f in ordered if f.severity != Severity.PASS]
    passed = [f for f in ordered if f.severity == Severity.PASS]
    rows = [_row(f) for f in told]
    if passed:
        names = [f'<span style="white-space:nowrap">{_code(f.code)}</span> {esc(f.title)}' for f in passed]
        found = {"severity": badge("PASS"), "code": f"{len(passed)} checks" if len(passed) > 1 else "1 check"}
        rows.append({**found, "finding": small("; ".join(names)), "measured": "", "remedy": ""})
    if not rows:
        rows = [{"severity": "", "code": "", "finding": small("Nothing was checked."), "measured": "", "remedy": ""}]
    frame = pd.DataFrame(rows)
    tally = [f"{n} {severity}" for severity in Severity if (n := sum(f.severity == severity for f in ordered))]
    title = f'<span style="font-weight:650">{lines(sentence) if sentence else "Findings"}</span>'
    table = great(frame, "findings", title=title, subtitle=small(", ".join(tally), FAINT))
    table = table.cols_label(severity="", code="", finding="finding", measured="measured", remedy="what to do")
    # shares of the column it stands in, so that nothing is cut off beside JupyterLab's side bar
    table = table.cols_align("left").cols_width(severity="13%", code="8%", finding="29%", measured="28%", remedy="22%")
    table = table.tab_options(table_width="100%")
    return table.tab_style(style.css("vertical-align: top; overflow-wrap: break-word;"), loc.body())


def _code(code: str) -> str:
    return f'<span style="font-family:{MONO};font-size:.9em">{esc(code)}</span>'


def _row(f: Finding) -> dict[str, str]:
    measured = lines(f.measured)
    if f.expected:
        measured += ("<br>" if measured else "") + f"{small('expected')} {lines(f.expected)}"
    if f.evidence:
        measured += ("<br>" if measured else "") + small(lines(f.evidence), FAINT)
    where = f"<br>{small(esc(f.where), FAINT)}" if f.where else ""
    strong = "600" if f.severity in (Severity.FAIL, Severity.WARN) else "400"
    return {
        "severity": badge(f.severity),
        "code": _code(f.code),
        "finding": f'<span style="font-weight:{strong}">{lines(f.title)}</span>{where}',
        "measured": measured,
        "remedy": lines(f.remedy),
    }


def findings_text(findings: Sequence[Finding], *, colour: bool = False) -> str:
    """The findings for a terminal: worst first, aligned, wrapped at 100 columns; what passed on few lines.

    Args:
        findings: in any order.
        colour: with ANSI colours on the severities.
    """
    ordered = by_severity(list(findings))
    if not ordered:
        return "Nothing was checked."
    blocks = []
    for f in ordered:
        if f.severity != Severity.PASS:
            parts = [
                ("", f"{f.title}"),
                ("where", f.where),
                ("measured", f.measured),
                ("expected", f.expected),
                ("evidence", f.evidence),
                ("do", f.remedy),
            ]
            blocks.append(_block(f.severity, f.code, [(name, text) for name, text in parts if text], colour))
    passed = [f for f in ordered if f.severity == Severity.PASS]
    if passed:
        codes = ", ".join(dict.fromkeys(f.code for f in passed))
        blocks.append(_block(Severity.PASS, "", [("", f"{len(passed)} checks: {codes}")], colour))
    tally = ", ".join(f"{n} {s}" for s in Severity if (n := sum(f.severity == s for f in ordered)))
    return "\n\n".join([*blocks, tally])


def _block(severity: Severity, code: str, parts: list[tuple[str, str]], colour: bool) -> str:
    # Control characters of a tensor's name or a token must not reach the terminal.
    head = f"{severity:<14}"
    if colour:
        head = f"\x1b[{ANSI.get(str(severity), '36')}m{head}\x1b[0m"
    out: list[str] = []
    for place, (name, text) in enumerate(parts):
        first = f"{code}  " if place == 0 and code else f"{name:<10}" if name else ""
        indent = " " * MARGIN + (" " * len(first) if place else "      ")
        safe = "".join(c if c.isprintable() else " " if c in "\n\t" else repr(c)[1:-1] for c in text)
        wrapped = textwrap.wrap(safe, WIDE, initial_indent=" " * MARGIN + first, subsequent_indent=indent)
        out += wrapped or [" " * MARGIN + first]
    return head + "  " + out[0][MARGIN:] + "".join("\n" + line for line in out[1:])


def overview(rows: Sequence[Mapping[str, Any]]) -> GT:
    """Every notebook's verdict: question, severity, sentence, tally of its findings.

    Args:
        rows: ``notebook``, ``question``, ``severity`` (empty when it has not run), ``sentence``, ``findings``
            (records or their dicts).
    """
    out = []
    for row in rows:
        severities = [str(f["severity"] if isinstance(f, Mapping) else f.severity) for f in row.get("findings") or ()]
        tally = ", ".join(f"{n} {s}" for s in SEVERITY if (n := severities.count(s)))
        name = str(row.get("notebook", ""))
        severity = str(row.get("severity") or "")
        out.append(
            {
                "notebook": f'<a href="{esc(name)}.ipynb">{esc(name)}</a>',
                "question": esc(row.get("question", "")),
                "severity": badge(severity) if severity else small("not run", FAINT),
                "sentence": lines(row.get("sentence", "")),
                "findings": small(esc(tally) or "–", FAINT),
            }
        )
    columns = ["notebook", "question", "severity", "sentence", "findings"]
    table = great(pd.DataFrame(out, columns=columns), "overview").cols_label(
        severity="verdict", sentence="in one sentence"
    )
    return table.cols_align("left").tab_style(style.css("vertical-align: top;"), loc.body())
