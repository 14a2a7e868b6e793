"""``llm.get_metrics()`` written to a file: the counters of an offline run, as ``print`` or ``json.dump`` give them.

Form by reading vLLM 0.32's ``v1/metrics/reader.py`` at 08b782b: dataclasses ``Counter(name, labels, value)`` and
``Vector(name, labels, values)``, the latter only for accepted tokens per position; names without ``_total``.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from eagle3lab.dialects.evidence import text_lines
from eagle3lab.dialects.prometheus import Labels, Series, prometheus
from eagle3lab.errors import BadFile

_EXPECTED = "Prometheus text, or what llm.get_metrics() returned, printed or as JSON"
_LARGEST = 2**53
"""Counts past this are garbage, and those of hundreds of digits no float holds."""
_START = ("[", "{", "Counter(", "Gauge(", "Vector(", "Histogram(")
_NAMED = re.compile(r"\b(?:Counter|Vector)\(name='vllm:")
_OBJECT = re.compile(
    r"\b(?:Counter|Vector)\(name='(vllm:[\w:]+)', labels=(\{[^{}]*\}), values?=(\[[\d,. ]*\]|[-\w.+]+)\)"
)


def counters(root: Path, name: str) -> list[Series]:
    """The samples of a metrics file: Prometheus text, or a dump of ``llm.get_metrics()``; a Vector by position.

    Raises:
        BadFile: neither, or cut in the middle.
    """
    text = "".join(line for _, line in text_lines(root, name, _EXPECTED)).strip()
    if not text.startswith(_START):
        return prometheus(root, name)
    found = _printed(text, name) if "name='" in text[:4096] else _json(text, name)
    if not found and text.startswith("{"):
        raise BadFile(name, f"line 1: found {text[:60]!r}; expected {_EXPECTED}; save it again, whole, with curl")
    if not found:
        raise BadFile(name, f"found no vllm: counter; expected {_EXPECTED}; pass disable_log_stats=False to LLM(...)")
    return found


def _printed(text: str, name: str) -> list[Series]:
    whole = list(_OBJECT.finditer(text))
    if len(whole) < len(_NAMED.findall(text)) or not text.endswith((")", "]")):
        last = text[-40:]
        raise BadFile(name, f"found a dump cut short (it ends {last!r}); expected {_EXPECTED}; print all of it again")
    found: list[Series] = []
    for match in whole:
        try:
            labels, values = ast.literal_eval(match[2]), ast.literal_eval(match[3])
        except (ValueError, SyntaxError):
            labels, values = {}, match[3]
        found += _series(match[1], labels, values, name)
    return found


def _json(text: str, name: str) -> list[Series]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(name, f"found no valid JSON ({error}); expected {_EXPECTED}; record it again") from error
    if isinstance(content, dict):  # {name: value}, as scripts write it
        content = [{"name": key, "value": value} for key, value in content.items()]
    found: list[Series] = []
    for item in content if isinstance(content, list) else []:
        if isinstance(item, dict) and str(item.get("name", "")).startswith("vllm:"):
            values = item.get("values", item.get("value"))
            if values is not None:  # histograms have neither
                found += _series(str(item["name"]), item.get("labels"), values, name)
    return found


def _series(metric: str, labels: Any, values: Any, file: str) -> list[Series]:
    pairs = labels.items() if isinstance(labels, dict) else ()
    fixed: Labels = tuple(sorted((str(k), str(v)) for k, v in pairs))
    listed = [("position", j, v) for j, v in enumerate(values)] if isinstance(values, list) else [("", 0, values)]
    found = []
    for key, place, value in listed:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadFile(file, f"{metric}: found {value!r}; expected a count; record it again")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise BadFile(file, f"{metric}: found {str(value)[:20]}…; expected a count; record it again")
        more = ((key, str(place)),) if key else ()
        found.append(Series(metric, tuple(sorted((*fixed, *more))), float(value)))
    return found
