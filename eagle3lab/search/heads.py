"""What is wrong with the draft's own tables: head rows by block of ids, a map rebuilt, matrices never trained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.bench import Bench
from eagle3lab.errors import LabError
from eagle3lab.forward import rollout
from eagle3lab.outcome import Suspect
from eagle3lab.reading import Reading
from eagle3lab.readout import Step, join
from eagle3lab.samples import reply_rows
from eagle3lab.stats import likeness

FRESH = 4096
"""Rows and columns of a matrix that are looked at."""

RECOVERS = 0.2
"""Accuracy above the floor from which a change of content counts as found."""

EXPLAINS = 0.5
"""Share of the rows that the file's map has wrong, which a map learned from other rows must have right."""

BLOCKS, ROWS = 8, 12
"""Blocks of the target's vocabulary, and times below which nothing is said of one."""

WRONG, CHANCE = 0.25, 0.2
"""Share of the best block's rate of right drafts below which a block is doubted, and the mean place of its recorded
tokens (0 the draft's best, 0.5 chance) from which its rows know nothing of them."""

LUCK = 0.005
"""Chance of so few right drafts, had the block half the best one's rate, below which it is not luck."""

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
        place: float [R], the recorded token among the draft's, 0 its best and 1 its last; NaN where not covered.
        sizes: rows of each sample.
    """

    draft: Tensor
    target: Tensor
    meant: Tensor
    covered: Tensor
    place: Tensor
    sizes: tuple[int, ...]

    @property
    def hits(self) -> Tensor:
        """Bool [R]."""
        return self.target == self.meant


def said(bench: Bench, reading: Reading) -> Said | None:
    """What the draft says under ``reading`` with its own head, None where that is not the one, or cannot be run."""
    if reading.head != "own":
        return None
    steps: list[Step] = []
    try:
        hot = bench.model.vocab_map(reading).hot_token_id
        for sample in bench.samples:
            rows = reply_rows(sample)
            rows = rows[rows < sample.length - 1 - reading.shift]
            steps.append(rollout(bench.model, sample, reading, 1, rows=rows).steps[0])
    except LabError:
        return None
    every = join(steps)
    target, meant = every.top_ids[:, 0], every.truth
    draft_id = torch.full((int(hot.max()) + 1,), -1)
    draft_id[hot] = torch.arange(len(hot))
    draft = torch.where(target >= 0, draft_id[target.clamp(min=0)], -1)
    place = torch.where(every.truth_rank >= 0, every.truth_rank / len(hot), float("nan"))
    return Said(draft, target, meant, torch.isin(meant, hot), place, tuple(len(step.rows) for step in steps))


def lost_blocks(found: Said, vocab: int, low: float) -> tuple[list[Block], str]:
    """Stretches of ids whose head rows know nothing of their tokens, beside blocks that do; with the numbers of all.

    Hard and rare tokens are drafted seldom, and rightly as often as others; rows that were never learned, or lost, say
    something all the same, and it is wrong. Rows of zeros say nothing: then their tokens' places tell.

    Args:
        found: from `said`.
        vocab: V.
        low: the floor, above which some block must clearly be.
    """
    blocks = [(i * vocab // BLOCKS, (i + 1) * vocab // BLOCKS) for i in range(BLOCKS)]
    told = {block: _told(found, block) for block in blocks}
    best = max(told.values(), key=lambda t: t.surely)
    if best.surely < max(low, 0.1) + 0.05:
        return [], ""
    rows, total = sum(t.meant for t in told.values()), sum(t.meant * t.place for t in told.values())
    bad = [
        t.wrong(best.surely) or t.silent((total - t.meant * t.place) / max(rows - t.meant, 1)) for t in told.values()
    ]
    empty = [max(t.meant, t.said) < ROWS for t in told.values()]
    out: list[Block] = []
    for i, block in enumerate(blocks):
        if not bad[i]:
            continue
        last = next((j for j in range(i - 1, -1, -1) if not empty[j]), -1)  # what was hardly tried parts no stretch
        if out and last >= 0 and bad[last]:
            out[-1] = (out[-1][0], block[1])
        else:
            out.append(block)
    words = [f"{a}…{b - 1} {t.right} right of {t.said} said, {t.meant} recorded" for (a, b), t in told.items()
             if max(t.said, t.meant) >= ROWS]  # fmt: skip
    return out, ", ".join(words)


@dataclass(frozen=True)
class Told:
    """One block of ids: how often they were said, how often rightly, and where their recorded tokens stood.

    Attributes:
        said: rows on which the draft says one of them.
        right: of these, rightly.
        meant: rows on which one of them is recorded, and covered.
        place: their mean place, 0.5 where there is none.
    """

    said: int
    right: int
    meant: int
    place: float

    @property
    def surely(self) -> float:
        """The rate of right drafts, less what luck may have added."""
        return (self.right - self.right**0.5) / self.said if self.said >= ROWS else 0.0

    def wrong(self, best: float) -> bool:
        """Whether what it says is hardly ever right where the best block's rate is ``best``."""
        if self.said < ROWS or self.right > WRONG * best * self.said or _luck(self.right, self.said, best / 2) > LUCK:
            return False
        return self.place > CHANCE if self.meant >= ROWS // 2 else self.right == 0 and self.said >= 2 * ROWS

    def silent(self, elsewhere: float) -> bool:
        """Whether it is not said, and its tokens stand where chance puts them, those of other blocks far ahead."""
        return self.said < ROWS <= self.meant and self.place > 2 * CHANCE and elsewhere < CHANCE / 2


