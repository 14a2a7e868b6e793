"""What a round costs: by hand from known costs, what cannot be told, the published case, the flags to type."""

from __future__ import annotations

import json
import math
import shlex

import pytest
import torch

from eagle3lab.dialects import flags
from eagle3lab.gap import rate_from_length
from eagle3lab.gap.story import STORY, Published, worked
from eagle3lab.gap.throughput import CostModel, Setting, fit_cost
from eagle3lab.gap.tuning import tune

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


def test_a_published_round_below_a_plain_step_is_said():
    """1.2 tokens a round at 200 against 100 tok/s: a round would cost 0.6 plain steps, 0.625 at most."""
    lines = worked(Published(0.5, (3,), 100.0, (("too fast", 1.2, 200.0),)))
    (line,) = [line for line in lines if "cost of a round" in line.what]
    assert line.number == "0.60 plain steps [0.57, 0.62]" and "which no server does" in line.assumption


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
    ("engine", "says", "tree"),
    [
        (
            "llamacpp",
            "--spec-type draft-eagle3 -md D --spec-draft-n-max 3 (by reading, not run)",
            "no tree of llama.cpp's",
        ),
        (
            "trtllm",
            'speculative_config: {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "D"} (by reading, not run)',
            "no tree of TensorRT-LLM's",
        ),
        (
            "lmdeploy",
            "the lab does not know the flags of lmdeploy: set it to 3 drafts a round",
            "does not know the flags",
        ),
        ("vllm", flags.vllm(3, "D"), "vLLM drafts chains only"),
        ("sglang", flags.sglang(3, 1, 3, "D"), flags.sglang(3, 4, 15, "D")),
        ("", f"{flags.sglang(3, 1, 3, 'D')}; {flags.vllm(3, 'D')}", "vLLM drafts chains only"),
    ],
)
def test_flags_of_every_engine_are_its_own(engine, says, tree):
    assert flags.typed(engine, 3, 1, 3, "D") == says
    assert tree in flags.typed(engine, 3, 4, 15, "D")


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


def test_a_setting_that_the_model_prices_below_a_plain_step_has_no_speed_up():
    """a = 0.4, b = 0.5: K 1 would cost 0.9, K 2 costs 1.4: 1.9 / 0.9 = 2.1 is no speed-up, 2.1 / 1.4 = 1.5 is."""
    lengths = {Setting(1): (1.9, torch.tensor([1.9, 1.9])), Setting(2): (2.1, torch.tensor([2.1, 2.1]))}
    found = tune(CostModel(0.4, 0.5, 0.0), lengths)
    assert found.best.setting == Setting(2) and found.chosen == 1
    cheap, sound = found.rows
    assert math.isnan(cheap.speedup.value) and math.isnan(cheap.speedup.low) and math.isnan(cheap.speedup.high)
    assert cheap.why == "its cost, 0.90, is below one plain step, which no server does"
    assert sound.speedup.value == pytest.approx(1.5) and not sound.why


@pytest.mark.parametrize(
    ("three", "five", "a", "noise", "sound"),
    [
        # a = (5 · cost of K 3 - 3 · cost of K 5) / 2; 2 % of each cost moves it by 0.02 · (2.5 · c3 + 1.5 · c5) at most
        (1.12, 1.67, "0.29", "0.11", False),
        (1.60, 2.10, "0.85", "0.14", False),  # 0.850 < 1 - 0.143
        (1.61, 2.11, "0.86", "0.14", True),  # 0.860 > 1 - 0.144
        (1.70, 2.20, "0.95", "0.15", True),
    ],
)
def test_a_round_without_drafts_costs_a_plain_step_but_for_noise(three, five, a, noise, sound):
    model = fit_cost([(Setting(3), three), (Setting(5), five)])
    found = tune(model, {Setting(k): (2.0, torch.empty(0)) for k in (1, 3, 5)})
    words = "; ".join(model.missing)
    assert f"a = {a}" in words and f"timing noise of 2% explains {noise}" in words
    assert bool(model.impossible) is not sound and (found.best is not None) is sound
    if not sound:
        assert "which none does" in model.impossible[0] and "check seconds and tokens" in model.impossible[0]
        assert all(math.isnan(row.speedup.value) and row.why == model.impossible[0] for row in found.rows)


