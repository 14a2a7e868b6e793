"""What TensorRT-LLM says of a run: iteration statistics, trtllm-bench's report, its answers; by reading throughout.

Read: ``_iteration_report`` (``acceptanceLength`` = (accepted + requests) / requests, bonus included) of 2026,
``bench/dataclasses/reporting.py`` at 2787769 (iterations include the prefill's; accepted = tokens - iterations), and
the per-request ``speculative_decoding`` of ``/perf_metrics``. No run is at hand.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3lab.counts import EngineReport, Flaw, RequestReport
from eagle3lab.dialects import whose
from eagle3lab.dialects.evidence import count, json_rows, objects, text_lines, token_ids
from eagle3lab.dialects.modelopt.reports import benchmarks
from eagle3lab.errors import BadFile

_ENGINE = "trtllm"
_JSON = "TensorRT-LLM's iteration statistics (GET /metrics), or trtllm-bench's --report_json"
_AVERAGE = re.compile(r"\[(DT|ADT|AL)\] AVERAGE\s*: (\d+\.\d\d|nan)\b")
_SPEC = ("numRequestsWithDraftTokens", "numDraftTokens", "numAcceptedTokens")
_CLIENT = "what came out: drafts accepted past a request's end are not in it"


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
        reports.append(_of_log(root, log, steps))
    return sorted(reports, key=lambda r: r.accept_length is None)


def _of_statistics(root: Path, files: tuple[str, ...], steps: int | None) -> EngineReport:
    rows: list[dict[str, Any]] = []
    for name in files:
        found = _rows(root, name)
        if len(found) == 1 and "decoding_stats" in found[0]:
            return _of_bench(name, found[0], steps)
        rows += found
    spec = [row["specDecodingStats"] for row in _once(rows) if isinstance(row.get("specDecodingStats"), dict)]
    if not spec:
        other = next((w for row in rows if (w := whose.answer_of(row)) not in ("", "TensorRT-LLM")), "")
        words = f"no specDecodingStats in {len(rows)} iterations: the server did not speculate in them"
        flaw = (Flaw.FOREIGN, f"{words}; these are {other}'s answers") if other else (Flaw.SILENT, words)
        return EngineReport(_ENGINE, "counters", files, steps=steps, flaws=(flaw,))
    drafts, drafted, accepted = (sum(count(s.get(key)) or 0 for s in spec) for key in _SPEC)
    notes = [
        f"sums over {len(spec)} iterations; GET /metrics hands each iteration out once and drops what nobody asks for"
    ]
    flaws = []
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


def _agrees(spec: dict[str, Any]) -> bool:
    rounds, accepted, length = count(spec.get(_SPEC[0])), count(spec.get(_SPEC[2])), spec.get("acceptanceLength")
    if not rounds or accepted is None or not isinstance(length, int | float) or isinstance(length, bool):
        return True
    return abs(length - 1 - accepted / rounds) < 5e-3


def _of_bench(name: str, report: dict[str, Any], steps: int | None) -> EngineReport:
    stats, info = report.get("decoding_stats"), report.get("request_info")
    stats, info = (value if isinstance(value, dict) else {} for value in (stats, info))
    mean, accepted_mean = _average(stats, "acceptance_length"), _average(stats, "num_accepted_draft_tokens")
    requests, output_mean = count(info.get("num_requests")), _number(info.get("avg_output_length"))
    notes = [
        "trtllm-bench: its length counts the prefill's iteration and token among the rounds",
        f"counts are {_CLIENT}",
    ]
    if mean is None:
        flaw = (Flaw.SILENT, "decoding_stats hold no acceptance length: this bench did not speculate")
        return EngineReport(_ENGINE, "counters", (name,), steps=steps, flaws=(flaw,))
    drafts = accepted = output = None
    if requests and output_mean is not None and accepted_mean is not None:
        totals = [_whole(value * requests) for value in (output_mean, accepted_mean)]
        if totals[0] is not None and totals[1] is not None and totals[0] - totals[1] - requests >= 0:
            output, accepted = totals
            drafts = totals[0] - totals[1] - requests
    if drafts is None:
        notes.append("counts unknown: means times requests give no whole numbers")
    engine = report.get("engine")
    return EngineReport(
        _ENGINE,
        "counters",
        (name,),
        steps=steps,
        drafts=drafts,
        accepted=accepted,
        version=str(engine.get("version") or "") if isinstance(engine, dict) else "",
        notes=tuple(notes),
        reported_length=None if drafts else mean,
        output=output,
        answered=requests,
        mean_of_means=mean,
    )


def _average(stats: dict[str, Any], name: str) -> float | None:
    values = stats.get(f"{name}_percentiles")
    return _number(values.get("average")) if isinstance(values, dict) else None


def _of_responses(root: Path, name: str, steps: int | None) -> EngineReport:
    rows, notes = json_rows(root, name, "a completion of trtllm-serve or an entry of GET /perf_metrics")
    requests: list[RequestReport] = []
    found: list[tuple[int, int, int]] = []  # rounds, accepted, output
    drafted = odd = 0
    for _, row in rows:
        for choice in objects(row.get("choices")):
            prompt = row.get("prompt_token_ids") or choice.get("prompt_token_ids")
            finish = str(choice.get("finish_reason") or "")
            requests.append(RequestReport(token_ids(prompt), token_ids(choice.get("token_ids")), (), (), finish))
            each, usage = _number(choice.get("avg_decoded_tokens_per_iter")), row.get("usage")
            tokens = count(usage.get("completion_tokens")) if isinstance(usage, dict) else None
            if each and tokens:
                iterations = round(tokens / each)
                good = 0 < iterations <= tokens and math.isclose(tokens / iterations, each, rel_tol=1e-4)
                odd += not good
                found += [(iterations - 1, tokens - iterations, tokens)] if good else []
        perf = row.get("perf_metrics")
        spec = perf.get("speculative_decoding") if isinstance(perf, dict) else None
        if isinstance(spec, dict) and (total := count(spec.get("total_draft_tokens"))):
            kept = count(spec.get("total_accepted_draft_tokens")) or 0
            drafted += total
            rounds = total // steps if steps and total % steps == 0 else None
            odd += rounds is None
            found += [] if rounds is None else [(rounds, kept, 0)]
    if odd:
        notes.append(
            f"partial: {odd} requests left out: no whole number of rounds (K of the case?) gives their figures"
        )
    if not found:
        other = next((w for _, row in rows if (w := whose.answer_of(row)) not in ("", "TensorRT-LLM")), "")
        words = f"no acceptance in {len(rows)} answers"
        flaw = (Flaw.FOREIGN, f"{words}: they are {other}'s") if other else (Flaw.SILENT, words)
        return EngineReport(
            _ENGINE, "responses", (name,), steps=steps, requests=tuple(requests), notes=tuple(notes), flaws=(flaw,)
        )
    drafts, accepted, output = (sum(column) for column in zip(*found, strict=True))
    if output:
        notes.append(f"avg_decoded_tokens_per_iter: {_CLIENT}; the prefill's iteration and token are taken off")
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
        lengths=tuple(1 + kept / rounds for rounds, kept, _ in found if rounds),
    )


def _of_log(root: Path, name: str, steps: int | None) -> EngineReport:
    averages: dict[str, str] = {}
    looks_like, lines = "", 0
    for number, line in text_lines(root, name, "what trtllm-bench printed, as text"):
        lines = number
        if found := _AVERAGE.search(line):
            averages[found[1]] = found[2]
        looks_like = looks_like or whose.log_of(line)
    mean = averages.get("AL")
    notes, flaws = [], []
    if mean is None:
        words = f"no acceptance length in {lines} lines: the server's own log has none, trtllm-bench prints it"
        foreign = looks_like not in ("", "TensorRT-LLM")
        flaws.append((Flaw.FOREIGN, f"{words}; it looks like {looks_like}'s") if foreign else (Flaw.SILENT, words))
    elif mean == "nan":
        flaws.append((Flaw.NAN, "[AL] AVERAGE is nan: it is not used"))
    else:
        notes.append(
            "[AL] AVERAGE: a mean over requests, the prefill's iteration and token among the rounds; no counts"
        )
    value = float(mean) if mean and mean != "nan" else None
    return EngineReport(_ENGINE, "log", (name,), steps=steps, notes=tuple(notes), reported_length=value,
                        mean_of_means=value, flaws=tuple(flaws))  # fmt: skip


def _whole(value: float) -> int | None:
    return round(value) if abs(value - round(value)) < 1e-3 else None


def _number(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if fits else None
