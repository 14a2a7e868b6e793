"""Which rows, boundaries or samples hold the states of another place, and by which evidence: one story each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from statistics import median

from torch import Tensor

from eagle3lab.recordings.rows import Copies
from eagle3lab.stats import Level, best_step
from eagle3lab.survey.alignment import LEAST
from eagle3lab.survey.found import Survey

GOOD, BAD = 0.5, 0.15
"""Shares of right next tokens between which nothing is said: sampled replies reach a half, foreign rows chance."""

Story = tuple[str, str, str]
"""Sample, what is wrong, by which evidence."""


def stories(found: Survey) -> Iterator[Story]:
    """All of them, those that explain others first."""
    yield from _by_copies(found)
    yield from _by_embedding(found)
    yield from _by_lens(found)
    yield from _by_pairs(found)


def _by_copies(found: Survey) -> Iterator[Story]:
    """Rows that are copies of earlier ones: boundaries with the same ones together."""
    for name, keys in groupby(found.copies, key=lambda key: key[0]):
        alike: dict[str, list[int]] = {}
        for _, b in keys:
            alike.setdefault(_copies(found.copies[name, b], found.masks[name][1]), []).append(b)
        what = "; ".join(
            f"{words} at {'boundary' if len(held) == 1 else 'boundaries'} {', '.join(map(str, held))}"
            for words, held in alike.items()
        )
        yield name, what, "equal bit by bit, where no two rows of a causal model are"


def _copies(found: list[Copies], length: int) -> str:
    """The longest two stretches; where there are many short ones, how many rows they are."""
    count = sum(c.count for c in found)
    if max(c.count for c in found) == 1:
        return f"{count} of {length} rows are copies of the row before"
    told = sorted(sorted(found, key=lambda c: -c.count)[:2], key=lambda c: c.first)
    more = count - sum(c.count for c in told)
    return " and ".join(c.words for c in told) + (f", and {more} more rows of earlier ones" if more else "")


def _by_embedding(found: Survey) -> Iterator[Story]:
    for name, step in found.embedding_step.items():
        if abs(step.before - step.after) > 0.8:
            side = f"from row {step.place} on" if step.before > step.after else f"up to row {step.place - 1}"
            yield name, f"the rows {side} do not belong to these tokens", (
                f"boundary 0 equals the embedding in {step.before:.2f} of {step.n[0]} rows before, {step.after:.2f} of "
                f"{step.n[1]} after")  # fmt: skip


def _by_lens(found: Survey) -> Iterator[Story]:
    """Parts of a sample, then whole samples among others whose last state does predict."""
    if found.picks is None:
        return
    lag, picks = found.picks.lag, found.picks.by_sample
    sound = [name for name, pick in picks.items() if pick.share(lag) > GOOD]
    for name, pick in picks.items():
        hits = pick.hits(lag)
        words = f"the last state predicts {float(hits.mean()) if len(hits) else 0:.2f} of {len(hits)} next tokens"
        if len(hits) >= LEAST // 2 and pick.share(lag) < BAD and len(sound) > len(picks) / 2:
            share = median(picks[n].share(lag) for n in sound)
            yield name, "states do not belong to their tokens", f"{words}, in the others {share:.2f}"
        elif found.masks[name][0] < found.masks[name][1] and (step := _step(hits)) is not None:
            # without a mask the user's own words count as reply, and no model predicts those
            row = int(pick.rows[step.place])
            side = f"from row {row} on" if step.before > step.after else f"up to row {row - 1}"
            yield name, f"the rows {side} do not belong to these tokens", (
                f"the last state predicts {step.before:.2f} of {step.n[0]} next tokens before, {step.after:.2f} of "
                f"{step.n[1]} after")  # fmt: skip


def _step(hits: Tensor) -> Level | None:
    step = best_step(hits, 8)
    if step is None or step.score < 6:
        return None
    high, low = max(step.before, step.after), min(step.before, step.after)
    return step if high > GOOD and low < BAD else None


def breaks(step: Level) -> bool:
    """Whether two boundaries are of the same tokens on one side of a row only."""
    high, low = max(step.before, step.after), min(step.before, step.after)
    return high > GOOD and low < 0.2 and high - low > 0.4 and step.score > 8


def _by_pairs(found: Survey) -> Iterator[Story]:
    for (name, b), odd in found.odd.items():
        if odd.kind == "foreign":
            others = " and ".join(map(str, odd.beside))
            what = f"boundary {b} holds rows of another place than boundaries {others}"
            yield name, what, (
                f"it shares a cosine of {odd.here:.2f} with {others}; {odd.shared:.2f} is shared without it "
                "(mean row taken out)")  # fmt: skip
        if odd.kind == "span":
            first, last = odd.rows
            yield name, f"rows {first} to {last} of boundary {b} hold something that its neighbours lack", (
                f"the increment from boundary {odd.beside[0]} to {b} is taken back by the next one there: cosine "
                f"{odd.shared:.2f}, {odd.here:.2f} in the other rows")  # fmt: skip
    for (name, (a, b)), step in found.steps.items():
        if (name, a) in found.odd or (name, b) in found.odd:
            continue
        if breaks(step):
            side = f"from row {step.place + 1} on" if step.before > step.after else f"up to row {step.place}"
            yield name, f"the rows {side} of boundary {a} or {b} do not belong to these tokens", (
                f"boundaries {a} and {b} share a cosine of {step.before:.2f} in {step.n[0]} rows before, "
                f"{step.after:.2f} in {step.n[1]} after (mean row taken out)")  # fmt: skip
    by_pair: dict[tuple[int, int], dict[str, float]] = {}
    for (name, pair), value in found.centred.items():
        by_pair.setdefault(pair, {})[name] = value
    for (a, b), values in by_pair.items():
        usual = median(values.values())
        for name, value in values.items():
            if (name, a) in found.odd or (name, b) in found.odd:
                continue
            if len(values) > 2 and usual > GOOD and value < BAD and (name, (a, b)) not in found.apart:
                yield (
                    name,
                    f"boundaries {a} and {b} are not of the same tokens",
                    f"they share a cosine of {value:.2f}, {usual:.2f} in the other samples (mean row taken out)",
                )
