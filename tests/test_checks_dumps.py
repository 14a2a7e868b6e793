"""What a dump does not say, and what reading it took, becomes a finding: S011 to S016."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny
import torch

from eagle3lab import open_case
from eagle3lab.checks import dumps
from eagle3lab.records import Finding, Severity

FIXTURES = Path(__file__).parent / "fixtures"
INFO, WARN, PASS, UNDETERMINED = Severity.INFO, Severity.WARN, Severity.PASS, Severity.UNDETERMINED
HEADER, TAG = 7, 9


def found(folder: Path, code: str) -> list[Finding]:
    return [f for f in open_case(folder).findings("samples") if f.code == code]


def case(folder: Path, *dumped: str, more: str = "") -> Path:
    """A case over copies of fixture folders, with the target they were recorded from."""
    for name in dumped:
        shutil.copytree(FIXTURES / name, folder / "samples" / name.replace("/", "_"))
    shutil.copytree(FIXTURES / "specforge/export_sglang", folder / "draft")
    shutil.copytree(FIXTURES / "target", folder / "target")
    (folder / "case.toml").write_text(tiny.TOML + more)
    return folder


def test_s011_says_what_is_assumed_and_goes_when_the_case_says_it(tmp_path):
    folder = case(tmp_path, "specforge/features")
    boundaries, final = found(folder, "S011")
    assert (boundaries.severity, final.severity) == (WARN, WARN)
    assert "boundaries [2, 4, 5], SpecForge's default layer ids [1, L//2-1, L-4]" in boundaries.title
    assert "[samples] boundaries" in boundaries.remedy
    assert "after the final norm" in final.title
    (folder / "case.toml").write_text(tiny.TOML + 'boundaries = [2, 4, 5]\nfinal = "post"\n')
    assert not found(folder, "S011")


def test_s011_is_silent_where_the_dump_says_it(tmp_path):
    assert not found(case(tmp_path, "speculators_v1"), "S011")


def test_s012_tells_padding_from_what_is_missing(tmp_path):
    (padded,) = found(case(tmp_path / "a", "specforge/features_batch_padded"), "S012")
    assert (padded.severity, padded.measured) == (INFO, "13 rows of padding at its end are left out")
    assert padded.title.startswith("2 samples: N rows of padding")
    (mask,) = found(case(tmp_path / "b", "facts/modelopt_trt"), "S012")
    assert (mask.severity, mask.where) == (WARN, "conv-a, conv-b, conv-c")
    assert "no loss mask is recorded" in mask.title
    (said,) = found(case(tmp_path / "c", "speculators_v1", more="boundaries = [0, 1, 2, 3]\n"), "S012")
    assert said.severity == WARN
    assert "the dump itself [3, 5, 6, 8]" in said.measured


def test_s013_names_the_writers_of_one_folder(tmp_path):
    (mixed,) = found(case(tmp_path / "a", "specforge/features", "facts/modelopt_hf"), "S013")
    assert (mixed.severity, mixed.measured) == (WARN, "3 modelopt, 3 specforge")
    assert not found(case(tmp_path / "b", "specforge/features"), "S013")


def test_s014_counts_missing_and_repeated_numbers_and_the_same_tokens(tmp_path):
    folder = case(tmp_path, "speculators_v1", "specforge/features")
    (folder / "samples/speculators_v1/data_1.pt").unlink()
    by_title = {f.title: f for f in found(folder, "S014")}
    missing = next(f for title, f in by_title.items() if "numbers are missing" in title)
    repeated = next(f for title, f in by_title.items() if "used in several folders" in title)
    twins = next(f for title, f in by_title.items() if "repeat the tokens" in title)
    assert (missing.severity, missing.measured) == (INFO, "0 … 2")
    assert (repeated.severity, repeated.where) == (INFO, "data_0, data_2")
    assert (twins.severity, twins.measured) == (WARN, "2 conversations more than once")


def replies(folder: Path, shift: int, tag: bool = False, count: int = 6) -> Path:
    """Samples whose reply follows one header token; the mask is moved by ``shift``, ``tag`` opens every reply alike."""
    file = tiny.write_case(folder)
    shutil.rmtree(folder / "samples")
    for i in range(count):
        tensors = tiny.sample_tensors(11)
        ids = (torch.arange(40) * (2 * i + 3) + i) % 64
        ids[10], ids[11] = 3, HEADER
        ids[12] = TAG if tag else 20 + i
        tensors["input_ids"] = ids
        mask = torch.zeros(40, dtype=torch.uint8)
        mask[12 + shift : 36 + shift] = 1
        tensors["loss_mask"] = mask
        tiny.write_sample(folder / "samples" / f"s{i}.safetensors", tensors)
    return file.parent


@pytest.mark.parametrize(
    ("shift", "tag", "severity", "words"),
    [
        (0, False, PASS, "right after the same token everywhere"),
        (1, False, WARN, "the mask starts one token late"),
        (-1, False, UNDETERMINED, "every marked span starts with the same token"),
        (0, True, UNDETERMINED, "every marked span starts with the same token"),
    ],
)
def test_s015_tells_a_mask_that_is_late_and_leaves_open_what_only_a_text_can_tell(
    tmp_path, shift, tag, severity, words
):
    (one,) = found(replies(tmp_path, shift, tag), "S015")
    assert one.severity == severity
    assert words in one.title


@pytest.mark.parametrize(
    ("text", "severity"), [("\n", WARN), ("<|assistant|>", WARN), ("assistant", WARN), ("<think>", UNDETERMINED)]
)
def test_s015_knows_a_header_by_its_text(tmp_path, text, severity):
    opened = open_case(replies(tmp_path, -1))
    (one,) = [f for f in dumps.check(opened.survey, opened.samples, lambda token: text) if f.code == "S015"]
    assert one.severity == severity
    assert repr(text) in one.measured


def test_s015_says_nothing_on_few_replies(tmp_path):
    assert not found(replies(tmp_path, 1, count=3), "S015")


def test_s016_says_that_an_even_spread_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("eagle3lab.samples.MOST_READ", 4)
    folder = replies(tmp_path, 0, count=9)
    (bound,) = found(folder, "S016")
    assert (bound.severity, bound.measured) == (INFO, "9 samples")
    assert bound.title == "4 of 9 samples are read, evenly spread"
    opened = open_case(folder)
    assert opened.samples.headline == ["s0", "s2", "s5", "s8"]
    assert opened.samples["s4"].length == 40  # still there by name
