"""The standalone forward against another program's recorded intermediate states."""

from __future__ import annotations

from eagle3lab.parity import Given, of_case
from eagle3lab.records import Finding, Severity

CODES = {"F009": "parity with recorded intermediate states"}


def check(case: Given) -> list[Finding]:
    """One finding: all recorded modules agree, or the first that does not; none without recorded states."""
    rows, words = of_case(case)
    if not rows:
        return []
    compared = [r for r in rows if r.module]
    bad = [r for r in compared if not r.equal]
    if not bad:
        worst = max(compared, key=lambda r: r.relative)
        return [Finding("F009", Severity.PASS, f"all {len(compared)} recorded modules agree with the standalone forward", words,
                        f"largest relative difference {worst.relative:.1e} ({worst.name})")]  # fmt: skip
    first = bad[0]
    found = first.note or f"largest difference {first.largest:.3g}, {first.relative:.1%} of its largest entry"
    before = [r.name for r in compared[: compared.index(first)] if r.equal]
    return [Finding(
        "F009", Severity.FAIL, f"the other program's forward differs from {first.module} on", words, f"{first.name}: {found}",
        "equal up to its dtype's rounding", f"{len(compared)} modules; equal before it: {', '.join(before[-3:]) or 'none'}",
        "look at what this module is fed and which convention it follows (F006); what comes after it differs for that reason",
    )]  # fmt: skip
