"""Texts that the draft was trained on: found by their tokens, whatever the training dump's form or length."""

from __future__ import annotations

import json

import pytest
import torch
from planted import CASE, Plan, make
from safetensors.torch import save_file

from eagle3lab import open_case
from eagle3lab.records import Severity

PLAN = Plan(samples=4, length=60, held=(2, 3, 4, 5))
PROMPT = 12


@pytest.fixture
def world():
    made = make(PLAN)
    for mask in made.masks:
        mask[:] = 1
        mask[:PROMPT] = 0
    made.toml = CASE.format(ids=list(made.ids)).replace("[samples]", '[training]\nsamples = "train"\n[samples]')
    return made


def trained_on(folder, texts, **more):
    """Training recordings without states: only tokens are asked for."""
    (folder / "train").mkdir()
    for i, (tokens, mask) in enumerate(texts):
        tensors = {"input_ids": torch.tensor(tokens), "loss_mask": torch.tensor(mask, dtype=torch.uint8)}
        tensors["h.3"] = torch.zeros(len(tokens), 5)  # of another width than the samples': of no account
        save_file(tensors, folder / "train" / f"data_{i}.safetensors", {"format": "eagle3lab-sample/1", **more})


def findings(folder, world, code="S025", stage="samples"):
    return [f for f in open_case(world.write(folder)).findings(stage) if f.code == code]


def other(world, n=60):
    return world.rng.integers(0, world.plan.shape.vocab, n)


def masked(tokens, start=PROMPT):
    return [0] * start + [1] * (len(tokens) - start)


def test_texts_that_training_never_saw_pass(world, tmp_path):
    texts = [other(world) for _ in range(3)]
    trained_on(tmp_path, [(t, masked(t)) for t in texts])
    (found,) = findings(tmp_path, world)
    assert found.severity is Severity.PASS
    assert "none of the 4 texts" in found.title and "3 of 3 training texts" in found.evidence


def test_the_same_text_a_reply_and_most_of_a_reply_are_found(world, tmp_path):
    whole, reply, cut = (world.texts[i][0] for i in range(3))
    front = other(world, 20)
    elsewhere = [*front, *reply[PROMPT:]]  # the reply stands in another conversation
    short = cut[:50]  # cut at training's length: 26 of the reply's 36 runs of 13 tokens are left
    trained_on(tmp_path, [(whole, masked(whole)), (elsewhere, masked(elsewhere, 20)), (short, masked(short))])
    (found,) = findings(tmp_path, world)
    assert found.severity is Severity.WARN
    assert found.title == "3 of 4 texts are ones that the draft was trained on"
    assert found.measured == (
        "planted_0 is data_0; planted_1 holds a reply of data_1; planted_2: 0.72 of its runs of 13 tokens stand in training texts"
    )
    assert "exclude" in found.remedy


def test_less_than_half_of_a_reply_is_not_the_text(world, tmp_path):
    part = [*other(world, 30), *world.texts[0][0][30:55]]  # 13 of its 36 runs
    trained_on(tmp_path, [(part, masked(part))])
    (found,) = findings(tmp_path, world)
    assert found.severity is Severity.PASS
    assert "to 0.36 stand" in found.measured


def test_another_answer_to_the_same_prompt_is_an_info(world, tmp_path):
    answered = [*world.texts[0][0][:PROMPT], *other(world, 40)]
    trained_on(tmp_path, [(answered, masked(answered))])
    found = findings(tmp_path, world)
    assert [f.severity for f in found] == [Severity.PASS, Severity.INFO]
    assert found[1].measured == "planted_0 asks what data_0 asks"


def test_a_prompt_that_most_texts_begin_with_is_a_template(world, tmp_path):
    for tokens, _ in world.texts:
        tokens[:PROMPT] = 7
    answered = [7] * PROMPT + list(other(world, 40))
    trained_on(tmp_path, [(answered, masked(answered))])
    assert [f.severity for f in findings(tmp_path, world)] == [Severity.PASS]


def test_the_case_own_folder_is_all_known(world, tmp_path):
    world.toml = world.toml.replace('samples = "train"', 'samples = "samples"')
    (found,) = findings(tmp_path, world)
    assert found.title == "4 of 4 texts are ones that the draft was trained on"
    assert "record held-out text" in found.remedy and "exclude" not in found.remedy


@pytest.mark.parametrize("content", [None, "empty", "broken"])
def test_training_files_that_cannot_be_read_block_the_question_and_nothing_else(content, world, tmp_path):
    if content is not None:
        (tmp_path / "train").mkdir()
    if content == "broken":
        (tmp_path / "train" / "data_0.safetensors").write_bytes(b"version https://git-lfs")
        (tmp_path / "train" / "data_1.json").write_text(json.dumps({"a": 1}))
    case = open_case(world.write(tmp_path))
    found = {f.code: f.severity for f in case.findings("samples")}
    assert found["S025"] is Severity.BLOCKED
    assert found["S001"] is Severity.PASS


def test_without_training_recordings_nothing_is_said(world, tmp_path):
    world.toml = ""
    assert findings(tmp_path, world) == []


def test_a_draft_that_is_better_on_what_it_saw_is_overfitted(world, tmp_path):
    """The planted draft is right everywhere; texts that it did not see get other replies than it says."""
    world.toml = world.toml.replace("steps = 3", "steps = 1")
    for tokens, _ in world.texts[2:]:
        tokens[30::2] = world.rng.permutation(tokens[30::2])
    seen = [world.texts[i][0] for i in range(2)]
    trained_on(tmp_path, [(t, masked(t)) for t in seen])
    (found,) = findings(tmp_path, world, "A024", "acceptance")
    assert found.severity is Severity.WARN
    assert "accuracy 1.000 on 2 texts it was trained on, 0." in found.measured


def test_a_draft_that_is_right_on_both_is_not(world, tmp_path):
    seen = [world.texts[i][0] for i in range(2)]
    trained_on(tmp_path, [(t, masked(t)) for t in seen])
    (found,) = findings(tmp_path, world, "A024", "acceptance")
    assert found.severity is Severity.PASS


def test_any_form_of_dump_will_do(world, tmp_path):
    """SpecForge's files hold [1, T, …] and other names: their reader takes them."""
    (tmp_path / "train").mkdir()
    tokens = torch.tensor(world.texts[0][0])
    torch.save(
        {"input_ids": tokens, "loss_mask": torch.tensor(masked(tokens)), "hidden_state": torch.zeros(1, 60, 32),
         "aux_hidden_state": torch.zeros(1, 60, 96)},
        tmp_path / "train" / "data_0.ckpt",
    )  # fmt: skip
    (found,) = findings(tmp_path, world)
    assert found.measured.startswith("planted_0 is data_0")
