"""The report that an SGLang log gives: a mean of its printed means, and what that leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eagle3lab.counts import EngineReport, Flaw
from eagle3lab.dialects.evidence import steps_note, text_lines
from eagle3lab.dialects.sglang.log_lines import Decode, ServeLog, Server

_WIDEST = 64
"""The largest number of draft tokens a round that is tried when the log does not say it."""


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
        words = f"{len(log.servers)} servers in one log; the last{' that speculated' if busy else ''} is counted"
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
        flaws.append((kind, f"partial: {left}" + (f", {server.nan} of them nan" if server.nan else "")))
    flaws += _impossible(server.decodes, said or steps, "" if said else " as the case says")
    return EngineReport(
        "sglang",
        "log",
        (name,),
        steps=said or steps,
        throughput=tuple(server.throughput),
        notes=(*notes, *settings_notes(server.arguments), *_means(server, said), *steps_note(said, steps)),
        reported_length=_mean(server.decodes),
        flaws=(*flaws, *settings_flaws(server.arguments)),
    )


def _impossible(decodes: Sequence[Decode], steps: int | None, whose: str) -> list[tuple[Flaw, str]]:
    """Lines that no chain or tree of ``steps`` gives, however the mean of all comes out."""
    out = []
    longest = max((d.length for d in decodes), default=1.0)
    if steps and longest > steps + 1.005:
        over = sum(d.length > steps + 1.005 for d in decodes)
        words = f"an accept len of {longest} is more than {steps} steps allow{whose} ({over} of {len(decodes)} lines)"
        out.append((Flaw.DISAGREES, f"{words}: another run's lines?"))
    rates = [d.rate for d in decodes if d.rate > 1.005]
    if rates:
        out.append((Flaw.DISAGREES, f"an accept rate of {max(rates)} is above 1 ({len(rates)} lines)"))
    return out


def _mean(decodes: Sequence[Decode]) -> float | None:
    # A line covers a fixed number of iterations, so its rounds go with the requests running.
    weights = [max(d.running, 1) for d in decodes]
    total = sum(d.length * w for d, w in zip(decodes, weights, strict=True))
    return total / sum(weights) if decodes else None


def _means(server: Server, steps: int | None) -> list[str]:
    if not server.decodes:
        return []
    notes = [
        f"mean of {len(server.decodes)} decode lines, weighted by running requests; each is itself the mean "
        "of one log interval, bonus included; no counts are printed, nor what follows the last interval",
        rate_definition(server.decodes, server.forms, steps, server.number("num_draft_tokens")),
        "throughput includes idle time before a line; the log does not name the layers it captured",
    ]
    if server.lifetime:
        notes.append(f"avg_spec_accept_length={server.lifetime[-1]} was printed when the cache was flushed")
    return notes


def _silence(server: Server) -> tuple[Flaw, str]:
    """Why the log has no accept length."""
    if server.nan:
        return Flaw.NAN, f"partial: {server.nan} decode lines, all with accept len nan"
    if server.started and server.arguments.get("algorithm") is None:
        return Flaw.SILENT, "speculative_algorithm is not set: this server did not speculate"
    if server.plain:
        words = f"{server.plain} decode lines without an accept len: this server did not speculate"
        return Flaw.SILENT, words
    words = "no decode line: the server stopped within its first decode_log_interval (40 iterations)"
    return Flaw.SILENT, words


def settings_flaws(arguments: dict[str, str | None]) -> list[tuple[Flaw, str]]:
    """Steps and draft tokens of a chain that do not go together: the latter count the root too, so M = N + 1."""
    numbers = [arguments.get(k) or "" for k in ("num_steps", "num_draft_tokens", "eagle_topk")]
    if not all(n.isdecimal() and len(n) < 6 for n in numbers) or numbers[2] != "1":
        return []
    steps, tokens = int(numbers[0]), int(numbers[1])
    if tokens == steps + 1:
        return []
    return [(Flaw.SETTINGS, f"speculative_num_steps {steps} and speculative_num_draft_tokens {tokens} with topk 1: the "
             f"tokens count the root, so a chain takes {steps + 1} (SGLang sets it so, with a warning)")]  # fmt: skip


def settings_notes(arguments: dict[str, str | None]) -> list[str]:
    """What ``server_args`` say that bears on the numbers (keys without ``speculative_``)."""
    notes = []
    algorithm, topk = arguments.get("algorithm"), arguments.get("eagle_topk")
    if algorithm and algorithm != "EAGLE3":
        notes.append(f"speculative_algorithm is {algorithm}, not EAGLE3: an EAGLE-3 draft is misread then")
    if topk and topk != "1":
        tokens = arguments.get("num_draft_tokens")
        notes.append(f"a tree (topk {topk}, {tokens} nodes with the root): not comparable with a chain of K")
    return notes


def rate_definition(decodes: Sequence[Decode], forms: set[str], steps: int | None, draft_tokens: int | None) -> str:
    """Which of SGLang's three definitions the printed accept rates follow, told from the numbers themselves.

    0.5.3: bonus in, over num_steps + 1; 0.5.9: bonus in, over num_draft_tokens; 0.5.23: bonus out, over
    num_draft_tokens - 1 (engines.md 7.1).
    """
    known = steps is not None or draft_tokens is not None
    widths = {w for w in ((steps or 0) + 1, draft_tokens or 0) if w > 1} if known else set(range(1, _WIDEST))
    with_bonus = sorted(w for w in widths if all(_fits(d.length, d.rate, w) for d in decodes))
    widths = {w - 1 for w in widths} if known else widths
    without = sorted(w for w in widths if w and all(_fits(d.length - 1, d.rate, w) for d in decodes))
    version = "0.5.3 or before" if forms == {"."} else "after 0.5.3"
    words = []
    if with_bonus:
        words.append(f"bonus in, over {_choice(with_bonus)} (0.5.3: num_steps + 1; 0.5.9: num_draft_tokens)")
    if without:
        words.append(f"bonus out, over {_choice(without)} (0.5.23: num_draft_tokens - 1)")
    if not words:
        return f"accept rate fits none of the known definitions ({version} by its punctuation): do not use it"
    return f"accept rate: {' or '.join(words)}; {version} by its punctuation; not comparable across versions"


def _fits(tokens: float, rate: float, width: int) -> bool:
    # Both numbers are printed with 2 decimals.
    return abs(tokens - rate * width) <= 0.005 * (1 + width) + 1e-9


def _choice(widths: list[int]) -> str:
    return str(widths[0]) if len(widths) == 1 else f"{widths[0]} to {widths[-1]} (undetermined)"
