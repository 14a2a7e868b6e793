"""vLLM's server log as data: servers, their settings, and the ``SpecDecoding metrics`` lines by interval.

Formats: 0.32.0 as run (vllm_measured.md 4); the field order of 0.9 and the V2 runner's line by reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from eagle3lab.dialects import whose
from eagle3lab.dialects.sources import Sources

_PROCESS = re.compile(r"\(([A-Za-z]\w*) pid=(\d+)\)")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_VERSION = re.compile(r"vLLM API server version (\S+)|█\s+version (\S+)")
_ENGINE_VERSION = re.compile(r"LLM engine \(v?([^)\s]+)\)")
_STEPS = re.compile(r"num_spec(?:ulative)?_tokens['\"]?\s*[:=]\s*(\d{1,3})\b")
_SAMPLING = re.compile(r"rejection_sample_method['\"]?\s*[:=]\s*['\"]?(\w+)")
_IDS = re.compile(r"auxiliary layers from (?:speculative config|config|model): [(\[]([-\d, ]*)[)\]]")
_METHOD = re.compile(r"\bmethod['\"]?\s*[:=]\s*['\"](\w+)")
_STATUS = re.compile(r"Avg generation throughput: (\d+\.\d+|nan) tokens/s, Running: (\d{1,9}) reqs")
_WEIGHTS = re.compile(r"EAGLE.*(?:embed_tokens|embedding|lm_head|LM head)")
_PREFIX = re.compile(r"^.*?\[[\w.]+:\d+\] ")
_RATE = r"(?:\d\.\d{3}|nan)"
_RATES = rf"Per-position acceptance rate: ({_RATE}(?:, {_RATE})*)"
_END = re.compile(r"Avg Draft acceptance rate: (?:\d+\.\d|nan)%")
_TOTAL = re.compile(r"\b(total_num_output_tokens|num_drafts|num_draft_tokens|num_accepted_tokens): (\d{1,15})\s*$")
_MEAN = re.compile(r"Mean acceptance length: (\d{1,9}\.\d\d|nan)\b")


@dataclass(frozen=True)
class Interval:
    """One ``SpecDecoding metrics`` line: drafted and accepted tokens since the line before.

    Attributes:
        drafted: draft tokens offered.
        accepted: draft tokens accepted.
        mean: the printed mean accept length (2 decimals), None when not said or NaN.
        rates: the printed cumulative rates, as text (3 decimals), empty when the line is cut before them.
    """

    drafted: int
    accepted: int
    mean: float | None
    rates: tuple[str, ...]

    def rounds(self, steps: int | None) -> int | None:
        """Verify rounds: drafted / K, None when that is no integer or contradicts the printed mean."""
        if not self.drafted:
            return 0
        steps = len(self.rates) or steps
        if not steps or self.drafted % steps:
            return None
        rounds = self.drafted // steps
        exact = 1 + self.accepted / rounds
        return rounds if self.mean is None or abs(exact - self.mean) <= 0.005 + 1e-9 else None

    def contradiction(self, steps: int | None) -> str:
        """What of the line cannot be, in words, "" when all can: rates fall, and add up to the mean less its bonus."""
        rates = [float(text) for text in self.rates if text != "nan"]
        if rates and (rates != sorted(rates, reverse=True) or rates[0] > 1):
            return f"per-position rates {', '.join(self.rates)} do not fall from 1"
        if self.mean is None or not self.drafted:
            return ""
        # cut rounds make for more of them than drafted / K, and for a shorter mean; none makes it longer
        most = 1 + self.accepted * (len(self.rates) or steps or self.drafted) / self.drafted
        if self.mean > most + 0.006:
            return f"the mean is printed as {self.mean:.2f}, the line's own counts give {most:.2f} at most"
        if rates and len(rates) == len(self.rates) and abs(1 + sum(rates) - self.mean) > 0.006 + 0.0006 * len(rates):
            return f"the mean is printed as {self.mean:.2f}, the line's own rates give {1 + sum(rates):.2f}"
        return ""

    def positions(self, rounds: int) -> tuple[int, ...] | None:
        """Accepted counts per position out of the rounded rates, None when they do not determine them.

        A count must print as its rate and be the only one that does (never so above some 1,000 rounds), and
        the counts must fall with the position and add up to ``accepted``.
        """
        if not rounds:
            return (0,) * len(self.rates)
        found = []
        for text in self.rates:
            near = round(float(text) * rounds) if text != "nan" else -2
            fitting = [n for n in (near - 1, near, near + 1) if 0 <= n <= rounds and f"{n / rounds:.3f}" == text]
            if len(fitting) != 1:
                return None
            found.append(fitting[0])
        return tuple(found) if found == sorted(found, reverse=True) and sum(found) == self.accepted else None


@dataclass
class Server:
    """One server's part of the log.

    Attributes:
        pid: of the process that prints the metrics, ``""`` when lines carry none.
        source: the container or file named before its lines, ``""`` when none is.
        started: whether the log holds its start (the arguments line).
        speculative: whether it speculates, None when the log does not say.
        running: running requests in the last status line, None without one.
    """

    pid: str = ""
    source: str = ""
    started: bool = False
    version: str = ""
    speculative: bool | None = None
    steps: int | None = None
    sampling: str = ""
    method: str = ""
    ids: list[tuple[int, ...]] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    throughput: list[float] = field(default_factory=list)
    running: int | None = None

    @property
    def name(self) -> str:
        """Its pid, after the container's name where there is one: in a container the pid is always 1."""
        return f"{self.source} pid {self.pid or 'unknown'}" if self.source else self.pid or "unknown"


