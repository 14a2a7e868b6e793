"""What the lab needs of the target: embedding rows, head rows, final norm, config, tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lab.dialects.config import NUMBER, WHOLE
from eagle3lab.errors import BadFile, Blocked
from eagle3lab.norms import rms_norm
from eagle3lab.tensors import TensorFiles, open_tensors, read_json

SLICE_FORMAT = "eagle3lab-target-slice/1"
CONFIG: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("hidden_size", "num_hidden_layers", "vocab_size"), WHOLE),
    "rms_norm_eps": (lambda value: value is None or NUMBER[0](value), NUMBER[1]),
}
"""What the lab reads of the target's config, and what it should be."""

PLUS_ONE = ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_5", "qwen3_5_text", "recurrent_gemma")
"""Targets whose RMSNorm multiplies by 1 + w (trainers.md 2.6)."""


class Target:
    """The target's rows, read lazily from an HF folder or from a slice.

    Args:
        path: folder with ``config.json`` and either ``slice.safetensors`` or the model's tensors.

    Attributes:
        config: the text model's config (a multimodal wrapper is taken off).
        sliced: True when only some rows are held; then ``token_ids`` says which.
    """

    def __init__(self, path: Path):
        if not path.is_dir():
            raise BadFile(
                path,
                "a file; expected the target's folder with config.json and its tensors or a slice of them"
                if path.exists()
                else "no such folder; check [target] path in case.toml",
            )
        self.path = path
        raw = read_json(path / "config.json")
        inner = raw.get("text_config")
        self.config: dict[str, Any] = inner if isinstance(inner, dict) else raw
        faults = [
            f"key {key!r} is {self.config.get(key)!r}, expected {words}"
            for key, (fits, words) in CONFIG.items()
            if not fits(self.config.get(key))
        ]
        if faults:
            raise BadFile(path / "config.json", faults)

    @cached_property
    def tensors(self) -> TensorFiles:
        """The tensor files, mapped."""
        piece = self.path / "slice.safetensors"
        tensors = open_tensors(piece if piece.is_file() else self.path)
        if tensors.metadata.get("format") == SLICE_FORMAT:
            faults = self._slice_faults(tensors)
        elif piece.is_file():
            found = tensors.metadata.get("format")
            faults = [f"metadata 'format' is {found!r}, expected {SLICE_FORMAT!r}: rename it if it is no slice"]
        else:
            faults = self._table_faults(tensors)
        if faults:
            raise BadFile(tensors.path, faults)
        return tensors

    def _table_faults(self, tensors: TensorFiles) -> list[str]:
        """A table whose size contradicts the config: one of the two belongs to another model."""
        size = (int(self.config["vocab_size"]), self.hidden)
        return [
            f"{', '.join(f'{name} is {list(tensors[name].shape)}' for name in found)}, but config.json says vocab_size "
            f"{size[0]}, hidden_size {size[1]}; one of the two belongs to another model"
            for suffix in ("embed_tokens.weight", "lm_head.weight")
            if (found := _ending(tensors, suffix)) and not any(_holds(tensors[name].shape, size) for name in found)
        ]

    def _slice_faults(self, tensors: TensorFiles) -> list[str]:
        rows = tensors["token_ids"].shape[0] if "token_ids" in tensors and tensors["token_ids"].shape else 0
        wanted = {"token_ids": (rows,), "embed_tokens.rows": (rows, self.hidden), "norm.weight": (self.hidden,)}
        if tensors.metadata.get("tied") != "true":
            wanted["lm_head.rows"] = (rows, self.hidden)
        found = ", ".join(sorted(tensors)) or "nothing"
        faults = [
            f"key {name!r} is missing; found {found}"
            if name not in tensors
            else f"{name} is {tensors[name].dtype} {list(tensors[name].shape)}, expected {list(shape)}"
            for name, shape in wanted.items()
            if name not in tensors or tensors[name].shape != shape
        ]
        size = tensors.metadata.get("vocab_size", str(self.config["vocab_size"]))
        if not size.isdecimal():
            faults.append(f"metadata 'vocab_size' is {size!r}, expected a whole number")
        if not faults and not rows:
            faults.append("holds no row at all; slice the target again for these samples")
        if not faults:
            ids = tensors.read("token_ids")
            if tensors["token_ids"].dtype not in ("I64", "I32") or not bool((ids[1:] > ids[:-1]).all()):
                faults.append("token_ids: expected I64, rising, each once: rows are looked up by bisection")
            elif int(ids[0]) < 0 or int(ids[-1]) >= int(size):
                faults.append(f"token_ids reach from {int(ids[0])} to {int(ids[-1])}, outside the vocabulary of {size}")
        return faults

    @cached_property
    def sliced(self) -> bool:
        """True for a target slice."""
        return self.tensors.metadata.get("format") == SLICE_FORMAT

    @property
    def layers(self) -> int:
        """L, number of blocks; boundary L is the last residual before the final norm."""
        return int(self.config["num_hidden_layers"])

    @property
    def hidden(self) -> int:
        """Ht."""
        return int(self.config["hidden_size"])

    @property
    def vocab(self) -> int:
        """V."""
        with suppress(BadFile):  # raised again where rows are asked for
            return int(self.tensors.metadata.get("vocab_size", self.config["vocab_size"]))
        return int(self.config["vocab_size"])

    @property
    def model_type(self) -> str:
        """The config's ``model_type``, which decides engines' layer rules."""
        return str(self.config.get("model_type", ""))

    @property
    def eps(self) -> float:
        """RMSNorm epsilon."""
        return float(self.config.get("rms_norm_eps") or 1e-6)

    @cached_property
    def tied(self) -> bool:
        """Whether ``lm_head`` is the embedding table."""
        if self.sliced:
            return self.tensors.metadata.get("tied") == "true"
        return self._find("lm_head.weight") is None and self.config.get("tie_word_embeddings") is not False

    @cached_property
    def token_ids(self) -> Tensor:
        """int64 [N]: the tokens whose rows are held (all of V for a whole target), ascending."""
        return self.tensors.read("token_ids") if self.sliced else torch.arange(self.vocab)

    @cached_property
    def norm_weight(self) -> Tensor:
        """The final norm's weight [Ht], 1 already added where the model type wants it."""
        name = "norm.weight" if self.sliced else self._need("norm.weight", (self.hidden,))
        weight = self.tensors.read(name)
        return weight + 1 if self.model_type in PLUS_ONE else weight

    def embedding(self, tokens: Tensor) -> Tensor:
        """Embedding rows of ``tokens`` [...] → [..., Ht], as stored.

        Raises:
            BadFile: a slice does not hold one of them; the text lists the first few.
        """
        name = "embed_tokens.rows" if self.sliced else self._need("embed_tokens.weight", (self.vocab, self.hidden))
        flat = self.tensors.rows(name, self._places(tokens.reshape(-1)))  # [N, Ht]
        return flat.reshape(*tokens.shape, self.hidden)

    def head(self, tokens: Tensor | None = None) -> Tensor:
        """``lm_head`` rows of ``tokens`` [N] (all rows held when None) → [N, Ht], as stored."""
        if self.tied:
            return self.embedding(self.token_ids if tokens is None else tokens)
        name = "lm_head.rows" if self.sliced else self._need("lm_head.weight", (self.vocab, self.hidden))
        if tokens is None:
            return self.tensors.read(name)
        return self.tensors.rows(name, self._places(tokens))

    def holds(self, tokens: Tensor) -> Tensor:
        """Bool mask: which tokens' rows are held."""
        return torch.isin(tokens.long(), self.token_ids)

    def lens(self, states: Tensor, norms: int = 1, rows: int = 256) -> Tensor:
        """The held token with the largest logit for each state: the target's own greedy choice over the rows held.

        Args:
            states: [R, Ht].
            norms: how often the final norm is applied first (0: states are already normed, 2: the twice-normed probe).
            rows: states per chunk, which bounds memory.

        Returns:
            int64 [R] token ids.
        """
        head = self.head().float()  # [N, Ht]
        best = []
        for part in states.float().split(rows):
            for _ in range(norms):
                part = rms_norm(part, self.norm_weight.float(), self.eps)
            best.append((part @ head.T).argmax(-1))  # [r, N] → [r]
        return self.token_ids[torch.cat(best)] if best else torch.empty(0, dtype=torch.long)

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        file = self.path / "tokenizer.json"
        if not file.is_file():
            raise Blocked(f"{file}: no such file; token texts need the target's tokenizer.json")
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise BadFile(file, f"not a tokenizer ({error}); copy it from the target again") from error

    def text(self, tokens: Sequence[int]) -> list[str]:
        """Each token's own text; ``<17>`` for token 17 when there is no tokenizer or no such token."""
        try:
            tokenizer = self._tokenizer
        except Blocked:
            return [f"<{t}>" for t in tokens]
        pieces = [tokenizer.decode([t], skip_special_tokens=False) if t >= 0 else "" for t in tokens]
        return [piece if piece else f"<{t}>" for piece, t in zip(pieces, tokens, strict=True)]

    def _places(self, tokens: Tensor) -> Tensor:
        tokens = tokens.long()
        if not self.sliced:
            bad = tokens[(tokens < 0) | (tokens >= self.vocab)]
            if len(bad):
                raise BadFile(self.path, f"token ids {bad[:5].tolist()} are outside the vocabulary of {self.vocab}")
            return tokens
        places = torch.searchsorted(self.token_ids, tokens).clamp(max=len(self.token_ids) - 1)
        absent = tokens[self.token_ids[places] != tokens].unique()
        if len(absent):
            raise BadFile(
                self.tensors.path,
                f"the slice lacks the rows of {len(absent)} tokens (first: {absent[:5].tolist()}); "
                f"it holds {len(self.token_ids)} of {self.vocab}. Slice the target again for these samples",
            )
        return places

    def _find(self, suffix: str, shape: tuple[int, ...] | None = None) -> str | None:
        """The one tensor ending in ``suffix`` outside the blocks (and of ``shape``), None when there is none."""
        found = [
            name for name in _ending(self.tensors, suffix) if shape is None or _holds(self.tensors[name].shape, shape)
        ]
        return min(found, key=len) if found else None

    def _need(self, suffix: str, shape: tuple[int, ...]) -> str:
        name = self._find(suffix, shape)
        if name is None:
            near = ", ".join(f"{n} {list(self.tensors[n].shape)}" for n in _ending(self.tensors, suffix)) or "none"
            raise BadFile(
                self.path,
                f"no tensor ends in {suffix!r} with shape {list(shape)}, found {near}; "
                "expected the target's own checkpoint and its own config.json",
            )
        return name


def _ending(tensors: TensorFiles, suffix: str) -> list[str]:
    """Names ending in ``suffix``, outside the blocks and the vision tower."""
    return [
        name
        for name in tensors
        if (name == suffix or name.endswith("." + suffix)) and ".layers." not in name and "vis" not in name
    ]


def _holds(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a tensor has ``shape``; a table may have more rows, as padded vocabularies do."""
    exact = len(shape) == 1
    return len(found) == len(shape) and found[1:] == shape[1:] and (found == shape if exact else found[0] >= shape[0])
