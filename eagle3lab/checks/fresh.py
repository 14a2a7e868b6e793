"""Weights that look as an initialiser leaves them, the draft's own table against the target's, odd config values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle3lab.dialects.common import is_latent
from eagle3lab.draft import Draft
from eagle3lab.errors import LabError
from eagle3lab.records import Finding, Severity
from eagle3lab.stats import Likeness, likeness
from eagle3lab.target import Target

CODES = {
    "W010": "tensors that look freshly initialised",
    "W011": "the draft's own embedding rows against the target's, block by block",
    "W012": "config values of another kind of file",
}

SIDE = 64
"""Rows and columns below which chance makes anything look trained, or fresh."""

ROWS = 1024
BLOCKS = 8
"""Parts of a vocabulary that are compared each for itself: the shards of up to eight tensor-parallel ranks."""

TYPED = ("hidden_act", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "use_cache")
"""Keys that typed loaders (TensorRT-LLM's export pipeline) want set; a null is refused, though the lab reads past it."""


def check(draft: Draft, target: Target | None) -> list[Finding]:
    """All findings about untrained weights, borrowed tables and odd config values."""
    return [*_fresh(draft), *_norms(draft), *_table(draft, target), *_config(draft)]


def _fresh(draft: Draft) -> list[Finding]:
    looked, fresh = 0, {}
    for name, matrix in _matrices(draft):
        looked += 1
        found = likeness(matrix)
        if found.random:
            fresh[name] = (found, matrix.shape[1])
    if not looked:
        return []
    if not fresh:
        return [Finding("W010", Severity.PASS, "no weight looks freshly initialised", measured=f"{looked} matrices: tails, spectra, "
                        "rows and columns", evidence=f"up to {ROWS} rows of each")]  # fmt: skip
    names = ", ".join(fresh)
    words = "; ".join(_as_drawn(name, *what) for name, what in list(fresh.items())[:6])
    every = len(fresh) == looked
    return [Finding(
        "W010", Severity.WARN, "every weight looks as an initialiser leaves it: this checkpoint was not trained" if every
        else f"{names} {'looks' if len(fresh) == 1 else 'look'} as an initialiser leaves {'it' if len(fresh) == 1 else 'them'}",
        names, words, "heavy tails, outlying singular values, rows and columns of different sizes, as in the other "
        f"{looked - len(fresh)}", f"{looked} matrices, up to {ROWS} rows of each, against independent random numbers",
        "it was missing when the checkpoint was loaded or saved, and made up: take it from the training run's own export; "
        "no config edit helps",
    )]  # fmt: skip


def _matrices(draft: Draft) -> Iterator[tuple[str, Tensor]]:
    """Matrices that are large enough to tell, some evenly spread rows of each."""
    for name in sorted(draft.stored):
        shape = draft.shape(name) or ()
        if len(shape) != 2 or min(min(shape), ROWS) < SIDE:
            continue
        rows = torch.linspace(0, shape[0] - 1, min(shape[0], ROWS)).round().long()
        try:
            matrix = draft.weight_rows(name, rows).float()
        except LabError:
            continue  # packed: W009 names it
        if bool(matrix.isfinite().all()) and bool(matrix.any()):
            yield name, matrix


def _as_drawn(name: str, found: Likeness, width: int) -> str:
    drawn = {"torch's Linear": 1 / math.sqrt(3 * width), "initializer_range 0.02": 0.02,
             "torch's Embedding": 1.0}  # fmt: skip
    like = next((f" ({words})" for words, std in drawn.items() if abs(found.std / std - 1) < 0.03), "")
    kind = "uniform" if found.kurtosis < 2.4 else "normal"
    return f"{name}: {kind}, std {found.std:.4g}{like}, spectrum {found.spectrum:.2f} of a random matrix's edge"


def _norms(draft: Draft) -> list[Finding]:
    """Norms of exactly one: a norm that was missing and made up, or trained in bfloat16 with steps too small for it."""
    norms = {n: draft.weight(n) for n in sorted(draft.stored) if "norm" in n and n.endswith(".weight")}
    ones = [n for n, w in norms.items() if bool((w.float() == 1).all())]
    if not ones:
        return []
    some = len(ones) < len(norms)
    return [Finding(
        "W010", Severity.WARN if some else Severity.UNDETERMINED,
        f"{', '.join(ones)}: all ones, and the other norms are not" if some else "every norm is all ones",
        ", ".join(ones), f"{len(ones)} of {len(norms)} norms exactly 1", "trained entries", "every entry was read",
        "loaders fill a missing norm with ones (speculators): take it from the training run. Training wholly in bfloat16 with "
        "small steps leaves ones too, since 1 ± 0.004 rounds back",
    )]  # fmt: skip


@dataclass(frozen=True)
class Block:
    """Rows of one part of the vocabulary, the draft's beside the target's.

    Attributes:
        low: first token id.
        high: last one.
        rows: rows compared.
        equal: share that is equal up to the coarser one's rounding.
        cosine: mean cosine.
    """

    low: int
    high: int
    rows: int
    equal: float
    cosine: float

    @property
    def kind(self) -> str:
        """``equal``, ``close``, ``mixed`` or ``unrelated``."""
        if self.equal > 0.99:
            return "equal"
        if self.cosine > 0.7:
            return "close"  # rows that training never met stay equal among them
        return "mixed" if self.equal > 0.05 else "unrelated" if self.cosine < 0.2 else "distant"


def compare_rows(mine: Tensor, theirs: Tensor, tokens: Tensor, vocab: int, blocks: int = BLOCKS) -> list[Block]:
    """Rows [N, H] of ``tokens`` [N], ascending, in equal parts of the vocabulary."""
    coarse = min((mine.dtype, theirs.dtype), key=lambda d: torch.finfo(d).bits)
    equal = (mine.to(coarse) == theirs.to(coarse)).all(1)
    cosines = torch.nn.functional.cosine_similarity(mine.float(), theirs.float(), dim=-1)
    out = []
    for i in range(blocks):
        here = (tokens >= i * vocab // blocks) & (tokens < (i + 1) * vocab // blocks)
        if int(here.sum()) >= 4:
            held = tokens[here]
            out.append(Block(int(held[0]), int(held[-1]), int(here.sum()), float(equal[here].float().mean()),
                             float(cosines[here].mean())))  # fmt: skip
    return out


def embedding_blocks(draft: Draft, target: Target | None, most: int = 2048) -> list[Block]:
    """The draft's own embedding rows beside the target's; [] where there is no table, or nothing to compare with."""
    shape = draft.shape("embed_tokens.weight")
    if shape is None or target is None or shape[1] != target.hidden:
        return []
    tokens = target.token_ids[target.token_ids < shape[0]]
    tokens = tokens[:: max(1, len(tokens) // most)]
    if not len(tokens):
        return []
    return compare_rows(
        draft.weight_rows("embed_tokens.weight", tokens), target.embedding(tokens), tokens, target.vocab
    )


def _table(draft: Draft, target: Target | None) -> list[Finding]:
    where = f"{draft.name}: embed_tokens.weight"
    try:
        blocks = embedding_blocks(draft, target)
    except LabError as error:
        return [Finding("W011", Severity.BLOCKED, "the draft's own embedding cannot be compared with the target's", where, error.line,
                        remedy="give the target's embedding rows")]  # fmt: skip
    if not blocks:
        return []
    kinds = {b.kind for b in blocks}
    words = ", ".join(f"{b.low}…{b.high} {b.kind} ({b.cosine:.2f})" for b in blocks)
    evidence = f"{sum(b.rows for b in blocks)} rows in {len(blocks)} blocks of the vocabulary, mean cosine in brackets"
    if kinds == {"equal"}:
        return [
            Finding(
                "W011", Severity.PASS, "its embed_tokens is the target's own table", where, words, evidence=evidence
            )
        ]
    if len(kinds) > 1 and kinds & {"unrelated", "mixed"}:
        return [Finding(
            "W011", Severity.WARN, "parts of its embed_tokens differ from the target's in other ways than the rest", where, words,
            "one kind throughout", evidence,
            "a shard of the table was lost or not loaded: export again. Tensor-parallel ranks that compare only their own rows "
            "would disagree on whether to share the target's (vllm#50280)",
        )]  # fmt: skip
    trained = (
        "was trained on from the target's" if kinds <= {"equal", "close", "distant"} else "is unrelated to the target's"
    )
    return [Finding(
        "W011", Severity.INFO, f"its embed_tokens {trained}", where, words, evidence=evidence,
        remedy="nothing if it was trained so; SGLang overwrites it with the target's all the same (F006 tells what that costs)",
    )]  # fmt: skip


def _config(draft: Draft) -> list[Finding]:
    out = [
        Finding("W012", Severity.WARN, title, f"{draft.files.config_file.name}: {key}", measured, expected, "config.json against the tensors",
                remedy)
        for title, key, measured, expected, remedy in _odd(draft)
    ]  # fmt: skip
    return out or [
        Finding("W012", Severity.PASS, "config.json describes this kind of file", draft.files.config_file.name)
    ]


def _odd(draft: Draft) -> Iterator[tuple[str, str, str, str, str]]:
    config = draft.raw_config
    if (method := _quantised(config)) and not _packed(draft):
        dtypes = sorted({info.dtype for info in draft.tensors.values() if len(info.shape) == 2})
        yield (f"quantization_config says {method}, the tensors are plain", "quantization_config", f"{', '.join(dtypes)}, no scales",
               "scales or packed weights, or no quantization_config",
               "remove quantization_config: it was copied from the target, and an engine would look for scales")  # fmt: skip
    kind = str(draft.config.get("model_type") or "")
    if "layers.0.self_attn.q_norm.weight" in draft and kind.startswith("llama") and not is_latent(draft.arch):
        yield ("per-head q and k norms in a draft of type llama", "model_type", f"{kind}, q_norm and k_norm are in the file",
               "qwen3, whose attention norms q and k",
               "set model_type (and architectures) to the block the draft was trained as: llama code drops these norms")  # fmt: skip
    tables = [t for t in (config, config.get("rope_scaling"), config.get("rope_parameters")) if isinstance(t, Mapping)]
    multimodal = sorted({k for t in tables for k in ("mrope_section", "mrope_interleaved") if k in t})
    if multimodal and "vl" not in kind and "omni" not in kind:
        yield ("RoPE fields of a multimodal target in a text draft", ", ".join(multimodal), "present", "absent in a text-only draft",
               "remove them: they were copied from the target, and vLLM refuses such a draft (speculators#598)")  # fmt: skip


def _quantised(config: Mapping[str, Any]) -> str:
    table = config.get("quantization_config")
    if not isinstance(table, Mapping):
        return ""
    return str(table.get("quant_method") or table.get("quant_algo") or "quantised")


def _packed(draft: Draft) -> bool:
    """Whether any tensor is stored in another form than plain floating-point numbers."""
    plain = all(info.dtype in ("BF16", "F16", "F32", "F64") for info in draft.tensors.values() if len(info.shape) == 2)
    return any(form.kind != "plain" for form in draft.files.forms.values()) or not plain
