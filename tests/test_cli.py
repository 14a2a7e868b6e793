"""The command line: exit codes, clean standard output, one clear line for a wrong option."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from eagle3lab.__main__ import main
from eagle3lab.checks import CODES
from eagle3lab.reading import Reading


@pytest.fixture
def case(tmp_path: Path) -> Path:
    return tiny.write_case(tmp_path / 'it\'s a "case" ü')


@pytest.fixture
def run(capsys):
    """Runs a command: exit code, standard output, standard error; the last without a traceback, always."""

    def command(*arguments: object) -> tuple[int, str, str]:
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        out = capsys.readouterr()
        assert "Traceback" not in out.err
        return code, out.out, out.err

    return command


def test_check_prints_findings_for_people(run, case):
    code, out, err = run("check", case)
    assert code == 0
    assert out.startswith("tiny\n")
    assert "E001" in out
    assert "survey: 2 samples" in err  # progress is not in the way of the findings


def test_check_json_is_the_whole_of_standard_output(run, case):
    code, out, _ = run("check", case.parent, "--json")
    content = json.loads(out)
    assert code == 0
    assert list(content) == ["schema", "case", "title", "checked", "findings", "readings"]
    assert content["case"] == f"{case.parent.name}/case.toml"
    assert content["checked"] == sorted(CODES)
    assert set(content["findings"][0]) == {
        "code", "severity", "title", "where", "measured", "expected", "evidence", "remedy",
    }  # fmt: skip
    fitted = content["readings"]["fitted"]
    assert fitted["reading"]["aux"] == [2, 4, 5]
    assert (fitted["correct"][0], fitted["scored"][0], fitted["accuracy"][0]) == (54, 54, 1.0)
    assert fitted["accept_length"]["rounds"] == 27
    assert set(content["readings"]["served"]) == {"vllm 0.33.0 v1", "vllm 0.33.0 v2", "sglang 0.5.9", "sglang 0.5.23"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: tiny.pointer(root / "draft" / "model.safetensors"),
        lambda root: (root / "draft" / "config.json").write_text("{"),
        lambda root: tiny.pointer(root / "target" / "model.safetensors"),
        lambda root: [file.unlink() for file in (root / "samples").iterdir()],
    ],
    ids=["draft", "config", "target", "samples"],
)
def test_check_json_is_json_though_nothing_can_be_opened(run, case, damage):
    damage(case.parent)
    code, out, _ = run("check", case, "--json")
    content = json.loads(out)
    assert code == 1
    assert [f["code"] for f in content["findings"]].count("C001") == 1
    assert str(case.parent) not in out  # paths are relative to the case
    assert content["readings"]["fitted"] is None


def test_stages_are_chosen_and_their_codes_listed(run, case):
    content = json.loads(run("check", case, "--json", "--stage", "weights", "--stage", "serving")[1])
    assert {code[0] for code in content["checked"]} == set("CWE")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ((), 0),
        (("--strict",), 0),
        (("--fail-on", "FAIL"), 0),
        (("--fail-on", "BLOCKED"), 3),
        (("--fail-on", "INFO"), 3),
    ],
)
def test_a_gate_that_is_not_met_is_3(run, case, options, code):
    assert run("check", case, *options)[0] == code


def test_strict_stops_at_a_failure(run, case):
    tiny.edit_json(case.parent / "draft" / "config.json", head_dim=8)
    assert run("check", case, "--stage", "weights")[0] == 0
    assert run("check", case, "--stage", "weights", "--strict")[0] == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "CASE", "--run", "nope"], "no serving run 'nope'; found 'a run'"),
        (["check", "CASE", "--device", "banana"], "device: 'banana' cannot compute on this machine"),
        (["check", "CASE", "--stage", "nope"], "invalid choice: 'nope'"),
        (["check", "CASE", "--fail-on", "nope"], "invalid choice: 'nope'"),
        (["check", "/nowhere/case.toml"], "no such case"),
        (["check"], "required: CASE"),
        (["banana"], "invalid choice: 'banana'"),
        ([], "required: COMMAND"),
        (["forward", "CASE"], "required: -o/--out"),
        (["forward", "CASE", "-o", "x.txt"], "--out x.txt: expected the name of a file that ends in .safetensors"),
        (["forward", "CASE", "-o", "OUT", "--steps", "99"], "--steps 99: sample first has 40 tokens, so 1 to 38 steps"),
        (["forward", "CASE", "-o", "OUT", "--steps", "-1"], "--steps -1"),
        (["forward", "CASE", "-o", "OUT", "--steps", "two"], "invalid int value: 'two'"),
        (["forward", "CASE", "-o", "OUT", "--sample", "nope"], "no such sample; found first, second"),
        (["forward", "CASE", "-o", "OUT", "--aux", "a,b"], "AUX: found 'a,b'"),
        (["forward", "CASE", "-o", "OUT", "--aux", "2 4 5"], "AUX: found '2 4 5'"),
        (["forward", "CASE", "-o", "OUT", "--fed", "air"], "invalid choice: 'air'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_2(run, case, tmp_path, arguments, says):
    names = {"CASE": case, "OUT": tmp_path / "o.safetensors"}
    code, out, err = run(*(names.get(a, a) for a in arguments))
    assert (code, out) == (2, "")
    assert says in err


def test_a_fault_of_case_toml_is_2_and_all_of_them_are_shown(run, case):
    case.write_text('title = 3\n[draft]\npath = "x"\n[foo]\n')
    code, out, err = run("check", case, "--json")
    assert (code, out) == (2, "")
    assert "title: expected text" in err
    assert "'foo'" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--aux", "0,1,2"], "boundaries [1] are not recorded; found [0, 2, 4, 5, 8]"),
        (["--aux", "2,4"], "give 3 boundaries"),
        (["--reading", "/nowhere.json"], "not a Reading as JSON"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_1(run, case, tmp_path, arguments, says):
    code, _, err = run("forward", case, "-o", tmp_path / "o.safetensors", *arguments)
    assert code == 1
    assert says in err
    assert not (tmp_path / "o.safetensors").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a Reading as JSON"),
        ("[1]", "expected an object"),
        ("{}", "field 'aux' is missing"),
        ('{"aux": "abc"}', "aux='abc'"),
        ('{"aux": [2, 4, 5], "foo": 1}', "unknown fields foo"),
        ('{"aux": [2, 4, 5], "rope": 3}', "rope an object too"),
        ('{"aux": [2, 4, 5], "rope": {"base": "x"}}', "rope.base='x'"),
        ('{"aux": [2, 4, 5], "rope": {"scaling": [1]}}', "rope.scaling=[1]"),
        ('{"aux": [2, 4, 5], "rope": {"limit": "x"}}', "rope.limit='x'"),
        ('{"aux": [2, 4, 5], "shift": "x"}', "shift='x'"),
        ('{"aux": [2, 4, 5], "window": 0}', "window=0"),
        ('{"aux": [2, 4, 5], "dtype": "int8"}', "dtype='int8'"),
        ('{"aux": [2, 4, 5], "dropped": "x"}', "dropped='x'"),
        ('{"aux": [2, 4, 5], "logit_scale": NaN}', "logit_scale=nan"),
        ('{"aux": [2, 4, 5], "embedding": "own"}', "'embed_tokens.weight' is missing"),
        ('{"aux": [2, 4, 5], "aux_norm": "fc_norm"}', "'fc_norm.0.weight' is missing"),
    ],
)
def test_a_reading_that_is_none(run, case, tmp_path, text, says):
    (tmp_path / "r.json").write_text(text)
    code, _, err = run("forward", case, "-o", tmp_path / "o.safetensors", "--reading", tmp_path / "r.json")
    assert code == 1
    assert says in err


def test_forward_writes_states_and_logits_and_the_reading(run, case, tmp_path):
    out = tmp_path / "new folder" / "o.safetensors"
    assert run("forward", case, "-o", out, "--steps", "3", "--sample", "second", "--aux", "0,4,5")[0] == 0
    tensors = load_file(out)
    assert sorted(tensors) == sorted(f"step{j}.{what}" for j in range(3) for what in ("input_ids", "hidden", "logits"))
    for j in range(3):
        assert tensors[f"step{j}.logits"].shape == (39 - j, 32)
        assert tensors[f"step{j}.hidden"].dtype == torch.float32
    tokens = tiny.sample_tensors(12)["input_ids"]
    assert torch.equal(tensors["step1.input_ids"], tokens[2:])
    with safe_open(out, "pt") as handle:
        words = handle.metadata()
    assert Reading.from_json(words["reading"]).aux == (0, 4, 5)
    assert (words["sample"], words["steps"], words["fed"]) == ("second", "3", "recorded")


def test_a_reading_printed_by_check_can_be_given_to_forward(run, case, tmp_path):
    content = json.loads(run("check", case, "--json")[1])
    (tmp_path / "r.json").write_text(json.dumps(content["readings"]["served"]["vllm 0.33.0 v2"]["reading"]))
    code, _, err = run("forward", case, "-o", tmp_path / "o.safetensors", "--reading", tmp_path / "r.json")
    assert code == 0, err


@pytest.mark.parametrize("place", ["case.toml/o.safetensors", "folder.safetensors"])
def test_a_place_that_cannot_be_written(run, case, place):
    (case.parent / "folder.safetensors").mkdir()
    code, _, err = run("forward", case, "-o", case.parent / place)
    assert code in (1, 2)
    assert place in err


def test_a_broken_draft_is_1_with_its_file(run, case, tmp_path):
    tiny.pointer(case.parent / "draft" / "model.safetensors")
    code, _, err = run("forward", case, "-o", tmp_path / "o.safetensors")
    assert code == 1
    assert "model.safetensors: a Git LFS pointer" in err


def test_the_module_runs_as_a_program_from_any_folder(case, repo):
    command = [sys.executable, "-m", "eagle3lab", "check", ".", "--stage", "weights"]
    done = subprocess.run(command, cwd=case.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "W00" in done.stdout
