"""E010 … E013 through files: an engine's dump damaged in every way, timed runs, K that disagrees, input that is bad."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tiny
import torch
from safetensors.torch import save_file
from test_checks import PROM, Reports
from torch import Tensor

from eagle3lab import open_case, plots, tables, views
from eagle3lab.checks import cost, gap, serving
from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.errors import BadOption, Blocked
from eagle3lab.gap.throughput import Setting
from eagle3lab.records import Severity

SLOTS = (2, 4, 5)
DUMP = 'dump = { path = "engine", boundaries = [2, 4, 5] }\n'


@pytest.fixture
def folder(tmp_path):
    return tiny.write_case(tmp_path).parent


def record(folder, change: Callable[[dict[str, Tensor]], None] = lambda t: None, run: str = DUMP, **more):
    """What the engine recorded of the first sample's text, in vLLM's own files; ``change`` damages it first."""
    tensors = tiny.sample_tensors(11)
    change(tensors)
    (folder / "engine").mkdir(exist_ok=True)
    states = torch.stack([tensors[f"h.{k}"] for k in SLOTS], 1).contiguous()  # [T, A, H]
    save_file({"hidden_states": states, "token_ids": tensors["input_ids"]} | more, folder / "engine" / "a.safetensors")
    (folder / "case.toml").write_text(tiny.TOML + tiny.RUN + run)
    return open_case(folder)


def only(case, code: str):
    (one,) = [f for f in case.findings("serving") if f.code == code]
    return one


def test_the_same_states_pass(folder):
    case = record(folder)
    one = only(case, "E011")
    assert one.severity == Severity.PASS and "boundary 4 as training recorded it" in one.measured
    assert one.evidence == "a: 40 tokens of first"
    assert case.file.unused == ()
    rows = views.dump_rows(case)
    assert [row["slot"] for row in rows] == [2, 4, 5] and rows[0]["verdict"] == "same"
    assert list(views.dump_errors(case)["series"]) == [2, 4, 5]


def other(tensors: dict[str, Tensor], rows: slice) -> Tensor:
    tensors["h.4"][rows] = tiny.sample_tensors(12)["h.4"][rows]
    return tensors["h.4"]


DAMAGE = {
    "another layer": (lambda t: t.update({"h.4": t["h.5"]}), "slot 4 of a: it is boundary 5 of training's dump"),
    "order swapped": (lambda t: t.update({"h.2": t["h.5"], "h.5": t["h.2"]}), "slot 2 of a: it is boundary 5"),
    "rows of another request": (
        lambda t: other(t, slice(20, None)),
        "from there on its rows belong to another request",
    ),
    "late by one": (lambda t: t.update({"h.4": t["h.4"].roll(1, 0)}), "its row i is training's row i-1"),
    "twice as large": (lambda t: t["h.4"].mul_(2), "times 2"),
    "NaN": (lambda t: t["h.4"][3:5].fill_(float("nan")), "2 rows hold NaN"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_with_its_slot(folder, kind):
    change, says = DAMAGE[kind]
    one = only(record(folder, change), "E011")
    assert one.severity == (Severity.WARN if kind == "NaN" else Severity.FAIL)
    assert says in (one.measured if kind == "NaN" else one.title)
    assert one.remedy and one.where == "run 'a run': engine"


def test_a_cached_beginning_is_aligned_by_its_tokens(folder):
    def late(tensors):
        tensors.update({k: v[12:].clone() for k, v in tensors.items()})

    one = only(record(folder, late), "E011")
    assert one.severity == Severity.PASS and "28 tokens of first" in one.evidence


def test_another_text_is_not_comparable(folder):
    one = only(record(folder, lambda t: t["input_ids"].add_(1).remainder_(tiny.V)), "E011")
    assert one.severity == Severity.NOT_COMPARABLE and "begins like a sample" in one.title


def test_a_dump_that_does_not_say_its_boundaries(folder):
    # four states, as no engine's default has
    one = only(record(folder, run='dump = { path = "engine", boundaries = [2, 4] }\n'), "E011")
    assert one.severity == Severity.BLOCKED and "boundaries = [0, 15, 27]" in one.remedy
    with pytest.raises(Blocked, match="no serving run names the states"):
        views.dump_errors(open_case(tiny.write_case(folder / "other")))


def timed(folder, *runs: tuple[int, float, int], accepted: int = 107):
    """Runs of (K, seconds, tokens); K 0 is the one without speculation."""
    (folder / "m.prom").write_text(PROM.format(drafts=100, drafted=200, accepted=accepted))
    text = tiny.TOML
    for i, (steps, seconds, tokens) in enumerate(runs):
        run = tiny.RUN.replace("a run", f"run {i}").replace("steps = 2", f"steps = {steps}")
        text += run + ('metrics = ["m.prom"]\n' if steps else "") + f"seconds = {seconds}\ntokens = {tokens}\n"
    (folder / "case.toml").write_text(text + "[training]\naccuracy = [0.5, 0.5]\n")
    return open_case(folder)


def test_one_timed_setting_is_partial_and_asks(folder):
    """2.07 tokens a round at the plain speed: a round costs 2.07, (2.07 - 1) / 2 = 0.535 a draft."""
    one = only(timed(folder, (2, 10.0, 400), (0, 10.0, 400)), "E013")
    assert one.title.startswith("partial: K=")
    assert "a round costs 1.00 + 0.535 · K" in one.measured
    assert "1 setting of 3" in one.evidence and "to be sure, give a timed run with another K" in one.remedy


def test_flags_of_the_runs_engine(folder):
    one = only(timed(folder, (2, 8.0, 400), (0, 10.0, 400)), "E013")
    assert '--speculative-config \'{"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": ' in one.remedy
    slow = only(timed(folder, (2, 40.0, 400), (0, 10.0, 400)), "E013")
    assert "nothing pays at this cost" in slow.title and "speculative-config" not in slow.remedy


def test_nothing_timed_says_nothing(folder):
    (folder / "case.toml").write_text(tiny.TOML + tiny.RUN)
    assert not [f for f in open_case(folder).findings("serving") if f.code in ("E004", "E013")]


def test_a_run_timed_alone_says_what_is_missing(folder):
    case = timed(folder, (2, 10.0, 400))
    one = only(case, "E013")
    assert one.severity == Severity.UNDETERMINED and "run 0: no run without speculation was timed" in one.evidence
    with pytest.raises(Blocked, match="run 0: no run without speculation was timed"):
        views.tuning(case)
    assert views.throughput(case) is None


def test_a_far_below_one_recommends_nothing_and_shows_no_speed_up(folder):
    """2.07 tokens a round, 40 tok/s without: K 5 in 8.068 s costs 1.67, K 3 in 5.411 s costs 1.12: a = 0.295."""
    case = timed(folder, (5, 8.068, 400), (3, 5.411, 400), (0, 10.0, 400))
    one = only(case, "E013")
    assert one.severity == Severity.UNDETERMINED and one.title.startswith(
        "partial: no setting is recommended: a = 0.30"
    )
    assert "×" not in one.measured and "speculative-config" not in one.remedy
    found = views.tuning(case)
    assert found["best"] is None and all(row["speedup"] != row["speedup"] for row in found["rows"])
    assert "no speed-up is shown: no server costs that" in found["notes"]
    with pytest.raises(Blocked, match="a = 0.30: a round without drafts"):
        views.tuning_picture(case)


def test_a_row_below_a_plain_step_is_a_dash_and_said(folder):
    """K 12 at 1.5, K 10 at 1.38: 0.78 + 0.06 K; noise explains 0.32 in a; K 1, 2, 3 cost 0.84, 0.90, 0.96, K 4 1.02."""
    case = timed(folder, (12, 15 / 2.07, 400), (10, 13.8 / 2.07, 400), (0, 10.0, 400))
    one = only(case, "E013")
    assert one.severity == Severity.INFO
    assert "K=1 –, K=2 –, K=3 –, K=4 " in one.measured and "K=4 –" not in one.measured
    assert "–: its cost, 0.84, is below one plain step, which no server does" in one.evidence
    found = views.tuning(case)
    assert [row["steps"] for row in found["rows"] if row["why"]] == [1, 2, 3]
    assert any(text.startswith("– for K=1, K=2, K=3: by the model") for text in found["notes"])


def test_contradictory_timings_warn_and_stand_in_the_interval(folder):
    """2.07 tokens a round; K 3 at 1.42 and 5.67 plain steps: b = 0.14 and 1.5567, 0.8483 between."""
    case = timed(folder, (3, 14.2 / 2.07, 400), (3, 56.7 / 2.07, 400), (0, 10.0, 400))
    one = only(case, "E013")
    assert one.severity == Severity.WARN and one.title.startswith("partial: ") and one.title.endswith("setting differ")
    assert "2 runs with K=3 cost 1.42 to 5.67 plain steps a round, 299% apart" in one.evidence
    assert "interval: the cost refitted with the cheapest and the dearest run" in one.evidence
    assert "timed again under one load" in one.remedy and "of the 3 fits of the cost" in one.measured
    length = case.evaluate(case.scan.fitted, 1).counts.accept_length
    first = views.tuning(case)["rows"][0]
    assert first["speedup"] == pytest.approx(length / 1.84833, abs=1e-3)
    assert first["low"] == pytest.approx(length / 2.55667, abs=1e-3)
    assert first["high"] == pytest.approx(length / 1.14, abs=1e-3)


@pytest.mark.parametrize(
    "given", ["0,0,0", "nan,1,1", "1e400,0,0", "0,0.5,0", "-5,0,0", "1,-0.1,0", "1,0.1,-0.1", "0.9,1,1"]
)
def test_costs_given_that_no_server_has_are_refused(folder, given):
    with pytest.raises(BadOption, match="give a of 1 or more"):
        views.tuning(timed(folder, (2, 10.0, 400)), given)


LOG = (
    "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='x', speculative_algorithm='EAGLE3', "
    "speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4, x=1)\n"
) + 30 * (
    "[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 1, #token: 1034, token usage: 0.00, accept len: 1.60, "
    "accept rate: 0.20, cuda graph: True, gen throughput (token/s): 182.40, #queue-req: 0\n"
)
NONE = '[[serving]]\nname = "none"\nengine = "{engine}"\nsteps = 0\nseconds = {seconds}\ntokens = 900\n'


def sglang_log(folder):
    """story.md through SGLang's log alone: 1.6 tokens a round, 56.8 against 90 tok/s."""
    (folder / "s.log").write_text(LOG)
    run = tiny.RUN.replace('"vllm"', '"sglang"').replace('"0.32.0"', '"0.5.9"').replace("[2, 4, 5]", "[1, 3, 4]")
    run = run.replace("steps = 2", "steps = 3") + 'log = "s.log"\nseconds = 10.0\ntokens = 568\n'
    (folder / "case.toml").write_text(tiny.TOML + run + NONE.format(engine="sglang", seconds=10.0))
    return open_case(folder)


