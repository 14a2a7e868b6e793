"""The search's result as JSON, remembered between the notebooks of one report."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3lab.casefile import CaseFile
from eagle3lab.outcome import Candidate, Depth, Open, Repair, ScanResult, Suspect
from eagle3lab.reading import Reading
from eagle3lab.records import Interval

SCHEMA = 3


def fingerprint(case: CaseFile, starts: Sequence[Reading], samples: Sequence[Path]) -> str:
    """A hash over everything the search depends on: starts, sizes and times of the files, the lab's own code."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for file in [*sorted(package.rglob("*.py")), *_files(case.draft), *_files(case.target), *dict.fromkeys(samples)]:
        try:
            stat = file.stat()
            line = f"{file.name} {stat.st_size} {stat.st_mtime_ns}\n"
        except OSError:  # a link to nowhere: whoever reads it says so
            line = f"{file.name}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    said = (case.exclude, case.boundaries, case.final)
    digest.update("\n".join([*(r.to_json() for r in starts), repr(said)]).encode("utf-8", "replace"))
    return digest.hexdigest()


def _files(path: Path | None) -> list[Path]:
    if path is None or not path.exists():
        return []
    return sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]


def remembered(file: Path, key: str, make: Callable[[], ScanResult]) -> ScanResult:
    """What ``file`` remembers under ``key``, else what ``make`` makes, which is remembered there."""
    found = load(file, key)
    if found is None:
        found = make()
        save(file, key, found)
    return found


def load(file: Path, key: str) -> ScanResult | None:
    """The remembered result, None when there is none or an input has changed."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if content.get("schema") != SCHEMA or content.get("key") != key:
        return None
    return from_dict(content["result"])


def save(file: Path, key: str, result: ScanResult) -> None:
    """Remembers ``result``, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    part.write_text(json.dumps({"schema": SCHEMA, "key": key, "result": to_dict(result)}), encoding="utf-8")
    part.replace(file)


PLAIN = ("undetermined", "tried", "matrix_rows", "evidence", "fits", "floor", "lag", "form", "excluded")
"""Fields of a result that JSON holds as they are (tuples as lists)."""


def to_dict(result: ScanResult) -> dict[str, Any]:
    """JSON-ready fields."""
    return {
        **{name: getattr(result, name) for name in PLAIN},
        "fitted": result.fitted.to_dict(),
        "ties": [r.to_dict() for r in result.ties],
        "margin": asdict(result.margin),
        "ranking": [{**asdict(c), "reading": c.reading.to_dict()} for c in result.ranking],
        "matrix": [[slot, boundary, value] for (slot, boundary), value in result.matrix.items()],
        "path": [asdict(repair) for repair in result.path],
        "mended": [asdict(repair) for repair in result.mended],
        "open": [asdict(entry) for entry in result.open],
        "suspects": [asdict(suspect) for suspect in result.suspects],
    }


def from_dict(plain: dict[str, Any]) -> ScanResult:
    """The result that `to_dict` wrote."""
    kept: dict[str, Any] = {
        name: tuple(plain[name]) if isinstance(plain[name], list) else plain[name] for name in PLAIN
    }
    return ScanResult(
        **kept,
        fitted=Reading.from_dict(plain["fitted"]),
        ties=tuple(Reading.from_dict(r) for r in plain["ties"]),
        margin=Interval(**plain["margin"]),
        ranking=tuple(
            Candidate(Reading.from_dict(c["reading"]), Interval(**c["accuracy"]), Interval(**c["behind"]), c["loglik"])
            for c in plain["ranking"]
        ),
        matrix={(int(s), b): float(v) for s, b, v in plain["matrix"]},
        path=tuple(_repair(r) for r in plain["path"]),
        mended=tuple(_repair(r) for r in plain["mended"]),
        open=tuple(Open(o["field"], tuple(o["values"]), o["same"]) for o in plain["open"]),
        suspects=tuple(Suspect(**s) for s in plain["suspects"]),
    )


def _repair(plain: dict[str, Any]) -> Repair:
    before, after = (Depth(**{k: tuple(v) for k, v in plain[side].items()}) for side in ("before", "after"))
    return Repair(plain["field"], plain["old"], plain["new"], Interval(**plain["gain"]), before, after)
