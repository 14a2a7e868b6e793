"""The walk with trees instead of chains: greedy verification of each round's tree against the recorded text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle3lab.acceptance.chain import Acceptance, Round, count, scored_rows
from eagle3lab.acceptance.evaluation import Evaluation
from eagle3lab.acceptance.tree import Grower
from eagle3lab.acceptance.treeshape import TreeShape
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
    shape: int
    row: int
    end: int


@dataclass
class _Text:
    """One sample under the walks of S shapes, D levels at most.

    Attributes:
        sample: it.
        spans: its reply spans, less the last tokens that no row predicts under the reading's shift.
        scored: bool [T, D].
        truth: int64 [T, D], the token that each draft must be, -1 where not scored.
        runs: int64 [T, S], drafts accepted from each row by each shape, -1 where no tree was grown.
        broken: bool [T, S], trees with logits that are not finite.
    """

    sample: Sample
    spans: tuple[tuple[int, int], ...]
    scored: Tensor
    truth: Tensor
    runs: Tensor
    broken: Tensor

    @classmethod
    def of(cls, sample: Sample, shift: int, shapes: Sequence[TreeShape]) -> _Text:
        late, steps = max(shift - 1, 0), max(shape.levels for shape in shapes)
        spans = tuple((a, b - late) for a, b in sample.spans)
        scored = scored_rows(spans, sample.length, steps)
        if not scored.any():
            raise Blocked(f"{sample.path}: no reply span has a row to score; a span needs two tokens")
        places = torch.arange(sample.length)[:, None] + 1 + shift + torch.arange(steps)  # [T, K]
        tokens = sample.input_ids.long()[places.clamp(max=sample.length - 1)]
        runs = torch.full((sample.length, len(shapes)), -1)
        return cls(
            sample, spans, scored, torch.where(scored, tokens, -1), runs, torch.zeros_like(runs, dtype=torch.bool)
        )


def accept_trees(
    model: Model,
    samples: Sequence[Sample],
    reading: Reading,
    shapes: Sequence[TreeShape],
    *,
    every_row: bool = False,
) -> list[list[tuple[Acceptance, int]]]:
    """The walks over some samples with a tree a round; all spans walk abreast, so that their trees grow in one batch.

    A tree has no rate of one position alone, so ``correct`` and ``joint`` of the counts are the same: the recorded text
    led at least so deep. They are over the rows that the shape's own walk came by.

    Args:
        model: the draft's weights.
        samples: recorded tokens and states; their keys are held together.
        reading: how the draft is run.
        shapes: what is verified, of one program and with one ``topk``: a tree is grown once, as deep as the deepest
            asks, and holds the others.
        every_row: grow a tree at every reply row and count all of them, else only where a walk comes by, a third to a
            half of them.

    Returns:
        for each shape, for each sample: the acceptance with K = ``shape.levels``, and how many of the trees it walked
        held logits that are not finite.

    Raises:
        Blocked: no reply span is long enough, or something is not in the files given.
    """
    deepest = max(shapes, key=lambda shape: shape.levels)
    if len({(s.topk, s.logs, s.moved) for s in shapes}) > 1:
        raise ValueError("shapes that grow from one tree have one topk and one program")
    texts = [_Text.of(sample, reading.shift, shapes) for sample in samples]
    grower = Grower(model, samples, reading, deepest, [t.scored[:, 0].nonzero()[:, 0] for t in texts])
    if every_row:
        whole = {(i, row) for i, t in enumerate(texts) for row in t.scored[:, 0].nonzero()[:, 0].tolist()}
        _grow(grower, texts, shapes, whole)
    walkers = [
        _Walker(i, k, max(a - 1, 0), b) for i, t in enumerate(texts) for k in range(len(shapes)) for a, b in t.spans
    ]
    rounds: dict[tuple[int, int], list[Round]] = {(k, i): [] for k in range(len(shapes)) for i in range(len(texts))}
    while walkers := [w for w in walkers if w.row <= w.end - 3]:
        _grow(grower, texts, shapes, {(w.text, w.row) for w in walkers if texts[w.text].runs[w.row, w.shape] < 0})
        for w in walkers:
            accepted = int(texts[w.text].runs[w.row, w.shape])
            offered = min(shapes[w.shape].levels, w.end - 2 - w.row)
            rounds[w.shape, w.text].append(Round(w.row, accepted, offered))
            w.row += accepted + 1
    vocab = model.vocab_map(reading)
    out = []
    for k, shape in enumerate(shapes):
        done = []
        for i, text in enumerate(texts):
            runs, scored, truth = text.runs[:, k], text.scored[:, : shape.levels], text.truth[:, : shape.levels]
            correct = torch.arange(shape.levels) < runs[:, None]
            walked = sorted(rounds[k, i], key=lambda r: r.row)
            looked = runs >= 0
            if not every_row:  # the other shapes' walks leave their trees here too
                looked = torch.zeros_like(looked).index_fill_(0, torch.tensor([r.row for r in walked]), True)
            grown = scored & looked[:, None]
            covered = (vocab.to_draft(truth.clamp(min=0)) >= 0) & (truth >= 0)
            counts = count(correct, grown, covered, walked)
            acceptance = Acceptance(text.sample.name, counts, walked, correct & grown, grown, covered, text.spans)
            done.append((acceptance, int((text.broken[:, k] & looked).sum())))
        out.append(done)
    return out


def _grow(grower: Grower, texts: Sequence[_Text], shapes: Sequence[TreeShape], asked: set[tuple[int, int]]) -> None:
    """Grows the trees of (text, row) pairs and follows the recorded text down what each shape keeps of them."""
    if not asked:
        return
    which, rows = torch.tensor(sorted(asked)).T
    truth = torch.stack([texts[i].truth[row] for i, row in zip(which.tolist(), rows.tolist(), strict=True)])
    first = 0
    for part in grower.whole(rows, which):
        some = slice(first, first + len(part.rows))
        kept = [part.best(shape) for shape in shapes]
        runs = [tree.follow(truth[some, : shape.levels]) for tree, shape in zip(kept, shapes, strict=True)]
        broken = [(tree.tokens < 0).any(1) for tree in kept]
        for i in which[some].unique().tolist():
            mine = which[some] == i
            texts[i].runs[rows[some][mine]] = torch.stack(runs, 1)[mine]
            texts[i].broken[rows[some][mine]] = torch.stack(broken, 1)[mine]
        first = some.stop


def evaluate_tree(
    model: Model, samples: Mapping[str, Sample], names: Sequence[str], reading: Reading, shape: TreeShape
) -> Evaluation:
    """One tree over the named samples, as `evaluate` does for chains; a tree cannot be cut to fewer levels."""
    return evaluate_trees(model, samples, names, reading, (shape,))[0]


def evaluate_trees(
    model: Model,
    samples: Mapping[str, Sample],
    names: Sequence[str],
    reading: Reading,
    shapes: Sequence[TreeShape],
    *,
    every_row: bool = False,
) -> list[Evaluation]:
    """What each shape accepts over the named samples; shapes as `accept_trees` takes them.

    A sample that cannot be run is skipped with its reason; when none can, the first reason is the error. Samples are
    taken together as long as their keys stay under `TOGETHER` bytes.
    """
    skipped: dict[str, str] = {}
    out = [Evaluation(reading, shape.levels, {}, skipped) for shape in shapes]
    group: list[Sample] = []
    held, each = 0, prefix_bytes(model, reading)

    def walk() -> None:
        done = accept_trees(model, group, reading, shapes, every_row=every_row) if group else []
        for found, parts in zip(out, done, strict=False):
            for part, broken in parts:
                found.parts[part.sample] = part
                found.nonfinite += broken
        group.clear()

    for name in names:
        try:
            sample = samples[name]
            check_scorable(sample, reading.aux)
            _Text.of(sample, reading.shift, shapes)
            trace(model.draft, reading, sample.length - reading.shift, sample.width)
        except (BadFile, Blocked, BadShape) as error:
            skipped[name] = error.line
            continue
        if group and held + sample.length * each > TOGETHER:
            walk()
            held = 0
        group.append(sample)
        held += sample.length * each
    walk()
    if not out[0].parts and skipped:
        program, why = shapes[0].program, next(iter(skipped.values()))
        raise Blocked(f"no sample can be run with {program}'s tree: {why}")
    return out
