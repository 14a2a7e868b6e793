"""One reading over the samples of a case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from eagle3lab.acceptance.chain import Acceptance, accept, steps_that_fit, total, walk
from eagle3lab.acceptance.intervals import accept_length_interval, length_of
from eagle3lab.counts import Counts
from eagle3lab.errors import BadFile, BadShape, Blocked
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Interval, Sample
from eagle3lab.samples import check_scorable, reply_rows


@dataclass
class Evaluation:
    """One reading over the samples of a case.

    Attributes:
        reading: the reading run.
        steps: K.
        parts: acceptance by sample name.
        skipped: sample name → why it could not be run.
        nonfinite: rows whose logits were not finite, over all samples and steps.
    """

    reading: Reading
    steps: int
    parts: dict[str, Acceptance]
    skipped: dict[str, str]
    nonfinite: int = 0

    @property
    def counts(self) -> Counts:
        """All samples together."""
        return total(list(self.parts.values()))

    @property
    def length(self) -> Interval:
        """Accept length with its interval."""
        return accept_length_interval(list(self.parts.values()))

    def cut(self, steps: int) -> Evaluation:
        """The same with only ``steps`` drafts a round."""
        parts = {name: part.cut(steps) for name, part in self.parts.items()}
        return Evaluation(self.reading, steps, parts, self.skipped, self.nonfinite)


def evaluate(
    model: Model,
    samples: Mapping[str, Sample],
    names: Sequence[str],
    reading: Reading,
    steps: int,
    fed: str = "recorded",
) -> Evaluation:
    """Rolls the draft out over the reply rows of each named sample and verifies it.

    A sample that cannot be run is skipped with its reason; when none can, the first reason is the error. ``fed`` says
    which tokens later steps read: the ``recorded`` ones, or the draft's own (``self``).
    """
    out = Evaluation(reading, steps, {}, {})
    misfit: BadShape | None = None
    for name in names:
        try:
            sample = samples[name]
            check_scorable(sample, reading.aux)
            fit = steps_that_fit(sample, steps)
            rolled = rollout(model, sample, reading, fit, rows=reply_rows(sample), fed=fed, probabilities=False)
            out.parts[name] = accept(rolled, sample, steps)
            out.nonfinite += rolled.nonfinite
        except (BadFile, Blocked, BadShape) as error:
            out.skipped[name] = error.line
            misfit = misfit or (error if isinstance(error, BadShape) else None)
    if misfit is not None and not out.parts:
        raise misfit
    if not out.parts and out.skipped:
        reasons = list(dict.fromkeys(out.skipped.values()))
        raise Blocked(
            f"no sample can be run under {reading}: {reasons[0]}"
            + (f" (and {len(reasons) - 1} more reasons)" if len(reasons) > 1 else "")
        )
    return out


def accept_length(
    model: Model, samples: Iterable[Sample], reading: Reading, steps: int, level: float = 0.95
) -> Interval:
    """The same accept length as `evaluate`'s, and nothing else, for less than half the work.

    Step k is run only from the rows whose drafts were all right so far. Samples that cannot be run are left out.

    Raises:
        Blocked: none can be run.
    """
    walks = []
    for sample in samples:
        try:
            check_scorable(sample, reading.aux)
            fit = steps_that_fit(sample, steps)
            rolled = rollout(model, sample, reading, fit, rows=reply_rows(sample), probabilities=False,
                             accepted_only=True)  # fmt: skip
        except (BadFile, Blocked):
            continue
        correct = torch.zeros(sample.length, steps, dtype=torch.bool)
        for k, step in enumerate(rolled.steps):
            correct[step.rows, k] = step.correct
        late = max(reading.shift - 1, 0)
        walks.append([r for a, b in sample.spans for r in walk(correct, a, b - late, steps)])
    if not walks:
        raise Blocked(f"no sample can be run under {reading}")
    return length_of([(sum(r.accepted for r in rounds), len(rounds)) for rounds in walks], walks, level)
