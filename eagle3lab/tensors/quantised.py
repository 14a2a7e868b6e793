"""Quantised weights: which form each one has, and how to read it; a form that is not understood is refused by name.

Every scale that is read here multiplies. ``weight_scale``: compressed-tensors 0.20 ``_dequantize`` computes
``(q - zero_point) * scale``, modelopt and vLLM the same. ``weight_scale_inv``: the name means the inverse of the factor
used on quantising, so it multiplies too (compressed-tensors ``fp8block_dequantizer.py``, DeepSeek-V3
``weight_dequant``). ``scale`` is the name DeepSeek's own conversion gives the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle3lab import hubcache
from eagle3lab.errors import Blocked
from eagle3lab.records import TensorInfo
from eagle3lab.tensors import TensorFiles, packed

FLOATS = ("F64", "F32", "F16", "BF16")
FP8 = ("F8_E4M3", "F8_E5M2")
INTEGERS = ("I8", "I16", "I32", "I64")
WHOLE = ("bias", "mask_hidden")
"""Parts that nobody quantises."""

SCALES = ("weight_scale", "weight_scale_inv", "scale")
ZEROS = ("weight_zero_point", "zero_point")
DEEPSEEK = (128, 128)
AT_ONCE = 4 << 20  # weights dequantised at once, which bounds memory beside the result
INSTEAD = "dequantise it with the program that wrote it, or export the checkpoint in bf16"

UNUSED = {
    "input_scale": "quantises the layer's input; the lab computes with the input as it is",
    "input_zero_point": "quantises the layer's input; the lab computes with the input as it is",
    "act_scale": "quantises the layer's input; the lab computes with the input as it is",
    "activation_scale": "quantises the layer's input; the lab computes with the input as it is",
    "output_scale": "quantises the layer's output; the lab keeps it as it is",
    "k_scale": "quantises keys in the engine's cache; the lab keeps them as they are",
    "v_scale": "quantises values in the engine's cache; the lab keeps them as they are",
    "q_scale": "quantises queries in the engine's attention; the lab keeps them as they are",
    "prob_scale": "quantises attention weights in the engine; the lab keeps them as they are",
    "kv_scale": "quantises keys and values in the engine's cache; the lab keeps them as they are",
}
"""Scales of what is not a weight → why the lab does not use them."""


@dataclass(frozen=True)
class Form:
    """How one weight is stored.

    Attributes:
        kind: ``plain``, or in words, e.g. ``fp8, one scale a block of 128 x 128``.
        scale: name of the scale tensor, ``""`` for a plain weight.
        zero: name of the zero-point tensor, ``""`` when there is none.
        block: (rows, columns) that one scale covers.
        refused: why it is not read, ``""`` when it is.
        packed: True where the stored shape need not be that of the matrix.
    """

    kind: str = "plain"
    scale: str = ""
    zero: str = ""
    block: tuple[int, int] = (0, 0)
    refused: str = ""
    packed: bool = False

    @property
    def plain(self) -> bool:
        """Whether the weight is read as stored."""
        return not self.scale and not self.refused


PLAIN = Form()


def forms(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any] | None = None) -> dict[str, Form]:
    """The form of every weight and bias, and of weights of which only packed parts are there.

    A dtype that is not among those read here is refused, whatever its name: its numbers would be taken for others.

    Args:
        tensors: the checkpoint's header entries by stored name.
        config: ``config.json`` (its ``quantization_config`` counts) or ``hf_quant_config.json``.
    """
    layers: dict[str, dict[str, str]] = {}
    for name in tensors:
        layer, part = packed.split(name)
        layers.setdefault(layer, {}).setdefault(part, name)
    stated = _blocks(config or {})
    out = {}
    for layer, parts in layers.items():
        sign = packed.told(parts)
        prefix = f"{layer}." if layer else ""
        if sign:
            narrow = "weight" not in parts or tensors[parts["weight"]].dtype.startswith(packed.NARROW)
            out[f"{prefix}weight"] = _refused(packed.FORMS[sign], parts[sign], narrow)
        elif "weight" in parts:
            out[f"{prefix}weight"] = _form(tensors, layer, parts, stated)
        for part in WHOLE:
            if part in parts and tensors[parts[part]].dtype not in FLOATS:
                out[parts[part]] = _refused(f"{tensors[parts[part]].dtype} numbers", parts[part])
    return out


def refuse_integers(tensors: Mapping[str, TensorInfo]) -> dict[str, Form]:
    """The forms of a GGUF: all that GGML quantises is dequantised on reading, plain integers are no weights."""
    return {
        name: _refused(f"{info.dtype} numbers", name)
        for name, info in tensors.items()
        if name.endswith((".weight", ".bias")) and info.dtype in INTEGERS
    }


def companions(tensors: Mapping[str, TensorInfo], found: Mapping[str, Form]) -> dict[str, str]:
    """Tensors that belong to quantisation, by stored name → what they are for, or why they are not used."""
    used = {form.scale: name for name, form in found.items() if form.scale}
    zeros = {form.zero: name for name, form in found.items() if form.zero}
    out = {}
    for name in tensors:
        layer, part = packed.split(name)
        weight = f"{layer}.weight" if layer else "weight"
        form = found.get(weight, PLAIN)
        if name in used:
            out[name] = f"scale of {used[name]}: multiplied on reading"
        elif name in zeros:
            out[name] = f"zero point of {zeros[name]}: taken off before scaling"
        elif part in UNUSED:
            out[name] = UNUSED[part]
        elif part in packed.PARTS or (form.packed and part not in ("weight", *WHOLE)):
            out[name] = f"part of {weight}, which is packed and not read"
        elif part in (*SCALES, *ZEROS) and weight in found:
            words = "which is not read" if form.refused else f"which is {tensors[weight].dtype}: not applied"
            out[name] = f"scale of {weight}, {words}"
    return out


def read(tensors: TensorFiles, name: str, form: Form, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weight, dequantised to ``dtype`` where it is quantised, else as stored.

    Raises:
        Blocked: the form is refused.
    """
    stored = _stored(tensors, name, form)
    if form.plain:
        return stored
    out = torch.empty(stored.shape, dtype=dtype)
    flat, into = (stored, out) if stored.ndim == 2 else (stored.reshape(1, -1), out.view(1, -1))
    step = max(1, AT_ONCE // max(flat.shape[1], 1))
    for at in range(0, len(flat), step):
        index = torch.arange(at, min(at + step, len(flat)))
        into[at : at + step] = _scaled(tensors, flat[at : at + step], index, form)
    return out


def rows(tensors: TensorFiles, name: str, index: Tensor, form: Form, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows ``index`` [R] of the weight → [R, width]; only they are read and dequantised.

    Raises:
        Blocked: the form is refused.
    """
    if form.refused or (not form.plain and len(tensors[name].shape) != 2):
        return read(tensors, name, form, dtype)[index]
    if form.plain:
        return tensors.rows(name, index)
    width = tensors[name].shape[1]
    out = torch.empty(len(index), width, dtype=dtype)
    step = max(1, AT_ONCE // max(width, 1))
    for at in range(0, len(index), step):
        here = index[at : at + step]
        out[at : at + step] = _scaled(tensors, tensors.rows(name, here), here, form)
    return out


def _stored(tensors: TensorFiles, name: str, form: Form) -> Tensor:
    if form.refused:
        raise Blocked(f"{hubcache.label(tensors.path)}: tensor {name!r}: {form.refused}")
    return tensors.read(name)


def _scaled(tensors: TensorFiles, stored: Tensor, index: Tensor, form: Form) -> Tensor:
    """Rows ``stored`` [R, width] that stand at places ``index`` [R] → (stored - zero) * scale, float32."""
    out = stored.float()
    high, wide = form.block
    for name, apply in ((form.zero, out.sub_), (form.scale, out.mul_)):
        if name:
            grid = tensors.read(name).float()
            grid = grid.reshape(-1, 1) if grid.ndim < 2 else grid  # [R / high, width / wide]
            apply(grid[index // high].repeat_interleave(wide, 1)[:, : out.shape[1]])
    return out


def _refused(kind: str, name: str, narrow: bool = False) -> Form:
    return Form(kind, refused=f"{kind} ({name}), a form the lab does not read; {INSTEAD}", packed=narrow)


def _form(
    tensors: Mapping[str, TensorInfo], layer: str, parts: Mapping[str, str], stated: list[tuple[int, int]]
) -> Form:
    """The form of a weight that is there under its own name."""
    prefix = f"{layer}." if layer else ""
    info = tensors[f"{prefix}weight"]
    word = "fp8" if info.dtype in FP8 else "int8" if info.dtype == "I8" else ""
    if info.dtype in FLOATS:
        return PLAIN
    if not word:
        return _refused(f"{info.dtype} weights", info.name, info.dtype.startswith(packed.NARROW))
    scale = next((part for part in SCALES if part in parts), "")
    if not scale:
        why = f"{info.dtype} without a scale (weight_scale, weight_scale_inv); {INSTEAD}"
        return Form(f"{word} without a scale", refused=why)
    held = tensors[prefix + scale]
    if held.dtype not in FLOATS:
        return _refused(f"{word} with scales in {held.dtype} (mxfp8 or another two-level form)", prefix + scale)
    block = _block(info.shape, held.shape, stated)
    if block is None:
        why = f"{word}: {scale} {list(held.shape)} fits {list(info.shape)} neither whole, nor by row, nor in blocks of "
        return Form(word, refused=f"{why}{stated or [DEEPSEEK]}; {INSTEAD}")
    zero = next((prefix + part for part in ZEROS if part in parts), "")
    if zero and tensors[zero].shape != held.shape:
        why = f"{word}: zero point {list(tensors[zero].shape)}, expected the scale's {list(held.shape)}; {INSTEAD}"
        return Form(word, refused=why)
    return Form(f"{word}, {_words(info.shape, block)}", prefix + scale, zero, block)


def _block(shape: tuple[int, ...], scale: tuple[int, ...], stated: list[tuple[int, int]]) -> tuple[int, int] | None:
    """(rows, columns) that one scale covers, None when the shapes do not tell."""
    high, wide = (shape[0], shape[1]) if len(shape) == 2 else (1, max(1, _count(shape)))
    if _count(scale) == 1:
        return max(1, high), wide
    if len(shape) != 2:
        return None
    if scale in ((high,), (high, 1)):
        return 1, wide
    if len(scale) != 2:
        return None
    for block in stated or [DEEPSEEK]:
        if scale == (-(-high // block[0]), -(-wide // block[1])):
            return block
    return (1, wide // scale[1]) if scale[0] == high and wide % scale[1] == 0 else None


def _words(shape: tuple[int, ...], block: tuple[int, int]) -> str:
    if len(shape) != 2 or block == (max(1, shape[0]), shape[1]):
        return "one scale a tensor"
    if block == (1, shape[1]):
        return "one scale a row"
    return f"one scale a block of {block[0]} x {block[1]}"


def _count(shape: tuple[int, ...]) -> int:
    out = 1
    for size in shape:
        out *= size
    return out


def _blocks(config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Block sizes that a config states: ``weight_block_size`` (HF, DeepSeek), ``block_structure`` or ``group_size``."""
    quant = config.get("quantization_config") or config.get("quantization") or {}
    tables = [quant] if isinstance(quant, Mapping) else []
    for key in ("config_groups", "quantized_layers"):
        groups = tables[0].get(key) if tables else None
        if isinstance(groups, Mapping):
            tables += [g for g in groups.values() if isinstance(g, Mapping)]
    tables += [t["weights"] for t in tables if isinstance(t.get("weights"), Mapping)]
    out = []
    for table in tables:
        for key in ("weight_block_size", "block_structure"):
            size = table.get(key)
            if isinstance(size, str) and size.count("x") == 1:
                size = [int(n) if n.isdecimal() else 0 for n in size.split("x")]
            if isinstance(size, list) and len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size):
                out.append((size[0], size[1]))
        group = table.get("group_size")
        if isinstance(group, int) and not isinstance(group, bool) and group > 0:
            out.append((1, group))
    return list(dict.fromkeys(out))
