"""From a starting point, change by change, until nothing helps: wirings first, then the other fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from eagle3lab.aligned import Recording
from eagle3lab.bench import Bench, Margin, Score, accuracy_of, paired
from eagle3lab.neighbours import guesses, variants
from eagle3lab.outcome import Candidate, Depth, Repair
from eagle3lab.reading import Reading
from eagle3lab.records import Interval, Sample
from eagle3lab.search.fields import STEPS, Weighed, change_of, weigh
from eagle3lab.search.wirings import WEAK, Progress, better_slot, gain, matrix, wirings

CLEAR = 0.05
"""A reading fits when the low end of its accuracy's interval lies this far above the floor, and at twice the floor
(above a third: half-way from the floor to 1)."""

MOST = 12
"""Repairs after which a search ends: beside never taking a reading twice, what keeps it finite."""

DEPTH = 3
"""Draft steps of a repair's signature."""


@dataclass
class Walk:
    """The way from the first reading to the fitted one.

    Attributes:
        bench: where readings are scored, with the recording's rows read as found so far.
        current: the reading reached.
        path: repairs so far.
        seen: every reading that was current once: none is taken again.
        ranking: the last race's finalists.
        ties: wirings that cannot be told from the current one.
        weighed: the other fields' single changes of the current reading.
        cells: accuracy by slot and boundary.
        cell_rows: rows behind each cell.
        tried: readings scored while rows were read otherwise.
        tops: scores on all rows.
        nearest: pairs of changes that gained most when two were tried at once.
    """

    bench: Bench
    current: Reading
    say: Progress
    path: list[Repair] = field(default_factory=list)
    seen: set[tuple[Reading, Recording]] = field(default_factory=set)
    ranking: list[Candidate] = field(default_factory=list)
    ties: list[Reading] = field(default_factory=list)
    weighed: Weighed = field(default_factory=lambda: Weighed([], [], [], 0, 0))
    cells: dict[tuple[int, int | str], float] = field(default_factory=dict)
    cell_rows: int = 0
    tried: int = 0
    tops: dict[tuple[Reading, Recording], Score] = field(default_factory=dict)
    nearest: list[tuple[Reading, Reading]] = field(default_factory=list)

    def run(self) -> None:
        """Takes repairs until none helps; every one gains beyond its interval, and no reading is taken twice."""
        self.seen.add((self.current, self.bench.recording))
        while True:
            best, self.ranking, self.ties = wirings(self.bench, self.current, self.say)
            gained = self._gained(best) if best != self.current else None
            better = gained is not None and gained.low > 0 and self._new(best)
            # a wiring that gains little may be luck among hundreds of them: a field that gains more goes first
            wait = gained is None or not better or gained.value < WEAK
            step = self._field() if wait else None
            if better and gained is not None and not (step and step[0].value > gained.value):
                self.take(best, gained)
                step = self._field()
            if step is not None:
                self.take(step[1], step[0])
            else:
                self.cells, self.cell_rows = matrix(self.bench, self.current)
                slot = better_slot(self.bench, self.current, self.cells)
                if slot is None or not self._new(slot):
                    return
                self.take(slot, gain(self.bench, slot, self.current))
            if len(self.path) >= MOST:
                return

    def _field(self) -> tuple[Interval, Reading] | None:
        """The single change of another field that helps most, None when none helps beyond its interval."""
        changes = list(variants(self.bench.model, self.current))
        if any(repair.field == "rope.base" for repair in self.path):  # a base is off: others near it may fit as well
            changes += [r for r in guesses(self.bench.model, self.current) if r.rope.base != self.current.rope.base]
        self.say(f"search: {len(changes)} other single changes")
        self.weighed = weigh(self.bench, self.current, changes)
        return next(((gap, r) for gap, r in self.weighed.better if self._new(r)), None)

    def _gained(self, best: Reading) -> Interval:
        """What the race's winner gains on the current reading, which stayed in the race to its last round."""
        behind = next((c.behind for c in self.ranking if c.reading == self.current), None)
        return behind or gain(self.bench, best, self.current)

    def _new(self, reading: Reading) -> bool:
        return (reading, self.bench.recording) not in self.seen

    def take(self, reading: Reading, gained: Interval) -> None:
        """Goes on from ``reading``, a field away, and writes down what that gained."""
        name, old, new = change_of(self.current, reading)
        before, after = self.signature([self.current, reading])
        self.path.append(Repair(name, old, new, gained, before, after))
        self.current = reading
        self.seen.add((reading, self.bench.recording))

    def read_as(self, recording: Recording, gained: Interval, margin: Margin) -> None:
        """Goes on with the recording's rows read as ``recording``."""
        (before,) = self.signature([self.current], margin)
        old, bench = self.bench.recording, self.bench.under(recording)
        self.tried += self.bench.tried
        self.bench = bench
        (after,) = self.signature([self.current], margin)
        name = "lag" if recording.lag != old.lag else "form"
        if name == "lag" and old.lag:  # a better amount of the same displacement
            self.path = [repair for repair in self.path if repair.field != "lag"]
            old = replace(old, lag=0)
        words = [str(getattr(r, name)) or "as the file says" for r in (old, recording)]
        self.path.append(Repair(name, words[0], words[1], gained, before, after))
        self.seen.add((self.current, recording))

    def signature(self, readings: Sequence[Reading], margin: Margin = Margin()) -> list[Depth]:  # noqa: B008
        """Accuracy and likelihood by draft step on some rows, nothing where a reading cannot be run."""
        scores = self.bench.runnable(readings, 40, 6, DEPTH, margin=margin)
        return [Depth((), ()) if s is None or not s.rows else s.depth for s in scores]

    def prune(self, first: Reading) -> None:
        """Takes back repairs that are of no account beside the others: the fewest changes that explain the gain.

        Of a repair that gained nothing when it was taken, the gain with the others in place is written down.
        """
        changed = first.diff(self.current)  # a field that came back to where it was explains nothing
        self.path = [repair for repair in self.path if repair.field in changed or repair.field in ("lag", "form")]
        if len({repair.field for repair in self.path}) < 2:
            return
        for name in dict.fromkeys(r.field for r in self.path if r.field not in ("lag", "form")):
            back = reverted(self.current, first, name)
            if back == self.current or not self.bench.holds(back):
                continue
            kept, lost = self.bench.runnable([self.current, back], None, None, STEPS, likely=False)
            if kept and lost and paired(kept, lost).low <= 0:
                self.path = [repair for repair in self.path if repair.field != name]
                self.current = back
            elif kept and lost and any(r.field == name and not r.gain.low > 0 for r in self.path):
                gained, (before, after) = paired(kept, lost), self.signature([back, self.current])
                self.path = [
                    replace(r, gain=gained, before=before, after=after) if r.field == name and not r.gain.low > 0 else r
                    for r in self.path
                ]

    def top(self) -> Score:
        """The current reading on all rows, step 0."""
        key = (self.current, self.bench.recording)
        if key not in self.tops:
            self.tops[key] = self.bench.score([self.current], None, None, likely=False)[0]
        return self.tops[key]

    def fits(self) -> tuple[bool, float]:
        """Whether the current reading predicts more than the token alone does, and how much that is."""
        low = floor(self.bench, self.current)
        enough = min(max(2 * low, low + CLEAR), (1 + low) / 2)
        return accuracy_of(self.top()).low > enough, low

    def barely(self, low: float) -> bool:
        """Whether it predicts so little more than the floor ``low`` that rows may be displaced all the same."""
        return self.top().accuracy < max(4 * low, low + 5 * CLEAR)


def reverted(reading: Reading, first: Reading, name: str) -> Reading:
    """``reading`` with one field as in ``first``."""
    if name.startswith("rope."):
        part = name.removeprefix("rope.")
        return reading.replace(rope=replace(reading.rope, **{part: getattr(first.rope, part)}))
    return reading.replace(**{name: getattr(first, name)})


def floor(bench: Bench, reading: Reading) -> float:
    """Accuracy with each sample's states moved half a text away: what the token alone predicts."""
    moved = []
    for sample in bench.samples[:6]:
        states = {k: v.roll(sample.length // 2, 0) for k, v in sample.states.items()}
        final = None if sample.final is None else sample.final.roll(sample.length // 2, 0)
        moved.append(Sample(**{**vars(sample), "states": states, "final": final}))
    return Bench(bench.model, moved).score([reading], 80, None, likely=False)[0].accuracy
