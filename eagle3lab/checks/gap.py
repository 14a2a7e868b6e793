"""What lies between training's figure and the engine's: the waterfall, the engine's own states, drafts a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from eagle3lab.acceptance import Evaluation, tree_definition
from eagle3lab.checks.cost import effective_steps
from eagle3lab.checks.evidence import Opened, Serving
from eagle3lab.checks.figures import figures
from eagle3lab.checks.text import not_greedy
from eagle3lab.checks.trees import predicted, shape_of
from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.dialects import flags
from eagle3lab.dialects.resolve import accepts_nothing
from eagle3lab.errors import BadFile, BadShape, Blocked, LabError
from eagle3lab.gap import compare_requests, end_effect
from eagle3lab.gap.dumps import SlotMatch, compare_states, severity
from eagle3lab.gap.levels import ARITHMETIC
from eagle3lab.gap.pairing import Overlap, overlap
from eagle3lab.gap.resample import FEWEST
from eagle3lab.gap.waterfall import Measured, Waterfall, waterfall
from eagle3lab.reading import Reading
from eagle3lab.records import Finding, Severity
from eagle3lab.samples import Samples

CODES = {
    "E010": "from training's figure to the engine's, bar by bar",
    "E011": "the states the engine recorded against those of training",
    "E012": "drafts a round: the case's, the engine's own, and what its counts say",
}


MOST_TEXTS = 8
"""Texts of a dump that are compared: what an engine does to its states it does to all of them."""


def explain(case: Serving, run: ServingRun) -> Waterfall:
    """The waterfall of one run.

    Raises:
        LabError: nothing could be fitted, or no sample can be run.
    """
    served, why = case.configured, ""
    if run.speculative:
        try:
            served = case.configured if run is case.run else case.served(run)
        except LabError as error:
            why = str(error).splitlines()[0]
    reports = case.reports(run) if run.speculative else []
    usable = figures(run, reports)
    steps = effective_steps(run, case.run.steps if case.run else None, reports)
    if run.speculative and not why and (made := accepts_nothing(served)):
        why = f"it makes up {made}, and accepts nothing but by chance"
    reading = served.reading if run.speculative and not why else None if run.speculative else case.scan.fitted
    tree, names, reservations = _tree(case, run, reading, steps)
    measured = measured_of(case, run, reports, _prediction(case, run, steps)) if run.speculative else None
    found = waterfall(
        accuracy=case.training_accuracy,
        steps=steps,
        fitted=case.scan.fitted,
        served=reading,
        evaluate=lambda reading, steps: case.evaluate(reading, steps, names),
        self_fed=lambda reading, steps: case.evaluate(reading, steps, names, fed="self"),
        tree=tree,
        measured=measured,
        left_out=flags.LEFT_OUT.get(case.trainer),
        why_not_served=why or "; ".join(served.refused),
        why_not_measured=usable.why,
    )
    rest = next((bar.change for bar in found.bars if bar.kind == "rest"), None)
    if measured is not None and not measured.rounds:
        reservations.append("the engine's figure is a printed mean, its rounds not said")
    if reading is not None and rest is not None and not rest.low <= 0 <= rest.high:
        reservations += [
            f"the last bar is not the engine's alone: {why}" for why in (not_greedy(case, run, reading),) if why
        ]
    return replace(found, missing=(*found.missing, *reservations, *_reservations(case, steps)))


def _prediction(case: Serving, run: ServingRun, steps: int) -> Evaluation | None:
    """What the run's own reading accepts; None where that cannot be had."""
    try:
        way = case.served(run)
        return predicted(case, run, way.reading, steps) if way.reading and not accepts_nothing(way) else None
    except (Blocked, BadShape):
        return None


def _tree(case: Serving, run: ServingRun, reading: Reading | None, steps: int
          ) -> tuple[tuple[str, Evaluation] | None, tuple[str, ...], list[str]]:  # fmt: skip
    """The run's tree with its words, the samples it could be grown on (() for all), what could not be had in words."""
    if run.topk == 1 or reading is None or not steps:
        return None, (), []
    try:
        shape = shape_of(run, steps)
        found = predicted(case, run, reading, steps)
    except LabError as error:
        return (
            None,
            (),
            [f"the bars follow the tree's best chain, the rest of the tree is in the last bar: {error.line}"],
        )
    assert shape is not None
    late = [why for why in found.skipped.values() if "too long" in why]
    return (tree_definition(shape), found), tuple(found.parts), late[:1]


