"""Takes private folders out of what is shared: home, working folder, the places of case and report."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from eagle3lab import hubcache

_ANSI = r"\x1b\[[0-9;]*m"
# A folder name starts where no word runs into it, or right after a colour code (whose last letter is a word).
_BEFORE = rf"(?P<before>^|[^\w.~-]|{_ANSI})"
_AFTER = r"(?:(?P<slash>[/\\]{1,2})(?=[\w.])|(?![\w-]|\.\w))"
# Where ipykernel says a cell's code lives: private only by accident, and different in every run.
_CELL = re.compile(r"[^\s\"'<>]*ipykernel_\d+[/\\]+\d+\.py")


class Scrubber:
    """Replaces absolute folders in text, in every spelling that notebooks and pages use.

    Args:
        folders: folder → what stands for it; ``""`` makes the paths below it relative. The longest match
            wins; folders that do not exist are fine, the root of the file system is left out.
    """

    def __init__(self, folders: Mapping[Path, str]):
        self._labels: dict[str, str] = {}
        for folder, label in folders.items():
            for spelling in _spellings(folder):
                self._labels[spelling] = label
        names = sorted(self._labels, key=lambda name: (-len(name), name))
        plain = "|".join(re.escape(name) for name in names)
        between = rf"(?:{_ANSI})*"
        coloured = "|".join(between.join(re.escape(letter) for letter in name) for name in names)
        self._plain = re.compile(f"{_BEFORE}(?P<path>{plain}){_AFTER}", re.MULTILINE) if names else None
        self._coloured = re.compile(f"{_BEFORE}(?P<path>{coloured}){_AFTER}", re.MULTILINE) if names else None

    def text(self, text: str) -> str:
        """``text`` without the folders."""
        text = hubcache.shown(_CELL.sub("cell", text))
        # A traceback may colour the parts of a path one by one; the slower pattern reads across the codes.
        pattern = self._coloured if "\x1b" in text else self._plain
        return pattern.sub(self._stand_in, text) if pattern else text

    def tree(self, value: Any) -> Any:
        """``value`` with every string in it scrubbed, keys included; images are left as they are."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            # The letters of a base64 image are no text, whatever they happen to spell.
            images = {key for key, item in value.items() if str(key).startswith("image/") and type(item) is str}
            return {self.tree(key): item if key in images else self.tree(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(item) for item in value]
        return value

    def _stand_in(self, match: re.Match[str]) -> str:
        codes = "".join(re.findall(_ANSI, match["path"]))
        label = self._labels[re.sub(_ANSI, "", match["path"])]
        slash = match["slash"] or ""
        if not label:
            label, slash = ("", "") if slash else (".", "")
        return f"{match['before']}{label}{slash}{codes}"


def scrubber(*, case: Path | None = None, out: Path | None = None, notebooks: Path | None = None) -> Scrubber:
    """A scrubber for one case: its paths become relative to the case.

    Args:
        case: the folder of ``case.toml``.
        out: the folder of the case's report; its parent is the report's.
        notebooks: the folder of the notebooks.
    """
    folders = {Path.home(): "~", Path.cwd(): ".", Path(__file__).parent.parent: ""}
    if notebooks:
        folders[notebooks] = "notebooks"
    if out:
        folders |= {out.parent: "OUT", out: f"OUT/{out.name}"}
    if case:
        if len(case.parts) > 2:
            folders[case.parent] = ".."
        folders[case] = ""
    return Scrubber(folders)


def absolute(path: str | Path) -> Path:
    """``path`` from the root, without ``..``; links are kept, because their names are what the user knows."""
    return Path(os.path.normpath(Path(path).absolute()))


def _spellings(folder: Path) -> set[str]:
    """Every way a notebook may write ``folder``: as given, resolved, from home, in HTML, a URL and JSON."""
    names = {str(path) for path in (absolute(folder), folder.resolve()) if str(path) != path.anchor}
    for home in (Path.home(), Path.home().resolve()):
        names |= {f"~{name[len(str(home)) :]}" for name in set(names) if name.startswith(f"{home}{os.sep}")}
    escaped = {other for name in names for other in (html.escape(name), quote(name), json.dumps(name)[1:-1])}
    return names | escaped
