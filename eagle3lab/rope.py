"""Rotary position embedding: frequencies by scaling rule, rotation by layout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from eagle3lab.errors import Blocked
from eagle3lab.reading import Rope

NEEDED: dict[str, tuple[str, ...]] = {
    "default": (), "mrope": (), "linear": ("factor",), "dynamic": ("factor",), "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}  # fmt: skip
"""Kinds of scaling that the lab computes, and the numbers without which they cannot be."""


def frequencies(rope: Rope, head_dim: int, positions: int) -> tuple[Tensor, float]:
    """Inverse frequencies and the factor on cos and sin.

    The rules of ``hf`` are those of transformers' ``modeling_rope_utils``; ``specforge`` differs for ``dynamic`` (its
    cache is built past the limit, so it always scales) and for yarn's mscale (ratio of both mscales with SpecForge's
    own defaults 1 and 0, which are DeepSeek's as well).

    Args:
        rope: the Reading's rope.
        head_dim: d.
        positions: number of positions that will be used (``dynamic`` depends on it).

    Returns:
        inv_freq float32 [r/2] with r the rotated width, and the attention factor.

    Raises:
        Blocked: a kind of scaling that the lab does not compute, or one whose numbers are missing; the text names both.
    """
    rotated = int(head_dim * rope.partial)
    if rotated < 2 or rotated % 2:
        raise Blocked(f"config.json: partial_rotary_factor {rope.partial} of head_dim {head_dim} rotates {rotated} "
                      "channels, expected an even number")  # fmt: skip
    exponents = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated  # [r/2]
    scaling = dict(rope.scaling)
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    missing = [key for key in NEEDED.get(kind, ()) if scaling.get(key) is None]
    if missing:
        raise Blocked(f"config.json: rope scaling {kind!r} lacks {', '.join(missing)}; expected numbers")
    if odd := _odd(rope, scaling, kind):
        raise Blocked(f"rope scaling {kind!r}: {'; '.join(odd)}")
    if kind in ("default", "mrope"):
        return 1.0 / rope.base**exponents, 1.0
    if kind == "linear":
        return 1.0 / rope.base**exponents / float(scaling["factor"]), 1.0
    if kind == "dynamic":
        if rotated == 2:
            raise Blocked("config.json: rope scaling 'dynamic' of 2 rotated channels has no finite base; "
                          "expected 4 or more")  # fmt: skip
        return 1.0 / _dynamic_base(rope, scaling, rotated, positions) ** exponents, 1.0
    if kind == "llama3":
        return _llama3(1.0 / rope.base**exponents, scaling), 1.0
    if kind == "yarn":
        return _yarn(rope, exponents, scaling, rotated)
    raise Blocked(f"config.json: rope scaling {kind!r} is not known to the lab; known: {', '.join(NEEDED)}")


def _odd(rope: Rope, scaling: dict[str, Any], kind: str) -> list[str]:
    """Numbers that give no frequencies, or infinite ones: one sentence each."""
    lengths = (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
    )
    used = [key for key in lengths if scaling.get(key) is not None]
    out = [f"{key} is {scaling[key]!r}, expected a number above 0" for key in used if not _above_zero(scaling[key])]
    out += [f"{key} is {scaling[key]!r}, expected a number" for key in ("mscale", "mscale_all_dim", "attention_factor")
            if scaling.get(key) is not None and not (_above_zero(scaling[key]) or scaling[key] == 0)]  # fmt: skip
    if kind == "llama3" and not out and scaling["low_freq_factor"] == scaling["high_freq_factor"]:
        out.append(f"low_freq_factor and high_freq_factor are both {scaling['low_freq_factor']}, expected two numbers")
    if kind == "yarn" and rope.base <= 1:
        out.append(f"rope_theta is {rope.base:g}, expected a number above 1")
    return out


def _above_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _dynamic_base(rope: Rope, scaling: dict[str, Any], rotated: int, positions: int) -> float:
    limit = int(scaling.get("original_max_position_embeddings") or rope.limit or positions)
    # SpecForge builds its table for limit + 20 rows at construction and so scales from the first token on
    length = max(positions, limit + 20) if rope.rule == "specforge" else max(positions, limit)
    factor = float(scaling["factor"])
    return float(rope.base * ((factor * length / limit) - (factor - 1)) ** (rotated / (rotated - 2)))


def _llama3(plain: Tensor, scaling: dict[str, Any]) -> Tensor:
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    original = float(scaling["original_max_position_embeddings"])
    wavelength = 2 * math.pi / plain  # [r/2]
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * plain / factor + smooth * plain
    slow = torch.where(wavelength > original / low, plain / factor, blended)
    return torch.where(wavelength < original / high, plain, slow)


def _yarn(rope: Rope, exponents: Tensor, scaling: dict[str, Any], rotated: int) -> tuple[Tensor, float]:
    factor = float(scaling["factor"])
    original = float(scaling.get("original_max_position_embeddings") or rope.limit or 2048)
    fast, slow = float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1)

    def correction(rotations: float) -> float:
        return rotated * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = correction(fast), correction(slow)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    steps = torch.arange(rotated // 2, dtype=torch.float32)
    ramp = ((steps - low) / max(high - low, 0.001)).clamp(0, 1)  # 0: keep, 1: interpolate
    plain = 1.0 / rope.base**exponents
    return plain / factor * ramp + plain * (1 - ramp), _yarn_factor(rope, scaling, factor)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn_factor(rope: Rope, scaling: dict[str, Any], factor: float) -> float:
    given, over_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if rope.rule == "specforge":
        return _mscale(factor, float(given if given is not None else 1)) / _mscale(factor, float(over_all or 0))
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if given and over_all:
        return _mscale(factor, float(given)) / _mscale(factor, float(over_all))
    return _mscale(factor, 1.0)


def softmax_gain(rope: Rope) -> float:
    """What DeepSeek's attention multiplies its softmax scale with: yarn's mscale of ``mscale_all_dim``, squared.

    1 without yarn, or where ``mscale_all_dim`` is 0 or not given (transformers' ``DeepseekV3Attention``).
    """
    scaling = dict(rope.scaling)
    over_all = scaling.get("mscale_all_dim")
    if scaling.get("rope_type", scaling.get("type")) != "yarn" or not over_all:
        return 1.0
    return _mscale(float(scaling["factor"]), float(over_all)) ** 2


def table(rope: Rope, head_dim: int, positions: Tensor, length: int | None = None) -> tuple[Tensor, Tensor]:
    """Cos and sin in float32, each [R, r/2], for ``positions`` [R].

    Args:
        rope: the Reading's rope.
        head_dim: d.
        positions: int64 [R].
        length: number of positions of the whole run, which ``dynamic`` scales by; up to the last one when None.
    """
    inverse, factor = frequencies(rope, head_dim, length or (int(positions.max()) + 1 if positions.numel() else 1))
    angles = positions.float()[:, None] * inverse.to(positions.device)  # [R, r/2]
    return angles.cos() * factor, angles.sin() * factor


def rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Rotates the first r channels of ``x`` [heads, R, d]; the others pass."""
    width = cos.shape[-1]
    turned, rest = x[..., : 2 * width], x[..., 2 * width :]
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    if layout == "interleaved":
        a, b = turned[..., ::2], turned[..., 1::2]
        out = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = turned[..., :width], turned[..., width:]
        out = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return torch.cat((out, rest), -1) if rest.shape[-1] else out
