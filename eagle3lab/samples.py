"""Recorded samples: a folder, a file or a glob, listed without opening, read one by one in whatever form they have."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from eagle3lab.dialects.recorded import reader_of, unusable
from eagle3lab.errors import BadFile, Blocked, LabError
from eagle3lab.listing import list_samples, suffix_of
from eagle3lab.reading import Aux
from eagle3lab.recordings import Content, Known
from eagle3lab.recordings.checked import to_sample
from eagle3lab.recordings.rows import before_copies, copied, normed, sizes
from eagle3lab.records import Sample

MOST_READ = 64
"""Samples that the headline numbers read; of a larger folder an even spread, and the findings say so."""

CHUNK = 4096
"""Rows looked at at once."""


@dataclass(frozen=True)
class Flaws:
    """What of one sample no number may stand on.

    Attributes:
        held: its boundaries.
        kept: rows before a padded tail, T where there is none.
        by_boundary: boundary → the finding that condemns it, S002, S007, S018 or S026.
    """

    held: frozenset[int]
    kept: int
    by_boundary: dict[int, str]


class Samples(Mapping[str, Sample]):
    """The samples of a case, by name; each is read (mapped) when asked for.

    Args:
        path: folder, file or glob.
        root: folder that paths are shown relative to.
        exclude: glob patterns of names left out of the headline (still readable by name).
        known: what is known from outside the files.

    Attributes:
        listing: what the path holds; nothing of it opened.
        headline: names that the headline numbers use, in natural order.
        looked_at: the headline and as many of the others: what is read when all should be looked at.
        left_out: how many more the headline would have without its bound.
    """

    def __init__(self, path: Path, root: Path, exclude: Sequence[str] = (), known: Known | None = None):
        self.path, self.root, self.known = path, root, known or Known()
        self._opened: tuple[Path, Content] | None = None
        self.listing = list_samples(path, self._count)
        named = [n for n in self.listing.entries if not any(fnmatch.fnmatch(n, pattern) for pattern in exclude)]
        self.headline = spread(named, MOST_READ)
        self.left_out = len(named) - len(self.headline)
        headline = set(named)
        others = spread([n for n in self.listing.entries if n not in headline], MOST_READ)
        looked_at = {*self.headline, *others}
        self.looked_at = [n for n in self.listing.entries if n in looked_at]

    def __getitem__(self, name: str) -> Sample:
        """Sample ``name``.

        Raises:
            BadFile: no such sample, or its file is faulty; all faults together.
        """
        if name not in self.listing.entries:
            names = list(self.listing.entries)
            known = ", ".join(names[:20]) + (f" … ({len(names)} in all)" if len(names) > 20 else "")
            raise BadFile(self.path, f"no sample {name!r}; found {known}")
        entry = self.listing.entries[name]
        return read(self._content(entry.file), self.root, self.known, name, entry.index)

    def tokens(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids int64 [T] and loss mask uint8 [T] (all 1 where none is recorded); nothing is asked of the states.

        Raises:
            BadFile: its file cannot be read, or holds no token ids.
        """
        entry = self.listing.entries[name]
        content = self._content(entry.file)
        reader = reader_of(content)
        found = reader.read(content, entry.index, self.known) if reader else None
        ids, mask = (found.input_ids, found.loss_mask) if found else (None, None)
        if not isinstance(ids, torch.Tensor) or ids.ndim != 1 or not len(ids) or ids.is_floating_point():
            raise BadFile(entry.file, "holds no token ids [T] that a reader knows (docs/formats.md)")
        if not isinstance(mask, torch.Tensor) or mask.shape != ids.shape:
            mask = torch.ones(len(ids))
        return ids.long(), mask.ne(0).to(torch.uint8)

    def __contains__(self, name: object) -> bool:
        """Whether there is a file of that name, sound or not."""
        return name in self.listing.entries

    def __iter__(self) -> Iterator[str]:
        """Names in natural order."""
        return iter(self.listing.entries)

    def __len__(self) -> int:
        """Number of samples, excluded ones counted."""
        return len(self.listing.entries)

    def readable(self, name: str) -> Sample | None:
        """The sample, None when its file is faulty: the samples' own check says why."""
        try:
            return self[name]
        except LabError:
            return None

    def searchable(self, width: int, wanted: set[int]) -> list[Sample]:
        """The headline samples that a search can use: one that differs would stop it, or mislead it, for all.

        Args:
            width: Ht that the draft takes; S008 names the samples of another.
            wanted: boundaries as configured; S010 names the samples without them, S002 those with NaN.

        Returns:
            samples without the boundaries that are `condemned`, and without a padded tail's rows.
        """
        wanted = wanted - set(self.condemned)
        samples = []
        for name, flaws in self._flaws.items():
            sample = self.readable(name)
            if sample is not None and not set(flaws.by_boundary) - set(self.condemned):
                samples.append(_without(sample, flaws.kept, set(self.condemned)))
        samples = [s for s in samples if s.states]
        fitting = [s for s in samples if s.width == width] or samples
        return [s for s in fitting if wanted <= set(s.states)] or fitting

    @cached_property
    def condemned(self) -> dict[int, str]:
        """Boundaries that most headline samples hold unsound → the finding that says so, see `flaws`.

        A boundary that is unsound in a few samples only costs these samples, see `searchable`.
        """
        out: dict[int, str] = {}
        held = [f.held for f in self._flaws.values()]
        for b in sorted(frozenset().union(*held)):
            codes = [f.by_boundary[b] for f in self._flaws.values() if b in f.by_boundary]
            if 2 * len(codes) > sum(b in mine for mine in held):
                out[b] = max(codes, key=codes.count)
        return out

    @cached_property
    def _flaws(self) -> dict[str, Flaws]:
        """The readable headline samples; all their states are read."""
        return {s.name: flaws(s) for s in map(self.readable, self.headline) if s is not None}

    def file(self, name: str) -> Path:
        """The file of sample ``name``."""
        return self.listing.entries[name].file

    def _content(self, file: Path) -> Content:
        """The opened file; the last one stays open, since some hold many samples."""
        if self._opened is None or self._opened[0] != file:
            self._opened = (file, Content(file, self.known.access))
        return self._opened[1]

    def _count(self, file: Path) -> int | None:
        """How many samples a file holds, see `list_samples`."""
        if file.suffix == ".gz":
            return None
        try:
            content = self._content(file)
            reader = reader_of(content)
            return reader.count(content) if reader and reader.count else None if reader else 0
        except BadFile:
            return 0


