"""What SGLang says of a run: its metrics, its responses, its log.

Definitions by reading 0.5.3.post3, 0.5.9 and 0.5.23 (engines.md 7.1); accept length includes the bonus token
everywhere, the accept rates differ by version and are never used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3lab.counts import EngineReport, RequestReport
from eagle3lab.dialects.evidence import (
    added,
    at_least,
    count,
    histogram,
    json_file,
    json_rows,
    objects,
    steps_note,
    text_lines,
    token_ids,
)
from eagle3lab.dialects.prometheus import counter_growth
from eagle3lab.dialects.sglang.log_report import of_log, settings_notes
from eagle3lab.errors import BadFile

_ENGINE = "sglang"
_VERIFY = "sglang:spec_verify_calls"
_LENGTH = "sglang:spec_accept_length"
_LARGEST = 1e9
_ARGUMENTS = ("algorithm", "eagle_topk", "num_draft_tokens")
_CORRECT = ("spec_num_correct_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_draft_token_num")
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Keys of ``meta_info`` in 0.5.23 and 0.5.9; index of the histogram = drafts accepted, bonus excluded."""


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
        log: the server's log: only means, so ``reported_length`` and no counts.
        metrics: answers of ``GET /metrics`` (oldest first) or of ``GET /server_info`` (JSON): means again,
            and the number of verify rounds.
        responses: JSON lines of ``/generate``, or of completions with ``return_meta_info`` or
            ``return_spec_tokens_details``: the only evidence with counts.
        steps: K (``speculative_num_steps``) as the case says, for evidence that does not say it.

    Returns:
        Reports whose notes say what is missing; notes of incomplete numbers start with ``partial:``. A run
        without speculation gives reports with ``drafts`` None or 0.

    Raises:
        BadFile: a file is missing or not what it should be.
    """
    reports = []
    infos = [name for name in metrics if _is_json(root, name)]
    texts = [name for name in metrics if name not in infos]
    if texts:
        reports.append(_of_metrics(root, tuple(texts), steps))
    if infos:
        reports.append(_of_server_info(root, infos[-1], steps))
    if responses:
        reports.append(_of_responses(root, responses, steps))
    if log:
        reports.append(of_log(root, log, steps))
    return sorted(reports, key=lambda r: r.accept_length is None)


def _is_json(root: Path, name: str) -> bool:
    lines = text_lines(root, name, "Prometheus text or the JSON of GET /server_info")
    return next((line.lstrip()[0] for _, line in lines if line.strip()), "") == "{"


def _of_metrics(root: Path, files: tuple[str, ...], steps: int | None) -> EngineReport:
    growth = counter_growth(root, files, (_VERIFY,))
    # A draft worker may report gauges of its own; the ranks of the target repeat one number.
    gauges = [s for s in growth.gauges if dict(s.labels).get("engine_type") != "draft"]
    lengths = sorted({s.value for s in gauges if s.name == _LENGTH and math.isfinite(s.value) and s.value > 0})
    said = {count(s.value) for s in gauges if s.name == "sglang:spec_num_steps"} - {None, 0}
    known = said.pop() if len(said) == 1 else None
    notes = list(growth.notes)
    if not any(name.startswith("sglang:") for name in growth.names):
        other = "vLLM's" if any(n.startswith("vllm:") for n in growth.names) else "not SGLang's"
        notes.append(f"no sglang: metric in {files[-1]}: these metrics are {other}")
    elif not lengths and growth.total(_VERIFY) is None:
        notes.append("no speculative metric: this server did not speculate, or none was decoded yet")
    if lengths:
        notes.append(f"{_LENGTH}: the mean of the last log interval only, bonus included")
    if len(lengths) > 1:
        notes.append(f"partial: ranks differ ({', '.join(f'{v:.4g}' for v in lengths)}); their plain mean")
    if growth.total(_VERIFY) is not None:
        notes.append("drafts: verify rounds of finished requests; SGLang has no counter of accepted drafts")
    return EngineReport(
        _ENGINE,
        "counters",
        files,
        steps=known or steps,
        drafts=growth.total(_VERIFY),
        notes=(*notes, *steps_note(known, steps)),
        reported_length=sum(lengths) / len(lengths) if lengths else None,
    )


def _of_server_info(root: Path, name: str, steps: int | None) -> EngineReport:
    info = json_file(root, name, "the JSON of GET /server_info")
    if "internal_states" not in info:
        keys = ", ".join(list(info)[:5]) or "none"
        fault = f"found the keys {keys}; expected internal_states; save GET /server_info again"
        raise BadFile(name, fault)
    states = objects(info["internal_states"])
    values = [s.get("avg_spec_accept_length") for s in states]
    lengths = [v for v in map(_number, values) if v]
    known = count(info.get("speculative_num_steps")) or None
    notes = []
    if lengths:
        notes.append("avg_spec_accept_length: mean from the server's start to its last log line, bonus included")
    elif info.get("speculative_algorithm") is None and "speculative_algorithm" in info:
        notes.append("speculative_algorithm is not set: this server did not speculate")
    else:
        notes.append("no avg_spec_accept_length: absent until the first decode log line (40 iterations)")
    if 0 < len(lengths) < len(states):
        notes.append(f"partial: {len(states) - len(lengths)} of {len(states)} ranks give no mean")
    if len(lengths) > 1:
        notes.append("plain mean over the data-parallel ranks: their numbers of rounds are not said")
    arguments = {key: info.get(f"speculative_{key}") for key in _ARGUMENTS}
    words = {key: None if value is None else str(value) for key, value in arguments.items()}
    return EngineReport(
        _ENGINE,
        "counters",
        (name,),
        steps=known or steps,
        version=str(info.get("version") or ""),
        notes=(*notes, *settings_notes(words), *steps_note(known, steps)),
        reported_length=sum(lengths) / len(lengths) if lengths else None,
    )


def _of_responses(root: Path, name: str, steps: int | None) -> EngineReport:
    rows, notes = json_rows(root, name, "an answer of /generate or a completion with meta_info")
    requests: list[RequestReport] = []
    stats: list[dict[str, Any]] = []
    failed = 0
    for _, row in rows:
        found = _answers(row)
        failed += not found
        stats += [meta for meta, _ in found if any(k.startswith("spec_") for k in meta)]
        requests += [request for _, request in found]
    if failed:
        notes.append(f"partial: {failed} of {len(rows)} lines are no answer (errors, say) and left out")
    if not stats:
        notes.append(f"no spec_ key in {len(requests)} answers: no speculation, or return_meta_info not set")
        return EngineReport(_ENGINE, "responses", (name,), requests=tuple(requests), notes=tuple(notes))
    if len(stats) < len(requests):
        notes.append(f"partial: {len(requests) - len(stats)} of {len(requests)} answers have no spec_ key")
    notes.append("per request SGLang gives a histogram and no order: per-step lists stay empty")
    return _summed(name, stats, steps, tuple(requests), notes)


def _answers(row: dict[str, Any]) -> list[tuple[dict[str, Any], RequestReport]]:
    """(meta_info, request) of each answer in a row: native, OpenAI with meta_info, or with sglext."""
    extension = row.get("sglext")
    details = objects(extension.get("spec_tokens_details")) if isinstance(extension, dict) else []
    holders = objects(row.get("choices")) if "choices" in row else objects(row) if "meta_info" in row else []
    found = []
    for index, holder in enumerate(holders):
        meta = holder.get("meta_info")
        meta = meta if isinstance(meta, dict) else {}
        meta = {**(details[index] if index < len(details) else {}), **meta}
        finish = meta.get("finish_reason") or holder.get("finish_reason") or ""
        prompt = row.get("prompt_token_ids") or holder.get("prompt_token_ids")
        tokens = holder.get("output_ids") or holder.get("token_ids")
        reason = str(finish.get("type") or "") if isinstance(finish, dict) else str(finish)
        found.append((meta, RequestReport(token_ids(prompt), token_ids(tokens), (), (), reason)))
    return found


def _summed(
    name: str,
    stats: list[dict[str, Any]],
    steps: int | None,
    requests: tuple[RequestReport, ...],
    notes: list[str],
) -> EngineReport:
    rounds: tuple[int, ...] = ()
    drafts = accepted = drafted = unknown = odd = partly = 0
    for meta in stats:
        verify, correct, proposed = (count(_first(meta, k)) for k in (("spec_verify_ct",), _CORRECT, _PROPOSED))
        bins = histogram(_first(meta, _HISTOGRAM))
        if bins:
            verify = sum(bins) if verify is None else verify
            correct = sum(j * n for j, n in enumerate(bins)) if correct is None else correct
        if correct is None:
            correct = 0 if verify == 0 else _from_rate(meta, verify, steps)
        agrees = bins is not None and (sum(bins), sum(j * n for j, n in enumerate(bins))) == (verify, correct)
        odd += not agrees and bool(verify)
        rounds = added(rounds, bins or ())
        unknown += correct is None
        partly += proposed is None and bool(verify)
        drafts, accepted, drafted = (
            drafts + (verify or 0),
            accepted + (correct or 0),
            drafted + (proposed or 0),
        )
    if odd:
        notes.append(f"no per-position counts: {odd} histograms are missing or contradict their request's sums")
    if unknown:
        notes.append(
            f"accepted drafts unknown: {unknown} answers give only a rate; meta_info's spec_accept_length is "
            "completion tokens over rounds: the prefill's token is in it, what a stop cut off is not"
        )
    positions = () if odd else added(at_least(rounds), (0,) * (steps or 0))
    if steps and len(positions) > steps:
        notes.append(f"rounds accepted {len(positions)} drafts, more than the {steps} steps of the case")
    if drafts and drafted and not partly and drafted != drafts * (steps or 0):
        notes.append(f"{drafted / drafts:.4g} draft tokens a round: K of a chain, or the nodes of a tree")
    return EngineReport(
        _ENGINE,
        "responses",
        (name,),
        steps=steps,
        drafts=drafts,
        drafted=None if partly else drafted,
        accepted=None if unknown else accepted,
        per_position=positions,
        requests=requests,
        notes=tuple(notes),
        reported_length=_emitted(stats) if unknown else None,
    )


def _first(meta: dict[str, Any], keys: Sequence[str]) -> Any:
    return next((meta[key] for key in keys if meta.get(key) is not None), None)


def _from_rate(meta: dict[str, Any], verify: int | None, steps: int | None) -> int | None:
    """0.5.3 gives only accepted / (rounds * num_steps), bonus excluded and unrounded: the count behind it."""
    rate, length = _number(meta.get("spec_accept_rate")), _number(meta.get("spec_accept_length"))
    if not verify or not steps or rate is None:
        return None
    accepted = rate * verify * steps
    # Its overlap path leaves the numerator at 0: a length far above 1 then contradicts the rate.
    if not accepted and length is not None and length > 1 + 2 / verify:
        return None
    return count(float(round(accepted))) if abs(accepted - round(accepted)) < 1e-6 else None


def _emitted(stats: list[dict[str, Any]]) -> float | None:
    pairs = [(_number(m.get("spec_accept_length")), count(m.get("spec_verify_ct")) or 0) for m in stats]
    weighed = [(v, n) for v, n in pairs if v and n]
    return sum(v * n for v, n in weighed) / sum(n for _, n in weighed) if weighed else None


def _number(value: Any) -> float | None:
    """A finite number that is not negative, None for anything else (null, NaN, text)."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LARGEST
    return float(value) if fits else None
