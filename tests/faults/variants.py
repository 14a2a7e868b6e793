"""Every architecture that the forward knows, each as a planted draft that nothing is wrong with.

Each plan says what a trainer would write into config.json for it, so that vLLM's reading is the planted one.
"""

from __future__ import annotations

from planted import Latent, Plan, Shape

from eagle3lab.reading import Reading, Rope

AUX = (2, 4, 5)
BASE = Plan(samples=3, length=44, held=(2, 3, 4, 5), trained=True, linked=2)
"""64 wirings, 99 scored rows and more; below five samples intervals are drawn over rows."""

YARN = (("factor", 4.0), ("original_max_position_embeddings", 64), ("rope_type", "yarn"))
QWEN = ["Eagle3Qwen3ForCausalLM"]


def _plan(shape: Shape | None = None, config: dict[str, object] | None = None, **reading: object) -> Plan:
    return BASE.but(reading=Reading(**{"aux": AUX, **reading}), shape=shape or Shape(), config=config or {})


VARIANTS: dict[str, Plan] = {
    "plain, GQA 4:2": BASE,
    "no grouping, wide heads": _plan(Shape(heads=2, kv_heads=2, head_dim=24)),
    "one kv head": _plan(Shape(heads=4, kv_heads=1)),
    "attention biases": _plan(Shape(bias=True), {"attention_bias": True}, dropped=tuple(sorted(
        n for n in Shape(bias=True).biases if ".self_attn." not in n))),
    "norm over all states (input_norm)": _plan(None, {"norm_before_fc": True}, aux_norm="input_norm").but(norms="input_norm", linked=0),
    "norm of each state (fc_norm)": _plan(None, {"fc_norm": True}, aux_norm="fc_norm").but(norms="fc_norm", linked=0),
    "residual after the norm": _plan(None, {"norm_before_residual": True}, residual="post_norm"),
    "feedback after the norm": _plan(None, {"norm_output": True}, feedback="post_norm"),
    "two layers": _plan(Shape(layers=2), None, second_norm="input_layernorm"),
    "partial rotation": _plan(None, {"partial_rotary_factor": 0.5}, rope=Rope(partial=0.5, limit=512)),
    "RoPE base 500000": _plan(None, {"rope_theta": 500000.0}, rope=Rope(base=500000.0, limit=512)),
    "yarn": _plan(None, {"rope_scaling": dict(YARN)}, rope=Rope(scaling=YARN, limit=512)),
    "sliding window": _plan(None, {"layer_types": ["sliding_attention"], "sliding_window": 8}, window=8),
    "latent attention (MLA)": _plan(
        Shape(latent=Latent(8, 8, 8), q_rank=12, kv_rank=10), {"rope_interleave": True},
        rope=Rope(layout="interleaved", limit=512)),
    "whole vocabulary, no map": _plan(Shape(vocab=48, draft_vocab=48), None, vocab_map="identity"),
    "other width than the target, own table": _plan(
        Shape(hidden=24, target_hidden=32, heads=3, kv_heads=3, head_dim=8), None, embedding="own").but(own_table=True, linked=0),
    "own table": _plan(None, None, embedding="own").but(own_table=True),
    "two states": _plan(Shape(aux=2), None, aux=(2, 5)).but(ids=(2, 5)),
    "four states": _plan(Shape(aux=4), None, aux=(2, 3, 4, 5)).but(ids=(2, 3, 4, 5)),
    "logit_scale": _plan(None, {"logit_scale": 0.25}, logit_scale=0.25),
}  # fmt: skip
"""Name → plan whose configured reading is the planted one."""
