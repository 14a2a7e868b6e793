"""What lies between training's figure and the engine's: the waterfall, the engine's own states, drafts a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from eagle3lab.acceptance import Evaluation, tree_definition
from eagle3lab.checks.cost import effective_steps
from eagle3lab.checks.evidence import Opened, Serving
from eagle3lab.checks.figures import figures
from eagle3lab.checks.states import engine_states
from eagle3lab.checks.text import not_greedy
from eagle3lab.checks.trees import predicted, shape_of
from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.dialects import flags
from eagle3lab.dialects.resolve import accepts_nothing
from eagle3lab.errors import BadShape, Blocked, LabError
from eagle3lab.gap import compare_requests, end_effect
from eagle3lab.gap.levels import ARITHMETIC
from eagle3lab.gap.resample import FEWEST
from eagle3lab.gap.waterfall import Measured, Waterfall, waterfall
from eagle3lab.reading import Reading
from eagle3lab.records import Finding, Severity

CODES = {
    "E010": "from training's figure to the engine's, bar by bar",
    "E011": "the states the engine recorded against those of training",
    "E012": "drafts a round: the case's, the engine's own, and what its counts say",
}


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
            if sums[0] and set(by_sample) >= set(mine.parts):
                some = f"{best.source}, the {len(by_sample)} of {len(asked)} requests whose texts are recorded"
                return Measured(1 + sums[1] / sums[0], sums[0], by_sample, extra, some)
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


def _drafts(case: Serving) -> list[Finding]:
    run = case.run
    if run is None or not run.speculative:
        return []
    said = []
    if run.steps:
        said.append(("case.toml steps", float(run.steps)))
    if run.topk > 1:
        return _nodes(case, run)
    if run.draft_tokens:
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


def _nodes(case: Serving, run: ServingRun) -> list[Finding]:
    """E012 of a tree: what a round verifies, which the engine counts as drafted, against ``draft_tokens`` less the root."""
    counted = [(r.source, r.drafted / r.drafts) for r in case.reports(run) if r.drafts and r.drafted]
    if not counted or not run.draft_tokens:
        return []
    words = f"case.toml draft_tokens less the root {run.draft_tokens - 1}, " + ", ".join(
        f"{s} drafted / rounds {n:.2f}" for s, n in counted
    )
    wrong = [n for _, n in counted if abs(n - (run.draft_tokens - 1)) > 0.25]
    if not wrong:
        return [
            Finding(
                "E012",
                Severity.PASS,
                f"{run.draft_tokens - 1} draft tokens a round, everywhere",
                f"run {run.name!r}",
                words,
            )
        ]
    return [Finding("E012", Severity.WARN, f"the case says a tree of {run.draft_tokens} draft tokens, the engine verified {wrong[0] + 1:g} a round, the root counted",
                    f"run {run.name!r}", words, "one number", "what is predicted for this run rests on the case's number",
                    f"set draft_tokens = {wrong[0] + 1:.0f} in case.toml, or give this run's own files")]  # fmt: skip


def _stated(report: EngineReport) -> list[tuple[str, float]]:
    out = []
    if report.drafts and report.drafted:
        out.append((f"{report.source} drafted / rounds", round(report.drafted / report.drafts, 2)))
    lengths = [len(report.per_position)] if report.per_position else []
    return out + [(f"{report.source} positions counted", float(n)) for n in lengths]


PARTS: tuple[Callable[[Opened], list[Finding]], ...] = (waterfall_of, engine_states, _drafts)
"""What the serving stage runs of this module; one that cannot be had stops no other."""
