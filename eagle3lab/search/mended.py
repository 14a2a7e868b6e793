"""What else is wrong where the map is: the search again, with the map that the recording teaches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from eagle3lab.bench import Bench
from eagle3lab.model import Model
from eagle3lab.outcome import Repair
from eagle3lab.reading import Reading
from eagle3lab.search.heads import learned, said
from eagle3lab.search.walk import Walk
from eagle3lab.vocab import VocabMap


class Remapped(Model):
    """The same draft with another map of its vocabulary, whatever the reading says of the file's.

    Args:
        model: the draft.
        hot: int64 [Vd], target id of each draft id.
    """

    def __init__(self, model: Model, hot: Tensor):
        super().__init__(model.draft, model.target, str(model.device))
        self._hot = hot

    def _read_map(self, kind: str) -> VocabMap:
        """The map given."""
        return VocabMap(self._hot, super()._read_map(kind).vocab, kind)


def beside_map(walk: Walk, first: Reading, tried: Sequence[Reading]) -> tuple[Repair, ...]:
    """The repairs that help once the map is mended; none where nothing else is wrong, or nothing fits then either.

    Args:
        walk: the search that ended with a map that was rebuilt.
        first: the configured reading.
        tried: readings under which a map may be learned: the one that teaches it best is taken.
    """
    bench = walk.bench
    told = [(one, reading) for reading in tried if (one := said(bench, reading)) is not None]
    if not told or not bench.holds(first):
        return ()
    one, reading = max(told, key=lambda pair: learned(pair[0])[1])
    hot = bench.model.vocab_map(reading).hot_token_id.clone()
    for draft_id, token in learned(one)[0].items():
        if draft_id >= 0:
            hot[draft_id] = token
    again = Walk(Bench(Remapped(bench.model, hot), bench.originals).under(bench.recording), first, walk.say)
    again.run()
    again.prune(first)
    return tuple(again.path) if again.fits()[0] else ()


__all__ = ["beside_map"]
