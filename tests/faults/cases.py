"""What must raise no alarm, and faults in pairs and threes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from planted import Plan, Shape, World

from eagle3lab.reading import Rope
from faults.kinds import (
    BASE,
    KINDS,
    LINEAR,
    TWO,
    Damage,
    Kind,
    _foreign,
    _interleaved,
    _rebuilt,
    _roll,
    _sglang,
    _table_of_another,
    read,
)
from faults.variants import VARIANTS

BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Sound:
    """A case that nothing is wrong with; ``allow`` are findings that say something else that is true of it."""

    name: str
    plan: Plan
    damage: Damage | None = None
    allow: tuple[str, ...] = ()


def _unsorted(world: World) -> None:
    """Frequency order, as Model-Optimizer writes it: rows of the head move with their ids."""
    order = world.rng.permutation(world.plan.shape.draft_vocab)
    hot = world.weights["d2t"] + np.arange(len(order))
    world.weights["d2t"] = hot[order] - np.arange(len(order))
    world.weights["lm_head.weight"] = world.weights["lm_head.weight"][order]


def _no_t2d(world: World) -> None:
    del world.weights["t2d"]


def _zero_row(world: World) -> None:
    """The first row of a text is an attention sink in some targets; nothing is predicted from a prompt's first row."""
    for _, states in world.texts[:1]:
        for k in world.held:
            states[k] = states[k].copy()
            states[k][0] = 0


def _other_names(world: World) -> None:
    world.weights = {f"model.{name}" if name.startswith("layers.") else name: w for name, w in world.weights.items()}


def _trained_only(world: World) -> None:
    """No engine: the draft was trained on purpose with these boundaries, and its config says so."""
    ids = [int(b) - 1 for b in world.plan.reading.aux]
    world.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    world.toml = 'title = "planted"\n[draft]\npath = "draft"\n[target]\npath = "target"\n[samples]\npath = "samples"\n' \
                 '[training]\nprogram = "specforge"\n'  # fmt: skip


WEAK = BASE.but(misses=0.65, samples=8, length=120)
"""Some tokens of it are hardly ever drafted, as rare and hard ones of any real draft."""

SOUND: tuple[Sound, ...] = (
    *(Sound(name, plan) for name, plan in VARIANTS.items() if name != "whole vocabulary, no map"),
    Sound("d2t all zero, Vd = V", BASE.but(shape=Shape(vocab=48, draft_vocab=48)), _sglang),
    Sound("d2t in frequency order", BASE, _unsorted),
    Sound("no t2d", BASE, _no_t2d),
    Sound("one zero row", BASE, _zero_row),
    Sound("names of another writer", BASE, _other_names),
    Sound("neighbouring boundaries on purpose", BASE.but(reading=read(aux=(2, 3, 4)), ids=(2, 3, 4))),
    Sound("a wiring that only its trainer reads", BASE.but(reading=read(aux=(2, 4, 5))), _trained_only),
    Sound("a draft that is right a third of the time", WEAK),
    Sound("a weak draft of frequent tokens", WEAK.but(frequent=True)),
)


def _both(first: str, second: str, plan: Plan, damage: Damage | None = None, third: str = "") -> Kind:
    """A case with two faults (or three): the plan holds them, each must be named as when it comes alone."""
    one, *others = (BY_NAME[name] for name in (first, second, third) if name)
    also = {code for kind in (one, *others) for code in kind.also} | {c for kind in others for c in kind.codes}
    name = " + ".join(n for n in (first, second, third) if n)
    more = tuple((kind.codes[0], kind.words[0]) for kind in others)
    return replace(one, name=name, section="stacked", plan=plan, damage=damage, also=tuple(also), more=more,
                   words=one.words[:1], stages=("forward",), codes=one.codes)  # fmt: skip


LOW = BASE.but(ids=(1, 3, 4), held=(1, 2, 3, 4, 5))
SCALED = {"rope_theta": 1000000.0}

