"""What a search over readings found, as plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.reading import Reading
from eagle3lab.records import Interval


@dataclass(frozen=True)
class Candidate:
    """One reading that reached the search's last round, with its score on all rows.

    Attributes:
        reading: the reading.
        accuracy: step-0 accuracy with its interval.
        behind: accuracy of the best minus this one's, paired on the same rows.
        loglik: mean log-likelihood of the recorded tokens, nats.
    """

    reading: Reading
    accuracy: Interval
    behind: Interval
    loglik: float


@dataclass(frozen=True)
class Depth:
    """Accuracy and mean log-likelihood (nats) of the recorded tokens at each draft step, on one set of rows."""

    accuracy: tuple[float, ...]
    loglik: tuple[float, ...]


@dataclass(frozen=True)
class Repair:
    """One change that the search accepted.

    Attributes:
        field: field of the Reading, ``lag`` or ``form`` for properties of the recording.
        old: its value before, in words.
        new: its value after, in words.
        gain: accuracy gained, paired.
        before: by draft step, before the change.
        after: by draft step, after it, on the same rows.
    """

    field: str
    old: str
    new: str
    gain: Interval
    before: Depth
    after: Depth


@dataclass(frozen=True)
class Open:
    """Values of one field that the recording cannot tell from the fitted one.

    Attributes:
        field: field of the Reading, in `Reading.diff`'s words.
        values: the other values, in words.
        same: every prediction is the same: no recording of such texts could tell.
    """

    field: str
    values: tuple[str, ...]
    same: bool


@dataclass(frozen=True)
class Suspect:
    """What is wrong with the content, where no reading fits, or with a part of it.

    Attributes:
        kind: ``foreign``, ``rows``, ``columns``, ``basis``, ``map``, ``fresh`` or ``shift``.
        title: one sentence.
        where: file or tensor.
        measured: the numbers behind it.
        remedy: what to do.
    """

    kind: str
    title: str
    where: str
    measured: str
    remedy: str


@dataclass(frozen=True)
class ScanResult:
    """What a search over readings found.

    Attributes:
        fitted: the best reading.
        ties: wirings that the rows cannot tell from the best one (paired interval holds 0).
        margin: accuracy of the best minus that of the best wiring that is not a tie, paired.
        ranking: every candidate that reached the last round, best first, all on the same rows.
        path: each accepted change, in order.
        undetermined: slots in which the ties differ, and fields that no row tells, or can tell (`open`).
        tried: number of readings tried.
        matrix: accuracy by (slot, boundary) with the other slots as fitted.
        matrix_rows: rows behind each cell of ``matrix``.
        evidence: rows and samples used, in words.
        fits: False when even the best predicts no better than ``floor``.
        floor: accuracy that a draft fed shuffled states reaches on the same rows.
        lag: row r of the recording holds the state of position r + lag.
        form: what is to be done to the recorded last state, ``""`` for what its file says.
        open: the other fields' values that no row tells from the fitted one.
        suspects: content that is wrong, likeliest first.
        excluded: what was tried and did not help, in words.
        mended: where the map was rebuilt, the changes that help once it is learned from the recording.
    """

    fitted: Reading
    ties: tuple[Reading, ...]
    margin: Interval
    ranking: tuple[Candidate, ...]
    path: tuple[Repair, ...]
    undetermined: tuple[str, ...]
    tried: int
    matrix: Mapping[tuple[int, Any], float] = field(default_factory=dict)
    matrix_rows: int = 0
    evidence: str = ""
    fits: bool = True
    floor: float = 0.0
    lag: int = 0
    form: str = ""
    open: tuple[Open, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    excluded: tuple[str, ...] = ()
    mended: tuple[Repair, ...] = ()
