"""Listing samples from names alone: folders, links, numbers, what is beside them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eagle3lab.errors import BadFile
from eagle3lab.listing import Entry, Listing, list_samples
from eagle3lab.samples import spread


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def listed(path: Path) -> Listing:
    return list_samples(path, lambda file: None)


def test_numbers_sort_by_value_and_folders_are_walked(tmp_path):
    touch(tmp_path, "rows_0-2000/data_10.ckpt", "rows_0-2000/data_2.ckpt", "rows_2000-4000/data_2001.ckpt.gz")
    assert list(listed(tmp_path).entries) == ["data_2", "data_10", "data_2001"]


def test_equal_stems_are_told_apart_by_their_folders(tmp_path):
    touch(
        tmp_path,
        *(f"rank_{r}/rows_0-5000/data_{i}.ckpt" for r in (0, 1) for i in (0, 1)),
        "rank_1/rows_0-5000/data_7.ckpt",
    )
    found = listed(tmp_path)
    assert list(found.entries)[:2] == ["rank_0/rows_0-5000/data_0", "rank_0/rows_0-5000/data_1"]
    assert "data_7" in found.entries
    assert found.repeated == ("data_0", "data_1")


def test_one_stem_under_two_suffixes_is_two_samples(tmp_path):
    touch(tmp_path, "data_0.ckpt", "data_0.ckpt.gz")
    assert len(listed(tmp_path).entries) == 2


def test_missing_numbers_are_counted_over_the_folders_of_one_series(tmp_path):
    touch(tmp_path, *(f"rows_{i // 4 * 4}-{i // 4 * 4 + 4}/data_{i}.ckpt" for i in (0, 1, 3, 4, 5, 7)))
    assert listed(tmp_path).missing == (("rows_*/data_", 0, 7, 2),)


def test_names_that_only_end_in_digits_are_no_series(tmp_path):
    touch(tmp_path, "3f7a12.pt", "99ab9907.pt", "cmpl-81.safetensors", "cmpl-90210.safetensors")
    assert listed(tmp_path).missing == ()


def test_side_files_are_no_samples_and_unknown_forms_are_named(tmp_path):
    touch(tmp_path, "hs_0.safetensors", "hs_0.safetensors.lock", "d2t-32000.npy", "t2d.npy", "token_freq.pt", "x.parquet",
          "vocab_mapping/vocab_mapping.pt", "data-00000-of-00001.arrow", "data_config.json", ".cache/h.pt", "a/b.npz")  # fmt: skip
    found = listed(tmp_path)
    assert list(found.entries) == ["hs_0"]
    assert found.others == ("a/b.npz", "x.parquet")


def test_json_counts_only_where_nothing_else_does(tmp_path):
    touch(tmp_path / "answers", "one.json", "two.jsonl")
    assert list(listed(tmp_path / "answers").entries) == ["one", "two"]
    touch(tmp_path / "answers", "hs_0.safetensors")
    assert list(listed(tmp_path / "answers").entries) == ["hs_0"]
    assert list(listed(tmp_path / "answers" / "one.json").entries) == ["one"]


def test_links_that_go_round_end(tmp_path):
    touch(tmp_path / "s", "a.pt")
    (tmp_path / "s" / "again").symlink_to(tmp_path / "s")
    (tmp_path / "s" / "b.pt").symlink_to("c.pt")
    (tmp_path / "s" / "c.pt").symlink_to("b.pt")
    assert list(listed(tmp_path / "s").entries) == ["a", "b", "c"]
    (tmp_path / "linked").symlink_to(tmp_path / "s")
    assert list(listed(tmp_path / "linked").entries) == ["a", "b", "c"]


def test_a_path_that_is_a_link_to_itself(tmp_path):
    (tmp_path / "x").symlink_to("x")
    assert list(listed(tmp_path / "x").entries) == ["x"]  # reading it says what is wrong
    with pytest.raises(BadFile, match="no such file"):
        listed(tmp_path / "y")


def test_only_the_first_readable_file_of_a_folder_is_asked_unless_its_kind_may_hold_several(tmp_path):
    touch(tmp_path, *(f"one/a_{i}.pt" for i in range(9)), *(f"many/b_{i}.pt" for i in range(4)))
    asked = []

    def count(file: Path) -> int | None:
        asked.append(file.name)
        return {"a_0": 0, "b_0": 0, "b_1": 1, "b_2": 3, "b_3": 0}.get(file.stem)

    found = list_samples(tmp_path, count)
    assert set(asked) == {"a_0.pt", "a_1.pt", "b_0.pt", "b_1.pt", "b_2.pt", "b_3.pt"}
    assert found.entries["b_2.2"] == Entry(tmp_path / "many" / "b_2.pt", 2)
    assert [n for n in found.entries if n[0] == "b"] == ["b_0.0", "b_1.0", "b_2.0", "b_2.1", "b_2.2", "b_3.0"]
    assert len(found.entries) == 15


def test_names_that_would_collide_stay_apart(tmp_path):
    touch(tmp_path, "data.pt", "data.0.ckpt", "data.1.ckpt")
    found = list_samples(tmp_path, lambda file: 2 if file.suffix == ".pt" else None)
    assert len(found.entries) == 4
    assert {e.file.name for e in found.entries.values()} == {"data.pt", "data.0.ckpt", "data.1.ckpt"}


def test_patterns_in_any_part_of_a_path(tmp_path):
    touch(tmp_path, "rows_0-2000/data_0.ckpt", "rows_2000-4000/data_2000.ckpt", "deep/er/data_7.ckpt", "other/x.ckpt")
    assert list(listed(tmp_path / "rows_*" / "data_*.ckpt").entries) == ["data_0", "data_2000"]
    assert len(listed(tmp_path / "**" / "data_*.ckpt").entries) == 3


def test_odd_suffixes_names_and_bytes(tmp_path):
    touch(tmp_path, "DATA_0.CKPT", "b.ckpt.tmp", "c.pkl", "d.json", "manifest.json")
    (tmp_path / os.fsdecode(b"x\xff.pt")).touch()
    found = listed(tmp_path)
    assert list(found.entries) == ["DATA_0", "x\ufffd"]
    assert found.others == ("b.ckpt.tmp", "c.pkl")
    answers = list_samples(tmp_path, lambda file: 2 if file.suffix == ".json" else None)
    assert answers.others == ("b.ckpt.tmp", "c.pkl", "d.json")


def test_names_with_quotes_and_html(tmp_path):
    name = 'it\'s <img src=x onerror="1"> & ü'
    touch(tmp_path, f"{name}.pt")
    assert list(listed(tmp_path).entries) == [name]


def test_a_large_folder_is_listed_without_a_stat_or_an_open_a_file(tmp_path, monkeypatch):
    """100,000 names take a second or two; what would make them take minutes is any call a file."""
    touch(tmp_path, *(f"rows_{i // 100}/data_{i}.ckpt" for i in range(1000)))
    calls = []
    stat, opened = os.stat, Path.open
    monkeypatch.setattr(os, "stat", lambda *a, **k: calls.append("stat") or stat(*a, **k))
    monkeypatch.setattr(Path, "open", lambda *a, **k: calls.append("open") or opened(*a, **k))
    assert len(listed(tmp_path).entries) == 1000
    assert len(calls) < 50  # folders only


def test_a_spread_keeps_the_ends():
    assert spread([str(i) for i in range(5)], 64) == list("01234")
    some = spread([str(i) for i in range(100_000)], 64)
    assert (len(some), some[0], some[-1]) == (64, "0", "99999")
    assert len(set(some)) == 64
