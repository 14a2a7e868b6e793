"""What the search found beside the wiring: other conventions, the recording's own open questions, its content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from eagle3lab.checks import conventions
from eagle3lab.checks.alignment import condemned
from eagle3lab.checks.evidence import Opened
from eagle3lab.outcome import Depth, Repair
from eagle3lab.reading import show
from eagle3lab.records import Finding, Severity

CODES = {
    "F010": "rows of the recording that are early or late, or a last state in another form",
    "F011": "content that no reading explains: states, map or weights",
    "F012": "conventions that the recording cannot tell apart",
}


HELD_BACK = 0.25
"""Share of the second block's increment below which the first one's counts as held back."""


def fields(case: Opened) -> list[Finding]:
    """F006: each repaired field but the wiring."""
    configured, scan = case.configured.reading, case.scan
    if configured is None:
        return []
    changed = configured.diff(scan.fitted)
    names = dict.fromkeys(r.field for r in scan.path if r.field in changed and r.field not in ("aux", "dtype"))
    findings = [_field(case, [r for r in scan.path if r.field == name]) for name in names]
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
    gains = [f"{r.gain.value:+.3f} accuracy over steps 0 and 1 [{r.gain.low:.3f}, {r.gain.high:.3f}]" for r in repairs]
    if len(repairs) > 1:
        gains = [f"{r.new}: {gain}" for r, gain in zip(repairs, gains, strict=True)]
    return Finding(
        "F006", Severity.FAIL, title, last.field,
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


def unsound(case: Opened) -> dict[int, str]:
    """Boundaries that the recording holds unsound → the finding that says why."""
    samples, found = case.attempt("samples"), case.attempt("survey")
    return condemned(found, samples.condemned) if samples is not None and found is not None else {}


def blocked(case: Opened) -> list[Finding]:
    """F003 and F006 where a boundary that the engine feeds is not sound: the draft is not graded on it."""
    bad, configured = unsound(case), case.configured.reading
    fed = [b for b in configured.aux if isinstance(b, int) and b in bad] if configured else []
    words = "the engine feeds it" + (_inside(case, fed) if fed else "")
    return [
        _stopped(case, code, what, dict.fromkeys(fed), words) for code, what in
        (("F003", "the wiring"), ("F006", "other conventions"))
    ] if fed else []  # fmt: skip


def _inside(case: Opened, fed: Iterable[int]) -> str:
    """Accuracy as configured within the rows that hold something strange, and outside."""
    spans = {name: odd.rows for (name, b), odd in case.survey.odd.items() if odd.kind == "span" and b in fed}
    reading = case.configured.reading
    if not spans or reading is None:
        return ""
    sides: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, part in case.evaluate(reading).parts.items():
        rows, hits = part.scored[:, 0].nonzero()[:, 0], part.correct[part.scored[:, 0], 0]
        first, last = spans.get(name, (0, -1))
        inside = (rows >= first) & (rows <= last)
        for side in sides:
            sides[side].append(hits[inside == side].float())
    (here, n), (there, m) = ((float(torch.cat(s).mean()), sum(map(len, s))) for s in sides.values())
    first, last = next(iter(spans.values()))
    return f"; accuracy {here:.2f} inside rows {first} to {last} ({n} rows), {there:.2f} outside ({m}): later rows attend to it"


def beside_unsound(case: Opened) -> list[Finding]:
    """F003 where the wiring that fits best may only stand in for one with an unsound boundary.

    Neighbours of the right boundary fit best where that one cannot be tried, so that a slot which fits the next sound
    one says nothing.
    """
    bad, held = unsound(case), sorted(b for _, b in case.scan.matrix if isinstance(b, int))
    used = [b for b in case.scan.fitted.aux if isinstance(b, int)]
    near = []
    for b in bad:
        sides = [
            max((k for k in held if k < b and k not in bad), default=-1),
            min((k for k in held if k > b and k not in bad), default=-1),
        ]
        near += [b] if b in used or set(sides) & set(used) else []
    if not near:
        return []
    best = f"best of the sound ones {show(case.scan.fitted.aux)}, which may stand in for it"
    return [_stopped(case, "F003", "the wiring", dict.fromkeys(near), best)]


def doubtful(case: Opened) -> list[Finding]:
    """F003 where another wiring fits better, and something else may be why: an unsound neighbour, or partial sums."""
    if sums := [s for s in case.scan.suspects if s.kind == "sums"]:
        return [Finding(
            "F003", Severity.BLOCKED, "the wiring cannot be judged: the states may be partial sums, which look like ids one too "
            "low (F011 blocks this)", "h.*", f"best {show(case.scan.fitted.aux)}", "whole states", sums[0].measured, sums[0].remedy,
        )]  # fmt: skip
    return beside_unsound(case) or _held_back(case)


def _held_back(case: Opened) -> list[Finding]:
    """F003 where every id seems one too low, and the first block adds next to nothing: one rank's small part of it.

    A state that lacks its block's increment is the boundary before: only boundary 0, which no block made, can tell.
    """
    configured, best = case.configured.reading, case.scan.fitted.aux
    pairs = list(zip(configured.aux, best, strict=False)) if configured else []
    if not all(isinstance(a, int) and isinstance(b, int) and b == a + 1 for a, b in pairs) or not pairs:
        return []
    added: dict[int, list[Tensor]] = {0: [], 1: []}
    for sample in filter(None, map(case.readable, case.samples.headline[:4])):
        for low in added if {0, 1, 2} <= set(sample.states) else ():
            step = sample.states[low + 1][1:4096].float() - sample.states[low][1:4096].float()
            added[low].append(step.norm(dim=1))
    if not added[0]:
        return []
    first, second = (float(torch.cat(parts).median()) for parts in added.values())
    if first > HELD_BACK * second:
        return []
    return [Finding(
        "F003", Severity.BLOCKED, "the wiring cannot be judged: every recorded state may lack most of what its block adds, which "
        "looks like ids one too low", "h.*", f"best {show(best)}; boundary 1 is {first:.3g} from boundary 0, the next one {second:.3g} "
        "from it (median row)", "increments of like size", "boundary 0, the embedding, is made by no block",
        "one rank's partial sum (TP): dump the same tokens at TP=1 and compare (S020)",
    )]  # fmt: skip


def _stopped(case: Opened, code: str, what: str, boundaries: Iterable[int], why: str) -> Finding:
    bad = unsound(case)
    codes = ", ".join(dict.fromkeys(bad[b] for b in boundaries))
    names = ", ".join(map(str, boundaries))
    return Finding(
        code, Severity.BLOCKED, f"{what} cannot be judged: boundary {names} is not sound in this recording ({codes} blocks this)",
        ", ".join(f"h.{b}" for b in boundaries), why, "sound states of every boundary in question", f"{codes}; such boundaries are left "
        "out of the search", f"record again as {codes} says; until then nothing is said of the draft",
    )  # fmt: skip


def suspects(case: Opened) -> list[Finding]:
    """F011: what is wrong with the content; weights that only look fresh are a hint, not a proof."""
    return [
        Finding(
            "F011", {"fresh": Severity.WARN, "sums": Severity.UNDETERMINED}.get(s.kind, Severity.FAIL), s.title, s.where, s.measured,
            "states of these tokens, the head's own map, trained weights", case.scan.evidence, s.remedy,
        )
        for s in case.scan.suspects
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
    held = {boundary for _, boundary in scan.matrix}
    absent = [k for k in configured.aux if isinstance(k, int) and k not in held] if configured and held else []
    if others := _others(case):
        return others
    if bad := unsound(case):
        return _stopped(
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
