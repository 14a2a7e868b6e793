"""The pictures: each takes plain numbers and returns a `Picture`, a figure with the sentence that describes it."""

from eagle3lab.plots.diagram import draft_map
from eagle3lab.plots.picture import Picture
from eagle3lab.plots.readings import accuracy_by_step, ranking, wiring_matrix
from eagle3lab.plots.rounds import acceptance_rates, by_position, by_sample, round_histogram
from eagle3lab.plots.serving import engine_beside_prediction, throughput
from eagle3lab.plots.states import cosine_matrix, rms_by_position
from eagle3lab.plots.weights import coverage, norm_weights, value_histograms, vocab_curve

__all__ = [
    "Picture",
    "acceptance_rates",
    "accuracy_by_step",
    "by_position",
    "by_sample",
    "cosine_matrix",
    "coverage",
    "draft_map",
    "engine_beside_prediction",
    "norm_weights",
    "ranking",
    "rms_by_position",
    "round_histogram",
    "throughput",
    "value_histograms",
    "vocab_curve",
    "wiring_matrix",
]
