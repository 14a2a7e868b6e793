"""A slice in the target's place: the same findings and numbers; never overwrites, never changes its input."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch

from eagle3lab import slicing
from eagle3lab.__main__ import main
from eagle3lab.case import open_case
from eagle3lab.errors import BadFile, BadOption
from eagle3lab.target import Target
from eagle3lab.tensors import open_tensors

FIXTURES = Path(__file__).parent / "fixtures"


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest()
        for f in sorted(folder.rglob("*"))
        if f.is_file()
    }


def use(case: Path, target: str) -> Path:
    case.write_text(case.read_text().replace('path = "target"', f'path = "{target}"'))
    return case


def checked(case: Path, capsys) -> dict:
    capsys.readouterr()
    main(["check", str(case), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def case(tmp_path: Path) -> Path:
    file = tiny.write_case(tmp_path / "case")
    (file.parent / "target" / "tokenizer_config.json").write_text("{}")
    return file


def test_a_slice_stands_for_its_target(case, capsys):
    """All numbers but those of the lens, which says that it is over the rows held."""
    whole, before = checked(case, capsys), hashes(case.parent)
    assert main(["slice-target", str(case), "-o", str(case.parent / "piece")]) == 0
    out = capsys.readouterr().out
    assert hashes(case.parent) == before | hashes_of(case.parent, "piece")
    line = '[target]\npath = "piece"'
    assert line in out
    assert all(file.stat().st_mode & 0o044 for file in (case.parent / "piece").iterdir())  # made to be shared
    target = Target(case.parent / "piece")
    assert f"{len(target.token_ids)} of 64 rows" in out
    assert "config.json, slice.safetensors, tokenizer_config.json" in out
    tokens = torch.cat([s.input_ids for s in open_case(case).samples.values()])
    expected = torch.cat([tokens, open_case(case).draft.vocab_map().hot_token_id]).unique()
    assert torch.equal(target.token_ids, expected)
    assert target.norm_weight.equal(Target(case.parent / "target").norm_weight)
    piece = checked(use(case, "piece"), capsys)
    assert piece["readings"] == whole["readings"]
    lens = ("S004", "S005", "A020", "A023")  # what asks every row of the head
    assert [f for f in piece["findings"] if f["code"] not in lens] == [
        f for f in whole["findings"] if f["code"] not in lens
    ]
    others = [[f["severity"] for f in side["findings"] if f["code"] not in lens] for side in (piece, whole)]
    assert others[0] == others[1]
    assert any(
        f"over the {len(target.token_ids)} rows held" in f["evidence"] for f in piece["findings"] if f["code"] in lens
    )


def hashes_of(root: Path, name: str) -> dict[str, str]:
    return {f"{name}/{k}": v for k, v in hashes(root / name).items()}


def test_a_slice_of_a_slice_is_the_same(case, capsys):
    main(["slice-target", str(case), "-o", str(case.parent / "one")])
    use(case, "one")
    assert main(["slice-target", str(case), "-o", str(case.parent / "two")]) == 0
    one, two = (open_tensors(case.parent / name / "slice.safetensors") for name in ("one", "two"))
    assert list(one) == list(two)
    assert all(torch.equal(one.read(name), two.read(name)) for name in one)
    assert {k: v for k, v in one.metadata.items() if k != "origin"} == {
        k: v for k, v in two.metadata.items() if k != "origin"
    }


def test_nothing_is_overwritten(case, capsys):
    out = case.parent / "piece"
    out.mkdir()
    assert main(["slice-target", str(case), "-o", str(out)]) == 0  # an empty folder is as good as none
    before = hashes(case.parent)
    assert main(["slice-target", str(case), "-o", str(out)]) == 2
    assert main(["slice-target", str(case), "-o", str(case)]) == 2
    assert "is there already, and nothing is overwritten" in capsys.readouterr().err
    assert hashes(case.parent) == before
    assert not [p for p in case.parent.iterdir() if p.name.endswith(".part")]


def test_where_nothing_can_be_written(case, capsys):
    assert main(["slice-target", str(case), "-o", str(case / "below a file")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_without_target_samples_or_draft(case, capsys):
    text = case.read_text()
    case.write_text(text.replace('[target]\npath = "target"\n', ""))
    assert main(["slice-target", str(case), "-o", str(case.parent / "a")]) == 2
    assert "no [target] table" in capsys.readouterr().err
    case.write_text(text.replace('[samples]\npath = "samples"\n', ""))
    assert main(["slice-target", str(case), "-o", str(case.parent / "b")]) == 0
    assert "no samples: the rows are those of the draft vocabulary alone" in capsys.readouterr().err
    assert torch.equal(Target(case.parent / "b").token_ids, torch.arange(0, 64, 2))
    case.write_text(text)
    tiny.edit(case.parent / "samples" / "second.safetensors", lambda t: t.pop("loss_mask"))
    assert main(["slice-target", str(case), "-o", str(case.parent / "c")]) == 0
    shutil.rmtree(case.parent / "draft")
    assert main(["slice-target", str(case), "-o", str(case.parent / "d")]) == 2
    (case.parent / "draft").mkdir()
    assert main(["slice-target", str(case), "-o", str(case.parent / "d")]) == 1
    assert not (case.parent / "d").exists()


def test_a_config_alone_cannot_be_sliced(case, capsys):
    (case.parent / "target" / "model.safetensors").unlink()
    assert main(["slice-target", str(case), "-o", str(case.parent / "a")]) == 1
    assert "none of its tensors" in capsys.readouterr().err


def test_foreign_ids_are_left_out_and_said(case):
    target = Target(case.parent / "target")
    written = slicing.write(target, torch.tensor([3, -1, 64, 5, 3]), case.parent / "x")
    assert written.rows == 2
    assert written.notes[0] == "2 ids lie outside the vocabulary of 64: left out"
    with pytest.raises(BadFile, match="lacks the rows of 1 tokens"):
        slicing.write(Target(case.parent / "x"), torch.tensor([3, 4]), case.parent / "y")
    with pytest.raises(BadOption):
        slicing.write(target, torch.tensor([3]), case.parent / "x")


@pytest.mark.parametrize("name", ["target/target-bf16.gguf", "wide/target-q8_0.gguf"])
def test_a_slice_of_a_gguf_is_plain(tmp_path, name):
    target, tokens = Target(FIXTURES / "gguf" / name), torch.tensor([0, 7, 63])
    written = slicing.write(target, tokens, tmp_path / "s")
    piece = Target(tmp_path / "s")
    for field in ("layers", "hidden", "vocab", "model_type", "eps", "tied"):
        assert getattr(piece, field) == getattr(target, field)
    assert torch.equal(piece.embedding(tokens), target.embedding(tokens))
    assert torch.equal(piece.head(tokens), target.head(tokens))
    assert torch.equal(piece.norm_weight, target.norm_weight)
    assert any("tokenizer.json" in note for note in written.notes)


@pytest.mark.parametrize("gguf", [True, False])
def test_a_norm_of_one_plus_w_stays_what_it_is(tmp_path, gguf):
    from test_target import HF, gguf_target

    if gguf:
        target = Target(gguf_target(tmp_path / "g.gguf", "gemma3", {"block_count": 4}, HF["model.norm.weight"] + 1))
    else:
        target = Target(tiny.write_folder(tmp_path / "t", HF, tiny.target_config(model_type="gemma3_text")))
    written = slicing.write(target, torch.tensor([1, 2]), tmp_path / "s")
    assert torch.equal(Target(tmp_path / "s").norm_weight, HF["model.norm.weight"] + 1)
    assert any("1 + w" in note for note in written.notes) is gguf
