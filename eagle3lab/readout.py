"""What the draft says at one step: logits in chunks of rows, reduced to what is asked; they never exist whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LOGITS_BYTES = 64 * 2**20
"""Bound on logits held at once; a product of fewer rows would spend its time on repacking ``lm_head``."""

PIECE_BYTES = 4 * 2**20
"""Logits reduced at once: few enough to stay in a core's cache while they are gone over several times."""

BLOCK = 128
"""Width of the pieces of the vocabulary among which the best tokens are looked for."""

UNASKED = -2
"""``truth_rank`` where ranks were not asked for."""


@dataclass
class Step:
    """What the draft says at one step, row by row.

    Attributes:
        rows: int64 [R], positions t, ascending.
        tokens: int64 [R], target id of the token fed in.
        top_ids: int64 [R, m], target ids of the m best drafts, best first; -1 where the logits are not finite.
        top_logprobs: float32 [R, m], log-softmax over the draft vocab; NaN where probabilities were not asked for.
        truth: int64 [R], the recorded token to be predicted, -1 past the end.
        truth_logprob: float32 [R], its log-probability; -inf outside the draft vocab, NaN past the end or not asked.
        truth_rank: int64 [R], 0 for the best; -1 outside the draft vocab or past the end, -2 not asked.
        entropy: float32 [R], of the draft's distribution in nats, when kept.
        hidden: [R, H] state handed on, when kept.
        logits: float32 [R, Vd], when kept.
    """

    rows: Tensor
    tokens: Tensor
    top_ids: Tensor
    top_logprobs: Tensor
    truth: Tensor
    truth_logprob: Tensor
    truth_rank: Tensor
    entropy: Tensor | None = None
    hidden: Tensor | None = None
    logits: Tensor | None = None

    @property
    def correct(self) -> Tensor:
        """Bool [R]: best draft equals the recorded token (False past the end)."""
        return (self.top_ids[:, 0] == self.truth) & (self.truth >= 0)

    @property
    def covered(self) -> Tensor:
        """Bool [R]: the recorded token is in the draft vocab (False past the end), whatever was asked for."""
        return (self.truth >= 0) & ~self.truth_logprob.isneginf()


def join(steps: Sequence[Step]) -> Step:
    """The same step of several blocks of rows, in their order."""
    if len(steps) == 1:
        return steps[0]
    fields: dict[str, Any] = {name: [getattr(s, name) for s in steps] for name in vars(steps[0])}
    joined: dict[str, Any] = {n: None if parts[0] is None else torch.cat(parts) for n, parts in fields.items()}
    return Step(**joined)


