"""Multi-head latent attention: transformers' own numbers, and the errors of widths that do not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from naive import Cache, Latent, Naive
from planted import Shape, Source, random_weights, write_draft

from eagle3lab.attention import Prefix
from eagle3lab.draft import Draft
from eagle3lab.errors import BadFile, BadShape
from eagle3lab.forward import rollout
from eagle3lab.mla import LatentHeads
from eagle3lab.model import Model
from eagle3lab.reading import Reading, Rope
from eagle3lab.records import Sample
from eagle3lab.rope import softmax_gain, table

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 0.8}  # fmt: skip
ROPE = Rope(scaling=tuple(sorted(YARN.items())), layout="interleaved", limit=256)

RECORDED = {
    # q_lora_rank: {row: first four outputs}, by transformers 5.8.1's DeepseekV3Attention in float64: hidden_size 8, 2
    # heads, kv_lora_rank 6, qk_nope_head_dim 4, qk_rope_head_dim 4, v_head_dim 3, the scaling above, input and weights
    # as `wave` makes them, matrices in the order of their names with k = 0.7, 0.81, …, norms 1 + 0.3 wave
    5: {5: [2.197121, 2.0722039, 1.9252431, 1.7578021], 2: [4.7181012, 4.6080647, 4.4490087, 4.2426252]},
    None: {5: [1.7442356, 1.517412, 1.2744465, 1.0179238], 2: [0.4998143, 0.2261127, -0.0499941, -0.3255691]},
}
SHAPE = Shape(hidden=4, target_hidden=4, heads=2, kv_heads=2, aux=1, latent=Latent(4, 4, 3), kv_rank=6, eps=1e-6)


def wave(shape: tuple[int, ...], k: float) -> np.ndarray:
    return np.sin(np.arange(np.prod(shape)) * k + k).reshape(shape)


def waves(q_rank: int | None) -> tuple[Shape, dict[str, np.ndarray]]:
    shape = Shape(**{**vars(SHAPE), "q_rank": q_rank})
    sizes = shape.attention(8) | {"o_proj": (8, 6)}  # transformers gives back as wide as it takes
    arrays = {name: wave(size, 0.7 + 0.11 * i) for i, (name, size) in enumerate(sorted(sizes.items()))}
    arrays = {name: a if a.ndim == 2 else 1 + 0.3 * a for name, a in arrays.items()}
    arrays["o_proj"] = arrays["o_proj"][:4]
    return shape, {f"layers.0.self_attn.{name}.weight": a.astype(np.float32) for name, a in arrays.items()}


@pytest.mark.parametrize("q_rank", RECORDED)
def test_attention_is_transformers_own(tmp_path, q_rank):
    shape, weights = waves(q_rank)
    write_draft(tmp_path, random_weights(shape, np.random.default_rng(0)) | weights, shape)
    model = Model(Draft(tmp_path, 4, shape.vocab))
    heads = LatentHeads(model, Reading(aux=(0,), rope=ROPE), "layers.0.self_attn.", 8)
    assert heads.scale == pytest.approx(0.43632260634830095)
    x, rows = torch.tensor(wave((6, 8), 1.3), dtype=torch.float32), torch.arange(6)
    turn = table(ROPE, heads.rotated, rows)
    prefix = Prefix(heads.kv_heads, 6, (heads.key_dim, heads.value_dim), torch.float32, torch.device("cpu"))
    prefix.fill(0, heads.keys_values(x, *turn))
    mixed = prefix.attend(heads.queries(x, *turn), rows, [], None, heads.scale)
    out = mixed @ torch.tensor(weights["layers.0.self_attn.o_proj.weight"]).T  # [6, 4]
    for row, expected in RECORDED[q_rank].items():
        assert out[row].tolist() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("q_rank", RECORDED)
def test_the_reference_is_transformers_own(q_rank):
    shape, weights = waves(q_rank)
    everything = random_weights(shape, np.random.default_rng(0)) | weights
    naive = Naive(everything, Reading(aux=(0,), rope=ROPE, embedding="own"), 2, 8, 1e-6, latent=shape.latent)
    cache, x = Cache(), wave((6, 8), 1.3)
    out = [naive._attend(cache, "layers.0.self_attn.", x[t], t) for t in range(6)]
    for row, expected in RECORDED[q_rank].items():
        assert out[row].tolist() == pytest.approx(expected, abs=2e-5)


def test_the_softmax_gain_is_yarns_mscale_squared():
    assert softmax_gain(ROPE) == pytest.approx((0.1 * 0.8 * np.log(4) + 1) ** 2)
    assert softmax_gain(Rope()) == 1.0
    without = {k: v for k, v in YARN.items() if k != "mscale_all_dim"}
    assert softmax_gain(Rope(scaling=tuple(sorted(without.items())))) == 1.0


def run(folder) -> None:
    sample = Sample("s", "s", torch.arange(5), torch.ones(5), {0: torch.zeros(5, 4)})
    model = Model(Draft(folder, 4, SHAPE.vocab), Source.draw(SHAPE, np.random.default_rng(0)))
    rollout(model, sample, Reading(aux=(0,)), 1)


@pytest.mark.parametrize(
    ("key", "value", "error", "text"),
    [
        ("kv_lora_rank", 0, BadFile, "key 'kv_lora_rank' is 0"),
        (
            "qk_nope_head_dim",
            5,
            BadShape,
            r"q_proj.*\[16, 8\] gives width 16; width 18 is expected.*qk_nope_head_dim 5",
        ),
        ("v_head_dim", 4, BadShape, r"kv_b_proj.*\[14, 6\] gives width 14; width 16 is expected.*v_head_dim 4"),
    ],
)
def test_widths_that_do_not_fit_are_named(tmp_path, key, value, error, text):
    write_draft(tmp_path, random_weights(SHAPE, np.random.default_rng(0)), SHAPE)
    run(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(error, match=f"(?s){text}"):
        run(tmp_path)
