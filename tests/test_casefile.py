"""``case.toml``: every fault at once, each with its table and key; found from any folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from eagle3lab import open_case
from eagle3lab.casefile import find_case, read_case
from eagle3lab.errors import BadCase, LabError

WHOLE = tiny.TOML + tiny.RUN


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("draft", "target", "samples"):
        (tmp_path / name).mkdir()
    (tmp_path / "case.toml").write_text(WHOLE)
    return tmp_path / "case.toml"


def refused(file: Path, text: str | bytes) -> str:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadCase) as caught:
        read_case(file)
    assert "case.toml" in str(caught.value)
    return str(caught.value)


def test_a_case_is_read_with_its_paths_resolved(file):
    case = read_case(file)
    assert (case.title, case.draft, case.samples) == ("tiny", file.parent / "draft", file.parent / "samples")
    (run,) = case.runs
    assert (run.name, run.engine, run.aux_ids, run.steps, run.speculative) == ("a run", "vllm", (2, 4, 5), 2, True)


def test_only_the_draft_is_needed(file):
    file.write_text('[draft]\npath = "draft"\n')
    case = read_case(file)
    assert (case.target, case.samples, case.runs, case.title) == (None, None, (), file.parent.name)


FAULTS = {
    "unknown key": (WHOLE + "banana = 1\n", "[[serving]] 'a run': unknown key 'banana'; known: name, engine"),
    "unknown table": (WHOLE + "[foo]\na = 1\n", "unknown table or key 'foo'; known: draft"),
    "no draft": ('title = "x"\n', "table [draft] is missing"),
    "empty": ("", "table [draft] is missing"),
    "no path": ("[draft]\n", "[draft]: key 'path' is missing"),
    "draft is text": ('draft = "x"\n', "[draft]: found str, expected a table"),
    "path is a number": ("[draft]\npath = 3\n", "[draft] path: found 3, expected text"),
    "a missing folder": ('[draft]\npath = "drfat"\n', "[draft] path: 'drfat' is not there"),
    "one serving table": (tiny.TOML + '[serving]\nname = "a"\n', "expected [[serving]] tables"),
    "percent": (tiny.TOML + "[training]\naccuracy = [65, 0.5]\n", "65 is not between 0 and 1; give shares"),
    "accuracy in words": (tiny.TOML + '[training]\naccuracy = ["0.6"]\n', "'0.6' is not between 0 and 1"),
    "two runs of one name": (WHOLE + tiny.RUN, "name 'a run' is used twice"),
    "a missing log": (WHOLE + 'log = "nope.log"\n', "[[serving]] 'a run' log: 'nope.log' is not there"),
    "three metrics": (WHOLE + 'metrics = ["a", "b", "c"]\n', "metrics: expected one file, or the two"),
    "metrics of numbers": (WHOLE + "metrics = [1]\n", "metrics: expected one file"),
    "no seconds": (WHOLE + "seconds = 0\n", "seconds: 0 is not a number above 0"),
    "nan seconds": (WHOLE + "seconds = nan\n", "seconds: nan is not a number above 0"),
    "steps in words": (WHOLE.replace("steps = 2", 'steps = "two"'), "steps: found 'two', expected a whole number"),
    "steps true": (WHOLE.replace("steps = 2", "steps = true"), "steps: found True, expected a whole number"),
    "steps below 0": (WHOLE.replace("steps = 2", "steps = -2"), "steps: -2 is below 0"),
    "ids as text": (WHOLE.replace("[2, 4, 5]", '"2,4,5"'), "aux_ids: found '2,4,5', expected a list"),
    "ids with fractions": (WHOLE.replace("[2, 4, 5]", "[2.5, 4]"), "aux_ids: found [2.5, 4], expected whole numbers"),
    "no ids": (WHOLE.replace("[2, 4, 5]", "[]"), "aux_ids: found [], expected whole numbers"),
    "exclude as text": (WHOLE.replace('"samples"', '"samples"\nexclude = "a"'), "exclude: found 'a', expected a list"),
    "exclude numbers": (WHOLE.replace('"samples"', '"samples"\nexclude = [1]'), "exclude: found [1], expected name"),
    "boundaries in words": (WHOLE.replace('"samples"', '"samples"\nboundaries = ["a"]'), "boundaries: found ['a']"),
    "another final": (WHOLE.replace('"samples"', '"samples"\nfinal = "x"'), "final: found 'x', expected 'pre'"),
    "dump without a path": (WHOLE + "dump = { boundaries = [2] }\n", "dump: expected path ="),
    "an unknown key of dump": (WHOLE + 'dump = { path = "samples", ids = [2] }\n', "dump: unknown key 'ids'"),
    "dump of words": (WHOLE + 'dump = { path = "samples", boundaries = ["a"] }\n', "dump boundaries: found ['a']"),
    "no TOML": ("[draft\n", "not TOML"),
    "no text": (b"\xff\xfe\x00", "not TOML"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_names_table_key_found_and_expected(file, name):
    text, says = FAULTS[name]
    assert says in refused(file, text)


def test_all_faults_are_one_error(file):
    text = refused(
        file, 'title = 3\n[draft]\npath = 3\n[samples]\npath = "x"\nexclude = "y"\n[[serving]]\nsteps = "z"\n'
    )
    assert all(key in text for key in ("title", "[draft] path", "[samples] exclude", "[[serving]] 1 steps"))


def test_a_folder_stands_for_its_case(file):
    assert find_case(file.parent)[0] == file
    assert find_case(str(file))[0] == file


def test_a_relative_path_is_looked_for_here_then_beside_the_notebooks(file, monkeypatch, repo):
    monkeypatch.chdir(file.parent.parent)
    assert find_case(f"{file.parent.name}/case.toml") == (file, "in the working folder")
    assert find_case("data/demo/case.toml") == (repo / "data/demo/case.toml", "beside the notebooks")


@pytest.mark.parametrize("given", ["nope.toml", "/nope/case.toml"])
def test_a_case_that_is_nowhere(given):
    with pytest.raises(BadCase, match="no such case"):
        find_case(given)


def test_a_folder_called_case_toml_is_none(tmp_path):
    (tmp_path / "case.toml").mkdir()
    with pytest.raises(BadCase, match="no such case"):
        find_case(tmp_path)


@pytest.mark.parametrize("table", ["draft", "target", "samples"])
def test_names_longer_than_a_file_may_have_are_not_there(tmp_path, table):
    file = tiny.write_case(tmp_path)
    file.write_text(file.read_text().replace(f'path = "{table}"', f'path = "{"x" * 300}"'))
    with pytest.raises(LabError, match="xxx"):
        _ = open_case(file).samples
    with pytest.raises(BadCase, match="no such case"):
        open_case("y" * 300)
