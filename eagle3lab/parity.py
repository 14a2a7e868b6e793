"""The standalone forward against intermediate states that another program recorded, module by module.

The file is one safetensors file. Its keys are module names as a forward hook sees them, under canonical or stored
prefixes, each with what the module **gives**: ``fc``, ``layers.0.input_layernorm``, ``layers.0.hidden_norm``,
``layers.0.self_attn`` (after o_proj, before the residual), ``layers.0.post_attention_layernorm``, ``layers.0.mlp``,
``norm``, ``lm_head``; ``hidden`` and ``logits`` as ``eagle3lab forward`` writes them. ``stepK.`` before a name says the
draft step, 0 without. A leading batch axis of one is taken off; row t belongs to position t, and rows may be missing
at the end. Metadata ``sample`` and ``reading`` (JSON) say what was run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eagle3lab.casefile import CaseFile
from eagle3lab.dialects.common import PREFIXES
from eagle3lab.errors import BadFile
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Interpretation, Sample
from eagle3lab.samples import Samples
from eagle3lab.tensors import TensorFiles, open_tensors

CLOSE = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Largest difference that is still equal, relative to the recorded tensor's largest entry, by its dtype."""

ORDER = (
    "fc", "input_layernorm", "hidden_norm", "self_attn", "post_attention_layernorm", "mlp", "norm", "hidden", "lm_head",
)  # fmt: skip
"""Modules in the order of a step: what differs first is where to look."""

_NAME = re.compile(r"(?:step(\d+)\.)?(.+)")
_SAME = {"logits": "lm_head"}


@dataclass(frozen=True)
class ParityRow:
    """One recorded tensor beside the lab's own.

    Attributes:
        name: as stored.
        module: ``stepK.`` and the canonical module name, "" where the lab has no such module.
        shape: as recorded, batch axis taken off.
        largest: largest absolute difference, NaN where it cannot be compared.
        mean: mean absolute difference.
        relative: ``largest`` over the recorded tensor's largest entry.
        equal: whether that is within its dtype's rounding.
        note: why it cannot be compared, "" otherwise.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    largest: float
    mean: float
    relative: float
    equal: bool
    note: str = ""


def compare(model: Model, sample: Sample, reading: Reading, recorded: TensorFiles) -> list[ParityRow]:
    """One row a recorded tensor, in the order in which a draft step computes them.

    Args:
        model: the draft's weights.
        sample: what was run.
        reading: how.
        recorded: the other program's states.

    Raises:
        BadFile: the file holds nothing that is a module's output.
    """
    named = {name: _module(name) for name in recorded}
    known = [where for where in named.values() if where]
    if not known:
        found = ", ".join(sorted(recorded)[:12]) or "nothing"
        raise BadFile(
            recorded.path, f"holds {found}; expected module outputs such as step0.fc, step0.layers.0.self_attn"
        )
    steps = 1 + max(step for step, _ in known)
    ours = _outputs(model, sample, reading, steps)
    rows = [_row(name, where, recorded, ours) for name, where in named.items()]
    return sorted(rows, key=lambda r: _place(named[r.name]))


class Given(Protocol):
    """The parts of a case that are asked for."""

    @property
    def file(self) -> CaseFile:
        """The case file."""

    @property
    def samples(self) -> Samples:
        """The recordings."""

    @property
    def model(self) -> Model:
        """The draft's weights."""

    @property
    def configured(self) -> Interpretation:
        """What the chosen run makes of the checkpoint."""

    @property
    def fitted(self) -> Reading:
        """The reading that fits best."""


def of_case(case: Given) -> tuple[list[ParityRow], str]:
    """The rows of the case's ``[parity]`` file, and in words what was run; none where the case gives no file.

    The reading is the file's own (metadata ``reading``), else the configured one, else the fitted one.
    """
    file = case.file.parity
    if file is None:
        return [], ""
    recorded = open_tensors(file)
    name = case.file.parity_sample or recorded.metadata.get("sample", "") or case.samples.headline[0]
    stated = recorded.metadata.get("reading")
    try:
        reading, whose = (
            (Reading.from_json(stated), "the file's own") if stated else (case.configured.reading, "configured")
        )
    except ValueError as error:
        raise BadFile(file, f"metadata 'reading': {error}") from error
    if reading is None:
        reading, whose = case.fitted, "fitted"
    words = f"{file.name}, sample {name}, under the {whose} reading, {reading}"
    return compare(case.model, case.samples[name], reading, recorded), words


