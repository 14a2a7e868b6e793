"""The floors of the house: imports go down, never up or round; each library has its room.

A new module gets its floor in FLOORS (or ASIDE), a new library its room in ROOMS: both are decisions, so both
are written here. An import inside a function counts like any other; one under ``if TYPE_CHECKING:`` does not.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "eagle3lab"

FLOORS = (
    *(
        "errors",
        "hubcache",
        "reading",
        "records",
        "outcome",
        "counts",
        "tensors",
        "vocab",
        "rope",
        "norms",
        "attention",
        "stats",
        "textkinds",
    ),
    *(
        "casefile",
        "options",
        "listing",
        "recordings",
        "dialects",
        "shapes",
        "checkpoint",
        "target",
        "draft",
        "inventory",
        "samples",
        "slicing",
    ),
    *(
        "trace",
        "model",
        "mla",
        "decoder",
        "readout",
        "forward",
        "acceptance",
        "tokens",
        "gap",
        "aligned",
        "narrow",
        "bench",
        "neighbours",
        "search",
        "survey",
        "parity",
        "scancache",
        "evaluations",
        "checks",
        "case",
    ),
    *("scrub", "verdict", "bars", "views", "explore", "notebook", "report", "scale", "console", "exported", "__main__"),
)
"""Lowest first: a module imports from lower floors only. The files of a folder share a floor."""

PLAIN = {"errors", "reading", "records", "outcome", "counts"}
ASIDE = {"plots": PLAIN, "tables": PLAIN}
"""What stands on the ground beside the floors, and what each may import: plain numbers, so no loader."""

SHOWS = {"explore", "notebook", "report", "__main__"}
"""The floors that may import what stands aside; the numbers part never does."""

NUMBERS = FLOORS[: FLOORS.index("case") + 1]
"""The floors that compute, and so run with torch and safetensors alone."""

BROUGHT = {"IPython", "nbclient", "jupyter_client", "traitlets", "jinja2", "bs4"}
"""Brought along by ipykernel, papermill and nbconvert, so not named in pyproject.toml."""

CORE = {"torch", "safetensors", "numpy", "tokenizers", "prometheus_client", "gguf", "pyarrow", "huggingface_hub"}
ROOMS = {
    **dict.fromkeys((*NUMBERS, "scrub", "verdict", "views"), CORE),
    "plots": {"matplotlib", "numpy", "pandas", "IPython"},
    "tables": {"great_tables", "pandas", "numpy", "IPython"},
    "explore": {"ipywidgets", "IPython", "numpy"},
    "notebook": {"IPython"},
    "bars": {"tqdm"},
    "report": {"papermill", "nbconvert", "nbformat", "tqdm"} | BROUGHT,
    "scale": CORE | {"ray", "tqdm"},
    "__main__": {"torch", "safetensors"},
    "__init__": set(),
}
"""Which libraries outside the standard library each floor may import."""

LAZY = {"ipywidgets", "tokenizers", "gguf", "pyarrow", "huggingface_hub", "ray"}
"""Imported inside functions only; so is every other library that the package does not require."""

PUBLIC_NAMES = 59
LONGEST = 300
LONG_ALLOWED: dict[str, int] = {}
"""Modules allowed to be longer, with their limit. A reason belongs beside each; none is needed so far."""


@dataclass(frozen=True)
class Import:
    """One name that a module imports."""

    target: str
    line: int
    lazy: bool


def module_name(path: Path) -> str:
    """``eagle3lab/checks/vocab.py`` → ``eagle3lab.checks.vocab``; a folder's ``__init__`` is the folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def floor_of(module: str) -> str:
    """The floor's name: the part after ``eagle3lab``; ``__init__`` for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def is_dynamic(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))


def imports(module: str) -> Iterator[Import]:
    """All that a module imports at run time, dotted names made absolute."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if is_type_checking(child):
                for other in getattr(child, "orelse", []):
                    yield from walk(ast.Module([other], []), lazy)
            elif isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    above = package.split(".")[: len(package.split(".")) - child.level + 1]
                    base = ".".join([*above, *filter(None, [base])])
                yield from (Import(f"{base}.{alias.name}", child.lineno, lazy) for alias in child.names)
            elif is_dynamic(child) and child.args and isinstance(child.args[0], ast.Constant):
                yield Import(str(child.args[0].value), child.lineno, lazy)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, lazy or inside)

    return walk(TREES[module], False)


def inner_target(target: str) -> str | None:
    """The module of this package that an import reaches (its longest known prefix); None from outside."""
    if target.split(".")[0] != "eagle3lab":
        return None
    while target not in MODULES:
        target = target.rpartition(".")[0]
    return target


