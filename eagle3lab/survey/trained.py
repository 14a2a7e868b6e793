"""Which of the case's texts the draft was trained on: tokens alone are compared, no state is read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from eagle3lab.errors import LabError
from eagle3lab.records import spans_of
from eagle3lab.samples import MOST_READ, Samples, spread

RUN = 13
"""Tokens in a row that two texts hardly share by chance: the length that studies of contaminated tests use."""

SHORT = 8
"""Tokens of a reply, or of a prompt, below which equal ones prove nothing."""

MOST = 10_000
"""Training texts that are read; of more an even spread."""

HALF = 0.5
"""Share of a reply's runs from which it counts as trained on: texts are cut at other lengths, or templated anew."""


@dataclass
class Trained:
    """Headline texts beside those that the draft was trained on.

    Attributes:
        whole: headline text → a training text of the same tokens.
        replies: headline text → a training text with one of its replies, word for word.
        prompts: headline text → a training text that answers the same prompt otherwise.
        shares: headline text → share of its replies' runs of `RUN` tokens that stand in training texts; only texts with
            so long a reply.
        read: training texts read.
        there: training texts there are.
        unreadable: training texts that could not be read → why.
    """

    whole: dict[str, str] = field(default_factory=dict)
    replies: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    read: int = 0
    there: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def known(self) -> tuple[str, ...]:
        """Headline texts that were trained on, in order."""
        most = [name for name, share in self.shares.items() if share >= HALF]
        return tuple(dict.fromkeys([*self.whole, *self.replies, *most]))


def trained(samples: Samples, path: Path, progress: Callable[[str], None]) -> Trained:
    """Compares every headline text with up to `MOST` training texts.

    Args:
        samples: of the case.
        path: a folder, a file or a glob of recordings that the draft was trained on.
        progress: called with one line.

    Raises:
        BadFile: nothing there that could be a recording.
    """
    known = replace(samples.known, boundaries=(), final="")
    training = Samples(path, samples.root, known=known)
    progress(f"training texts: {len(training)}")
    out = Trained(there=len(training))
    texts = {name: tokens for name in samples.headline if (tokens := _tokens(samples, name, {})) is not None}
    whole = {_digest(ids): name for name, (ids, _) in texts.items()}
    prompts = _prompts(texts)
    replies = {_digest(part): name for name, text in texts.items() for part in _replies(*text)}
    runs = {name: torch.cat([_runs(part) for part in _replies(*text)] or [torch.empty(0).long()])
            for name, text in texts.items()}  # fmt: skip
    every = torch.cat([torch.empty(0).long(), *runs.values()]).unique()  # sorted
    met = torch.zeros(len(every), dtype=torch.bool)
    for name in _chosen(training):
        if (text := _tokens(training, name, out.unreadable)) is None:
            continue
        out.read += 1
        ids, mask = text
        if (mine := whole.get(_digest(ids))) is not None:
            out.whole.setdefault(mine, name)
        for mine in (replies.get(_digest(part)) for part in _replies(ids, mask)):
            if mine is not None:
                out.replies.setdefault(mine, name)
        if (mine := prompts.get(_prompt(ids, mask))) is not None:
            out.prompts.setdefault(mine, name)
        _meet(every, met, _runs(ids))
    for name, own in runs.items():
        if len(own):
            out.shares[name] = float(met[torch.searchsorted(every, own)].float().mean())
    out.prompts = {name: other for name, other in out.prompts.items() if name not in out.known}
    return out


def _chosen(training: Samples) -> list[str]:
    """An even spread; of packed files as few as of a headline, since each must be unpacked to its end."""
    packed = any(entry.file.suffix == ".gz" for entry in training.listing.entries.values())
    return spread(list(training), MOST_READ if packed else MOST)


def _tokens(samples: Samples, name: str, unreadable: dict[str, str]) -> tuple[Tensor, Tensor] | None:
    try:
        return samples.tokens(name)
    except LabError as error:
        unreadable[name] = error.line
        return None


def _digest(ids: Tensor) -> str:
    return hashlib.sha256(ids.contiguous().numpy().tobytes()).hexdigest()


def _replies(ids: Tensor, mask: Tensor) -> Iterable[Tensor]:
    """Its replies of some length."""
    return [ids[a:b] for a, b in spans_of(mask) if b - a >= SHORT]


def _prompt(ids: Tensor, mask: Tensor) -> str:
    """A hash of what stands before the first reply, ``""`` where that is short."""
    first = next((a for a, _ in spans_of(mask)), 0)
    return _digest(ids[:first]) if first >= SHORT else ""


def _prompts(texts: dict[str, tuple[Tensor, Tensor]]) -> dict[str, str]:
    """Prompt → headline text; what most texts begin with is a template, and no prompt."""
    held: dict[str, list[str]] = {}
    for name, text in texts.items():
        held.setdefault(_prompt(*text), []).append(name)
    return {p: names[0] for p, names in held.items() if p and (2 * len(names) <= len(texts) or len(texts) == 1)}


def _runs(ids: Tensor) -> Tensor:
    """A number for each run of `RUN` tokens, int64 [T - RUN + 1]; products wrap around."""
    if len(ids) < RUN:
        return torch.empty(0, dtype=torch.long)
    factors = torch.randint(1 << 62, (RUN,), generator=torch.Generator().manual_seed(0)) | 1
    return (ids.unfold(0, RUN, 1) * factors).sum(1)


def _meet(every: Tensor, met: Tensor, runs: Tensor) -> None:
    """Marks which of ``every`` (ascending) are among ``runs``."""
    if len(every) and len(runs):
        places = torch.searchsorted(every, runs).clamp(max=len(every) - 1)
        met[places[every[places] == runs]] = True
