"""A case gives every check that its files allow, and says what the missing and broken ones stop."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny
import torch

from eagle3lab.case import Case, open_case
from eagle3lab.checks import STAGES
from eagle3lab.errors import BadCase, BadOption, Blocked
from eagle3lab.records import Finding, Severity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_case(tmp_path / "a case ü").parent


def by_code(findings: list[Finding]) -> dict[str, list[Finding]]:
    out: dict[str, list[Finding]] = {}
    for f in findings:
        out.setdefault(f.code, []).append(f)
    return out


def without(folder: Path, *tables: str) -> Case:
    text = tiny.TOML + tiny.RUN
    for table in tables:
        text = text.replace(tiny.RUN if table == "serving" else f'[{table}]\npath = "{table}"\n', "")
    (folder / "case.toml").write_text(text)
    return open_case(folder)


def test_a_sound_case_has_no_bad_finding(folder):
    findings = open_case(folder).findings()
    bad = [f for f in findings if f.severity.rank < Severity.UNDETERMINED.rank and f.code != "E001"]
    assert not bad
    assert {f.code[0] for f in findings} == set("WVSFAE")
    found = by_code(findings)
    assert found["E001"][0].severity == Severity.BLOCKED  # the run has no files
    assert "accuracy 1.000" in found["F003"][0].measured


def test_the_case_opens_from_another_working_folder(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert open_case("a case ü/case.toml").sample().name == "first"
    monkeypatch.chdir(folder / "samples")
    assert open_case("../case.toml").draft.arch.aux == 3


def test_an_unknown_run_lists_the_known_ones(folder):
    with pytest.raises(BadCase, match="no serving run 'nope'; found 'a run'"):
        open_case(folder, "nope")


@pytest.mark.parametrize("aux", ["a,b", "2,,4", "2;4;5", "2 4 5", ",", "-1,4,5"])
def test_boundaries_that_are_none(folder, aux):
    with pytest.raises(BadOption, match="AUX: found"):
        open_case(folder, aux=aux)


def test_boundaries_by_hand_replace_the_configured_ones(folder):
    assert open_case(folder, aux=" 0, 4,5 ").configured.reading.aux == (0, 4, 5)


@pytest.mark.parametrize("device", ["banana", "meta", ""] + ([] if torch.cuda.is_available() else ["cuda", "cuda:7"]))
def test_a_device_that_is_not_there(folder, device):
    with pytest.raises(BadOption, match="cannot compute on this machine; there are: cpu"):
        open_case(folder, device=device)


@pytest.mark.parametrize(
    ("tables", "blocked", "given"),
    [
        (("samples",), {"C002", "V006", "F005", "E001"}, {"W002", "V001", "V007", "F001", "E009"}),
        (("target",), {"C002", "V007", "S004", "F005", "E001"}, {"W002", "V006", "S001", "S006", "F001", "E009"}),
        (("serving",), {"E001"}, {"F003", "A001", "E009"}),
        (("samples", "target", "serving"), {"C002", "V006", "V007", "F005", "E001"}, {"W002", "V001", "F001", "E009"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_not_given_blocks_its_own_questions_only(folder, tables, blocked, given):
    found = by_code(without(folder, *tables).findings())
    assert {code for code, fs in found.items() if any(f.severity == Severity.BLOCKED for f in fs)} == blocked
    assert given <= set(found)
    assert not [f for fs in found.values() for f in fs if f.severity == Severity.FAIL]
    for f in found.get("C002", []):
        assert f.evidence.startswith("not checked: ")


@pytest.mark.parametrize("tables", [(), ("target",)])
def test_an_unreadable_draft_is_one_finding_and_stops_nothing_else(folder, tables):
    tiny.pointer(folder / "draft" / "model.safetensors")
    case = without(folder, *tables)
    found = by_code(case.findings())
    (broken,) = found["C001"]
    assert broken.where == "draft/model.safetensors"  # relative to the case: no home folder in a shared report
    assert "git lfs pull" in broken.measured
    assert broken.evidence == "not checked: weights, vocab, forward, acceptance, serving"
    assert {"S001", "S002", "S006", "S009"} <= set(found)
    assert not set("WVFA") & {code[0] for code in found}


def test_an_unreadable_target_stops_what_needs_it(folder):
    file = folder / "target" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:2000])
    found = by_code(open_case(folder).findings())
    (broken,) = found["C001"]
    assert broken.where == "target/model.safetensors"
    assert "cut off" in broken.measured
    assert {"W002", "V001", "V006", "S001", "S006", "F001"} <= set(found)
    for code in ("V007", "S003", "S004"):
        assert found[code][0].severity == Severity.BLOCKED
        assert "cut off" in found[code][0].measured


def test_unreadable_samples_do_not_stop_the_checkpoints_checks(folder):
    shutil.rmtree(folder / "samples")
    found = by_code(open_case(folder).findings())
    (broken,) = found["C001"]
    assert "check [samples] path" in broken.measured
    assert {"W002", "V001", "V007", "F001"} <= set(found)


def test_one_bad_sample_among_good_ones(folder):
    tiny.edit(folder / "samples" / "first.safetensors", lambda t: t.update({"h.2": t["h.2"][:30]}))
    found = by_code(open_case(folder).findings())
    (bad,) = [f for f in found["S001"] if f.severity == Severity.FAIL]
    assert "first" in bad.title
    assert "h.2 has 30 rows for 40 tokens" in bad.measured
    (left_out,) = found["A002"]
    assert "sample first is left out" in left_out.title
    assert "accuracy 1.000" in found["F003"][0].measured
    assert "27 reply rows of 1 samples" in found["F005"][0].evidence


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda t: t["h.2"][20].fill_(float("nan")), "S002"),
        (lambda t: t.update({n: torch.ones(40, 24) for n in t if n[0] == "h"}), "S008"),
        (lambda t: t["loss_mask"].zero_(), "S006"),
        (lambda t: [t.pop(n) for n in ("h.0", "h.4", "h.8")], "S010"),
        (lambda t: t["input_ids"].__setitem__(20, 99), "S001"),
    ],
    ids=["NaN", "width", "mask", "boundaries", "tokens"],
)
def test_a_sample_that_cannot_be_scored_does_not_spoil_the_others(folder, change, code):
    """Garbage in one recording once made the verdict 'wrong wiring' on all."""
    tiny.edit(folder / "samples" / "first.safetensors", change)
    found = by_code(open_case(folder).findings())
    assert any(f.severity in (Severity.FAIL, Severity.WARN) and "first" in f.where + f.title for f in found[code])
    (wiring,) = found["F003"]
    assert wiring.severity == Severity.PASS
    assert "1.000" in wiring.measured
    assert "first" in found["A002"][0].title


def test_states_that_were_not_recorded_convict_nobody(folder):
    for name in tiny.NAMES:
        tiny.edit(folder / "samples" / f"{name}.safetensors", lambda t: [t.pop("h.5"), t.pop("h.8")])
    (wiring,) = by_code(open_case(folder).findings("forward"))["F003"]
    assert wiring.severity == Severity.UNDETERMINED
    assert "feeds boundaries (2, 4, 5), which cannot be run" in wiring.title
    assert "record boundaries (2, 4, 5)" in wiring.remedy
    assert "[5] are not recorded" in wiring.evidence


def test_reaching_trainings_figure_does(folder):
    text = (tiny.TOML + tiny.RUN).replace("[2, 4, 5]", "[1, 3, 6]") + "[training]\naccuracy = [1.0]\n"
    (folder / "case.toml").write_text(text)
    (wiring,) = by_code(open_case(folder).findings("forward"))["F003"]
    assert wiring.severity == Severity.FAIL
    assert "the draft fits (2, 4, 5), as well as in training" in wiring.title


def test_a_wrong_wiring_is_named_with_both_scores(folder):
    (folder / "case.toml").write_text((tiny.TOML + tiny.RUN).replace("[2, 4, 5]", "[0, 2, 4]"))
    (wiring,) = by_code(open_case(folder).findings("forward"))["F003"]
    assert wiring.severity == Severity.FAIL
    assert "feeds boundaries (0, 2, 4), the draft fits (2, 4, 5)" in wiring.title
    assert "accuracy 1.000" in wiring.measured
    assert '"eagle_aux_hidden_state_layer_ids": [2, 4, 5]' in wiring.remedy


def test_an_engine_that_the_lab_does_not_know(folder):
    (folder / "case.toml").write_text((tiny.TOML + tiny.RUN).replace('"vllm"', '"tensorrt"'))
    case = open_case(folder)
    found = by_code(case.findings())
    assert found["E001"][0].severity == Severity.BLOCKED
    assert "does not know the engine 'tensorrt'" in found["E001"][0].title
    assert found["E001"][0].expected == "vllm or sglang or trtllm or llamacpp"
    assert found["F003"][0].severity == Severity.PASS
    with pytest.raises(Blocked, match="tensorrt"):
        case.served(case.runs[0])


def test_an_engines_own_number_stands_without_a_prediction(folder):
    (folder / "m.prom").write_text(
        "vllm:spec_decode_num_drafts_total 100\nvllm:spec_decode_num_draft_tokens_total 200\n"
        "vllm:spec_decode_num_accepted_tokens_total 107\n"
    )
    text = tiny.TOML.replace('[samples]\npath = "samples"\n', "") + tiny.RUN + 'metrics = ["m.prom"]\n'
    (folder / "case.toml").write_text(text)
    (one,) = by_code(open_case(folder).findings())["E001"]
    assert one.severity == Severity.BLOCKED
    assert "engine 2.070 (100 rounds)" in one.measured


def test_a_broken_log_leaves_the_rest_of_the_stage(folder):
    (folder / "x.log").write_bytes(b"\0" * 50)
    (folder / "case.toml").write_text(tiny.TOML + tiny.RUN + 'log = "x.log"\n')
    found = by_code(open_case(folder).findings("serving"))
    assert found["C001"][0].where == "x.log"
    assert "E009" in found


def test_one_stage_at_a_time(folder):
    case = open_case(folder)
    for stage, letter in zip(STAGES, "WVSFAE", strict=True):
        assert {f.code[0] for f in case.findings(stage)} == {letter}
