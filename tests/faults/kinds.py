"""The kinds of faults of faults.md: how each is injected, and the finding that must name it.

A kind starts from a plan (what was trained and what the case says of it) and may damage the files before they are
written. ``codes`` are the findings that count as naming it, ``words`` what their text must hold; ``also`` are findings
that rightly fail beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from planted import CASE, VLLM_RUN, Plan, Shape, World

from eagle3lab.reading import FINAL, Reading, Rope
from eagle3lab.records import Severity
from faults.variants import AUX, BASE, VARIANTS, YARN

Damage = Callable[[World], None]
SGLANG = CASE.replace(VLLM_RUN, 'engine = "sglang"\nversion = "0.5.23"\n')


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: what a table says.
        section: kind of faults.md.
        plan: what was trained, and what config and run say.
        codes: findings that name it.
        words: what the title, the place or the remedy of such a finding holds.
        damage: done to the files.
        also: codes that may fail beside it.
        severity: the least severity that names it.
        stages: stages that are run.
    """

    name: str
    section: str
    plan: Plan
    codes: tuple[str, ...]
    words: tuple[str, ...]
    damage: Damage | None = None
    also: tuple[str, ...] = ()
    severity: Severity = Severity.FAIL
    stages: tuple[str, ...] = ("forward",)
    more: tuple[tuple[str, str], ...] = field(default=())  # (code, word) of further faults in the same case


LINEAR = (("factor", 4.0), ("rope_type", "linear"))
WIDE = BASE.but(held=(1, 2, 3, 4, 5, 6))
COST = ("A001", "A004", "A006")
"""What a wrong reading, or wrong content, costs shows in the acceptance too."""


def read(**reading: object) -> Reading:
    return Reading(**{"aux": AUX, **reading})


def _sglang(world: World) -> None:
    world.toml = SGLANG.format(ids=[i - 1 for i in world.ids])


def _roll(by: int) -> Damage:
    """Row r holds the state of position r + ``by``; what is missing is filled with another place's rows."""

    def damage(world: World) -> None:
        world.texts = [(tokens, {k: np.roll(v, -by, 0) for k, v in states.items()}) for tokens, states in world.texts]

    return damage


def _foreign(world: World) -> None:
    states = [s for _, s in world.texts]
    world.texts = [(tokens, states[(i + 1) % len(states)]) for i, (tokens, _) in enumerate(world.texts)]


def _two_swapped(world: World) -> None:
    (a, one), (b, two), *rest = world.texts
    world.texts = [(a, two), (b, one), *rest]


def _second_half(world: World) -> None:
    def half(states: dict, other: dict) -> dict:
        size = world.plan.length // 2
        return {k: np.concatenate([v[:size], other[k][size:]]) for k, v in states.items()}

    states = [s for _, s in world.texts]
    world.texts = [(t, half(s, states[(i + 1) % len(states)])) for i, (t, s) in enumerate(world.texts)]


def _increments(world: World) -> None:
    def omit(states: dict) -> dict:
        return {k: v - states[k - 1] if isinstance(k, int) and k else v for k, v in states.items()}

    world.texts = [(tokens, omit(states)) for tokens, states in world.texts]


