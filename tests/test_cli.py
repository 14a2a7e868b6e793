"""The command line: exit codes, clean standard output, one clear line for a wrong option."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from eagle3lab.__main__ import main
from eagle3lab.checks import CODES
from eagle3lab.dialects import ENGINES
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
    known = {f"{name} {version}" for name, engine in ENGINES.items() for version in engine.VERSIONS}
    assert set(content["readings"]["served"]) == known >= {"vllm 0.33.0 v1", "vllm 0.33.0 v2", "sglang 0.5.23"}


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


INPUTS = ("draft/model.safetensors", "target/model.safetensors", "samples/first.safetensors", "case.toml")


@pytest.mark.parametrize(
    "name", [*INPUTS, "samples/new.safetensors", "link.safetensors", "other.safetensors", "loop.safetensors"]
)
def test_forward_writes_over_nothing_but_its_own(run, case, name):
    """An input that is overwritten is lost, and the next run would read numbers for weights."""
    (case.parent / "link.safetensors").symlink_to(case.parent / "draft" / "model.safetensors")
    (case.parent / "loop.safetensors").symlink_to(case.parent / "loop.safetensors")
    save_file({"mine": torch.ones(1)}, case.parent / "other.safetensors")
    before = {f: f.read_bytes() for f in case.parent.rglob("*") if f.is_file()}
    code, out, err = run("forward", case, "--steps", "1", "-o", case.parent / name)
    assert (code, out) == (2, "")
    assert name in err
    assert {f: f.read_bytes() for f in case.parent.rglob("*") if f.is_file()} == before


def test_forward_may_be_run_again(run, case):
    out = case.parent / "o.safetensors"
    assert run("forward", case, "--steps", "1", "-o", out)[0] == 0
    assert run("forward", case, "--steps", "2", "-o", out)[0] == 0
    assert "step1.hidden" in load_file(out)
    case.write_text(case.read_text() + '\n[parity]\npath = "o.safetensors"\n')
    code, _, err = run("forward", case, "--steps", "1", "-o", out)
    assert code == 2, "now it is an input"
    assert "is an input of the case" in err


LONG = "x" * 300


@pytest.mark.parametrize("command", [
    ["forward", "CASE", "-o", f"{LONG}.safetensors"], ["forward", "CASE", "-o", "OUT", "--reading", LONG],
    ["slice-target", "CASE", "-o", LONG], ["check", LONG],
])  # fmt: skip
def test_names_that_no_file_can_have(run, case, tmp_path, command):
    names = {"CASE": case, "OUT": tmp_path / "o.safetensors"}
    code, out, err = run(*(names.get(a, a) for a in command))
    assert (code in (1, 2), out) == (True, "")
    assert "xxx" in err


@pytest.mark.parametrize("table", ["draft", "target", "samples", "log"])
def test_a_case_that_names_what_no_file_can_be_called(run, case, table):
    text = case.read_text()
    text = text + f'log = "{LONG}"\n' if table == "log" else text.replace(f'path = "{table}"', f'path = "{LONG}"')
    case.write_text(text)
    code, out, err = run("check", case)
    assert code in (1, 2)
    assert "xxx" in out + err


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_text_that_cannot_be_encoded_is_printed_all_the_same(case, repo, encoding, options):
    """A lone surrogate is no character of UTF-8, and JSON can hold it; an odd key must not cost the findings."""
    file = case.parent / "draft" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"odd\ud800": "\udfff ü"}))
    command = [sys.executable, "-m", "eagle3lab", "check", str(case), "--stage", "weights", *options]
    done = subprocess.run(
        command, cwd=repo, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=False
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert rb"\ud800" in done.stdout
    if options:
        (found,) = [f for f in json.loads(done.stdout)["findings"] if f["code"] == "W008"]
        assert "odd" in found["measured"]


def test_a_title_does_not_steer_the_terminal(run, case):
    case.write_text(case.read_text().replace('title = "', 'title = "\\u001b[31mred\\u202e\\u0007\\n', 1))
    code, out, _ = run("check", case, "--stage", "weights")
    assert code == 0
    assert out.startswith(r"\x1b[31mred\u202e\x07")
    assert not set(out) & {"\x1b", "\x07", "\u202e"}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_absolute_paths_of_a_case_are_not_shown(run, case, tmp_path, options):
    """What is shared says which file it is, not whose home it lies in."""
    elsewhere = tmp_path / "a private place"
    elsewhere.mkdir()
    text = case.read_text()
    for name in ("draft", "target", "samples"):
        (case.parent / name).rename(elsewhere / name)
        text = text.replace(f'path = "{name}"', f'path = "{elsewhere / name}"')
    (elsewhere / "samples" / "bad.safetensors").write_bytes(b"zz")
    (elsewhere / "draft" / "model.safetensors").write_bytes(b"zz" * 50)
    case.write_text(text)
    code, out, _ = run("check", case, *options)
    assert code == 1
    assert str(tmp_path) not in out
    assert "draft/model.safetensors" in out
    assert "bad.safetensors" in out


@pytest.mark.parametrize("given", ["draft", "../case/draft", "ABSOLUTE"])
def test_paths_stay_useful_wherever_the_case_was_opened(run, tmp_path, monkeypatch, given):
    case = tiny.write_case(tmp_path / "case")
    given = given.replace("ABSOLUTE", str(case.parent / "draft"))
    case.write_text(case.read_text().replace('path = "draft"', f'path = "{given}"'))
    (case.parent / "draft" / "model.safetensors").write_bytes(b"zz" * 50)
    for folder, name in ((case.parent, "."), (tmp_path, "case"), (tmp_path, str(case))):
        monkeypatch.chdir(folder)
        content = json.loads(run("check", name, "--stage", "weights", "--json")[1])
        (found,) = [f for f in content["findings"] if f["code"] == "C001"]
        assert found["where"] == ("../case/draft/model.safetensors" if ".." in given else "draft/model.safetensors")


@pytest.mark.parametrize(
    ("damage", "reading"),
    [
        (
            lambda t: t.update({n: s * 1e5 for n, s in t.items() if n[0] == "h"}),
            Reading(aux=(2, 4, 5), dtype="float16"),
        ),
        (lambda t: t["h.4"][20].fill_(float("nan")), Reading(aux=(2, 4, 5))),
    ],
)
def test_logits_that_are_not_finite_are_said_and_fail(run, case, tmp_path, damage, reading):
    for sample in (case.parent / "samples").glob("*.safetensors"):
        tiny.edit(sample, damage)
    file = tmp_path / "reading.json"
    file.write_text(reading.to_json())
    code, _, err = run("forward", case, "--reading", file, "-o", tmp_path / "out.safetensors", "--steps", "2")
    assert code == 1
    assert "NaN or infinite" in err
    if reading.dtype == "float16":  # a state with NaN is not compared at all
        other = tmp_path / "other.json"
        other.write_text(reading.replace(dtype="float32").to_json())
        code, out, err = run("compare", case, other, file, "--json")
        assert code == 1
        assert "reading.json:" in err
        assert "have NaN or infinite logits" in json.loads(out)["nonfinite"][0]


@pytest.mark.parametrize(
    ("scaling", "base", "says"),
    [
        ({"rope_type": "linear", "factor": 0}, 1e4, "factor is 0"),
        ({"rope_type": "yarn", "factor": "x"}, 1e4, "factor is 'x'"),
        ({"rope_type": "yarn", "factor": 4.0}, 1.0, "rope_theta is 1"),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 0}, 1e4, "original_max"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 2.0,
          "original_max_position_embeddings": 64}, 1e4, "both 2.0"),
    ],
)  # fmt: skip
def test_scaling_that_means_nothing_is_refused(run, case, tmp_path, scaling, base, says):
    plain = Reading(aux=(2, 4, 5)).to_dict()
    plain["rope"] |= {"scaling": scaling, "base": base}
    file = tmp_path / "reading.json"
    file.write_text(json.dumps(plain))
    code, _, err = run("forward", case, "--reading", file, "-o", tmp_path / "out.safetensors", "--steps", "1")
    assert code == 1
    assert says in err
    assert not (tmp_path / "out.safetensors").exists()


def test_positions_past_the_limit_are_said(run, case, tmp_path):
    tiny.edit_json(case.parent / "draft" / "config.json", max_position_embeddings=16)
    code, _, err = run("forward", case, "-o", tmp_path / "out.safetensors", "--steps", "2")
    assert code == 0
    assert "positions 16 to 38 lie past the draft's limit of 16" in err


def test_more_steps_than_a_text_has(run, case, tmp_path):
    for name, reading in (("a", Reading(aux=(2, 4, 5))), ("b", Reading(aux=(5, 4, 2)))):
        (tmp_path / f"{name}.json").write_text(reading.to_json())
    code, out, _ = run("compare", case, tmp_path / "a.json", tmp_path / "b.json", "--steps", "99")
    assert code == 0
    assert "–" in out
    code, _, err = run("compare", case, tmp_path / "a.json", "--steps", "-3")
    assert code == 2
    assert "--steps -3" in err
    far = tmp_path / "far.json"
    far.write_text(Reading(aux=(2, 4, 5), shift=39).to_json())
    code, _, err = run("forward", case, "--reading", far, "-o", tmp_path / "o.safetensors", "--steps", "1")
    assert code == 2
    assert "none is left to predict at shift 39" in err
