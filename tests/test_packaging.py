"""The set-up files say the same thing: pyproject, environment.yml, constraints, Makefile, README."""

from __future__ import annotations

import importlib
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import eagle3lab

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())
CONDA_NAMES = {
    "torch": "pytorch", "great-tables": "great_tables", "prometheus-client": "prometheus_client",
    "huggingface-hub": "huggingface_hub",
}  # fmt: skip
"""PyPI name to conda-forge name, where they differ."""


def name_of(requirement: str) -> str:
    """The normalised distribution name (PEP 503) at the start of a requirement."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, f"no package name in {requirement!r}"
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def bounds(requirements: list[str]) -> dict[str, str]:
    """Name to version specifier, without blanks and extras."""
    parts = [re.fullmatch(r"\s*([\w.-]+)(?:\[[^]]*\])?\s*(.*)", requirement) for requirement in requirements]
    return {part[1]: part[2].replace(" ", "") for part in parts if part}


def pins() -> dict[str, str]:
    """Normalised name to version of every line of constraints.txt that pins."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            pin = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line)
            assert pin, f"constraints.txt: {line!r} is not name==version (no URL, path, hash or local label)"
            found[name_of(pin[1])] = pin[2]
    return found


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_conda_lists_the_packages_of_pyproject_with_the_same_bounds() -> None:
    conda = bounds([entry for entry in CONDA["dependencies"] if isinstance(entry, str)])
    python, _ = conda.pop("python"), conda.pop("pip")
    ours = {CONDA_NAMES.get(name, name): bound for name, bound in bounds(PROJECT["dependencies"]).items()}
    assert conda == ours
    assert python == PROJECT["requires-python"]


def test_conda_takes_conda_forge_alone_and_installs_the_lab_itself() -> None:
    assert CONDA["name"] == PROJECT["name"]
    assert CONDA["channels"] == ["conda-forge"]
    assert [entry for entry in CONDA["dependencies"] if isinstance(entry, dict)] == [{"pip": ["-e ."]}]


def test_constraints_pin_every_direct_dependency() -> None:
    pinned = pins()
    direct = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]
    assert [item for item in direct if name_of(item) not in pinned] == []
    assert pinned["torch"] == "2.13.0"
    assert PROJECT["name"] not in pinned


def test_the_pinned_torch_is_the_one_make_constraints_asks_for() -> None:
    assert f"TORCH := {pins()['torch']}\n" in (ROOT / "Makefile").read_text()


def test_every_direct_dependency_has_a_lower_bound_and_no_upper_one() -> None:
    direct = PROJECT["dependencies"] + sum(PROJECT["optional-dependencies"].values(), [])
    known = re.compile(r">=[\d.]+(,!=[\d.]+\*)?")  # a release known to be broken may be left out
    assert {name: bound for name, bound in bounds(direct).items() if not known.fullmatch(bound)} == {}


def test_version_is_said_once() -> None:
    assert eagle3lab.__version__ == PROJECT["version"]
    assert f"## [{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()


def test_console_script_can_be_imported() -> None:
    assert set(PROJECT["scripts"]) == {"eagle3lab"}
    module, function = PROJECT["scripts"]["eagle3lab"].split(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_readme_sets_up_with_two_commands() -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    first = next((block for block in blocks if "make " in block), "")
    commands = [line.split("#")[0].strip() for line in first.splitlines()]
    assert [line for line in commands if line] == ["make report", "make test"], (
        "README.md: the first code block that names make must hold the two set-up commands and nothing else"
    )


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "data/README.md"])
def test_every_make_command_in_the_pages_exists(page: str) -> None:
    code = re.findall(r"`[^`\n]+`|^make .*$", (ROOT / page).read_text(), re.MULTILINE)
    named = {target for span in code for target in re.findall(r"\bmake ([a-z-]+)", span)}
    assert named - make_targets() == set()


def test_make_targets_have_help() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony
    assert set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE)) == set(phony[1].split()) == make_targets()


FORBIDDEN = {
    "a path of one machine": r"(?<![\w.~<>-])/(?:home|root|Users|work|opt)/\w|\b[A-Z]:\\\\?Users\b",
    "a registry": r"pypi\.(?:org|python)|python[h]osted|download\.pytorch|npm[j]s|deb\.debian|index[-]url",
}
"""What no tracked text file may hold. The patterns do not match themselves."""


def tracked_files() -> list[Path]:
    """Every file git knows or would add; what is ignored does not count."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"not a git checkout, so no list of its files: {done.stderr.strip()}")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_tracked_text_names_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" in data[:8192]:
            continue
        text = data.decode("utf-8", errors="replace")
        for what, pattern in FORBIDDEN.items():
            if match := re.search(pattern, text):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]!r} is {what}")
    assert not found, "\n".join(["write paths relative to the repository, and no registry's address:", *found])


def test_ci_runs_the_gates_and_ends_with_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    lines = [line for line in script.read_text().splitlines() if line.strip()]
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-3:] == ["make lint", "make report", "make test"]
    assert "export EAGLE3LAB_REQUIRE_BROWSER=1" in lines


@pytest.mark.xdist_group("together")
def test_tests_of_a_group_run_on_one_worker(request: pytest.FixtureRequest) -> None:
    """The demo's report and search are made once for all tests only as long as xdist can mark its groups."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("one process runs all tests")
    assert request.node.nodeid.endswith("@together")
