"""What the search found beside the wiring: other conventions, the recording's own open questions, its content."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eagle3lab.checks import conventions
from eagle3lab.checks.doubts import stopped, unsound
from eagle3lab.checks.evidence import Opened
from eagle3lab.outcome import Depth, Repair
from eagle3lab.reading import show
from eagle3lab.records import Finding, Severity

CODES = {
    "F010": "rows of the recording that are early or late, or a last state in another form",
    "F011": "content that no reading explains: states, map or weights",
    "F012": "conventions that the recording cannot tell apart",
}


UNIFORM, FEW = 0.7, 16
"""Accuracy with the states of another place, and rows, from which and below which no verdict on the content is given."""


def fields(case: Opened) -> list[Finding]:
    """F006: each repaired field but the wiring."""
    configured, scan = case.configured.reading or case.configured.conventions, case.scan
    if configured is None:
        return []
    changed = configured.diff(scan.fitted)
    names = dict.fromkeys(r.field for r in scan.path if r.field in changed and r.field not in ("aux", "dtype"))
    findings = [_field(case, [r for r in scan.path if r.field == name]) for name in names]
    told = conventions.recorded_lag(case) if scan.lag else None
    if told and told != scan.lag:  # what the recording is not to blame for is the draft's own
        shift = scan.fitted.shift + scan.lag - told
        findings.append(Finding(
            "F006", Severity.FAIL, f"shift: {case.configured.program} uses {scan.fitted.shift}, the draft fits {shift}", "shift",
            f"best with row r as the state of position r {scan.lag:+d}, and boundary 0 shows r {told:+d}", str(shift), scan.evidence,
            conventions.remedy(case, "shift", scan.fitted.replace(shift=shift)),
        ))  # fmt: skip
    return findings or [Finding("F006", Severity.PASS, "no other single convention predicts better",
                                evidence=f"{scan.evidence}, steps 0 and 1")]  # fmt: skip


def _field(case: Opened, repairs: Sequence[Repair]) -> Finding:
    """One field; a value that was refined has more than one repair."""
    first, last = repairs[0], repairs[-1]
    title = f"{last.field}: {case.configured.program} uses {first.old}, the draft fits {last.new}"
    if last.field == "dropped":
        title = f"dropped: {case.configured.program} {last.old}, the draft fits when it {last.new}"
    if alike := [v for e in case.scan.open if e.field == last.field and not e.same for v in e.values if v != first.old]:
        title += f" ({', '.join(alike)} {'fits' if len(alike) == 1 else 'fit'} as well)"
    severity = Severity.UNDETERMINED if case.configured.guess else Severity.FAIL
    lag = conventions.recorded_lag(case) if last.field == "shift" else 0
    if lag is None:
        title += f", or the recording's rows are one {'early' if last.new == '2' else 'late'}: nothing recorded tells"
    elif lag and lag == case.scan.fitted.shift - 1:
        title, severity = (
            "shift cannot be judged: the recording's rows are displaced, which looks the same (S017 blocks this)",
            Severity.BLOCKED,
        )
    gains = [f"{r.gain.value:+.3f} accuracy over steps 0 and 1 [{r.gain.low:.3f}, {r.gain.high:.3f}]" for r in repairs]
    if len(repairs) > 1:
        gains = [f"{r.new}: {gain}" for r, gain in zip(repairs, gains, strict=True)]
    return Finding(
        "F006", severity, title, last.field,
        measured=", then ".join(gains) + _signature(first.before, last.after),
        expected=last.new, evidence=f"{case.scan.evidence}, paired", remedy=conventions.remedy(case, last.field, case.scan.fitted),
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
            told = conventions.recorded_lag(case)
            lag = told or scan.lag
            beside = (
                ""
                if told
                else "; boundary 0 was not recorded: a draft whose own shift is off too looks like a lag of one row more or less"
            )
            out.append(Finding(
                "F010", Severity.FAIL, f"the recording's rows are displaced: row r holds the state of position r {lag:+d}", "samples",
                f"{repair.gain.value:+.3f} accuracy{_signature(repair.before, repair.after)}", "row r is position r", scan.evidence + beside,
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
            "F011", {"fresh": Severity.WARN, "sums": Severity.UNDETERMINED}.get(s.kind, Severity.FAIL), s.title, s.where, s.measured,
            "states of these tokens, the head's own map, trained weights", case.scan.evidence, s.remedy,
        )
        for s in case.scan.suspects
    ]  # fmt: skip


def beside_map(case: Opened) -> list[Finding]:
    """F003 and F006 beside a map that was rebuilt: what helps once the map is learned from the recording."""
    if case.configured.reading is None:
        return []
    return [
        Finding(
            "F003" if r.field == "aux" else "F006", Severity.FAIL,
            (f"wrong wiring beside the map: {case.configured.program} feeds boundaries {r.old}, the draft fits {r.new}"
             if r.field == "aux" else f"{r.field}: {case.configured.program} uses {r.old}, the draft fits {r.new}"),
            r.field, f"{r.gain.value:+.3f} accuracy [{r.gain.low:.3f}, {r.gain.high:.3f}] with the map that the recording teaches"
            + _signature(r.before, r.after), r.new, f"{case.scan.evidence}, paired", "mend the map first (F011), then look again",
        )
        for r in case.scan.mended
    ]  # fmt: skip


def _others(case: Opened) -> Finding | None:
    """F005 where some samples are named as unsound and the others fit: their accuracy over all says nothing then."""
    scan, parts = case.scan, case.evaluate(case.scan.fitted).parts
    named = {
        name
        for name in parts
        for s in scan.suspects
        if s.kind in ("foreign", "rows") and s.title.startswith(f"{name}: ")
    }
    hits = [part.correct[part.scored[:, 0], 0].float() for name, part in parts.items() if name not in named]
    if not named or not hits or (share := float(torch.cat(hits).mean())) < (1 + scan.floor) / 2:
        return None
    return Finding(
        "F005", Severity.UNDETERMINED, f"the draft predicts the other {len(hits)} samples; {len(named)} do not hold their own states (F011)",
        ", ".join(sorted(named)), f"accuracy {share:.3f} over the others under {scan.fitted}; with the states of another place "
        f"{scan.floor:.3f}", "every sample", scan.evidence, "leave the named ones out ([samples] exclude) and run again; see F011",
    )  # fmt: skip


def nothing_fits(case: Opened) -> Finding:
    """F005 where no reading predicts the recording, with what was excluded."""
    scan, configured = case.scan, case.configured.reading
    best = scan.ranking[0].accuracy.value if scan.ranking else float("nan")
    rows = scan.ranking[0].accuracy.n if scan.ranking else 0
    held = {boundary for _, boundary in scan.matrix}
    absent = [k for k in configured.aux if isinstance(k, int) and k not in held] if configured and held else []
    if others := _others(case):
        return others
    if (scan.floor > UNIFORM or rows < FEW) and not scan.suspects:
        return Finding(
            "F005", Severity.UNDETERMINED, "whether any reading fits cannot be told: " + (
                f"{rows} rows are too few" if rows < FEW else "the texts are so uniform that rows of another place predict them too"),
            "samples", f"best of {scan.tried} readings {best:.3f} on {rows} rows; with the states of another place {scan.floor:.3f}",
            "clearly more than with the states of another place", scan.evidence, "record longer texts, and texts that differ",
        )  # fmt: skip
    if bad := unsound(case):
        return stopped(
            case, "F005", "whether any reading fits", bad, f"best of {scan.tried} readings {best:.3f} without it"
        )
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
