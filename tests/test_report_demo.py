"""The demo's report, its sidecars and its pages: the numbers of the demo's README, found where a reader finds them.

Expected values are those of the table in data/demo/README.md, measured by another program when the case was made.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

RIGHT = ["0.619", "0.538", "0.507", "0.471", "0.431"]
WRONG = ["0.002", "0.003", "0.002", "0.002", "0.004"]
SCORED = [1172, 1156, 1140, 1124, 1108]
NAMES = ["01_weights", "02_vocab_mapping", "03_hidden_states", "04_forward_pass", "05_acceptance", "06_serving_gap"]


def sidecar(report: Path, name: str) -> dict:
    return json.loads((report / "demo" / f"{name}.json").read_text())


def text(report: Path, name: str) -> str:
    page = re.sub(r"<(style|script).*?</\1>", " ", (report / "demo" / f"{name}.html").read_text(), flags=re.S)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page.replace("<wbr>", ""))))


@pytest.mark.parametrize("name", ["04_forward_pass", "05_acceptance"])
def test_configured_and_fitted_stand_side_by_side_with_the_readmes_numbers(demo_report: Path, name: str):
    shown = text(demo_report, name)
    for accuracies in (RIGHT, WRONG):
        assert " ".join(accuracies) in shown
    assert "2.193" in shown
    assert "1.002" in shown
    assert "538" in shown
    assert "1,170" in shown


def test_the_counts_behind_them_are_in_the_sidecars(demo_report: Path):
    correct = sidecar(demo_report, "04_forward_pass")["counts"]
    rates = [c / n for c, n in zip(correct["fitted (0, 15, 27)"], SCORED, strict=True)]
    assert [f"{r:.3f}" for r in rates] == RIGHT
    rounds = sidecar(demo_report, "05_acceptance")["counts"]
    assert rounds["fitted (0, 15, 27)"] == {"rounds": 538, "accepted": 642}  # 1 + 642 / 538 = 2.1933
    assert rounds["configured (15, 27, 30)"] == {"rounds": 1170, "accepted": 2}


def test_the_serving_gap_shows_what_vllm_measured(demo_report: Path):
    shown = text(demo_report, "06_serving_gap")
    for number in ("2.200", "539 rounds", "13 of 16", "14 of 16", "16 of 16", "1.002", "2.083", "1.011"):
        assert number in shown, number


def test_the_verdict_is_certain_of_the_embedding_slot_and_ties_the_middle(demo_report: Path):
    content = sidecar(demo_report, "04_forward_pass")
    by_code = {f["code"]: f for f in content["findings"]}
    assert by_code["F003"]["severity"] == "FAIL"
    assert "slot 0 = 0, the embedding output" in by_code["F003"]["title"]
    assert "[0, 15, 27]" in by_code["F003"]["remedy"]
    assert by_code["F004"]["severity"] == "UNDETERMINED"
    assert "slot 1 may be any of 14, 15, 16" in by_code["F004"]["title"]


def test_every_sidecar_says_what_it_read_and_leaks_no_folder(demo_report: Path, repo: Path):
    for name in [*NAMES, "00_index"]:
        content = sidecar(demo_report, name)
        assert content["schema"] == 1
        assert {"draft/config.json", "draft/model.safetensors", "case.toml"} <= {i["path"] for i in content["inputs"]}
        assert all(len(i["sha256"]) == 64 for i in content["inputs"])
        for file in (f"{name}.json", f"{name}.html", f"{name}.ipynb"):
            whole = (demo_report / "demo" / file).read_text()
            assert str(repo) not in whole, file
            assert str(demo_report) not in whole, file


def test_a_page_is_small_and_asks_for_nothing(demo_report: Path):
    for page in demo_report.rglob("*.html"):
        assert page.stat().st_size < 2_000_000, page.name
        assert not re.search(r"""(src|href)\s*=\s*["']https?:""", page.read_text()), page.name


def covered_by_t2d(folder: Path) -> dict[str, int]:
    """The same counts by the other way into the map: t2d, which the lab's coverage never reads."""
    t2d = load_file(folder / "draft" / "model.safetensors")["t2d"]
    samples = [load_file(f) for f in (folder / "samples").glob("*.safetensors") if not f.name.startswith("turns")]
    replies = torch.cat([s["input_ids"][s["loss_mask"].bool()] for s in samples])
    return {"covered": int(t2d[replies].sum()), "replies": len(replies)}


def test_plain_papermill_works_from_any_folder(demo: Path, repo: Path, tmp_path: Path):
    """From a folder that is not the repository, with a relative CASE: found beside the notebooks, and said so."""
    command = [
        sys.executable, "-m", "papermill", str(repo / "notebooks" / "02_vocab_mapping.ipynb"), "out.ipynb", "-k", "python3",
        "-p", "CASE", "data/demo/case.toml", "-p", "OUT", "verdicts",
    ]  # fmt: skip
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    content = json.loads((tmp_path / "verdicts" / "02_vocab_mapping.json").read_text())
    assert content["counts"] == covered_by_t2d(demo.parent)
    assert "beside the notebooks" in (tmp_path / "out.ipynb").read_text()
    # INTERACTIVE is True by default, and still no control is built where nobody could move it
    assert '"widgets"' not in (tmp_path / "out.ipynb").read_text()
