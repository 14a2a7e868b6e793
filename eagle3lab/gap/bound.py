"""What a tree could accept at most: the recorded token among the draft's best k at every level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from eagle3lab.acceptance import Evaluation, accept, steps_that_fit
from eagle3lab.errors import BadFile, Blocked
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.samples import check_scorable, reply_rows


def tree_bounds(
    model: Model,
    samples: Mapping[str, Sample],
    names: Sequence[str],
    reading: Reading,
    steps: int,
    topks: Sequence[int],
) -> dict[int, Evaluation]:
    """Acceptance of full trees: every node has its best ``topk`` children, none is left out.

    A real tree keeps only so many nodes and accepts no more than this. Along the accepted path the draft reads the
    recorded tokens, so one teacher-forced rollout tells the rank of each. Samples that cannot be run are left out.

    Returns:
        topk → evaluation; ``parts`` may be empty.
    """
    out = {k: Evaluation(reading, steps, {}, {}) for k in topks}
    for name in names:
        try:
            sample = samples[name]
            check_scorable(sample, reading.aux)
            rolled = rollout(model, sample, reading, steps_that_fit(sample, steps), rows=reply_rows(sample))
            for k in topks:
                taken = [
                    # a token among the best k counts as the best: what verification sees of a full tree
                    replace(s, top_ids=torch.where((s.truth_rank >= 0) & (s.truth_rank < k), s.truth, -1)[:, None])
                    for s in rolled.steps
                ]
                out[k].parts[name] = accept(replace(rolled, steps=taken), sample, steps)
        except (BadFile, Blocked) as error:
            for k in topks:
                out[k].skipped[name] = error.line
    return out


def candidates(steps: int, topk: int) -> int:
    """Nodes that SGLang and EAGLE score for a tree (root not counted): k, then k² a level; K for a chain."""
    return steps if topk == 1 else topk + (steps - 1) * topk**2