def _reservations(case: Serving, steps: int) -> list[str]:
    """What makes the bars say less than they seem to."""
    out = []
    fitted = case.evaluate(case.scan.fitted, steps)
    if 0 in fitted.counts.scored:
        out.append(
            f"the recorded replies are too short for draft {fitted.counts.scored.index(0) + 1}: nothing scores it"
        )
    if len(fitted.parts) < FEWEST:
        out.append(f"{len(fitted.parts)} samples are too few to draw: no intervals")
    if fitted.skipped:
        out.append(f"{len(fitted.skipped)} samples are left out (A002)")
    if not case.scan.fits:
        out.append("no reading fits the recording (F005): every bar after training's own says little")
    return out


def measured_of(
    case: Serving, run: ServingRun, reports: Sequence[EngineReport], mine: Evaluation | None
) -> Measured | None:
    """What the run's files say it accepted, best evidence first, beside the prediction ``mine``; None without any."""
    usable = figures(run, reports)
    best, printed = usable.counted, usable.printed
    if best is None or best.accept_length is None or best.drafts is None:
        if printed is None or printed.reported_length is None:
            return None
        return Measured(printed.reported_length, 0, {}, 0.0, f"{printed.source}, a mean without counts")
    extra, by_sample = 0.0, {}
    if mine is not None:
        extra = end_effect(list(mine.parts.values()), mine.steps)
        asked = next((r.requests for r in reports if r.requests), ())
        matches = compare_requests(asked, mine.parts, case.samples).matches
        by_sample = {m.sample: (len(m.measured), sum(m.measured)) for m in matches}
        sums = sum(r for r, _ in by_sample.values()), sum(a for _, a in by_sample.values())
        if sums != (best.drafts, best.accepted):  # the totals hold requests that the samples do not
            by_sample = {}
    return Measured(best.accept_length, best.drafts, by_sample, extra, best.source)


def waterfall_of(case: Serving) -> list[Finding]:
    """E010 of the chosen run."""
    run = case.run
    if run is None or not run.speculative:
        return []
    found = explain(case, run)
    if not found.bars:
        return []
    words = "; ".join(
        f"{bar.name} {bar.change.value:+.3f}" + _bracket(bar.change.low, bar.change.high) for bar in found.bars
    )
    loss = found.largest_loss
    title = f"from {found.bars[0].start:.2f} ({found.begins}) to {found.bars[-1].end:.2f} ({found.ends})"
    if loss is not None:
        title += f"; most is lost to {loss.name} ({loss.change.value:+.2f})"
        if any(bar.kind in ARITHMETIC for bar in found.bars):
            title += ", the two arithmetic bars not counted"
    partial = "partial: " if found.missing else ""
    return [Finding("E010", Severity.INFO, partial + title, f"run {run.name!r}", words, "bars add up to the difference",
                    "; ".join([*found.missing, "intervals: whole samples are drawn, both ends of a bar from the same draws"]),
                    )]  # fmt: skip


def _bracket(low: float, high: float) -> str:
    return f" [{low:+.3f}, {high:+.3f}]" if low == low and high == high else ""


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


def _dumps(case: Opened) -> list[Finding]:
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


def _drafts(case: Serving) -> list[Finding]:
    run = case.run
    if run is None or not run.speculative:
        return []
    said = []
    if run.steps:
        said.append(("case.toml steps", float(run.steps)))
    if run.topk == 1 and run.draft_tokens:
        said.append(("case.toml draft_tokens less the root", float(run.draft_tokens - 1)))
    for report in case.reports(run):
        said += _stated(report)
    if len(said) < 2:
        return []
    values = [value for _, value in said]
    words = ", ".join(f"{name} {value:g}" for name, value in said)
    if max(values) - min(values) <= 0.25:  # a request's end may cut its last rounds short
        return [Finding("E012", Severity.PASS, f"{values[0]:g} drafts a round, everywhere", f"run {run.name!r}", words)]
    return [Finding("E012", Severity.WARN, f"drafts a round differ: {min(values):g} to {max(values):g}", f"run {run.name!r}", words,
                    "one number", "K, steps and draft tokens differ by one between engines; or K changed while the run went on",
                    "correct steps and draft_tokens in case.toml, or record the run again with one setting")]  # fmt: skip


def _stated(report: EngineReport) -> list[tuple[str, float]]:
    out = []
    if report.drafts and report.drafted:
        out.append((f"{report.source} drafted / rounds", round(report.drafted / report.drafts, 2)))
    lengths = [len(report.per_position)] if report.per_position else []
    return out + [(f"{report.source} positions counted", float(n)) for n in lengths]


PARTS: tuple[Callable[[Opened], list[Finding]], ...] = (waterfall_of, _dumps, _drafts)
"""What the serving stage runs of this module; one that cannot be had stops no other."""
