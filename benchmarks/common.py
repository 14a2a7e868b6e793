"""Timing in turn: each contender runs once a round, the best round of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

DEMO = Path(__file__).parents[1] / "data" / "demo" / "case.toml"


def best_of(contenders: Mapping[str, Callable[[], object]], rounds: int = 3) -> dict[str, float]:
    """Seconds of each contender's best round, after one round to warm up."""
    for run in contenders.values():
        run()
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best
