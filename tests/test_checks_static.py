"""Planted damage to checkpoints and maps that files alone show: fresh weights, lost shards, rival maps, odd configs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from eagle3lab.case import open_case
from eagle3lab.checks import fresh, maps
from eagle3lab.checks.maps import rivals
from eagle3lab.draft import Draft
from eagle3lab.records import Finding, Severity
from eagle3lab.stats import best_step, likeness
from eagle3lab.vocab import VocabMap

FAIL, WARN, INFO, PASS = Severity.FAIL, Severity.WARN, Severity.INFO, Severity.PASS
WIDE = 128


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_case(tmp_path).parent


def found(folder: Path, stage: str, code: str) -> list[Finding]:
    return [f for f in open_case(folder).findings(stage) if f.code == code]


def trained(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Like a trained matrix: a few strong directions, rows and columns of many sizes, heavy tails."""
    rand = tiny._random(seed)
    strong = rand(rows, 4) @ rand(4, columns) / 4
    return (strong + 0.5 * rand(rows, columns)) * (0.3 + rand(rows, 1).abs()) * (0.3 + rand(1, columns).abs()) * 0.02


def wide_draft(folder: Path, change: Callable[[tiny.Tensors], Any] = lambda t: None, **config: Any) -> Path:
    """A draft with matrices large enough to tell trained from fresh, alone in its folder."""
    h, q = WIDE, 8 * 16
    tensors = {
        "fc.weight": trained(h, 3 * h, 1),
        "lm_head.weight": trained(256, h, 2),
        "norm.weight": 1 + 0.1 * tiny._random(3)(h),
        "d2t": torch.arange(256),
        "t2d": torch.arange(512) % 2 == 0,
    }
    for i, (name, rows, columns) in enumerate((
        ("self_attn.q_proj", q, 2 * h), ("self_attn.k_proj", q, 2 * h), ("self_attn.v_proj", q, 2 * h), ("self_attn.o_proj", h, q),
        ("mlp.gate_proj", 192, h), ("mlp.up_proj", 192, h), ("mlp.down_proj", h, 192),
    )):  # fmt: skip
        tensors[f"midlayer.{name}.weight"] = trained(rows, columns, 10 + i)
    for i, norm in enumerate(("input_layernorm", "hidden_norm", "post_attention_layernorm")):
        tensors[f"midlayer.{norm}.weight"] = 1 + 0.1 * tiny._random(30 + i)(h)
    change(tensors)
    words = tiny.draft_config(
        hidden_size=h, num_attention_heads=8, num_key_value_heads=8, head_dim=16, intermediate_size=192, vocab_size=512,
        draft_vocab_size=256, **config,
    )  # fmt: skip
    return tiny.write_folder(folder, tensors, words)


def put(name: str, value: torch.Tensor) -> Callable[[tiny.Tensors], Any]:
    return lambda tensors: tensors.update({name: value})


def checked(
    folder: Path, code: str, change: Callable[[tiny.Tensors], Any] = lambda t: None, **config: Any
) -> list[Finding]:
    return [f for f in fresh.check(Draft(wide_draft(folder / "wide", change, **config)), None) if f.code == code]


Q = "midlayer.self_attn.q_proj.weight"
UNIFORM = (torch.rand(256, WIDE, generator=torch.Generator().manual_seed(4)) * 2 - 1) / WIDE**0.5
FRESH = {
    "q_proj as initializer_range": (put(Q, 0.02 * tiny._random(5)(128, 2 * WIDE)), "normal, std 0.0"),
    "lm_head as torch's Linear": (put("lm_head.weight", UNIFORM), "uniform"),
    "fc in bfloat16": (put("fc.weight", (0.02 * tiny._random(6)(WIDE, 3 * WIDE)).bfloat16()), "initializer_range"),
}  # fmt: skip


@pytest.mark.parametrize("name", FRESH)
def test_w010_names_a_fresh_matrix_and_no_other(tmp_path, name):
    change, says = FRESH[name]
    (one,) = checked(tmp_path, "W010", change)
    assert one.severity == WARN
    assert says in one.measured
    assert len(one.where.split(", ")) == 1


