"""The target: rows out of a checkpoint or a slice; what is not there is said, never made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file

from eagle3lab import slicing
from eagle3lab.__main__ import main
from eagle3lab.errors import BadFile, Blocked
from eagle3lab.norms import rms_norm
from eagle3lab.target import Target, tables, texts

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
    "a vocabulary without end": (torch.arange(8), None, {"vocab_size": "9" * 30}, "above 0 and below 16777216"),
    "a vocabulary in other digits": (torch.arange(8), None, {"vocab_size": "²"}, "'vocab_size' is '²'"),
    "rows of bytes": (torch.arange(8), lambda t: t.update({"embed_tokens.rows": torch.ones(8, 16, dtype=torch.uint8)}), {}, "embed_tokens.rows is U8"),
    "rows of integers": (torch.arange(8), lambda t: t.update({"lm_head.rows": torch.ones(8, 16, dtype=torch.long)}), {}, "lm_head.rows is I64"),
    "rows of fp8": (torch.arange(8), lambda t: t.update({"embed_tokens.rows": torch.ones(8, 16).to(torch.float8_e4m3fn)}), {}, "embed_tokens.rows is F8_E4M3"),
    "a norm of integers": (torch.arange(8), lambda t: t.update({"norm.weight": torch.ones(16, dtype=torch.int32)}), {}, "norm.weight is I32"),
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
    (folder / "a.safetensors").write_bytes(b"")
    (folder / "b.safetensors").write_bytes(b"")
    assert "expected one of model.safetensors" in refused(lambda: Target(folder).tensors)
    assert Target(folder).vocab == 64  # the config still counts


def test_without_a_tokenizer_tokens_have_numbers(folder):
    assert Target(folder).text([5, 6]) == ["<5>", "<6>"]


def test_a_broken_tokenizer_is_an_error_of_its_own(folder):
    (folder / "tokenizer.json").write_text("{")
    assert "tokenizer.json: not a tokenizer" in refused(lambda: Target(folder).text([5]))


def test_plus_one_norms(folder):
    tiny.edit_json(folder / "config.json", model_type="gemma2")
    assert torch.equal(Target(folder).norm_weight, HF["model.norm.weight"] + 1)


# A config alone, and some shards ------------------------------------------------------------------------------------


def blocked(call) -> str:
    with pytest.raises(Blocked) as caught:
        call()
    return str(caught.value)


def test_a_config_alone_blocks_what_needs_rows(folder):
    (folder / "model.safetensors").unlink()
    target = Target(folder)
    assert (target.layers, target.hidden, target.vocab, target.sliced, target.model_type) == (8, 16, 64, False, "llama")
    tokens = torch.tensor([1])
    for call in (
        lambda: target.tensors, lambda: target.embedding(tokens), lambda: target.head(tokens), lambda: target.tied,
        lambda: target.norm_weight, lambda: target.holds(tokens), lambda: target.lens(torch.ones(1, 16)),
    ):  # fmt: skip
        text = blocked(call)
        assert "target: holds the target's config and none of its tensors" in text
        assert "slice-target" in text


def test_a_case_with_the_config_alone_is_blocked_not_broken(tmp_path, capsys):
    file = tiny.write_case(tmp_path)
    (tmp_path / "target" / "model.safetensors").unlink()
    main(["check", str(file), "--json", "--stage", "samples", "--stage", "vocab"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "C001" not in {f["code"] for f in found}
    assert any(f["code"] == "C002" and "none of its tensors" in f["title"] for f in found)
    assert {f["severity"] for f in found if f["code"] in ("S004", "V007")} == {"BLOCKED"}


PARTS = {
    "a.safetensors": ("model.embed_tokens.weight",),
    "b.safetensors": ("model.norm.weight",),
    "c.safetensors": ("lm_head.weight",),
}


def sharded(folder: Path, held: str, **config) -> Path:
    """A sharded target of which only the shards in ``held`` are there."""
    folder.mkdir(parents=True)
    for letter in held:
        names = PARTS[f"{letter}.safetensors"]
        save_file({name: HF[name] for name in names}, folder / f"{letter}.safetensors")
    weight_map = {name: file for file, names in PARTS.items() for name in names}
    weight_map["model.layers.0.mlp.up_proj.weight"] = "d.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(tiny.target_config(**config)))
    return folder


def test_only_the_shards_needed_have_to_be_there(tmp_path):
    target = Target(sharded(tmp_path / "t", "abc"))
    assert torch.equal(target.head(torch.tensor([3])), HF["lm_head.weight"][[3]])
    assert torch.equal(target.norm_weight, HF["model.norm.weight"])


def test_a_missing_shard_blocks_its_own_question(tmp_path):
    target = Target(sharded(tmp_path / "t", "a"))
    assert torch.equal(target.embedding(torch.tensor([3])), HF["model.embed_tokens.weight"][[3]])
    assert not target.tied  # the head is promised, so the embedding does not stand for it
    assert "'lm_head.weight' is in c.safetensors, which is not in the folder" in blocked(
        lambda: target.head(torch.tensor([3]))
    )
    assert "'model.norm.weight' is in b.safetensors" in blocked(lambda: target.norm_weight)


def test_an_index_without_shards_names_those_to_get(tmp_path):
    target = Target(sharded(tmp_path / "t", ""))
    assert "get a.safetensors, b.safetensors, c.safetensors" in blocked(lambda: target.tensors)


# Names, ties, norms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [
    "model.{}", "language_model.model.{}", "model.language_model.{}", "model.text_model.{}", "thinker.model.{}", "{}", "llava.{}",
])  # fmt: skip
def test_the_language_model_is_found_wherever_it_stands(tmp_path, place):
    head = {"model.language_model.{}": "lm_head.weight", "model.text_model.{}": "lm_head.weight", "thinker.model.{}": "thinker.lm_head.weight"}.get(
        place, place.replace("model.{}", "{}").format("lm_head.weight"))  # fmt: skip
    tensors = {
        place.format("embed_tokens.weight"): HF["model.embed_tokens.weight"], place.format("norm.weight"): HF["model.norm.weight"],
        head: HF["lm_head.weight"], "mtp.norm.weight": torch.zeros(16), "mtp.embed_tokens.weight": torch.zeros(64, 16),
        "visual.merger.norm.weight": torch.zeros(16), "audio_tower.norm.weight": torch.zeros(16),
        place.format("layers.9.embed_tokens.weight"): torch.zeros(64, 16), "projector.pre.norm.weight": torch.zeros(16),
        place.format("layers.0.shared_head.norm.weight"): torch.zeros(16),
    }  # fmt: skip
    target = Target(tiny.write_folder(tmp_path, tensors, {"model_type": "vl", "text_config": tiny.target_config()}))
    assert torch.equal(target.embedding(torch.tensor([5])), HF["model.embed_tokens.weight"][[5]])
    assert torch.equal(target.head(torch.tensor([5])), HF["lm_head.weight"][[5]])
    if place not in ("llava.{}",):
        assert torch.equal(target.norm_weight, HF["model.norm.weight"])


@pytest.mark.parametrize("wrap", [
    lambda c: {"text_config": c}, lambda c: {"llm_config": c}, lambda c: {"language_config": c}, lambda c: {"thinker_config": {"text_config": c}},
])  # fmt: skip
def test_the_language_models_config_is_found(tmp_path, wrap):
    folder = tiny.write_folder(tmp_path, HF, {"model_type": "vl"} | wrap(tiny.target_config(model_type="qwen3")))
    assert (Target(folder).layers, Target(folder).model_type) == (8, "qwen3")


@pytest.mark.parametrize(
    ("inner", "outer", "head", "tied"),
    [
        (None, None, True, False), (None, None, False, True), (True, None, True, True), (None, True, True, True),
        (False, True, True, False), (True, False, True, True), (None, False, True, False),
    ],
)  # fmt: skip
def test_who_says_that_the_head_is_the_embedding(tmp_path, inner, outer, head, tied):
    config = tiny.target_config() | ({} if inner is None else {"tie_word_embeddings": inner})
    wrapped = {"text_config": config} | ({} if outer is None else {"tie_word_embeddings": outer})
    tensors = {name: t for name, t in HF.items() if head or name != "lm_head.weight"}
    target = Target(tiny.write_folder(tmp_path, tensors, wrapped))
    assert target.tied is tied
    expected = HF["model.embed_tokens.weight" if tied else "lm_head.weight"]
    assert torch.equal(target.head(torch.tensor([9])), expected[[9]])


def test_plus_one_is_not_rounded_to_the_stored_dtype(folder):
    tiny.edit(
        folder / "model.safetensors",
        lambda t: t.update({"model.norm.weight": torch.full((16,), 0.0123, dtype=torch.bfloat16)}),
    )
    tiny.edit_json(folder / "config.json", model_type="qwen3_next")
    assert Target(folder).norm_weight[0] == pytest.approx(1.0123, abs=1e-4)


def test_a_layer_norm_is_not_taken_for_an_rms_norm(folder):
    tiny.edit_json(folder / "config.json", model_type="cohere2")
    assert "LayerNorm" in blocked(lambda: Target(folder).norm_weight)
    tiny.edit_json(folder / "config.json", model_type="phi")
    tiny.edit(folder / "model.safetensors", lambda t: t.update({"model.norm.bias": torch.zeros(16)}))
    assert "model.norm.bias" in blocked(lambda: Target(folder).norm_weight)


# The lens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
@pytest.mark.parametrize("norms", [0, 1, 2])
def test_the_lens_in_pieces_is_the_lens(folder, monkeypatch, chunk, norms):
    monkeypatch.setattr("eagle3lab.target.LENS_TOKENS", chunk)
    states = torch.randn(21, 16, generator=torch.Generator().manual_seed(4))
    target, normed = Target(folder), states
    for _ in range(norms):
        normed = rms_norm(normed, HF["model.norm.weight"], 1e-6)
    assert torch.equal(target.lens(states, norms, rows=4), (normed @ HF["lm_head.weight"].T).argmax(-1))
    assert target.lens(torch.empty(0, 16)).shape == (0,)


@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_of_equal_logits_the_lowest_id_counts(folder, monkeypatch, chunk):
    monkeypatch.setattr("eagle3lab.target.LENS_TOKENS", chunk)
    head = torch.zeros(64, 16)
    head[[9, 30, 31, 60]] = 1.0
    tiny.edit(folder / "model.safetensors", lambda t: t.update({"lm_head.weight": head}))
    states = torch.stack([torch.ones(16), -torch.ones(16), torch.full((16,), float("nan"))])
    assert Target(folder).lens(states, 0).tolist() == [9, 0, 0]
    head[40, 3] = float("nan")
    tiny.edit(folder / "model.safetensors", lambda t: t.update({"lm_head.weight": head}))
    assert Target(folder).lens(states[:2], 0).tolist() == [40, 40]  # as argmax has it


def test_the_lens_of_a_slice_names_held_tokens(tmp_path):
    ids = torch.arange(1, 64, 3)
    states = torch.randn(9, 16, generator=torch.Generator().manual_seed(4))
    expected = ids[(rms_norm(states, HF["model.norm.weight"], 1e-6) @ HF["lm_head.weight"][ids].T).argmax(-1)]
    assert torch.equal(Target(sliced(tmp_path / "s", ids)).lens(states), expected)


# GGUF --------------------------------------------------------------------------------------------------------------

FIXTURES = Path(__file__).parent / "fixtures"
TWINS = [("target/target-f16.gguf", FIXTURES / "target", 4e-4), ("target/target-bf16.gguf", FIXTURES / "target", 4e-3),
         ("wide/target-q8_0.gguf", FIXTURES / "gguf" / "wide" / "target_hf", 5e-3)]  # fmt: skip


@pytest.mark.parametrize(("name", "twin", "error"), TWINS)
def test_a_gguf_is_its_hf_twin(name, twin, error):
    mine, theirs = Target(FIXTURES / "gguf" / name), Target(twin)
    for field in ("layers", "hidden", "vocab", "model_type", "eps", "tied", "sliced"):
        assert getattr(mine, field) == getattr(theirs, field), field
    tokens = torch.tensor([[63, 0], [5, 5]])
    for found, expected in (
        (mine.embedding(tokens), theirs.embedding(tokens)), (mine.head(tokens[0]), theirs.head(tokens[0])),
        (mine.head(), theirs.head()), (mine.norm_weight, theirs.norm_weight),
    ):  # fmt: skip
        assert found.shape == expected.shape
        assert float((found.float() - expected.float()).abs().max() / expected.float().abs().max()) < error
    states = torch.randn(50, mine.hidden, generator=torch.Generator().manual_seed(3))
    assert (mine.lens(states) == theirs.lens(states)).float().mean() > 0.9


def test_token_texts_of_a_gguf():
    target = Target(FIXTURES / "gguf" / "target" / "target-f16.gguf")
    assert target.text([0, 1, 3, 63, 64, -1]) == ["<unk>", "<s>", " w3", " w63", "<64>", "<-1>"]


def test_token_texts_of_both_families():
    pieces = texts.from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["<0x0A>", "▁a▁b", "<0xC3>", "▁x"],
            "tokenizer.ggml.token_type": [6, 1, 6, 4],
        }
    )
    assert [pieces(i) for i in range(5)] == ["\n", " a b", "\ufffd", "▁x", ""]
    letters = texts.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": ["Ġthe", "Ċ", "Ã¤", "<|end|>", "漢", "Ġ"],
            "tokenizer.ggml.token_type": [1, 1, 1, 3, 1, 4],
        }
    )
    assert [letters(i) for i in range(6)] == [" the", "\n", "ä", "<|end|>", "漢", "Ġ"]
    table = texts._gpt2_bytes()
    assert sorted(table.values()) == list(range(256))


def gguf_target(file: Path, kind: str, fields: dict, norm: torch.Tensor, tensors: tuple[str, ...] = ()) -> Path:
    import gguf

    writer = gguf.GGUFWriter(file, kind)
    writer.add_embedding_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_token_list([f"w{i}" for i in range(fields.pop("tokens", 64))])
    for key, value in fields.items():
        writer.add_uint32(f"{kind}.{key}", value)
    writer.add_tensor("token_embd.weight", HF["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", norm.numpy())
    for name in tensors:
        writer.add_tensor(name, norm.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_gguf_norm_has_its_one_already(tmp_path):
    """llama.cpp's converter adds it for the families whose norm is 1 + w, so nothing is added here."""
    norm = HF["model.norm.weight"] + 1
    target = Target(gguf_target(tmp_path / "g.gguf", "gemma3", {"block_count": 4}, norm))
    assert target.model_type in tables.PLUS_ONE
    assert torch.equal(target.norm_weight, norm)
    assert target.tied


