"""Packed weights: how each form is told by its names; none of them is read, all are refused by name."""

from __future__ import annotations

BESIDE = {
    "SCB": "bitsandbytes LLM.int8()",
    "quant_map": "bitsandbytes, packed 4-bit",
    "absmax": "bitsandbytes, packed 4-bit",
    "weight.absmax": "bitsandbytes, packed 4-bit",
    "weight.quant_map": "bitsandbytes, packed 4-bit",
    "weight_scale_2": "nvfp4 of modelopt, two levels of scales",
    "weight_global_scale": "nvfp4 of compressed-tensors, two levels of scales",
    "pre_quant_scale": "AWQ or SmoothQuant of modelopt: the layer's input is scaled too",
    "biases": "MLX, packed integers with a scale and a bias a group",
    "weight_scales": "EETQ, int8 turned for its own kernel",
}
"""Endings of a layer's tensors that tell a packed form where they stand beside ``weight`` → the form."""

INSTEAD_OF = {
    "qweight": "GPTQ or AWQ, packed 4-bit integers",
    "weight_packed": "compressed-tensors, packed integers or fp4",
    "weight_blocks": "mxfp4, packed 4-bit blocks",
    "weight._data": "quanto, a quantised tensor taken apart",
    "weight_qdata": "torchao, a quantised tensor taken apart",
    "_weight_qdata": "torchao, a quantised tensor taken apart",
    "W_q": "HQQ, packed integers",
    "codes": "AQLM, codes of additive codebooks",
    "Qidxs": "QuIP#, codes of a lattice codebook",
    "q_weight": "EXL2, packed integers of several widths",
    "trellis": "EXL3, a trellis code",
    "centroids": "VPTQ, codes of vectors",
    "dense_weights": "SpQR, packed integers with outliers",
}
"""Endings that stand in the place of ``weight`` → the form."""

FORMS = {**INSTEAD_OF, **BESIDE}

PARTS = (
    *FORMS, "qzeros", "scales", "g_idx", "weight_g_idx", "weight_shape", "weight.nested_absmax",
    "weight.nested_quant_map", "nested_absmax", "nested_quant_map", "weight_format", "input_global_scale",
    "weight._scale", "weight._zeropoint", "weight._shift", "_weight_scale", "_weight_zero_point", "codebooks",
)  # fmt: skip
"""Endings that belong to a packed form and to nothing else."""

NARROW = ("U8", "U16", "U32", "U64", "I16", "I32", "I64", "F4", "F6")
"""Starts of the dtypes that hold packed weights: the stored shape need not be that of the matrix."""


def split(name: str) -> tuple[str, str]:
    """A tensor's layer and its part of it: ``a.b.weight_scale`` → ``a.b``, ``weight_scale``."""
    if ".weight." in name:  # bitsandbytes and quanto hang their state under the weight
        layer, _, rest = name.partition(".weight.")
        return layer, "weight." + ("quant_map" if rest.startswith("quant_state") else rest)
    if name.endswith(("_blocks", "_scales")) and not name.endswith(".weight_scales"):
        return name[:-7], "weight" + name[-7:]  # gpt-oss: gate_up_proj_blocks, gate_up_proj_scales
    layer, _, part = name.rpartition(".")
    return layer, part


def told(parts: dict[str, str]) -> str:
    """The part that tells a layer's packed form, ``""`` where none does.

    Args:
        parts: the layer's parts → their stored names.
    """
    alone = next((part for part in INSTEAD_OF if part in parts), "")
    return alone or next((part for part in BESIDE if part in parts and "weight" in parts), "")
