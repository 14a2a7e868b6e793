"""What TensorRT-LLM says of a run: iteration statistics, trtllm-bench's report, its answers; by reading throughout.

Read: ``_iteration_report`` (``acceptanceLength`` = (accepted + requests) / requests, bonus included) of 2026,
``bench/dataclasses/reporting.py`` at 2787769 (iterations include the prefill's; accepted = tokens - iterations), and
the per-request ``speculative_decoding`` of ``/perf_metrics``. No run is at hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3lab.counts import EngineReport, Flaw, RequestReport
from eagle3lab.dialects import whose
from eagle3lab.dialects.evidence import (
    count,
    json_rows,
    number,
    objects,
    text_lines,
    token_ids,
    total,
    unreadable,
)
from eagle3lab.dialects.modelopt.reports import benchmarks
from eagle3lab.dialects.trtllm.bench import CLIENT, of_bench, of_log
from eagle3lab.errors import BadFile

_ENGINE = "trtllm"
_JSON = "TensorRT-LLM's iteration statistics (GET /metrics), or trtllm-bench's --report_json"
_SPEC = ("numRequestsWithDraftTokens", "numDraftTokens", "numAcceptedTokens")
_EACH = "avg_decoded_tokens_per_iter"
_TOTALS = ("total_draft_tokens", "total_accepted_draft_tokens")


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
        log: what trtllm-bench printed: only means over requests.
        metrics: answers of ``GET /metrics`` (iteration statistics as JSON, all of those given are summed), or
            trtllm-bench's ``--report_json``, or specdec_bench's ``acceptance_rate.json``.
        responses: completions as JSON lines (``avg_decoded_tokens_per_iter``), or ``GET /perf_metrics``.
        steps: K as the case says (``max_draft_len``).

    Returns:
        Reports whose notes and flaws say what is missing.

    Raises:
        BadFile: a file is missing or not what it should be.
    """
    reports, others = benchmarks(root, metrics, _ENGINE, steps)
    if others:
        reports.append(_of_statistics(root, others, steps))
    if responses:
        reports.append(_of_responses(root, responses, steps))
    if log:
        reports.append(of_log(root, log, steps))
    return sorted(reports, key=lambda r: r.accept_length is None)


def _of_statistics(root: Path, files: tuple[str, ...], steps: int | None) -> EngineReport:
    rows: list[dict[str, Any]] = []
    for name in files:
        found = _rows(root, name)
        if len(found) == 1 and "decoding_stats" in found[0]:
            return of_bench(name, found[0], steps)
        rows += found
    spec = [row["specDecodingStats"] for row in _once(rows) if isinstance(row.get("specDecodingStats"), dict)]
    if not spec:
        other = next((w for row in rows if (w := whose.answer_of(row)) not in ("", "TensorRT-LLM")), "")
        words = f"no specDecodingStats in {len(rows)} iterations: the server did not speculate in them"
        flaw = (Flaw.FOREIGN, f"{words}; these are {other}'s answers") if other else (Flaw.SILENT, words)
        return EngineReport(_ENGINE, "counters", files, steps=steps, flaws=(flaw,))
    drafts, drafted, accepted = (total([count(s.get(key)) for s in spec]) for key in _SPEC)
    notes = [
        f"sums over {len(spec)} iterations; GET /metrics hands each iteration out once and drops what nobody asks for"
    ]
    notes += [f"{key} is missing in {n} of {len(spec)} iterations: its sum is unknown"
              for key in _SPEC if (n := sum(s.get(key) is None for s in spec))]  # fmt: skip
    flaws = [(Flaw.DISAGREES, text) for text in unreadable(spec, _SPEC, "iterations")]
    if again := _repeated(rows):
        words = f"partial: {again} iterations are there more than once: of two servers, or of one started again"
        flaws.append((Flaw.SERVERS, f"{words}; all are summed"))
    flaws += [(Flaw.CUT, f"partial: {text}") for text in unreadable(rows, ("statsDroppedFrames",), "iterations")]
    odd = sum(not _agrees(s) for s in spec)
    if odd:
        flaws.append((Flaw.DISAGREES, f"{odd} of {len(spec)} iterations print a length that their counts do not give"))
    lost = max((count(row.get("statsDroppedFrames")) or 0 for row in rows), default=0)
    if lost:
        flaws.append((Flaw.CUT, f"partial: {lost} iterations were dropped before anyone asked for them"))
    return EngineReport(
        _ENGINE, "counters", files, steps, drafts, drafted, accepted, notes=tuple(notes), flaws=tuple(flaws)
    )


