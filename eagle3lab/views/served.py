"""``eagle3lab serve-as``: how each engine and version would run the checkpoint, for a terminal and for machines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3lab.acceptance import definition
from eagle3lab.case import Case
from eagle3lab.checks.inputs import places, shown
from eagle3lab.checks.served import MOST, Way, ways
from eagle3lab.dialects import resolve
from eagle3lab.errors import LabError
from eagle3lab.reading import Reading
from eagle3lab.records import Interval
from eagle3lab.views.search import served_row

SCHEMA = 1
WIDTH = 100
"""Columns at which a difference in words is wrapped."""


def serve_as(case: Case, engines: Sequence[str] = ()) -> dict[str, Any]:
    """How each engine would run the checkpoint as its config stands: a run's own ``aux_ids`` are not used.

    Args:
        case: without samples it has readings, and neither differences nor accept lengths.
        engines: names, alone or with a version; all known versions when empty.

    Returns:
        ``schema``, ``title``, ``definition`` of the accept lengths, ``samples`` behind them, ``fitted`` (``reading``
        and ``accept_length``; null where nothing could be fitted, ``why`` then says so), and ``served``: program →
        ``reading``, ``boundaries``, ``differs`` (words), ``diff`` (field → [fitted, its own]), ``accept_length``,
        ``dropped``, ``replaced``, ``invented``, ``refused``, ``notes``.

    Raises:
        BadOption: an engine that is not known.
    """
    everyone = resolve.everyone(case.draft.arch, case.layers, case.target_type, engines)
    found = {way.program: _plain(way) for way in ways(case, everyone)}
    why, fitted, count = "", None, 0
    try:
        scan, count = case.scan, min(len(case.samples.headline), MOST)
        names = [w for w in ways(case, {"fitted": resolve.Interpretation("fitted", scan.fitted)}) if w.length]
        fitted = {"reading": scan.fitted.to_dict(), "accept_length": _interval(names[0].length if names else None)}
        if not scan.fits:
            why = "no reading fits this recording (F005): these accept lengths say nothing of another"
        elif scan.lag or scan.form:
            why = "the recording's rows are displaced or its last state has another form (F010): mend it first"
    except LabError as error:
        why = f"nothing could be fitted, so no accept length: {shown(error.line, case.root, places(case.file))}"
    return {"schema": SCHEMA, "title": case.title, "definition": definition(case.steps), "samples": count,
            "fitted": fitted, "why": why, "served": found}  # fmt: skip


def _plain(way: Way) -> dict[str, Any]:
    found, row = way.found, served_row(way)
    own: Reading | None = way.found.reading
    diff = None if way.diff is None else {name: [_json(a), _json(b)] for name, (a, b) in way.diff.items()}
    return {"reading": own.to_dict() if own else None, "boundaries": row["boundaries"], "differs": row["differs"],
            "diff": diff, "accept_length": _interval(way.length), "dropped": list(found.dropped),
            "replaced": list(found.replaced),
            "invented": list(found.invented), "refused": list(found.refused), "notes": list(found.notes)}  # fmt: skip


def _interval(length: Interval | None) -> dict[str, Any] | None:
    if length is None or not math.isfinite(length.value):
        return None
    low, high = (end if math.isfinite(end) else None for end in (length.low, length.high))
    return {"value": length.value, "low": low, "high": high, "rounds": length.n}


def _json(value: Any) -> Any:
    return [_json(v) for v in value] if isinstance(value, tuple) else value


def in_words(content: Mapping[str, Any]) -> str:
    """What `serve_as` returns, as a table for a terminal."""
    name = max([len(program) for program in (*content["served"], "engine")])
    head = [" ".join(str(content["title"]).split())]
    if content["fitted"]:
        fitted = content["fitted"]
        head.append(f"fitted: {Reading.from_dict(fitted['reading'])}; accept length {_number(fitted['accept_length'])}")
        head.append(f"accept length: {content['definition']}; {content['samples']} samples")
    head += [content["why"]] if content["why"] else []
    lines = [f"{'engine':<{name}}  {'accept length':<18}  boundaries; where it differs: fitted → its own"]
    for program, row in content["served"].items():
        words = "  ".join(filter(None, (row["boundaries"], row["differs"])))
        first, *more = textwrap.wrap(words, WIDTH, break_on_hyphens=False) or [""]
        lines.append(f"{program:<{name}}  {_number(row['accept_length']):<18}  {first}".rstrip())
        lines += [" " * (name + 22) + line for line in more]
    return "\n".join([*head, "", *lines])


def _number(length: Mapping[str, Any] | None) -> str:
    if length is None:
        return "–"
    known = length["low"] is not None and length["high"] is not None
    return f"{length['value']:.2f}" + (f" [{length['low']:.2f}, {length['high']:.2f}]" if known else "")
