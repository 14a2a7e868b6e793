"""Acceptance as counts, and what engines report in the same terms."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Counts:
    """Acceptance counts of a greedy chain of K drafts; they add up over samples, rates come later.

    Attributes:
        steps: K.
        scored: rows scored at each step (design section 6), K numbers.
        correct: of those, draft token equal to the recorded one; out-of-vocabulary targets are misses.
        covered: of those, recorded token inside the draft vocab.
        joint: of those, right at this and every earlier step.
        rounds: verify rounds of the engine's walk.
        accepted: drafts accepted in them.
        per_position: rounds in which at least j+1 drafts were accepted, K numbers.
        histogram: rounds by number accepted, K+1 numbers.
    """

    steps: int
    scored: tuple[int, ...]
    correct: tuple[int, ...]
    covered: tuple[int, ...]
    joint: tuple[int, ...]
    rounds: int
    accepted: int
    per_position: tuple[int, ...]
    histogram: tuple[int, ...]

    @classmethod
    def zero(cls, steps: int) -> Counts:
        """Counts of nothing, the neutral element of ``+``."""
        none = (0,) * steps
        return cls(steps, none, none, none, none, 0, 0, none, (0,) * (steps + 1))

    def __add__(self, other: Counts) -> Counts:
        """Counts of both; K must agree."""
        if self.steps != other.steps:
            raise ValueError(f"counts of {self.steps} and of {other.steps} steps do not add up")
        return Counts(
            steps=self.steps,
            scored=_sum(self.scored, other.scored),
            correct=_sum(self.correct, other.correct),
            covered=_sum(self.covered, other.covered),
            joint=_sum(self.joint, other.joint),
            rounds=self.rounds + other.rounds,
            accepted=self.accepted + other.accepted,
            per_position=_sum(self.per_position, other.per_position),
            histogram=_sum(self.histogram, other.histogram),
        )

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Marginal accuracy per step over the scored rows (NaN where none)."""
        return _rates(self.correct, self.scored)

    @property
    def cumulative(self) -> tuple[float, ...]:
        """Per-position acceptance over the walk's rounds, as vLLM prints it: cumulative."""
        return _rates(self.per_position, (self.rounds,) * self.steps)

    @property
    def conditional(self) -> tuple[float, ...]:
        """Per-position acceptance given that the position before was accepted."""
        return _rates(self.per_position, (self.rounds, *self.per_position[:-1]))

    @property
    def accept_length(self) -> float:
        """Tokens a round, bonus token included: 1 + accepted / rounds (NaN without rounds)."""
        return 1 + self.accepted / self.rounds if self.rounds else float("nan")


