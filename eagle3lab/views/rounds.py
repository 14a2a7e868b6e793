"""The draft at work as rows: predictions, acceptance, serving runs, the search."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from eagle3lab.acceptance import Evaluation, accuracy_interval
from eagle3lab.case import Case
from eagle3lab.checks.cost import PRINTED, Timed, baseline_of, effective_steps, speed_of, timed
from eagle3lab.checks.figures import figures, said_steps
from eagle3lab.checks.trees import predicted
from eagle3lab.counts import ServingRun
from eagle3lab.dialects.resolve import accepts_nothing
from eagle3lab.errors import Blocked, LabError
from eagle3lab.forward import rollout
from eagle3lab.gap import compare_requests
from eagle3lab.gap.throughput import BELOW, CHECK, SLACK
from eagle3lab.reading import Aux, Reading, show
from eagle3lab.records import Interval
from eagle3lab.samples import reply_rows
from eagle3lab.views.files import texts_of


def predictions(case: Case, name: str = "", step: int = 0, first: int = 0, count: int = 12, topk: int = 5,
                reading: Reading | None = None) -> list[dict[str, Any]]:  # fmt: skip
    """What the draft says at ``step`` for reply rows ``first`` …, beside the recorded token."""
    sample, reading = case.sample(name), reading or case.fitted
    rows = reply_rows(sample)
    rows = rows[rows < sample.length - 1 - reading.shift - step][first : first + count]
    if not len(rows):
        return []
    out = rollout(case.model, sample, reading, step + 1, rows=rows, topk=topk).steps[step]
    texts = texts_of(case, out.top_ids.flatten().tolist())
    table = []
    for i, t in enumerate(out.rows.tolist()):
        truth = int(out.truth[i])
        table.append({
            "position": t, "fed": texts_of(case, [int(out.tokens[i])])[0], "truth": texts_of(case, [truth])[0],
            "rank": int(out.truth_rank[i]), "probability": float(out.truth_logprob[i].exp()),
            "candidates": [(texts[i * out.top_ids.shape[1] + j], float(out.top_logprobs[i, j].exp()), int(c) == truth)
                           for j, c in enumerate(out.top_ids[i])],
        })  # fmt: skip
    return table


def acceptance_row(label: str, found: Evaluation) -> dict[str, Any]:
    """One reading's line of the headline table."""
    length, c = found.length, found.counts
    return {
        "label": label, "accept_length": length.value, "low": length.low, "high": length.high, "rounds": c.rounds,
        "accuracy": list(c.accuracy), "cumulative": list(c.cumulative), "conditional": list(c.conditional),
        "scored": list(c.scored), "histogram": list(c.histogram),
    }  # fmt: skip


def both(case: Case, steps: int = 0, names: Sequence[str] = ()) -> dict[str, Evaluation]:
    """Configured and fitted side by side, as far as they can be run; labels carry the boundaries."""
    out = {}
    if case.configured.reading is not None and not accepts_nothing(case.configured):
        with suppress(LabError):  # F003 says when the configured states are not recorded
            out[f"configured {show(case.configured.reading.aux)}"] = case.evaluate(
                case.configured.reading, steps, names
            )
    out[f"fitted {show(case.fitted.aux)}"] = case.evaluate(case.fitted, steps, names)
    return out


def acceptance_rows(case: Case, steps: int = 0) -> list[dict[str, Any]]:
    """The headline table: configured and fitted."""
    return [acceptance_row(label, found) for label, found in both(case, steps).items()]


def accuracy(case: Case) -> dict[str, Any]:
    """Accuracy by draft step of configured and fitted, the rows behind it, training's own: as the plot takes it."""
    found = both(case)
    n = list(found.values())[-1].counts.scored
    series = {label: e.counts.accuracy for label, e in found.items()}
    return {"series": series, "n": n, "training": case.file.accuracy or None}


def round_counts(case: Case) -> dict[str, dict[str, int]]:
    """Rounds and accepted drafts, configured and fitted."""
    return {label: {"rounds": e.counts.rounds, "accepted": e.counts.accepted} for label, e in both(case).items()}


def matrix(case: Case) -> dict[str, Any]:
    """Accuracy by (slot, boundary), as the plot takes it."""
    scan, configured = case.scan, case.configured.reading
    own = configured.aux if configured else ()
    return {"matrix": scan.matrix, "configured": own, "fitted": scan.fitted.aux, "n": scan.matrix_rows}


def by_sample(case: Case, steps: int = 0) -> list[dict[str, Any]]:
    """Accept length of each sample, configured and fitted."""
    pair = list(both(case, steps).values())
    fitted, configured = pair[-1], pair[0] if len(pair) == 2 else None
    rows = []
    for name, part in fitted.parts.items():
        before = configured.parts.get(name) if configured else None
        rows.append({"name": name, "fitted": part.counts.accept_length, "rounds": part.counts.rounds,
                     "configured": before.counts.accept_length if before else None})  # fmt: skip
    return rows


