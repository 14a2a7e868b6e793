"""Which reading fits: wirings of the recorded states first, then the other fields, until nothing helps.

The score is step-by-step accuracy on recorded tokens, on the same rows for every reading; comparisons are paired and
their intervals drawn over samples. Candidates race: the first round gives each a handful of rows, later rounds give
the survivors more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields

from eagle3lab.bench import Bench, Score, accuracy_of, paired
from eagle3lab.errors import Blocked, LabError
from eagle3lab.model import Model
from eagle3lab.neighbours import variants
from eagle3lab.reading import FINAL, Aux, Reading, show
from eagle3lab.records import Candidate, Interval, Sample, ScanResult

EXHAUSTIVE = 1000
"""Up to so many wirings all are tried; above, slots are searched one after another, from several starts."""

ROUNDS = ((24, 1, 0.08), (80, 2, 0.4), (80, 6, 0.7), (None, None, 1.0))
"""The race: rows a sample, samples, share of the candidates that goes on (None: all)."""

WEAK = 0.1
"""Accuracy gained by a wiring, below which other fields are tried first."""

WORTH = 0.01
"""A single change that gains less accuracy than this is not taken, whatever its interval says."""

CLEAR = 0.05
"""A reading fits when the low end of its accuracy's interval lies this far above the floor, and at twice the floor."""

Progress = Callable[[str], None]
Change = tuple[str, str, str, float]
"""Field, from, to, and the accuracy gained."""


def search(
    model: Model, samples: Sequence[Sample], starts: Sequence[Reading], progress: Progress | None = None
) -> ScanResult:
    """Finds the reading under which the draft predicts the recording.

    Args:
        model: the draft's weights.
        samples: recordings with the states to choose from.
        starts: readings to begin with: configured first, then trained and others; each must be runnable on the samples.
        progress: called with one line a stage.

    Raises:
        LabError: no start can be run (the configured one's own reason), or nothing can be scored.
    """
    say = progress or (lambda _: None)
    bench = Bench(model, samples)
    say(f"search: {len(starts)} starting points, boundaries {list(bench.boundaries)}")
    current, path = _apart(bench, starts, _best_start(bench, starts))
    ranking: list[Candidate] = []
    ties: list[Reading] = []
    while True:
        best, ranking, ties = _wirings(bench, current, say)
        gain = _gain(bench, best, current)
        better = best.aux != current.aux and gain.low > 0
        # a wiring that gains little may be luck among hundreds of them: a field that gains more goes first
        step = None if better and not gain.value < WEAK else _one_field(bench, current, say)
        if better and not (step and step[0][3] > gain.value):
            path.append(("aux", show(current.aux), show(best.aux), gain.value))
            current = best
            step = _one_field(bench, current, say)
        if step is None:
            matrix, matrix_rows = _matrix(bench, current)
            step = _one_slot(bench, current, matrix)
        if step is None:
            break
        change, current = step
        path.append(change)
    undetermined = _undetermined(current, ties)
    margin = _margin(bench, current, ranking, ties)
    floor = _floor(bench, current)
    top = bench.score([current], None, None)[0]
    n = sum(h.numel() for h in top.hits)
    return ScanResult(
        fitted=current,
        ties=tuple(ties),
        margin=margin,
        ranking=tuple(ranking),
        path=tuple(path),
        undetermined=undetermined,
        tried=bench.tried,
        matrix=matrix,
        matrix_rows=matrix_rows,
        evidence=f"{n} reply rows of {len(bench.samples)} samples, step 0",
        fits=accuracy_of(top).low > max(2 * floor, floor + CLEAR),
        floor=floor,
    )


def _best_start(bench: Bench, starts: Sequence[Reading]) -> Reading:
    runnable = []
    for reading in filter(bench.holds, dict.fromkeys(starts)):
        with suppress(LabError):
            runnable.append((bench.score([reading], 24, 1)[0].mean_loglik, reading))
    if not runnable:
        if not starts or not bench.boundaries:
            what = "boundary that every sample holds (S010)" if starts else "reading to start from"
            raise Blocked(f"the search has no {what}")
        # a start whose states are not recorded can still say everything but its wiring: what else is wrong is raised
        held = bench.boundaries
        moved = starts[0].replace(aux=tuple(held[min(i, len(held) - 1)] for i in range(bench.model.draft.arch.aux)))
        bench.score([moved], 24, 1)
        return moved
    first = runnable[0]
    best = max(runnable, key=lambda pair: pair[0])
    return best[1] if best[0] > first[0] + 0.05 else first[1]


