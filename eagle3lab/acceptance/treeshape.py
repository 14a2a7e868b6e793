"""The shapes of draft trees in the programs' own words, and trees as numbers: who hangs from whom, what is verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eagle3lab.errors import Blocked


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
    """The trees of R rows, M nodes each, a node after its parent: all candidates, or those that are verified.

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

    def best(self, shape: TreeShape) -> Trees:
        """What ``shape`` verifies of these candidates [R, C]: the best nodes of its levels, in growing order.

        Candidates of fewer levels are the first of those of more, so one tree grown deep holds all that are less deep.
        """
        scores = self.scores[:, : shape.candidates]
        chosen = scores.nan_to_num(float("-inf")).topk(shape.nodes, -1).indices.sort(-1).values  # [R, M]
        above = self.parents.gather(1, chosen)
        # a parent scores at least as high as its child, so it is kept too; both programs look it up like this
        place = torch.where(above < 0, -1, torch.searchsorted(chosen, above))
        tokens, depth = self.tokens.gather(1, chosen), self.depth.gather(1, chosen)
        return Trees(self.rows, self.root, tokens, place, depth, scores.gather(1, chosen))

    @staticmethod
    def together(parts: Sequence[Trees]) -> Trees:
        """Trees of the same shape in one."""
        return Trees(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Trees)))
