"""Scores of readings on shared rows, cheap because ``fc`` is linear: each (slot, state) product is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3lab.acceptance import resampled
from eagle3lab.aligned import Recording, aligned
from eagle3lab.errors import Blocked, LabError
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.narrow import WIDE, Narrow
from eagle3lab.norms import rms_norm
from eagle3lab.outcome import Depth
from eagle3lab.reading import FINAL, Reading
from eagle3lab.records import Interval, Sample
from eagle3lab.samples import reply_rows
from eagle3lab.trace import trace

MISS = -20.0
"""Log-likelihood counted for a recorded token that the draft cannot say, so that maps can be compared (nats)."""

KNOWN = 64
"""Scores on all rows that are kept: the reading reached is compared with others at every stage."""


@dataclass(frozen=True)
class Score:
    """Hits and log-likelihoods of one reading on shared rows.

    Attributes:
        hits: one bool tensor [R, K] a sample.
        loglik: one float tensor [R, K] a sample, misses at `MISS`; NaN where it was not asked for.
    """

    hits: list[Tensor]
    loglik: list[Tensor]

    @cached_property
    def accuracy(self) -> float:
        """Over all rows and steps."""
        rows = torch.cat([h.flatten() for h in self.hits])
        return float(rows.double().mean()) if len(rows) else float("nan")

    @cached_property
    def mean_loglik(self) -> float:
        """Mean log-likelihood at step 0, nats a token."""
        return float(torch.cat(self.loglik)[:, 0].mean())

    @property
    def rows(self) -> int:
        """Numbers behind `accuracy`."""
        return sum(h.numel() for h in self.hits)

    @property
    def depth(self) -> Depth:
        """By draft step."""
        hits, loglik = torch.cat(self.hits).float(), torch.cat(self.loglik)
        return Depth(tuple(hits.mean(0).tolist()), tuple(loglik.mean(0).tolist()))

    def same(self, other: Score) -> bool:
        """Whether the two predict the same, by construction: no two numbers are alike by chance."""
        if any(not torch.equal(a, b) for a, b in zip(self.hits, other.hits, strict=True)):
            return False
        return all(torch.allclose(a, b, atol=2e-5, rtol=0) for a, b in zip(self.loglik, other.loglik, strict=True))


@dataclass(frozen=True)
class Margin:
    """Positions left out at a text's ends, so that recordings of different lag answer for the same ones."""

    head: int = 0
    tail: int = 0


@dataclass(frozen=True)
class _Asked:
    """What is asked of a reading: `Bench.score`'s arguments, the largest shift of all that answer for the same rows."""

    rows: int | None
    count: int | None
    steps: int
    late: int
    likely: bool
    narrow: bool
    margin: Margin