def test_the_printed_mean_of_a_log_prices_a_round(folder):
    """1.6 · 90 / 56.8 = 2.535 plain steps at K 3, (2.535 - 1) / 3 = 0.512 a draft."""
    case = sglang_log(folder)
    four, one = only(case, "E004"), only(case, "E013")
    assert "breaks even at accept length 2.54" in four.title and cost.PRINTED in four.evidence
    assert "a round costs 1.00 + 0.512 · K" in one.measured
    assert f"a run (K=3): 2.54 ({cost.PRINTED})" in one.evidence
    assert one.title.startswith("partial: ") and "metrics or answers of 'a run', for its counts" in one.remedy
    assert "--speculative-num-steps" in one.remedy or "nothing pays" in one.title
    row = views.run_rows(case)[0]
    assert (row["measured"], row["why"], row["drafts"]) == (pytest.approx(1.6), cost.PRINTED, None)
    found = views.throughput(case)
    assert found["round_cost"] == pytest.approx(2.535, abs=1e-3) and found["points"][0]["reserved"] == cost.PRINTED
    assert plots.throughput(baseline=found["baseline"], points=found["points"], round_cost=found["round_cost"])


def test_the_baseline_is_the_runs_own_engines(folder):
    """2.07 tokens a round at 40 tok/s: against SGLang's 90 tok/s 4.66 plain steps, against vLLM's 45 it is 2.33."""
    foreign, own = NONE.format(engine="sglang", seconds=10.0), NONE.format(engine="vllm", seconds=20.0)
    timed(folder, (2, 10.0, 400))
    text = (folder / "case.toml").read_text().replace("[training]", "{none}[training]")
    (folder / "case.toml").write_text(text.replace("{none}", foreign))
    four, one = only(case := open_case(folder), "E004"), only(case, "E013")
    says = "against 'none', which ran in sglang, not in vllm"
    assert "a round costs 4.66" in four.measured and says in four.evidence and says in one.evidence
    assert one.title.startswith("partial: ") and "a timed run of vllm without speculation" in one.remedy
    (folder / "case.toml").write_text(text.replace("{none}", foreign + own.replace('"none"', '"mine"')))
    four, one = only(case := open_case(folder), "E004"), only(case, "E013")
    assert "a round costs 2.33" in four.measured and "sglang" not in four.evidence + one.evidence
    assert views.throughput(case)["baseline"] == pytest.approx(45.0)


