"""Do draft and target speak the same tokens: d2t, t2d, coverage and the ceiling it sets."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eagle3lab.draft import Draft
from eagle3lab.errors import LabError
from eagle3lab.records import Finding, Sample, Severity
from eagle3lab.target import Target
from eagle3lab.vocab import VocabMap, ceiling

CODES = {
    "V001": "the map that turns draft ids into target ids",
    "V002": "target ids in range",
    "V003": "every target id once",
    "V004": "t2d marks the same tokens as d2t",
    "V005": "order of the target ids",
    "V006": "share of the recorded reply tokens that the draft can say, and the ceiling it sets",
    "V007": "lm_head rows against the target's rows under the map",
    "V008": "padding: leading ids that come from no data",
}


def check(draft: Draft, target: Target | None, replies: Tensor | None, steps: int) -> list[Finding]:
    """All findings about the vocabulary map.

    Args:
        draft: the checkpoint.
        target: for the comparison of head rows, None when not given.
        replies: int64 [N], all recorded reply tokens, None when no samples are given.
        steps: K of the ceiling.
    """
    findings, vocab = _map(draft)
    if vocab is None:
        return findings
    findings += _integrity(draft, vocab)
    if replies is not None and len(replies):
        findings.append(_coverage(vocab, replies, steps))
    else:
        findings.append(Finding("V006", Severity.BLOCKED, "coverage is not known: no reply token is recorded", "samples",
                                remedy="give samples with replies marked in loss_mask"))  # fmt: skip
    if target is None:
        findings.append(Finding("V007", Severity.BLOCKED, "lm_head cannot be compared with the target's: no target can be read",
                                "target", remedy="give the target, or a slice of it"))  # fmt: skip
    elif "lm_head.weight" in draft:
        findings += _head_rows(draft, target, vocab)
    return findings


def _map(draft: Draft) -> tuple[list[Finding], VocabMap | None]:
    size, vocab = draft.arch.draft_vocab, draft.arch.vocab
    where = f"{draft.name}: d2t"
    if "d2t" not in draft:
        if size == vocab:
            return [Finding("V001", Severity.PASS, f"the draft has the target's whole vocabulary of {vocab}: no map is needed",
                            where)], draft.vocab_map("identity")  # fmt: skip
        return [Finding(
            "V001", Severity.FAIL, "d2t is missing: draft ids would be used as target ids", where,
            measured=f"Vd {size} of V {vocab}, no d2t", expected="d2t int64 [Vd]", evidence="read from the header",
            remedy="export the draft with d2t (and t2d); SGLang and vLLM say nothing and accept almost nothing",
        )], draft.vocab_map("identity")  # fmt: skip
    d2t = draft.weight("d2t")
    if len(d2t) != size:
        return [Finding(
            "V001", Severity.FAIL, f"d2t has {len(d2t)} entries for {size} rows of lm_head", where,
            measured=str(len(d2t)), expected=str(size), evidence="header",
            remedy="take d2t and lm_head from one export; the map was rebuilt without the head",
        )], None  # fmt: skip
    if draft.map_kind == "ids":
        words = "d2t is read as target ids, as GGUF holds them"
        return [Finding("V001", Severity.PASS, words, where, measured=f"{size} entries")], draft.vocab_map("ids")
    offsets = draft.vocab_map("offsets")
    if size < vocab and not bool(d2t.any()):
        return [Finding(
            "V001", Severity.FAIL, "d2t is zero throughout although the draft vocabulary is reduced", where,
            measured=f"all {size} offsets 0: draft id i would mean target id i", expected="offsets of a real map",
            evidence=f"Vd {size} < V {vocab}" + _rebuilt(draft),
            remedy="the mapping was never loaded into the trainer's buffer; take d2t from the training run's "
                   "vocab_mapping.pt, or rebuild it from t2d",
        )], offsets  # fmt: skip
    if _holds_ids(d2t, offsets):
        return [Finding(
            "V001", Severity.FAIL, "d2t holds target ids, not offsets", where,
            measured=f"{len(offsets.out_of_range)} of {size} values + position fall outside the vocabulary of {vocab}, "
                     "while the values themselves are distinct and in range",
            expected="offsets: target id = i + d2t[i]", evidence="both readings were tried on the whole tensor",
            remedy="subtract arange(Vd) from d2t, or load the file with a program that reads ids (llama.cpp)",
        )], draft.vocab_map("ids")  # fmt: skip
    kind = "identity: whole vocabulary" if size == vocab and not bool(d2t.any()) else "offsets: target id = i + d2t[i]"
    return [Finding("V001", Severity.PASS, f"d2t is read as {kind}", where, measured=f"{size} entries")], offsets


def _rebuilt(draft: Draft) -> str:
    if "t2d" not in draft:
        return ""
    marked = int(draft.weight("t2d").sum())
    return f"; t2d marks {marked} tokens" + (
        ", from which the map can be rebuilt" if marked == draft.arch.draft_vocab else ""
    )


def _holds_ids(d2t: Tensor, offsets: VocabMap) -> bool:
    if offsets.t2d_agrees:
        return False
    ids = d2t.long()
    sound = bool((ids >= 0).all() and (ids < offsets.vocab).all()) and len(ids.unique()) == len(ids)
    return sound and (len(offsets.out_of_range) > 0 or (offsets.t2d_agrees is False and _marks(offsets, ids)))


def _marks(offsets: VocabMap, ids: Tensor) -> bool:
    if offsets.t2d is None:
        return False
    marked = torch.nonzero(offsets.t2d.bool())[:, 0]
    return len(marked) == len(ids) and bool(torch.equal(marked, ids.sort().values))


def _integrity(draft: Draft, vocab: VocabMap) -> list[Finding]:
    where, findings = f"{draft.name}: d2t", []
    bad = vocab.out_of_range
    if len(bad):
        first = int(bad[0])
        findings.append(Finding(
            "V002", Severity.FAIL, f"{len(bad)} draft ids point outside the target's vocabulary", where,
            measured=f"draft id {first} → {int(vocab.hot_token_id[first])}", expected=f"0 … {vocab.vocab - 1}",
            evidence="every entry was checked", remedy="the map belongs to another tokenizer; engines read past their tables",
        ))  # fmt: skip
    else:
        findings.append(Finding("V002", Severity.PASS, f"all target ids lie in 0 … {vocab.vocab - 1}", where))
    if vocab.repeated:
        findings.append(Finding(
            "V003", Severity.FAIL, f"{vocab.repeated} draft ids share their target id with another one", where,
            measured=f"{vocab.size - vocab.repeated} distinct of {vocab.size}", expected="all distinct",
            evidence="every entry was checked", remedy="take d2t from the training run; this one was damaged or misread",
        ))  # fmt: skip
    else:
        findings.append(Finding("V003", Severity.PASS, "every target id appears once", where))
    agrees = vocab.t2d_agrees
    if agrees is False and vocab.t2d is not None:
        marked = vocab.t2d.bool()
        inside = vocab.hot_token_id[(vocab.hot_token_id >= 0) & (vocab.hot_token_id < len(marked))]
        findings.append(Finding(
            "V004", Severity.FAIL, "t2d and d2t name different tokens", f"{draft.name}: t2d",
            measured=f"t2d marks {int(marked.sum())}, of d2t's {vocab.size} it marks {int(marked[inside].sum())}",
            expected="the same set", evidence="every entry was checked",
            remedy="one of the two was rebuilt from other data: find which one lm_head's rows follow (V007), keep that",
        ))  # fmt: skip
    elif agrees is None:
        findings.append(Finding("V004", Severity.INFO, "no t2d in the file: no engine needs it", draft.name))
    else:
        findings.append(Finding("V004", Severity.PASS, "t2d marks exactly the tokens of d2t", draft.name))
    if vocab.ascending:
        findings.append(Finding("V005", Severity.PASS, "target ids rise with draft ids", where))
    else:
        findings.append(Finding(
            "V005", Severity.INFO if vocab.t2d is None else Severity.WARN, "target ids do not rise with draft ids", where,
            measured="unsorted", expected="sorted by every trainer but modelopt and Automodel (frequency order)",
            evidence="every entry was checked",
            remedy="never pair lm_head rows with where(t2d); use i + d2t[i]",
        ))  # fmt: skip
    run = vocab.leading_zeros
    if vocab.kind == "offsets" and vocab.size // 10 < run < vocab.size:
        most = run > vocab.size // 2
        findings.append(Finding(
            "V008", Severity.WARN if most else Severity.INFO, f"the first {run} draft ids are the first {run} target ids"
            + (f": padding of a small corpus, at most {vocab.size - run} slots come from data" if most else ""),
            where, measured=f"leading run of zero offsets {run} of {vocab.size}", expected="tokens chosen by frequency",
            evidence="SpecForge and speculators pad with the lowest unused ids",
            remedy="build the map from more text" if most
            else "byte and special tokens often stand first; padding of a small corpus looks the same",
        ))  # fmt: skip
    return findings


def _coverage(vocab: VocabMap, replies: Tensor, steps: int) -> Finding:
    inside = vocab.covers(replies)
    share = float(inside.float().mean())
    top = ceiling(share, steps)
    measured = f"{share:.4f} of {len(replies)} reply tokens; accept length at most about {top:.2f} at K={steps}"
    evidence = "a perfect draft, coverage of neighbouring tokens taken as independent, bonus included"
    if share >= 0.9:
        return Finding("V006", Severity.INFO, f"the draft vocabulary covers {share:.1%} of the recorded reply tokens",
                       "samples", measured, evidence=evidence)  # fmt: skip
    severity = Severity.LIMIT if share >= 0.5 else Severity.FAIL
    return Finding(
        "V006", severity, f"the draft vocabulary covers only {share:.1%} of the recorded reply tokens", "samples", measured,
        "above 95 % on text like the training text", evidence,
        "rebuild the draft vocabulary from text like this and retrain the head" if severity == Severity.LIMIT
        else "the map belongs to another tokenizer or language, or is misread",
    )  # fmt: skip


def _head_rows(draft: Draft, target: Target, vocab: VocabMap, most: int = 2048) -> list[Finding]:
    """Compares lm_head rows with the target's under the map and under a shuffled one (faults.md case 91)."""
    hot = vocab.hot_token_id
    usable = torch.nonzero((hot >= 0) & (hot < vocab.vocab))[:, 0]
    head = draft.weight("lm_head.weight")
    try:
        usable = usable[target.holds(hot[usable])]
        usable = usable[:: max(1, len(usable) // most)]
        if len(usable) < 16 or head.shape[1] != target.hidden:
            return []
        theirs = target.head(hot[usable]).float()
    except LabError as error:
        return [Finding("V007", Severity.BLOCKED, "lm_head cannot be compared with the target's rows", "target", error.line,
                        remedy="give the target's lm_head rows")]  # fmt: skip
    mine = head[usable].float()
    cosine = torch.nn.functional.cosine_similarity(mine, theirs, dim=-1).mean()
    other = torch.nn.functional.cosine_similarity(mine, theirs.roll(len(theirs) // 2, 0), dim=-1).mean()
    measured = f"mean cosine {cosine:.3f} under the map, {other:.3f} under another one"
    evidence = f"{len(usable)} rows"
    if cosine > 0.2 and cosine > other + 0.1:
        return [Finding("V007", Severity.PASS, "lm_head's rows follow the target's under this map: the map is verified from "
                        "weights alone", f"{draft.name}: lm_head.weight", measured, evidence=evidence)]  # fmt: skip
    return [Finding("V007", Severity.INFO, "lm_head was trained from scratch: its rows say nothing about the map",
                    f"{draft.name}: lm_head.weight", measured, evidence=evidence)]  # fmt: skip


def lost_tokens(vocab: VocabMap, samples: Mapping[str, Sample]) -> list[tuple[int, int]]:
    """Reply tokens outside the draft vocab over ``samples``: (token id, count), most frequent first."""
    replies = torch.cat([s.input_ids[s.loss_mask.bool()] for s in samples.values()])
    lost = replies[~vocab.covers(replies)]
    ids, counts = lost.unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)
    return [(int(ids[i]), int(counts[i])) for i in order]
