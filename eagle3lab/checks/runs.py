"""The case's other serving runs: does each read the draft as it fits, and what does it cost where it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3lab.checks import conventions
from eagle3lab.checks.evidence import Opened
from eagle3lab.checks.served import Way, canonical, evaluated, ways
from eagle3lab.counts import ServingRun
from eagle3lab.dialects import ENGINES
from eagle3lab.dialects.resolve import accepts_nothing
from eagle3lab.errors import Blocked
from eagle3lab.gap.versus import versus
from eagle3lab.reading import show
from eagle3lab.records import Finding, Interpretation, Severity

CODES = {"F013": "the case's other serving runs: their readings against the one that fits"}


class _As:
    """The case as if ``run`` were the chosen one: remedies then speak of its engine."""

    def __init__(self, case: Opened, run: ServingRun, configured: Interpretation):
        self._case, self.run, self.configured = case, run, configured

    def __getattr__(self, name: str) -> Any:
        return getattr(self._case, name)


def not_read(case: Opened) -> list[Finding]:
    """F013 for the runs that nothing is said of: engines that are not known, and a chosen run that drafts nothing.

    It needs no recording. What F008 says already, of the run that it speaks of, is not said again.
    """
    first, runs = conventions.judged(case), [r for r in case.runs if r.speculative and r.engine not in ENGINES]
    if case.configured.unknown and (case.configured.reading is None or case.configured.guess):
        said = case.run if case.run in runs else runs[0]
        runs = [r for r in runs if r is not said]
    out = []
    if runs:
        names = ", ".join(f"{r.name!r} ({f'engine {r.engine!r}' if r.engine else 'no engine named'})" for r in runs)
        engines = ", ".join(ENGINES)
        out.append(Finding("F013", Severity.BLOCKED, f"run{'s' * (len(runs) > 1)} {names}: the lab does not know the engine, nor "
                           f"how it reads the draft", "case.toml: engine", expected=f"one of {engines}",
                           remedy="correct the name; for another engine, compare the boundaries it feeds with those that fit (F003) by hand"))  # fmt: skip
    if case.run is not None and not case.run.speculative and first is not None:
        out.append(Finding("F013", Severity.INFO, f"run {case.run.name!r} drafts nothing: F003, F006 and F008 judge run {first.name!r}",
                           "case.toml: steps"))  # fmt: skip
    return out


def check(case: Opened) -> list[Finding]:
    """F013: one finding for each way of reading; runs that read alike stand together.

    The run that F003 and F006 judge is left out, and those that read as it does are named as such.
    """
    first = conventions.judged(case)
    others = [r for r in case.runs if r.speculative and r.engine in ENGINES and r is not first]
    if not others or not case.scan.fits:
        return []
    found: dict[str, Interpretation] = {}
    out = []
    for run in others:
        try:
            found[run.name] = case.served(run)
        except Blocked as error:
            out.append(Finding("F013", Severity.BLOCKED, f"run {run.name!r}: how it reads the draft is not known: {error}", "case.toml",
                               remedy="give what is named here"))  # fmt: skip
    alike: dict[tuple[Any, ...], list[Way]] = {}
    by_name = {run.name: run for run in others}
    for way in ways(case, found, by_name):
        run = by_name[way.program]
        drafts = (run.steps, run.topk, run.draft_tokens)
        alike.setdefault((way.reading, way.why, way.found.refused, drafts), []).append(way)
    return out + [_judged(case, group, by_name) for group in alike.values()]


def _judged(case: Opened, group: list[Way], by_name: Mapping[str, ServingRun]) -> Finding:
    way, names = group[0], ", ".join(repr(w.program) for w in group)
    runs = f"run{'s' * (len(group) > 1)} {names}"
    seen: Any = _As(case, by_name[way.program], way.found)
    where = f"case.toml: {runs}"
    if way.reading is None:
        return Finding("F013", Severity.FAIL, f"{runs}: {way.found.program} {way.why}", where, f"ids {list(way.found.ids)} "
                       f"({way.found.source})", "a runnable configuration", "the program's own rules (docs/readings.md)",
                       "; ".join(dict.fromkeys(conventions.refusal(seen, reason) for reason in way.found.refused)))  # fmt: skip
    fitted = show(case.scan.fitted.aux)
    if way.as_fitted:
        return Finding("F013", Severity.PASS, f"{runs}: {way.found.program} reads the draft as it fits, boundaries {fitted}", where,
                       _length(way), evidence=case.scan.evidence)  # fmt: skip
    if accepts_nothing(way.found):
        return Finding("F013", Severity.FAIL, f"{runs}: {way.found.program} makes up {way.why}", where, _length(way),
                       "the head that fits", case.scan.evidence, conventions.made_up(seen))  # fmt: skip
    rest = [name for name in way.diff or () if name != "aux"]
    feeds = f"feeds boundaries {show(way.reading.aux)}, the draft fits {fitted}" if "aux" in (way.diff or ()) else ""
    apart = f"differs {'also ' if feeds else 'from what the draft fits '}in {', '.join(rest)}" if rest else ""
    title = f"{runs}: {way.found.program} " + "; ".join(filter(None, (feeds, apart)))
    own = case.configured.reading
    like = (
        own is not None and not own.replace(dropped=()).diff(way.found.reading.replace(dropped=()))
        if way.found.reading
        else False
    )
    severity, measured = _cost(case, way, by_name[way.program])
    if like:
        title += ", as the run that F003 and F006 judge"
    return Finding("F013", severity, title, where, f"fitted → this run: {way.words}; {measured}", f"boundaries {fitted}, and the rest as fitted",
                   case.scan.evidence, _remedy(seen, way) if severity == Severity.FAIL else "record what is missing here, and compare"
                   if severity == Severity.UNDETERMINED else "")  # fmt: skip


def _cost(case: Opened, way: Way, run: ServingRun) -> tuple[Severity, str]:
    """How bad it is, and the numbers: paired by sample where there are enough of them, else by both intervals."""
    if case.scan.lag or case.scan.form:
        return Severity.UNDETERMINED, "what it costs cannot be measured on a recording that is displaced (F010)"
    if way.evaluation is None or way.length is None:
        tie = (
            set(way.diff or ()) == {"aux"}
            and way.reading is not None
            and way.reading.aux in [r.aux for r in case.scan.ties]
        )
        return Severity.INFO if tie else Severity.UNDETERMINED, way.why
    best = evaluated(case, canonical(case, case.scan.fitted), run)
    apart = versus(best, way.evaluation)
    sure = [d for d in (apart.length, *apart.by_step[:2]) if d.change.high < 0]
    worse = bool(sure) or way.length.high < best.length.low
    words = f"K={way.evaluation.steps}{', its tree' * (run.topk > 1)}: {_length(way)}, fitted {best.length.value:.2f} [{best.length.low:.2f}, {best.length.high:.2f}]"
    if apart.by_step:
        words += f"; accuracy of the first draft {apart.by_step[0].second:.3f} against {apart.by_step[0].first:.3f}"
    return (Severity.FAIL if worse else Severity.INFO), words + (
        "" if worse else "; no difference beyond the intervals"
    )


def _remedy(case: Any, way: Way) -> str:
    fitted = case.scan.fitted
    parts = [conventions.wiring(case, fitted) if name == "aux" else conventions.remedy(case, name, fitted)
             for name in way.diff or () if name not in ("dtype", "rope.limit")]  # fmt: skip
    return "; ".join(parts)


def _length(way: Way) -> str:
    if way.length is None:
        return way.why
    n = f", {way.length.n} rounds" if way.length.n else ""
    return f"accept length {way.length.value:.2f} [{way.length.low:.2f}, {way.length.high:.2f}]{n}"