@dataclass(frozen=True)
class Readout:
    """What is read off the logits.

    Attributes:
        head: ``lm_head`` [Vd, H] in the dtype of the arithmetic.
        hot: int64 [Vd], target id of each draft id.
        scale: factor on the logits.
        topk: drafts kept per row.
        probabilities: whether log-probabilities and ranks are wanted; else only the best drafts are looked for.
        entropy: whether the distribution's entropy is.
        logits: whether the logits themselves are.
    """

    head: Tensor
    hot: Tensor
    scale: float = 1.0
    topk: int = 1
    probabilities: bool = True
    entropy: bool = False
    logits: bool = False

    def __call__(self, states: Tensor, rows: Tensor, tokens: Tensor, truth: Tensor, goal: Tensor) -> Step:
        """Reads one step off.

        Args:
            states: [R, H], what ``lm_head`` takes.
            rows: int64 [R], positions.
            tokens: int64 [R], tokens fed in.
            truth: int64 [R], the recorded tokens, -1 past the end.
            goal: int64 [R], their draft ids, -1 where they have none.
        """
        count, vocab = len(states), len(self.head)
        best = min(self.topk, vocab)
        top = states.new_full((count, best), -1, dtype=torch.long)
        top_logprobs = states.new_full((count, best), float("nan"), dtype=torch.float32)
        logprob = states.new_full((count,), float("nan"), dtype=torch.float32)
        rank = states.new_full((count,), UNASKED, dtype=torch.long)
        entropy = states.new_empty((count,), dtype=torch.float32) if self.entropy else None
        kept = states.new_empty((count, vocab), dtype=torch.float32) if self.logits else None
        size = max(1, LOGITS_BYTES // (4 * vocab))
        size = size // 64 * 64 or size
        buffer = states.new_empty(min(size, count), vocab)  # one for all chunks: fresh pages cost time
        piece = max(1, PIECE_BYTES // (4 * vocab))
        for start in range(0, count, size):
            x = states[start : start + size]
            chunk = torch.mm(x, self.head.t(), out=buffer[: len(x)])  # [r, Vd]
            for i in range(0, len(x), piece):
                at = slice(start + i, min(start + i + piece, start + len(x)))
                logits = chunk[i : i + piece].float()
                logits = logits if self.scale == 1.0 else logits * self.scale
                self._reduce(logits, goal[at], top[at], top_logprobs[at], logprob[at], rank[at],
                             None if entropy is None else entropy[at])  # fmt: skip
                if kept is not None:
                    kept[at] = logits
        logprob.masked_fill_((goal < 0) & (truth >= 0), float("-inf"))
        return Step(
            rows.cpu(), tokens.cpu(), top.cpu(), top_logprobs.cpu(), truth.cpu(), logprob.cpu(), rank.cpu(),
            None if entropy is None else entropy.cpu(), None, None if kept is None else kept.cpu(),
        )  # fmt: skip

    def _reduce(self, logits: Tensor, goal: Tensor, top: Tensor, top_logprobs: Tensor, logprob: Tensor, rank: Tensor,
                entropy: Tensor | None) -> None:  # fmt: skip
        """Logits [r, Vd] into the other tensors, which are written to."""
        ids, sound = best_of(logits, top.shape[1])
        top.copy_(torch.where(sound[:, None], self.hot[ids], -1))
        if not self.probabilities and entropy is None:
            return
        work = torch.log_softmax(logits, -1)  # one pass less than logsumexp, and vectorised throughout
        if entropy is not None:
            entropy.copy_(torch.special.entr(work.exp()).sum(-1))
        if not self.probabilities:
            return
        known, place = goal >= 0, goal.clamp(min=0)[:, None]
        top_logprobs.copy_(work.gather(-1, ids))
        logprob.copy_(torch.where(known, work.gather(-1, place)[:, 0], float("nan")))
        # counted as float32, exact up to 2^24 and far quicker than a sum of booleans
        above = torch.gt(logits, logits.gather(-1, place), out=work).sum(-1)
        rank.copy_(torch.where(known & sound, above.long(), -1))


def best_of(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row of [r, Vd], best first, and which rows are sound.

    The best tokens lie in the pieces of the vocabulary with the largest maxima, so only these are sorted: torch's
    own ``topk`` copies every row. Of equal logits the lowest id comes first at ``count`` 1, as in an engine's argmax.

    Returns:
        draft ids int64 [r, count], and bool [r]: no logit is NaN or +inf, and not all are -inf.
    """
    vocab = logits.shape[-1]
    whole = vocab // BLOCK
    if whole < 4 * count:
        return (logits.topk(count, -1).indices if count > 1 else logits.argmax(-1, keepdim=True),
                logits.amax(-1).isfinite())  # fmt: skip
    peaks = logits[:, : whole * BLOCK].unflatten(-1, (whole, BLOCK)).amax(-1)  # [r, Vd/128]
    if whole * BLOCK < vocab:
        peaks = torch.cat((peaks, logits[:, whole * BLOCK :].amax(-1, keepdim=True)), -1)
    sound = peaks.amax(-1).isfinite()
    pieces = peaks.topk(count, -1).indices if count > 1 else peaks.argmax(-1, keepdim=True)  # [r, count]
    columns = (pieces[..., None] * BLOCK + torch.arange(BLOCK, device=logits.device)).flatten(1)  # [r, count*128]
    last = columns.clamp(max=vocab - 1)
    values = logits.gather(-1, last).masked_fill_(columns != last, float("-inf"))
    order = values.topk(count, -1).indices if count > 1 else values.argmax(-1, keepdim=True)
    return last.gather(-1, order), sound
