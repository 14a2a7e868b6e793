"""The operations of one decoder layer: norms, ordinary or latent attention, MLP."""

from __future__ import annotations

from eagle3lab import shapes
from eagle3lab.dialects.common import is_latent
from eagle3lab.draft import Draft
from eagle3lab.reading import Reading
from eagle3lab.trace import causes
from eagle3lab.trace.operations import Operation, fit, op


def layer_operations(draft: Draft, reading: Reading, layer: int, rows: int) -> list[Operation]:
    """Layer ``layer`` for ``rows`` positions; the first takes [embedding ; state], the others the state alone."""
    a, prefix = draft.arch, f"layers.{layer}."
    h, taken = (rows, a.hidden), a.hidden * (2 if layer == 0 else 1)
    if layer == 0:
        residual = "on the fused state; the residual is taken " + reading.residual.replace("_", "-")
        ops = [
            op(draft, "input_layernorm", h, f"{prefix}input_layernorm.weight", h, "[T-1, H]", "on the embedding"),
            op(draft, "hidden_norm", h, f"{prefix}hidden_norm.weight", h, "[T-1, H]", residual),
            Operation("cat", h, "", None, (rows, taken), "[T-1, 2H]", "[embedding ; state], in this order"),
        ]
    else:
        ops = [op(draft, reading.second_norm, h, f"{prefix}{reading.second_norm}.weight", h, "[T-1, H]")]
    ops += (_latent if is_latent(a) else _grouped)(draft, reading, layer, rows, taken)
    ops += [
        op(draft, "o_proj", ops[-1].gives, f"{prefix}self_attn.o_proj.weight", h, "[T-1, H]", "then + residual"),
        op(draft, "post_attention_layernorm", h, f"{prefix}post_attention_layernorm.weight", h, "[T-1, H]"),
    ]
    wide = (rows, a.intermediate)
    for proj, takes, gives, symbols, note in (
        ("gate_proj", h, wide, "[T-1, I]", ""),
        ("up_proj", h, wide, "[T-1, I]", ""),
        ("down_proj", wide, h, "[T-1, H]", "then + residual"),
    ):
        name = f"{prefix}mlp.{proj}.weight"
        fit(draft, proj, name, 1, takes[1], [])
        ops.append(op(draft, proj, takes, name, gives, symbols, note))
    return ops


def _grouped(draft: Draft, reading: Reading, layer: int, rows: int, taken: int) -> list[Operation]:
    """Ordinary attention up to what ``o_proj`` takes."""
    a, prefix = draft.arch, f"layers.{layer}.self_attn."
    q, kv = (rows, a.heads * a.head_dim), (rows, a.kv_heads * a.head_dim)
    ops = []
    for proj, out, symbol in (("q", q, "nh·d"), ("k", kv, "nkv·d"), ("v", kv, "nkv·d")):
        name = f"{prefix}{proj}_proj.weight"
        operation = _called(layer, f"{proj}_proj")
        fit(draft, operation, name, 1, taken, causes.of_projection(draft, layer, name))
        fit(draft, operation, name, 0, out[1], causes.of_heads(draft, proj))
        ops.append(op(draft, f"{proj}_proj", (rows, taken), name, out, f"[T-1, {symbol}]"))
    words = f"{a.heads} heads, {a.kv_heads} kv heads of {a.head_dim}, causal, RoPE base {reading.rope.base:g}"
    ops.append(Operation("attention", q, "", None, q, "[T-1, nh·d]", words))
    fit(draft, "o_proj", f"{prefix}o_proj.weight", 1, q[1], causes.of_heads(draft, "o"))
    return ops


def _latent(draft: Draft, reading: Reading, layer: int, rows: int, taken: int) -> list[Operation]:
    """Multi-head latent attention up to what ``o_proj`` takes: queries, the latent, keys and values out of it."""
    a, prefix, size = draft.arch, f"layers.{layer}.self_attn.", shapes.sizes(draft.arch)
    low = f"{prefix}q_a_proj.weight" in draft
    queries, latent = size["nh·(dn+dr)"], size["rkv"]
    rank = (draft.shape(f"{prefix}q_a_proj.weight") or (0,))[0]
    chain = [("q_a_proj", taken, rank, "rq"), ("q_b_proj", rank, queries, "nh·(dn+dr)")]
    chain = chain if low else [("q_proj", taken, queries, "nh·(dn+dr)")]
    chain += [("kv_a_proj_with_mqa", taken, size["rkv+dr"], "rkv+dr"),
              ("kv_b_proj", latent, size["nh·(dn+dv)"], "nh·(dn+dv)")]  # fmt: skip
    ops = []
    for proj, takes, gives, symbol in chain:
        name = f"{prefix}{proj}.weight"
        why = causes.of_projection(draft, layer, name) if takes == taken else causes.of_latent(draft)
        fit(draft, _called(layer, proj), name, 1, takes, why)
        fit(draft, _called(layer, proj), name, 0, gives, causes.of_latent(draft))
        ops.append(op(draft, proj, (rows, takes), name, (rows, gives), f"[T-1, {symbol}]"))
    out = (rows, size["nh·dv"])
    words = f"{a.heads} heads out of one latent of {latent}, causal, RoPE {reading.rope.layout}"
    ops.append(Operation("latent attention", (rows, queries), "", None, out, "[T-1, nh·dv]", words))
    fit(draft, "o_proj", f"{prefix}o_proj.weight", 1, out[1], causes.of_latent(draft))
    return ops


def _called(layer: int, proj: str) -> str:
    return f"{'midlayer' if layer == 0 else f'layer {layer}'} {proj}"
