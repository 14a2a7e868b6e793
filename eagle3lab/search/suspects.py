"""What is wrong with the content where no reading fits, or with a part of it: states, map or weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagle3lab.bench import Bench, Score
from eagle3lab.outcome import Suspect
from eagle3lab.reading import Reading
from eagle3lab.samples import reply_rows
from eagle3lab.search.columns import columns
from eagle3lab.search.heads import RECOVERS, Said, blocks, fresh, lost_blocks, rebuilt, said
from eagle3lab.search.parts import Part, parts, swapped
from eagle3lab.search.sums import sums
from eagle3lab.search.turned import turned

__all__ = ["Suspect", "partial", "whole"]


def whole(bench: Bench, readings: Sequence[Reading], score: Score, low: float) -> list[Suspect]:
    """Suspects where no reading fits.

    Args:
        bench: the samples.
        readings: to try content under, the best one first.
        score: of the best one, on all rows.
        low: the floor.
    """
    # what the states show by themselves, judged on rows apart, comes before what hits at the floor seem to say
    found = [*turned(bench, readings, low + RECOVERS), *columns(bench)] or list(swapped(bench, readings, low))
    found = found or list(sums(bench, readings[0]))
    found = found or parts(bench, readings[0], _parts(bench, readings[0], score, None, low), low)
    never = list(fresh(bench))
    # rows of a head that was never trained go with tokens too, since like states give like rows
    if not found and not any("lm_head" in suspect.where for suspect in never):
        told = [one for one in (said(bench, reading) for reading in readings) if one is not None]
        found = list(rebuilt(told, low))
        if told and not found and not never:  # with any matrix fresh whole blocks of ids are never said either
            found = list(blocks(told[0], bench.model.draft.arch.vocab, low))
    return found or never


def partial(bench: Bench, reading: Reading, score: Score, low: float) -> list[Suspect]:
    """Samples, and parts of samples, that do not fit where the others do; a part of the head, or its map."""
    told = said(bench, reading)
    head = list(rebuilt([told], score.accuracy)) if told else []
    if told and not head:
        head = list(blocks(told, bench.model.draft.arch.vocab, low))
    found = _parts(bench, reading, score, told if head else None, low)
    return [*columns(bench), *sums(bench, reading), *head, *parts(bench, reading, found, low)]


def _parts(bench: Bench, reading: Reading, score: Score, told: Said | None, low: float) -> list[Part]:
    """Each sample's rows and hits; rows whose token lies in a lost part of the vocabulary say nothing of the states."""
    vocab = bench.model.draft.arch.vocab
    lost = lost_blocks(told, vocab, low)[0] if told is not None else []
    out = []
    for sample, original, hits in zip(bench.samples, bench.originals, score.hits, strict=True):
        first = bench.recording.first
        rows = reply_rows(original)
        rows = rows[rows >= first][: len(hits)] - first
        mine = hits[:, 0].float()
        tokens = sample.input_ids[rows + 1 + reading.shift]
        for first_id, end in lost:
            mine = torch.where((tokens >= first_id) & (tokens < end), float("nan"), mine)
        out.append(Part(sample, rows, mine))
    return out
