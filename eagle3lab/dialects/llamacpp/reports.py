"""What llama.cpp says of a run: llama-server's log, metrics and timings, the summary of its speculative examples.

By reading ``tools/server`` (``draft acceptance`` lines before and after PR #24536; ``llamacpp:spec_decode_*`` of 2026)
and ``examples/speculative*``; no run of an EAGLE-3 draft is at hand. A draft is one verify round with at least one
draft token, the mean is 1 + accepted / drafts, per-position rates are cumulative: vLLM's terms. A draft may be short.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3lab.counts import EngineReport, Flaw, RequestReport
from eagle3lab.dialects import whose
from eagle3lab.dialects.counters import Names, of_counters
from eagle3lab.dialects.evidence import (
    count,
    json_rows,
    objects,
    steps_note,
    text_lines,
    token_ids,
    total,
    unreadable,
)
from eagle3lab.dialects.llamacpp.log_lines import Log, Part, Task

_ENGINE = "llamacpp"
_NAMES = Names(_ENGINE, "llama.cpp", "llamacpp:", "tokens_predicted")
_TIMINGS = ("draft_n", "draft_n_accepted", "predicted_n")


def read_reports(
    root: Path,
    log: str | None = None,
    metrics: Sequence[str] = (),
    responses: str | None = None,
    steps: int | None = None,
) -> list[EngineReport]:
    """One report for each kind of evidence given; those with counts first.

    Args:
        root: the case folder; the other paths are relative to it.
        log: llama-server's log, or what ``llama-speculative-simple`` printed.
        metrics: answers of ``GET /metrics`` of ``llama-server --metrics``, oldest first.
        responses: completions as JSON lines, with their ``timings``.
        steps: K as the case says (``--spec-draft-n-max``).

    Returns:
        Reports whose notes and flaws say what is missing.

    Raises:
        BadFile: a file is missing or not what it should be.
    """
    reports = []
    if metrics:
        reports.append(of_counters(_NAMES, root, tuple(metrics), steps))
    if responses:
        reports.append(_of_responses(root, responses, steps))
    if log:
        reports.append(_of_log(root, log, steps))
    return sorted(reports, key=lambda r: r.accept_length is None)


def _of_log(root: Path, name: str, steps: int | None) -> EngineReport:
    log = Log().read(text_lines(root, name, "llama.cpp's log, as text"))
    flaws: list[tuple[Flaw, str]] = []
    if log.cut:
        shown = ", ".join(map(str, log.cut[:5])) + (" …" if len(log.cut) > 5 else "")
        flaws.append((Flaw.CUT, f"partial: {len(log.cut)} acceptance lines are cut (lines {shown})"))
    busy = [part for part in log.parts.values() if part.speaks]
    if len(busy) > 1:
        named = ", ".join(part.source or "unnamed" for part in busy)
        words = (
            f"partial: {len(busy)} servers in one log ({named}); the last ({busy[-1].source or 'unnamed'}) is counted"
        )
        flaws.append((Flaw.SERVERS, words))
    part = busy[-1] if busy else Part()
    whole = [s for s in part.summaries if s.keys() >= {"n_predict", "n_drafted", "n_accept"}]
    if whole:
        if len(whole) > 1:
            words = f"partial: summaries of {len(whole)} runs stand in one log; the last is taken"
            flaws.append((Flaw.SERVERS, words))
        return _of_summary(whole[-1], name, steps, flaws)
    if part.tasks or part.statistics:
        return _of_tasks(part, name, steps, flaws)
    words = f"no acceptance line in {log.lines} lines" if log.lines else "the log is empty"
    foreign = log.looks_like not in ("", "llama.cpp")
    words += f": it looks like {log.looks_like}'s" if foreign else ": no draft was verified, or no model drafts"
    flaws.append((Flaw.FOREIGN if foreign else Flaw.SILENT, words))
    return EngineReport(_ENGINE, "log", (name,), steps=steps, flaws=tuple(flaws))


def _of_summary(summary: dict[str, int], name: str, steps: int | None, flaws: list[tuple[Flaw, str]]) -> EngineReport:
    """``n_drafted``, ``n_accept``, ``n_predict``: each round emits its accepted drafts and one token more."""
    predicted, drafted, accepted = (summary[key] for key in ("n_predict", "n_drafted", "n_accept"))
    said = summary.get("n_draft") or None
    if predicted < accepted:
        flaws.append((Flaw.DISAGREES, f"n_accept {accepted} is more than n_predict {predicted}"))
    return EngineReport(
        _ENGINE,
        "log",
        (name,),
        steps=said or steps,
        drafts=predicted - accepted if predicted >= accepted else None,
        drafted=drafted,
        accepted=accepted,
        notes=(
            "rounds = n_predict - n_accept: those in which nothing was drafted are among them",
            *steps_note(said, steps),
        ),
        output=predicted,
        flaws=tuple(flaws),
    )


def _of_tasks(part: Part, name: str, steps: int | None, flaws: list[tuple[Flaw, str]]) -> EngineReport:
    drafted, accepted = sum(t.drafted for t in part.tasks), sum(t.accepted for t in part.tasks)
    found = [task.rounds(steps) for task in part.tasks]
    whole = [n for n in found if n is not None]
    drafts: int | None = sum(whole) if part.tasks and len(whole) == len(found) else None
    sums = [sum(column) for column in zip(*part.statistics.values(), strict=True)]
    notes = []
    if sums and not part.tasks:
        drafts, drafted, accepted = sums
        notes.append("totals of the last statistics line: since the server started, unverified drafts among them")
    elif sums and drafts is None and sums[1:] == [drafted, accepted]:
        drafts = sums[0]
        notes.append("drafts of the last statistics line, whose tokens are those of the tasks")
    if len(part.statistics) > 1:
        notes.append(f"several drafters are summed: {', '.join(sorted(part.statistics))}")
    elif part.statistics and "eagle3" not in next(iter(part.statistics)):
        notes.append(f"the drafter is {next(iter(part.statistics))}, not draft-eagle3")
    widths = {len(task.rates) for task in part.tasks if task.rates}
    if len(widths) > 1:
        words = f"partial: K changes within the log ({sorted(widths)}): the lengths are of a mixture"
        flaws.append((Flaw.CHANGES, words))
    if bad := sum(task.nan for task in part.tasks):
        flaws.append((Flaw.NAN, f"{bad} of {len(part.tasks)} acceptance lines print nan: their counts are used"))
    said = next(iter(widths)) if len(widths) == 1 else None
    if drafts is None:
        notes.append("drafts unknown: a line gives accepted and drafted tokens, and no mean that determines its rounds")
    if drafts and said and drafts <= drafted < drafts * said:
        notes.append(f"{drafted} draft tokens in {drafts} rounds of K {said}: some were cut short")
    return EngineReport(
        _ENGINE,
        "log",
        (name,),
        steps=said or steps,
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        per_position=_positions(part.tasks, found, said),
        notes=(*notes, *steps_note(said, steps)),
        reported_length=_weighed(part.tasks) if drafts is None else None,
        output=part.predicted or None,
        answered=len(part.tasks) or None,
        lengths=tuple(1 + t.accepted / n for t, n in zip(part.tasks, found, strict=True) if n),
        flaws=tuple(flaws),
    )


def _positions(tasks: list[Task], rounds: list[int | None], steps: int | None) -> tuple[int, ...]:
    """Sums of the counts behind the printed rates, ``()`` unless every line determines its own."""
    parts = [task.positions(n) if n is not None else None for task, n in zip(tasks, rounds, strict=True)]
    known = [part for part in parts if part is not None and len(part) == steps]
    return tuple(map(sum, zip(*known, strict=True))) if known and len(known) == len(parts) else ()


def _weighed(tasks: list[Task]) -> float | None:
    """The printed means, weighted by drafted tokens."""
    pairs = [(task.mean, task.drafted) for task in tasks if task.mean is not None]
    total = sum(weight for _, weight in pairs)
    return sum(mean * weight for mean, weight in pairs) / total if total else None


def _of_responses(root: Path, name: str, steps: int | None) -> EngineReport:
    rows, notes = json_rows(root, name, "a completion of llama-server with its timings")
    requests: list[RequestReport] = []
    stats: list[dict[str, Any]] = []
    for _, row in rows:
        one: dict[str, Any] = (objects(row.get("choices")) or [row])[0]
        finish = str(one.get("finish_reason") or one.get("stop_type") or "")
        requests.append(RequestReport((), token_ids(row.get("tokens")), (), (), finish))
        timings = row.get("timings")
        said = timings if isinstance(timings, dict) else {}
        # absent, null and 0 mean that nothing was drafted
        stats += [said] if said.get(_TIMINGS[0]) not in (None, 0) else []
    answered = len(stats)
    if not answered:
        other = next((w for _, row in rows if (w := whose.answer_of(row)) not in ("", "llama.cpp")), "")
        words = f"no draft_n in the timings of {len(rows)} answers"
        words += f": they are {other}'s" if other else ": nothing was drafted"
        flaw = (Flaw.FOREIGN if other else Flaw.SILENT, words)
        return EngineReport(
            _ENGINE, "responses", (name,), steps=steps, requests=tuple(requests), notes=tuple(notes), flaws=(flaw,)
        )
    if answered < len(rows):
        notes.append(f"partial: {len(rows) - answered} of {len(rows)} answers drafted nothing and are left out")
    drafted, accepted, predicted = (total([count(said.get(key)) for said in stats]) for key in _TIMINGS)
    notes += [f"{key} is missing in {n} of {answered} timings: its sum is unknown"
              for key in _TIMINGS if (n := sum(said.get(key) is None for said in stats))]  # fmt: skip
    length = None
    if predicted is not None and accepted is not None:
        decoded = predicted - answered  # the prefill gives each request's first token
        length = decoded / (decoded - accepted) if decoded > accepted else None
    notes.append(
        "timings do not say the number of rounds: the length is tokens over decode steps, (predicted_n - 1) / "
        "(predicted_n - 1 - draft_n_accepted), in which steps without a draft count as rounds: a little low"
    )
    return EngineReport(
        _ENGINE,
        "responses",
        (name,),
        steps=steps,
        drafted=drafted,
        accepted=accepted,
        requests=tuple(requests),
        notes=tuple(notes),
        reported_length=length,
        output=predicted or None,
        answered=answered,
        flaws=tuple((Flaw.DISAGREES, text) for text in unreadable(stats, _TIMINGS, "timings")),
    )
