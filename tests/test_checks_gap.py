"""E010 … E013 through files: an engine's dump damaged in every way, timed runs, K that disagrees, input that is bad."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tiny
import torch
from safetensors.torch import save_file
from test_checks import PROM, Reports
from torch import Tensor

from eagle3lab import open_case, views
from eagle3lab.checks import gap, serving
from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.errors import Blocked
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
    assert case.unused == ()
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
    assert not [f for f in timed(folder, (2, 10.0, 400)).findings("serving") if f.code == "E013"]


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