def _half_columns(world: World) -> None:
    """Of every boundary above the first held one only half of the columns got what the blocks added."""
    low = min(k for k in world.held if isinstance(k, int))

    def keep(states: dict) -> dict:
        out = dict(states)
        for k in world.held:
            if isinstance(k, int) and k > low:
                out[k] = states[k].copy()
                out[k][:, : out[k].shape[1] // 2] = states[low][:, : out[k].shape[1] // 2]
        return out

    world.texts = [(tokens, keep(states)) for tokens, states in world.texts]


def _rotated(world: World) -> None:
    q, _ = np.linalg.qr(world.rng.normal(size=(world.plan.shape.target_hidden,) * 2))
    world.texts = [(t, {k: (v @ q).astype(np.float32) for k, v in s.items()}) for t, s in world.texts]


def _set_state(slot: int, change: Callable[[dict], np.ndarray], samples: int | None = None) -> Damage:
    def damage(world: World) -> None:
        for _, states in world.texts[:samples]:
            states[slot] = change(states)

    return damage


def _nan(states: dict) -> np.ndarray:
    out = states[4].copy()
    out[20, 3] = np.nan
    return out


def _zero_rows(states: dict) -> np.ndarray:
    out = states[4].copy()
    out[-8:] = 0
    return out


def _every_state(change: Callable[[np.ndarray], np.ndarray]) -> Damage:
    def damage(world: World) -> None:
        world.texts = [(t, {k: change(v) for k, v in s.items()}) for t, s in world.texts]

    return damage


def _repeated_tail(rows: np.ndarray) -> np.ndarray:
    """A writer that fills up to a fixed length with the last row it has."""
    kept = 5 * len(rows) // 8
    return np.concatenate([rows[:kept], np.repeat(rows[kept - 1 : kept], len(rows) - kept, 0)])


def _twice(rows: np.ndarray) -> np.ndarray:
    """A ring buffer of half the text, dumped twice."""
    return np.concatenate([rows[: len(rows) // 2]] * 2)


def _normed(rows: np.ndarray) -> np.ndarray:
    return (rows / np.sqrt(np.square(rows).mean(-1, keepdims=True) + 1e-6)).astype(np.float32)


def _one_boundary(by: int) -> Damage:
    """Boundary 4 of every text lies ``by`` rows early, the others as they should."""
    return _set_state(4, lambda s: np.roll(s[4], -by, 0))


def _one_foreign(world: World) -> None:
    """Boundary 4 alone comes from the next text."""
    states = [s[4] for _, s in world.texts]
    for i, (_, own) in enumerate(world.texts):
        own[4] = states[(i + 1) % len(states)]


def _deepstack(world: World) -> None:
    """A vision tower's features are added to boundary 2 in a span of rows."""
    add = world.rng.normal(size=world.plan.shape.target_hidden) * 2
    for _, states in world.texts:
        states[2] = np.concatenate([states[2][:10], states[2][10:30] + add, states[2][30:]]).astype(np.float32)


def _half_of_the_head(world: World) -> None:
    """Rows of lm_head for tokens of the upper half hold noise: a shard of the export was lost."""
    head = world.weights["lm_head.weight"] = world.weights["lm_head.weight"].copy()
    upper = world.weights["d2t"] + np.arange(world.plan.shape.draft_vocab) >= world.plan.shape.vocab // 2
    head[upper] = world.rng.normal(size=head[upper].shape) * head.std()


def _weight(name: str, change: Callable[[World, np.ndarray], np.ndarray]) -> Damage:
    def damage(world: World) -> None:
        world.weights[name] = change(world, world.weights[name])

    return damage


def _drop(name: str) -> Damage:
    def damage(world: World) -> None:
        del world.weights[name]

    return damage


def _fresh(world: World, weight: np.ndarray) -> np.ndarray:
    return (world.rng.normal(size=weight.shape) * weight.std()).astype(np.float32)


def _rebuilt(world: World) -> None:
    """Another corpus chose another set: ids are sorted before they are numbered, so hardly a row keeps its token."""
    shape, rng = world.plan.shape, world.rng
    old = world.weights["d2t"] + np.arange(shape.draft_vocab)
    rest = np.setdiff1d(np.arange(shape.vocab), old)
    kept = rng.choice(old, shape.draft_vocab - 5, replace=False)
    chosen = np.sort(np.concatenate([kept, rng.choice(rest, 5, replace=False)]))
    world.weights["d2t"] = chosen - np.arange(shape.draft_vocab)
    world.weights["t2d"] = np.isin(np.arange(shape.vocab), chosen)


def _other_t2d(world: World, t2d: np.ndarray) -> np.ndarray:
    return np.roll(t2d, 1)


def _interleaved(world: World) -> None:
    """The rows of q and k in GGUF's order: the same draft for who rotates neighbours."""
    shape = world.plan.shape
    for name, heads in (("q", shape.heads), ("k", shape.kv_heads)):
        key = f"layers.0.self_attn.{name}_proj.weight"
        rows = world.weights[key].reshape(heads, 2, shape.head_dim // 2, -1)
        world.weights[key] = np.ascontiguousarray(rows.transpose(0, 2, 1, 3).reshape(world.weights[key].shape))


def _table_of_another(world: World) -> None:
    world.weights["embed_tokens.weight"] = world.rng.normal(size=(world.plan.shape.vocab, world.plan.shape.hidden)).astype(
        np.float32)  # fmt: skip


def _masks(value: int) -> Damage:
    def damage(world: World) -> None:
        world.masks = [np.full_like(mask, value) for mask in world.masks]

    return damage


def _engine_low(world: World) -> None:
    """The engine counts half of what its reading predicts, with files that are all in order."""
    text = "\n".join([
        f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {400}.0',
        f'vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {1200}.0',
        f'vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {60}.0',
    ])  # fmt: skip
    world.toml = CASE_WITH_METRICS.format(ids=list(world.ids))
    world.extra["run.prom"] = text + "\n"


CASE_WITH_METRICS = CASE + (
    'metrics = ["run.prom"]\n')  # fmt: skip

ONE = BASE.but(shape=Shape(aux=1), reading=Reading(aux=(FINAL,), fc="skipped"), linked=0, blocks=6, held=(2, 4, "final"),
               ids=(2,), config={"eagle_config": {"use_aux_hidden_state": False}})  # fmt: skip
NORMED = BASE.but(linked=0)
TWO = VARIANTS["two layers"]
LARGE = BASE.but(shape=Shape(vocab=400, draft_vocab=200), held=(0, 2, 4, 5), samples=6)

KINDS: tuple[Kind, ...] = (
    # wiring
    Kind("every id one too low", "K1 WIRE", BASE.but(ids=(1, 3, 4), held=(1, 2, 3, 4, 5)), ("F003",), ("draft fits (2, 4, 5)", "too low")),
    Kind("every id one too high", "K1 WIRE", BASE.but(ids=(3, 5, 6), held=(2, 3, 4, 5, 6)), ("F003",), ("draft fits (2, 4, 5)", "too high")),
    Kind("middle id one too high", "K1 WIRE", WIDE.but(reading=read(aux=(2, 4, 6)), ids=(2, 5, 6)), ("F003",), ("draft fits (2, 4, 6)", "slot 1 = 4")),
    Kind("concatenated in another order", "K1 WIRE", BASE.but(reading=read(aux=(5, 4, 2)), linked=0), ("F003",), ("draft fits (5, 4, 2)", "another order")),
    Kind("a boundary twice", "K1 WIRE", BASE.but(reading=read(aux=(2, 2, 4)), ids=(2, 3, 4)), ("F003",), ("draft fits (2, 2, 4)",)),
    Kind("the engine's default layers", "K1 WIRE", WIDE.but(reading=read(aux=(1, 2, 6)), ids=(2, 3, 5)), ("F003",), ("draft fits (1, 2, 6)",)),
    Kind("ids for two states, fc takes three", "K1 LOAD", BASE.but(ids=(2, 4)), ("F008",), ("fc takes 3 states", "layer ids")),
    # norms and flags
    Kind("residual flag lost", "K3 NORM", BASE.but(reading=read(residual="post_norm")), ("F006",), ("residual", "norm_before_residual to true")),
    Kind("residual flag set, not trained", "K3 NORM", BASE.but(config={"norm_before_residual": True}), ("F006",), ("residual", "norm_before_residual to false")),
    Kind("feedback flag lost", "K3 CHAIN", BASE.but(reading=read(feedback="post_norm")), ("F006",), ("feedback", "norm_output to true")),
    Kind("feedback flag set, not trained", "K3 CHAIN", BASE.but(config={"norm_output": True}), ("F006",), ("feedback", "norm_output to false")),
    Kind("head trained on the un-normed state", "K3 NORM", BASE.but(reading=read(head_norm="skipped")), ("F006",), ("head_norm", "retrain")),
    Kind("norm_before_fc lost", "K3 NORM", NORMED.but(reading=read(aux_norm="input_norm"), norms="input_norm"), ("W004",), ("input_norm", "norm_before_fc"), also=("F008",), stages=("weights", "forward")),
    Kind("fc_norm lost", "K3 NORM", NORMED.but(reading=read(aux_norm="fc_norm"), norms="fc_norm"), ("W004",), ("fc_norm",), also=("F008",), stages=("weights", "forward")),
    Kind("norm_before_fc set, not trained", "K3 NORM", BASE.but(norms="input_norm", config={"norm_before_fc": True}), ("F006",), ("aux_norm", "norm_before_fc")),
    Kind("norm of later layers", "K3 NORM", TWO.but(reading=read(second_norm="hidden_norm")), ("F006",), ("second_norm", "hidden_norm")),
    # RoPE
    Kind("rope_theta of the config ignored", "K5 ROPE", BASE.but(config={"rope_theta": 1000000.0}), ("F006",), ("rope.base", "fits 10000", "rope_theta")),
    Kind("scaling of the config ignored", "K5 ROPE", BASE.but(config={"rope_scaling": {"rope_type": "linear", "factor": 8.0}}), ("F006",), ("rope.scaling", "rope_scaling")),
    Kind("yarn trained, not configured by its factor", "K5 ROPE", BASE.but(config={"rope_scaling": {**dict(YARN), "attention_factor": 2.0}}, reading=read(rope=Rope(limit=512))), ("F006",), ("rope.",)),
    Kind("a base that no file states", "K5 ROPE", BASE.but(reading=read(rope=Rope(base=250000.0, limit=512)), samples=5, length=64), ("F006",), ("rope.base", "uses 10000", "fits 250000")),
    Kind("a scaling that no file states", "K5 ROPE", BASE.but(reading=read(rope=Rope(scaling=LINEAR, limit=512))), ("F006",), ("rope.scaling", "linear")),
    Kind("rotary layout", "K5 ROPE", BASE, ("F006",), ("rope.layout", "permute"), damage=_interleaved),
    Kind("partial rotation not trained", "K5 ROPE", BASE.but(config={"partial_rotary_factor": 0.5}), ("F006",), ("rope.partial", "partial_rotary_factor")),
    Kind("attention window not trained", "K5 ROPE", BASE.but(config={"layer_types": ["sliding_attention"], "sliding_window": 3}), ("F006",), ("window", "sliding_window")),
    Kind("positions past the draft's limit", "K5 ROPE", BASE.but(config={"max_position_embeddings": 32}), ("W007",), ("past the draft's table",), severity=Severity.WARN, stages=("weights",)),
    # vocabulary
    Kind("d2t holds ids", "K6 VOCAB", BASE.but(reading=read(vocab_map="ids")), ("F006",), ("vocab_map", "fits ids", "offsets"), also=("V001",), stages=("forward",)),
    Kind("d2t not applied in training", "K6 VOCAB", BASE.but(reading=read(vocab_map="identity")), ("F006",), ("vocab_map", "identity")),
    Kind("d2t all zero, Vd < V", "K6 VOCAB", BASE, ("V001",), ("zero throughout",), damage=_weight("d2t", lambda w, x: x * 0), also=("V004", "V006", "F006"), stages=("vocab", "forward")),
    Kind("d2t missing", "K6 VOCAB", BASE, ("V001",), ("d2t is missing",), damage=_drop("d2t"), also=("V004", "V006", "F006"), stages=("vocab",)),
    Kind("map rebuilt on a nearly equal set", "K6 VOCAB", BASE.but(samples=5), ("F011",), ("other tokens than d2t says", "rebuilt"), damage=_rebuilt, also=("F005",)),
    Kind("t2d of another map", "K6 VOCAB", BASE, ("V004",), ("different tokens",), damage=_weight("t2d", _other_t2d), stages=("vocab",)),
    Kind("a target id out of range", "K6 VOCAB", BASE, ("V002",), ("outside the target's vocabulary",), damage=_weight("d2t", lambda w, x: np.where(np.arange(len(x)) == len(x) - 1, 64 - len(x) + 1, x)), also=("V004",), stages=("vocab",)),
    Kind("a target id twice", "K6 VOCAB", BASE, ("V003",), ("share their target id",), damage=_weight("d2t", lambda w, x: np.where(np.arange(len(x)) == 1, x[0] - 1, x)), also=("V004",), stages=("vocab",)),
    # tables
    Kind("embed_tokens of another model in the file", "K4 EMBED", BASE.but(own_table=True), ("F006",), ("embedding", "fits target", "take embed_tokens out"), damage=_table_of_another),
    Kind("own table overwritten by SGLang", "K4 EMBED", BASE.but(own_table=True, reading=read(embedding="own")), ("F006",), ("embedding", "fits own"), damage=_sglang),
    Kind("target's head trained, another one stored", "K4 EMBED", BASE.but(reading=read(head="target")), ("F006",), ("head", "fits target")),
    Kind("lm_head fresh", "K4 LOAD", BASE, ("F011",), ("lm_head.weight", "initialiser"), damage=_weight("lm_head.weight", _fresh), also=("F005", "W010"), severity=Severity.WARN),
    Kind("fc fresh", "K4 LOAD", BASE, ("F011",), ("fc.weight", "initialiser"), damage=_weight("fc.weight", _fresh), also=("F005", "W010"), severity=Severity.WARN),
    Kind("lm_head missing", "K4 LOAD", BASE, ("W006",), ("no lm_head",), damage=_drop("lm_head.weight"), stages=("weights",)),
    Kind("NaN in a weight", "K11 PREC", BASE, ("W003",), ("NaN",), damage=_weight("fc.weight", lambda w, x: np.where(np.arange(x.shape[1]) == 3, np.nan, x).astype(np.float32)), stages=("weights",)),
    Kind("head_dim of the config", "K4 LOAD", BASE.but(config={"head_dim": 16}), ("W004",), ("head_dim is 8 by the tensors",), stages=("weights",)),
    Kind("biases dropped by SGLang", "K3 LOAD", BASE.but(shape=Shape(bias=True), config={"attention_bias": True}), ("F006",), ("dropped", "bias"), damage=_sglang),
    Kind("q and k norms dropped by SGLang", "K3 LOAD", BASE.but(shape=Shape(qk_norm=True)), ("F006",), ("dropped", "k_norm"), damage=_sglang),
    Kind("fc skipped in training, applied by the engine", "K3 WIRE", BASE.but(shape=Shape(aux=1), reading=Reading(aux=(4,), fc="skipped"), ids=(4,), linked=0), ("F006",), ("fc", "fits skipped")),
    # alignment
    Kind("trained with a double shift", "K7 ALIGN", BASE.but(reading=read(shift=2)), ("F006",), ("shift", "fits 2", "retrain")),
    Kind("trained without a shift", "K7 ALIGN", BASE.but(reading=read(shift=0)), ("F006",), ("shift", "fits 0", "retrain")),
    Kind("trained with two shifts too many", "K7 ALIGN", BASE.but(reading=read(shift=3), length=64), ("F010",), ("position r +2",)),
    Kind("first rows missing", "K8 SHARD", BASE.but(samples=5), ("F010",), ("position r +4", "first 4 rows are missing"), damage=_roll(4), also=("S017", "S003")),
    Kind("rows too many at the start", "K8 SHARD", BASE.but(samples=5), ("F010",), ("position r -3",), damage=_roll(-3), also=("S017", "S003")),
    # content
    Kind("states of other requests", "K8 SHARD", BASE.but(samples=5), ("F011",), ("do not belong to these tokens", "fits the states of"), damage=_foreign, also=("F005", "S018")),
    Kind("two samples swapped", "K8 SHARD", BASE.but(samples=6), ("F011",), ("do not belong to its tokens", "those of planted_"), damage=_two_swapped, also=("S018", "F005")),
    Kind("rows of another place from the middle on", "K8 SHARD", BASE.but(samples=5, length=64), ("F011",), ("rows from 3", "do not fit"), damage=_second_half, also=("S018",)),
    Kind("block increments", "K2 SHARD", BASE.but(linked=0), ("S009",), ("nearly orthogonal",), damage=_increments, also=("F005",), severity=Severity.WARN, stages=("samples", "forward")),
    Kind("two boundaries the same buffer", "K2 SHARD", BASE, ("S007",), ("same tensor",), damage=_set_state(4, lambda s: s[5].copy()), stages=("samples", "forward")),
    Kind("a boundary zero", "K2 SHARD", BASE, ("S002",), ("zero rows",), damage=_set_state(4, lambda s: s[4] * 0), also=("S009",), stages=("samples", "forward")),
    Kind("a padded tail", "K8 SHARD", BASE, ("S002",), ("8 zero rows",), damage=_set_state(4, _zero_rows), stages=("samples", "forward")),
    Kind("NaN in one row", "K11 SHARD", BASE, ("S002",), ("NaN",), damage=_set_state(4, _nan, 1), stages=("samples", "forward")),
    Kind("one rank's columns", "K10 PARA", BASE, ("F011",), ("columns 0 … 15",), damage=_half_columns, also=("F005", "F003")),
    Kind("a rotated basis", "K11 PREC", LARGE, ("F011",), ("rotated basis", "QuaRot"), damage=_rotated, also=("F005", "S003", "S018")),
    Kind("final state normed before it was stored as un-normed", "K2 FINAL", ONE, ("F010",), ("last state fits", "as it lies there"), also=("S004",)),
    Kind("one boundary a row early", "K8 SHARD", WIDE.but(linked=0, samples=5), ("S017",), ("boundary 4",), damage=_one_boundary(1), stages=("samples", "forward")),
    Kind("one boundary of other requests", "K8 SHARD", WIDE.but(linked=0, samples=5), ("S018",), ("boundary 4",), damage=_one_foreign, stages=("samples", "forward")),
    Kind("features added in a span of rows", "K2 SHARD", WIDE.but(linked=0, samples=5, length=64), ("S018",), ("rows 10 to 29 of boundary 2",), damage=_deepstack, stages=("samples", "forward")),
    Kind("a tail of copies of one row", "K8 SHARD", BASE.but(samples=5, length=64), ("S018",), ("rows 40 … 63 are copies of row 39",), damage=_every_state(_repeated_tail), stages=("samples", "forward")),
    Kind("a buffer stored twice", "K8 SHARD", BASE.but(samples=5, length=64), ("S018",), ("rows 32 … 63 repeat rows 0 … 31",), damage=_every_state(_twice), stages=("samples", "forward")),
    Kind("states normed before they were recorded", "K8 SHARD", WIDE.but(linked=0, samples=5), ("S026",), ("normed before they were recorded", "1, 2, 3, 4, 5, 6"), damage=_every_state(_normed), stages=("samples", "forward")),
    Kind("half of the head's rows lost", "K4 LOAD", BASE.but(samples=5, length=80), ("F011", "A006"), ("tokens",), damage=_half_of_the_head, also=("F005", "V011", "W010"), severity=Severity.WARN, stages=("forward", "acceptance")),
    Kind("no reply marked", "K7 DATA", BASE, ("S006",), ("",), damage=_masks(0), stages=("samples", "forward")),
    # only by elimination
    Kind("engine state (everything on the files' side is sound)", "K12 ENGINE", BASE, ("E001",), ("not on the files' side",), damage=_engine_low, severity=Severity.WARN, stages=("forward", "serving")),
)  # fmt: skip
