"""Which keys of a draft's config.json make an engine read a field as it fits: tried out on the engine's own rules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eagle3lab.checks.evidence import Opened
from eagle3lab.dialects import ENGINES, resolve
from eagle3lab.errors import Blocked
from eagle3lab.reading import Reading, show
from eagle3lab.records import Architecture

TRIED = ("residual", "feedback", "aux_norm", "window", "logit_scale", "rope.base", "rope.scaling", "rope.partial")
"""Fields that a key of config.json decides, at least for one engine."""

NESTED = "transformer_layer_config"
OF_LAYER = ("rope_", "partial_", "sliding_", "layer_types")
"""Keys that speculators keeps in `NESTED`."""


@dataclass(frozen=True)
class Edit:
    """A change of the draft's files.

    Attributes:
        config: dotted key → its new value; None takes it out.
        without: canonical names of tensors that must go with it.
    """

    config: Mapping[str, Any]
    without: tuple[str, ...] = field(default=())

    def applied(self, arch: Architecture) -> Architecture:
        """The checkpoint as it would be then."""
        config = json.loads(json.dumps(dict(arch.config)))
        for path, value in self.config.items():
            *above, key = path.split(".")
            table = config
            for name in above:
                table[name] = dict(table.get(name) or {})
                table = table[name]
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        return replace(arch, config=config, tensors=arch.tensors - set(self.without))


def remedy(case: Opened, name: str, fitted: Reading) -> str:
    """What to change so that field ``name`` is read as in ``fitted``: by which engines, and what stands there now."""
    engine = case.configured.program if case.run else ""
    tried = [(edit, readers(case, edit, name, fitted)) for edit in edits(case.draft.arch, name, fitted)]
    for edit, able in tried:
        if able and (not engine or _run_reads(case, edit, name, fitted)):
            return f"{_file(case)}: {_words(case, edit)}{_counts(case, name)} (read by {', '.join(able)})"
    edit, able = next((pair for pair in tried if pair[1]), tried[0])
    there = edit.applied(case.draft.arch) == case.draft.arch
    keys, others = " and ".join(_keyed(case, k) for k in edit.config), ", ".join(able) or "no engine the lab knows"
    told = f"{engine} ignores {keys}, already so in config.json: serve the draft with {others}" if there else (
        f"{engine or 'nobody'} does not read {keys}: serve the draft with {others} and {_words(case, edit)} in its config.json")  # fmt: skip
    return f"{told}{_option(case, name, fitted)}, or retrain it with {name} {_configured(case, name)}"


def readers(case: Opened, edit: Edit, name: str, fitted: Reading) -> list[str]:
    """Engines that would read ``name`` as in ``fitted`` after the edit; one with a version where its versions differ."""
    ways = resolve.everyone(edit.applied(case.draft.arch), case.attempt("layers"), case.target_type)
    able = [who for who, way in ways.items() if way.reading and _value(way.reading, name) == _value(fitted, name)]
    out: list[str] = []
    for engine in ENGINES:
        mine, every = ([w for w in names if w.split(" ")[0] == engine] for names in (able, list(ways)))
        out += [engine] if mine == every else mine
    return out


def _run_reads(case: Opened, edit: Edit, name: str, fitted: Reading) -> bool:
    run = case.run
    if run is None or run.engine not in ENGINES:
        return False
    try:
        way = resolve.served(edit.applied(case.draft.arch), case.attempt("layers"), case.target_type, run)
    except Blocked:
        return False
    reading = way.reading or way.conventions
    return reading is not None and _value(reading, name) == _value(fitted, name)


def edits(arch: Architecture, name: str, fitted: Reading) -> list[Edit]:
    """The edits that may do it, the usual one first."""
    config, layers = arch.config, max(arch.layers, 1)
    if name == "residual":
        return [Edit({"norm_before_residual": fitted.residual == "post_norm"})]
    if name == "feedback":
        on = fitted.feedback == "post_norm"
        return [Edit({"norm_output": on}), Edit({"norm_output": on, "eagle_config.return_hidden_post_norm": on})]
    if name == "aux_norm":
        return _aux_norm(arch, fitted.aux_norm)
    if name == "window":
        kind = "full_attention" if fitted.window is None else "sliding_attention"
        return [Edit({"sliding_window": fitted.window, "layer_types": [kind] * layers})]
    if name == "logit_scale":
        return [Edit({"logit_scale": _plain(fitted.logit_scale)})]
    table = _table(config)
    held = config.get(table) or {}
    if name == "rope.scaling":
        kept = {k: v for k, v in held.items() if k in ("rope_theta", "partial_rotary_factor")}
        new = dict(fitted.rope.scaling) or ({"rope_type": "default"} if kept or table == "rope_parameters" else {})
        return [Edit({table or "rope_scaling": {**kept, **new} or None})]
    key, value = {"rope.base": ("rope_theta", fitted.rope.base),
                  "rope.partial": ("partial_rotary_factor", fitted.rope.partial)}[name]  # fmt: skip
    return [Edit({f"{table}.{key}" if held.get(key) else key: _plain(value)})]


def _aux_norm(arch: Architecture, wanted: str) -> list[Edit]:
    key = {"input_norm": "norm_before_fc", "fc_norm": "fc_norm"}.get(wanted, "")
    others = [k for k in ("norm_before_fc", "fc_norm", "use_aux_norm") if k != key and arch.config.get(k)]
    off: dict[str, Any] = dict.fromkeys(others, False)
    stray = tuple(sorted(n for n in arch.tensors if n.startswith(("input_norm.", "fc_norm.")) and not key))
    return [Edit({**({key: True} if key else {}), **off} or {"norm_before_fc": False}, stray),
            Edit({**({f"eagle_config.{key}": True} if key else {"eagle_config.norm_before_fc": False}), **off}, stray)]  # fmt: skip


def _table(config: Mapping[str, Any]) -> str:
    """The table of RoPE that counts, as `rope_of` chooses it."""
    return next((name for name in ("rope_parameters", "rope_scaling") if config.get(name)), "")


def _counts(case: Opened, name: str) -> str:
    """Which of two keys of one meaning counts, where config.json holds both."""
    config = case.draft.arch.config
    key = {"rope.base": "rope_theta", "rope.partial": "partial_rotary_factor", "rope.scaling": "rope_scaling"}.get(name)
    table = _table(config)
    beside = bool(key) and config.get(str(key)) is not None and (
        table == "rope_parameters" if name == "rope.scaling" else bool((config.get(table) or {}).get(key)))  # fmt: skip
    if not beside:
        return ""
    return f"; {_keyed(case, str(key))} = {json.dumps(config[str(key)])} stands beside it and does not count"


def _words(case: Opened, edit: Edit) -> str:
    """What to type, with what stands there now."""
    parts = []
    for path, value in edit.config.items():
        now: Any = case.draft.arch.config
        for key in path.split("."):
            now = now.get(key) if isinstance(now, Mapping) else None
        if now == value:
            continue
        now = _plain(now) if isinstance(now, float) else now
        was = f" (it is {json.dumps(now)}, which the draft was not trained with)" if now is not None else ""
        change = (
            f"take {_keyed(case, path)} out" if value is None else f"set {_keyed(case, path)} to {json.dumps(value)}"
        )
        parts.append(change + was)
    if edit.without:
        parts.append(f"leave {', '.join(edit.without)} out of the file")
    return " and ".join(parts)


def _keyed(case: Opened, path: str) -> str:
    """The key's path in the file as it is, which in speculators' files may lie in a table of its own."""
    raw = case.draft.raw_config
    inner = isinstance(raw.get(NESTED), Mapping) and path.split(".")[0] not in raw
    return f"{NESTED}.{path}" if inner and path.startswith(OF_LAYER) else path


def _file(case: Opened) -> str:
    return "config.json of the draft" + (", which must then be converted again" if case.draft.files.gguf else "")


def _option(case: Opened, name: str, fitted: Reading) -> str:
    """An option of the engine's own that does the same, where its dialect knows one."""
    options: Mapping[str, str] = getattr(ENGINES.get(case.run.engine if case.run else ""), "OPTIONS", {})
    value = _value(fitted, name)
    return f", or start it with {options[name]} {show(value)} (by reading)" if name in options and value else ""


def _configured(case: Opened, name: str) -> str:
    reading = case.configured.reading or case.configured.conventions
    return (
        f"{show(_value(reading, name))}, as {case.configured.program} runs it" if reading else "as the engine runs it"
    )


def _value(reading: Reading, name: str) -> Any:
    return getattr(reading.rope, name.removeprefix("rope.")) if name.startswith("rope.") else getattr(reading, name)


def _plain(value: float) -> int | float:
    return int(value) if value == int(value) else value


__all__: Sequence[str] = ("TRIED", "Edit", "edits", "readers", "remedy")
