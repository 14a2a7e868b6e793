"""What a program does with the checkpoint: what it drops or refuses, how it differs from the fitted reading and what that gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eagle3lab.acceptance import Evaluation
from eagle3lab.checks import conventions
from eagle3lab.checks.evidence import Opened
from eagle3lab.checks.trees import predicted
from eagle3lab.counts import ServingRun
from eagle3lab.dialects.resolve import accepts_nothing
from eagle3lab.errors import LabError
from eagle3lab.neighbours import optional_groups
from eagle3lab.reading import Reading
from eagle3lab.records import Finding, Interpretation, Interval, Severity
from eagle3lab.samples import spread

MOST = 16
"""Samples on which readings are compared."""


@dataclass(frozen=True)
class Way:
    """How one program runs the checkpoint, beside the fitted reading.

    Attributes:
        program: engine and version, or a run's name.
        found: what its dialect says.
        reading: its reading, with what is of no account for this draft set to one value; None where it has none.
        diff: field → (fitted, its own); None where nothing was fitted.
        words: the same as a sentence, ``""`` when they are the same.
        length: the accept length it gives, None where it cannot be had.
        why: why there is no reading or no length, or what it makes up so that nothing is accepted.
        evaluation: what ``length`` comes from, None where it is known without.
    """

    program: str
    found: Interpretation
    reading: Reading | None = None
    diff: Mapping[str, tuple[Any, Any]] | None = None
    words: str = ""
    length: Interval | None = None
    why: str = ""
    evaluation: Evaluation | None = None

    @property
    def as_fitted(self) -> bool:
        """Whether it runs the draft as it fits."""
        return self.diff is not None and not self.diff and not accepts_nothing(self.found)


def ways(
    case: Opened, everyone: Mapping[str, Interpretation], runs: Mapping[str, ServingRun] | None = None
) -> list[Way]:
    """Each program's way with the checkpoint; equal readings are evaluated once, on at most `MOST` samples.

    Args:
        case: where nothing can be fitted (no samples), the ways have neither diff nor length.
        everyone: name → what its dialect says.
        runs: name → its run, where these are runs: lengths are of their own K, or tree.
    """
    try:
        fitted = canonical(case, case.scan.fitted)
    except LabError:  # F005 says why nothing could be fitted
        fitted = None
    held = _held(case) if fitted is not None else {}
    return [_way(case, name, found, fitted, held, (runs or {}).get(name)) for name, found in everyone.items()]


def _way(
    case: Opened,
    name: str,
    found: Interpretation,
    fitted: Reading | None,
    held: Mapping[int, int],
    run: ServingRun | None,
) -> Way:
    if found.reading is None:
        return Way(
            name, found, why="refuses: " + "; ".join(found.refused) if found.refused else f"not known: {found.source}"
        )
    if fitted is None:
        return Way(name, found, found.reading, why=accepts_nothing(found))
    reading = canonical(case, found.reading)
    way = Way(name, found, reading, fitted.diff(reading), fitted.words(reading))
    if made := accepts_nothing(found):
        exact = Interval(1.0, 1.0, 1.0, 0, "no draft can be right but by chance")
        return replace(way, length=exact, why=made)
    most = max(held.values(), default=0)
    lacking = [b for b in reading.aux if isinstance(b, int) and held.get(b, 0) < most]
    if lacking:  # a few samples would be compared with all of them
        some = [
            f"boundary {b} is " + (f"recorded in {held[b]} of {most} samples only" if b in held else "not recorded")
            for b in lacking
        ]
        return replace(way, why="; ".join(some))
    try:
        ran = evaluated(case, reading, run)
    except LabError as error:
        return replace(way, why=f"cannot be run here: {error.line}")
    return replace(way, length=ran.length, evaluation=ran)


def _held(case: Opened) -> dict[int, int]:
    """Boundary → how many of the samples hold it."""
    held: dict[int, int] = {}
    for sample in filter(None, map(case.readable, spread(case.samples.headline, MOST))):
        for boundary in sample.boundaries:
            held[boundary] = held.get(boundary, 0) + 1
    return held


def evaluated(case: Opened, reading: Reading, run: ServingRun | None = None) -> Evaluation:
    """Its evaluation, at K of the run or with its tree; a reading that was run and reads alike is asked for instead."""
    names = spread(case.samples.headline, MOST)
    chosen = () if len(names) == len(case.samples.headline) else names
    known = [case.scan.fitted, *([case.configured.reading] if case.configured.reading else [])]
    same = next((r for r in known if canonical(case, r) == reading), reading)
    if run is not None and run.topk > 1:
        return predicted(case, run, same, run.steps or 0)
    return case.evaluate(same, (run.steps or 0) if run else 0, chosen)


def canonical(case: Opened, reading: Reading) -> Reading:
    """The reading with what is of no account for this draft set to one value, so that equal forwards compare equal."""
    if case.draft.arch.layers == 1:
        reading = reading.replace(second_norm="hidden_norm")
    if not reading.rope.scaling:
        reading = reading.replace(rope=replace(reading.rope, rule="hf", limit=None))
    used = {name for names in optional_groups(case.model).values() for name in names}
    return reading.replace(dropped=tuple(name for name in reading.dropped if name in used))


def interpretation(case: Opened) -> list[Finding]:
    """E002: what the configured program drops, replaces, makes up or refuses."""
    found = case.configured
    out = [(f"{found.program}: {text}", Severity.WARN) for text in found.replaced]
    made = accepts_nothing(found)
    out += [
        (f"{found.program} makes up {text}", Severity.FAIL if text == made else Severity.WARN)
        for text in found.invented
    ]
    out += [(f"{found.program}: {text}", Severity.INFO) for text in found.notes]
    if found.dropped:
        out.append((f"{found.program} does not use {', '.join(found.dropped)}", Severity.WARN))
    return _refused(case) + [
        Finding("E002", severity, title, "draft", evidence="docs/readings.md",
                remedy="" if severity == Severity.INFO else conventions.made_up(case) if made and made in title
                else "make the file say what the draft was trained with")
        for title, severity in out
    ]  # fmt: skip


def _refused(case: Opened) -> list[Finding]:
    """A refusal, with the remedy that F008 has: where F008 (or F001) fails for it, no second failure of one cause.

    Boundaries by hand (AUX) give a reading all the same, and F008 is silent then.
    """
    found = case.configured
    if not found.refused:
        return []
    told = conventions.refusals(case)
    also = "" if found.reading is not None else " (F008)" if told else " (F001)"
    remedies = dict.fromkeys(conventions.refusal(case, reason) for reason in told)
    return [Finding("E002", Severity.BLOCKED if also else Severity.FAIL,
                    f"{found.program} would not run it{also}: {'; '.join(found.refused)}", "draft",
                    f"ids {list(found.ids)} ({found.source})", "a runnable configuration", "docs/readings.md",
                    "; ".join(remedies) or "mend the shape that F001 names")]  # fmt: skip
