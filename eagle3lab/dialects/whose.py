"""Whose file it is: an engine's log, metrics or answers given for another engine's are recognised and named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_METRICS = {"vllm:": "vLLM", "sglang:": "SGLang", "llamacpp:": "llama.cpp", "trtllm_": "TensorRT-LLM"}
_LOGS = {
    "vLLM": ("SpecDecoding metrics:", "vllm"),
    "SGLang": ("Decode batch", "sglang"),
    "TensorRT-LLM": ("TensorRT-LLM", "TRT-LLM", "tensorrt_llm"),
    "llama.cpp": ("llama_", "srv  ", "slot ", "llama-server"),
}

_ACCEPTANCE = {"vLLM": "SpecDecoding metrics:", "SGLang": "Decode batch", "llama.cpp": "draft acceptance"}


def acceptance_of(line: str) -> str:
    """The engine whose line of figures this is, ``""`` when it is none: surer than `log_of`."""
    return next((name for name, mark in _ACCEPTANCE.items() if mark in line), "")


def log_of(line: str) -> str:
    """The engine that a log line looks like, ``""`` when it looks like none."""
    lower = line.lower()
    return next((name for name, marks in _LOGS.items() if any(m in line or m in lower for m in marks)), "")


def metrics_of(names: Iterable[str]) -> str:
    """The engine whose metrics these are, ``""`` when unknown."""
    known = (engine for name in names for start, engine in _METRICS.items() if name.startswith(start))
    return next(known, "")


def answer_of(row: dict[str, Any]) -> str:
    """The engine that gave this answer, by the keys that only it writes; ``""`` when it has none of them."""
    choices = row.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    metrics = row.get("metrics")
    if "meta_info" in row or "meta_info" in first or "sglext" in row:
        return "SGLang"
    if str(row.get("system_fingerprint") or "").startswith("vllm"):
        return "vLLM"
    if isinstance(metrics, dict) and "speculative_decoding" in metrics:
        return "vLLM"
    if "timings" in row:
        return "llama.cpp"
    return "TensorRT-LLM" if "avg_decoded_tokens_per_iter" in first else ""
