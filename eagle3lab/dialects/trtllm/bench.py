"""What trtllm-bench leaves: its ``--report_json`` and what it prints; by reading.

``bench/dataclasses/reporting.py`` at 2787769: iterations include the prefill's; accepted = tokens - iterations.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.dialects import whose
from eagle3lab.dialects.evidence import count, number, objects, text_lines, unreadable
from eagle3lab.dialects.sources import Sources

_ENGINE = "trtllm"
_AVERAGE = re.compile(r"\[(DT|ADT|AL)\] AVERAGE\s*: (\d+\.\d\d|nan)\b")
CLIENT = "what came out: drafts accepted past a request's end are not in it"


def of_bench(name: str, report: dict[str, Any], steps: int | None) -> EngineReport:
    """What ``--report_json`` says: means over requests, from which counts follow where all products are whole.

    Args:
        name: the file, relative to the case.
        report: its content.
        steps: K as the case says.
    """
    stats, info = report.get("decoding_stats"), report.get("request_info")
    stats, info = (value if isinstance(value, dict) else {} for value in (stats, info))
    mean, accepted_mean = _average(stats, "acceptance_length"), _average(stats, "num_accepted_draft_tokens")
    requests, output_mean = count(info.get("num_requests")), number(info.get("avg_output_length"))
    notes = [
        "trtllm-bench: its length counts the prefill's iteration and token among the rounds",
        f"counts are {CLIENT}",
    ]
    broken = unreadable([info], ("num_requests",), "reports")
    broken += unreadable([info], ("avg_output_length",), "reports", number)
    for key in ("acceptance_length", "num_accepted_draft_tokens"):
        values = stats.get(f"{key}_percentiles")
        broken += [f"{key}: {text}" for text in unreadable(objects(values), ("average",), "reports", number)]
    flaws = [(Flaw.DISAGREES, text) for text in broken]
    if mean is None:
        silent = (Flaw.SILENT, "decoding_stats hold no acceptance length: this bench did not speculate")
        return EngineReport(_ENGINE, "counters", (name,), steps=steps, flaws=tuple(flaws or [silent]))
    drafts = accepted = output = None
    if requests and output_mean is not None and accepted_mean is not None:
        totals = [_whole(value * requests) for value in (output_mean, accepted_mean)]
        if totals[0] is not None and totals[1] is not None and totals[0] - totals[1] - requests >= 0:
            output, accepted = totals
            drafts = totals[0] - totals[1] - requests
    if drafts is None and not broken:
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
        flaws=tuple(flaws),
    )


def _average(stats: dict[str, Any], name: str) -> float | None:
    values = stats.get(f"{name}_percentiles")
    return number(values.get("average")) if isinstance(values, dict) else None


def of_log(root: Path, name: str, steps: int | None) -> EngineReport:
    """What trtllm-bench printed: a mean over requests, of the last bench in the log.

    Args:
        root: the case folder.
        name: the log, relative to it.
        steps: K as the case says.

    Raises:
        BadFile: missing or no text.
    """
    means: list[tuple[str, str]] = []  # of each bench, with the container or file named before it
    looks_like, lines, sources = "", 0, Sources()
    for place, line in text_lines(root, name, "what trtllm-bench printed, as text"):
        lines, source = place, sources.of(line.strip())
        if (found := _AVERAGE.search(line)) and found[1] == "AL":
            means.append((found[2], source))
        looks_like = looks_like or whose.log_of(line)
    notes, flaws = [], []
    if len(means) > 1:
        source = f" ({means[-1][1]})" if means[-1][1] else ""
        flaws.append((Flaw.SERVERS, f"partial: {len(means)} benches in one log; the last{source} is taken"))
    mean = means[-1][0] if means else None
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
