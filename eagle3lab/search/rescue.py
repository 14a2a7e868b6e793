"""Where nothing helps any more: rows early or late, another form of the last state, two and three changes at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress

from eagle3lab.aligned import FORMS, Recording, uses_last
from eagle3lab.bench import Bench, Margin, Score, paired
from eagle3lab.errors import LabError
from eagle3lab.neighbours import SHIFTS, guesses, maps, variants
from eagle3lab.reading import Aux, Reading
from eagle3lab.records import Interval
from eagle3lab.search.fields import STEPS, WORTH
from eagle3lab.search.walk import Walk, reverted
from eagle3lab.search.wirings import by_rank, gain, together

LAGS = 16
"""Rows up to which a lag is looked for, in both directions, and never more than a fifth of a text."""

PAIRS = 1200
"""Two changes at once that are tried at most."""

GUESSED = 0.04
"""Accuracy that a value must gain which no file states: little gains are luck, or content that is out of order."""

NEAREST = 6
"""Pairs that gain most, though not beyond their interval, whose neighbours are tried."""

CLOSE = 4
"""Changes that are worth little or cost little, whose neighbours are tried where a reading fits already."""


Reread = tuple[Recording, tuple[Reading, ...]]
"""A way to read the recording's rows, and changes one after another beside it."""


