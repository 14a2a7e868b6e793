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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from eagle3lab import decoder, rope
from eagle3lab.attention import Pair, Prefix
from eagle3lab.decoder import Chains, Decoder
from eagle3lab.errors import Blocked
from eagle3lab.model import Model
from eagle3lab.norms import rms_norm
from eagle3lab.reading import Reading
from eagle3lab.readout import Readout
from eagle3lab.records import Sample
from eagle3lab.trace import trace


@dataclass(frozen=True)
class TreeShape:
    """How a tree grows.

    Attributes:
        program: whose rules.
        levels: drafts in a row at most.
        topk: branches a level, and children a node.
        nodes: nodes verified, the root (the last sure token) not counted.
        logs: scores are summed log-probabilities, else multiplied probabilities.
        moved: a branch sees its ancestors' keys, else those its own slots hold.
        words: the settings in the program's own words.
    """

    program: str
    levels: int
    topk: int
    nodes: int
    logs: bool
    moved: bool
    words: str

    @property
    def candidates(self) -> int:
        """Nodes among which the verified ones are chosen."""
        return self.topk + (self.levels - 1) * self.topk**2

    @property
    def forwards(self) -> int:
        """Draft steps a row."""
        return 1 + (self.levels - 1) * self.topk


def eagle_tree(depth: int = 7, top_k: int = 10, total_token: int = 60) -> TreeShape:
    """EAGLE's dynamic tree by its own parameters; ``total_token`` counts the root, ``depth`` not the first level."""
    words = f"depth {depth}, top_k {top_k}, total_token {total_token}"
    return _checked(TreeShape("EAGLE", depth + 1, top_k, total_token - 1, True, True, words))


def sglang_tree(num_steps: int = 5, topk: int = 4, num_draft_tokens: int = 8) -> TreeShape:
    """SGLang's tree by its own flags, by reading; ``num_draft_tokens`` counts the root, topk 1 sets it to steps + 1."""
    nodes = num_steps if topk == 1 else num_draft_tokens - 1
    words = f"steps {num_steps}, topk {topk}, draft tokens {nodes + 1}"
    return _checked(TreeShape("SGLang", num_steps, topk, nodes, False, False, words))


def _checked(shape: TreeShape) -> TreeShape:
    if min(shape.levels, shape.topk, shape.nodes) < 1:
        raise Blocked(f"{shape.program}'s tree ({shape.words}): every level, branch and node count must be 1 or more")
    if shape.nodes > shape.candidates:
        raise Blocked(
            f"{shape.program}'s tree ({shape.words}) verifies {shape.nodes} nodes and has only {shape.candidates} "
            "candidates, topk + (levels - 1) · topk²: the program stops here too; ask for fewer draft tokens"
        )
    return shape


@dataclass
class Trees:
    """The trees of R rows, M nodes each, a node after its parent.

    Attributes:
        rows: int64 [R].
        root: int64 [R], the sure token that each tree hangs from, a target id.
        tokens: int64 [R, M], target ids; -1 where the logits are not finite.
        parents: int64 [R, M], place of the parent among the nodes, -1 for the root.
        depth: int64 [R, M], 1 for the root's children.
        scores: float32 [R, M], as the program ranks them.
    """

    rows: Tensor
    root: Tensor
    tokens: Tensor
    parents: Tensor
    depth: Tensor
    scores: Tensor

    def mask(self) -> Tensor:
        """Bool [R, M+1, M+1]: who sees whom in verification, the root first; each sees itself and its ancestors."""
        count, nodes = self.tokens.shape
        seen = torch.zeros(count, nodes + 1, nodes + 1, dtype=torch.bool)
        seen[:, :, 0] = True
        each = torch.arange(count)
        for i in range(nodes):  # parents come first, so their lines are ready
            seen[:, i + 1] |= seen[each, self.parents[:, i] + 1]
            seen[:, i + 1, i + 1] = True
        return seen

    def follow(self, truth: Tensor) -> Tensor:
        """How far the recorded text leads down each tree.

        Args:
            truth: int64 [R, D], the tokens after the root, -1 where the text ends.

        Returns:
            int64 [R]: drafts accepted by greedy verification.
        """
        at = torch.full((len(self.rows),), -1)  # the root
        alive, accepted = torch.ones_like(at, dtype=torch.bool), torch.zeros_like(at)
        for step in truth.T:
            hit = (self.parents == at[:, None]) & (self.tokens == step[:, None]) & (step >= 0)[:, None]
            alive &= hit.any(1)
            at = torch.where(alive, hit.long().argmax(1), at)
            accepted += alive
        return accepted


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
        """The trees of ``rows`` [r] of ``texts`` [r] (the first when None): announced ones, ascending within a text."""
        at = rows if texts is None else rows + self.offsets[texts]
        with torch.inference_mode():
            place = torch.searchsorted(self.rows, at)
            parts = [self._some(at[some], place[some]) for some in torch.arange(len(rows)).split(self.block)]
        whole = parts[0] if len(parts) == 1 else Trees(*(torch.cat(s) for s in zip(*map(_fields, parts), strict=True)))
        whole.rows = rows
        return whole

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
        return self._keep(rows.cpu(), root.cpu(), torch.cat(tokens, 1), torch.cat(parents, 1), torch.cat(ranks, 1))

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

    def _keep(self, rows: Tensor, root: Tensor, tokens: Tensor, parents: Tensor, scores: Tensor) -> Trees:
        """The best ``nodes`` of all candidates [r, C], in the order in which they grew."""
        best = scores.nan_to_num(float("-inf")).topk(self.shape.nodes, -1).indices.sort(-1).values  # [r, M]
        above = parents.gather(1, best)
        # a parent scores at least as high as its child, so it is kept too; both programs look it up like this
        place = torch.where(above < 0, -1, torch.searchsorted(best, above))
        k = self.shape.topk
        depth = torch.where(best < k, 1, 2 + (best - k) // (k * k))
        return Trees(rows, root, tokens.gather(1, best), place, depth, scores.gather(1, best))


def _fields(trees: Trees) -> tuple[Tensor, ...]:
    return trees.rows, trees.root, trees.tokens, trees.parents, trees.depth, trees.scores
