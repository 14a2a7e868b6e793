"""Trees in a case: the one that a run drafts, and those worth trying, as SGLang's flags make them."""

from __future__ import annotations

from eagle3lab.acceptance import Evaluation, TreeShape, sglang_tree
from eagle3lab.checks.evidence import Serving
from eagle3lab.counts import ServingRun
from eagle3lab.errors import Blocked, LabError
from eagle3lab.gap.throughput import Setting
from eagle3lab.reading import Reading

TOPKS = (2, 4, 8)
"""Branching factors tried beside the chain; 4 and 8 are SGLang's own defaults."""

TOKENS = (4, 8, 16, 32, 64)
"""``--speculative-num-draft-tokens`` tried, the root counted."""


def shape_of(run: ServingRun, steps: int) -> TreeShape | None:
    """The run's tree at its K; None for a chain.

    Raises:
        Blocked: how the engine grows its tree is not known, or its size is not given.
    """
    if run.topk == 1 or not run.speculative:
        return None
    if run.engine != "sglang":
        raise Blocked(f"run {run.name!r} drafts a tree (topk {run.topk}): how {run.engine or 'its engine'} grows one is "
                      "not known here, only SGLang's rules are")  # fmt: skip
    if not run.draft_tokens:
        raise Blocked(f"run {run.name!r} drafts a tree (topk {run.topk}): give draft_tokens in case.toml "
                      "(--speculative-num-draft-tokens), how many of its nodes are verified")  # fmt: skip
    return sglang_tree(steps, run.topk, run.draft_tokens)


def predicted(case: Serving, run: ServingRun, reading: Reading, steps: int) -> Evaluation:
    """What the run should accept under ``reading``: its chain (0 ``steps`` for the case's K), or its tree.

    Raises:
        Blocked: as `shape_of`, or no sample can be run.
    """
    shape = shape_of(run, steps or run.steps or 0) if run.topk > 1 else None
    return case.evaluate_trees(reading, (shape,))[0] if shape else case.evaluate(reading, steps)


def grid(steps: int, vocab: int) -> list[TreeShape]:
    """The trees tried, up to ``steps`` levels, for a draft vocabulary of ``vocab`` tokens."""
    return [
        sglang_tree(s, k, tokens)
        for k in TOPKS
        for s in range(1, steps + 1)
        for tokens in TOKENS
        if k <= vocab and s < tokens <= k + (s - 1) * k * k + 1
    ]


def tree_lengths(case: Serving, reading: Reading, steps: int) -> dict[Setting, Evaluation]:
    """What each tree of the `grid` accepts, all on the same samples; {} where none can be grown."""
    shapes = grid(steps, case.draft.arch.draft_vocab)
    try:
        found = case.evaluate_trees(reading, shapes) if shapes else []
    except LabError:
        return {}
    return {Setting(s.levels, s.topk, s.nodes): one for s, one in zip(shapes, found, strict=True)}
