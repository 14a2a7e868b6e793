"""Which wiring fits: candidates race, a handful of rows each at first, more for those that go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import torch

from eagle3lab.bench import Bench, Score, accuracy_of, paired
from eagle3lab.errors import LabError
from eagle3lab.outcome import Candidate
from eagle3lab.reading import FINAL, Aux, Reading
from eagle3lab.records import Interval

EXHAUSTIVE = 1000
"""Up to so many wirings all are tried; above, slots are searched one after another, from several starts."""

ROUNDS = ((24, 1, 0.08, 16), (80, 2, 0.4, 16), (80, 6, 0.5, 8), (None, None, 1.0, 0))
"""The race: rows a sample, samples (None: all), share of the candidates that goes on, and how many at least."""

APART = 0.05
"""Share of the rows on which a candidate may differ from a round's best and still be looked at as a possible tie."""

ALIKE = 150
"""Possible ties that are asked on all rows, beside the finalists."""

WEAK = 0.1
"""Accuracy gained by a wiring, below which it may be luck among many, and other fields are tried first."""

Progress = Callable[[str], None]


def wirings(bench: Bench, current: Reading, say: Progress) -> tuple[Reading, list[Candidate], list[Reading]]:
    """The best wiring of the recorded boundaries, the finalists, and the ties; see `race`."""
    slots, held = len(current.aux), bench.boundaries
    if slots == 1:
        sources: list[int | str] = [*held, *([FINAL] if _runs(bench, current.replace(aux=(FINAL,))) else [])]
        candidates = [current.replace(aux=(b,)) for b in sources]
        candidates = candidates if current in candidates or not bench.holds(current) else [current, *candidates]
    elif current.fc == "skipped" or FINAL in current.aux:
        candidates = [current]
    elif len(held) ** slots <= EXHAUSTIVE:
        candidates = [current.replace(aux=aux) for aux in nearest_first(current.aux, held, slots)]
    else:
        candidates = _slot_by_slot(bench, current, held)
    say(f"search: {len(candidates)} wirings")
    return race(bench, candidates, current)


def _runs(bench: Bench, reading: Reading) -> bool:
    try:
        bench.score([reading], 4, 1, likely=False)
    except LabError:
        return False
    return True


def nearest_first(aux: Aux, held: Sequence[int], slots: int) -> list[Aux]:
    """All ordered wirings with repetition, those near the configured one first (ties in score keep that order)."""

    def distance(wiring: Aux) -> tuple[int, int]:
        apart = [
            abs(a - b) if isinstance(a, int) and isinstance(b, int) else 1
            for a, b in zip(wiring, aux, strict=True)
            if a != b
        ]
        return len(apart), sum(apart)

    every: list[Aux] = list(itertools.product(held, repeat=slots))
    return sorted(every, key=distance)


