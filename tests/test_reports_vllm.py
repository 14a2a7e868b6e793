"""vLLM's reports: the demo's real files against its README, published counters, and hostile input."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.checks.figures import contradictions
from eagle3lab.checks.reports import check
from eagle3lab.counts import EngineReport, Flaw, ServingRun
from eagle3lab.dialects.vllm.reports import read_reports
from eagle3lab.errors import BadFile
from eagle3lab.gap import length_from_accuracy

ENGINE = Path(__file__).parents[1] / "data/demo/engine"

# The table "What vLLM measured on the same prompts" of the demo's README: drafts, accepted, accept length,
# cumulative per position (4 decimals); ids from the commands beside the logs.
TABLE = {
    "wrong_k5": (5, 1170, 2, 1.0017, (0.0017, 0, 0, 0, 0), (15, 27, 30)),
    "right_k5": (5, 539, 647, 2.2004, (0.5696, 0.2987, 0.1725, 0.0983, 0.0612), (0, 15, 27)),
    "right_k3": (3, 568, 615, 2.0827, (0.5775, 0.3116, 0.1937), (0, 15, 27)),
    "plus1_k5": (5, 1160, 13, 1.0112, (0.0112, 0, 0, 0, 0), (1, 16, 28)),
}
RUNS = [*TABLE, "none"]


def demo_reports(run: str, root: Path = ENGINE) -> dict[str, EngineReport]:
    reports = read_reports(
        root,
        log=f"{run}_serve.log",
        metrics=[f"{run}_metrics_before.prom", f"{run}_metrics.prom"],
        responses=f"{run}_responses.jsonl",
    )
    return {r.source: r for r in reports}


def words(report: EngineReport) -> list[str]:
    return [*report.notes, *report.remarks, *(text for _, text in report.flaws)]


def said(report: EngineReport, part: str) -> bool:
    return any(part in note for note in words(report))


def partial(report: EngineReport) -> list[str]:
    return [note for note in words(report) if note.startswith("partial:")]


def spec_line(
    accepted: object, drafted: object, rates: str, mean: object = "nan", prefix: str = "(APIServer pid=7)"
) -> str:
    """A line in the format of vllm_measured.md 4; throughputs are not read."""
    return (
        f"{prefix} INFO 11-29 16:32:30 [metrics.py:120] SpecDecoding metrics: "
        f"Mean acceptance length: {mean}, "
        "Accepted throughput: 23.38 tokens/s, Drafted throughput: 64.54 tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
        f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: 36.2%\n"
    )


def status_line(running: int, rate: float, prefix: str = "(APIServer pid=7)") -> str:
    return (
        f"{prefix} INFO 11-29 16:32:30 [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        f"Avg generation throughput: {rate} tokens/s, Running: {running} reqs, Waiting: 0 reqs, "
        "CPU KV cache usage: 0.0%\n"
    )


def start_line(config: str, prefix: str = "(APIServer pid=7)") -> str:
    return f"{prefix} INFO 11-29 16:30:00 [api_utils.py:286] non-default args: {{'model': 'target'{config}}}\n"


def eagle3(steps: int, more: str = "") -> str:
    return f", 'speculative_config': {{'method': 'eagle3', 'num_speculative_tokens': {steps}{more}}}"


def from_log(folder: Path, *lines: str, steps: int | None = None) -> EngineReport:
    (folder / "serve.log").write_text("".join(lines))
    (report,) = read_reports(folder, log="serve.log", steps=steps)
    return report


def prom(
    drafts: object,
    drafted: object,
    accepted: object,
    positions: tuple,
    engine: int = 0,
    made: float = 1e9,
    output: int | None = None,
):
    labels = f'engine="{engine}",model_name="m"'
    text = "" if output is None else f"vllm:generation_tokens_total{{{labels}}} {output}\n"
    for name, value in (("drafts", drafts), ("draft_tokens", drafted), ("accepted_tokens", accepted)):
        text += f"# TYPE vllm:spec_decode_num_{name}_total counter\n"
        text += f"vllm:spec_decode_num_{name}_total{{{labels}}} {value}\n"
        text += f"# TYPE vllm:spec_decode_num_{name}_created gauge\n"
        text += f"vllm:spec_decode_num_{name}_created{{{labels}}} {made}\n"
    text += "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter\n"
    for j, value in enumerate(positions):
        text += f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{j}"}} {value}\n'
    return text


def from_counters(folder: Path, *texts: str, steps: int | None = None) -> EngineReport:
    names = [f"{i}.prom" for i in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_text(text)
    (report,) = read_reports(folder, metrics=names, steps=steps)
    return report


# ---- the demo's files against its README


@pytest.mark.parametrize("source", ["counters", "responses", "log"])
@pytest.mark.parametrize("run", TABLE)
def test_demo_counts_are_the_readmes(run: str, source: str) -> None:
    steps, drafts, accepted, length, cumulative, _ = TABLE[run]
    report = demo_reports(run)[source]
    assert (report.engine, report.steps, report.drafts, report.accepted) == ("vllm", steps, drafts, accepted)
    assert report.drafted == drafts * steps
    assert report.accept_length == pytest.approx(length, abs=5e-5)
    assert report.cumulative == pytest.approx(cumulative, abs=5e-5)
    assert sum(report.per_position) == accepted
    assert not partial(report)


@pytest.mark.parametrize("run", RUNS)
def test_best_evidence_comes_first_and_names_its_files(run: str) -> None:
    reports = read_reports(
        ENGINE.parent,
        f"engine/{run}_serve.log",
        [f"engine/{run}_metrics_before.prom", f"engine/{run}_metrics.prom"],
        f"engine/{run}_responses.jsonl",
    )
    assert [r.source for r in reports] == ["counters", "responses", "log"]
    assert reports[0].files == (f"engine/{run}_metrics_before.prom", f"engine/{run}_metrics.prom")
    assert reports[2].files == (f"engine/{run}_serve.log",)


@pytest.mark.parametrize("run", RUNS)
def test_demo_logs_name_version_and_layers(run: str) -> None:
    report = demo_reports(run)["log"]
    assert report.version == "0.32.0"
    assert report.ids == (TABLE[run][5] if run in TABLE else ())
    command = (ENGINE / f"{run}_cmd.txt").read_text()
    in_command = re.search(r"layer_ids = \[([\d, ]+)\]", command)
    assert list(report.ids) == ([int(i) for i in in_command[1].split(",")] if in_command else [])
    assert said(report, "Sharing target model embedding weights") == (run in TABLE)


@pytest.mark.parametrize("run", TABLE)
def test_demo_responses_hold_every_step_of_every_request(run: str) -> None:
    steps, drafts, accepted, *_ = TABLE[run]
    report = demo_reports(run)["responses"]
    rows = [json.loads(line) for line in (ENGINE / f"{run}_responses.jsonl").read_text().splitlines()]
    assert len(report.requests) == len(rows) == 16
    for request, row in zip(report.requests, rows, strict=True):
        raw = row["metrics"]["speculative_decoding"]
        assert len(request.accepted) == len(request.drafted) == raw["num_spec_steps"]
        assert set(request.drafted) == {steps}
        assert [request.accepted.count(j) for j in range(steps + 1)] == raw["acceptance_histogram"]
        assert len(request.token_ids) == row["usage"]["completion_tokens"]
        assert len(request.prompt_ids) == row["usage"]["prompt_tokens"]
        assert request.finish in ("stop", "length")
    assert sum(len(r.accepted) for r in report.requests) == drafts
    assert sum(sum(r.accepted) for r in report.requests) == accepted


def test_a_run_without_speculation_is_no_error() -> None:
    reports = demo_reports("none")
    assert all(r.drafts is None and r.accept_length is None and r.steps is None for r in reports.values())
    assert all(said(r, "did not speculate") for r in reports.values())
    tokens = [r.token_ids for r in reports["responses"].requests]
    assert tokens == [r.token_ids for r in demo_reports("right_k5")["responses"].requests]  # README: same tokens
    assert reports["log"].throughput == (45.7, 56.1)  # its two status lines with running requests


def test_throughput_is_of_intervals_with_running_requests() -> None:
    assert demo_reports("right_k5")["log"].throughput == (49.5, 52.3)


def test_a_log_that_ends_early_loses_its_last_interval(tmp_path: Path) -> None:
    lines = (ENGINE / "right_k5_serve.log").read_text().splitlines(keepends=True)
    ticks = [i for i, line in enumerate(lines) if "SpecDecoding metrics" in line]
    report = from_log(tmp_path, *lines[: ticks[-1] - 1])
    full = demo_reports("right_k5")["counters"]
    assert report.drafts == (1065 + 1320) // 5 < full.drafts
    assert report.accepted == 320 + 255 < full.accepted
    assert all(part <= whole for part, whole in zip(report.per_position, full.per_position, strict=True))
    assert "4 requests were still running" in partial(report)[0]


def test_even_a_whole_log_says_that_its_end_is_not_printed() -> None:
    # The demo's servers were idle when they were stopped: nothing is lost, but a log cannot prove it.
    assert said(demo_reports("right_k5")["log"], "never printed")


# ---- published numbers

PUBLISHED = [  # faults.md section I: drafts, accepted, draft tokens, K, output, 1 + accepted/drafts, reported, excess
    ("vllm #26191", 4816, 12208, 33712, 7, 16990, 3.535, 3.53, 34),
    ("vllm #27732 after", 99407, 148350, 298221, 3, 247681, 2.492, 2.49, 76),
    ("vllm #24243", 43221, 63669, 259326, 6, 106678, 2.473, 2.47, 212),
    ("vllm-ascend #7038 after", 65, 136, 260, 4, 200, 3.092, 3.09, 1),
    ("vllm-ascend #12886 run 1", 141, 458, 2115, 15, None, 4.248, 4.248, None),
    ("llama.cpp #24536", 87, 167, 259, 3, 256, 2.920, 2.92, -2),
]


@pytest.mark.parametrize(
    ("thread", "drafts", "accepted", "drafted", "steps", "output", "exact", "reported", "excess"), PUBLISHED
)
def test_published_counters(
    tmp_path: Path,
    thread: str,
    drafts: int,
    accepted: int,
    drafted: int,
    steps: int,
    output: int | None,
    exact: float,
    reported: float,
    excess: int | None,
) -> None:
    text = prom(float(drafts), float(drafted), float(accepted), (), output=output)
    report = from_counters(tmp_path, text, steps=steps)
    assert (report.drafts, report.accepted, report.drafted, report.steps) == (drafts, accepted, drafted, steps)
    assert report.accept_length == pytest.approx(exact, abs=5e-4)
    assert report.accept_length == pytest.approx(reported, abs=5e-3)
    assert said(report, "totals since the server started")
    assert not contradictions(report)
    run = ServingRun("a run", "vllm", steps=steps)
    found = {f.code: f for f in check(SimpleNamespace(run=run, reports=lambda run: [report]))}
    if excess is None:
        assert "E026" not in found
    else:
        assert f"tokens out = {excess:+d}" in found["E026"].measured
    assert f"1 + {accepted} accepted / {drafts} rounds" in found["E020"].measured


def test_conditional_rates_are_ratios_of_neighbours(tmp_path: Path) -> None:
    # speculators #613 in faults.md I: 0.843/0.452/0.201/0.116 cumulative, 0.843/0.536/0.445/0.577 conditional
    report = from_counters(tmp_path, prom(1000, 4000, 1612, (843, 452, 201, 116)))
    assert report.conditional == pytest.approx((0.843, 0.536, 0.445, 0.577), abs=5e-4)
    assert report.cumulative == pytest.approx((0.843, 0.452, 0.201, 0.116))


@pytest.mark.parametrize(("rates", "length"), [((0.388, 0.337, 0.315), 0.560), ((0.406, 0.356, 0.346), 0.601)])
def test_the_published_lengths_without_the_bonus(rates: tuple, length: float) -> None:
    # speculators #788: conditional rates, bonus excluded (reported 0.559 and 0.601)
    assert length_from_accuracy(rates) - 1 == pytest.approx(length, abs=5e-4)


@pytest.mark.parametrize(
    ("rates", "length", "within"),
    [  # faults.md section I: unconditional rates, their sum + 1 as reported, rounding of the report
        ((0.77, 0.55, 0.38, 0.29), 2.99, 1e-9),
        ((0.5858, 0.2991, 0.1491, 0.0790, 0.0423), 2.156, 1e-3),
        ((0.74, 0.51, 0.43, 0.42), 3.09, 1e-2 + 1e-9),
        ((0.805, 0.632, 0.483), 2.920, 1e-9),
    ],
)
def test_published_rates_add_up(tmp_path: Path, rates: tuple, length: float, within: float) -> None:
    counts = tuple(round(10_000 * r) for r in rates)
    report = from_counters(tmp_path, prom(10_000, 10_000 * len(rates), sum(counts), counts))
    assert report.cumulative == pytest.approx(rates)
    assert report.accept_length == pytest.approx(length, abs=within)
    assert report.steps == len(rates)
    assert not partial(report)


@pytest.mark.parametrize(
    ("accepted", "drafted", "rates", "mean"),
    [
        (288, 795, "0.558, 0.325, 0.204", "2.09"),  # vllm_measured.md 4
        (626, 1062, "0.802, 0.551, 0.415", "2.77"),  # engines.md 7.2
    ],
)
def test_a_printed_line_determines_its_counts(
    tmp_path: Path, accepted: int, drafted: int, rates: str, mean: str
) -> None:
    report = from_log(tmp_path, spec_line(accepted, drafted, rates, mean))
    assert (report.steps, report.drafts) == (3, drafted // 3)
    assert sum(report.per_position) == accepted
    assert [f"{r:.3f}" for r in report.cumulative] == rates.split(", ")
    assert f"{report.accept_length:.2f}" == mean


def test_the_field_order_of_older_releases(tmp_path: Path) -> None:
    line = (
        "INFO 06-06 14:20:34 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 36.2%, "
        "Mean acceptance length: 2.09, Accepted: 288 tokens, Drafted: 795 tokens, "
        "Per-position acceptance rate: 0.558, 0.325, 0.204\n"
    )
    report = from_log(tmp_path, line)
    assert (report.drafts, report.accepted, report.steps) == (265, 288, 3)
    assert not partial(report)


def test_drafts_cut_short_are_not_divided(tmp_path: Path) -> None:
    # llama.cpp #24536: 259 tokens in 87 drafts of at most 3. Drafted / K would be 86.33.
    report = from_log(tmp_path, spec_line(167, 259, "0.805, 0.632, 0.483", "2.92"))
    assert report.drafts is None
    assert report.accept_length is None
    assert report.accepted == 167
    assert report.reported_length == pytest.approx(2.92)
    assert said(report, "drafts unknown")


@pytest.mark.parametrize(
    "line",
    [
        # 90 drafts, some short: 258 tokens look like 86 whole rounds, the printed 1 + 167/90 says otherwise.
        spec_line(167, 258, "0.778, 0.611, 0.467", "2.86"),
        "SpecDecoding metrics: Draft acceptance rate: 28.6%, Accepted: 2 tokens, Drafted: 7 tokens\n",
    ],
)
def test_drafts_are_not_divided_against_the_evidence(tmp_path: Path, line: str) -> None:
    assert from_log(tmp_path, line, steps=3).drafts is None


def test_busy_intervals_do_not_determine_positions(tmp_path: Path) -> None:
    # 2,000 rounds: 999.5 to 1,000.5 all print as 0.500.
    report = from_log(tmp_path, spec_line(1500, 4000, "0.500, 0.250", "1.75"))
    assert report.drafts == 2000
    assert report.accept_length == pytest.approx(1.75)
    assert report.per_position == ()
    assert said(report, "do not determine them")


def test_rates_that_contradict_the_sum_give_no_positions(tmp_path: Path) -> None:
    report = from_log(tmp_path, spec_line(288, 795, "0.558, 0.325, 0.200", "2.09"))
    assert report.drafts == 265
    assert report.per_position == ()


# ---- counters


def test_counters_are_summed_over_engines_and_differenced(tmp_path: Path) -> None:
    before = prom(10, 20, 6, (5, 1)) + prom(100, 200, 50, (40, 10), engine=1)
    after = prom(30, 60, 20, (15, 5)) + prom(150, 300, 80, (60, 20), engine=1)
    report = from_counters(tmp_path, before, after)
    assert (report.drafts, report.drafted, report.accepted) == (70, 140, 44)
    assert report.per_position == (30, 14)
    assert report.notes == ()


def test_counters_that_fell_are_a_restart(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"1\.prom: .*found 3; expected at least 10 as in 0\.prom; the server restart"):
        from_counters(tmp_path, prom(10, 20, 6, (5, 1)), prom(3, 60, 20, (15, 5)))


def test_counters_that_outgrew_a_restart_are_caught_by_their_creation(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="num_drafts_created.*restarted after 0"):
        from_counters(tmp_path, prom(10, 20, 6, (5, 1)), prom(30, 60, 20, (15, 5), made=1.1e9))


def test_swapped_files_are_refused() -> None:
    with pytest.raises(BadFile, match="swapped"):
        read_reports(ENGINE, metrics=["right_k5_metrics.prom", "right_k5_metrics_before.prom"])


def test_two_runs_metrics_are_refused() -> None:
    with pytest.raises(BadFile, match="found nothing"):
        read_reports(ENGINE, metrics=["right_k5_metrics.prom", "none_metrics.prom"])


def test_one_metrics_file_gives_totals() -> None:
    (report,) = read_reports(ENGINE, metrics=["right_k5_metrics.prom"])
    assert report.drafts == TABLE["right_k5"][1]
    assert said(report, "totals since the server started")


def test_an_idle_server_has_no_length() -> None:
    (report,) = read_reports(ENGINE, metrics=["right_k5_metrics_before.prom"])
    assert report.drafts == 0
    assert report.accept_length is None
    assert said(report, "did not move")


def test_the_cases_k_is_checked() -> None:
    for report in read_reports(
        ENGINE, "right_k3_serve.log", ["right_k3_metrics.prom"], "right_k3_responses.jsonl", steps=5
    ):
        assert report.steps == 3
        assert said(report, "the case says 5 draft tokens a round, this file says 3")


def test_counters_of_another_engine_are_a_note(tmp_path: Path) -> None:
    report = from_counters(tmp_path, 'sglang:num_running_reqs{model_name="m"} 1.0\n')
    assert report.drafts is None
    assert said(report, "SGLang's")


def test_counters_that_contradict_each_other_are_found(tmp_path: Path) -> None:
    found = contradictions(from_counters(tmp_path, prom(10, 20, 9, (3, 5))))
    assert "add up to 8, accepted says 9" in found[0]
    assert "do not fall" in found[1]


# ---- llm.get_metrics(), printed or as JSON

COUNTERS = {  # of the demo's right_k5 (README)
    "vllm:spec_decode_num_drafts": 539,
    "vllm:spec_decode_num_draft_tokens": 2695,
    "vllm:spec_decode_num_accepted_tokens": 647,
    "vllm:spec_decode_num_accepted_tokens_per_pos": [307, 161, 93, 53, 33],
}
LABELS = {"engine": "0", "model_name": "smollm2-135m"}


def as_repr(**more: object) -> str:
    """``print(llm.get_metrics())``: the dataclasses' own repr (reader.py at 08b782b)."""
    parts = [f"Gauge(name='vllm:num_requests_running', labels={LABELS}, value=0.0)"]
    for name, value in {**COUNTERS, **more}.items():
        kind = f"Vector(name={name!r}, labels={LABELS}, values={value})" if isinstance(value, list) else \
            f"Counter(name={name!r}, labels={LABELS}, value={value})"  # fmt: skip
        parts.append(kind)
    parts.append(f"Histogram(name='vllm:ttft', labels={LABELS}, count=1, sum=0.5, buckets={{'+Inf': 1}})")
    return "[" + ", ".join(parts) + "]\n"


