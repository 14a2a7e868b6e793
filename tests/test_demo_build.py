"""The recipe of the demo, run whole on a tiny target."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer

pytestmark = pytest.mark.xdist_group("build")  # the tiny demo is built once, on one worker
BUILD = Path(__file__).parents[1] / "data" / "demo" / "build.py"
TRAINED, WRONG, BLOCKS = [0, 3, 5], [3, 5, 6], 6


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, str(BUILD), "-o", str(folder), "--tiny", *options]


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *options), capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "case"
    done = build(folder, "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "min to go" in done.stdout
    return folder


@pytest.fixture(scope="module")
def report(case) -> dict:
    return json.loads((case / "build.json").read_text())


def header(path: Path) -> tuple[dict[str, tuple[str, list[int]]], dict[str, str]]:
    with safe_open(path, "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: (s.get_dtype(), s.get_shape()) for name, s in slices.items()}, file.metadata()


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_the_loss_falls_in_both_phases(report):
    one = report["plan"]["updates_one"]
    first, second = report["loss"][:one], report["loss"][one:]
    assert len(second) == report["plan"]["updates_five"]
    assert mean(first[-10:]) < 0.5 * mean(first[:10])
    assert mean(second[-10:]) < 0.8 * mean(second[:10])


@pytest.mark.parametrize("split", ["held", "unseen"])
def test_the_trained_wiring_is_far_better_than_the_deployed_one(report, split):
    trained, wrong = report["validation"][split]["trained"], report["validation"][split]["wrong"]
    assert trained["scored"] == wrong["scored"]
    assert trained["scored"][0] > trained["scored"][4] > 0
    assert trained["accuracy"][0] > wrong["accuracy"][0] + 0.2
    assert trained["accept_length"] > wrong["accept_length"] + 0.2


def test_five_steps_teach_the_later_steps(report):
    before, after = (report[name]["held"]["trained"] for name in ("validation_one_step", "validation"))
    assert after["accuracy"][4] > before["accuracy"][4] + 0.1


def test_the_draft_is_in_specforges_layout_with_the_wrong_ids(case):
    config = json.loads((case / "draft" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == WRONG
    h, inner, vocab, rows = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size", "draft_vocab_size")
    )
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    layer = {
        "self_attn.q_proj": [q, 2 * h],
        "self_attn.k_proj": [kv, 2 * h],
        "self_attn.v_proj": [kv, 2 * h],
        "self_attn.o_proj": [h, q],
        "mlp.gate_proj": [inner, h],
        "mlp.up_proj": [inner, h],
        "mlp.down_proj": [h, inner],
        "hidden_norm": [h],
        "input_layernorm": [h],
        "post_attention_layernorm": [h],
    }
    shapes = {f"midlayer.{name}.weight": ("BF16", shape) for name, shape in layer.items()}
    shapes |= {"fc.weight": ("BF16", [h, 3 * h]), "norm.weight": ("BF16", [h])}
    shapes |= {"lm_head.weight": ("BF16", [rows, h]), "d2t": ("I64", [rows]), "t2d": ("BOOL", [vocab])}
    assert header(case / "draft" / "model.safetensors") == (shapes, {"format": "pt"})


def test_the_vocabularies_fit_together(case):
    draft = load_file(case / "draft" / "model.safetensors")
    held = load_file(case / "target" / "slice.safetensors")
    ids = draft["d2t"] + torch.arange(len(draft["d2t"]))
    assert torch.equal(ids, draft["t2d"].nonzero().flatten())
    row = {token: i for i, token in enumerate(held["token_ids"].tolist())}
    assert list(row) == sorted(row)
    assert torch.equal(draft["lm_head.weight"], held["embed_tokens.rows"][[row[i] for i in ids.tolist()]])
    for path in (case / "samples").glob("*.safetensors"):
        sample = load_file(path)
        assert set(sample["input_ids"].tolist()) <= set(row)
        rows = held["embed_tokens.rows"][[row[i] for i in sample["input_ids"].tolist()]]
        assert torch.equal(sample["h.0"], rows)  # boundary 0 is the embedding


def test_the_target_is_a_slice_with_config_and_tokenizer(case):
    config = json.loads((case / "target" / "config.json").read_text())
    tensors, about = header(case / "target" / "slice.safetensors")
    n = tensors["token_ids"][1][0]
    h = config["hidden_size"]
    assert tensors == {
        "token_ids": ("I64", [n]),
        "embed_tokens.rows": ("BF16", [n, h]),
        "norm.weight": ("BF16", [h]),
    }
    assert about["format"] == "eagle3lab-target-slice/1"
    assert (about["tied"], about["vocab_size"]) == ("true", str(config["vocab_size"]))
    assert config["tie_word_embeddings"] is True
    assert config["num_hidden_layers"] == BLOCKS
    tokenizer = Tokenizer.from_file(str(case / "target" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    text = "<|im_start|>user\nWhat is 12 times 7?<|im_end|>"
    ids = tokenizer.encode(text).ids
    assert (ids[0], ids[-1]) == (config["bos_token_id"], config["eos_token_id"])
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert "chat_template" in json.loads((case / "target" / "tokenizer_config.json").read_text())


def test_the_samples_are_in_the_labs_format(case):
    index = json.loads((case / "samples" / "index.json").read_text())
    names = [f"held_{i:02}" for i in range(10)] + [f"unseen_{i}" for i in range(10, 16)] + ["turns_00"]
    assert [entry["name"] for entry in index] == names
    h = json.loads((case / "target" / "config.json").read_text())["hidden_size"]
    for entry in index:
        tensors, about = header(case / "samples" / f"{entry['name']}.safetensors")
        length = entry["tokens"]
        boundaries = {"held_00": range(BLOCKS + 1), "turns_00": [0, 3, 5, 6]}.get(entry["name"], [0, 1, 3, 5, 6])
        states = {f"h.{k}": ("BF16", [length, h]) for k in boundaries}
        assert tensors == {"input_ids": ("I64", [length]), "loss_mask": ("U8", [length]), **states}
        assert (about["format"], about["final_norm"]) == ("eagle3lab-sample/1", "pre")
        sample = load_file(case / "samples" / f"{entry['name']}.safetensors")
        assert int(sample["loss_mask"].sum()) == entry["response_tokens"]
        assert entry["greedy_agreement"] > 0.9
    assert len(index[-1]["prompts"]) == 7


def test_unseen_topics_are_in_no_training_reply(report):
    counts = report["counts"]
    assert counts["train"] + counts["held"] + counts["unseen"] + counts["dropped"] == counts["replies"]
    assert min(counts["held"], counts["unseen"]) >= 10


def test_the_case_file_says_what_was_deployed(case, report):
    plain = tomllib.loads((case / "case.toml").read_text())
    assert {name: plain[name]["path"] for name in ("draft", "target", "samples")} == {
        name: name for name in ("draft", "target", "samples")
    }
    assert plain["samples"]["exclude"] == ["turns_*"]
    assert plain["training"]["program"] == "own"
    measured = report["validation"]["held"]["trained"]["accuracy"]
    assert plain["training"]["accuracy"] == pytest.approx(measured, abs=6e-4)
    (serving,) = plain["serving"]
    assert (serving["engine"], serving["version"], serving["runner"]) == ("vllm", "0.32.0", "v1")
    assert (serving["aux_ids"], serving["steps"]) == (WRONG, 5)


def test_a_finished_folder_is_not_touched(case):
    before = {path: path.stat().st_mtime_ns for path in case.rglob("*")}
    again = build(case)
    assert again.returncode != 0
    assert "not empty" in again.stderr
    assert "--resume" in again.stderr
    other = build(case, "--resume", "--updates-one", "3")
    assert other.returncode != 0
    assert "updates_one" in other.stderr
    assert {path: path.stat().st_mtime_ns for path in case.rglob("*")} == before


def test_a_folder_of_other_things_is_refused_even_on_resume(tmp_path):
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "config.json").write_text("{}")
    done = build(tmp_path, "--resume")
    assert done.returncode != 0
    assert "not empty" in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["draft", "config.json"]


@pytest.mark.long
def test_an_interrupted_run_in_two_processes_resumes_to_the_same_draft(tmp_path):
    options = ("--conversations", "60", "--updates-one", "6", "--updates-five", "3")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert build(whole, *options, "--workers", "1").returncode == 0
    with subprocess.Popen(command(parts, *options), stdout=subprocess.PIPE, text=True) as running:
        assert any("after phase 1" in line for line in running.stdout)
        running.terminate()
    assert running.returncode != 0
    assert not (parts / "build.json").exists()
    done = build(parts, *options, "--resume")
    assert done.returncode == 0, done.stderr
    one, two = (load_file(folder / "draft" / "model.safetensors") for folder in (whole, parts))
    assert torch.equal(one["d2t"], two["d2t"])
    for name, tensor in one.items():
        torch.testing.assert_close(tensor.float(), two[name].float(), atol=2e-2, rtol=2e-2)


def test_the_lab_finds_the_wrong_wiring(case, report):
    check = [sys.executable, "-m", "eagle3lab", "check", str(case / "case.toml"), "--json"]
    done = subprocess.run(check, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    fails = [f for f in found["findings"] if f["severity"] == "FAIL"]
    assert any("wiring" in f["title"] for f in fails), fails
    configured, fitted = found["readings"]["configured"], found["readings"]["fitted"]
    assert configured["reading"]["aux"] == WRONG
    # The tiny target's early blocks only stir a little: neighbours of the first slots may tie with the trained.
    assert fitted["reading"]["aux"][2] == TRAINED[2]
    assert TRAINED in [fitted["reading"]["aux"], *(tie.get("aux") for tie in fitted["ties"])]
    assert fitted["accuracy"][0] > configured["accuracy"][0] + 0.2
    # Two implementations, one answer.
    mine = report["samples"]["wrong"]
    assert configured["scored"] == mine["scored"]
    assert configured["accuracy"] == pytest.approx(mine["accuracy"], abs=2e-3)
    assert configured["accept_length"]["value"] == pytest.approx(mine["accept_length"], abs=2e-3)
