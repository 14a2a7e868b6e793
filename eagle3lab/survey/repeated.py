"""Rows that are copies of others, and rows of one size: written down before anything else is read into them."""

from __future__ import annotations

import torch

from eagle3lab.recordings.rows import before_copies, copied, normed, runs, sizes
from eagle3lab.records import Sample
from eagle3lab.survey.alignment import LEAST
from eagle3lab.survey.found import Survey


def own_rows(out: Survey, sample: Sample) -> Sample:
    """Writes down copies, and sizes that are all one; returns the sample without rows that are copies anywhere.

    Row numbers of what comes after the first copy inside a text are other ones then: of such a sample the copies
    are what is said. A boundary that is copies for the most part takes no row from the others.
    """
    kept = torch.ones(sample.length, dtype=torch.bool)
    end = sample.length
    for b, state in sample.states.items():
        lags = copied(state, sample.input_ids, b)
        if b > 0 and (size := sizes(state, lags)) is not None and normed(size):
            out.sizes[sample.name, b] = size
        if found := runs(lags):
            out.copies[sample.name, b] = found
            if mostly(out, sample, b):
                continue
            kept &= lags == 0
            end = min(end, before_copies(lags, sample.length))
    if bool(kept.all()) or int(kept.sum()) < LEAST:
        return sample
    return sample.at(slice(end) if bool(kept[:end].all()) else torch.nonzero(kept)[:, 0])


def mostly(out: Survey, sample: Sample, b: int) -> bool:
    """Whether more than half of a boundary's rows are copies."""
    return 2 * sum(c.count for c in out.copies.get((sample.name, b), ())) > sample.length
