"""Samples, and parts of samples, whose states are not those of their tokens, where the others' are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3lab.aligned import Recording
from eagle3lab.bench import Bench, start_of, with_states
from eagle3lab.errors import LabError
from eagle3lab.forward import rollout
from eagle3lab.outcome import Suspect
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.samples import reply_rows
from eagle3lab.search.heads import RECOVERS
from eagle3lab.stats import Level, best_step

OTHERS = 10
"""Samples whose states are tried with another one's tokens."""

FIRST, THEN = 24, 80
"""Rows on which the other sample is chosen, and rows up to which it is then judged."""

LAGS = 16
"""Rows up to which one sample's own lag is looked for, and never more than a fifth of it."""

STEP, DROP, LEAST = 5.0, 0.25, 12
"""Step in a sample's hits: standard errors, accuracy lost, rows on either side."""

APART = 3.0
"""Standard errors by which a sample must be worse than the others before its states are doubted."""

LEFT = 0.3
"""Share of what the others' states add that foreign states may seem to add."""


@dataclass(frozen=True)
class Part:
    """One sample's rows and hits at step 0.

    Attributes:
        sample: as aligned.
        rows: int64 [R].
        hits: float [R], NaN on rows that say nothing.
    """

    sample: Sample
    rows: Tensor
    hits: Tensor

    @property
    def told(self) -> Tensor:
        """Hits of rows that say something."""
        return self.hits[~self.hits.isnan()]


def parts(bench: Bench, reading: Reading, found: Sequence[Part], low: float) -> list[Suspect]:
    """Suspects among the samples, each against the others; nothing where these do not fit either.

    Args:
        bench: the samples.
        reading: under which the hits were scored.
        found: the samples' rows and hits.
        low: the floor.
    """
    steps = {i: level for i, part in enumerate(found) if (level := _step(part)) is not None}
    shared = _shared(found, steps, low)
    lags = _displaced(bench, reading, found, low)
    out, blamed = [_early_or_late(found[i], *told) for i, told in lags.items()], set(lags)
    for i, level in steps.items():
        part = found[i]
        place = int(part.rows[level.place])
        own = _without_states(bench, reading, part, slice(level.place, None))
        if i in shared or i in lags or level.before < low + RECOVERS or level.after - own > LEFT * (level.before - own):
            continue
        blamed.add(i)
        out.append(Suspect(
            "rows", f"{part.sample.name}: rows from {place} on do not fit its tokens",
            f"{part.sample.path}: rows {place} …",
            f"accuracy {level.before:.2f} before, {level.after:.2f} after ({level.n[0]} and {level.n[1]} rows)",
            "states of another request from there on, or positions past a limit: record it again",
        ))  # fmt: skip
    return out + list(_foreign_ones(bench, reading, found, low, blamed | shared))


def _step(part: Part) -> Level | None:
    level = best_step(part.told, LEAST) if len(part.told) >= 2 * LEAST and len(part.told) == len(part.rows) else None
    return level if level and level.score > STEP and level.before - level.after > DROP else None


def _shared(found: Sequence[Part], steps: dict[int, Level], low: float) -> set[int]:
    """Samples whose step is at a position where all lose a part of their accuracy: a limit (A004), not their rows."""
    out: set[int] = set()
    for i, level in steps.items():
        place = int(found[i].rows[level.place])
        sides = [(p.hits[p.rows < place], p.hits[p.rows >= place]) for p in found]
        both = [(a, b) for a, b in sides if min(len(a), len(b)) >= LEAST]
        worse = [a.nanmean() - b.nanmean() > DROP / 2 for a, b in both]
        after = float(torch.cat([b for _, b in both]).nanmean()) if both else 0.0
        before = float(torch.cat([a for a, _ in both]).nanmean()) if both else 0.0
        if len(both) > 2 and sum(worse) > 0.7 * len(both) and after - low > 0.15 * (before - low):
            out.add(i)
    return out


