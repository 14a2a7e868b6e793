"""What stands against a verdict on the draft: states of the recording that are not sound, or may not be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from eagle3lab.checks.alignment import condemned
from eagle3lab.checks.evidence import Opened
from eagle3lab.reading import show
from eagle3lab.records import Finding, Sample, Severity
from eagle3lab.stats import cosine

SURE, BLOCK, ROWS = 4.0, 8, 1024
"""Standard errors up to which two boundaries share nothing, rows of a block, and rows of a sample that are looked at."""

HELD_BACK = 0.25
"""Share of the second block's increment below which the first one's counts as held back."""


def unsound(case: Opened) -> dict[int, str]:
    """Boundaries that the recording holds unsound → the finding that says why."""
    samples, found = case.attempt("samples"), case.attempt("survey")
    return condemned(found, samples.condemned) if samples is not None and found is not None else {}


def blocked(case: Opened) -> list[Finding]:
    """F003 and F006 where a boundary that the engine feeds is not sound: the draft is not graded on it."""
    bad, configured = unsound(case), case.configured.reading
    fed = [b for b in configured.aux if isinstance(b, int) and b in bad] if configured else []
    words = "the engine feeds it" + (_inside(case, fed) if fed else "")
    return [
        stopped(case, code, what, dict.fromkeys(fed), words) for code, what in
        (("F003", "the wiring"), ("F006", "other conventions"))
    ] if fed else []  # fmt: skip


def _inside(case: Opened, fed: Iterable[int]) -> str:
    """Accuracy as configured within the rows that hold something strange, and outside."""
    spans = {name: odd.rows for (name, b), odd in case.survey.odd.items() if odd.kind == "span" and b in fed}
    reading = case.configured.reading
    if not spans or reading is None:
        return ""
    sides: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, part in case.evaluate(reading).parts.items():
        rows, hits = part.scored[:, 0].nonzero()[:, 0], part.correct[part.scored[:, 0], 0]
        first, last = spans.get(name, (0, -1))
        inside = (rows >= first) & (rows <= last)
        for side in sides:
            sides[side].append(hits[inside == side].float())
    (here, n), (there, m) = ((float(torch.cat(s).mean()), sum(map(len, s))) for s in sides.values())
    first, last = next(iter(spans.values()))
    return f"; accuracy {here:.2f} inside rows {first} to {last} ({n} rows), {there:.2f} outside ({m}): later rows attend to it"


def beside_unsound(case: Opened) -> list[Finding]:
    """F003 where the wiring that fits best may only stand in for one with an unsound boundary.

    Neighbours of the right boundary fit best where that one cannot be tried, so that a slot which fits the next sound
    one says nothing.
    """
    bad, held = unsound(case), sorted(b for _, b in case.scan.matrix if isinstance(b, int))
    used = [b for b in case.scan.fitted.aux if isinstance(b, int)]
    near = []
    for b in bad:
        sides = [
            max((k for k in held if k < b and k not in bad), default=-1),
            min((k for k in held if k > b and k not in bad), default=-1),
        ]
        near += [b] if b in used or set(sides) & set(used) else []
    if not near:
        return []
    best = f"best of the sound ones {show(case.scan.fitted.aux)}, which may stand in for it"
    return [stopped(case, "F003", "the wiring", dict.fromkeys(near), best)]


def doubtful(case: Opened) -> list[Finding]:
    """F003 where another wiring fits better, and something else may be why: an unsound neighbour, or partial sums."""
    if sums := [s for s in case.scan.suspects if s.kind == "sums"]:
        return [Finding(
            "F003", Severity.BLOCKED, "the wiring cannot be judged: the states may be partial sums, which look like ids one too "
            "low (F011 blocks this)", "h.*", f"best {show(case.scan.fitted.aux)}", "whole states", sums[0].measured, sums[0].remedy,
        )]  # fmt: skip
    return beside_unsound(case) or _held_back(case) or _apart(case)


def _held_back(case: Opened) -> list[Finding]:
    """F003 where every id seems one too low, and the first block adds next to nothing: one rank's small part of it.

    A state that lacks its block's increment is the boundary before: only boundary 0, which no block made, can tell.
    """
    configured, best = case.configured.reading, case.scan.fitted.aux
    pairs = list(zip(configured.aux, best, strict=False)) if configured else []
    if not all(isinstance(a, int) and isinstance(b, int) and b == a + 1 for a, b in pairs) or not pairs:
        return []
    added: dict[int, list[Tensor]] = {0: [], 1: []}
    for sample in filter(None, map(case.readable, case.samples.headline[:4])):
        for low in added if {0, 1, 2} <= set(sample.states) else ():
            step = sample.states[low + 1][1:4096].float() - sample.states[low][1:4096].float()
            added[low].append(step.norm(dim=1))
    if not added[0]:
        return []
    first, second = (float(torch.cat(parts).median()) for parts in added.values())
    if first > HELD_BACK * second:
        return []
    return [Finding(
        "F003", Severity.BLOCKED, "the wiring cannot be judged: every recorded state may lack most of what its block adds, which "
        "looks like ids one too low", "h.*", f"best {show(best)}; boundary 1 is {first:.3g} from boundary 0, the next one {second:.3g} "
        "from it (median row)", "increments of like size", "boundary 0, the embedding, is made by no block",
        "one rank's partial sum (TP): dump the same tokens at TP=1 and compare (S020)",
    )]  # fmt: skip


def stopped(case: Opened, code: str, what: str, boundaries: Iterable[int], why: str) -> Finding:
    """What cannot be judged because of boundaries that are not sound, and the findings that say so."""
    bad = unsound(case)
    codes = ", ".join(dict.fromkeys(bad[b] for b in boundaries))
    names = ", ".join(map(str, boundaries))
    return Finding(
        code, Severity.BLOCKED, f"{what} cannot be judged: boundary {names} is not sound in this recording ({codes} blocks this)",
        ", ".join(f"h.{b}" for b in boundaries), why, "sound states of every boundary in question", f"{codes}; such boundaries are left "
        "out of the search", f"record again as {codes} says; until then nothing is said of the draft",
    )  # fmt: skip


def _apart(case: Opened) -> list[Finding]:
    """F003 where another boundary fits in place of one that shares nothing with any other recorded one, row by row.

    In a residual stream all boundaries above 0 share something of each row, however little: one that does not holds
    other rows, or is not of the stream.
    """
    configured, best = case.configured.reading, case.scan.fitted.aux
    pairs = zip(configured.aux, best, strict=False) if configured else ()
    samples = [s for s in map(case.readable, case.samples.headline[:8]) if s is not None]
    for boundary in dict.fromkeys(a for a, b in pairs if a != b and isinstance(a, int) and a > 0):
        held = [s for s in samples if boundary in s.states]
        shared = set.intersection(*(set(s.states) for s in held)) if held else set()
        others = sorted(shared - {0, boundary, *unsound(case)})
        told = {b: _beyond(held, boundary, b) for b in others}
        stream = any(_beyond(held, a, b) > 2 * SURE for a, b in zip(others, others[1:], strict=False))
        if case.scan.lag or not stream or boundary in unsound(case) or max(told.values()) > SURE:
            continue
        near = min(told, key=lambda b: abs(b - boundary))
        return [Finding(
            "F003", Severity.BLOCKED, f"the wiring cannot be judged: boundary {boundary} as recorded shares nothing with any other, row by row",
            f"h.{boundary}", f"with boundary {near} {told[near]:.1f} standard errors more than with its rows of another place; best "
            f"{show(best)}, which may stand in for it", f"above {SURE:.0f}: boundaries of a residual stream share each row",
            f"{len(held)} samples, mean row taken out",
            f"compare h.{boundary} with a fresh recording of the same tokens: its rows may be another request's, or no residual stream",
        )]  # fmt: skip
    return []


def _beyond(samples: Sequence[Sample], first: int, second: int) -> float:
    """What two boundaries share in each row beyond what they do half a text away, in standard errors over short blocks."""
    parts = []
    for sample in samples:
        one, other = (sample.states[b][1:ROWS].float() for b in (first, second))
        one, other = one - one.mean(0), other - other.mean(0)
        more = cosine(one, other) - cosine(one, other.roll(len(other) // 2, 0))
        parts += [block.mean() for block in more[more.isfinite()].split(BLOCK)]
    means = torch.stack(parts) if len(parts) > 1 else torch.zeros(2)
    return float(means.mean() / (means.std() / len(means) ** 0.5).clamp(min=1e-9))
