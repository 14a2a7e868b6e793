"""One module a program: what it writes, and the Reading under which it trains or serves a draft.

A trainer's module has what `Trainer` lists, an engine's what `Engine` lists; a module enters `TRAINERS` or `ENGINES`
and nothing else needs to know of it. ``layers`` is the target's number of blocks L, None when unknown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.dialects import (
    angelslim,
    automodel,
    common,
    eagle,
    llamacpp,
    modelopt,
    sglang,
    specforge,
    speculators,
    torchspec,
    trtllm,
    vllm,
)
from eagle3lab.dialects.keys import Key
from eagle3lab.reading import Aux
from eagle3lab.records import Architecture, Interpretation


class Trainer(Protocol):
    """What a trainer's module offers."""

    NAME: str

    @property
    def KEYS(self) -> Mapping[str, Key]:
        """Keys of config.json that it writes or reads beside those of any decoder layer."""

    @property
    def UNUSED(self) -> Mapping[str, str]:
        """Stored names that it writes and that a draft does not need to run: pattern → why."""

    @property
    def TRAINING_FILES(self) -> tuple[str, ...]:
        """Files of a training checkpoint that hold the draft."""

    def recognises(self, config: Mapping[str, Any], names: Iterable[str]) -> bool:
        """Whether a checkpoint with this config and these stored names looks like the program's own."""

    def advice(self, files: Collection[str]) -> str:
        """What to run, where a folder of these files is its training checkpoint and no model; else ``""``."""

    def trained(self, arch: Architecture, layers: int | None) -> Interpretation:
        """The Reading under which the program trains this checkpoint."""

    def words(self, aux: Aux, arch: Architecture, target_type: str) -> str:
        """Boundaries as the program's own layer ids."""


class Engine(Protocol):
    """What an engine's module offers."""

    NAME: str

    @property
    def KEYS(self) -> Mapping[str, Key]:
        """Keys of config.json that it reads beside those of any decoder layer."""

    @property
    def VERSIONS(self) -> tuple[str, ...]:
        """The versions whose rules the lab knows."""

    def served(self, arch: Architecture, layers: int | None, target_type: str, run: ServingRun) -> Interpretation:
        """The Reading under which the engine serves this checkpoint."""

    def words(self, aux: Aux, arch: Architecture, target_type: str) -> str:
        """Boundaries as the ids a user must type for this engine."""

    def unknown(self, name: str, arch: Architecture) -> str:
        """What it does with a stored tensor of a name it does not know."""

    def missing(self, name: str, arch: Architecture) -> str:
        """What it does without the canonical tensor ``name``, ``""`` where nothing."""

    def names(self, stored: tuple[str, ...]) -> str:
        """Trouble it has with the names as stored, ``""`` when there is none."""

    def read_reports(self, root: Any, log: Any, metrics: Any, responses: Any, steps: Any) -> list[EngineReport]:
        """What the engine's files say of a run, best evidence first."""


TRAINERS: dict[str, Trainer] = {
    m.NAME: m for m in (speculators, modelopt, automodel, llamacpp, angelslim, eagle, specforge, torchspec)
}
"""Each is asked whether a checkpoint looks like its own; the order is that of tables only."""

ENGINES: dict[str, Engine] = {m.NAME: m for m in (vllm, sglang, trtllm, llamacpp)}

OR = " or "

SPELLINGS = {
    "tensorrtllm": trtllm.NAME,
    "llamacpppython": llamacpp.NAME,
    "llamaserver": llamacpp.NAME,
    "modeloptimizer": modelopt.NAME,
    "tensorrtmodeloptimizer": modelopt.NAME,
}
"""Other names of a program, without capitals, dots and dashes."""


def spelled(name: str, known: Collection[str]) -> str:
    """``name`` as the lab writes it (``TensorRT-LLM``, ``trt-llm`` → ``trtllm``); itself where none of ``known``."""
    plain = re.sub(r"[\W_]", "", name).casefold()
    plain = SPELLINGS.get(plain, plain)
    return plain if plain in known else name


def program_of(config: Mapping[str, Any], names: Iterable[str], metadata: Mapping[str, str] | None = None) -> str:
    """The trainer whose files these look like, ``"unknown"`` when none does; ``"a or b"`` when several do.

    Args:
        config: as found.
        names: as stored.
        metadata: of the tensor file. A module may name its ``SIGNATURE``, a key of the metadata, or of the config after
            a ``_``: where that is there, no further sign counts.
    """
    stored, signed = list(names), {**(metadata or {}), **{key.removeprefix("_"): "" for key in config}}
    sure = [name for name, module in TRAINERS.items() if getattr(module, "SIGNATURE", None) in signed]
    return OR.join(sure or (n for n, module in TRAINERS.items() if module.recognises(config, stored))) or "unknown"


def unused(name: str) -> str:
    """Why no program needs the stored tensor ``name`` to draft, ``""`` when it is not one of those."""
    tables = (common.UNUSED, *(module.UNUSED for module in TRAINERS.values()))
    return next((why for table in tables for pattern, why in table.items() if re.fullmatch(pattern, name)), "")


def training_file(files: Collection[str]) -> str:
    """The file of a training checkpoint that holds the draft, ``""`` when there is none."""
    return next((f for module in TRAINERS.values() for f in module.TRAINING_FILES if f in files), "")


def advice(files: Collection[str]) -> str:
    """Which export to run, where a folder of these files is a training checkpoint and no model; else ``""``."""
    return "; or ".join(text for module in TRAINERS.values() if (text := module.advice(files)))


def in_words(aux: Aux, arch: Architecture, target_type: str) -> list[tuple[str, str]]:
    """Boundaries in every program's own words: (program, what to type), the lab's own numbering first."""
    plain = ", ".join("the embedding output" if b == 0 else "the post-norm final state" if isinstance(b, str)
                      else f"the output of block {b - 1}" for b in aux)  # fmt: skip
    rows = [("boundaries", f"{list(aux)}: {plain}")]
    if all(isinstance(b, int) for b in aux):
        rows.append(("transformers", f"hidden_states{list(aux)}, but at L it is after the final norm"))
    modules: dict[str, Trainer | Engine] = {**TRAINERS, **ENGINES}
    return rows + [(name, module.words(aux, arch, target_type)) for name, module in modules.items()]
