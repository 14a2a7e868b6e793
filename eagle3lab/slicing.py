"""A target slice: the rows that a case needs, so that it can be shared without its target."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from eagle3lab import __version__, hubcache
from eagle3lab.draft import Draft
from eagle3lab.errors import BadFile, BadOption, LabError
from eagle3lab.records import Sample
from eagle3lab.target import Target
from eagle3lab.target.tables import BAKED, PLUS_ONE, SLICE_FORMAT

TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip
"""Files that go along where they are there."""


@dataclass(frozen=True)
class Written:
    """What a slice holds.

    Attributes:
        folder: where it is.
        rows: tokens whose rows it holds.
        vocab: V of the target.
        nbytes: bytes of all its files.
        files: their names.
        notes: what the user should know.
    """

    folder: Path
    rows: int
    vocab: int
    nbytes: int
    files: tuple[str, ...]
    notes: tuple[str, ...]

    def toml(self, root: Path) -> str:
        """The lines of a case in ``root`` that take the slice."""
        return f'[target]\npath = "{Path(os.path.relpath(self.folder.absolute(), root.absolute())).as_posix()}"'


def tokens_of(draft: Draft, samples: Mapping[str, Sample] | None, kinds: Iterable[str]) -> tuple[Tensor, list[str]]:
    """Every token that a case can ask rows of, ascending, and what was left out, in words.

    Args:
        draft: its vocabulary's target ids count.
        samples: all tokens of all of them count; None for a case without.
        kinds: how ``d2t`` may be read (`VocabMap.read`); a reading that the file does not allow is left out.
    """
    parts, notes = [], []
    for name in samples or ():
        try:
            parts.append(samples[name].input_ids.unique())  # type: ignore[index]
        except LabError as error:
            notes.append(f"sample {name} cannot be read and is left out: {error.line}")
    if samples is None:
        notes.append("the case has no samples: the rows are those of the draft vocabulary alone")
    for kind in sorted(set(kinds)):
        with suppress(LabError):
            parts.append(draft.vocab_map(kind).hot_token_id.unique())
    return (torch.cat(parts).unique() if parts else torch.empty(0, dtype=torch.long)), notes


def write(target: Target, tokens: Tensor, out: Path, notes: Iterable[str] = ()) -> Written:
    """Writes the rows of ``tokens`` as ``out/slice.safetensors``, config and tokenizer beside it; whole or not at all.

    Args:
        target: a target of any form, another slice included.
        tokens: int64 [N]; ids outside the vocabulary are left out and noted.
        out: a folder that is not there yet, or empty.
        notes: passed on.

    Raises:
        BadOption: something is in ``out`` already.
        BadFile: the target lacks rows, or ``out`` cannot be written.
    """
    said = list(notes)
    if os.path.exists(out) and not (out.is_dir() and not any(out.iterdir())):  # noqa: PTH110 (a name may be too long)
        raise BadOption(f"{out}: is there already, and nothing is overwritten; choose another folder")
    inside = tokens[(tokens >= 0) & (tokens < target.vocab)].unique()
    if len(tokens.unique()) > len(inside):
        said.append(f"{len(tokens.unique()) - len(inside)} ids lie outside the vocabulary of {target.vocab}: left out")
    norm, bare = target.tables.norm()  # as stored: whoever reads the slice adds the 1 as for the target itself
    tensors = {"token_ids": inside, "embed_tokens.rows": target.embedding(inside), "norm.weight": norm.clone()}
    if not target.tied:
        tensors["lm_head.rows"] = target.head(inside)
    metadata = {
        "format": SLICE_FORMAT, "vocab_size": str(target.vocab), "tied": str(target.tied).lower(),
        "origin": f"eagle3lab {__version__} slice-target, from {hubcache.label(target.path)}",
    }  # fmt: skip
    if not bare:
        metadata[BAKED] = "done"
    if not bare and target.model_type in PLUS_ONE:
        said.append("norm.weight is as in GGUF, where a norm of 1 + w has its 1 already; the slice says so")
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
        save_file({name: t.contiguous() for name, t in tensors.items()}, part / "slice.safetensors", metadata)
        (part / "slice.safetensors").chmod(0o644)  # safetensors lets nobody else read what it writes; this is to share
        (part / "config.json").write_text(target.plain_config(), encoding="utf-8")
        _tokenizer(target, part, said)
        files = sorted(part.iterdir())
        written = Written(out, len(inside), target.vocab, sum(f.stat().st_size for f in files),
                          tuple(f.name for f in files), tuple(said))  # fmt: skip
        part.rename(out)
    except (OSError, SafetensorError) as error:
        raise BadFile(out, f"cannot be written ({error}); choose another place") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return written


def _tokenizer(target: Target, part: Path, notes: list[str]) -> None:
    held = [name for name in TOKENIZER if target.path.is_dir() and (target.path / name).is_file()]
    for name in held:
        shutil.copyfile(target.path / name, part / name)
    if "tokenizer.json" not in held:
        notes.append("no tokenizer.json goes along: tokens show as numbers; copy the target's into the folder")
