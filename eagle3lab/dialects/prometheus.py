"""Prometheus text as engines answer it on ``GET /metrics``: samples, and how counters grew over a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from eagle3lab.dialects.evidence import shortened, text_lines
from eagle3lab.errors import BadFile

Labels = tuple[tuple[str, str], ...]
_APART = {"model_name": "models", "instance": "instances", "pod": "pods", "pod_name": "pods", "container": "containers"}
"""Labels that a server does not vary, the last few added by Prometheus itself: what differs in them is several."""


@dataclass(frozen=True)
class Series:
    """One sample of a Prometheus text: its name as stored, sorted labels, value."""

    name: str
    labels: Labels
    value: float

    @property
    def base(self) -> str:
        """The name without the ``_total`` that prometheus_client appends to counters."""
        return self.name.removesuffix("_total")


def prometheus(root: Path, name: str) -> list[Series]:
    """All samples of a Prometheus text file, as ``GET /metrics`` answers.

    Raises:
        BadFile: not Prometheus text, or without a sample.
    """
    expected = "Prometheus text, as GET /metrics answers"
    lines = list(text_lines(root, name, expected))
    try:
        found = _series("".join(line for _, line in lines))
    except (ValueError, LookupError) as error:
        number, line = _first_bad(lines)
        raise BadFile(
            name,
            f"line {number}: found {line.strip()[:60]!r} ({error}); expected {expected}; "
            "save it again, whole, with curl -s http://HOST:PORT/metrics",
        ) from error
    if not found:
        raise BadFile(name, f"found no sample; expected {expected}; save it again with curl, the server running")
    return found


def _series(text: str) -> list[Series]:
    return [
        Series(s.name, tuple(sorted(s.labels.items())), float(s.value))
        for family in text_string_to_metric_families(text)
        for s in family.samples
    ]


def _first_bad(lines: Iterable[tuple[int, str]]) -> tuple[int, str]:
    # The parser does not say where it stopped; a line that fails alone is the one.
    for number, line in lines:
        try:
            _series(line)
        except (ValueError, LookupError):
            return number, line
    return 1, ""


@dataclass
class Growth:
    """How counters grew between the first and the last of some Prometheus files.

    Attributes:
        values: (name without ``_total``, labels) → growth; the totals themselves when there was one file.
        names: every metric name of the last file, wanted or not.
        gauges: the last file's samples.
        notes: what to know of them.
    """

    values: dict[tuple[str, Labels], int] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    gauges: list[Series] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def total(self, name: str) -> int | None:
        """The sum over all labels (engines, ranks), None when the counter is not there."""
        found = [value for (base, _), value in self.values.items() if base == name]
        return sum(found) if found else None


def counter_growth(
    root: Path,
    files: Sequence[str],
    wanted: Sequence[str],
    read: Callable[[Path, str], list[Series]] = prometheus,
) -> Growth:
    """Growth of the ``wanted`` counters over ``files``, oldest first; of one file, its totals.

    ``read`` gives a file's samples; an engine that writes the same counters in another form brings its own.

    Raises:
        BadFile: a file is no Prometheus text, a counter is no whole number or stands in it twice (two answers in one
            file), or one went down or was created anew (the server restarted in between: a difference would be
            meaningless).
    """
    snapshots: list[dict[tuple[str, Labels], float]] = []
    before = ""
    known: dict[tuple[str, Labels], float] = {}
    series: list[Series] = []
    for name in files:
        series = read(root, name)
        now = {(s.base, s.labels): s.value for s in series if s.base in wanted}
        made = {(s.name, s.labels): s.value for s in series if s.name.removesuffix("_created") in wanted}
        faults = _doubled(series, wanted) or [
            f"{_worded(key)}: found {value}; expected a count; save the metrics again"
            for key, value in now.items()
            if not math.isfinite(value) or value < 0 or value != int(value)
        ]
        faults += _restarts(before, known, now | made)
        if faults:
            raise BadFile(name, shortened(faults))
        snapshots.append(now)
        before, known = name, now | made
    first = snapshots[0] if len(snapshots) > 1 else {}
    growth = Growth(
        {key: round(value - first.get(key, 0.0)) for key, value in snapshots[-1].items()},
        frozenset(s.name for s in series),
        series,
    )
    if len(files) == 1 and growth.values:
        growth.notes.append(
            "totals since the server started, warm-up included: the case gives no metrics from before the run"
        )
    for label, words in _APART.items():
        several = {value for _, labels in growth.values for key, value in labels if key == label}
        if len(several) > 1:
            growth.notes.append(f"partial: counters of several {words} summed: {', '.join(sorted(several))}")
    return growth


def _doubled(series: Sequence[Series], wanted: Sequence[str]) -> list[str]:
    """Faults of counters and speculative gauges that a file holds twice: whichever is taken, the other is lost."""
    values: dict[tuple[str, Labels], list[float]] = {}
    for s in series:
        if s.base in wanted or ":spec_" in s.name:
            values.setdefault((s.name, s.labels), []).append(s.value)
    return [
        f"{_worded(key)}: found {len(found)} times ({', '.join(f'{v:.12g}' for v in found[:3])}); expected once; two "
        "answers stand in this file, of two servers or of one asked twice: give each a file of its own"
        for key, found in values.items()
        if len(found) > 1
    ]


def _restarts(before: str, old: dict[tuple[str, Labels], float], new: dict[tuple[str, Labels], float]) -> list[str]:
    remedy = f"the server restarted after {before}, or the files are swapped; give one server's, oldest first"
    faults = []
    for key, value in old.items():
        later = new.get(key)
        # A server created anew may already count more than the old one did: the time of creation tells.
        created = key[0].endswith("_created")
        if later is None or later < value or (created and later != value):
            found = "nothing" if later is None else f"{later:.12g}"
            expected = f"{'' if created else 'at least '}{value:.12g} as in {before}"
            faults.append(f"{_worded(key)}: found {found}; expected {expected}; {remedy}")
    return faults


def _worded(key: tuple[str, Labels]) -> str:
    name, labels = key
    return name + "{" + ", ".join(f"{k}={v}" for k, v in labels) + "}"