@pytest.mark.parametrize(
    ("tensors", "layers"),
    [(("blk.6.nextn.hnorm.weight",), 6), (("blk.6.attn_norm.weight",), 7), ((), 6)],
)
def test_prediction_heads_are_no_blocks(tmp_path, tensors, layers):
    file = gguf_target(
        tmp_path / "g.gguf", "glm4moe", {"block_count": 7, "nextn_predict_layers": 1}, torch.ones(16), tensors
    )
    assert (Target(file).layers, Target(file).model_type) == (layers, "glm4_moe")


def test_a_gguf_folder_and_its_faults(tmp_path):
    gguf_target(tmp_path / "g.gguf", "llama", {"block_count": 4, "tokens": 99}, torch.ones(16))
    assert Target(tmp_path).vocab == 64  # rows of the table, whatever the list says
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral", "hidden_size": 5}))
    assert (Target(tmp_path).model_type, Target(tmp_path).hidden) == ("mistral", 16)
    gguf_target(tmp_path / "bare.gguf", "llama", {}, torch.ones(16))
    assert "'num_hidden_layers' is None" in refused(lambda: Target(tmp_path / "bare.gguf"))
    assert "a draft's GGUF" in refused(lambda: Target(FIXTURES / "gguf" / "draft" / "draft-f16.gguf"))
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "g.gguf").read_bytes()[:400])
    assert "cut.gguf" in refused(lambda: Target(tmp_path / "cut.gguf"))


