"""What vLLM says of a run: its counters, its responses, its log.

Definitions (engines.md 7.2; vllm_measured.md 4): a draft is one verify round with at least one draft token;
accept length is 1 + accepted / drafts, bonus included; per-position rates are cumulative over all drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3lab.counts import EngineReport, Flaw, RequestReport
from eagle3lab.dialects import whose
from eagle3lab.dialects.counters import Names, of_counters
from eagle3lab.dialects.evidence import (
    added,
    at_least,
    count,
    counts,
    histogram,
    json_rows,
    number,
    objects,
    steps_note,
    token_ids,
    total,
    unreadable,
)
from eagle3lab.dialects.modelopt.reports import benchmarks
from eagle3lab.dialects.vllm.log_report import of_log
from eagle3lab.dialects.vllm.snapshot import counters

_ENGINE = "vllm"
_KEYS = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
_READ = (
    ((*_KEYS, "num_spec_tokens"), count),
    (("acceptance_histogram",), histogram),
    (("per_step_accepted", "per_step_drafted"), counts),
)
"""Keys of a request's metrics, and what reads them."""
_NAMES = Names(_ENGINE, "vLLM", "vllm:", "generation_tokens", "request_success")


def read_reports(
    root: Path,
    log: str | None = None,
    metrics: Sequence[str] = (),
    responses: str | None = None,
    steps: int | None = None,
) -> list[EngineReport]:
    """One report for each kind of evidence given, best first: counters, responses, log.

    Args:
        root: the case folder; the other paths are relative to it.
        log: the server's log.
        metrics: answers of ``GET /metrics``, or dumps of ``llm.get_metrics()``, oldest first: the growth from the
            first to the last is reported, of a single file its totals. Or specdec_bench's ``acceptance_rate.json``.
        responses: chat completions as JSON lines, of a server started with
            ``--per-request-spec-decode-metrics detailed`` and requests with ``return_token_ids``; or the dicts of
            ``spec_decode_metrics`` of an offline run, one a line.
        steps: K as the case says, for evidence that does not say it.

    Returns:
        Reports whose notes say what is missing; notes of incomplete numbers start with ``partial:``. A run
        without speculation gives reports with ``drafts`` None or 0.

    Raises:
        BadFile: a file is missing or not what it should be.
    """
    reports, texts = benchmarks(root, metrics, _ENGINE, steps)
    if texts:
        reports.append(of_counters(_NAMES, root, texts, steps, counters))
    if responses:
        reports.append(_of_responses(root, responses, steps))
    if log:
        reports.append(of_log(root, log, steps))
    return sorted(reports, key=lambda r: r.accept_length is None)


def _of_responses(root: Path, name: str, steps: int | None) -> EngineReport:
    rows, notes = json_rows(root, name, "a chat completion")
    requests: list[RequestReport] = []
    stats: list[dict[str, Any]] = []
    output: list[int | None] = []
    failed = chunks = several = 0
    for _, row in rows:
        choices = objects(row.get("choices"))
        found = _stats(row, choices)
        if "error" in row or not (choices or found):
            failed += 1
            continue
        chunks += row.get("object") == "chat.completion.chunk"
        several += len(choices) > 1
        stats += found
        one = choices[0] if len(choices) == 1 else row
        request = RequestReport(
            token_ids(row.get("prompt_token_ids")) or token_ids(one.get("prompt_token_ids")),
            token_ids(one.get("token_ids")),
            (counts(found[0].get("per_step_accepted")) or ()) if len(found) == 1 else (),
            (counts(found[0].get("per_step_drafted")) or ()) if len(found) == 1 else (),
            str(one.get("finish_reason") or ""),
        )
        requests.append(request)
        usage = row.get("usage")
        tokens = count(usage.get("completion_tokens")) if isinstance(usage, dict) else None
        output += [tokens or len(request.token_ids) or None] if found else []
    notes += _missing(len(rows), failed, chunks, several)
    if not stats:
        return EngineReport(
            _ENGINE,
            "responses",
            (name,),
            requests=tuple(requests),
            notes=tuple(notes),
            flaws=(_silent(rows, requests),),
        )
    if len(stats) < len(requests):
        notes.append(f"partial: {len(requests) - len(stats)} of {len(requests)} responses have no metrics")
    (drafts, drafted, accepted), positions, said, more, flaws = _summed(stats)
    if not any(s.get("per_step_accepted") for s in stats):
        notes.append("no per-step counts: they need --per-request-spec-decode-metrics detailed")
    return EngineReport(
        _ENGINE,
        "responses",
        (name,),
        said or steps,
        drafts,
        drafted,
        accepted,
        positions,
        tuple(requests),
        notes=(*notes, *more, *steps_note(said, steps)),
        output=total(output) or None,
        answered=len(stats),
        lengths=tuple(
            1 + a / n for s in stats if (n := count(s.get(_KEYS[0]))) and (a := count(s.get(_KEYS[2]))) is not None
        ),
        flaws=tuple(flaws),
    )


