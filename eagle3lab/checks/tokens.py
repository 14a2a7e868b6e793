"""Two tests by evidence: boundary 0 against the embedding of the tokens, the last state against the next tokens.

Their codes, S003 to S005, stand with the other questions about a recording, in `checks.samples`.
"""

from __future__ import annotations

from eagle3lab.checks import alignment
from eagle3lab.records import Finding, Severity
from eagle3lab.survey import Survey
from eagle3lab.target import Target
from eagle3lab.target.tables import PLUS_ONE


def embedding(found: Survey, target: Target | None) -> list[Finding]:
    """S003: boundary 0 is the embedding of these very tokens, up to one scale and rounding."""
    if target is not None and not found.embedding_error and "S003" in found.blocked:
        return [Finding("S003", Severity.BLOCKED, "boundary 0 cannot be compared with the target's embedding rows", "h.0",
                        found.blocked["S003"], remedy="give the rows of every recorded token")]  # fmt: skip
    if target is None or not found.embedding_error:
        return []
    worst, error = max(found.embedding_error.items(), key=lambda item: item[1])
    elsewhere = alignment.foreign(found)
    if not error <= 0.1 and all(name in elsewhere for name, e in found.embedding_error.items() if not e <= 0.1):
        return []  # S018 says more: from which row on
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


def form(found: Survey, target: Target | None, claimed: str) -> list[Finding]:
    """S004 and S005: the form of the last state, and whether the reply is the target's own greedy choice."""
    n = found.lens[1][1] if 1 in found.lens else 0
    if target is None or not n:
        why = "no target can be read" if target is None else "no last residual of reply tokens is recorded"
        return [Finding("S004", Severity.BLOCKED, "the form of the last state is not known: "
                        + ("the target's rows cannot be read" if "S004" in found.blocked else why), "last state",
                        found.blocked.get("S004", ""),
                        remedy="record the last residual, give the target's head rows and final norm")]  # fmt: skip
    shares = {norms: hits / n if n else 0.0 for norms, (hits, n) in found.lens.items()}
    other = found.lens_other[0] / n
    held = f"over the {len(target.token_ids)} rows held" if target.sliced else f"over all {target.vocab} rows"
    measured = f"right next token: norm once {shares[1]:.3f}, no norm {shares[0]:.3f}, norm twice {shares[2]:.3f}"
    evidence = f"{n} reply tokens, logits {held}"
    best = {0: "post", 1: "pre", 2: "pre"}[max(shares, key=lambda k: shares[k])]
    findings = []
    if other > 0.2 and other > max(shares.values()) + 0.1:
        plus = target.model_type in PLUS_ONE
        return [Finding(
            "S004", Severity.FAIL, f"the final norm's weight is to be read as {'w' if plus else '1 + w'}", "target: norm.weight",
            f"{measured}; norm once with {'w' if plus else '1 + w'} {other:.3f}", f"{'1 + w' if plus else 'w'}, as for {target.model_type}",
            evidence, "correct model_type in the target's config.json, or give its weights as its own checkpoint has them",
        )]  # fmt: skip
    if max(shares.values()) < 0.2:
        findings.append(Finding(
            "S004", Severity.FAIL, "the last state does not predict the recorded tokens in any form", "last state", measured,
            "above 0.5 in one form", evidence,
            "it is not the final state of these tokens: another request's rows, another boundary, or a rotated basis"
            + ("; or the target's lm_head is missing and is not its embedding, which was taken" if target.tied else ""),
        ))  # fmt: skip
        return findings
    close = abs(shares[1] - shares[0]) < 0.02
    if claimed != "none" and best != claimed and not close:
        findings.append(Finding("S004", Severity.FAIL, f"the last state is {best}-norm by evidence, the file says {claimed}-norm",
                                "metadata final_norm", measured, claimed, evidence, f"set final_norm to \"{best}\""))  # fmt: skip
    else:
        words = "before" if best == "pre" else "after"
        findings.append(Finding("S004", Severity.UNDETERMINED if close else Severity.PASS,
                                "the norm makes no difference here: its form cannot be told" if close
                                else f"the last state is the residual {words} the final norm, as the file says"
                                if claimed == best else f"the last state is {best}-norm by evidence",
                                "last state", measured, evidence=evidence))  # fmt: skip
    share, rows = _greedy(found)
    title = f"{share:.1%} of the recorded reply tokens are the target's own greedy choice"
    greedy = share >= 0.9
    findings.append(Finding(
        "S005", Severity.PASS if greedy else Severity.WARN, title, "samples", measured=f"{share:.4f}, {held}",
        expected="above 0.90 for greedy text",
        evidence=f"{rows} reply tokens, logits {held}",
        remedy="" if greedy else "sampled or foreign text: the accept length predicted on it is not the one a greedy engine has",
    ))  # fmt: skip
    return findings


def _greedy(found: Survey) -> tuple[float, int]:
    """Share of right next tokens, and rows, over the samples whose states are their own tokens'."""
    if found.picks is None:
        return 0.0, 0
    elsewhere = alignment.foreign(found)
    own = {name: pick for name, pick in found.picks.by_sample.items() if name not in elsewhere} or found.picks.by_sample
    hits = [pick.hits(found.picks.lag) for pick in own.values()]
    rows = sum(map(len, hits))
    return sum(float(h.sum()) for h in hits) / max(rows, 1), rows
