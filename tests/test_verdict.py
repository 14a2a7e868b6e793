"""The sidecar: complete, readable by anything that reads JSON, and never half written."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eagle3lab import verdict
from eagle3lab.errors import BadFile
from eagle3lab.records import Finding, Severity

BAD = Finding("V003", Severity.FAIL, "wrong states", measured="[1]", expected="[2]")
GOOD = Finding("W001", Severity.PASS, "all there")


def _write(path: Path, **changes: Any) -> Path:
    content: dict[str, Any] = {
        "notebook": "01_weights",
        "title": "Weights",
        "sentence": "One is wrong.",
        "findings": [GOOD, BAD],
        "parameters": {"STEPS": 5},
        "inputs": [],
        "counts": {},
        "seconds": 1.23456,
    }
    return verdict.write(path, **{**content, **changes})


def test_round_trip(tmp_path: Path) -> None:
    path = _write(tmp_path / "new" / "01_weights.json")
    content = verdict.read(path)
    assert list(content) == [
        "schema", "notebook", "title", "sentence", "severity", "parameters", "inputs", "versions", "git",
        "findings", "counts", "seconds",
    ]  # fmt: skip
    assert content["severity"] == "FAIL"
    assert content["seconds"] == 1.235
    assert content["findings"][1] == BAD.to_dict()
    assert {"python", "eagle3lab", "torch", "safetensors"} <= content["versions"].keys()
    assert content["git"] is None or content["git"].isalnum()
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_only_numbers_that_json_knows(tmp_path: Path) -> None:
    counts = {
        "nan": math.nan,
        "inf": -math.inf,
        "numpy": np.array([1.0, np.nan]),
        "scalar": np.float32(0.5),
        "torch": torch.tensor([[1, 2]]),
        "tuple": (1, (2.0, math.inf)),
        "set": {2, 1},
        "severity": Severity.NOT_COMPARABLE,
        "finding": GOOD,
        3: range(2),
    }
    path = _write(tmp_path / "a.json", counts=counts, seconds=None)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    content = json.loads(path.read_text(), parse_constant=refuse)
    assert content["counts"] == {
        "nan": None,
        "inf": None,
        "numpy": [1.0, None],
        "scalar": 0.5,
        "torch": [[1, 2]],
        "tuple": [1, [2.0, None]],
        "set": [1, 2],
        "severity": "NOT COMPARABLE",
        "finding": GOOD.to_dict(),
        "3": [0, 1],
    }
    assert content["seconds"] is None


def test_no_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, out, here = tmp_path / "cases" / "demo", tmp_path / "out" / "demo", tmp_path / "here"
    for folder in (case, out, here):
        folder.mkdir(parents=True)
    (case / "case.toml").touch()
    monkeypatch.chdir(here)
    finding = Finding("S001", Severity.WARN, f"short file {case}/samples/a", where=str(here / "b"))
    parameters = {"CASE": str(case / "case.toml"), "OUT": str(out), "READING": Path(case / "fitted.json")}
    path = _write(
        out / "a.json", findings=[finding], parameters=parameters, sentence=f"see {Path.home()}/x and {out}/y"
    )
    content = verdict.read(path)
    assert content["parameters"] == {"CASE": "case.toml", "OUT": "demo", "READING": "fitted.json"}
    assert content["findings"][0]["title"] == "short file samples/a"
    assert content["findings"][0]["where"] == "./b"
    assert content["sentence"] == "see ~/x and OUT/demo/y"
    assert str(tmp_path) not in path.read_text()


def test_relative_case_is_found_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "case.toml").touch()
    monkeypatch.chdir(tmp_path)
    path = _write(
        tmp_path / "out" / "a.json",
        parameters={"CASE": "demo/case.toml"},
        sentence=f"at {tmp_path}/demo/draft",
    )
    content = verdict.read(path)
    assert content["sentence"] == "at draft"
    assert content["parameters"] == {"CASE": "demo/case.toml"}


def test_never_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "a.json", sentence="first")

    def fail(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        _write(path, sentence="second")
    assert verdict.read(path)["sentence"] == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("not json", "readable"),
        ([], "schema"),
        ({"schema": 2}, "found 2"),
        ({"severity": "BAD"}, "BAD"),
        ({"findings": [{"code": "X"}]}, r"findings\[0\]"),
        ({"findings": [{"code": "X", "title": "t", "severity": "?"}]}, r"findings\[0\].severity"),
        ({"sentence": None, "git": 3}, r"(?s)sentence.*git"),
    ],
)
def test_read_refuses(tmp_path: Path, change: Any, says: str) -> None:
    path = _write(tmp_path / "a.json")
    if isinstance(change, dict):
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    else:
        path.write_text(change if isinstance(change, str) else json.dumps(change))
    with pytest.raises(BadFile, match=says):
        verdict.read(path)


def test_read_names_every_missing_key(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"schema": 1}')
    with pytest.raises(BadFile) as caught:
        verdict.read(path)
    assert len(caught.value.faults) >= 11
    assert str(tmp_path) not in str(caught.value)


def test_inputs(tmp_path: Path) -> None:
    case = tmp_path / "demo"
    (case / "draft").mkdir(parents=True)
    (case / "case.toml").write_bytes(b"title = 'x'")
    (case / "draft" / "b").write_bytes(b"bb")
    (case / "draft" / "a").write_bytes(b"a")
    (tmp_path / "outside").write_bytes(b"")
    rows = verdict.inputs([case / "case.toml", case / "draft", case / "draft" / "a", tmp_path / "outside"], case)
    assert [row["path"] for row in rows] == ["case.toml", "draft/a", "draft/b", "../outside"]
    assert rows[0] == {
        "path": "case.toml",
        "bytes": 11,
        "sha256": hashlib.sha256(b"title = 'x'").hexdigest(),
    }
    with pytest.raises(BadFile, match="gone"):
        verdict.inputs([case / "gone"], case)


def test_inputs_from_elsewhere_do_not_tell_where(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.touch()
    assert verdict.inputs([file], Path("/nowhere/demo"))[0]["path"] == "model"


def test_large_inputs_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "WHOLE", 100)
    monkeypatch.setattr(verdict, "TOTAL", 150)
    monkeypatch.setattr(verdict, "END", 10)
    sizes = {"a": 101, "b": 100, "c": 60, "d": 20}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(range(size)))
    rows = verdict.inputs([tmp_path / name for name in sizes], tmp_path)
    # a is large by itself, c is beyond the total, d is no longer than its two ends.
    assert [row.get("sampled", False) for row in rows] == [True, False, True, False]
    ends = hashlib.sha256(b"101" + bytes(range(10)) + bytes(range(91, 101))).hexdigest()
    assert rows[0] == {"path": "a", "bytes": 101, "sha256": ends, "sampled": True}
