"""Is the checkpoint whole: names, shapes, values, config against tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eagle3lab.checks import listed
from eagle3lab.checks.fresh import TYPED
from eagle3lab.dialects.common import flag, is_latent, nested_ids, rope_of, top_level_ids
from eagle3lab.draft import Draft, TensorRow
from eagle3lab.inventory import inventory
from eagle3lab.records import Finding, Severity
from eagle3lab.stats import TensorStats, all_stats
from eagle3lab.target import Target

CODES = {
    "W001": "tensors that no EAGLE-3 program knows",
    "W002": "shapes against the architecture",
    "W003": "NaN, infinite or all-zero tensors",
    "W004": "config flags against the tensors in the file",
    "W005": "number of layer ids against the width of fc",
    "W006": "tensors that every program takes from elsewhere",
    "W007": "position limit against the recorded texts",
    "W008": "config keys that nobody is known to read",
    "W009": "forms that this version opens and does not run",
    "W013": "weight files beside those that are read",
}


def check(
    draft: Draft,
    longest: int | None = None,
    stats: Mapping[str, TensorStats] | None = None,
    target: Target | None = None,
) -> list[Finding]:
    """All findings about the checkpoint alone.

    Args:
        draft: the checkpoint.
        longest: tokens of the longest recorded sample, None when there are none.
        stats: statistics by stored name where the caller has them already.
        target: for its own position limit.
    """
    stats = stats or all_stats(draft.files.measurable, draft.files.read, draft.files.rows)
    found = inventory(draft)
    return [
        *listed.unknown(draft, found),
        *_shapes(draft),
        *_values(draft, stats),
        *_flags(draft),
        *_ids(draft),
        *listed.elsewhere(draft, found),
        *_limit(draft, longest, target),
        *listed.keys(draft, found),
        *listed.forms(draft),
        *listed.files(draft),
    ]


def _shapes(draft: Draft) -> list[Finding]:
    bad = [row for row in draft.rows if not row.fits]
    if not bad:
        a = draft.arch
        fits = (
            f"H {a.hidden}, A {a.aux} states of {a.target_hidden}, {a.heads} heads × {a.head_dim}, Vd {a.draft_vocab}"
        )
        return [Finding("W002", Severity.PASS, "every shape fits the architecture", measured=fits)]
    return [
        Finding(
            "W002", Severity.WARN if _padded(draft, row) else Severity.FAIL, f"{row.stored} does not fit the architecture",
            f"{row.info.file}: {row.stored}",
            measured=str(list(row.info.shape)),
            expected=f"[{', '.join(row.symbols or ())}] = {list(row.expected or ())}",
            evidence="header against config.json",
            remedy=_shape_remedy(draft, row.canonical or "", row.info.shape),
        )
        for row in bad
    ]  # fmt: skip


def _padded(draft: Draft, row: TensorRow) -> bool:
    """A t2d of the vocabulary without its padding, or with more of it, costs nothing: no engine reads t2d."""
    return row.canonical == "t2d" and abs(row.info.shape[0] - draft.arch.vocab) <= draft.arch.vocab // 10


def _shape_remedy(draft: Draft, name: str, shape: tuple[int, ...]) -> str:
    hidden = draft.arch.hidden
    feeds = any(f".self_attn.{p}_proj.weight" in name for p in "qkv")
    if feeds and name.startswith("layers.0.") and shape[1] == hidden:
        return (
            f"it takes H = {hidden} where EAGLE-3 feeds the normed embedding and the normed state side by side, 2H = "
            f"{2 * hidden}: a plain decoder layer, as in EAGLE-1/2. No config edit helps; export or train an EAGLE-3 draft"
        )
    if feeds and not name.startswith("layers.0.") and shape[1] == 2 * hidden:
        return f"only the first layer takes 2H = {2 * hidden}; check how the layers are numbered"
    if name in ("t2d", "embed_tokens.weight"):
        return (
            f"compare vocab_size in config.json ({draft.arch.vocab}) with the target's; padded vocabularies differ here"
        )
    return "compare config.json with the trainer's own; one of the two belongs to another draft"


def _values(draft: Draft, stats: Mapping[str, TensorStats]) -> list[Finding]:
    findings = []
    for name, s in stats.items():
        where = f"{draft.tensors[name].file}: {name}"
        if s.nan > 0 or s.inf > 0:
            findings.append(Finding(
                "W003", Severity.FAIL, f"{name} holds NaN or infinite values", where,
                measured=f"NaN {s.nan:.3%}, infinite {s.inf:.3%}", expected="none",
                evidence="every element was read",
                remedy="a tensor that is NaN throughout was never loaded by its trainer (speculators starts so): save again",
            ))  # fmt: skip
        elif s.zero == 1 and name.split(".")[-1] not in ("d2t", "bias"):
            findings.append(Finding(
                "W003", Severity.WARN, f"{name} is zero throughout", where, measured="100 % zeros",
                expected="trained values", evidence="every element was read", remedy="export the draft again",
            ))  # fmt: skip
    return findings or [Finding("W003", Severity.PASS, "no NaN, no infinity, no all-zero weight",
                                measured=f"{len(stats)} tensors read whole")]  # fmt: skip


def _flags(draft: Draft) -> list[Finding]:
    config, findings = draft.config, _nulls(draft)
    for key, name in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
        on, there = flag(config, key), name in draft
        if on != there:
            findings.append(Finding(
                "W004", Severity.FAIL, f"{name} is {'in the file' if there else 'missing'}, but {key} is {str(on).lower()}",
                f"config.json: {key}", measured=f"{key} = {str(on).lower()}, {name} {'present' if there else 'absent'}",
                expected="both or neither",
                evidence="header against config.json",
                remedy=f"set {key} to true in config.json" if there
                else f"export again with {name}; speculators would load all ones in its place",
            ))  # fmt: skip
    declared = config.get("head_dim") or draft.arch.hidden // draft.arch.heads
    if declared != draft.arch.head_dim and not is_latent(draft.arch):  # MLA has no head_dim of its own
        findings.append(Finding(
            "W004", Severity.FAIL, f"head_dim is {draft.arch.head_dim} by the tensors, {declared} by config.json",
            "config.json: head_dim", measured=f"q_proj rows / {draft.arch.heads} heads = {draft.arch.head_dim}",
            expected=str(declared), evidence="header against config.json",
            remedy=f"set head_dim to {draft.arch.head_dim}",
        ))  # fmt: skip
    findings += _two_ropes(config)
    if config["vocab_size"] != draft.arch.vocab:
        findings.append(Finding(
            "W004", Severity.WARN, f"vocab_size is {config['vocab_size']}, the target's is {draft.arch.vocab}",
            "config.json: vocab_size", measured=str(config["vocab_size"]), expected=str(draft.arch.vocab),
            evidence="the draft's config.json against the target's",
            remedy=f"set vocab_size to {draft.arch.vocab}, unless one of the two is a padded size",
        ))  # fmt: skip
    stated = config.get("num_hidden_layers")
    if stated is not None and stated != draft.arch.layers:
        findings.append(Finding(
            "W004", Severity.WARN, f"config.json says {stated} layers, the file holds {draft.arch.layers}",
            "config.json: num_hidden_layers", measured=str(draft.arch.layers), expected=str(stated),
            evidence="counted from tensor names",
            remedy=f"set num_hidden_layers to {draft.arch.layers}; the number was copied from the target",
        ))  # fmt: skip
    if config.get("tie_word_embeddings") and "lm_head.weight" in draft:
        findings.append(Finding(
            "W004", Severity.WARN, "tie_word_embeddings is true, but the file has its own lm_head",
            "config.json: tie_word_embeddings", measured="true", expected="false",
            evidence="by reading: SGLang would use embed_tokens as head and drop lm_head.weight in silence",
            remedy="set tie_word_embeddings to false",
        ))  # fmt: skip
    return findings or [Finding("W004", Severity.PASS, "config flags agree with the tensors")]


def _nulls(draft: Draft) -> list[Finding]:
    """Nulls where typed loaders want a value: the lab reads past them, an engine may not open the file (faults.md 61)."""
    nulls = [key for key in TYPED if key in draft.raw_config and draft.raw_config[key] is None]
    if not nulls:
        return []
    told = {"num_key_value_heads": draft.arch.kv_heads, "hidden_act": draft.arch.activation, "rms_norm_eps": draft.arch.eps,
            "tie_word_embeddings": False, "use_cache": True}  # fmt: skip
    return [Finding(
        "W004", Severity.FAIL, f"{len(nulls)} null field{'s' * (len(nulls) > 1)}: {', '.join(nulls)}",
        f"config.json: {', '.join(nulls)}", measured="null", expected="a value of its type, or no key",
        evidence="typed loaders refuse null on loading (TensorRT-LLM's export pipeline); others take a default",
        remedy="set " + ", ".join(f"{key} to {json.dumps(told[key])}" for key in nulls) + " (the values the lab runs it with)",
    )]  # fmt: skip


def _two_ropes(config: Mapping[str, Any]) -> list[Finding]:
    """``rope_parameters`` (transformers 5) against ``rope_theta`` and ``rope_scaling``, where both are there."""
    new, theta, old = config.get("rope_parameters"), config.get("rope_theta"), config.get("rope_scaling")
    if not new:
        return []
    bases = {float(value) for value in (theta, new.get("rope_theta")) if value}
    differ = ["rope_theta"] if len(bases) == 2 else []
    if old and dict(rope_of({"rope_scaling": _worded(old)}).scaling) != dict(
        rope_of({"rope_parameters": _worded(new)}).scaling
    ):
        differ.append("rope_scaling")
    return [
        Finding(
            "W004", Severity.WARN, f"rope_parameters and {key} say different things", f"config.json: {key}",
            measured=f"{key} = {config[key]}", expected=f"rope_parameters = {new}",
            evidence="the lab and programs of today read rope_parameters, older ones the other",
            remedy="make the two agree with what was trained",
        )
        for key in differ
    ]  # fmt: skip


def _worded(table: Mapping[str, Any]) -> dict[str, Any]:
    """A RoPE table with ``type`` as ``rope_type``, so that the two schemas can be compared."""
    kind = table.get("rope_type", table.get("type", "default"))
    return {"rope_type": kind, **{k: v for k, v in table.items() if k not in ("type", "rope_type")}}


def _ids(draft: Draft) -> list[Finding]:
    found = {"eagle_aux_hidden_state_layer_ids": top_level_ids(draft.config),
             "eagle_config.eagle_aux_hidden_state_layer_ids": nested_ids(draft.config)}  # fmt: skip
    findings = [
        Finding(
            "W005", Severity.FAIL, f"{len(ids)} layer ids, but fc takes {draft.arch.aux} states", f"config.json: {key}",
            measured=str(list(ids)),
            expected=f"{draft.arch.aux} ids (fc has {draft.arch.aux * draft.arch.target_hidden} columns, "
                     f"a state {draft.arch.target_hidden})",
            evidence="header against config.json",
            remedy=f"list the {draft.arch.aux} layers the draft was trained on" + _eagle_1(draft),
        )
        for key, ids in found.items()
        if ids and len(ids) != draft.arch.aux
    ]  # fmt: skip
    both = [ids for ids in found.values() if ids]
    if len(both) == 2 and both[0] != both[1]:
        findings.append(Finding(
            "W005", Severity.WARN, "two lists of layer ids disagree", "config.json",
            measured="; ".join(f"{k} = {list(v or ())}" for k, v in found.items()), expected="one list",
            evidence="vLLM reads the top-level one first, SGLang only the nested one, each in its own numbering",
            remedy="keep each list in the numbering of the engine that reads it: see notebook 04 for both",
        ))  # fmt: skip
    if not both:
        findings.append(Finding(
            "W005", Severity.INFO, "config.json names no layer ids: every engine takes its default, boundaries (2, L//2, L-3)",
            "config.json", measured="no ids", evidence="docs/readings.md",
            remedy="write the ids down if the draft was trained on others",
        ))  # fmt: skip
    return findings or [Finding("W005", Severity.PASS, f"{draft.arch.aux} layer ids for {draft.arch.aux} states")]


def _eagle_1(draft: Draft) -> str:
    a, fc = draft.arch, draft.shape("fc.weight")
    plain = fc is not None and fc[1] == 2 * a.hidden and a.hidden == a.target_hidden
    return "; or it is an EAGLE-1/2 draft, whose fc takes [embedding ; state], 2H wide" if plain else ""


def _limit(draft: Draft, longest: int | None, target: Target | None) -> list[Finding]:
    limit = draft.config.get("max_position_embeddings")
    reach = target.config.get("max_position_embeddings") if target else None
    if not limit:
        return []
    if longest and longest > limit:
        return [Finding(
            "W007", Severity.WARN, f"{longest - limit} positions lie past the draft's table of {limit}",
            "config.json: max_position_embeddings", measured=f"longest sample {longest} tokens", expected=f"at most {limit}",
            evidence="header against config.json",
            remedy="raise max_position_embeddings to the target's; engines size their RoPE table by it and may crash past it",
        )]  # fmt: skip
    words = f"longest sample {longest} tokens" if longest else "no sample is given"
    if isinstance(reach, int) and limit < reach:
        return [Finding(
            "W007", Severity.LIMIT, f"the draft reaches {limit} positions, the target {reach}", "config.json: max_position_embeddings",
            measured=f"{limit}; {words}", expected=f"{reach}", evidence="the draft's config.json against the target's",
            remedy="raise it to the target's: requests past it lose acceptance or crash the engine (SpecForge#249); a draft "
                   "trained on short texts only is not better there for that (A004)",
        )]  # fmt: skip
    if not longest:
        return []
    return [
        Finding("W007", Severity.PASS, f"the longest sample ({longest} tokens) is within the draft's {limit} positions")
    ]
