"""Whose tokens do the rows belong to: the lens on the last state, row by row, and the lag at which it agrees."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle3lab.norms import rms_norm
from eagle3lab.records import Sample
from eagle3lab.target import Target

LENS_ROWS = 1024
"""Rows per case that go through the target's head."""

PROBE = 256
"""Of these, the rows on which the form of the last state is decided."""

LAGS = 16
"""Rows up to which a lag is looked for, in both directions."""

LEAST = 24
"""Rows of one sample below which nothing is said of it alone."""


@dataclass(frozen=True)
class Pick:
    """The target's greedy choices after rows of one sample.

    Attributes:
        rows: int64 [R], ascending.
        choices: int64 [R], the token with the largest logit.
        tokens: int64 [T], the recorded ones.
    """

    rows: Tensor
    choices: Tensor
    tokens: Tensor

    def hits(self, lag: int = 0) -> Tensor:
        """Float [R']: 1 where row r's choice is the token after r + ``lag``; rows past an end left out."""
        places = self.rows + 1 + lag
        inside = (places >= 0) & (places < len(self.tokens))
        return (self.choices[inside] == self.tokens[places[inside]]).float()

    def share(self, lag: int = 0) -> float:
        """Mean of `hits`, 0 where no row is left."""
        hits = self.hits(lag)
        return float(hits.mean()) if len(hits) else 0.0

    @property
    def best_lag(self) -> int:
        """The lag at which most choices are right; of equals the smallest."""
        return max(sorted(range(-LAGS, LAGS + 1), key=abs), key=self.share)


@dataclass
class Lens:
    """Rows of many samples that go through the target's head together: it is read once a form.

    Attributes:
        by_sample: what came out, sample by sample.
        lag: the lag of the whole recording.
    """

    by_sample: dict[str, Pick] = field(default_factory=dict)
    lag: int = 0
    _rows: dict[str, Tensor] = field(default_factory=dict)
    _states: list[Tensor] = field(default_factory=list)
    _tokens: dict[str, Tensor] = field(default_factory=dict)

    def collect(self, sample: Sample, target: Target, most: int) -> None:
        """Keeps the rows of ``sample`` that are looked at: reply rows whose next token's row is held, spread evenly."""
        last = sample.final if sample.final is not None else sample.states.get(target.layers)
        if last is None:
            return
        rows = torch.nonzero(sample.loss_mask.bool())[:, 0]
        rows = rows[(rows > 0) & target.holds(sample.input_ids[rows])] - 1
        if not len(rows):
            return
        if len(rows) > most:
            rows = rows[torch.linspace(0, len(rows) - 1, most).round().long()]
        self._rows[sample.name] = rows
        self._tokens[sample.name] = sample.input_ids
        self._states.append(last[rows].clone())

    @property
    def empty(self) -> bool:
        """Whether no row was kept."""
        return not self._states

    def read(self, target: Target) -> tuple[dict[int, tuple[int, int]], tuple[int, int]]:
        """Puts the rows through norm and head: the form on a part of them, then all in the best form.

        Returns:
            norms applied → (hits, rows), and the same with the norm's weight read the other way; at the common lag.
        """
        states = torch.cat(self._states)  # [R, Ht]
        self._states = []
        probe = torch.linspace(0, len(states) - 1, min(PROBE, len(states))).round().long()
        forms = {norms: target.lens(states[probe], norms) for norms in (0, 1, 2)}
        forms[-1] = target.lens(_other_norm(states[probe], target), 0)
        tried = {form: self._split(choices, probe) for form, choices in forms.items()}
        lags = {form: _common_lag(picks) for form, picks in tried.items()}
        best = max(tried, key=lambda form: (_share(tried[form], lags[form]), form == 1))
        self.lag = lags[best]
        if len(probe) < len(states):
            every = _other_norm(states, target) if best < 0 else states
            self.by_sample = self._split(target.lens(every, max(best, 0)), torch.arange(len(states)))
        else:
            self.by_sample = tried[best]
        counts = {form: _count(picks, self.lag) for form, picks in tried.items()}
        return {form: counts[form] for form in (0, 1, 2)}, counts[-1]

    def _split(self, choices: Tensor, chosen: Tensor) -> dict[str, Pick]:
        """Choices for rows ``chosen`` of all rows, by sample."""
        out, start = {}, 0
        for name, rows in self._rows.items():
            here = (chosen >= start) & (chosen < start + len(rows))
            if bool(here.any()):
                out[name] = Pick(rows[chosen[here] - start], choices[here], self._tokens[name])
            start += len(rows)
        return out


def _other_norm(states: Tensor, target: Target) -> Tensor:
    """States normed once with the weight read the other way: 1 + w for w, w for 1 + w (Gemma's and Qwen3-Next's)."""
    weight = target.norm_weight.float()
    stored, bare = target.tables.norm()
    other = stored.float() if bare and not torch.equal(weight, stored.float()) else weight + 1
    return rms_norm(states.float(), other, target.eps)


def _count(picks: dict[str, Pick], lag: int) -> tuple[int, int]:
    hits = [pick.hits(lag) for pick in picks.values()]
    return int(sum(float(h.sum()) for h in hits)), sum(len(h) for h in hits)


def _share(picks: dict[str, Pick], lag: int) -> float:
    hits, n = _count(picks, lag)
    return hits / n if n else 0.0


def _common_lag(picks: dict[str, Pick]) -> int:
    return max(sorted(range(-LAGS, LAGS + 1), key=abs), key=lambda lag: _share(picks, lag))
