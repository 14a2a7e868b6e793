"""``case.toml``: read, checked key by key, every fault reported at once."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3lab import hubcache
from eagle3lab.counts import ServingRun
from eagle3lab.errors import BadCase

_TEXT, _LIST, _NUMBER, _COUNT = "text", "a list", "a number", "a whole number"
TABLES: dict[str, dict[str, str]] = {
    "draft": {"path": _TEXT},
    "target": {"path": _TEXT},
    "samples": {"path": _TEXT, "exclude": _LIST, "boundaries": _LIST, "final": _TEXT, "access": _TEXT},
    "training": {"program": _TEXT, "accuracy": _LIST, "samples": _TEXT},
    "scan": {"path": _TEXT},
    "parity": {"path": _TEXT, "sample": _TEXT},
}
"""Tables and their keys; ``[[serving]]`` is apart."""

SERVING = {
    "name": _TEXT, "engine": _TEXT, "version": _TEXT, "runner": _TEXT, "aux_ids": _LIST, "steps": _COUNT,
    "topk": _COUNT, "draft_tokens": _COUNT, "log": _TEXT, "metrics": _LIST, "responses": _TEXT, "seconds": _NUMBER,
    "tokens": _COUNT, "dump": "a table", "temperature": _NUMBER,
}  # fmt: skip


@dataclass(frozen=True)
class CaseFile:
    """What ``case.toml`` says, paths resolved.

    Attributes:
        path: the file.
        title: shown on every page.
        draft: folder or GGUF of the draft; an id stands for its snapshot in the local Hugging Face cache.
        target: folder or GGUF of the target likewise, None when not given.
        samples: folder, file or glob, None when not given.
        exclude: name patterns left out of the headline.
        boundaries: of each recorded state in the dump's order, () when the dump says.
        final: form of the last state, ``""`` when the dump says.
        access: how dumps are read, ``mmap`` or ``pread``.
        program: the trainer's name, ``""`` when not given.
        accuracy: training's accuracy per step, () when not given.
        trained_on: recordings of texts that it was trained on, None when not given.
        runs: serving runs in order.
        parity: intermediate states that another program recorded, None when not given.
        parity_sample: the sample they were recorded on, ``""`` when the file says.
        extra: what is kept for later versions, by its place in the file (``[scan]``, ``[samples] final`` …).
    """

    path: Path
    title: str
    draft: Path
    target: Path | None = None
    samples: Path | None = None
    exclude: tuple[str, ...] = ()
    boundaries: tuple[int, ...] = ()
    final: str = ""
    access: str = "mmap"
    program: str = ""
    accuracy: tuple[float, ...] = ()
    trained_on: Path | None = None
    runs: tuple[ServingRun, ...] = ()
    parity: Path | None = None
    parity_sample: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The folder that paths are relative to."""
        return self.path.parent

    @property
    def unused(self) -> tuple[str, ...]:
        """Keys that this version keeps and does not use."""
        return tuple(key for key, value in self.extra.items() if value)


DUMP = ("path", "boundaries")
"""Keys of a run's ``dump``."""


def find_case(path: str | Path) -> tuple[Path, str]:
    """The case file for ``path``, and how it was found, in words.

    A folder stands for its ``case.toml``. A relative path is looked for in the working folder, then beside the
    notebooks' repository.

    Raises:
        BadCase: found in neither.
    """
    given = Path(path)
    places = [(given, "as given")] if given.is_absolute() else [
        (Path.cwd() / given, "in the working folder"),
        (Path(__file__).parents[1] / given, "beside the notebooks"),
    ]  # fmt: skip
    for place, words in places:
        file = place / "case.toml" if os.path.isdir(place) else place  # noqa: PTH112 (False for a name too long)
        if os.path.isfile(file):  # noqa: PTH113 (likewise)
            return file, words
    raise BadCase(
        given,
        "no such case: looked in the working folder and beside the notebooks; give a case.toml or its folder",
    )


