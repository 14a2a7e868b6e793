"""Is the recording sound: readable, finite, its own tokens' states, its final state's form, its loss mask."""

from __future__ import annotations

import re

from eagle3lab.checks import tokens
from eagle3lab.draft import Draft
from eagle3lab.records import Finding, Severity
from eagle3lab.samples import Samples
from eagle3lab.survey import Survey
from eagle3lab.target import Target

CODES = {
    "S001": "samples that cannot be read",
    "S002": "NaN, infinite or zero rows in the recorded states",
    "S003": "boundary 0 against the target's embedding rows",
    "S004": "form of the recorded last state: before or after the final norm",
    "S005": "share of the recorded reply that is the target's own greedy choice",
    "S006": "loss mask: replies marked, neither none nor all",
    "S007": "two boundaries that are the same tensor",
    "S008": "width of the recorded states against the draft's fc",
    "S009": "neighbouring boundaries: a residual stream, or its increments",
    "S010": "boundaries that only some samples hold",
    "S026": "size of the rows: a residual stream, or rows that were normed",
}


MOST = 10
"""Causes of unreadable samples that are spelt out; samples of further ones are counted."""


def check(found: Survey, samples: Samples, draft: Draft | None, target: Target | None, claimed: str) -> list[Finding]:
    """All findings about the recording.

    Args:
        found: from `survey`.
        samples: the samples, for their number.
        draft: for the width of fc, None when it cannot be opened.
        target: None when not given.
        claimed: the form the files claim for their last state, ``pre``, ``post`` or ``none``.
    """
    return [
        *_readable(found, samples),
        *_finite(found),
        *(_widths(found, draft) if draft is not None else []),
        *tokens.embedding(found, target),
        *tokens.form(found, target, claimed),
        *_masks(found),
        *_twins(found),
        *_stream(found),
        *_held(found, samples),
        *_normed(found),
    ]


def _readable(found: Survey, samples: Samples) -> list[Finding]:
    causes: dict[str, list[str]] = {}
    for name, text in found.unreadable.items():
        causes.setdefault(_cause(text, samples, name), []).append(name)
    findings = [_unreadable(found, samples, names) for names in list(causes.values())[:MOST]]
    if rest := [name for names in list(causes.values())[MOST:] for name in names]:
        findings.append(Finding(
            "S001", Severity.FAIL, f"{len(rest)} more samples cannot be read and are left out", _named(rest),
            f"{len(found.unreadable)} of {len(samples)}, for {len(causes)} reasons", "sound samples", "every file was opened",
            "record them again, or name other samples in case.toml",
        ))  # fmt: skip
    if others := samples.listing.others:
        findings.append(Finding(
            "S001", Severity.WARN, f"{len(others)} files of the folder are in a form that no reader knows and are not used",
            samples.path.name, ", ".join(others[:MOST]), "recorded samples (docs/formats.md)", "the folder's listing",
            "convert them, or move them elsewhere",
        ))  # fmt: skip
    unused: dict[str, list[str]] = {}
    for name, keys in found.unused.items():
        unused.setdefault(", ".join(keys), []).append(name)
    findings += [
        Finding("S001", Severity.WARN, (f"sample {names[0]} holds" if len(names) == 1 else f"{len(names)} samples hold")
                + " keys that the format does not know: they are not used", _named(names), words,
                "input_ids, loss_mask, h.K, final", "read from the header",
                "rename them if they were meant as states: h.K, K a boundary")
        for words, names in unused.items()
    ]  # fmt: skip
    return findings or [
        Finding("S001", Severity.PASS, f"all {len(samples.looked_at)} samples can be read", samples.path.name)
    ]


def _cause(text: str, samples: Samples, name: str) -> str:
    """What makes a sample unreadable, without names and numbers, and each part of it once."""
    for own in (str(samples.file(name)), samples.file(name).name, name):
        text = re.sub(rf"(?<!\w){re.escape(own)}(?!\w)", "", text)
    text = re.sub(r"-?\bN(, -?N\b)+", "N", re.sub(r"\d+", "N", text))
    text = re.sub(r"(h\.N|final)(, (h\.N|final))*( and N more)?(: each)?", "h.N", text)
    return "; ".join(dict.fromkeys(text.split("; ")))


def _unreadable(found: Survey, samples: Samples, names: list[str]) -> Finding:
    """S001 of samples with one cause; the first one's text stands for all."""
    first, several = names[0], len(names) > 1
    text = found.unreadable[first]
    remedy = "record them again, or remove the files" if several else "record it again, or remove the file"
    if "squeeze the" in text:
        remedy = (
            "squeeze the batch axis when you store a conversation: input_ids [T], loss_mask [T], each state [T, Ht]"
        )
    return Finding(
        "S001", Severity.FAIL,
        f"{len(names)} samples cannot be read and are left out" if several else f"sample {first} cannot be read and is left out",
        _named(names) if several else samples.file(first).name, text, "sound samples" if several else "a sound sample",
        next((found.partial[n] for n in names if n in found.partial), "headers, tokens and masks were read"), remedy,
    )  # fmt: skip


