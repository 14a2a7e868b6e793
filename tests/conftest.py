"""Shared fixtures: paths of the repository, one thread for torch so that tests do not fight over cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eagle3lab import Case, open_case
from eagle3lab.outcome import ScanResult

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

REPO = Path(__file__).parents[1]


def report_made() -> Path | None:
    """The demo's report that ``make report`` left, None where there is none or what it is made of was changed since.

    EAGLE3LAB_DEMO_REPORT names another one, for work on the tests themselves; of whatever age it is.
    """
    if named := os.environ.get("EAGLE3LAB_DEMO_REPORT"):
        return Path(named)
    made = REPO / "reports"
    books = sorted((REPO / "notebooks").glob("*.ipynb"))
    pages = [made / "index.html", made / "demo" / "search.json", *(made / "demo" / f"{b.stem}.html" for b in books)]
    if not all(page.exists() for page in pages) or [p.name for p in made.iterdir() if p.is_dir()] != ["demo"]:
        return None
    parts = [p for part in ("eagle3lab", "data/demo") for p in (REPO / part).rglob("*") if p.suffix != ".pyc"]
    newest = max(p.stat().st_mtime for p in [*parts, *books] if p.is_file())
    return made if newest < min(page.stat().st_mtime for page in pages) else None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share what takes a minute to make run on one worker: ``make test`` uses two."""
    for item in items:
        shared = {"demo_report": "report", "demo_scan": "demo", "demo_case": "demo"}
        names = [shared[f] for f in getattr(item, "fixturenames", ()) if f in shared]
        if names:
            item.add_marker(pytest.mark.xdist_group(min(names, key=["report", "demo"].index)))


@pytest.fixture(scope="session")
def repo() -> Path:
    """The repository's root."""
    return REPO


@pytest.fixture(scope="session")
def demo(repo: Path) -> Path:
    """The demo case."""
    return repo / "data" / "demo" / "case.toml"


@pytest.fixture(scope="session")
def demo_case(demo: Path) -> Case:
    """The demo, opened once: its evaluations are remembered between tests, its search also by a report made before."""
    made = report_made()
    return open_case(demo, out=made / "demo") if made else open_case(demo)


@pytest.fixture(scope="session")
def demo_scan(demo_case: Case) -> ScanResult:
    """The demo's search, run once (half a minute)."""
    return demo_case.scan


@pytest.fixture(scope="session")
def demo_report(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's report: that of ``make report``, or made here by the command line as a user would make it."""
    if made := report_made():
        return made
    out = tmp_path_factory.mktemp("report")
    command = [sys.executable, "-m", "eagle3lab", "report", str(demo), "-o", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert run.returncode == 0, run.stderr[-4000:]
    return out