def flaws(sample: Sample) -> Flaws:
    """What of ``sample`` is not finite, zero in more than one row, copies of other rows, another boundary, or normed.

    Zeros and copies of one row that end a text are cut off with their rows while half of it is left: only what comes
    before is judged.
    """
    bad: dict[int, str] = {}
    empty: dict[int, torch.Tensor] = {}
    for b, state in sample.states.items():
        largest = torch.cat([part.abs().amax(1) for part in state.split(CHUNK)])  # [T]; NaN stays NaN
        empty[b] = largest == 0
        if not bool(largest.isfinite().all()):
            bad[b] = "S002"
    kept = min((_before_tail(rows) for rows in empty.values()), default=sample.length)
    kept = kept if 2 * kept >= sample.length else sample.length
    bad |= {b: "S002" for b, rows in empty.items() if int(rows[:kept].sum()) > 1}
    lags = {b: copied(state, sample.input_ids, b) for b, state in sample.states.items() if b not in bad}
    told = min((before_copies(found, kept) for found in lags.values()), default=kept)
    kept = told if 2 * told >= sample.length else kept
    bad |= {b: "S018" for b, found in lags.items() if bool(found[:kept].any())}
    left = [b for b in sample.boundaries if b not in bad]
    twins = {b for b in left for c in left if b != c and _same(sample.states[b], sample.states[c])}
    if twins != set(sample.states):  # all of them the same: no wiring differs from another, and the search says so
        bad |= dict.fromkeys(twins, "S007")
    sound = [b for b in left if b > 0 and b not in bad]  # embedding rows are of nearly one size in some models
    bad |= {b: "S026" for b in sound if normed(sizes(sample.states[b], lags[b]))}
    return Flaws(frozenset(sample.states), kept, bad)


