"""What is shared names no private folder, however a notebook spelled it."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3lab.scrub import Scrubber, scrubber

SCRUB = Scrubber({Path("/srv/ann"): "~", Path("/srv/ann/cases/demo"): "", Path("/srv/out/demo"): "OUT/demo"})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/srv/ann/cases/demo/draft/config.json: no fc", "draft/config.json: no fc"),
        ("'/srv/ann/cases/demo'", "'.'"),
        ("/srv/ann/cases/demo/ is empty", "./ is empty"),
        ("open(/srv/ann/models/x), /srv/ann.", "open(~/models/x), ~."),
        ("/srv/ann/a:/srv/ann/b", "~/a:~/b"),
        ("file:///srv/out/demo/01.html", "file://OUT/demo/01.html"),
        ("/srv/anne/x /srv/ann-old /mnt/srv/ann", "/srv/anne/x /srv/ann-old /mnt/srv/ann"),
        ("line\n/srv/ann/x", "line\n~/x"),
        # Colour codes around and inside, as in a traceback; the codes stay.
        ("\x1b[32m/srv/ann/x.py\x1b[0m", "\x1b[32m~/x.py\x1b[0m"),
        ("\x1b[1mFile \x1b[32m/srv\x1b[39m/ann/\x1b[1mx.py", "\x1b[1mFile \x1b[32m~\x1b[39m/\x1b[1mx.py"),
        ("at /tmp/ipykernel_123/456.py:3: UserWarning", "at cell:3: UserWarning"),
    ],
)
def test_text(before: str, after: str) -> None:
    assert SCRUB.text(before) == after


def test_spellings_of_an_odd_name() -> None:
    scrub = Scrubber({Path("/srv/a b&c/é"): "X"})
    for text in ("/srv/a b&c/é/f", "/srv/a b&amp;c/é/f", "/srv/a%20b%26c/%C3%A9/f", "/srv/a b&c/\\u00e9/f"):
        assert scrub.text(text) == "X/f"


def test_tree_reaches_every_string_but_images() -> None:
    image = "+/srv/ann/+"
    tree = {"/srv/ann/k": ["/srv/ann", {"image/png": image, "n": 1.5}], "none": None}
    assert SCRUB.tree(tree) == {"~/k": ["~", {"image/png": image, "n": 1.5}], "none": None}


def test_home_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / "real" / "demo").mkdir(parents=True)
    link = home / "cases"
    link.symlink_to(home / "real")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    scrub = scrubber(case=link / "demo")
    for place in (link / "demo", home / "real" / "demo"):
        assert scrub.text(f"{place}/draft") == "draft"
    assert scrub.text("~/cases/demo/draft") == "draft"
    assert scrub.text(f"{link}/other") == "../other"
    assert scrub.text(f"{home}/.cache and {tmp_path}/x") == "~/.cache and ./x"


def test_root_is_nobodys_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    assert scrubber().text("/ and /usr/lib") == "/ and /usr/lib"
