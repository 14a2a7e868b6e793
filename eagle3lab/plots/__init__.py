"""The pictures: each takes plain numbers and returns a `Picture`, a figure with the sentence that describes it."""

from eagle3lab.plots.diagram import draft_map
from eagle3lab.plots.gap import differences, state_errors, tuning, waterfall
from eagle3lab.plots.picture import Picture
from eagle3lab.plots.readings import accuracy_by_step, ranking, wiring_matrix
from eagle3lab.plots.recorded import agreement_by_lag, coverage_by_kind
from eagle3lab.plots.rounds import by_position, by_sample, round_histogram
from eagle3lab.plots.serving import engine_beside_prediction, throughput
from eagle3lab.plots.states import cosine_matrix, rms_by_position
from eagle3lab.plots.walks import by_step_fed, chain_and_trees, sample_curves, survival, token_costs
from eagle3lab.plots.weights import coverage, norm_weights, value_histograms, vocab_curve

__all__ = [
    "Picture",
    "accuracy_by_step",
    "agreement_by_lag",
    "by_position",
    "by_sample",
    "by_step_fed",
    "chain_and_trees",
    "cosine_matrix",
    "coverage",
    "coverage_by_kind",
    "differences",
    "draft_map",
    "engine_beside_prediction",
    "norm_weights",
    "ranking",
    "rms_by_position",
    "round_histogram",
    "sample_curves",
    "state_errors",
    "survival",
    "throughput",
    "token_costs",
    "tuning",
    "value_histograms",
    "vocab_curve",
    "waterfall",
    "wiring_matrix",
]
