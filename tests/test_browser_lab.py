"""A real JupyterLab in headless Chromium: open 04, run all cells, change one layer dropdown, see the accuracy change."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import browser
import pytest
from playwright.sync_api import Error

pytestmark = pytest.mark.browser
TOKEN = "eagle3lab-test"
RUNNING, CHANGE = 420_000, 60_000  # milliseconds: a loaded machine takes minutes for the search


@pytest.fixture
def server(repo: Path, tmp_path: Path, demo_report: Path) -> Iterator[str]:
    """A JupyterLab on a copy of the notebooks, so that running them leaves the repository alone."""
    browser.path()  # skip before a server is started
    notebooks = tmp_path / "notebooks"
    shutil.copytree(repo / "notebooks", notebooks, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    # the search remembered by the report is found again through OUT's default, reports/<case> in the working folder
    (notebooks / "reports" / "demo").mkdir(parents=True)
    shutil.copy(demo_report / "demo" / "search.json", notebooks / "reports" / "demo" / "search.json")
    # all cells in the page at once: a cell that is scrolled away is otherwise taken out of it
    settings = tmp_path / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    (settings / "tracker.jupyterlab-settings").write_text('{"windowingMode": "none"}')
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ, "JUPYTER_CONFIG_DIR": str(tmp_path / "config"), "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"), "JUPYTERLAB_SETTINGS_DIR": str(tmp_path / "settings"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ServerApp.ip=127.0.0.1",
        f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={notebooks}", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    log = (tmp_path / "lab.log").open("w")
    lab = subprocess.Popen(command, env=environment, cwd=notebooks, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/api?token={TOKEN}", timeout=2)
                break
            except (OSError, HTTPException):
                assert lab.poll() is None, (tmp_path / "lab.log").read_text()[-2000:]
                time.sleep(0.5)
        yield address
    finally:
        lab.terminate()
        try:
            lab.wait(60)
        except subprocess.TimeoutExpired:  # a loaded machine takes its time to end a kernel; that is not what is tested
            lab.kill()
            lab.wait()
        log.close()


def test_a_layer_dropdown_changes_the_accuracy_shown(server: str, tmp_path: Path):
    with browser.chromium() as chromium:
        page = chromium.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(f"{server}/lab/tree/04_forward_pass.ipynb?token={TOKEN}&reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
        # asked to run before the kernel is up, JupyterLab asks which kernel and waits
        page.get_by_text(re.compile(r"\| Idle$")).wait_for(timeout=120_000)
        page.locator("li.lm-MenuBar-item", has_text="Run").click()
        page.get_by_role("menuitem", name=re.compile(r"^Run All Cells$")).click()
        chosen = page.locator(".widget-dropdown", has_text="slot 0").locator("select")
        try:
            chosen.wait_for(state="attached", timeout=RUNNING)
        except Error:
            page.screenshot(path=tmp_path / "lab.png")
            shown = page.locator(".jp-OutputArea").all_inner_texts()
            pytest.fail(f"no dropdown for slot 0 ({tmp_path / 'lab.png'}); shown: {' | '.join(shown)[-3000:]}")
        cell = page.locator(".jp-Cell", has=chosen)
        cell.scroll_into_view_if_needed()
        shown = cell.locator(".jp-OutputArea-output", has_text="accept")
        shown.first.wait_for(timeout=RUNNING)
        before = cell.inner_text()
        assert "boundaries (0, 15, 27)" in before
        chosen.select_option("15")
        page.wait_for_function(
            "([cell, old]) => cell.innerText !== old && cell.innerText.includes('boundaries (15, 15, 27)')",
            arg=[cell.element_handle(), before], timeout=CHANGE,
        )  # fmt: skip
        after = cell.inner_text()
        page.screenshot(path=tmp_path / "lab.png")
    numbers = [re.findall(r"\b0\.\d{3}\b", text) for text in (before, after)]
    assert numbers[0] and numbers[1] and numbers[0] != numbers[1]
