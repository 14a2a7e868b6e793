"""Draft trees: EAGLE's recorded ones, SGLang's rules on small cases, verification, the chain as a tree of topk 1."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from golden_cases import load
from naive import Naive
from planted import Plan, plant

from eagle3lab import open_case
from eagle3lab.acceptance import (
    Grower,
    Trees,
    accept,
    accept_trees,
    eagle_tree,
    evaluate_tree,
    evaluate_trees,
    sglang_tree,
)
from eagle3lab.errors import Blocked
from eagle3lab.forward import rollout
from eagle3lab.reading import Reading, Rope

GOLDEN = ["eagle_llama_basic", "eagle_llama_target96", "eagle_llama_theta500k"]


def as_served(case):
    """EAGLE's inference reads rope_theta, which its training ignores."""
    theta = float(case.model.draft.config.get("rope_theta", 10000.0))
    return case.reading.replace(rope=Rope(base=theta))


def cut(sample, length):
    return dataclasses.replace(
        sample,
        input_ids=sample.input_ids[:length],
        loss_mask=sample.loss_mask[:length],
        states={k: v[:length] for k, v in sample.states.items()},
    )


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize(("call", "row"), [("topk1", 30), ("topk2", 33)])
def test_eagles_recorded_trees(name, call, row):
    """topk1: aux of 31 positions and 32 tokens; topk2: three positions later, over the cache of the first call."""
    case = load(name)
    sample = cut(case.documents[0].sample, row + 2)
    shape = eagle_tree(depth=4, top_k=4, total_token=17)
    grower = Grower(case.model, [sample], as_served(case), shape, [torch.tensor([row])])
    trees = grower.grow(torch.tensor([row]))
    tokens = torch.cat([trees.root, trees.tokens[0]])
    assert tokens.tolist() == case.io[f"{call}.draft_tokens"][0].tolist()
    assert torch.equal(trees.mask()[0], case.io[f"{call}.tree_mask"][0, 0].bool())
    assert [0, *trees.depth[0].tolist()] == case.io[f"{call}.tree_position_ids"].tolist()


@pytest.mark.parametrize("name", GOLDEN)
def test_eagles_recorded_paths(name):
    """``retrieve_indices``: every leaf's path from the root, as EAGLE cuts the tree for verification."""
    case = load(name)
    sample = cut(case.documents[0].sample, 32)
    grower = Grower(case.model, [sample], as_served(case), eagle_tree(4, 4, 17), [torch.tensor([30])])
    trees = grower.grow(torch.tensor([30]))
    parents = [0, *(trees.parents[0] + 1).tolist()]
    paths = set()
    for leaf in sorted(set(range(len(parents))) - set(parents[1:])):
        path = [leaf]
        while path[-1]:
            path.append(parents[path[-1]])
        paths.add(tuple(reversed(path)))
    recorded = {tuple(n for n in row if n >= 0) for row in case.io["topk1.retrieve_indices"].tolist()}
    assert paths == recorded


class Oracle:
    """Both programs' trees grown one token at a time in float64 numpy, nodes in plain lists; no code is shared."""

    def __init__(self, case, reading):
        draft, sample = case.model.draft, case.documents[0].sample
        weights = {n: draft.weight(n).float().numpy() for n in draft.stored}
        table = case.io["embed_tokens_weight"].numpy()
        arch = draft.arch
        self.naive = Naive(weights, reading, arch.heads, arch.head_dim, arch.eps, table=table)
        self.sample, self.reading = sample, reading

    def prefix(self, row):
        """Caches of rows 0 … row, and what the draft says there."""
        caches, naive, sample = self.naive.caches(), self.naive, self.sample
        for t in range(row + 1):
            states = [sample.states[k][t].double().numpy() for k in self.reading.aux]
            hidden, logits = naive.feed(caches, int(sample.input_ids[t + 1]), naive.fuse(states), t)
        return caches, hidden, logits

    def grow(self, row, shape):
        """(token, parent's place or -1, probability) of each verified node, in the order in which they grew."""
        caches, hidden, logits = self.prefix(row)
        # a candidate: score, target id, its own number's parent
        nodes = [(score, token, -1) for score, token in self.best(logits, shape)]
        # a branch: the node it stands on, the state it goes on from, the caches it sees
        branches = [(i, hidden, copy.deepcopy(caches)) for i in range(shape.topk)]
        slots = [branch[2] for branch in branches]
        for level in range(1, shape.levels):
            children = []
            for slot, (node, state, seen) in enumerate(branches):
                seen = seen if shape.moved else slots[slot]
                state, logits = self.naive.feed(seen, nodes[node][1], state, row + level)
                children += [(nodes[node][0] * p, token, node, state, seen) for p, token in self.best(logits, shape)]
            first = len(nodes)
            nodes += [child[:3] for child in children]
            order = sorted(range(len(children)), key=lambda i: -children[i][0])[: shape.topk]
            branches = [(first + i, children[i][3], copy.deepcopy(children[i][4])) for i in order]
        kept = sorted(sorted(range(len(nodes)), key=lambda i: -nodes[i][0])[: shape.nodes])
        return [(nodes[i][1], kept.index(nodes[i][2]) if nodes[i][2] >= 0 else -1, nodes[i][0]) for i in kept]

    def best(self, logits, shape):
        odds = np.exp(logits - logits.max())
        odds = odds / odds.sum()
        return [(odds[i], self.naive.hot[i]) for i in np.argsort(-odds)[: shape.topk]]