def as_json() -> str:
    """``json.dump([dataclasses.asdict(m) for m in llm.get_metrics()])``."""
    rows = [
        {"name": n, "labels": LABELS, ("values" if isinstance(v, list) else "value"): v} for n, v in COUNTERS.items()
    ]
    return json.dumps([*rows, {"name": "vllm:ttft", "labels": LABELS, "count": 1, "sum": 0.5, "buckets": {}}], indent=1)


@pytest.mark.parametrize(
    "text", [as_repr(), as_repr().strip("[]\n").replace("), ", ")\n"), as_json(), json.dumps(COUNTERS)]
)
def test_a_dump_of_get_metrics_is_as_good_as_prometheus(tmp_path: Path, text: str) -> None:
    report = from_counters(tmp_path, text)
    assert (report.drafts, report.drafted, report.accepted, report.steps) == (539, 2695, 647, 5)
    assert report.per_position == (307, 161, 93, 53, 33)
    assert report.accept_length == pytest.approx(2.2004, abs=5e-5)


def test_dumps_before_and_after_are_differenced(tmp_path: Path) -> None:
    later = {n: [2 * x for x in v] if isinstance(v, list) else 2 * v for n, v in COUNTERS.items()}
    report = from_counters(tmp_path, as_repr(), as_repr(**later))
    assert (report.drafts, report.accepted, report.per_position) == (539, 647, (307, 161, 93, 53, 33))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (as_repr()[:-260], "cut short"),
        ("[" + as_repr().split("Counter")[0] + "]", "disable_log_stats=False"),
        (as_json()[:-9], "no valid JSON"),
        ('[{"name": "vllm:spec_decode_num_drafts", "value": "x"}]', "found 'x'; expected a count"),
    ],
)
def test_dumps_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        from_counters(tmp_path, text)