def _silent(rows: list[tuple[int, dict[str, Any]]], requests: list[RequestReport]) -> tuple[Flaw, str]:
    other = next((w for _, row in rows if (w := whose.answer_of(row)) not in ("", "vLLM")), "")
    if other:
        return Flaw.FOREIGN, f"no speculative_decoding metrics in {len(rows)} lines: these answers are {other}'s"
    return Flaw.SILENT, (
        f"no speculative_decoding metrics in {len(requests)} responses: the server did not speculate, or "
        "ran without --per-request-spec-decode-metrics detailed"
    )


def _stats(row: dict[str, Any], choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The per-request metrics of a response, wherever the version puts them."""
    holders = [row, *choices]
    metrics = [h["metrics"] for h in holders if isinstance(h.get("metrics"), dict)]
    found = [m.get("speculative_decoding") for m in metrics]
    found += [h.get(key) for h in holders for key in ("speculative_decoding_stats", "spec_decode_metrics")]
    found += [row]
    return [f for f in found if isinstance(f, dict) and f.get("num_spec_steps") is not None]


def _missing(rows: int, failed: int, chunks: int, several: int) -> list[str]:
    notes = []
    if failed:
        notes.append(f"partial: {failed} of {rows} lines are no completion (errors, say) and left out")
    if chunks:
        notes.append(f"partial: {chunks} of {rows} lines are stream chunks: their token lists are pieces")
    if several:
        notes.append(f"{several} responses hold several choices: their tokens and steps cannot be paired")
    return notes


def _summed(
    stats: list[dict[str, Any]],
) -> tuple[list[int | None], tuple[int, ...], int | None, list[str], list[tuple[Flaw, str]]]:
    """(drafts, drafted, accepted), per-position counts, K, notes, and what contradicts itself or cannot be read."""
    sums = [total([count(s.get(k)) for s in stats]) for k in _KEYS]
    notes = [f"{key} is missing in {n} of {len(stats)} requests: its sum is unknown"
             for key in _KEYS if (n := sum(s.get(key) is None for s in stats))]  # fmt: skip
    flaws = [(Flaw.DISAGREES, text) for keys, read in _READ for text in unreadable(stats, keys, "requests", read)]
    rounds: tuple[int, ...] = ()
    odd = absent = rates = 0
    for entry in stats:
        found = histogram(entry.get("acceptance_histogram"))
        own = (count(entry.get(_KEYS[0])), count(entry.get(_KEYS[2])))
        absent += found is None
        odd += found is not None and None not in own and (sum(found), sum(j * n for j, n in enumerate(found))) != own
        rates += not _rates_agree(entry)
        rounds = added(rounds, found or ())
    if odd:
        flaws.append((Flaw.DISAGREES, f"{odd} of {len(stats)} histograms contradict their request's sums"))
    if rates:
        flaws.append(
            (Flaw.DISAGREES, f"{rates} of {len(stats)} requests print a mean or a rate that their counts do not give")
        )
    if odd or absent:
        notes.append(f"no per-position counts: {odd + absent} histograms are missing or contradict their sums")
        rounds = ()
    said = {count(s.get("num_spec_tokens")) for s in stats} - {None}
    if len(said) > 1:
        words = f"partial: K differs between responses ({sorted(k for k in said if k is not None)})"
        flaws.append((Flaw.CHANGES, f"{words}: the lengths are of a mixture"))
    steps = said.pop() if len(said) == 1 else None
    positions = added(at_least(rounds), (0,) * (steps or 0)) if rounds else ()
    return sums, positions, steps, notes, flaws


def _rates_agree(entry: dict[str, Any]) -> bool:
    """Whether the printed mean and rate are those of the counts; what is not printed agrees."""
    drafts, drafted, accepted = (count(entry.get(k)) for k in _KEYS)
    mean, rate = entry.get("mean_acceptance_length"), entry.get("draft_acceptance_rate")
    pairs = []
    if drafts and accepted is not None:
        pairs.append((mean, 1 + accepted / drafts))
    if drafted and accepted is not None:
        pairs.append((rate, accepted / drafted))
    said = [(number(v), x) for v, x in pairs if v is not None]
    return all(v is not None and abs(v - x) < 5e-3 for v, x in said)
