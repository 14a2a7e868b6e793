"""Every tensor and every config key of a draft, each in one list: nothing of a file is passed over in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3lab import dialects, shapes
from eagle3lab.checkpoint import HF_QUANT
from eagle3lab.dialects import ENGINES, TRAINERS, keys
from eagle3lab.dialects.common import flag, is_latent
from eagle3lab.dialects.config import FLAGS
from eagle3lab.draft import Draft
from eagle3lab.records import Interpretation
from eagle3lab.tensors import read_json

MODULES: dict[str, Any] = {**TRAINERS, **ENGINES}

TRAINING_STATE = ("optim", "sched", "rng", "random_state", "scaler")
"""Parts of the keys under which training checkpoints keep tensors that are no weights."""


@dataclass(frozen=True)
class TensorEntry:
    """One tensor.

    Attributes:
        name: as stored; the canonical name of a missing one.
        canonical: canonical name, ``""`` for an unknown one.
        why: what it is for, or why it is not used.
        engines: engine → what it does with it, or without it; engines that do nothing of note are left out.
    """

    name: str
    canonical: str
    why: str
    engines: Mapping[str, str]

    @property
    def consequence(self) -> str:
        """One line: each engine with what it does, engines that do the same together."""
        return grouped(self.engines)


@dataclass(frozen=True)
class KeyEntry:
    """One key of config.json.

    Attributes:
        path: dotted.
        value: as found.
        why: what reads it, why it is harmless, or why it is not known.
        risky: for an unknown key, whether it may change numbers: it is set, and not to false or nothing.
    """

    path: str
    value: Any
    why: str
    risky: bool = False


@dataclass(frozen=True)
class Inventory:
    """The lists. Every stored tensor is in one of the first three, every config key in one of the last three.

    What a torch archive holds beside its named tensors stands with the unused, or with the unknown where it may be
    weights (an ``ema``, tensors in a dict within the state dict, or outside it).

    Attributes:
        used: tensors that a reading of the lab reads.
        unused: known and not used, with the reason.
        unknown: tensors that no dialect knows.
        missing: tensors that the config asks for, or that programs usually find, and that are not there.
        handled: keys that the lab or a program reads.
        harmless: keys on which no number depends.
        unread: keys that nobody is known to read, or with a value that nobody is known to mean.
        names: engine → trouble it has with the names as stored.
    """

    used: tuple[TensorEntry, ...]
    unused: tuple[TensorEntry, ...]
    unknown: tuple[TensorEntry, ...]
    missing: tuple[TensorEntry, ...]
    handled: tuple[KeyEntry, ...]
    harmless: tuple[KeyEntry, ...]
    unread: tuple[KeyEntry, ...]
    names: Mapping[str, str]


def grouped(engines: Mapping[str, str]) -> str:
    """``a, b: words; c: other words``: engines that do the same are named together."""
    by_words: dict[str, list[str]] = {}
    for name, words in engines.items():
        by_words.setdefault(words, []).append(name)
    return "; ".join(f"{', '.join(names)}: {words}" for words, names in by_words.items())


def inventory(draft: Draft, everyone: Mapping[str, Interpretation] | None = None) -> Inventory:
    """The lists of a checkpoint.

    Args:
        draft: the checkpoint.
        everyone: how each engine and version serves it, where that is known; adds who drops a tensor that is used.
    """
    used, unused, unknown = [], [], []
    canonical = {stored: name for name, stored in draft.stored.items()}
    parts = {name for form in draft.files.forms.values() if not form.refused for name in (form.scale, form.zero)}
    for name in draft.tensors:
        known = canonical.get(name, "")
        why = draft.files.companions.get(name) or dialects.unused(name)
        if known == "fc.weight" and not _fed_states(draft):
            why = "fc is skipped: the draft is fed the target's final state (use_aux_hidden_state)"
        if name in parts or (known and not why):
            used.append(TensorEntry(name, known, why or _role(draft, known), _dropping(known, everyone or {})))
        elif why:
            unused.append(TensorEntry(name, known, why, {}))
        else:
            does = {engine: module.unknown(name, draft.arch) for engine, module in ENGINES.items()}
            unknown.append(TensorEntry(name, "", "no dialect knows the name", does))
    for name, words in draft.tensors.beside.items():
        state = "tensor" not in words or any(part in name.lower() for part in TRAINING_STATE)
        why = f"beside the named tensors: {words}" + (", of training" if state else ", which may be weights: not read")
        (unused if state else unknown).append(TensorEntry(name, "", why, {}))
    stored = tuple(draft.tensors)
    return Inventory(
        tuple(used), tuple(unused), tuple(unknown), tuple(_missing(draft)),
        *_config(draft),
        {engine: words for engine, module in ENGINES.items() if (words := module.names(stored))},
    )  # fmt: skip


def _fed_states(draft: Draft) -> bool:
    return bool((draft.config.get("eagle_config") or {}).get("use_aux_hidden_state", True))


def _role(draft: Draft, name: str) -> str:
    symbols = shapes.symbols_of(name, is_latent(draft.arch))
    shape = f"[{', '.join(symbols)}]" if symbols else "read as it is"
    return {"embed_tokens.weight": f"{shape}, where the reading's embedding is its own",
            "d2t": f"{shape}, draft id → target id"}.get(name, shape)  # fmt: skip


def _dropping(name: str, everyone: Mapping[str, Interpretation]) -> dict[str, str]:
    return {version: "does not use it" for version, found in everyone.items() if name and name in found.dropped}


def _wanted(draft: Draft) -> Iterator[tuple[str, str]]:
    """Tensors that the config asks for or that engines look for, whether they are there or not."""
    a, config = draft.arch, draft.config
    yield "embed_tokens.weight", "rows of the tokens that go in"
    yield "lm_head.weight", "rows of the tokens that come out"
    if a.draft_vocab != a.vocab:
        yield "d2t", "draft id → target id"
        yield "t2d", "a mask of training: no program drafts with it"
    if flag(config, "norm_before_fc") or (config.get("eagle_config") or {}).get("norm_before_fc"):
        yield "input_norm.weight", "norm_before_fc is true"
    if flag(config, "fc_norm") or flag(config, "use_aux_norm"):
        yield from ((f"fc_norm.{k}.weight", "fc_norm is true") for k in range(a.aux))
    if config.get("bias"):
        yield "fc.bias", "bias is true"
    if config.get("parallel_drafting") or config.get("speculators_model_type") == "peagle":
        yield "mask_hidden", "the draft is said to be a parallel one"
    for i in range(a.layers):
        if config.get("model_type") == "qwen3":
            yield from ((f"layers.{i}.self_attn.{n}_norm.weight", "model_type is qwen3") for n in "qk")
        if config.get("attention_bias") and not is_latent(a):
            yield from ((f"layers.{i}.self_attn.{n}_proj.bias", "attention_bias is true") for n in "qkvo")
        if config.get("mlp_bias"):
            yield from ((f"layers.{i}.mlp.{n}_proj.bias", "mlp_bias is true") for n in ("gate", "up", "down"))
        if i:
            yield from ((f"layers.{i}.{n}.weight", "norm before attention in later layers, by program")
                        for n in ("hidden_norm", "input_layernorm"))  # fmt: skip


def _missing(draft: Draft) -> Iterator[TensorEntry]:
    for name, why in _wanted(draft):
        if name not in draft:
            does = {engine: module.missing(name, draft.arch) for engine, module in ENGINES.items()}
            yield TensorEntry(name, name, why, {engine: words for engine, words in does.items() if words})


def _config(draft: Draft) -> tuple[tuple[KeyEntry, ...], tuple[KeyEntry, ...], tuple[KeyEntry, ...]]:
    table = dict(draft.raw_config)
    quantised = draft.path / HF_QUANT
    if draft.path.is_dir() and quantised.is_file():
        table["hf_quant_config"] = read_json(quantised)
    handled, harmless, unread = [], [], []
    for path, value in keys.leaves(table):
        found = _readers(path)
        words = grouped({who: key.words for who, key in found if who})
        words = "; ".join(filter(None, [*(key.words for who, key in found if not who), words]))
        strange = [key for _, key in found if key.only and value not in key.only]
        if strange:
            why = f"{value!r} is not among the values the lab knows ({', '.join(map(repr, strange[0].only))})"
            unread.append(KeyEntry(path, value, f"{why}: {words}", True))
        elif not found:
            idle = value is None or value is False or value in ("", [], {})
            risky = not idle and not path.split(".")[-1].startswith("_")
            unread.append(KeyEntry(path, value, "no program is known to read it", risky))
        elif all(key.harmless for _, key in found):
            harmless.append(KeyEntry(path, value, words))
        else:
            handled.append(KeyEntry(path, value, words))
    return tuple(handled), tuple(harmless), tuple(unread)


def _readers(path: str) -> list[tuple[str, keys.Key]]:
    """Who knows the key: ("", …) for what is common to all, then each program by name."""
    name = keys.plain(path)
    found = [("", key)] if (key := keys.find(keys.COMMON, name)) else []
    found += [(who, key) for who, module in MODULES.items() if (key := keys.find(module.KEYS, name))]
    inner = name.removeprefix("eagle_config.")
    if not found and inner != name and inner in FLAGS:  # flags are read at either level (dialects.common.flag)
        found = _readers(inner)
    return found