def test_the_offline_examples_own_summary(tmp_path: Path) -> None:
    # examples/offline_inference/spec_decode.py; the numbers of vllm #26191 (faults.md I)
    text = "total_num_output_tokens: 16990\nnum_drafts: 4816\nnum_draft_tokens: 33712\nnum_accepted_tokens: 12208\n"
    report = from_log(tmp_path, "-" * 50 + "\n", text, "mean acceptance length: 3.53\n")
    assert (report.drafts, report.drafted, report.accepted, report.steps, report.output) == (
        4816,
        33712,
        12208,
        7,
        16990,
    )
    assert report.accept_length == pytest.approx(3.535, abs=5e-4)


def test_offline_requests_one_dict_a_line(tmp_path: Path) -> None:
    rows = [
        {**STATS, "acceptance_histogram": [2, 1, 1], "per_step_accepted": [0, 0, 1, 2], "per_step_drafted": [2] * 4}
    ]
    report = from_responses(tmp_path, *(json.dumps(row) + "\n" for row in rows * 2))
    assert (report.drafts, report.accepted, report.answered) == (8, 6, 2)
    assert report.requests[0].accepted == (0, 0, 1, 2)


def test_requests_whose_rate_is_not_that_of_their_counts(tmp_path: Path) -> None:
    good = {**STATS, "mean_acceptance_length": 1.75, "draft_acceptance_rate": 0.375}
    assert not from_responses(tmp_path, completion(good)).flaws
    bad = from_responses(tmp_path, completion({**good, "mean_acceptance_length": 2.75}))
    assert [flaw for flaw, _ in bad.flaws] == [Flaw.DISAGREES]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html><body>404</body></html>\n", r"line 1: found '<html>.*expected Prometheus text.*curl"),
        ('{"detail":"Not Found"}', "line 1: found"),
        ("", "found no sample"),
        ("# HELP only a comment\n", "found no sample"),
        ("a 1\n" + prom(1, 5, 0, (0,))[:200], "line 5: found"),
        (prom("NaN", 20, 6, (5, 1)), "found nan; expected a count"),
        (prom(-1, 20, 6, (5, 1)), "found -1"),
        (
            'vllm:spec_decode_num_drafts 1\nvllm:spec_decode_num_accepted_tokens_per_pos{position="x"} 1\n',
            "'x'",
        ),
    ],
)
def test_unreadable_metrics(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        from_counters(tmp_path, text)


# ---- responses


def completion(stats: object, **more: object) -> str:
    choice = {"index": 0, "finish_reason": "stop", "token_ids": [3, 4], "message": {}}
    row = {"object": "chat.completion", "choices": [choice], "prompt_token_ids": [1, 2]}
    return json.dumps({**row, "metrics": {"speculative_decoding": stats}, **more}) + "\n"


STATS = {"num_spec_steps": 4, "num_accepted_draft_tokens": 3, "num_draft_tokens": 8, "num_spec_tokens": 2}


def from_responses(folder: Path, *lines: str) -> EngineReport:
    (folder / "r.jsonl").write_text("".join(lines))
    (report,) = read_reports(folder, responses="r.jsonl")
    return report


@pytest.mark.parametrize("bins", [[2, 1, 1], {"0": 2, "1": 1, "2": 1}])
def test_summary_metrics_give_positions_but_no_steps(tmp_path: Path, bins: object) -> None:
    report = from_responses(tmp_path, completion({**STATS, "acceptance_histogram": bins}))
    assert (report.drafts, report.accepted, report.drafted, report.steps) == (4, 3, 8, 2)
    assert report.per_position == (2, 1)  # at least 1: 1 + 1 rounds, at least 2: 1 round
    assert report.requests[0].accepted == ()
    assert said(report, "no per-step counts")


def test_a_histogram_that_contradicts_its_sums_is_not_used(tmp_path: Path) -> None:
    report = from_responses(tmp_path, completion({**STATS, "acceptance_histogram": [2, 1, 0]}))
    assert (report.drafts, report.accepted, report.per_position) == (4, 3, ())
    assert said(report, "no per-position counts")


def test_errors_and_missing_metrics_make_it_partial(tmp_path: Path) -> None:
    good = completion({**STATS, "acceptance_histogram": [2, 1, 1]})
    bad = [
        json.dumps({"error": {"message": "too long"}}) + "\n",
        json.dumps({"choices": 7}) + "\n",
        completion(None),
    ]
    report = from_responses(tmp_path, good, *bad)
    assert report.drafts == 4
    assert len(report.requests) == 2
    assert any("2 of 4 lines are no completion" in note for note in partial(report))
    assert any("1 of 2 responses have no metrics" in note for note in partial(report))


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    good = completion({**STATS, "acceptance_histogram": [2, 1, 1]})
    report = from_responses(tmp_path, good, good[: len(good) // 2])
    assert report.drafts == 4
    assert "last line (2) is cut" in partial(report)[0]


def test_responses_of_two_settings_are_a_mixture(tmp_path: Path) -> None:
    report = from_responses(
        tmp_path, completion(STATS), completion({**STATS, "num_spec_tokens": 5, "num_draft_tokens": 20})
    )
    assert report.steps is None
    assert any("K differs" in note for note in partial(report))


def test_several_choices_are_counted_and_not_paired(tmp_path: Path) -> None:
    choices = [{"index": i, "token_ids": [i], "finish_reason": "stop"} for i in range(2)]
    report = from_responses(tmp_path, completion(STATS, choices=choices))
    assert report.drafts == 4
    assert report.requests[0].token_ids == ()
    assert said(report, "several choices")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found no line"),
        ("not json\n{}\n", "line 1: found 'not json'.*expected a chat completion"),
        ("[1, 2]\n", "line 1: found"),
        ("null\n", "line 1: found None"),
        ("{\n" * 9, "and 4 more"),
        (completion(STATS) + "{\n", "line 2: found"),
    ],
)
def test_unreadable_responses(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadFile, match=re.compile(message, re.DOTALL)):
        from_responses(tmp_path, text)


# ---- logs


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        (
            "[gpu_model_runner.py:5243] Using auxiliary layers from speculative config: (0, 15, 27)",
            (0, 15, 27),
        ),
        ("[eagle3_utils.py:28] Using Eagle3 auxiliary layers from config: (6, 15, 25)", (6, 15, 25)),
        ("[eagle3_utils.py:28] Using Eagle3 auxiliary layers from model: (2, 30, 58)", (2, 30, 58)),
        ("[eagle3_utils.py:28] Using Eagle3 auxiliary layers from config: [37, 38, 39]", (37, 38, 39)),
        ("[eagle3_utils.py:28] Using Eagle3 auxiliary layers from config: (-1,)", (-1,)),
        ("[eagle3_utils.py:28] Using Eagle3 auxiliary layers from config: (6, 15, 2", ()),
    ],
)
def test_layer_ids_of_both_runners(tmp_path: Path, line: str, ids: tuple) -> None:
    worker = f"(Worker pid=9) INFO 11-29 16:46:18 {line}\n"
    report = from_log(tmp_path, start_line(eagle3(3)), worker, worker)
    assert report.ids == ids
    assert not said(report, "several sets")
    assert said(report, "no line names the layer ids") == (not ids)