def _displaced(
    bench: Bench, reading: Reading, found: Sequence[Part], low: float
) -> dict[int, tuple[int, float, float]]:
    """Samples whose rows lie early or late, each by its own number: (lag, accuracy then, accuracy as recorded).

    The lag is chosen on some rows and judged on the next.
    """
    means = {i: float(p.told.mean()) for i, p in enumerate(found) if len(p.told) >= LEAST}
    best = max(means.values(), default=0.0)
    originals, out = {s.name: s for s in bench.originals}, dict[int, tuple[int, float, float]]()
    for i, mean in means.items():
        if mean + APART * _spread(mean, len(found[i].told)) > best or mean > 0.7 * best:
            continue
        own = Bench(bench.model, [originals[found[i].sample.name]])
        most = min(LAGS, own.originals[0].length // 5)
        ways = [Recording(lag=lag) for lag in range(-most, most + 1) if lag != bench.recording.lag]
        lag = max(ways, key=lambda way: _hits(own.under(way), reading, FIRST).mean())
        rest = _hits(own.under(lag), reading, None)[FIRST:]
        if len(rest) >= LEAST and float(rest.mean()) > max(low, mean) + RECOVERS:
            out[i] = (lag.lag, float(rest.mean()), mean)
    return out


def _hits(bench: Bench, reading: Reading, rows: int | None) -> Tensor:
    """Float [R] at step 0 of the first sample."""
    try:
        return bench.score([reading], rows, 1, likely=False)[0].hits[0][:, 0].float()
    except LabError:
        return torch.zeros(1)


def _early_or_late(part: Part, lag: int, then: float, now: float) -> Suspect:
    return Suspect(
        "rows", f"{part.sample.name}: its rows are displaced: row r holds the state of position r {lag:+d}",
        part.sample.path, f"accuracy {then:.2f} read so, {now:.2f} as recorded",
        "record it again, or leave it out ([samples] exclude): no one lag mends all samples",
    )  # fmt: skip


def _foreign_ones(
    bench: Bench, reading: Reading, found: Sequence[Part], low: float, known: set[int]
) -> Iterator[Suspect]:
    """Whole samples that are worse than the others by more than chance, and no better than without their states."""
    means = {i: float(p.told.mean()) for i, p in enumerate(found) if len(p.told) >= LEAST and i not in known}
    usual = torch.tensor(list(means.values())).median() if means else torch.tensor(0.0)
    weak = [i for i, mean in means.items() if mean + APART * _spread(mean, len(found[i].told)) < float(usual)]
    sound = [found[i].told for i in means if i not in weak]
    if len(means) < 3 or not sound or 2 * len(weak) >= len(means):
        return
    good = float(torch.cat(sound).mean())
    for i in weak if good > low + RECOVERS else ():
        part, mean = found[i], means[i]
        own = _without_states(bench, reading, part, slice(None))
        spread = _spread(mean, len(part.told))
        twin = _owner(bench, part.sample, reading, low)
        # states that add next to nothing to what the token says, or that fit another sample's tokens
        if mean - own - 2 * spread > LEFT * (good - own) or not (twin or mean - own < LEFT * (good - own)):
            continue
        yield Suspect(
            "foreign", f"{part.sample.name}: its states do not belong to its tokens"
            + (f"; they are those of {twin}" if twin else ""), part.sample.path,
            f"accuracy {mean:.2f} on {len(part.told)} rows, {own:.2f} with states of another place, "
            f"{good:.2f} over the others",
            "record it again, one request at a time; leave it out until then ([samples] exclude)",
        )  # fmt: skip


def _spread(mean: float, n: int) -> float:
    return float(max(mean * (1 - mean), 0.02) / n) ** 0.5


def _without_states(bench: Bench, reading: Reading, part: Part, where: slice) -> float:
    """Accuracy on these rows with the sample's states moved half a text on: what the token alone says there."""
    half = part.sample.length // 2
    moved = with_states(part.sample, lambda state: state.roll(half, 0))
    rows = part.rows[where][~part.hits[where].isnan()]
    try:
        step = rollout(bench.model, moved, reading, 1, rows=rows, probabilities=False).steps[0]
    except LabError:
        return 0.0
    return float(step.correct.float().mean()) if len(rows) else 0.0


def _owner(bench: Bench, sample: Sample, reading: Reading, low: float) -> str:
    """The sample whose tokens the states of ``sample`` belong to, chosen on some rows and judged on the next."""
    others = [o for o in bench.samples if o.name != sample.name][:OTHERS]
    if not others:
        return ""
    best = max(others, key=lambda other: _share(bench, other, sample, reading, slice(0, FIRST)))
    rest = _next_rows(best)
    right = _share(bench, best, sample, reading, rest)
    return best.name if right > max(low, _share(bench, best, best, reading, rest)) + RECOVERS else ""


def _next_rows(tokens: Sample) -> slice:
    """Reply rows apart from those on which another sample was chosen, where the text has enough of them."""
    return slice(FIRST, THEN) if len(reply_rows(tokens)) > FIRST + 8 else slice(0, THEN)


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


def swapped(bench: Bench, readings: Sequence[Reading], low: float) -> Iterator[Suspect]:
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
            held_out.append(_share(bench, mine, best, reading, _next_rows(mine)))
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