def _slot_by_slot(bench: Bench, current: Reading, held: Sequence[int]) -> list[Reading]:
    """Coordinate search over slots from spread-out starts; returns every wiring that came close."""
    spread = [tuple(sorted(pick)) for pick in itertools.combinations(held[:: max(1, len(held) // 6)], len(current.aux))]
    first = [current.replace(aux=aux) for aux in spread]
    first += [current.replace(aux=aux) for aux in together(current.aux, held)]
    if all(b in held for b in current.aux):
        first.insert(0, current)
    scored = sorted(
        zip([s.mean_loglik for s in bench.score(first, 24, 1, narrow=True)], range(len(first)), strict=True),
        reverse=True,
    )
    found: dict[Reading, None] = {}
    for _, i in scored[:4]:
        best = first[i]
        for _ in range(4):
            before = best
            for slot in range(len(best.aux)):
                tries = [best.replace(aux=(*best.aux[:slot], b, *best.aux[slot + 1 :])) for b in held]
                scores = [s.mean_loglik for s in bench.score(tries, 48, 1, narrow=True)]
                order = sorted(range(len(tries)), key=lambda j: -scores[j])
                found.update(dict.fromkeys(tries[j] for j in order[:4]))
                best = tries[order[0]]
            if best == before:
                break
    found.setdefault(first[0])
    return list(found)


def together(aux: Aux, held: Iterable[int]) -> list[Aux]:
    """All slots moved by one or two blocks together, as far as recorded: what another program's numbering does."""
    have = set(held)
    moved = [tuple(b + by if isinstance(b, int) else b for b in aux) for by in (-1, 1, -2, 2)]
    return [m for m in moved if all(b in have for b in m if isinstance(b, int))]


def race(bench: Bench, candidates: list[Reading], current: Reading) -> tuple[Reading, list[Candidate], list[Reading]]:
    """The winner, the finalists on all rows (the winner first), and those that cannot be told from it.

    The wiring in use stays in the race to the end, and wins unless another beats it (`beats`).
    """
    field, scores, alike = candidates, list[Score](), list[Reading]()
    for rows, count, share, least in ROUNDS:
        scores = bench.score(field, rows, count, narrow=count == 1)
        order = by_rank(scores)
        if share < 1:
            keep, best = max(least, int(len(order) * share)), scores[_first(scores)]
            alike += [field[i] for i in order[keep:] if _alike(scores[i], best)]
            order = order[:keep] + [i for i in order[keep:] if field[i] == current]
        field, scores = [field[i] for i in order], [scores[i] for i in order]
    # what was left behind only because others did as well may be a tie, and is asked on all rows too
    late = [r for r in dict.fromkeys(alike) if r not in field][:ALIKE]
    if late:
        field, scores = [*field, *late], [*scores, *bench.score(late, None, None)]
    first = _first(scores)
    home = field.index(current) if current in field else first
    winner = first if beats(scores[first], scores[home], len(candidates)) else home
    ranking = [
        Candidate(r, accuracy_of(s), paired(scores[winner], s), s.mean_loglik)
        for r, s in zip(field, scores, strict=True)
    ]
    ranking.sort(key=lambda c: (c.reading != field[winner], -c.accuracy.value, -c.loglik))
    ties = [candidate.reading for candidate in ranking[1:] if candidate.behind.low <= 0]
    return field[winner], ranking, ties


def beats(best: Score, home: Score, tries: int) -> bool:
    """Whether the best of ``tries`` readings beats the one in use: a small gain must show among so many tries."""
    gap = paired(best, home)
    if gap.low > 0 and gap.value < WEAK:
        gap = paired(best, home, 1 - 0.05 / tries)
    return gap.low > 0


def _first(scores: Sequence[Score]) -> int:
    """Place of the best: by hits, of equal ones by likelihood."""
    return max(range(len(scores)), key=lambda i: (scores[i].accuracy, scores[i].mean_loglik))


def _alike(score: Score, best: Score) -> bool:
    """Whether it says nearly the same as the best, row by row."""
    differ = torch.cat([(a != b).flatten() for a, b in zip(score.hits, best.hits, strict=True)])
    return float(differ.float().mean()) <= APART and score.accuracy >= best.accuracy - APART


def by_rank(scores: Sequence[Score]) -> list[int]:
    """Places, best first: by hits and by likelihood in turn, since a few rows of either alone mislead."""
    likely = sorted(range(len(scores)), key=lambda i: -scores[i].mean_loglik)
    right = sorted(likely, key=lambda i: -scores[i].accuracy)
    return list(dict.fromkeys(itertools.chain.from_iterable(zip(right, likely, strict=True))))


def gain(bench: Bench, best: Reading, current: Reading) -> Interval:
    """Accuracy of ``best`` minus that of ``current`` over all rows at step 0."""
    if not bench.holds(current):
        return Interval(float("nan"), 1.0, 1.0, 0, "the configured states are not recorded")
    first, second = bench.score([best, current], None, None, likely=False)
    return paired(first, second)


def matrix(bench: Bench, best: Reading) -> tuple[dict[tuple[int, int | str], float], int]:
    """Accuracy with one slot fed each boundary, the other slots as fitted (up to 40 rows of each of six samples)."""
    if FINAL in best.aux or best.fc == "skipped":
        return {}, 0
    cells = [(slot, b) for slot in range(len(best.aux)) for b in bench.boundaries]
    tries = [best.replace(aux=(*best.aux[:slot], b, *best.aux[slot + 1 :])) for slot, b in cells]
    distinct = list(dict.fromkeys(tries))
    scores = dict(zip(distinct, bench.score(distinct, 40, 6, likely=False), strict=True))
    rows = sum(h.numel() for h in scores[tries[0]].hits)
    return {cell: scores[reading].accuracy for cell, reading in zip(cells, tries, strict=True)}, rows


def better_slot(bench: Bench, current: Reading, cells: dict[tuple[int, int | str], float]) -> Reading | None:
    """The wiring with the best single slot of the matrix: the race may have lost it early on."""
    if not cells:
        return None
    slot, boundary = max(cells, key=lambda cell: cells[cell])
    better = current.replace(aux=(*current.aux[:slot], boundary, *current.aux[slot + 1 :]))
    if better == current:
        return None
    if not bench.holds(current):
        return better
    first, second = bench.score([better, current], None, None, likely=False)
    return better if beats(first, second, len(cells)) else None
