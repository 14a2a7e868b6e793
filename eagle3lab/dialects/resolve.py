"""Which Reading a case's programs make of a checkpoint: configured, trained, and every engine's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eagle3lab.counts import ServingRun
from eagle3lab.dialects import ENGINES, TRAINERS
from eagle3lab.errors import Blocked
from eagle3lab.reading import Aux, Reading
from eagle3lab.records import Architecture, Interpretation

FALLBACK = "specforge"
"""The trainer whose conventions are taken when nothing says which one wrote the checkpoint: the plainest."""


def served(arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
    """How the run's engine serves this checkpoint.

    Raises:
        Blocked: the engine is not one the lab knows, or its default layers cannot be told without the target.
    """
    if run.engine not in ENGINES:
        raise Blocked(f"[[serving]] {run.name!r}: engine {run.engine!r} is not known; known: {', '.join(ENGINES)}")
    try:
        return ENGINES[run.engine].served(arch, layers, target_type, run)
    except ValueError as error:
        raise Blocked(f"[[serving]] {run.name!r}: {error}") from error


def trained(arch: Architecture, layers: int | None, program: str) -> Interpretation | None:
    """What the trainer's dialect implies; None for a program without one.

    Raises:
        Blocked: its default layers cannot be told without the target.
    """
    if program not in TRAINERS:
        return None
    try:
        return TRAINERS[program].trained(arch, layers)
    except ValueError as error:
        raise Blocked(f"trained reading of {program}: {error}") from error


def plainest(arch: Architecture, layers: int | None) -> Reading | None:
    """The reading to start from when nothing says how the checkpoint is run: that of the program it looks like."""
    program = arch.program if arch.program in TRAINERS else FALLBACK
    try:
        found = trained(arch, layers, program)
    except Blocked:
        return None
    return found.reading if found else None


def configured(
    arch: Architecture,
    layers: int | None,
    target_type: str,
    runs: Sequence[ServingRun],
    program: str,
    aux: Aux | None,
) -> Interpretation:
    """What the first speculative run of ``runs`` makes of the checkpoint; without one, the trained reading, if any.

    Args:
        arch: the checkpoint.
        layers: L of the target.
        target_type: its ``model_type``.
        runs: the chosen run first.
        program: the trainer.
        aux: boundaries that replace the configured ones.
    """
    run = next((r for r in runs if r.speculative and r.engine in ENGINES), None)
    if run is not None:
        found = served(arch, layers, target_type, run)
    elif (program or arch.program) in TRAINERS:
        found = trained(arch, layers, program or arch.program) or Interpretation(program, None)
    else:
        found = Interpretation("nobody the lab knows", None, source="no run of a known engine, no known trainer")
    base = found.reading or (plainest(arch, layers) if aux else None)
    if aux and base:
        reading = base.replace(aux=aux)
        found = replace(found, program=f"{found.program} with AUX", reading=reading, source="AUX")
    return found


def everyone(arch: Architecture, layers: int | None, target_type: str) -> dict[str, Interpretation]:
    """How each known engine and version serves this checkpoint as its config stands; a refusal says why."""
    out = {}
    for name, engine in ENGINES.items():
        for version in engine.VERSIONS:
            number, _, runner = version.partition(" ")
            run = ServingRun(name=version, engine=name, version=number, runner=runner)
            try:
                out[f"{name} {version}"] = served(arch, layers, target_type, run)
            except Blocked as error:
                out[f"{name} {version}"] = Interpretation(f"{name} {version}", None, refused=(str(error),))
    return out
