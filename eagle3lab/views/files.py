"""The files as rows: provenance, dimensions, vocabulary, samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eagle3lab import verdict
from eagle3lab.case import Case
from eagle3lab.checks.vocab import lost_tokens
from eagle3lab.errors import LabError
from eagle3lab.reading import Reading
from eagle3lab.records import Sample
from eagle3lab.samples import Samples
from eagle3lab.stats import cosine, histogram
from eagle3lab.vocab import VocabMap, ceiling


def _counted(samples: Samples) -> str:
    """How many samples there are, and how many of them are read."""
    words = f"{len(samples)} samples, {len(samples.headline)} in the headline"
    return f"{words}, evenly spread over {len(samples.headline) + samples.left_out}" if samples.left_out else words


def provenance(case: Case) -> list[tuple[str, str]]:
    """Where everything came from: paths relative to the case, sizes, hashes, versions."""
    config = verdict.inputs([case.draft.files.config_file], case.root)[0]
    size = sum(info.nbytes for info in case.draft.tensors.values())
    rows = [
        ("case", f"{case.file.path.name}, found {case.found}"),
        ("draft", f"{case.draft.name}: {len(case.draft.tensors)} tensors, {size / 1e6:.1f} MB, looks like "
                  f"{case.draft.arch.program}; config.json sha256 {config['sha256'][:12]}"),
    ]  # fmt: skip
    if case.target and case.file.target:
        held = f"{len(case.target.token_ids)} of {case.target.vocab} rows" if case.target.sliced else "whole"
        shape = f"{case.target.layers} blocks, Ht {case.target.hidden}"
        rows.append(("target", f"{case.target.name}: {case.target.model_type}, {shape}, {held}"))
    if case.file.samples is not None:
        rows.append(("samples", _counted(case.samples)))
    if case.run:
        rows.append(
            (
                "run",
                f"{case.run.name}: {case.run.engine} {case.run.version} {case.run.runner}, K={case.run.steps}",
            )
        )
    if case.file.accuracy:
        program = case.file.program or "unknown"
        rows.append(("training", f"{program}: accuracy {', '.join(f'{a:.3f}' for a in case.file.accuracy)}"))
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in verdict.versions().items())))
    return rows


def dims(case: Case) -> dict[str, Any]:
    """The draft's dimensions and conventions for its picture, under the configured reading."""
    a, reading = case.draft.arch, case.configured.reading
    out: dict[str, Any] = {
        "H": a.hidden,
        "Ht": a.target_hidden,
        "A": a.aux,
        "heads": a.heads,
        "kv_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "I": a.intermediate,
        "V": a.vocab,
        "Vd": a.draft_vocab,
        "layers": a.layers,
        "fc": "fc.weight" in a.tensors,
        "own_embedding": "embed_tokens.weight" in a.tensors,
        "own_head": "lm_head.weight" in a.tensors,
    }
    if reading:
        out |= {
            "aux": list(reading.aux),
            "aux_norm": reading.aux_norm,
            "residual": reading.residual,
            "feedback": reading.feedback,
        }
    return out


def readings(case: Case) -> dict[str, Reading | None]:
    """The configured reading, and that of every known engine; None where one refuses."""
    return {"configured": case.configured.reading} | {name: found.reading for name, found in case.everyone.items()}


def reading_of(case: Case) -> Reading:
    """The configured reading; where there is none, that of the program the checkpoint looks like."""
    return case.configured.reading or case.plainest or case.fitted


def rows_of(case: Case, name: str = "") -> int:
    """Rows of a sample, T-1; 1 where the case has no samples, since shapes can be traced without."""
    return case.sample(name).length - 1 if case.file.samples is not None else 1


def histograms(case: Case, names: Sequence[str] = ()) -> dict[str, Any]:
    """Value histograms of the named matrices (all two-dimensional tensors when none is named)."""
    chosen = names or [n for n, info in case.draft.tensors.items() if len(info.shape) == 2]
    return {name: histogram(case.draft.tensors.read(name)) for name in chosen}


def norm_weights(case: Case) -> dict[str, Any]:
    """The norms' weight vectors by canonical name."""
    return {name: case.draft.weight(name).float() for name in sorted(case.draft.stored) if "norm" in name}


def vocab_rows(case: Case, start: int = 0, count: int = 12) -> list[dict[str, Any]]:
    """Draft ids from ``start`` on: offset, target id, token text."""
    vocab = _map(case)
    ids = range(max(0, min(start, vocab.size - 1)), min(vocab.size, start + count))
    texts = texts_of(case, [int(vocab.hot_token_id[i]) for i in ids])
    offsets = vocab.d2t if vocab.d2t is not None else torch.zeros(vocab.size, dtype=torch.long)
    return [
        {"draft_id": i, "d2t": int(offsets[i]), "target_id": int(vocab.hot_token_id[i]), "text": text}
        for i, text in zip(ids, texts, strict=True)
    ]


def texts_of(case: Case, tokens: Sequence[int]) -> list[str]:
    """Token texts, ``<17>`` without a tokenizer."""
    return case.target.text(tokens) if case.target else [f"<{t}>" for t in tokens]