def may_import(floor: str, other: str) -> bool:
    """Whether one floor may import another."""
    if floor not in {*FLOORS, *ASIDE}:  # the public names; or unknown, which fails in a test of its own
        return True
    if other == "__init__":
        return floor == "__main__"
    if floor in ASIDE:
        return other in ASIDE[floor]
    if other in ASIDE:
        return floor in SHOWS
    return other in FLOORS and FLOORS.index(other) < FLOORS.index(floor)


def where(module: str, line: int) -> str:
    return f"{MODULES[module].relative_to(ROOT)}:{line}"


def test_every_module_has_a_floor() -> None:
    unknown = sorted({floor_of(module) for module in MODULES} - {*FLOORS, *ASIDE, "__init__"})
    assert not unknown, (
        f"no floor is known for {', '.join(f'eagle3lab/{name}' for name in unknown)}: decide where it stands "
        "(imports go down) and add it to FLOORS or ASIDE in tests/test_architecture.py"
    )


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module: str) -> None:
    floor, wrong = floor_of(module), []
    for item in imports(module):
        inner = inner_target(item.target)
        if inner is None or item.target == "eagle3lab.__version__":
            continue
        other = floor_of(inner)
        if other != floor and not may_import(floor, other):
            wrong.append(
                f"{where(module, item.line)}: {inner if inner != 'eagle3lab' else item.target} is not below {floor}"
            )
    assert not wrong, "\n".join(dict.fromkeys(wrong))


def test_imports_never_go_round() -> None:
    """The floors forbid it between floors; this holds for the files of one folder too."""
    graph = {name: {inner_target(item.target) for item in imports(name)} - {None, name} for name in MODULES}
    del graph["eagle3lab"]  # the public names: imports every floor, and a floor takes only its version
    try:
        TopologicalSorter({name: inner - {"eagle3lab"} for name, inner in graph.items()}).prepare()
    except CycleError as error:
        pytest.fail(f"imports go round: {' → '.join(error.args[1])}")


@pytest.mark.parametrize("module", MODULES)
def test_each_library_has_its_room(module: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[^\w-]", item)[0].replace("-", "_") for item in project["dependencies"]}
    floor, wrong = floor_of(module), []
    for item in imports(module):
        library = item.target.split(".")[0]
        if library == "eagle3lab" or library in sys.stdlib_module_names:
            continue
        if library not in ROOMS.get(floor, CORE):
            wrong.append(f"{where(module, item.line)}: {library} has no room in {floor}: see ROOMS in this test")
        elif not item.lazy and (library in LAZY or library not in required | BROUGHT):
            wrong.append(f"{where(module, item.line)}: import {library} inside the function that needs it")
    assert not wrong, "\n".join(wrong)


def test_numbers_run_without_the_notebook_libraries() -> None:
    """Import every numbers module in a process that has nothing of the other rooms and nothing of LAZY."""
    blocked = set().union(*ROOMS.values()) - (CORE - LAZY)
    script = f"""
import importlib, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(blocked)!r}:
            raise ModuleNotFoundError(f"blocked by the test: {{name}}", name=name)
sys.meta_path.insert(0, Block())
for name in {[name for name in MODULES if floor_of(name) in NUMBERS]!r}:
    importlib.import_module(name)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", [name for name in MODULES if floor_of(name) != "__main__"])
def test_only_the_command_line_prints(module: str) -> None:
    calls = [node for node in ast.walk(TREES[module]) if isinstance(node, ast.Call)]
    prints = [where(module, node.lineno) for node in calls if ast.unparse(node.func) == "print"]
    assert not prints, f"print() in the package: return the text, or log it: {', '.join(prints)}"


@pytest.mark.parametrize("module", MODULES)
def test_nothing_unpickles_code(module: str) -> None:
    """A draft is somebody else's file, and a pickle runs code unless torch.load is told not to."""
    wrong = []
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Call):
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            name = ast.unparse(node.func)
            safe = given.get("weights_only", "" if name == "torch.load" else "True") == "True"
            if not safe or name in {"pickle.load", "pickle.loads"}:
                wrong.append(where(module, node.lineno))
    assert not wrong, f"load with torch.load(..., weights_only=True): {', '.join(wrong)}"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_one_idea(module: str) -> None:
    lines = MODULES[module].read_text(encoding="utf-8").count("\n")
    limit = PUBLIC_NAMES if module == "eagle3lab" else LONG_ALLOWED.get(module, LONGEST)
    assert lines <= limit, f"{where(module, lines)}: {lines} lines, at most {limit}: split it by idea"