def test_a_run_of_another_engine_is_not_fitted_with_the_chosen_ones(folder):
    """Both 2.07 tokens a round; SGLang's K 5 would price a draft at 0.628, vLLM's K 2 prices it at 0.535."""
    timed(folder, (2, 10.0, 400), (5, 20.0, 400), (0, 10.0, 400))
    first, second, rest = (folder / "case.toml").read_text().split('engine = "vllm"', 2)
    (folder / "case.toml").write_text(f'{first}engine = "vllm"{second}engine = "sglang"{rest}')
    said = Reports(open_case(folder), EngineReport("vllm", "counters", ("m",), None, 100, 200, 107))
    priced, left = cost.settings(said)
    assert [one.run.name for one in priced] == ["run 0"] and left == ["run 1: it ran in sglang"]
    (one,) = cost.tuning(said)
    assert "a round costs 1.00 + 0.535 · K" in one.measured and "left out: run 1: it ran in sglang" in one.evidence


@pytest.mark.parametrize(
    ("seconds", "ids", "severity", "title", "does"),
    [
        # 53.0 against 53.5 tok/s: 0.99 times
        (53.5 / 53.0, "[2, 4, 5]", Severity.INFO, "as fast as none: ", "no wiring to mend"),
        (53.0 / 53.5, "[2, 4, 5]", Severity.INFO, "as fast as none: ", "no wiring to mend"),
        (1.05, "[2, 4, 5]", Severity.WARN, "1.05 times slower than none", "no wiring to mend"),
        (2.0, "[2, 4, 5]", Severity.WARN, "2.0 times slower than none", "no wiring to mend"),
        (2.0, "[2, 4, 8]", Severity.WARN, "2.0 times slower", "mend the acceptance first: the run's reading differs"),
        (0.95, "[2, 4, 8]", Severity.INFO, "1.05 times faster than none", ""),
    ],
)
def test_as_fast_as_none_and_what_to_do(folder, seconds, ids, severity, title, does):
    timed(folder, (2, 10.0 * seconds, 400), (0, 10.0, 400))
    (folder / "case.toml").write_text((folder / "case.toml").read_text().replace("[2, 4, 5]", ids))
    four = only(open_case(folder), "E004")
    assert four.severity == severity and title in four.title
    assert does in four.remedy and bool(does) == bool(four.remedy)
    assert ("boundaries (2, 4, 8), not (2, 4, 5)" in four.remedy) == (ids == "[2, 4, 8]" and seconds == 2.0)


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("llamacpp", "--spec-draft-n-max 3 (by reading, not run)"),
        ("trtllm", '"max_draft_len": 3'),
        ("lmdeploy", "the lab does not know the flags of lmdeploy"),
    ],
)
def test_the_flags_are_those_of_the_runs_engine(folder, engine, says):
    (folder / "case.toml").write_text(tiny.TOML + tiny.RUN.replace('"vllm"', f'"{engine}"'))
    found = cost.flag_words(open_case(folder), Setting(3))
    assert says in found and "--speculative-" not in found