def test_unsorted_ids_are_given_as_printed_with_a_warning(tmp_path: Path) -> None:
    # vllm_measured.md 2: [30, 15, 27] prints as configured and gives exactly the numbers of [15, 27, 30].
    line = "INFO [gpu_model_runner.py:5243] Using auxiliary layers from speculative config: (30, 15, 27)\n"
    report = from_log(tmp_path, line)
    assert report.ids == (30, 15, 27)
    assert said(report, "captures them sorted")


def test_another_method_is_said(tmp_path: Path) -> None:
    config = ", 'speculative_config': {'method': 'ngram', 'num_speculative_tokens': 3}"
    assert said(from_log(tmp_path, start_line(config)), "method is ngram, not eagle3")
    assert not said(demo_reports("right_k5")["log"], "not eagle3")


def test_synthetic_acceptance_is_said(tmp_path: Path) -> None:
    config = eagle3(3, ", 'rejection_sample_method': 'synthetic', 'synthetic_acceptance_length': 2.5")
    report = from_log(tmp_path, start_line(config), spec_line(288, 795, "0.558, 0.325, 0.204", "2.09"))
    assert said(report, "synthetic: acceptance is made up")
    assert not said(demo_reports("right_k5")["log"], "made up")


def test_nan_rates_count_as_nothing(tmp_path: Path) -> None:
    idle = spec_line(0, 0, "nan, nan, nan", "nan")
    report = from_log(tmp_path, idle, spec_line(288, 795, "0.558, 0.325, 0.204", "2.09"), idle)
    assert (report.drafts, report.accepted) == (265, 288)
    assert sum(report.per_position) == 288
    assert said(report, "count as zero")


