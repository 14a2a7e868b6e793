"""What is wrong with the content where no reading fits, or with a part of it: states, map or weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eagle3lab.bench import Bench, Score, start_of
from eagle3lab.errors import LabError
from eagle3lab.forward import rollout
from eagle3lab.outcome import Suspect
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.samples import reply_rows
from eagle3lab.search.columns import columns
from eagle3lab.search.turned import turned
from eagle3lab.stats import best_step, likeness

OTHERS = 10
"""Samples whose states are tried with another one's tokens."""

FIRST, THEN = 24, 80
"""Rows on which the other sample is chosen, and rows up to which it is then judged."""

RECOVERS = 0.2
"""Accuracy above the floor from which a change of content counts as found."""

STEP, DROP, LEAST = 5.0, 0.25, 12
"""Step in a sample's hits: standard errors, accuracy lost, rows on either side."""

FRESH = 4096
"""Rows and columns of a matrix that are looked at."""


def whole(bench: Bench, readings: Sequence[Reading], score: Score, low: float) -> list[Suspect]:
    """Suspects where no reading fits.

    Args:
        bench: the samples.
        readings: to try content under, the best one first.
        score: of the best one, on all rows.
        low: the floor.
    """
    found = list(_foreign(bench, readings, low))
    found = found or [s for s in partial(bench, readings[0], score, low) if s.kind in ("rows", "foreign")]
    found = found or [*turned(bench, readings, low + RECOVERS), *columns(bench)]
    fresh = list(_fresh(bench))
    # rows of a head that was never trained go with tokens too, since like states give like rows
    if not found and not any("lm_head" in suspect.where for suspect in fresh):
        found += _map(bench, readings, low)
    return found or fresh


def partial(bench: Bench, reading: Reading, score: Score, low: float) -> list[Suspect]:
    """Samples, and parts of samples, that do not fit where the others do."""
    out: list[Suspect] = [*columns(bench), *_map(bench, [reading], score.accuracy)]
    hits = [h[:, 0].float() for h in score.hits]
    good = torch.cat(hits).mean()
    for sample, original, mine in zip(bench.samples, bench.originals, hits, strict=True):
        if len(mine) < LEAST:
            continue
        rows = reply_rows(original)[: len(mine)]
        spread = float((mine.mean() * (1 - mine.mean())).clamp(min=0.02) / len(mine)) ** 0.5
        level = best_step(mine, LEAST) if len(mine) >= 2 * LEAST else None
        if level and level.score > STEP and level.before - level.after > DROP and level.after < (good + low) / 2 + 0.1:
            place = int(rows[level.place])
            out.append(Suspect(
                "rows", f"{sample.name}: rows from {place} on do not fit its tokens", f"{sample.path}: rows {place} …",
                f"accuracy {level.before:.2f} before, {level.after:.2f} after ({level.n[0]} and {level.n[1]} rows)",
                "states of another request from there on, or positions past a limit: record it again",
            ))  # fmt: skip
        elif (
            len(hits) > 2
            and float(mine.mean()) + 3 * spread < (float(good) + low) / 2
            and float(mine.mean()) < low + 0.1
        ):
            twin = _owner(bench, sample, reading, low)
            out.append(Suspect(
                "foreign", f"{sample.name}: its states do not belong to its tokens"
                + (f"; they are those of {twin}" if twin else ""), sample.path,
                f"accuracy {float(mine.mean()):.2f} on {len(mine)} rows, {float(good):.2f} over all samples",
                "record it again, one request at a time; leave it out until then ([samples] exclude)",
            ))  # fmt: skip
    return out


def _owner(bench: Bench, sample: Sample, reading: Reading, low: float) -> str:
    """The sample whose tokens the states of ``sample`` belong to, ``""`` when none is found."""
    others = [o for o in bench.samples if o.name != sample.name][:OTHERS]
    shares = [(_share(bench, o, sample, reading, slice(0, THEN)), o.name) for o in others]
    best = max(shares, default=(0.0, ""))
    return best[1] if best[0] > low + RECOVERS else ""


def _share(bench: Bench, tokens: Sample, states: Sample, reading: Reading, part: slice) -> float:
    """Accuracy with one sample's tokens on another's states."""
    size = min(tokens.length, states.length)
    mixed = replace(start_of(tokens, size), states={k: v[:size] for k, v in states.states.items()},
                    final=None if states.final is None else states.final[:size])  # fmt: skip
    rows = reply_rows(mixed)
    rows = rows[rows < size - 1 - reading.shift][part]
    if len(rows) < 8:
        return 0.0
    try:
        step = rollout(bench.model, mixed, reading, 1, rows=rows, probabilities=False).steps[0]
    except LabError:
        return 0.0
    return float(step.correct.float().mean())


