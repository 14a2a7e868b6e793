"""Shapes of a draft's tensors in symbols, and the numbers behind the symbols (engines.md 2.1 and 2.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eagle3lab.dialects.common import is_latent
from eagle3lab.records import Architecture

Symbols = tuple[str, ...]

SHAPES: dict[str, Symbols] = {
    "embed_tokens.weight": ("V", "H"),
    "fc.weight": ("H", "A·Ht"),
    "fc.bias": ("H",),
    "fc_norm.weight": ("Ht",),
    "input_norm.weight": ("A·Ht",),
    "input_layernorm.weight": ("H",),
    "hidden_norm.weight": ("H",),
    "post_attention_layernorm.weight": ("H",),
    "self_attn.q_proj.weight": ("nh·d", "2H"),
    "self_attn.k_proj.weight": ("nkv·d", "2H"),
    "self_attn.v_proj.weight": ("nkv·d", "2H"),
    "self_attn.o_proj.weight": ("H", "nh·d"),
    "self_attn.q_proj.bias": ("nh·d",),
    "self_attn.k_proj.bias": ("nkv·d",),
    "self_attn.v_proj.bias": ("nkv·d",),
    "self_attn.o_proj.bias": ("H",),
    "self_attn.q_norm.weight": ("d",),
    "self_attn.k_norm.weight": ("d",),
    "mlp.gate_proj.weight": ("I", "H"),
    "mlp.up_proj.weight": ("I", "H"),
    "mlp.down_proj.weight": ("H", "I"),
    "mlp.gate_proj.bias": ("I",),
    "mlp.up_proj.bias": ("I",),
    "mlp.down_proj.bias": ("H",),
    "norm.weight": ("H",),
    "lm_head.weight": ("Vd", "H"),
    "d2t": ("Vd",),
    "t2d": ("V",),
}
"""Projections of layers after the first take H where the first takes 2H; ``fc_norm`` has one for each state."""

LATENT: dict[str, Symbols] = {
    "self_attn.q_proj.weight": ("nh·(dn+dr)", "2H"),
    "self_attn.q_a_proj.weight": ("rq", "2H"),
    "self_attn.q_a_layernorm.weight": ("rq",),
    "self_attn.q_b_proj.weight": ("nh·(dn+dr)", "rq"),
    "self_attn.kv_a_proj_with_mqa.weight": ("rkv+dr", "2H"),
    "self_attn.kv_a_layernorm.weight": ("rkv",),
    "self_attn.kv_b_proj.weight": ("nh·(dn+dv)", "rkv"),
    "self_attn.o_proj.weight": ("H", "nh·dv"),
}
"""MLA: rq and rkv are the ranks of queries and latent, dn, dr and dv the unrotated, rotated and value width a head."""


def symbols_of(name: str, latent: bool = False) -> Symbols | None:
    """The shape of a canonical tensor in symbols, None where the lab states none.

    Args:
        name: canonical.
        latent: whether the draft's attention is MLA.
    """
    if name.startswith("fc_norm."):
        return SHAPES["fc_norm.weight"]
    if not name.startswith("layers."):
        return SHAPES.get(name)
    _, layer, part = name.split(".", 2)
    symbols = (LATENT if latent and part in LATENT else SHAPES).get(part)
    return tuple("H" if s == "2H" else s for s in symbols) if symbols and layer != "0" else symbols


def sizes(arch: Architecture) -> dict[str, int]:
    """The numbers behind the symbols; those of MLA from ``arch.config``, 0 where they are not known."""
    a, config = arch, arch.config
    out = {
        "V": a.vocab, "H": a.hidden, "2H": 2 * a.hidden, "Ht": a.target_hidden, "A·Ht": a.aux * a.target_hidden,
        "nh·d": a.heads * a.head_dim, "nkv·d": a.kv_heads * a.head_dim, "d": a.head_dim, "I": a.intermediate,
        "Vd": a.draft_vocab,
    }  # fmt: skip
    if is_latent(arch):
        keys = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        rq, rkv, dn, dr, dv = (int(config.get(key) or 0) for key in keys)
        out |= {"rq": rq, "rkv": rkv, "rkv+dr": rkv + dr, "nh·(dn+dr)": a.heads * (dn + dr),
                "nh·(dn+dv)": a.heads * (dn + dv), "nh·dv": a.heads * dv}  # fmt: skip
    return out


def latent_dims(
    config: Mapping[str, Any], shape: Callable[[str], tuple[int, ...] | None], heads: int
) -> dict[str, int]:
    """The widths of MLA that config.json does not state, solved from the first layer's tensors.

    Args:
        config: as found.
        shape: of a canonical tensor, None when it is not there.
        heads: query heads.
    """

    def of(name: str, axis: int) -> int:
        found = shape(f"layers.0.self_attn.{name}.weight")
        return found[axis] if found and len(found) > axis else 0

    rank, values = of("kv_a_layernorm", 0), of("o_proj", 1) // heads
    solved = {
        "q_lora_rank": of("q_a_layernorm", 0),
        "kv_lora_rank": rank,
        "qk_rope_head_dim": of("kv_a_proj_with_mqa", 0) - rank,
        "v_head_dim": values,
        "qk_nope_head_dim": of("kv_b_proj", 0) // heads - values,
    }
    return {key: value for key, value in solved.items() if config.get(key) is None and value > 0}
