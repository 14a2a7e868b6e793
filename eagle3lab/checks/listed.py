"""Findings out of the inventory: tensors and config keys that nobody knows, tensors that are not there, other forms."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3lab import rope
from eagle3lab.decoder import ACTIVATIONS
from eagle3lab.dialects.common import is_latent, rope_of
from eagle3lab.draft import Draft
from eagle3lab.inventory import Inventory, TensorEntry, grouped
from eagle3lab.records import Finding, Severity

SHOWN = 12
"""Names that a finding spells out; notebook 01 lists all."""


def unknown(draft: Draft, found: Inventory) -> list[Finding]:
    """W001: stored tensors of unknown names, and names that an engine would not find."""
    where = draft.name
    findings = []
    beside = any(entry.name in draft.tensors.beside for entry in found.unknown)
    what = "tensors or dicts of tensors" if beside else "tensors"
    if found.unknown:
        findings.append(Finding(
            "W001", Severity.WARN, f"{len(found.unknown)} {what} are unknown to the lab", where,
            measured=_some([_named(draft, entry.name) for entry in found.unknown]), expected="names of an EAGLE-3 draft",
            evidence=f"read from the header; {grouped(_common(found.unknown))}",
            remedy="rename them, or remove them if they are not part of the draft",
        ))  # fmt: skip
    if found.names:
        findings.append(Finding(
            "W001", Severity.WARN, f"{', '.join(found.names)} would not find the tensors under their names", where,
            measured=grouped(found.names), expected="names without a wrapper's prefix", evidence="by reading",
            remedy="take the prefix off the names before serving",
        ))  # fmt: skip
    return findings or [Finding("W001", Severity.PASS, f"all {len(draft.tensors)} tensors are known", where,
                                measured=f"{len(found.used)} used, {len(found.unused)} not needed to draft")]  # fmt: skip


def _common(entries: tuple[TensorEntry, ...]) -> dict[str, str]:
    """Engine → what it does with these tensors; the different things it does, one after another."""
    out: dict[str, list[str]] = {}
    for entry in entries:
        for engine, words in entry.engines.items():
            if words not in out.setdefault(engine, []):
                out[engine].append(words)
    return {engine: " or ".join(words) for engine, words in out.items()}


def _named(draft: Draft, name: str) -> str:
    words = draft.tensors.beside.get(name)
    return f"{name} ({words})" if words else name


def files(draft: Draft) -> list[Finding]:
    """W013: weight files that lie beside those that are read; each program has its own rule for which it takes."""
    where, read = draft.name, ", ".join(draft.tensors.held[:SHOWN])
    others = draft.files.others
    if not others:
        return [Finding("W013", Severity.PASS, "no other weight file lies beside those that are read", where, read)]
    index = any(name.endswith(".json") for name in draft.tensors.held)
    taken = [name for name in others if name.endswith(".safetensors")] if not index and not draft.files.gguf else []
    return [Finding(
        "W013", Severity.WARN if taken else Severity.INFO,
        f"{len(others)} other weight file{'s lie' if len(others) > 1 else ' lies'} in the folder and {'are' if len(others) > 1 else 'is'} not read",
        where, measured=f"read: {read}; not read: {_some(others)}", expected="one set of weights",
        evidence="by reading: without an index vLLM and SGLang load every .safetensors of a folder, and of two tensors of one name either may count"
        if taken else "by reading: programs take an index or model.safetensors first, then pytorch_model.bin, a GGUF only by its name",
        remedy="check that the right one is read, and move the others out of the folder",
    )]  # fmt: skip


def elsewhere(draft: Draft, found: Inventory) -> list[Finding]:
    """W006: tensors that are not in the file, with what each engine does then."""
    missing = {entry.name: entry for entry in found.missing if entry.engines}
    findings = []
    table, head = missing.pop("embed_tokens.weight", None), missing.pop("lm_head.weight", None)
    if table:
        same = draft.arch.hidden == draft.arch.target_hidden
        findings.append(Finding(
            "W006", Severity.INFO if same else Severity.FAIL,
            "the file has no embed_tokens: every engine takes the target's" if same
            else "the file has no embed_tokens, and the target's rows do not fit",
            draft.name, measured=f"H {draft.arch.hidden}, Ht {draft.arch.target_hidden}",
            expected="H = Ht, or embed_tokens in the file", evidence=f"read from the header; {table.consequence}",
            remedy="" if same else "export the draft with its own embed_tokens",
        ))  # fmt: skip
    if head:
        whole = draft.arch.draft_vocab == draft.arch.vocab
        findings.append(Finding(
            "W006", Severity.WARN if whole else Severity.FAIL,
            "the file has no lm_head: the target's head would be needed" if whole
            else "the file has no lm_head, and a reduced draft vocabulary cannot borrow one",
            draft.name, measured=f"Vd {draft.arch.draft_vocab}, V {draft.arch.vocab}",
            expected="lm_head.weight [Vd, H]", evidence=f"read from the header; {head.consequence}",
            remedy="export the draft with its lm_head; SGLang's drafts start with a random one and accept nothing "
                   "(sglang#27908)",
        ))  # fmt: skip
    # d2t has V001, norms that a flag asks for have W004
    rest = [e for name, e in missing.items() if name != "d2t" and not name.startswith(("input_norm", "fc_norm"))]
    by_reason: dict[tuple[str, str], list[str]] = {}
    for entry in rest:
        by_reason.setdefault((entry.why, entry.consequence), []).append(entry.name)
    findings += [
        Finding(
            "W006", Severity.WARN if ".bias" in names[0] or "q_norm" in names[0] else Severity.INFO,
            f"{_some(names)} {'is' if len(names) == 1 else 'are'} not in the file",
            draft.name, measured="absent", expected=why, evidence=consequence,
            remedy="export them, or correct the key of config.json that asks for them"
            if "true" in why or "qwen3" in why else "serve it with a program that does without",
        )
        for (why, consequence), names in by_reason.items()
    ]  # fmt: skip
    return findings


def keys(draft: Draft, found: Inventory) -> list[Finding]:
    """W008: config keys that nobody is known to read."""
    file = draft.files.config_file.name
    risky, idle = ([k for k in found.unread if k.risky is wanted] for wanted in (True, False))
    findings = []
    if risky:
        findings.append(Finding(
            "W008", Severity.WARN, f"{len(risky)} config keys are unknown to the lab and may change numbers", file,
            measured=_some([f"{k.path} = {_short(k.value)}" for k in risky]),
            expected="keys that some program is known to read",
            evidence="; ".join(dict.fromkeys(k.why for k in risky)),
            remedy="look each one up in the program that wrote it: the lab runs the draft as if they were not there",
        ))  # fmt: skip
    if idle:
        findings.append(Finding(
            "W008", Severity.INFO, f"{len(idle)} config keys are unknown to the lab, and off or empty", file,
            measured=_some([f"{k.path} = {_short(k.value)}" for k in idle]),
        ))  # fmt: skip
    known = len(found.handled) + len(found.harmless)
    return findings or [Finding("W008", Severity.PASS, f"all {known} config keys are known", file,
                                measured=f"{len(found.handled)} read, {len(found.harmless)} harmless")]  # fmt: skip


def forms(draft: Draft) -> list[Finding]:
    """W009: forms of a draft that open and are not run."""
    return [
        Finding(
            "W009", Severity.UNSUPPORTED, title, where,
            measured=measured, expected=expected, evidence="read from the header and config.json",
            remedy="nothing to mend: weights and vocabulary are checked all the same",
        )
        for title, where, measured, expected in _forms(draft)
    ]  # fmt: skip


def _forms(draft: Draft) -> Iterator[tuple[str, str, str, str]]:
    file, arch, not_run = draft.files.config_file.name, draft.arch, "this version opens it and does not run it"
    scaling = dict(rope_of(draft.config).scaling)
    kind = str(scaling.get("rope_type", scaling.get("type", "default")))
    if kind not in rope.NEEDED:
        yield f"RoPE scaling {kind!r}: {not_run}", f"{file}: rope_scaling", kind, ", ".join(rope.NEEDED)
    if arch.activation not in ACTIVATIONS:
        yield (
            f"activation {arch.activation!r}: {not_run}",
            f"{file}: hidden_act",
            arch.activation,
            ", ".join(ACTIVATIONS),
        )
    if draft.experts:
        measured = f"{len(draft.experts)} tensors of experts"
        yield f"a mixture of experts: {not_run}", draft.experts[0], measured, "a dense MLP"
    packed = {name: form.refused for name, form in draft.files.forms.items() if form.refused}
    if packed:
        yield (
            f"{len(packed)} weights in a form that is not read: {not_run}",
            next(iter(packed)),
            next(iter(packed.values())),
            "weights with scales",
        )
    if "mask_hidden" in arch.tensors or draft.config.get("parallel_drafting"):
        title = "parallel drafting (P-EAGLE): this version runs it as a chain, one token a step"
        yield title, draft.name, "mask_hidden", "a draft trained on chains"
    dims = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    absent = [key for key in dims if not arch.config.get(key)] if is_latent(arch) else []
    if absent:
        yield (
            f"latent attention (MLA) of unknown widths: {not_run}",
            file,
            f"no {', '.join(absent)}",
            "widths that cut its tensors",
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"
