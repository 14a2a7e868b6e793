"""The draft checkpoint: tensors under canonical names, mapped lazily, and its architecture solved from shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from eagle3lab import dialects, hubcache, shapes
from eagle3lab.checkpoint import Checkpoint
from eagle3lab.dialects import config as keys
from eagle3lab.dialects.common import is_latent
from eagle3lab.dialects.speculators import flatten
from eagle3lab.errors import BadFile, Blocked
from eagle3lab.records import Architecture, TensorInfo
from eagle3lab.tensors import TensorFiles
from eagle3lab.vocab import VocabMap

FIRST_NORMS = ("input_layernorm", "hidden_norm")
BLOCK = ("post_attention_layernorm", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
LATENT = tuple(f"self_attn.{name}" for name in ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"))
QUERIES = ("self_attn.q_a_proj", "self_attn.q_a_layernorm", "self_attn.q_b_proj")
"""Without these, and ``fc`` and ``norm``, no program can run an EAGLE-3 draft; MLA has `LATENT` for keys and values,
and for queries `QUERIES` or a plain ``q_proj``."""

SHOWN = 8
"""Faults and layers that an error names."""


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
        if not path.is_dir() and path.suffix != ".gguf":
            raise BadFile(
                path,
                "no such folder; check [draft] path in case.toml"
                if not path.exists()
                else "a file; expected the draft's folder with config.json and its tensors, or a GGUF",
            )
        self.path = path
        self.files = _open(path)
        self.raw_config = self.files.draft_config()
        layer = self.raw_config.get("transformer_layer_config")
        self.config: dict[str, Any] = flatten(self.raw_config) if isinstance(layer, dict) else dict(self.raw_config)
        self.tensors: TensorFiles = self.files.tensors
        self.stored = self._rename()
        left = set(self.tensors) - set(self.stored.values()) - set(self.files.companions)
        self.unknown = sorted(name for name in left if not dialects.unused(name))
        self.arch = self._solve(target_hidden, vocab)

    @property
    def name(self) -> str:
        """What it is called in findings: its folder or file, or the id it was given by."""
        return hubcache.label(self.path)

    def __contains__(self, name: str) -> bool:
        """Whether the checkpoint holds the canonical ``name``."""
        return name in self.stored

    def weight(self, name: str) -> Tensor:
        """The tensor of the canonical ``name``, as stored; a quantised one in float32.

        Raises:
            BadFile: it is missing; the text lists what is there.
            Blocked: it is in a form that the lab does not read, or its place is a mixture of experts.
        """
        if name not in self.stored and ".mlp." in name and self.experts:
            raise Blocked(f"{self.path.name}: a mixture of experts ({self.experts[0]} …) cannot be run by the lab yet")
        if name not in self.stored:
            raise BadFile(self.path, f"tensor {name!r} is missing; found {', '.join(sorted(self.stored))}")
        return self.files.read(self.stored[name])

    def weight_rows(self, name: str, index: Tensor) -> Tensor:
        """Rows ``index`` [R] of the same → [R, …]: only they are read."""
        if name not in self.stored:
            raise BadFile(self.path, f"tensor {name!r} is missing; found {', '.join(sorted(self.stored))}")
        return self.files.rows(self.stored[name], index)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of the canonical ``name`` from the header, None when it is missing."""
        return self.tensors[self.stored[name]].shape if name in self.stored else None

    @property
    def map_kind(self) -> str:
        """How the file's own format means ``d2t``: GGUF holds ids, all others offsets; ``identity`` without one."""
        return ("ids" if self.files.gguf else "offsets") if "d2t" in self else "identity"

    def vocab_map(self, kind: str = "offsets") -> VocabMap:
        """``d2t`` read as ``kind`` says (see `VocabMap.read`); without one only ``identity`` is possible."""
        d2t = self.weight("d2t") if "d2t" in self else None
        t2d = self.weight("t2d") if "t2d" in self else None
        try:
            return VocabMap.read(kind, self.arch.draft_vocab, self.arch.vocab, d2t, t2d)
        except ValueError as error:
            raise BadFile(self.path, str(error)) from error

    @property
    def experts(self) -> list[str]:
        """Stored tensors of a mixture of experts."""
        return [name for name in self.tensors if ".mlp.experts." in name]

    @cached_property
    def rows(self) -> list[TensorRow]:
        """Every stored tensor, in file order, beside what the architecture expects."""
        names = {stored: name for name, stored in self.stored.items()}
        numbers, latent, forms = shapes.sizes(self.arch), is_latent(self.arch), self.files.forms
        out = []
        for stored, info in self.tensors.items():
            name = names.get(stored)
            symbols = shapes.symbols_of(name, latent) if name else None
            packed = stored in forms and forms[stored].packed  # its shape is not that of the matrix
            expected = tuple(numbers[s] for s in symbols) if symbols and not packed else None
            out.append(TensorRow(stored, name, info, symbols, expected))
        return out

    def _rename(self) -> dict[str, str]:
        stored: dict[str, str] = {}
        faults = []
        for name in self.tensors:
            known = self.files.canonical(name)
            if known in stored:
                faults.append(f"{name!r} and {stored[known]!r} are both {known!r}; remove one of them")
            elif known:
                stored[known] = name
        layers = _layers(stored)
        if layers != list(range(len(layers))):
            numbers = ", ".join(map(str, layers[:SHOWN])) + (" …" if len(layers) > SHOWN else "")
            faults.append(f"layers {numbers} are in the file, expected 0, 1, 2 … without a gap; export the draft again")
        missing = [name for name in self._required(stored) if name not in stored]
        packed = self._packed()
        faults += packed[:SHOWN]
        if missing and not packed:
            found = ", ".join(sorted(self.tensors)) or "no tensor"
            faults.append(f"missing: {', '.join(missing)}; found: {found}; export the draft again with its own trainer")
        fused = [name for name in self.tensors if name.endswith(("qkv_proj.weight", "gate_up_proj.weight"))]
        if missing and fused:
            faults.append(
                f"{', '.join(fused)}: an engine's own fused form; rows are q, k, v (or gate, up) one after another: "
                "split them, or export the draft with its own trainer"
            )
        if "fc.weight" in missing and not packed:
            faults.append("without fc it is not an EAGLE-3 draft as stored: it cannot combine aux states")
        faults += [] if packed else self._form_faults(stored)
        if faults:
            raise BadFile(self.tensors.path, faults)
        return stored

    def _packed(self) -> list[str]:
        """One sentence for each of its weights whose stored shape is not its own, or of which only parts are there.

        Without it a packed ``lm_head`` would count as absent, and the target's would be taken in its place.
        """
        forms = self.files.forms.items()
        return [f"{name}: {form.refused}" for name, form in forms if form.packed and self.files.canonical(name)]

    def _required(self, stored: Mapping[str, str]) -> list[str]:
        """The tensors that any program needs of this draft, for every layer in the file."""
        layers = len(_layers(stored))
        latent = [name for name in stored if "self_attn.kv_" in name or "self_attn.q_a" in name]
        low = any("self_attn.q_a" in name for name in latent)
        queries = QUERIES if low else ATTENTION[:1]
        # a mixture of experts opens, and is not run: W009
        parts = [part for part in BLOCK if not (self.experts and part.startswith("mlp."))]
        parts += [*queries, *LATENT] if latent else ATTENTION
        wanted = ["fc.weight"] if self._wants_fc() else []
        wanted += ["norm.weight", *(f"layers.0.{norm}.weight" for norm in FIRST_NORMS)]
        return wanted + [f"layers.{i}.{part}.weight" for i in range(layers) for part in parts]

    def _form_faults(self, stored: Mapping[str, str]) -> list[str]:
        """Numbers of axes, and maps that are not integers: nothing could be read out of such tensors."""
        faults = []
        for name, stored_name in stored.items():
            info, symbols = self.tensors[stored_name], shapes.symbols_of(name)
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
        config, file = self.config, self.files.config_file
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
        if head_dim < 1:
            rows = f"q_proj has {q_rows} rows, hidden_size is {hidden}"
            raise BadFile(file, f"key 'num_attention_heads' is {heads}, but {rows}; expected a divisor of both")
        if k_rows and not config.get("num_key_value_heads"):
            kv_heads = max(k_rows // head_dim, 1)
        width = target_hidden or config.get("target_hidden_size") or hidden
        fc = self.shape("fc.weight")
        aux = max(fc[1] // width, 1) if fc else 1
        gate = self.shape("layers.0.mlp.gate_proj.weight") or (0,)
        if "layers.0.self_attn.kv_a_proj_with_mqa.weight" in self:
            config = {**config, **shapes.latent_dims(config, self.shape, heads)}
            kv_heads, head_dim = heads, config.get("qk_nope_head_dim", 0) + config.get("qk_rope_head_dim", 0)
        return Architecture(
            hidden=hidden,
            target_hidden=width,
            aux=aux,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            layers=len(_layers(self.stored)),
            intermediate=gate[0],
            draft_vocab=head_rows,
            vocab=vocab or vocab_size,
            eps=float(config.get("rms_norm_eps") or 1e-6),
            activation=str(config.get("hidden_act") or "silu"),
            config=config,
            tensors=frozenset(self.stored),
            program=dialects.program_of(self.raw_config, self.tensors, self.tensors.metadata),
        )

    def _draft_vocab_fault(self, faults: list[str]) -> tuple[int, int]:
        """Vd and V; a config that contradicts ``lm_head`` or leaves Vd open is a fault."""
        vocab_size = self.config["vocab_size"]
        stated = self.config.get("draft_vocab_size")
        head = self.shape("lm_head.weight")
        rows = head[0] if head else stated or vocab_size
        if head and head == (self.config["hidden_size"], stated or (self.shape("d2t") or (0,))[0]) != head[::-1]:
            faults.append(f"lm_head.weight is {list(head)}, stored transposed; expected [Vd, H] = {list(head[::-1])}: "
                          "transpose it on export")  # fmt: skip
        elif stated is None and rows != vocab_size:
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


def _layers(names: Iterable[str]) -> list[int]:
    """The numbers of the layers that canonical names hold, ascending; [0] without any."""
    return sorted({int(name.split(".")[1]) for name in names if name.startswith("layers.")}) or [0]


def _open(path: Path) -> Checkpoint:
    """The checkpoint's files; where they are a training checkpoint's, an error names the export that makes a model."""
    try:
        return Checkpoint.of_draft(path)
    except BadFile as error:
        told = dialects.advice({entry.name for entry in path.iterdir()}) if path.is_dir() else ""
        if not told:
            raise
        raise BadFile(error.path, [*error.faults, told]) from error