class Bench:
    """Scores readings on the reply rows of a few samples.

    Args:
        model: the draft.
        samples: the recordings; read once a round, products cached for one sample at a time.
        recording: how their rows are read.
    """

    def __init__(self, model: Model, samples: Sequence[Sample], recording: Recording = Recording()):  # noqa: B008
        self.model, self.recording = model, recording
        self.originals = [s for s in samples if len(reply_rows(s)) >= 2]
        self.samples = [aligned(s, recording, model) for s in self.originals]
        self.tried = 0
        wide = model.draft.arch.draft_vocab >= WIDE
        self.narrow = (
            Narrow(model, torch.cat([s.input_ids for s in self.originals])) if wide and self.originals else model
        )
        self._traced: set[tuple[Reading, int]] = set()
        self._known: dict[tuple[Reading, _Asked], Score] = {}
        if not self.samples:
            raise Blocked("no sound headline sample has a reply of four tokens or more: nothing to search on")

    def under(self, recording: Recording) -> Bench:
        """The same samples with rows read otherwise."""
        return self if recording == self.recording else Bench(self.model, self.originals, recording)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Boundaries that every sample holds, ascending."""
        return tuple(sorted(set.intersection(*(set(s.states) for s in self.samples))))

    def holds(self, reading: Reading) -> bool:
        """Whether every sample holds the boundaries that ``reading`` feeds."""
        return all(b == FINAL or b in self.boundaries for b in reading.aux)

    def score(
        self,
        readings: Sequence[Reading],
        rows: int | None,
        count: int | None,
        steps: int = 1,
        *,
        shift: int = 0,
        likely: bool = True,
        narrow: bool = False,
        margin: Margin = Margin(),
    ) -> list[Score]:
        """Scores ``readings`` on the first ``rows`` reply rows of the first ``count`` samples (None: all).

        Rows are left out at a text's end so that every reading, and any with ``shift``, answers for the same ones.

        Args:
            readings: what is scored.
            rows: reply rows of each sample.
            count: samples.
            steps: K.
            shift: the largest shift of any reading that these are compared with.
            likely: whether log-likelihoods are wanted too.
            narrow: whether a part of the vocabulary will do: to put candidates in order, never for a number.
            margin: positions left out.
        """
        late = max([shift, *(r.shift for r in readings)])
        asked = _Asked(rows, count, steps, late, likely, narrow, margin)
        return [score for score in self._scored(readings, asked, True) if score is not None]

    def runnable(self, readings: Sequence[Reading], rows: int | None, count: int | None, steps: int = 1,
                 *, likely: bool = True, narrow: bool = False,
                 margin: Margin = Margin()) -> list[Score | None]:  # fmt: skip
        """Each reading's score, None where it cannot be run; all on the same rows."""
        latest = max((r.shift for r in readings), default=0)
        return self._scored(readings, _Asked(rows, count, steps, latest, likely, narrow, margin), False)

    def _scored(self, readings: Sequence[Reading], asked: _Asked, strict: bool) -> list[Score | None]:
        """Each reading's score; of one that cannot be run the error is raised (``strict``), or None stands for it."""
        known = [self._known.get((reading, asked)) for reading in readings]
        scores: list[Score | None] = [score or Score([], []) for score in known]
        model = self.narrow if asked.narrow else self.model
        for sample, original in list(zip(self.samples, self.originals, strict=True))[: asked.count]:
            products: dict[tuple[int, int | str, str], Tensor] = {}
            rows = self._chosen(original, asked.steps, asked.late, asked.margin)[: asked.rows or None]
            for i, (reading, score) in enumerate(zip(readings, scores, strict=True)):
                if score is None or known[i]:
                    continue
                try:
                    self._fits(reading, sample.width)
                    hits, loglik = self._one(model, sample, reading, rows, asked.steps, asked.likely, products)
                except LabError:
                    if strict:
                        raise
                    scores[i] = None
                    continue
                score.hits.append(hits)
                score.loglik.append(loglik)
        self.tried += sum(score is not None for score in scores)
        if asked.rows is None:
            self._known |= {(r, asked): s for r, s in zip(readings[-KNOWN:], scores[-KNOWN:], strict=True) if s}
            self._known = dict(list(self._known.items())[-KNOWN:])
        return scores

    def _chosen(self, original: Sample, steps: int, late: int, margin: Margin) -> Tensor:
        """Reply rows that every reading can answer for, counted from the recording's first row."""
        rows = reply_rows(original)
        first, lost = self.recording.first, max(-self.recording.lag, 0)
        rows = rows[
            (rows >= max(margin.head, first)) & (rows < original.length - steps - late - max(margin.tail, lost))
        ]
        return rows - first

    def _fits(self, reading: Reading, width: int) -> None:
        """The shape trace, once for all wirings of a reading: products that are cached meet no trace of their own."""
        key = (reading.replace(aux=(0,) * len(reading.aux)), width)
        if key not in self._traced:
            trace(self.model.draft, reading, 1, width)
            self._traced.add(key)

    def _one(self, model: Model, sample: Sample, reading: Reading, rows: Tensor, steps: int, likely: bool,
             products: dict[tuple[int, int | str, str], Tensor]) -> tuple[Tensor, Tensor]:  # fmt: skip
        if not len(rows):
            return torch.zeros(0, steps, dtype=torch.bool), torch.zeros(0, steps)
        used = int(rows[-1]) + 1 + steps + reading.shift
        fused = self._fused(sample, reading, products)
        if fused is not None:
            fused = fused[: min(used, sample.length) - reading.shift]
        head = start_of(sample, used)
        out = rollout(model, head, reading, steps, rows=rows, fused=fused, probabilities=likely)
        hits = torch.stack([s.correct for s in out.steps], -1)  # [R, K]
        return hits, torch.stack([s.truth_logprob for s in out.steps], -1).clamp(min=MISS)

    def _fused(self, sample: Sample, reading: Reading,
               products: dict[tuple[int, int | str, str], Tensor]) -> Tensor | None:  # fmt: skip
        """Fc of the aux states as a sum of cached slot products; None where the reading is not linear in them."""
        if reading.fc == "skipped" or reading.aux_norm == "input_norm":
            return None
        dtype, model = getattr(torch, reading.dtype), self.model
        weight = model.weight("fc.weight", dtype)
        if weight.shape[1] != len(reading.aux) * sample.width:
            return None  # the rollout's trace explains the mismatch
        total = model.optional("fc.bias", reading, dtype)
        for slot, (source, part) in enumerate(zip(reading.aux, weight.chunk(len(reading.aux), 1), strict=True)):
            key = (slot, source, reading.aux_norm)
            if key not in products:
                state = model.aux_states(sample, (source,))[0].to(model.device, dtype)
                if reading.aux_norm == "fc_norm":
                    state = rms_norm(state, model.weight(f"fc_norm.{slot}.weight", dtype), model.draft.arch.eps)
                products[key] = F.linear(state, part)  # [T, H]
            total = products[key] if total is None else total + products[key]
        return total