@dataclass
class ServeLog:
    """A whole log: its servers in order of appearance, the numbers of cut lines, whose log it looks like.

    ``mixed`` names another engine whose figures stand in it too.
    ``totals`` are the counters that ``examples/offline_inference/spec_decode.py`` prints at its end, one for each run.
    """

    servers: list[Server] = field(default_factory=list)
    totals: list[dict[str, int]] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    lines: int = 0
    looks_like: str = ""
    mixed: str = ""
    banners: dict[str, str] = field(default_factory=dict)
    _runs: dict[str, dict[str, int]] = field(default_factory=dict)

    def read(self, lines: Iterable[tuple[int, str]]) -> ServeLog:
        """Take in numbered lines."""
        sources = Sources()
        for number, raw in lines:
            self.lines = number
            line = _ANSI.sub("", raw).strip()
            self.mixed = self.mixed or whose.acceptance_of(line).removeprefix("vLLM")
            source = sources.of(line)
            process = _PROCESS.search(line)
            name, pid = (process[1], process[2]) if process else ("", "")
            if "SpecDecoding metrics:" in line:
                self._interval(number, line, self._server(source, name, pid))
            elif status := _STATUS.search(line):
                server = self._server(source, name, pid)
                server.running = int(status[2])
                if server.running and status[1] != "nan":
                    server.throughput.append(float(status[1]))
            else:
                self._fact(line, source, pid)
        return self

    def _interval(self, number: int, line: str, server: Server) -> None:
        accepted = re.search(r"Accepted: (\d{1,15}) tokens", line)
        drafted = re.search(r"Drafted: (\d{1,15}) tokens", line)
        # Since 0.10 the line goes on after the rates; before, they end it. Without its end a rate may be cut.
        modern = "throughput" in line
        rates = re.search(_RATES + (", Avg" if modern else r"(?![\d.,])"), line)
        if not (accepted and drafted) or (modern and not _END.search(line)):
            self.cut.append(number)
        if not (accepted and drafted):
            return
        mean = _MEAN.search(line)
        server.intervals.append(
            Interval(
                int(drafted[1]),
                int(accepted[1]),
                float(mean[1]) if mean and mean[1] != "nan" else None,
                tuple(rates[1].split(", ")) if rates else (),
            )
        )

    def _fact(self, line: str, source: str, pid: str) -> None:
        if "non-default args:" in line:
            version = self.banners.pop(source, "")
            self.servers.append(Server(pid, source, started=True, version=version, speculative=False))
        if said := _VERSION.search(line):
            self.banners[source] = (said[1] or said[2]).removeprefix("v")
        elif said := _ENGINE_VERSION.search(line):
            self._server(source).version = said[1]
        if "speculative_config" in line or "SpeculativeConfig(" in line:
            self._settings(line, self._server(source))
        if ids := _IDS.search(line):
            found = tuple(int(i) for i in re.findall(r"-?\d{1,9}", ids[1]))
            if found not in (known := self._server(source).ids):
                known.append(found)
        elif _WEIGHTS.search(line):
            # Every tensor-parallel worker prints these lines: once is enough.
            message, weights = _PREFIX.sub("", line), self._server(source).weights
            weights += [] if message in weights else [message]
        elif total := _TOTAL.search(line):
            run = self._runs.get(source)
            if run is None or total[1] in run:
                run = self._runs[source] = {}
                self.totals.append(run)
            run[total[1]] = int(total[2])
        elif not self.looks_like and (other := whose.log_of(line)) != "vLLM":
            self.looks_like = other

    def _settings(self, line: str, server: Server) -> None:
        # The line holds all of the engine's settings; only what follows is the speculative ones.
        line = re.sub(r"^.*?(?=speculative_config|SpeculativeConfig)", "", line)
        if steps := _STEPS.search(line):
            server.steps, server.speculative = int(steps[1]), True
        elif line.startswith("speculative_config=None"):
            server.speculative = False
        if sampling := _SAMPLING.search(line):
            server.sampling = sampling[1]
        if method := _METHOD.search(line):
            server.method = method[1]

    def _server(self, source: str, name: str = "", pid: str = "") -> Server:
        """The server that a line belongs to; workers' lines belong to the one started last in their container."""
        last = True
        for server in reversed(self.servers):
            if (source or pid) and server.source != source:
                continue
            if not pid or server.pid == pid:
                return server
            # Several API processes of one server are numbered (ApiServer_0, ApiServer_1 …).
            if not server.pid or (last and re.search(r"_\d+$", name)):
                server.pid = server.pid or pid
                return server
            last = False
        self.servers.append(Server(pid, source, version=self.banners.get(source, "")))
        return self.servers[-1]
