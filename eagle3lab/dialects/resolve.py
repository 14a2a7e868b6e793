"""Which Reading a case's programs make of a checkpoint: configured, trained, and every engine's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from eagle3lab.casefile import CaseFile
from eagle3lab.counts import ServingRun
from eagle3lab.dialects import ENGINES, OR, TRAINERS, spelled
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


def named(file: CaseFile) -> CaseFile:
    """The case with its engines and its trainer by the names that the lab has for them, however they are spelled."""
    runs = tuple(replace(run, engine=spelled(run.engine, ENGINES)) for run in file.runs)
    return replace(file, runs=runs, program=spelled(file.program, TRAINERS))


def accepts_nothing(way: Interpretation) -> str:
    """What the program makes up in place of a tensor, where no draft can be right for it; ``""`` else.

    There is no Reading of such a run: its ``reading`` is the one that it would have with the tensor.
    """
    return next((text for text in way.invented if NOTHING in text), "")


def usual(arch: Architecture) -> tuple[int, ...]:
    """Ids, in any engine's own numbers, that give ``fc`` as many states as it takes; which ones says nothing."""
    return tuple(range(2, 2 + arch.aux))


def served(arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
    """How the run's engine serves this checkpoint.

    Raises:
        Blocked: the engine is not one the lab knows, or its default layers cannot be told without the target.
    """
    if run.engine not in ENGINES:
        raise Blocked(_strange(run))
    try:
        found = ENGINES[run.engine].served(arch, layers, target_type, run)
        if found.refused:  # for its ids alone: what else it would do is known all the same
            other = ENGINES[run.engine].served(arch, layers, target_type, replace(run, aux_ids=usual(arch)))
            found = replace(found, conventions=other.reading)
        return found
    except ValueError as error:
        raise Blocked(f"[[serving]] {run.name!r}: {error}") from error


def id_faults(arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> tuple[str, ...]:
    """Those of the reasons why the run's engine refuses that other layer ids would end."""
    told = served(arch, layers, target_type, run).refused
    left = served(arch, layers, target_type, replace(run, aux_ids=usual(arch))).refused
    return () if len(left) >= len(told) else tuple(reason for reason in told if reason not in left)


def _strange(run: ServingRun) -> str:
    ids = f"; nor is what its aux_ids {list(run.aux_ids)} mean" if run.aux_ids is not None else ""
    return f"[[serving]] {run.name!r}: engine {run.engine!r} is not known; known: {', '.join(ENGINES)}{ids}"


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
    chosen: bool = False,
) -> Interpretation:
    """What the first speculative run of ``runs`` makes of the checkpoint; without one, the trained reading, if any.

    Args:
        arch: the checkpoint.
        layers: L of the target.
        target_type: its ``model_type``.
        runs: the chosen run first.
        program: the trainer.
        aux: boundaries that replace the configured ones.
        chosen: whether the first run was asked for by name: none of the others then stands in for it.

    Where the wiring cannot be told (no ids, L unknown) there is no reading, and ``source`` says why. Nor is there one
    for a run that was asked for and whose engine is not known. Where no run has a known engine, the trained
    reading stands in as a guess.
    """
    drafting = [r for r in runs if r.speculative]
    unknown = next((r for r in drafting if r.engine not in ENGINES), None)
    run = next((r for r in drafting if r.engine in ENGINES), None)
    alone = chosen and unknown is not None and unknown is runs[0]
    try:
        if alone and unknown:
            found = Interpretation(
                unknown.engine or unknown.name, None, source=_strange(unknown), unknown=_strange(unknown)
            )
        elif run is not None:
            found = served(arch, layers, target_type, run)
        else:
            found = _as_trained(arch, layers, target_type, program)
    except Blocked as error:  # its wiring cannot be told; the search still says which one fits
        who = f"{run.engine} {run.version}".strip() if run else program or arch.program
        found = Interpretation(who, None, source=str(error))
    if run is None and unknown and not alone:
        found = _guess(found, unknown, program)
    base = found.reading or found.conventions or (plainest(arch, layers) if aux else None)
    if aux and base:
        source = f"AUX; {found.unknown}" if found.unknown else "AUX"
        found = replace(
            found, program=f"{found.program} with AUX", reading=base.replace(aux=aux), source=source, guess=False
        )
    return found


def _as_trained(arch: Architecture, layers: int | None, target_type: str, program: str) -> Interpretation:
    nobody = Interpretation("nobody the lab knows", None, source="no run of a known engine, no known trainer")
    found = trained(arch, layers, program or arch.program) or nobody
    if not target_type and found.reading:  # no target: the file's table is the only one there is
        return replace(found, reading=_own_table(arch, found.reading))
    return found


def _guess(found: Interpretation, run: ServingRun, program: str) -> Interpretation:
    """What training implies, in the place of a run whose engine is not known, and said to be no more than that."""
    why = _strange(run)
    if found.reading is None:
        said = "; ".join((why, *found.refused, *filter(None, [found.source])))
        return replace(found, program=run.engine or run.name, refused=(), source=said, unknown=why)
    looks = "which trained the draft" if program else "which the checkpoint looks like"
    return replace(
        found,
        program=f"{found.program} (a guess: engine {run.engine!r} is not known)",
        source=f"{why}; as a guess the trained reading of {found.program}, {looks}, stands in",
        unknown=why,
        guess=True,
    )


def everyone(
    arch: Architecture,
    layers: int | None,
    target_type: str,
    chosen: Sequence[str] = (),
    ids: tuple[int, ...] | None = None,
) -> dict[str, Interpretation]:
    """How each known engine and version serves this checkpoint as its config stands; a refusal says why.

    Where an engine's default layers cannot be told, ``source`` says why there is no reading.

    Args:
        arch: the checkpoint.
        layers: L of the target.
        target_type: its ``model_type``.
        chosen: engines, each with a version (and runner) or without, which then stands for every known version; all
            when empty.
        ids: given to each in its own numbers; None as its config says.

    Raises:
        BadOption: an engine that is not known.
    """
    out = {}
    for name, version in _versions(chosen):
        number, _, runner = version.partition(" ")
        run = ServingRun(name=f"{name} {version}", engine=name, version=number, runner=runner, aux_ids=ids)
        try:
            out[run.name] = ENGINES[name].served(arch, layers, target_type, run)
        except ValueError as error:
            out[run.name] = Interpretation(run.name, None, source=str(error))
    return out


def _versions(chosen: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(engine, version) of each choice, every known one of all engines when there is no choice."""
    for choice in chosen or tuple(ENGINES):
        name, _, version = choice.strip().partition(" ")
        name = spelled(name, ENGINES)
        if name not in ENGINES:
            raise BadOption(f"engine {choice!r} is not known; known: {', '.join(ENGINES)}, alone or with a version")
        yield from ((name, v) for v in ([version.strip()] if version.strip() else ENGINES[name].VERSIONS))
