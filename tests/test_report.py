"""The report: honest about what ran, readable without a network, silent about where it was made."""

from __future__ import annotations

import base64
import json
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from eagle3lab import verdict
from eagle3lab.report import run_report
from eagle3lab.report.index import CaseReport, Entry
from eagle3lab.report.pages import heading

PARAMETERS = """CASE: str = "data/demo/case.toml"  # the case
STEPS: int = 5  # draft steps
SAMPLE = ""  # a sample's name
RATE = 0.5  # a rate
FLAG = False  # a flag
INTERACTIVE: bool = True  # widgets
OUT: str = ""  # where to write
"""
VERDICT = """from pathlib import Path
from eagle3lab import verdict
from eagle3lab.records import Finding, Severity
given = dict(CASE=CASE, STEPS=STEPS, SAMPLE=SAMPLE, RATE=RATE, FLAG=FLAG, INTERACTIVE=INTERACTIVE, OUT=OUT)
finding = Finding("X001", Severity.{severity}, "<b>bold</b> & {name}", where=CASE, remedy="change it")
path = verdict.write(Path(OUT) / "{name}.json", notebook="{name}", title="{name}", findings=[finding],
    sentence="{name}: a <i>verdict</i>", parameters=given, counts={{"rows": 3, "rate": float("nan")}},
    inputs=verdict.inputs([Path(CASE)], Path(CASE).parent), seconds=0.1)"""


# The same by hand: importing the lab, and with it torch, in every kernel would be most of this file's time.
PLAIN = """import json; from pathlib import Path
finding = dict(code="X001", severity="{severity}", title="<b>bold</b> & {name}", where=CASE, remedy="do")
verdict = dict(schema=1, notebook="{name}", title="{name}", sentence="{name}: a <i>verdict</i>",
    severity="{severity}", parameters=dict(), inputs=[], versions=dict(), git=None, findings=[finding],
    counts=dict(), seconds=0.1)
Path(OUT).mkdir(parents=True, exist_ok=True); Path(OUT, "{name}.json").write_text(json.dumps(verdict))"""


