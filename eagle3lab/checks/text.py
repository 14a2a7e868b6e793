"""Whether a recorded text can stand for what an engine generated."""

from __future__ import annotations

from eagle3lab.checks.evidence import Serving
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
