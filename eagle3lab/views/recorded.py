"""What checks of maps and recordings look at, as rows: rival maps, parts of the vocabulary, lags, spans, bytes."""

from __future__ import annotations

from typing import Any

import torch

from eagle3lab.case import Case
from eagle3lab.checks import fresh, maps, sizes
from eagle3lab.errors import LabError
from eagle3lab.survey.alignment import LAGS
from eagle3lab.views.files import readable, texts_of

SPANS = 24
"""Reply spans that the table lists."""


def rival_maps(case: Case) -> list[dict[str, Any]]:
    """Maps beside the checkpoint's own: file, tokens, set overlap, row agreement (NaN: not comparable)."""
    vocab = case.draft.vocab_map(case.draft.map_kind)
    found = maps.rivals(vocab, maps.folders(case.draft, case.attempt("samples")))
    rows = [
        {"file": f"{case.draft.name} (its own)", "tokens": vocab.size, "overlap": 1.0, "agreement": 1.0, "fault": ""}
    ]
    return rows + [
        {"file": r.file, "tokens": r.rows, "overlap": r.overlap, "agreement": r.agreement, "fault": r.fault}
        for r in found
    ]


def coverage_by_kind(case: Case) -> dict[str, tuple[int, int]]:
    """Kind of text → (reply tokens that the draft can say, all of them), over the headline."""
    samples = [s for s in (readable(case, name) for name in case.samples.headline) if s is not None]
    return maps.kinds(case.draft.vocab_map(case.draft.map_kind), case.target, samples)


def table_blocks(case: Case) -> list[dict[str, Any]]:
    """The draft's embedding and head rows beside the target's, in parts of the vocabulary."""
    target, out = case.attempt("target"), []
    vocab = case.draft.vocab_map(case.draft.map_kind)
    for name, blocks in (
        ("embed_tokens", fresh.embedding_blocks(case.draft, target)),
        ("lm_head", maps.head_blocks(case.draft, target, vocab)),
    ):
        out += [{"table": name, "low": b.low, "high": b.high, "rows": b.rows, "equal": b.equal, "cosine": b.cosine}
                for b in blocks]  # fmt: skip
    return out


def lags(case: Case) -> dict[int, tuple[int, int]]:
    """Lag → (next tokens that the last state predicts there, rows), over all samples; {} where it cannot be told."""
    found = case.survey.picks
    if found is None:
        return {}
    out = {}
    for lag in range(-LAGS, LAGS + 1):
        hits = [pick.hits(lag) for pick in found.by_sample.values()]
        out[lag] = (int(sum(float(h.sum()) for h in hits)), sum(map(len, hits)))
    return out


def agreement(case: Case) -> list[dict[str, Any]]:
    """By sample: next tokens that its last state predicts, its best lag, and where boundary 0 stands."""
    found, rows = case.survey, []
    for name in found.writers:
        pick = found.picks.by_sample.get(name) if found.picks else None
        hits = pick.hits() if pick else torch.empty(0)
        rows.append({
            "sample": name, "hits": int(hits.sum()), "rows": len(hits),
            "lag": pick.best_lag if pick and len(hits) else None,
            "embedding": found.embedding_error.get(name),
            "neighbours": min((v for (n, _), v in found.centred.items() if n == name), default=None),
        })  # fmt: skip
    return rows


def spans(case: Case, most: int = SPANS) -> list[dict[str, Any]]:
    """Reply spans with the tokens at their edges as text, the headline's first."""
    headline = set(case.samples.headline)
    chosen = sorted(case.survey.spans, key=lambda s: s.sample not in headline)[:most]
    return [
        {
            "sample": s.sample, "start": s.start, "end": s.end, "share": (s.end - s.start) / s.length,
            "first": "".join(_texts(case, s.first)), "last": "".join(_texts(case, s.last)),
            "following": "".join(_texts(case, (s.following,))) if s.following >= 0 else "",
        }
        for s in chosen
    ]  # fmt: skip


def _texts(case: Case, tokens: tuple[int, ...]) -> list[str]:
    try:
        return texts_of(case, list(tokens))
    except LabError:
        return [f"<{t}>" for t in tokens]


def plan(case: Case) -> list[tuple[str, str]]:
    """Bytes of this recording's states: a token, a conversation, and many."""
    planned = sizes.plan(case.survey)
    words = {"token": "a token", "conversation": "a conversation, on average"}
    return [(words.get(k, f"{k} conversations like these"), sizes.bytes_shown(size)) for k, size in planned.items()]