def _luck(right: int, said: int, rate: float) -> float:
    """The chance of ``right`` of ``said`` or fewer at this rate."""
    k, n = torch.arange(right + 1, dtype=torch.float64), torch.tensor(float(said), dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    return float((ways + k * math.log(rate) + (n - k) * math.log1p(-rate)).logsumexp(0).exp())


def _told(found: Said, block: Block) -> Told:
    low, high = block
    said = (found.target >= low) & (found.target < high)
    meant = found.covered & (found.meant >= low) & (found.meant < high)
    place = float(found.place[meant].nanmean()) if bool(meant.any()) else 0.5
    return Told(int(said.sum()), int(found.hits[said].sum()), int(meant.sum()), place)


def blocks(found: Said, vocab: int, low: float) -> Iterator[Suspect]:
    """Part of the head's rows: no map makes tokens of what they say."""
    bad, words = lost_blocks(found, vocab, low)
    if bad:
        named = " and ".join(f"{first} … {end - 1}" for first, end in bad)
        yield Suspect(
            "block", f"the head's rows of tokens {named} know nothing of them, those of others do",
            "lm_head.weight", f"drafts by id: {words}",
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
        meant, hits = one.meant.tolist(), one.hits.tolist()
        _, rate, told = learned(one)
        wrong = [right for right, hit in zip(told, hits[1::2], strict=True) if not hit]
        if rate > best:
            best = rate
            base = max(meant.count(y) for y in set(meant[::2])) / len(meant)
            explained = sum(wrong) / len(wrong) if len(wrong) >= 8 else 0.0
    if best > max(low, base) + RECOVERS and explained > max(EXPLAINS, base + RECOVERS):
        yield Suspect(
            "map", "the head's rows mean other tokens than d2t says: the map was rebuilt without the head", "d2t",
            f"a map learned from half of the rows is right on {best:.2f} of the others, the file's on {low:.2f}; of "
            f"those that the file's has wrong on {explained:.2f}",
            "take d2t from the training run that made lm_head (vocab_mapping.pt); do not rebuild it from other text",
        )  # fmt: skip


def learned(one: Said) -> tuple[dict[int, int], float, list[bool]]:
    """Draft id → token as half of the rows teach it; the share of the others that it has right, and which of them."""
    draft, meant = one.draft.tolist(), one.meant.tolist()
    found = _common(draft[::2], meant[::2])
    told = [found.get(d) == y for d, y in zip(draft[1::2], meant[1::2], strict=True)]
    return found, sum(told) / max(len(told), 1), told


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