SHAPES = [sglang_tree(3, 3, 6), sglang_tree(4, 2, 15), eagle_tree(3, 3, 9), eagle_tree(3, 2, 15)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.words)
@pytest.mark.parametrize("name", ["specforge_llama_basic", "eagle_llama_basic"])
def test_trees_against_one_token_at_a_time(name, shape):
    """SGLang's branches see what their own slots hold, EAGLE's what their ancestors wrote; both are asked for here."""
    case = load(name)
    oracle, rows = Oracle(case, case.reading), torch.tensor([7, 20, 29])
    trees = Grower(case.model, [case.documents[0].sample], case.reading, shape, [rows]).grow(rows)
    for i, row in enumerate(rows.tolist()):
        tokens, parents, odds = zip(*oracle.grow(row, shape), strict=True)
        assert trees.tokens[i].tolist() == list(tokens)
        assert trees.parents[i].tolist() == list(parents)
        mine = trees.scores[i].exp() if shape.logs else trees.scores[i]
        # float32 against float64: 1e-5 on a logit is 1e-5 of a probability, four of them multiply
        assert mine.tolist() == pytest.approx(list(odds), rel=1e-4)


def test_the_two_rules_of_keys_differ():
    """Else the test above would not tell them apart: by far more than its tolerance."""
    case = load("eagle_llama_basic")
    sample, rows = case.documents[0].sample, torch.arange(38)
    shape = sglang_tree(4, 2, 15)
    moved = dataclasses.replace(shape, moved=True)
    a, b = (Grower(case.model, [sample], case.reading, s, [rows]).grow(rows) for s in (shape, moved))
    assert ((a.scores - b.scores).abs() / b.scores).amax(1)[[7, 20, 29]].min() > 1e-3
    logs = Grower(case.model, [sample], case.reading, dataclasses.replace(moved, logs=True), [rows]).grow(rows)
    assert torch.equal(b.tokens, logs.tokens)
    torch.testing.assert_close(b.scores, logs.scores.exp())


@pytest.mark.parametrize("name", ["specforge_llama_basic", "speculators_llama_2layers"])
def test_one_branch_is_the_chain(name):
    case = load(name)
    sample = dataclasses.replace(case.documents[0].sample, loss_mask=mask(40, (5, 22), (26, 40)))
    chain = accept(rollout(case.model, sample, case.reading, 4), sample)
    for shape in (sglang_tree(4, 1, 99), eagle_tree(3, 1, 5)):
        assert (shape.nodes, shape.forwards) == (4, 4)
        (((part, broken),),) = accept_trees(case.model, [sample], case.reading, [shape], every_row=True)
        assert part.rounds == chain.rounds
        assert torch.equal(part.runs(), chain.runs())
        assert torch.equal(part.covered, chain.covered & chain.scored)
        assert part.counts.per_position == chain.counts.per_position
        assert part.counts.scored == chain.counts.scored
        assert broken == 0


def mask(length, *spans):
    out = torch.zeros(length, dtype=torch.uint8)
    for a, b in spans:
        out[a:b] = 1
    return out


def test_together_is_one_by_one(monkeypatch):
    """Samples of different lengths that walk abreast, in blocks of one row, visit what each visits alone."""
    case = load("eagle_llama_basic")
    whole = case.documents[0].sample
    samples = {
        "a": dataclasses.replace(whole, name="a", loss_mask=mask(40, (5, 22), (26, 40))),
        "b": dataclasses.replace(cut(whole, 30), name="b", loss_mask=mask(30, (3, 30))),
        "c": dataclasses.replace(cut(whole, 30), name="c", loss_mask=mask(30, (29, 30))),
    }
    shape = sglang_tree(3, 3, 6)
    found = evaluate_tree(case.model, samples, ["a", "b", "c"], case.reading, shape)
    assert list(found.parts) == ["a", "b"]
    assert "needs two tokens" in found.skipped["c"]
    monkeypatch.setattr("eagle3lab.decoder.BLOCK_BYTES", 1)
    monkeypatch.setattr("eagle3lab.acceptance.treewalk.TOGETHER", 0)
    (alone,) = evaluate_trees(case.model, samples, ["a", "b"], case.reading, [shape], every_row=True)
    for name in "ab":
        assert found.parts[name].rounds == alone.parts[name].rounds
        assert found.parts[name].counts.histogram == alone.parts[name].counts.histogram
        visited = [r.row for r in found.parts[name].rounds]
        assert found.parts[name].scored[:, 0].nonzero()[:, 0].tolist() == visited
        assert torch.equal(found.parts[name].runs()[visited], alone.parts[name].runs()[visited])
    with pytest.raises(Blocked, match="no sample can be run with SGLang's tree"):
        evaluate_tree(case.model, samples, ["c"], case.reading, shape)