def test_w010_lets_trained_weights_pass(tmp_path):
    assert [f.severity for f in checked(tmp_path, "W010")] == [PASS]


def test_w010_says_nothing_of_small_matrices(folder):
    assert not found(folder, "weights", "W010")  # tiny's are random, and too small to tell


def test_w010_is_said_of_the_whole_checkpoint_where_nothing_was_trained(tmp_path):
    def all_fresh(tensors: tiny.Tensors) -> None:
        tensors.update({n: 0.02 * tiny._random(i)(*t.shape) for i, (n, t) in enumerate(tensors.items()) if t.ndim == 2})

    (one,) = checked(tmp_path, "W010", all_fresh)
    assert one.title.startswith("every weight looks")


@pytest.mark.parametrize(("every", "severity"), [(False, WARN), (True, Severity.UNDETERMINED)])
def test_w010_tells_one_made_up_norm_from_frozen_ones(folder, every, severity):
    def ones(tensors: tiny.Tensors) -> None:
        for name, t in tensors.items():
            if "norm" in name and (every or "hidden_norm" in name):
                t.fill_(1)

    tiny.edit(folder / "draft" / "model.safetensors", ones)
    assert [f.severity for f in found(folder, "weights", "W010")] == [severity]


def own_table(folder: Path, change: Callable[[torch.Tensor], Any] = lambda t: None) -> None:
    table = tiny.target_tensors()["model.embed_tokens.weight"].clone()
    change(table)
    tiny.edit(folder / "draft" / "model.safetensors", put("embed_tokens.weight", table))