def by_position(case: Case, steps: int = 0, width: int = 16) -> list[dict[str, Any]]:
    """Drafts accepted a round (bonus included) by distance of the round from the reply's start."""
    found = case.evaluate(case.fitted, steps)
    buckets: dict[int, list[int]] = {}
    for part in found.parts.values():
        for r in part.rounds:
            start = max((a for a, _ in part.spans if a - 1 <= r.row), default=0)
            buckets.setdefault((r.row - start + 1) // width, []).append(r.accepted)
    rows = []
    for bucket, accepted in sorted(buckets.items()):
        values = 1 + torch.tensor(accepted, dtype=torch.float64)
        error = 1.96 * float(values.std(correction=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        mean = float(values.mean())
        rows.append({"low": bucket * width, "high": (bucket + 1) * width, "rate": mean, "n": len(values),
                     "interval_low": mean - error, "interval_high": mean + error})  # fmt: skip
    return rows


def run_rows(case: Case) -> list[dict[str, Any]]:
    """Every serving run: what its engine measured and can be used, and what its reading predicts at the K of its files.

    ``why`` says why there is no measured figure although the engine gave one (or that it is a printed mean),
    ``unpredicted`` why there is no prediction.
    """
    return [_run_row(case, run) for run in case.runs]


def _run_row(case: Case, run: ServingRun) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("measured", "predicted", "low", "high", "drafts"))
    row |= dict.fromkeys(("boundaries", "equal", "why", "unpredicted"), "")
    row |= {"name": run.name, "engine": f"{run.engine} {run.version} {run.runner}".strip(), "k": run.steps,
            "tokens_per_second": speed_of(run)}  # fmt: skip
    if not run.speculative:
        return row
    try:
        reports = case.reports(run)
    except LabError as error:
        return row | {"why": error.line, "unpredicted": "its files cannot be read"}
    usable = figures(run, reports)
    if usable.counted:
        row |= {"measured": usable.counted.accept_length, "drafts": usable.counted.drafts}
    elif usable.printed:
        row |= {"measured": usable.printed.reported_length, "why": PRINTED}
    else:
        row["why"] = usable.why
    steps = effective_steps(run, None, reports) if run.steps or said_steps(run, reports) else case.steps
    row["k"] = steps
    try:
        served = case.served(run)
        if served.reading is None:
            return row | {"unpredicted": served.unread}
        row["boundaries"] = show(served.reading.aux)
        found = predicted(case, run, served.reading, steps)
    except LabError as error:
        return row | {"unpredicted": error.line}
    length = found.length
    asked = next((r.requests for r in reports if r.requests), ())
    counts = compare_requests(asked, found.parts, case.samples).counts
    equal = f"{counts['equal']} of {counts['matched']}" if counts["matched"] else ""
    return row | {"predicted": length.value, "low": length.low, "high": length.high, "equal": equal}


def throughput(case: Case) -> dict[str, Any] | None:
    """Baseline, measured points and the cost of a round; None without two timed runs.

    Points are the runs with the chosen run's setting and baseline: a round's cost depends on both.

    Raises:
        Blocked: runs were timed, and none has a cost that can be; the reasons stand in it.
    """
    found = {run.name: timed(case, run) for run in case.runs if run.speculative and speed_of(run)}
    if not found or baseline_of(case, case.run) is None:
        return None
    whys = [f"{name}: {one}" for name, one in found.items() if isinstance(one, str)]
    priced = [one for one in found.values() if isinstance(one, Timed)]
    whys += [f"{one.words} {BELOW}: {CHECK}" for one in priced if one.cost.round_cost < 1 - SLACK]
    priced = [one for one in priced if one.cost.round_cost >= 1 - SLACK]
    if not priced:
        raise Blocked(f"no cost of a round can be told: {'; '.join(whys)}")
    own = next((one for one in priced if one.run is case.run), priced[0])
    points = [
        {"name": one.run.name, "accept_length": one.cost.accept_length, "tokens_per_second": one.speed,
         "round_cost": one.cost.round_cost, "reserved": one.reserved}
        for one in priced if one.setting == own.setting and one.baseline is own.baseline
    ]  # fmt: skip
    return {"baseline": own.plain, "points": points, "round_cost": own.cost.round_cost, "left_out": whys}


def ranking(case: Case, most: int = 10) -> list[dict[str, Any]]:
    """The search's finalists with their intervals, and the configured wiring when it is not among them."""
    scan, configured = case.scan, case.configured.reading
    tied = {r.aux for r in scan.ties}
    rows = []
    for candidate in scan.ranking[:most]:
        aux = candidate.reading.aux
        kind = "fitted" if aux == scan.fitted.aux else "tie" if aux in tied else "other"
        rows.append(_ranked(aux, candidate.accuracy, kind))
    if configured is not None and configured.aux not in [c.reading.aux for c in scan.ranking[:most]]:
        with suppress(LabError):  # F003 says when its states are not recorded
            found = case.evaluate(scan.fitted.replace(aux=configured.aux), 1)
            rows.append(_ranked(configured.aux, accuracy_interval(list(found.parts.values())), "configured"))
    return rows


def _ranked(aux: Aux, accuracy: Interval, kind: str) -> dict[str, Any]:
    return {"label": show(aux), "accuracy": accuracy.value, "low": accuracy.low, "high": accuracy.high, "kind": kind}
