"""Shared fixtures: paths of the repository, one thread for torch so that tests do not fight over cores."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

REPO = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def repo() -> Path:
    """The repository's root."""
    return REPO


@pytest.fixture(scope="session")
def demo(repo: Path) -> Path:
    """The demo case."""
    return repo / "data" / "demo" / "case.toml"
