"""Tables of maps, of tables beside the target's, of what samples' rows belong to, of reply spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3lab.tables.html import Table, count, rate, table, visible


def rival_maps(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Every map found: ``file``, ``tokens``, ``overlap`` and ``agreement`` with the checkpoint's own, ``fault``."""
    out = [
        {
            "map": str(row["file"]),
            "tokens": count(row["tokens"]),
            "same tokens": rate(row["overlap"], 3),
            "same rows": rate(row["agreement"], 3),
            "": str(row.get("fault") or ""),
        }
        for row in rows
    ]
    return table(
        out,
        "map",
        empty="no map was found",
        note="engines use the checkpoint's own; same tokens in other rows are another map",
    )


def table_blocks(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The draft's rows beside the target's: ``table``, ids ``low`` to ``high``, ``rows``, ``equal``, ``cosine``."""
    out = [
        {
            "target ids": f"{count(row['low'])} … {count(row['high'])}",
            "table": str(row["table"]),
            "rows": count(row["rows"]),
            "equal": rate(row["equal"], 3),
            "mean cosine": rate(row["cosine"], 3),
        }
        for row in rows
    ]
    return table(out, "target ids", empty="no table of the draft's own can be compared with the target's")


def agreement(rows: Sequence[Mapping[str, Any]]) -> Table:
    """By sample: ``hits`` of ``rows`` next tokens, best ``lag``, ``embedding`` difference, ``neighbours``' cosine."""
    out = [
        {
            "sample": str(row["sample"]),
            "next tokens predicted": rate(row["hits"] / row["rows"], 3) if row["rows"] else "–",
            "rows": count(row["rows"]),
            "best lag": "–" if row["lag"] is None else f"{row['lag']:+d}" if row["lag"] else "0",
            "boundary 0 off by": "–" if row["embedding"] is None else f"{row['embedding']:.1e}",
            "least cosine of neighbours": rate(row["neighbours"], 3),
        }
        for row in rows
    ]
    return table(out, "sample", empty="no readable sample", note="cosines with the mean row taken out")


def spans(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Reply spans: ``sample``, ``start``, ``end``, ``share`` of the text, texts ``first``, ``last``, ``following``."""
    out = [
        {
            "sample": str(row["sample"]),
            "from": count(row["start"]),
            "to": count(row["end"] - 1),
            "share of the text": rate(row["share"], 3),
            "begins": visible(row["first"]),
            "ends": visible(row["last"]),
            "then": visible(row["following"]) if row["following"] else "the text ends",
        }
        for row in rows
    ]
    return table(out, "sample", empty="no reply is marked")
