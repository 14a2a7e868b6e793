"""The tables: each takes plain rows and returns something that a notebook shows; all text in them is escaped."""

from eagle3lab.tables.explore import (
    facts,
    lost_tokens,
    provenance,
    readings,
    samples,
    tensors,
    trace,
    vocab_rows,
)
from eagle3lab.tables.findings import findings, findings_text, overview
from eagle3lab.tables.headline import acceptance, predictions, runs
from eagle3lab.tables.html import Html, Table
from eagle3lab.tables.strip import token_strip

__all__ = [
    "Html",
    "Table",
    "acceptance",
    "facts",
    "findings",
    "findings_text",
    "lost_tokens",
    "overview",
    "predictions",
    "provenance",
    "readings",
    "runs",
    "samples",
    "tensors",
    "token_strip",
    "trace",
    "vocab_rows",
]
