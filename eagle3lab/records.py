"""The plain records that cross floors: architectures, samples, counts, engine reports, findings."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3lab.reading import Reading


class Severity(enum.StrEnum):
    """How bad a finding is, worst first (design order; ``worst`` relies on it)."""

    FAIL = "FAIL"
    WARN = "WARN"
    LIMIT = "LIMIT"
    BLOCKED = "BLOCKED"
    UNSUPPORTED = "UNSUPPORTED"
    UNDETERMINED = "UNDETERMINED"
    NOT_COMPARABLE = "NOT COMPARABLE"
    INFO = "INFO"
    PASS = "PASS"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True)
class Finding:
    """One checked statement.

    Attributes:
        code: stable, e.g. ``V003``; documented in ``docs/checks.md``.
        severity: see `Severity`.
        title: one sentence a colleague can act on.
        where: file and tensor or key.
        measured: what was found, numbers included.
        expected: what would be right.
        evidence: how it was measured, with its n.
        remedy: which key in which file to change, or what to rerun; empty when nothing is wrong.
    """

    code: str
    severity: Severity
    title: str
    where: str = ""
    measured: str = ""
    expected: str = ""
    evidence: str = ""
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain strings, in the order of ``check --json``."""
        return {**asdict(self), "severity": str(self.severity)}


def worst(findings: list[Finding]) -> Severity:
    """The worst severity of ``findings``, PASS when there are none."""
    return min((f.severity for f in findings), key=lambda s: s.rank, default=Severity.PASS)


def by_severity(findings: list[Finding]) -> list[Finding]:
    """``findings``, worst first, otherwise in their own order."""
    return sorted(findings, key=lambda f: f.severity.rank)


@dataclass(frozen=True)
class TensorInfo:
    """What a file's header says of one tensor: nothing is loaded.

    ``dtype`` is the file's own word (``BF16``, ``F32``, ``I64``, ``BOOL`` …), ``nbytes`` its size there.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: str


@dataclass(frozen=True)
class Architecture:
    """The draft's dimensions, solved from its tensors, and the config as found.

    Attributes:
        hidden: H, width of the draft (rows of ``fc`` or of the final norm).
        target_hidden: Ht, width of one target state.
        aux: A, number of states that ``fc`` takes (1 when there is no ``fc``).
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: d, independent of H.
        layers: number of decoder layers, counted from tensor names.
        intermediate: I, MLP width.
        draft_vocab: Vd, rows of ``lm_head``.
        vocab: V of the target.
        eps: RMSNorm epsilon.
        activation: the MLP's activation, ``silu`` in every known draft.
        config: the draft's own layer config, flat (speculators' nesting removed), otherwise as found.
        tensors: canonical names present in the checkpoint.
        program: the dialect that the files look like, e.g. ``specforge``.
    """

    hidden: int
    target_hidden: int
    aux: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    intermediate: int
    draft_vocab: int
    vocab: int
    eps: float
    activation: str
    config: Mapping[str, Any]
    tensors: frozenset[str]
    program: str


@dataclass(frozen=True)
class Interpretation:
    """How one program would run a checkpoint: the Reading, and what it does in silence.

    Attributes:
        program: engine or trainer, with version and runner where they matter.
        reading: None when the program would refuse or crash (``refused`` says why).
        ids: the layer ids in the program's own words, as configured or defaulted.
        source: where the ids came from (config key, default, run).
        dropped: tensors of the file it does not use.
        replaced: what it overwrites, in words.
        invented: what it makes up, in words.
        refused: why it would not run, in words.
        notes: other conventions the user should know, "by reading" where nobody ran it.
        conventions: the reading that it would have with other layer ids, where these alone are refused; its ``aux``
            says nothing.
        unknown: why the run's engine cannot be read at all, in words; ``""`` where it is known.
        guess: whether the reading merely stands in for that of an engine that is not known.
    """

    program: str
    reading: Reading | None
    ids: tuple[int, ...] = ()
    source: str = ""
    dropped: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    conventions: Reading | None = None
    unknown: str = ""
    guess: bool = False

    @property
    def unread(self) -> str:
        """Why there is no reading, in words."""
        return "; ".join(self.refused) or self.source


@dataclass(frozen=True)
class Distribution:
    """Recorded probabilities of the target, for writers that keep them instead of a final state.

    Attributes:
        probs: [R, k], row j for position ``first`` + j: the target's distribution of the token after that position.
        tokens: int [k], or [R, k] where each row lists its own: target token ids of the columns.
        first: position of row 0.
        covered: bool [R]: rows that training supervised and whose target choice lies in the draft vocabulary; None when
            not recorded.
    """

    probs: Tensor
    tokens: Tensor
    first: int = 0
    covered: Tensor | None = None


@dataclass
class Sample:
    """One recorded conversation.

    Attributes:
        name: file stem, unique within the case.
        path: the file, relative to the case.
        input_ids: int64 [T].
        loss_mask: uint8 [T], unshifted, 1 on reply tokens.
        states: boundary k → [T, Ht] in the dtype recorded.
        final: the final state [T, Ht] where the dump holds one apart from the boundaries, else None.
        final_norm: ``"pre"`` or ``"post"`` the target's final norm, as the file claims, else ``"none"``.
        last: L, the boundary that is the last residual, when known.
        origin: free text about where it came from.
        unused: keys of the file that the format does not know.
        writer: kind of file it was read from (`FileKind.name`), ``lab`` for the lab's own.
        notes: what was done to it on reading, or must be known about it.
        assumed: what the file does not say and the writer's default decided.
        distribution: the target's recorded probabilities, None for almost all writers.
    """

    name: str
    path: str
    input_ids: Tensor
    loss_mask: Tensor
    states: dict[int, Tensor]
    final: Tensor | None = None
    final_norm: str = "none"
    last: int | None = None
    origin: str = ""
    unused: tuple[str, ...] = ()
    writer: str = "lab"
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    distribution: Distribution | None = None

    @property
    def length(self) -> int:
        """T."""
        return int(self.input_ids.shape[0])

    @property
    def width(self) -> int:
        """Ht."""
        return int(next(iter(self.states.values())).shape[1])

    @property
    def finite(self) -> bool:
        """Whether no state holds NaN or infinities; every state is read."""
        return all(bool(state.isfinite().all()) for state in self.states.values())

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The recorded boundaries, ascending."""
        return tuple(sorted(self.states))

    def at(self, positions: slice | Tensor, rows: slice | Tensor | None = None) -> Sample:
        """Some of its positions, views where they are a slice; states by ``rows`` where these are other ones."""
        rows = positions if rows is None else rows
        return replace(
            self,
            input_ids=self.input_ids[positions],
            loss_mask=self.loss_mask[positions],
            states={k: state[rows] for k, state in self.states.items()},
            final=None if self.final is None else self.final[rows],
        )

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Reply spans [a, b) of ``loss_mask``, in order."""
        return spans_of(self.loss_mask)


def spans_of(loss_mask: Tensor) -> list[tuple[int, int]]:
    """Spans [a, b) of a mask [T] that are not 0, in order."""
    mask = [0, *(int(bool(m)) for m in loss_mask.tolist()), 0]
    edges = [i for i in range(1, len(mask)) if mask[i] != mask[i - 1]]
    return [(a - 1, b - 1) for a, b in zip(edges[::2], edges[1::2], strict=True)]


@dataclass(frozen=True)
class Interval:
    """A number with its interval and how that was made."""

    value: float
    low: float
    high: float
    n: int
    method: str = ""
