"""Columns of the recorded states that a tensor-parallel dump left out or left behind."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from eagle3lab.bench import Bench
from eagle3lab.outcome import Suspect

PARTS = (2, 4, 8)
"""Tensor-parallel sizes whose column blocks are looked at."""

STILL = 0.02
"""A block whose increments are this small beside the median block's got nothing from the blocks in between."""


def columns(bench: Bench) -> Iterator[Suspect]:
    """Boundaries whose increments lack a column block: one rank's share of the residual stream was recorded."""
    held = bench.boundaries
    told: set[int] = set()
    for low, high in zip(held, held[1:], strict=False):
        steps = torch.cat([(s.states[high].float() - s.states[low].float())[1:] for s in bench.samples[:6]])
        for parts in PARTS:
            if steps.shape[1] % parts or high in told:
                continue
            sizes = steps.unflatten(1, (parts, -1)).square().mean((0, 2)).sqrt()  # [parts]
            middle = float(sizes.median() if parts > 2 else sizes.max())
            still = [i for i, size in enumerate(sizes.tolist()) if size < STILL * middle]
            if still and middle > 0:
                told.add(high)
                width = steps.shape[1] // parts
                spans = ", ".join(f"{i * width} … {(i + 1) * width - 1}" for i in still)
                yield Suspect(
                    "columns", f"boundary {high}: columns {spans} are those of boundary {low} still", f"h.{high}",
                    f"their increments are below {STILL:.0%} of the others'",
                    "one rank's part of the state was recorded (TP): gather or all-reduce it before it is captured",
                )  # fmt: skip
