"""Which of the engine's figures can be used, at which K, and why none can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagle3lab.counts import EngineReport, Flaw, ServingRun

TOLERANCE = 0.005
"""Engines print lengths with 2 decimals."""


def contradictions(report: EngineReport) -> list[str]:
    """Sentences about counts of one report that cannot be together, [] when they can."""
    drafts, drafted, accepted, steps = report.drafts, report.drafted, report.accepted, report.steps
    positions, out = report.per_position, []
    if drafted is not None and accepted is not None and accepted > drafted:
        out.append(f"{accepted} accepted of {drafted} drafted tokens")
    if positions and accepted is not None and sum(positions) != accepted:
        out.append(f"per-position counts add up to {sum(positions)}, accepted says {accepted}")
    if list(positions) != sorted(positions, reverse=True) or (
        positions and drafts is not None and positions[0] > drafts
    ):
        out.append(f"per-position counts {positions} do not fall from {drafts} rounds")
    if drafts is not None and drafted is not None and drafted < drafts:
        out.append(f"{drafted} draft tokens in {drafts} rounds: a round has one at least")
    # of K as the case says it E012 speaks; SGLang's positions are a tree's levels, which have more nodes
    if drafts and positions and drafted is not None and drafted > drafts * len(positions) and report.engine != "sglang":
        out.append(f"{drafted} draft tokens in {drafts} rounds of {len(positions)} positions")
    length = report.accept_length if report.accept_length is not None else report.reported_length
    if length is not None and steps and length > steps + 1 + TOLERANCE:
        out.append(f"accept length {length:.3f} is more than K + 1 = {steps + 1}")
    if length is not None and length < 1 - TOLERANCE:
        out.append(f"accept length {length:.3f} is below 1, the bonus token alone")
    over = sum(a > d for r in report.requests for a, d in zip(r.accepted, r.drafted, strict=False))
    if over:
        out.append(f"{over} rounds accept more drafts than they had")
    ragged = sum(len(r.accepted) != len(r.drafted) for r in report.requests if r.drafted)
    if ragged:
        out.append(f"{ragged} requests list other numbers of rounds for accepted and for drafted tokens")
    listed = sum(len(r.accepted) for r in report.requests)
    if listed and report.source == "responses" and all(r.accepted for r in report.requests) and listed != drafts:
        out.append(f"the rounds listed request by request are {listed}, their sum says {drafts}")
    return out


def sound(run: ServingRun, reports: Sequence[EngineReport]) -> list[EngineReport]:
    """The reports whose numbers go together, at the K of the run: those that arithmetic may be done on."""
    return [report for report in settled(run, reports) if not doubts(report)]


def doubts(report: EngineReport) -> list[str]:
    """What the lab calls impossible in a report (E021), [] when nothing is."""
    return [*contradictions(report), *(text for flaw, text in report.flaws if flaw is Flaw.DISAGREES)]


def said_steps(run: ServingRun, reports: Sequence[EngineReport]) -> int | None:
    """K as the run's own files say it, best evidence first; None where they leave it to the case.

    A report that names no K carries the case's, so only another number, or one counted position by position, is its own.
    """
    for report in reports:
        counted = report.engine != "sglang" and len(report.per_position) == report.steps
        if report.steps and (report.steps != run.steps or counted):
            return report.steps
    return None


def settled(run: ServingRun, reports: Sequence[EngineReport]) -> list[EngineReport]:
    """The reports, those that name no K at the K that another file of the run names."""
    said = said_steps(run, reports)
    if said is None:
        return list(reports)
    return [replace(r, steps=said) if r.steps == run.steps and not r.per_position else r for r in reports]


@dataclass(frozen=True)
class Figures:
    """What can be used of a run's reports.

    Attributes:
        counted: the best report with counts that can be, None without one.
        printed: the best with a printed mean, likewise.
        why: why a figure that the engine gave is not used, "" when all are.
    """

    counted: EngineReport | None
    printed: EngineReport | None
    why: str = ""

    @property
    def length(self) -> float | None:
        """The accept length by counts, None without any."""
        return self.counted.accept_length if self.counted else None


def figures(run: ServingRun, reports: Sequence[EngineReport]) -> Figures:
    """Leaves out what the lab calls impossible (E021), and everything where acceptance is simulated (E023)."""
    made_up = next((text for r in reports for flaw, text in r.flaws if flaw is Flaw.SIMULATED), "")
    if made_up:
        return Figures(None, None, f"{made_up} (E023)")
    good, why = sound(run, reports), ""
    for report in settled(run, reports):
        if found := doubts(report):
            why = why or f"the {report.source} cannot be right: {found[0]} (E021)"
    counted = next((r for r in good if r.accept_length is not None), None)
    return Figures(counted, next((r for r in good if r.reported_length is not None), None), why)