def _png() -> str:
    """One white pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff"))
    return base64.b64encode(png + chunk(b"IEND", b"")).decode()


OUTPUTS = f"""import html, os, sys
from IPython.display import HTML
Path(OUT, "python.txt").write_text(sys.executable)
display({{"image/png": "{_png()}"}}, raw=True, metadata={{"image/png": {{"alt": 'acceptance "per" step'}}}})
view = {{"model_id": "1"}}
display({{"application/vnd.jupyter.widget-view+json": view, "text/plain": "Int" "Slider()"}}, raw=True)
display({{"application/javascript": "alert" "(2)", "text/html": "static" " twin"}}, raw=True)
display(HTML('<script src="https://cdn.example/x.js"></script><img alt="far" src="//cdn.example/x.png">'))
display(HTML(html.escape("<script>alert(1)</script> & co")))
print("<script>alert(3)</script>")
print(CASE, OUT, os.getcwd(), Path.home(), f"\\x1b[31m{{Path(CASE).parent}}/draft\\x1b[0m")"""


def _notebook(path: Path, *code: str, parameters: str = PARAMETERS, text: str = "") -> None:
    first = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    head = f"# {path.stem} <T>\n\n**Question.** Is *it* `{path.stem}`?\n\nTakes 1 s. {text}"
    cells = [new_markdown_cell(head), first, *(new_code_cell(source) for source in code)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path.parent.mkdir(exist_ok=True)
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def _good(path: Path, *code: str, severity: str = "PASS", writes: str = PLAIN, **more: str) -> None:
    _notebook(path, writes.format(name=path.stem, severity=severity), *code, **more)


def _case(folder: Path, title: str = "A <case> & more") -> Path:
    folder.mkdir(parents=True)
    (folder / "case.toml").write_text(f'title = "{title}"\n[draft]\npath = "draft"\n')
    return folder / "case.toml"


@dataclass
class Made:
    """A report made once for many tests."""

    code: int
    out: Path
    root: Path
    here: Path
    lines: list[str]
    seconds: float

    @property
    def status(self) -> dict[str, Any]:
        rows = json.loads((self.out / "status.json").read_text())["cases"][0]["notebooks"]
        return {row["name"]: row for row in rows}

    def page(self, name: str) -> str:
        return (self.out / "demo" / f"{name}.html").read_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    root = tmp_path_factory.mktemp("report")
    case, notebooks, out, here = (
        _case(root / "cases" / "demo"),
        root / "notebooks",
        root / "out",
        root / "here",
    )
    here.mkdir()
    links = "[next](02_raises.ipynb#a) [self](#b) [doc](../docs/checks.md) [web](https://example.org/)"
    _good(
        notebooks / "00_index.ipynb",
        'print(*sorted(p.stem for p in Path(OUT).glob("*.json")))',
        severity="WARN",
    )
    _good(notebooks / "01_good.ipynb", OUTPUTS, writes=VERDICT, text=links)
    secret = f'# {here}\nverdicts = "so far"\nraise ValueError(f"nothing in {{CASE}} <&>")'
    _good(notebooks / "02_raises.ipynb", secret, "print('never')")
    _notebook(notebooks / "03_dies.ipynb", "print('seen')", "import os; os._exit(1)", "print('never')")
    _notebook(notebooks / "04_silent.ipynb", "1 + 1")

    # What an earlier run left: verdicts that must not pass for those of this run.
    stale = {"schema": 1, "sentence": "stale"}
    for name in ("02_raises", "03_dies", "04_silent"):
        verdict.save(out / "demo" / f"{name}.json", stale)
        (out / "demo" / f"{name}.html").write_text("stale")
    (out / "demo" / "mine.txt").write_text("keep")

    # A user-level kernelspec that would run something else.
    decoy = root / "jupyter" / "kernels" / "python3"
    decoy.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "decoy", "language": "python"}
    (decoy / "kernel.json").write_text(json.dumps(spec))
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(decoy.parent.parent))
        patch.chdir(here)
        started = time.monotonic()
        code = run_report(
            [Path(os.path.relpath(case, here))],
            Path("../out"),
            notebooks=notebooks,
            parameters={"STEPS": "3", "SAMPLE": "12", "RATE": 1, "FLAG": "true"},
            log=lines.append,
        )
        seconds = time.monotonic() - started
        assert Path.cwd() == here
    yield Made(code, out, root, here, lines, seconds)


def test_every_status_comes_from_what_happened(made: Made) -> None:
    assert made.code == 1
    assert {name: row["status"] for name, row in made.status.items()} == {
        "00_index": "ok",
        "01_good": "ok",
        "02_raises": "failed",
        "03_dies": "kernel died",
        "04_silent": "not run",
    }
    assert made.status["02_raises"]["error"] == "ValueError: nothing in case.toml <&>"
    assert made.status["01_good"]["severity"] == "PASS"
    assert made.status["01_good"]["sentence"] == "01_good: a <i>verdict</i>"
    assert all(row["severity"] is None for name, row in made.status.items() if row["status"] != "ok")
    assert [line.split(":")[0] for line in made.lines] == [
        f"demo{os.sep}{name}" for name in ("01_good", "02_raises", "03_dies", "04_silent", "00_index")
    ]


def test_a_sidecar_means_that_the_notebook_ran_to_its_end(made: Made) -> None:
    # 02 had written its verdict before it raised; 00 saw what the others left, and ran last.
    folder = made.out / "demo"
    assert sorted(path.name for path in folder.glob("*.json")) == ["00_index.json", "01_good.json"]
    assert "00_index 01_good" in made.page("00_index")
    assert (folder / "mine.txt").read_text() == "keep"
    assert (
        sorted(path.suffix for path in folder.iterdir())
        == [".html"] * 5 + [".ipynb"] * 5 + [".json"] * 2 + [".txt"] * 2
    )


def test_parameters_arrive_in_their_types(made: Made) -> None:
    content = verdict.read(made.out / "demo" / "01_good.json")
    assert content["parameters"] == {
        "CASE": "case.toml",
        "STEPS": 3,
        "SAMPLE": "12",
        "RATE": 1.0,
        "FLAG": True,
        "INTERACTIVE": False,
        "OUT": "demo",
    }
    assert type(content["parameters"]["RATE"]) is float


def test_kernel_is_this_interpreter(made: Made) -> None:
    assert (made.out / "demo" / "python.txt").read_text() == sys.executable


def test_partial_pages(made: Made) -> None:
    raised, died = made.page("02_raises"), made.page("03_dies")
    assert "FAILED" in raised and "nothing in case.toml &lt;&amp;&gt;" in raised
    assert raised.count('id="stopped"') == 1 and "Stopped here" in raised
    assert "never" in raised and "Code, not reached" in raised
    assert "papermill" not in raised.lower()
    assert "KERNEL DIED" in died and "seen" in died
    assert died.index("Stopped here") < died.index("_exit") < died.index("Code, not reached")
    assert "NOT RUN" in made.page("04_silent")
    assert 'role="alert"' not in made.page("01_good")


class _Loads(HTMLParser):
    """Collects what a browser would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[tuple[str, str | None]] = []
        self.links: list[str] = []
        self.alts: list[str | None] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in ("script", "link", "iframe", "object", "embed", "base"):
            self.loaded.append((tag, named.get("src") or named.get("href")))
        source = named.get("src") or named.get("srcset")
        if source and not source.startswith("data:"):
            self.loaded.append((tag, source))
        if tag == "img":
            self.alts.append(named.get("alt"))
        if tag == "a":
            self.links.append(named.get("href") or "")
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named.get("content") or ""


