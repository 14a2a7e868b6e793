"""The readings one field away from a given one, as far as the files allow to try them."""

from __future__ import annotations

from collections.abc import Iterable

from eagle3lab.model import Model
from eagle3lab.reading import Reading

BASES = (10000.0, 500000.0, 1000000.0)
"""RoPE bases that trainers are known to have used, whatever the config says."""


def variants(model: Model, r: Reading) -> Iterable[Reading]:
    """Readings one field away, as far as the files allow."""
    yield r.replace(residual="post_norm" if r.residual == "pre_norm" else "pre_norm")
    yield r.replace(feedback="post_norm" if r.feedback == "pre_norm" else "pre_norm")
    yield r.replace(head_norm="skipped" if r.head_norm == "applied" else "applied")
    yield from (r.replace(shift=s) for s in (0, 1, 2) if s != r.shift)
    yield from (r.replace(vocab_map=kind) for kind in _maps(model) if kind != r.vocab_map)
    if "embed_tokens.weight" in model.draft and model.target is not None:
        yield r.replace(embedding="own" if r.embedding == "target" else "target")
    if "input_norm.weight" in model.draft:
        yield r.replace(aux_norm="none" if r.aux_norm == "input_norm" else "input_norm")
    if "fc_norm.0.weight" in model.draft:
        yield r.replace(aux_norm="none" if r.aux_norm == "fc_norm" else "fc_norm")
    rope = r.rope
    declared = float(model.draft.config.get("rope_theta") or rope.base)
    bases = sorted({*BASES, declared} - {rope.base})
    yield from (r.replace(rope=type(rope)(**{**vars(rope), "base": base})) for base in bases)
    yield r.replace(rope=type(rope)(**{**vars(rope), "layout": "interleaved" if rope.layout == "half" else "half"}))
    if rope.scaling:
        yield r.replace(rope=type(rope)(**{**vars(rope), "scaling": ()}))
    if r.dropped:
        yield r.replace(dropped=())


def _maps(model: Model) -> tuple[str, ...]:
    kinds = ["identity"]
    if "d2t" in model.draft:
        kinds += ["offsets", "ids"]
    if "t2d" in model.draft and int(model.draft.weight("t2d").sum()) == model.draft.arch.draft_vocab:
        kinds.append("t2d")
    return tuple(kinds)
