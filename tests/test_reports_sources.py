"""Logs and metrics of several servers in one file, and values that cannot be read: every engine's reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.checks.figures import doubts, figures
from eagle3lab.counts import EngineReport, Flaw, ServingRun
from eagle3lab.dialects import ENGINES
from eagle3lab.dialects.sources import Sources
from eagle3lab.errors import BadFile, LabError

VLLM = "(APIServer pid=1) INFO 08-04 20:51:08 [metrics.py:120] "
SGLANG = "[2026-01-01 00:00:00 TP0] "
LLAMA = "0.16.519.195 I slot print_timing: id  0 | task 42 | "


def read(folder: Path, engine: str, *lines: str, steps: int | None = None) -> EngineReport:
    (folder / "x.log").write_text("".join(f"{line}\n" for line in lines))
    (report,) = ENGINES[engine].read_reports(folder, "x.log", (), None, steps)
    return report


def flaws(report: EngineReport) -> dict[Flaw, str]:
    return dict(report.flaws)


def drafted(accepted: int, rates: str) -> str:
    """100 rounds of K = 3."""
    return (
        f"{VLLM}SpecDecoding metrics: Mean acceptance length: {1 + accepted / 100:.2f}, Accepted throughput: 1.00 tokens/s, "
        f"Drafted throughput: 1.00 tokens/s, Accepted: {accepted} tokens, Drafted: 300 tokens, "
        f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {accepted / 3:.1f}%"
    )


def started(steps: int) -> str:
    return (
        f"{VLLM}non-default args: {{'speculative_config': {{'method': 'eagle3', 'num_speculative_tokens': {steps}}}}}"
    )


def decoded(length: float, rate: float, stamp: str = SGLANG) -> str:
    return (
        f"{stamp}Decode batch, #running-req: 1, #token: 9, token usage: 0.00, accept len: {length:.2f}, "
        f"accept rate: {rate:.2f}, cuda graph: True, gen throughput (token/s): 9.00, #queue-req: 0"
    )


GOOD, BAD = drafted(150, "0.800, 0.500, 0.200"), drafted(30, "0.200, 0.070, 0.030")  # 2.5 and 1.3

JOINED = {  # how programs that join logs name whose line it is
    "compose": ("vllm-a-1  | ", "vllm-b-1  | ", "vllm-b-1"),
    "compose, times": ("a-1  | 2026-08-04T20:51:08.1Z ", "b-1  | 2026-08-04T20:51:09.7Z ", "b-1"),
    "kubectl": ("[pod/a/main] ", "[pod/b/main] ", "pod/b/main"),
    "kubectl, times": ("[pod/a/main] 2026-08-04T20:51:08.1Z ", "[pod/b/main] 2026-08-04T20:51:09.1Z ", "pod/b/main"),
    "stern": ("eagle-7d9f8b-x2x4z main ", "eagle-7d9f8b-p8k2q main ", "eagle-7d9f8b-p8k2q main"),
    "journald": ("Aug 04 20:51:08 gpu1 vllm[31]: ", "Aug 04 20:51:09 gpu2 vllm[31]: ", "gpu2 vllm[31]"),
    "grep": ("a.log:", "b.log:", "b.log"),
    "grep -n": ("a.log:117:", "b.log:9:", "b.log"),
    "colours": ("\x1b[36ma-1  |\x1b[0m ", "\x1b[33mb-1  |\x1b[0m ", "b-1"),
}
ALONE = {  # what stands before the lines of one server
    "nothing": ("", ""),
    "docker -t": ("2026-08-04T20:51:08.1Z ", "2026-08-04T20:51:18.1Z "),
    "cri": ("2026-08-04T20:51:08.1Z stdout F ", "2026-08-04T20:51:18.1Z stderr F "),
    "grep -hn": ("117:", "240:"),
    "one container": ("a-1  | ", "a-1  | "),
    "journald": ("Aug 04 20:51:08 gpu1 vllm[31]: ", "Sep 04 20:51:08 gpu1 vllm[31]: "),
    "srun -l": ("0: ", "0: "),
}


@pytest.mark.parametrize("kind", JOINED)
def test_containers_whose_pids_are_all_one_are_two_servers(tmp_path: Path, kind: str) -> None:
    a, b, name = JOINED[kind]
    for lines in ([a + GOOD, b + BAD] * 2, [a + started(3), b + started(3), *[a + GOOD, b + BAD] * 2]):
        report = read(tmp_path, "vllm", *lines)
        assert (report.drafts, report.accepted, report.accept_length) == (200, 60, 1.3)
        assert report.per_position == (40, 14, 6)
        assert flaws(report)[Flaw.SERVERS].startswith("partial: 2 servers in one log")
        assert flaws(report)[Flaw.SERVERS].endswith(f"the last that speculated ({name} pid 1) is counted")


@pytest.mark.parametrize("kind", ALONE)
def test_what_one_servers_lines_begin_with_makes_no_second(tmp_path: Path, kind: str) -> None:
    a, b = ALONE[kind]
    report = read(tmp_path, "vllm", a + started(3), a + GOOD, b + BAD)
    assert (report.drafts, report.accepted) == (200, 180)
    assert not report.flaws and not any("servers" in note for note in report.notes)
    report = read(tmp_path, "sglang", a + decoded(3.0, 0.67), b + decoded(1.2, 0.07))
    assert report.reported_length == pytest.approx(2.1) and not report.flaws


def test_settings_belong_to_the_container_that_printed_them(tmp_path: Path) -> None:
    other = "INFO [utils.py:5] Using Eagle3 auxiliary layers from config: (1, 2, 3)"
    lines = ["a | " + started(3), "b | " + started(5), "a | " + GOOD, "a | (Worker pid=7) " + other]
    report = read(tmp_path, "vllm", *lines)
    assert (report.steps, report.drafts, report.ids) == (3, 100, (1, 2, 3))
    assert not report.flaws  # b never spoke of a draft: a note is enough
    assert any("2 servers in one log (a pid 1, b pid 1); the last that speculated (a pid 1)" in n for n in report.notes)


def test_api_processes_in_one_container_are_still_one_server(tmp_path: Path) -> None:
    lines = ["a | " + GOOD.replace("APIServer pid=1", f"ApiServer_{i} pid={i + 7}") for i in range(2)]
    report = read(tmp_path, "vllm", "a | " + started(3), *lines)
    assert report.drafts == 200 and not report.flaws


def test_tail_names_the_file_before_its_lines(tmp_path: Path) -> None:
    report = read(tmp_path, "vllm", "==> a.log <==", GOOD, GOOD, "", "==> b.log <==", BAD, "==> a.log <==", GOOD)
    assert (report.drafts, report.accepted) == (100, 30)
    assert "(a.log pid 1, b.log pid 1)" in flaws(report)[Flaw.SERVERS]


def test_collectors_of_json_lines_name_the_pod(tmp_path: Path) -> None:
    lines = [json.dumps({"log": text, "kubernetes": {"pod_name": pod, "container_name": "main"}})
             for pod, text in (("a", GOOD), ("b", BAD))]  # fmt: skip
    report = read(tmp_path, "vllm", *lines)
    assert report.accepted == 30 and "(b main pid 1)" in flaws(report)[Flaw.SERVERS]


def test_the_offline_scripts_totals_of_two_runs(tmp_path: Path) -> None:
    runs = [f"num_drafts: {n}\nnum_draft_tokens: {3 * n}\nnum_accepted_tokens: {n}" for n in (7, 9)]
    report = read(tmp_path, "vllm", *runs)
    assert report.drafts == 9 and "totals stand 2 times in one log" in flaws(report)[Flaw.SERVERS]
    assert not read(tmp_path, "vllm", runs[0]).flaws
    mixed = [f"a | num_drafts: {n}" for n in (7,)] + ["b | num_drafts: 9", "a | num_accepted_tokens: 3"]
    assert (read(tmp_path, "vllm", *mixed).drafts, read(tmp_path, "vllm", *mixed).accepted) == (7, 3)


@pytest.mark.parametrize("kind", [k for k in JOINED if k != "grep -n"])
def test_two_sglang_servers(tmp_path: Path, kind: str) -> None:
    a, b, name = JOINED[kind]
    report = read(tmp_path, "sglang", *[a + decoded(3.0, 0.67), b + decoded(1.2, 0.07)] * 3)
    assert report.reported_length == pytest.approx(1.2)
    assert flaws(report)[Flaw.SERVERS].endswith(f"the last that speculated ({name}) is counted")
    arguments = (
        "server_args=ServerArgs(speculative_algorithm='EAGLE3', speculative_num_steps={}, speculative_eagle_topk=1)"
    )
    lines = [
        a + SGLANG + arguments.format(5),
        b + SGLANG + arguments.format(3),
        a + decoded(3.0, 0.4),
        b + decoded(1.6, 0.2),
    ]
    report = read(tmp_path, "sglang", *lines)
    assert (report.steps, report.reported_length) == (3, pytest.approx(1.6))
    assert set(flaws(report)) == {Flaw.SERVERS}


def test_ranks_of_one_sglang_server_belong_together_and_are_said(tmp_path: Path) -> None:
    ranks = [decoded(3.0, 0.67, "[2026-01-01 00:00:00 DP0 TP0] "), decoded(1.2, 0.07, "[2026-01-01 00:00:00 DP1 TP0] ")]
    report = read(tmp_path, "sglang", *ranks)
    assert report.reported_length == pytest.approx(2.1) and not report.flaws
    assert any("2 data-parallel ranks (DP0, DP1) are taken together" in note for note in report.notes)
    assert not any("data-parallel" in note for note in read(tmp_path, "sglang", ranks[0], ranks[0]).notes)


def test_two_llamacpp_servers_and_two_benches(tmp_path: Path) -> None:
    tasks = [
        f"draft acceptance = 0.5 ({n:>5} accepted / {2 * n:>5} generated), mean acceptance length =  2.00"
        for n in (7, 9)
    ]
    for a, b in (("a | ", "b | "), ("[pod/a/x] ", "[pod/b/x] "), ("pod-a main ", "pod-b main ")):
        report = read(tmp_path, "llamacpp", a + LLAMA + tasks[0], b + LLAMA + tasks[1])
        assert (report.drafts, report.accepted) == (9, 9)
        assert "2 servers in one log" in flaws(report)[Flaw.SERVERS]
    assert read(tmp_path, "llamacpp", LLAMA + tasks[0], LLAMA + tasks[1]).accepted == 16
    summary = ["n_predict = 20\nn_drafted = 30\nn_accept = 10", "n_predict = 9\nn_drafted = 9\nn_accept = 3"]
    report = read(tmp_path, "llamacpp", *summary)
    assert (report.drafts, report.accepted) == (6, 3) and "2 runs" in flaws(report)[Flaw.SERVERS]
    report = read(tmp_path, "trtllm", "[AL] AVERAGE: 2.46", "[AL] AVERAGE: 1.20")
    assert report.mean_of_means == 1.2 and "2 benches in one log" in flaws(report)[Flaw.SERVERS]


def test_iterations_of_two_trtllm_servers(tmp_path: Path) -> None:
    spec = {"numDraftTokens": 12, "numAcceptedTokens": 5, "numRequestsWithDraftTokens": 4, "acceptanceLength": 2.25}
    rows = [{"iter": n, "specDecodingStats": spec} for n in (1, 2, 1)]
    (tmp_path / "m.json").write_text(json.dumps(rows))
    (report,) = ENGINES["trtllm"].read_reports(tmp_path, None, ["m.json"], None, 3)
    assert "1 iterations are there more than once" in flaws(report)[Flaw.SERVERS]
    (tmp_path / "m.json").write_text(json.dumps(rows[:2]))
    (report,) = ENGINES["trtllm"].read_reports(tmp_path, None, ["m.json"], None, 3)
    assert not report.flaws


@pytest.mark.parametrize(
    "line",
    ["x" * 100_000, "a b " * 50_000, "Loading: 50%|#####  | 1/2", "INFO | started", "2026-01-01 00:00:00.1 | INFO | main - up",
     "5 | (APIServer pid=1)", "| nvidia | smi |", '{"log": "x"}', "slot print_timing: id  0 | task 1 | x", LLAMA, VLLM, SGLANG]
)  # fmt: skip
def test_lines_that_name_nobody(line: str) -> None:
    assert Sources().of(line.strip()) == ""


# ---- K changing in an SGLang log


def test_k_that_changes_in_an_sglang_log_is_a_mixture(tmp_path: Path) -> None:
    # bonus out (0.5.23): (2.00 - 1) / 3 = 0.33 and (1.90 - 1) / 5 = 0.18
    report = read(tmp_path, "sglang", *[decoded(2.0, 0.33)] * 9, *[decoded(1.9, 0.18)] * 9, steps=3)
    assert flaws(report)[Flaw.CHANGES] == ("partial: K changes within the log: the accept rates go with [3, 5] (bonus out) "
                                           "drafts a round: the lengths are of a mixture")  # fmt: skip
    assert report.steps is None
    assert not any("fits none" in text for text in report.remarks)


def test_k_that_changes_with_the_bonus_in_the_rate(tmp_path: Path) -> None:
    # 0.5.9: over num_draft_tokens 4 and 6, so chains of 3 and 5: 2.50 / 4 = 0.62 (2.50 / 0.62 is in 3.98..4.08), 2.20 / 6 = 0.37
    report = read(tmp_path, "sglang", decoded(2.5, 0.62), decoded(2.2, 0.37), decoded(3.9, 0.97))
    assert "[3, 5] (bonus in)" in flaws(report)[Flaw.CHANGES]


@pytest.mark.parametrize(
    "pairs",
    [[(2.0, 0.33), (1.9, 0.30), (2.7, 0.57)], [(2.0, 0.9)], [(2.0, 0.33), (2.0, 0.9)], [(1.0, 0.0), (4.0, 1.0)]],
)
def test_one_k_or_no_definition_is_no_mixture(tmp_path: Path, pairs: list[tuple[float, float]]) -> None:
    assert Flaw.CHANGES not in flaws(read(tmp_path, "sglang", *(decoded(*pair) for pair in pairs)))


# ---- two answers in one metrics file


def counters(accepted: int, labels: str = 'engine="0",model_name="m"') -> str:
    values = {"num_drafts": 100, "num_draft_tokens": 300, "num_accepted_tokens": accepted}
    return "".join(f"vllm:spec_decode_{name}_total{{{labels}}} {value}\n" for name, value in values.items())


def measured(folder: Path, text: str, engine: str = "vllm") -> EngineReport:
    (folder / "m.prom").write_text(text)
    (report,) = ENGINES[engine].read_reports(folder, None, ["m.prom"], None, 3)
    return report


@pytest.mark.parametrize("second", [30, 150])
def test_two_answers_in_one_file_are_refused(tmp_path: Path, second: int) -> None:
    with pytest.raises(
        BadFile, match=r"num_accepted_tokens_total.*found 2 times \(150, \d+\); expected once; two answers"
    ):
        measured(tmp_path, counters(150) + counters(second))
    printed = f"[Counter(name='vllm:spec_decode_num_drafts', labels={{}}, value={second})]\n"
    with pytest.raises(BadFile, match="found 2 times"):
        measured(tmp_path, printed * 2)
    gauge = 'sglang:spec_accept_length{tp_rank="0"} '
    with pytest.raises(BadFile, match="found 2 times"):
        measured(tmp_path, f"{gauge}2.5\n{gauge}1.2\n", "sglang")


def test_engines_of_one_server_add_up_and_pods_are_partial(tmp_path: Path) -> None:
    both = [counters(150), counters(30, 'engine="1",model_name="m"')]
    report = measured(tmp_path, "".join(both))
    assert (report.drafts, report.accepted) == (200, 180)
    assert not any(note.startswith("partial:") for note in report.notes)
    report = measured(tmp_path, counters(150, 'pod="a",model_name="m"') + counters(30, 'pod="b",model_name="m"'))
    assert "partial: counters of several pods summed: a, b" in report.notes


# ---- values that cannot be read

HUGE = 10**399
UNREADABLE = (-5, "15", 1.5, True, [], {"a": 1}, HUGE, float("nan"), float("inf"), -HUGE)
STATS = {"num_spec_steps": 60, "num_draft_tokens": 180, "num_accepted_draft_tokens": 90, "num_spec_tokens": 3,
         "acceptance_histogram": [10, 20, 20, 10], "mean_acceptance_length": 2.5, "draft_acceptance_rate": 0.5}  # fmt: skip
META = {"spec_verify_ct": 60, "spec_num_correct_drafts": 90, "spec_num_proposed_drafts": 180, "spec_accept_rate": 0.5,
        "spec_correct_drafts_histogram": [10, 20, 20, 10], "spec_accept_length": 2.5, "completion_tokens": 150}  # fmt: skip
SPEC = {"numRequestsWithDraftTokens": 60, "numDraftTokens": 180, "numAcceptedTokens": 90, "acceptanceLength": 2.5}
TEMPLATES: dict[str, tuple[str, str, Any, tuple[str, ...]]] = {
    "vllm": ("vllm", "responses", {"choices": [{"token_ids": [1]}], "metrics": {"speculative_decoding": STATS}}, tuple(STATS)),
    "sglang": ("sglang", "responses", {"meta_info": META}, tuple(k for k in META if k != "completion_tokens")),
    "info": ("sglang", "metrics", {"internal_states": [{"avg_spec_accept_length": 2.5}], "speculative_num_steps": 3},
             ("avg_spec_accept_length", "speculative_num_steps")),
    "llamacpp": ("llamacpp", "responses", {"timings": {"draft_n": 180, "draft_n_accepted": 90, "predicted_n": 151}},
                 ("draft_n", "draft_n_accepted", "predicted_n")),
    "trtllm": ("trtllm", "responses", {"choices": [{"avg_decoded_tokens_per_iter": 2.0}], "usage": {"completion_tokens": 20}},
               ("avg_decoded_tokens_per_iter", "completion_tokens")),
    "perf": ("trtllm", "responses", {"perf_metrics": {"speculative_decoding": {"total_draft_tokens": 180,
             "total_accepted_draft_tokens": 90}}}, ("total_draft_tokens", "total_accepted_draft_tokens")),
    "iterations": ("trtllm", "metrics", [{"iter": 1, "specDecodingStats": SPEC}], tuple(SPEC)),
    "bench": ("trtllm", "metrics", {"decoding_stats": {"acceptance_length_percentiles": {"average": 151 / 61}},
              "request_info": {"num_requests": 1, "avg_output_length": 151}}, ("average", "num_requests", "avg_output_length")),
    "specdec": ("vllm", "metrics", {"Acceptance_Length_Histogram": {"1": 2, "2": 3}, "Average_AL": 1.6,
                "Request_AL": {"0": {"0": 1.6}}}, ("1", "2")),
    "get_metrics": ("vllm", "metrics", [{"name": "vllm:spec_decode_num_drafts", "value": 60},
                    {"name": "vllm:spec_decode_num_accepted_tokens", "value": 90}], ("value",)),
}  # fmt: skip


def damaged(value: Any, key: str, bad: Any) -> Any:
    """``value`` with ``bad`` under every ``key``."""
    if isinstance(value, dict):
        return {k: bad if k == key else damaged(v, key, bad) for k, v in value.items()}
    return [damaged(v, key, bad) for v in value] if isinstance(value, list) else value


def all_damage() -> Iterator[tuple[str, str, Any]]:
    rates = ("mean_acceptance_length", "draft_acceptance_rate", "spec_accept_rate", "spec_accept_length", "acceptanceLength",
             "avg_decoded_tokens_per_iter", "avg_spec_accept_length", "average", "avg_output_length")  # fmt: skip
    lists = ("acceptance_histogram", "spec_correct_drafts_histogram")
    for name, (_, _, _, keys) in TEMPLATES.items():
        for key in keys:
            for bad in UNREADABLE:
                fine = (key in rates and bad == 1.5) or (key in lists and bad == [])
                nothing = (
                    key == "avg_spec_accept_length" and bad != bad
                )  # NaN is what SGLang writes before the first tick
                if not (fine or nothing):
                    yield name, key, bad


def run_on(folder: Path, name: str, content: Any) -> list[EngineReport]:
    engine, kind, _, _ = TEMPLATES[name]
    (folder / "x.json").write_text(json.dumps(content) + "\n")
    given: dict[str, Any] = {"log": None, "metrics": [], "responses": None}
    given[kind] = ["x.json"] if kind == "metrics" else "x.json"
    return ENGINES[engine].read_reports(folder, *given.values(), 3)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_whole_templates_give_a_figure(tmp_path: Path, name: str) -> None:
    (report,) = run_on(tmp_path, name, TEMPLATES[name][2])
    assert not doubts(report)
    assert (report.accept_length or report.reported_length or 0) > 1


def test_a_value_that_cannot_be_read_is_never_zero_and_never_a_figure(tmp_path: Path) -> None:
    seen = 0
    for name, key, bad in all_damage():
        try:
            reports = run_on(tmp_path, name, damaged(TEMPLATES[name][2], key, bad))
        except LabError:
            continue
        seen += 1
        run = ServingRun("a run", TEMPLATES[name][0], steps=3)
        usable = figures(run, reports)
        assert (usable.counted, usable.printed) == (None, None), (name, key, bad)
        assert "(E021)" in usable.why, (name, key, bad)
        assert not any(flaw in (Flaw.SILENT, Flaw.FOREIGN) for r in reports for flaw, _ in r.flaws), (name, key, bad)
        assert not any("only a rate" in note or "detailed" in key for r in reports for note in r.notes), (
            name,
            key,
            bad,
        )
    assert seen > 150


def test_the_sentence_names_the_value(tmp_path: Path) -> None:
    row = damaged(TEMPLATES["vllm"][2], "num_accepted_draft_tokens", -5)
    (report,) = run_on(tmp_path, "vllm", row)
    assert report.accepted is None and report.drafts == 60
    assert doubts(report)[0] == "num_accepted_draft_tokens is -5 in 1 of 1 requests: that cannot be read"
    (report,) = run_on(tmp_path, "vllm", damaged(TEMPLATES["vllm"][2], "num_draft_tokens", HUGE))
    assert doubts(report)[0] == f"num_draft_tokens is 1{'0' * 29}… in 1 of 1 requests: that cannot be read"


def test_one_bad_request_of_many_leaves_no_sum(tmp_path: Path) -> None:
    good, bad = TEMPLATES["sglang"][2], damaged(TEMPLATES["sglang"][2], "spec_num_correct_drafts", "90")
    bad["meta_info"]["spec_correct_drafts_histogram"] = None
    (report,) = run_on(tmp_path, "sglang", [good, bad, good])
    assert (report.accepted, report.accept_length) == (None, None)
    assert "spec_num_correct_drafts is '90' in 1 of 3 answers" in doubts(report)[0]


@pytest.mark.parametrize(("name", "key"), [("vllm", "num_accepted_draft_tokens"), ("llamacpp", "draft_n_accepted"), ("iterations", "numAcceptedTokens"),
                                           ("perf", "total_accepted_draft_tokens")])  # fmt: skip
def test_what_is_missing_is_unknown_and_said(tmp_path: Path, name: str, key: str) -> None:
    (report,) = run_on(tmp_path, name, damaged(TEMPLATES[name][2], key, None))
    assert (report.accepted, report.accept_length) == (None, None)
    assert any(key in note and "missing" in note for note in report.notes)


def test_a_printed_length_below_one_is_not_a_line_without_one(tmp_path: Path) -> None:
    report = read(tmp_path, "sglang", decoded(2.0, 0.33), decoded(-2.0, -0.33))
    assert [text.split(" (")[0] for _, text in report.flaws] == [
        "an accept len of -2.0 is below 1, the bonus token alone",
        "an accept rate of -0.33 is below 0",
    ]
    idle = read(tmp_path, "sglang", decoded(2.0, 0.33), decoded(0.0, 0.0))  # the mean of no round
    assert idle.reported_length == pytest.approx(2.0) and set(flaws(idle)) == {Flaw.NAN}


def test_a_negative_gauge_is_not_silence(tmp_path: Path) -> None:
    report = measured(tmp_path, "sglang:spec_accept_length -2.5\n", "sglang")
    assert set(flaws(report)) == {Flaw.DISAGREES} and report.reported_length is None
