"""Training by the unrolled training-time test, and what a draft is worth."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from recipe.draft import Batch, Draft, Feed
from recipe.generate import Reply, replies
from recipe.target import Shape
from torch import Tensor, nn

WAIT = 1800
"""Seconds that one process waits for the others, a validation included."""


def loss_of(draft: Draft, batch: Batch, norm: Tensor, totals: list[int]) -> Tensor:
    """Soft cross-entropy, step k weighted 0.8^k; ``totals`` are the rows of each step in the whole update."""
    with torch.no_grad():
        wanted = draft.target_probabilities(batch.last, norm)
    losses = [
        0.8**k * F.cross_entropy(logits, wanted[rows + k], reduction="sum") / totals[k]
        for k, (rows, logits) in enumerate(draft(batch, len(totals)))
    ]
    return torch.stack(losses).sum()


@dataclass
class Score:
    """What a draft predicts: counts a step, and the engine's walk over each reply."""

    steps: int
    conversations: int = 0
    correct: list[int] = field(default_factory=list)
    scored: list[int] = field(default_factory=list)
    covered: int = 0
    rounds: int = 0
    accepted: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Counts and the rates that follow from them."""
        rates = [round(c / n, 4) if n else None for c, n in zip(self.correct, self.scored, strict=True)]
        return asdict(self) | {
            "accuracy": rates,
            "accept_length": round(1 + self.accepted / max(self.rounds, 1), 4),
            "coverage": round(self.covered / max(self.scored[0], 1), 4),
        }


@torch.inference_mode()
def evaluate(draft: Draft, feed: Feed, replies: list[Reply], d2t: Tensor, steps: int = 5) -> Score:
    """Score ``draft`` on ``replies``: tokens outside the draft vocab are misses.

    The walk starts at a reply's first row, accepts n drafts, goes n + 1 rows on and ends when none is left.
    """
    score = Score(steps, len(replies), [0] * steps, [0] * steps)
    for i in range(0, len(replies), 12):
        batch = feed(replies[i : i + 12])
        hits = torch.zeros(len(batch.labels), steps, dtype=torch.bool)
        for k, (rows, logits) in enumerate(draft(batch, steps)):
            hits[rows, k] = d2t[logits.argmax(-1)] == batch.labels[rows + k]
            score.correct[k] += int(hits[:, k].sum())
            score.scored[k] += len(rows)
        score.covered += int(torch.isin(batch.labels, d2t).sum())
        accepted, left = hits.long().cumprod(1).sum(1).tolist(), batch.left.tolist()
        row = 0
        while row < len(left):
            step = min(accepted[row] + 1, left[row])  # never into the next conversation
            score.rounds, score.accepted = score.rounds + 1, score.accepted + accepted[row]
            row += step
    return score


@dataclass
class Course:
    """How to train: ``phases`` are (updates, steps), each with a schedule of its own."""

    phases: tuple[tuple[int, int], ...]
    seed: int
    rate: float
    a_update: int = 12
    warmup: int = 30
    floor: float = 0.03
    decay: float = 0.01
    clip: float = 1.0

    @property
    def updates(self) -> int:
        """Of all phases."""
        return sum(updates for updates, _ in self.phases)

    def at(self, update: int) -> tuple[float, int]:
        """Learning rate and number of steps of an update."""
        phase = 0
        while update >= self.phases[phase][0]:
            update -= self.phases[phase][0]
            phase += 1
        updates, steps = self.phases[phase]
        warm = min(1.0, (update + 1) / self.warmup)
        cosine = self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * update / updates))
        return self.rate * warm * cosine, steps

    def numbers(self, update: int, count: int) -> list[int]:
        """Which of ``count`` conversations an update takes: shuffled anew each time all have been taken."""
        wanted = range(update * self.a_update, (update + 1) * self.a_update)
        orders = {epoch: list(range(count)) for epoch in {i // count for i in wanted}}
        for epoch, order in orders.items():
            random.Random(f"order {self.seed} {epoch}").shuffle(order)
        return [orders[i // count][i % count] for i in wanted]


@dataclass
class Lesson:
    """What every training process is given.

    Attributes:
        feed: makes the batches.
        norm: the target's final norm.
        course: how to train.
        saved: where the training's state is kept.
        sums: [2, processes, P + 1] in shared memory, or None for a single process.
        barrier: where the processes meet.
    """

    feed: Feed
    norm: Tensor
    course: Course
    saved: Path
    sums: Tensor | None = None
    barrier: Any = None


def train(
    draft: Draft,
    lesson: Lesson,
    chosen: list[Reply],
    rank: int = 0,
    log: Callable[[str], None] = lambda text: None,
    between: Callable[[int], None] = lambda phase: None,
) -> list[float]:
    """Train ``draft`` in place and return the loss of every update, a step's on average.

    Several processes each take a share of every update's conversations, exchange their gradients and then all
    make the same update. Process 0 stores everything now and then, and an interrupted training goes on from
    there. ``between`` is called at the end of each phase.
    """
    course, parameters = lesson.course, list(draft.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() == 2], "weight_decay": course.decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=course.rate, betas=(0.9, 0.95))
    processes = 1 if lesson.sums is None else lesson.sums.shape[1]
    losses: list[float] = []
    if lesson.saved.exists():
        state = torch.load(lesson.saved)
        draft.load_state_dict(state["draft"])
        losses = state["losses"]
        if losses:
            optimiser.load_state_dict(state["optimiser"])
    if lesson.barrier is not None:
        lesson.barrier.wait(WAIT)  # nobody may go on before everybody has read what was stored
    done, began, said = len(losses), time.monotonic(), 0.0
    ends = [sum(updates for updates, _ in course.phases[: i + 1]) for i in range(len(course.phases))]
    for update in range(done, course.updates):
        rate, steps = course.at(update)
        taken = [chosen[i] for i in course.numbers(update, len(chosen))]
        counts = [len(r.ids) - r.start - 1 for r in taken]
        totals = [max(1, sum(max(0, n - k) for n in counts)) for k in range(steps)]
        loss = loss_of(draft, lesson.feed(taken[rank::processes]), lesson.norm, totals)
        optimiser.zero_grad()
        loss.backward()
        value = exchange(parameters, loss.item(), lesson, update % 2, rank)
        nn.utils.clip_grad_norm_(parameters, course.clip)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
        losses.append(value / sum(0.8**k for k in range(steps)))  # a weighted mean: phases compare
        if rank:
            continue
        spent = time.monotonic() - began
        if spent - said > 20 or update + 1 == course.updates:
            said = spent
            recent = sum(losses[-50:]) / len(losses[-50:])
            eta = spent / (update + 1 - done) * (course.updates - update - 1) / 60
            log(f"update {update + 1}/{course.updates}, {steps} steps, loss {recent:.3f}, {eta:.1f} min to go")
        if update + 1 in ends:
            between(ends.index(update + 1) + 1)
        if update + 1 in ends or (update + 1) % 50 == 0:
            store(lesson.saved, draft, optimiser.state_dict(), losses)
    return losses


def exchange(parameters: list[nn.Parameter], loss: float, lesson: Lesson, half: int, rank: int) -> float:
    """Give every process the sum of all gradients; returns the sum of all losses.

    The two halves of ``sums`` take turns, so that one barrier an update is enough: nobody writes again into a
    half before everybody has left the other.
    """
    if lesson.sums is None:
        return loss
    gradients = [p.grad for p in parameters if p.grad is not None]
    lesson.sums[half, rank] = torch.cat([*(g.flatten() for g in gradients), torch.tensor([loss])])
    lesson.barrier.wait(WAIT)
    *parts, whole = lesson.sums[half].sum(0).split([*(g.numel() for g in gradients), 1])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return float(whole)


def store(saved: Path, draft: Draft, optimiser: dict[str, Any], losses: list[float]) -> None:
    """Store the training's state; the name appears only once the file is whole."""
    part = saved.with_suffix(".part")
    torch.save({"draft": draft.state_dict(), "optimiser": optimiser, "losses": losses}, part)
    part.replace(saved)


