"""SGLang's answers: the only evidence of it that holds counts, in the key names of three versions.

By reading 0.5.3.post3, 0.5.9 and 0.5.23 (engines.md 7.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3lab.counts import EngineReport, Flaw, RequestReport
from eagle3lab.dialects import whose
from eagle3lab.dialects.evidence import (
    added,
    at_least,
    count,
    histogram,
    json_rows,
    number,
    objects,
    token_ids,
    total,
    unreadable,
)

_ENGINE = "sglang"
_CORRECT = ("spec_num_correct_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_draft_token_num")
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Keys of ``meta_info`` in 0.5.23 and 0.5.9; index of the histogram = drafts accepted, bonus excluded."""
_RATES = ("spec_accept_rate", "spec_accept_length")


def of_answers(root: Path, name: str, steps: int | None) -> EngineReport:
    """Sums over the answers' ``meta_info``.

    Args:
        root: the case folder.
        name: JSON lines, relative to it.
        steps: K as the case says; the answers do not say it.

    Raises:
        BadFile: no answers.
    """
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
        other = next((w for _, row in rows if (w := whose.answer_of(row)) not in ("", "SGLang")), "")
        flaw = (Flaw.SILENT, f"no spec_ key in {len(requests)} answers: no speculation, or return_meta_info not set")
        if other:
            flaw = (Flaw.FOREIGN, f"no spec_ key in {len(rows)} lines: these answers are {other}'s")
        return EngineReport(_ENGINE, "responses", (name,), requests=tuple(requests), notes=tuple(notes), flaws=(flaw,))
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
        if len(holders) == 1 and isinstance(usage := row.get("usage"), dict):
            meta.setdefault("completion_tokens", usage.get("completion_tokens"))
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
    lengths: list[float] = []
    verifies: list[int | None] = []
    corrects: list[int | None] = []
    broken = _broken(stats)
    drafted = unknown = odd = wrong = partly = rated = 0
    for meta in stats:
        verify, correct, proposed = (count(_first(meta, k)) for k in (("spec_verify_ct",), _CORRECT, _PROPOSED))
        bins = histogram(_first(meta, _HISTOGRAM))
        if bins:
            verify = sum(bins) if verify is None else verify
            correct = sum(j * n for j, n in enumerate(bins)) if correct is None else correct
        if correct is None and _first(meta, _CORRECT) is None:
            correct = 0 if verify == 0 else _from_rate(meta, verify, steps)
        agrees = bins is not None and (sum(bins), sum(j * n for j, n in enumerate(bins))) == (verify, correct)
        odd += not agrees and bool(verify)
        differs = not agrees and bool(verify) and None not in (correct, bins)
        wrong += differs or not _rate_agrees(meta, correct, proposed)
        lengths += [1 + correct / verify] if verify and correct is not None else []
        rounds = added(rounds, bins or ())
        unknown += correct is None
        rated += correct is None and number(meta.get("spec_accept_rate")) is not None
        partly += proposed is None and bool(verify)
        verifies.append(verify)
        corrects.append(correct)
        drafted += proposed or 0
    drafts = total(verifies)
    if odd:
        notes.append(f"no per-position counts: {odd} histograms are missing or contradict their request's sums")
    if drafts is None and not broken:
        notes.append(f"rounds unknown: {verifies.count(None)} answers do not say spec_verify_ct")
    if unknown and not broken:
        given = "only a rate" if rated == unknown else "neither a count nor a rate"
        notes.append(
            f"accepted drafts unknown: {unknown} answers give {given}; meta_info's spec_accept_length is "
            "completion tokens over rounds: the prefill's token is in it, what a stop cut off is not"
        )
    if wrong:
        broken.append(f"{wrong} of {len(stats)} answers hold a histogram or rate that their sums do not give")
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
        accepted=total(corrects),
        per_position=positions,
        requests=requests,
        notes=tuple(notes),
        reported_length=_emitted(stats) if unknown or drafts is None else None,
        output=sum(known) if len(known := _completed(stats)) == len(stats) else None,
        answered=len(stats),
        lengths=() if unknown else tuple(lengths),
        flaws=tuple((Flaw.DISAGREES, text) for text in broken),
    )


def _broken(stats: list[dict[str, Any]]) -> list[str]:
    """Sentences about values that are there and are no counts or rates."""
    counted = [*_CORRECT, *_PROPOSED, "spec_verify_ct"]
    out = unreadable(stats, counted, "answers") + unreadable(stats, _HISTOGRAM, "answers", histogram)
    # of a request without a round they may be anything, nan too
    ran = [meta for meta in stats if count(meta.get("spec_verify_ct")) != 0]
    return out + unreadable(ran, _RATES, "answers", number)


def _rate_agrees(meta: dict[str, Any], correct: int | None, proposed: int | None) -> bool:
    """Whether the rate is correct / proposed, as it is from 0.5.9 on; what is not given agrees."""
    rate = number(meta.get("spec_accept_rate"))
    return not proposed or correct is None or rate is None or abs(rate - correct / proposed) < 5e-3


def _completed(stats: list[dict[str, Any]]) -> list[int]:
    return [n for meta in stats if (n := count(meta.get("completion_tokens"))) is not None]


def _first(meta: dict[str, Any], keys: Sequence[str]) -> Any:
    return next((meta[key] for key in keys if meta.get(key) is not None), None)


def _from_rate(meta: dict[str, Any], verify: int | None, steps: int | None) -> int | None:
    """0.5.3 gives only accepted / (rounds * num_steps), bonus excluded and unrounded: the count behind it."""
    rate, length = number(meta.get("spec_accept_rate")), number(meta.get("spec_accept_length"))
    if not verify or not steps or rate is None:
        return None
    accepted = rate * verify * steps
    # Its overlap path leaves the numerator at 0: a length far above 1 then contradicts the rate.
    if not accepted and length is not None and length > 1 + 2 / verify:
        return None
    return count(float(round(accepted))) if abs(accepted - round(accepted)) < 1e-6 else None


def _emitted(stats: list[dict[str, Any]]) -> float | None:
    pairs = [(number(m.get("spec_accept_length")), count(m.get("spec_verify_ct")) or 0) for m in stats]
    weighed = [(v, n) for v, n in pairs if v and n]
    return sum(v * n for v, n in weighed) / sum(n for _, n in weighed) if weighed else None