def recordings(bench: Bench, reading: Reading, lags: bool = True) -> list[Recording]:
    """Other ways to read the recording's rows: lags, and forms of the last state where ``reading`` is fed it.

    Lags of one row are not among them: a shift of 0 or 2 predicts the same. Once a lag is found, those next to it are:
    where other repairs are still to come, the wrong one may do best at first.
    """
    if bench.recording.lag:
        now = bench.recording
        beside = [now.lag + by for by in (-2, -1, 1, 2)]
        return [Recording(lag=lag, form=now.form) for lag in beside if abs(lag) > 1]
    if bench.recording != Recording():
        return []
    most = min(LAGS, min(s.length for s in bench.originals) // 5)
    found = [Recording(lag=sign * by) for by in range(2, most + 1) for sign in (1, -1) if lags]
    if any(uses_last(reading, sample) for sample in bench.samples):
        found += [Recording(form=form) for form in FORMS]
    return found


def reread(walk: Walk, starts: Sequence[Reading], lags: bool) -> bool:
    """Reads the recording's rows otherwise where that helps the current reading, or a start; says whether it did.

    Lags are looked for only where nothing fits: a recording that is rows early or late leaves next to nothing.
    """
    ways = recordings(walk.bench, walk.current, lags)
    if not ways:
        return False
    walk.say(f"search: {len(ways)} ways to read the rows")
    longest = max(abs(w.lag) for w in (*ways, walk.bench.recording))
    margin = Margin(longest, longest)
    tried = _tried(walk, starts)
    again = bool(walk.bench.recording.lag)
    if again:  # a shift is the same as a lag, but for the rows at a text's ends
        tried = [walk.current, *(v for v in variants(walk.bench.model, walk.current) if v.shift == walk.current.shift)]
    asked: list[Reread] = [(way, (reading,)) for way in ways for reading in tried]
    if again:  # two other faults beside it may hide which lag is right
        near = [key for key, _ in _as_read(walk, asked, 24, 2, margin)[:CLOSE]]
        twice = [(way, (one, two)) for way, (one, *_) in near for two in variants(walk.bench.model, one)]
        asked += [(way, steps) for way, steps in twice if steps[1].shift == steps[0].shift]
    for rows, count, most in ((24, 2, 2 * CLOSE), (None, None, 1)):
        scored = _as_read(walk, asked, rows, count, margin)[:most]
        asked = [key for key, _ in scored]
    if not scored:
        return False
    (((way, steps), best),) = scored
    base = [s for s in walk.bench.runnable(tried, None, None, margin=margin) if s is not None and s.rows]
    # a reading that joins a later token, or a recording read late, has a row less at a text's end: no pair with it
    shapes = [h.shape for h in best.hits]
    base = [s for s in base if [h.shape for h in s.hits] == shapes]
    if not base:
        return False
    gap = paired(best, max(base, key=lambda s: (s.accuracy, s.mean_loglik)), 1 - 0.05 / (len(ways) * len(tried)))
    if gap.low <= 0 or (again and gap.value < GUESSED):
        return False
    reading = steps[-1]
    if reading.replace(aux=walk.current.aux) != walk.current and not again:
        # repairs so far were luck at the level of chance: the way begins again from the configured reading
        walk.path, walk.current = [], starts[0] if walk.bench.holds(starts[0]) else reading
    first = starts[0].shift
    # a shift and a lag are one thing: the draft's own shift is kept
    if way.lag and walk.current.shift != first and not again:
        way = Recording(lag=way.lag + walk.current.shift - first, form=way.form)
        walk.path = [repair for repair in walk.path if repair.field != "shift"]
        walk.current, steps = walk.current.replace(shift=first), (reading.replace(shift=first),)
    walk.read_as(way, gap, margin)
    for reading in steps:
        if reading != walk.current:
            walk.take(reading, gain(walk.bench, reading, walk.current))
    return True


def _as_read(
    walk: Walk, asked: Sequence[Reread], rows: int | None, count: int | None, margin: Margin
) -> list[tuple[Reread, Score]]:
    """Scores of readings, the best first, each on rows read its own way; none of what cannot be run."""
    by_way: dict[Recording, list[tuple[Reading, ...]]] = {}
    for way, steps in asked:
        by_way.setdefault(way, []).append(steps)
    scored: list[tuple[Reread, Score]] = []
    for way, ends in by_way.items():
        with suppress(LabError):
            bench = walk.bench.under(way)
            scores = bench.runnable([end[-1] for end in ends], rows, count, narrow=rows is not None, margin=margin)
            walk.tried += bench.tried
            scored += [((way, end), s) for end, s in zip(ends, scores, strict=True) if s is not None and s.rows]
    return [scored[i] for i in by_rank([score for _, score in scored])]


def _tried(walk: Walk, starts: Sequence[Reading]) -> list[Reading]:
    """The current reading and the configured one: under their own wirings, and with all slots moved together."""
    found = []
    # a shift found so far may be what a lag leaves of itself: the other repairs are tried without it too
    for one in dict.fromkeys((walk.current, walk.current.replace(shift=starts[0].shift), starts[0])):
        every = [
            one.aux,
            *(s.aux for s in starts if len(s.aux) == len(one.aux)),
            *together(one.aux, walk.bench.boundaries),
        ]
        found += [one.replace(aux=aux) for aux in every]
    return [r for r in dict.fromkeys(found) if walk.bench.holds(r)]


def pair(walk: Walk, starts: Sequence[Reading]) -> bool:
    """Takes two changes at once where nothing fits and neither helps alone; says whether any did."""
    return _several(walk, list(dict.fromkeys(itertools.islice(_pairs(walk, starts), PAIRS))))


def pair_of_near_misses(walk: Walk, starts: Sequence[Reading]) -> bool:
    """Takes a change that is of no account alone and one beside it that then helps; says whether there is such a pair.

    A reading may fit well above the floor and still be two changes from the right one: a norm before ``fc`` makes
    little difference while the wiring is wrong, and the wiring none while the norm is.
    """
    tries: list[tuple[Reading, Reading]] = []
    for one in dict.fromkeys([*walk.weighed.ties, *walk.weighed.close][:CLOSE]):
        tries += [(one, one.replace(aux=aux)) for aux in _close(walk.bench, one, starts)]
        tries += [(one, other) for other in variants(walk.bench.model, one) if other != walk.current]
    for shift in SHIFTS:  # what a shift gains shows under the right wiring, and the other way round
        one = walk.current.replace(shift=shift)
        tries += [(one, one.replace(aux=aux)) for aux in _close(walk.bench, one, starts) if shift != walk.current.shift]
    for one in walk.ties[:CLOSE]:  # other wirings that fit as well
        tries += [(one, other) for other in variants(walk.bench.model, one) if other != walk.current]
    return _several(walk, list(dict.fromkeys(tries)))


def unstated(walk: Walk) -> bool:
    """Takes a single change to what no file states, the best of these; says whether one helps."""
    model = walk.bench.model
    known = any(repair.field == "rope.base" for repair in walk.path)  # a base is off, and its neighbours refine it
    if _several(walk, [(guess,) for guess in guesses(model, walk.current)], WORTH if known else GUESSED):
        return True
    near = dict.fromkeys([*walk.weighed.ties, *walk.weighed.close][: 2 * CLOSE])
    return _several(walk, [(one, guess) for one in near for guess in guesses(model, one)], GUESSED)


def turned_otherwise(walk: Walk, first: Reading) -> bool:
    """Takes two changes of the rotation in place of those taken so far; says whether that helps.

    Of two wrong ones, base and layout, neither may gain alone what turning fewer columns does.
    """
    model, steps = walk.bench.model, [walk.current]
    for name in dict.fromkeys(repair.field for repair in walk.path if repair.field.startswith("rope.")):
        steps.append(reverted(steps[-1], first, name))
    if len(steps) == 1:
        return False
    back = steps[-1].rope
    once = [r for r in variants(model, steps[-1]) if r.rope != back]
    twice = [(one, two) for one in once for two in variants(model, one) if two.rope not in (one.rope, back)]
    return _several(walk, [(*steps[1:], one, two) for one, two in twice])


def deeper(walk: Walk, starts: Sequence[Reading]) -> bool:
    """Takes three changes at once, from the pairs that came nearest; says whether any did.

    Of three faults at once the first two repairs may gain less than their interval, and the third makes it plain.
    """
    tries: list[tuple[Reading, ...]] = []
    for first, second in walk.nearest:
        beside = [second.replace(aux=aux) for aux in _close(walk.bench, second, starts)]
        beside += variants(walk.bench.model, second)
        tries += [(first, second, third) for third in beside if third not in (first, walk.current)]
    walk.nearest = []
    return _several(walk, list({way[-1]: way for way in tries}.values()))


def _several(walk: Walk, tries: Sequence[tuple[Reading, ...]], least: float = WORTH) -> bool:
    """Goes the way, of one or more changes, whose end gains most, beyond its interval and ``least``, if any does."""
    if not tries:
        return False
    walk.say(f"search: {len(tries)} ways of {len(tries[0])} changes")
    field = list(tries)
    for rows, count, most in ((24, 1, 12), (80, 6, NEAREST)):
        scores = walk.bench.runnable([way[-1] for way in field], rows, count, narrow=count == 1)
        known = [(way, s) for way, s in zip(field, scores, strict=True) if s is not None]
        if not known:
            return False
        field = [known[i][0] for i in by_rank([s for _, s in known])[:most]]
    walk.nearest = [(way[0], way[1]) for way in field if len(way) == 2]
    way = field[0]
    before, *along = walk.bench.runnable([walk.current, *way], None, None, STEPS, likely=False)
    after = along[-1]
    if before is None or after is None or (way[-1], walk.bench.recording) in walk.seen:
        return False
    whole = paired(after, before, 1 - 0.05 / len(tries))
    if whole.low <= 0 or whole.value < least:
        return False
    unknown = Interval(float("nan"), -1.0, 1.0, 0, "cannot be run alone")
    for reading, old, new in zip(way, (before, *along), along, strict=False):
        walk.take(reading, paired(new, old) if new and old else unknown if new is None else paired(new, before))
    return True


def _pairs(walk: Walk, starts: Sequence[Reading]) -> Iterator[tuple[Reading, Reading]]:
    """(a change away, two changes away): a change that alone may leave chance, then anything near."""
    model, current = walk.bench.model, walk.current
    outer = [current.replace(vocab_map=kind) for kind in maps(model) if kind != current.vocab_map]
    outer += [current.replace(shift=s) for s in SHIFTS if s != current.shift]
    for one in outer:
        for aux in _near(walk.bench, one, starts):
            yield one, one.replace(aux=aux)
        for other in variants(model, one):
            if other not in outer and other != current:
                yield one, other
    for one in (current.replace(aux=aux) for aux in _near(walk.bench, current, starts)):
        yield from ((one, other) for other in variants(model, one))
    for one in variants(model, current):
        yield from ((one, other) for other in variants(model, one) if other != current)


def _close(bench: Bench, reading: Reading, starts: Sequence[Reading]) -> list[Aux]:
    """The nearest wirings: all slots together, a neighbour in one slot, and the same of the configured one."""
    held, aux = bench.boundaries, reading.aux
    found = [*together(aux, held), starts[0].aux, *together(starts[0].aux, held)]
    for slot, b in enumerate(aux):
        place = held.index(b) if isinstance(b, int) and b in held else -1
        beside = [held[i] for i in (place - 1, place + 1) if place >= 0 and 0 <= i < len(held)]
        found += [(*aux[:slot], other, *aux[slot + 1 :]) for other in beside]
    return [a for a in dict.fromkeys(found) if a != aux and len(a) == len(aux) and bench.holds(reading.replace(aux=a))]


def _near(bench: Bench, reading: Reading, starts: Sequence[Reading]) -> list[Aux]:
    """Wirings near a reading's: all slots moved together, the starts' own, other orders, one slot elsewhere."""
    held, aux = bench.boundaries, reading.aux
    found = [*together(aux, held), *(s.aux for s in starts if len(s.aux) == len(aux))]
    found += [tuple(order) for order in itertools.permutations(aux)] if len(aux) <= 4 else []
    found += [(*aux[:slot], b, *aux[slot + 1 :]) for slot in range(len(aux)) for b in held]
    return [a for a in dict.fromkeys(found) if a != aux and bench.holds(reading.replace(aux=a))]