def _rows(root: Path, name: str) -> list[dict[str, Any]]:
    text = "".join(line for _, line in text_lines(root, name, _JSON)).strip()
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        if text.startswith(("{", "[")):
            return [row for _, row in json_rows(root, name, _JSON)[0]]
        raise BadFile(
            name, f"found {text[:40]!r}; expected {_JSON}; Prometheus text of it has no count of rounds"
        ) from None
    rows = objects(content)
    if not rows:
        raise BadFile(name, f"found no object; expected {_JSON}; ask while the server is running")
    return rows


def _once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each iteration once: with attention data parallelism every rank's row repeats the same statistics."""
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    out = []
    for row in rows:
        if count(row.get("iter")) is None or not row.get("attentionDpRank"):
            out.append(row)
        key = (str(row.get("iter")), json.dumps(row.get("specDecodingStats"), sort_keys=True))
        if row.get("attentionDpRank") and key not in seen:
            out.append(row)
        seen[key] = row
    return out


def _repeated(rows: list[dict[str, Any]]) -> int:
    """Iterations that one rank counted more than once: a server numbers each of its own once."""
    places = [(n, str(row.get("attentionDpRank") or 0)) for row in rows if (n := count(row.get("iter"))) is not None]
    return len(places) - len(set(places))


def _agrees(spec: dict[str, Any]) -> bool:
    rounds, accepted, length = count(spec.get(_SPEC[0])), count(spec.get(_SPEC[2])), spec.get("acceptanceLength")
    if not rounds or accepted is None or length is None:
        return True
    said = number(length)
    return said is not None and abs(said - 1 - accepted / rounds) < 5e-3


def _of_responses(root: Path, name: str, steps: int | None) -> EngineReport:
    rows, notes = json_rows(root, name, "a completion of trtllm-serve or an entry of GET /perf_metrics")
    requests: list[RequestReport] = []
    found: list[tuple[int, int | None, int]] = []  # rounds, accepted, output
    said: list[dict[str, Any]] = []  # what answers say, to be looked through for what cannot be read
    perfs: list[dict[str, Any]] = []
    drafted = odd = 0
    for _, row in rows:
        for choice in objects(row.get("choices")):
            prompt = row.get("prompt_token_ids") or choice.get("prompt_token_ids")
            finish = str(choice.get("finish_reason") or "")
            requests.append(RequestReport(token_ids(prompt), token_ids(choice.get("token_ids")), (), (), finish))
            usage = (objects(row.get("usage")) or [{}])[0]
            each, tokens = number(choice.get(_EACH)), count(usage.get("completion_tokens"))
            said += [{**usage, **choice}] if choice.get(_EACH) is not None else []
            if each and tokens:
                iterations = round(tokens / each)
                good = 0 < iterations <= tokens and math.isclose(tokens / iterations, each, rel_tol=1e-4)
                odd += not good
                found += [(iterations - 1, tokens - iterations, tokens)] if good else []
        perf = row.get("perf_metrics")
        spec = perf.get("speculative_decoding") if isinstance(perf, dict) else None
        perfs += [spec] if isinstance(spec, dict) else []
        if isinstance(spec, dict) and (offered := count(spec.get(_TOTALS[0]))):
            drafted += offered
            rounds = offered // steps if steps and offered % steps == 0 else None
            odd += rounds is None
            found += [] if rounds is None else [(rounds, count(spec.get(_TOTALS[1])), 0)]
    broken = unreadable(said, (_EACH,), "answers", number) + unreadable(said, ("completion_tokens",), "answers")
    broken += unreadable(perfs, _TOTALS, "answers")
    flaws = [(Flaw.DISAGREES, text) for text in broken]
    if odd:
        notes.append(
            f"partial: {odd} requests left out: no whole number of rounds (K of the case?) gives their figures"
        )
    if not found:
        other = next((w for _, row in rows if (w := whose.answer_of(row)) not in ("", "TensorRT-LLM")), "")
        words = f"no acceptance in {len(rows)} answers"
        flaw = (Flaw.FOREIGN, f"{words}: they are {other}'s") if other else (Flaw.SILENT, words)
        return EngineReport(
            _ENGINE,
            "responses",
            (name,),
            steps=steps,
            requests=tuple(requests),
            notes=tuple(notes),
            flaws=tuple(flaws or [flaw]),
        )
    drafts, accepted, output = (total(column) for column in zip(*found, strict=True))
    if accepted is None and not broken:
        notes.append(f"accepted drafts unknown: {_TOTALS[1]} is missing in some answers")
    if output:
        notes.append(f"avg_decoded_tokens_per_iter: {CLIENT}; the prefill's iteration and token are taken off")
    return EngineReport(
        _ENGINE,
        "responses",
        (name,),
        steps,
        drafts,
        drafted or None,
        accepted,
        requests=tuple(requests),
        notes=tuple(notes),
        output=output or None,
        answered=len(found),
        lengths=tuple(1 + kept / rounds for rounds, kept, _ in found if rounds and kept is not None),
        flaws=tuple(flaws),
    )