def test_runs_of_one_setting_that_differ_widen_the_interval():
    """K 3 at 1.42 and 5.67: b = 0.14 and 1.5567, 0.8483 between.

    K 1 (2.0 tokens) costs 1.14, 2.5567, 1.8483: speed-ups 1.754, 0.782, 1.082. K 3 (3.0 tokens): 2.113, 0.529, 0.846.
    K 1 is the best at two fits of three. 5.67 / 1.42 = 3.99.
    """
    model = fit_cost([(Setting(3), 1.42), (Setting(3), 5.67)])
    assert model.contrary == (
        "2 runs with K=3 cost 1.42 to 5.67 plain steps a round, 299% apart, though one setting has one cost",
    )
    assert [round(one.b, 4) for one in model.refits] == [0.14, 1.5567] and "(2 ways)" in model.covers
    none = torch.empty(0)
    found = tune(model, {Setting(1): (2.0, none), Setting(3): (3.0, none)}, 10, "no samples to draw")
    one = found.best.speedup
    assert (round(one.value, 3), round(one.low, 3), round(one.high, 3)) == (1.082, 0.782, 1.754)
    assert found.chosen == pytest.approx(2 / 3) and found.sure == "best in 67% of the 3 fits of the cost"
    assert "cheapest and the dearest run" in one.method and "no samples to draw" in one.method
    # two draws that make K 1 0.1 shorter and longer: the ends move by that over the dearest and the cheapest cost
    draws = {1: torch.tensor([1.9, 2.1]), 3: torch.tensor([3.0, 3.0])}
    drawn = tune(model, {Setting(1): (2.0, draws[1]), Setting(3): (3.0, draws[3])}, 10, "by hand").best.speedup
    assert drawn.low == pytest.approx((1.9 + 0.025 * 0.2) / 2.55667, abs=1e-4)
    assert drawn.high == pytest.approx((2.1 - 0.025 * 0.2) / 1.14, abs=1e-4)


def test_runs_of_one_setting_that_agree_are_not_called_contrary():
    """2.0 and 2.19 are 9.5 % apart: nothing is said, but both stand in the interval."""
    model = fit_cost([(Setting(5), 2.0), (Setting(5), 2.19)])
    assert not model.contrary and len(model.refits) == 2
    assert fit_cost([(Setting(5), 2.0), (Setting(5), 2.21)]).contrary
    once = fit_cost([(Setting(5), 2.0), (Setting(3), 1.6)])
    assert not once.refits and once.covers == "the cost itself is taken as exact"


def test_settings_that_the_law_can_spare_say_how_far_it_is_open():
    """K 1, 3, 5 at 1.3, 1.6, 2.0: without K 5 1.15 + 0.15 K, without K 3 1.125 + 0.175 K, without K 1 1 + 0.2 K."""
    model = fit_cost([(Setting(1), 1.3), (Setting(3), 1.6), (Setting(5), 2.0)])
    assert sorted((round(one.a, 3), round(one.b, 3)) for one in model.refits) == [
        (1.0, 0.2),
        (1.125, 0.175),
        (1.15, 0.15),
    ]
    assert "without each setting that the law can spare (3 ways)" in model.covers
    # at 2.1 the fit without K 1 has a = 0.85, which noise does not explain (0.143)
    model = fit_cost([(Setting(1), 1.3), (Setting(3), 1.6), (Setting(5), 2.1)])
    assert len(model.refits) == 2 and "1 of them cost what no server does and are left out" in model.covers


def test_a_tree_with_as_many_tokens_as_steps_is_no_chain():
    """SGLang's 5 / 4 / 6: 5 draft tokens less the root, and branches."""
    tree = Setting(5, 4, 5)
    assert not tree.chain and tree.words == "K=5, topk 4, 5 draft tokens" and Setting(5).chain
    assert not Setting(5, 1, 3).chain
    alone = fit_cost([(tree, 1.6)])
    assert not alone.chains and "only trees were timed" in alone.missing[0]
    beside = fit_cost([(Setting(1), 1.2), (Setting(3), 1.6), (tree, 9.0)])
    assert (beside.a, beside.b) == (pytest.approx(1.0), pytest.approx(0.2)) and not beside.trees
    assert "one line with the chains" in beside.missing[0] and math.isnan(beside.round_cost(tree))


def test_trees_alone_price_no_chain():
    model = fit_cost([(Setting(5, 4, 15), 2.0), (Setting(5, 4, 31), 3.0)])
    assert not model.chains and not model.trees and "no chain can be priced" in model.missing[0]
    assert math.isnan(model.round_cost(Setting(5))) and math.isnan(model.round_cost(Setting(5, 4, 15)))
    assert "chains" in model.asks[0] and "nan" not in model.law
    assert tune(model, {Setting(5): (2.0, torch.empty(0))}).best is None


def test_a_trees_tokens_are_not_priced_as_a_chains_steps():
    model = fit_cost([(Setting(5), 2.0), (Setting(5, 4, 31), 4.0)])
    assert model.b == pytest.approx(0.2) and model.worst == pytest.approx(0) and not model.trees