def test_lines_of_a_server_that_never_drafted(tmp_path: Path) -> None:
    # Early 0.8 releases printed this without speculation.
    line = "SpecDecoding metrics: Draft acceptance rate: nan%, Accepted: 0 tokens, Drafted: 0 tokens\n"
    report = from_log(tmp_path, line * 3)
    assert (report.drafts, report.accepted) == (0, 0)
    assert report.accept_length is None


@pytest.mark.parametrize("at", ["Accepted: 2", "Drafted: 7", "Per-position acceptance rate: 0.558, 0.3"])
def test_lines_cut_mid_line_are_partial(tmp_path: Path, at: str) -> None:
    whole = spec_line(288, 795, "0.558, 0.325, 0.204", "2.09")
    report = from_log(tmp_path, start_line(eagle3(3)), whole, whole[: whole.index(at) + len(at)])
    assert any("lines 3" in note for note in partial(report))
    if "position" in at:  # the counts stand before the cut
        assert (report.drafts, report.accepted, report.per_position) == (530, 576, ())
    else:
        assert (report.drafts, report.accepted) == (265, 288)


def test_a_whole_rate_before_the_cut_is_no_smaller_k(tmp_path: Path) -> None:
    whole = spec_line(288, 795, "0.558, 0.325, 0.204", "2.09")
    report = from_log(tmp_path, whole, whole[: whole.index("0.325") + 5] + "\n")
    assert report.steps == 3
    assert report.drafts == 530


