"""SGLang's printed accept rates: which of three definitions they follow, and whether one K fits them all.

0.5.3: bonus in, over num_steps + 1; 0.5.9: bonus in, over num_draft_tokens; 0.5.23: bonus out, over
num_draft_tokens - 1 (engines.md 7.1). The lab uses no rate as a figure; they tell how many drafts a round had.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from eagle3lab.dialects.sglang.log_lines import Decode

_WIDEST = 64
"""The largest number of draft tokens a round that is tried when the log does not say it."""
_SEVERAL = 8
"""Lines that need more different K than this follow no definition; they are no mixture."""


def rate_definition(decodes: Sequence[Decode], forms: set[str], steps: int | None, draft_tokens: int | None) -> str:
    """Which of the three definitions the rates follow, told from the numbers themselves, in words."""
    with_bonus, without = _fitting(decodes, steps, draft_tokens)
    version = "0.5.3 or before" if forms == {"."} else "after 0.5.3"
    words = []
    if with_bonus:
        words.append(f"bonus in, over {_choice(with_bonus)} (0.5.3: num_steps + 1; 0.5.9: num_draft_tokens)")
    if without:
        words.append(f"bonus out, over {_choice(without)} (0.5.23: num_draft_tokens - 1)")
    if not words:
        return f"accept rate fits none of the known definitions ({version} by its punctuation): do not use it"
    return f"accept rate: {' or '.join(words)}; {version} by its punctuation; not comparable across versions"


def mixture(decodes: Sequence[Decode], steps: int | None, draft_tokens: int | None) -> dict[str, list[int]]:
    """The numbers of drafts a round behind lines of which no one number fits all, {} where one does or none fits.

    Returns:
        Definition → numbers; both definitions where the lines do not tell which they follow.
    """
    if any(_fitting(decodes, steps, draft_tokens)):
        return {}
    found: dict[str, list[int]] = {}
    for words, bonus in (("bonus out", 0), ("bonus in", 1)):
        fitting = [
            {w for w in range(1, _WIDEST) if _fits(length - 1 + bonus, rate, w)} for length, rate in _pairs(decodes)
        ]
        cover = _cover(fitting) if all(fitting) else []
        if len(cover) == 1:
            return {}  # one K, though not that of the settings
        if cover:
            found[words] = sorted(w - bonus for w in cover)
    fewest = min(map(len, found.values()), default=0)
    return {words: numbers for words, numbers in found.items() if len(numbers) == fewest}


def _fitting(decodes: Sequence[Decode], steps: int | None, draft_tokens: int | None) -> tuple[list[int], list[int]]:
    """Widths that fit all lines: with the bonus in, and with it out."""
    known = steps is not None or draft_tokens is not None
    widths = {w for w in ((steps or 0) + 1, draft_tokens or 0) if w > 1} if known else set(range(1, _WIDEST))
    pairs = _pairs(decodes)
    with_bonus = sorted(w for w in widths if all(_fits(length, rate, w) for length, rate in pairs))
    widths = {w - 1 for w in widths} if known else widths
    return with_bonus, sorted(w for w in widths if w and all(_fits(length - 1, rate, w) for length, rate in pairs))


def _pairs(decodes: Iterable[Decode]) -> list[tuple[float, float]]:
    return sorted({(d.length, d.rate) for d in decodes})


def _cover(fitting: list[set[int]]) -> list[int]:
    """A few widths of which every line has one, the most common first; [] where more than a few are needed."""
    cover: list[int] = []
    while fitting and len(cover) <= _SEVERAL:
        best = max(range(1, _WIDEST), key=lambda w: sum(w in widths for widths in fitting))
        cover.append(best)
        fitting = [widths for widths in fitting if best not in widths]
    return cover if len(cover) <= _SEVERAL else []


def _fits(tokens: float, rate: float, width: int) -> bool:
    # Both numbers are printed with 2 decimals.
    return abs(tokens - rate * width) <= 0.005 * (1 + width) + 1e-9


def _choice(widths: list[int]) -> str:
    return str(widths[0]) if len(widths) == 1 else f"{widths[0]} to {widths[-1]} (undetermined)"