def _named(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _finite(found: Survey) -> list[Finding]:
    findings = [
        Finding(
            "S002", Severity.FAIL, f"{name}: boundary {k} holds {rows} rows at float16's largest number, 65504", f"{name}: h.{k}",
            f"{rows} of {len(found.rms[name, k])} rows", "numbers below it", "every row was read",
            "an overflow that was clamped: record again in bfloat16",
        )
        for (name, k), rows in found.saturated.items()
    ]  # fmt: skip
    for (name, k), (nan, inf, zero) in found.bad_rows.items():
        if nan or inf:
            findings.append(Finding(
                "S002", Severity.FAIL, f"{name}: boundary {k} holds {nan} rows with NaN and {inf} with infinities",
                f"{name}: h.{k}", measured=f"NaN rows {nan}, infinite rows {inf}", expected="none",
                evidence="every row was read",
                remedy="record this sample again; infinities in float16 mean overflow, so record in bfloat16",
            ))  # fmt: skip
        if zero:
            tokens = len(found.rms[name, k])
            findings.append(Finding(
                "S002", Severity.WARN if zero == 1 else Severity.FAIL, f"{name}: boundary {k} holds {zero} zero rows",
                f"{name}: h.{k}", measured=f"{zero} of {tokens} rows", expected="none (a single one can be legitimate)",
                evidence="every row was read",
                remedy="this boundary was never captured: record again" if zero == tokens
                else "a padded tail or a dump that was cut off: record this sample again",
            ))  # fmt: skip
    return findings or [Finding("S002", Severity.PASS, "no NaN, infinite or zero row in any state",
                                measured=f"{len(found.bad_rows)} states")]  # fmt: skip


def _widths(found: Survey, draft: Draft) -> list[Finding]:
    a = draft.arch
    bad = {name: width for name, width in found.widths.items() if width != a.target_hidden}
    if not bad:
        return [Finding("S008", Severity.PASS, f"the states' width {a.target_hidden} fits fc")] if found.widths else []
    name, width = next(iter(bad.items()))
    columns = a.aux * a.target_hidden
    if columns % width == 0:
        remedy = f"fc then takes {columns // width} states of {width}: set target_hidden_size to {width} in config.json"
    else:
        remedy = (
            "they come from another target, or several states were stored side by side: record one tensor a boundary"
        )
    return [Finding(
        "S008", Severity.FAIL, f"the recorded states are {width} wide, the draft's fc takes states of {a.target_hidden}",
        f"{name}: h.*", measured=f"{len(bad)} samples of width {width}", expected=f"{a.target_hidden} (fc has {columns} columns)",
        evidence="headers", remedy=remedy,
    )]  # fmt: skip


def _masks(found: Survey) -> list[Finding]:
    none = [n for n, (reply, _) in found.masks.items() if not reply]
    every = [n for n, (reply, total) in found.masks.items() if reply == total]
    findings = []
    if none:
        findings.append(Finding("S006", Severity.FAIL, f"{len(none)} samples mark no reply token", ", ".join(none[:5]),
                                measured="loss_mask all 0", expected="1 on reply tokens",
                                evidence="every mask was read", remedy="check the chat template that made the mask"))  # fmt: skip
    if every:
        findings.append(Finding("S006", Severity.WARN, f"{len(every)} samples mark every token as reply", ", ".join(every[:5]),
                                measured="loss_mask all 1", expected="0 on the prompt",
                                evidence="every mask was read",
                                remedy="prompts are scored too: accept length is not the engine's"))  # fmt: skip
    if findings or not found.masks:
        return findings
    reply = sum(r for r, _ in found.masks.values())
    total = sum(t for _, t in found.masks.values())
    return [
        Finding(
            "S006",
            Severity.PASS,
            f"{reply} of {total} tokens are marked as reply",
            measured=f"{reply / total:.3f}",
        )
    ]


def _twins(found: Survey) -> list[Finding]:
    return [
        Finding("S007", Severity.FAIL, f"boundaries {a} and {b} are the same tensor", f"h.{a}, h.{b}",
                measured="bitwise equal", expected="different states", evidence="compared element by element",
                remedy="the engine overwrote the captured buffer (sglang#39286): record again with a copy")
        for a, b in sorted(found.same)
    ]  # fmt: skip


def _stream(found: Survey) -> list[Finding]:
    apart = {pair for _, pair in found.apart}  # S017: rows of other places are as strange to each other
    odd = {b for (_, b), o in found.odd.items() if o.kind != "increment"}  # S017, S018
    odd |= {b for (_, b), (*_, zero) in found.bad_rows.items() if zero > 1}  # S002
    odd |= {b for pair in found.same for b in pair}  # S007
    odd |= {b for _, b in found.copies}  # S018
    direct = {
        pair: c
        for pair, c in found.cosines.items()
        if pair[1] - pair[0] == 1 and pair[0] > 0 and pair not in apart and not odd & set(pair)
    }
    if not direct:
        return _far(found)
    low = min(direct, key=lambda pair: direct[pair])
    if direct[low] > 0.3:
        return [Finding("S009", Severity.PASS, "neighbouring boundaries are close, as in a residual stream",
                        measured=f"lowest cosine {direct[low]:.3f} ({low[0]}, {low[1]})")]  # fmt: skip
    return [Finding("S009", Severity.WARN, f"boundaries {low[0]} and {low[1]} are nearly orthogonal", f"h.{low[0]}, h.{low[1]}",
                    measured=f"mean cosine {direct[low]:.3f}", expected="0.5 to 1 for a residual stream",
                    evidence="all rows but each sample's first",
                    remedy="block outputs without the residual were recorded: add the residual where states are captured")]  # fmt: skip


def _far(found: Survey) -> list[Finding]:
    """Boundaries without a direct neighbour: far ones of a stream still share a little, increments nothing at all."""
    pairs: dict[tuple[int, int], list[float]] = {}
    for (_, pair), value in found.centred.items():
        if found.lens_boundary not in pair:  # the last residual is captured apart, and rightly where others are not
            pairs.setdefault(pair, []).append(value)
    shared = {pair: sum(values) / len(values) for pair, values in pairs.items()}
    if not shared or found.apart or max(abs(value) for value in shared.values()) > 0.03:
        return []
    words = ", ".join(f"({a}, {b}) {value:.3f}" for (a, b), value in shared.items())
    return [Finding(
        "S009", Severity.UNDETERMINED, "the recorded boundaries share nothing: increments, or states of different texts", "h.*",
        f"cosine without the mean row: {words}", "above 0.1 in a residual stream, even many blocks apart", f"{len(found.widths)} samples",
        "record one boundary and its direct neighbour: near 1 is the stream, near 0 the block's output without the residual",
    )]  # fmt: skip


def _held(found: Survey, samples: Samples) -> list[Finding]:
    """The search can only choose between boundaries that every headline sample holds."""
    held = {name: set(found.held[name]) for name in samples.headline if name in found.held}
    if not held:
        return []
    shared, most = set.intersection(*held.values()), set.union(*held.values())
    lost = sorted(b for b in most - shared if 2 * sum(b in mine for mine in held.values()) >= len(held))
    if not lost:
        return []
    lacking = [name for name, mine in held.items() if not mine.issuperset(lost)]
    return [Finding(
        "S010", Severity.WARN if shared else Severity.FAIL,
        f"{len(lacking)} samples lack boundaries that others hold: the search uses those that all its samples hold", ", ".join(lacking[:5]),
        f"lacking {', '.join(map(str, lost))}; held by all: {', '.join(map(str, sorted(shared))) or 'none'}",
        "the same boundaries in every sample", f"{len(held)} headline samples",
        "record these samples again with all boundaries, or name them under [samples] exclude",
    )]  # fmt: skip


def _normed(found: Survey) -> list[Finding]:
    """S026: rows that were all brought to one size. A norm with a weight leaves sizes that differ: nothing is said of it."""
    by_boundary: dict[int, list[str]] = {}
    for name, b in found.sizes:
        by_boundary.setdefault(b, []).append(name)
    kinds: dict[tuple[str, ...], list[int]] = {}
    for b, holding in sorted(by_boundary.items()):
        kinds.setdefault(tuple(holding), []).append(b)
    out = []
    for names, held in kinds.items():
        holders = sum(set(held) <= set(mine) for mine in found.held.values())
        size, spread = max((found.sizes[name, b] for name in names for b in held), key=lambda pair: pair[1])
        out.append(Finding(
            "S026", Severity.FAIL if 2 * len(names) > holders else Severity.WARN,
            f"{len(names)} of {holders} samples: all rows of {'boundary' if len(held) == 1 else 'boundaries'} "
            f"{', '.join(map(str, held))} have one RMS: they were normed before they were recorded",
            f"{', '.join(names[:5])}: {', '.join(f'h.{b}' for b in held)}", f"RMS {size:.3g}, largest and smallest row "
            f"{spread:.2%} apart at most", "rows of a residual stream differ by tens of percent, the first one most of all",
            "up to 256 rows of each state", "record the residual stream: a block's input or output, not what a norm hands on",
        ))  # fmt: skip
    return out
