"""What the lab needs of the target: embedding rows, head rows, final norm, config, tokenizer."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lab import hubcache
from eagle3lab.checkpoint import Checkpoint
from eagle3lab.dialects import llamacpp
from eagle3lab.dialects.config import NUMBER, SIZE, WHOLE
from eagle3lab.errors import BadFile, Blocked, LabError
from eagle3lab.norms import rms_norm
from eagle3lab.target import texts
from eagle3lab.target.tables import LAYER_NORM, PLUS_ONE, SLICE_FORMAT, Slice, Tables
from eagle3lab.target.whole import Whole, stated_tied
from eagle3lab.tensors import INDEXES, SINGLES, TensorFiles, has_tensors, models, open_tensors, read_json

CONFIG: dict[str, tuple[Callable[[Any], bool], str]] = {
    "hidden_size": WHOLE,
    **dict.fromkeys(("num_hidden_layers", "vocab_size"), SIZE),
    "rms_norm_eps": (lambda value: value is None or NUMBER[0](value), NUMBER[1]),
}
"""What the lab reads of the target's config, and what it should be."""

TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
"""Where multimodal models keep the language model's config (most; InternVL; DeepSeek-VL2)."""

LENS_TOKENS = 8192
"""Head rows that the lens holds at once."""


class Target:
    """The target's rows, read lazily from an HF folder, a GGUF or a slice.

    Args:
        path: folder with ``config.json`` and either ``slice.safetensors`` or (some of) the model's tensors; or a GGUF
            file, or a folder with one.

    Attributes:
        config: the text model's config (a multimodal wrapper is taken off); a GGUF's header in the same words.
        sliced: True when only some rows are held; then ``token_ids`` says which.
    """

    def __init__(self, path: Path):
        if not path.exists():
            raise BadFile(path, "no such folder; check [target] path in case.toml")
        self.path = path
        self._gguf = Checkpoint(path) if _is_gguf(path) else None
        if self._gguf is None and not path.is_dir():
            fault = "a file; expected the target's folder with config.json and its tensors or a slice, or a GGUF"
            raise BadFile(path, fault)
        self.file, self.config, self._outer = self._configs()
        faults = [
            f"key {key!r} is {self.config.get(key)!r}, expected {words}"
            for key, (fits, words) in CONFIG.items()
            if not fits(self.config.get(key))
        ]
        if faults:
            raise BadFile(self.file, faults)

    def _configs(self) -> tuple[Path, dict[str, Any], dict[str, Any]]:
        """The file that states the config, the text model's, and the one around it."""
        file = self.path / "config.json"
        raw = read_json(file) if self._gguf is None or (self.path.is_dir() and file.is_file()) else {}
        inner = _text_config(raw)
        if self._gguf is None or self._gguf.gguf is None:
            return file, inner, raw
        gguf = self._gguf.gguf
        if llamacpp.recognises_draft(gguf.fields):
            raise BadFile(gguf.file, "a draft's GGUF (general.architecture is 'eagle3'), expected the target's")
        found = llamacpp.target_config(gguf.fields, gguf.infos)
        table = gguf.infos.get(llamacpp.TARGET["embed_tokens.weight"])
        if table and table.shape and isinstance(found.get("vocab_size"), int):
            found["vocab_size"] = min(found["vocab_size"], table.shape[0])  # gemma3's converter cuts unused rows off
        if "model_type" in inner:
            found["model_type"] = inner["model_type"]
        return gguf.file, {**inner, **found}, {}

    @cached_property
    def tables(self) -> Tables:
        """Where rows come from.

        Raises:
            Blocked: the folder holds a config and no tensors.
            BadFile: its files are not what they should be.
        """
        if self._gguf is not None:
            return Whole(self._gguf, int(self.config["vocab_size"]), self.hidden, None)
        piece = self.path / "slice.safetensors"
        if not piece.is_file():
            self._block_without_tensors()
        first = open_tensors(piece if piece.is_file() else self.path, partial=True)
        if first.metadata.get("format") == SLICE_FORMAT:
            return Slice(first, int(self.config["vocab_size"]), self.hidden)
        if piece.is_file():
            found = first.metadata.get("format")
            fault = f"metadata 'format' is {found!r}, expected {SLICE_FORMAT!r}: rename it if it is no slice"
            raise BadFile(first.path, fault)
        whole = Checkpoint(self.path, partial=True)
        return Whole(whole, int(self.config["vocab_size"]), self.hidden, stated_tied(self.config, self._outer))

    def _block_without_tensors(self) -> None:
        """A config alone, or an index none of whose shards is there, answers what needs no rows."""
        what = f"{self.name}: holds the target's config and none of its tensors, so that nothing is "
        what += "known of its rows and norm; "
        if not has_tensors(self.path):
            raise Blocked(f"{what}add its tensors, a GGUF, or a slice (eagle3lab slice-target)")
        index = next((self.path / name for name in INDEXES if (self.path / name).is_file()), None)
        if index is None or any((self.path / name).is_file() for name in SINGLES):
            return
        held = read_json(index).get("weight_map")
        shards = {n: f for n, f in held.items() if isinstance(f, str)} if isinstance(held, dict) else {}
        if shards and not any(os.path.isfile(self.path / file) for file in shards.values()):  # noqa: PTH113 (long names)
            ends = ("embed_tokens.weight", "lm_head.weight", "model.norm.weight")
            needed = sorted({file[:200] for name, file in shards.items() if name.endswith(ends)})
            raise Blocked(f"{what}of the shards that {index.name} names, get {', '.join(needed) or 'all'}")

    @property
    def name(self) -> str:
        """What it is called in findings: its folder or file, or the id it was given by."""
        return hubcache.label(self.path)

    @property
    def tensors(self) -> TensorFiles:
        """The tensor files, mapped."""
        return self.tables.tensors

    @cached_property
    def sliced(self) -> bool:
        """True for a target slice."""
        with suppress(Blocked):
            return isinstance(self.tables, Slice)
        return False

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
        with suppress(LabError):  # raised again where rows are asked for
            if isinstance(self.tables, Slice):
                return self.tables.vocab
        return int(self.config["vocab_size"])

    @property
    def model_type(self) -> str:
        """The config's ``model_type``, which decides engines' layer rules."""
        return str(self.config.get("model_type", ""))

    @property
    def eps(self) -> float:
        """RMSNorm epsilon."""
        return float(self.config.get("rms_norm_eps") or self.config.get("norm_eps") or 1e-6)

    @property
    def tied(self) -> bool:
        """Whether ``lm_head`` is the embedding table."""
        return self.tables.tied

    @cached_property
    def token_ids(self) -> Tensor:
        """int64 [N]: the tokens whose rows are held (all of V for a whole target), ascending."""
        return self.tables.token_ids if isinstance(self.tables, Slice) else torch.arange(self.vocab)

    @cached_property
    def norm_weight(self) -> Tensor:
        """The final norm's weight [Ht], 1 already added where the model type wants it (then float32).

        Raises:
            Blocked: the final norm is no RMSNorm.
        """
        if self.model_type in LAYER_NORM:
            raise Blocked(f"{self.name}: {self.model_type} ends in a LayerNorm; the lab knows RMSNorm "
                          "only, so what needs the normed final state is not answered")  # fmt: skip
        weight, bare = self.tables.norm()
        return weight.float() + 1 if bare and self.model_type in PLUS_ONE else weight

    def embedding(self, tokens: Tensor) -> Tensor:
        """Embedding rows of ``tokens`` [...] → [..., Ht], as stored; dequantised ones in float32.

        Raises:
            BadFile: a slice does not hold one of them; the text lists the first few.
        """
        return self.tables.rows("embedding", tokens.reshape(-1).long()).reshape(*tokens.shape, self.hidden)

    def head(self, tokens: Tensor | None = None) -> Tensor:
        """``lm_head`` rows of ``tokens`` [N] (all rows held when None) → [N, Ht], as stored."""
        wanted = self.token_ids if tokens is None else tokens.long()
        return self.tables.rows("embedding" if self.tied else "head", wanted)

    def holds(self, tokens: Tensor) -> Tensor:
        """Bool mask: which tokens' rows are held."""
        if isinstance(self.tables, Slice):
            return torch.isin(tokens.long(), self.token_ids)
        return (tokens >= 0) & (tokens < self.vocab)

    def lens(self, states: Tensor, norms: int = 1, rows: int = 256) -> Tensor:
        """The held token with the largest logit for each state: the target's own greedy choice over the rows held.

        The head is read `LENS_TOKENS` rows at a time, so memory does not grow with the vocabulary. Of equal logits the
        lowest id counts; a NaN counts as the largest, as in `torch.argmax`.

        Args:
            states: [R, Ht].
            norms: how often the final norm is applied first (0: states are already normed, 2: the twice-normed probe).
            rows: states per chunk, which bounds memory.

        Returns:
            int64 [R] token ids.
        """
        normed = states.float()
        for _ in range(norms):
            normed = rms_norm(normed, self.norm_weight.float(), self.eps)
        most = torch.full((len(states),), float("-inf"))
        best = self.token_ids[:1].repeat(len(states))  # [R]
        for held in self.token_ids.split(LENS_TOKENS) if len(states) else ():
            head = self.head(held).float()  # [n, Ht]
            for at in range(0, len(states), rows):
                here = slice(at, at + rows)
                values, places = (normed[here] @ head.T).max(-1)  # [r, n] → [r]
                better = (values > most[here]) | (values.isnan() & ~most[here].isnan())
                most[here] = torch.where(better, values, most[here])
                best[here] = torch.where(better, held[places], best[here])
        return best

    @cached_property
    def _texts(self) -> Callable[[int], str]:
        file = self.path / "tokenizer.json"
        if self.path.is_dir() and file.is_file():
            return texts.from_file(file)
        if self._gguf is not None and self._gguf.gguf is not None:
            return texts.from_gguf(self._gguf.gguf.fields)
        return lambda token: ""

    def text(self, tokens: Sequence[int]) -> list[str]:
        """Each token's own text; ``<17>`` for token 17 when there is no tokenizer or no such token."""
        return [(self._texts(t) if t >= 0 else "") or f"<{t}>" for t in tokens]

    def plain_config(self) -> str:
        """The config as JSON text: config.json as it stands, or a GGUF's header in its words."""
        file = self.path / "config.json"
        if self._gguf is None:
            return file.read_text(encoding="utf-8-sig")
        return json.dumps(self.config, indent=1, default=list) + "\n"


def _is_gguf(path: Path) -> bool:
    """Whether ``path`` is a GGUF, or a folder of GGUFs and of no tensors of another kind."""
    if not path.is_dir():
        return path.suffix == ".gguf"
    names = [entry.name for entry in path.iterdir()]
    others = {*INDEXES, *SINGLES, "slice.safetensors"} & set(names)
    return bool(models(path)) and not others and not any(name.endswith(".safetensors") for name in names)


def _text_config(raw: dict[str, Any]) -> dict[str, Any]:
    """The language model's config in a multimodal one, else the whole."""
    outer = raw.get("thinker_config")  # Qwen's omni models
    outer = outer if isinstance(outer, dict) else raw
    return dict(next((outer[key] for key in TEXT_CONFIGS if isinstance(outer.get(key), dict)), raw))
