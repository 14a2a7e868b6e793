"""Why a width does not fit: hypotheses in order of likelihood, each with its evidence."""

from __future__ import annotations

from eagle3lab import shapes
from eagle3lab.dialects.common import is_latent
from eagle3lab.draft import Draft

OTHER = "config.json or this tensor belongs to another draft"

STATED = {"I": "intermediate_size", "V": "vocab_size", "Vd": "draft_vocab_size"}
"""Keys of config.json that state a width, by its symbol."""


def turned(draft: Draft, name: str) -> str:
    """What to say of the matrix ``name`` where its shape is the reverse of the expected one; ``""`` else.

    A width that is solved from the very tensor is as wrong as the tensor: it is taken from the others, and from
    config.json.
    """
    shape, symbols = draft.shape(name), shapes.symbols_of(name, is_latent(draft.arch))
    if shape is None or symbols is None or len(shape) != 2 or len(symbols) != 2 or shape[0] == shape[1]:
        return ""
    (rows, columns), (gives, takes) = shape, symbols

    def fits(width: int, symbol: str) -> bool:
        if symbol == "A·Ht":  # as many states as there are
            return width % draft.arch.target_hidden == 0
        return width in _widths(draft, name, symbol)

    if (fits(rows, gives) and fits(columns, takes)) or not (fits(columns, gives) and fits(rows, takes)):
        return ""
    stored = draft.stored[name]
    return (
        f"stored transposed: {stored} is [{rows}, {columns}] = [{takes}, {gives}], and every program reads "
        f"[{gives}, {takes}] = [{columns}, {rows}]: transpose it on export"
    )


def _widths(draft: Draft, name: str, symbol: str) -> set[int]:
    """What ``symbol`` stands for by every other tensor and by config.json; by this tensor where nothing else says."""
    arch, config = draft.arch, draft.arch.config
    if symbol in ("H", "2H"):  # norm.weight's, and config.json agrees with it
        return {shapes.sizes(arch)[symbol]}
    found = {
        width
        for row in draft.rows
        if row.symbols and row.canonical != name and len(row.symbols) == len(row.info.shape)
        for width, other in zip(row.info.shape, row.symbols, strict=True)
        if other == symbol
    }
    heads = {"nh·d": arch.heads, "nkv·d": arch.kv_heads}.get(symbol)
    stated = config.get("head_dim") if heads else config.get(STATED.get(symbol, ""))
    found |= {int(stated) * (heads or 1)} if stated else set()
    return found or {shapes.sizes(arch)[symbol]}


def of_fc(draft: Draft, states: int, width: int) -> list[str]:
    """Causes for ``fc``: states counted or sized otherwise, or an EAGLE-1/2 draft."""
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


def of_projection(draft: Draft, layer: int, name: str) -> list[str]:
    """Causes for what a projection takes: a plain layer where the first should be, layers numbered wrongly."""
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


def of_heads(draft: Draft, projection: str) -> list[str]:
    """Causes for what attention gives: heads counted or sized otherwise, fused projections."""
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


def of_latent(draft: Draft) -> list[str]:
    """A tensor of latent attention that its widths do not fit."""
    config = draft.arch.config
    keys = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    said = ", ".join(f"{key} {config.get(key)}" for key in keys)
    return [f"num_attention_heads = {draft.arch.heads} or one of {said} in config.json belongs to another draft"]
