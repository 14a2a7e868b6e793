"""Whether number formats matter (float32, bfloat16, float16, an fp8 cache), how the fed-back state grows, memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eagle3lab.bench import start_of
from eagle3lab.checks.evidence import Opened
from eagle3lab.checks.sizes import bytes_shown
from eagle3lab.dialects.common import is_latent
from eagle3lab.errors import LabError
from eagle3lab.forward import memory_bound, rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Finding, Sample, Severity
from eagle3lab.samples import reply_rows

CODES = {
    "A008": "precision: the same rows in float32, bfloat16, float16, and with an fp8 cache",
    "A009": "size of the state that is fed back, step by step",
    "A010": "memory that the forward needs, and positions it reaches",
}

FORMATS: dict[str, tuple[str, torch.dtype | None]] = {
    "bfloat16": ("bfloat16", None),
    "bfloat16 with an fp8 e4m3 cache": ("bfloat16", torch.float8_e4m3fn),
    "bfloat16 with an fp8 e5m2 cache": ("bfloat16", torch.float8_e5m2),
    "float16": ("float16", None),
}
"""Name → format of the arithmetic, and of keys and values where it is another; a format's weights are made once."""

TEXT, ROWS, SAMPLES, DEPTH = 512, 64, 2, 6
"""Bounds: positions of a text, rows of it, samples, draft steps."""


@dataclass(frozen=True)
class Flips:
    """One number format against float32 on the same rows.

    Attributes:
        dtype: its name.
        rows: rows compared.
        flips: rows whose first draft is another token.
        lost: rows that were right and are wrong now.
        won: rows that were wrong and are right now.
        broken: rows whose logits are not finite.
    """

    dtype: str
    rows: int
    flips: int
    lost: int
    won: int
    broken: int


def check(case: Opened, reading: Reading, samples: list[Sample]) -> list[Finding]:
    """All findings about precision and memory, on at most `SAMPLES` samples of `TEXT` positions."""
    chosen = [cut for s in samples if len(reply_rows(cut := start_of(s, TEXT))) >= 8][:SAMPLES]
    if not chosen:
        return []
    return [*_formats(case, reading, chosen), *_growth(case, reading, chosen), *_memory(case, reading, samples)]


def flips(case: Opened, reading: Reading, samples: list[Sample]) -> list[Flips]:
    """Each format against float32, on the same rows."""
    base = _drafts(case.model, reading.replace(dtype="float32"), samples)
    out = []
    own, held = case.model, "float32"
    for name, (dtype, cache) in FORMATS.items():
        if dtype != held:
            own, held = (
                Model(case.draft, case.model.target, str(case.model.device)),
                dtype,
            )  # weights go with their format
        other = _drafts(own, reading.replace(dtype=dtype), samples, cache)
        mine, theirs = (torch.cat([d for d, _ in part]) for part in (base, other))
        truth = torch.cat([t for _, t in base])
        was, now = mine == truth, theirs == truth
        out.append(Flips(name, len(mine), int((mine != theirs).sum()), int((was & ~now).sum()), int((now & ~was).sum()),
                         int((theirs < 0).sum())))  # fmt: skip
    return out


def _drafts(
    model: Model, reading: Reading, samples: list[Sample], cache: torch.dtype | None = None
) -> list[tuple[Tensor, Tensor]]:
    """First drafts and recorded tokens [R] of each sample, evenly spread reply rows."""
    out = []
    for sample in samples:
        rows = reply_rows(sample)
        rows = rows[rows < sample.length - reading.shift - 1]
        rows = rows[torch.linspace(0, len(rows) - 1, min(ROWS, len(rows))).round().long()]
        step = rollout(model, sample, reading, 1, rows=rows, probabilities=False, cache=cache).steps[0]
        out.append((step.top_ids[:, 0].cpu(), step.truth.cpu()))
    return out


