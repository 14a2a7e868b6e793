"""What a round costs: by hand from known costs, what cannot be told, the published case, the flags to type."""

from __future__ import annotations

import json
import math
import shlex

import pytest
import torch

from eagle3lab.dialects import flags
from eagle3lab.gap import rate_from_length
from eagle3lab.gap.story import STORY, worked
from eagle3lab.gap.throughput import CostModel, Setting, fit_cost, tune

TRUE = CostModel(1.1, 0.2, 0.03)


def priced(*settings: Setting, noise: float = 0.0) -> list[tuple[Setting, float]]:
    return [
        (s, TRUE.a + TRUE.b * s.steps + TRUE.c * s.draft_tokens + noise * (-1) ** i) for i, s in enumerate(settings)
    ]


def test_three_settings_with_a_tree_give_all_three_numbers():
    model = fit_cost(priced(Setting(1), Setting(5), Setting(5, 4, 31)))
    assert (model.a, model.b, model.c) == (pytest.approx(1.1), pytest.approx(0.2), pytest.approx(0.03))
    assert not model.missing and not model.asks and not model.assumed and model.trees and model.settings == 3
    assert model.round_cost(Setting(3, 4, 15)) == pytest.approx(1.1 + 0.6 + 0.45)


def test_more_settings_are_fitted_and_the_worst_is_said():
    model = fit_cost(priced(Setting(1), Setting(3), Setting(5), Setting(5, 4, 31), Setting(3, 2, 7), noise=0.05))
    assert model.b == pytest.approx(0.2, abs=0.05) and 0.01 < model.worst < 0.1


def test_chains_alone_give_a_and_the_sum_of_b_and_c():
    model = fit_cost(priced(Setting(1), Setting(5), Setting(3)))
    assert (model.a, model.b, model.c) == (pytest.approx(1.1), pytest.approx(0.23), 0)
    assert "b and c apart" in model.missing[0] and "tree" in model.asks[0] and not model.trees
    assert math.isnan(model.round_cost(Setting(3, 4, 15)))


def test_one_setting_takes_a_as_a_plain_step_and_says_so():
    """story.md: K 5 at a cost of 2.96 plain steps: (2.96 - 1) / 5 = 0.392 a draft."""
    model = fit_cost([(Setting(5), 2.96), (Setting(5), 2.96)])
    assert (model.a, model.b) == (1, pytest.approx(0.392))
    assert "a = 1" in model.assumed[0] and "1 setting of 3" in model.missing[0]
    assert "another K, e.g. 3" in model.asks[0] and len(model.asks) == 2


def test_nothing_timed_is_no_model():
    assert fit_cost([]) is None
    assert fit_cost([(Setting(5), float("nan")), (Setting(3), -1.0)]) is None


def test_a_cost_below_nothing_is_said():
    model = fit_cost([(Setting(1), 3.0), (Setting(5), 2.0)])
    assert any("b = -0.25 below 0" in text for text in model.missing)


def test_the_best_setting_by_hand():
    """Lengths 1.6, 1.9, 2.2 at costs 1.2, 1.4, 2.0 (a = 1, b = 0.2; K 5): speed-ups 1.333, 1.357, 1.1."""
    model = CostModel(1.0, 0.2, 0.0)
    draws = {1: torch.tensor([1.5, 1.7, 1.6]), 2: torch.tensor([1.8, 1.9, 2.0]), 5: torch.tensor([2.1, 2.3, 2.2])}
    found = tune(
        model, {Setting(k): (length, draws[k]) for k, length in ((1, 1.6), (2, 1.9), (5, 2.2))}, 100, "by hand"
    )
    assert [round(row.speedup.value, 3) for row in found.rows] == [1.333, 1.357, 1.1]
    assert found.best.setting == Setting(2)
    # draw by draw: 1.25 | 1.286 | 1.05, 1.417 | 1.357 | 1.15, 1.333 | 1.429 | 1.1: K 2 wins two of three
    assert found.chosen == pytest.approx(2 / 3)
    assert found.best.speedup.low == pytest.approx(1.8 / 1.4 + 0.05 * 0.1 / 1.4, abs=1e-6)
    assert found.best.speedup.n == 100 and "the cost itself is taken as exact" in found.best.speedup.method


def test_a_tree_is_the_best_where_it_is_priced_and_the_engine_grows_it():
    """TRUE: 1.9 / (1.1 + 0.4 + 0.06) = 1.218 of the chain, 5 / (1.1 + 0.4 + 0.6) = 2.381 of the tree."""
    none = torch.empty(0)
    lengths = {Setting(2): (1.9, none), Setting(2, 4, 20): (5.0, none)}
    found = tune(TRUE, lengths)
    assert [round(row.speedup.value, 3) for row in found.rows] == [1.218, 2.381]
    assert found.best.setting == Setting(2, 4, 20) and math.isnan(found.chosen)
    assert found.best.setting.words == "K=2, topk 4, 20 draft tokens"
    assert tune(TRUE, lengths, chains_only=True).best.setting == Setting(2)
    unpriced = tune(CostModel(1.0, 0.2, 0.0, trees=False), lengths)
    assert math.isnan(unpriced.rows[1].speedup.value)
    assert tune(CostModel(math.nan, 0.2, 0.0), lengths).best is None