@pytest.mark.parametrize("spoilt", ["impossible", "simulated"])
def test_the_runs_table_shows_no_figure_that_cannot_be(folder, spoilt):
    flaws = ((Flaw.SIMULATED, "acceptance is made up"),) if spoilt == "simulated" else ()
    case = timed(folder, (2, 10.0, 400), (0, 10.0, 400))
    said = Reports(case, EngineReport("vllm", "counters", ("m",), 2, 100, 200, 107 if flaws else 250, flaws=flaws))
    code = "E023" if flaws else "E021"
    row, base = views.run_rows(said)
    assert row["measured"] is None and row["drafts"] is None and code in row["why"]
    assert row["predicted"] > 1 and not base["why"]
    assert code in tables.runs([row, base]).as_raw_html()
    picture = plots.engine_beside_prediction([row])
    assert code in picture.alt and "– measured" in picture.alt
    with pytest.raises(Blocked, match=code):
        views.throughput(said)
    (one,) = [f for f in serving.check(said) if f.code == "E013"]
    assert one.severity == Severity.UNDETERMINED and code in one.evidence


def test_the_runs_table_predicts_at_the_files_k(folder):
    """case.toml says 2, the counts 1 a round: the prediction, K and the cost are those of 1."""
    case = timed(folder, (2, 10.0, 400), (0, 10.0, 400))
    said = Reports(case, EngineReport("vllm", "log", ("x",), 1, 100, 100, 70, (70,)))
    row = views.run_rows(said)[0]
    one, two = (case.evaluate(case.configured.reading, k).counts.accept_length for k in (1, 2))
    assert row["k"] == 1 and row["measured"] == pytest.approx(1.7)
    assert row["predicted"] == one != two
    found = views.throughput(said)
    assert found["points"][0]["name"] == "run 0" and found["round_cost"] == pytest.approx(1.7)


