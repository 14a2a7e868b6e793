"""What acceptance the configured and the fitted reading give, in the engine's own definition."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from eagle3lab.acceptance import Evaluation, definition
from eagle3lab.checks.evidence import Evidence
from eagle3lab.dialects.resolve import accepts_nothing
from eagle3lab.errors import Blocked
from eagle3lab.reading import show
from eagle3lab.records import Finding, Severity

CODES = {
    "A001": "accept length predicted under the configured and the fitted reading",
    "A002": "samples that could not be scored",
    "A003": "rate by draft position: does the chain hold",
}


def check(case: Evidence) -> list[Finding]:
    """All findings about acceptance."""
    fitted = case.evaluate(case.scan.fitted)
    configured = None
    made = accepts_nothing(case.configured)
    with suppress(Blocked):  # F003 says when the configured states are not recorded
        configured = case.evaluate(case.configured.reading) if case.configured.reading else None
    return [_length(case, None if made else configured, fitted, made), *_skipped(fitted), *_chain(fitted)]


def _length(case: Evidence, configured: Evaluation | None, fitted: Evaluation, made: str) -> Finding:
    best = fitted.length
    measured = f"fitted {show(fitted.reading.aux)}: {best.value:.3f} [{best.low:.3f}, {best.high:.3f}], {best.n} rounds"
    worse = False
    if configured is not None:
        now = configured.length
        worse = now.high < best.low
        measured = f"configured {show(configured.reading.aux)}: {now.value:.3f} [{now.low:.3f}, {now.high:.3f}], " \
                   f"{now.n} rounds; {measured}"  # fmt: skip
    title = f"accept length {best.value:.2f} under the fitted reading"
    if configured is not None:
        title = f"accept length {configured.length.value:.2f} as configured, " + (
            f"{best.value:.2f} under the fitted reading"
            if configured.reading != fitted.reading
            else "which is also the best fit"
        )
    if made:  # there is no reading of such a run: a draft is right by chance at most
        worse = best.low > 1
        measured = f"configured: 1.000, since {case.configured.program} makes up {made}; {measured}"
        title = f"accept length 1.00 as configured, {best.value:.2f} under the fitted reading"
    if not case.scan.fits:
        return Finding("A001", Severity.UNDETERMINED, "accept length of a draft that fits no reading: it says nothing of another",
                       "samples", measured, "a reading that fits (F005)", f"{definition(fitted.steps)}; {best.method}",
                       "mend what F005 names")  # fmt: skip
    costs = Severity.UNDETERMINED if case.configured.guess else Severity.FAIL
    return Finding("A001", costs if worse else Severity.INFO, title, "samples", measured,
                   expected="configured = fitted", evidence=f"{definition(fitted.steps)}; {best.method}",
                   remedy="mend what F003 and F006 name" if worse else "")  # fmt: skip


def _skipped(fitted: Evaluation) -> list[Finding]:
    return [Finding("A002", Severity.WARN, f"sample {name} is left out of every number", name, measured=reason,
                    expected="all samples scored", remedy="see the reason")
            for name, reason in fitted.skipped.items()]  # fmt: skip


def _chain(fitted: Evaluation) -> list[Finding]:
    rates = fitted.counts.conditional
    first, second = rates[0], rates[1] if len(rates) > 1 else float("nan")
    if len(rates) < 2 or fitted.counts.per_position[0] < 30:
        return []
    words = _rates(rates)
    if second >= 0.6 * first:
        return [Finding("A003", Severity.PASS, "later drafts hold up: the chain was trained", measured=f"conditional {words}",
                        evidence=f"{fitted.counts.rounds} rounds")]  # fmt: skip
    return [Finding(
        "A003", Severity.WARN, "acceptance collapses at the second draft", "chain", f"conditional {words}",
        "the second rate near the first", f"{fitted.counts.rounds} rounds",
        "a draft trained without the training-time test falls like this, and so does the wrong feedback norm (F006); "
        "fewer draft tokens cost less",
    )]  # fmt: skip


def _rates(rates: Sequence[float]) -> str:
    """Rates by draft, those at the end that no round reached as one word."""
    reached = [i for i, rate in enumerate(rates) if rate == rate]
    last = reached[-1] + 1 if reached else 0
    words = ", ".join("–" if rate != rate else f"{rate:.3f}" for rate in rates[:last])
    return words + (f"; drafts {last + 1} … {len(rates)}: no round got there" if last < len(rates) else "")