def _before_tail(empty: torch.Tensor) -> int:
    """Rows before the zeros that end a text; a single one of them can be legitimate."""
    told = torch.nonzero(~empty)
    kept = int(told[-1]) + 1 if len(told) else len(empty)
    return kept if len(empty) - kept > 1 else len(empty)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a[:4], b[:4]) and torch.equal(a, b)


def _without(sample: Sample, kept: int, condemned: set[int]) -> Sample:
    """The first ``kept`` positions, without condemned boundaries (views)."""
    states = {b: state for b, state in sample.states.items() if b not in condemned}
    return replace(sample, states=states).at(slice(kept))


def spread(names: Sequence[str], most: int) -> list[str]:
    """At most ``most`` of ``names``, evenly spread, first and last among them."""
    if len(names) <= most:
        return list(names)
    return [names[i * (len(names) - 1) // (most - 1)] for i in range(most)]


def read(content: Content, root: Path, known: Known, name: str, index: int = 0) -> Sample:
    """Sample ``index`` of an opened file, checked; states stay mapped.

    Raises:
        BadFile: no reader knows such a file, or every fault of it at once.
    """
    file, reader = content.file, reader_of(content)
    if reader is None:
        found = ", ".join(sorted(content.keys)[:12]) or f"a {type(content.value).__name__} without named values"
        kind = unusable(content) or "no known kind of recording"
        raise BadFile(file, f"holds {found}: {kind} (docs/formats.md lists all that can be read)")
    path = str(file.relative_to(root)) if file.is_relative_to(root) else file.name
    recording = reader.read(content, index, known)
    held = reader.count(content) if reader.count else 1
    if index == 0 and held > 1 and name == file.name.removesuffix(suffix_of(file.name)):
        recording.notes.append(f"its file holds {held} conversations and its neighbours one each: the first is read")
    return to_sample(recording, reader.kind, name, path, file, known)


def read_sample(file: Path, root: Path, known: Known | None = None) -> Sample:
    """The (first) sample of one file."""
    known = known or Known()
    return read(Content(file, known.access), root, known, file.stem)


def reply_rows(sample: Sample) -> torch.Tensor:
    """Rows scored at step 0, all reply spans: t = a-1 … b-3 for each span [a, b) (design section 6)."""
    rows = [torch.arange(max(a - 1, 0), b - 2) for a, b in sample.spans if b - 2 > max(a - 1, 0)]
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)


def check_scorable(sample: Sample, aux: Aux) -> None:
    """Refuses a sample without a row to score, or with NaN in a state: one such row makes garbage of all after it.

    Raises:
        Blocked: no reply of two tokens.
        BadFile: states that are not finite, with the first rows.
    """
    if not len(reply_rows(sample)):
        spans = ", ".join(f"[{a}, {b})" for a, b in sample.spans) or "none"
        raise Blocked(f"{sample.path}: no reply span has a row to score (spans: {spans}); a span needs two tokens")
    for boundary in aux:
        state = sample.states.get(boundary) if isinstance(boundary, int) else None
        if state is not None and not state.isfinite().all():
            rows = (~state.isfinite().all(1)).nonzero()[:, 0].tolist()
            raise BadFile(sample.path, f"h.{boundary} holds NaN or infinities in {len(rows)} rows (first: {rows[:3]})")