def test_no_break_even_is_drawn_from_a_round_below_a_plain_step(folder):
    with pytest.raises(Blocked, match="0.52 below one plain step, which no server does"):
        views.throughput(timed(folder, (2, 1.0, 1000), (0, 4.0, 1000)))


def test_the_waterfall_of_a_tiny_case_is_marked_partial(folder):
    one = only(timed(folder, (2, 10.0, 400)), "E010")
    assert one.severity == Severity.INFO and one.title.startswith("partial: from 1.00 (training's accuracies added up")
    assert "2 samples are too few to draw" in one.evidence


def test_a_recording_too_short_for_k_is_said(folder):
    for name in tiny.NAMES:
        tiny.edit(folder / "samples" / f"{name}.safetensors", lambda t: t["loss_mask"][15:].zero_())
    found = gap.explain(case := timed(folder, (5, 10.0, 400)), case.run)
    assert any("too short for draft 3" in text for text in found.missing)


def test_an_engine_that_would_not_run_it_leaves_the_bars_before(folder):
    case = timed(folder, (2, 10.0, 400))
    (folder / "case.toml").write_text((folder / "case.toml").read_text().replace("[2, 4, 5]", "[2, 4, 99]"))
    case = open_case(folder)
    found = gap.explain(case, case.run)
    assert any("would not run" in text or "cannot be evaluated" in text for text in found.missing)
    assert found.bars[-1].kind == "walk"


@pytest.mark.parametrize(
    ("drafted", "positions", "severity"),
    [
        (200, (100, 7), Severity.PASS),
        (190, (), Severity.PASS),
        (100, (), Severity.WARN),
        (200, (9, 5, 1), Severity.WARN),
    ],
)
def test_k_of_the_case_and_of_the_counts(folder, drafted, positions, severity):
    said = EngineReport("vllm", "counters", ("m",), None, 100, drafted, 50, positions)
    (one,) = [f for f in serving.check(Reports(open_case(folder), said)) if f.code == "E012"]
    assert one.severity == severity
    assert "case.toml steps 2, counters drafted / rounds" in one.measured


def test_draft_tokens_of_a_chain_cut_its_steps(folder):
    """faults.md: steps 2, topk 1, draft tokens 2: SGLang needs steps + 1, so one draft is cut."""
    run = tiny.RUN.replace('"vllm"', '"sglang"').replace('"0.32.0"', '"0.5.9"').replace("[2, 4, 5]", "[1, 3, 4]")
    (folder / "case.toml").write_text(tiny.TOML + run + "topk = 1\ndraft_tokens = 2\n")
    one = only(open_case(folder), "E012")
    assert one.severity == Severity.WARN and "draft_tokens less the root 1" in one.measured
    from eagle3lab.checks.cost import effective_steps

    assert effective_steps(open_case(folder).run) == 1