def test_k_that_changes_makes_it_partial(tmp_path: Path) -> None:
    report = from_log(
        tmp_path,
        spec_line(288, 795, "0.558, 0.325, 0.204", "2.09"),
        spec_line(20, 100, "0.300, 0.100", "1.40"),
    )
    assert report.steps is None
    assert (report.drafts, report.accepted, report.per_position) == (265 + 50, 308, ())
    assert "K changes" in partial(report)[0]


def test_of_several_servers_the_last_that_speculated_counts(tmp_path: Path) -> None:
    line = spec_line(288, 795, "0.558, 0.325, 0.204", "2.09")
    other = spec_line(20, 100, "0.300, 0.100", "1.40", prefix="(APIServer pid=8)")
    report = from_log(tmp_path, line, other)
    assert (report.drafts, report.steps) == (50, 2)
    assert "2 servers in one log (pids 7, 8)" in partial(report)[0]
    report = from_log(tmp_path, start_line(eagle3(3)), line, start_line(eagle3(3)), line, start_line(""))
    assert report.drafts == 265  # a container restarts under the same pid
    assert "3 servers" in partial(report)[0]


def test_api_processes_of_one_server_are_summed(tmp_path: Path) -> None:
    lines = [
        spec_line(288, 795, "0.558, 0.325, 0.204", "2.09", prefix=f"(ApiServer_{i} pid={i + 70})") for i in range(3)
    ]
    report = from_log(tmp_path, start_line(eagle3(3)), *lines)
    assert report.drafts == 3 * 265
    assert not partial(report)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "the log is empty"),
        (["nothing to see\n"], "no line of a vLLM server in 1 lines"),
        (["[2025-10-22 10:27:57 TP0] Decode batch. #running-req: 1, #token: 1\n"], "looks like SGLang's"),
        (["[TRT-LLM] [I] started\n"], "looks like TensorRT-LLM's"),
        ([start_line(eagle3(3))], "no SpecDecoding line"),
        ([start_line("")], "did not speculate"),
        ([status_line(1, 5.0)], "does not say whether"),
    ],
)
def test_logs_without_a_speculative_line_are_notes(tmp_path: Path, lines: list[str], words: str) -> None:
    report = from_log(tmp_path, *lines)
    assert report.drafts is None
    assert report.accept_length is None
    assert said(report, words)