def _map(case: Case) -> VocabMap:
    kind = case.configured.reading.vocab_map if case.configured.reading else case.draft.map_kind
    return case.draft.vocab_map(kind if "d2t" in case.draft or kind != "offsets" else "identity")


def hot_token_id(case: Case) -> torch.Tensor:
    """int64 [Vd]: ``d2t + arange(Vd)`` as the configured reading takes it."""
    return _map(case).hot_token_id


def coverage(case: Case) -> dict[str, tuple[int, int]]:
    """Reply tokens inside the draft vocab, and all of them, by headline sample."""
    vocab, out = _map(case), {}
    for name in case.samples.headline:
        sample = readable(case, name)
        if sample is not None:
            replies = sample.input_ids[sample.loss_mask.bool()]
            out[name] = (int(vocab.covers(replies).sum()), len(replies))
    return out


def covered(case: Case) -> dict[str, int]:
    """Reply tokens inside the draft vocab, and all of them, over the headline samples."""
    shares = coverage(case).values()
    return {"covered": sum(hits for hits, _ in shares), "replies": sum(total for _, total in shares)}


def ceiling_of(case: Case) -> float | None:
    """The accept length that coverage allows at the case's K, None without reply tokens."""
    counts = covered(case)
    return ceiling(counts["covered"] / counts["replies"], case.steps) if counts["replies"] else None


def lost(case: Case, most: int = 20) -> list[dict[str, Any]]:
    """The reply tokens that the draft cannot say, most frequent first."""
    samples = {n: s for n in case.samples.headline if (s := readable(case, n)) is not None}
    found = lost_tokens(_map(case), samples)[:most]
    total = sum(int(s.loss_mask.bool().sum()) for s in samples.values())
    texts = texts_of(case, [token for token, _ in found])
    return [{"token": token, "text": text, "count": count, "share": count / total}
            for (token, count), text in zip(found, texts, strict=True)]  # fmt: skip


def readable(case: Case, name: str) -> Sample | None:
    """The sample, None when its file is faulty (the samples' check says why)."""
    try:
        return case.samples[name]
    except LabError:
        return None


def sample_rows(case: Case) -> list[dict[str, Any]]:
    """What each sample holds."""
    rows = []
    for name in case.samples.looked_at:
        sample = readable(case, name)
        if sample is None:
            continue
        first = next(iter(sample.states.values()))
        rows.append({
            "name": name, "tokens": sample.length, "reply": int(sample.loss_mask.bool().sum()),
            "states": list(sample.boundaries), "dtype": str(first.dtype).removeprefix("torch."),
            "bytes": sum(s.nbytes for s in sample.states.values()), "final_norm": sample.final_norm,
            "headline": name in case.samples.headline, "writer": sample.writer,
        })  # fmt: skip
    return rows


def cosines(case: Case, name: str = "") -> tuple[list[int], list[list[float]]]:
    """Boundaries and the mean cosine of each pair over a sample's rows (row 0, an attention sink, left out)."""
    sample = case.sample(name)
    held = list(sample.boundaries)
    states = [sample.states[k][1:].float() for k in held]
    return held, [[float(cosine(a, b).mean()) for b in states] for a in states]


def rms_of(case: Case, name: str = "") -> dict[int, torch.Tensor]:
    """RMS of each position by boundary, of one sample."""
    sample = case.sample(name)
    return {k: case.survey.rms[sample.name, k] for k in sample.boundaries}


def evidence(case: Case) -> list[tuple[str, str]]:
    """The tests by evidence as rows: form of the last state, boundary 0, rows that are not sound."""
    found = case.survey
    forms = {0: "without the final norm", 1: "with the final norm once", 2: "with it twice"}
    rows = [
        (f"last state {words}", f"{hits} of {n} reply tokens are the largest logit" if n else "not recorded")
        for norms, words in forms.items()
        for hits, n in [found.lens.get(norms, (0, 0))]
    ]
    errors = found.embedding_error.values()
    rows.append(
        (
            "boundary 0 against the embedding",
            f"largest relative difference {max(errors):.1e}" if errors else "not known",
        )
    )
    bad = {name: sum(counts) for name, counts in _bad_rows(case).items()}
    rows.append(("rows with NaN, infinities or zeros", ", ".join(f"{n}: {c}" for n, c in bad.items() if c) or "none"))
    return rows


def _bad_rows(case: Case) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for (name, _), counts in case.survey.bad_rows.items():
        out.setdefault(name, []).append(sum(counts))
    return out


def mask(case: Case, name: str = "") -> dict[str, list[str]]:
    """The sample's tokens and whether each is prompt or reply."""
    sample = case.sample(name)
    kinds = ["reply" if m else "prompt" for m in sample.loss_mask.tolist()]
    return {"tokens": texts_of(case, sample.input_ids.tolist()), "kinds": kinds,
            "titles": [f"position {t}, token {i}" for t, i in enumerate(sample.input_ids.tolist())]}  # fmt: skip
