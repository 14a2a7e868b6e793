"""How much of a case is looked at where a whole one would take hours: the first samples within a bound on work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from eagle3lab.acceptance.tree import TreeShape
from eagle3lab.model import Model
from eagle3lab.records import Sample

WORK = 2e12
"""Multiplications that one answer may take: one to three minutes on one core."""

T = TypeVar("T")


def first_within(items: Sequence[T], cost: Callable[[T], float], most: float | None = None) -> list[T]:
    """The first items whose costs together stay within ``most`` (`WORK` when None), one at least."""
    out: list[T] = []
    left = WORK if most is None else most
    for item in items:
        left -= cost(item)
        if out and left < 0:
            break
        out.append(item)
    return out


def head_cost(model: Model, sample: Sample) -> float:
    """Multiplications to take a sample's reply rows through the target's head, once."""
    target = model.target
    return float(int(sample.loss_mask.sum()) * len(target.token_ids) * target.hidden) if target else 0.0


def tree_cost(model: Model, sample: Sample, shape: TreeShape) -> float:
    """Multiplications of the draft at most, were a tree grown at every second reply row."""
    a = model.draft.arch
    layer = (a.heads + 2 * a.kv_heads + a.heads) * a.head_dim * a.hidden * 2 + 3 * a.intermediate * a.hidden
    step = a.layers * layer + a.draft_vocab * a.hidden
    return float(int(sample.loss_mask.sum()) * shape.forwards * step / 2)


def words_of(some: Sequence[T], every: Sequence[T]) -> str:
    """``"the first 3 of 16 samples"``, empty when all are taken."""
    return f"the first {len(some)} of {len(every)} samples" if len(some) < len(every) else ""
