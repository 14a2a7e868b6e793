"""A reading set by hand: every field with the values possible for this checkpoint, several at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from eagle3lab.case import Case
from eagle3lab.checks.served import canonical
from eagle3lab.neighbours import maps, optional_groups, variants
from eagle3lab.reading import CHOICES, FINAL, Aux, Reading, show
from eagle3lab.records import Sample

FIELDS = (
    "fc", "aux_norm", "residual", "feedback", "head_norm", "second_norm", "embedding", "head", "vocab_map", "shift",
    "window", "logit_scale", "dtype",
)  # fmt: skip
ROPE = ("base", "scaling", "layout", "partial")
DROPPED = "uses "

Values = dict[str, dict[str, Any]]
"""Control → what it shows → value; of fields with more than one possible value."""


def fields_of(case: Case, sample: Sample) -> Values:
    """Every slot of fc and every other field with its possible values, the fitted one first.

    Possible is what a program that the lab knows would read, what the search tries, and what the files hold.
    """
    fitted = case.fitted
    known = [fitted, *_known(case), *variants(case.model, fitted)]
    held = [*sample.boundaries]
    ends = [FINAL] if len(fitted.aux) == 1 and (sample.final is not None or sample.last in sample.states) else []
    out: Values = {f"slot_{i}": {show(b): b for b in [*held, *ends]} for i in range(len(fitted.aux))}
    for name in FIELDS:
        extra = CHOICES["dtype"] if name == "dtype" else maps(case.model) if name == "vocab_map" else ()
        values = [getattr(r, name) for r in known] + list(extra)
        out[name] = {show(v): v for v in values if _possible(case, name, v)}
    for name in ROPE:
        out[f"rope.{name}"] = _labelled((_rope_words(name, r), _rope_value(name, r)) for r in known)
    for kind in optional_groups(case.model):
        out[DROPPED + kind] = {"yes": True, "no": False}
    return {name: values for name, values in out.items() if len(values) > 1}


def _labelled(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Label → value, each value once; a label that two values share is numbered."""
    out: dict[str, Any] = {}
    for label, value in pairs:
        if value not in out.values():
            same = sum(known == label or known.startswith(f"{label} #") for known in out)
            out[f"{label} #{same + 1}" if same else label] = value
    return out


def labels_of(case: Case, fields: Values, reading: Reading) -> dict[str, str] | None:
    """What each control shows for ``reading``, None where one of them has no such value."""
    if len(reading.aux) != len(case.fitted.aux):
        return None
    chosen = {}
    for name, values in fields.items():
        wanted = _value(case, name, reading)
        label = next((label for label, value in values.items() if value == wanted), None)
        if label is None:
            return None
        chosen[name] = label
    return chosen


def presets(case: Case, fields: Values) -> dict[str, dict[str, str]]:
    """Name → what the controls show: the fitted reading, the configured one, and each engine's that differs."""
    named = {"fitted": case.fitted, "configured": case.configured.reading}
    named |= {name: way.reading for name, way in case.everyone.items()}
    out: dict[str, dict[str, str]] = {}
    for name, reading in named.items():
        chosen = labels_of(case, fields, reading) if reading else None
        if chosen is not None and (name in ("fitted", "configured") or chosen not in out.values()):
            out[name] = chosen
    return out


def by_hand(case: Case, fields: Values, chosen: Mapping[str, str]) -> Reading:
    """The reading that the controls say; what they do not say is as fitted."""
    values = {name: fields[name][label] for name, label in chosen.items() if name in fields}
    slots: Aux = tuple(values.get(f"slot_{i}", b) for i, b in enumerate(case.fitted.aux))
    rope = case.fitted.rope
    if "rope.scaling" in values:
        scaling, rule = values["rope.scaling"]
        rope = replace(rope, scaling=scaling, rule=rule)
    rope = replace(rope, **{n: values[f"rope.{n}"] for n in ROPE if n != "scaling" and f"rope.{n}" in values})
    dropped = set(case.fitted.dropped)
    for kind, names in optional_groups(case.model).items():
        if DROPPED + kind in values:
            dropped = dropped - names if values[DROPPED + kind] else dropped | names
    plain = {name: values[name] for name in FIELDS if name in values}
    return case.fitted.replace(aux=slots, rope=rope, dropped=tuple(sorted(dropped)), **plain)


def differences(case: Case, reading: Reading) -> list[tuple[str, str]]:
    """How ``reading`` differs from the fitted and from the configured one, in words: (against which, what)."""
    limit = None  # of no account here: positions past it are reported, never wrapped
    mine, *others = (
        r and canonical(case, r.replace(rope=replace(r.rope, limit=limit)))
        for r in (reading, case.fitted, case.configured.reading)
    )
    named = zip(("fitted", "configured"), others, strict=True)
    return [(f"against the {name} reading", other.words(mine) or "the same") for name, other in named if other and mine]


def _known(case: Case) -> Iterable[Reading]:
    ways = (case.configured, case.attempt("trained"), *case.everyone.values())
    return [way.reading for way in ways if way and way.reading]


def _possible(case: Case, name: str, value: Any) -> bool:
    """Whether the files hold what the value needs."""
    arch, target = case.draft.arch, case.model.target
    if name in ("embedding", "head"):
        tensor = {"embedding": "embed_tokens.weight", "head": "lm_head.weight"}[name]
        fits = arch.hidden == arch.target_hidden and target is not None
        return tensor in case.draft if value == "own" else fits
    needs = {"input_norm": "input_norm.weight", "fc_norm": f"fc_norm.{arch.aux - 1}.weight"}.get(str(value))
    if name == "aux_norm" and needs:
        return needs in case.draft
    return name != "vocab_map" or value in maps(case.model)


def _value(case: Case, name: str, reading: Reading) -> Any:
    """What the control ``name`` holds for ``reading``."""
    if name.startswith("slot_"):
        return reading.aux[int(name.removeprefix("slot_"))]
    if name.startswith("rope."):
        return _rope_value(name.removeprefix("rope."), reading)
    if name.startswith(DROPPED):
        return not optional_groups(case.model)[name.removeprefix(DROPPED)] <= set(reading.dropped)
    return getattr(reading, name)


def _rope_value(name: str, reading: Reading) -> Any:
    rope = reading.rope
    if name == "scaling":  # without one the rule that would scale is of no account
        return (rope.scaling, rope.rule if rope.scaling else "hf")
    return getattr(rope, name)


def _rope_words(name: str, reading: Reading) -> str:
    rope = reading.rope
    if name != "scaling" or not rope.scaling:
        return "none" if name == "scaling" else show(getattr(rope, name))
    table = dict(rope.scaling)
    factor = f" × {show(table['factor'])}" if "factor" in table else ""
    return f"{table.get('rope_type', table.get('type', 'scaled'))}{factor} ({rope.rule})"
