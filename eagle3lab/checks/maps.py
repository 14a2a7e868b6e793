"""Other maps beside the checkpoint's own, head rows block by block, coverage by kind of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from eagle3lab.checks.fresh import Block, compare_rows
from eagle3lab.draft import Draft
from eagle3lab.errors import LabError
from eagle3lab.listing import SIDE_FILES
from eagle3lab.records import Finding, Sample, Severity
from eagle3lab.samples import Samples
from eagle3lab.target import Target
from eagle3lab.textkinds import KINDS, kind_of
from eagle3lab.vocab import VocabMap, ceiling

CODES = {
    "V009": "other maps beside the checkpoint's own: set overlap and row agreement",
    "V010": "coverage and ceiling by kind of text",
    "V011": "lm_head rows against the target's, block by block",
}

MOST_TOKENS = 50_000
MOST_FILES = 16
MOST_BYTES = 64 * 2**20
"""Bounds on maps beside the checkpoint: one of two million tokens takes 16 MB."""


@dataclass(frozen=True)
class Rival:
    """Another map found beside the checkpoint's own.

    Attributes:
        file: its name, with its folder's.
        rows: entries of its d2t, or tokens that its t2d marks.
        ids: target ids, by draft id for a d2t, ascending for a t2d.
        overlap: share of the checkpoint's target tokens that it has too.
        agreement: share of draft rows that mean the same token; NaN where it is no d2t or of another size.
        fault: why it could not be read, "" when it could.
    """

    file: str
    rows: int
    ids: Tensor
    overlap: float
    agreement: float
    fault: str = ""

    @property
    def same(self) -> bool:
        """Whether it names the same tokens, in the same rows where it has rows."""
        return not self.fault and self.overlap == 1 and self.agreement != self.agreement or self.agreement == 1


def check(
    draft: Draft, target: Target | None, given: Samples | None, samples: Sequence[Sample], steps: int
) -> list[Finding]:
    """All findings about rival maps, head blocks and kinds of text.

    Args:
        draft: the checkpoint.
        target: for token texts and head rows.
        given: the case's samples, beside which other maps may lie.
        samples: the readable ones of the headline.
        steps: K of the ceilings.
    """
    try:
        vocab = draft.vocab_map(draft.map_kind)
    except LabError:
        return []  # V001 has said it
    return [
        *_rivals(vocab, rivals(vocab, folders(draft, given))),
        *_by_kind(vocab, target, samples, steps),
        *_head(draft, target, vocab),
    ]


def folders(draft: Draft, samples: Samples | None) -> list[Path]:
    """Where another map may lie: beside the checkpoint, beside the samples and one above them."""
    out = [draft.path if draft.path.is_dir() else draft.path.parent]
    if samples is not None:
        place = samples.path if samples.path.is_dir() else samples.path.parent
        out += [place, place.parent]
    return out


def rivals(vocab: VocabMap, places: Sequence[Path]) -> list[Rival]:
    """Maps in the named folders, and in ``vocab_mapping`` below them (SpecForge's cache)."""
    files: list[Path] = []
    for folder in dict.fromkeys(f for f in places if f.is_dir()):
        for place in (folder, folder / "vocab_mapping"):
            if place.is_dir():
                files += sorted(f for f in place.iterdir() if f.suffix in (".pt", ".npy") and (
                    place.name == "vocab_mapping" or SIDE_FILES.fullmatch(f.name)))  # fmt: skip
    out: list[Rival] = []
    for file in files[:MOST_FILES]:
        name = f"{file.parent.name}/{file.name}"
        try:
            for key, value in _tensors(file).items():
                out += _rival(vocab, f"{name}: {key}" if key != file.stem else name, key, value)
        except (OSError, ValueError, RuntimeError, LabError) as error:
            out.append(Rival(name, 0, torch.empty(0), 0.0, float("nan"), str(error).splitlines()[0][:200]))
    return out


def _tensors(file: Path) -> dict[str, Tensor]:
    """``d2t`` and ``t2d`` of a file by name; other values of it are no maps."""
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(f"is {file.stat().st_size >> 20} MiB, too large for a map")
    if file.suffix == ".npy":
        import numpy

        return {file.stem: torch.from_numpy(numpy.load(file, allow_pickle=False))}
    value: Any = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(value, Tensor):
        return {file.stem: value}
    return {k: v for k, v in value.items() if isinstance(v, Tensor)} if isinstance(value, dict) else {}


def _rival(vocab: VocabMap, name: str, key: str, value: Tensor) -> list[Rival]:
    mine = vocab.hot_token_id
    if value.ndim != 1 or not len(value) or ("d2t" not in key and "t2d" not in key):
        return []
    if "t2d" in key:
        ids = torch.nonzero(value.bool())[:, 0]
        return [Rival(name, len(ids), ids, float(torch.isin(mine, ids).float().mean()), float("nan"))]
    stored = value.long()
    offsets = stored + torch.arange(len(stored))
    readings = [offsets, stored] if vocab.kind == "offsets" else [stored, offsets]
    # a file of ids is read as ids where offsets would leave the vocabulary
    ids = next((r for r in readings if bool((r >= 0).all()) and bool((r < vocab.vocab).all())), readings[0])
    agreement = float((ids == mine).float().mean()) if len(ids) == len(mine) else float("nan")
    return [Rival(name, len(ids), ids, float(torch.isin(mine, ids).float().mean()), agreement)]


def _rivals(vocab: VocabMap, found: Sequence[Rival]) -> list[Finding]:
    if not found:
        return []
    out = [Finding("V009", Severity.WARN, f"{r.file} cannot be read: whether it is the checkpoint's map is not known", r.file, r.fault,
                   "a map", remedy="remove it, or write it again") for r in found if r.fault]  # fmt: skip
    other = [r for r in found if not r.fault and not r.same]
    words = "; ".join(f"{r.file}: {r.rows} tokens, set overlap {r.overlap:.3f}"
                      + (f", row agreement {r.agreement:.3f}" if r.agreement == r.agreement else "") for r in (other or found)[:6])  # fmt: skip
    if other:
        sizes = {vocab.size, *(r.rows for r in other)}
        out.append(Finding(
            "V009", Severity.WARN, f"{len(other) + 1} maps of {len(sizes)} sizes compete: the checkpoint's own counts for engines",
            ", ".join(r.file for r in other[:6]), words, f"the checkpoint's {vocab.size} tokens, row by row", f"{len(found)} maps found",
            "find out which one the head was trained under (V007, or the forward: F005, F006). A map rebuilt from another corpus "
            "shares almost all tokens and almost no row with the old one: fine-tuning on it starts from noise (SpecForge#534)",
        ))  # fmt: skip
    return out or [Finding("V009", Severity.PASS, "every map beside the checkpoint is its own", measured=words)]


def kinds(vocab: VocabMap, target: Target | None, samples: Sequence[Sample]) -> dict[str, tuple[int, int]]:
    """Kind of text → (reply tokens that the draft can say, all of them); {} without a tokenizer.

    At most `MOST_TOKENS` tokens are looked at, the first of each sample's replies.
    """
    counts: dict[str, list[int]] = {}
    for sample in samples:
        if target is None:
            return {}
        replies = torch.nonzero(sample.loss_mask.bool())[:, 0][: max(MOST_TOKENS // len(samples), 1)]
        tokens = sample.input_ids[replies].tolist()
        texts, before = target.text(tokens), target.text(sample.input_ids[(replies - 1).clamp(min=0)].tolist())
        covered = vocab.covers(sample.input_ids[replies]).tolist()
        for token, text, left, hit in zip(tokens, texts, before, covered, strict=True):
            if text == f"<{token}>":
                return {}  # no tokenizer: every token would be of one kind
            count = counts.setdefault(kind_of(text, left), [0, 0])
            count[0] += hit
            count[1] += 1
    return {kind: (counts[kind][0], counts[kind][1]) for kind in KINDS if kind in counts}


def _by_kind(vocab: VocabMap, target: Target | None, samples: Sequence[Sample], steps: int) -> list[Finding]:
    try:
        found = kinds(vocab, target, samples)
    except LabError:
        return []
    total = sum(n for _, n in found.values())
    if not total:
        return []
    words = ", ".join(f"{kind} {hits / n:.3f} of {n}" for kind, (hits, n) in found.items())
    evidence = f"{total} reply tokens by their own text"
    low = {k: h / n for k, (h, n) in found.items() if n >= max(30, 0.05 * total) and h / n < 0.8}
    if not low:
        return [
            Finding(
                "V010",
                Severity.INFO,
                "coverage by kind of text: no frequent kind is left out",
                "samples",
                words,
                evidence=evidence,
            )
        ]
    worst = min(low, key=lambda k: low[k])
    return [Finding(
        "V010", Severity.LIMIT, f"of {worst} tokens the draft can say only {low[worst]:.1%}", "samples", words, "above 80 % of every frequent kind",
        f"{evidence}; text of nothing else could reach accept length {ceiling(low[worst], steps):.2f} at K={steps}",
        "build the draft vocabulary from text like this: other languages, code or numbers were rare in the corpus it was counted on",
    )]  # fmt: skip


def head_blocks(draft: Draft, target: Target | None, vocab: VocabMap, most: int = 4096) -> list[Block]:
    """lm_head rows beside the target's, in parts of the target's vocabulary; [] where they cannot be compared."""
    shape = draft.shape("lm_head.weight")
    if shape is None or target is None or shape[1] != target.hidden:
        return []
    hot = vocab.hot_token_id
    rows = torch.nonzero((hot >= 0) & (hot < target.vocab))[:, 0]
    rows = rows[target.holds(hot[rows])]
    rows = rows[hot[rows].argsort()][:: max(1, len(rows) // most)]
    if len(rows) < 16:
        return []
    return compare_rows(draft.weight_rows("lm_head.weight", rows), target.head(hot[rows]), hot[rows], target.vocab)


def _head(draft: Draft, target: Target | None, vocab: VocabMap) -> list[Finding]:
    try:
        blocks = head_blocks(draft, target, vocab)
    except LabError:
        return []  # V007 is blocked by the same
    usual = median(b.cosine for b in blocks) if blocks else 0.0
    if usual < 0.3:
        return []  # trained from scratch: V007 says so
    bad = [b for b in blocks if b.cosine < 0.25 * usual and b.rows >= 8]
    where, evidence = f"{draft.name}: lm_head.weight", f"{sum(b.rows for b in blocks)} rows under the map"
    words = ", ".join(f"{b.low}…{b.high} {b.cosine:.2f}" for b in blocks)
    if not bad:
        return [Finding("V011", Severity.PASS, "lm_head's rows resemble the target's in every part of the vocabulary", where, words,
                        evidence=evidence)]  # fmt: skip
    return [Finding(
        "V011", Severity.FAIL, f"lm_head's rows of target ids {bad[0].low} … {bad[-1].high} do not resemble the target's, the others do",
        where, f"mean cosine by block: {words}", f"about {usual:.2f} in every block", evidence,
        "a shard of the head was lost, or gathered by global id from a sharded table (sglang#4328): export again from all ranks",
    )]  # fmt: skip
