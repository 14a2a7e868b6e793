"""SGLang's reports: formats of three versions by their sources (engines.md 7.1), and hostile input.

No SGLang run is at hand: counts that must come out right are the vLLM demo's, dressed as SGLang answers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.dialects.sglang.reports import read_reports
from eagle3lab.errors import BadFile

ENGINE = Path(__file__).parents[1] / "data/demo/engine"
STAMP = "[2025-10-22 10:27:57 TP0] "


def words(report: EngineReport) -> list[str]:
    return [*report.notes, *report.remarks, *(text for _, text in report.flaws)]


def said(report: EngineReport, part: str) -> bool:
    return any(part in note for note in words(report))


def partial(report: EngineReport) -> list[str]:
    return [note for note in words(report) if note.startswith("partial:")]


def write(folder: Path, name: str, *lines: str) -> str:
    (folder / name).write_text("".join(lines))
    return name


def from_log(folder: Path, *lines: str, steps: int | None = None) -> EngineReport:
    (report,) = read_reports(folder, log=write(folder, "serve.log", *lines), steps=steps)
    return report


def from_answers(folder: Path, *rows: object, steps: int | None = None) -> EngineReport:
    name = write(folder, "r.jsonl", *(json.dumps(row) + "\n" for row in rows))
    (report,) = read_reports(folder, responses=name, steps=steps)
    return report


def from_metrics(folder: Path, *texts: str, steps: int | None = None) -> EngineReport:
    names = [write(folder, f"{i}.prom", text) for i, text in enumerate(texts)]
    (report,) = read_reports(folder, metrics=names, steps=steps)
    return report


def decode(length: object, rate: object, running: int = 1, speed: float = 182.4) -> str:
    """The line of 0.5.23 in engines.md 7.1."""
    return (
        f"{STAMP}Decode batch, #running-req: {running}, #token: 1034, token usage: 0.00, "
        f"accept len: {length}, accept rate: {rate}, cuda graph: True, "
        f"gen throughput (token/s): {speed:.2f}, #queue-req: 0\n"
    )


def plain(running: int = 1) -> str:
    return (
        f"{STAMP}Decode batch, #running-req: {running}, #token: 1034, token usage: 0.00, cuda graph: True, "
        "gen throughput (token/s): 90.00, #queue-req: 0\n"
    )


def arguments(algorithm: str | None = "EAGLE3", steps: object = 3, topk: object = 1, tokens: object = 4) -> str:
    return (
        f"{STAMP}server_args=ServerArgs(max_speculative_num_draft_tokens=99, "
        f"speculative_algorithm={algorithm!r}, "
        f"speculative_num_steps={steps}, speculative_eagle_topk={topk}, "
        f"speculative_num_draft_tokens={tokens}, speculative_accept_threshold_single=1.0, "
        "speculative_token_map=None)\n"
    )


# ---- logs: forms, weights, definitions

HEADS = {
    "0.5.3": "Decode batch. #running-req: 1, #token: 1034, token usage: 0.00, ",
    "0.5.9": "Decode batch, #running-req: 1, #token: 1034, token usage: 0.00, ",
    "0.5.9 iterations": "Decode batch [512], #running-req: 1, #token: 1034, token usage: 0.00, ",
    "hybrid": "Decode batch, #running-req: 1, #full token: 9, full token usage: 0.00, #swa token: 4, "
    "swa token usage: 0.00, ",
    "mamba": "Decode batch, #running-req: 1, #full token: 9, full token usage: 0.00, mamba num: 4, mamba usage: 0.01, ",
}
END = "gen throughput (token/s): 182.40, #queue-req: 0"
TAILS = {
    "0.5.3": f"cuda graph: True, {END}, ",
    "0.5.23": f"npu graph: True, {END}",
    "dspark": f"cap len: 2.00, block accept len: 3.10, cpu graph: False, {END}",
    "mfu": f"cuda graph: True, {END}, est. decode TFLOPS/s (per GPU): 1.00",
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("tail", TAILS)
def test_the_forms_of_the_decode_line(tmp_path: Path, head: str, tail: str) -> None:
    report = from_log(tmp_path, f"{STAMP}{HEADS[head]}accept len: 2.73, accept rate: 0.58, {TAILS[tail]}\n")
    assert report.reported_length == pytest.approx(2.73)
    assert report.throughput == (182.40,)
    assert (report.drafts, report.accepted, report.accept_length) == (None, None, None)
    assert not partial(report)
    assert said(report, "0.5.3 or before" if head == "0.5.3" else "after 0.5.3")


def test_lines_weigh_by_their_running_requests(tmp_path: Path) -> None:
    report = from_log(tmp_path, decode("2.00", "0.33", running=1), decode("3.00", "0.67", running=3))
    assert report.reported_length == pytest.approx((2 * 1 + 3 * 3) / 4)
    assert said(report, "mean of 2 decode lines, weighted by running requests")


@pytest.mark.parametrize(
    ("length", "rate", "args", "words"),
    [
        ("2.73", "0.58", (3, 1, 4), "bonus out, over 3"),  # engines.md's line of 0.5.23: 1.73 / 3
        ("2.34", "0.78", (2, 1, 3), "bonus in, over 3"),  # sglang #16274 in faults.md: 2.3377 / 3 = 0.7795
        ("2.34", "0.78", None, "bonus in, over 3"),
        ("2.73", "0.58", None, "bonus out, over 3"),
        ("1.00", "0.00", (3, 1, 4), "bonus out, over 3"),
        ("1.00", "0.25", (3, 1, 4), "bonus in, over 4"),
        ("2.00", "0.90", (3, 1, 4), "fits none of the known definitions"),
    ],
)
def test_the_accept_rates_definition_is_told_from_the_numbers(
    tmp_path: Path, length: str, rate: str, args: tuple | None, words: str
) -> None:
    start = [arguments("EAGLE3", *args)] if args else []
    report = from_log(tmp_path, *start, decode(length, rate))
    assert said(report, words)
    assert said(report, "bonus in, ") + said(report, "bonus out, ") == (0 if "none" in words else 1)


def test_an_undetermined_definition_says_so(tmp_path: Path) -> None:
    report = from_log(tmp_path, decode("1.00", "0.00"))
    assert said(report, "bonus out, over 1 to 63 (undetermined)")


@pytest.mark.parametrize(
    "line",
    [
        arguments(),
        f"{STAMP}server_args={{'speculative_algorithm': 'EAGLE3', 'speculative_num_steps': 3, "
        "'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 4}\n",  # 0.5.23 prints a dict
    ],
)
def test_server_arguments_in_both_forms(tmp_path: Path, line: str) -> None:
    report = from_log(tmp_path, line, decode("2.73", "0.58"))
    assert report.steps == 3
    assert not said(report, "tree")
    assert not said(report, "not EAGLE3")


def test_a_tree_and_a_wrong_algorithm_are_said(tmp_path: Path) -> None:
    report = from_log(tmp_path, arguments("EAGLE", 5, 4, 8), decode("1.00", "0.00"))
    assert report.steps == 5
    assert said(report, "topk 4, 8 nodes")
    assert said(report, "EAGLE, not EAGLE3")


def test_the_cases_steps_are_checked(tmp_path: Path) -> None:
    report = from_log(tmp_path, arguments(), decode("2.73", "0.58"), steps=5)
    assert report.steps == 3
    assert said(report, "the case says 5 draft tokens a round, this file says 3")


def test_a_length_beyond_the_steps_is_noted(tmp_path: Path) -> None:
    assert said(from_log(tmp_path, arguments(steps=3), decode("4.40", "0.80")), "more than 3 steps allow")
    assert not said(from_log(tmp_path, arguments(steps=3), decode("4.00", "1.00")), "more than 3 steps allow")


def test_simulated_acceptance_is_said(tmp_path: Path) -> None:
    launch = "+ SGLANG_SIMULATE_ACC_LEN=2.5 python -m sglang.launch_server\n"
    assert said(from_log(tmp_path, launch, arguments(), decode("2.50", "0.50")), "made up")
    assert not said(from_log(tmp_path, arguments(), decode("2.50", "0.50")), "made up")


def test_of_several_servers_the_last_that_speculated_counts(tmp_path: Path) -> None:
    lines = [arguments(), decode("2.73", "0.58"), arguments(steps=5, tokens=6), decode("1.50", "0.10")]
    report = from_log(tmp_path, *lines, arguments(None, None, None, None))
    assert report.steps == 5
    assert report.reported_length == pytest.approx(1.5)
    assert "3 servers in one log" in partial(report)[0]


def test_cut_lines_and_nan_are_partial(tmp_path: Path) -> None:
    whole = decode("9.99", "0.99")
    cut = [whole[: whole.index(at) + len(at)] + "\n" for at in ("#running-re", "accept len: 9.9", "accept rate: 0.9")]
    report = from_log(tmp_path, decode("2.00", "0.33"), decode("nan", "nan"), plain(), *cut)
    assert report.reported_length == pytest.approx(2.0)
    assert any("3 decode lines are cut (lines 4, 5, 6)" in note for note in partial(report))
    assert any("2 decode lines without an accept len" in note for note in partial(report))


def test_a_line_cut_after_its_rate_still_counts(tmp_path: Path) -> None:
    whole = decode("3.00", "0.67")
    report = from_log(tmp_path, decode("2.00", "0.33"), whole[: whole.index("cuda graph")])
    assert report.reported_length == pytest.approx(2.5)
    assert len(partial(report)) == 1


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "the log is empty"),
        (["nothing\n"], "no line of an SGLang server in 1 lines"),
        (
            ["(APIServer pid=7) INFO [metrics.py:120] SpecDecoding metrics: Accepted: 1 tokens\n"],
            "looks like vLLM's",
        ),
        ([arguments(None, None, None, None), plain()], "speculative_algorithm is not set"),
        ([plain(), plain()], "2 decode lines without an accept len: this server did not speculate"),
        ([arguments()], "no decode line"),
        ([decode("nan", "nan")], "all with accept len nan"),
    ],
)
def test_logs_without_acceptance_are_notes(tmp_path: Path, lines: list[str], words: str) -> None:
    report = from_log(tmp_path, *lines)
    assert (report.drafts, report.reported_length) == (None, None)
    assert said(report, words)


# ---- server_info and Prometheus


def info(*states: object, **more: object) -> str:
    head = {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 1}
    return json.dumps({**head, "version": "0.5.23", "internal_states": list(states), **more}, indent=1)


def test_server_info_gives_a_lifetime_mean(tmp_path: Path) -> None:
    report = from_metrics(tmp_path, info({"avg_spec_accept_length": 2.3377}))
    assert report.reported_length == pytest.approx(2.3377)
    assert (report.version, report.steps, report.source, report.accept_length) == (
        "0.5.23",
        3,
        "counters",
        None,
    )


def test_the_later_server_info_is_taken(tmp_path: Path) -> None:
    texts = [info({"avg_spec_accept_length": v}) for v in (2.0, 2.5)]
    assert from_metrics(tmp_path, *texts).reported_length == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("states", "length", "words"),
    [
        ([{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": None}], 2.0, "partial: 1 of 2 ranks"),
        (
            [{"avg_spec_accept_length": 2.0}, {"avg_spec_accept_length": 3.0}],
            2.5,
            "plain mean over the data-par",
        ),
        ([{"avg_spec_accept_length": None}], None, "absent until the first decode log line"),
        ([{}], None, "absent until the first decode log line"),
        ([None], None, "absent until the first decode log line"),
        ([{"avg_spec_accept_length": float("nan")}], None, "is nan: it is not used"),
    ],
)
def test_nulls_in_server_info(tmp_path: Path, states: list, length: float | None, words: str) -> None:
    report = from_metrics(tmp_path, info(*states))
    assert report.reported_length == (None if length is None else pytest.approx(length))
    assert said(report, words)


def test_server_info_of_a_run_without_speculation(tmp_path: Path) -> None:
    report = from_metrics(tmp_path, info({}, speculative_algorithm=None, speculative_num_steps=None))
    assert report.steps is None
    assert said(report, "did not speculate")


def test_other_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="found the keys detail; expected internal_states"):
        from_metrics(tmp_path, '{"detail": "Not Found"}')
    with pytest.raises(BadFile, match="found no valid JSON"):
        from_metrics(tmp_path, info({})[:-9])


def gauges(length: float, verify: int, rank: int = 0, kind: str = "unified") -> str:
    labels = f'engine_type="{kind}",model_name="m",tp_rank="{rank}"'
    return (
        f"sglang:spec_accept_length{{{labels}}} {length}\nsglang:spec_num_steps{{{labels}}} 3.0\n"
        f"# TYPE sglang:spec_verify_calls_total counter\n"
        f'sglang:spec_verify_calls_total{{engine_type="{kind}",model_name="m"}} {verify}\n'
    )


def test_metrics_give_rounds_and_the_last_mean(tmp_path: Path) -> None:
    report = from_metrics(tmp_path, gauges(2.0, 100), gauges(2.8, 160))
    assert (report.drafts, report.accepted, report.accept_length, report.steps) == (60, None, None, 3)
    assert report.reported_length == pytest.approx(2.8)
    assert said(report, "the last log interval only")


def test_gauges_of_ranks_repeat_and_of_draft_workers_do_not_count(tmp_path: Path) -> None:
    same = gauges(2.8, 160) + gauges(2.8, 0, rank=1).splitlines(keepends=True)[0]
    report = from_metrics(tmp_path, same + gauges(9.9, 0, kind="draft").splitlines(keepends=True)[0])
    assert report.reported_length == pytest.approx(2.8)
    report = from_metrics(tmp_path, same + gauges(3.2, 0, rank=2).splitlines(keepends=True)[0])
    assert report.reported_length == pytest.approx(3.0)
    assert "ranks differ" in partial(report)[-1]


def test_a_restarted_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="restarted after 0.prom"):
        from_metrics(tmp_path, gauges(2.0, 100), gauges(2.8, 60))


def test_metrics_without_speculation_or_of_vllm(tmp_path: Path) -> None:
    assert said(from_metrics(tmp_path, "sglang:num_running_reqs 1.0\n"), "no speculative metric")
    (report,) = read_reports(ENGINE, metrics=["right_k5_metrics.prom"])
    assert report.drafts is None
    assert said(report, "vLLM's")


# ---- responses

HISTOGRAM = [4, 3, 2, 1]  # rounds by drafts accepted: 10 rounds, 0*4 + 1*3 + 2*2 + 3*1 = 10 accepted
POSITIONS = (6, 3, 1)  # c_j = sum of h[k] for k >= j (engines.md 7.1)
V23 = {
    "spec_verify_ct": 10,
    "spec_num_correct_drafts": 10,
    "spec_num_proposed_drafts": 30,
    "spec_correct_drafts_histogram": HISTOGRAM,
    "spec_accept_rate": 1 / 3,
    "spec_accept_length": 2.1,
}
V9 = {
    "spec_verify_ct": 10,
    "spec_accept_token_num": 10,
    "spec_draft_token_num": 30,
    "spec_accept_histogram": HISTOGRAM,
}
V3 = {"spec_verify_ct": 10, "spec_accept_rate": 10 / 30, "spec_accept_length": 2.1}


def native(meta: dict, **more: object) -> dict:
    finish = {"type": "length", "length": 21}
    return {"text": "", "output_ids": [5, 6], "meta_info": {**meta, "finish_reason": finish}, **more}


ANSWERS = {
    "0.5.23": native(V23),
    "0.5.9": native(V9),
    "meta_info": {"choices": [{"index": 0, "finish_reason": "length", "meta_info": V23}]},
    "sglext": {"choices": [{"finish_reason": "length"}], "sglext": {"spec_tokens_details": V23}},
    "sglext list": {"choices": [{"finish_reason": "length"}], "sglext": {"spec_tokens_details": [V23]}},
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("steps", [None, 3, 5])
def test_histograms_give_counts(tmp_path: Path, kind: str, steps: int | None) -> None:
    report = from_answers(tmp_path, ANSWERS[kind], ANSWERS[kind], steps=steps)
    assert (report.drafts, report.accepted, report.drafted) == (20, 20, 60)
    assert report.accept_length == pytest.approx(2.0)
    assert report.per_position[:3] == tuple(2 * n for n in POSITIONS)
    assert report.per_position[3:] == (0,) * ((steps or 3) - 3)
    assert report.steps == steps
    assert [r.finish for r in report.requests] == ["length", "length"]
    assert report.requests[0].accepted == ()
    assert said(report, "3 draft tokens a round") == (steps != 3)


def test_tokens_and_batches(tmp_path: Path) -> None:
    report = from_answers(tmp_path, [native(V23, prompt_token_ids=[1, 2]), native(V23)])
    assert report.drafts == 20
    assert report.requests[0].prompt_ids == (1, 2)
    assert report.requests[1].token_ids == (5, 6)


def test_the_first_versions_rate_gives_its_count_back(tmp_path: Path) -> None:
    report = from_answers(tmp_path, native(V3), native({**V3, "spec_accept_rate": 0.2}), steps=3)
    assert (report.drafts, report.accepted, report.per_position) == (20, 10 + 6, ())
    report = from_answers(tmp_path, native(V3))  # without K the rate says nothing
    assert (report.drafts, report.accepted, report.accept_length) == (10, None, None)
    assert report.reported_length == pytest.approx(2.1)
    assert said(report, "the prefill's token is in it")


def test_the_first_versions_overlap_path_is_not_believed(tmp_path: Path) -> None:
    report = from_answers(tmp_path, native({**V3, "spec_accept_rate": 0.0}), steps=3)
    assert report.accepted is None
    report = from_answers(tmp_path, native({**V3, "spec_accept_rate": 0.0, "spec_accept_length": 1.1}), steps=3)
    assert report.accepted == 0


@pytest.mark.parametrize("run", ["wrong_k5", "right_k5", "right_k3", "plus1_k5"])
def test_the_demos_counts_dressed_as_sglang(tmp_path: Path, run: str) -> None:
    table = {
        "wrong_k5": (1170, 2),
        "right_k5": (539, 647),
        "right_k3": (568, 615),
        "plus1_k5": (1160, 13),
    }  # README
    rates = {"right_k5": (0.5696, 0.2987, 0.1725, 0.0983, 0.0612), "right_k3": (0.5775, 0.3116, 0.1937)}
    rows = []
    for line in (ENGINE / f"{run}_responses.jsonl").read_text().splitlines():
        steps = json.loads(line)["metrics"]["speculative_decoding"]["per_step_accepted"]
        bins = [steps.count(j) for j in range(max(steps) + 1)]
        rows.append(native({"spec_verify_ct": len(steps), "spec_accept_token_num": sum(steps)}))
        rows[-1]["meta_info"]["spec_accept_histogram"] = bins
    report = from_answers(tmp_path, *rows, steps=int(run[-1]))
    assert (report.drafts, report.accepted) == table[run]
    assert len(report.per_position) == int(run[-1])
    if run in rates:
        assert report.cumulative == pytest.approx(rates[run], abs=5e-5)


def test_contradictions_and_gaps_are_noted(tmp_path: Path) -> None:
    report = from_answers(tmp_path, native({**V23, "spec_correct_drafts_histogram": [1, 2]}), native({}), {"error": 1})
    assert (report.drafts, report.accepted, report.per_position) == (10, 10, ())
    assert said(report, "no per-position counts")
    assert any("1 of 3 lines are no answer" in note for note in partial(report))
    assert any("1 of 2 answers have no spec_ key" in note for note in partial(report))


def test_a_deeper_histogram_than_the_case_says(tmp_path: Path) -> None:
    report = from_answers(tmp_path, native(V23), steps=2)
    assert report.per_position == POSITIONS
    assert said(report, "more than the 2 steps")


def test_answers_without_speculation(tmp_path: Path) -> None:
    report = from_answers(tmp_path, native({}))
    assert report.drafts is None
    assert report.requests[0].token_ids == (5, 6)
    assert said(report, "no spec_ key")
    assert from_answers(tmp_path, native({**V3, "spec_verify_ct": 0, "spec_accept_length": 0})).drafts == 0


def test_counts_come_before_means(tmp_path: Path) -> None:
    reports = read_reports(
        tmp_path,
        log=write(tmp_path, "a.log", arguments(), decode("2.73", "0.58")),
        metrics=[write(tmp_path, "info.json", info({"avg_spec_accept_length": 2.3}))],
        responses=write(tmp_path, "r.jsonl", json.dumps(native(V23)) + "\n"),
    )
    assert [(r.source, r.files) for r in reports] == [
        ("responses", ("r.jsonl",)),
        ("counters", ("info.json",)),
        ("log", ("a.log",)),
    ]


# ---- files that are not there, or not text

KINDS = [{"log": "x"}, {"metrics": ["x"]}, {"responses": "x"}]


@pytest.mark.parametrize("kind", KINDS)
def test_missing_and_binary_files_are_named_without_the_folder(tmp_path: Path, kind: dict) -> None:
    with pytest.raises(BadFile, match=r"^x: cannot be read: No such file.*expected ") as raised:
        read_reports(tmp_path, **kind)
    assert str(tmp_path) not in str(raised.value)
    (tmp_path / "x").write_bytes(bytes(range(256)) * 9)
    with pytest.raises(BadFile, match="line 1: found a NUL byte"):
        read_reports(tmp_path, **kind)


@pytest.mark.parametrize(("kind", "words"), [("metrics", "found no sample"), ("responses", "found no line")])
def test_empty_files_are_refused(tmp_path: Path, kind: str, words: str) -> None:
    write(tmp_path, "x")
    with pytest.raises(BadFile, match=words):
        read_reports(tmp_path, **{kind: ["x"] if kind == "metrics" else "x"})


def test_lines_that_are_no_json_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=re.compile("line 1: found 'data: .*one a line", re.DOTALL)):
        read_reports(tmp_path, responses=write(tmp_path, "x", "data: {}\n", "data: [DONE]\n"))


def test_no_evidence_gives_no_report(tmp_path: Path) -> None:
    assert read_reports(tmp_path) == []


PIECES = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(
            [
                decode("2.73", "0.58"),
                decode("2.73", "0.58")[:70],
                "Decode batch",
                ", #running-req: 99999999999999999999",
                "accept len: 1.2.3, accept rate: nan,",
                "server_args=",
                "speculative_num_steps=99999999999",
                "avg_spec_accept_length=1.",
                "\n",
                "sglang:spec_accept_length NaN\n",
                "sglang:spec_verify_calls_total 1e300\n",
                '{"internal_states": {"avg_spec_accept_length": true}, "speculative_num_steps": -3}\n',
                '{"meta_info": {"spec_verify_ct": 1e999, "spec_accept_rate": "x"}}\n',
                '{"meta_info": {"spec_verify_ct": 3, "spec_accept_histogram": [null]}}\n',
                '{"meta_info": {"spec_verify_ct": 3, "spec_accept_rate": NaN}}\n',
                '{"choices": [{"meta_info": []}], "sglext": {"spec_tokens_details": 4}}\n',
                '{"meta_info": {"spec_accept_length": 1' + "0" * 400 + ', "spec_verify_ct": 2}}\n',
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
    for kind in KINDS:
        try:
            reports = read_reports(folder, steps=steps, **kind)
        except BadFile as error:
            assert "expected" in str(error)
        else:
            assert all(r.accept_length is None or r.accept_length >= 1 for r in reports)


def test_every_line_is_checked_against_the_cases_steps(tmp_path: Path) -> None:
    lines = [decode("2.10", "0.35"), decode("9.30", "0.90"), decode("1.90", "0.32")]
    report = from_log(tmp_path, *lines, steps=5)
    assert said(report, "an accept len of 9.3 is more than 5 steps allow as the case says (1 of 3 lines)")
    assert [flaw for flaw, _ in report.flaws] == [Flaw.DISAGREES]
    assert not from_log(tmp_path, lines[0], lines[2], steps=5).flaws
    assert not from_log(tmp_path, *lines, steps=None).flaws


def test_an_accept_rate_above_one_cannot_be(tmp_path: Path) -> None:
    report = from_log(tmp_path, arguments(steps=3), decode("2.50", "1.30"), decode("2.50", "0.62"))
    assert said(report, "an accept rate of 1.3 is above 1 (1 lines)")
