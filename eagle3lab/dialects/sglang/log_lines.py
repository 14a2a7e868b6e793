"""SGLang's server log as data: servers, their arguments, and the decode lines.

Formats by reading 0.5.3.post3, 0.5.9 and 0.5.23 (engines.md 7.1). A decode line gives means over the last
``decode_log_interval`` iterations and no counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from eagle3lab.dialects import whose
from eagle3lab.dialects.sources import Sources

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_DECODE = re.compile(r"Decode batch(?: \[\d+\])?([.,]) #running-req: (\d{1,9})\b")
_ACCEPT = re.compile(r"accept len: (-?\d+(?:\.\d+)?|nan), accept rate: (-?\d+(?:\.\d+)?|nan),")
_THROUGHPUT = re.compile(r"gen throughput \(token/s\): (\d+(?:\.\d+)?),")
_LIFETIME = re.compile(r"avg_spec_accept_length=(\d+(?:\.\d+)?)")
_SIMULATED = re.compile(r"SGLANG_SIMULATE_ACC_LEN\W{0,4}(\d[\d.]*)")
_RANK = re.compile(r"\bDP(\d{1,5})\b")
_ARGUMENTS = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")


@dataclass(frozen=True)
class Decode:
    """One decode line of a speculating server: accept length with bonus, accept rate, running requests."""

    length: float
    rate: float
    running: int


@dataclass
class Server:
    """One server's part of the log.

    Attributes:
        arguments: ``speculative_*`` of ``server_args`` without that prefix, as text; None where unset.
        source: the container or file named before its lines, ``""`` when none is.
        started: whether the log holds ``server_args``.
        ranks: data-parallel ranks of its decode lines, none where they are not said.
        forms: punctuation after "Decode batch": a period up to 0.5.3, a comma later.
        plain: decode lines without an accept length.
        lifetime: ``avg_spec_accept_length`` as printed when the cache was flushed.
    """

    source: str = ""
    started: bool = False
    arguments: dict[str, str | None] = field(default_factory=dict)
    decodes: list[Decode] = field(default_factory=list)
    forms: set[str] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)
    plain: int = 0
    nan: int = 0
    throughput: list[float] = field(default_factory=list)
    lifetime: list[float] = field(default_factory=list)

    def number(self, argument: str) -> int | None:
        """An argument as a number, None when unset or unknown."""
        value = self.arguments.get(argument) or ""
        return int(value) if value.isdecimal() and len(value) < 6 else None


@dataclass
class ServeLog:
    """A whole log: its servers in order, the numbers of cut lines, simulation, whose log it looks like.

    ``mixed`` names another engine whose figures stand in it too.
    """

    servers: list[Server] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    lines: int = 0
    looks_like: str = ""
    mixed: str = ""
    simulated: str = ""

    def read(self, lines: Iterable[tuple[int, str]]) -> ServeLog:
        """Take in numbered lines."""
        sources = Sources()
        for number, raw in lines:
            self.lines = number
            line = _ANSI.sub("", raw).strip()
            source = sources.of(line)
            self.mixed = self.mixed or whose.acceptance_of(line).removeprefix("SGLang")
            if simulated := _SIMULATED.search(line):
                self.simulated = simulated[1]
            if "server_args=" in line:
                self.servers.append(Server(source, True, _arguments(line)))
            elif "Decode batch" in line:
                self._decode(number, line, self._server(source))
            elif lifetime := _LIFETIME.search(line):
                self._server(source).lifetime.append(float(lifetime[1]))
            elif not self.looks_like and (other := whose.log_of(line)) != "SGLang":
                self.looks_like = other
        return self

    def _decode(self, number: int, line: str, server: Server) -> None:
        head = _DECODE.search(line)
        accept, throughput = _ACCEPT.search(line), _THROUGHPUT.search(line)
        # Every form ends with the throughput and then #queue-req: a line without it was cut.
        if head is None or throughput is None:
            self.cut.append(number)
        if head is None:
            return
        server.forms.add(head[1])
        if rank := _RANK.search(line, 0, head.start()):
            server.ranks.add(int(rank[1]))
        running = int(head[2])
        if throughput and running:
            server.throughput.append(float(throughput[1]))
        # a mean of no round prints as nan, or as 0.00 of both
        if accept and ("nan" in accept.groups() or not any(map(float, accept.groups()))):
            server.nan += 1
        elif accept:
            server.decodes.append(Decode(float(accept[1]), float(accept[2]), running))
        elif throughput:
            server.plain += 1

    def _server(self, source: str) -> Server:
        """The server started last in the container that a line comes from."""
        for server in reversed(self.servers):
            if server.source == source:
                return server
        self.servers.append(Server(source))
        return self.servers[-1]


def _arguments(line: str) -> dict[str, str | None]:
    """``speculative_*`` of ``ServerArgs(key=value, …)`` (to 0.5.9) or of a dict (0.5.23)."""
    found: dict[str, str | None] = {}
    for key in _ARGUMENTS:
        match = re.search(rf"(?<!\w)speculative_{key}['\"]?\s*[=:]\s*['\"]?([\w.-]+)", line)
        if match:
            found[key] = None if match[1] == "None" else match[1]
    return found