PACKED = {
    "gptq": {"qweight": torch.zeros(2, 64, dtype=torch.int32), "scales": torch.ones(1, 64)},
    "compressed-tensors": {"weight_packed": torch.zeros(64, 2, dtype=torch.int32), "weight_scale": torch.ones(64, 1)},
    "mlx": {"weight": torch.zeros(64, 2, dtype=torch.uint32), "scales": torch.ones(64, 1), "biases": torch.ones(64, 1)},
    "quanto": {"weight._data": torch.zeros(64, 16, dtype=torch.int8), "weight._scale": torch.ones(64, 1)},
    "of no name": {"blob": torch.zeros(64, dtype=torch.uint8)},
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("stated", [None, False])
@pytest.mark.parametrize("what", ["lm_head", "model.embed_tokens"])
def test_a_packed_table_is_refused_by_name_and_never_replaced(tmp_path, name, stated, what):
    """A head in packed parts is a head: taken for tied, the embedding would be used in its place, without a word."""
    tensors = {n: t for n, t in HF.items() if n != f"{what}.weight"}
    tensors |= {f"{what}.{part}": t for part, t in PACKED[name].items()}
    config = {k: v for k, v in tiny.target_config().items() if k != "tie_word_embeddings"}
    target = Target(
        tiny.write_folder(tmp_path / "t", tensors, config | ({} if stated is None else {"tie_word_embeddings": stated}))
    )
    assert not target.tied
    rows = target.head if what == "lm_head" else target.embedding
    with pytest.raises(Blocked, match=rf"{what}.*a form the lab does not read"):
        rows(torch.tensor([1]))
    with pytest.raises(Blocked, match=what):
        slicing.write(target, torch.arange(4), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_packed_head_in_a_shard_that_is_not_there_is_no_tie(tmp_path):
    tensors = {n: t for n, t in HF.items() if n != "lm_head.weight"}
    config = {k: v for k, v in tiny.target_config().items() if k != "tie_word_embeddings"}
    folder = tiny.write_folder(tmp_path, tensors, config)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    names = {
        **dict.fromkeys(tensors, "a.safetensors"),
        "lm_head.qweight": "b.safetensors",
        "lm_head.scales": "b.safetensors",
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(Blocked, match=r"'lm_head\.weight' is in b\.safetensors, which is not in the folder"):
        Target(folder).head(torch.tensor([1]))


def test_the_final_norm_stands_where_the_embedding_does(tmp_path):
    moved = {name.replace("model.", "transformer."): t for name, t in HF.items()}
    strangers = {"a.norm.weight": torch.zeros(16), "norm.weight": torch.zeros(16)}
    config = tiny.target_config()
    assert torch.equal(
        Target(tiny.write_folder(tmp_path / "a", moved | strangers, config)).norm_weight, HF["model.norm.weight"]
    )
    lost = {n: t for n, t in (moved | strangers).items() if n != "transformer.norm.weight"}
    target = Target(tiny.write_folder(tmp_path / "b", lost, config))
    text = refused(lambda: target.norm_weight)
    assert "norm.weight, a.norm.weight may each be the target's final norm" in text
    assert "beside transformer.embed_tokens.weight" in text


@pytest.mark.parametrize("names", [("x.embed_tokens.weight", "y.embed_tokens.weight")])
def test_of_two_tables_at_unknown_places_none_is_guessed(tmp_path, names):
    tensors = {n: t for n, t in HF.items() if "embed" not in n} | dict.fromkeys(
        names, HF["model.embed_tokens.weight"].clone()
    )
    tensors = {n: t.clone() for n, t in tensors.items()}
    target = Target(tiny.write_folder(tmp_path, tensors, tiny.target_config()))
    assert "may each be the target's embedding table" in refused(lambda: target.embedding(torch.tensor([1])))


@pytest.mark.parametrize("key", ["vocab_size", "num_hidden_layers"])
def test_sizes_without_end_are_refused(folder, key):
    tiny.edit_json(folder / "config.json", **{key: 10**30})
    assert f"key {key!r} is {10**30}, expected a whole number above 0 and below 16777216" in refused(
        lambda: Target(folder)
    )


def test_an_index_of_names_that_no_file_can_have(tmp_path):
    folder = tiny.write_folder(tmp_path, HF, tiny.target_config())
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(HF, "x" * 300)}))
    with pytest.raises(Blocked, match="holds the target's config and none of its tensors"):
        Target(folder).embedding(torch.tensor([1]))


def test_ggufs_side_by_side(tmp_path):
    source = Path(__file__).parent / "fixtures" / "gguf" / "target" / "target-f16.gguf"
    (tmp_path / "model.gguf").symlink_to(source)
    (tmp_path / "mmproj-model.gguf").write_bytes(b"GGUF")
    assert Target(tmp_path).vocab == 64
    (tmp_path / "other.gguf").symlink_to(source)
    text = refused(lambda: Target(tmp_path))
    assert "found mmproj-model.gguf, model.gguf, other.gguf" in text
    assert "of several, name one in case.toml" in text
