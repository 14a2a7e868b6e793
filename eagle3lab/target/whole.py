"""A target's own checkpoint, HF or GGUF: which of its tensors are the tables and the final norm."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from eagle3lab import hubcache
from eagle3lab.checkpoint import Checkpoint
from eagle3lab.dialects.llamacpp import TARGET as GGUF_NAMES
from eagle3lab.errors import BadFile, Blocked
from eagle3lab.tensors.packed import INSTEAD_OF, split
from eagle3lab.tensors.quantised import INSTEAD, PLAIN, UNUSED, Form

NAMES = {
    "embedding": ("embed_tokens.weight", "tok_embeddings.weight"),
    "head": ("lm_head.weight", "output.weight"),
    "norm": ("norm.weight",),
}
"""Endings of the tensors by what they are; the second ones are InternLM2's and Mistral's own."""

WORDS = {"embedding": "embedding table", "head": "lm_head", "norm": "final norm"}

_PREFIXES = (
    "model.", "language_model.model.", "model.language_model.", "model.language_model.model.", "language_model.", "",
    "model.text_model.", "text_model.model.", "thinker.model.", "thinker.",
)  # fmt: skip
"""Places of the language model in a checkpoint, plain and multimodal, likeliest first; others come after them."""

_OTHERS = ("vis", "audio", "speech", "image", "mtp", "talker")
"""A name part that starts with or holds one of these belongs to another model in the same file."""


class Whole:
    """A target's own checkpoint, of which some shards may be missing.

    Args:
        checkpoint: its files.
        vocab: V.
        hidden: Ht.
        stated: ``tie_word_embeddings`` as its config says, None when it does not.

    Raises:
        BadFile: a table whose size contradicts the config: one of the two belongs to another model.
    """

    def __init__(self, checkpoint: Checkpoint, vocab: int, hidden: int, stated: bool | None):
        self.checkpoint, self.path, self.tensors = checkpoint, checkpoint.path, checkpoint.tensors
        self.vocab, self.hidden, self.stated = vocab, hidden, stated
        self.absent = {_weight_of(name): file for name, file in self.tensors.absent.items()}
        faults = [
            f"{', '.join(f'{name} is {list(self.tensors[name].shape)}' for name in found)}, but config.json says "
            f"vocab_size {vocab}, hidden_size {hidden}; one of the two belongs to another model"
            for what in ("embedding", "head")
            if (found := [n for n in self._candidates(what) if n in self.tensors and not self._form(n).packed])
            and not any(_fits(self.tensors[name].shape, self._shape(what)) for name in found)
        ]
        if faults:
            raise BadFile(self.path, faults)

    @cached_property
    def tied(self) -> bool:
        """Config first, as HF and vLLM have it; else whether a head is there in any form, or promised by the index."""
        if self.checkpoint.gguf or self.stated is not True:
            return self._find("head") is None and not self._strange("head") and self.stated is not False
        return True

    def rows(self, what: str, tokens: Tensor) -> Tensor:
        """Rows for tokens [N] → [N, Ht].

        Raises:
            BadFile: ids outside the vocabulary, or no such table.
            Blocked: the table is in a shard that is not there, or in a form that is not read.
        """
        bad = tokens[(tokens < 0) | (tokens >= self.vocab)]
        if len(bad):
            raise BadFile(self.path, f"token ids {bad[:5].tolist()} are outside the vocabulary of {self.vocab}")
        return self.checkpoint.rows(self._need(what), tokens)

    def norm(self) -> tuple[Tensor, bool]:
        """The final norm's weight, beside the embedding; GGUF has its 1 already (``norm_shift`` on conversion)."""
        name = self._need("norm")
        bias = name.removesuffix("weight") + "bias"
        if bias in self.tensors:
            raise Blocked(f"{hubcache.label(self.path)}: {bias} is there, so the final norm is a LayerNorm; the lab "
                          "knows RMSNorm only, so what needs the normed final state is not answered")  # fmt: skip
        return self.checkpoint.read(name), self.checkpoint.gguf is None

    def _shape(self, what: str) -> tuple[int, ...]:
        return (self.hidden,) if what == "norm" else (self.vocab, self.hidden)

    def _form(self, name: str) -> Form:
        return self.checkpoint.forms.get(name, PLAIN)

    def _candidates(self, what: str) -> list[str]:
        """Names that may be the tensor, outside blocks and other models, likeliest first; packed and absent too."""
        if self.checkpoint.gguf:
            return [name for name in (GGUF_NAMES[NAMES[what][0]],) if name in self.tensors]
        ranked = []
        for name in dict.fromkeys((*self.tensors, *self.checkpoint.forms, *self.absent)):
            ending = next((n for n in NAMES[what] if name == n or name.endswith(f".{n}")), None)
            if ending is None or ".layers." in name or _foreign(name):
                continue
            prefix = name.removesuffix(ending)
            known = _PREFIXES.index(prefix) if prefix in _PREFIXES else len(_PREFIXES)
            ranked.append((known, NAMES[what].index(ending), len(name), name))
        return [name for *_, name in sorted(ranked)]

    def _find(self, what: str) -> str | None:
        """The tensor's name, None when there is none of the right size, nor a packed one, nor one in a missing shard.

        Raises:
            BadFile: several may be it, and nothing tells which: a name is not guessed.
        """
        shape = self._shape(what)
        found = [n for n in self._candidates(what)
                 if n in self.absent or self._form(n).packed or _fits(self.tensors[n].shape, shape)]  # fmt: skip
        if len(found) < 2:
            return found[0] if found else None
        home = None if what == "embedding" else self._find("embedding")
        if home is not None:
            place = _prefix(home, "embedding")
            near = [n for n in found if place.startswith(_prefix(n, what))]  # a head stands there or further out
            near = [n for n in near if what == "head" or _prefix(n, what) == place]
            if near:
                return max(near, key=lambda name: len(_prefix(name, what)))
        elif _prefix(found[0], what) in _PREFIXES:
            return found[0]
        raise BadFile(
            self.path,
            f"{', '.join(found)} may each be the target's {WORDS[what]}, and none stands at a known place"
            f"{' beside ' + home if home else ''}; take the other models' tensors out, or make a slice of the target",
        )

    def _strange(self, what: str) -> list[str]:
        """Tensors of the same module that are neither its weight nor a part that the lab knows."""
        if self.checkpoint.gguf or what == "norm":
            return []
        modules = tuple(ending.removesuffix(".weight") for ending in NAMES[what][:1])
        return [
            name
            for name in (*self.tensors, *self.tensors.absent)
            if split(name)[0].rpartition(".")[2] in modules
            and split(name)[1] not in ("weight", "bias", *UNUSED)
            and not _foreign(name)
        ]

    def _need(self, what: str) -> str:
        name = self._find(what)
        if name in self.absent:
            raise Blocked(f"{hubcache.label(self.path)}: {name!r} is in {self.absent[str(name)]}, "
                          "which is not in the folder; get that file too")  # fmt: skip
        if name is not None:
            return name
        if strange := self._strange(what):
            raise Blocked(f"{hubcache.label(self.path)}: {', '.join(strange[:5])} instead of {NAMES[what][0]!r}, a "
                          f"form the lab does not read; {INSTEAD}")  # fmt: skip
        near = ", ".join(f"{n} {list(self.tensors[n].shape)}" for n in self._candidates(what)) or "none"
        raise BadFile(
            self.path,
            f"no tensor ends in {NAMES[what][0]!r} with shape {list(self._shape(what))}, found {near}; "
            "expected the target's own checkpoint and its own config.json",
        )


def stated_tied(config: Mapping[str, Any], outer: Mapping[str, Any]) -> bool | None:
    """``tie_word_embeddings`` of the text model's config, else of the multimodal one around it, else None."""
    for table in (config, outer):
        if isinstance(table.get("tie_word_embeddings"), bool):
            return bool(table["tie_word_embeddings"])
    return None


def _foreign(name: str) -> bool:
    return any(part.startswith(other) or (len(other) > 3 and other in part) or (other == "vis" and "vis" in part)
               for part in name.split(".") for other in _OTHERS)  # fmt: skip


def _fits(found: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a tensor has ``shape``; a table may have more rows, as padded vocabularies do."""
    exact = len(shape) == 1
    return len(found) == len(shape) and found[1:] == shape[1:] and (found == shape if exact else found[0] >= shape[0])


def _weight_of(name: str) -> str:
    """The weight that a part of a packed form stands for, else the name itself."""
    layer, part = split(name)
    return f"{layer}.weight" if part in INSTEAD_OF else name


def _prefix(name: str, what: str) -> str:
    """What stands before the tensor's ending."""
    return next(name.removesuffix(ending) for ending in NAMES[what] if name.endswith(ending))
