"""Tables of the gap: a waterfall's bars, published numbers, an engine's states, settings, differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eagle3lab.tables.html import Table, count, number, rate, table


def _signed(value: Any, digits: int = 3) -> str:
    value = number(value)
    return f"{value:+.{digits}f}" if value == value else "–"


def _interval(row: Mapping[str, Any]) -> str:
    low, high = number(row.get("low")), number(row.get("high"))
    return f"{low:+.3f} … {high:+.3f}" if low == low and high == high else "–"


def waterfall(bars: Sequence[Mapping[str, Any]], *, missing: Sequence[str] = ()) -> Table:
    """The bars of a waterfall with their sentences.

    Args:
        bars: ``name``, ``start``, ``end``, ``low``, ``high``, ``method``, ``sentence``.
        missing: what makes it partial, in words.
    """
    rows = [
        {
            "bar": bar["name"],
            "from": rate(bar["start"]),
            "to": rate(bar["end"]),
            "change": _signed(number(bar["end"]) - number(bar["start"])),
            "95 % interval": _interval(bar),
            "what it is": bar["sentence"],
            "how drawn": bar.get("method", ""),
        }
        for bar in bars
    ]
    note = "accept length, bonus included from the first bar on; the bars add up to the whole difference"
    return table(rows, "bar", empty="no bar can be drawn", note="; ".join([note, *(f"partial: {m}" for m in missing)]))


def totals(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Every run's way from training's figure to the engine's in one line.

    Args:
        rows: ``run``, ``begins``, ``ends``, ``total``, ``loss``, ``lost``, ``partial``; ``why`` where it has none.
    """
    out = [
        {
            "run": r["run"],
            "from": rate(r.get("begins")),
            "to": rate(r.get("ends")),
            "in all": _signed(r.get("total")),
            "largest loss": r.get("loss") or "–",
            "of it": _signed(r.get("lost")),
            "partial": r.get("why") or r.get("partial") or "–",
        }
        for r in rows
    ]
    note = "accept length; the largest loss leaves out the two arithmetic bars and those whose interval holds 0"
    return table(out, "run", empty="the case names no serving run", note=note)


def published(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A report's arithmetic: ``what``, ``number``, ``assumption``."""
    out = [{"what": r["what"], "number": r["number"], "under which assumption": r["assumption"]} for r in rows]
    return table(out, "what", empty="nothing was published")


def dump_slots(rows: Sequence[Mapping[str, Any]]) -> Table:
    """An engine's states against training's, a slot a row.

    Args:
        rows: ``text``, ``slot``, ``rows``, ``wrong``, ``cosine``, ``error``, ``best``, ``lag``, ``scale``, ``shape``,
            ``procrustes``, ``normed``, ``blocks`` (relative error by column block), ``verdict``, ``sentence``.
    """
    out = []
    for r in rows:
        blocks = [number(b) for b in r.get("blocks", ())]
        best = "–" if r.get("best") is None else f"{r['best']}" + (f", lag {r['lag']:+d}" if r.get("lag") else "")
        told = {
            "cosine": rate(r.get("cosine"), 5), "error": rate(r.get("error"), 4), "scale": rate(r.get("scale"), 3),
            "inner products": rate(r.get("shape"), 4), "error after the best rotation": rate(r.get("procrustes")),
            "as if normed": rate(r.get("normed")),
            "error by column block": f"{min(blocks):.3f} … {max(blocks):.3f}" if blocks else "–",
        }  # fmt: skip
        out.append({
            "boundary": r["slot"], "text": r["text"], "verdict": r["verdict"],
            "rows, of them wrong": f"{count(r.get('rows'))}, {count(r.get('wrong'))}", "best match": best,
            "in words": r["sentence"],
            "in numbers": ", ".join(f"{name} {value}" for name, value in told.items() if value != "–"),
        })  # fmt: skip
    note = (
        "medians over rows of equal tokens; inner products are 1 under any rotation; the best rotation is of rows at "
        "length 1, and with fewer rows than columns brings unrelated ones near too; as if normed: a factor a column"
    )
    return table(out, "boundary", empty="no run of this case names a dump of its engine's states", note=note)


def settings(rows: Sequence[Mapping[str, Any]], *, notes: Sequence[str] = ()) -> Table:
    """Throughput by setting.

    Args:
        rows: ``steps``, ``topk``, ``draft_tokens``, ``accept_length``, ``round_cost``, ``speedup``, ``low``, ``high``,
            ``tokens_per_second``, ``flags``, ``best``.
        notes: the cost model and what it leaves open.
    """
    out = []
    for r in rows:
        low, high = number(r.get("low")), number(r.get("high"))
        out.append({
            "K": f"{r['steps']}{' ← best' if r.get('best') else ''}", "topk": r["topk"],
            "draft tokens": r["draft_tokens"],
            "accept length": rate(r.get("accept_length")),
            "round cost": rate(r.get("round_cost"), 2), "speed-up": rate(r.get("speedup"), 2),
            "95 % interval": f"{low:.2f} … {high:.2f}" if low == low and high == high else "–",
            "tokens/s": rate(r.get("tokens_per_second"), 1), "what to type": r.get("flags", ""),
        })  # fmt: skip
    return table(out, "K", empty="no setting can be priced", note="; ".join(notes))


def differences(rows: Sequence[Mapping[str, Any]], *, first: str, second: str, note: str = "") -> Table:
    """Paired differences.

    Args:
        rows: ``name``, ``first``, ``second``, ``change``, ``low``, ``high``, ``n``, ``only_first``, ``only_second``.
        first: what the first is called.
        second: what the second is called.
        note: said under the table.
    """
    out = [
        {
            "of": r["name"],
            first: rate(r["first"]),
            second: rate(r["second"]),
            "difference": _signed(r["change"]),
            "95 % interval": _interval(r),
            "n": count(r["n"]),
            "only the first": count(r.get("only_first")),
            "only the second": count(r.get("only_second")),
        }
        for r in rows
    ]
    return table(out, "of", empty="no position in common", note=note)
