"""One pass over the recording: finiteness, RMS, cosines, the embedding test, the lens on the last state."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle3lab.errors import LabError
from eagle3lab.records import Sample
from eagle3lab.samples import Samples
from eagle3lab.stats import cosine, rms
from eagle3lab.target import Target

LENS_ROWS = 512
"""Rows per case that go through the target's head."""


@dataclass
class Survey:
    """One pass over the samples, kept as small numbers for checks, tables and plots.

    Attributes:
        unreadable: name → error text.
        bad_rows: (sample, boundary) → (NaN rows, infinite rows, zero rows).
        rms: (sample, boundary) → float32 [T].
        cosines: boundary pair → mean cosine over all rows but the first of each sample.
        embedding_error: sample → largest difference of boundary 0 from the embedding rows, relative to their RMS.
        lens: norms applied (0, 1, 2) → (hits, rows) on reply tokens.
        lens_boundary: the boundary the lens was put on, None when there is none.
        same: pairs of boundaries that are bitwise equal in some sample.
        masks: sample → (reply tokens, tokens).
        widths: sample → Ht.
        held: sample → its boundaries.
        unused: sample → keys of its file that the format does not know.
        blocked: finding code → why its question could not be put to some sample.
    """

    unreadable: dict[str, str] = field(default_factory=dict)
    bad_rows: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    rms: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    cosines: dict[tuple[int, int], float] = field(default_factory=dict)
    embedding_error: dict[str, float] = field(default_factory=dict)
    lens: dict[int, tuple[int, int]] = field(default_factory=dict)
    lens_boundary: int | None = None
    same: set[tuple[int, int]] = field(default_factory=set)
    masks: dict[str, tuple[int, int]] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    held: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)


def survey(samples: Samples, target: Target | None, names: list[str] | None = None) -> Survey:
    """Reads every sample once, one in memory at a time."""
    out = Survey()
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for name in names if names is not None else samples.looked_at:
        try:
            sample = samples[name]
        except LabError as error:
            out.unreadable[name] = error.line
            continue
        out.masks[name] = (int(sample.loss_mask.bool().sum()), sample.length)
        out.widths[name], out.held[name] = sample.width, sample.boundaries
        if sample.unused:
            out.unused[name] = sample.unused
        _states(out, sample, sums)
        if target is not None and sample.width == target.hidden:
            _embedding(out, sample, target)
            _lens(out, sample, target)
    out.cosines = {pair: total / n for pair, (total, n) in sums.items() if n}
    return out


def _states(out: Survey, sample: Sample, sums: dict[tuple[int, int], tuple[float, int]]) -> None:
    for k, state in sample.states.items():
        values = state.float()
        finite = values.isfinite()
        nan, inf = values.isnan().any(1), (~finite & ~values.isnan()).any(1)
        out.bad_rows[sample.name, k] = (int(nan.sum()), int(inf.sum()), int((values == 0).all(1).sum()))
        out.rms[sample.name, k] = rms(state)
    held = sample.boundaries
    for a, b in zip(held, held[1:], strict=False):
        similarity = cosine(sample.states[a][1:], sample.states[b][1:])  # row 0 is an attention sink
        similarity = similarity[similarity.isfinite()]
        total, n = sums.get((a, b), (0.0, 0))
        sums[a, b] = (total + float(similarity.sum()), n + len(similarity))
    for i, a in enumerate(held):
        for b in held[i + 1 :]:
            if torch.equal(sample.states[a], sample.states[b]):
                out.same.add((a, b))


def _embedding(out: Survey, sample: Sample, target: Target) -> None:
    if 0 not in sample.states:
        return
    try:
        rows = target.embedding(sample.input_ids).float()
    except LabError as error:
        out.blocked.setdefault("S003", error.line)  # a slice without these tokens' rows cannot tell
        return
    mine = sample.states[0].float()
    # some families scale their embeddings by one factor; the best factor is taken out first
    scale = (mine * rows).sum() / rows.square().sum()
    out.embedding_error[sample.name] = float((mine - scale * rows).abs().max() / rows.square().mean().sqrt())


def _lens(out: Survey, sample: Sample, target: Target) -> None:
    last = sample.final if sample.final is not None else sample.states.get(target.layers)
    done = sum(n for _, n in out.lens.values()) // 3
    if last is None or done >= LENS_ROWS:
        return
    rows = torch.nonzero(sample.loss_mask.bool())[:, 0]
    try:
        rows = rows[(rows > 0) & target.holds(sample.input_ids[rows])][: LENS_ROWS - done]
    except LabError as error:
        out.blocked.setdefault("S004", error.line)
        return
    out.lens_boundary = target.layers
    for norms in (0, 1, 2):
        try:
            picks = target.lens(last[rows - 1], norms)
        except LabError as error:
            out.blocked.setdefault("S004", error.line)
            return
        hits, n = out.lens.get(norms, (0, 0))
        out.lens[norms] = (hits + int((picks == sample.input_ids[rows]).sum()), n + len(rows))
