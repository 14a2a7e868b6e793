"""Runs one case of the bench and compares its findings with what is wrong in it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planted import make

from eagle3lab import open_case
from eagle3lab.records import Finding, Severity
from faults.cases import CROSS, EACH, PAIRS, Sound
from faults.kinds import COST, KINDS, Kind

CONSEQUENCES = {*COST, "E002", "V006", "S005"}
"""Findings that say what a fault costs or touches, not what it is."""


@dataclass(frozen=True)
class Verdict:
    """What came out of one case.

    Attributes:
        name: the kind's.
        section: of faults.md; ``stacked`` for pairs, ``look-alike`` for sound cases.
        seed: of the draw.
        found: whether a finding of an expected code is severe enough.
        named: whether all of the fault's words, and those of the others in the case, stand in such findings.
        false: FAIL findings that are about something else.
        said: what failed, for a person.
    """

    name: str
    section: str
    seed: int
    found: bool
    named: bool
    false: tuple[str, ...]
    said: str = ""


def judge(kind: Kind, seed: int) -> Verdict:
    """One fault, or a stack of them."""
    findings = _findings(kind, kind.stages, seed)
    hits = [f for f in findings if f.code in kind.codes and f.severity.rank <= kind.severity.rank]
    named = any(all(word in _text(f) for word in kind.words) for f in hits)
    for code, word in kind.more:
        named = named and any(f.code == code and word in _text(f) for f in findings if f.severity == Severity.FAIL)
    allowed = {*kind.codes, *kind.also, *CONSEQUENCES}
    false = [f"{f.code} {f.where}" for f in findings if f.severity == Severity.FAIL and f.code not in allowed]
    false += _wrong_names(kind, findings)
    return Verdict(kind.name, kind.section, seed, bool(hits), named, tuple(false), _said(findings))


def sound(case: Sound, seed: int) -> Verdict:
    """A case that nothing is wrong with: found and named mean that nothing failed."""
    findings = _findings(case, (), seed)
    false = tuple(f"{f.code} {f.where}" for f in findings if f.severity == Severity.FAIL and f.code not in case.allow)
    return Verdict(case.name, "look-alike", seed, not false, not false, false, _said(findings))


def _wrong_names(kind: Kind, findings: Sequence[Finding]) -> list[str]:
    """Conventions that are blamed and are none of the faults in the case: F006 names one field each."""
    wanted = [kind.words[0] if "F006" in kind.codes else "", *(word for code, word in kind.more if code == "F006")]
    blamed = [f for f in findings if f.code == "F006" and f.severity == Severity.FAIL]
    if "F006" in kind.also and "F006" not in kind.codes and not kind.more:
        return []
    return [f"F006 {f.where}" for f in blamed if not any(word and word in f.where for word in wanted)]


def _findings(case: Kind | Sound, stages: Sequence[str], seed: int) -> list[Finding]:
    world = make(case.plan.but(seed=seed))
    if case.damage:
        case.damage(world)
    with tempfile.TemporaryDirectory() as folder:
        return open_case(world.write(Path(folder))).findings(*stages)


def _text(f: Finding) -> str:
    return " ".join((f.title, f.where, f.measured, f.remedy))


def _said(findings: Sequence[Finding]) -> str:
    return "; ".join(f"{f.code} {f.severity}: {f.title}" for f in findings if f.severity.rank <= Severity.WARN.rank)


def kinds_of(seed: int) -> tuple[Kind, ...]:
    """All kinds and pairs, and the share of the crossed cases that is this seed's."""
    return (*KINDS, *PAIRS, *CROSS[seed % EACH :: EACH])


def table(verdicts: Sequence[Verdict]) -> str:
    """Kind, cases, found, named right, false alarms; the totals last."""
    rows: dict[tuple[str, str], list[Verdict]] = {}
    for v in verdicts:
        rows.setdefault((v.section, v.name), []).append(v)
    width = max(len(name) for _, name in rows)
    lines = [f"{'kind':<12} {'fault':<{width}} {'cases':>5} {'found':>5} {'named':>5} {'false alarms':>12}"]
    for (section, name), found in rows.items():
        lines.append(f"{section:<12} {name:<{width}} " + _numbers(found))
    faults = [v for v in verdicts if v.section != "look-alike"]
    for word, some in (("faults", faults), ("look-alikes", [v for v in verdicts if v.section == "look-alike"])):
        if some:
            lines.append(f"{'total':<12} {word:<{width}} " + _numbers(some))
    return "\n".join(lines)


def _numbers(found: Sequence[Verdict]) -> str:
    false = sum(bool(v.false) for v in found)
    return f"{len(found):>5} {sum(v.found for v in found):>5} {sum(v.named for v in found):>5} {false:>12}"
