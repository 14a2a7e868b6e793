"""Multi-head latent attention (DeepSeek-V2/V3, Kimi): keys and values of all heads out of one narrow latent.

As transformers 5.8's ``modeling_deepseek_v3.DeepseekV3Attention`` writes it, with the draft's 2H-wide input: q from
``q_b_proj(q_a_layernorm(q_a_proj(x)))``, or from a plain ``q_proj`` where ``q_lora_rank`` is null; the latent and one
rotated key for all heads from ``kv_a_proj_with_mqa``; ``kv_b_proj`` of the normed latent gives each head its unrotated
key and its value. Heads are [unrotated ; rotated]. DeepSeek rotates neighbouring channels (its config's
``rope_interleave``, true unless said; vLLM and SGLang build it with ``is_neox_style=False``): that is the Reading's
layout ``interleaved``. transformers' permuted output differs in the order of channels alone, in queries and keys
alike, so scores are the same. The engines take the config's eps for the two inner norms; transformers takes 1e-6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eagle3lab import rope
from eagle3lab.attention import Pair
from eagle3lab.draft import Draft
from eagle3lab.errors import BadFile, BadShape
from eagle3lab.model import Model
from eagle3lab.norms import rms_norm
from eagle3lab.reading import Reading

KEYS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
"""Keys of config.json without which the tensors cannot be taken apart."""


class LatentHeads:
    """Queries, keys and values of one MLA layer.

    Args:
        model: the draft's weights.
        reading: how it is run.
        prefix: of the tensors' names, e.g. ``layers.0.self_attn.``.
        takes: width of the layer's input.

    Attributes:
        rotated: width that RoPE turns.
        key_dim: qk_nope_head_dim + qk_rope_head_dim.
        value_dim: v_head_dim.
        scale: key_dim^-0.5, times yarn's mscale squared where the config gives ``mscale_all_dim``.

    Raises:
        BadFile: config.json lacks a width.
        BadShape: a tensor is not as those widths want it.
    """

    def __init__(self, model: Model, reading: Reading, prefix: str, takes: int):
        draft = model.draft
        config, file = draft.arch.config, draft.path / "config.json"
        bad = [f"key {key!r} is {config.get(key)!r}, expected the width that MLA tensors are cut by"
               for key in KEYS if not _is_width(config.get(key))]  # fmt: skip
        if bad:
            raise BadFile(file, bad)
        self.model, self.reading, self.prefix = model, reading, prefix
        self.rank, self.nope, self.rotated, self.value_dim = (int(config[key]) for key in KEYS)
        self.heads = self.kv_heads = draft.arch.heads
        self.key_dim = self.nope + self.rotated
        self.scale = self.key_dim**-0.5 * rope.softmax_gain(reading.rope)
        self.low = f"{prefix}q_a_proj.weight" in draft
        self._check(draft, takes)

    def _check(self, draft: Draft, takes: int) -> None:
        """One error for all tensors that do not fit: torch would cut or stretch some of them in silence."""
        p, queries = self.prefix, self.heads * self.key_dim
        q_rank = (draft.shape(f"{p}q_a_proj.weight") or (0,))[0]
        wanted = {
            **({"q_a_proj": (q_rank, takes), "q_a_layernorm": (q_rank,), "q_b_proj": (queries, q_rank)}
               if self.low else {"q_proj": (queries, takes)}),
            "kv_a_proj_with_mqa": (self.rank + self.rotated, takes),
            "kv_a_layernorm": (self.rank,),
            "kv_b_proj": (self.heads * (self.nope + self.value_dim), self.rank),
            "o_proj": (draft.arch.hidden, self.heads * self.value_dim),
        }  # fmt: skip
        for name, shape in wanted.items():
            found = draft.shape(f"{p}{name}.weight")
            if found != shape:
                raise BadShape(
                    f"{p}{name}", f"{draft.path.name}: {'missing' if found is None else list(found)}",
                    f"{list(shape)} is expected of {self.heads} heads of {self.nope} + {self.rotated}, "
                    f"values of {self.value_dim}, latent of {self.rank}, input of {takes}",
                    ["num_attention_heads or one of " + ", ".join(KEYS) + " in config.json belongs to another draft"],
                )  # fmt: skip

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        """X [R, w] → keys [nh, R, nope+rope] and values [nh, R, dv]."""
        p, eps = self.prefix, self.model.draft.arch.eps
        latent, turned = self._linear(x, "kv_a_proj_with_mqa").split((self.rank, self.rotated), -1)
        latent = rms_norm(latent, self.model.weight(f"{p}kv_a_layernorm.weight", x.dtype), eps)
        wide = self._linear(latent, "kv_b_proj").unflatten(-1, (self.heads, -1)).transpose(0, 1)  # [nh, R, nope+dv]
        plain, values = wide.split((self.nope, self.value_dim), -1)
        turned = rope.rotate(turned[None], cos, sin, self.reading.rope.layout)  # [1, R, rope], shared by all heads
        return torch.cat((plain, turned.expand(self.heads, -1, -1)), -1), values

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """X [R, w] → [nh, R, nope+rope]."""
        if self.low:
            norm = self.model.weight(f"{self.prefix}q_a_layernorm.weight", x.dtype)
            q = self._linear(rms_norm(self._linear(x, "q_a_proj"), norm, self.model.draft.arch.eps), "q_b_proj")
        else:
            q = self._linear(x, "q_proj")
        q = q.unflatten(-1, (self.heads, -1)).transpose(0, 1)  # [nh, R, nope+rope]
        plain, turned = q.split((self.nope, self.rotated), -1)
        return torch.cat((plain, rope.rotate(turned, cos, sin, self.reading.rope.layout)), -1)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return self.model.linear(x, self.prefix + name, self.reading)


def _is_width(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
