"""States that lie between boundaries: each holds a part of its block's increment, as one rank's partial sum does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from eagle3lab.aligned import Recording
from eagle3lab.bench import Bench, Score
from eagle3lab.outcome import Suspect
from eagle3lab.reading import Reading
from eagle3lab.records import Sample

SHARES = (0.25, 0.5)
"""Shares of the way to the next boundary at which the draft is fed."""

SURE, GAIN = 3.0, 0.02
"""Standard errors of likelihood, and accuracy, that states between boundaries must gain on the boundaries."""

ROWS, SAMPLES = 80, 6
"""Rows of each sample, and samples, on which it is judged."""


def sums(bench: Bench, reading: Reading) -> Iterator[Suspect]:
    """Whether states between the recorded boundaries fit better than the boundaries themselves do.

    A partial sum holds the state before its block and a part of what the block added: the right state then lies between
    this boundary and the next. A draft is best fed what it was trained on, so that in a sound recording no mixture of a
    boundary and its neighbour predicts better.
    """
    fed = [b for b in reading.aux if isinstance(b, int)]
    if not fed or bench.recording != Recording() or not all(b + 1 in bench.boundaries for b in fed):
        return
    (plain,) = bench.runnable([reading], ROWS, SAMPLES)
    if plain is None or plain.rows < 40:
        return
    found: list[tuple[float, float, Score]] = []
    for share in SHARES:
        mixed = Bench(bench.model, [_between(s, share, fed) for s in bench.samples[:SAMPLES]])
        (score,) = mixed.runnable([reading], ROWS, None)
        if score is not None and score.rows == plain.rows:
            gained = torch.cat(score.loglik)[:, 0] - torch.cat(plain.loglik)[:, 0]
            found.append((float(gained.mean() / gained.std().clamp(min=1e-9) * len(gained) ** 0.5), share, score))
    best = max(found, key=lambda one: one[0], default=None)
    if best is None or best[0] < SURE or best[2].accuracy < plain.accuracy + GAIN:
        return
    yield Suspect(
        "sums",
        "the recorded states may be partial sums: a mixture with the next boundary fits better than any boundary does",
        "h.*", f"accuracy {plain.accuracy:.2f} as recorded, {best[2].accuracy:.2f} at {best[1]:.0%} of the way to the "
        f"next boundary ({plain.rows} rows; likelihood {best[0]:.1f} standard errors above)",
        "one rank's part of what a block adds was recorded (TP): dump the same tokens at TP=1 and compare (S020) "
        "before anything is said of wiring or draft",
    )  # fmt: skip


def _between(sample: Sample, share: float, fed: list[int]) -> Sample:
    """The sample with each state that is fed moved a share of the way to the next boundary."""
    held = sample.states
    moved = {b: held[b].float() + share * (held[b + 1].float() - held[b].float()) for b in fed}
    return replace(sample, states=held | moved)
