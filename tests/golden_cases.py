"""The recorded outputs of the real programs, as documents a test can walk over (tests/golden/README.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle3lab.dialects import TRAINERS
from eagle3lab.draft import Draft
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Sample

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(p.name for p in GOLDEN.iterdir() if (p / "checkpoint").is_dir())
LAYERS = 8


class Table:
    """Stands for the target: the embedding table that the recording used."""

    def __init__(self, rows: Tensor):
        self.rows = rows

    def embedding(self, tokens: Tensor) -> Tensor:
        return self.rows[tokens]


@dataclass
class Document:
    """One recorded document: a sample, and where its rows lie in the recorded arrays."""

    sample: Sample
    batch: int
    start: int


@dataclass
class GoldenCase:
    name: str
    model: Model
    reading: Reading
    io: dict[str, Tensor]
    documents: list[Document]
    prefix: str

    def recorded(self, document: Document, step: int, what: str, rows: int) -> Tensor:
        """The first ``rows`` rows of ``stepK.what`` of a document."""
        array = self.io[f"{self.prefix}step{step}.{what}"][document.batch]
        return array[document.start : document.start + rows]


def load(name: str) -> GoldenCase:
    folder = GOLDEN / name
    io = load_file(folder / "io.safetensors")
    aux = io["aux_hidden_states"] if "aux_hidden_states" in io else io["raw_aux_hidden_states"]
    draft = Draft(folder / "checkpoint", target_hidden=aux.shape[-1] // 3, vocab=300)
    program = TRAINERS[draft.arch.program]
    reading = program.trained(draft.arch, LAYERS).reading
    assert reading is not None
    if "embed_tokens.weight" not in draft:
        # SpecForge and EAGLE leave the table out of the file: the recorded one stands in
        reading = reading.replace(embedding="target")
    table = Table(io["embed_tokens_weight"]) if "embed_tokens_weight" in io else None
    return GoldenCase(name, Model(draft, table), reading, io, _documents(name, io, aux, reading), _prefix(name))


def _prefix(name: str) -> str:
    return "ttt." if name.startswith("eagle") else ""


def _documents(name: str, io: dict[str, Tensor], aux: Tensor, reading: Reading) -> list[Document]:
    ids = io["input_ids"] if "input_ids" in io else io["raw_input_ids"]
    if name == "speculators_llama_packed":  # two documents in one row, 24 and 16 tokens; recorded rows are T-1 each
        pieces = [(0, 0, 24, 0), (0, 24, 40, 23)]
    elif "attention_mask" in io:
        pieces = [(b, 0, int(n), 0) for b, n in enumerate(io["attention_mask"].sum(1))]
    else:
        pieces = [(0, 0, ids.shape[1], 0)]
    out = []
    for batch, a, b, start in pieces:
        states = aux[batch, a:b].chunk(3, -1)
        sample = Sample(
            name=f"{name}[{batch}]",
            path="io.safetensors",
            input_ids=ids[batch, a:b],
            loss_mask=torch.ones(b - a, dtype=torch.uint8),
            states=dict(zip(map(int, reading.aux), states, strict=True)),
        )
        out.append(Document(sample, batch, start))
    return out
