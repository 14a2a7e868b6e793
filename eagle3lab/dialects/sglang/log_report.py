"""The report that an SGLang log gives: a mean of its printed means, and what that leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.dialects.evidence import steps_note, text_lines
from eagle3lab.dialects.sglang.log_lines import Decode, ServeLog, Server
from eagle3lab.dialects.sglang.rates import mixture, rate_definition
from eagle3lab.dialects.sglang.settings import settings_flaws, settings_remarks


def of_log(root: Path, name: str, steps: int | None) -> EngineReport:
    """What the log says of the last server in it that speculated; never counts, they are not printed.

    Args:
        root: the case folder.
        name: the log, relative to it.
        steps: K, for a log that does not say it.

    Raises:
        BadFile: missing or no text.
    """
    log = ServeLog().read(text_lines(root, name, "an SGLang server log, as text"))
    flaws: list[tuple[Flaw, str]] = []
    notes: list[str] = []
    if log.cut:
        shown = ", ".join(map(str, log.cut[:5])) + (" …" if len(log.cut) > 5 else "")
        flaws.append((Flaw.CUT, f"partial: {len(log.cut)} decode lines are cut (lines {shown})"))
    if log.simulated:
        words = f"SGLANG_SIMULATE_ACC_LEN={log.simulated}: acceptance is made up, not measured"
        flaws.append((Flaw.SIMULATED, words))
    if not log.servers:
        found = f"no line of an SGLang server in {log.lines} lines" if log.lines else "the log is empty"
        foreign = f"{found}; it looks like {log.looks_like}'s"
        flaws.append((Flaw.FOREIGN, foreign) if log.looks_like else (Flaw.SILENT, found))
        return EngineReport("sglang", "log", (name,), flaws=tuple(flaws))
    if log.mixed:
        flaws.append((Flaw.SERVERS, f"lines of {log.mixed}'s figures stand in this log too: they are not read"))
    busy = [s for s in log.servers if s.decodes]
    server = (busy or log.servers)[-1]
    if len(log.servers) > 1:
        named = (
            f" ({', '.join(s.source or 'unnamed' for s in log.servers)})" if any(s.source for s in log.servers) else ""
        )
        which = f" that speculated{f' ({server.source})' if server.source else ''}" if busy else ""
        words = f"{len(log.servers)} servers in one log{named}; the last{which} is counted"
        if len(busy) > 1:
            flaws.append((Flaw.SERVERS, f"partial: {words}"))
        else:
            notes.append(words)
    said = server.number("num_steps")
    if not server.decodes:
        flaws.append(_silence(server))
    elif server.plain or server.nan:
        kind = Flaw.NAN if server.nan else Flaw.CHANGES
        left = f"{server.plain + server.nan} decode lines without an accept len are left out"
        flaws.append((kind, f"partial: {left}" + (f", {server.nan} of them nan or 0" if server.nan else "")))
    several = mixture(server.decodes, said, server.number("num_draft_tokens"))
    if several:
        numbers = " or ".join(f"{found} ({definition})" for definition, found in several.items())
        words = f"partial: K changes within the log: the accept rates go with {numbers} drafts a round"
        flaws.append((Flaw.CHANGES, f"{words}: the lengths are of a mixture"))
    most = max(map(max, several.values())) if several else said or steps
    flaws += _impossible(server.decodes, most, "" if said else " as the case says")
    return EngineReport(
        "sglang",
        "log",
        (name,),
        steps=None if several else said or steps,
        throughput=tuple(server.throughput),
        notes=(*notes, *_means(server), *steps_note(said, steps)),
        reported_length=_mean(server.decodes),
        flaws=(*flaws, *settings_flaws(server.arguments)),
        remarks=(*settings_remarks(server.arguments), *_definition(server, said, several)),
    )


def _impossible(decodes: Sequence[Decode], steps: int | None, whose: str) -> list[tuple[Flaw, str]]:
    """Lines that no chain or tree of ``steps`` gives, however the mean of all comes out."""
    out = []
    longest = max((d.length for d in decodes), default=1.0)
    if steps and longest > steps + 1.005:
        over = sum(d.length > steps + 1.005 for d in decodes)
        words = f"an accept len of {longest} is more than {steps} steps allow{whose} ({over} of {len(decodes)} lines)"
        out.append((Flaw.DISAGREES, f"{words}: another run's lines?"))
    if short := [d.length for d in decodes if d.length < 0.995]:
        words = f"an accept len of {min(short)} is below 1, the bonus token alone ({len(short)} lines)"
        out.append((Flaw.DISAGREES, words))
    rates = [d.rate for d in decodes if d.rate > 1.005]
    if rates:
        out.append((Flaw.DISAGREES, f"an accept rate of {max(rates)} is above 1 ({len(rates)} lines)"))
    if below := [d.rate for d in decodes if d.rate < 0]:
        out.append((Flaw.DISAGREES, f"an accept rate of {min(below)} is below 0 ({len(below)} lines)"))
    return out


def _mean(decodes: Sequence[Decode]) -> float | None:
    # A line covers a fixed number of iterations, so its rounds go with the requests running.
    weights = [max(d.running, 1) for d in decodes]
    total = sum(d.length * w for d, w in zip(decodes, weights, strict=True))
    return total / sum(weights) if decodes else None


def _means(server: Server) -> list[str]:
    if not server.decodes:
        return []
    notes = [
        f"mean of {len(server.decodes)} decode lines, weighted by running requests; each is itself the mean "
        "of one log interval, bonus included; no counts are printed, nor what follows the last interval",
        "throughput includes idle time before a line; the log does not name the layers it captured",
    ]
    if len(server.ranks) > 1:
        ranks = ", ".join(f"DP{rank}" for rank in sorted(server.ranks))
        notes.append(f"lines of {len(server.ranks)} data-parallel ranks ({ranks}) are taken together: one server's")
    return notes


def _definition(server: Server, steps: int | None, several: Mapping[str, list[int]]) -> list[str]:
    """What the log says of its rates, and beside them."""
    remarks = []
    if server.decodes and not several:
        remarks.append(rate_definition(server.decodes, server.forms, steps, server.number("num_draft_tokens")))
    if server.decodes and server.lifetime:
        remarks.append(f"avg_spec_accept_length={server.lifetime[-1]} was printed when the cache was flushed")
    return remarks


def _silence(server: Server) -> tuple[Flaw, str]:
    """Why the log has no accept length."""
    if server.nan:
        return Flaw.NAN, f"partial: {server.nan} decode lines, all with accept len nan or 0"
    if server.started and server.arguments.get("algorithm") is None:
        return Flaw.SILENT, "speculative_algorithm is not set: this server did not speculate"
    if server.plain:
        words = f"{server.plain} decode lines without an accept len: this server did not speculate"
        return Flaw.SILENT, words
    words = "no decode line: the server stopped within its first decode_log_interval (40 iterations)"
    return Flaw.SILENT, words
