"""Exploration tables: plain DataFrames of finished texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from eagle3lab.reading import Reading, show
from eagle3lab.tables.html import Html, Table, count, figure, rate, sections, size, table, visible

if TYPE_CHECKING:
    from eagle3lab.draft import TensorRow
    from eagle3lab.stats import TensorStats
    from eagle3lab.trace import Operation


def _shape(numbers: Sequence[int] | None) -> str:
    return "–" if numbers is None else "[" + ", ".join(str(n) for n in numbers) + "]"


def _share(value: float) -> str:
    """A share; an exact 0 says so, a tiny one is not rounded away."""
    return "0" if value == 0 else f"{value:.4f}" if value >= 1e-4 else "NaN" if value != value else f"{value:.0e}"


def _shares(s: TensorStats | None) -> str:
    if s is None:
        return "–"
    return " / ".join(map(_share, (s.zero, s.nan, s.inf))) if s.zero or s.nan or s.inf else "0"


def tensors(rows: Sequence[TensorRow], stats: Mapping[str, TensorStats]) -> Table:
    """Every tensor of the checkpoint: names, shape, what it holds, whether it fits.

    Args:
        rows: as `Draft.rows` lists them; of many, those that do not fit come first.
        stats: by stored name; a tensor without any shows dashes.
    """
    ordered = sorted(rows, key=lambda row: row.fits) if len(rows) > 60 else list(rows)
    out = []
    for row in ordered:
        s = stats.get(row.stored)
        symbols = "[" + ", ".join(row.symbols) + "]" if row.symbols else ""
        misfit = "" if row.fits else f"✗ expected {_shape(row.expected)}"
        out.append(
            {
                "stored name": row.stored,
                "canonical name": "same" if row.canonical == row.stored else row.canonical or "unknown",
                "symbols": symbols,
                "shape": _shape(row.info.shape),
                "dtype": row.info.dtype,
                "bytes": size(row.info.nbytes),
                "norm": figure(s.norm) if s else "–",
                "mean": figure(s.mean) if s else "–",
                "spread": figure(s.std) if s else "–",
                "zero / NaN / Inf": _shares(s),
                "fits": misfit or ("✓" if row.expected else "not checked"),
            }
        )
    return table(
        out,
        "stored name",
        empty="no tensors",
        note="spread: standard deviation; zero, NaN and Inf: shares of the elements",
    )


def inventory(lists: Mapping[str, Sequence[Mapping[str, str]]], index: str) -> Html:
    """Lists of tensors or config keys, the ones that need a look unfolded.

    Args:
        lists: title → rows with the same columns each; empty lists keep their title.
        index: the column in front.
    """
    urgent = ("unknown", "missing")
    parts = []
    for title, rows in lists.items():
        found = table(list(rows), index, empty="none")
        parts.append((title, found, bool(rows) and title.startswith(urgent)))
    return sections(parts)


def trace(operations: Sequence[Operation]) -> Table:
    """The operations of one draft step with every shape, in order."""
    out = [
        {
            "": number,
            "operation": op.name,
            "takes": _shape(op.takes),
            "weight": op.weight or "–",
            "weight shape": _shape(op.weight_shape),
            "gives": _shape(op.gives),
            "in symbols": op.symbols,
            "note": op.note,
        }
        for number, op in enumerate(operations)
    ]
    return table(out, "", empty="no operations")


def readings(columns: Mapping[str, Reading | None]) -> Table:
    """Readings side by side, a field a row; the rows that differ come first, marked ●.

    Args:
        columns: name → reading, None where a program would refuse (its column says so).
    """
    flat = {name: _flat(reading) if reading is not None else None for name, reading in columns.items()}
    names = next((list(fields_of) for fields_of in flat.values() if fields_of), [])
    out = []
    for field in names:
        values = [values[field] for values in flat.values() if values]
        differs = any(value != values[0] for value in values)
        cells = {name: show(values[field]) if values else "does not run" for name, values in flat.items()}
        out.append({"field": f"● {field}" if differs else f"   {field}", **cells})
    out.sort(key=lambda row: not str(row["field"]).startswith("●"))
    return table(out, "field", empty="no reading to show", note="● the readings differ here")


def _flat(reading: Reading) -> dict[str, Any]:
    """Field → value, RoPE taken apart."""
    out: dict[str, Any] = {}
    for field in fields(reading):
        value = getattr(reading, field.name)
        if is_dataclass(value):
            out |= {f"{field.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
        else:
            out[field.name] = value
    return out


def vocab_rows(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of the vocabulary map: ``draft_id``, ``d2t``, ``target_id``, ``text``."""
    out = [
        {
            "draft id": count(row["draft_id"]),
            "d2t": f"{int(row['d2t']):+,}" if row["d2t"] else "0",
            "target id": count(row["target_id"]),
            "token": visible(row["text"]),
        }
        for row in rows
    ]
    return table(out, "draft id", empty="no draft ids to show")


def lost_tokens(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Reply tokens that the draft vocabulary lacks: ``token``, ``text``, ``count``, ``share`` of all reply tokens."""
    out = [
        {
            "target id": count(row["token"]),
            "token": visible(row["text"]),
            "times": count(row["count"]),
            "share of reply tokens": rate(row["share"], 4),
        }
        for row in rows
    ]
    return table(out, "target id", empty="no reply token is outside the draft vocabulary")


def samples(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What each sample holds.

    Args:
        rows: ``name``, ``tokens``, ``reply``, ``states`` (boundaries), ``dtype``, ``bytes``, ``final_norm``,
            ``headline``, ``writer`` (kind of file).
    """
    out = [
        {
            "sample": str(row["name"]),
            "tokens": count(row["tokens"]),
            "reply tokens": count(row["reply"]),
            "boundaries": _runs(row["states"]),
            "dtype": str(row["dtype"]),
            "states": size(row["bytes"]),
            "final state": {"pre": "before the norm", "post": "after the norm"}.get(
                str(row["final_norm"]), "none apart"
            ),
            "headline": "yes" if row.get("headline") else "left out",
            "written as": str(row.get("writer", "lab")),
        }
        for row in rows
    ]
    return table(out, "sample", empty="no readable sample")


def _runs(boundaries: Sequence[Any]) -> str:
    """``0–30`` for a run of three or more, else each: ``0, 1, 14–16, 27, 28, 30``."""
    runs: list[list[Any]] = []
    for k in boundaries:
        if runs and isinstance(k, int) and isinstance(runs[-1][-1], int) and k == runs[-1][-1] + 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return ", ".join(f"{r[0]}–{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)


def provenance(rows: Sequence[tuple[str, str]]) -> Table:
    """Where everything came from, two columns."""
    return facts(rows)


def facts(rows: Sequence[tuple[str, Any]]) -> Table:
    """Any named facts, two columns."""
    found = table([{"": str(name), "what": str(value)} for name, value in rows], "", empty="nothing to show")
    found.attrs["head"] = False
    return found
