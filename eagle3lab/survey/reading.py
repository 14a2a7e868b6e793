"""The pass itself: every sample is read once, one in memory at a time."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from eagle3lab.errors import LabError
from eagle3lab.records import Sample
from eagle3lab.samples import Samples
from eagle3lab.stats import best_step, cosine, rms
from eagle3lab.survey.alignment import LAGS, LEAST, LENS_ROWS, Lens
from eagle3lab.survey.between import between
from eagle3lab.survey.found import EDGE, Span, Survey
from eagle3lab.survey.repeated import own_rows
from eagle3lab.survey.short import rows_by_evidence
from eagle3lab.target import Target

PARTS = (8, 4, 2)
"""Tensor-parallel sizes whose equal column blocks are looked for."""

HALF_MOST = 65504.0
"""The largest number of float16: what an overflow that was clamped ends at."""

ROWS = 4096
"""Rows worked on at once."""


def survey(samples: Samples, target: Target | None, names: list[str] | None = None) -> Survey:
    """Reads every sample once, one in memory at a time."""
    out = Survey()
    lens = Lens()
    chosen = names if names is not None else samples.looked_at
    most = max(LEAST, LENS_ROWS // max(len(chosen), 1))
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for name in chosen:
        try:
            sample = samples[name]
        except LabError as error:
            out.unreadable[name] = error.line
            if words := rows_by_evidence(samples, name, target):
                out.partial[name] = words
            continue
        out.masks[name] = (int(sample.loss_mask.bool().sum()), sample.length)
        out.widths[name], out.held[name] = sample.width, sample.boundaries
        out.nbytes[name] = sum(s.nbytes for s in sample.states.values())
        if sample.unused:
            out.unused[name] = sample.unused
        _origin(out, sample)
        _marked(out, sample)
        _states(out, sample, sums)
        sample = own_rows(out, sample)
        between(out, sample)
        if target is not None and sample.width == target.hidden:
            _embedding(out, sample, target)
            try:
                lens.collect(sample, target, most)
            except LabError as error:
                out.blocked.setdefault("S004", error.line)
    out.cosines = {pair: total / n for pair, (total, n) in sums.items() if n}
    if target is not None and not lens.empty:
        try:
            out.lens, out.lens_other = lens.read(target)
            out.picks, out.lens_boundary = lens, target.layers
        except LabError as error:
            out.blocked.setdefault("S004", error.line)
    return out


def _origin(out: Survey, sample: Sample) -> None:
    """Who wrote it, what had to be assumed, its tokens' hash and the tokens around its spans."""
    out.writers[sample.name] = sample.writer
    for note in sample.notes:
        out.notes.setdefault(note, []).append(sample.name)
    for guess in sample.assumed:
        out.assumed.setdefault(guess, []).append(sample.name)
    out.tokens.setdefault(_digest(sample.input_ids), []).append(sample.name)
    ids = [-1, -1, *sample.input_ids.tolist(), -1]
    out.edges += [(ids[a], ids[a + 1], ids[a + 2], ids[b + 1], ids[b + 2]) for a, b in sample.spans]


def _digest(tokens: Tensor) -> str:
    return hashlib.sha256(tokens.numpy().tobytes()).hexdigest()


def _marked(out: Survey, sample: Sample) -> None:
    """Its reply spans, and tokens at its start that come twice."""
    ids = sample.input_ids.tolist()
    for a, b in sample.spans:
        padded = next((i for i in range(1, b - a) if ids[b - 1 - i] != ids[b - 1]), b - a)
        out.spans.append(Span(sample.name, a, b, len(ids), tuple(ids[a : min(a + EDGE, b)]),
                              tuple(ids[max(b - EDGE, a) : b]), ids[b] if b < len(ids) else -1, padded))  # fmt: skip
        if b - a >= 8:
            holders = out.replies.setdefault(_digest(sample.input_ids[a:b].contiguous()), [])
            if sample.name not in holders:
                holders.append(sample.name)
    half = len(ids) // 2
    # the longest one: a doubled system prompt holds smaller repeats of its own
    starts = [n for n in range(min(half, 4096), 2, -1) if ids[n : n + 3] == ids[:3]]
    twice = next((n for n in starts if ids[:n] == ids[n : 2 * n] and len(set(ids[:n])) > 2), 0)
    if twice:
        out.repeats[sample.name] = twice


