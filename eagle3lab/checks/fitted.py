"""What the search found beside the wiring: other conventions, the recording's own open questions, its content."""

from __future__ import annotations

from eagle3lab.checks import conventions
from eagle3lab.checks.evidence import Opened
from eagle3lab.outcome import Depth, Repair
from eagle3lab.reading import show
from eagle3lab.records import Finding, Severity

CODES = {
    "F010": "rows of the recording that are early or late, or a last state in another form",
    "F011": "content that no reading explains: states, map or weights",
    "F012": "conventions that the recording cannot tell apart",
}


def fields(case: Opened) -> list[Finding]:
    """F006: each repaired field but the wiring."""
    configured, scan = case.configured.reading, case.scan
    if configured is None:
        return []
    changed = configured.diff(scan.fitted)
    repairs = {r.field: r for r in scan.path if r.field in changed and r.field not in ("aux", "dtype")}
    findings = [_field(case, repair) for repair in repairs.values()]
    return findings or [Finding("F006", Severity.PASS, "no other single convention predicts better",
                                evidence=f"{scan.evidence}, steps 0 and 1")]  # fmt: skip


def _field(case: Opened, repair: Repair) -> Finding:
    gain = repair.gain
    title = f"{repair.field}: {case.configured.program} uses {repair.old}, the draft fits {repair.new}"
    if repair.field == "dropped":
        title = f"dropped: {case.configured.program} {repair.old}, the draft fits when it {repair.new}"
    signature = _signature(repair.before, repair.after)
    return Finding(
        "F006", Severity.FAIL, title, repair.field,
        measured=f"{gain.value:+.3f} accuracy over steps 0 and 1 [{gain.low:.3f}, {gain.high:.3f}]{signature}",
        expected=repair.new, evidence=f"{case.scan.evidence}, paired", remedy=conventions.remedy(case, repair.field, case.scan.fitted),
    )  # fmt: skip


def _signature(before: Depth, after: Depth) -> str:
    if not before.accuracy or not after.accuracy:
        return ""
    words = [" ".join(f"{a:.2f}" for a in depth.accuracy) for depth in (before, after)]
    return f"; by draft step {words[0]} → {words[1]}"


def recording(case: Opened) -> list[Finding]:
    """F010: lag and form, which belong to the recording; a shift that its own rows explain, too."""
    scan, out = case.scan, []
    for repair in scan.path:
        if repair.field == "lag":
            lag = scan.lag
            out.append(Finding(
                "F010", Severity.FAIL, f"the recording's rows are displaced: row r holds the state of position r {lag:+d}", "samples",
                f"{repair.gain.value:+.3f} accuracy{_signature(repair.before, repair.after)}", "row r is position r", scan.evidence,
                f"record again: the first {lag} rows are missing" if lag > 0 else f"record again: {-lag} rows too many stand first",
            ))  # fmt: skip
        if repair.field == "form":
            out.append(Finding(
                "F010", Severity.FAIL, f"the recorded last state fits {scan.form}, which is not what its file says", "samples: final",
                f"{repair.gain.value:+.3f} accuracy{_signature(repair.before, repair.after)}", repair.old, scan.evidence,
                "state its form in case.toml ([samples] final) or in the dump's metadata; S004 decides it by the target's own head",
            ))  # fmt: skip
    return out


def open_fields(case: Opened) -> list[Finding]:
    """F012: values that no row tells apart, and fields that no such text could show."""
    scan, out = case.scan, []
    for entry in scan.open:
        if entry.same:
            continue
        mine = _value(case, entry.field)
        out.append(Finding(
            "F012", Severity.UNDETERMINED, f"{entry.field}: the recording cannot tell {mine} from {', '.join(entry.values)}",
            entry.field, f"within the interval of {mine}", "one winner", f"{scan.evidence}, steps 0 and 1, paired",
            "the training configuration knows; more text, or longer ones, would tell" if entry.field.startswith("rope")
            else "the training configuration knows; more text would tell",
        ))  # fmt: skip
    idle = [f"{e.field} = {', '.join(e.values)}" for e in scan.open if e.same]
    if idle:
        out.append(Finding(
            "F012", Severity.INFO, f"of no account on these texts: {'; '.join(idle)} predict the same, row by row", "",
            "equal predictions at two draft steps", evidence=scan.evidence,
        ))  # fmt: skip
    return out


def _value(case: Opened, name: str) -> str:
    fitted = case.scan.fitted
    return show(getattr(fitted.rope, name.removeprefix("rope.")) if name.startswith("rope.") else getattr(fitted, name))


def suspects(case: Opened) -> list[Finding]:
    """F011: what is wrong with the content; weights that only look fresh are a hint, not a proof."""
    return [
        Finding(
            "F011", Severity.WARN if s.kind == "fresh" else Severity.FAIL, s.title, s.where, s.measured,
            "states of these tokens, the head's own map, trained weights", case.scan.evidence, s.remedy,
        )
        for s in case.scan.suspects
    ]  # fmt: skip


def nothing_fits(case: Opened) -> Finding:
    """F005 where no reading predicts the recording, with what was excluded."""
    scan, configured = case.scan, case.configured.reading
    best = scan.ranking[0].accuracy.value if scan.ranking else float("nan")
    held = {boundary for _, boundary in scan.matrix}
    absent = [k for k in configured.aux if isinstance(k, int) and k not in held] if configured and held else []
    excluded = f"; excluded: {'; '.join(scan.excluded)}" if scan.excluded else ""
    if absent and not scan.suspects:
        return Finding(
            "F005", Severity.UNDETERMINED, f"no wiring of the recorded boundaries fits, and boundaries {absent}, which the engine "
            "feeds, are not recorded", "samples", measured=f"best of {scan.tried} readings {best:.3f}; recorded {sorted(held, key=str)}",
            expected=f"states of boundaries {show(configured.aux) if configured else ''}", evidence=scan.evidence + excluded,
            remedy=f"record boundaries {absent} too; without them nothing is said of the draft",
        )  # fmt: skip
    named = f"; suspected: {scan.suspects[0].title}" if scan.suspects else ""
    return Finding(
        "F005", Severity.FAIL, f"no reading predicts this recording: its content, its tokens or the weights are suspect{named}",
        "samples or draft", measured=f"best of {scan.tried} readings {best:.3f} ({scan.fitted})",
        expected=f"well above {scan.floor:.3f}, the score with the states of another place", evidence=scan.evidence + excluded,
        remedy="see F011" if scan.suspects else
        "check that states belong to these tokens (S003, S005), that d2t is the head's own (V001, V007), that the checkpoint is "
        "trained; a wiring whose boundaries are not recorded, a rotated basis without boundary 0, and partial sums of a "
        "tensor-parallel dump are not excluded: a second dump of the same tokens at TP=1 would tell",
    )  # fmt: skip