@pytest.mark.parametrize(("length", "steps", "rate"), [(1.0, 5, 0.0), (6.0, 5, 1.0), (1.75, 2, 0.5), (2.0, 1, 1.0)])
def test_rate_from_length(length, steps, rate):
    assert rate_from_length(length, steps) == pytest.approx(rate, abs=1e-9)
    assert math.isnan(rate_from_length(0.9, steps)) and math.isnan(rate_from_length(steps + 1.1, steps))


def test_the_worked_example_by_hand():
    """story.md's published numbers.

    0.747² = 0.5580, ³ = 0.4168, ⁴ = 0.3114, ⁵ = 0.2326, ⁶ = 0.1738: accept length 1 + 2.2659 = 3.27 with 5 drafts,
    3.44 with 6. Speeds 56.8 / 90 = 0.631 and 54.8 / 90 = 0.609. Costs 1.6 · 90 / 56.8 = 2.535 (1.55 … 1.65 published
    as 1.6: 2.456 … 2.614) and 1.8 · 90 / 54.8 = 2.956 (1.75 … 1.85: 2.874 … 3.038): above the first whatever was
    rounded. 3.266 tokens a round would give 3.266 / 2.535 = 1.29, or 3.266 / 2.956 = 1.10 times the plain speed.
    Rates: 0.377 + 0.142 + 0.054 + 0.020 + 0.008 = 0.60; 0.449 + 0.202 + 0.091 + 0.041 + 0.018 = 0.80.
    """
    numbers = {line.what: line.number for line in worked()}
    said = list(numbers.values())
    assert said[:2] == ["3.27", "3.44"]
    assert [n for n in said if "/ 90.0" in n] == ["56.8 / 90.0 = 0.63×", "54.8 / 90.0 = 0.61×"]
    assert [n for n in said if "plain steps" in n] == ["2.54 plain steps [2.46, 2.61]", "2.96 plain steps [2.87, 3.04]"]
    assert [n.split()[0] for w, n in numbers.items() if "conditional rate behind" in w] == ["0.377", "0.449"]
    assert numbers["speed if 74.7% became accept length 3.27"] == "1.29× (116 tok/s) or 1.10× (99 tok/s)"
    assert numbers["cost of a round, from the first run to the last"] == "2.54 → 2.96"
    assert "more than rounding" in worked()[-1].assumption
    assert all(line.assumption for line in worked(STORY))


def test_flags_are_the_engines_own():
    words = shlex.split(flags.sglang(5, 1, 5, "draft"))
    assert (
        words[words.index("--speculative-num-draft-tokens") + 1] == "6"
    )  # the root counts, and topk 1 wants steps + 1
    tree = shlex.split(flags.sglang(3, 4, 15, "draft"))
    assert tree[tree.index("--speculative-num-draft-tokens") + 1] == "16"
    option, value = shlex.split(flags.vllm(3, "draft"))
    assert option == "--speculative-config"
    assert json.loads(value) == {"method": "eagle3", "model": "draft", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([(Setting(5), 0.55)], "below one plain step, which no server does: check seconds and tokens"),  # one setting
        ([(Setting(5), 0.9), (Setting(3), 0.8)], "K=5: 0.90; K=3: 0.80"),  # chains
        ([(Setting(1), 3.0), (Setting(5), 2.0)], "b = -0.25 below 0"),
        ([(Setting(1), 1.2), (Setting(5), 2.0), (Setting(5, 4, 31), 1.5)], "c = -0.02 below 0"),  # all three
        ([(Setting(5, 4, 15), 0.6)], "K=5, topk 4, 15 draft tokens: 0.60"),  # a tree alone
    ],
)
def test_a_price_that_no_server_has_recommends_nothing(points, says):
    model = fit_cost(points)
    assert says in "; ".join(model.impossible) and "check seconds and tokens" in model.impossible[0]
    assert set(model.impossible) <= set(model.missing)
    assert tune(model, {Setting(k): (2.0, torch.empty(0)) for k in (1, 5)}).best is None


def test_a_setting_that_the_model_prices_below_a_plain_step_is_not_the_best():
    """a = 0.4, b = 0.5: K 1 would cost 0.9, K 2 costs 1.4: 1.9 / 0.9 = 2.1 is no speed-up, 2.1 / 1.4 = 1.5 is."""
    none = torch.empty(0)
    found = tune(CostModel(0.4, 0.5, 0.0), {Setting(1): (1.9, none), Setting(2): (2.1, none)})
    assert found.best.setting == Setting(2)


def test_trees_alone_price_no_chain():
    model = fit_cost([(Setting(5, 4, 15), 2.0), (Setting(5, 4, 31), 3.0)])
    assert not model.chains and not model.trees and "no chain can be priced" in model.missing[0]
    assert math.isnan(model.round_cost(Setting(5))) and math.isnan(model.round_cost(Setting(5, 4, 15)))
    assert "chains" in model.asks[0] and "nan" not in model.law
    assert tune(model, {Setting(5): (2.0, torch.empty(0))}).best is None


def test_a_trees_tokens_are_not_priced_as_a_chains_steps():
    model = fit_cost([(Setting(5), 2.0), (Setting(5, 4, 31), 4.0)])
    assert model.b == pytest.approx(0.2) and model.worst == pytest.approx(0) and not model.trees