def test_colours_and_progress_bars_do_not_disturb(tmp_path: Path) -> None:
    line = spec_line(288, 795, "0.558, 0.325, 0.204", "2.09").rstrip("\n")
    report = from_log(tmp_path, f"Loading: 0%\rLoading: 99%\r\n\x1b[36m{line}\x1b[0m\n", status_line(0, 1.0))
    assert report.drafts == 265
    assert not partial(report)


def test_docker_wraps_lines_in_json(tmp_path: Path) -> None:
    line = spec_line(288, 795, "0.558, 0.325, 0.204", "2.09").rstrip("\n")
    report = from_log(tmp_path, json.dumps({"log": line + "\n", "stream": "stdout"}) + "\n")
    assert (report.drafts, sum(report.per_position)) == (265, 288)
    assert not partial(report)


def test_powershell_writes_utf16(tmp_path: Path) -> None:
    (tmp_path / "serve.log").write_text(spec_line(288, 795, "0.558, 0.325, 0.204", "2.09"), encoding="utf-16")
    (report,) = read_reports(tmp_path, log="serve.log")
    assert report.drafts == 265


# ---- files that are not there, or not text

KINDS = [{"log": "x"}, {"metrics": ["x"]}, {"responses": "x"}]


@pytest.mark.parametrize("given_", KINDS)
def test_missing_files_are_named_without_the_folder(tmp_path: Path, given_: dict) -> None:
    with pytest.raises(BadFile, match=r"^x: cannot be read: No such file.*expected .*correct its path") as raised:
        read_reports(tmp_path, **given_)
    assert str(tmp_path) not in str(raised.value)


