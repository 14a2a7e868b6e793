"""Which Reading a case's programs make of a checkpoint: configured, trained, and every engine's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eagle3lab.counts import ServingRun
from eagle3lab.dialects import ENGINES, OR, TRAINERS
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

    Where the files look like those of several trainers ("a or b"), what all of them imply; a reading of None, with the
    difference in the notes, when they do not agree.

    Raises:
        Blocked: its default layers cannot be told without the target.
    """
    names = program.split(OR)
    if any(name not in TRAINERS for name in names):
        return None
    try:
        found = [TRAINERS[name].trained(arch, layers) for name in names]
    except ValueError as error:
        raise Blocked(f"trained reading of {program}: {error}") from error
    first, *others = found
    if not others:
        return first
    notes = [f"{one.program}: {note}" for one in found for note in one.notes]
    readings = [one.reading for one in found]
    differs = [
        f"{first.program} against {other.program}: {first.reading.words(other.reading)}"
        for other in others
        if first.reading and other.reading and not _same(first.reading, other.reading)
    ]
    agreed = readings[0] if not differs and None not in readings else None
    told = [f"the files look like {program}; name it under [training] program", *differs]
    return replace(first, program=program, reading=agreed, notes=(*told, *notes))


def _same(a: Reading, b: Reading) -> bool:
    """Equal as a forward sees it: without scaling the rule that would scale is of no account."""
    if not a.rope.scaling:
        a = a.replace(rope=replace(a.rope, rule=b.rope.rule))
    return a == b


def plainest(arch: Architecture, layers: int | None) -> Reading | None:
    """The reading to start from when nothing says how the checkpoint is run: that of the program it looks like."""
    for program in (arch.program, *arch.program.split(OR), FALLBACK):
        try:
            found = trained(arch, layers, program)
        except Blocked:
            return None
        if found and found.reading:
            return found.reading
    return None


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
    else:
        nobody = Interpretation("nobody the lab knows", None, source="no run of a known engine, no known trainer")
        found = trained(arch, layers, program or arch.program) or nobody
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
