"""The sidecar: one small JSON file a notebook leaves behind: its verdict, for programs and for the index."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import os
import platform
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from eagle3lab.errors import BadFile
from eagle3lab.records import Finding, Severity, worst
from eagle3lab.scrub import absolute, scrubber

SCHEMA = 1
WHOLE = 256 * 2**20  # bytes; a larger file is hashed at both ends only, so that a huge one does not stall
TOTAL = 4 * WHOLE  # bytes hashed whole at most; after them every file counts as large, however many there are
END = 2**20  # bytes hashed at each end of a large file

_PACKAGES = ("torch", "safetensors", "numpy", "tokenizers", "pandas", "matplotlib")
_KEYS: dict[str, type | tuple[type, ...]] = {
    "notebook": str,
    "title": str,
    "sentence": str,
    "severity": str,
    "parameters": dict,
    "inputs": list,
    "versions": dict,
    "git": (str, type(None)),
    "findings": list,
    "counts": dict,
    "seconds": (int, float, type(None)),
}


def write(
    path: Path,
    *,
    notebook: str,
    title: str,
    sentence: str,
    findings: list[Finding],
    parameters: dict[str, Any],
    inputs: list[dict[str, Any]],
    counts: dict[str, Any],
    seconds: float | None,
    root: Path | None = None,
) -> Path:
    """Writes a notebook's verdict, whole or not at all.

    Numbers that JSON does not know (NaN, infinities) become null. Absolute paths become relative to the case;
    a parameter that is an absolute path keeps its last part only.

    Args:
        path: where to write, ``<OUT>/<notebook>.json``; its folder is made.
        notebook: the notebook's name without suffix, e.g. ``02_vocab_mapping``.
        title: the notebook's title.
        sentence: the verdict in one plain sentence.
        findings: all that was checked; the worst one gives the severity.
        parameters: the notebook's parameters as run.
        inputs: the files read, from `inputs`.
        counts: the numbers behind the verdict, as counts.
        seconds: how long the notebook took, None when nobody measured it.
        root: the case's folder; left out, that of ``parameters["CASE"]``.

    Returns:
        ``path``.
    """
    scrub = scrubber(case=root or _root(parameters.get("CASE")), out=absolute(path).parent)
    content = {
        "schema": SCHEMA,
        "notebook": notebook,
        "title": title,
        "sentence": sentence,
        "severity": worst(findings),
        "parameters": {key: _last_part(value) for key, value in parameters.items()},
        "inputs": inputs,
        "versions": versions(),
        "git": git_revision(),
        "findings": [finding.to_dict() for finding in findings],
        "counts": counts,
        "seconds": None if seconds is None else round(seconds, 3),
    }
    return save(path, scrub.tree(plain(content)))


def save(path: Path, content: Any) -> Path:
    """Writes ``content`` as JSON, whole or not at all; NaN and infinities must be gone."""
    return replace(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def replace(path: Path, text: str) -> Path:
    """Writes ``text`` beside ``path``, then puts it in place in one step: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def read(path: Path) -> dict[str, Any]:
    """Reads a verdict.

    Raises:
        BadFile: it is not JSON, of another schema, or keys are missing or of the wrong kind (all at once).
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(path.name, f"is no readable verdict ({error}); run its notebook again") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else type(content).__name__
        raise BadFile(path.name, f"schema: found {found!r}, expected {SCHEMA}; run its notebook again")
    faults = []
    for key, kind in _KEYS.items():
        if key not in content:
            faults.append(f"{key}: missing; run its notebook again")
        elif not isinstance(content[key], kind):
            faults.append(f"{key}: found {type(content[key]).__name__}, expected {kind}")
    severities = {str(severity) for severity in Severity}
    findings = content.get("findings")
    for number, finding in enumerate(findings if isinstance(findings, list) else []):
        if not isinstance(finding, dict) or not {"code", "severity", "title"} <= finding.keys():
            faults.append(f"findings[{number}]: expected at least code, severity and title")
        elif finding["severity"] not in severities:
            faults.append(f"findings[{number}].severity: found {finding['severity']!r}")
    if content.get("severity") not in severities:
        faults.append(f"severity: found {content.get('severity')!r}, expected one of {sorted(severities)}")
    if faults:
        raise BadFile(path.name, faults)
    return content


def inputs(paths: Iterable[Path], root: Path) -> list[dict[str, Any]]:
    """Says which files were read: path relative to ``root`` (the case), bytes, sha256.

    A folder counts as all its files. Of a file above `WHOLE` bytes, and of every one after the first `TOTAL`
    bytes, only the size and both ends (`END` bytes each) are hashed, marked ``"sampled": true``. A file that
    has no folder in common with ``root`` is named without one.

    Raises:
        BadFile: a path is not there.
    """
    rows: dict[Path, dict[str, Any]] = {}
    left = TOTAL
    for path in map(Path, paths):
        if not path.exists():
            raise BadFile(path.name, "is not there, though the notebook names it as read")
        files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
        for file in map(absolute, files):
            if file not in rows:
                size = file.stat().st_size
                whole = size <= 2 * END or size <= min(WHOLE, left)
                left -= size if whole else 0
                rows[file] = {
                    "path": _relative(file, absolute(root)),
                    "bytes": size,
                    **_digest(file, size, whole),
                }
    return list(rows.values())


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what it computes with; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for package in ("eagle3lab", *_PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_revision() -> str | None:
    """The short SHA of the repository that holds this package, None when it is installed apart from one."""
    here = Path(__file__)
    try:
        # An environment may lie inside somebody else's repository: only one that tracks this file counts.
        for command in (["ls-files", "--error-unmatch", here.name], ["rev-parse", "--short", "HEAD"]):
            run = subprocess.run(
                ["git", *command], cwd=here.parent, capture_output=True, text=True, timeout=10, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None


def plain(value: Any) -> Any:
    """``value`` as JSON knows it: NaN, infinities null; arrays lists; records dicts; paths, enums text."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    if isinstance(value, Iterable) and not hasattr(value, "tolist"):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch, without importing either
        return plain(value.tolist())
    return str(value)


def _root(case: Any) -> Path | None:
    """The folder of a CASE parameter, looked for as the notebooks do: here, then beside the repository's."""
    here = [folder / str(case) for folder in (Path.cwd(), Path(__file__).parent.parent)] if case else []
    return next((absolute(path).parent for path in here if path.is_file()), None)


def _last_part(value: Any) -> Any:
    if isinstance(value, str | os.PathLike) and Path(value).is_absolute():
        return Path(value).name
    return value


def _relative(file: Path, root: Path) -> str:
    if len(Path(os.path.commonpath([file, root])).parts) < 2:
        return file.name
    return Path(os.path.relpath(file, root)).as_posix()


def _digest(file: Path, size: int, whole: bool) -> dict[str, Any]:
    with file.open("rb") as stream:
        if whole:
            return {"sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        digest = hashlib.sha256(str(size).encode())
        digest.update(stream.read(END))
        stream.seek(-END, os.SEEK_END)
        digest.update(stream.read(END))
    return {"sha256": digest.hexdigest(), "sampled": True}
