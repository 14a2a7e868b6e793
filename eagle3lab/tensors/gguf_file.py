"""One GGUF file, read through the ``gguf`` package."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from eagle3lab.errors import BadFile
from eagle3lab.records import TensorInfo


class GgufFile:
    """Placeholder until the reader is written."""

    def __init__(self, file: Path):
        raise BadFile(file, "GGUF")
        self.infos: dict[str, TensorInfo] = {}
        self.metadata: dict[str, str] = {}

    def read(self, name: str) -> Tensor:
        """One tensor."""
        raise NotImplementedError

    def rows(self, name: str, index: Tensor) -> Tensor:
        """Rows."""
        raise NotImplementedError