SHALLOW = [sglang_tree(*s) for s in ((1, 3, 3), (2, 3, 5), (4, 3, 4), (4, 3, 8), (4, 3, 31))]


@pytest.mark.parametrize("shape", SHALLOW, ids=lambda s: s.words)
def test_a_tree_grown_deep_holds_the_shallow_ones(shape):
    case, rows = load("eagle_llama_basic"), torch.arange(38)
    whole, alone = (
        Grower(case.model, [case.documents[0].sample], case.reading, s, [rows]) for s in (SHALLOW[-1], shape)
    )
    part, own = next(whole.whole(rows)).best(shape), alone.grow(rows)
    assert torch.equal(part.tokens, own.tokens)
    assert torch.equal(part.parents, own.parents)
    assert torch.equal(part.depth, own.depth)
    torch.testing.assert_close(part.scores, own.scores)


def test_many_shapes_walk_as_each_alone(tmp_path):
    """A planted draft under a wrong reading: some drafts are right, so that the walks part."""
    case = open_case(plant(tmp_path, Plan(samples=2, length=40, trained=True, reading=Reading(aux=(2, 4, 5)))))
    reading = Reading(aux=(2, 4, 5), residual="post_norm")
    names = list(case.samples)
    found = evaluate_trees(case.model, case.samples, names, reading, SHALLOW)
    lengths = [one.counts.accept_length for one in found]
    assert len(set(lengths)) > 3
    assert lengths[2] <= lengths[3] <= lengths[4], "more nodes of the same tree hold what fewer do"
    for shape, one in zip(SHALLOW, found, strict=True):
        alone = evaluate_tree(case.model, case.samples, names, reading, shape)
        assert {n: p.rounds for n, p in one.parts.items()} == {n: p.rounds for n, p in alone.parts.items()}
        assert one.counts == alone.counts
    with pytest.raises(ValueError, match="one topk"):
        evaluate_trees(case.model, case.samples, names, reading, [sglang_tree(2, 3, 5), sglang_tree(2, 2, 5)])


def test_following_the_text_by_hand():
    """Root → 5, 6; 5 → 7, 8; 8 → 9. Text 5 8 9 goes all the way, 5 9 stops after one, 6 7 too: 7 is under 5."""
    row = Trees(
        rows=torch.tensor([0]), root=torch.tensor([1]), tokens=torch.tensor([[5, 6, 7, 8, 9]]),
        parents=torch.tensor([[-1, -1, 0, 0, 3]]), depth=torch.tensor([[1, 1, 2, 2, 3]]), scores=torch.zeros(1, 5),
    )  # fmt: skip
    for text, accepted in (
        ((5, 8, 9), 3),
        ((5, 9, 9), 1),
        ((6, 7, 9), 1),
        ((4, 5, 8), 0),
        ((5, -1, -1), 1),
        ((5, 8, 1), 2),
    ):
        assert int(row.follow(torch.tensor([text]))[0]) == accepted, text
    assert row.mask()[0].long().tolist() == [
        [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0], [1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 1],
    ]  # fmt: skip


def test_nothing_is_accepted_from_logits_that_are_not_finite():
    case = load("eagle_llama_basic")
    sample = cut(case.documents[0].sample, 30)
    bad = {k: v.clone() for k, v in sample.states.items()}
    bad[int(case.reading.aux[0])][20] = float("nan")
    sample = dataclasses.replace(sample, states=bad, loss_mask=mask(30, (12, 30)))
    (((part, broken),),) = accept_trees(case.model, [sample], case.reading, [sglang_tree(3, 3, 6)])
    after = [r for r in part.rounds if r.row >= 20]
    assert after and all(r.accepted == 0 for r in after)
    assert broken == len(after)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sglang_tree(2, 2, 8), "verifies 7 nodes and has only 6 candidates"),
        (lambda: sglang_tree(0, 4, 8), "must be 1 or more"),
        (lambda: eagle_tree(3, 3, 1), "must be 1 or more"),
    ],
)
def test_trees_that_cannot_be(make, words):
    with pytest.raises(Blocked, match=words):
        make()


def test_more_branches_than_tokens():
    case = load("eagle_llama_basic")
    with pytest.raises(Blocked, match="topk 200 is more than the draft vocabulary's 120"):
        Grower(case.model, [case.documents[0].sample], case.reading, sglang_tree(2, 200, 8), [torch.tensor([3])])