def train_together(
    draft: Draft,
    lesson: Lesson,
    chosen: list[Reply],
    folder: Path,
    processes: int,
    log: Callable[[str], None],
    between: Callable[[int], None],
) -> list[float]:
    """`train` in ``processes`` processes, this one among them; the others read the replies in ``folder``."""
    others = []
    if processes > 1:
        if not lesson.saved.exists():
            store(lesson.saved, draft, {}, [])  # what all of them start from
        context = torch.multiprocessing.get_context("spawn")
        size = sum(p.numel() for p in draft.parameters()) + 1
        sums = torch.zeros(2, processes, size).share_memory_()
        lesson = replace(lesson, sums=sums, barrier=context.Barrier(processes))
        known = (draft.shape, draft.head, lesson, [r.number for r in chosen], folder)
        others = [context.Process(target=_other, args=(i, *known), daemon=True) for i in range(1, processes)]
    for other in others:
        other.start()
    losses = train(draft, lesson, chosen, log=log, between=between)
    for other in others:
        other.join()
    return losses


def _other(rank: int, shape: Shape, head: Tensor, lesson: Lesson, numbers: list[int], folder: Path) -> None:
    torch.set_num_threads(1)
    feed = lesson.feed
    every = {r.number: r for r in replies(folder, tuple({*feed.aux, feed.last} - {0}))}
    draft = Draft(shape, len(feed.aux), feed.embed, head)
    train(draft, lesson, [every[n] for n in numbers], rank)
