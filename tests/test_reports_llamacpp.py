"""llama.cpp's reports: forms by reading, published numbers, hostile input. No run of it is at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.dialects import ENGINES
from eagle3lab.errors import BadFile

LOGS = Path(__file__).parent / "fixtures/engine_logs"
DEMO = Path(__file__).parents[1] / "data/demo/engine"
read_reports = ENGINES["llamacpp"].read_reports


def read(folder: Path, **given_: object) -> EngineReport:
    keys = {"log": None, "metrics": (), "responses": None, "steps": None, **given_}
    (report,) = read_reports(folder, *keys.values())
    return report


def from_log(folder: Path, *lines: str, steps: int | None = None) -> EngineReport:
    (folder / "x.log").write_text("".join(line + "\n" for line in lines))
    return read(folder, log="x.log", steps=steps)


def flaws(report: EngineReport) -> dict[Flaw, str]:
    return dict(report.flaws)


def line(accepted: object, drafted: object, mean: str = "", rates: str = "", rate: str = "0.64479") -> str:
    more = f", mean acceptance length = {mean:>5}" if mean else ""
    more += f", acceptance rate per position = ({rates})" if rates else ""
    prefix = "0.16.519.195 I slot print_timing: id  0 | task 42 | "
    return f"{prefix}draft acceptance = {rate} ({accepted:>5} accepted / {drafted:>5} generated){more}"


def test_the_published_counters(tmp_path: Path) -> None:
    # faults.md I and case 85: 87 drafts, 259 drafted, 167 accepted, 2.92; 0.805/0.632/0.483
    task = line(167, 259, "2.92", "0.805, 0.632, 0.483")
    report = from_log(tmp_path, task)
    assert (report.drafts, report.drafted, report.accepted, report.steps) == (87, 259, 167, 3)
    assert report.per_position == (70, 55, 42)
    assert report.accept_length == pytest.approx(2.9195, abs=5e-5)
    assert sum(report.cumulative) == pytest.approx(1.920, abs=5e-4)
    assert any("259 draft tokens in 87 rounds of K 3: some were cut short" in note for note in report.notes)


def test_the_servers_log_of_a_users_report() -> None:
    report = read(LOGS, log="llamacpp_server.log")
    assert (report.drafts, report.drafted, report.accepted, report.output) == (97, 388, 257, 353)
    assert report.per_position == (78, 68, 61, 50)
    assert f"{report.accept_length:.2f}" == "3.65"
    assert not report.flaws


@pytest.mark.parametrize(
    ("accepted", "drafted", "mean", "rates", "drafts"),
    [
        (1797, 2898, "2.24", "0.727, 0.513", 1449),  # as users print them
        (282, 338, "2.67", "0.893, 0.775", 169),
        (307, 407, "2.50", "", None),  # 204 to 206 rounds all print as 2.50
        (4, 4, "3.00", "", 2),
        (0, 12, "1.00", "", None),
        (3, 8, "", "", None),  # before PR #24536
    ],
)
def test_rounds_come_from_the_mean_where_it_determines_them(
    tmp_path: Path, accepted: int, drafted: int, mean: str, rates: str, drafts: int | None
) -> None:
    report = from_log(tmp_path, line(accepted, drafted, mean, rates))
    assert (report.drafts, report.accepted, report.drafted) == (drafts, accepted, drafted)
    assert (report.reported_length is None) == (drafts is not None or not mean)


def test_the_statistics_line_gives_the_rounds_that_a_task_does_not(tmp_path: Path) -> None:
    stats = ("statistics draft-eagle3: #calls(b,g,a) = 1 4 4, #gen drafts = 4, #acc drafts = 2, #gen tokens = 8, "
             "#acc tokens = 3, dur(b,g,a) = 0.006, 21.272, 0.010 ms")  # fmt: skip
    report = from_log(tmp_path, line(3, 8), stats)
    assert (report.drafts, report.accept_length) == (4, pytest.approx(1.75))
    report = from_log(tmp_path, stats.replace("draft-eagle3", "draft-mtp"))
    assert report.drafts == 4
    assert any("draft-mtp, not draft-eagle3" in note for note in report.notes)
    report = from_log(tmp_path, line(9, 9), stats)
    assert report.drafts is None
    assert any("drafts unknown" in note for note in report.notes)


def test_tasks_add_up(tmp_path: Path) -> None:
    report = from_log(
        tmp_path, line(167, 259, "2.92", "0.805, 0.632, 0.483"), line(4, 6, "3.00", "1.000, 1.000, 0.000")
    )
    assert (report.drafts, report.accepted, report.per_position) == (89, 171, (72, 57, 42))
    assert report.lengths == pytest.approx((2.9195, 3.0), abs=5e-5)


def test_the_examples_summary() -> None:
    report = read(LOGS, log="llamacpp_simple.log", steps=5)
    assert (report.drafts, report.drafted, report.accepted, report.steps, report.output) == (90, 259, 167, 3, 257)
    assert any("the case says 5" in note for note in report.notes)
    assert any("nothing was drafted are among them" in note for note in report.notes)


def test_prometheus_text_has_vllms_counters_under_its_own_prefix(tmp_path: Path) -> None:
    text = "".join(f"# TYPE llamacpp:{n} counter\nllamacpp:{n} {v}\n" for n, v in {
        "spec_decode_num_drafts_total": 87, "spec_decode_num_draft_tokens_total": 259,
        "spec_decode_num_accepted_tokens_total": 167, "tokens_predicted_total": 256}.items())  # fmt: skip
    rows = [
        f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{j}"}} {n}\n'
        for j, n in enumerate((70, 55, 42))
    ]
    (tmp_path / "m.prom").write_text(text + "".join(rows))
    report = read(tmp_path, metrics=["m.prom"])
    assert (report.drafts, report.accepted, report.per_position, report.output) == (87, 167, (70, 55, 42), 256)
    assert report.engine == "llamacpp"


def test_timings_bound_the_length_from_below(tmp_path: Path) -> None:
    row = {
        "choices": [{"finish_reason": "stop"}],
        "timings": {"predicted_n": 256, "draft_n": 259, "draft_n_accepted": 167},
    }
    (tmp_path / "r.jsonl").write_text(
        json.dumps(row) + "\n" + json.dumps({**row, "timings": {"predicted_n": 9}}) + "\n"
    )
    report = read(tmp_path, responses="r.jsonl")
    assert (report.drafts, report.drafted, report.accepted, report.answered) == (None, 259, 167, 1)
    assert report.reported_length == pytest.approx(255 / 88)
    assert report.reported_length < 1 + 167 / 87
    assert any("1 of 2 answers drafted nothing" in note for note in report.notes)


@pytest.mark.parametrize(
    ("lines", "flaw", "words"),
    [
        ([], Flaw.SILENT, "the log is empty"),
        (["0.1 I srv  update_slots: all slots are idle"], Flaw.SILENT, "no draft was verified"),
        (["SpecDecoding metrics: Mean acceptance length: 2.00"], Flaw.FOREIGN, "looks like vLLM's"),
        (["Decode batch. #running-req: 1"], Flaw.FOREIGN, "looks like SGLang's"),
        ([line(3, 8)[:-12]], Flaw.CUT, "1 acceptance lines are cut (lines 1)"),
        ([line(167, 259, "2.92", "0.805, 0.632, 0.483")[:-9]], Flaw.CUT, "lines 1"),
        ([line(167, 259, "2.92")[:-3]], Flaw.CUT, "lines 1"),
        ([line(0, 0, "-nan", rate="-nan")], Flaw.NAN, "1 of 1 acceptance lines print nan"),
        ([line(4, 4, "3.00", "1.000, 1.000"), line(4, 6, "3.00", "1.000, 1.000, 0.000")], Flaw.CHANGES, "K changes"),
        (["n_predict = 3", "n_drafted = 9", "n_accept = 8"], Flaw.DISAGREES, "n_accept 8 is more than n_predict 3"),
    ],
)
def test_what_is_wrong_with_a_log_is_said(tmp_path: Path, lines: list[str], flaw: Flaw, words: str) -> None:
    report = from_log(tmp_path, *lines)
    assert words in flaws(report).get(flaw, ""), report
    assert report.accept_length is None or flaw in (Flaw.CUT, Flaw.CHANGES)


@pytest.mark.parametrize(("kind", "file"), [("log", "right_k5_serve.log"), ("responses", "right_k5_responses.jsonl")])
def test_vllms_files_are_named(kind: str, file: str) -> None:
    assert "vLLM's" in flaws(read(DEMO, **{kind: file}))[Flaw.FOREIGN]


def test_vllms_metrics_are_named() -> None:
    assert "vLLM's" in flaws(read(DEMO, metrics=["right_k5_metrics.prom"]))[Flaw.FOREIGN]


def test_no_evidence_gives_no_report(tmp_path: Path) -> None:
    assert read_reports(tmp_path, None, (), None, None) == []


PIECES = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(
            [
                line(3, 8) + "\n",
                line(999999999999, 999999999999, "1.01", "1.000, 0.999") + "\n",
                line(999999999999, 999999999999, "1.00") + "\n",
                line(7, 8, "0.00", "9.999, ,.") + "\n",
                "draft acceptance = ",
                "statistics a: #gen drafts = 9, #gen tokens = 1, #acc tokens = 7\n",
                "n_predict = 1\n",
                "n_drafted = 99\n",
                "n_accept = 3\n",
                "eval time = 1 ms / 99 tokens\n",
                "llamacpp:spec_decode_num_drafts_total 3\nllamacpp:spec_decode_num_accepted_tokens_total 99\n",
                '{"timings": {"draft_n": 1e400, "predicted_n": -1}}\n',
                '{"timings": {"draft_n": 5, "draft_n_accepted": 9, "predicted_n": 2}, "choices": [3]}\n',
                '{"timings": 4}\n',
            ]
        ),
    ),
    max_size=10,
).map("".join)


@settings(max_examples=100, deadline=None)
@given(text=PIECES, steps=st.sampled_from([None, 0, 1, 3]))
def test_garbage_never_crashes(tmp_path_factory: pytest.TempPathFactory, text: str, steps: int | None) -> None:
    folder = tmp_path_factory.mktemp("garbage")
    (folder / "x").write_text(text, encoding="utf-8", errors="surrogatepass")
    for given_ in ({"log": "x"}, {"metrics": ["x"]}, {"responses": "x"}):
        try:
            report = read(folder, steps=steps, **given_)
        except BadFile as error:
            assert "expected" in str(error)
        else:
            assert report.accept_length is None or report.accept_length >= 1