def _apart(bench: Bench, starts: Sequence[Reading], start: Reading) -> tuple[Reading, list[Change]]:
    """What sets the chosen start apart from the first, the configured one; a field that gains nothing is put back."""
    first, path = starts[0], []
    if start.aux != first.aux and bench.holds(first):
        path.append(("aux", show(first.aux), show(start.aux), _gain(bench, start, start.replace(aux=first.aux)).value))
    for name in (f.name for f in fields(Reading) if f.name != "aux"):
        back = start.replace(**{name: getattr(first, name)})
        if back == start:
            continue
        kept, lost = _runnable(bench, [start, back])
        gain = paired(kept, lost) if kept and lost else None
        if gain and gain.low <= 0:
            start = back
        else:
            value = gain.value if gain else float("nan")
            path += [(part, show(old), show(new), value) for part, (old, new) in back.diff(start).items()]
    return start, path


def _wirings(bench: Bench, current: Reading, say: Progress) -> tuple[Reading, list[Candidate], list[Reading]]:
    slots, held = len(current.aux), bench.boundaries
    if current.fc == "skipped" or FINAL in current.aux:
        candidates = [current, *(current.replace(aux=(b,)) for b in held if slots == 1)]
    elif len(held) ** slots <= EXHAUSTIVE:
        candidates = [current.replace(aux=aux) for aux in _nearest_first(current.aux, held, slots)]
    else:
        candidates = _slot_by_slot(bench, current, held)
    say(f"search: {len(candidates)} wirings")
    return race(bench, candidates, current)


def _nearest_first(aux: Aux, held: Sequence[int], slots: int) -> list[Aux]:
    """All ordered wirings with repetition, those near the configured one first (ties in score keep that order)."""
    distance = lambda wiring: sum(a != b for a, b in zip(wiring, aux, strict=True))  # noqa: E731
    return sorted(itertools.product(held, repeat=slots), key=distance)


