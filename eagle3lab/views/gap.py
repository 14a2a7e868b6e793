"""The gap as rows: the waterfall, published numbers, an engine's states, settings, readings side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from eagle3lab.case import Case
from eagle3lab.checks.cost import asked, baseline_of, chains_only, fitted_cost, flag_words, settings, speed_of, tuned
from eagle3lab.checks.gap import explain
from eagle3lab.checks.states import compared
from eagle3lab.counts import ServingRun
from eagle3lab.errors import BadOption, Blocked, LabError
from eagle3lab.gap.damage import SAME
from eagle3lab.gap.dumps import severity
from eagle3lab.gap.story import Published, worked
from eagle3lab.gap.throughput import BELOW, SLACK, CostModel
from eagle3lab.gap.tuning import Tuning
from eagle3lab.gap.versus import Difference, Versus, restricted, same_texts, versus
from eagle3lab.reading import Reading, show
from eagle3lab.records import Severity
from eagle3lab.textkinds import kind_of


def run_named(case: Case, name: str = "") -> ServingRun:
    """The run of that name, the chosen one when ``""``.

    Raises:
        Blocked: the case has none.
    """
    found = next((run for run in case.runs if run.name == name), case.run if not name else None)
    if found is None:
        raise Blocked(
            "the case names no such serving run: add a [[serving]] table with engine, ids and what it measured"
        )
    return found


def waterfall(case: Case, name: str = "") -> dict[str, Any]:
    """One run's waterfall, as the plot and the table take it, with its total and what makes it partial."""
    run = run_named(case, name)
    found = explain(case, run)
    bars = [{"kind": b.kind, "name": b.name, "start": b.start, "end": b.end, "low": b.change.low, "high": b.change.high,
             "n": b.change.n, "method": b.change.method, "sentence": b.sentence} for b in found.bars]  # fmt: skip
    return {"run": run.name, "bars": bars, "begins": found.begins, "ends": found.ends, "missing": list(found.missing),
            "total": found.total}  # fmt: skip


def published(case: Published | None = None) -> list[dict[str, str]]:
    """The arithmetic of a published case (docs: the one that started it all)."""
    return [vars(line) for line in (worked(case) if case else worked())]


def dump_rows(case: Case) -> list[dict[str, Any]]:
    """Every slot of every engine dump beside training's recording of the same tokens."""
    rows = []
    for run in case.runs:
        for text, found, matches in compared(case, run) if run.dump else ():
            rows += [vars(m) | {"text": f"{text}, {found.length} tokens of {found.name}"} for m in matches]
    return rows


def dump_errors(case: Case) -> dict[str, Any]:
    """Relative error and cosine by row of the first dump's worst text, as the plot takes it.

    Raises:
        Blocked: no run names a dump.
    """
    for run in case.runs:
        if run.dump:
            found = [(text, m) for text, _, matches in compared(case, run) for m in matches]
            text, _ = min(found, key=lambda pair: (Severity(severity(pair[1])).rank, -pair[1].wrong))
            shown = [m for name, m in found if name == text and m.by_row]
            return {"series": {m.slot: m.by_row for m in shown}, "cosines": {m.slot: m.cosine_by_row for m in shown},
                    "name": text, "same": SAME}  # fmt: skip
    raise Blocked(
        "no serving run names the states its engine recorded: dump = {path = …, boundaries = […]} in [[serving]]"
    )


def cost_of(case: Case, given: str = "") -> CostModel:
    """What a round costs: ``given`` as "a, b, c" in plain steps, else from the runs that were timed.

    Raises:
        BadOption: ``given`` is not three numbers, or not those of any server.
        Blocked: nothing was timed, or nothing that can be priced.
    """
    if given.strip():
        try:
            a, b, c = (float(part) for part in given.replace(";", ",").split(","))
        except ValueError as error:
            raise BadOption(
                f"COST {given!r}: expected three numbers, a, b, c in plain steps, e.g. 1.0, 0.2, 0.02"
            ) from error
        if not all(map(math.isfinite, (a, b, c))) or a < 1 - SLACK or b < 0 or c < 0:
            raise BadOption(
                f"COST {given!r}: no server costs that: give a of 1 or more (a round without drafts is one plain step "
                "at least), b and c of 0 or more, all finite, e.g. 1.0, 0.2, 0.02"
            )
        return CostModel(a, b, c, assumed=("a, b and c as given, not measured",))
    model, _, left = fitted_cost(case)
    if model is None:
        ask = 'give seconds and tokens of one run with speculation and of one without in case.toml, or COST = "a, b, c"'
        raise Blocked(f"no cost of a round can be told: {'; '.join(left)}" if left else f"no run was timed: {ask}")
    return model


