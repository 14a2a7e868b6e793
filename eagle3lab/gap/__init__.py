"""The gap: training's figure, the engine's, and what lies between them, as numbers.

`requests` holds an engine's requests against their predictions, `waterfall` takes the difference apart, `dumps`
compares the states an engine recorded with those of training, `throughput` says what a round costs, `versus` compares
two drafts or two readings, `story` does the arithmetic of published numbers.
"""

from eagle3lab.gap.requests import Comparison, RequestMatch, compare_requests, end_effect
from eagle3lab.gap.throughput import Cost, cost, length_from_accuracy, rate_from_length

__all__ = [
    "Comparison",
    "Cost",
    "RequestMatch",
    "compare_requests",
    "cost",
    "end_effect",
    "length_from_accuracy",
    "rate_from_length",
]
