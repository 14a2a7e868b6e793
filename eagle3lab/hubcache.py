"""A Hugging Face id instead of a folder: its snapshot in the local cache; nothing is ever downloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w(@[\w./-]+)?")
_SNAPSHOT = re.compile(r"[^\s'\"(<>]*models--([\w.-]+?)--([\w.-]+)/snapshots/[0-9a-zA-Z._-]+")

MOST_SHOWN = 200
"""Characters of a path that an error repeats."""


def local(root: Path, given: str) -> Path | None:
    """The folder or file that ``given`` names: below ``root``, else the snapshot of that id in the local cache.

    The cache is ``HF_HUB_CACHE``, else ``HF_HOME``'s, else the library's default. A snapshot may be partial.

    Args:
        root: the case's folder.
        given: a path, or ``organisation/name``, optionally ``@revision``.

    Returns:
        None when neither is there.
    """
    path = root / given
    there = os.path.exists(path)  # noqa: PTH110 (a name too long for any file system is not there)
    if there or not _ID.fullmatch(given):
        return path if there else None
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return None
    name, _, revision = given.partition("@")
    cache = os.environ.get("HF_HUB_CACHE") or None
    try:
        found = snapshot_download(name, revision=revision or None, cache_dir=cache, local_files_only=True)
    except (OSError, ValueError):  # not in the cache, or not an id after all: the library has an error for each
        return None
    return Path(str(found))


def missing(given: str) -> str:
    """Why ``given`` names nothing, and what to do, in words."""
    if not _ID.fullmatch(given):
        given = given if len(given) <= MOST_SHOWN else f"{given[:MOST_SHOWN]}…"
        return f"{given!r} is not there; expected a folder relative to the case's folder"
    name, _, revision = given.partition("@")
    extra = f" --revision {revision}" if revision else ""
    try:
        import huggingface_hub  # noqa: F401 (only whether it is there)
    except ImportError:
        return f"{given!r} is no folder of the case, and huggingface_hub, which knows the local cache, is not installed"
    return (
        f"{given!r} is not there: no such folder beside case.toml, and no such model in the local Hugging Face cache; "
        f"'hf download {name}{extra}' would bring it"
    )


def shown(text: str) -> str:
    """``text`` with every path into the cache replaced by the model's id: where a cache lies is nobody's business."""
    for place in (os.environ.get("HF_HUB_CACHE"), os.environ.get("HF_HOME")):
        if place:  # the pattern below stops at a blank, which a folder's name may hold
            text = text.replace(f"{place.rstrip(os.sep)}{os.sep}", "")
    return _SNAPSHOT.sub(r"\1/\2", text)


def label(path: Path) -> str:
    """A name for ``path`` that says no more than it must: the id of a snapshot, else the last part."""
    text = shown(str(path))
    return text if text != str(path) else path.name
