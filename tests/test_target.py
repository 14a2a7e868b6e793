"""The target: rows out of a checkpoint or a slice; what is not there is said, never made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file

from eagle3lab.errors import BadFile
from eagle3lab.target import Target

HF = tiny.target_tensors()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_target(tmp_path / "target")


def sliced(folder: Path, ids: torch.Tensor, change=None, **metadata: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny.target_config()))
    tensors = {
        "token_ids": ids, "embed_tokens.rows": HF["model.embed_tokens.weight"][ids % 64],
        "lm_head.rows": HF["lm_head.weight"][ids % 64], "norm.weight": HF["model.norm.weight"],
    }  # fmt: skip
    if change:
        change(tensors)
    words = {"format": "eagle3lab-target-slice/1", "vocab_size": "64"} | metadata
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "slice.safetensors", metadata=words)
    return folder


def refused(call) -> str:
    with pytest.raises(BadFile) as caught:
        call()
    return str(caught.value)


def test_a_checkpoint_gives_rows(folder):
    target = Target(folder)
    assert (target.layers, target.hidden, target.vocab, target.tied, target.sliced) == (8, 16, 64, False, False)
    tokens = torch.tensor([[5, 0], [63, 5]])
    assert torch.equal(target.embedding(tokens), HF["model.embed_tokens.weight"][tokens])
    assert torch.equal(target.head(torch.tensor([7])), HF["lm_head.weight"][[7]])
    assert target.holds(torch.tensor([0, 63])).all()


def test_a_slice_gives_the_same_rows_where_it_holds_them(tmp_path):
    target = Target(sliced(tmp_path / "s", torch.arange(0, 64, 2)))
    assert (target.sliced, target.vocab, len(target.token_ids)) == (True, 64, 32)
    tokens = torch.tensor([62, 0, 4])
    assert torch.equal(target.embedding(tokens), HF["model.embed_tokens.weight"][tokens])
    assert target.holds(torch.tensor([2, 3])).tolist() == [True, False]
    text = refused(lambda: target.embedding(torch.tensor([2, 3, 5])))
    assert "slice.safetensors" in text
    assert "lacks the rows of 2 tokens (first: [3, 5])" in text
    assert "holds 32 of 64" in text


def test_a_tied_slice_needs_no_head(tmp_path):
    target = Target(sliced(tmp_path / "s", torch.arange(64), lambda t: t.pop("lm_head.rows"), tied="true"))
    assert target.tied
    assert torch.equal(target.head(torch.tensor([3])), HF["model.embed_tokens.weight"][[3]])


SLICES = {
    "no embedding": (torch.arange(8), lambda t: t.pop("embed_tokens.rows"), {}, "'embed_tokens.rows' is missing"),
    "no head": (torch.arange(8), lambda t: t.pop("lm_head.rows"), {}, "'lm_head.rows' is missing"),
    "no norm": (torch.arange(8), lambda t: t.pop("norm.weight"), {}, "'norm.weight' is missing"),
    "no ids": (torch.arange(8), lambda t: t.pop("token_ids"), {}, "'token_ids' is missing"),
    "another width": (torch.arange(8), lambda t: t.update({"lm_head.rows": torch.ones(8, 9)}), {}, "expected [8, 16]"),
    "other row counts": (torch.arange(8), lambda t: t.update({"lm_head.rows": torch.ones(7, 16)}), {}, "[7, 16]"),
    "unsorted": (torch.arange(8).flip(0), None, {}, "rising, each once"),
    "ids twice": (torch.tensor([1, 1, 2]), None, {}, "rising, each once"),
    "no row": (torch.arange(0), None, {}, "no row at all"),
    "foreign ids": (torch.arange(60, 70), None, {}, "from 60 to 69, outside the vocabulary of 64"),
    "a vocabulary in words": (torch.arange(8), None, {"vocab_size": "many"}, "'vocab_size' is 'many'"),
    "another format": (torch.arange(8), None, {"format": "x"}, "'format' is 'x'"),
}  # fmt: skip


@pytest.mark.parametrize("name", SLICES)
def test_a_damaged_slice_is_refused_when_opened(tmp_path, name):
    ids, change, metadata, says = SLICES[name]
    text = refused(lambda: Target(sliced(tmp_path / "s", ids, change, **metadata)).tensors)
    assert "slice.safetensors" in text
    assert says in text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": "16"}, "'hidden_size' is '16', expected a whole number"),
        ({"num_hidden_layers": None}, "'num_hidden_layers' is None"),
        ({"vocab_size": 0}, "'vocab_size' is 0"),
        ({"rms_norm_eps": "x"}, "'rms_norm_eps' is 'x'"),
    ],
)
def test_a_config_that_does_not_hold_what_it_should(folder, changes, says):
    tiny.edit_json(folder / "config.json", **changes)
    text = refused(lambda: Target(folder))
    assert "config.json" in text
    assert says in text


@pytest.mark.parametrize(
    ("changes", "says"), [({"hidden_size": 32}, "hidden_size 32"), ({"vocab_size": 100}, "vocab_size 100")]
)
def test_a_config_of_another_model_is_told_from_the_tables(folder, changes, says):
    tiny.edit_json(folder / "config.json", **changes)
    text = refused(lambda: Target(folder).tensors)
    assert "model.embed_tokens.weight is [64, 16]" in text
    assert says in text


def test_a_padded_table_is_sound(folder):
    tiny.edit_json(folder / "config.json", vocab_size=60)
    target = Target(folder)
    assert target.embedding(torch.tensor([59])).shape == (1, 16)
    assert "[60] are outside the vocabulary of 60" in refused(lambda: target.embedding(torch.tensor([60])))


def test_of_two_tables_the_one_that_fits_is_taken(folder):
    tiny.edit(folder / "model.safetensors", lambda t: t.update({"embed_tokens.weight": torch.zeros(50, 16)}))
    rows = Target(folder).embedding(torch.tensor([60]))
    assert torch.equal(rows, HF["model.embed_tokens.weight"][[60]])


def test_a_multimodal_wrapper_is_taken_off(tmp_path):
    tensors = {f"language_model.{name}": t for name, t in HF.items()}
    tensors["vision_tower.embed_tokens.weight"] = torch.zeros(64, 16)
    folder = tiny.write_folder(tmp_path, tensors, {"model_type": "vl", "text_config": tiny.target_config()})
    target = Target(folder)
    assert (target.hidden, target.model_type) == (16, "llama")
    assert torch.equal(target.embedding(torch.tensor([1])), HF["model.embed_tokens.weight"][[1]])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("model.norm.weight", lambda target: target.norm_weight),
        ("model.embed_tokens.weight", lambda target: target.embedding(torch.tensor([1]))),
    ],
)
def test_what_is_missing_is_named_when_asked_for(folder, name, call):
    tiny.edit(folder / "model.safetensors", lambda t: t.pop(name))
    text = refused(lambda: call(Target(folder)))
    assert name.removeprefix("model.") in text
    assert "found none" in text


def test_a_head_that_must_be_there_is_not_replaced_by_the_embedding(folder):
    tiny.edit(folder / "model.safetensors", lambda t: t.pop("lm_head.weight"))
    assert Target(folder).tied  # nothing says otherwise
    tiny.edit_json(folder / "config.json", tie_word_embeddings=False)
    assert "'lm_head.weight'" in refused(lambda: Target(folder).head())


def test_what_is_no_target(folder, tmp_path):
    assert "no such folder; check [target] path" in refused(lambda: Target(tmp_path / "nowhere"))
    assert "a file; expected the target's folder" in refused(lambda: Target(folder / "config.json"))
    (folder / "model.safetensors").unlink()
    assert "found config.json; expected one of model.safetensors" in refused(lambda: Target(folder).tensors)
    assert Target(folder).vocab == 64  # the config still counts


def test_without_a_tokenizer_tokens_have_numbers(folder):
    assert Target(folder).text([5, 6]) == ["<5>", "<6>"]


def test_a_broken_tokenizer_is_an_error_of_its_own(folder):
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer.json: not a tokenizer" in refused(lambda: Target(folder).text([5]))


def test_plus_one_norms(folder):
    tiny.edit_json(folder / "config.json", model_type="gemma2")
    assert torch.equal(Target(folder).norm_weight, HF["model.norm.weight"] + 1)