def test_a_printed_mean_is_taken_where_there_are_no_counts(folder):
    said = EngineReport("sglang", "log", ("x.log",), reported_length=1.6)
    case = Reports(open_case(folder), said)
    found = gap.explain(case, case.run)
    assert found.bars[-1].kind == "rest" and found.bars[-1].end == 1.6
    assert found.ends == "the engine's own figure (log, a mean without counts)"


def test_without_any_figure_of_the_engine_the_bars_end_with_the_prediction(folder):
    case = Reports(open_case(folder))
    found = gap.explain(case, case.run)
    assert "the engine gave no accept length" in "; ".join(found.missing)
    assert found.ends == "the prediction for this run, K=2"


@pytest.mark.parametrize("steps", [1, 60])
def test_the_prediction_is_made_at_the_files_k(folder, steps):
    (folder / "case.toml").write_text(
        tiny.TOML + tiny.RUN.replace("steps = 2", f"steps = {steps}") + "[training]\naccuracy = [0.7]\n"
    )
    for said in (
        EngineReport("vllm", "log", ("x.log",), 5, 100, 500, 107, (50, 30, 15, 10, 2)),
        EngineReport("sglang", "log", ("x.log",), 5, 100, 500, 107),
    ):
        case = Reports(open_case(folder), said)
        found = gap.explain(case, case.run)
        assert found.bars[0].start == pytest.approx(3.5)  # 0.7 five times
        by_code = {f.code: f for f in serving.check(case)}
        assert "K=5;" in by_code["E001"].evidence
        reading = case.configured.reading
        assert f"predicted {case.evaluate(reading, 5).length.value:.3f} " in by_code["E001"].measured
        # one figure of training for every draft, in both: 1 + 0.7 + 0.49 + 0.343 + 0.2401 + 0.16807 = 2.941
        assert "accept length 2.94 at K=5" in by_code["E007"].title
        assert "one figure taken for every draft" in by_code["E007"].evidence
        assert "one figure taken for every draft" in by_code["E010"].title


@pytest.mark.parametrize("spoilt", ["impossible", "simulated"])
def test_a_figure_that_cannot_be_is_compared_with_nothing(folder, spoilt):
    flaws = ((Flaw.SIMULATED, "acceptance is made up"),) if spoilt == "simulated" else ()
    said = EngineReport("vllm", "counters", ("m",), 2, 100, 200, 107 if flaws else 250, flaws=flaws)
    case = Reports(open_case(folder), said)
    found = gap.explain(case, case.run)
    assert "rest" not in [bar.kind for bar in found.bars]
    assert any(text.startswith("NOT COMPARABLE with the engine's figure: ") for text in found.missing)
    by_code = {f.code: f for f in serving.check(case)}
    assert by_code["E001"].severity == Severity.NOT_COMPARABLE
    assert ("E023" if flaws else "E021") in by_code["E001"].title and "partial: " in by_code["E001"].title
    assert by_code["E010"].title.startswith("partial: ")


def test_a_round_cheaper_than_a_plain_step_is_said_and_nothing_recommended(folder):
    """2.07 tokens a round at 4 times the plain speed: 0.52 plain steps a round, (0.52 - 1) / 2 = -0.24 a draft."""
    case = timed(folder, (2, 1.0, 1000), (0, 4.0, 1000))
    one = only(case, "E013")
    assert one.severity == Severity.UNDETERMINED and "below one plain step, which no server does" in one.title
    assert "pays most" not in one.title and "b = -0.24 below 0" in one.evidence
    four = only(case, "E004")
    assert four.severity == Severity.WARN and "more than its accept length 2.07" in four.title


def test_the_largest_loss_leaves_the_arithmetic_bars_out_and_says_so(folder):
    toml = tiny.TOML + tiny.RUN + "[training]\naccuracy = [1.0, 1.0]\n"
    (folder / "case.toml").write_text(toml)
    title = only(open_case(folder), "E010").title
    assert "most is lost to other texts" in title and title.endswith("the two arithmetic bars not counted")
