"""The report that a vLLM server log gives: sums over its intervals, and what those leave out."""

from __future__ import annotations

from pathlib import Path

from eagle3lab.counts import EngineReport, Flaw
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
    flaws: list[tuple[Flaw, str]] = []
    if log.cut:
        shown = ", ".join(map(str, log.cut[:5])) + (" …" if len(log.cut) > 5 else "")
        flaws.append((Flaw.CUT, f"partial: {len(log.cut)} SpecDecoding lines are cut (lines {shown})"))
    whole = [t for t in log.totals if {"num_drafts", "num_accepted_tokens"} <= t.keys()]
    if whole:
        if len(whole) > 1:
            words = f"partial: the offline script's totals stand {len(whole)} times in one log; the last are counted"
            flaws.append((Flaw.SERVERS, words))
        return _of_totals(log, whole[-1], name, steps, flaws)
    if not log.servers:
        found = f"no line of a vLLM server in {log.lines} lines" if log.lines else "the log is empty"
        foreign = f"{found}; it looks like {log.looks_like}'s"
        flaws.append((Flaw.FOREIGN, foreign) if log.looks_like else (Flaw.SILENT, found))
        return EngineReport("vllm", "log", (name,), flaws=tuple(flaws))
    if log.mixed:
        flaws.append((Flaw.SERVERS, f"lines of {log.mixed}'s figures stand in this log too: they are not read"))
    busy = [s for s in log.servers if s.intervals]
    server = (busy or log.servers)[-1]
    notes = []
    if len(log.servers) > 1:
        names = ", ".join(s.name for s in log.servers)
        pids = names if any(s.source for s in log.servers) else f"pids {names}"
        which = f" that speculated ({server.name})" if busy else ""
        words = f"{len(log.servers)} servers in one log ({pids}); the last{which} is counted"
        if len(busy) > 1:
            flaws.append((Flaw.SERVERS, f"partial: {words}"))
        else:
            notes.append(words)
    if server.sampling == "synthetic":
        words = "rejection_sample_method is synthetic: acceptance is made up, not measured"
        flaws.append((Flaw.SIMULATED, words))
    if not server.ids and server.started and server.speculative:
        notes.append("no line names the layer ids: the V1 runner is silent when the draft's config has none")
    return _of_server(server, name, steps, notes, flaws)


def _of_totals(
    log: ServeLog, totals: dict[str, int], name: str, steps: int | None, flaws: list[tuple[Flaw, str]]
) -> EngineReport:
    """The counters that the offline example printed at its end, exact where the intervals are not."""
    drafts, drafted = totals["num_drafts"], totals.get("num_draft_tokens")
    exact = drafted is not None and drafts and drafted % drafts == 0
    said = drafted // drafts if exact and drafted else None
    notes = ["the totals are those that the offline script printed at its end", *steps_note(said, steps)]
    return EngineReport(
        "vllm",
        "log",
        (name,),
        steps=said or steps,
        drafts=drafts,
        drafted=drafted,
        accepted=totals["num_accepted_tokens"],
        version=log.servers[-1].version if log.servers else "",
        notes=tuple(notes),
        output=totals.get("total_num_output_tokens"),
        flaws=tuple(flaws),
    )


def _of_server(
    server: Server, name: str, steps: int | None, notes: list[str], flaws: list[tuple[Flaw, str]]
) -> EngineReport:
    intervals = server.intervals
    known = {len(i.rates) for i in intervals if i.rates} | ({server.steps} if server.steps else set())
    said = next(iter(known)) if len(known) == 1 else None
    if len(known) > 1:
        words = f"partial: K changes within the log ({sorted(known)}): the lengths are of a mixture"
        flaws.append((Flaw.CHANGES, words))
    wrong = [text for i in intervals if (text := i.contradiction(server.steps or said))]
    if wrong:
        flaws.append((Flaw.DISAGREES, f"{len(wrong)} of {len(intervals)} intervals contradict themselves: {wrong[0]}"))
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
    if intervals and drafts and not positions and not wrong:
        notes.append("no per-position counts: the rates, printed with 3 decimals, do not determine them")
    if idle := sum("nan" in i.rates or not i.drafted for i in intervals):
        words = f"{idle} of {len(intervals)} intervals are without a draft (rates print as nan): they count as zero"
        flaws.append((Flaw.NAN, words))
    if not intervals:
        flaws.append((Flaw.SILENT, _silence(server)))
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
        flaws=tuple(flaws),
        remarks=tuple(_remarks(server)),
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


def _remarks(server: Server) -> list[str]:
    """What the server said of its settings and of the draft's weights."""
    remarks = []
    if server.method and server.method != "eagle3":
        remarks.append(f"the speculative method is {server.method}, not eagle3")
    if server.sampling not in ("", "standard", "synthetic"):
        remarks.append(f"rejection_sample_method is {server.sampling}")
    if len(server.ids) > 1:
        remarks.append(f"several sets of layer ids in the log: {server.ids}; the last is given")
    if server.ids and list(server.ids[-1]) != sorted(set(server.ids[-1])):
        remarks.append("layer ids as printed; vLLM captures them sorted and without repeats")
    return remarks + server.weights


def _silence(server: Server) -> str:
    """Why the log has no SpecDecoding line."""
    if server.speculative is False:
        return "speculative_config is not set: this server did not speculate"
    if server.speculative:
        return "no SpecDecoding line: stopped within the first interval, or --disable-log-stats"
    return "no SpecDecoding line and no settings: the log does not say whether the server speculated"


def _span(server: Server) -> list[str]:
    """Which part of the run the intervals cover."""
    if not server.intervals:
        return []
    if server.running is None:
        tail = "no status line tells whether requests were still running"
    elif server.running:
        tail = f"{server.running} requests were still running at the last status line"
    else:
        tail = "no request was running at the last status line, so nothing may be missing"
    partial = "partial: " if server.running else ""
    return [f"{partial}{len(server.intervals)} intervals; what follows the last is never printed: {tail}"]
