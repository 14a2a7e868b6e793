"""The tables: each takes plain rows and returns something that a notebook shows; all text in them is escaped."""

from eagle3lab.tables.explore import (
    facts,
    inventory,
    lost_tokens,
    provenance,
    readings,
    samples,
    tensors,
    trace,
    vocab_rows,
)
from eagle3lab.tables.findings import findings, findings_text, overview
from eagle3lab.tables.gap import differences, dump_slots, published, settings, totals, waterfall
from eagle3lab.tables.headline import acceptance, predictions, runs
from eagle3lab.tables.html import Html, Table
from eagle3lab.tables.parity import parity
from eagle3lab.tables.recorded import agreement, rival_maps, spans, table_blocks
from eagle3lab.tables.search import repairs, served_as
from eagle3lab.tables.strip import token_strip
from eagle3lab.tables.walks import definitions, recorded_choice, sampling, token_costs, trees

__all__ = [
    "Html",
    "Table",
    "acceptance",
    "agreement",
    "definitions",
    "differences",
    "dump_slots",
    "facts",
    "findings",
    "findings_text",
    "inventory",
    "lost_tokens",
    "overview",
    "parity",
    "predictions",
    "provenance",
    "published",
    "readings",
    "recorded_choice",
    "repairs",
    "rival_maps",
    "runs",
    "samples",
    "sampling",
    "served_as",
    "settings",
    "spans",
    "table_blocks",
    "tensors",
    "token_costs",
    "token_strip",
    "totals",
    "trace",
    "trees",
    "vocab_rows",
    "waterfall",
]
