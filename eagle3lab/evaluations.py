"""What a case's samples give under a reading, chain or tree: rolled out once, cut and handed out again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from eagle3lab.acceptance import (
    Choice,
    Evaluation,
    TreeShape,
    against_choice,
    evaluate,
    evaluate_trees,
    first_within,
    head_cost,
    tree_cost,
    words_of,
)
from eagle3lab.counts import ServingRun
from eagle3lab.errors import LabError
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.samples import Samples


class Source(Protocol):
    """What a case has for it."""

    @property
    def model(self) -> Model:
        """The draft's weights."""

    @property
    def samples(self) -> Samples:
        """The recordings."""

    @property
    def steps(self) -> int:
        """K of the case."""

    @property
    def runs(self) -> Sequence[ServingRun]:
        """Its serving runs."""

    @property
    def progress(self) -> Callable[[str], None]:
        """Called with one line a stage."""


class Evaluations:
    """The evaluations of one case, remembered."""

    def __init__(self, source: Source):
        self.source = source
        self.chains: dict[tuple[Reading, tuple[str, ...], str], Evaluation] = {}
        self._trees: dict[tuple[Reading, tuple[TreeShape, ...]], list[Evaluation]] = {}
        self._choices: dict[Reading, tuple[Choice, str]] = {}

    def chain(self, reading: Reading, steps: int, names: Sequence[str], fed: str) -> Evaluation:
        """`evaluate` on ``names`` (the headline samples when empty), 0 ``steps`` for the case's own K."""
        case = self.source
        chosen = tuple(names or case.samples.headline)
        steps = steps or case.steps
        found = self.chains.get((reading, chosen, fed))
        if found is None or found.steps < steps:
            # a shorter chain is the beginning of a longer one, so the deepest that any run needs is rolled out at once
            deepest = steps if steps == 1 else max([steps, case.steps, *(run.steps or 0 for run in case.runs)])
            case.progress(f"{deepest} draft steps: {len(chosen)} samples under {reading}")
            found = evaluate(case.model, case.samples, chosen, reading, deepest, fed)
            self.chains[reading, chosen, fed] = found
        return found.cut(steps)

    def trees(self, reading: Reading, shapes: Sequence[TreeShape]) -> list[Evaluation]:
        """`evaluate_trees` on the first headline samples whose trees can be grown in a minute or three.

        Shapes of any ``topk``, all on the same samples. What is left out for its time stands in ``skipped``, as what
        cannot be run does.
        """
        case, key = self.source, (reading, tuple(shapes))
        if key not in self._trees:
            kin: dict[tuple[str, int], list[TreeShape]] = {}
            for shape in shapes:
                kin.setdefault((shape.program, shape.topk), []).append(shape)
            deepest = [max(some, key=lambda shape: shape.forwards) for some in kin.values()]

            def price(name: str) -> float:
                try:
                    return sum(tree_cost(case.model, case.samples[name], shape) for shape in deepest)
                except LabError:
                    return 0.0  # it is skipped below, with its reason

            every = case.samples.headline
            names = first_within(every, price)
            left = {name: f"trees of all would take too long: {words_of(names, every)} are taken"
                    for name in every[len(names) :]}  # fmt: skip
            found: dict[TreeShape, Evaluation] = {}
            for some, deep in zip(kin.values(), deepest, strict=True):
                case.progress(f"{deep.program}'s tree ({deep.words}): {len(names)} samples under {reading}")
                for shape, one in zip(
                    some, evaluate_trees(case.model, case.samples, names, reading, some), strict=True
                ):
                    one.skipped.update(left)
                    found[shape] = one
            self._trees[key] = [found[shape] for shape in shapes]
        return self._trees[key]

    def choice(self, reading: Reading) -> tuple[Choice, str]:
        """The headline's text against the target's own greedy choice, and which samples were afforded, in words.

        Raises:
            LabError: no final state, or no target head that fits, or no sample can be run.
        """
        if reading not in self._choices:
            case = self.source
            parts = list(self.chain(reading, 0, (), "recorded").parts.values())
            chosen = first_within(parts, lambda part: head_cost(case.model, case.samples[part.sample]))
            found = Choice(0, 0, 0, 0, 0, 0, 0)
            for part in chosen:
                found = found + against_choice(case.model, case.samples[part.sample], reading, part)
            self._choices[reading] = found, words_of(chosen, parts)
        return self._choices[reading]
