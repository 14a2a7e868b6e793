"""Recorded samples: a folder, a file or a glob, listed without opening, read one by one."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from eagle3lab.errors import BadFile, Blocked
from eagle3lab.reading import Aux
from eagle3lab.records import Sample
from eagle3lab.tensors import TensorFiles, open_tensors

FORMAT = "eagle3lab-sample/1"
KEYS = ("input_ids", "loss_mask", "final")
OTHER_DUMPS = (".arrow", ".bin", ".ckpt", ".gguf", ".npy", ".npz", ".parquet", ".pt", ".pth")
"""Files that look like recordings of other programs: named, never passed over in silence."""

_STATE = re.compile(r"h\.(0|[1-9]\d*)")


class Samples(Mapping[str, Sample]):
    """The samples of a case, by name; each is read (mapped) when asked for.

    Args:
        path: folder, file or glob.
        root: folder that paths are shown relative to.
        exclude: glob patterns of names left out of the headline (still readable by name).
        last: L of the target when known, the boundary of the last residual.
        vocab: V of the target when known.

    Attributes:
        headline: names that the headline numbers use, sorted.
        passed_over: files of the folder that look like recordings in another format.
    """

    def __init__(self, path: Path, root: Path, exclude: Sequence[str] = (), last: int | None = None,
                 vocab: int | None = None):  # fmt: skip
        self.path, self.root, self.last, self.vocab = path, root, last, vocab
        files = _listing(path)
        self._files = {file.stem: file for file in files}
        twice = sorted({f.name for f in files if self._files[f.stem] != f})
        if twice:
            raise BadFile(path, f"{twice[0]} has a namesake; samples are told apart by file name: rename one")
        others = sorted(path.iterdir()) if path.is_dir() else []
        self.passed_over = tuple(f.name for f in others if f.suffix in OTHER_DUMPS)
        self.headline = [n for n in self._files if not any(fnmatch.fnmatch(n, pattern) for pattern in exclude)]

    def __getitem__(self, name: str) -> Sample:
        """Sample ``name``.

        Raises:
            BadFile: no such sample, or its file is faulty; all faults together.
        """
        if name not in self._files:
            known = ", ".join(list(self._files)[:20])
            raise BadFile(self.path, f"no sample {name!r}; found {known}")
        return read_sample(self._files[name], self.root, self.last, self.vocab)

    def __contains__(self, name: object) -> bool:
        """Whether there is a file of that name, sound or not."""
        return name in self._files

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
        files = sorted(f for f in path.glob("*.safetensors") if f.is_file())
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


def read_sample(file: Path, root: Path, last: int | None = None, vocab: int | None = None) -> Sample:
    """Reads one sample in the lab's own format; states stay mapped.

    Raises:
        BadFile: every fault of the file: missing keys, lengths that differ, wrong ranks or dtypes, boundaries or
            tokens that the target does not have.
    """
    tensors = open_tensors(file)
    faults = _faults(tensors)
    if not faults:
        faults = _value_faults(tensors, last, vocab)
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
        unused=tuple(sorted(n for n in tensors if n not in KEYS and not _STATE.fullmatch(n))),
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
    if len(widths) > 1 or 0 in widths:
        faults.append(f"states have widths {widths}, expected one width Ht above 0")
    claimed = tensors.metadata.get("final_norm", "none")
    if claimed not in ("pre", "post", "none"):
        faults.append(f"metadata 'final_norm' is {claimed!r}, expected 'pre' or 'post' the final norm, or 'none'")
    return faults


def _value_faults(tensors: TensorFiles, last: int | None, vocab: int | None) -> list[str]:
    """What only the values, or the target, can tell."""
    faults = []
    ids, mask = tensors.read("input_ids"), tensors.read("loss_mask").long()
    bad = ids[(ids < 0) | (ids >= vocab)] if vocab is not None else ids[ids < 0]
    if len(bad):
        faults.append(
            f"input_ids holds {bad[:5].tolist()}, outside the vocabulary"
            + (f" of {vocab}" if vocab is not None else "")
            + "; recorded with another tokenizer, or padded?"
        )
    odd = mask[(mask != 0) & (mask != 1)]
    if len(odd):
        faults.append(f"loss_mask holds {odd[:5].tolist()}, expected 1 on reply tokens and 0 elsewhere")
    above = [int(k[2:]) for k in tensors if _STATE.fullmatch(k) and last is not None and int(k[2:]) > last]
    if above:
        faults.append(
            f"boundaries {sorted(above)} lie above {last}, the target's last residual; expected 0 … {last} (h.{last} "
            "is the output of the last block, before the final norm)"
        )
    return faults


def reply_rows(sample: Sample) -> torch.Tensor:
    """Rows scored at step 0, all reply spans: t = a-1 … b-3 for each span [a, b) (design section 6)."""
    rows = [torch.arange(max(a - 1, 0), b - 2) for a, b in sample.spans if b - 2 > max(a - 1, 0)]
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)


def check_scorable(sample: Sample, aux: Aux) -> None:
    """Refuses a sample without a row to score, or with NaN in a state: one such row makes garbage of all after it.

    Raises:
        Blocked: no reply of two tokens.
        BadFile: states that are not finite, with the first rows.
    """
    if not len(reply_rows(sample)):
        spans = ", ".join(f"[{a}, {b})" for a, b in sample.spans) or "none"
        raise Blocked(f"{sample.path}: no reply span has a row to score (spans: {spans}); a span needs two tokens")
    for boundary in aux:
        state = sample.states.get(boundary) if isinstance(boundary, int) else None
        if state is not None and not state.isfinite().all():
            rows = (~state.isfinite().all(1)).nonzero()[:, 0].tolist()
            raise BadFile(sample.path, f"h.{boundary} holds NaN or infinities in {len(rows)} rows (first: {rows[:3]})")
