"""What a dump does not say, and what reading it took, becomes a finding: S011 to S016; wrong rows of an engine's: E011."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch

from eagle3lab import open_case, views
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


ENGINE = 'dump = { path = "engine", boundaries = [2, 4, 5] }\n'


def engine(folder: Path, *changes: Callable[[tiny.Tensors], object]) -> Path:
    """A case whose engine recorded its first samples' texts, the i-th changed by ``changes[i]``."""
    tiny.write_case(folder, tiny.TOML + tiny.RUN + ENGINE)
    for i, change in enumerate(changes):
        tensors = tiny.sample_tensors(11 + i)
        change(tensors)
        kept = {name: t for name, t in tensors.items() if name in ("input_ids", "loss_mask", "h.2", "h.4", "h.5")}
        tiny.write_sample(folder / "engine" / f"request_{i}.safetensors", kept)
    return folder


def e011(folder: Path) -> Finding:
    (one,) = [f for f in open_case(folder).findings("serving") if f.code == "E011"]
    return one


def wrong(rows: list[int], *slots: str) -> Callable[[tiny.Tensors], None]:
    """Rows of another text in these slots."""

    def change(tensors: tiny.Tensors) -> None:
        for slot in slots:
            tensors[slot][rows] = tiny.sample_tensors(77)[slot][rows]

    return change


def sound(tensors: tiny.Tensors) -> None:
    pass


@pytest.mark.parametrize(
    ("rows", "severity", "words"),
    [
        ([i for i in range(40) if i % 5 < 2], Severity.FAIL, "in 24 of 40 rows, not in 16 (40%); 2 rows of every 5"),
        (list(range(12, 28)), Severity.FAIL, "in 24 of 40 rows, not in 16 (40%); rows 12 … 27: nothing of this text"),
        (list(range(1, 40, 2)), Severity.FAIL, "in 20 of 40 rows, not in 20 (50%); 1 row of every 2 from row 1"),
        ([9], WARN, "in 39 of 40 rows, not in 1 (2%); row 9: nothing of this text"),
    ],
)
def test_e011_tells_rows_that_a_median_hides(tmp_path, rows, severity, words):
    one = e011(engine(tmp_path, wrong(rows, "h.4")))
    assert one.severity == severity and one.title.startswith(f"slot 4 of request_0: boundary 4 {words}"), one.title
    assert "slots are" not in one.title and one.remedy


def test_e011_names_the_worst_slot_and_the_picture_shows_its_text(tmp_path):
    folder = engine(tmp_path, wrong([4, 5, 6], "h.2"), wrong(list(range(20, 32)), "h.2", "h.5"))
    one = e011(folder)
    assert one.title.startswith("slot 2 of request_1: boundary 2 in 28 of 40 rows")
    assert one.title.endswith("; 3 of 6 slots are mixed")
    shown = views.dump_errors(open_case(folder))
    assert shown["name"] == "request_1" and list(shown["series"]) == list(shown["cosines"]) == [2, 4, 5]
    cosines = dict(shown["cosines"][2])
    assert len(cosines) == 40 and cosines[0] == pytest.approx(1) and cosines[20] < 0.95
    assert [row["wrong"] for row in views.dump_rows(open_case(folder))] == [3, 0, 0, 12, 0, 12]


@pytest.mark.parametrize(("count", "severity"), [(2, WARN), (3, Severity.FAIL)])
def test_e011_counts_rows_that_hold_nothing(tmp_path, count, severity):
    def empty(tensors):
        tensors["h.5"][10 : 10 + count] = 0

    one = e011(engine(tmp_path, empty))
    assert one.severity == severity
    assert "slot 5 of request_0: boundary 5 as training recorded it" in one.title
    assert f"{count} rows hold NaN, infinities or only zeros (rows 10 … {9 + count})" in one.title


def test_e011_passes_where_every_row_agrees(tmp_path):
    one = e011(engine(tmp_path, sound, sound))
    assert one.severity == PASS and one.title == "the engine's states are those of training"
