"""States in a rotated basis: boundary 0 shows the rotation, since it must be the tokens' embedding rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eagle3lab.bench import Bench
from eagle3lab.errors import LabError
from eagle3lab.outcome import Suspect
from eagle3lab.reading import Reading

MOST = 8192
"""Rows that the rotation is solved from."""

FAR, NEAR = 0.5, 0.2
"""Relative error of boundary 0 as it is, from which a rotation is looked for, and after it, below which it is found."""


def turned(bench: Bench, readings: Sequence[Reading], enough: float) -> Iterator[Suspect]:
    """A rotation that turns boundary 0 into embedding rows; solved on three rows of four, judged on the fourth.

    Args:
        bench: the samples.
        readings: to predict under once states are turned back.
        enough: accuracy from which the draft confirms it.
    """
    pairs = _rows(bench)
    if pairs is None:
        return
    states, wanted = pairs
    width = states.shape[1]
    test = torch.arange(len(states)) % 4 == 3
    if int((~test).sum()) < width or int(test.sum()) < 8:
        return
    before = _error(states[test], wanted[test])
    if before < FAR:
        return
    u, _, vh = torch.linalg.svd(states[~test].T @ wanted[~test])
    rotation = u @ vh  # orthogonal Procrustes: states @ rotation ≈ wanted
    after = _error(states[test] @ rotation, wanted[test])
    if after > NEAR:
        return
    best = _back(bench, readings, rotation)
    confirmed = f"; turned back, the draft reaches {best:.2f}" if best > enough else ""
    yield Suspect(
        "basis", "the states are in a rotated basis: their sizes are right, their directions are not", "h.*",
        f"boundary 0 is {before:.2f} from the embedding rows, {after:.2f} once rotated "
        f"({len(states)} rows, orthogonal Procrustes){confirmed}",
        "a rotating quantisation (QuaRot, SpinQuant) recorded its own basis: record from the unrotated target, "
        "or fold the rotation into fc",
    )  # fmt: skip


def _rows(bench: Bench) -> tuple[Tensor, Tensor] | None:
    target = bench.model.target
    if target is None or 0 not in bench.boundaries:
        return None
    states, wanted = [], []
    try:
        for sample in bench.samples:
            states.append(sample.states[0].float())
            wanted.append(target.embedding(sample.input_ids).float())
    except LabError:
        return None
    mine, theirs = torch.cat(states)[:MOST], torch.cat(wanted)[:MOST]
    # equal tokens have equal rows: they say nothing twice
    _, first = torch.unique(theirs, dim=0, return_inverse=True)
    keep = torch.unique(first.new_tensor(_firsts(first.tolist())))
    return mine[keep], theirs[keep]


def _firsts(groups: list[int]) -> list[int]:
    seen: dict[int, int] = {}
    for place, group in enumerate(groups):
        seen.setdefault(group, place)
    return list(seen.values())


def _error(states: Tensor, wanted: Tensor) -> float:
    """Relative distance, whatever the scale: some families scale their embedding."""
    scale = float((states * wanted).sum() / states.square().sum().clamp(min=1e-30))
    return float((states * scale - wanted).norm() / wanted.norm())


def _back(bench: Bench, readings: Sequence[Reading], rotation: Tensor) -> float:
    moved = [
        replace(s, states={k: (v.float() @ rotation).to(v.dtype) for k, v in s.states.items()}) for s in bench.samples
    ]
    scores = Bench(bench.model, moved).runnable(readings, 80, 6, likely=False)
    return max((s.accuracy for s in scores if s is not None), default=0.0)
