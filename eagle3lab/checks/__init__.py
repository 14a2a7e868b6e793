"""Findings, one function a check, grouped by what they look at; codes are stable and documented in docs/checks.md."""

from __future__ import annotations

from eagle3lab.checks import (
    acceptance,
    alignment,
    cost,
    dumps,
    fitted,
    forward,
    fresh,
    gap,
    inputs,
    maps,
    masks,
    parity,
    positions,
    precision,
    reports,
    samples,
    serving,
    sizes,
    stages,
    trained,
    vocab,
    walks,
    weights,
)

STAGES = tuple(stages.STAGES)
"""Reading order."""

CODES: dict[str, str] = {
    code: title
    for module in (
        inputs,
        weights,
        fresh,
        vocab,
        maps,
        samples,
        dumps,
        alignment,
        masks,
        sizes,
        trained,
        forward,
        parity,
        fitted,
        acceptance,
        positions,
        precision,
        walks,
        serving,
        gap,
        cost,
        reports,
    )
    for code, title in module.CODES.items()
}
"""Every code the lab can give, with what it is about."""

__all__ = [
    "CODES",
    "STAGES",
    "acceptance",
    "alignment",
    "cost",
    "dumps",
    "fitted",
    "forward",
    "fresh",
    "gap",
    "inputs",
    "maps",
    "masks",
    "parity",
    "positions",
    "precision",
    "reports",
    "samples",
    "serving",
    "sizes",
    "stages",
    "vocab",
    "walks",
    "weights",
]
