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
    """The demo, opened once: its evaluations are remembered between tests."""
    return open_case(demo)


@pytest.fixture(scope="session")
def demo_scan(demo_case: Case) -> ScanResult:
    """The demo's search, run once (half a minute)."""
    return demo_case.scan


@pytest.fixture(scope="session")
def demo_report(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's report, made once by the command line as a user would make it.

    EAGLE3LAB_DEMO_REPORT names one made before, for work on the tests themselves.
    """
    if made := os.environ.get("EAGLE3LAB_DEMO_REPORT"):
        return Path(made)
    out = tmp_path_factory.mktemp("report")
    command = [sys.executable, "-m", "eagle3lab", "report", str(demo), "-o", str(out)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert run.returncode == 0, run.stderr[-4000:]
    return out
