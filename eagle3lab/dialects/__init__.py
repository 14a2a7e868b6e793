"""One module a program: what it writes, and the Reading under which it trains or serves a draft.

A trainer's module has ``NAME``, ``recognises(config, names)`` and ``trained(arch, layers)``; an engine's has ``NAME``
and ``served(arch, layers, target_type, run)``. ``layers`` is the target's number of blocks L, None when unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.dialects import eagle, lab, sglang, specforge, speculators, vllm
from eagle3lab.dialects.specforge import dumps as specforge_dumps
from eagle3lab.recordings import Reader
from eagle3lab.records import Architecture, Interpretation


class Trainer(Protocol):
    """What a trainer's module offers."""

    NAME: str

    def recognises(self, config: Mapping[str, Any], names: Iterable[str]) -> bool:
        """Whether a checkpoint with this config and these stored names looks like the program's own."""

    def trained(self, arch: Architecture, layers: int | None) -> Interpretation:
        """The Reading under which the program trains this checkpoint."""


class Engine(Protocol):
    """What an engine's module offers."""

    NAME: str

    @property
    def VERSIONS(self) -> tuple[str, ...]:
        """The versions whose rules the lab knows."""

    def served(self, arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
        """The Reading under which the engine serves this checkpoint."""

    def words(self, aux: tuple[int | str, ...], arch: Architecture, target_type: str) -> str:
        """Boundaries as the ids a user must type for this engine."""

    def read_reports(self, root: Any, log: Any, metrics: Any, responses: Any, steps: Any) -> list[EngineReport]:
        """What the engine's files say of a run, best evidence first."""


TRAINERS: dict[str, Trainer] = {m.NAME: m for m in (speculators, specforge, eagle)}
"""In the order in which they are asked to recognise a checkpoint."""

ENGINES: dict[str, Engine] = {m.NAME: m for m in (vllm, sglang)}

READERS: tuple[Reader, ...] = tuple(reader for module in (lab, specforge_dumps) for reader in module.READERS)
"""Of every kind of recording, in the order in which they are asked whether a file is theirs."""


def program_of(config: Mapping[str, Any], names: Iterable[str]) -> str:
    """The trainer whose files these look like, ``"unknown"`` when none does."""
    stored = list(names)
    return next((name for name, module in TRAINERS.items() if module.recognises(config, stored)), "unknown")