def tuning(case: Case, given: str = "") -> dict[str, Any]:
    """Speed-up of each setting under the fitted reading; trees where the cost of one can be told."""
    model = cost_of(case, given)
    result = tuned(case, model)
    base = baseline_of(case, case.run)
    plain = speed_of(base) if base else None
    rows = [{
        "steps": r.setting.steps, "topk": r.setting.topk, "draft_tokens": r.setting.draft_tokens,
        "accept_length": r.accept_length, "round_cost": r.round_cost, "speedup": r.speedup.value,
        "low": r.speedup.low, "high": r.speedup.high, "best": r is result.best,
        "tokens_per_second": plain * r.speedup.value if plain else None, "flags": flag_words(case, r.setting),
        "why": r.why,
    } for r in result.rows]  # fmt: skip
    law = f"{model.law}, in plain steps" if model.chains else model.law
    notes = [
        law,
        *model.contrary,
        *(f"assumed: {text}" for text in model.assumed),
        *(f"not identified: {text}" for text in model.missing),
        *_dashes(model, result),
    ]
    priced, left = settings(case) if not given.strip() else ([], [])
    notes += [f"{one.run.name}: {one.reserved}" for one in priced if one.reserved]
    notes += [f"left out: {text}" for text in left]
    if any(r.setting.topk > 1 for r in result.rows):
        notes.append("trees: SGLang's, by reading its source, not run")
        if chains_only(case):
            notes.append("no tree is called best: the run's engine is not SGLang")
    notes += [f"to be sure, give {text}" for text in asked(case, model, priced)]
    best = None
    if result.best is not None:
        best = vars(result.best.setting)
        notes += [f"intervals: {result.best.speedup.method}", *filter(None, [result.sure])]
    framed = "the best chain" if chains_only(case) else "the best setting"
    return {"rows": rows, "best": best, "notes": notes, "law": law, "framed": framed}


def _dashes(model: CostModel, found: Tuning) -> list[str]:
    """Which settings have no speed-up although they have a price, and why; what is impossible is said as such."""
    cheap = [row.setting.words for row in found.rows if row.why]
    if model.impossible or not cheap:
        return ["no speed-up is shown: no server costs that"] if model.impossible else []
    return [f"– for {', '.join(cheap)}: by the model a round would cost {BELOW}"]


def tuning_picture(case: Case, given: str = "") -> dict[str, Any]:
    """What the heat map takes of `tuning`.

    Raises:
        BadOption: as `cost_of`.
        Blocked: as `cost_of`, or the measured costs are none that a server has.
    """
    found = tuning(case, given)
    whys = [row["why"] for row in found["rows"] if row["why"]]
    if whys and not any(math.isfinite(row["speedup"]) for row in found["rows"]):
        raise Blocked(f"no setting's throughput can be told: {whys[0]}")
    return {key: found[key] for key in ("rows", "best", "law", "framed")}


def tuning_table(case: Case, given: str = "") -> dict[str, Any]:
    """What the table takes of `tuning`."""
    found = tuning(case, given)
    return {key: found[key] for key in ("rows", "notes")}


def kinds(case: Case, names: Iterable[str]) -> dict[str, list[str]]:
    """Sample → kind of each token; none without a tokenizer, whose ``<17>`` says nothing of a text."""
    if case.target is None:
        return {}
    out = {}
    for name in names:
        texts = case.target.text(case.samples[name].input_ids.tolist())
        if texts and texts[0].startswith("<") and texts[0][1:-1].isdigit():
            return {}
        out[name] = [kind_of(text, before) for text, before in zip(texts, ["", *texts[:-1]], strict=True)]
    return out


