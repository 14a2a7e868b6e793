"""Which tokens the rows of a recording with fewer rows than tokens belong to."""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3lab.dialects.recorded import reader_of
from eagle3lab.errors import LabError
from eagle3lab.recordings import Content
from eagle3lab.samples import Samples
from eagle3lab.target import Target

LEAST = 8
"""Rows below which an alignment proves nothing."""


def rows_by_evidence(samples: Samples, name: str, target: Target | None) -> str:
    """Where the rows of a sample with too few of them belong, in words; "" where nothing tells.

    Boundary 0 is compared with the target's embedding, else the last state's own choices with the tokens, at every
    place where the rows could start.
    """
    if target is None or name not in samples.listing.entries:
        return ""
    entry = samples.listing.entries[name]
    try:
        content = Content(entry.file, samples.known.access)
        reader = reader_of(content)
        recording = reader.read(content, entry.index, samples.known) if reader else None
        if recording is None or not isinstance(recording.input_ids, Tensor) or recording.input_ids.ndim != 1:
            return ""
        states = dict(zip(recording.boundaries or (), recording.slots, strict=False))
        counts = {len(s) for s in recording.slots if isinstance(s, Tensor) and s.ndim == 2}
        if len(counts) != 1 or not LEAST <= (count := counts.pop()) < len(recording.input_ids):
            return ""
        shares = _by_embedding(states.get(0), recording.input_ids.long(), target)
        if not shares:
            last = recording.final if isinstance(recording.final, Tensor) else states.get(target.layers)
            shares = _by_lens(last, recording.input_ids.long(), target, recording.final_norm == "post")
    except (LabError, RuntimeError, ValueError, IndexError):  # whatever is wrong with it, S001 has named it already
        return ""
    best = max(shares, key=lambda start: shares[start], default=0)
    return _words(best, count, len(recording.input_ids), shares[best]) if shares and shares[best] > 0.5 else ""


def _words(start: int, count: int, length: int, share: float) -> str:
    late = length - count
    end = f"the last {late - start} tokens have none" if late > start else "they reach the text's end"
    begin = f"the first {start} tokens have none" if start else "they begin with the text"
    return f"its {count} rows are those of tokens {start} … {start + count - 1} ({share:.0%} agree): {begin}, {end}"


def _by_embedding(state: Tensor | None, tokens: Tensor, target: Target) -> dict[int, float]:
    if state is None or state.shape[1] != target.hidden:
        return {}
    rows = target.embedding(tokens).float()
    mine = torch.nn.functional.normalize(state.float(), dim=-1)
    truth = torch.nn.functional.normalize(rows, dim=-1)
    return {start: float(((mine * truth[start : start + len(mine)]).sum(-1) > 0.98).float().mean())
            for start in range(len(tokens) - len(mine) + 1)}  # fmt: skip


def _by_lens(state: Tensor | None, tokens: Tensor, target: Target, normed: bool) -> dict[int, float]:
    if state is None or state.shape[1] != target.hidden:
        return {}
    chosen = torch.linspace(0, len(state) - 1, min(len(state), 256)).round().long()
    choices = target.lens(state[chosen], 0 if normed else 1)
    out = {}
    for start in range(len(tokens) - len(state) + 1):
        places = chosen + start + 1
        inside = places < len(tokens)
        out[start] = float((choices[inside] == tokens[places[inside]]).float().mean())
    return out
