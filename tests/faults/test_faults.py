"""The fault bench: every kind of fault is found and named, alone and stacked; what only looks like one raises no alarm.

``make test`` runs three seeds, each on a part of the kinds so that all of them come up; ``make test-long`` runs ten seeds
of everything and compares the table with the committed one (docs/fault-bench.txt; write it with
``python -m tests.faults 10 > docs/fault-bench.txt``).
"""

from __future__ import annotations

import pytest

from faults.cases import CROSS, PAIRS, SOUND
from faults.judge import everything, judge, sound, table
from faults.kinds import KINDS

PARTS = 8
"""One in so many kinds is run a seed, others at each seed: all of `make test` has about a minute for them."""

FAULTS = [(kind, seed) for seed in range(3) for kind in ((*KINDS, *PAIRS)[seed::PARTS] + CROSS[seed :: 3 * PARTS])]
LIKE = [(case, seed) for seed in range(3) for case in SOUND[seed::PARTS]]


@pytest.mark.parametrize(
    ("kind", "seed"), FAULTS, ids=[f"{seed}-{kind.section} {kind.name} {kind.codes[0]}" for kind, seed in FAULTS]
)
def test_a_fault_is_found_and_named(kind, seed):
    verdict = judge(kind, seed)
    assert verdict.found, verdict.said
    assert verdict.named, verdict.said
    assert not verdict.false, verdict.said


@pytest.mark.parametrize(("case", "seed"), LIKE, ids=[f"{seed}-{case.name}" for case, seed in LIKE])
def test_what_only_looks_like_a_fault_raises_no_alarm(case, seed):
    verdict = sound(case, seed)
    assert not verdict.false, verdict.said


def test_a_wrong_name_counts_as_a_false_alarm():
    """The judge itself: a case whose fault is not the one that is expected fails on both counts."""
    from dataclasses import replace

    residual = next(kind for kind in KINDS if kind.name == "residual flag lost")
    verdict = judge(replace(residual, words=("feedback",)), 0)
    assert not verdict.named
    assert verdict.false == ("F006 residual",)


@pytest.mark.long
def test_all_kinds_over_ten_seeds(repo):
    """About fifteen minutes of one core."""
    verdicts = everything(range(10))
    wrong = [v for v in verdicts if not v.named or v.false]
    assert not [v for v in wrong if v.section == "look-alike"], [(v.name, v.seed, v.said) for v in wrong]
    committed = (repo / "docs" / "fault-bench.txt").read_text(encoding="utf-8")
    assert table(verdicts) in committed, table(verdicts)
