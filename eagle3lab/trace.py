"""The shape trace: each operation of one draft step, from headers alone, and what a mismatch means."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3lab.draft import Draft
from eagle3lab.errors import BadShape, Blocked
from eagle3lab.reading import Reading


@dataclass(frozen=True)
class Operation:
    """One line of the trace; shapes are the numbers, ``symbols`` the output in names."""

    name: str
    takes: tuple[int, ...]
    weight: str
    weight_shape: tuple[int, ...] | None
    gives: tuple[int, ...]
    symbols: str
    note: str = ""


def trace(draft: Draft, reading: Reading, rows: int, width: int | None = None) -> list[Operation]:
    """The operations of step 0 under ``reading`` for ``rows`` positions.

    Args:
        draft: only its headers are read.
        reading: how it is run.
        rows: T-1.
        width: Ht of the recorded states; the target's when None.

    Raises:
        BadShape: at the first operation whose widths do not fit, with the likely causes.
        Blocked: the draft's attention is of a kind that the lab does not run.
    """
    a = draft.arch
    if "layers.0.self_attn.q_proj.weight" not in draft:
        found = ", ".join(name for name in sorted(draft.stored) if ".self_attn." in name)
        raise Blocked(f"{draft.path.name}: multi-head latent attention ({found}) cannot be run by the lab yet")
    width = width or a.target_hidden
    states = len(reading.aux)
    fused = states * width
    ops = [
        Operation(
            "aux states",
            (rows, states, width),
            "",
            None,
            (rows, fused),
            "[T-1, A·Ht]",
            f"cat of boundaries {list(reading.aux)}",
        )
    ]
    if reading.aux_norm == "input_norm":
        _fit(draft, "input_norm", "input_norm.weight", -1, fused, [])
        ops.append(_op(draft, "input_norm", (rows, fused), "input_norm.weight", (rows, fused), "[T-1, A·Ht]"))
    elif reading.aux_norm == "fc_norm":
        for slot in range(states):
            _fit(draft, "fc_norm.k", f"fc_norm.{slot}.weight", 0, width, [])
        ops.append(
            _op(
                draft,
                "fc_norm.k",
                (rows, fused),
                "fc_norm.0.weight",
                (rows, fused),
                "[T-1, A·Ht]",
                "one a state",
            )
        )
    if reading.fc == "applied":
        _fit(draft, "fc", "fc.weight", 1, fused, _fc_causes(draft, states, width))
        _fit(draft, "fc", "fc.weight", 0, a.hidden, [])
        ops.append(_op(draft, "fc", (rows, fused), "fc.weight", (rows, a.hidden), "[T-1, H]", "fuses the aux states"))
    elif fused != a.hidden:
        raise BadShape(
            "fc skipped",
            f"{states} states of {width} give width {fused}",
            f"the layer takes {a.hidden}",
            ["the draft needs its fc: set fc to 'applied' in the reading"],
        )
    ops.append(
        Operation(
            "embedding",
            (rows,),
            f"{reading.embedding} embed_tokens.weight",
            (a.vocab, a.hidden),
            (rows, a.hidden),
            "[T-1, H]",
            "of token t+1",
        )
    )
    for layer in range(a.layers):
        ops += _layer(draft, reading, layer, rows)
    ops.append(
        _op(
            draft,
            "norm",
            (rows, a.hidden),
            "norm.weight",
            (rows, a.hidden),
            "[T-1, H]",
            f"feeds lm_head; the state handed on is {reading.feedback.replace('_', '-')}",
        )
    )
    if reading.head == "own":
        _fit(draft, "lm_head", "lm_head.weight", 1, a.hidden, [])
    _rest(draft, reading)
    ops.append(_op(draft, "lm_head", (rows, a.hidden), "lm_head.weight", (rows, a.draft_vocab), "[T-1, Vd]"))
    ops.append(
        Operation(
            "hot_token_id",
            (rows,),
            "d2t",
            draft.shape("d2t"),
            (rows,),
            "[T-1]",
            f"draft id → target id, read as {reading.vocab_map}",
        )
    )
    return ops


def _rest(draft: Draft, reading: Reading) -> None:
    """Norms, biases and whatever else the forward multiplies with: torch would stretch a tensor of one entry."""
    unused = {"fc.weight", "d2t", "t2d", *reading.dropped}
    unused |= {"embed_tokens.weight"} if reading.embedding == "target" else set()
    unused |= {"lm_head.weight"} if reading.head == "target" else set()
    for row in draft.rows:
        if not row.fits and row.canonical not in unused:
            raise BadShape(
                row.canonical or row.stored,
                f"{row.info.file}: {row.stored} is {list(row.info.shape)}",
                f"[{', '.join(row.symbols or ())}] = {list(row.expected or ())} is expected",
                ["config.json or this tensor belongs to another draft"],
            )


def _layer(draft: Draft, reading: Reading, layer: int, rows: int) -> list[Operation]:
    a, prefix = draft.arch, f"layers.{layer}."
    h, q, kv = (rows, a.hidden), (rows, a.heads * a.head_dim), (rows, a.kv_heads * a.head_dim)
    ops, taken = [], a.hidden
    if layer == 0:
        taken = 2 * a.hidden
        ops = [
            _op(
                draft,
                "input_layernorm",
                h,
                prefix + "input_layernorm.weight",
                h,
                "[T-1, H]",
                "on the embedding",
            ),
            _op(
                draft,
                "hidden_norm",
                h,
                prefix + "hidden_norm.weight",
                h,
                "[T-1, H]",
                "on the fused state; the residual is taken " + reading.residual.replace("_", "-"),
            ),
            Operation("cat", h, "", None, (rows, taken), "[T-1, 2H]", "[embedding ; state], in this order"),
        ]
    else:
        ops = [_op(draft, reading.second_norm, h, f"{prefix}{reading.second_norm}.weight", h, "[T-1, H]")]
    for proj, out, symbol in (("q", q, "nh·d"), ("k", kv, "nkv·d"), ("v", kv, "nkv·d")):
        name = f"{prefix}self_attn.{proj}_proj.weight"
        operation = f"{'midlayer' if layer == 0 else f'layer {layer}'} {proj}_proj"
        _fit(draft, operation, name, 1, taken, _projection_causes(draft, layer, name))
        _fit(draft, operation, name, 0, out[1], _head_causes(draft, proj))
        ops.append(_op(draft, f"{proj}_proj", (rows, taken), name, out, f"[T-1, {symbol}]"))
    ops.append(
        Operation(
            "attention",
            q,
            "",
            None,
            q,
            "[T-1, nh·d]",
            f"{a.heads} heads, {a.kv_heads} kv heads of {a.head_dim}, causal, RoPE base {reading.rope.base:g}",
        )
    )
    o_proj = prefix + "self_attn.o_proj.weight"
    _fit(draft, "o_proj", o_proj, 1, q[1], _head_causes(draft, "o"))
    ops += [
        _op(draft, "o_proj", q, o_proj, h, "[T-1, H]", "then + residual"),
        _op(draft, "post_attention_layernorm", h, prefix + "post_attention_layernorm.weight", h, "[T-1, H]"),
    ]
    for proj, takes, gives, symbol in (
        ("gate_proj", h, (rows, a.intermediate), "I"),
        ("up_proj", h, (rows, a.intermediate), "I"),
        ("down_proj", (rows, a.intermediate), h, "H"),
    ):
        name = f"{prefix}mlp.{proj}.weight"
        _fit(draft, proj, name, 1, takes[1], [])
        ops.append(
            _op(
                draft,
                proj,
                takes,
                name,
                gives,
                f"[T-1, {symbol}]",
                "then + residual" if symbol == "H" else "",
            )
        )
    return ops


def _op(draft: Draft, name: str, takes: tuple[int, ...], weight: str, gives: tuple[int, ...], symbols: str,
        note: str = "") -> Operation:  # fmt: skip
    return Operation(
        name,
        takes,
        draft.stored.get(weight, f"{weight} (missing)"),
        draft.shape(weight),
        gives,
        symbols,
        note,
    )


def _fit(draft: Draft, operation: str, weight: str, axis: int, width: int, causes: list[str]) -> None:
    shape = draft.shape(weight)
    if shape is None:
        return  # a missing tensor is its own error, raised where it is read
    if shape[axis] != width:
        stored = draft.stored[weight]
        side = "gives" if axis == 0 and len(shape) == 2 else "takes"
        verb = "is expected" if side == "gives" else "arrives"
        raise BadShape(
            operation,
            f"{draft.tensors[stored].file}: {stored} {list(shape)} {side} width {shape[axis]}",
            f"width {width} {verb}",
            causes or [f"the tensor belongs to another draft, or hidden_size in config.json is not {shape[axis]}"],
        )


def _fc_causes(draft: Draft, states: int, width: int) -> list[str]:
    shape = draft.shape("fc.weight") or (0, 0)
    takes, hidden = shape[1], draft.arch.hidden
    causes = []
    if takes % width == 0:
        causes.append(
            f"fc [{shape[0]}, {takes}] takes {takes // width} states of {width}, the reading names {states}: "
            f"give {takes // width} boundaries"
        )
    if takes == 2 * hidden == 2 * width:
        causes.insert(0, "an EAGLE-1/2 draft: its fc takes [embedding ; state], 2H wide, not aux states")
    if states and takes % states == 0 and takes // states != width:
        causes.append(
            f"the states are {width} wide, fc wants {takes // states}: recorded from another target, or the "
            "hidden sizes of draft and target are exchanged"
        )
    return causes


def _projection_causes(draft: Draft, layer: int, name: str) -> list[str]:
    shape, hidden = draft.shape(name) or (0, 0), draft.arch.hidden
    if layer == 0 and shape[1] == hidden:
        return [
            f"the weight takes H = {hidden}, but in EAGLE-3 the first layer's q, k and v take the normed embedding and "
            f"the normed state side by side, 2H = {2 * hidden}: this is a plain decoder layer (an EAGLE-1/2 draft, or "
            "layer 1 of a multi-layer draft renamed to layer 0)",
            "one half of the columns was cut off in an export: compare with the trainer's own file",
        ]
    if layer > 0 and shape[1] == 2 * hidden:
        return [
            f"the weight takes 2H = {2 * hidden}, but only the first layer takes embedding and state side by side: "
            "layers are numbered wrongly"
        ]
    if shape[1] and shape[1] % 2 == 0:
        return [
            f"the weight takes {shape[1]} = 2 × {shape[1] // 2}: the draft's hidden size would be {shape[1] // 2}, "
            f"but norm.weight says {hidden}"
        ]
    return []


def _head_causes(draft: Draft, projection: str) -> list[str]:
    a = draft.arch
    q = (draft.shape("layers.0.self_attn.q_proj.weight") or (0,))[0]
    k = (draft.shape("layers.0.self_attn.k_proj.weight") or (0,))[0]
    if q and q == k and a.heads != a.kv_heads:
        return [f"q_proj and k_proj both have {q} rows: num_key_value_heads should be {a.heads}, not {a.kv_heads}"]
    if k and q % k == 0:
        return [
            f"k_proj has {k} rows and q_proj {q}: with {a.heads} heads of {a.head_dim} that is "
            f"{k / a.head_dim:g} kv heads, config.json says num_key_value_heads = {a.kv_heads}"
        ]
    return [
        f"q, k and v may be fused into {projection}_proj, or num_attention_heads = {a.heads} in config.json is wrong"
    ]
