"""Where in the text the draft is right: by absolute position, by length of the text, by block of the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle3lab.acceptance import Evaluation
from eagle3lab.checks.evidence import Evidence
from eagle3lab.records import Finding, Sample, Severity
from eagle3lab.stats import Level, best_step

CODES = {
    "A004": "accuracy by absolute position: a step at a limit",
    "A005": "accuracy by length of the text",
    "A006": "accuracy by block of the target's vocabulary",
    "A007": "accuracy over all rows, over those the vocabulary can say, and coverage",
}

MOST = 50_000
"""Rows that are looked at one by one."""

LEAST = 20
"""Rows on each side of a step."""

SURE, LIKELY = 5.0, 8.0
"""Standard errors that convict a step at a known limit, and one at a place that nobody named."""


@dataclass(frozen=True)
class Row:
    """One scored row: step 0 of the chain that starts there."""

    sample: str
    position: int
    length: int
    token: int
    hit: bool
    covered: bool


def scored_rows(found: Evaluation, samples: Mapping[str, Sample]) -> list[Row]:
    """The scored rows of an evaluation, evenly spread where there are more than `MOST`; the token is the one predicted."""
    shift = found.reading.shift
    every = max(1, sum(int(part.scored[:, 0].sum()) for part in found.parts.values()) // MOST)
    out = []
    for name, part in found.parts.items():
        sample = samples[name]
        for t in torch.nonzero(part.scored[:, 0])[::every, 0].tolist():
            place = t + 1 + shift
            if place < sample.length:
                out.append(
                    Row(
                        name,
                        t,
                        sample.length,
                        int(sample.input_ids[place]),
                        bool(part.correct[t, 0]),
                        bool(part.covered[t, 0]),
                    )
                )
    return out


def check(case: Evidence, fitted: Evaluation, samples: Mapping[str, Sample]) -> list[Finding]:
    """All findings about where the fitted reading is right."""
    rows = scored_rows(fitted, samples)
    if len(rows) < 2 * LEAST:
        return []
    vocab = case.draft.arch.vocab
    return [
        *_positions(rows, limits(case.draft.config)),
        *_lengths(rows),
        *_blocks(case, rows, vocab),
        *_three_ways(rows),
    ]


def limits(config: Mapping[str, Any]) -> dict[int, str]:
    """Positions at which a config says that something ends → the key that says it."""
    out: dict[int, str] = {}
    keys = ("max_position_embeddings", "sliding_window")
    tables = [(k, config.get(k)) for k in ("rope_scaling", "rope_parameters")]
    named = [(k, config.get(k)) for k in keys]
    named += [(f"{t}.original_max_position_embeddings", v.get("original_max_position_embeddings")) for t, v in tables
              if isinstance(v, Mapping)]  # fmt: skip
    for key, value in named:
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            out.setdefault(value, key)
    return out


def _hits(rows: Sequence[Row]) -> Tensor:
    return torch.tensor([r.hit for r in rows], dtype=torch.float64)


def _at(rows: Sequence[Row], place: int) -> Level | None:
    """The step at one known position."""
    before, after = (_hits([r for r in rows if (r.position < place) is side]) for side in (True, False))
    if len(before) < LEAST or len(after) < LEAST:
        return None
    p, q = float(before.mean()), float(after.mean())
    error = ((p * (1 - p) + 1e-3) / len(before) + (q * (1 - q) + 1e-3) / len(after)) ** 0.5
    return Level(place, p, q, (p - q) / error, (len(before), len(after)))


def buckets(rows: Sequence[Row], most: int = 8) -> list[tuple[int, int, int, int]]:
    """Absolute position in at most ``most`` parts of equal rows: (first, last position, hits, rows)."""
    ordered = sorted(rows, key=lambda r: r.position)
    size = max(-(-len(ordered) // most), 1)
    parts = [ordered[i : i + size] for i in range(0, len(ordered), size)]
    return [(p[0].position, p[-1].position, sum(r.hit for r in p), len(p)) for p in parts]


def _positions(rows: Sequence[Row], known: Mapping[int, str]) -> list[Finding]:
    words = ", ".join(f"{low}…{high} {hits / n:.3f} of {n}" for low, high, hits, n in buckets(rows))
    evidence = f"{len(rows)} reply rows of {len({r.sample for r in rows})} samples, step 0"
    for place, key in sorted(known.items()):
        step = _at(rows, place)
        if step is not None and step.score > SURE and step.after < 0.8 * step.before:
            return [Finding(
                "A004", Severity.FAIL, f"accuracy falls at position {place}, where {key} ends", f"config.json: {key}",
                f"{step.before:.3f} of {step.n[0]} rows before, {step.after:.3f} of {step.n[1]} after; {words}", "no step", evidence,
                f"positions past it are clamped, or were never trained: raise {key.rsplit('.')[-1]} if the draft was trained on "
                "longer texts, else train it on them",
            )]  # fmt: skip
    ordered = sorted(rows, key=lambda r: r.position)
    free = best_step(_hits(ordered), LEAST)
    if free is not None and free.score > LIKELY and free.after < 0.6 * free.before:
        place = ordered[free.place].position
        return [Finding(
            "A004", Severity.WARN, f"accuracy falls at position {place}, at no limit that config.json names", "config.json: RoPE",
            f"{free.before:.3f} of {free.n[0]} rows before, {free.after:.3f} of {free.n[1]} after; {words}", "no step", evidence,
            "a context limit of the program that trained or recorded it (positions clamped, a window, texts cut at this length), or "
            "rows of another place (S018): compare with its maximum length",
        )]  # fmt: skip
    tested = [place for place in known if _at(rows, place) is not None]
    limit = f"; limits tested: {', '.join(map(str, tested))}" if tested else "; no limit lies inside the recorded texts"
    return [
        Finding("A004", Severity.PASS, "accuracy has no step along the text", measured=words + limit, evidence=evidence)
    ]


def _lengths(rows: Sequence[Row]) -> list[Finding]:
    """Texts of one length share their rotation under dynamic scaling: longer ones may be worse as a whole."""
    lengths = sorted({(r.length, r.sample) for r in rows})
    if len(lengths) < 6 or lengths[-1][0] < 2 * lengths[0][0]:
        return []
    middle = lengths[len(lengths) // 2][0]
    shorter, longer = ([r for r in rows if (r.length < middle) is side] for side in (True, False))
    if min(len(shorter), len(longer)) < LEAST:
        return []
    (p, e), (q, f) = _mean(shorter), _mean(longer)
    words = f"texts under {middle} tokens {p:.3f}, from {middle} on {q:.3f}"
    worse = (p - q) > 4 * (e * e + f * f) ** 0.5 and q < 0.8 * p
    return [Finding(
        "A005", Severity.WARN if worse else Severity.PASS, "accuracy is lower in long texts" if worse else "long texts do as well as short ones",
        "RoPE scaling" if worse else "", words, "alike" if worse else "", f"{len(lengths)} samples of {lengths[0][0]} to {lengths[-1][0]} tokens",
        "compare rope_scaling with the target's: a factor that is missing, or applied where it was not trained, grows with the length (F006)"
        if worse else "",
    )]  # fmt: skip


def _mean(part: Sequence[Row]) -> tuple[float, float]:
    """Mean over samples and its error: samples differ from each other more than rows of one do."""
    names = dict.fromkeys(r.sample for r in part)
    means = torch.stack([_hits([r for r in part if r.sample == n]).mean() for n in names])
    return float(means.mean()), float(means.std() / len(means) ** 0.5) if len(means) > 1 else float("nan")


def by_block(rows: Sequence[Row], vocab: int, blocks: int = 8) -> list[tuple[int, int, int, int]]:
    """Rows by the id of the token they should predict, those that the draft can say: (first id, past the last, hits, rows)."""
    out = []
    for i in range(blocks):
        low, high = i * vocab // blocks, (i + 1) * vocab // blocks
        here = [r for r in rows if r.covered and low <= r.token < high]
        out.append((low, high, sum(r.hit for r in here), len(here)))
    return out


def _blocks(case: Evidence, rows: Sequence[Row], vocab: int) -> list[Finding]:
    """Frequent tokens have low ids and are easier: what a block gets right alone convicts nothing, F011 does."""
    blocks = [b for b in by_block(rows, vocab) if b[3] >= 12]
    if len(blocks) < 2:
        return []
    shares = {b: b[2] / b[3] for b in blocks}
    best = max(shares.values())
    bad = [b for b in blocks if shares[b] < 0.08 and shares[b] < 0.15 * best]
    words = ", ".join(f"{low}…{high - 1} {hits / n:.3f} of {n}" for low, high, hits, n in blocks)
    evidence = "rows whose token the draft can say, by that token's id"
    if not bad or best < 0.3:
        return [Finding("A006", Severity.PASS, "no part of the vocabulary is lost", measured=words, evidence=evidence)]
    named = ", ".join(f"{low} … {high - 1}" for low, high, *_ in bad)
    if any(suspect.kind == "block" for suspect in case.scan.suspects):
        return [Finding(
            "A006", Severity.FAIL, f"tokens {named} are almost never drafted", "lm_head.weight", words,
            f"above 0.08 in every part of the vocabulary, best {best:.3f}", evidence,
            "rows of lm_head in this part are bad (F011; a lost shard: V011, W010): export again",
        )]  # fmt: skip
    return [Finding(
        "A006", Severity.INFO, f"tokens {named} are almost never drafted", "samples", words, "", evidence,
        "hard or rare in this text: their head rows are not at fault (F011 would name them)",
    )]  # fmt: skip


def _three_ways(rows: Sequence[Row]) -> list[Finding]:
    n, covered, hits = len(rows), sum(r.covered for r in rows), sum(r.hit for r in rows)
    if not covered:
        return []
    return [Finding(
        "A007", Severity.INFO, f"accuracy {hits / n:.3f} over all rows is {hits / covered:.3f} over rows the draft can say × {covered / n:.3f} coverage",
        "samples", f"{hits} right, {covered} covered, {n} rows", evidence="step 0, fitted reading; trainers that leave uncovered rows out of "
        "the denominator print the second figure",
    )]  # fmt: skip
