"""The readings one field away from a given one, as far as the files allow to try them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from eagle3lab.dialects.common import is_latent, rope_of
from eagle3lab.model import Model
from eagle3lab.reading import Reading, Rope

BASES = (10000.0, 500000.0, 1000000.0)
"""RoPE bases that trainers are known to have used, whatever the config says."""

PARTIAL = (0.25, 0.5, 1.0)
"""Shares of head_dim that known models rotate."""

SHIFTS = (0, 1, 2)
"""What the row of position t joins: 2 where data were shifted twice, 0 where not at all."""

OPTIONAL = {
    "fc.bias": ("fc.bias",), "attention biases": (".self_attn.", "_proj.bias"), "MLP biases": (".mlp.", "_proj.bias"),
    "q and k norms": (".self_attn.", "_norm.weight"),
}  # fmt: skip
"""Tensors that programs drop together: kind → what all their names contain."""


def variants(model: Model, r: Reading) -> Iterator[Reading]:
    """Readings one field away; each differs in at least one field, none is given twice."""
    seen = {r}
    for other in _all(model, r):
        if other not in seen:
            seen.add(other)
            yield other


def guesses(model: Model, r: Reading) -> Iterator[Reading]:
    """Readings one field away that no file states: RoPE bases about the current one, scalings of common use.

    They are tried last, and are of no account where they merely do as well.
    """
    bases = [r.rope.base * factor for factor in (0.25, 0.5, 2.0, 4.0)]
    scalings: list[tuple[tuple[str, object], ...]] = [(("factor", f), ("rope_type", "linear")) for f in (2.0, 4.0, 8.0)]
    limit = r.rope.limit or 8192
    scalings.append((("factor", 4.0), ("original_max_position_embeddings", max(limit // 4, 1)), ("rope_type", "yarn")))
    scalings.append((("factor", 8.0), ("high_freq_factor", 4.0), ("low_freq_factor", 1.0),
                     ("original_max_position_embeddings", 8192), ("rope_type", "llama3")))  # fmt: skip
    ropes = [replace(r.rope, base=base) for base in bases]
    if not r.rope.scaling:
        ropes += [replace(r.rope, scaling=scaling) for scaling in scalings]
    known = {r, *variants(model, r)}
    yield from (other for rope in ropes if (other := r.replace(rope=rope)) not in known)


def optional_groups(model: Model) -> dict[str, frozenset[str]]:
    """Kind → the file's tensors of it: what a program may leave unused in silence."""
    names = [n for n in model.draft.stored if not n.endswith(("layernorm.weight", "_a_norm.weight"))]
    groups = {kind: frozenset(n for n in names if all(part in n for part in parts)) for kind, parts in OPTIONAL.items()}
    return {kind: found for kind, found in groups.items() if found}


def _all(model: Model, r: Reading) -> Iterator[Reading]:
    yield from (r.replace(residual=v) for v in ("pre_norm", "post_norm"))
    yield from (r.replace(feedback=v) for v in ("pre_norm", "post_norm"))
    yield from (r.replace(head_norm=v) for v in ("applied", "skipped"))
    yield from (r.replace(shift=s) for s in SHIFTS)
    yield from (r.replace(vocab_map=kind) for kind in maps(model))
    yield from _tables(model, r)
    yield from _fusing(model, r)
    if _second_norms(model):
        yield from (r.replace(second_norm=v) for v in ("hidden_norm", "input_layernorm"))
    yield from (r.replace(rope=rope) for rope in _ropes(model, r.rope))
    yield from (r.replace(window=w) for w in (None, *_windows(model)))
    yield r.replace(
        dropped=tuple(n for n in r.dropped if not any(n in names for names in optional_groups(model).values()))
    )
    for names in optional_groups(model).values():
        dropped = frozenset(r.dropped)
        yield r.replace(dropped=tuple(sorted(dropped - names if names <= dropped else dropped | names)))


def maps(model: Model) -> tuple[str, ...]:
    """The ways to read the vocabulary map that give each row of the head a token."""
    kinds = ["identity"]
    if "d2t" in model.draft:
        kinds += ["offsets", "ids"]
    if "t2d" in model.draft and int(model.draft.weight("t2d").sum()) == model.draft.arch.draft_vocab:
        kinds.append("t2d")
    return tuple(kinds)


def _tables(model: Model, r: Reading) -> Iterator[Reading]:
    a = model.draft.arch
    if model.target is None or a.hidden != a.target_hidden:
        return
    if "embed_tokens.weight" in model.draft:
        yield from (r.replace(embedding=v) for v in ("own", "target"))
    if "lm_head.weight" in model.draft:
        yield from (r.replace(head=v) for v in ("own", "target"))


def _fusing(model: Model, r: Reading) -> Iterator[Reading]:
    a, held = model.draft.arch, model.draft
    if r.fc == "applied":
        yield r.replace(aux_norm="none")
        if "input_norm.weight" in held:
            yield r.replace(aux_norm="input_norm")
        if f"fc_norm.{len(r.aux) - 1}.weight" in held:
            yield r.replace(aux_norm="fc_norm")
    if len(r.aux) == 1 and a.hidden == a.target_hidden:
        yield r.replace(fc="skipped", aux_norm="none")
        if held.shape("fc.weight") == (a.hidden, a.target_hidden):
            yield r.replace(fc="applied")


def _second_norms(model: Model) -> bool:
    """Whether every later layer holds both norms that its attention may be fed through."""
    later = range(1, model.draft.arch.layers)
    norms = ("hidden_norm", "input_layernorm")
    return bool(later) and all(f"layers.{i}.{norm}.weight" in model.draft for i in later for norm in norms)


def _ropes(model: Model, rope: Rope) -> Iterator[Rope]:
    a = model.draft.arch
    stated = [rope_of(model.draft.config)]
    if model.target is not None:
        stated.append(rope_of(getattr(model.target, "config", {})))
    bases = {*BASES, *(s.base for s in stated)}
    yield from (replace(rope, base=base) for base in sorted(bases))
    yield from (replace(rope, layout=layout) for layout in ("half", "interleaved"))
    width = int(a.config["qk_rope_head_dim"]) if is_latent(a) and a.config.get("qk_rope_head_dim") else a.head_dim
    shares = {*PARTIAL, *(s.partial for s in stated)}
    yield from (replace(rope, partial=p) for p in sorted(shares) if int(width * p) >= 2 and int(width * p) % 2 == 0)
    yield replace(rope, scaling=())
    for scaling in {s.scaling: None for s in stated if s.scaling}:
        yield from (replace(rope, scaling=scaling, rule=rule) for rule in ("hf", "specforge"))


def _windows(model: Model) -> tuple[int, ...]:
    """Attention windows that the draft's or the target's config names, in use or not."""
    stated = [model.draft.config, getattr(model.target, "config", {}) if model.target else {}]
    sizes = [config.get("sliding_window") for config in stated]
    return tuple(dict.fromkeys(s for s in sizes if isinstance(s, int) and not isinstance(s, bool) and s > 0))