def read_case(file: Path) -> CaseFile:
    """Reads and checks a case file.

    Raises:
        BadCase: every unknown key, wrong type and missing path, all at once.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCase(file, f"not TOML: {error}; correct that line, or save the file as UTF-8") from error
    except OSError as error:
        raise BadCase(file, f"cannot be read ({error.strerror}); check its permissions") from error
    faults = _table_faults(content)
    faults += _sample_faults(content.get("samples"))
    faults += _serving_faults(content.get("serving", []))
    if faults:
        raise BadCase(file, faults)
    root = file.parent
    draft, samples, training = content["draft"], content.get("samples", {}), content.get("training", {})
    runs = tuple(_run(i, table) for i, table in enumerate(content.get("serving", [])))
    missing = _missing(root, content, runs)
    if missing:
        raise BadCase(file, missing)
    return CaseFile(
        path=file,
        title=str(content.get("title", root.name)),
        draft=hubcache.local(root, draft["path"]) or root / draft["path"],
        target=hubcache.local(root, content["target"]["path"]) if "target" in content else None,
        samples=root / samples["path"] if samples else None,
        exclude=tuple(samples.get("exclude", ())),
        boundaries=tuple(samples.get("boundaries", ())),
        final=samples.get("final", ""),
        access=samples.get("access", "mmap"),
        program=training.get("program", ""),
        accuracy=tuple(float(a) for a in training.get("accuracy", ())),
        trained_on=root / training["samples"] if training.get("samples") else None,
        runs=runs,
        parity=root / content["parity"]["path"] if "parity" in content else None,
        parity_sample=content.get("parity", {}).get("sample", ""),
        extra={"[scan]": content.get("scan")},
    )


def _table_faults(content: Mapping[str, Any]) -> list[str]:
    known = {"title", "serving", *TABLES}
    faults = [
        f"unknown table or key {name!r}; known: {', '.join(sorted(known))}" for name in content if name not in known
    ]
    if not isinstance(content.get("title", ""), str):
        faults.append("title: expected text")
    for name, keys in TABLES.items():
        table = content.get(name)
        if table is None:
            if name == "draft":
                faults.append('table [draft] is missing; expected [draft] with path = "…"')
            continue
        if not isinstance(table, dict):
            faults.append(f"[{name}]: found {type(table).__name__}, expected a table")
            continue
        faults += _key_faults(f"[{name}]", table, keys)
        if "path" in keys and "path" not in table:
            faults.append(f"[{name}]: key 'path' is missing")
    accuracy = content.get("training", {}).get("accuracy", []) if isinstance(content.get("training", {}), dict) else []
    faults += [
        f"[training] accuracy: {a!r} is not between 0 and 1; give shares, not percent"
        for a in (accuracy if isinstance(accuracy, list) else [])
        if isinstance(a, bool) or not isinstance(a, int | float) or not 0 <= a <= 1
    ]
    return faults


def _sample_faults(table: Any) -> list[str]:
    if not isinstance(table, dict):
        return []
    faults, exclude, held = [], table.get("exclude", []), table.get("boundaries", [])
    if isinstance(exclude, list) and not all(isinstance(pattern, str) for pattern in exclude):
        faults.append(f'[samples] exclude: found {exclude!r}, expected name patterns, e.g. ["turns_*"]')
    if isinstance(held, list) and not all(isinstance(k, int) and not isinstance(k, bool) and k >= 0 for k in held):
        faults.append(f"[samples] boundaries: found {held!r}, expected boundaries, e.g. [0, 15, 27, 30]")
    if table.get("final", "none") not in ("pre", "post", "none"):
        faults.append(f"[samples] final: found {table['final']!r}, expected 'pre' or 'post' the final norm, or 'none'")
    if table.get("access", "mmap") not in ("mmap", "pread"):
        faults.append(f"[samples] access: found {table['access']!r}, expected 'mmap' or 'pread'")
    return faults


def _serving_faults(runs: Any) -> list[str]:
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        return ["serving: expected [[serving]] tables, one a run"]
    faults, names = [], []
    for i, run in enumerate(runs):
        where = f"[[serving]] {run.get('name', i + 1)!r}"
        faults += _key_faults(where, run, SERVING)
        ids = run.get("aux_ids")
        if isinstance(ids, list) and not (ids and all(isinstance(k, int) and not isinstance(k, bool) for k in ids)):
            faults.append(f"{where} aux_ids: found {ids}, expected whole numbers, e.g. [15, 27, 30]")
        metrics = run.get("metrics")
        if isinstance(metrics, list) and not (len(metrics) <= 2 and all(isinstance(m, str) for m in metrics)):
            faults.append(f"{where} metrics: expected one file, or the two taken before and after the run")
        faults += [
            f"{where} {key}: {run[key]} is not a number above 0"
            for key in ("seconds", "tokens", "topk", "draft_tokens")
            if isinstance(run.get(key), int | float) and not 0 < run[key] < float("inf")
        ]
        if isinstance(run.get("steps"), int) and run["steps"] < 0:
            faults.append(f"{where} steps: {run['steps']} is below 0 (0 is a run without speculation)")
        if isinstance(run.get("temperature"), int | float) and not 0 <= run["temperature"] < float("inf"):
            faults.append(f"{where} temperature: {run['temperature']} is below 0 or not finite (0 is greedy)")
        faults += _dump_faults(where, run.get("dump"))
        names.append(run.get("name", f"run {i + 1}"))
    twice = sorted({n for n in names if names.count(n) > 1}, key=str)
    return faults + [f"[[serving]] name {name!r} is used twice; notebooks choose runs by name" for name in twice]


def _dump_faults(where: str, dump: Any) -> list[str]:
    if not isinstance(dump, dict):
        return []  # of the wrong type: said with the other keys
    faults = [f"{where} dump: unknown key {key!r}; known: path, boundaries" for key in dump if key not in DUMP]
    if not isinstance(dump.get("path"), str):
        faults.append(f'{where} dump: expected path = "…", a folder or file of the engine\'s states')
    held = dump.get("boundaries", [])
    if not isinstance(held, list) or not all(isinstance(k, int) and not isinstance(k, bool) and k >= 0 for k in held):
        faults.append(
            f"{where} dump boundaries: found {held!r}, expected boundaries in the dump's order, e.g. [0, 15, 27]"
        )
    return faults


def _key_faults(where: str, table: Mapping[str, Any], keys: Mapping[str, str]) -> list[str]:
    kinds: dict[str, tuple[type, ...]] = {_TEXT: (str,), _LIST: (list,), _NUMBER: (int, float), _COUNT: (int,),
                                          "a table": (dict,)}  # fmt: skip
    faults = [f"{where}: unknown key {key!r}; known: {', '.join(keys)}" for key in table if key not in keys]
    faults += [
        f"{where} {key}: found {table[key]!r}, expected {kind}"
        for key, kind in keys.items()
        if key in table and (not isinstance(table[key], kinds[kind]) or isinstance(table[key], bool))
    ]
    return faults


def _run(number: int, table: Mapping[str, Any]) -> ServingRun:
    values = dict(table)
    values["name"] = table.get("name", f"run {number + 1}")
    for key in ("aux_ids", "metrics"):
        if key in values:
            values[key] = tuple(values[key])
    return ServingRun(**values)


def _missing(root: Path, content: Mapping[str, Any], runs: tuple[ServingRun, ...]) -> list[str]:
    faults = [
        f"[{name}] path: {hubcache.missing(content[name]['path'])}"
        for name in ("draft", "target")
        if name in content and hubcache.local(root, content[name]["path"]) is None
    ]
    for run in runs:
        files = [("log", run.log), *(("metrics", m) for m in run.metrics), ("responses", run.responses),
                 ("dump", run.dump.get("path"))]  # fmt: skip
        faults += [f"[[serving]] {run.name!r} {key}: {file!r} is not there" for key, file in files
                   if file and not os.path.exists(root / file)]  # noqa: PTH110  # fmt: skip
    return faults
