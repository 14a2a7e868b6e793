"""Every notebook has the same anatomy and keeps its budget: logic lives in the package."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "notebooks"
INDEX = "00_index"
QUESTIONS = (
    *("01_weights", "02_vocab_mapping", "03_hidden_states"),
    *("04_forward_pass", "05_acceptance", "06_serving_gap"),
)
FOUND = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
ALL = sorted({INDEX, *QUESTIONS, *FOUND})

SHARED = {
    "CASE": ("str", "data/demo/case.toml"),
    "RUN": ("str", ""),
    "SAMPLE": ("str", None),
    "STEPS": ("int", None),
    "AUX": ("str", ""),
    "INTERACTIVE": ("bool", True),
    "OUT": ("str", ""),
}
"""The parameters of every question: annotation and default (None: the notebook's own choice)."""

PLAIN = {"int", "float", "str", "bool", "list[int]", "list[float]", "list[str]"}
"""Annotations that papermill can show; it does not understand unions and Literal."""

CODE_CELLS, CODE_LINES, CELL_LINES = 25, 100, 12
MACHINE_PATH = r"(?<![\w.~<>-])/(?:home|root|Users|work|mnt|opt|tmp)/|\b[A-Z]:\\\\"


def load(name: str) -> NotebookNode:
    path = FOLDER / f"{name}.ipynb"
    assert path.is_file(), f"notebooks/{name}.ipynb is missing"
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text_lines(cell: NotebookNode) -> list[str]:
    return [line for line in cell.source.splitlines() if line.strip()]


def headings(notebook: NotebookNode) -> list[tuple[int, str]]:
    """(cell number, heading with its marks) of every Markdown heading."""
    return [
        (number, line.strip())
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "markdown"
        for line in cell.source.splitlines()
        if re.match(r"#{1,6} ", line)
    ]


def verdict_at(notebook: NotebookNode) -> int:
    found = [number for number, heading in headings(notebook) if heading == "## Verdict"]
    assert len(found) == 1, "exactly one heading `## Verdict`"
    return found[0]


def parameters(notebook: NotebookNode) -> dict[str, ast.AnnAssign]:
    cell = next(cell for cell in code(notebook) if "parameters" in tags(cell))
    body = ast.parse(cell.source).body
    return {ast.unparse(item.target): item for item in body if isinstance(item, ast.AnnAssign)}


def test_the_notebooks_are_these() -> None:
    assert sorted([INDEX, *QUESTIONS]) == FOUND


@pytest.mark.parametrize("name", ALL)
def test_format_is_valid_and_clean(name: str) -> None:
    notebook = load(name)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    assert {"widgets", "papermill"} & set(notebook.metadata) == set(), "left over from a run: clear the notebook"
    for cell in code(notebook):
        assert cell.outputs == [] and cell.execution_count is None, f"clear the outputs: {cell.source[:60]!r}"
        assert not {"papermill", "execution"} & set(cell.metadata), "left over from a run: clear the notebook"


@pytest.mark.parametrize("name", ALL)
def test_budget(name: str) -> None:
    cells = code(load(name))
    lines = [len(text_lines(cell)) for cell in cells]
    assert 0 < len(cells) <= CODE_CELLS
    assert sum(lines) <= CODE_LINES, f"{sum(lines)} code lines: move logic into the package"
    assert max(lines) <= CELL_LINES, f"a cell of {max(lines)} lines: move logic into the package"
    assert min(lines) > 0, "an empty code cell"


@pytest.mark.parametrize("name", ALL)
def test_code_defines_nothing_and_touches_no_surroundings(name: str) -> None:
    for cell in code(load(name)):
        magic = [line for line in cell.source.splitlines() if re.match(r"\s*[%!]", line)]
        assert not magic, f"no magics, no shell, no installs: {magic}"
        for node in ast.walk(ast.parse(cell.source)):
            defines = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            named_lambda = isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and isinstance(
                node.value, ast.Lambda
            )
            assert not defines and not named_lambda, f"define it in the package: {cell.source[:60]!r}"
            assert not (isinstance(node, ast.Attribute) and ast.unparse(node) in {"sys.path", "os.chdir"})
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.match(r"/\w|~/|[A-Z]:\\", node.value), f"an absolute path: {node.value!r}"


@pytest.mark.parametrize("name", ALL)
def test_no_text_names_a_machine(name: str) -> None:
    for cell in load(name).cells:
        assert not re.search(MACHINE_PATH, cell.source), f"a path of one machine: {cell.source[:80]!r}"


@pytest.mark.parametrize("name", ALL)
def test_opens_with_title_question_needs_and_time(name: str) -> None:
    notebook = load(name)
    first_code = next(number for number, cell in enumerate(notebook.cells) if cell.cell_type == "code")
    opening = "\n".join(cell.source for cell in notebook.cells[:first_code])
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
    assert [mark for _, mark in headings(notebook) if mark.startswith("# ")] == [opening.splitlines()[0]]
    for word in ("?", "needs", "takes"):
        assert word in opening.lower(), f"the opening says no {word!r} (question, what it needs, how long it takes)"


@pytest.mark.parametrize("name", ALL)
def test_first_code_cell_holds_plain_parameters(name: str) -> None:
    first, *rest = code(load(name))
    assert "parameters" in tags(first), "the first code cell carries the tag `parameters`"
    assert not [cell for cell in rest if "parameters" in tags(cell)], "one parameters cell only"
    assert rest, "a set-up cell follows the parameters"
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(first.source).readline)
        if token.type == tokenize.COMMENT
    }
    for item in ast.parse(first.source).body:
        line = ast.unparse(item)
        assert isinstance(item, ast.AnnAssign) and item.value is not None, f"`NAME: type = literal`, not {line!r}"
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", ast.unparse(item.target)), f"an upper-case name: {line!r}"
        assert ast.unparse(item.annotation) in PLAIN, f"papermill does not show this annotation: {line!r}"
        value = ast.literal_eval(item.value)
        assert type(value).__name__ == ast.unparse(item.annotation).split("[")[0], f"not of its type: {line!r}"
        assert item.end_lineno in comments, f"a trailing comment is papermill's help: {line!r}"