def _sum(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _rates(hits: tuple[int, ...], of: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(h / n if n else float("nan") for h, n in zip(hits, of, strict=True))


class Flaw(enum.StrEnum):
    """What is wrong with an engine's file as evidence."""

    SIMULATED = "simulated"
    FOREIGN = "of another engine"
    SILENT = "without a speculative line"
    SERVERS = "of several servers"
    CHANGES = "with K changing"
    CUT = "cut"
    NAN = "not a number"
    SETTINGS = "off by one"
    DISAGREES = "contradicting itself"


@dataclass(frozen=True)
class RequestReport:
    """What the engine said of one request.

    Attributes:
        prompt_ids: the prompt's tokens, empty when the engine did not give them.
        token_ids: the reply's tokens, likewise.
        accepted: drafts accepted at each verify step.
        drafted: drafts offered at each verify step.
        finish: the engine's finish reason.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    accepted: tuple[int, ...]
    drafted: tuple[int, ...]
    finish: str = ""


@dataclass(frozen=True)
class EngineReport:
    """What an engine reported of one serving run, as counts, and which file said so.

    Attributes:
        engine: ``vllm``, ``sglang`` …
        source: the kind of evidence used, best first: ``counters``, ``responses``, ``log``.
        files: the files read, relative to the case.
        steps: K, drafts a round, None when not said.
        drafts: verify rounds that had at least one draft.
        drafted: draft tokens offered.
        accepted: draft tokens accepted.
        per_position: accepted counts per position (cumulative), empty when not said.
        requests: per-request reports, empty when not said.
        ids: aux layer ids the engine says it captured, in its own numbering.
        version: the engine's version as it says it.
        throughput: generation tokens/s as printed by the engine (busy intervals), empty when not said.
        notes: what the numbers leave out, in words.
        reported_length: the engine's own printed mean accept length, bonus included, where it gave no counts.
        output: tokens that came out of the requests, None when not said.
        answered: requests that they came out of, None when not said; the prefill of each gives one token.
        lengths: each request's own accept length, bonus included, empty when not said.
        mean_of_means: the plain mean over requests that the file itself gives, None when it gives none.
        flaws: what is wrong with the files as evidence, each with its sentence.
        remarks: what they say of the engine's settings and weights, which no number leaves out.
    """

    engine: str
    source: str
    files: tuple[str, ...]
    steps: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    per_position: tuple[int, ...] = ()
    requests: tuple[RequestReport, ...] = ()
    ids: tuple[int, ...] = ()
    version: str = ""
    throughput: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    reported_length: float | None = None
    output: int | None = None
    answered: int | None = None
    lengths: tuple[float, ...] = ()
    mean_of_means: float | None = None
    flaws: tuple[tuple[Flaw, str], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def accept_length(self) -> float | None:
        """1 + accepted / drafts, the lab's definition, or None when the engine gave no counts."""
        return 1 + self.accepted / self.drafts if self.drafts and self.accepted is not None else None

    @property
    def cumulative(self) -> tuple[float, ...]:
        """Per-position acceptance, cumulative, or () when not said."""
        return tuple(n / self.drafts for n in self.per_position) if self.drafts else ()

    @property
    def conditional(self) -> tuple[float, ...]:
        """Per-position acceptance given that the position before was accepted, or () when not said."""
        if not self.drafts or not self.per_position:
            return ()
        return _rates(self.per_position, (self.drafts, *self.per_position[:-1]))


@dataclass(frozen=True)
class ServingRun:
    """One ``[[serving]]`` table of the case: which engine ran the draft, how, and what it left behind.

    Attributes:
        name: how the user calls the run.
        engine: ``vllm``, ``sglang`` …; ``""`` when not said.
        version: as the user wrote it, e.g. ``0.32.0``; ``""`` for the newest the lab knows.
        runner: vLLM's model runner, ``v1`` or ``v2``; ``""`` when not said.
        aux_ids: layer ids in the engine's own numbering; None as the draft's config says.
        steps: K, drafts a round (SGLang: ``--speculative-num-steps``); 0 for a run without speculation.
        topk: SGLang's ``--speculative-eagle-topk``; 1 is a chain.
        draft_tokens: SGLang's ``--speculative-num-draft-tokens`` (root included).
        log: the server's log, relative to the case.
        metrics: Prometheus texts, before and after, relative to the case.
        responses: JSON lines of responses, relative to the case.
        seconds: wall time of the run, None when unknown.
        tokens: tokens generated in it, None when unknown.
        dump: states the engine recorded: ``{"path": …, "boundaries": […]}``, empty when none.
        temperature: at which the run sampled; 0 is greedy, and taken where nothing is said.
    """

    name: str
    engine: str = ""
    version: str = ""
    runner: str = ""
    aux_ids: tuple[int, ...] | None = None
    steps: int | None = None
    topk: int = 1
    draft_tokens: int | None = None
    log: str | None = None
    metrics: tuple[str, ...] = ()
    responses: str | None = None
    seconds: float | None = None
    tokens: int | None = None
    dump: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 0.0

    @property
    def speculative(self) -> bool:
        """False for a baseline without speculation."""
        return self.steps != 0
