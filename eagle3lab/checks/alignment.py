"""Whose rows are they: lag against the tokens, rows and samples of another place, copies side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from eagle3lab.gap import dumps as compared
from eagle3lab.records import Finding, Severity
from eagle3lab.samples import Samples
from eagle3lab.survey import Survey
from eagle3lab.survey.alignment import LEAST
from eagle3lab.survey.stories import GOOD, breaks, stories

CODES = {
    "S017": "rows of the states against the tokens: a lag",
    "S018": "rows, boundaries or samples that hold the states of another place",
    "S019": "column blocks that repeat each other",
    "S020": "recordings of the same tokens against each other",
}

MOST = 5


def check(found: Survey, samples: Samples) -> list[Finding]:
    """All findings about whose rows the states are."""
    return [*_lag(found), *_foreign(found), *_blocks(found), *_again(found, samples)]


def lagging(found: Survey) -> dict[str, tuple[int, str]]:
    """Sample → (lag, evidence), for samples whose rows belong to tokens further on (or before)."""
    out = {name: (lag, "boundary 0 is the embedding of those tokens") for name, lag in found.embedding_lag.items()}
    for name, pick in found.picks.by_sample.items() if found.picks else ():
        lag = pick.best_lag
        right, here = pick.share(lag), pick.share(0)
        if lag and len(pick.rows) >= LEAST // 2 and right > GOOD and right > 2 * here + 0.1:
            words = (
                f"the last state predicts the tokens of that place ({right:.2f} of {len(pick.rows)}, here {here:.2f})"
            )
            out.setdefault(name, (lag, words))
    return out


def foreign(found: Survey) -> dict[str, tuple[str, str]]:
    """Sample → (what is wrong, evidence), for samples that hold rows of another place."""
    out: dict[str, tuple[str, str]] = {}
    moved = lagging(found)
    for name, what, why in stories(found):
        if name not in moved or _copies(what):
            out.setdefault(name, (what, why))
    return out


def _lag(found: Survey) -> list[Finding]:
    by_lag: dict[int, list[str]] = {}
    moved = lagging(found)
    for name, (lag, _) in moved.items():
        by_lag.setdefault(lag, []).append(name)
    n = len(found.writers)
    out = [
        Finding(
            "S017", Severity.FAIL,
            f"{len(names)} of {n} samples: row r holds the state of token r{lag:+d}"
            + (f": the first {lag} rows are missing" if lag > 0 else f": the states are {-lag} rows late"),
            f"{', '.join(names[:MOST])}: h.*", f"lag {lag:+d}", "lag 0", moved[names[0]][1],
            f"record again, or move them: leave out the first {abs(lag)} "
            + ("tokens and mask entries and the states' last rows" if lag > 0 else "rows of every state and the last tokens")
            + "; a draft that was trained on such rows has the shift in its weights: retrain",
        )
        for lag, names in sorted(by_lag.items())
    ]  # fmt: skip
    out += _late(found)
    pairs: dict[tuple[tuple[int, int], int], list[str]] = {}
    for (name, pair), (lag, _) in found.apart.items():
        if not any((name, b) in found.odd for b in pair):
            pairs.setdefault((pair, lag), []).append(name)
    out += [
        Finding(
            "S017", Severity.FAIL, f"boundaries {a} and {b} lie {abs(lag)} rows apart in {len(names)} samples", f"h.{a}, h.{b}",
            f"row r of {a} belongs to row r{lag:+d} of {b}: cosine {found.apart[names[0], (a, b)][1]:.2f} there, "
            f"{found.centred[names[0], (a, b)]:.2f} side by side", "the same row", "cosine of rows without the mean row",
            "one of the two was captured in another pass, or lost rows: record again",
        )
        for ((a, b), lag), names in pairs.items()
    ]  # fmt: skip
    if found.short:
        out.append(Finding(
            "S017", Severity.INFO, f"{len(found.short)} of {n} samples are too short to compare their boundaries row by row",
            ", ".join(found.short[:MOST]), f"fewer than {LEAST} rows", evidence="a lag of one boundary would not be seen there",
            remedy="record longer texts",
        ))  # fmt: skip
    tested = set(found.embedding_error)
    tested |= {n for n, p in found.picks.by_sample.items() if p.share() > GOOD} if found.picks else set()
    if any(f.severity == Severity.FAIL for f in out) or not tested:
        return out
    return [*out, Finding("S017", Severity.PASS, "every row is the state of its own token", measured=f"{len(tested)} samples, lag 0",
                    evidence="boundary 0 and the last state, up to 16 rows to either side")]  # fmt: skip


def _late(found: Survey) -> Iterator[Finding]:
    """S017: single boundaries whose rows lie beside those of all others."""
    kinds: dict[tuple[int, int], list[str]] = {}
    for (name, b), odd in found.odd.items():
        if odd.kind == "late":
            kinds.setdefault((b, odd.lag), []).append(name)
    for (b, lag), names in kinds.items():
        odd = found.odd[names[0], b]
        yield Finding(
            "S017", Severity.FAIL,
            f"boundary {b} lies {abs(lag)} rows {'late' if lag > 0 else 'early'} beside the others in {len(names)} samples",
            f"{', '.join(names[:MOST])}: h.{b}", f"its row r{lag:+d} belongs to row r of boundaries "
            f"{' and '.join(map(str, odd.beside))}: cosine {odd.shared:.2f} there", "the same row",
            "cosine of rows without the mean row", "this boundary was captured in another pass, or lost rows: record it again with the others",
        )  # fmt: skip


def condemned(found: Survey, known: Mapping[int, str]) -> dict[int, str]:
    """Boundaries that no verdict on the draft may stand on → the finding that says why.

    Args:
        found: from `survey`.
        known: those that `Samples.condemned` names.
    """
    out = dict(known)
    for b in {b for _, b in found.odd}:
        odd = [o for (_, k), o in found.odd.items() if k == b]
        if 2 * len(odd) > sum(b in held for held in found.held.values()):
            out.setdefault(b, {"late": "S017", "foreign": "S018", "span": "S018", "increment": "S009"}[odd[0].kind])
    broken = {key for key, step in found.steps.items() if breaks(step)}
    for code, keys in (("S017", set(found.apart)), ("S018", broken)):
        for pair in {pair for _, pair in keys}:  # where none can be said to be the strange one, both are in question
            if 2 * sum(other == pair for _, other in keys) >= len(found.held) and not out.keys() & set(pair):
                out |= dict.fromkeys(pair, code)
    for pair, raw in found.cosines.items():
        shared = [value for (_, other), value in found.centred.items() if other == pair]
        alike = pair[0] > 0 and pair[1] - pair[0] == 1 and not any(other == pair for _, other in found.apart)
        if alike and shared and max(abs(raw), abs(sum(shared) / len(shared))) < 0.1 and not out.keys() & set(pair):
            out |= dict.fromkeys(pair, "S009")
    return out


def _foreign(found: Survey) -> list[Finding]:
    told = foreign(found)
    kinds: dict[str, list[str]] = {}
    for name, (what, _) in told.items():
        kind = _boundaries_only(what) if _copies(what) else what if len(told) <= MOST else what.split(" from row")[0]
        kinds.setdefault(kind, []).append(name)
    out = []
    for kind, names in kinds.items():
        what, why = told[names[0]]
        if _copies(what) and len({told[name][0] for name in names}) == 1:
            kind = what
        elif _copies(what):
            why = "; ".join(f"{name}: {told[name][0]}" for name in names[:MOST])
        out.append(Finding(
            "S018", Severity.FAIL, f"{', '.join(names[:MOST])}{' …' if len(names) > MOST else ''}: {kind}",
            f"{names[0]}: h.*", why,
            "states of these very tokens in every row", f"{len(found.writers)} samples, row by row", _remedy(what),
        ))  # fmt: skip
    return out


def _copies(what: str) -> bool:
    """Whether a story is of rows that are copies of others."""
    return " copies of " in what or " repeat rows " in what


def _boundaries_only(what: str) -> str:
    """A story of copies without its row numbers: texts end at other places."""
    clauses = (clause.partition(" at boundar") for clause in what.split("; "))
    return "; ".join(re.sub(r"\d+", "N", words) + at + held for words, at, held in clauses)


def _remedy(what: str) -> str:
    if _copies(what):
        return ("a buffer that was stored beyond its last row (a writer that fills up to a fixed length), or stored twice: record "
                "again and store as many rows as tokens; where one row is repeated at the end, cut tokens, mask and states before it")  # fmt: skip
    if "hold something" in what:
        return ("something is added after (or before) this boundary is captured, as deepstack does in an image's span: capture where "
                "the trainer did, or train on boundaries past it")  # fmt: skip
    return (
        "a capture that mixed requests (batches, chunked prefill, several calls): record again, one request at a time"
    )


def _blocks(found: Survey) -> list[Finding]:
    kinds: dict[tuple[int, int], list[str]] = {}
    for (name, k), parts in found.blocks.items():
        kinds.setdefault((k, parts), []).append(name)
    return [
        Finding(
            "S019", Severity.FAIL, f"boundary {k}: {parts} equal column blocks side by side in {len(names)} samples",
            f"{names[0]}: h.{k}", f"{parts} equal blocks of {found.widths[names[0]] // parts} columns", "one state a row",
            "all rows, element by element",
            f"{parts} tensor-parallel ranks gathered what each of them held whole: record with one rank's copy, or TP 1",
        )
        for (k, parts), names in kinds.items()
    ]  # fmt: skip


def _again(found: Survey, samples: Samples, most: int = 4) -> list[Finding]:
    """Twins by tokens: their states must be equal too; where they are not, the pattern says what was done to one."""
    out = []
    for names in [names for names in found.tokens.values() if len(names) > 1][:most]:
        first, second = (samples.readable(name) for name in names[:2])
        if first is None or second is None or first.width != second.width:
            continue
        shared = sorted(set(first.states) & set(second.states))
        slots = compared.compare_states({k: second.states[k] for k in shared}, first.states)
        apart = [slot for slot in slots if slot.verdict != "same"]
        if not apart:
            continue
        verdict = Severity(min((compared.MEANINGS[s.verdict] for s in apart), key=lambda word: Severity(word).rank))
        out.append(Finding(
            "S020", verdict, f"{second.name} and {first.name} hold the same tokens and other states: "
            + ", ".join(dict.fromkeys(slot.verdict for slot in apart)),
            f"{second.name}: {', '.join(f'h.{slot.slot}' for slot in apart[:MOST])}",
            "; ".join(slot.sentence for slot in apart[:3]), "equal states for equal tokens",
            f"{len(shared)} boundaries, {first.length} rows, {second.name} against {first.name}",
            "find out which recording the draft was trained on and which way the engine captures (TP size, rotation, "
            "quantisation); use that one",
        ))  # fmt: skip
    return out