@pytest.mark.parametrize("name", QUESTIONS)
def test_shared_parameters(name: str) -> None:
    found = parameters(load(name))
    assert set(SHARED) - set(found) == set()
    for parameter, (annotation, default) in SHARED.items():
        item = found[parameter]
        assert ast.unparse(item.annotation) == annotation
        assert item.value is not None
        if default is not None:
            assert ast.literal_eval(item.value) == default


@pytest.mark.parametrize("name", QUESTIONS)
def test_sections_are_questions_and_the_verdict_is_last(name: str) -> None:
    notebook = load(name)
    sections = [(number, mark) for number, mark in headings(notebook) if mark.startswith("## ")]
    marks = [mark for _, mark in sections]
    free = {
        mark
        for number, mark in sections
        if "interactive" in tags(notebook.cells[min(number + 1, len(notebook.cells) - 1)])
    }
    free |= {"## Set-up", "## Verdict", "## Next"}
    wrong = [mark for mark in marks if not mark.endswith("?") and mark not in free]
    assert not wrong, f"sections are titled as questions: {wrong}"
    assert [mark for mark in marks if mark != "## Next"][-1] == "## Verdict"
    assert len(marks) > 1, "at least one question before the verdict"
    after = [cell.cell_type for cell in notebook.cells[verdict_at(notebook) + 1 :]]
    assert after.count("code") == 1, "one cell shows the findings and writes the sidecar"
    assert after[-1] == "markdown", "the last cell links to the next notebook and to the index"


@pytest.mark.parametrize("name", QUESTIONS)
def test_has_interactive_cells_before_the_verdict(name: str) -> None:
    notebook = load(name)
    tagged = [number for number, cell in enumerate(notebook.cells) if "interactive" in tags(cell)]
    assert tagged, "no cell is tagged `interactive`"
    assert all(notebook.cells[number].cell_type == "code" for number in tagged)
    assert max(tagged) < verdict_at(notebook)


@pytest.mark.parametrize("name", QUESTIONS)
def test_links_to_the_next_and_to_the_index(name: str) -> None:
    last = load(name).cells[-1].source
    following = QUESTIONS[QUESTIONS.index(name) + 1 :][:1]
    for target in (INDEX, *following):
        assert f"]({target}.ipynb" in last, f"the last cell has no link to {target}.ipynb"


def test_the_index_links_to_every_question() -> None:
    text = "\n".join(cell.source for cell in load(INDEX).cells if cell.cell_type == "markdown")
    assert [name for name in QUESTIONS if f"]({name}.ipynb" not in text] == []


@pytest.mark.parametrize("name", ALL)
def test_links_lead_somewhere(name: str) -> None:
    for cell in load(name).cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\(([^)#\s]+)", cell.source):
                assert re.match(r"https?:", link) or (FOLDER / link).exists(), f"a dead link: {link}"
