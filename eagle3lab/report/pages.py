"""Turns an executed notebook into a page that needs nothing but itself: no network, no script, no kernel."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from jinja2 import FileSystemLoader
from nbconvert import HTMLExporter
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode

from eagle3lab.scrub import Scrubber

TEMPLATES = Path(__file__).parents[1] / "report_template"

# What a page could only show with a kernel or a script.
_ALIVE = ("application/vnd.jupyter.widget-view+json", "application/javascript")
_MARKUP = re.compile(r"\[([^\]]*)\]\([^)]*\)|[*`]|(?<!\w)_|_(?!\w)")


@dataclass(frozen=True)
class Page:
    """What stands around a notebook on its page.

    Attributes:
        name: the notebook, without suffix.
        title: its title.
        case: the case's title.
        status: how it went, `Run.status`.
        error: one line, empty when nothing went wrong.
        stopped: index of the cell it stopped at.
        facts: (name, value) shown under the title: run time, versions.
        before: (name, title) of the page before, None for the first.
        after: (name, title) of the page after.
        pages: the notebooks that have a page in this folder; links to others become text.
    """

    name: str
    title: str
    case: str
    status: str = "ok"
    error: str = ""
    stopped: int | None = None
    facts: tuple[tuple[str, str], ...] = ()
    before: tuple[str, str] | None = None
    after: tuple[str, str] | None = None
    pages: Collection[str] = field(default_factory=frozenset)


class Still(Preprocessor):
    """Takes out what moves (widget views, their state, JavaScript) and marks the cell a run stopped at."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
        """Drops the widgets' state from the notebook, then treats its cells."""
        nb.metadata.pop("widgets", None)
        return super().preprocess(nb, resources)

    def preprocess_cell(
        self, cell: NotebookNode, resources: dict[str, Any], index: int
    ) -> tuple[NotebookNode, dict[str, Any]]:
        """Drops outputs that only a kernel or a script could show; their static twins stay."""
        if cell.cell_type == "code":
            stopped = resources["page"].stopped
            cell.metadata.update(stopped=index == stopped, unreached=stopped is not None and index > stopped)
            kept = []
            for output in cell.outputs:
                alive = [kind for kind in _ALIVE if kind in output.get("data", {})]
                for kind in alive:
                    del output.data[kind]
                # The plain text beside a widget is its repr, which tells a reader nothing.
                if not alive or set(output.data) - {"text/plain"}:
                    kept.append(output)
            cell.outputs = kept
        return cell, resources


def clean(node: NotebookNode, name: str, scrubber: Scrubber) -> NotebookNode:
    """A copy of ``node`` without private folders, papermill's own metadata included."""
    copy = NotebookNode(node)
    copy.metadata = _nodes(scrubber.tree(node.metadata))
    copy.cells = [_nodes(scrubber.tree(cell)) for cell in node.cells]
    if "papermill" in copy.metadata:
        copy.metadata.papermill.update(input_path=f"{name}.ipynb", output_path=f"{name}.ipynb")
    return copy


def render(node: NotebookNode, page: Page) -> str:
    """The page of a notebook already `clean`, as one HTML text.

    Nothing in it loads anything, and a policy in its head forbids it to: it reads the same behind a firewall.
    """
    exporter = HTMLExporter(
        template_name="lab",
        template_file="notebook_page.html.j2",
        extra_loaders=[FileSystemLoader(TEMPLATES)],
        preprocessors=[Still],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
    )
    text, _ = exporter.from_notebook_node(node, {"metadata": {"name": page.title}, "page": page})
    return _seal(text, page)


def heading(node: NotebookNode, name: str) -> tuple[str, str]:
    """Title and question of a notebook: its first heading and the first paragraph after it, as plain text."""
    first = next((cell.source for cell in node.cells if cell.cell_type == "markdown"), "")
    lines = first.strip().splitlines()
    title = lines[0].lstrip("# ") if lines and lines[0].startswith("#") else name
    body = "\n".join(lines[1:] if lines and lines[0].startswith("#") else lines)
    question = next((part for part in re.split(r"\n\s*\n", body.strip()) if not part.startswith("#")), "")
    question = re.sub(r"^Question[:.]?\s*", "", _MARKUP.sub(r"\1", " ".join(question.split())))
    return _MARKUP.sub(r"\1", title).strip(), question


def _seal(text: str, page: Page) -> str:
    """Closes a page off from the outside: links between notebooks lead to pages, nothing is loaded.

    A link to what is not in the report becomes plain text, and so does an image from elsewhere. The policy in
    the page's head forbids the same; this keeps a browser from even complaining.
    """
    soup = BeautifulSoup(text, "html.parser")
    for tag in soup.select("main :is(script, link, iframe, object, embed)"):
        tag.decompose()
    for image in soup.select("main img:not([src^='data:'])"):
        image.replace_with(f"[{image.get('alt') or 'image'}]")
    for link in soup.select("main a[href]"):
        target, _, anchor = str(link["href"]).partition("#")
        stem = target.removeprefix("./").removesuffix(".ipynb")
        if target.endswith(".ipynb") and stem in page.pages:
            link["href"] = f"{stem}.html" + (f"#{anchor}" if anchor else "")
        elif target and not re.match(r"(https?|mailto):", target):
            link.unwrap()
    return str(soup)


def _nodes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return NotebookNode({key: _nodes(item) for key, item in value.items()})
    return [_nodes(item) for item in value] if isinstance(value, list) else value
