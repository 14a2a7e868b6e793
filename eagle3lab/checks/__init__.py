"""Findings, one function a check, grouped by what they look at; codes are stable and documented in docs/checks.md."""

from __future__ import annotations

from eagle3lab.checks import acceptance, forward, inputs, samples, serving, stages, vocab, weights

STAGES = tuple(stages.STAGES)
"""Reading order."""

CODES: dict[str, str] = {
    code: title
    for module in (inputs, weights, vocab, samples, forward, acceptance, serving)
    for code, title in module.CODES.items()
}
"""Every code the lab can give, with what it is about."""

__all__ = ["CODES", "STAGES", "acceptance", "forward", "inputs", "samples", "serving", "stages", "vocab", "weights"]
