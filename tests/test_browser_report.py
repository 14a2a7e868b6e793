"""The demo's report in a real browser: from file://, with the network blocked."""

from __future__ import annotations

import json
from pathlib import Path

import browser
import pytest

PAGES = [
    "01_weights", "02_vocab_mapping", "03_hidden_states", "04_forward_pass", "05_acceptance", "06_serving_gap", "00_index",
]  # fmt: skip

pytestmark = pytest.mark.browser


def test_every_page_opens_without_a_network(demo_report: Path):
    # every name resolves to nothing: whatever a page asked for outside itself would fail and be seen here
    with browser.chromium("--host-resolver-rules=MAP * ~NOTFOUND") as chromium:
        page = chromium.new_page()
        asked, failed, errors = [], [], []
        page.on("request", lambda r: asked.append(r.url))
        page.on("requestfailed", lambda r: failed.append(r.url))
        page.on("pageerror", lambda e: errors.append(str(e)))
        for name in ["../index", *PAGES]:
            page.goto((demo_report / "demo" / f"{name}.html").resolve().as_uri())
            page.wait_for_load_state("networkidle")
            images = page.evaluate("[...document.images].map(i => [i.complete, i.naturalWidth, i.alt])")
            assert all(complete and width > 0 for complete, width, _ in images), f"{name}: an image does not show"
            assert all(alt.strip() for _, _, alt in images), f"{name}: an image has no alt text"
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert failed == []
        assert errors == []


def test_figures_tables_and_strips_are_on_the_pages(demo_report: Path):
    with browser.chromium("--host-resolver-rules=MAP * ~NOTFOUND") as chromium:
        page = chromium.new_page()
        wanted = {
            "01_weights": ("figure", 3), "02_vocab_mapping": ("figure", 2), "03_hidden_states": ("figure", 2),
            "04_forward_pass": ("figure", 3), "05_acceptance": ("figure", 4), "06_serving_gap": ("figure", 2),
        }  # fmt: skip
        for name, (_, figures) in wanted.items():
            page.goto((demo_report / "demo" / f"{name}.html").resolve().as_uri())
            assert page.locator("img").count() >= figures, name
            assert page.locator("table").count() >= 2, name
        page.goto((demo_report / "demo" / "05_acceptance.html").resolve().as_uri())
        assert page.get_by_text("accepted", exact=False).count() > 0


def test_the_index_names_the_wiring_with_both_numbers(demo_report: Path):
    with browser.chromium("--host-resolver-rules=MAP * ~NOTFOUND") as chromium:
        page = chromium.new_page()
        page.goto((demo_report / "index.html").resolve().as_uri())
        text = page.inner_text("body")
    for part in (
        "(15, 27, 30)",
        "(0, 15, 27)",
        "accuracy 0.002",
        "accuracy 0.619",
        "accept length 1.00",
        "accept length 2.19",
    ):
        assert part in text, part
    status = json.loads((demo_report / "status.json").read_text())
    assert {n["status"] for n in status["cases"][0]["notebooks"]} == {"ok"}
    assert len(status["cases"][0]["notebooks"]) == 7
