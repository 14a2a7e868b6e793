"""Where a search begins: the configured reading, or that of another program where it fits clearly better."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields

from eagle3lab.bench import Bench, paired
from eagle3lab.errors import Blocked, LabError
from eagle3lab.outcome import Repair
from eagle3lab.reading import Reading
from eagle3lab.records import Interval
from eagle3lab.search.fields import STEPS, change_of
from eagle3lab.search.walk import Walk
from eagle3lab.search.wirings import gain

CLEARLY = 0.05
"""Nats a token by which another start must be likelier than the configured one to be taken instead."""


def best_start(bench: Bench, starts: Sequence[Reading]) -> Reading:
    """The first of ``starts``, unless another is clearly likelier.

    Raises:
        Blocked: there is none, or no boundary is held by all samples.
        LabError: none can be run (the first one's own reason).
    """
    runnable = []
    for reading in filter(bench.holds, dict.fromkeys(starts)):
        with suppress(LabError):
            runnable.append((bench.score([reading], 24, 1)[0].mean_loglik, reading))
    if not runnable:
        if not starts or not bench.boundaries:
            what = "boundary that every sample holds (S010)" if starts else "reading to start from"
            raise Blocked(f"the search has no {what}")
        # a start whose states are not recorded can still say everything but its wiring: what else is wrong is raised
        held = bench.boundaries
        moved = starts[0].replace(aux=tuple(held[min(i, len(held) - 1)] for i in range(bench.model.draft.arch.aux)))
        bench.score([moved], 24, 1)
        return moved
    first = runnable[0]
    best = max(runnable, key=lambda pair: pair[0])
    return best[1] if best[0] > first[0] + CLEARLY else first[1]


def set_out(walk: Walk, first: Reading) -> None:
    """Writes down what sets the chosen start apart from the configured one; a field that gains nothing is put back."""
    bench, start = walk.bench, walk.current
    if start.aux != first.aux and bench.holds(first):
        before = start.replace(aux=first.aux)
        _write(walk, before, start, gain(bench, start, before))
    for name in (f.name for f in fields(Reading) if f.name != "aux"):
        back = start.replace(**{name: getattr(first, name)})
        if back == start:
            continue
        kept, lost = bench.runnable([start, back], 40, 6, STEPS, likely=False)
        gap = paired(kept, lost) if kept and lost else None
        if gap and gap.low <= 0:
            start = back
        else:
            nothing = Interval(float("nan"), 1.0, 1.0, 0, "the configured one cannot be run")
            _write(walk, back, start, gap or nothing)
    walk.current = start


def _write(walk: Walk, before: Reading, after: Reading, gap: Interval) -> None:
    depths = walk.signature([before, after])
    name, old, new = change_of(before, after)
    walk.path.append(Repair(name, old, new, gap, depths[0], depths[1]))