def _module(name: str) -> tuple[int, str] | None:
    """Step and canonical module of a stored name, None where it is no module of a draft."""
    found = _NAME.fullmatch(name)
    if not found:
        return None
    module = found[2]
    for prefix in PREFIXES:
        module = module.removeprefix(prefix)
    module = re.sub(r"^midlayer\.", "layers.0.", module)
    module = re.sub(r"\.self_attn\.o_proj$", ".self_attn", module)
    module = re.sub(r"\.mlp\.down_proj$", ".mlp", module)
    module = _SAME.get(module, module)
    plain = module in ("fc", "norm", "hidden", "lm_head")
    inside = re.fullmatch(r"layers\.\d+\.(\w+)", module)
    return (int(found[1] or 0), module) if plain or (inside and inside[1] in ORDER) else None


def _place(where: tuple[int, str] | None) -> tuple[int, int, int]:
    if where is None:
        return 10**9, 0, 0
    step, module = where
    layer = int(module.split(".")[1]) if module.startswith("layers.") else 0
    kind = ORDER.index(module.rpartition(".")[2])
    inside = module.startswith("layers.")
    return step, layer if inside else (-1 if module == "fc" else 10**6), kind


def _outputs(model: Model, sample: Sample, reading: Reading, steps: int) -> Mapping[str, Tensor]:
    """What every module gives, by ``stepK.module``, blocks joined: [T-1-K, …] each."""
    seen: dict[str, list[Tensor]] = {}

    def keep(name: str, value: Tensor) -> None:
        seen.setdefault(name, []).append(value.detach().float().cpu().clone())

    rolled = rollout(model, sample, reading, steps, keep=("hidden", "logits"), tap=keep, probabilities=False)
    out: dict[str, Tensor] = {}
    for name, parts in seen.items():
        whole, rows = torch.cat(parts), sample.length - reading.shift - int(name[4 : name.index(".")])
        # the prefix goes through earlier layers and the chains through the last: where both do, the chains' are last
        out[name] = whole[-rows:]
    for k, step in enumerate(rolled.steps):
        if step.hidden is not None and step.logits is not None:
            out[f"step{k}.hidden"], out[f"step{k}.lm_head"] = step.hidden.float().cpu(), step.logits.float().cpu()
    return out


def _row(name: str, where: tuple[int, str] | None, recorded: TensorFiles, ours: Mapping[str, Tensor]) -> ParityRow:
    info = recorded[name]
    nan = float("nan")
    module = f"step{where[0]}.{where[1]}" if where else ""
    mine = ours.get(module)
    if mine is None:
        note = f"this draft's forward has no {module}" if module else "no module's output: not compared"
        return ParityRow(name, module, info.shape, nan, nan, nan, not module, note)
    theirs = recorded.read(name)
    kind = theirs.dtype
    theirs = theirs.squeeze(0).float() if theirs.ndim == mine.ndim + 1 and len(theirs) == 1 else theirs.float()
    shape = tuple(theirs.shape)
    if theirs.ndim != 2 or theirs.shape[1] != mine.shape[1] or not 0 < len(theirs) <= len(mine) + 2:
        note = f"the lab's is {list(mine.shape)}"
        return ParityRow(name, module, shape, nan, nan, nan, False, note)
    rows = min(len(theirs), len(mine))  # writers keep a row or two that have no later token to be compared with
    gap = (theirs[:rows] - mine[:rows]).abs()
    size = float(theirs[:rows].abs().max())
    largest = float(gap.max())
    relative = largest / size if size else largest
    equal = bool(gap.isfinite().all()) and relative <= CLOSE.get(kind, CLOSE[torch.float32])
    return ParityRow(name, module, shape, largest, float(gap.mean()), relative, equal)
