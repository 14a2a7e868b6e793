"""Greedy replies in batches of equal prompt length, with the target's states kept on the way."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from recipe.target import Cache, Target
from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass
class Reply:
    """One conversation of one turn: ``ids`` [T] with the reply from ``start`` on, boundary k → bf16 [T-1, H].

    The last token's own state is never needed: nothing that follows it is known.
    """

    number: int
    start: int
    ids: Tensor
    states: dict[int, Tensor]

    @property
    def reply(self) -> list[int]:
        """The reply's tokens."""
        return self.ids[self.start :].tolist()


@dataclass(frozen=True)
class Rules:
    """How replies are made: at most ``limit`` tokens, up to the token ``end``, boundaries ``keep`` kept."""

    limit: int
    end: int
    keep: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """One batch: prompts of one length, their numbers and shared prefix, and the file for their replies."""

    path: Path
    numbers: list[int]
    prompts: list[list[int]]
    prefix: list[int]


def plan(folder: Path, prompts: list[list[int]], count: int, size: int, seed: int) -> list[Job]:
    """Batches of at most ``size`` prompts of one length, in random order, for at least ``count`` replies."""
    prefix = prompts[0]
    for ids in prompts:
        differ = [i for i, (a, b) in enumerate(zip(prefix, ids, strict=False)) if a != b]
        prefix = prefix[: differ[0]] if differ else prefix
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, ids in enumerate(prompts):
        by_length[len(ids)].append(number)
    batches = [numbers[i : i + size] for numbers in by_length.values() for i in range(0, len(numbers), size)]
    random.Random(f"plan {seed}").shuffle(batches)
    return [
        Job(folder / f"{i:04}.safetensors", numbers, [prompts[n] for n in numbers], prefix)
        for i, numbers in enumerate(batches)
        if sum(map(len, batches[:i])) < count
    ]


@torch.inference_mode()
def greedy(target: Target, prompts: Tensor, prefix: Tensor, rules: Rules) -> list[tuple[Tensor, dict[int, Tensor]]]:
    """Greedy replies to ``prompts`` [B, P], which all begin with ``prefix`` [N], N < P.

    Returns:
        For each prompt its ids with the reply [T], T ≤ P + limit, and its states {k: bf16 [T-1, H]}.
    """
    limit, end, keep = rules.limit, rules.end, rules.keep
    batch, length, start = *prompts.shape, len(prefix)
    shared = Cache(target.shape, 1, start)
    _, first = target.forward(prefix[None], shared, keep)
    cache = Cache(target.shape, batch, length + limit)
    cache.start_from(shared)
    h, states = target.forward(prompts[:, start:], cache, keep)
    kept = {k: torch.empty(batch, length + limit - 1, target.shape.hidden, dtype=torch.bfloat16) for k in keep}
    for k in keep:
        kept[k][:, :start], kept[k][:, start:length] = first[k], states[k]
    ids = torch.full((batch, length + limit), end)
    ids[:, :length] = prompts
    ends = torch.full((batch,), length + limit)
    alive = torch.arange(batch)
    for position in range(length, length + limit):
        tokens = target.logits(h[:, -1]).argmax(-1)
        ids[alive, position] = tokens
        going = tokens != end
        ends[alive[~going]] = position + 1
        if not going.all():  # finished sequences leave the batch
            alive, tokens, cache = alive[going], tokens[going], cache.rows(going)
        if not len(alive) or position + 1 == length + limit:
            break
        h, states = target.forward(tokens[:, None], cache, keep)
        for k in keep:
            kept[k][alive, position] = states[k][:, 0].bfloat16()
    return [(ids[b, :n], {k: kept[k][b, : n - 1] for k in keep}) for b, n in enumerate(ends.tolist())]


def loops(reply: list[int]) -> bool:
    """Whether a reply repeats itself: under 60 % distinct 3-grams in more than 30 tokens."""
    grams = list(zip(reply, reply[1:], reply[2:], strict=False))
    return len(reply) > 30 and len(set(grams)) < 0.6 * len(grams)


def save(path: Path, numbers: list[int], found: list[tuple[Tensor, dict[int, Tensor]]], start: int) -> None:
    """Store one batch; the name appears only once the file is whole, so an interrupted run can go on."""
    tensors: dict[str, Tensor] = {"start": torch.tensor(start)}
    for number, (ids, states) in zip(numbers, found, strict=True):
        tensors[f"{number}.ids"] = ids.clone()
        tensors |= {f"{number}.{k}": state.contiguous() for k, state in states.items()}
    part = path.with_suffix(".part")
    save_file(tensors, part)
    part.replace(path)


def replies(folder: Path, keep: tuple[int, ...]) -> Iterable[Reply]:
    """Every stored reply, mapped, by number within a file."""
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        for n in sorted(int(name.split(".")[0]) for name in tensors if name.endswith(".ids")):
            states = {k: tensors[f"{n}.{k}"] for k in keep}
            yield Reply(n, int(tensors["start"]), tensors[f"{n}.ids"], states)


_worker: dict[str, Any] = {}
"""What a process of the pool needs for every job."""


def _begin(make: Callable[[], tuple[Target, Any]], rules: Rules) -> None:
    torch.set_num_threads(1)
    _worker.update(target=make()[0], rules=rules)


def _batch(job: Job) -> tuple[int, int]:
    found = greedy(_worker["target"], torch.tensor(job.prompts), torch.tensor(job.prefix), _worker["rules"])
    start = len(job.prompts[0])
    save(job.path, job.numbers, found, start)
    return len(found), sum(len(ids) - start for ids, _ in found)


def generate(
    make: Callable[[], tuple[Target, Any]],
    rules: Rules,
    jobs: list[Job],
    workers: int,
    log: Callable[[str], None],
) -> None:
    """Do the ``jobs`` that have no file yet, in ``workers`` processes of one thread each."""
    jobs = [job for job in jobs if not job.path.exists()]
    if not jobs:
        return
    jobs[0].path.parent.mkdir(parents=True, exist_ok=True)
    total, done, tokens, began, said = sum(len(job.numbers) for job in jobs), 0, 0, time.monotonic(), 0.0
    log(f"{total} replies to generate in {len(jobs)} batches; the prompts share {len(jobs[0].prefix)} tokens")
    with ExitStack() as stack:
        if workers == 1:
            _begin(make, rules)
            results: Iterable[tuple[int, int]] = map(_batch, jobs)
        else:
            context = torch.multiprocessing.get_context("spawn")
            results = stack.enter_context(context.Pool(workers, _begin, (make, rules))).imap_unordered(_batch, jobs)
        for replied, made in results:
            done, tokens, spent = done + replied, tokens + made, time.monotonic() - began
            if spent - said > 20 or done == total:
                said = spent
                eta = spent / done * (total - done) / 60
                log(f"{done}/{total} replies, {tokens} tokens, {tokens / spent:.0f}/s, {eta:.1f} min to go")