def _states(out: Survey, sample: Sample, sums: dict[tuple[int, int], tuple[float, int]]) -> None:
    for k, state in sample.states.items():
        out.rms[sample.name, k] = rms(state)
        _numbers(out, (sample.name, k), state)
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


def _numbers(out: Survey, key: tuple[str, int], state: Tensor) -> None:
    """What its rows hold that they should not, some rows at a time: a long text's states are gigabytes."""
    nan = inf = zero = clamped = 0
    largest, parts = 0.0, set(PARTS)
    told = 0
    for block in state.split(ROWS):
        values = block.float()
        finite = values.isfinite()
        broken = values.isnan().any(1)
        nan += int(broken.sum())
        inf += int((~finite & ~values.isnan()).any(1).sum())
        empty = (values == 0).all(1)
        zero += int(empty.sum())
        sizes = values.abs().masked_fill_(~finite, 0)
        largest = max(largest, float(sizes.max()) if sizes.numel() else 0.0)
        if state.dtype == torch.float16:
            clamped += int((sizes >= HALF_MOST).any(1).sum())
        rows = values[~empty]
        told += len(rows)
        parts = {n for n in parts if _repeats(rows, n)}
    out.bad_rows[key] = (nan, inf, zero)
    out.largest[key[1]] = max(out.largest.get(key[1], 0.0), largest)
    if clamped:
        out.saturated[key] = clamped
    if parts and told >= 3:
        out.blocks[key] = max(parts)


def _repeats(rows: Tensor, parts: int) -> bool:
    """Whether every row consists of ``parts`` equal column blocks."""
    width = rows.shape[1]
    if width % parts or width < 2 * parts:
        return False
    first, *others = rows.chunk(parts, 1)
    return all(torch.equal(first, other) for other in others)


def _embedding(out: Survey, sample: Sample, target: Target) -> None:
    if 0 not in sample.states:
        return
    mine, tokens = sample.states[0], sample.input_ids
    try:
        errors = _errors(mine, tokens, target)
    except LabError as error:
        out.blocked.setdefault("S003", error.line)  # a slice without these tokens' rows cannot tell
        return
    worst = float(errors.max())
    if not worst <= 0.1 and len(mine) >= 2 * LEAST // 3:
        head, ids = mine[:ROWS], tokens[:ROWS]
        lags = [lag for lag in range(-LAGS, LAGS + 1) if abs(lag) < len(head) // 2]
        shares = {lag: float((_errors(*_moved(head, ids, lag), target) <= 0.1).float().mean()) for lag in lags}
        best = max(sorted(shares, key=abs), key=lambda lag: shares[lag])
        # half the rows at least: a text that repeats itself agrees with itself a little at any distance
        if best and shares[best] > max(0.5, 2 * shares[0]):
            out.embedding_lag[sample.name] = best
            worst = float(_errors(*_moved(mine, tokens, best), target).max())
        elif (step := best_step((errors <= 0.1).float(), 6)) is not None:
            out.embedding_step[sample.name] = step
    out.embedding_error[sample.name] = worst


def _moved(first: Tensor, second: Tensor, lag: int) -> tuple[Tensor, Tensor]:
    """Row r of ``first`` beside row r + lag of ``second``."""
    n = len(first) - abs(lag)
    return first[max(-lag, 0) :][:n], second[max(lag, 0) :][:n]


def _errors(mine: Tensor, tokens: Tensor, target: Target) -> Tensor:
    """Largest difference of each row [T] from its token's embedding, relative to all rows' RMS.

    Some families scale their embeddings by one factor: the median one is taken out first, which a part of foreign
    rows does not move.
    """
    own, squares = [], 0.0
    for at in range(0, len(mine), ROWS):
        rows = target.embedding(tokens[at : at + ROWS]).float()
        own.append((mine[at : at + ROWS].float() * rows).sum(1) / rows.square().sum(1).clamp(min=1e-30))
        squares += float(rows.square().sum())
    factors = torch.cat(own)
    scale = factors[factors.isfinite()].median() if bool(factors.isfinite().any()) else factors.new_tensor(1.0)
    size = (squares / max(mine.numel(), 1)) ** 0.5
    parts = []
    for at in range(0, len(mine), ROWS):
        rows = target.embedding(tokens[at : at + ROWS]).float()
        parts.append((mine[at : at + ROWS].float() - scale * rows).abs().amax(1) / max(size, 1e-30))
    return torch.cat(parts)