def readings_compared(
    case: Case, first: Reading | None = None, second: Reading | None = None, steps: int = 0
) -> Versus:
    """Two readings of one draft on the same positions: the configured and the fitted one unless others are given.

    Raises:
        Blocked: there is no configured reading, or no sample can be run under both.
    """
    one, two = first or case.configured.reading, second or case.fitted
    if one is None:
        raise Blocked(f"there is no configured reading to compare the fitted one with: {case.configured.unread}")
    found = case.evaluate(one, steps), case.evaluate(two, steps)
    return versus(*found, kinds(case, found[0].parts))


def cases_compared(first: Case, second: Case, steps: int = 0, which: str = "configured") -> Versus:
    """Two checkpoints, each in its own case, on the texts that both recorded.

    Args:
        first: the one compared with.
        second: the other.
        steps: K; 0 for the smaller of the two runs'.
        which: the reading of each: ``configured`` or ``fitted``.

    Raises:
        Blocked: no text is in both cases, or one of them has no such reading.
    """
    common = same_texts(first.samples, second.samples, first.samples.headline)
    if not common:
        raise Blocked(
            "the two cases have no recorded text in common (same tokens, same mask): record the same prompts for both"
        )
    steps = steps or min(first.steps, second.steps)
    found = []
    for case, names in ((first, list(common)), (second, list(common.values()))):
        reading = case.fitted if which == "fitted" else case.configured.reading
        if reading is None:
            raise Blocked(f"{case.file.path.name}: no configured reading: {case.configured.unread}")
        found.append(case.evaluate(reading, steps, names))
    other = restricted(found[1], {theirs: mine for mine, theirs in common.items()})
    return versus(found[0], other, kinds(first, found[0].parts))


def difference_table(case: Case) -> dict[str, Any]:
    """Configured and fitted on the same positions, every row, as the table takes it."""
    found = readings_compared(case)
    note = f"{len(found.samples)} samples, the same positions; of twenty intervals one leaves 0 out by chance"
    return {"rows": difference_rows(found), "note": note, **names_compared(case)}


def difference_picture(case: Case) -> dict[str, Any]:
    """The same by kind of token and by place in the reply, as the picture takes it."""
    return {"rows": difference_rows(readings_compared(case), "by_kind", "by_position"), **names_compared(case)}


def difference_rows(found: Versus, *groups: str) -> list[dict[str, Any]]:
    """A comparison's differences as rows; ``groups`` of ``length``, ``by_step``, ``by_kind``, ``by_position``."""
    rows: list[dict[str, Any]] = []
    for group in groups or ("length", "by_step", "by_kind", "by_position"):
        held = getattr(found, group)
        rows += [_difference(d, group) for d in (held if isinstance(held, tuple) else (held,))]
    return rows


def _difference(d: Difference, group: str) -> dict[str, Any]:
    return {"name": d.name, "first": d.first, "second": d.second, "change": d.change.value, "low": d.change.low,
            "high": d.change.high, "n": d.change.n, "only_first": d.only_first, "only_second": d.only_second,
            "method": d.change.method, "group": group}  # fmt: skip


def names_compared(case: Case) -> dict[str, str]:
    """What the configured and the fitted reading are called in tables and plots."""
    configured = case.configured.reading
    return {
        "first": f"configured {show(configured.aux) if configured else ''}".strip(),
        "second": f"fitted {show(case.fitted.aux)}",
    }


def waterfalls(case: Case) -> list[dict[str, Any]]:
    """Every run's total and its largest loss: one row a run, a reason where it has none."""
    rows: list[dict[str, Any]] = []
    for run in case.runs:
        try:
            found = explain(case, run)
        except LabError as error:
            rows.append({"run": run.name, "why": error.line})
            continue
        loss = found.largest_loss
        rows.append({"run": run.name, "begins": found.bars[0].start if found.bars else None,
                     "ends": found.bars[-1].end if found.bars else None, "total": found.total,
                     "loss": loss.name if loss else "none", "lost": loss.change.value if loss else 0.0,
                     "partial": "; ".join(found.missing), "why": ""})  # fmt: skip
    return rows