def _foreign(bench: Bench, readings: Sequence[Reading], low: float) -> Iterator[Suspect]:
    """Every sample's tokens with every other's states: the other is chosen on some rows and judged on the next."""
    samples = bench.samples[:OTHERS]
    for reading in readings:
        pairs, held_out = [], []
        for mine in samples:
            others = [o for o in samples if o is not mine]
            if not others:
                return
            best = max(others, key=lambda other: _share(bench, mine, other, reading, slice(0, FIRST)))
            pairs.append((mine.name, best.name))
            rest = slice(FIRST, THEN) if len(reply_rows(mine)) > FIRST + 8 else slice(0, THEN)
            held_out.append(_share(bench, mine, best, reading, rest))
        right = [(pair, share) for pair, share in zip(pairs, held_out, strict=True) if share > low + RECOVERS]
        if len(right) >= max(2, len(samples) // 2):
            named = ", ".join(f"{a} fits the states of {b}" for (a, b), _ in right[:4])
            mean = sum(share for _, share in right) / len(right)
            yield Suspect(
                "foreign", "states do not belong to these tokens: the samples' states are swapped among each other",
                "samples",
                f"{named}; accuracy {mean:.2f} then, {low:.2f} with states of another place",
                "record again, one request at a time: rows were handed to other requests; the draft is not at fault",
            )  # fmt: skip
            return


def _map(bench: Bench, readings: Sequence[Reading], low: float) -> Iterator[Suspect]:
    """Whether head rows always mean one token, another than the map's: learned on half the rows, judged on the rest."""
    best, base = 0.0, 0.0
    for reading in readings:
        said, meant = _said(bench, reading.replace(vocab_map="identity"))
        if len(said) < 40:
            return
        learned = _common(said[::2], meant[::2])
        told = [learned.get(d) == y for d, y in zip(said[1::2], meant[1::2], strict=True)]
        most = max(meant.count(y) for y in set(meant[::2])) / len(meant)
        if sum(told) / len(told) > best:
            best, base = sum(told) / len(told), most
    if best > max(low, base) + RECOVERS:
        yield Suspect(
            "map", "the head's rows mean other tokens than d2t says: the map was rebuilt without the head", "d2t",
            f"a map learned from half of the rows is right on {best:.2f} of the others, the file's on {low:.2f}",
            "take d2t from the training run that made lm_head (vocab_mapping.pt); do not rebuild it from other text",
        )  # fmt: skip


def _said(bench: Bench, reading: Reading) -> tuple[list[int], list[int]]:
    """Draft ids said at step 0 and the recorded tokens, over all reply rows."""
    said: list[int] = []
    meant: list[int] = []
    for sample in bench.samples:
        rows = reply_rows(sample)
        rows = rows[rows < sample.length - 1 - reading.shift]
        try:
            step = rollout(bench.model, sample, reading, 1, rows=rows, probabilities=False).steps[0]
        except LabError:
            return [], []
        said += step.top_ids[:, 0].tolist()
        meant += step.truth.tolist()
    return said, meant


def _common(said: list[int], meant: list[int]) -> dict[int, int]:
    """Draft id → the token that most often followed it."""
    counts: dict[int, dict[int, int]] = {}
    for d, y in zip(said, meant, strict=True):
        counts.setdefault(d, {})[y] = counts.setdefault(d, {}).get(y, 0) + 1
    return {d: max(by_token, key=lambda y: by_token[y]) for d, by_token in counts.items()}


def _fresh(bench: Bench) -> Iterator[Suspect]:
    """Matrices of the draft that look as an initialiser draws them."""
    draft, found, looked_at = bench.model.draft, [], 0
    for name, stored in draft.stored.items():
        shape = draft.tensors[stored].shape
        if len(shape) != 2 or min(shape) < 16 or not name.endswith(".weight") or name.startswith("embed_tokens"):
            continue
        weight = draft.weight_rows(name, torch.arange(min(shape[0], FRESH)))[:, :FRESH]
        looked_at += 1
        if weight.is_floating_point() and _random(weight):
            found.append(name)
    if found:
        yield Suspect(
            "fresh", f"{len(found)} of {looked_at} matrices look as an initialiser draws them: {', '.join(found[:6])}",
            ", ".join(found[:6]), "independent numbers of one spread: no row, column or direction stands out",
            "the checkpoint may never have been trained, or these tensors were not saved: take another checkpoint",
        )  # fmt: skip


def _random(weight: Tensor) -> bool:
    return likeness(weight).random
