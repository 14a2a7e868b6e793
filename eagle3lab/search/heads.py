"""What is wrong with the draft's own tables: head rows by block of ids, a map rebuilt, matrices never trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.bench import Bench
from eagle3lab.errors import LabError
from eagle3lab.forward import rollout
from eagle3lab.outcome import Suspect
from eagle3lab.reading import Reading
from eagle3lab.samples import reply_rows
from eagle3lab.stats import likeness

FRESH = 4096
"""Rows and columns of a matrix that are looked at."""

RECOVERS = 0.2
"""Accuracy above the floor from which a change of content counts as found."""

EXPLAINS = 0.5
"""Share of the rows that the file's map has wrong, which a map learned from other rows must have right."""

BLOCKS, ROWS = 8, 12
"""Blocks of the target's vocabulary, and rows below which nothing is said of one."""

LOST, SOUND = 0.08, 0.3
"""Accuracy below which a block is lost, beside one that is at least this good."""

Block = tuple[int, int]
"""Ids of the target's vocabulary: the first, and past the last."""


@dataclass(frozen=True)
class Said:
    """What the draft says at step 0 over all reply rows.

    Attributes:
        draft: int64 [R], draft ids said.
        target: int64 [R], the target ids that the reading's map makes of them.
        meant: int64 [R], the recorded tokens.
        covered: bool [R]: the map reaches the recorded token.
        sizes: rows of each sample.
    """

    draft: Tensor
    target: Tensor
    meant: Tensor
    covered: Tensor
    sizes: tuple[int, ...]

    @property
    def hits(self) -> Tensor:
        """Bool [R]."""
        return self.target == self.meant


def said(bench: Bench, reading: Reading) -> Said | None:
    """What the draft says under ``reading`` with its own head, None where that is not the one, or cannot be run."""
    if reading.head != "own":
        return None
    parts: list[tuple[Tensor, Tensor]] = []
    try:
        hot = bench.model.vocab_map(reading).hot_token_id
        for sample in bench.samples:
            rows = reply_rows(sample)
            rows = rows[rows < sample.length - 1 - reading.shift]
            plain = reading.replace(vocab_map="identity")
            step = rollout(bench.model, sample, plain, 1, rows=rows, probabilities=False).steps[0]
            parts.append((step.top_ids[:, 0], step.truth))
    except LabError:
        return None
    draft, meant = (torch.cat(part) for part in zip(*parts, strict=True))
    target = torch.where(draft >= 0, hot[draft.clamp(min=0)], -1)
    return Said(draft, target, meant, torch.isin(meant, hot), tuple(len(d) for d, _ in parts))


def lost_blocks(found: Said, vocab: int) -> tuple[int, int, str] | None:
    """The ids (first, past the last) where hardly a token is drafted, or hardly a draft right; with the numbers.

    Rows that were never learned say something all the same: what they say is wrong. Rare tokens of a sound head are
    drafted seldom, and rightly.
    """
    drafted, said_right, shares = dict[Block, float](), dict[Block, float](), list[str]()
    for i in range(BLOCKS):
        block = low, high = i * vocab // BLOCKS, (i + 1) * vocab // BLOCKS
        meant = found.covered & (found.meant >= low) & (found.meant < high)
        said = (found.target >= low) & (found.target < high)
        right, n, times = int(found.hits[meant].sum()), int(meant.sum()), int(said.sum())
        if n >= ROWS:
            drafted[block] = right / n
        if times >= ROWS:
            said_right[block] = right / times
        if max(n, times) >= ROWS:
            shares.append(f"{low}…{high - 1} {right} of {n} ({times} times said)")
    best, best_said = max(drafted.values(), default=0.0), max(said_right.values(), default=0.0)
    bad = {block for block, rate in drafted.items() if rate < LOST and rate < 0.15 * best}
    bad |= {b for b, rate in said_right.items() if rate < 0.15 * best_said and drafted.get(b, 0.0) < 0.5 * best}
    if best < SOUND or not bad:
        return None
    return min(bad)[0], max(bad)[1], ", ".join(shares)


def blocks(found: Said, vocab: int) -> Iterator[Suspect]:
    """Part of the head's rows: no map makes tokens of what they say."""
    if (lost := lost_blocks(found, vocab)) is not None:
        first, end, words = lost
        yield Suspect(
            "block", f"the head's rows of tokens {first} … {end - 1} are hardly ever right, those of others are",
            "lm_head.weight", f"recorded tokens drafted, by id: {words}",
            "rows of lm_head in this part are bad (a lost shard: V011, W010): export the checkpoint again",
        )  # fmt: skip


def rebuilt(found: Sequence[Said], low: float) -> Iterator[Suspect]:
    """Whether head rows always mean one token, another than the map's: learned on half the rows, judged on the rest.

    A map gives every token to one row. Rows of noise say frequent tokens too, each of them a little: only a learned map
    in which no token comes twice, and that explains most of what the file's map has wrong, is a map.
    """
    best, base, explained = 0.0, 0.0, 0.0
    for one in found:
        if len(one.meant) < 40:
            return
        draft, meant, hits = one.draft.tolist(), one.meant.tolist(), one.hits.tolist()
        learned = _common(draft[::2], meant[::2])
        told = [learned.get(d) == y for d, y in zip(draft[1::2], meant[1::2], strict=True)]
        wrong = [right for right, hit in zip(told, hits[1::2], strict=True) if not hit]
        if sum(told) / len(told) > best:
            best = sum(told) / len(told)
            base = max(meant.count(y) for y in set(meant[::2])) / len(meant)
            explained = sum(wrong) / len(wrong) if len(wrong) >= 8 else 0.0
    if best > max(low, base) + RECOVERS and explained > max(EXPLAINS, base + RECOVERS):
        yield Suspect(
            "map", "the head's rows mean other tokens than d2t says: the map was rebuilt without the head", "d2t",
            f"a map learned from half of the rows is right on {best:.2f} of the others, the file's on {low:.2f}; of "
            f"those that the file's has wrong on {explained:.2f}",
            "take d2t from the training run that made lm_head (vocab_mapping.pt); do not rebuild it from other text",
        )  # fmt: skip


def _common(draft: list[int], meant: list[int]) -> dict[int, int]:
    """Draft id → the token that most often followed it; a token that several rows claim goes to the most frequent."""
    counts: dict[tuple[int, int], int] = {}
    for pair in zip(draft, meant, strict=True):
        counts[pair] = counts.get(pair, 0) + 1
    out: dict[int, int] = {}
    taken: set[int] = set()
    for d, y in sorted(counts, key=lambda pair: -counts[pair]):
        if d not in out and y not in taken:
            out[d] = y
            taken.add(y)
    return out


def fresh(bench: Bench) -> Iterator[Suspect]:
    """Matrices of the draft that look as an initialiser draws them."""
    draft, found, looked_at = bench.model.draft, [], 0
    for name, stored in draft.stored.items():
        shape = draft.tensors[stored].shape
        if len(shape) != 2 or min(shape) < 16 or not name.endswith(".weight") or name.startswith("embed_tokens"):
            continue
        weight = draft.weight_rows(name, torch.arange(min(shape[0], FRESH)))[:, :FRESH]
        looked_at += 1
        if weight.is_floating_point() and likeness(weight).random:
            found.append(name)
    if found:
        yield Suspect(
            "fresh", f"{len(found)} of {looked_at} matrices look as an initialiser draws them: {', '.join(found[:6])}",
            ", ".join(found[:6]), "independent numbers of one spread: no row, column or direction stands out",
            "the checkpoint may never have been trained, or these tensors were not saved: take another checkpoint",
        )  # fmt: skip
