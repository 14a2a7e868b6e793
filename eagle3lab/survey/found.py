"""What one pass over the recording leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from eagle3lab.recordings.rows import Copies
from eagle3lab.stats import Level
from eagle3lab.survey.alignment import Lens


@dataclass(frozen=True)
class Span:
    """One reply span [a, b) of a sample's loss mask, with the tokens at its edges.

    Attributes:
        sample: its sample.
        start: a.
        end: b.
        length: T.
        first: the first tokens of it, at most `EDGE`.
        last: the last ones.
        following: the token after it, -1 at the text's end.
        padded: how many equal tokens end it, the last one counted.
    """

    sample: str
    start: int
    end: int
    length: int
    first: tuple[int, ...]
    last: tuple[int, ...]
    following: int
    padded: int


@dataclass(frozen=True)
class Odd:
    """A boundary of one sample that does not belong to the rows of the others.

    Attributes:
        kind: ``late``, ``foreign``, ``increment``, ``end`` or ``span``.
        lag: rows by which it is late (negative: early).
        beside: the boundaries that it was compared with.
        shared: for a late one the cosine with them at that lag, else what they share without it (mean row taken out).
        here: the most that it shares with them side by side.
        rows: first and last row of a span in which something stands that its neighbours do not hold; there ``shared``
            is the cosine of the increments before and after it, ``here`` the same outside.
    """

    kind: str
    lag: int
    beside: tuple[int, ...]
    shared: float
    here: float = 0.0
    rows: tuple[int, int] = (0, 0)


EDGE = 4
"""Tokens of a span that are kept from each end."""


@dataclass
class Survey:
    """One pass over the samples, kept as small numbers for checks, tables and plots.

    Attributes:
        unreadable: name → error text.
        partial: unreadable sample → what its rows, fewer than its tokens, are by evidence.
        bad_rows: (sample, boundary) → (NaN rows, infinite rows, zero rows).
        copies: (sample, boundary) → rows that are copies of earlier ones.
        sizes: (sample, boundary) → RMS of rows that were all brought to one, and its spread.
        saturated: (sample, boundary) → rows that hold float16's largest number.
        largest: boundary → largest finite magnitude.
        rms: (sample, boundary) → float32 [T].
        cosines: boundary pair → mean cosine over all rows but the first of each sample.
        centred: (sample, boundary pair) → mean cosine of rows after the mean row was taken out: what these rows
            share beyond what all rows do.
        steps: (sample, boundary pair) → the strongest step of that cosine along the sample.
        apart: (sample, boundary pair) → (rows by which the second has to be moved, the centred cosine then).
        odd: (sample, boundary) → why this one boundary is not of the same rows as the others.
        short: samples with too few rows to compare boundaries.
        blocks: (sample, boundary) → number of equal column blocks.
        embedding_error: sample → largest difference of boundary 0 from the embedding rows, relative to their RMS,
            at the sample's own lag.
        embedding_lag: sample → rows by which boundary 0 is late (negative: early).
        embedding_step: sample → the step where boundary 0 stops, or starts, to be these tokens' embedding.
        lens: norms applied (0, 1, 2) → (hits, rows) on reply tokens, at the recording's own lag.
        lens_other: the same with one norm whose weight is read the other way (1 + w for w, w for 1 + w).
        lens_boundary: the boundary the lens was put on, None when there is none.
        picks: the target's greedy choice after single rows, by sample; None without a last state or a target.
        same: pairs of boundaries that are bitwise equal in some sample.
        masks: sample → (reply tokens, tokens).
        spans: every reply span.
        repeats: sample → tokens at its start that are repeated right after.
        widths: sample → Ht.
        held: sample → its boundaries.
        nbytes: sample → bytes of its states.
        unused: sample → keys of its file that the format does not know.
        writers: sample → kind of its file.
        notes: what was done on reading, or must be known → the samples it is true of.
        assumed: what a writer's default decided → the samples.
        tokens: hash of a sample's tokens → the samples that hold them.
        replies: hash of a reply's tokens (eight or more) → the samples that hold it.
        edges: of each reply span, the tokens at a-2, a-1, a, b-1 and b; -1 outside the text.
        blocked: finding code → why its question could not be put to some sample.
    """

    unreadable: dict[str, str] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)
    bad_rows: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    copies: dict[tuple[str, int], list[Copies]] = field(default_factory=dict)
    sizes: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    saturated: dict[tuple[str, int], int] = field(default_factory=dict)
    largest: dict[int, float] = field(default_factory=dict)
    rms: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    cosines: dict[tuple[int, int], float] = field(default_factory=dict)
    centred: dict[tuple[str, tuple[int, int]], float] = field(default_factory=dict)
    steps: dict[tuple[str, tuple[int, int]], Level] = field(default_factory=dict)
    apart: dict[tuple[str, tuple[int, int]], tuple[int, float]] = field(default_factory=dict)
    odd: dict[tuple[str, int], Odd] = field(default_factory=dict)
    short: list[str] = field(default_factory=list)
    blocks: dict[tuple[str, int], int] = field(default_factory=dict)
    embedding_error: dict[str, float] = field(default_factory=dict)
    embedding_lag: dict[str, int] = field(default_factory=dict)
    embedding_step: dict[str, Level] = field(default_factory=dict)
    lens: dict[int, tuple[int, int]] = field(default_factory=dict)
    lens_other: tuple[int, int] = (0, 0)
    lens_boundary: int | None = None
    picks: Lens | None = None
    same: set[tuple[int, int]] = field(default_factory=set)
    masks: dict[str, tuple[int, int]] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    repeats: dict[str, int] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    held: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    unused: dict[str, tuple[str, ...]] = field(default_factory=dict)
    writers: dict[str, str] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    assumed: dict[str, list[str]] = field(default_factory=dict)
    tokens: dict[str, list[str]] = field(default_factory=dict)
    replies: dict[str, list[str]] = field(default_factory=dict)
    edges: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    blocked: dict[str, str] = field(default_factory=dict)
