"""The ``spec_decode`` counters that vLLM and llama.cpp both have, under prefixes of their own, as a report.

Names and meaning (engines.md 7.2; llama.cpp's ``server-task.cpp`` took vLLM's names over in 2026, by reading): a draft
is one verify round with at least one draft token; per-position counts are cumulative over all drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.dialects import whose
from eagle3lab.dialects.evidence import steps_note
from eagle3lab.dialects.prometheus import Growth, Series, counter_growth, prometheus
from eagle3lab.errors import BadFile

Reader = Callable[[Path, str], list[Series]]


@dataclass(frozen=True)
class Names:
    """What an engine calls its counters.

    Attributes:
        engine: as in the case, ``vllm``.
        program: its own spelling, ``vLLM``.
        prefix: before every metric, ``vllm:``.
        output: counter of generated tokens, without prefix.
        answered: counter of finished requests, ``""`` where it has none.
    """

    engine: str
    program: str
    prefix: str
    output: str
    answered: str = ""

    def full(self, name: str) -> str:
        """The metric's whole name, without ``_total``."""
        return self.prefix + name


def of_counters(
    names: Names, root: Path, files: tuple[str, ...], steps: int | None, read: Reader = prometheus
) -> EngineReport:
    """How the counters grew from the first to the last of ``files``; of one file, its totals.

    Args:
        names: the engine's words.
        root: the case folder.
        files: relative to it, oldest first.
        steps: K as the case says.
        read: gives a file's samples.

    Raises:
        BadFile: no metrics, or counters that cannot be a difference (see `counter_growth`).
    """
    spec = {key: names.full(f"spec_decode_num_{key}") for key in ("drafts", "draft_tokens", "accepted_tokens")}
    place = names.full("spec_decode_num_accepted_tokens_per_pos")
    more = [names.full(name) for name in (names.output, names.answered) if name]
    growth = counter_growth(root, files, (*spec.values(), place, *more), read)
    drafts, drafted, accepted = (growth.total(name) for name in spec.values())
    found = _positions(growth, place, files[-1])
    positions = tuple(found.get(j, 0) for j in range(max(found, default=-1) + 1))
    said = len(positions) or None
    flaws = _silence(names, growth, drafts, files[-1])
    notes = [*growth.notes, *(steps_note(said, steps) if drafts is not None else [])]
    if positions and drafts and drafted is not None and drafts <= drafted < drafts * len(positions):
        notes.append(f"{drafted} draft tokens in {drafts} rounds of K {len(positions)}: some were cut short")
    return EngineReport(
        names.engine,
        "counters",
        files,
        None if drafts is None else said or steps,
        drafts,
        drafted,
        accepted,
        positions,
        notes=tuple(notes),
        output=growth.total(names.full(names.output)),
        answered=growth.total(names.full(names.answered)) if names.answered else None,
        flaws=tuple(flaws),
    )


def _positions(growth: Growth, place: str, file: str) -> dict[int, int]:
    counts: dict[int, int] = {}
    for (name, labels), value in growth.values.items():
        if name != place:
            continue
        position = dict(labels).get("position", "")
        if not position.isdecimal() or len(position) > 3:
            raise BadFile(file, f"{name}: found position={position!r}; expected 0, 1, …; save the metrics again")
        counts[int(position)] = counts.get(int(position), 0) + value
    return counts


def _silence(names: Names, growth: Growth, drafts: int | None, file: str) -> list[tuple[Flaw, str]]:
    """Why there is no draft in the counters, [] when there is one."""
    if drafts:
        return []
    if drafts == 0:
        return [(Flaw.SILENT, "the counters did not move: no draft was verified between the files")]
    if any(name.startswith(names.prefix) for name in growth.names):
        counter = names.full("spec_decode_num_drafts")
        return [(Flaw.SILENT, f"no {counter} counter in {file}: this server did not speculate")]
    other = whose.metrics_of(growth.names)
    words = f"{other}'s" if other else f"not {names.program}'s"
    return [(Flaw.FOREIGN, f"no {names.prefix} metric in {file}: these metrics are {words}")]
