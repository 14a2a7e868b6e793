"""Whether the recording is text that the draft was trained on: what it predicts there it may remember."""

from __future__ import annotations

from eagle3lab.acceptance import Evaluation
from eagle3lab.checks.evidence import Opened
from eagle3lab.errors import LabError
from eagle3lab.records import Finding, Severity
from eagle3lab.survey import Trained

CODES = {"S025": "recorded texts that the draft was trained on"}

MOST = 5

LEAST = 20
"""Rows on either side of a comparison."""


def check(case: Opened) -> list[Finding]:
    """S025, where the case names what the draft was trained on."""
    try:
        found = case.trained_on
    except LabError as error:
        return [Finding(
            "S025", Severity.BLOCKED, "whether the texts were trained on is not known: the training recordings cannot be read",
            "[training] samples", error.line, evidence="case.toml", remedy="name a folder, a file or a pattern of recordings",
        )]  # fmt: skip
    if found is None:
        return []
    part = f"; {len(found.unreadable)} cannot be read" if found.unreadable else ""
    evidence = f"tokens of {found.read} of {found.there} training texts" + part
    if not found.read:
        return [Finding(
            "S025", Severity.BLOCKED, "whether the texts were trained on is not known: no training recording can be read",
            "[training] samples", next(iter(found.unreadable.values()), ""), evidence=evidence,
            remedy="name recordings that hold token ids (docs/formats.md)",
        )]  # fmt: skip
    total = len(case.samples.headline)
    return [*_texts(found, total, evidence), *_prompts(found, evidence)]


def _texts(found: Trained, total: int, evidence: str) -> list[Finding]:
    known = found.known
    shares = sorted(found.shares.values())
    words = f"of their runs of 13 tokens {shares[0]:.2f} to {shares[-1]:.2f} stand in training texts" if shares else ""
    if not known:
        return [Finding("S025", Severity.PASS, f"none of the {total} texts is one that the draft was trained on",
                        "samples", words, evidence=evidence)]  # fmt: skip
    return [Finding(
        "S025", Severity.WARN, f"{len(known)} of {total} texts are ones that the draft was trained on", _named(known),
        "; ".join(_why(found, name) for name in known[:MOST]), "texts that training never saw", evidence,
        "its accuracy on them is partly memory: leave them out ([samples] exclude), and record held-out text"
        if len(known) < total else "its accuracy here is partly memory and says little of new text: record held-out text",
    )]  # fmt: skip


def _why(found: Trained, name: str) -> str:
    if name in found.whole:
        return f"{name} is {found.whole[name]}"
    if name in found.replies:
        return f"{name} holds a reply of {found.replies[name]}"
    return f"{name}: {found.shares[name]:.2f} of its runs of 13 tokens stand in training texts"


def _prompts(found: Trained, evidence: str) -> list[Finding]:
    if not found.prompts:
        return []
    words = "; ".join(f"{a} asks what {b} asks" for a, b in list(found.prompts.items())[:MOST])
    return [Finding(
        "S025", Severity.INFO, f"{len(found.prompts)} texts answer a prompt of the training texts in other words",
        _named(tuple(found.prompts)), words, "", evidence,
        "answered by another program, or at another temperature: for numbers on new text record other prompts",
    )]  # fmt: skip


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")


def remembered(case: Opened, best: Evaluation) -> list[Finding]:
    """A024: accuracy on the texts it was trained on beside that on the others."""
    found = case.attempt("trained_on")
    sides: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for name, part in best.parts.items():
        scored = part.scored[:, 0]
        right = int((part.correct[:, 0] & scored).sum())
        if found is not None and found.read:
            sides[name in found.known].append((right, int(scored.sum())))
    if any(sum(n for _, n in side) < LEAST for side in sides):
        return []
    (new, error_new), (old, error_old) = (_share(side) for side in sides)
    more = old - new > 2 * (error_new**2 + error_old**2) ** 0.5 and old - new > 0.02
    return [Finding(
        "A024", Severity.WARN if more else Severity.PASS,
        "the draft is better on texts it was trained on" if more else "texts it was trained on are predicted no better than others",
        "samples", f"accuracy {old:.3f} on {len(sides[1])} texts it was trained on, {new:.3f} on {len(sides[0])} others",
        "alike" if more else "", "step 0, fitted reading; which texts: S025",
        "the second figure is what new text gets; a large gap is overfitting: more training text, fewer epochs" if more else "",
    )]  # fmt: skip


def _share(side: list[tuple[int, int]]) -> tuple[float, float]:
    """Accuracy over all rows, and its error: over texts where there are some, else over rows."""
    right, n = sum(r for r, _ in side), sum(n for _, n in side)
    mean = right / n
    if len(side) < 3:
        return mean, (max(mean * (1 - mean), 0.01) / n) ** 0.5
    spread = sum((r - mean * m) ** 2 for r, m in side) / (len(side) - 1)
    return mean, (spread * len(side)) ** 0.5 / n
