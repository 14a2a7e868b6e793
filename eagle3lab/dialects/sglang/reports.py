"""What SGLang says of a run: its metrics, its responses, its log.

Definitions by reading 0.5.3.post3, 0.5.9 and 0.5.23 (engines.md 7.1); accept length includes the bonus token
everywhere, the accept rates differ by version and are never used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.dialects import whose
from eagle3lab.dialects.evidence import (
    count,
    json_file,
    number,
    objects,
    steps_note,
    text_lines,
    unreadable,
)
from eagle3lab.dialects.modelopt.reports import benchmarks
from eagle3lab.dialects.prometheus import counter_growth
from eagle3lab.dialects.sglang.answers import of_answers
from eagle3lab.dialects.sglang.log_report import of_log
from eagle3lab.dialects.sglang.settings import settings_flaws, settings_remarks
from eagle3lab.errors import BadFile

_ENGINE = "sglang"
_MEAN = "avg_spec_accept_length"
_VERIFY = "sglang:spec_verify_calls"
_LENGTH = "sglang:spec_accept_length"
_ARGUMENTS = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")


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
            and the number of verify rounds. Or specdec_bench's ``acceptance_rate.json``, which has counts.
        responses: JSON lines of ``/generate``, or of completions with ``return_meta_info`` or
            ``return_spec_tokens_details``: the only evidence with counts.
        steps: K (``speculative_num_steps``) as the case says, for evidence that does not say it.

    Returns:
        Reports whose notes say what is missing; notes of incomplete numbers start with ``partial:``. A run
        without speculation gives reports with ``drafts`` None or 0.

    Raises:
        BadFile: a file is missing or not what it should be.
    """
    reports, others = benchmarks(root, metrics, _ENGINE, steps)
    infos = [name for name in others if _is_json(root, name)]
    texts = [name for name in others if name not in infos]
    if texts:
        reports.append(_of_metrics(root, tuple(texts), steps))
    if infos:
        reports.append(_of_server_info(root, infos[-1], steps))
    if responses:
        reports.append(of_answers(root, responses, steps))
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
    notes, flaws = list(growth.notes), []
    if not any(name.startswith("sglang:") for name in growth.names):
        other = whose.metrics_of(growth.names)
        words = f"{other}'s" if other else "not SGLang's"
        flaws.append((Flaw.FOREIGN, f"no sglang: metric in {files[-1]}: these metrics are {words}"))
    elif below := [s.value for s in gauges if s.name == _LENGTH and s.value < 0]:
        flaws.append((Flaw.DISAGREES, f"{_LENGTH} is {below[0]:.4g}: no length is negative"))
    elif not lengths and not growth.total(_VERIFY):
        flaws.append((Flaw.SILENT, "no speculative metric: this server did not speculate, or none was decoded yet"))
    if any(s.name == _LENGTH and not math.isfinite(s.value) for s in gauges):
        flaws.append((Flaw.NAN, f"{_LENGTH} is no number: it is not used"))
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
        flaws=tuple(flaws),
    )


def _of_server_info(root: Path, name: str, steps: int | None) -> EngineReport:
    info = json_file(root, name, "the JSON of GET /server_info")
    if "internal_states" not in info:
        keys = ", ".join(list(info)[:5]) or "none"
        fault = f"found the keys {keys}; expected internal_states; save GET /server_info again"
        raise BadFile(name, fault)
    states = objects(info["internal_states"])
    values = [s.get(_MEAN) for s in states]
    lengths = [v for v in map(number, values) if v]
    known = count(info.get("speculative_num_steps")) or None
    notes: list[str] = []
    numbered = [s for s in states if s.get(_MEAN) == s.get(_MEAN)]  # NaN, the mean of no round, is said below
    broken = unreadable(numbered, (_MEAN,), "ranks", number)
    broken += unreadable([info], ("speculative_num_steps",), "answers")
    flaws = [(Flaw.DISAGREES, text) for text in broken]
    if lengths:
        notes.append("avg_spec_accept_length: mean from the server's start to its last log line, bonus included")
    elif any(isinstance(v, float) and math.isnan(v) for v in values):
        flaws.append((Flaw.NAN, "avg_spec_accept_length is nan: it is not used"))
    elif broken:
        pass  # that is all there is to say
    elif info.get("speculative_algorithm") is None and "speculative_algorithm" in info:
        flaws.append((Flaw.SILENT, "speculative_algorithm is not set: this server did not speculate"))
    else:
        words = "no avg_spec_accept_length: absent until the first decode log line (40 iterations)"
        flaws.append((Flaw.SILENT, words))
    flaws += [(Flaw.SIMULATED, f"{key} = {value}: acceptance is made up, not measured")
              for key, value in info.items() if "simulate_acc_len" in key.lower() and number(value)]  # fmt: skip
    if 0 < len(lengths) < len(states):
        notes.append(f"partial: {len(states) - len(lengths)} of {len(states)} ranks give no mean")
    if len(lengths) > 1:
        notes.append("plain mean over the data-parallel ranks: their numbers of rounds are not said")
    stated = {key: info.get(f"speculative_{key}") for key in _ARGUMENTS}
    arguments = {key: None if value is None else str(value) for key, value in stated.items()}
    return EngineReport(
        _ENGINE,
        "counters",
        (name,),
        steps=known or steps,
        version=str(info.get("version") or ""),
        notes=(*notes, *steps_note(known, steps)),
        reported_length=sum(lengths) / len(lengths) if lengths else None,
        flaws=(*flaws, *settings_flaws(arguments)),
        remarks=tuple(settings_remarks(arguments)),
    )