PAIRS: tuple[Kind, ...] = (
    _both("every id one too low", "residual flag lost", LOW.but(reading=read(residual="post_norm"))),
    _both("every id one too low", "feedback flag lost", LOW.but(reading=read(feedback="post_norm"))),
    _both("every id one too low", "rope_theta of the config ignored", LOW.but(config=SCALED)),
    _both("every id one too low", "d2t holds ids", LOW.but(reading=read(vocab_map="ids"))),
    _both("every id one too low", "trained with a double shift", LOW.but(reading=read(shift=2))),
    _both("every id one too low", "trained without a shift", LOW.but(reading=read(shift=0))),
    _both("every id one too low", "head trained on the un-normed state", LOW.but(reading=read(head_norm="skipped"))),
    _both("every id one too low", "rotary layout", LOW, _interleaved),
    _both("every id one too low", "embed_tokens of another model in the file", LOW.but(own_table=True), _table_of_another),
    _both("every id one too low", "first rows missing", LOW.but(samples=5, length=64), _roll(4)),
    _both("every id one too low", "target's head trained, another one stored", LOW.but(reading=read(head="target"))),
    _both("residual flag lost", "rope_theta of the config ignored", BASE.but(reading=read(residual="post_norm"), config=SCALED)),
    _both("residual flag lost", "d2t holds ids", BASE.but(reading=read(residual="post_norm", vocab_map="ids"))),
    _both("residual flag lost", "feedback flag lost", BASE.but(reading=read(residual="post_norm", feedback="post_norm"))),
    _both("d2t holds ids", "trained with a double shift", BASE.but(reading=read(vocab_map="ids", shift=2))),
    _both("feedback flag set, not trained", "rotary layout", BASE.but(config={"norm_output": True}), _interleaved),
    _both("first rows missing", "residual flag lost", BASE.but(reading=read(residual="post_norm"), samples=5, length=64), _roll(4)),
    _both("norm of later layers", "rope_theta of the config ignored", TWO.but(reading=read(second_norm="hidden_norm"), config=SCALED)),
    _both("every id one too low", "residual flag lost", LOW.but(reading=read(residual="post_norm"), config=SCALED), None,
          "rope_theta of the config ignored"),
    _both("every id one too low", "d2t holds ids", LOW.but(reading=read(vocab_map="ids", residual="post_norm")), None,
          "residual flag lost"),
    _both("every id one too low", "trained with a double shift", LOW.but(reading=read(shift=2, residual="post_norm")), None,
          "residual flag lost"),
    _both("residual flag lost", "trained with a double shift", BASE.but(reading=read(shift=2, residual="post_norm"), config=SCALED),
          None, "rope_theta of the config ignored"),
    _both("map rebuilt on a nearly equal set", "every id one too low", LOW.but(samples=5), _rebuilt),
    _both("rotary layout", "rope_theta of the config ignored", BASE.but(config=SCALED, samples=5, length=64), _interleaved),
    _both("a scaling that no file states", "trained with a double shift",
          BASE.but(reading=read(shift=2, rope=Rope(scaling=LINEAR, limit=512)), samples=5, length=64)),
    _both("ids for two states, fc takes three", "residual flag lost", BASE.but(ids=(2, 4), reading=read(residual="post_norm"))),
    _both("first rows missing", "residual flag lost", BASE.but(reading=read(residual="post_norm"), config=SCALED, samples=5, length=64),
          _roll(4), "rope_theta of the config ignored"),
)  # fmt: skip
"""Real cases stack two faults; a search that stops at the first improvement reports half the truth."""


def _low(plan: Plan) -> Plan | None:
    ids = tuple(i - 1 for i in plan.ids)
    return plan.but(ids=ids, held=tuple(sorted({*plan.held, *ids})))


def _residual(plan: Plan) -> Plan | None:
    if "norm_before_residual" in plan.config:
        return None
    return plan.but(reading=plan.reading.replace(residual="post_norm"))


def _theta(plan: Plan) -> Plan | None:
    """Of another base than the config's: one that is configured as ten thousand, else the lowest one known."""
    if plan.reading.rope.scaling or plan.reading.rope.base != 10000.0:
        return None
    # a window leaves a base little to show: it takes more rows to tell
    more = {"samples": 5, "length": 64} if plan.reading.window else {}
    return plan.but(config={**plan.config, "rope_theta": 1000000.0}, **more)


def _as_ids(plan: Plan) -> Plan | None:
    return plan.but(reading=plan.reading.replace(vocab_map="ids")) if plan.reading.vocab_map == "offsets" else None


def _late(plan: Plan) -> Plan | None:
    return plan.but(reading=plan.reading.replace(shift=2))


def _long(plan: Plan) -> Plan | None:
    return plan.but(samples=5, length=64)


CROSSED: tuple[tuple[str, Callable[[Plan], Plan | None], Damage | None], ...] = (
    ("every id one too low", _low, None),
    ("residual flag lost", _residual, None),
    ("rope_theta of the config ignored", _theta, None),
    ("d2t holds ids", _as_ids, None),
    ("trained with a double shift", _late, None),
    ("first rows missing", _long, _roll(4)),
    ("states of other requests", _long, _foreign),
)
"""Kinds that any architecture can have: kind, the plan of a variant with it (None: not there), what is done to files."""

TOLD_APART = ("whole vocabulary, no map",)
"""Variants left out: engines refuse them."""


def _crossed() -> Iterator[Kind]:
    for variant, plan in VARIANTS.items():
        for name, change, damage in CROSSED:
            changed = None if variant in TOLD_APART else change(plan)
            if changed is not None:
                kind = BY_NAME[name]
                words = (kind.words[0].replace("(2, 4, 5)", str(plan.reading.aux)), *kind.words[1:])
                yield replace(kind, name=variant, section="crossed", plan=changed, damage=damage, words=words,
                              also=(*kind.also, *kind.codes, "F005", "S017", "S003", "S018"), stages=("forward",))  # fmt: skip


CROSS: tuple[Kind, ...] = tuple(_crossed())
"""Each of these kinds in every architecture that the forward knows."""

EACH = 3
"""Of the crossed cases a third is run a seed, so that ten seeds run each three times or four."""