def test_pages_load_nothing_and_run_nothing(made: Made) -> None:
    for path in [made.out / "index.html", *(made.out / "demo").glob("*.html")]:
        text = path.read_text()
        page = _Loads(text)
        assert page.loaded == [], path.name
        assert "default-src 'none'" in page.policy and "script" not in page.policy
        assert "url(http" not in text and "@import" not in text
        assert len(text) < 2_000_000


def test_outputs_are_still_and_escaped(made: Made) -> None:
    text = made.page("01_good")
    assert "jupyter-widgets" not in text and "IntSlider" not in text
    assert "static twin" in text and "alert(2)" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; co" in text
    assert "&lt;script&gt;alert(3)" in text and "<script" not in text
    assert _Loads(text).alts == ['acceptance "per" step']
    assert "[far]" in text


def test_links(made: Made) -> None:
    links = _Loads(made.page("01_good")).links
    assert {"02_raises.html#a", "#b", "https://example.org/", "../index.html", "00_index.html"} <= set(links)
    assert not any("docs/" in link or link.endswith(".ipynb") for link in links)
    pages = _Loads((made.out / "index.html").read_text()).links
    assert {f"demo/{name}.html" for name in made.status} <= set(pages)
    assert all((made.out / link).is_file() for link in pages if not link.startswith("#"))
    last = _Loads(made.page("04_silent")).links
    assert "03_dies.html" in last and not any(link.startswith("05") for link in last)


def test_nothing_says_where_it_was_made(made: Made) -> None:
    private = {str(made.root), str(made.here), str(Path.home()), str(Path(__file__).parent.parent)}
    private = {place for place in private if len(place) > 1}
    for path in made.out.rglob("*"):
        if path.suffix in (".html", ".ipynb", ".json"):
            found = [place for place in private if place in path.read_text()]
            assert not found, f"{path.name}: {found}"
    executed = nbformat.read(made.out / "demo" / "01_good.ipynb", as_version=4)
    assert executed.metadata.papermill.parameters.CASE == "case.toml"
    assert executed.metadata.papermill.input_path == "01_good.ipynb"
    assert "case.toml OUT/demo notebooks ~ " in made.page("01_good")


def test_index_page(made: Made) -> None:
    text = (made.out / "index.html").read_text()
    assert "A &lt;case&gt; &amp; more" in text and "<case>" not in text
    assert "00_index: a &lt;i&gt;verdict&lt;/i&gt;" in text
    assert "3 of 5 notebooks did not run" in text
    assert "Is it 01_good?" in text
    for word in ("FAILED", "KERNEL DIED", "NOT RUN"):
        assert word in text
    # The one finding to act on, once; what passed is only counted.
    assert text.count('<article class="finding') == 1
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; 00_index" in text and "bold&lt;/b&gt; &amp; 01_good" not in text
    assert "2 statements checked" in text and "<span>1 PASS</span>" in text


def test_timeout(tmp_path: Path) -> None:
    _notebook(tmp_path / "notebooks" / "05_slow.ipynb", "import time; time.sleep(600)")
    out = tmp_path / "out"
    assert run_report([_case(tmp_path / "demo")], out, notebooks=tmp_path / "notebooks", timeout=4) == 1
    page = (out / "demo" / "05_slow.html").read_text()
    assert "TIMEOUT" in page and "a cell took longer than 4 s" in page and "Stopped here" in page
    assert json.loads((out / "status.json").read_text())["cases"][0]["notebooks"][0]["status"] == "timeout"


