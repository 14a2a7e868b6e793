"""Findings, one function a check, grouped by what they look at; codes are stable and documented in docs/checks.md."""

from __future__ import annotations

from eagle3lab.checks import acceptance, forward, samples, serving, vocab, weights

INPUT_CODES = {
    "C001": "an input cannot be read",
    "C002": "a question is blocked: the file that would answer it is not given",
}

STAGES = ("weights", "vocab", "samples", "forward", "acceptance", "serving")
"""Reading order: static, then shard, then forward, then engine."""

CODES: dict[str, str] = INPUT_CODES | {
    code: title
    for module in (weights, vocab, samples, forward, acceptance, serving)
    for code, title in module.CODES.items()
}
"""Every code the lab can give, with what it is about."""

__all__ = ["CODES", "STAGES", "acceptance", "forward", "samples", "serving", "vocab", "weights"]
