"""Whether a recorded text can stand for what an engine generated."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3lab.acceptance import Sampled, first_within, head_cost, sampled, words_of
from eagle3lab.checks.evidence import Opened, Serving
from eagle3lab.counts import ServingRun
from eagle3lab.errors import LabError
from eagle3lab.reading import Reading

GREEDY = 0.9
"""As S005: below this share of the target's own choices a text is not its greedy output."""


def not_greedy(case: Serving, run: ServingRun, reading: Reading) -> str:
    """Why the walk over the recorded text is no prediction of the run, in words; "" where it is, or nobody can tell."""
    if run.temperature > 0:
        return f"the run sampled at temperature {run.temperature:g}, and the walk is greedy (A023 has sampling)"
    try:
        found, _ = case.choice(reading)
    except LabError:
        return ""
    if found.share < GREEDY:
        return f"the recorded text is not the target's greedy output ({found.share:.1%} of its tokens are, A020)"
    return ""


def at_temperature(
    case: Opened, names: Sequence[str], reading: Reading, steps: int, temperature: float
) -> tuple[Sampled | None, str]:
    """What sampling with greedy drafts accepts on the named samples, and which of them were afforded, in words.

    Raises:
        LabError: no final state, or no target head that fits.
    """
    chosen = first_within(names, lambda name: head_cost(case.model, case.samples[name]))
    total: Sampled | None = None
    for name in chosen:
        (one,) = sampled(case.model, case.samples[name], reading, steps, [temperature])
        total = one if total is None else total + one
    return (total if total is not None and total.reached[0] else None), words_of(chosen, names)
