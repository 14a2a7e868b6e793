"""What vLLM says of a run: its counters, its responses, its log.

Definitions (engines.md 7.2; vllm_measured.md 4): a draft is one verify round with at least one draft token;
accept length is 1 + accepted / drafts, bonus included; per-position rates are cumulative over all drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3lab.counts import EngineReport, RequestReport
from eagle3lab.dialects.evidence import (
    added,
    at_least,
    count,
    counts,
    histogram,
    json_rows,
    objects,
    steps_note,
    token_ids,
)
from eagle3lab.dialects.prometheus import counter_growth
from eagle3lab.dialects.vllm.log_report import of_log
from eagle3lab.errors import BadFile

_ENGINE = "vllm"
_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFTED = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"


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
        metrics: answers of ``GET /metrics``, oldest first: the growth from the first to the last is reported,
            of a single file its totals.
        responses: chat completions as JSON lines, of a server started with
            ``--per-request-spec-decode-metrics detailed`` and requests with ``return_token_ids``.
        steps: K as the case says, for evidence that does not say it.

    Returns:
        Reports whose notes say what is missing; notes of incomplete numbers start with ``partial:``. A run
        without speculation gives reports with ``drafts`` None or 0.

    Raises:
        BadFile: a file is missing or not what it should be.
    """
    reports = []
    if metrics:
        reports.append(_of_counters(root, tuple(metrics), steps))
    if responses:
        reports.append(_of_responses(root, responses, steps))
    if log:
        reports.append(of_log(root, log, steps))
    return sorted(reports, key=lambda r: r.accept_length is None)


def _of_counters(root: Path, files: tuple[str, ...], steps: int | None) -> EngineReport:
    growth = counter_growth(root, files, (_DRAFTS, _DRAFTED, _ACCEPTED, _PER_POSITION))
    drafts, drafted, accepted = (growth.total(name) for name in (_DRAFTS, _DRAFTED, _ACCEPTED))
    per_position: dict[int, int] = {}
    for (name, labels), value in growth.values.items():
        if name == _PER_POSITION:
            position = dict(labels).get("position", "")
            if not position.isdecimal() or len(position) > 3:
                raise BadFile(
                    files[-1],
                    f"{name}: found position={position!r}; expected 0, 1, …; save the metrics again",
                )
            per_position[int(position)] = per_position.get(int(position), 0) + value
    notes = list(growth.notes)
    if drafts is None:
        if any(name.startswith("vllm:") for name in growth.names):
            notes.append(f"no {_DRAFTS} counter: this server did not speculate")
        else:
            other = "SGLang's" if any(n.startswith("sglang:") for n in growth.names) else "not vLLM's"
            notes.append(f"no vllm: metric in {files[-1]}: these metrics are {other}")
        return EngineReport(_ENGINE, "counters", files, steps=None, notes=tuple(notes))
    said = max(per_position) + 1 if per_position else None
    positions = tuple(per_position.get(j, 0) for j in range(said or 0))
    notes += steps_note(said, steps) + _contradictions(drafts, drafted, accepted, positions)
    if not drafts:
        notes.append("the counters did not move: no draft was verified between the files")
    return EngineReport(
        _ENGINE, "counters", files, said or steps, drafts, drafted, accepted, positions, notes=tuple(notes)
    )


def _contradictions(drafts: int, drafted: int | None, accepted: int | None, positions: tuple[int, ...]) -> list[str]:
    notes = []
    if accepted is not None and positions and sum(positions) != accepted:
        notes.append(f"partial: per-position counts add up to {sum(positions)}, accepted says {accepted}")
    if list(positions) != sorted(positions, reverse=True) or (positions and positions[0] > drafts):
        notes.append(f"per-position counts {positions} do not fall from {drafts} drafts: inconsistent")
    if drafted is not None and accepted is not None and accepted > drafted:
        notes.append(f"{accepted} accepted of {drafted} drafted tokens: inconsistent")
    if positions and drafted is not None and drafted < drafts * len(positions):
        notes.append(f"{drafted} draft tokens in {drafts} rounds of K {len(positions)}: some were cut short")
    return notes


def _of_responses(root: Path, name: str, steps: int | None) -> EngineReport:
    rows, notes = json_rows(root, name, "a chat completion")
    requests, stats = [], []
    failed = chunks = several = 0
    for _, row in rows:
        choices = objects(row.get("choices"))
        if not choices or "error" in row:
            failed += 1
            continue
        chunks += row.get("object") == "chat.completion.chunk"
        several += len(choices) > 1
        found = _stats(row, choices)
        stats += found
        one = choices[0] if len(choices) == 1 else {}
        requests.append(
            RequestReport(
                token_ids(row.get("prompt_token_ids")) or token_ids(one.get("prompt_token_ids")),
                token_ids(one.get("token_ids")),
                (counts(found[0].get("per_step_accepted")) or ()) if len(found) == 1 else (),
                (counts(found[0].get("per_step_drafted")) or ()) if len(found) == 1 else (),
                str(one.get("finish_reason") or ""),
            )
        )
    notes += _missing(len(rows), failed, chunks, several)
    if not stats:
        notes.append(
            f"no speculative_decoding metrics in {len(requests)} responses: the server did not speculate, or "
            "ran without --per-request-spec-decode-metrics detailed"
        )
        return EngineReport(_ENGINE, "responses", (name,), requests=tuple(requests), notes=tuple(notes))
    if len(stats) < len(requests):
        notes.append(f"partial: {len(requests) - len(stats)} of {len(requests)} responses have no metrics")
    if not any(r.accepted for r in requests):
        notes.append("no per-step counts: they need --per-request-spec-decode-metrics detailed")
    totals, positions, said, more = _summed(stats)
    return EngineReport(
        _ENGINE,
        "responses",
        (name,),
        said or steps,
        *totals,
        positions,
        tuple(requests),
        notes=(*notes, *more, *steps_note(said, steps)),
    )


def _stats(row: dict[str, Any], choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The per-request metrics of a response, wherever the version puts them."""
    holders = [row, *choices]
    metrics = [h["metrics"] for h in holders if isinstance(h.get("metrics"), dict)]
    found = [m.get("speculative_decoding") for m in metrics]
    found += [h.get("speculative_decoding_stats") for h in holders]
    return [f for f in found if isinstance(f, dict) and count(f.get("num_spec_steps")) is not None]


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
) -> tuple[tuple[int, int, int], tuple[int, ...], int | None, list[str]]:
    """(drafts, drafted, accepted), per-position counts, K, and notes."""
    keys = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    drafts, drafted, accepted = (sum(count(s.get(k)) or 0 for s in stats) for k in keys)
    notes: list[str] = []
    rounds: tuple[int, ...] = ()
    odd = 0
    for entry in stats:
        found = histogram(entry.get("acceptance_histogram"))
        agrees = found is not None and (sum(found), sum(j * n for j, n in enumerate(found))) == (
            count(entry.get("num_spec_steps")),
            count(entry.get("num_accepted_draft_tokens")),
        )
        odd += not agrees
        rounds = added(rounds, found or ())
    if odd:
        notes.append(f"no per-position counts: {odd} histograms are missing or contradict their sums")
        rounds = ()
    said = {count(s.get("num_spec_tokens")) for s in stats} - {None}
    if len(said) > 1:
        notes.append(f"partial: K differs between responses ({sorted(k for k in said if k)})")
    steps = said.pop() if len(said) == 1 else None
    positions = added(at_least(rounds), (0,) * (steps or 0)) if rounds else ()
    return (drafts, drafted, accepted), positions, steps, notes
