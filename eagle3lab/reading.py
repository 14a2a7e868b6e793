"""The Reading: every convention it takes to run a draft, as one comparable value."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

FINAL = "final"
"""The one aux source that is not a boundary: the target's post-norm final state."""

Aux = tuple[int | str, ...]

CHOICES: dict[str, tuple[str, ...]] = {
    "aux_norm": ("none", "input_norm", "fc_norm"),
    "fc": ("applied", "skipped"),
    "residual": ("pre_norm", "post_norm"),
    "feedback": ("pre_norm", "post_norm"),
    "head_norm": ("applied", "skipped"),
    "second_norm": ("hidden_norm", "input_layernorm"),
    "embedding": ("own", "target"),
    "head": ("own", "target"),
    "vocab_map": ("offsets", "ids", "identity", "t2d"),
    "dtype": ("float32", "bfloat16", "float16"),
}
"""The words each choice field may hold."""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding as a program computes it.

    Attributes:
        base: theta.
        scaling: sorted (key, value) pairs of the scaling dict, ``()`` for none; ``rope_type`` names the kind.
        rule: whose rule turns ``scaling`` into frequencies: ``hf`` (transformers, which vLLM and SGLang match)
            or ``specforge`` (dynamic always scales; yarn's mscale ratio).
        layout: ``half`` (rotate halves, every known draft) or ``interleaved`` (GGUF's stored order).
        partial: share of head_dim that is rotated.
        limit: max_position_embeddings; rows past it are reported, never wrapped.
    """

    base: float = 10000.0
    scaling: tuple[tuple[str, Any], ...] = ()
    rule: str = "hf"
    layout: str = "half"
    partial: float = 1.0
    limit: int | None = None


@dataclass(frozen=True)
class Reading:
    """Every convention it takes to run a draft; frozen, hashable, printable as a diff.

    Attributes:
        aux: boundaries fed to ``fc``, in concatenation order; ``("final",)`` for the post-norm final state.
        aux_norm: ``none``, ``input_norm`` (one RMSNorm over the concatenation) or ``fc_norm`` (one a state).
        fc: ``applied`` or ``skipped`` (the single state goes straight in).
        residual: the layer's residual is taken ``pre_norm`` or ``post_norm`` (of ``hidden_norm``).
        feedback: state handed to the next draft step, before (``pre_norm``) or after the final norm.
        head_norm: final norm before ``lm_head``: ``applied`` or ``skipped``.
        second_norm: the norm that feeds attention in layers after the first (of no account with one layer).
        embedding: the draft's ``own`` table or the ``target``'s.
        head: likewise for ``lm_head``.
        vocab_map: how ``d2t`` is read: ``offsets``, ``ids``, ``identity`` (not applied), or rebuilt from ``t2d``.
        rope: see `Rope`.
        dropped: tensors of the file that the program does not use (t2d apart, which no program uses to draft).
        shift: the row of position t joins the token at t + shift (1 in every sound dump).
        window: sliding attention window in tokens, None for full attention.
        logit_scale: factor on the draft's logits.
        dtype: dtype of the arithmetic.
    """

    aux: Aux
    aux_norm: str = "none"
    fc: str = "applied"
    residual: str = "pre_norm"
    feedback: str = "pre_norm"
    head_norm: str = "applied"
    second_norm: str = "hidden_norm"
    embedding: str = "target"
    head: str = "own"
    vocab_map: str = "offsets"
    rope: Rope = Rope()
    dropped: tuple[str, ...] = ()
    shift: int = 1
    window: int | None = None
    logit_scale: float = 1.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        """Refuse a word that no program means."""
        faults = [
            f"{name}={getattr(self, name)!r} (one of {', '.join(choices)})"
            for name, choices in CHOICES.items()
            if getattr(self, name) not in choices
        ]
        rope = self.rope
        faults += [
            f"{name}={value!r} ({words})"
            for name, value, fits, words in (
                ("shift", self.shift, _is_count(self.shift), "a whole number, 1 in every sound dump"),
                ("window", self.window, self.window is None or (_is_count(self.window) and self.window), "tokens"),
                ("logit_scale", self.logit_scale, _is_positive(self.logit_scale), "a number above 0"),
                ("rope.base", rope.base, _is_positive(rope.base), "a number above 0"),
                ("rope.partial", rope.partial, _is_positive(rope.partial) and rope.partial <= 1, "at most 1"),
                ("rope.limit", rope.limit, rope.limit is None or _is_count(rope.limit), "positions, or none"),
                ("dropped", self.dropped, isinstance(self.dropped, tuple), "a list of tensor names"),
                ("rope.layout", rope.layout, rope.layout in ("half", "interleaved"), "half or interleaved"),
                ("rope.rule", rope.rule, rope.rule in ("hf", "specforge"), "hf or specforge"),
            )
            if not fits
        ]
        bad = [k for k in self.aux if not (k == FINAL or _is_count(k))]
        if bad or not self.aux or not isinstance(self.aux, tuple):
            faults.append(f"aux={self.aux!r} (boundaries ≥ 0, or '{FINAL}')")
        if faults:
            raise ValueError("reading: " + "; ".join(faults))

    def replace(self, **changes: Any) -> Reading:
        """A copy with ``changes``."""
        return dataclasses.replace(self, **changes)

    def diff(self, other: Reading) -> dict[str, tuple[Any, Any]]:
        """Fields on which the two differ: name → (mine, other's); ``rope`` is taken apart."""
        mine, theirs = dict(self._flat()), dict(other._flat())
        return {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}

    def _flat(self) -> Iterator[tuple[str, Any]]:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Rope):
                yield from ((f"rope.{part.name}", getattr(value, part.name)) for part in fields(value))
            else:
                yield f.name, value

    def words(self, other: Reading) -> str:
        """The diff as one line for people, ``""`` when there is none."""
        return "; ".join(f"{key}: {show(a)} → {show(b)}" for key, (a, b) in self.diff(other).items())

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields; tuples become lists, rope scaling a dict."""
        plain = dataclasses.asdict(self)
        plain["rope"]["scaling"] = dict(self.rope.scaling)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Reading:
        """The reading that `to_dict` wrote.

        Raises:
            ValueError: naming each unknown field.
        """
        if not isinstance(plain, dict) or not isinstance(plain.get("rope") or {}, dict):
            raise ValueError("reading: expected an object with its fields, rope an object too")
        known = {f.name for f in fields(cls)}
        rope = dict(plain.get("rope") or {})
        unknown = sorted(set(plain) - known) + sorted(f"rope.{k}" for k in set(rope) - {f.name for f in fields(Rope)})
        if unknown:
            raise ValueError(f"reading: unknown fields {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        if "aux" not in plain:
            raise ValueError("reading: field 'aux' is missing; give the boundaries, e.g. [0, 15, 27]")
        scaling = rope.get("scaling") or {}
        if not isinstance(scaling, dict):
            raise ValueError(f"reading: rope.scaling={scaling!r}, expected an object")
        rope["scaling"] = tuple(sorted((key, tuple(v) if isinstance(v, list) else v) for key, v in scaling.items()))
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in plain.items() if key != "rope"
        }
        return cls(**values, rope=Rope(**rope))

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(self.to_dict(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Reading:
        """The reading that `to_json` wrote."""
        return cls.from_dict(json.loads(text))

    def __str__(self) -> str:
        """The boundaries, then whatever differs from the plainest EAGLE-3 reading."""
        quiet = ("rope.limit", "rope.rule", "dropped")
        rest = [f"{k} {show(mine)}" for k, (mine, _) in self.diff(Reading(aux=self.aux)).items() if k not in quiet]
        return ", ".join([f"aux {show(self.aux)}", *rest])


def show(value: Any) -> str:
    """A field's value as a person writes it: ``(0, 15, 27)``, ``10000``."""
    if isinstance(value, tuple):
        return "(" + ", ".join(show(v) for v in value) + ")"
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return "none" if value is None else str(value)
