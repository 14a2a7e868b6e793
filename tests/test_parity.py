"""Module outputs that another program recorded beside the lab's own: equal, or the first that differs named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from eagle3lab import open_case
from eagle3lab.__main__ import main
from eagle3lab.errors import BadFile
from eagle3lab.forward import rollout
from eagle3lab.parity import compare
from eagle3lab.reading import Reading
from eagle3lab.records import Severity
from eagle3lab.tensors import open_tensors

READING = Reading(aux=tiny.AUX)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_case(tmp_path).parent


def outputs(folder: Path, reading: Reading = READING, steps: int = 2) -> dict[str, torch.Tensor]:
    """What each module gives under ``reading``, as a forward hook would record it."""
    case, seen = open_case(folder), {}

    def keep(name: str, value: torch.Tensor) -> None:
        seen[name] = value.clone()

    rolled = rollout(case.model, case.sample("first"), reading, steps, keep=("hidden", "logits"), tap=keep)
    for k, step in enumerate(rolled.steps):
        seen |= {f"step{k}.hidden": step.hidden, f"step{k}.logits": step.logits}
    with torch.inference_mode(False):
        return {name: torch.tensor(value.tolist()) for name, value in seen.items()}


def recorded(folder: Path, tensors: dict[str, torch.Tensor], **metadata: str) -> list[Any]:
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "theirs.safetensors", metadata or None)
    case = open_case(folder)
    return compare(case.model, case.sample("first"), READING, open_tensors(folder / "theirs.safetensors"))


def test_what_is_tapped_is_what_the_modules_give(folder):
    """By hand, from the equations (engines.md 3.1), not from the lab's forward."""
    w = {k: v.double() for k, v in tiny.draft_tensors().items()}
    sample, table = tiny.sample_tensors(), tiny.target_tensors()["model.embed_tokens.weight"].double()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w[name]

    seen = {k: v.double() for k, v in outputs(folder).items()}
    fused = torch.cat([sample[f"h.{k}"] for k in tiny.AUX], -1).double()[:-1] @ w["fc.weight"].T
    embedded = norm(table[sample["input_ids"][1:]], "midlayer.input_layernorm.weight")
    wanted = {
        "step0.fc": fused,
        "step0.layers.0.input_layernorm": embedded,
        "step0.layers.0.hidden_norm": norm(fused, "midlayer.hidden_norm.weight"),
        "step0.hidden": fused + seen["step0.layers.0.self_attn"] + seen["step0.layers.0.mlp"],
        "step0.layers.0.post_attention_layernorm": norm(
            fused + seen["step0.layers.0.self_attn"], "midlayer.post_attention_layernorm.weight"),
        "step0.norm": norm(seen["step0.hidden"], "norm.weight"),
        "step0.logits": norm(seen["step0.hidden"], "norm.weight") @ w["lm_head.weight"].T,
        "step1.layers.0.hidden_norm": norm(seen["step0.hidden"], "midlayer.hidden_norm.weight")[:-1],
    }  # fmt: skip
    for name, tensor in wanted.items():
        torch.testing.assert_close(seen[name], tensor, rtol=1e-4, atol=1e-4, msg=name)


def test_equal_states_are_ok_in_the_order_of_a_step(folder):
    rows = recorded(folder, dict(reversed(outputs(folder).items())))
    assert all(r.equal and r.largest == 0 for r in rows)
    names = [r.name for r in rows]
    assert names[:4] == ["step0.fc", "step0.layers.0.input_layernorm", "step0.layers.0.hidden_norm",
                         "step0.layers.0.self_attn"]  # fmt: skip
    assert names[7:9] == ["step0.hidden", "step0.logits"]
    assert names[9].startswith("step1.")


def test_other_names_batch_axis_dtype_and_rows(folder):
    ours = outputs(folder, steps=1)
    rows = recorded(folder, {
        "draft_model.midlayer.self_attn.o_proj": ours["step0.layers.0.self_attn"][None].bfloat16(),
        "midlayer.mlp.down_proj": ours["step0.layers.0.mlp"].half()[:20],
        "lm_head": torch.cat((ours["step0.logits"], torch.ones(1, tiny.VD))),
        "rotary_emb": torch.ones(3, 3),
    })  # fmt: skip
    assert [(r.module, r.equal) for r in rows] == [
        ("step0.layers.0.self_attn", True), ("step0.layers.0.mlp", True), ("step0.lm_head", True), ("", True),
    ]  # fmt: skip
    assert rows[0].largest > 0
    assert rows[-1].note


@pytest.mark.parametrize(
    ("reading", "first"),
    [
        (READING.replace(aux=tiny.AUX[::-1]), "step0.fc"),
        (READING.replace(rope=type(READING.rope)(base=77.0)), "step0.layers.0.self_attn"),
        (READING.replace(residual="post_norm"), "step0.layers.0.post_attention_layernorm"),
        (READING.replace(shift=0), "step0.layers.0.input_layernorm"),
        (READING.replace(feedback="post_norm"), "step0.hidden"),
        (READING.replace(head_norm="skipped"), "step0.logits"),
    ],
)
def test_the_first_module_that_differs_is_where_the_two_part(folder, reading, first):
    theirs = {k: v for k, v in outputs(folder, reading).items() if not (reading.shift == 0 and "step1" in k)}
    rows = recorded(folder, theirs)
    assert next(r.name for r in rows if not r.equal) == first


def test_nan_another_width_and_no_rows_are_no_match(folder):
    ours = outputs(folder, steps=1)
    ours["step0.fc"][3, 3] = float("nan")
    ours["step0.norm"] = ours["step0.norm"][:, :5]
    ours["step0.layers.0.mlp"] = ours["step0.layers.0.mlp"][:0]
    ours["step0.layers.7.mlp"] = torch.ones(3, 16)
    bad = {r.name: r.note for r in recorded(folder, ours) if not r.equal}
    assert list(bad) == ["step0.fc", "step0.layers.0.mlp", "step0.layers.7.mlp", "step0.norm"]
    assert "this draft's forward has no step0.layers.7.mlp" in bad["step0.layers.7.mlp"]
    assert "the lab's is [39, 16]" in bad["step0.norm"]


def test_a_file_without_any_module_is_refused(folder):
    with pytest.raises(BadFile, match="holds weights; expected module outputs such as"):
        recorded(folder, {"weights": torch.ones(3, 3)})


def test_the_case_finds_it_and_what_forward_writes_is_equal(folder, capsys):
    out = folder / "theirs.safetensors"
    assert main(["forward", str(folder), "--sample", "second", "--steps", "2", "-o", str(out)]) == 0
    toml = folder / "case.toml"
    toml.write_text(toml.read_text() + '[parity]\npath = "theirs.safetensors"\n')
    (good,) = [f for f in open_case(folder).findings("forward") if f.code == "F009"]
    assert good.severity == Severity.PASS
    assert "sample second" in good.where
    tensors = load_file(out)
    tensors["step1.hidden"] += 1
    metadata = {"sample": "second", "reading": READING.to_json()}
    save_file(tensors, out, metadata)
    (bad,) = [f for f in open_case(folder).findings("forward") if f.code == "F009"]
    assert (bad.severity, bad.title) == (
        Severity.FAIL, "the other program's forward differs from step1.hidden on")  # fmt: skip
    save_file(tensors, out, metadata | {"reading": "{"})
    (broken,) = [f for f in open_case(folder).findings("forward") if f.code == "C001"]
    assert "reading" in broken.measured
