"""The report that a vLLM server log gives: sums over its intervals, and what those leave out."""

from __future__ import annotations

from pathlib import Path

from eagle3lab.counts import EngineReport
from eagle3lab.dialects.evidence import added, steps_note, text_lines
from eagle3lab.dialects.vllm.log_lines import ServeLog, Server


def of_log(root: Path, name: str, steps: int | None) -> EngineReport:
    """What the log says of the last server in it that speculated.

    Args:
        root: the case folder.
        name: the log, relative to it.
        steps: K, for a log that does not say it.

    Returns:
        Totals over the printed intervals; ``drafts`` None where the lines do not determine it, with
        ``reported_length`` in its place.

    Raises:
        BadFile: missing or no text.
    """
    log = ServeLog().read(text_lines(root, name, "a vLLM server log, as text"))
    notes = [] if log.lines else ["the log is empty"]
    if log.cut:
        shown = ", ".join(map(str, log.cut[:5])) + (" …" if len(log.cut) > 5 else "")
        notes.append(f"partial: {len(log.cut)} SpecDecoding lines are cut (lines {shown})")
    if not log.servers:
        whose = f"; it looks like {log.looks_like}'s" if log.looks_like else ""
        notes.append(f"no line of a vLLM server in {log.lines} lines{whose}")
        return EngineReport("vllm", "log", (name,), notes=tuple(notes))
    busy = [s for s in log.servers if s.intervals]
    server = (busy or log.servers)[-1]
    if len(log.servers) > 1:
        pids = ", ".join(s.pid or "unknown" for s in log.servers)
        partial, which = ("partial: " if len(busy) > 1 else ""), (" that speculated" if busy else "")
        notes.append(f"{partial}{len(log.servers)} servers in one log (pids {pids}); the last{which} is counted")
    return _of_server(server, name, steps, notes + _settings(server))


def _of_server(server: Server, name: str, steps: int | None, notes: list[str]) -> EngineReport:
    intervals = server.intervals
    known = {len(i.rates) for i in intervals if i.rates} | ({server.steps} if server.steps else set())
    said = next(iter(known)) if len(known) == 1 else None
    if len(known) > 1:
        notes.append(f"partial: K changes within the log ({sorted(known)}): the lengths are of a mixture")
    rounds = [i.rounds(server.steps or said or steps) for i in intervals]
    whole = [n for n in rounds if n is not None]
    drafts = sum(whole) if intervals and len(whole) == len(rounds) else None
    reported = None
    if intervals and drafts is None:
        notes.append("drafts unknown: in some interval Drafted is no whole number of rounds of K, or K is not said")
        weighed = [(i.mean, i.drafted) for i in intervals if i.mean is not None and i.drafted]
        if weighed:
            reported = sum(mean * weight for mean, weight in weighed) / sum(weight for _, weight in weighed)
            notes.append("reported_length: the printed means, weighted by drafted tokens")
    positions = _positions(server, rounds, said)
    if intervals and drafts and not positions:
        notes.append("no per-position counts: the rates, printed with 3 decimals, do not determine them")
    if any("nan" in i.rates or not i.drafted for i in intervals):
        notes.append("intervals without a draft (rates print as nan) count as zero")
    return EngineReport(
        "vllm",
        "log",
        (name,),
        steps=said or (None if known else steps),
        drafts=drafts,
        drafted=sum(i.drafted for i in intervals) if intervals else None,
        accepted=sum(i.accepted for i in intervals) if intervals else None,
        per_position=positions,
        ids=server.ids[-1] if server.ids else (),
        version=server.version,
        throughput=tuple(server.throughput),
        notes=(*notes, *steps_note(said, steps), *_span(server)),
        reported_length=reported,
    )


def _positions(server: Server, rounds: list[int | None], steps: int | None) -> tuple[int, ...]:
    """Sums of the counts behind the printed rates, ``()`` unless every interval determines its own."""
    total = (0,) * (steps or 0)
    for interval, n in zip(server.intervals, rounds, strict=True):
        found = None if n is None else interval.positions(n)
        if not steps or found is None or (n and len(found) != steps):
            return ()
        total = added(total, found)
    return total if server.intervals else ()


def _settings(server: Server) -> list[str]:
    """What the server said of its settings that bears on the numbers."""
    notes = []
    if server.method and server.method != "eagle3":
        notes.append(f"the speculative method is {server.method}, not eagle3")
    if server.sampling == "synthetic":
        notes.append("rejection_sample_method is synthetic: acceptance is made up, not measured")
    elif server.sampling and server.sampling != "standard":
        notes.append(f"rejection_sample_method is {server.sampling}")
    if len(server.ids) > 1:
        notes.append(f"several sets of layer ids in the log: {server.ids}; the last is given")
    if server.ids and list(server.ids[-1]) != sorted(set(server.ids[-1])):
        notes.append("layer ids as printed; vLLM captures them sorted and without repeats")
    if not server.ids and server.started and server.speculative:
        notes.append("no line names the layer ids: the V1 runner is silent when the draft's config has none")
    return notes + server.weights


def _span(server: Server) -> list[str]:
    """Which part of the run the intervals cover."""
    if not server.intervals:
        if server.speculative is False:
            return ["speculative_config is not set: this server did not speculate"]
        if server.speculative:
            return ["no SpecDecoding line: stopped within the first interval, or --disable-log-stats"]
        return ["no SpecDecoding line and no settings: the log does not say whether the server speculated"]
    if server.running is None:
        tail = "no status line tells whether requests were still running"
    elif server.running:
        tail = f"{server.running} requests were still running at the last status line"
    else:
        tail = "no request was running at the last status line, so nothing may be missing"
    partial = "partial: " if server.running else ""
    return [f"{partial}{len(server.intervals)} intervals; what follows the last is never printed: {tail}"]
