"""``eagle3lab compare``: two cases, or two readings of one, from their files to plain rows and text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3lab.acceptance import definition
from eagle3lab.case import Case, open_case
from eagle3lab.errors import BadFile, BadOption, LabError
from eagle3lab.gap.versus import Versus
from eagle3lab.reading import Reading
from eagle3lab.views.gap import cases_compared, difference_rows, readings_compared

SCHEMA = 1


def compare(
    paths: Sequence[str], *, steps: int = 0, fitted: bool = False, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Compares what the paths name: two cases; or a case and one or two readings as JSON files.

    One reading is compared with the case's configured one (its fitted one where ``fitted``).

    Returns:
        ``schema``, ``first``, ``second`` (what they are), ``definition``, ``steps``, ``samples``, ``left_out``,
        ``nonfinite`` (sentences about rows without finite logits),
        ``differences``: rows with ``group``, ``name``, ``first``, ``second``, ``change``, ``low``, ``high``, ``n``,
        ``only_first``, ``only_second``, ``method``; unknown numbers are null.

    Raises:
        BadOption: the paths are not one of these.
        BadFile: a reading's file is none.
        LabError: nothing can be compared; the text says why.
    """
    jsons = [path for path in paths if path.endswith(".json")]
    cases = [path for path in paths if path not in jsons]
    if (len(cases), len(jsons)) not in ((2, 0), (1, 1), (1, 2)):
        raise BadOption("compare takes two cases, or a case and one or two readings as .json files")
    if steps < 0:
        raise BadOption(f"--steps {steps}: expected 1 or more, or 0 for the case's own")
    opened = [open_case(path, progress=progress) for path in cases]
    which = "fitted" if fitted else "configured"
    if len(opened) == 2:
        found = cases_compared(opened[0], opened[1], steps, which)
        labels = [f"{case.title} ({which})" for case in opened]
    else:
        case, read = opened[0], [reading_of(Path(path)) for path in jsons]
        labels = [Path(path).name for path in jsons]
        if len(read) == 1:
            read, labels = [_own(case, which), *read], [which, *labels]
        steps = steps or case.steps
        found = readings_compared(case, read[0], read[1], steps)
    return _plain(found, labels)


def reading_of(file: Path) -> Reading:
    """A Reading as JSON, as ``check --json`` prints it under ``readings``.

    Raises:
        BadFile: it is none.
    """
    try:
        return Reading.from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile(file, f"not a Reading as JSON ({error}); 'check --json' prints one under readings") from error


def _own(case: Case, which: str) -> Reading:
    reading = case.fitted if which == "fitted" else case.configured.reading
    if reading is None:
        raise LabError(f"{case.file.path}: no configured reading ({case.configured.unread}); give two readings")
    return reading


def _plain(found: Versus, labels: Sequence[str]) -> dict[str, Any]:
    rows = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
            for row in difference_rows(found)]  # fmt: skip
    return {"schema": SCHEMA, "first": labels[0], "second": labels[1], "definition": definition(len(found.by_step)),
            "steps": len(found.by_step), "samples": list(found.samples), "left_out": dict(found.left_out),
            "nonfinite": [f"{label}: {n} rows have NaN or infinite logits and count as misses: its numbers say nothing"
                          for label, n in zip(labels, found.nonfinite, strict=True) if n],
            "differences": rows}  # fmt: skip


def _number(value: float | None, form: str) -> str:
    return f"{value:{form}}" if value is not None else "–".rjust(int(form.strip("+").split(".")[0]))


def in_words(content: Mapping[str, Any]) -> str:
    """What `compare` returns, for a terminal."""
    head = [f"first:  {content['first']}", f"second: {content['second']}",
            f"{len(content['samples'])} samples, the same positions; {content['definition']}"]  # fmt: skip
    head += [f"left out: {name}: {why}" for name, why in content["left_out"].items()]
    lines = [
        f"{'':24} {'first':>7} {'second':>7} {'change':>8}  {'95 % interval':<19} {'n':>7}  only first / only second"
    ]
    for row in content["differences"]:
        known = row["low"] is not None and row["high"] is not None
        bracket = f"[{row['low']:+.3f}, {row['high']:+.3f}]" if known else "–"
        only = f"{row['only_first']} / {row['only_second']}" if row["group"] != "length" else ""
        numbers = [_number(row["first"], "7.3f"), _number(row["second"], "7.3f"), _number(row["change"], "+8.3f")]
        lines.append(f"{row['name']:24} {' '.join(numbers)}  {bracket:<19} "
                     f"{row['n']:7,}  {only}".rstrip())  # fmt: skip
    return "\n".join([*head, "", *lines])