def _formats(case: Opened, reading: Reading, samples: list[Sample]) -> list[Finding]:
    scales = "an fp8 cache without scales, as vLLM and SGLang keep it where the checkpoint brings none (by reading)"
    if is_latent(case.draft.arch):
        scales += "; of latent attention engines keep the latent, not the keys rounded here"
    try:
        found = flips(case, reading, samples)
    except LabError as error:
        return [Finding("A008", Severity.BLOCKED, "the draft cannot be run in other number formats", "forward", error.line,
                        remedy="see what is named here")]  # fmt: skip
    words = ", ".join(
        f"{f.dtype} {f.flips} of {f.rows} first drafts differ ({f.lost} lost, {f.won} won"
        + (f", {f.broken} not finite)" if f.broken else ")")
        for f in found
    )
    evidence = f"{found[0].rows} rows of {len(samples)} samples, step 0, against float32; {scales}"
    broken = [f for f in found if f.broken]
    if broken:
        worst = Severity.FAIL if any(f.dtype.startswith("bfloat16") for f in broken) else Severity.WARN
        return [Finding("A008", worst, f"logits are not finite in {' and '.join(f.dtype for f in broken)}", "forward", words, "finite logits",
                        evidence, "serve this draft in bfloat16 (--dtype bfloat16), whose range is float32's" if worst == Severity.WARN
                        else "look for enormous weights or states (W003, S023)")]  # fmt: skip
    # a net loss beyond chance: of the flips that change right to wrong or back, far more go one way
    sore = [f for f in found if f.lost - f.won > 2 * max((f.lost + f.won) ** 0.5, 1) and f.lost - f.won > 0.05 * f.rows]
    if sore:
        return [Finding("A008", Severity.WARN, f"{' and '.join(f.dtype for f in sore)} costs acceptance", "forward", words,
                        "as many won as lost", evidence, _instead(sore))]  # fmt: skip
    return [Finding("A008", Severity.PASS, "the number format does not matter: ties flip, and as many are won as lost", "forward",
                    words, evidence=evidence)]  # fmt: skip


def _instead(sore: list[Flips]) -> str:
    if all("cache" in f.dtype for f in sore):
        return "leave the cache in the model's format (--kv-cache-dtype auto), or calibrate scales for it"
    return "serve this draft in float32, or train it in the format it is served in"


def growth(case: Opened, reading: Reading, sample: Sample) -> list[float]:
    """Median RMS of the state handed on, step by step, on evenly spread rows that every step has."""
    rows = reply_rows(sample)
    rows = rows[rows < sample.length - reading.shift - DEPTH]
    if not len(rows):
        return []
    rows = rows[torch.linspace(0, len(rows) - 1, min(ROWS, len(rows))).round().long()]
    rolled = rollout(case.model, sample, reading, DEPTH, rows=rows, keep=("hidden",), probabilities=False, fed="self")
    return [float(s.hidden.float().square().mean(1).sqrt().median()) for s in rolled.steps if s.hidden is not None]


def _growth(case: Opened, reading: Reading, samples: list[Sample]) -> list[Finding]:
    sizes = [size for s in samples[:1] for size in growth(case, reading, s)]
    if len(sizes) < 2 or not sizes[0] > 0:
        return []
    words = ", ".join(f"{size:.3g}" for size in sizes)
    evidence = f"median RMS at steps 0 … {len(sizes) - 1}, own tokens fed, {samples[0].name}"
    if sizes[-1] < 10 * sizes[0]:
        return [
            Finding(
                "A009",
                Severity.PASS,
                "the state that is fed back does not grow from step to step",
                measured=words,
                evidence=evidence,
            )
        ]
    return [Finding(
        "A009", Severity.WARN, f"the state that is fed back grows {sizes[-1] / sizes[0]:.0f} times over {len(sizes)} steps", "chain", words,
        "under 10 times", evidence,
        "nothing norms what is handed on: float16 overflows in long chains; a draft trained with norm_output feeds the normed state (F006)",
    )]  # fmt: skip


def _memory(case: Opened, reading: Reading, samples: list[Sample]) -> list[Finding]:
    longest = max(samples, key=lambda s: s.length)
    limit = case.draft.config.get("max_position_embeddings")
    steps = case.steps
    weights = sum(info.nbytes for info in case.draft.tensors.values())
    here = memory_bound(case.model, longest, reading, steps)
    words = f"{bytes_shown(here)} for the longest recorded text ({longest.length} tokens)"
    if isinstance(limit, int) and limit > longest.length:
        ids = torch.zeros(limit, dtype=torch.long)
        full = replace(longest, input_ids=ids)  # only its length is looked at
        words += f", {bytes_shown(memory_bound(case.model, full, reading, steps))} for one of {limit} tokens, the draft's limit"
    return [Finding(
        "A010", Severity.INFO, f"the lab's forward needs {bytes_shown(here)} beside the weights ({bytes_shown(weights)} on disk)", "forward", words,
        evidence=f"an upper bound for K={steps}, one text at a time, recorded states left on disk",
    )]  # fmt: skip
