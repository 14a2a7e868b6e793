"""Chromium for the tests that look at pages: found, started headless, and required where CI says so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

REQUIRED = "EAGLE3LAB_REQUIRE_BROWSER"
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def path() -> str:
    """Chromium's program; skips the test without it, unless a skipped browser test must be a failure."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        if os.environ.get(REQUIRED):
            pytest.fail(f"no Chromium on this machine, and {REQUIRED} is set: install it (apt-get install chromium)")
        pytest.skip("no Chromium on this machine")
    return found


@contextmanager
def chromium(*more: str) -> Iterator[Browser]:
    """A headless browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path(), args=[*QUIET, *more])
        try:
            yield browser
        finally:
            browser.close()
