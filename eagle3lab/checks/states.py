"""The states that an engine recorded beside those of training (E011)."""

from __future__ import annotations

from dataclasses import replace

from eagle3lab.checks.evidence import Opened
from eagle3lab.counts import ServingRun
from eagle3lab.errors import BadFile, Blocked
from eagle3lab.gap.dumps import SlotMatch, compare_states, severity
from eagle3lab.gap.pairing import Overlap, overlap
from eagle3lab.records import Finding, Severity
from eagle3lab.samples import Samples

MOST_TEXTS = 8
"""Texts of a dump that are compared: what an engine does to its states it does to all of them."""


def compared(case: Opened, run: ServingRun) -> list[tuple[str, Overlap, list[SlotMatch]]]:
    """Texts of the run's dump beside the samples with the same tokens: (dump's name, overlap, slot by slot).

    At most `MOST_TEXTS` of them, the first that have a sample.

    Raises:
        BadFile: the dump cannot be read; the text names the key of ``dump`` that is at fault.
        Blocked: no text of it is in the samples.
    """
    recorded = dump_of(case, run)
    texts = {name: s.input_ids for name in case.samples.looked_at if (s := case.readable(name)) is not None}
    out: list[tuple[str, Overlap, list[SlotMatch]]] = []
    for name in recorded.looked_at:
        theirs = recorded[name]
        found = overlap(theirs.input_ids, texts)
        if found is None or len(out) == MOST_TEXTS:
            continue
        sample = case.samples[found.name]
        engine = {k: v[: found.length] for k, v in theirs.states.items()}
        training = {k: v[: found.second + found.length] for k, v in sample.states.items()}
        out.append((name, found, compare_states(engine, training, found.second)))
    if not out:
        raise Blocked(f"run {run.name!r}: no text of its dump {run.dump['path']!r} begins like a sample (8 tokens or more); "
                      "record one of the samples' prompts with the engine")  # fmt: skip
    return out


def dump_of(case: Opened, run: ServingRun) -> Samples:
    """The states that a run's engine recorded, read like any recording; ``dump`` says where and which boundaries."""
    known = replace(case.samples.known, boundaries=tuple(run.dump.get("boundaries", ())), final="")
    return Samples(case.root / str(run.dump["path"]), case.root, (), known)


def engine_states(case: Opened) -> list[Finding]:
    """E011 of every run with a dump."""
    findings = []
    for run in case.runs:
        if not run.dump:
            continue
        where = f"run {run.name!r}: {run.dump['path']}"
        try:
            found = compared(case, run)
        except BadFile as error:
            findings.append(Finding(
                "E011", Severity.BLOCKED, f"the engine's dump cannot be compared: {error.line}", where,
                remedy='say which boundaries it holds: dump = {path = "…", boundaries = [0, 15, 27]}, in its own order'))  # fmt: skip
        except Blocked as error:
            findings.append(Finding("E011", Severity.NOT_COMPARABLE, str(error), where))
        else:
            findings.append(_dump(found, where))
    return findings


def _dump(found: list[tuple[str, Overlap, list[SlotMatch]]], where: str) -> Finding:
    slots = [(name, m) for name, _, matches in found for m in matches]
    name, top = min(slots, key=lambda pair: (Severity(severity(pair[1])).rank, -pair[1].wrong - pair[1].bad_rows))
    worst = Severity(severity(top))
    alike = sum(m.verdict == top.verdict for _, m in slots)
    shared = ", ".join(f"{name}: {o.length} tokens of {o.name}" for name, o, _ in found[:4])
    title = (
        "the engine's states are those of training"
        if worst == Severity.PASS
        else f"slot {top.slot} of {name}: {top.sentence}"
        + (f"; {alike} of {len(slots)} slots are {top.verdict}" if alike > 1 else "")
    )
    words = "; ".join(f"{m.slot}: {m.sentence}" for _, m in slots[:8]) + (
        f"; {len(slots) - 8} more slots" if len(slots) > 8 else ""
    )
    return Finding("E011", worst, title, where, words, "every slot as training recorded it", shared,
                   "" if worst == Severity.PASS else "capture these states again with the engine as it serves, or mend its capture")  # fmt: skip
