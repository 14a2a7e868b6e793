"""A Hugging Face id stands for its snapshot in the local cache; nothing is downloaded, no place of the cache is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny

from eagle3lab import hubcache
from eagle3lab.__main__ import main
from eagle3lab.case import open_case
from eagle3lab.casefile import read_case
from eagle3lab.errors import BadCase

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "somewhere private"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    return folder


def snapshot(cache: Path, name: str) -> Path:
    """A cached model as huggingface_hub lays it out: files are links to blobs."""
    model = cache / f"models--{name.replace('/', '--')}"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    (model / "blobs").mkdir()
    folder = model / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    return folder


def linked(folder: Path) -> None:
    for file in list(folder.iterdir()):
        blob = folder.parents[1] / "blobs" / file.name
        file.rename(blob)
        file.symlink_to(blob)


def write(tmp_path: Path, cache: Path) -> Path:
    case = tiny.write_case(tmp_path / "case")
    for kind, name in (("draft", "my-org/draft-1.0"), ("target", "big/target")):
        folder = snapshot(cache, name)
        for file in (case.parent / kind).iterdir():
            file.rename(folder / file.name)
        (case.parent / kind).rmdir()
        linked(folder)
        case.write_text(case.read_text().replace(f'path = "{kind}"', f'path = "{name}"'))
    return case


def test_an_id_opens_from_the_cache(tmp_path, cache):
    case = open_case(write(tmp_path, cache))
    assert case.draft.arch.draft_vocab == 32
    assert case.target.vocab == 64
    assert hubcache.label(case.draft.path) == "my-org/draft-1.0"
    assert hubcache.label(case.target.path) == "big/target"


def test_a_folder_of_that_name_comes_first(tmp_path, cache):
    case = write(tmp_path, cache)
    tiny.write_draft(case.parent / "my-org" / "draft-1.0")
    assert read_case(case).draft == case.parent / "my-org" / "draft-1.0"


def test_a_partial_snapshot_is_blocked_by_its_id(tmp_path, cache):
    case = write(tmp_path, cache)
    (read_case(case).target / "model.safetensors").unlink()
    with pytest.raises(Exception, match=r"big/target: holds the target's config and none") as caught:
        _ = open_case(case).target.tensors
    assert str(cache) not in str(caught.value)


def test_an_id_that_is_nowhere_says_what_was_tried_and_what_brings_it(tmp_path, cache, capsys):
    case = tiny.write_case(tmp_path / "case")
    case.write_text(case.read_text().replace('path = "draft"', 'path = "org/nowhere"'))
    assert main(["check", str(case)]) == 2
    error = capsys.readouterr().err
    assert "no such folder beside case.toml, and no such model in the local Hugging Face cache" in error
    assert "'hf download org/nowhere' would bring it" in error
    assert str(cache) not in error


def test_what_is_no_id_stays_a_folder(tmp_path, cache):
    for given in ("../x", "/abs/x", "a/b/c", "draft", "a//b", "-a/b", ""):
        words = hubcache.missing(given)
        assert "expected a folder relative to the case's folder" in words
        assert hubcache.local(tmp_path / "none", given) is None


def test_a_revision_can_be_named(tmp_path, cache):
    folder = snapshot(cache, "a/b")
    (folder / "config.json").write_text("{}")
    assert hubcache.local(tmp_path, f"a/b@{COMMIT}") == folder
    assert hubcache.local(tmp_path, "a/b@other") is None
    assert "--revision other" in hubcache.missing("a/b@other")


def test_without_the_library_the_error_says_so(tmp_path, cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    snapshot(cache, "a/b")
    assert hubcache.local(tmp_path, "a/b") is None
    case = tiny.write_case(tmp_path / "case")
    case.write_text(case.read_text().replace('path = "draft"', 'path = "a/b"'))
    with pytest.raises(BadCase, match="huggingface_hub, which knows the local cache, is not installed"):
        read_case(case)


def test_places_in_the_cache_are_not_shown(cache):
    path = cache / "models--my-org--draft-1.0" / "snapshots" / COMMIT / "config.json"
    assert hubcache.shown(f"FAIL '{path}': x").endswith("my-org/draft-1.0/config.json': x")
    assert hubcache.shown("no path at all") == "no path at all"


def test_two_ggufs_under_one_id_are_named_by_the_id(tmp_path, cache, capsys):
    case = tiny.write_case(tmp_path / "case")
    folder = snapshot(cache, "me/gg")
    for name in ("draft-f16.gguf", "draft-q8_0.gguf"):
        (folder / name).symlink_to(Path(__file__).parent / "fixtures" / "gguf" / "draft" / name)
    case.write_text(case.read_text().replace('path = "draft"', 'path = "me/gg"'))
    assert main(["check", str(case), "--stage", "weights", "--json"]) == 1
    out = capsys.readouterr().out
    assert str(cache) not in out
    assert COMMIT not in out
    assert "me/gg" in out
    assert "found draft-f16.gguf, draft-q8_0.gguf; expected one" in out
