"""The other fields of a Reading: every single change, on few rows at first, and what cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3lab.bench import Bench, Score, paired
from eagle3lab.outcome import Open
from eagle3lab.reading import Reading, show
from eagle3lab.records import Interval
from eagle3lab.search.wirings import by_rank

WORTH = 0.01
"""A single change that gains less accuracy than this is not taken, whatever its interval says."""

STEPS = 2
"""Draft steps that fields are compared on: what is handed on from step to step shows at the second one only."""

ROUNDS = ((24, 2, 14), (80, 6, 10), (None, None, 0))
"""Rows a sample, samples, changes that go on at most beside those that no row tells apart (None: all)."""

SURE = 0.995
"""Level at which a change is given up early: on few rows an interval of 95 % would lose one in forty."""


@dataclass(frozen=True)
class Weighed:
    """All single changes of a reading.

    Attributes:
        better: changes that gain beyond their interval, largest gain first; the interval is that of so many tries.
        ties: changes that no interval tells from the reading as it is.
        same: changes that predict the same, row by row and step by step.
        close: the other changes, those that did best on the first rows first.
        tried: number of changes.
        lost: changes that are worse, or that cannot be run.
    """

    better: list[tuple[Interval, Reading]]
    ties: list[Reading]
    same: list[Reading]
    tried: int
    lost: int
    close: tuple[Reading, ...] = ()


def weigh(bench: Bench, current: Reading, changes: Sequence[Reading]) -> Weighed:
    """Compares every one of ``changes`` with ``current``, on paired rows of two draft steps.

    Args:
        bench: where readings are scored.
        current: the reading as it is.
        changes: readings a change away.
    """
    level = 1 - 0.05 / max(len(changes), 1)  # at 95 % one of so many would often win by luck
    field, same, gaps = list(changes), list[Reading](), list[Interval]()
    close: list[Reading] = []
    for rows, count, most in ROUNDS:
        last = rows is None
        base, *scores = bench.runnable([current, *field], rows, count, STEPS, likely=not last)
        if base is None or not base.rows:
            return Weighed([], [], [], len(changes), len(changes))
        pairs = [(r, s) for r, s in zip(field, scores, strict=True) if s is not None]
        if not last:
            twins = [r for r, s in pairs if s.same(base)]
            same += [r for r in twins if r not in same]
            pairs = [(r, s) for r, s in pairs if r not in twins]
            close = close or [pairs[i][0] for i in by_rank([s for _, s in pairs])]
            pairs = [(r, s) for r, s in pairs if paired(s, base, SURE).high >= 0]
            pairs = _go_on(pairs, most)
        field = [r for r, _ in pairs]
        gaps = [paired(s, base, level) for _, s in pairs]
        # later steps alone do not tell a shift: texts that repeat themselves reward it there
        plain = [r for r, s in pairs if r.shift == current.shift or paired(_first(s), _first(base)).low > 0]
    ordered = sorted(zip(gaps, field, strict=True), key=lambda pair: -pair[0].value)
    better = [(gap, r) for gap, r in ordered if gap.low > 0 and gap.value >= WORTH and r in plain]
    taken = [r for _, r in better]
    ties = [r for gap, r in ordered if gap.high >= 0 and r not in taken]
    lost = len(changes) - len(better) - len(ties) - len(same)
    return Weighed(better, ties, same, len(changes), lost, tuple(r for r in close if r not in taken))


def _first(score: Score) -> Score:
    """Step 0 alone."""
    return Score([h[:, :1] for h in score.hits], [])


def _go_on(pairs: list[tuple[Reading, Score]], most: int) -> list[tuple[Reading, Score]]:
    return [pairs[i] for i in by_rank([score for _, score in pairs])[:most]] if len(pairs) > most else pairs


def change_of(before: Reading, after: Reading) -> tuple[str, str, str]:
    """Field, old and new value in words, of two readings a field apart."""
    diff = before.diff(after)
    name = next((n for n in diff if n != "rope.rule"), next(iter(diff)))
    old, new = diff[name]
    if name == "dropped":
        lost, used = sorted(set(new) - set(old)), sorted(set(old) - set(new))
        return name, f"uses {', '.join(lost)}" if lost else f"drops {', '.join(used)}", (
            f"drops {', '.join(lost)}" if lost else f"uses {', '.join(used)}")  # fmt: skip
    return name, show(old), show(new)


def open_fields(current: Reading, weighed: Weighed) -> tuple[Open, ...]:
    """Fields other than the wiring in which ties differ, one entry a field and kind."""
    out: dict[tuple[str, bool], list[str]] = {}
    for readings, same in ((weighed.ties, False), (weighed.same, True)):
        for other in readings:
            name, _, new = change_of(current, other)
            if name != "aux":
                out.setdefault((name, same), []).append(new)
    return tuple(Open(name, tuple(values), same) for (name, same), values in out.items())
