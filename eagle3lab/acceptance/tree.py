"""Draft trees as EAGLE and SGLang grow them: one pass over the levels, all rows asked for at once.

Both keep the ``topk`` best of ``topk²`` children a level by cumulative probability, go on from these, and keep of all
candidates the best few for verification. They differ in three things, each a field of `TreeShape`:

- the score: EAGLE adds log-probabilities, SGLang multiplies probabilities (the same order, rounding apart);
- the levels: EAGLE's ``depth`` counts the draft's steps after the first, SGLang's ``num_steps`` the levels;
- the keys a branch sees. EAGLE masks by ancestor. SGLang gives each of the ``topk`` branches its own cache slots and
  does not move them when a branch goes on from another's node: it sees what its own number wrote before.

EAGLE: ``eagle/model/cnets.py Model.topK_genrate`` at cb7e0841, equal to its recorded trees (tests/golden/eagle_*).
SGLang: by reading ``speculative/spec_utils.py select_top_k_tokens``, ``generate_draft_decode_kv_indices`` and
``eagle_utils.py organize_draft_results`` (engines.md 7.1); nobody ran it for this lab.

Cost: 1 + (levels - 1) · topk draft steps a row, against K of a chain. Memory holds the keys of the texts given, and one
block of rows with their branches' keys: ``decoder.BLOCK_BYTES``, or a single row's branches where these are more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3lab import decoder, rope
from eagle3lab.acceptance.treeshape import Trees, TreeShape
from eagle3lab.attention import Pair, Prefix
from eagle3lab.decoder import Chains, Decoder
from eagle3lab.errors import Blocked
from eagle3lab.model import Model
from eagle3lab.norms import rms_norm
from eagle3lab.reading import Reading
from eagle3lab.readout import Readout
from eagle3lab.records import Sample
from eagle3lab.trace import trace


class _Shelf:
    """The step-0 keys of several texts as one layer's prefix: each query looks into its own text."""

    def __init__(self, prefixes: Sequence[Prefix], offsets: Tensor):
        self.prefixes, self.offsets = prefixes, offsets

    def attend(self, q: Tensor, rows: Tensor, chain: Sequence[Pair], window: int | None, scale: float) -> Tensor:
        """As `Prefix.attend`, ``rows`` counted over all texts."""
        if len(self.prefixes) == 1:
            return self.prefixes[0].attend(q, rows, chain, window, scale)
        edges = torch.searchsorted(rows, self.offsets).tolist()
        out = []
        for text, (a, b) in enumerate(pairwise([*edges, len(rows)])):
            if a < b:
                own = [(key[:, a:b], value[:, a:b]) for key, value in chain]
                local = rows[a:b] - self.offsets[text]
                out.append(self.prefixes[text].attend(q[:, a:b], local, own, window, scale))
        return torch.cat(out)  # [R, nh*dv]


