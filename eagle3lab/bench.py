"""Scores of readings on shared rows, cheap because ``fc`` is linear: each (slot, state) product is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3lab.acceptance import RESAMPLES, SEED
from eagle3lab.errors import Blocked
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.norms import rms_norm
from eagle3lab.reading import FINAL, Reading
from eagle3lab.records import Interval, Sample
from eagle3lab.samples import reply_rows
from eagle3lab.trace import trace

MISS = -20.0
"""Log-likelihood counted for a recorded token that the draft cannot say, so that maps can be compared (nats)."""


@dataclass(frozen=True)
class Score:
    """Hits and log-likelihoods of one reading on shared rows.

    Attributes:
        hits: one bool tensor [R, K] a sample.
        loglik: one float tensor [R] a sample, step 0, misses at `MISS`.
    """

    hits: list[Tensor]
    loglik: list[Tensor]

    @property
    def accuracy(self) -> float:
        """Over all rows and steps."""
        rows = torch.cat([h.flatten() for h in self.hits])
        return float(rows.float().mean()) if len(rows) else float("nan")

    @property
    def mean_loglik(self) -> float:
        """Mean log-likelihood at step 0, nats a token."""
        return float(torch.cat(self.loglik).mean())


class Bench:
    """Scores readings on the reply rows of a few samples.

    Args:
        model: the draft.
        samples: the recordings; read once a round, products cached for one sample at a time.
    """

    def __init__(self, model: Model, samples: Sequence[Sample]):
        self.model = model
        self.samples = [s for s in samples if len(reply_rows(s)) >= 2]
        self.tried = 0
        self._traced: set[tuple[Reading, int]] = set()
        if not self.samples:
            raise Blocked("no sound headline sample has a reply of four tokens or more: nothing to search on")

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Boundaries that every sample holds, ascending."""
        return tuple(sorted(set.intersection(*(set(s.states) for s in self.samples))))

    def holds(self, reading: Reading) -> bool:
        """Whether every sample holds the boundaries that ``reading`` feeds."""
        return all(b == FINAL or b in self.boundaries for b in reading.aux)

    def score(self, readings: Sequence[Reading], rows: int | None, count: int | None, steps: int = 1,
              shift: int = 0) -> list[Score]:  # fmt: skip
        """Scores ``readings`` on the first ``rows`` reply rows of the first ``count`` samples (None: all).

        Rows are left out at a text's end so that every reading, and any with ``shift``, answers for the same ones.
        """
        scores = [Score([], []) for _ in readings]
        for sample in self.samples[:count]:
            products: dict[tuple[int, int | str], Tensor] = {}
            chosen = reply_rows(sample)[: rows or None]
            chosen = chosen[chosen < sample.length - steps - max(shift, *(r.shift for r in readings))]
            for reading, score in zip(readings, scores, strict=True):
                self._fits(reading, sample.width)
                hits, loglik = self._one(sample, reading, chosen, steps, products)
                score.hits.append(hits)
                score.loglik.append(loglik)
        self.tried += len(readings)
        return scores

    def _fits(self, reading: Reading, width: int) -> None:
        """The shape trace, once for all wirings of a reading: products that are cached meet no trace of their own."""
        key = (reading.replace(aux=(0,) * len(reading.aux)), width)
        if key not in self._traced:
            trace(self.model.draft, reading, 1, width)
            self._traced.add(key)

    def _one(self, sample: Sample, reading: Reading, rows: Tensor, steps: int,
             products: dict[tuple[int, int | str], Tensor]) -> tuple[Tensor, Tensor]:  # fmt: skip
        used = int(rows[-1]) + 1 + steps + reading.shift if len(rows) else sample.length
        fused = self._fused(sample, reading, products)
        if fused is not None:
            fused = fused[: min(used, sample.length) - reading.shift]
        out = rollout(self.model, _head(sample, used), reading, steps, rows=rows, fused=fused)
        hits = torch.stack([s.correct for s in out.steps], -1)  # [R, K]
        return hits, out.steps[0].truth_logprob.clamp(min=MISS)

    def _fused(self, sample: Sample, reading: Reading, products: dict[tuple[int, int | str], Tensor]) -> Tensor | None:
        """Fc of the aux states as a sum of cached slot products; None where the reading is not linear in them."""
        if reading.fc == "skipped" or reading.aux_norm == "input_norm":
            return None
        dtype, model = getattr(torch, reading.dtype), self.model
        weight = model.weight("fc.weight", dtype)
        if weight.shape[1] != len(reading.aux) * sample.width:
            return None  # the rollout's trace explains the mismatch
        total = model.optional("fc.bias", reading, dtype)
        for slot, (source, part) in enumerate(zip(reading.aux, weight.chunk(len(reading.aux), 1), strict=True)):
            if (slot, source) not in products:
                state = model.aux_states(sample, (source,))[0].to(model.device, dtype)
                if reading.aux_norm == "fc_norm":
                    state = rms_norm(state, model.weight(f"fc_norm.{slot}.weight", dtype), model.draft.arch.eps)
                products[slot, source] = F.linear(state, part)  # [T, H]
            total = products[slot, source] if total is None else total + products[slot, source]
        return total


def _head(sample: Sample, length: int) -> Sample:
    """The sample's first ``length`` positions (views)."""
    if length >= sample.length:
        return sample
    states = {k: v[:length] for k, v in sample.states.items()}
    final = None if sample.final is None else sample.final[:length]
    return Sample(**{**vars(sample), "input_ids": sample.input_ids[:length], "loss_mask": sample.loss_mask[:length],
                     "states": states, "final": final})  # fmt: skip


def accuracy_of(score: Score, level: float = 0.95) -> Interval:
    """A score's accuracy with a bootstrap interval over samples (rows below five)."""
    return _mean([h.float() for h in score.hits], level)


def paired(best: Score, other: Score, level: float = 0.95) -> Interval:
    """Accuracy of ``best`` minus that of ``other`` on the same rows, bootstrap over samples (rows below five)."""
    return _mean([(a.float() - b.float()) for a, b in zip(best.hits, other.hits, strict=True)], level)


def _mean(gaps: list[Tensor], level: float) -> Interval:
    """Mean over all rows and steps with its interval; one tensor [R, K] a sample."""
    sizes = [g.numel() for g in gaps]
    if len(gaps) >= 5:
        top, bottom = torch.stack([g.sum() for g in gaps]).double(), torch.tensor(sizes).double()
        unit = f"{len(gaps)} samples"
    else:
        top = torch.cat([g.mean(-1) for g in gaps]).double()
        bottom, unit = torch.ones(len(top)).double(), f"{len(top)} rows (too few samples)"
    draws = torch.randint(len(top), (RESAMPLES, len(top)), generator=torch.Generator().manual_seed(SEED))
    gap = top[draws].sum(1) / bottom[draws].sum(1)
    low, high = gap.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2]).double()).tolist()
    return Interval(float(top.sum() / bottom.sum()), low, high, int(sum(sizes)), f"bootstrap over {unit}")
