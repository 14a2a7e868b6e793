"""The draft, run standalone under any Reading: K steps from every position of a sample at once.

Row t joins the target's states of position t with the token at t + shift (shift 1: the next token) and, at step k,
predicts the token at t + 1 + shift + k. Its RoPE position is t + k. Attention at step k sees the step-0 keys of rows
up to t and the chain's own keys of steps 1 … k: exactly what decoding with a KV cache computes, one chain a row
(SpecForge's and EAGLE's training-time test, speculators' mask, vLLM's and SGLang's draft steps agree on it).

The text is gone over twice: first all rows' keys and values are computed, block by block; then chains start from the
rows asked for, block by block, each block through all its steps. Only keys and values ever exist for all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle3lab import attention, decoder, readout
from eagle3lab.decoder import Chains, Decoder, Tap
from eagle3lab.errors import Blocked
from eagle3lab.model import Model
from eagle3lab.norms import rms_norm
from eagle3lab.reading import Reading
from eagle3lab.readout import Readout, Step
from eagle3lab.records import Sample
from eagle3lab.trace import trace


@dataclass
class Rollout:
    """K steps from the rows of one sample under one reading."""

    sample: str
    reading: Reading
    fed: str
    steps: list[Step] = field(default_factory=list)

    @property
    def nonfinite(self) -> int:
        """Rows, over all steps, whose logits hold NaN or infinity."""
        return sum(int((s.top_ids[:, 0] < 0).sum()) for s in self.steps)


def rollout(
    model: Model,
    sample: Sample,
    reading: Reading,
    steps: int,
    *,
    rows: Tensor | None = None,
    fed: str = "recorded",
    topk: int = 1,
    keep: tuple[str, ...] = (),
    fused: Tensor | None = None,
    probabilities: bool = True,
    accepted_only: bool = False,
    tap: Tap | None = None,
    cache: torch.dtype | None = None,
) -> Rollout:
    """K draft steps from every row of a sample.

    Beyond the weights, the recorded states and the result it needs at most `memory_bound` bytes: keys, values and
    two vectors of width H for each of the T rows, and a fixed sum for everything that is worked on in blocks.

    Args:
        model: the draft's weights.
        sample: recorded tokens and states.
        reading: how the draft is run.
        steps: K.
        rows: rows to follow, ascending; all T-1 when None. Keys always come from all rows.
        fed: ``recorded`` feeds the recorded tokens (training's way), ``self`` the draft's own (the engine's).
        topk: drafts kept per row.
        keep: any of ``hidden``, ``logits``, ``entropy``.
        fused: the fused states [T-shift, H] where the caller has them already (search does).
        probabilities: False leaves log-probabilities and ranks out; see `Step`.
        accepted_only: follow, at step k, only the rows whose drafts were right at every step before: all that the
            accept length depends on. Step k then holds just these rows, perhaps none.
        tap: shown what each module gives, as ``stepK.`` and its name (``fc``, ``layers.0.self_attn``, ``norm`` …);
            in blocks where the text is long.
        cache: number format that keys and values are kept in, fp8 without scales (vLLM's ``--kv-cache-dtype fp8`` and
            SGLang's, where a checkpoint brings none); None for that of the arithmetic.

    Returns:
        the rollout; step k holds the given rows up to T-1-shift-k.

    Raises:
        BadShape: widths do not fit; the text explains.
        Blocked: a state, embedding or head is not in the files given.
    """
    run = _Run(model, sample, reading, steps, fed, keep, accepted_only, tap)
    run.cache = cache
    chosen = run.everything if rows is None else rows.to(model.device)
    chosen = chosen[chosen < run.count]
    if not len(chosen):
        raise Blocked(f"{sample.path}: no row to run: {sample.length} tokens, shift {reading.shift}")
    if fused is None:
        trace(model.draft, reading, run.count, sample.width)
    state = run.fuse(fused)
    with torch.inference_mode():
        read = Readout(model.head(reading, run.dtype), run.vocab.hot_token_id.to(model.device), reading.logit_scale,
                       topk, probabilities, "entropy" in keep, "logits" in keep)  # fmt: skip
        run.prepare()
        entry = run.decoder.prefill(state, lambda block: run.embedded[run.place[block]], chosen)
        pieces = [run.chains(chosen[block], entry[block], read) for block in run.decoder.blocks(len(chosen))]
    result = Rollout(sample.name, reading, fed, [readout.join(same) for same in zip(*pieces, strict=True)])
    if not accepted_only and any(not len(step.rows) for step in result.steps):
        raise Blocked("the sample is too short: no row is left at this step; choose fewer steps or a longer sample")
    return result


class _Run:
    """What stays the same while one rollout goes through its blocks."""

    def __init__(self, model: Model, sample: Sample, reading: Reading, steps: int, fed: str, keep: tuple[str, ...],
                 accepted_only: bool, tap: Tap | None):  # fmt: skip
        self.model, self.sample, self.reading, self.steps = model, sample, reading, steps
        self.fed, self.keep, self.accepted_only = fed, keep, accepted_only
        self.tap, self.now = tap, 0
        self.cache: torch.dtype | None = None
        self.dtype: torch.dtype = getattr(torch, reading.dtype)
        self.count = max(sample.length - reading.shift, 0)  # rows at step 0
        self.everything = torch.arange(self.count, device=model.device)
        self.tokens = sample.input_ids.long().to(model.device)
        self.vocab = model.vocab_map(reading)
        self.drafts = self.vocab.to_draft(self.tokens.cpu()).to(model.device)  # [T], draft id of each recorded token

    def prepare(self) -> None:
        """The recorded tokens' normed embeddings, each token once [U, H], and where row t finds its own."""
        self.decoder = Decoder(self.model, self.reading, self.count, self.steps, self.dtype)
        for layer in self.decoder.layers:
            layer.cache = self.cache
            if self.tap:
                layer.tap = self._show
        # step k of row t joins token t + shift + k, so every later token is joined by some row
        unique, self.place = self.tokens[self.reading.shift :].unique(return_inverse=True)
        parts = [self.decoder.embed(unique[block]) for block in self.decoder.blocks(len(unique))]
        self.embedded = torch.cat(parts)

    def fuse(self, fused: Tensor | None) -> Callable[[slice], Tensor]:
        """Rows → fused states [r, H]."""
        if fused is not None:
            return lambda block: fused[block]
        states = self.model.aux_states(self.sample, self.reading.aux)

        def state(block: slice) -> Tensor:
            out = self.model.fuse([s[block] for s in states], self.reading, self.dtype)
            self._show("fc", out)
            return out

        return state

    def _show(self, name: str, value: Tensor) -> None:
        if self.tap:
            self.tap(f"step{self.now}.{name}", value)

    def chains(self, rows: Tensor, entry: Tensor, read: Readout) -> list[Step]:
        """All steps of the chains that start at ``rows`` [R] from the last layer's inputs [R, H]."""
        chains = Chains(rows, entry, len(self.decoder.layers))
        out: list[Step] = []
        for k in range(self.steps):
            if k:
                alive = chains.rows < self.count - k
                if self.accepted_only:
                    alive &= out[-1].correct.to(alive.device)
                own = out[-1].top_ids[:, 0].to(alive.device)[alive].clamp(min=0)
                chains.keep(alive)
            at = chains.rows
            if k and self.fed == "self":
                tokens, embedded = own, self.decoder.embed(own) if len(own) else self.embedded[:0]
            else:
                tokens, embedded = self.tokens[at + self.reading.shift + k], self.embedded[self.place[at + k]]
            self.now = k
            last = self.decoder.step(chains, embedded, k)  # [R, H]
            normed = rms_norm(last, self.model.weight("norm.weight", self.dtype), self.model.draft.arch.eps)
            chains.hidden = normed if self.reading.feedback == "post_norm" else last
            places = at + 1 + self.reading.shift + k
            step = read(normed if self.reading.head_norm == "applied" else last, at, tokens,
                        _recorded(self.tokens, places), _recorded(self.drafts, places))  # fmt: skip
            step.hidden = chains.hidden if "hidden" in self.keep else None
            self._show("norm", normed)
            out.append(step)
        return out


def _recorded(values: Tensor, places: Tensor) -> Tensor:
    """``values`` at ``places``, -1 past the end."""
    inside = places < len(values)
    return torch.where(inside, values[places.clamp(max=len(values) - 1)], torch.full_like(places, -1))


def memory_bound(model: Model, sample: Sample, reading: Reading, steps: int) -> int:
    """Bytes that `rollout` needs at most, beyond weights, recorded states and result (`model.NEAR` is of the weights).

    T · (L · (keys + values of a layer) + 2H) · b for what all rows keep (b bytes a number), plus three times
    ``SCORES_BYTES`` or one row's scores of all heads where these are more, plus ``LOGITS_BYTES`` and four times
    ``PIECE_BYTES``, or one row's logits where these are more, plus the block: `decoder.BLOCK_BYTES`, or less where the
    text has fewer rows. A kept logit or hidden state is part of the result.
    """
    a, rows = model.draft.arch, max(sample.length - reading.shift, 1)
    block = min(rows, decoder.block_rows(model, reading, steps)) * decoder.row_bytes(model, reading, steps)
    scores = 3 * max(attention.SCORES_BYTES, 4 * a.heads * (rows + steps))
    logits = max(readout.LOGITS_BYTES, 4 * a.draft_vocab) + 4 * max(readout.PIECE_BYTES, 4 * a.draft_vocab)
    logits = min(logits, 5 * 4 * a.draft_vocab * rows)
    return rows * decoder.prefix_bytes(model, reading) + block + scores + logits
