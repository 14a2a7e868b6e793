"""RoPE: frequencies as transformers computes them, rotation by layout, positions that only count as differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import inverse_frequencies, turn

from eagle3lab.errors import Blocked
from eagle3lab.reading import Rope
from eagle3lab.rope import frequencies, rotate, table

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
BETAS = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 16.0,
         "beta_slow": 2.0, "mscale": 0.707, "mscale_all_dim": 1.0}  # fmt: skip

RECORDED = {
    # name: (base, scaling, positions, frequencies, factor), printed by transformers 5.24.0's modeling_rope_utils with
    # head_dim 16 and max_position_embeddings 2048
    "linear": (1e4, {"rope_type": "linear", "factor": 4.0}, 1,
        [0.25, 0.079056941, 0.025, 0.0079056947, 0.0024999999, 0.00079056947, 0.00025, 7.9056947e-05], 1.0),
    "dynamic, within the limit": (1e4, {"rope_type": "dynamic", "factor": 2.0}, 100,
        [1.0, 0.31622776, 0.1, 0.031622779, 0.01, 0.0031622779, 0.001, 0.00031622779], 1.0),
    "dynamic, past the limit": (1e4, {"rope_type": "dynamic", "factor": 2.0}, 3000,
        [1.0, 0.28788307, 0.082876667, 0.023858791, 0.0068685426, 0.0019773371, 0.00056924188, 0.00016387513], 1.0),
    "llama3": (5e5, LLAMA3, 1,
        [1.0, 0.079403013, 0.0047007538, 0.00091158313, 0.00017677668, 3.4281024e-05, 6.6478697e-06, 1.2891732e-06],
        1.0),
    "yarn": (1e4, YARN, 1,
        [1.0, 0.25693506, 0.0625, 0.013834965, 0.0025, 0.00079056947, 0.00025, 7.9056947e-05], 1.138629436111989),
    "yarn, betas and both mscales": (1e6, BETAS, 1,
        [1.0, 0.17782794, 0.031622779, 0.0028819994, 2.5e-05, 4.4456983e-06, 7.905694e-07, 1.4058533e-07],
        0.9210423553163399),
    "yarn, attention factor given": (1e4, YARN | {"attention_factor": 1.25}, 1,
        [1.0, 0.25693506, 0.0625, 0.013834965, 0.0025, 0.00079056947, 0.00025, 7.9056947e-05], 1.25),
    "yarn, mscale_all_dim 0": (1e4, YARN | {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.0}, 1,
        [1.0, 0.23914725, 0.05125, 0.0084986221, 0.00025, 7.9056947e-05, 2.5e-05, 7.9056945e-06], 1.3688879454113936),
    "yarn, not truncated": (1e4, YARN | {"truncate": False}, 1,
        [1.0, 0.30140647, 0.070398636, 0.014383359, 0.0025, 0.00079056947, 0.00025, 7.9056947e-05], 1.138629436111989),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_frequencies_are_transformers_own(name):
    base, scaling, positions, expected, factor = RECORDED[name]
    rope = Rope(base=base, scaling=tuple(sorted(scaling.items())), limit=2048)
    found, attention = frequencies(rope, 16, positions)
    assert found.tolist() == pytest.approx(expected, rel=2e-6)
    assert attention == pytest.approx(factor)


@pytest.mark.parametrize(("base", "scaling"), [(1e4, {}), (5e5, LLAMA3), (1e4, YARN)])
def test_the_naive_reference_agrees(base, scaling):
    """Written apart from the same formulas: a slip in either shows."""
    rope = Rope(base=base, scaling=tuple(sorted(scaling.items())), limit=2048)
    found, factor = frequencies(rope, 64, 1)
    expected, theirs = inverse_frequencies(rope, 64)
    assert found.tolist() == pytest.approx(expected, rel=2e-6)
    assert factor == pytest.approx(theirs)


def test_by_hand():
    """d 4, base 100: frequencies 100^0 and 100^(-1/2); partial 1/2 leaves one pair of width 2."""
    assert frequencies(Rope(base=100.0), 4, 1)[0].tolist() == pytest.approx([1.0, 0.1])
    assert frequencies(Rope(base=100.0, partial=0.5), 4, 1)[0].tolist() == pytest.approx([1.0])


def test_specforges_dynamic_scales_from_the_first_token():
    """Its table is built for limit + 20 rows, so its base grows by (factor·(L+20)/L - (factor-1))^(d/(d-2))."""
    scaling = (("factor", 2.0), ("rope_type", "dynamic"))
    mine, _ = frequencies(Rope(scaling=scaling, rule="specforge", limit=2048), 16, 10)
    theirs, _ = frequencies(Rope(scaling=scaling, rule="hf", limit=2048), 16, 10)
    base = 1e4 * (2 * 2068 / 2048 - 1) ** (16 / 14)
    assert mine.tolist() == pytest.approx([base ** (-i / 16) for i in range(0, 16, 2)], rel=2e-6)
    assert theirs.tolist() == pytest.approx([1e4 ** (-i / 16) for i in range(0, 16, 2)], rel=2e-6)


def test_specforges_yarn_takes_the_ratio_of_both_mscales():
    """golden README: mscale_all_dim 0 and mscale 0.707 give 1.098 there and 1.139 elsewhere, at factor 4."""
    scaling = tuple(sorted((YARN | {"mscale": 0.707, "mscale_all_dim": 0.0}).items()))
    assert frequencies(Rope(scaling=scaling, rule="specforge"), 16, 1)[1] == pytest.approx(1.098, abs=5e-4)
    assert frequencies(Rope(scaling=scaling, rule="hf"), 16, 1)[1] == pytest.approx(1.139, abs=5e-4)


@pytest.mark.parametrize(
    ("rope", "text"),
    [
        (Rope(scaling=(("rope_type", "longrope"),)), "longrope"),
        (Rope(scaling=(("rope_type", "linear"),)), "lacks factor"),
        (Rope(scaling=(("factor", 8.0), ("rope_type", "llama3"))), "lacks low_freq_factor, high_freq_factor, orig"),
        (Rope(partial=0.1), "rotates 1 channels"),
    ],
)
def test_what_cannot_be_computed_is_named(rope, text):
    with pytest.raises(Blocked, match=text):
        frequencies(rope, 16, 1)


def rotated(x: torch.Tensor, positions: torch.Tensor, rope: Rope) -> torch.Tensor:
    return rotate(x, *table(rope, x.shape[-1], positions), rope.layout)


def test_a_quarter_turn_by_hand():
    """One pair at frequency 1, turned by π/2: (a, b) becomes (-b, a)."""
    x = torch.tensor([[[3.0, 5.0]]])  # [heads, R, d]
    cos, sin = torch.tensor([[0.0]]), torch.tensor([[1.0]])
    assert rotate(x, cos, sin, "half").tolist() == [[[-5.0, 3.0]]]
    # four channels: half pairs 0 with 2 and 1 with 3, interleaved 0 with 1 and 2 with 3
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    cos, sin = torch.zeros(1, 2), torch.ones(1, 2)
    assert rotate(x, cos, sin, "half").tolist() == [[[-3.0, -4.0, 1.0, 2.0]]]
    assert rotate(x, cos, sin, "interleaved").tolist() == [[[-2.0, 1.0, -4.0, 3.0]]]
    # channels past the rotated width pass
    assert rotate(x, torch.zeros(1, 1), torch.ones(1, 1), "half").tolist() == [[[-2.0, 1.0, 3.0, 4.0]]]


@settings(max_examples=50, derandomize=True, deadline=None, database=None)
@given(st.integers(0, 2000), st.sampled_from(["half", "interleaved"]), st.sampled_from([1.0, 0.5]), st.integers(0, 99))
def test_rotation_is_the_naive_one(position, layout, partial, seed):
    rope = Rope(layout=layout, partial=partial)
    x = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(seed))
    found = rotated(x, torch.tensor([position]), rope)
    for head in range(2):
        expected = turn(x[head, 0].double().numpy(), position, rope)
        # angles in float32: 2000 radians are known to 1e-4
        assert found[head, 0].tolist() == pytest.approx(expected, abs=1e-3)


def test_interleaved_is_half_with_channels_paired_otherwise():
    """GGUF stores the two channels of a pair side by side; the permutation between the two turns one into the other."""
    x, positions = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0)), torch.arange(5)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])  # even channels, then odd ones
    half = rotated(x[..., order], positions, Rope(layout="half"))
    assert torch.allclose(rotated(x, positions, Rope(layout="interleaved"))[..., order], half)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_only_differences_of_positions_count(layout):
    """faults.md D: all positions plus a constant change nothing, so such a fault can never be seen."""
    rope = Rope(layout=layout)
    q, k = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(2))

    def score(at: int, other: int) -> float:
        return float((rotated(q, torch.tensor([at]), rope) * rotated(k, torch.tensor([other]), rope)).sum())

    assert score(9, 4) == pytest.approx(score(109, 104), abs=1e-4)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-2)
    assert score(0, 0) == pytest.approx(float((q * k).sum()), abs=1e-5)


def test_the_factor_scales_cos_and_sin():
    """Yarn's attention factor: scores grow by its square."""
    rope = Rope(scaling=tuple(sorted(YARN.items())))
    cos, sin = table(rope, 16, torch.arange(7))
    expected = torch.full((7, 8), (0.1 * math.log(4) + 1) ** 2)
    assert torch.allclose(cos**2 + sin**2, expected)
    assert table(Rope(), 16, torch.empty(0, dtype=torch.long))[0].shape == (0, 8)