def test_two_cases_then_one_notebook_again(tmp_path: Path) -> None:
    cases = [_case(tmp_path / "a" / "de mo"), _case(tmp_path / "b" / "de mo", "Second")]
    _good(tmp_path / "notebooks" / "01_one.ipynb", severity="FAIL")
    _good(tmp_path / "notebooks" / "02_two.ipynb")
    out = tmp_path / "out"
    arguments: dict[str, Any] = {"notebooks": tmp_path / "notebooks", "strict": True}
    assert run_report([cases[0], cases[1].parent], out, only=["01"], **arguments) == 3
    rows = json.loads((out / "status.json").read_text())["cases"]
    assert [(row["case"], row["title"]) for row in rows] == [
        ("de_mo", "A <case> & more"),
        ("de_mo-2", "Second"),
    ]
    index = (out / "index.html").read_text()
    assert "2 cases" in index and 'href="#de_mo-2"' in index and 'id="de_mo-2"' in index

    # Another one alone: the first one's verdict is kept, and the gate looks at what ran.
    assert run_report(cases[:1], out, only=["02"], **arguments) == 0
    _notebook(tmp_path / "notebooks" / "01_one.ipynb", "raise OSError('gone')")
    assert run_report(cases[:1], out, only=["01_one.ipynb"], **arguments) == 1
    rows = json.loads((out / "status.json").read_text())["cases"][0]["notebooks"]
    assert [(row["name"], row["status"], row["severity"]) for row in rows] == [
        ("01_one", "failed", None),
        ("02_two", "ok", "PASS"),
    ]
    assert 'href="de_mo/02_two.html"' in (out / "index.html").read_text()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parameters": {"STEP": 3}}, "STEP: no such parameter; known are FLAG, RATE, SAMPLE, STEPS"),
        ({"parameters": {"CASE": "x"}}, "CASE: set by the report itself"),
        ({"parameters": {"STEPS": "many"}}, "01_good.ipynb: STEPS: found 'many', expected int"),
        ({"parameters": {"SAMPLE": 3}}, "SAMPLE: found 3"),
        ({"parameters": {"FLAG": 1}}, "FLAG: found 1"),
        ({"cases": ["missing"]}, "missing: no such case"),
        ({"cases": ["broken"]}, "not a case file"),
        ({"cases": []}, "no case given"),
        ({"only": ["07"]}, "07: no such notebook; there are 01_good"),
        ({"notebooks": "cases"}, "no notebook NN_name.ipynb"),
        ({"notebooks": "deaf"}, "01_deaf.ipynb: its parameters cell lacks CASE, OUT"),
        ({"out": "cases"}, "the case's own folder"),
    ],
)
def test_wrong_usage_runs_nothing(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    _case(tmp_path / "cases" / "demo")
    (tmp_path / "broken").write_text("title = ")
    _good(tmp_path / "notebooks" / "01_good.ipynb")
    _notebook(tmp_path / "deaf" / "01_deaf.ipynb", parameters="INTERACTIVE = True")
    lines: list[str] = []
    code = run_report(
        [tmp_path / case for case in change.get("cases", ["cases/demo"])],
        tmp_path / change.get("out", "out"),
        notebooks=tmp_path / change.get("notebooks", "notebooks"),
        parameters=change.get("parameters"),
        only=change.get("only", ()),
        log=lines.append,
    )
    assert code == 2
    assert says in lines[0]
    assert not (tmp_path / "out").exists()


def test_interrupt_ends_the_kernels(tmp_path: Path) -> None:
    _good(tmp_path / "notebooks" / "01_quick.ipynb")
    pid = "import os, time; from pathlib import Path; Path(OUT).mkdir(exist_ok=True, parents=True)"
    _notebook(
        tmp_path / "notebooks" / "02_long.ipynb",
        pid,
        "Path(OUT, 'pid').write_text(str(os.getpid()))",
        "time.sleep(600)",
    )
    _good(tmp_path / "notebooks" / "03_queued.ipynb")
    file = tmp_path / "out" / "demo" / "pid"

    def interrupt(line: str) -> None:
        while not file.exists():
            time.sleep(0.1)
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_report([_case(tmp_path / "demo")], tmp_path / "out", notebooks=tmp_path / "notebooks", log=interrupt)
    assert time.monotonic() - started < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
    assert not (tmp_path / "out" / "index.html").exists()


def test_heading() -> None:
    def node(text: str) -> nbformat.NotebookNode:
        return new_notebook(cells=[new_markdown_cell(text)])

    assert heading(
        node("# 02 The `d2t` map\n\n**Question:** Do they [speak](x.md) *the same*\ntokens?\n\nMore"), "n"
    ) == (
        "02 The d2t map",
        "Do they speak the same tokens?",
    )
    assert heading(node("# T\nWhich hidden_state feeds fc?"), "n") == ("T", "Which hidden_state feeds fc?")
    assert heading(new_notebook(), "02_x") == ("02_x", "")


def test_case_without_index_notebook_says_the_worst() -> None:
    def entry(name: str, severity: str) -> Entry:
        finding = {"code": "X", "title": "t", "severity": severity}
        content = {"severity": severity, "sentence": f"{name} says", "findings": [finding]}
        return Entry(name, name, "", "ok", 1.0, "", content)

    case = CaseReport("demo", "Demo", [entry("01_a", "PASS"), entry("02_b", "WARN"), entry("03_c", "WARN")])
    assert (case.severity, case.sentence) == ("WARN", "02_b says")
    assert CaseReport("demo", "Demo").severity is None
