"""Where a target's rows come from: its own checkpoint (``whole``) or, here, a slice of it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from eagle3lab.dialects.config import SIZE
from eagle3lab.errors import BadFile
from eagle3lab.tensors import TensorFiles
from eagle3lab.tensors.quantised import FLOATS

SLICE_FORMAT = "eagle3lab-target-slice/1"
BAKED = "norm_plus_one"
"""Metadata of a slice: ``done`` where ``norm.weight`` has its 1 already, as in GGUF."""

PLUS_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text",
            "qwen3_next", "recurrent_gemma")  # fmt: skip
"""Targets whose RMSNorm multiplies by 1 + w (trainers.md 2.6; llama.cpp's converter adds the 1 for the same ones)."""

LAYER_NORM = ("cohere", "cohere2", "nemotron")
"""Targets whose final norm subtracts the mean first, without a bias in the file to tell."""


class Tables(Protocol):
    """What a target's rows are read from."""

    path: Path
    tensors: TensorFiles

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding table."""

    def rows(self, what: str, tokens: Tensor) -> Tensor:
        """Rows of ``embedding`` or ``head`` for tokens [N] → [N, Ht]."""

    def norm(self) -> tuple[Tensor, bool]:
        """The final norm's weight [Ht] as stored, and whether a 1 is still to be added where the type wants it."""


class Slice:
    """Some rows of a target beside their token ids (design section 8).

    Args:
        tensors: the slice's file.
        vocab: V as config.json says.
        hidden: Ht.

    Raises:
        BadFile: every fault of the slice.
    """

    def __init__(self, tensors: TensorFiles, vocab: int, hidden: int):
        self.path, self.tensors, self.hidden = tensors.path, tensors, hidden
        faults = self._faults(vocab)
        if faults:
            raise BadFile(tensors.path, faults)
        self.vocab = int(tensors.metadata.get("vocab_size", vocab))
        self.token_ids = tensors.read("token_ids").long()

    @property
    def tied(self) -> bool:
        """As its metadata says."""
        return self.tensors.metadata.get("tied") == "true"

    def rows(self, what: str, tokens: Tensor) -> Tensor:
        """Rows for tokens [N] → [N, Ht].

        Raises:
            BadFile: it does not hold one of them; the text lists the first few.
        """
        places = torch.searchsorted(self.token_ids, tokens).clamp(max=len(self.token_ids) - 1)
        absent = tokens[self.token_ids[places] != tokens].unique()
        if len(absent):
            raise BadFile(
                self.path,
                f"the slice lacks the rows of {len(absent)} tokens (first: {absent[:5].tolist()}); "
                f"it holds {len(self.token_ids)} of {self.vocab}. Slice the target again for these samples",
            )
        return self.tensors.rows("lm_head.rows" if what == "head" else "embed_tokens.rows", places)

    def norm(self) -> tuple[Tensor, bool]:
        """The final norm's weight, and whether its 1 is missing."""
        return self.tensors.read("norm.weight"), self.tensors.metadata.get(BAKED) != "done"

    def _faults(self, vocab: int) -> list[str]:
        tensors = self.tensors
        rows = tensors["token_ids"].shape[0] if "token_ids" in tensors and tensors["token_ids"].shape else 0
        wanted = {"token_ids": (rows,), "embed_tokens.rows": (rows, self.hidden), "norm.weight": (self.hidden,)}
        if not self.tied:
            wanted["lm_head.rows"] = (rows, self.hidden)
        found = ", ".join(sorted(tensors)) or "nothing"
        faults = [
            f"key {name!r} is missing; found {found}"
            if name not in tensors
            else f"{name} is {tensors[name].dtype} {list(tensors[name].shape)}, expected {list(shape)}"
            for name, shape in wanted.items()
            if name not in tensors or tensors[name].shape != shape
        ]
        faults += [
            f"{name} is {tensors[name].dtype}, expected one of {', '.join(FLOATS)}; slice the target again"
            for name in wanted
            if name in tensors and name != "token_ids" and tensors[name].dtype not in FLOATS
        ]
        size = tensors.metadata.get("vocab_size", str(vocab))
        if not size.isascii() or not size.isdecimal() or len(size) > 19 or not SIZE[0](int(size)):
            faults.append(f"metadata 'vocab_size' is {size[:40]!r}, expected {SIZE[1]}")
        if not faults and not rows:
            faults.append("holds no row at all; slice the target again for these samples")
        if not faults:
            ids = tensors.read("token_ids")
            if tensors["token_ids"].dtype not in ("I64", "I32") or not bool((ids[1:] > ids[:-1]).all()):
                faults.append("token_ids: expected I64, rising, each once: rows are looked up by bisection")
            elif int(ids[0]) < 0 or int(ids[-1]) >= int(size):
                faults.append(f"token_ids reach from {int(ids[0])} to {int(ids[-1])}, outside the vocabulary of {size}")
        return faults
