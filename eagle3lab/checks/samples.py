"""Is the recording sound: readable, finite, its own tokens' states, its final state's form, its loss mask."""

from __future__ import annotations

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
}


MOST = 10
"""Unreadable samples that are spelt out; the others are counted."""


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
        *_is_embedding(found, target),
        *_form(found, target, claimed),
        *_masks(found),
        *_twins(found),
        *_stream(found),
        *_held(found, samples),
    ]


def _readable(found: Survey, samples: Samples) -> list[Finding]:
    findings = [
        Finding("S001", Severity.FAIL, f"sample {name} cannot be read and is left out", samples.file(name).name, text,
                "a sound sample", "its header, tokens and mask were read", "record it again, or remove the file")
        for name, text in list(found.unreadable.items())[:MOST]
    ]  # fmt: skip
    if len(found.unreadable) > MOST:
        findings.append(Finding(
            "S001", Severity.FAIL, f"{len(found.unreadable) - MOST} more samples cannot be read and are left out",
            ", ".join(list(found.unreadable)[MOST : 2 * MOST]), f"{len(found.unreadable)} of {len(samples)}",
            "sound samples", "every file was opened", "record them again, or name other samples in case.toml",
        ))  # fmt: skip
    if others := samples.listing.others:
        findings.append(Finding(
            "S001", Severity.WARN, f"{len(others)} files of the folder are in a form that no reader knows and are not used",
            samples.path.name, ", ".join(others[:MOST]), "recorded samples (docs/formats.md)", "the folder's listing",
            "convert them, or move them elsewhere",
        ))  # fmt: skip
    findings += [
        Finding("S001", Severity.WARN, f"sample {name} holds keys that the format does not know: they are not used", name,
                ", ".join(keys), "input_ids, loss_mask, h.K, final", "read from the header",
                "rename them if they were meant as states: h.K, K a boundary")
        for name, keys in found.unused.items()
    ]  # fmt: skip
    return findings or [
        Finding("S001", Severity.PASS, f"all {len(samples.looked_at)} samples can be read", samples.path.name)
    ]


def _finite(found: Survey) -> list[Finding]:
    findings = []
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
                evidence="every row was read", remedy="a padded tail or a dump that was cut off: record this sample again",
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


def _is_embedding(found: Survey, target: Target | None) -> list[Finding]:
    if target is not None and not found.embedding_error and "S003" in found.blocked:
        return [Finding("S003", Severity.BLOCKED, "boundary 0 cannot be compared with the target's embedding rows", "h.0",
                        found.blocked["S003"], remedy="give the rows of every recorded token")]  # fmt: skip
    if target is None or not found.embedding_error:
        return []
    worst, error = max(found.embedding_error.items(), key=lambda item: item[1])
    # bfloat16 keeps 8 bits: relative differences up to 2^-8 of the largest entries are rounding
    if error <= 0.1:
        return [Finding("S003", Severity.PASS, "boundary 0 is the target's embedding of these very tokens", "h.0",
                        measured=f"largest relative difference {error:.1e}, {len(found.embedding_error)} samples")]  # fmt: skip
    bad = [n for n, e in found.embedding_error.items() if not e <= 0.1]  # a NaN fits nothing
    return [Finding(
        "S003", Severity.FAIL, f"boundary 0 is not the embedding of the recorded tokens in {len(bad)} samples", f"{worst}: h.0",
        measured=f"largest relative difference {error:.2f} ({', '.join(bad[:5])})", expected="0 up to rounding",
        evidence=f"{len(found.embedding_error)} samples against the target's rows, one common scale taken out",
        remedy="states of another request or another target were stored, or the tokens are shifted: record again",
    )]  # fmt: skip


def _form(found: Survey, target: Target | None, claimed: str) -> list[Finding]:
    n = found.lens[1][1] if 1 in found.lens else 0
    if target is None or not n:
        why = "no target can be read" if target is None else "no last residual of reply tokens is recorded"
        return [Finding("S004", Severity.BLOCKED, "the form of the last state is not known: "
                        + ("the target's rows cannot be read" if "S004" in found.blocked else why), "last state",
                        found.blocked.get("S004", ""),
                        remedy="record the last residual, give the target's head rows and final norm")]  # fmt: skip
    shares = {norms: hits / n if n else 0.0 for norms, (hits, n) in found.lens.items()}
    held = f"over the {len(target.token_ids)} rows held" if target.sliced else f"over all {target.vocab} rows"
    measured = f"right next token: norm once {shares[1]:.3f}, no norm {shares[0]:.3f}, norm twice {shares[2]:.3f}"
    evidence = f"{n} reply tokens, logits {held}"
    form = {0: "post", 1: "pre", 2: "pre"}[max(shares, key=lambda k: shares[k])]
    findings = []
    if max(shares.values()) < 0.2:
        findings.append(Finding(
            "S004", Severity.FAIL, "the last state does not predict the recorded tokens in any form", "last state", measured,
            "above 0.5 in one form", evidence,
            "it is not the final state of these tokens: another request's rows, another boundary, or a rotated basis"
            + ("; or the target's lm_head is missing and is not its embedding, which was taken" if target.tied else ""),
        ))  # fmt: skip
        return findings
    close = abs(shares[1] - shares[0]) < 0.02
    if claimed != "none" and form != claimed and not close:
        findings.append(Finding("S004", Severity.FAIL, f"the last state is {form}-norm by evidence, the file says {claimed}-norm",
                                "metadata final_norm", measured, claimed, evidence, f"set final_norm to \"{form}\""))  # fmt: skip
    else:
        words = "before" if form == "pre" else "after"
        findings.append(Finding("S004", Severity.UNDETERMINED if close else Severity.PASS,
                                "the norm makes no difference here: its form cannot be told" if close
                                else f"the last state is the residual {words} the final norm, as the file says"
                                if claimed == form else f"the last state is {form}-norm by evidence",
                                "last state", measured, evidence=evidence))  # fmt: skip
    share = max(shares[0], shares[1])
    title = f"{share:.1%} of the recorded reply tokens are the target's own greedy choice"
    greedy = share >= 0.9
    findings.append(Finding(
        "S005", Severity.PASS if greedy else Severity.WARN, title, "samples", measured=f"{share:.4f}, {held}",
        expected="above 0.90 for greedy text",
        evidence=evidence,
        remedy="" if greedy else "sampled or foreign text: the accept length predicted on it is not the one a greedy engine has",
    ))  # fmt: skip
    return findings


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
    direct = {pair: c for pair, c in found.cosines.items() if pair[1] - pair[0] == 1 and pair[0] > 0}
    if not direct:
        return []
    low = min(direct, key=lambda pair: direct[pair])
    if direct[low] > 0.3:
        return [Finding("S009", Severity.PASS, "neighbouring boundaries are close, as in a residual stream",
                        measured=f"lowest cosine {direct[low]:.3f} ({low[0]}, {low[1]})")]  # fmt: skip
    return [Finding("S009", Severity.WARN, f"boundaries {low[0]} and {low[1]} are nearly orthogonal", f"h.{low[0]}, h.{low[1]}",
                    measured=f"mean cosine {direct[low]:.3f}", expected="0.5 to 1 for a residual stream",
                    evidence="all rows but each sample's first",
                    remedy="block outputs without the residual were recorded: add the residual where states are captured")]  # fmt: skip


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
