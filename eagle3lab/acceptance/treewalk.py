"""The walk with trees instead of chains: greedy verification of each round's tree against the recorded text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.acceptance.chain import Acceptance, Round, count, scored_rows
from eagle3lab.acceptance.evaluation import Evaluation
from eagle3lab.acceptance.tree import Grower, TreeShape
from eagle3lab.decoder import prefix_bytes
from eagle3lab.errors import BadFile, BadShape, Blocked
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.samples import check_scorable
from eagle3lab.trace import trace

TOGETHER = 512 * 2**20
"""Bytes of keys of the texts that walk abreast; a single longer text walks alone."""


def tree_definition(shape: TreeShape) -> str:
    """What a tree's accept length means, in one line, and how far it is known to be the program's."""
    source = "equal to its recorded trees" if shape.program == "EAGLE" else "by reading its source, not run"
    return (
        f"{shape.program}'s tree ({shape.words}), {source}: up to {shape.levels} drafts in a row, {shape.nodes} nodes "
        "verified, greedy, bonus included (1 + accepted / rounds), positions the engine visits"
    )


@dataclass
class _Walker:
    """Where the walk over one reply span [a, b) stands."""

    text: int
    row: int
    end: int


@dataclass
class _Text:
    """One sample under the walk.

    Attributes:
        sample: it.
        spans: its reply spans, less the last tokens that no row predicts under the reading's shift.
        scored: bool [T, K].
        truth: int64 [T, K], the token that each draft must be, -1 where not scored.
        runs: int64 [T], drafts accepted from each row, -1 where no tree was grown.
        broken: rows with logits that are not finite.
    """

    sample: Sample
    spans: tuple[tuple[int, int], ...]
    scored: Tensor
    truth: Tensor
    runs: Tensor
    broken: int = 0

    @classmethod
    def of(cls, sample: Sample, shift: int, steps: int) -> _Text:
        late = max(shift - 1, 0)
        spans = tuple((a, b - late) for a, b in sample.spans)
        scored = scored_rows(spans, sample.length, steps)
        if not scored.any():
            raise Blocked(f"{sample.path}: no reply span has a row to score; a span needs two tokens")
        places = torch.arange(sample.length)[:, None] + 1 + shift + torch.arange(steps)  # [T, K]
        tokens = sample.input_ids.long()[places.clamp(max=sample.length - 1)]
        runs = torch.full((sample.length,), -1)
        return cls(sample, spans, scored, torch.where(scored, tokens, -1), runs)


def accept_trees(
    model: Model, samples: Sequence[Sample], reading: Reading, shape: TreeShape, *, every_row: bool = False
) -> list[tuple[Acceptance, int]]:
    """The walk over some samples with a tree a round; all spans walk abreast, so that their trees grow in one batch.

    A tree has no rate of one position alone, so ``correct`` and ``joint`` of the counts are the same: the recorded text
    led at least so deep. They are over the rows whose tree was grown.

    Args:
        model: the draft's weights.
        samples: recorded tokens and states; their keys are held together.
        reading: how the draft is run.
        shape: how the trees grow.
        every_row: grow a tree at every reply row, else only where a walk comes by, a third to a half of them.

    Returns:
        for each sample the acceptance with K = ``shape.levels``, and the rows whose logits were not finite.

    Raises:
        Blocked: no reply span is long enough, or something is not in the files given.
    """
    texts = [_Text.of(sample, reading.shift, shape.levels) for sample in samples]
    grower = Grower(model, samples, reading, shape, [t.scored[:, 0].nonzero()[:, 0] for t in texts])
    if every_row:
        _grow(grower, texts, [(i, row) for i, t in enumerate(texts) for row in t.scored[:, 0].nonzero()[:, 0].tolist()])
    walkers = [_Walker(i, max(a - 1, 0), b) for i, t in enumerate(texts) for a, b in t.spans]
    rounds: list[list[Round]] = [[] for _ in texts]
    while walkers := [w for w in walkers if w.row <= w.end - 3]:
        if not every_row:
            _grow(grower, texts, [(w.text, w.row) for w in walkers])
        for w in walkers:
            accepted = int(texts[w.text].runs[w.row])
            rounds[w.text].append(Round(w.row, accepted, min(shape.levels, w.end - 2 - w.row)))
            w.row += accepted + 1
    vocab = model.vocab_map(reading)
    out = []
    for text, walked in zip(texts, rounds, strict=True):
        correct = torch.arange(shape.levels) < text.runs[:, None]
        grown = text.scored & (text.runs >= 0)[:, None]
        covered = (vocab.to_draft(text.truth.clamp(min=0)) >= 0) & (text.truth >= 0)
        walked.sort(key=lambda r: r.row)
        counts = count(correct, grown, covered, walked)
        done = Acceptance(text.sample.name, counts, walked, correct & grown, grown, covered, text.spans)
        out.append((done, text.broken))
    return out


def _grow(grower: Grower, texts: Sequence[_Text], asked: Sequence[tuple[int, int]]) -> None:
    """Grows the trees of (text, row) pairs, in their order, and follows the recorded text down each."""
    which, rows = torch.tensor(asked).T
    trees = grower.grow(rows, which)
    runs = trees.follow(torch.stack([texts[i].truth[row] for i, row in asked]))
    broken = (trees.tokens < 0).any(1)
    for (i, row), run, bad in zip(asked, runs.tolist(), broken.tolist(), strict=True):
        texts[i].runs[row] = run
        texts[i].broken += bad


def evaluate_tree(
    model: Model,
    samples: Mapping[str, Sample],
    names: Sequence[str],
    reading: Reading,
    shape: TreeShape,
    *,
    every_row: bool = False,
) -> Evaluation:
    """One tree over the named samples, as `evaluate` does for chains; a tree cannot be cut to fewer levels.

    A sample that cannot be run is skipped with its reason; when none can, the first reason is the error. Samples are
    taken together as long as their keys stay under `TOGETHER` bytes.
    """
    out = Evaluation(reading, shape.levels, {}, {})
    group: list[Sample] = []
    held, each = 0, prefix_bytes(model, reading)

    def walk() -> None:
        done = accept_trees(model, group, reading, shape, every_row=every_row) if group else []
        for part, broken in done:
            out.parts[part.sample] = part
            out.nonfinite += broken
        group.clear()

    for name in names:
        try:
            sample = samples[name]
            check_scorable(sample, reading.aux)
            _Text.of(sample, reading.shift, shape.levels)
            trace(model.draft, reading, sample.length - reading.shift, sample.width)
        except (BadFile, Blocked, BadShape) as error:
            out.skipped[name] = error.line
            continue
        if group and held + sample.length * each > TOGETHER:
            walk()
            held = 0
        group.append(sample)
        held += sample.length * each
    walk()
    if not out.parts and out.skipped:
        raise Blocked(f"no sample can be run with {shape.program}'s tree: {next(iter(out.skipped.values()))}")
    return out