@pytest.mark.parametrize("given_", KINDS)
def test_binary_files_and_folders_are_refused(tmp_path: Path, given_: dict) -> None:
    shutil.copy(ENGINE.parent / "draft" / "model.safetensors", tmp_path / "x")
    with pytest.raises(BadFile, match="line 1: found a NUL byte; expected "):
        read_reports(tmp_path, **given_)
    (tmp_path / "x").unlink()
    (tmp_path / "x").mkdir()
    with pytest.raises(BadFile, match="cannot be read"):
        read_reports(tmp_path, **given_)


def test_no_evidence_gives_no_report(tmp_path: Path) -> None:
    assert read_reports(tmp_path) == []


PIECES = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(
            [
                "SpecDecoding metrics: ",
                "Accepted: 288 tokens, ",
                "Drafted: 795 tokens, ",
                "Drafted: 99999999999999999999 tokens, ",
                "Per-position acceptance rate: 0.558, 0.325, 0.204",
                "Per-position acceptance rate: nan, 9.999",
                ", Avg Draft acceptance rate: nan%",
                "Mean acceptance length: 2.09",
                "(APIServer pid=7) ",
                "non-default args: ",
                "speculative_config num_speculative_tokens: 0",
                "auxiliary layers from model: (1, , -)",
                "Avg generation throughput: 1.2.3 tokens/s, Running: 1 reqs",
                "\n",
                'vllm:spec_decode_num_drafts_total{engine="0"} ',
                'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 3\n',
                '{"choices": [{}], "metrics": {"speculative_decoding": {"num_spec_steps": 1e400}}}\n',
                '{"choices": [{"token_ids": [-1, null, 1e999]}], "metrics": [], "prompt_token_ids": {}}\n',
                '{"choices": [{}], "metrics": {"speculative_decoding": {"num_spec_steps": 3, '
                '"acceptance_histogram": {"-1": "x"}, "num_spec_tokens": 0}}}\n',
                "[Counter(name='vllm:spec_decode_num_drafts', labels={}, value=1e400)]",
                "Vector(name='vllm:spec_decode_num_accepted_tokens_per_pos', labels={1: 2}, values=[3, ])",
                "num_drafts: 3\n",
                "num_accepted_tokens: 99999999999999999999\n",
            ]
        ),
    ),
    max_size=12,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=PIECES, steps=st.sampled_from([None, 0, 1, 3]))
def test_garbage_never_crashes(tmp_path_factory: pytest.TempPathFactory, text: str, steps: int | None) -> None:
    folder = tmp_path_factory.mktemp("garbage")
    (folder / "x").write_text(text, encoding="utf-8", errors="surrogatepass")
    for given_ in KINDS:
        try:
            reports = read_reports(folder, steps=steps, **given_)
        except BadFile as error:
            assert "expected" in str(error)
        else:
            assert all(r.accept_length is None or r.accept_length >= 1 for r in reports)


@pytest.mark.parametrize(
    ("mean", "rates", "words"),
    [
        ("2.50", "0.500, 0.700, 0.300", "per-position rates 0.500, 0.700, 0.300 do not fall from 1"),
        ("4.50", "0.700, 0.500, 0.300", "the mean is printed as 4.50, the line's own counts give 2.50 at most"),
        ("1.80", "0.700, 0.500, 0.300", "the mean is printed as 1.80, the line's own rates give 2.50"),
        ("2.50", "1.200, 0.200, 0.100", "do not fall from 1"),
        ("2.50", "0.700, 0.500, 0.300", ""),
    ],
)
def test_an_interval_that_contradicts_itself_is_a_flaw(tmp_path: Path, mean: str, rates: str, words: str) -> None:
    report = from_log(tmp_path, start_line(eagle3(3)), spec_line(15, 30, rates, mean))
    assert [flaw for flaw, _ in report.flaws] == ([Flaw.DISAGREES] if words else [])
    assert not words or said(report, words)
    assert not said(report, "do not determine them")


def test_a_fraction_of_a_draft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"found 100\.5; expected a count"):
        from_counters(tmp_path, prom(100.5, 200, 90, (60, 30)))
