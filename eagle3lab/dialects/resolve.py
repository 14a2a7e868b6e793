"""Which Reading a case's programs make of a checkpoint: configured, trained, and every engine's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from eagle3lab.counts import ServingRun
from eagle3lab.dialects import ENGINES, OR, TRAINERS
from eagle3lab.dialects.common import own
from eagle3lab.errors import BadOption, Blocked
from eagle3lab.reading import Aux, Reading
from eagle3lab.records import Architecture, Interpretation

FALLBACK = "specforge"
"""The trainer whose conventions are taken when nothing says which one wrote the checkpoint: the plainest."""

NOTHING = "nothing would be accepted"
"""Words by which a dialect says, under ``invented``, that what it makes up decides every draft."""

ANY_LAYERS = 8
"""L where none is known and some wiring must be begun with: it is the search that says which one fits."""


def accepts_nothing(way: Interpretation) -> str:
    """What the program makes up in place of a tensor, where no draft can be right for it; ``""`` else.

    There is no Reading of such a run: its ``reading`` is the one that it would have with the tensor.
    """
    return next((text for text in way.invented if NOTHING in text), "")


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
    """The reading to start from when nothing says how the checkpoint is run: that of the program it looks like.

    Without layer ids and L its wiring is a mere beginning. Its table is the file's own where it has one: nothing says
    that there is a target to take another from.
    """
    for program in (arch.program, *arch.program.split(OR), FALLBACK):
        try:
            found = trained(arch, layers, program)
        except Blocked:
            found = trained(arch, ANY_LAYERS, program)
            if found and found.reading:
                wiring = tuple(range(2, 2 + arch.aux)) if len(found.reading.aux) != arch.aux else found.reading.aux
                found = replace(found, reading=found.reading.replace(aux=wiring))
        if found and found.reading:
            return _own_table(arch, found.reading)
    return None


def _own_table(arch: Architecture, reading: Reading) -> Reading:
    return reading.replace(embedding="own") if own(arch, "embed_tokens.weight") == "own" else reading


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

    Where the wiring cannot be told (no ids, L unknown) there is no reading, and ``source`` says why.
    """
    run = next((r for r in runs if r.speculative and r.engine in ENGINES), None)
    who = f"{run.engine} {run.version}".strip() if run else program or arch.program
    try:
        if run is not None:
            found = served(arch, layers, target_type, run)
        else:
            nobody = Interpretation("nobody the lab knows", None, source="no run of a known engine, no known trainer")
            found = trained(arch, layers, program or arch.program) or nobody
            if not target_type and found.reading:  # no target: the file's table is the only one there is
                found = replace(found, reading=_own_table(arch, found.reading))
    except Blocked as error:  # its wiring cannot be told; the search still says which one fits
        found = Interpretation(who, None, source=str(error))
    base = found.reading or (plainest(arch, layers) if aux else None)
    if aux and base:
        reading = base.replace(aux=aux)
        found = replace(found, program=f"{found.program} with AUX", reading=reading, source="AUX")
    return found


def everyone(
    arch: Architecture, layers: int | None, target_type: str, chosen: Sequence[str] = ()
) -> dict[str, Interpretation]:
    """How each known engine and version serves this checkpoint as its config stands; a refusal says why.

    Where an engine's default layers cannot be told, ``source`` says why there is no reading.

    Args:
        arch: the checkpoint.
        layers: L of the target.
        target_type: its ``model_type``.
        chosen: engines, each with a version (and runner) or without, which then stands for every known version; all
            when empty.

    Raises:
        BadOption: an engine that is not known.
    """
    out = {}
    for name, version in _versions(chosen):
        number, _, runner = version.partition(" ")
        run = ServingRun(name=f"{name} {version}", engine=name, version=number, runner=runner)
        try:
            out[run.name] = ENGINES[name].served(arch, layers, target_type, run)
        except ValueError as error:
            out[run.name] = Interpretation(run.name, None, source=str(error))
    return out


def _versions(chosen: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(engine, version) of each choice, every known one of all engines when there is no choice."""
    for choice in chosen or tuple(ENGINES):
        name, _, version = choice.strip().partition(" ")
        if name not in ENGINES:
            raise BadOption(f"engine {choice!r} is not known; known: {', '.join(ENGINES)}, alone or with a version")
        yield from ((name, v) for v in ([version.strip()] if version.strip() else ENGINES[name].VERSIONS))