def _slot_by_slot(bench: Bench, current: Reading, held: Sequence[int]) -> list[Reading]:
    """Coordinate search over slots from spread-out starts; returns every wiring that came close."""
    spread = [tuple(sorted(pick)) for pick in itertools.combinations(held[:: max(1, len(held) // 6)], len(current.aux))]
    first = [current.replace(aux=aux) for aux in [a for a in spread if len(a) == len(current.aux)]]
    if all(b in held for b in current.aux):
        first.insert(0, current)
    scored = sorted(
        zip([s.mean_loglik for s in bench.score(first, 24, 1)], range(len(first)), strict=True), reverse=True
    )
    found: dict[Reading, None] = {}
    for _, i in scored[:4]:
        best = first[i]
        for _ in range(4):
            before = best
            for slot in range(len(best.aux)):
                tries = [best.replace(aux=(*best.aux[:slot], b, *best.aux[slot + 1 :])) for b in held]
                scores = [s.mean_loglik for s in bench.score(tries, 48, 1)]
                order = sorted(range(len(tries)), key=lambda j: -scores[j])
                found.update(dict.fromkeys(tries[j] for j in order[:4]))
                best = tries[order[0]]
            if best == before:
                break
    found.setdefault(first[0])
    return list(found)


def race(bench: Bench, candidates: list[Reading], current: Reading) -> tuple[Reading, list[Candidate], list[Reading]]:
    """The winner, the finalists on all rows (the winner first), and those that cannot be told from it.

    The wiring in use stays in the race to the end, and wins unless another beats it beyond the interval.
    """
    field, scores = candidates, []
    for rows, count, share in ROUNDS:
        scores = bench.score(field, rows, count)
        order = _order(scores)
        if share < 1:
            keep = max(16, int(len(order) * share))
            order = order[:keep] + [i for i in order[keep:] if field[i] == current]
        field, scores = [field[i] for i in order], [scores[i] for i in order]
    first = max(range(len(field)), key=lambda i: (scores[i].accuracy, scores[i].mean_loglik))
    home = field.index(current) if current in field else first
    winner = home if paired(scores[first], scores[home]).low <= 0 else first
    ranking = [
        Candidate(r, accuracy_of(s), paired(scores[winner], s), s.mean_loglik)
        for r, s in zip(field, scores, strict=True)
    ]
    ranking.sort(key=lambda c: (c.reading != field[winner], -c.accuracy.value, -c.loglik))
    ties = [candidate.reading for candidate in ranking[1:] if candidate.behind.low <= 0]
    return field[winner], ranking, ties


def _order(scores: Sequence[Score]) -> list[int]:
    """Places, best first: by hits and by likelihood in turn, since a few rows of either alone mislead."""
    likely = sorted(range(len(scores)), key=lambda i: -scores[i].mean_loglik)
    right = sorted(likely, key=lambda i: -scores[i].accuracy)
    return list(dict.fromkeys(itertools.chain.from_iterable(zip(right, likely, strict=True))))


def _gain(bench: Bench, best: Reading, current: Reading) -> Interval:
    if not bench.holds(current):
        return Interval(float("nan"), 1.0, 1.0, 0, "the configured states are not recorded")
    first, second = bench.score([best, current], None, None)
    return paired(first, second)


def _one_field(bench: Bench, current: Reading, say: Progress) -> tuple[Change, Reading] | None:
    """The single change of another field that helps most, None when none helps beyond its interval."""
    changes = list(variants(bench.model, current))
    say(f"search: {len(changes)} other single changes")
    base, *scores = _runnable(bench, [current, *changes])
    if base is None:
        return None
    level = 1 - 0.05 / len(changes)  # so many are tried at once that at 95 % one of them would often win by luck
    gains = [(paired(s, base, level), v) for s, v in zip(scores, changes, strict=True) if s is not None]
    better = [(gain.value, v) for gain, v in gains if gain.low > 0 and gain.value >= WORTH]
    if not better:
        return None
    value, best = max(better, key=lambda pair: pair[0])
    ((name, (old, new)),) = list(current.diff(best).items())[:1]
    return (name, show(old), show(new), value), best


def _one_slot(bench: Bench, current: Reading, matrix: dict[tuple[int, int], float]) -> tuple[Change, Reading] | None:
    """The best single slot of the matrix where it beats the current wiring: the race may have lost it early on."""
    if not matrix:
        return None
    slot, boundary = max(matrix, key=lambda cell: matrix[cell])
    better = current.replace(aux=(*current.aux[:slot], boundary, *current.aux[slot + 1 :]))
    gain = _gain(bench, better, current)
    return (("aux", show(current.aux), show(better.aux), gain.value), better) if gain.low > 0 else None


def _runnable(bench: Bench, readings: Sequence[Reading]) -> list[Score | None]:
    """Each reading's score, None where it cannot be run; all on the same rows."""
    scores: list[Score | None] = []
    deepest = max(r.shift for r in readings)
    for reading in readings:
        try:
            scores.append(bench.score([reading], 40, 6, steps=2, shift=deepest)[0])
        except LabError:
            scores.append(None)
    return scores


def _undetermined(best: Reading, ties: Sequence[Reading]) -> tuple[str, ...]:
    """Fields (and aux slots) on which the ties differ from the best."""
    out: dict[str, None] = {}
    for tie in ties:
        for name, (mine, theirs) in best.diff(tie).items():
            if name != "aux" or len(mine) != len(theirs):
                out[name] = None
            else:
                out.update((f"aux[{i}]", None) for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
    return tuple(out)


def _margin(bench: Bench, best: Reading, ranking: Sequence[Candidate], ties: Sequence[Reading]) -> Interval:
    """The best against the next one that is not a tie."""
    rest = [c.reading for c in ranking if c.reading.aux != best.aux and c.reading not in ties]
    if not rest:
        return Interval(0.0, 0.0, 0.0, 0, "every other reading tried is a tie")
    first, second = bench.score([best, best.replace(aux=rest[0].aux)], None, None)
    return paired(first, second)


def _floor(bench: Bench, best: Reading) -> float:
    """Accuracy with each sample's states moved half a text away: what the token alone predicts."""
    moved = [
        Sample(**{**vars(s), "states": {k: v.roll(s.length // 2, 0) for k, v in s.states.items()}})
        for s in bench.samples[:6]
    ]
    return Bench(bench.model, moved).score([best], 80, None)[0].accuracy


def _matrix(bench: Bench, best: Reading) -> tuple[dict[tuple[int, int], float], int]:
    """Accuracy with one slot fed each boundary, the other slots as fitted (up to 40 rows of each of six samples)."""
    if FINAL in best.aux or best.fc == "skipped":
        return {}, 0
    cells = [(slot, b) for slot in range(len(best.aux)) for b in bench.boundaries]
    tries = [best.replace(aux=(*best.aux[:slot], b, *best.aux[slot + 1 :])) for slot, b in cells]
    scores = bench.score(tries, 40, 6)
    rows = sum(h.numel() for h in scores[0].hits)
    return {cell: score.accuracy for cell, score in zip(cells, scores, strict=True)}, rows