class Grower:
    """Grows trees from rows of some samples under one reading, in one batch; each text's keys are computed once.

    Args:
        model: the draft's weights.
        samples: recorded tokens and states.
        reading: how the draft is run.
        shape: how the trees grow.
        rows: int64 [R] for each sample, ascending: the rows that will be asked for.

    Raises:
        BadShape: widths do not fit; the text explains.
        Blocked: no row to run, or a state, embedding or head is not in the files given.
    """

    def __init__(
        self, model: Model, samples: Sequence[Sample], reading: Reading, shape: TreeShape, rows: Sequence[Tensor]
    ):
        self.model, self.reading, self.shape = model, reading, shape
        self.dtype: torch.dtype = getattr(torch, reading.dtype)
        if shape.topk > model.draft.arch.draft_vocab:
            vocab = model.draft.arch.draft_vocab
            raise Blocked(f"topk {shape.topk} is more than the draft vocabulary's {vocab} tokens")
        with torch.inference_mode():
            hot = model.vocab_map(reading).hot_token_id.to(model.device)
            self.read = Readout(model.head(reading, self.dtype), hot, reading.logit_scale, shape.topk)
            texts = [self._text(sample, chosen) for sample, chosen in zip(samples, rows, strict=True)]
            # all texts lie in one line of rows, each with room for branches that stand behind its end
            sizes = torch.tensor([0, *(len(turn[0]) for _, turn, _ in texts)])
            self.offsets = sizes.cumsum(0)[:-1]  # [S]
            self.rows = torch.cat([chosen + start for chosen, start in zip(rows, self.offsets, strict=True)])
            self.tokens = torch.cat([F.pad(s.input_ids.long()[reading.shift :], (0, shape.levels)) for s in samples])
            self.entry = torch.cat([entry for *_, entry in texts])  # [R, H]
            self.decoder = texts[0][0]
            cos, sin = zip(*(turn for _, turn, _ in texts), strict=True)
            self.decoder.turn = (torch.cat(cos), torch.cat(sin))
            for i, layer in enumerate(self.decoder.layers):
                prefixes = [one.layers[i].prefix for one, *_ in texts]
                layer.prefix = cast(Prefix, _Shelf(prefixes, self.offsets.to(model.device)))
        self.block = max(decoder.block_rows(model, reading, shape.levels) // shape.topk, 1)

    def _text(self, sample: Sample, rows: Tensor) -> tuple[Decoder, Pair, Tensor]:
        """One text's decoder with its keys, its angles, and what the last layer takes at ``rows``."""
        model, reading = self.model, self.reading
        count = sample.length - reading.shift
        if not len(rows) or int(rows[-1]) >= count:
            raise Blocked(f"{sample.path}: no row to run: {sample.length} tokens, shift {reading.shift}")
        trace(model.draft, reading, count, sample.width)
        states = model.aux_states(sample, reading.aux)
        tokens = sample.input_ids.long()[reading.shift :].to(model.device)  # [T0]
        one = Decoder(model, reading, count, self.shape.levels, self.dtype)
        entry = one.prefill(
            lambda block: model.fuse([s[block] for s in states], reading, self.dtype),
            lambda block: one.embed(tokens[block]),
            rows.to(model.device),
        )  # [R, H]
        reach = torch.arange(count + self.shape.levels, device=model.device)
        return one, rope.table(reading.rope, one.layers[0].heads.rotated, reach, count), entry

    def grow(self, rows: Tensor, texts: Tensor | None = None) -> Trees:
        """The verified trees of ``rows`` [r] of ``texts`` [r], as `whole` takes them."""
        parts = [part.best(self.shape) for part in self.whole(rows, texts)]
        return replace(Trees.together(parts), rows=rows)

    def whole(self, rows: Tensor, texts: Tensor | None = None) -> Iterator[Trees]:
        """All candidates of ``rows`` [r] of ``texts`` [r] (the first when None), block after block, in their order.

        The rows are announced ones, ascending within a text.
        """
        at = rows if texts is None else rows + self.offsets[texts]
        place = torch.searchsorted(self.rows, at)
        for some in torch.arange(len(rows)).split(self.block):
            with torch.inference_mode():
                yield self._some(at[some], place[some])

    def _some(self, rows: Tensor, place: Tensor) -> Trees:
        shape, k = self.shape, self.shape.topk
        rows = rows.to(self.model.device)
        chains = Chains(rows, self.entry[place.to(self.model.device)], len(self.decoder.layers))
        root = self.tokens.to(rows.device)[rows]
        ids, scores = self._step(chains, self.decoder.embed(root), root, 0)  # [r, k] each
        count = len(rows)
        tokens, ranks = [ids], [scores]
        parents = [torch.full_like(ids, -1)]
        branch, live, total = torch.arange(k).expand(count, k), ids, scores  # candidate of each branch, token, score
        chains.rows, chains.hidden = rows.repeat_interleave(k), chains.hidden.repeat_interleave(k, 0)  # [r*k, H]
        for level in range(1, shape.levels):
            fed = live.flatten().clamp(min=0).to(self.model.device)
            ids, own = self._step(chains, self.decoder.embed(fed), fed, level)  # [r*k, k]
            ids, own = ids.view(count, k, k), own.view(count, k, k)
            grown = total[..., None] + own if shape.logs else total[..., None] * own  # [r, k, k]
            tokens.append(ids.flatten(1))
            ranks.append(grown.flatten(1))
            parents.append(branch.repeat_interleave(k, 1))
            total, chosen = grown.flatten(1).nan_to_num(float("-inf")).topk(k, -1)  # [r, k]
            live = tokens[-1].gather(1, chosen)
            branch = k + (level - 1) * k * k + chosen
            if level + 1 < shape.levels:
                self._go_on(chains, chosen // k)
        sizes = [k] + [k * k] * (shape.levels - 1)
        depth = torch.arange(1, shape.levels + 1).repeat_interleave(torch.tensor(sizes)).expand(count, -1)
        return Trees(rows.cpu(), root.cpu(), torch.cat(tokens, 1), torch.cat(parents, 1), depth, torch.cat(ranks, 1))

    def _step(self, chains: Chains, embedded: Tensor, tokens: Tensor, level: int) -> tuple[Tensor, Tensor]:
        """One draft step of all branches → the children's target ids and their own scores, each [N, topk]."""
        last = self.decoder.step(chains, embedded, level)  # [N, H]
        normed = rms_norm(last, self.model.weight("norm.weight", self.dtype), self.model.draft.arch.eps)
        chains.hidden = normed if self.reading.feedback == "post_norm" else last
        none = torch.full_like(tokens, -1)
        said = self.read(normed if self.reading.head_norm == "applied" else last, chains.rows, tokens, none, none)
        return said.top_ids, said.top_logprobs if self.shape.logs else said.top_logprobs.exp()

    def _go_on(self, chains: Chains, parent: Tensor) -> None:
        """Each branch goes on from branch ``parent`` [r, k]; its keys come along where the program moves them."""
        first = torch.arange(len(parent))[:, None] * self.shape.topk
        origin = (first + parent).flatten().to(self.model.device)  # [r*k]
        chains.hidden = chains.hidden[origin]
        if self.shape.moved:
            chains.keys = [[(key[:, origin], value[:, origin]) for key, value in chain] for chain in chains.keys]
