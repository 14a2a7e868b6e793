"""llama.cpp's log as data: one acceptance line a request, cumulative statistics, the examples' summary."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from eagle3lab.dialects import whose
from eagle3lab.dialects.sources import Sources

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_TASK = re.compile(
    r"draft acceptance(?: rate)? += +(\d+\.\d+|-?nan) +\( *(\d{1,12}) accepted +/ +(\d{1,12}) generated\)"
)
_MEAN = re.compile(r"mean (?:acceptance length|len) = +(\d{1,9}\.\d\d|-?nan)\b")
_RATES = re.compile(r"acceptance rate per position = \(([\d., ]*)\)")
_STATISTICS = re.compile(
    r"statistics +([\w-]+): .*?#gen drafts = +(\d{1,12}), .*?#gen tokens = +(\d{1,12}), #acc tokens = +(\d{1,12})"
)
_SUMMARY = re.compile(r"\b(n_draft|n_predict|n_drafted|n_accept) += +(\d{1,12})\s*$")
_EVAL = re.compile(r"(?<!prompt )\beval time = .*? / +(\d{1,12}) tokens")
_WIDEST = 10_000
"""Numbers of rounds that are tried for one line; with more candidates its mean determines none."""


@dataclass(frozen=True)
class Task:
    """One request: accepted and drafted tokens, the printed mean and cumulative rates where the version has them."""

    accepted: int
    drafted: int
    mean: float | None = None
    rates: tuple[str, ...] = ()
    nan: bool = False

    def rounds(self, steps: int | None) -> int | None:
        """Verify rounds: the one number that prints as the mean (2 decimals) and the rates, None when undetermined."""
        if not self.drafted:
            return 0
        if self.mean is None or self.mean < 1:
            return None
        steps = len(self.rates) or steps
        extra = self.mean - 1
        low = max(math.floor(self.accepted / (extra + 0.005)), math.ceil(self.drafted / steps) if steps else 1, 1)
        high = min(math.ceil(self.accepted / (extra - 0.005)) if extra > 0.005 else self.drafted, self.drafted)
        if high - low > _WIDEST:
            return None
        fitting = [n for n in range(low, high + 1) if f"{1 + self.accepted / n:.2f}" == f"{self.mean:.2f}"]
        fitting = [n for n in fitting if self._possible(n)]
        return fitting[0] if len(fitting) == 1 else None

    def _possible(self, rounds: int) -> bool:
        """Whether counts that print as the rates can add up to ``accepted``."""
        if not self.rates:
            return True
        lows = [math.ceil((float(text) - 0.0005) * rounds - 1e-9) for text in self.rates]
        highs = [math.floor((float(text) + 0.0005) * rounds + 1e-9) for text in self.rates]
        fits = all(low <= high for low, high in zip(lows, highs, strict=True))
        return fits and sum(lows) <= self.accepted <= sum(highs)

    def positions(self, rounds: int) -> tuple[int, ...] | None:
        """Accepted counts per position behind the rates (3 decimals), None when they do not determine them."""
        found = []
        for text in self.rates if rounds else ():
            near = round(float(text) * rounds)
            fitting = [n for n in (near - 1, near, near + 1) if 0 <= n <= rounds and f"{n / rounds:.3f}" == text]
            if len(fitting) != 1:
                return None
            found.append(fitting[0])
        whole = found and sum(found) == self.accepted and found == sorted(found, reverse=True)
        return tuple(found) if whole else None


@dataclass
class Part:
    """One server's part of a log.

    Attributes:
        source: the container or file named before its lines, ``""`` when none is.
        tasks: one for each acceptance line.
        statistics: drafter → (drafts, draft tokens, accepted) of its last line: cumulative.
        summaries: what ``llama-speculative-simple`` prints at its end, one for each run of it.
        predicted: tokens of the ``eval time`` lines, of those requests that have an acceptance line.
    """

    source: str = ""
    tasks: list[Task] = field(default_factory=list)
    statistics: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    summaries: list[dict[str, int]] = field(default_factory=lambda: [{}])
    predicted: int = 0
    evaluated: int = 0

    @property
    def summary(self) -> dict[str, int]:
        """The last summary."""
        return self.summaries[-1]

    @property
    def speaks(self) -> bool:
        """Whether it has any figure."""
        return bool(self.tasks or self.statistics or self.summary)


@dataclass
class Log:
    """A whole log: its servers by the name before their lines, and the numbers of acceptance lines that end too early.

    ``looks_like`` is the engine whose lines they look like.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    lines: int = 0
    looks_like: str = ""

    def read(self, lines: Iterable[tuple[int, str]]) -> Log:
        """Take in numbered lines."""
        sources = Sources()
        for number, raw in lines:
            self.lines = number
            line = _ANSI.sub("", raw).strip()
            source = sources.of(line)
            if (part := self.parts.get(source)) is None:
                part = self.parts[source] = Part(source)
            if "draft acceptance" in line:
                self._task(number, line, part)
                part.predicted += part.evaluated
                part.evaluated = 0
            elif found := _STATISTICS.search(line):
                part.statistics[found[1]] = (int(found[2]), int(found[3]), int(found[4]))
            elif found := _SUMMARY.search(line):
                if found[1] in part.summary:
                    part.summaries.append({})
                part.summary[found[1]] = int(found[2])
            elif found := _EVAL.search(line):
                part.evaluated = int(found[1])
            elif not self.looks_like:
                self.looks_like = whose.log_of(line)
        return self

    def _task(self, number: int, line: str, part: Part) -> None:
        found = _TASK.search(line)
        if found is None:
            self.cut.append(number)
            return
        mean, rates = _MEAN.search(line), _RATES.search(line)
        # The mean came with PR #24536, and later the rates left the line again: what begins must end.
        after = line[mean.end() if mean else found.end() :].strip(" ,")
        if after[:1] in {"m", "a"} and not rates:
            self.cut.append(number)
        texts = tuple(text.strip() for text in rates[1].split(",")) if rates and rates[1].strip() else ()
        good = all(re.fullmatch(r"[01]\.\d{3}", text) for text in texts)
        value = float(mean[1]) if mean and "nan" not in mean[1] else None
        nan = "nan" in found[1] or bool(mean and "nan" in mean[1])
        part.tasks.append(Task(int(found[2]), int(found[3]), value, texts if good else (), nan))
