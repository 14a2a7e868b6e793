"""The draft checkpoint: tensors under canonical names, mapped lazily, and its architecture solved from shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3lab.dialects import config as keys
from eagle3lab.dialects import program_of
from eagle3lab.dialects.common import canonical
from eagle3lab.dialects.speculators import flatten
from eagle3lab.errors import BadFile
from eagle3lab.records import Architecture, TensorInfo
from eagle3lab.tensors import TensorFiles, open_tensors, read_json
from eagle3lab.vocab import VocabMap

SHAPES = {
    "embed_tokens.weight": ("V", "H"),
    "fc.weight": ("H", "A·Ht"),
    "fc.bias": ("H",),
    "fc_norm.weight": ("Ht",),
    "input_norm.weight": ("A·Ht",),
    "input_layernorm.weight": ("H",),
    "hidden_norm.weight": ("H",),
    "post_attention_layernorm.weight": ("H",),
    "self_attn.q_proj.weight": ("nh·d", "2H"),
    "self_attn.k_proj.weight": ("nkv·d", "2H"),
    "self_attn.v_proj.weight": ("nkv·d", "2H"),
    "self_attn.o_proj.weight": ("H", "nh·d"),
    "self_attn.q_proj.bias": ("nh·d",),
    "self_attn.k_proj.bias": ("nkv·d",),
    "self_attn.v_proj.bias": ("nkv·d",),
    "self_attn.o_proj.bias": ("H",),
    "self_attn.q_norm.weight": ("d",),
    "self_attn.k_norm.weight": ("d",),
    "mlp.gate_proj.weight": ("I", "H"),
    "mlp.up_proj.weight": ("I", "H"),
    "mlp.down_proj.weight": ("H", "I"),
    "norm.weight": ("H",),
    "lm_head.weight": ("Vd", "H"),
    "d2t": ("Vd",),
    "t2d": ("V",),
}
"""Shapes in symbols (engines.md 2.1); projections of layers after the first take H where the first takes 2H."""

FIRST_NORMS = ("input_layernorm", "hidden_norm")
BLOCK = ("post_attention_layernorm", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
"""Without these, and ``fc`` and ``norm``, no program can run an EAGLE-3 draft; MLA has other projections."""


@dataclass(frozen=True)
class TensorRow:
    """One tensor as the table of notebook 01 lists it; ``expected`` is None where the lab knows no shape."""

    stored: str
    canonical: str | None
    info: TensorInfo
    symbols: tuple[str, ...] | None
    expected: tuple[int, ...] | None

    @property
    def fits(self) -> bool:
        """True when the shape is as the architecture wants it, or unknown."""
        return self.expected is None or self.info.shape == self.expected


class Draft:
    """A draft checkpoint: config as found, tensors mapped, nothing read before it is asked for.

    Args:
        path: folder (``config.json`` and tensors).
        target_hidden: Ht when the target is known; else the config's ``target_hidden_size``, else H.
        vocab: V when the target is known; else the config's ``vocab_size``.
    """

    def __init__(self, path: Path, target_hidden: int | None = None, vocab: int | None = None):
        if not path.is_dir():
            raise BadFile(
                path,
                "no such folder; check [draft] path in case.toml"
                if not path.exists()
                else "a file; expected the draft's folder with config.json and its tensors",
            )
        self.path = path
        self.raw_config = read_json(path / "config.json")
        layer = self.raw_config.get("transformer_layer_config")
        self.config: dict[str, Any] = flatten(self.raw_config) if isinstance(layer, dict) else dict(self.raw_config)
        self.tensors: TensorFiles = open_tensors(path)
        self.stored = self._rename()
        self.unknown = sorted(set(self.tensors) - set(self.stored.values()))
        self.arch = self._solve(target_hidden, vocab)

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint holds the canonical ``name``."""
        return name in self.stored

    def weight(self, name: str) -> Tensor:
        """The tensor of the canonical ``name``, as stored.

        Raises:
            BadFile: it is missing; the text lists what is there.
        """
        if name not in self.stored:
            raise BadFile(self.path, f"tensor {name!r} is missing; found {', '.join(sorted(self.stored))}")
        return self.tensors.read(self.stored[name])

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of the canonical ``name`` from the header, None when it is missing."""
        return self.tensors[self.stored[name]].shape if name in self.stored else None

    def vocab_map(self, kind: str = "offsets") -> VocabMap:
        """``d2t`` read as ``kind`` says (see `VocabMap.read`); without one only ``identity`` is possible."""
        d2t = self.weight("d2t") if "d2t" in self else None
        t2d = self.weight("t2d") if "t2d" in self else None
        try:
            return VocabMap.read(kind, self.arch.draft_vocab, self.arch.vocab, d2t, t2d)
        except ValueError as error:
            raise BadFile(self.path, str(error)) from error

    @cached_property
    def rows(self) -> list[TensorRow]:
        """Every stored tensor, in file order, beside what the architecture expects."""
        names = {stored: name for name, stored in self.stored.items()}
        out = []
        for stored, info in self.tensors.items():
            name = names.get(stored)
            symbols = symbols_of(name) if name else None
            expected = tuple(self._size(s) for s in symbols) if symbols else None
            out.append(TensorRow(stored, name, info, symbols, expected))
        return out

    def _size(self, symbol: str) -> int:
        a = self.arch
        return {
            "V": a.vocab, "H": a.hidden, "2H": 2 * a.hidden, "Ht": a.target_hidden, "A·Ht": a.aux * a.target_hidden,
            "nh·d": a.heads * a.head_dim, "nkv·d": a.kv_heads * a.head_dim, "d": a.head_dim, "I": a.intermediate,
            "Vd": a.draft_vocab,
        }[symbol]  # fmt: skip

    def _rename(self) -> dict[str, str]:
        stored: dict[str, str] = {}
        faults = []
        for name in self.tensors:
            known = canonical(name)
            if known in stored:
                faults.append(f"{name!r} and {stored[known]!r} are both {known!r}; remove one of them")
            elif known:
                stored[known] = name
        missing = [name for name in self._required(stored) if name not in stored]
        if missing:
            found = ", ".join(sorted(self.tensors)) or "no tensor"
            faults.append(f"missing: {', '.join(missing)}; found: {found}; export the draft again with its own trainer")
        if "fc.weight" in missing:
            faults.append("without fc it is not an EAGLE-3 draft as stored: it cannot combine aux states")
        faults += self._form_faults(stored)
        if faults:
            raise BadFile(self.tensors.path, faults)
        return stored

    def _required(self, stored: Mapping[str, str]) -> list[str]:
        """The tensors that any program needs of this draft, for every layer up to the last one in the file."""
        layers = 1 + max((int(n.split(".")[1]) for n in stored if n.startswith("layers.")), default=0)
        other_attention = any("self_attn.kv_" in name or "self_attn.q_a" in name for name in stored)
        parts = [*BLOCK, *(() if other_attention else ATTENTION)]
        wanted = ["fc.weight"] if self._wants_fc() else []
        wanted += ["norm.weight", *(f"layers.0.{norm}.weight" for norm in FIRST_NORMS)]
        return wanted + [f"layers.{i}.{part}.weight" for i in range(layers) for part in parts]

    def _form_faults(self, stored: Mapping[str, str]) -> list[str]:
        """Numbers of axes, and maps that are not integers: nothing could be read out of such tensors."""
        faults = []
        for name, stored_name in stored.items():
            info, symbols = self.tensors[stored_name], symbols_of(name)
            where = f"{info.file}: {stored_name} is {info.dtype} {list(info.shape)}"
            if symbols and len(info.shape) != len(symbols):
                faults.append(f"{where}, expected [{', '.join(symbols)}]")
            elif name == "d2t" and info.dtype[0] not in "IU":
                faults.append(f"{where}, expected I64: floating-point numbers do not hold token ids")
        return faults

    def _wants_fc(self) -> bool:
        nested = self.config.get("eagle_config")
        return not isinstance(nested, dict) or nested.get("use_aux_hidden_state") is not False

    def _solve(self, target_hidden: int | None, vocab: int | None) -> Architecture:
        config, file = self.config, self.path / "config.json"
        faults = keys.faults(config)
        if faults:
            raise BadFile(file, faults)
        hidden = (self.shape("norm.weight") or (0,))[0]
        if config["hidden_size"] != hidden:
            faults.append(
                f"key 'hidden_size' is {config['hidden_size']}, but norm.weight has {hidden} entries; expected {hidden}"
            )
        head_rows, vocab_size = self._draft_vocab_fault(faults)
        if faults:
            raise BadFile(file, faults)
        heads = config["num_attention_heads"]
        q_rows, k_rows = self._first("q_proj"), self._first("k_proj")
        kv_heads = config.get("num_key_value_heads") or heads
        head_dim = q_rows // heads if q_rows and q_rows % heads == 0 else config.get("head_dim") or hidden // heads
        if k_rows and not config.get("num_key_value_heads"):
            kv_heads = max(k_rows // head_dim, 1)
        width = target_hidden or config.get("target_hidden_size") or hidden
        fc = self.shape("fc.weight")
        aux = max(fc[1] // width, 1) if fc else 1
        gate = self.shape("layers.0.mlp.gate_proj.weight") or (0,)
        return Architecture(
            hidden=hidden,
            target_hidden=width,
            aux=aux,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            layers=1 + max((int(n.split(".")[1]) for n in self.stored if n.startswith("layers.")), default=0),
            intermediate=gate[0],
            draft_vocab=head_rows,
            vocab=vocab or vocab_size,
            eps=float(config.get("rms_norm_eps") or 1e-6),
            activation=str(config.get("hidden_act") or "silu"),
            config=config,
            tensors=frozenset(self.stored),
            program=program_of(self.raw_config, self.tensors),
        )

    def _draft_vocab_fault(self, faults: list[str]) -> tuple[int, int]:
        """Vd and V; a config that contradicts ``lm_head`` or leaves Vd open is a fault."""
        vocab_size = self.config["vocab_size"]
        stated = self.config.get("draft_vocab_size")
        head = self.shape("lm_head.weight")
        rows = head[0] if head else stated or vocab_size
        if stated is None and rows != vocab_size:
            faults.append(
                f"key 'draft_vocab_size' is missing: lm_head.weight has {rows} rows, vocab_size is {vocab_size}; "
                f'add "draft_vocab_size": {rows} (vLLM would take {vocab_size}, SGLang would stop)'
            )
        elif stated is not None and rows != stated:
            faults.append(f"key 'draft_vocab_size' is {stated}, but lm_head.weight has {rows} rows; expected {rows}")
        return rows, vocab_size

    def _first(self, projection: str) -> int:
        shape = self.shape(f"layers.0.self_attn.{projection}.weight")
        return shape[0] if shape else 0


def symbols_of(name: str) -> tuple[str, ...] | None:
    """The shape of a canonical tensor in symbols, None where the lab states none."""
    if name.startswith("fc_norm."):
        return SHAPES["fc_norm.weight"]
    if not name.startswith("layers."):
        return SHAPES.get(name)
    _, layer, part = name.split(".", 2)
    symbols = SHAPES.get(part)
    return tuple("H" if s == "2H" else s for s in symbols) if symbols and layer != "0" else symbols
