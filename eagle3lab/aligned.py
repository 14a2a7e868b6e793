"""A recording as it may have to be read: rows early or late, and the last state in another form than the file says.

These are properties of the recording, not of the draft: the search finds them beside the Reading, and the remedy is to
record again. A row lag of 1 is not among them: it predicts what a shift of 2 does, row by row, since RoPE is relative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from eagle3lab.errors import Blocked
from eagle3lab.model import Model
from eagle3lab.norms import rms_norm
from eagle3lab.reading import FINAL, Reading
from eagle3lab.records import Sample

FORMS = ("as it lies there", "normed once", "normed once with 1 + w", "normed twice")
"""What may have to be done to the recorded last state before it is what the draft was trained on."""


@dataclass(frozen=True)
class Recording:
    """How the rows of a recording are to be read.

    Attributes:
        lag: row r holds the state of position r + lag; above 0 the first ``lag`` rows are missing.
        form: one of `FORMS`, ``""`` for what the file says.
    """

    lag: int = 0
    form: str = ""

    @property
    def words(self) -> str:
        """In words, ``""`` where the file is read as it says."""
        late = f"row r holds the state of position r {'+' if self.lag > 0 else '-'} {abs(self.lag)}" if self.lag else ""
        return "; ".join(part for part in (late, f"last state {self.form}" if self.form else "") if part)

    @property
    def first(self) -> int:
        """The position of the first row."""
        return max(self.lag, 0)


def aligned(sample: Sample, recording: Recording, model: Model) -> Sample:
    """The sample with each state at its token: positions without one are cut off, states stay views.

    Raises:
        Blocked: another form is asked for, and the last state or the target's norm is not given.
    """
    if recording.form:
        sample = _formed(sample, recording.form, model)
    if not recording.lag:
        return sample
    size, lag = sample.length - abs(recording.lag), recording.lag
    tokens, rows = (slice(lag, None), slice(0, size)) if lag > 0 else (slice(0, size), slice(-lag, None))
    return sample.at(tokens, rows)


def uses_last(reading: Reading, sample: Sample) -> bool:
    """Whether the form of the last state changes what ``reading`` is fed."""
    return FINAL in reading.aux or (sample.last is not None and sample.last in reading.aux)


def _formed(sample: Sample, form: str, model: Model) -> Sample:
    last = sample.final if sample.final is not None else sample.states.get(sample.last or -1)
    if last is None or model.target is None:
        raise Blocked(f"{sample.path}: no last state, or no target: its form cannot be tried")
    state, weight, eps = last.float(), model.target.norm_weight.float(), model.target.eps
    if form == FORMS[1]:
        state = rms_norm(state, weight, eps)
    elif form == FORMS[2]:
        state = rms_norm(state, weight + 1, eps)
    elif form == FORMS[3]:
        state = rms_norm(rms_norm(state, weight, eps), weight, eps)
    return replace(sample, final=state, final_norm="post", states=_with_last(sample, state))


def _with_last(sample: Sample, state: Tensor) -> dict[int, Tensor]:
    last = sample.last
    return {k: state if k == last else v for k, v in sample.states.items()}
