"""``acceptance_rate.json`` of modelopt's specdec_bench, which drives vLLM, SGLang or TensorRT-LLM and counts itself.

By reading (``examples/specdec_bench`` at 1cb88ef and before): the histogram counts chunks by the tokens that arrived in
them, so bonus included; each turn's first chunk is the prefill's token and no verify round; the stop token is taken off
the last chunk. ``Average_AL`` (``Average_AR`` in the first version) is the plain mean over turns, prefill included.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.dialects.evidence import at_least, histogram, json_file, number, text_lines
from eagle3lab.errors import BadFile

_EXPECTED = "acceptance_rate.json as specdec_bench writes it"
_HISTOGRAM = "Acceptance_Length_Histogram"
_AVERAGE, _REQUESTS = ("Average_AL", "Average_AR"), ("Request_AL", "Request_AR")
_RATES = {"Conditional_Acceptance_Rate": True, "Joint_Acceptance_Rate": False}


def benchmarks(
    root: Path, metrics: Sequence[str], engine: str, steps: int | None
) -> tuple[list[EngineReport], tuple[str, ...]]:
    """Reports of those ``metrics`` that specdec_bench wrote, and the files that remain.

    Args:
        root: the case folder.
        metrics: files relative to it.
        engine: the engine that it drove, as the case says: the file does not.
        steps: K as the case says; the file does not.

    Raises:
        BadFile: a file of its keys that does not hold what they promise.
    """
    mine = [name for name in metrics if _is_benchmark(root, name)]
    reports = [_report(root, name, engine, steps) for name in mine]
    return reports, tuple(name for name in metrics if name not in mine)


def _is_benchmark(root: Path, name: str) -> bool:
    lines = text_lines(root, name, _EXPECTED)
    if next((line.lstrip()[:1] for _, line in lines if line.strip()), "") != "{":
        return False
    try:
        content = json.loads("".join(line for _, line in text_lines(root, name, _EXPECTED)))
    except (ValueError, RecursionError):
        return False  # the engine's own reader says what is wrong with it
    return isinstance(content, dict) and any(k in content for k in (_HISTOGRAM, *_AVERAGE, *_REQUESTS))


def _report(root: Path, name: str, engine: str, steps: int | None) -> EngineReport:
    content = json_file(root, name, _EXPECTED)
    means: Any = next((content[k] for k in _REQUESTS if k in content), {})
    leaves = _leaves(means) if isinstance(means, dict) else []
    lengths = [value for leaf in leaves if (value := number(leaf)) is not None]
    turns = len(leaves)  # a turn whose mean is no number is a turn
    mean = next((number(content[k]) for k in _AVERAGE if k in content), None)
    own = sum(lengths) / turns if turns and len(lengths) == turns else None
    chunks = histogram(content.get(_HISTOGRAM))
    if _HISTOGRAM in content and chunks is None:
        fault = f"{_HISTOGRAM}: found {str(content[_HISTOGRAM])[:60]}; expected counts by length; run the bench again"
        raise BadFile(name, fault)
    notes, flaws = ["counted by specdec_bench from the chunks that arrived, not by the engine"], _flaws(content, chunks)
    if mean is not None and own is not None and abs(mean - own) > 1e-3:
        flaws.append((Flaw.DISAGREES, f"the mean is printed as {mean:.4g}, its {turns} turns give {own:.4g}"))
    if not chunks or not sum(chunks):
        notes.append(f"{_HISTOGRAM} is missing or empty: only a mean over turns is given, prefill included")
        return EngineReport(engine, "counters", (name,), steps=steps, notes=tuple(notes), reported_length=mean,
                            mean_of_means=mean, answered=turns or None, flaws=tuple(flaws))  # fmt: skip
    one = chunks[1] if len(chunks) > 1 else 0
    prefills = turns if turns <= one else 0
    drafts = sum(chunks[1:]) - prefills
    output = sum(length * n for length, n in enumerate(chunks))
    accepted = output - prefills - drafts
    if prefills:
        notes.append(
            f"one chunk of one token in each of {turns} turns is taken for the prefill's and left out: with them the "
            f"mean is {output / sum(chunks[1:]):.3f}"
        )
    else:
        notes.append(
            f"partial: {turns} turns but {one} chunks of one token: the prefills' chunks could not be left out"
        )
    notes.append("chunks hold what came out: drafts accepted past a turn's end are not in them")
    positions = at_least((one - prefills, *chunks[2:]))
    if len(positions) < (steps or 0):
        positions += (0,) * ((steps or 0) - len(positions))
    return EngineReport(
        engine,
        "counters",
        (name,),
        steps=steps,
        drafts=drafts,
        accepted=accepted,
        per_position=positions,
        notes=tuple(notes),
        output=output,
        answered=turns or None,
        mean_of_means=own if mean is None else mean,
        flaws=tuple(flaws),
    )


def _flaws(content: dict[str, Any], chunks: tuple[int, ...] | None) -> list[tuple[Flaw, str]]:
    """Rates that are no numbers, or that the histogram beside them does not give."""
    flaws = []
    values = [content[k] for k in _AVERAGE if k in content]
    for key in (*_RATES, *_REQUESTS):
        values += _leaves(content.get(key, {}))
    if bad := [v for v in values if number(v) is None]:
        flaws.append((Flaw.NAN, f"{len(bad)} means or rates are no numbers ({str(bad[0])[:20]}): they are not used"))
    if not chunks:
        return flaws
    if chunks[0]:
        flaws.append(
            (Flaw.DISAGREES, f"{chunks[0]} chunks of no token: a chunk holds one at least; they are not counted")
        )
    total = sum(chunks)
    present = [length for length, n in enumerate(chunks) if n]
    for key, conditional in _RATES.items():
        rates = content.get(key)
        said: dict[str, Any] = rates if isinstance(rates, dict) else {}
        before = 1.0
        for length in present:
            share = sum(chunks[length:]) / total
            value, expected = number(said[str(length)]) if str(length) in said else None, share / before
            before = share if conditional else 1.0
            if value is not None and abs(value - expected) > 1e-3:
                words = f"{key} of {length} is {value:.4g}, the histogram gives {expected:.4g}"
                flaws.append((Flaw.DISAGREES, words))
                break
    return flaws


def _leaves(value: Any) -> list[Any]:
    """The values of nested objects ``{request: {turn: number}}``, in their order, whatever they are."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]