def start_of(sample: Sample, length: int) -> Sample:
    """The sample's first ``length`` positions (views)."""
    return sample if length >= sample.length else sample.at(slice(length))


def with_states(sample: Sample, change: Callable[[Tensor], Tensor]) -> Sample:
    """The sample with ``change`` [T, Ht] → [T, Ht] done to every recorded state."""
    final = None if sample.final is None else change(sample.final)
    return replace(sample, states={k: change(v) for k, v in sample.states.items()}, final=final)


def accuracy_of(score: Score, level: float = 0.95) -> Interval:
    """A score's accuracy with a bootstrap interval over samples (rows below five)."""
    return _mean([h.float() for h in score.hits], level)


def paired(best: Score, other: Score, level: float = 0.95) -> Interval:
    """Accuracy of ``best`` minus that of ``other`` on the same rows, bootstrap over samples (rows below five)."""
    return _mean([(a.float() - b.float()) for a, b in zip(best.hits, other.hits, strict=True)], level)


def _mean(gaps: Iterable[Tensor], level: float) -> Interval:
    """Mean over all rows and steps with its interval; one tensor [R, K] a sample."""
    gaps = [g for g in gaps if g.numel()]
    if not gaps:
        return Interval(float("nan"), -1.0, 1.0, 0, "no row is left")
    sizes = [g.numel() for g in gaps]
    if len(gaps) >= 5:
        top, bottom = torch.stack([g.sum() for g in gaps]).double(), torch.tensor(sizes).double()
        unit = f"{len(gaps)} samples"
    else:
        top = torch.cat([g.mean(-1) for g in gaps]).double()
        bottom, unit = torch.ones(len(top)).double(), f"{len(top)} rows (too few samples)"
    over, under = resampled(torch.stack([top, bottom], 1)).T
    gap = over / under
    low, high = gap.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2]).double()).tolist()
    return Interval(float(top.sum() / bottom.sum()), low, high, int(sum(sizes)), f"bootstrap over {unit}")
