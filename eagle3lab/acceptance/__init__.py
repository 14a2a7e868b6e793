"""What verification keeps of a rollout: the engine's walk, counts, intervals, cost.

The lab's definition (design section 6): greedy chain, cumulative per position, bonus included (1 + accepted / rounds),
over the positions an engine visits. For a reply span [a, b) step k is scored on rows t = a-1 … b-3-k, and the walk
starts at t = a-1, accepts n, moves to t + n + 1 and ends when no row is left. A token outside the draft vocab is a
miss. A chain never crosses a span's end, since what follows it is not the target's own text.
"""

from __future__ import annotations

from eagle3lab.acceptance.budget import first_within, head_cost, tree_cost, words_of
from eagle3lab.acceptance.chain import (
    Acceptance,
    Round,
    accept,
    definition,
    scored_rows,
    steps_that_fit,
    total,
    walk,
)
from eagle3lab.acceptance.drift import Choice, Drift, against_choice, choices
from eagle3lab.acceptance.evaluation import Evaluation, accept_length, evaluate
from eagle3lab.acceptance.intervals import accept_length_interval, accuracy_interval, ratios, resampled, times
from eagle3lab.acceptance.sampling import RULES, Sampled, sampled
from eagle3lab.acceptance.spread import Everywhere, Offset, ceiling, everywhere, offsets, rates
from eagle3lab.acceptance.tree import Grower
from eagle3lab.acceptance.treeshape import Trees, TreeShape, eagle_tree, sglang_tree
from eagle3lab.acceptance.treewalk import accept_trees, evaluate_tree, evaluate_trees, tree_definition

__all__ = [
    "RULES",
    "Acceptance",
    "Choice",
    "Drift",
    "Evaluation",
    "Everywhere",
    "Grower",
    "Offset",
    "Round",
    "Sampled",
    "TreeShape",
    "Trees",
    "accept",
    "accept_length",
    "accept_length_interval",
    "accept_trees",
    "accuracy_interval",
    "against_choice",
    "ceiling",
    "choices",
    "definition",
    "eagle_tree",
    "evaluate",
    "evaluate_tree",
    "evaluate_trees",
    "everywhere",
    "first_within",
    "head_cost",
    "offsets",
    "rates",
    "ratios",
    "resampled",
    "sampled",
    "scored_rows",
    "sglang_tree",
    "steps_that_fit",
    "times",
    "total",
    "tree_cost",
    "tree_definition",
    "walk",
    "words_of",
]
