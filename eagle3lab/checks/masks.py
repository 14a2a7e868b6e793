"""What the loss mask marks: density, the edges of replies, end tokens, padding, a doubled prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from statistics import median
from typing import Any

from eagle3lab.records import Finding, Severity
from eagle3lab.survey import Span, Survey

CODES = {
    "S021": "tokens at a text's start that come twice",
    "S022": "loss mask, span by span: ends, padding, share of the text",
}

MOST = 5
FEW = 0.02
"""Share of reply tokens under which a sample is nearly all prompt."""


def check(
    found: Survey, config: Mapping[str, Any], text: Callable[[int], str], headline: Collection[str] = ()
) -> list[Finding]:
    """All findings about what the mask marks.

    Args:
        found: from `survey`.
        config: the target's config, for its end and padding tokens; the draft's where there is no target.
        text: a token's own text.
        headline: the samples whose replies are scored; all when empty. Others may follow rules of their own.
    """
    spans = [s for s in found.spans if not headline or s.sample in headline]
    return [*_twice(found), *_thin(found), *_padding(spans, config), *_ends(spans, config, text)]


def tokens_of(config: Mapping[str, Any], key: str) -> set[int]:
    """The token ids under ``key``, which holds one, a list of them, or null."""
    value = config.get(key)
    return {t for t in (value if isinstance(value, list) else [value]) if isinstance(t, int)}


def _twice(found: Survey) -> list[Finding]:
    if not found.repeats:
        return []
    name, count = max(found.repeats.items(), key=lambda item: item[1])
    return [Finding(
        "S021", Severity.WARN, f"{len(found.repeats)} samples begin with the same tokens twice", ", ".join(list(found.repeats)[:MOST]),
        f"{name}: its first {count} tokens are repeated right after", "a system prompt and a template header once",
        f"{len(found.masks)} samples", "check the parser that renders the chat: the system prompt was added by it and by the template",
    )]  # fmt: skip


def _thin(found: Survey) -> list[Finding]:
    thin = {n: r / t for n, (r, t) in found.masks.items() if 0 < r < FEW * t}
    if not thin:
        return []
    return [Finding(
        "S022", Severity.WARN, f"{len(thin)} samples mark under {FEW:.0%} of their tokens as reply", ", ".join(list(thin)[:MOST]),
        f"{min(thin.values()):.4f} to {max(thin.values()):.4f}", f"{_density(found):.3f} is the median of all samples",
        f"{len(found.masks)} masks", "a reply that was cut off, or a mask that misses turns (an unknown role name): check the template",
    )]  # fmt: skip


def _density(found: Survey) -> float:
    return median(r / t for r, t in found.masks.values())


def _padding(spans: list[Span], config: Mapping[str, Any]) -> list[Finding]:
    pads = (tokens_of(config, "pad_token_id") | {0}) - tokens_of(config, "eos_token_id")
    filled = [s for s in spans if s.end == s.length and s.last and s.last[-1] in pads]
    if not filled or len(filled) < len([s for s in spans if s.end == s.length]) / 2:
        return []
    rows = sum(s.padded for s in filled)
    return [Finding(
        "S022", Severity.WARN, f"{len(filled)} replies end in padding that is marked as reply",
        ", ".join(dict.fromkeys(s.sample for s in filled[:MOST])), f"{rows} tokens {filled[0].last[-1]} at the ends of {len(filled)} replies",
        "mask 0 on padding and on a row without a label", f"{len(spans)} spans",
        "the target was shifted and the mask was not (EAGLE#317): set the mask to 0 there; in training it taught a wrong last token",
    )]  # fmt: skip


def _ends(spans: list[Span], config: Mapping[str, Any], text: Callable[[int], str]) -> list[Finding]:
    """Whether the end token belongs to the reply: an engine drafts it, and emits nothing after it."""
    if not spans:
        return []
    ends = tokens_of(config, "eos_token_id")
    inside = [s for s in spans if s.last[-1] in ends]
    outside = [s for s in spans if s.last[-1] not in ends and s.following in ends]
    past = [s for s in spans if any(t in ends for t in s.last[:-1]) and s.last[-1] not in ends]
    cut = [s for s in spans if s.end == s.length and s.last[-1] not in ends and s not in past]
    words = (
        f"{len(spans)} spans in {len({s.sample for s in spans})} samples, {median(s.end - s.start for s in spans):.0f} tokens in "
        f"the middle; end token inside {len(inside)}, right after {len(outside)}, passed by {len(past)}, text ends without one "
        f"{len(cut)}"
    )
    evidence = f"first {_most([s.first[0] for s in spans], text)}; last {_most([s.last[-1] for s in spans], text)}"
    if past:
        # one token is the template's own line break, as many trainers mark it
        far = any(t in ends for s in past for t in s.last[:-2])
        return [Finding("S022", Severity.WARN if far else Severity.INFO, f"{len(past)} replies go on after their end token", _named(past), words,
                        "nothing marked after the end token", evidence,
                        "an engine emits nothing there, so these rows are in no engine's count: end the mask with the end token")]  # fmt: skip
    if inside and outside:
        return [Finding("S022", Severity.WARN, "some replies include their end token, others stop before it", _named(outside), words,
                        "one rule for all", evidence, "render all samples with one template; the end token belongs to the reply")]  # fmt: skip
    title = "what the mask marks, span by span"
    if outside:
        title = "no reply includes its end token: the draft was not scored, and perhaps not trained, on ending"
    return [Finding("S022", Severity.INFO if outside else Severity.PASS, title, "loss_mask", words, evidence=evidence,
                    remedy="mark the end token too" if outside else "")]  # fmt: skip


def _named(spans: list[Span]) -> str:
    return ", ".join(list(dict.fromkeys(s.sample for s in spans))[:MOST])


def _most(tokens: list[int], text: Callable[[int], str], most: int = 3) -> str:
    counted = Counter(tokens).most_common()
    shown = ", ".join(f"{text(t)!r} ({n})" for t, n in counted[:most])
    return shown + (f" and {len(counted) - most} others" if len(counted) > most else "")
