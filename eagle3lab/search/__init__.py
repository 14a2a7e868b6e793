"""Which reading fits: wirings of the recorded states first, then the other fields, until nothing helps.

The score is step-by-step accuracy on recorded tokens, on the same rows for every reading; comparisons are paired and
their intervals drawn over samples. Candidates race: the first round gives each a handful of rows, later rounds give
the survivors more. Where nothing helps, rows are read otherwise, two and three changes are tried at once, and at last
the content itself is looked at: "no reading fits" is an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eagle3lab.aligned import Recording
from eagle3lab.bench import Bench
from eagle3lab.model import Model
from eagle3lab.neighbours import variants
from eagle3lab.outcome import Candidate, Open, ScanResult
from eagle3lab.reading import FINAL, Reading
from eagle3lab.records import Interval, Sample
from eagle3lab.search import suspects
from eagle3lab.search.fields import Weighed, open_fields, weigh
from eagle3lab.search.mended import beside_map
from eagle3lab.search.rescue import deeper, pair, pair_of_near_misses, recordings, reread, turned_otherwise, unstated
from eagle3lab.search.starts import best_start, set_out
from eagle3lab.search.walk import Walk
from eagle3lab.search.wirings import Progress, gain, race, together, wirings

__all__ = ["race", "search"]

PROVEN = ("foreign", "basis", "columns", "map")
"""Kinds of suspects that are judged on rows apart from those that raised them."""

COPIES = ("vocab_map", "embedding", "head")
"""Fields that choose between two tensors: where both predict the same these are copies, and nothing is undetermined."""


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
    walk = Walk(bench, best_start(bench, starts), say)
    set_out(walk, starts[0])
    if FINAL in walk.current.aux:  # a form that the file does not say would look like another wiring
        reread(walk, starts, False)
    walk.run()
    fits, low = walk.fits()
    while (
        # a shift that is not the draft's own may be what a lag of several rows leaves of itself
        reread(walk, starts, not fits or walk.barely(low) or walk.current.shift != starts[0].shift)
        or unstated(walk)
        or turned_otherwise(walk, starts[0])
        or (pair_of_near_misses if fits else pair)(walk, starts)
        or deeper(walk, starts)
    ):
        walk.run()
        fits, low = walk.fits()
    before, path = walk.current, walk.path
    walk.prune(starts[0])
    if walk.current != before and fits and not walk.fits()[0]:  # together they tell a fit from none
        walk.current, walk.path = before, path
    if walk.current != before:
        fits, low = walk.fits()
        _, walk.ranking, walk.ties = wirings(walk.bench, walk.current, say)
    tried = [walk.current, *(s for s in dict.fromkeys(starts) if s != walk.current and walk.bench.holds(s))][:3]
    moved = [starts[0].replace(aux=aux) for aux in together(starts[0].aux, walk.bench.boundaries)[:2]]
    tried += [r for r in moved if r not in tried and walk.bench.holds(r)]  # states may be foreign and ids off too
    found = (
        suspects.partial(walk.bench, walk.current, walk.top(), low)
        if fits
        else suspects.whole(walk.bench, tried, walk.top(), low)
    )
    if not fits and not found and walk.bench.recording.lag:  # luck at the level of chance, and content after all
        plain = walk.bench.under(Recording())
        if found := [s for s in suspects.whole(plain, tried, walk.top(), low) if s.kind in PROVEN]:
            walk.bench, walk.path = plain, [r for r in walk.path if r.field != "lag"]
    if fits and walk.barely(low):  # so little that what the content shows by itself outweighs it
        proven = [s for s in suspects.whole(walk.bench, tried, walk.top(), low) if s.kind in PROVEN]
        fits, found = not proven, proven or found
    # where states lack columns or lie in another basis, hits say nothing of single samples
    found = [s for s in found if s.kind in ("columns", "basis")] or found
    result = _result(walk, fits, low, found, before != walk.current)
    if not fits and any(suspect.kind == "map" for suspect in found):
        return replace(result, mended=beside_map(walk, starts[0], tried))
    return result


def _result(walk: Walk, fits: bool, low: float, found: list[suspects.Suspect], pruned: bool) -> ScanResult:
    bench, current = walk.bench, walk.current
    weighed = walk.weighed
    if pruned:
        weighed = weigh(bench, current, list(variants(bench.model, current)))
    fields = open_fields(current, weighed) if fits else ()
    n = sum(h.numel() for h in walk.top().hits)
    return ScanResult(
        fitted=current,
        ties=tuple(walk.ties),
        margin=_margin(bench, current, walk.ranking, walk.ties),
        ranking=tuple(walk.ranking),
        path=tuple(walk.path),
        undetermined=_undetermined(current, walk.ties, fields),
        tried=walk.tried + bench.tried,
        matrix=walk.cells,
        matrix_rows=walk.cell_rows,
        evidence=f"{n} reply rows of {len(bench.samples)} samples, step 0",
        fits=fits,
        floor=low,
        lag=bench.recording.lag,
        form=bench.recording.form,
        open=fields,
        suspects=tuple(found),
        excluded=_excluded(walk, weighed),
    )


def _undetermined(best: Reading, ties: Sequence[Reading], fields: Sequence[Open]) -> tuple[str, ...]:
    """Fields (and aux slots) on which the ties differ from the best, or that cannot be seen at all."""
    out: dict[str, None] = {}
    for tie in ties:
        for name, (mine, theirs) in best.diff(tie).items():
            if name != "aux" or len(mine) != len(theirs):
                out[name] = None
            else:
                out.update((f"aux[{i}]", None) for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
    return tuple(out | {entry.field: None for entry in fields if not (entry.same and entry.field in COPIES)})


def _margin(bench: Bench, best: Reading, ranking: Sequence[Candidate], ties: Sequence[Reading]) -> Interval:
    """The best against the next one that is not a tie."""
    rest = [c.reading for c in ranking if c.reading.aux != best.aux and c.reading not in ties]
    if not rest:
        return Interval(0.0, 0.0, 0.0, 0, "every other reading tried is a tie")
    if ranking[0].reading == best:
        return next(c.behind for c in ranking if c.reading == rest[0])
    return gain(bench, best, best.replace(aux=rest[0].aux))


def _excluded(walk: Walk, weighed: Weighed) -> tuple[str, ...]:
    """What was tried and does not explain the rest, in words."""
    bench, current = walk.bench, walk.current
    out = [
        f"{len(walk.ranking) and 'every wiring' or 'no wiring'} of boundaries {', '.join(map(str, bench.boundaries))}"
    ]
    names = dict.fromkeys(
        name for v in variants(bench.model, current) for name in current.diff(v) if name != "rope.rule"
    )
    out.append(f"single changes of {', '.join(names)} ({weighed.lost} of {weighed.tried} clearly worse)")
    ways = recordings(Bench(bench.model, bench.originals), current)
    if ways:
        out.append(f"rows up to {max(abs(w.lag) for w in ways)} early or late")
    return tuple(out)