TABLES = {
    "the target's": (lambda t: None, PASS, "target's own table"),
    "trained on": (lambda t: t.add_(0.1 * tiny._random(7)(64, 16)), INFO, "trained on from"),
    "its own": (lambda t: t.copy_(tiny._random(8)(64, 16)), INFO, "unrelated"),
    "trained on where text was": (lambda t: t[:20].add_(0.1 * tiny._random(7)(20, 16)), INFO, "trained on from"),
    "half of it": (lambda t: t[:32].copy_(tiny._random(8)(32, 16)), WARN, "other ways than the rest"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_w011_compares_the_table_block_by_block(folder, name):
    change, severity, says = TABLES[name]
    own_table(folder, change)
    (one,) = found(folder, "weights", "W011")
    assert one.severity == severity
    assert says in one.title
    assert "0…7" in one.measured


def test_w011_takes_bfloat16_for_rounding(folder):
    table = tiny.target_tensors()["model.embed_tokens.weight"].bfloat16()
    tiny.edit(folder / "draft" / "model.safetensors", put("embed_tokens.weight", table))
    assert [f.severity for f in found(folder, "weights", "W011")] == [PASS]


def test_w011_leaves_another_width_alone(folder):
    tiny.write_folder(folder / "draft", tiny.draft_tensors(hidden=20) | {"embed_tokens.weight": torch.ones(64, 20)},
                      tiny.draft_config(hidden_size=20))  # fmt: skip
    assert not found(folder, "weights", "W011")


ODD = {
    "a copied quantisation": ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config says fp8"),
    "mrope": ({"rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]}}, "multimodal"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_w012_names_config_values_of_another_file(folder, name):
    changes, says = ODD[name]
    tiny.edit_json(folder / "draft" / "config.json", **changes)
    (one,) = found(folder, "weights", "W012")
    assert one.severity == WARN
    assert says in one.title


def test_w012_names_head_norms_that_llama_code_drops(folder):
    norms = {f"midlayer.self_attn.{p}_norm.weight": torch.full((tiny.DIM,), 0.9) for p in "qk"}
    tiny.edit(folder / "draft" / "model.safetensors", lambda t: t.update(norms))
    (one,) = found(folder, "weights", "W012")
    assert "per-head" in one.title
    tiny.edit_json(folder / "draft" / "config.json", model_type="qwen3")
    assert [f.severity for f in found(folder, "weights", "W012")] == [PASS]


@pytest.mark.parametrize("changes", [{"rope_scaling": None}, {"sliding_window": None, "pad_token_id": None}])
def test_w012_lets_usual_nulls_pass(folder, changes):
    tiny.edit_json(folder / "draft" / "config.json", **changes)
    assert [f.severity for f in found(folder, "weights", "W012")] == [PASS]


def test_w007_is_a_limit_where_the_target_reaches_further(folder):
    tiny.edit_json(folder / "target" / "config.json", max_position_embeddings=4096)
    (one,) = found(folder, "weights", "W007")
    assert (one.severity, one.expected) == (Severity.LIMIT, "4096")
    tiny.edit_json(folder / "target" / "config.json", max_position_embeddings=128)
    assert [f.severity for f in found(folder, "weights", "W007")] == [PASS]


def beside(folder: Path, d2t: torch.Tensor, name: str = "samples/vocab_mapping.pt") -> None:
    torch.save(
        {"d2t": d2t, "t2d": torch.zeros(64, dtype=torch.bool).scatter(0, d2t + torch.arange(len(d2t)), True)},
        folder / name,
    )


def offsets(ids: torch.Tensor) -> torch.Tensor:
    return ids - torch.arange(len(ids))


@pytest.mark.parametrize(("run", "severity"), [(20, WARN), (8, INFO), (2, None)])
def test_v008_tells_padding_from_low_ids(folder, run, severity):
    tiny.edit(folder / "draft" / "model.safetensors", lambda t: (t["d2t"][:run].zero_(), t.pop("t2d")))
    assert [f.severity for f in found(folder, "vocab", "V008")] == ([severity] if severity else [])


@pytest.mark.parametrize(("length", "severity"), [(60, WARN), (70, WARN), (32, FAIL)])
def test_w002_lets_a_t2d_differ_by_padding(folder, length, severity):
    tiny.edit(folder / "draft" / "model.safetensors", lambda t: t.update(t2d=torch.arange(length) % 2 == 0))
    assert {f.severity for f in found(folder, "weights", "W002")} == {severity}


def test_v009_shows_row_agreement_beside_set_overlap(folder):
    rebuilt = (
        torch.cat((torch.tensor([1]), torch.arange(0, 62, 2))).sort().values
    )  # one token swapped, ids sorted again
    beside(folder, offsets(rebuilt))
    (one,) = found(folder, "vocab", "V009")
    assert one.severity == WARN
    assert "samples/vocab_mapping.pt: d2t: 32 tokens, set overlap 0.969, row agreement 0.031" in one.measured


def test_v009_lists_every_rival_with_its_size(folder):
    own = torch.arange(32)
    np.save(folder / "draft" / "d2t.npy", own.numpy())
    assert [f.severity for f in found(folder, "vocab", "V009")] == [PASS]
    np.save(folder / "d2t.npy", own[:16].numpy())
    changed = own.clone()
    changed[-1] -= 1
    np.save(folder / "samples" / "d2t.npy", changed.numpy())
    (one,) = found(folder, "vocab", "V009")
    assert one.title.startswith("3 maps of 2 sizes compete")
    (folder / "samples" / "d2t.npy").write_bytes(b"no array")
    assert {f.severity for f in found(folder, "vocab", "V009")} == {WARN}
    assert any("cannot be read" in f.title for f in found(folder, "vocab", "V009"))


def test_v009_reads_ids_and_masks(tmp_path):
    vocab = VocabMap.read("offsets", 32, 64, torch.arange(32), None)
    np.save(tmp_path / "t2d.npy", (torch.arange(64) % 2 == 0).numpy())
    np.save(
        tmp_path / "d2t.npy", (torch.arange(32) * 2).numpy()
    )  # target ids: as offsets they would leave the vocabulary
    ids, mask = rivals(vocab, [tmp_path, tmp_path])
    assert (ids.same, mask.same) == (True, True)
    assert ids.agreement == 1


def test_v009_says_nothing_where_nothing_lies_beside(folder):
    assert not found(folder, "vocab", "V009")


def test_faults_md_37_a_swap_of_one_percent_leaves_few_rows():
    """faults.md case 37: sorted ids, 1 % of the set swapped at V = 128256, Vd = 32000, about 6 % of rows agree."""
    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(128256, generator=draw)
    mine, other = order[:32000].sort().values, torch.cat((order[320:32000], order[32000:32320])).sort().values
    agree = float((mine == other).float().mean())
    assert 0.005 < agree < 0.2
    vocab = VocabMap.read("ids", 32000, 128256, mine, None)
    (rival,) = maps._rival(vocab, "x", "d2t", other)
    assert rival.agreement == pytest.approx(agree)
    assert rival.overlap == pytest.approx(0.99)


class Texts:
    """A target that only knows texts: number tokens below 32, words above."""

    def text(self, tokens: list[int]) -> list[str]:
        return [str(t) if t < 32 else f" w{'abcdefgh'[t % 8]}" for t in tokens]


def test_v010_is_a_limit_where_a_kind_of_text_is_left_out(folder):
    case = open_case(folder)
    vocab = VocabMap.read("ids", 32, 64, torch.arange(32, 64), None)
    (one,) = maps._by_kind(vocab, Texts(), [case.sample()] * 5, 3)
    assert one.severity == Severity.LIMIT
    assert "of number tokens the draft can say only 0.0%" in one.title
    assert "accept length 1.00 at K=3" in one.evidence
    whole = VocabMap.read("identity", 64, 64, None, None)
    assert [f.severity for f in maps._by_kind(whole, Texts(), [case.sample()] * 5, 3)] == [INFO]
    assert not found(folder, "vocab", "V010")  # no tokenizer: nothing to tell kinds by


@pytest.mark.parametrize(("noise", "codes"), [(0.5, [PASS]), (0.0, [PASS])])
def test_v011_passes_a_head_that_follows_the_target(folder, noise, codes):
    head = tiny.target_tensors()["lm_head.weight"][::2]
    tiny.edit(folder / "draft" / "model.safetensors", put("lm_head.weight", head + noise * tiny._random(9)(32, 16)))
    assert [f.severity for f in found(folder, "vocab", "V011")] == codes


def test_v011_names_the_part_of_the_head_that_was_lost(tmp_path):
    tiny.write_case(tmp_path)
    tensors, head = tiny.draft_tensors(size=64), tiny.target_tensors()["lm_head.weight"].clone()
    head[32:] = tiny._random(9)(32, 16)
    tiny.write_folder(tmp_path / "draft", tensors | {"lm_head.weight": head}, tiny.draft_config(draft_vocab_size=64))
    (one,) = found(tmp_path, "vocab", "V011")
    assert one.severity == FAIL
    assert "32 … 63" in one.title


def test_v011_says_nothing_of_a_head_trained_from_scratch(folder):
    assert not found(folder, "vocab", "V011")


def test_best_step_finds_the_place_and_chance_stays_low():
    rand = torch.Generator().manual_seed(0)
    step = best_step(torch.cat((torch.ones(30), torch.zeros(50))))
    assert step is not None
    assert (step.place, step.n, step.before, step.after) == (30, (30, 50), 1, 0)
    scores = [best_step((torch.rand(300, generator=rand) < 0.5).float()).score for _ in range(50)]
    assert max(scores) < 5
    assert best_step(torch.ones(10)) is None
    assert best_step(torch.ones(40)).score == 0


def test_likeness_is_one_for_random_numbers_of_any_size():
    for shape in ((64, 64), (128, 1024)):
        for seed in range(5):
            assert likeness(tiny._random(seed)(*shape)).random
        assert not likeness(trained(*shape, seed=3)).random


def test_notebook_02_shows_what_the_checks_saw(folder):
    from eagle3lab import views

    case = open_case(folder)
    beside(folder, torch.arange(16))
    own, other, mask = views.rival_maps(case)
    assert (own["tokens"], own["agreement"]) == (32, 1)
    assert (other["file"], other["tokens"]) == ("samples/vocab_mapping.pt: d2t", 16)
    assert mask["overlap"] == 0.5
    assert {row["table"] for row in views.table_blocks(case)} == {"lm_head"}
    assert views.coverage_by_kind(case) == {}
