"""The errors the lab raises on bad input: file, key, what was found, what was expected, what to do."""

from __future__ import annotations

from pathlib import Path


class LabError(Exception):
    """Base of every error that bad input causes; its text is meant for the user."""

    @property
    def line(self) -> str:
        """The text on one line, for a table's cell."""
        return " ".join(str(self).split())


class BadFile(LabError):
    """A file cannot be read as what it should be.

    All faults of one file are collected and raised together.

    Args:
        path: the file at fault.
        faults: one sentence a fault: key, found, expected, what to do.
    """

    def __init__(self, path: str | Path, faults: str | list[str]):
        self.path = Path(path)
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        lines = self.faults if len(self.faults) == 1 else [""] + [f"  - {fault}" for fault in self.faults]
        super().__init__(f"{path}: " + "\n".join(lines))

    @property
    def line(self) -> str:
        """File and faults on one line."""
        return f"{self.path}: {'; '.join(self.faults)}"


class BadCase(BadFile):
    """``case.toml`` names something that is not there or does not fit."""


class BadOption(LabError):
    """A command's option, or a notebook's parameter, does not fit: wrong usage, not a fault of a file."""


class BadShape(LabError):
    """Two widths do not fit in an operation of the forward.

    Args:
        operation: the operation as the shape trace names it, e.g. ``q_proj``.
        found: what arrives, in words and numbers.
        expected: what the weight takes.
        hypotheses: likely causes, most likely first, each with its evidence.
    """

    def __init__(self, operation: str, found: str, expected: str, hypotheses: list[str]):
        self.operation, self.found, self.expected, self.hypotheses = operation, found, expected, hypotheses
        causes = "".join(f"\n  {i}. {cause}" for i, cause in enumerate(hypotheses, 1))
        super().__init__(f"{operation}: {found}; {expected}." + (f" Likely causes:{causes}" if causes else ""))


class Blocked(LabError):
    """A question cannot be answered from the files given; the text says which file would answer it."""
