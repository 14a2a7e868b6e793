"""Recorded samples: a folder, a file or a glob, listed without opening, read one by one."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from eagle3lab.errors import BadFile
from eagle3lab.records import Sample
from eagle3lab.tensors import TensorFiles, open_tensors

FORMAT = "eagle3lab-sample/1"
_STATE = re.compile(r"h\.(\d+)")


class Samples(Mapping[str, Sample]):
    """The samples of a case, by name; each is read (mapped) when asked for.

    Args:
        path: folder, file or glob.
        root: folder that paths are shown relative to.
        exclude: glob patterns of names left out of the headline (still readable by name).
        last: L of the target when known, the boundary of the last residual.

    Attributes:
        headline: names that the headline numbers use, sorted.
    """

    def __init__(self, path: Path, root: Path, exclude: Sequence[str] = (), last: int | None = None):
        self.path, self.root, self.last = path, root, last
        self._files = {file.stem: file for file in _listing(path)}
        self.headline = [n for n in self._files if not any(fnmatch.fnmatch(n, pattern) for pattern in exclude)]

    def __getitem__(self, name: str) -> Sample:
        """Sample ``name``.

        Raises:
            BadFile: no such sample, or its file is faulty; all faults together.
        """
        if name not in self._files:
            known = ", ".join(list(self._files)[:20])
            raise BadFile(self.path, f"no sample {name!r}; found {known}")
        return read_sample(self._files[name], self.root, self.last)

    def __iter__(self) -> Iterator[str]:
        """Names in path order."""
        return iter(self._files)

    def __len__(self) -> int:
        """Number of samples, excluded ones counted."""
        return len(self._files)

    def file(self, name: str) -> Path:
        """The file of sample ``name``."""
        return self._files[name]


def _listing(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        if not files:
            found = sorted(p.name for p in path.iterdir())
            what = ", ".join(found[:8]) + (" …" if len(found) > 8 else "") if found else "an empty folder"
            raise BadFile(path, f"found {what}; expected samples as *.safetensors in the lab's format ({FORMAT})")
        return files
    if path.is_file():
        return [path]
    files = sorted(path.parent.glob(path.name)) if path.parent.is_dir() else []
    if not files:
        raise BadFile(path, "no such file or folder, and nothing matches it as a pattern; check [samples] path")
    return files


def read_sample(file: Path, root: Path, last: int | None = None) -> Sample:
    """Reads one sample in the lab's own format; states stay mapped.

    Raises:
        BadFile: every fault of the file: missing keys, lengths that differ, wrong ranks or dtypes.
    """
    tensors = open_tensors(file)
    faults = _faults(tensors)
    if faults:
        raise BadFile(file, faults)
    states = {int(found.group(1)): tensors.read(found.group()) for found in map(_STATE.fullmatch, tensors) if found}
    claimed = tensors.metadata.get("final_norm", "none")
    return Sample(
        name=file.stem,
        path=str(file.relative_to(root)) if file.is_relative_to(root) else file.name,
        input_ids=tensors.read("input_ids"),
        loss_mask=tensors.read("loss_mask"),
        states=dict(sorted(states.items())),
        final=tensors.read("final") if "final" in tensors else None,
        final_norm=claimed,
        last=last if last in states else None,
        origin=tensors.metadata.get("origin", ""),
    )


def _faults(tensors: TensorFiles) -> list[str]:
    kind = tensors.metadata.get("format")
    states = {name: tensors[name] for name in tensors if _STATE.fullmatch(name)}
    faults = []
    if kind != FORMAT:
        faults.append(f"metadata 'format' is {kind!r}, expected {FORMAT!r}: not a sample in the lab's own format")
    faults += [
        f"key {key!r} is missing; found {', '.join(sorted(tensors)) or 'nothing'}"
        for key in ("input_ids", "loss_mask")
        if key not in tensors
    ]
    if not states:
        faults.append(f"no state 'h.K' is there; found {', '.join(sorted(tensors)) or 'nothing'}")
    if faults:
        return faults
    ids, mask = tensors["input_ids"], tensors["loss_mask"]
    if len(ids.shape) != 1 or ids.dtype not in ("I64", "I32"):
        faults.append(f"input_ids is {ids.dtype} {list(ids.shape)}, expected I64 [T]")
    if len(mask.shape) != 1 or mask.dtype not in ("U8", "BOOL", "I64", "I32", "I8"):
        faults.append(f"loss_mask is {mask.dtype} {list(mask.shape)}, expected U8 [T]")
    length = ids.shape[0] if ids.shape else 0
    if mask.shape != (length,):
        faults.append(f"loss_mask has {list(mask.shape)} entries, input_ids {length}; expected the same T")
    if length < 3:
        faults.append(f"{length} tokens are too few: a row needs its own state and the two tokens after it")
    everything = states | ({"final": tensors["final"]} if "final" in tensors else {})
    widths = sorted({info.shape[-1] for info in everything.values() if info.shape})
    for name, info in everything.items():
        if len(info.shape) != 2 or info.dtype not in ("BF16", "F16", "F32"):
            faults.append(f"{name} is {info.dtype} {list(info.shape)}, expected BF16, F16 or F32 [T, Ht]")
        elif info.shape[0] != length:
            faults.append(
                f"{name} has {info.shape[0]} rows for {length} tokens; expected one row a token "
                f"(ratio {info.shape[0] / max(length, 1):.2f}; one over the accept length means that a "
                "speculating engine recorded one row a round)"
            )
    if len(widths) > 1:
        faults.append(f"states have widths {widths}, expected one width Ht")
    return faults


def check_tokens(sample: Sample, vocab: int, root: Path) -> None:
    """Refuses a sample with token ids outside [0, V).

    Raises:
        BadFile: naming the first few.
    """
    bad = sample.input_ids[(sample.input_ids < 0) | (sample.input_ids >= vocab)]
    if len(bad):
        raise BadFile(
            root / sample.path,
            f"input_ids holds {bad[:5].tolist()}, outside the vocabulary of {vocab}; recorded with another tokenizer?",
        )


def reply_rows(sample: Sample) -> torch.Tensor:
    """Rows scored at step 0, all reply spans: t = a-1 … b-3 for each span [a, b) (design section 6)."""
    rows = [torch.arange(max(a - 1, 0), b - 2) for a, b in sample.spans if b - 2 > max(a - 1, 0)]
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)
