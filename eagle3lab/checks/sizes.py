"""How large states are: as numbers (float16's limit, the slot that drowns the others) and as bytes on disk."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagle3lab.draft import Draft
from eagle3lab.records import Finding, Severity
from eagle3lab.samples import Samples
from eagle3lab.survey import Survey

CODES = {
    "S023": "size of the states: float16's limit, and the share of each slot",
    "S024": "bytes a recording takes, and many would",
}

HALF_MOST = 65504.0
DROWNS = 30.0
"""Ratio of RMS between two slots of fc above which the smaller one hardly counts without a norm."""

PLANS = (1_000, 10_000, 100_000)


def check(found: Survey, samples: Samples, draft: Draft | None, aux: Sequence[int | str]) -> list[Finding]:
    """All findings about sizes.

    Args:
        found: from `survey`.
        samples: the samples, for their number.
        draft: whether it norms its slots, None when it cannot be opened.
        aux: boundaries that are fed as configured, () when not known.
    """
    return [*_overflow(found), *_slots(found, draft, aux), *_bytes(found, samples)]


def _overflow(found: Survey) -> list[Finding]:
    high = {k: size for k, size in found.largest.items() if size > HALF_MOST}
    if not high:
        return []
    k = max(high, key=lambda key: high[key])
    return [Finding(
        "S023", Severity.WARN, f"{len(high)} boundaries hold numbers that float16 cannot", ", ".join(f"h.{b}" for b in high),
        f"up to {high[k]:,.0f} at boundary {k}", f"at most {HALF_MOST:,.0f} for float16", "every row was read",
        "serve and record in bfloat16 or float32: float16 turns these into infinities, and acceptance into nothing",
    )]  # fmt: skip


def median_sizes(found: Survey) -> dict[int, float]:
    """Boundary → median RMS over all rows of all samples, rows that are not finite left out."""
    parts: dict[int, list[torch.Tensor]] = {}
    for (_, k), values in found.rms.items():
        parts.setdefault(k, []).append(values[values.isfinite()])
    return {k: float(torch.cat(v).median()) for k, v in sorted(parts.items()) if sum(map(len, v))}


def _slots(found: Survey, draft: Draft | None, aux: Sequence[int | str]) -> list[Finding]:
    sizes = median_sizes(found)
    fed = {k: sizes[k] for k in aux if isinstance(k, int) and sizes.get(k)}
    if len(fed) < 2 or draft is None:
        return []
    energy = sum(v * v for v in fed.values())
    words = ", ".join(f"h.{k} {v * v / energy:.1%}" for k, v in fed.items())
    low, high = min(fed, key=lambda k: fed[k]), max(fed, key=lambda k: fed[k])
    normed = "input_norm.weight" in draft or "fc_norm.0.weight" in draft
    if normed or fed[high] < DROWNS * fed[low]:
        return [Finding("S023", Severity.PASS, "no slot drowns the others" if not normed else "slots are normed before fc",
                        measured=f"energy {words}")]  # fmt: skip
    return [Finding(
        "S023", Severity.WARN, f"slot h.{high} carries {fed[high] ** 2 / energy:.0%} of the energy that fc is fed, and nothing norms it",
        f"h.{low}, h.{high}", f"energy {words}; RMS {fed[high]:.3g} against {fed[low]:.3g}", f"within {DROWNS:.0f} times of each other, or a norm",
        "median rows", "nothing to do if the draft was trained so; a new one wants norm_before_fc or fc_norm",
    )]  # fmt: skip


def plan(found: Survey) -> dict[str, float]:
    """Bytes: a token, a conversation (mean), and `PLANS` conversations of this kind; {} without a sound sample."""
    tokens = sum(t for n, (_, t) in found.masks.items() if n in found.nbytes)
    if not tokens or not found.nbytes:
        return {}
    total, count = sum(found.nbytes.values()), len(found.nbytes)
    return {"token": total / tokens, "conversation": total / count, **{f"{n:,}": n * total / count for n in PLANS}}


def bytes_shown(size: float) -> str:
    """1,234,567 → ``1.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} TB"


def _bytes(found: Survey, samples: Samples) -> list[Finding]:
    planned = plan(found)
    if not planned:
        return []
    held = sorted({len(h) for h in found.held.values()})
    widths = sorted(set(found.widths.values()))
    words = ", ".join(f"{n:,} {bytes_shown(planned[f'{n:,}'])}" for n in PLANS)
    return [Finding(
        "S024", Severity.INFO, f"a conversation of this recording takes {bytes_shown(planned['conversation'])}", samples.path.name,
        f"{bytes_shown(planned['token'])} a token ({' or '.join(map(str, held))} states of {' or '.join(map(str, widths))}); "
        f"conversations like these: {words}", evidence=f"{len(found.nbytes)} of {len(samples)} samples, states only",
        remedy="fewer boundaries or bfloat16 where this is too much: an EAGLE-3 draft is trained on three states and the last one",
    )]  # fmt: skip
