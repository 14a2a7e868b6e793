"""What a dump does not say, and what reading it took: defaults, padding, masks, numbers, writers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from eagle3lab.records import Finding, Severity
from eagle3lab.samples import Samples
from eagle3lab.survey import Survey

CODES = {
    "S011": "what the recording does not say and its writer's default decided",
    "S012": "what was done to recordings on reading, or is missing in them",
    "S013": "several writers in one folder",
    "S014": "numbers that are missing or repeated, samples of the same tokens",
    "S015": "loss mask against the reply's own edges: one token early or late",
    "S016": "more samples than the headline reads",
}

ENOUGH = 4
"""Reply spans below which edges prove nothing: they may be alike by chance."""

MOST = 5


def check(found: Survey, samples: Samples, text: Callable[[int], str]) -> list[Finding]:
    """All findings about how the recording was stored.

    Args:
        found: from `survey`.
        samples: the samples.
        text: a token's own text, ``<17>`` for token 17 without a tokenizer.
    """
    return [*_assumed(found), *_notes(found), *_writers(found), *_numbers(found, samples),
            *_mask(found, text), *_bound(samples)]  # fmt: skip


def _named(names: list[str]) -> str:
    return ", ".join(names[:MOST]) + (f" and {len(names) - MOST} more" if len(names) > MOST else "")


def _assumed(found: Survey) -> list[Finding]:
    return [
        Finding(
            "S011", Severity.WARN, f"the dumps do not say it; assumed: {guess}", _named(names), f"{len(names)} samples",
            "stated in the dump or in case.toml", "the writer's default, for a target of this many layers",
            "write what was captured into case.toml: [samples] " + ("final" if guess.startswith("the last") else "boundaries"),
        )
        for guess, names in found.assumed.items()
    ]  # fmt: skip


def _notes(found: Survey) -> list[Finding]:
    """One finding a kind of note: numbers in it differ from sample to sample."""
    kinds: dict[str, list[str]] = {}
    examples: dict[str, str] = {}
    for note, names in found.notes.items():
        kind = re.sub(r"\d+", "N", note)
        kinds.setdefault(kind, []).extend(names)
        examples.setdefault(kind, note)
    out = []
    for kind, names in kinds.items():
        missing = any(word in kind for word in ("no loss mask", "Arrow", "cache", "case.toml", "neighbours"))
        out.append(Finding(
            "S012", Severity.WARN if missing else Severity.INFO, f"{len(names)} samples: {examples[kind] if len(names) == 1 else kind}",
            _named(names), examples[kind], evidence="read from the files",
            remedy="give what is missing, correct case.toml, or leave these samples out" if missing else "",
        ))  # fmt: skip
    return out


def _writers(found: Survey) -> list[Finding]:
    kinds = Counter(found.writers.values())
    if len(kinds) < 2:
        return []
    first = {kind: next(n for n, k in found.writers.items() if k == kind) for kind in kinds}
    return [Finding(
        "S013", Severity.WARN, f"{len(kinds)} kinds of files are in one folder", ", ".join(first.values()),
        ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()), "one writer", "keys of the opened files",
        "their boundaries and masks follow other rules: give each writer a case of its own, or exclude one",
    )]  # fmt: skip


def _numbers(found: Survey, samples: Samples) -> list[Finding]:
    out = [
        Finding("S014", Severity.INFO, f"{missing} of {last - first + 1} numbers are missing in {series}", series,
                f"{first} … {last}", evidence="file names",
                remedy="writers leave out samples with NaN or other tokens than asked for: look into their log if there are many")
        for series, first, last, missing in samples.listing.missing
    ]  # fmt: skip
    if repeated := samples.listing.repeated:
        out.append(Finding(
            "S014", Severity.INFO, f"{len(repeated)} file names are used in several folders", _named(list(repeated)),
            f"{len(repeated)} names", evidence="file names",
            remedy="usual where every rank counts for itself; otherwise one run was copied into another",
        ))  # fmt: skip
    twins = [names for names in found.tokens.values() if len(names) > 1]
    if twins:
        out.append(Finding(
            "S014", Severity.WARN, f"{sum(len(t) - 1 for t in twins)} samples repeat the tokens of another",
            _named([" = ".join(t[:3]) for t in twins]), f"{len(twins)} conversations more than once",
            "every conversation once", f"tokens of {len(found.writers)} samples",
            "they count twice, and intervals are too narrow: exclude the copies",
        ))  # fmt: skip
    known = [set(names) for names in twins]
    alike = [names for names in found.replies.values() if len(names) > 1 and not any(set(names) <= t for t in known)]
    if alike:
        out.append(Finding(
            "S014", Severity.INFO, f"{len(alike)} replies are in more than one sample, word for word",
            _named([" = ".join(names[:3]) for names in alike]), f"{len(alike)} replies of eight tokens or more",
            evidence=f"{len(found.spans)} spans",
            remedy="a held-out text whose reply was trained on says nothing of new texts: compare the two sets of prompts",
        ))  # fmt: skip
    return out


def _mask(found: Survey, text: Callable[[int], str]) -> list[Finding]:
    """Where a mask marks what is the same in every reply, it starts outside the reply.

    The token before a reply closes the template's header, so it is the same everywhere, and the reply's first token is
    not. A mask one late has a header token two places before its start; one early marks a header token first.
    """
    edges = [e for e in found.edges if e[1] >= 0]
    if len(edges) < ENOUGH:
        return []
    before_last, before, first = ({e[i] for e in edges} for i in range(3))
    if len(first) > 1 and len(before) == 1:
        return [Finding("S015", Severity.PASS, "the mask starts right after the same token everywhere, with replies that differ",
                        measured=f"{len(edges)} spans, {len(first)} first tokens")]  # fmt: skip
    if len(first) > 1 and len(before) > 1 and len(before_last) == 1:
        return [Finding(
            "S015", Severity.WARN, "the mask starts one token late", "loss_mask",
            f"the token two places before is {text(before_last.pop())!r} in all {len(edges)} spans, the one before differs",
            "the first token of the reply is marked", "tokens around every span",
            "store the mask unshifted; a mask that was shifted in training is in the weights: retrain",
        )]  # fmt: skip
    if len(first) > 1:
        return []
    token = text(first.pop())
    header = not token.strip() or token.strip().lower() in ("assistant", "model") or (
        token.startswith("<|") and "think" not in token)  # fmt: skip
    return [Finding(
        "S015", Severity.WARN if header else Severity.UNDETERMINED,
        "the mask starts one token early" if header else "every marked span starts with the same token",
        "loss_mask", f"first token {token!r} in all {len(edges)} spans", "first tokens that differ, as replies do",
        "tokens around every span",
        "store the mask unshifted: it should start after the template's header" if header
        else "fine if every reply opens so (a thinking model's tag); a mask one token early if it belongs to the template",
    )]  # fmt: skip


def _bound(samples: Samples) -> list[Finding]:
    if not samples.left_out:
        return []
    total = len(samples.headline) + samples.left_out
    return [Finding(
        "S016", Severity.INFO, f"{len(samples.headline)} of {total} samples are read, evenly spread", samples.path.name,
        f"{total} samples", evidence="the folder's listing",
        remedy="every number of this report is about these; name others under [samples] path or exclude",
    )]  # fmt: skip
