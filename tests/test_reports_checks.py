"""E020 to E030: the demo's own files, and one minimal wrong report for each finding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny

from eagle3lab.case import open_case
from eagle3lab.checks import reports, serving
from eagle3lab.counts import EngineReport, Flaw, RequestReport, ServingRun
from eagle3lab.dialects import ENGINES
from eagle3lab.records import Finding, Severity

DEMO = Path(__file__).parents[1] / "data/demo"
RUNS = {
    "as deployed": (1170, 2),
    "right ids": (539, 647),
    "right ids, 3 drafts": (568, 615),
    "all ids one later": (1160, 13),
}
CLEAN = {"E020", "E022", "E026", "E027"}
"""What a run of sound files gives."""


def demo(run: str) -> list[Finding]:
    return reports.check(open_case(DEMO / "case.toml", run))


def found(*said: EngineReport, **run: Any) -> list[Finding]:
    serving = ServingRun(**{"name": "a run", "engine": said[0].engine if said else "vllm", "steps": 3, **run})
    return reports.check(SimpleNamespace(run=serving, reports=lambda run: list(said)))


def one(code: str, *said: EngineReport, **run: Any) -> Finding:
    (finding,) = [f for f in found(*said, **run) if f.code == code]
    return finding


def report(source: str = "counters", **more: Any) -> EngineReport:
    usual = {"steps": 3, "drafts": 100, "drafted": 300, "accepted": 120, "per_position": (70, 40, 10)}
    return EngineReport(**{"engine": "vllm", "source": source, "files": (f"x.{source}",), **usual, **more})


# ---- the demo


@pytest.mark.parametrize("run", RUNS)
def test_the_demos_files_agree_to_the_last_draft(run: str) -> None:
    findings = demo(run)
    drafts, accepted = RUNS[run]
    by_code = {f.code: f for f in findings}
    assert set(by_code) == CLEAN
    assert by_code["E020"].measured.startswith(
        f"{1 + accepted / drafts:.4f} = 1 + {accepted} accepted / {drafts} rounds"
    )
    assert "from the counters" in by_code["E020"].title
    assert f"the log's intervals hold {drafts} of {drafts} rounds" in by_code["E020"].evidence
    assert [f.severity for f in findings if f.code == "E022"] == [Severity.PASS] * 2


def test_a_run_without_speculation_says_nothing() -> None:
    assert demo("no speculation") == []


@pytest.mark.parametrize(("run", "over"), [("right_k5", 14), ("right_k3", 11), ("wrong_k5", 0), ("plus1_k5", 1)])
def test_what_is_counted_past_the_end_is_bounded_request_by_request(run: str, over: int) -> None:
    # The engine counts a last round whole: rounds + accepted + the prefill's token - tokens is at most K each.
    steps, total = int(run[-1]), 0
    for line in (DEMO / f"engine/{run}_responses.jsonl").read_text().splitlines():
        row = json.loads(line)
        rounds = row["metrics"]["speculative_decoding"]["per_step_accepted"]
        excess = len(rounds) + sum(rounds) + 1 - row["usage"]["completion_tokens"]
        assert 0 <= excess <= min(steps, rounds[-1])
        total += excess
    assert total == over
    name = {
        "right_k5": "right ids",
        "right_k3": "right ids, 3 drafts",
        "wrong_k5": "as deployed",
        "plus1_k5": "all ids one later",
    }
    (finding,) = [f for f in demo(name[run]) if f.code == "E026"]
    assert finding.measured.endswith(f"with the prefills' 16 tokens {over:+d}")
    assert finding.severity == (Severity.INFO if over else Severity.PASS)


def test_pooled_and_mean_of_means_differ_in_the_demo() -> None:
    (finding,) = [f for f in demo("right ids") if f.code == "E027"]
    assert "pooled 2.200 over 539 rounds, mean of means 2.303 over 16 requests" in finding.measured


def test_a_log_alone_loses_what_follows_its_last_interval(tmp_path: Path) -> None:
    lines = (DEMO / "engine/right_k5_serve.log").read_text().splitlines(keepends=True)
    ticks = [i for i, line in enumerate(lines) if "SpecDecoding metrics" in line]
    (tmp_path / "cut.log").write_text("".join(lines[: ticks[-1] - 1]))
    for name in ("right_k5_metrics_before.prom", "right_k5_metrics.prom"):
        shutil.copy(DEMO / "engine" / name, tmp_path)
    both = ENGINES["vllm"].read_reports(
        tmp_path, "cut.log", ["right_k5_metrics_before.prom", "right_k5_metrics.prom"], None, 5
    )
    assert "the log's intervals hold 477 of 539 rounds" in one("E020", *both, steps=5).evidence
    assert not [f for f in found(*both, steps=5) if f.code in ("E021", "E022")]
    alone = ENGINES["vllm"].read_reports(tmp_path, "cut.log", [], None, 5)
    assert "from the log (partial)" in one("E020", *alone, steps=5).title


# ---- one finding each


def test_sound_files_give_nothing_else() -> None:
    assert {f.code for f in found(report(), report("log"))} == {"E020", "E022"}


IMPOSSIBLE = {
    "accepted beyond drafted": ({"drafted": 110}, "120 accepted of 110 drafted"),
    "the sum": ({"per_position": (70, 40, 20)}, "add up to 130, accepted says 120"),
    "rising": ({"per_position": (40, 70, 10)}, "do not fall from 100 rounds"),
    "beyond the rounds": ({"drafts": 60}, "do not fall from 60 rounds"),
    "fewer than one draft a round": ({"drafted": 99, "accepted": 50, "per_position": ()}, "a round has one at least"),
    "beyond K + 1": ({"accepted": 301, "drafted": 500, "per_position": ()}, "more than K + 1 = 4"),
    "more drafts than positions": ({"drafted": 400}, "400 draft tokens in 100 rounds of 3 positions"),
    "a printed length below 1": ({"drafts": None, "accepted": None, "per_position": (), "reported_length": 0.5}, "below 1"),
    "a round": ({"requests": (RequestReport((), (), (3, 0), (2, 2)),)}, "1 rounds accept more drafts than they had"),
    "lists": ({"requests": (RequestReport((), (), (1, 0), (2,)),)}, "1 requests list other numbers of rounds"),
    "listed": ({"source": "responses", "requests": (RequestReport((), (), (1, 0), (3, 3)),)}, "are 2, their sum says 100"),
    "itself": ({"flaws": ((Flaw.DISAGREES, "3 histograms contradict"),)}, "3 histograms contradict"),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_numbers(name: str) -> None:
    changes, words = IMPOSSIBLE[name]
    finding = one("E021", report(**changes))
    assert finding.severity == Severity.FAIL
    assert words in f"{finding.title}; {finding.measured}"


@pytest.mark.parametrize(
    ("other", "severity"),
    [
        ({}, Severity.PASS),
        ({"drafts": 50, "drafted": 150, "accepted": 60, "per_position": ()}, None),  # a part of the run
        ({"drafts": 200, "drafted": 600, "accepted": 240, "per_position": ()}, Severity.WARN),
        ({"drafts": 50, "drafted": 150, "accepted": 130, "per_position": ()}, Severity.WARN),
        ({"accepted": 110, "per_position": ()}, Severity.WARN),
    ],
)
def test_files_of_one_run(other: dict, severity: Severity | None) -> None:
    assert [f.severity for f in found(report(), report("log", **other)) if f.code == "E022"] == (
        [severity] if severity else []
    )


@pytest.mark.parametrize(
    ("said", "given_", "warns"), [("0.32.0", "0.32.0", 0), ("0.32.0+cpu", "0.32.0", 0), ("0.32.1", "0.32", 0), ("0.33.0", "0.32.0", 1), ("", "0.32.0", 0)]
)  # fmt: skip
def test_the_version_in_a_file(said: str, given_: str, warns: int) -> None:
    findings = [f for f in found(report(version=said), version=given_) if f.code == "E022"]
    assert len(findings) == warns


def test_a_run_without_speculation_that_speculates() -> None:
    assert "without speculation in the case" in one("E022", report(), steps=0).title


FLAWED = {
    Flaw.SIMULATED: ("E023", Severity.FAIL), Flaw.SETTINGS: ("E025", Severity.WARN), Flaw.SERVERS: ("E029", Severity.WARN),
    Flaw.CHANGES: ("E029", Severity.WARN), Flaw.CUT: ("E030", Severity.WARN), Flaw.NAN: ("E030", Severity.INFO),
    Flaw.FOREIGN: ("E028", Severity.FAIL), Flaw.SILENT: ("E028", Severity.WARN),
}  # fmt: skip


@pytest.mark.parametrize("flaw", FLAWED)
def test_each_flaw_is_a_finding(flaw: Flaw) -> None:
    code, severity = FLAWED[flaw]
    finding = one(
        code,
        report(),
        report("log", drafts=None, accepted=None, per_position=(), reported_length=2.2, flaws=((flaw, "so it is"),)),
    )
    assert (finding.severity, finding.title, finding.where) == (severity, "so it is", "x.log")
    assert finding.remedy


def test_silence_is_blocking_where_nothing_else_has_counts() -> None:
    silent = EngineReport("vllm", "log", ("x.log",), flaws=((Flaw.SILENT, "no SpecDecoding line"),))
    assert one("E028", silent).severity == Severity.BLOCKED
    assert not [f for f in found(silent) if f.code == "E020"]


@pytest.mark.parametrize(
    ("accepted", "drafts", "words"),
    [(0, 100, "exactly 1"), (0, 49, ""), (1, 100, ""), (300, 100, "exactly K + 1 = 4"), (299, 100, "")],
)
def test_exact_lengths(accepted: int, drafts: int, words: str) -> None:
    said = report(drafts=drafts, drafted=3 * drafts, accepted=accepted, per_position=())
    findings = [f for f in found(said) if f.code == "E024"]
    assert [words in f.title for f in findings] == ([True] if words else [])
    assert not [
        f for f in found(report(accepted=0, per_position=(), flaws=((Flaw.SIMULATED, "x"),))) if f.code == "E024"
    ]


@pytest.mark.parametrize(
    ("output", "answered", "severity", "words"),
    [
        (224, 4, Severity.PASS, "what was counted is what came out"),
        (218, 4, Severity.INFO, "6 tokens were counted past"),
        (226, 4, Severity.INFO, "2 tokens came out of rounds without a draft"),
        (200, 4, Severity.WARN, "do not fit the 200 tokens"),  # 24 over: at most 3 for each of 4 requests
        (400, 4, Severity.WARN, "do not fit the 400 tokens"),
        (217, None, Severity.INFO, "3 tokens were counted past"),
    ],
)
def test_rounds_against_tokens(output: int, answered: int | None, severity: Severity, words: str) -> None:
    finding = one("E026", report(output=output, answered=answered))
    assert finding.severity == severity
    assert words in finding.title


def test_eos_inside_the_accepted_prefix() -> None:
    # vllm #56101 (faults.md, case 29): K=5, all accepted, EOS third: counted 6, emitted 3.
    said = EngineReport("vllm", "counters", ("m",), 5, 1, 5, 5, (1, 1, 1, 1, 1), output=4, answered=1)
    finding = one("E026", said, steps=5)
    assert "3 tokens were counted past" in finding.title
    assert "accept length 6.000 as counted, 3.000 by what came out" in finding.evidence


def test_means_of_means() -> None:
    assert "is the same" in one("E027", report(lengths=(2.2, 2.2))).title
    assert "would be 2.50; pooled it is 2.20" in one("E027", report(lengths=(2.0, 3.0))).title
    only = EngineReport("trtllm", "log", ("x",), reported_length=2.5, mean_of_means=2.5, answered=7)
    assert one("E027", only).severity == Severity.NOT_COMPARABLE
    assert "no counts behind it" in one("E020", only).title


# ---- through the parsers, on files


CASES = {
    "sglang_0.5.3.log": ("sglang", "log", 3, {"E020"}),
    "sglang_0.5.9.log": ("sglang", "log", 5, {"E020"}),
    "sglang_0.5.23.log": ("sglang", "log", 3, {"E020"}),
    "sglang_server_info.json": ("sglang", "metrics", 3, {"E020"}),
    "vllm_get_metrics.txt": ("vllm", "metrics", 5, {"E020", "E026"}),
    "llamacpp_server.log": ("llamacpp", "log", 4, {"E020", "E026"}),
    "llamacpp_simple.log": ("llamacpp", "log", 3, {"E020", "E026"}),
    "trtllm_metrics.json": ("trtllm", "metrics", 3, {"E020"}),
}


def read(engine: str, kind: str, name: str, steps: int | None, folder: Path) -> list[EngineReport]:
    keys: dict[str, Any] = {"log": None, "metrics": [], "responses": None, kind: [name] if kind == "metrics" else name}
    return ENGINES[engine].read_reports(folder, *keys.values(), steps)


@pytest.mark.parametrize("name", CASES)
def test_the_fixtures(name: str) -> None:
    engine, kind, steps, codes = CASES[name]
    said = read(engine, kind, name, steps, Path(__file__).parent / "fixtures/engine_logs")
    findings = found(*said, steps=steps)
    assert {f.code for f in findings} == codes
    assert all(f.severity in (Severity.INFO, Severity.PASS, Severity.NOT_COMPARABLE) for f in findings)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["log", "responses"])
def test_the_demos_files_under_every_engine(engine: str, kind: str) -> None:
    name = {"log": "right_k5_serve.log", "responses": "right_k5_responses.jsonl"}[kind]
    findings = found(*read(engine, kind, name, 5, DEMO / "engine"), steps=5)
    foreign = [f.title for f in findings if f.code == "E028" and f.severity == Severity.FAIL]
    assert bool(foreign) == (engine != "vllm")
    assert all("vLLM" in title for title in foreign)


def test_simulated_acceptance_of_both_engines(tmp_path: Path) -> None:
    (tmp_path / "v.log").write_text(
        "(APIServer pid=7) INFO non-default args: {'speculative_config': {'method': 'eagle3', 'num_speculative_tokens': 3, "
        "'rejection_sample_method': 'synthetic'}}\n"
    )
    (tmp_path / "s.log").write_text("SGLANG_SIMULATE_ACC_LEN=2.5 python -m sglang.launch_server\n")
    for engine, name in (("vllm", "v.log"), ("sglang", "s.log")):
        assert "made up" in one("E023", *read(engine, "log", name, 3, tmp_path)).title


def test_a_log_of_two_engines_says_so(tmp_path: Path) -> None:
    texts = [(Path(__file__).parent / "fixtures/engine_logs/sglang_0.5.23.log").read_text()]
    texts.append((DEMO / "engine/right_k5_serve.log").read_text())
    (tmp_path / "both.log").write_text("".join(texts))
    assert "SGLang's figures" in one("E029", *read("vllm", "log", "both.log", 5, tmp_path), steps=5).title
    assert "vLLM's figures" in one("E029", *read("sglang", "log", "both.log", 3, tmp_path)).title


def test_settings_that_are_off_by_one(tmp_path: Path) -> None:
    info = json.loads((Path(__file__).parent / "fixtures/engine_logs/sglang_server_info.json").read_text())
    (tmp_path / "i.json").write_text(json.dumps({**info, "speculative_num_draft_tokens": 3}))
    finding = one("E025", *read("sglang", "metrics", "i.json", 3, tmp_path))
    assert "so a chain takes 4" in finding.title


@pytest.mark.parametrize("name", CASES)
def test_the_fixtures_through_a_case_file(tmp_path: Path, name: str) -> None:
    engine, kind, steps, codes = CASES[name]
    file = tiny.write_case(tmp_path)
    shutil.copy(Path(__file__).parent / "fixtures/engine_logs" / name, tmp_path)
    value = f'["{name}"]' if kind == "metrics" else f'"{name}"'
    file.write_text(tiny.TOML + f'[[serving]]\nname = "r"\nengine = "{engine}"\nsteps = {steps}\n{kind} = {value}\n')
    findings = reports.check(open_case(file))
    assert {f.code for f in findings} == codes
    assert {f.where for f in findings} == {name}
    assert str(tmp_path) not in str(findings)


def test_an_unreadable_file_is_left_to_c001(tmp_path: Path) -> None:
    file = tiny.write_case(tmp_path)
    (tmp_path / "m.prom").write_text("<html>\n")
    file.write_text(tiny.TOML + '[[serving]]\nname = "r"\nengine = "vllm"\nsteps = 2\nmetrics = ["m.prom"]\n')
    assert reports.check(open_case(file)) == []


def test_an_unknown_engine_is_e001_alone(tmp_path: Path) -> None:
    assert reports.check(SimpleNamespace(run=ServingRun("a", "mystery"), reports=lambda run: 1 / 0)) == []
    assert reports.check(SimpleNamespace(run=None)) == []


def test_what_cannot_be_is_not_the_engines_own_figure() -> None:
    finding = one("E020", report(drafted=110))
    assert finding.severity == Severity.NOT_COMPARABLE
    assert "120 accepted of 110 drafted tokens (E021)" in finding.title
    # a sound file beside it is used, and why the first is not
    beside = one("E020", report(drafted=110), report("log"))
    assert "from the log (partial)" in beside.title and "not used: the counters cannot be right" in beside.evidence


def test_simulated_acceptance_spoils_every_file_of_the_run() -> None:
    made_up = EngineReport("vllm", "log", ("x.log",), flaws=((Flaw.SIMULATED, "acceptance is made up"),))
    finding = one("E020", report(), made_up)
    assert finding.severity == Severity.NOT_COMPARABLE and "acceptance is made up (E023)" in finding.title


def test_k_of_another_file_of_the_run_is_no_contradiction() -> None:
    # the counters name no K and carry the case's 1; the log names 5
    said = report(steps=1, accepted=150, drafted=500, per_position=()), EngineReport("vllm", "log", ("x.log",), 5)
    assert not [f for f in found(*said, steps=1) if f.code == "E021"]
    assert [f for f in found(said[0], steps=1) if f.code == "E021"]


# ---- what cannot be is left out of all further arithmetic


def test_a_negative_accepted_count_is_no_diagnosis(tmp_path: Path) -> None:
    stats = {"num_spec_steps": 60, "num_draft_tokens": 180, "num_accepted_draft_tokens": -5, "num_spec_tokens": 3}
    row = {"choices": [{"token_ids": [1] * 9}], "metrics": {"speculative_decoding": stats}}
    (tmp_path / "r.jsonl").write_text(json.dumps(row) + "\n")
    findings = found(*read("vllm", "responses", "r.jsonl", 3, tmp_path))
    assert {f.code: f.severity for f in findings} == {"E020": Severity.NOT_COMPARABLE, "E021": Severity.FAIL}
    assert (
        "num_accepted_draft_tokens is -5 in 1 of 1 requests"
        in one("E021", *read("vllm", "responses", "r.jsonl", 3, tmp_path)).title
    )
    assert {f.where for f in findings} == {"r.jsonl"}


WRONG = (Flaw.DISAGREES, "3 histograms contradict")
ARITHMETIC = {
    "E022": {"source": "log", "drafts": 200, "drafted": 600, "accepted": 240, "per_position": ()},
    "E024": {"accepted": 0, "per_position": ()},
    "E026": {"output": 400, "answered": 4},
    "E027": {"lengths": (2.0, 3.0)},
}


@pytest.mark.parametrize("code", ARITHMETIC)
def test_no_arithmetic_on_what_cannot_be(code: str) -> None:
    before = [report()] if code == "E022" else []
    sound, wrong = report(**ARITHMETIC[code]), report(**ARITHMETIC[code], flaws=(WRONG,))
    assert code in {f.code for f in found(*before, sound)}
    assert code not in {f.code for f in found(*before, wrong)}
    assert "E021" in {f.code for f in found(*before, wrong)}


def test_a_sound_report_beside_it_is_still_looked_at() -> None:
    nothing = report("responses", accepted=0, per_position=())
    assert "x.responses" in one("E024", report(flaws=(WRONG,)), nothing).where
    assert (
        "mean of means 2.500" in one("E027", report(flaws=(WRONG,)), report("responses", lengths=(2.0, 3.0))).measured
    )


# ---- settings of the case that no engine has


@pytest.mark.parametrize(
    ("engine", "run", "words"),
    [
        ("vllm", {"topk": 4}, "topk 4 is no setting of vLLM"),
        ("vllm", {"topk": 1}, ""),
        # SGLang: topk + (steps - 1) * topk² candidates and the root: 4 + 2 * 16 + 1 = 37, 8 + 4 * 64 + 1 = 265
        ("sglang", {"topk": 4, "draft_tokens": 37}, ""),
        ("sglang", {"topk": 4, "draft_tokens": 38}, "38 draft tokens, and 3 steps with topk 4 have 36 candidates"),
        ("sglang", {"topk": 8, "draft_tokens": 266, "steps": 5}, "264 candidates and the root"),
        ("sglang", {"topk": 8, "draft_tokens": 265, "steps": 5}, ""),
        ("sglang", {"topk": 1, "draft_tokens": 4}, ""),
        ("sglang", {"topk": 1, "draft_tokens": 6}, "6 draft tokens, and 3 steps with topk 1 have 3 candidates"),
        ("sglang", {"topk": 4, "draft_tokens": 400, "steps": None}, ""),
        ("trtllm", {"topk": 4}, ""),
    ],
)
def test_settings_that_no_engine_has(engine: str, run: dict[str, Any], words: str) -> None:
    findings = [f for f in found(engine=engine, **run) if f.code == "E025"]
    assert [(f.severity, f.where) for f in findings] == ([(Severity.WARN, "case.toml")] if words else [])
    assert all(words in f.title and f.remedy for f in findings)


def test_settings_are_looked_at_where_no_file_can_be_read(tmp_path: Path) -> None:
    file = tiny.write_case(tmp_path)
    file.write_text(tiny.TOML + '[[serving]]\nname = "r"\nengine = "vllm"\nsteps = 2\ntopk = 4\nmetrics = ["m.prom"]\n')
    (tmp_path / "m.prom").write_text("<html>\n")
    assert [f.code for f in reports.check(open_case(file))] == ["E025"]


# ---- what is left out, and what the engine says beside it


def test_what_the_engine_says_of_its_weights_is_nothing_left_out(tmp_path: Path) -> None:
    file = tiny.write_case(tmp_path)
    shutil.copy(DEMO / "engine/wrong_k5_serve.log", tmp_path / "x.log")
    file.write_text(tiny.TOML + '[[serving]]\nname = "r"\nengine = "vllm"\nsteps = 5\nlog = "x.log"\n')
    findings = serving.check(open_case(file))
    (out,) = [f for f in findings if f.code == "E008"]
    assert out.title.startswith("5 intervals; what follows the last is never printed")
    assert "EAGLE model" not in f"{out.title}{out.measured}"
    (said,) = [f for f in findings if f.code == "E002" and "own words" in f.evidence]
    assert (said.severity, said.where) == (Severity.INFO, "x.log")
    assert "Detected EAGLE model without its own embed_tokens in the checkpoint" in f"{said.title}; {said.measured}"


def test_pods_in_one_log_are_a_finding(tmp_path: Path) -> None:
    line = "(APIServer pid=1) INFO 08-04 20:51:08 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: {:.2f}, " \
           "Accepted throughput: 1.00 tokens/s, Drafted throughput: 1.00 tokens/s, Accepted: {} tokens, Drafted: 300 tokens, " \
           "Per-position acceptance rate: {}, Avg Draft acceptance rate: 1.0%\n"  # fmt: skip
    texts = [
        "pod-a | " + line.format(2.5, 150, "0.800, 0.500, 0.200"),
        "pod-b | " + line.format(1.3, 30, "0.200, 0.070, 0.030"),
    ]
    (tmp_path / "x.log").write_text("".join(texts * 2))
    said = read("vllm", "log", "x.log", 3, tmp_path)
    assert "pod-b pid 1) is counted" in one("E029", *said).title
    assert "accept length 1.30, from the log (partial)" in one("E020", *said).title
