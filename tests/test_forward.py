"""The rollout's options, chunks, memory, precision, and what it says of inputs that cannot be run."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from planted import Latent, Shape, Source, random_weights, write_draft
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eagle3lab.draft import Draft
from eagle3lab.errors import Blocked
from eagle3lab.forward import memory_bound, rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading, Rope
from eagle3lab.readout import UNASKED, best_of
from eagle3lab.records import Sample

READING = Reading(aux=(0, 1, 2), embedding="own")
SHAPES = {
    "one layer": Shape(),
    "two layers": Shape(layers=2, bias=True, qk_norm=True),
    "latent": Shape(latent=Latent(4, 4, 6), q_rank=7),
}


def make(folder, shape: Shape, length: int = 60, seed: int = 0) -> tuple[Model, Sample]:
    rng = np.random.default_rng(seed)
    write_draft(folder, random_weights(shape, rng), shape)
    model = Model(Draft(folder, shape.target_hidden, shape.vocab), Source.draw(shape, rng))
    tokens = torch.tensor(rng.integers(0, shape.vocab, length))
    states = {k: torch.tensor(rng.normal(size=(length, shape.target_hidden)), dtype=torch.float32) for k in range(3)}
    return model, Sample("s", "s.safetensors", tokens, torch.ones(length, dtype=torch.uint8), states)


def told(step) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(step).items() if value is not None}


@pytest.fixture(params=SHAPES)
def run(request, tmp_path):
    return make(tmp_path, SHAPES[request.param])


CHUNKS = ("attention.SCORES_BYTES", "readout.LOGITS_BYTES", "readout.PIECE_BYTES", "decoder.BLOCK_BYTES")


@pytest.mark.parametrize("window", [None, 4])
def test_a_text_in_chunks_is_the_text_in_one(run, window, monkeypatch):
    """Only the shapes of the products differ, so results agree to float32's rounding; whatever is counted is equal."""
    model, sample = run
    reading = READING.replace(window=window, rope=Rope(scaling=(("factor", 2.0), ("rope_type", "dynamic")), limit=20))
    keep = ("hidden", "logits", "entropy")
    whole = rollout(model, sample, reading, 4, topk=3, keep=keep)
    for name in CHUNKS:
        monkeypatch.setattr(f"eagle3lab.{name}", 30_000)
    monkeypatch.setattr("eagle3lab.attention.WIDTH", 8)
    chunked = rollout(model, sample, reading, 4, topk=3, keep=keep)
    for a, b in zip(whole.steps, chunked.steps, strict=True):
        assert told(a).keys() == told(b).keys() >= {"hidden", "logits", "entropy"}
        for name, value in told(a).items():
            other = told(b)[name]
            if value.is_floating_point():
                torch.testing.assert_close(other, value, atol=2e-5, rtol=0, equal_nan=True)
            elif name != "truth_rank" and name != "top_ids":  # near ties may fall either way
                assert torch.equal(value, other), name
        assert (a.top_ids[:, 0] == b.top_ids[:, 0]).float().mean() > 0.98


def test_the_same_run_gives_the_same_bits(run):
    model, sample = run
    first, second = (rollout(model, sample, READING, 3, topk=2, keep=("logits", "hidden")) for _ in range(2))
    for a, b in zip(first.steps, second.steps, strict=True):
        assert all(torch.equal(value.nan_to_num(), told(b)[name].nan_to_num()) for name, value in told(a).items())


def test_chosen_rows_of_several_layers(run):
    model, sample = run
    rows = torch.tensor([0, 1, 30, 57, 58])
    whole = rollout(model, sample, READING, 3, keep=("logits",))
    some = rollout(model, sample, READING, 3, rows=rows, keep=("logits",))
    for k, (a, b) in enumerate(zip(whole.steps, some.steps, strict=True)):
        assert b.rows.tolist() == [t for t in rows.tolist() if t < 59 - k]
        torch.testing.assert_close(b.logits, a.logits[b.rows], atol=1e-5, rtol=0)


def test_what_was_not_asked_for_is_not_given(run):
    model, sample = run
    asked = rollout(model, sample, READING, 3)
    bare = rollout(model, sample, READING, 3, probabilities=False)
    for a, b in zip(asked.steps, bare.steps, strict=True):
        assert torch.equal(a.top_ids, b.top_ids)
        assert torch.equal(a.correct, b.correct)
        assert torch.equal(a.covered, b.covered)
        assert 0 < int(a.covered.sum()) < len(a.rows) - 1
        assert b.top_logprobs.isnan().all()
        assert (b.truth_rank == UNASKED).all()
        assert a.entropy is a.logits is a.hidden is b.entropy is None


def test_probabilities_ranks_and_entropy_by_hand(run):
    model, sample = run
    hot = model.vocab_map(READING).hot_token_id.tolist()
    for step in rollout(model, sample, READING, 2, topk=4, keep=("logits", "entropy")).steps:
        said = step.logits.double().log_softmax(-1)
        order = said.argsort(-1, descending=True)
        for i, truth in enumerate(step.truth.tolist()):
            best = order[i, :4]
            assert step.top_ids[i].tolist() == [hot[j] for j in best.tolist()]
            torch.testing.assert_close(step.top_logprobs[i].double(), said[i, best], atol=1e-5, rtol=0)
            if truth in hot:
                place = hot.index(truth)
                assert step.truth_rank[i] == order[i].tolist().index(place)
                assert float(step.truth_logprob[i]) == pytest.approx(float(said[i, place]), abs=1e-5)
            elif truth >= 0:
                assert (float(step.truth_logprob[i]), int(step.truth_rank[i])) == (float("-inf"), -1)
            else:
                assert step.truth_logprob[i].isnan()
                assert step.truth_rank[i] == -1
        torch.testing.assert_close(step.entropy.double(), -(said.exp() * said).sum(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("fed", ["recorded", "self"])
def test_only_accepted_rows_lose_nothing(tmp_path, fed):
    """A text that the draft continues rightly now and then: rows that fell out are the ones that were wrong before."""
    model, sample = make(tmp_path, Shape(draft_vocab=64, vocab=64), length=200)
    said = [rollout(model, sample, READING, 1).steps[0].top_ids[:, 0]]
    tokens = sample.input_ids.clone()
    tokens[2:] = torch.where(torch.arange(198) % 3 > 0, said[0][:198], tokens[2:])  # right where the past is unchanged
    sample = dataclasses.replace(sample, input_ids=tokens)
    whole = rollout(model, sample, READING, 4, fed=fed)
    thin = rollout(model, sample, READING, 4, fed=fed, accepted_only=True, probabilities=False)
    alive = whole.steps[0].rows
    fell = 0
    for a, b in zip(whole.steps, thin.steps, strict=True):
        alive = alive[torch.isin(alive, a.rows)]
        assert torch.equal(b.rows, alive)
        places = torch.searchsorted(a.rows, alive)
        assert torch.equal(b.top_ids, a.top_ids[places])
        assert torch.equal(b.correct, a.correct[places])
        fell += len(alive) - int(b.correct.sum())
        alive = alive[b.correct]
    assert fell > 50
    assert len(thin.steps[1].rows) > 5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_lower_precision_stays_near_float32(run, dtype):
    """Eight or eleven bits of mantissa, about thirty roundings a step: within 5 % and 1 % of the largest logit."""
    model, sample = run
    exact = rollout(model, sample, READING, 3, keep=("logits",))
    rough = rollout(model, sample, READING.replace(dtype=dtype), 3, keep=("logits", "hidden"))
    near = 0.05 if dtype == "bfloat16" else 0.01
    for a, b in zip(exact.steps, rough.steps, strict=True):
        assert b.hidden.dtype == getattr(torch, dtype)
        gap = (a.logits - b.logits).abs()
        assert 0 < float(gap.median()) < near * float(a.logits.abs().max()) / 3
        assert float(gap.max()) < near * 3 * float(a.logits.abs().max())
    assert rough.nonfinite == 0


def test_float16_that_overflows_is_counted_not_hidden(tmp_path):
    model, sample = make(tmp_path, Shape())
    loud = dataclasses.replace(sample, states={k: v * 1e6 if k == 2 else v for k, v in sample.states.items()})
    assert rollout(model, loud, READING, 2).nonfinite == 0
    found = rollout(model, loud, READING.replace(dtype="float16"), 2)
    assert found.nonfinite == sum(len(step.rows) for step in found.steps)
    assert not found.steps[0].correct.any()


def test_a_nan_row_spoils_the_rows_that_see_it_and_no_other(run):
    model, sample = run
    states = {k: v.clone() for k, v in sample.states.items()}
    states[1][30] = float("nan")
    found = rollout(model, dataclasses.replace(sample, states=states), READING, 2, topk=2)
    for step in found.steps:
        assert torch.equal(step.top_ids[:, 0] < 0, step.rows >= 30)
        assert (step.truth_rank[30:] == -1).all()
        assert not step.correct[30:].any()


@pytest.mark.parametrize(
    ("length", "steps", "text"), [(0, 1, "no row to run"), (1, 1, "no row to run"), (4, 4, "too short")]
)
def test_texts_too_short_are_refused(tmp_path, length, steps, text):
    model, sample = make(tmp_path, Shape(), length)
    with pytest.raises(Blocked, match=text):
        rollout(model, sample, READING, steps)


def test_large_tables_are_read_row_by_row(tmp_path, monkeypatch):
    model, sample = make(tmp_path, Shape())
    mapped = rollout(model, sample, READING, 2, keep=("logits",))
    monkeypatch.setattr("eagle3lab.model.READ_ROWS", 0)
    monkeypatch.setattr(Draft, "weight", refuse_table(Draft.weight))
    read = rollout(Model(model.draft, model.target), sample, READING, 2, keep=("logits",))
    assert all(torch.equal(a.logits, b.logits) for a, b in zip(mapped.steps, read.steps, strict=True))


def refuse_table(weight):
    def checked(draft, name):
        assert name != "embed_tokens.weight"
        return weight(draft, name)

    return checked


@pytest.mark.parametrize("vocab", [120, 1024, 1500, 5000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_best_are_found_piece_by_piece(vocab, count):
    logits = torch.randn(40, vocab, generator=torch.Generator().manual_seed(vocab + count))
    logits[0, -1], logits[1, 0], logits[2, 1:] = 99.0, 99.0, float("-inf")
    logits[3, 7], logits[4, 9], logits[5] = float("nan"), float("inf"), float("-inf")
    logits[6, [50, 3, 90]] = 99.0
    ids, sound = best_of(logits, count)
    assert sound.tolist() == [i not in (3, 4, 5) for i in range(40)]
    for i in torch.nonzero(sound)[:, 0].tolist():
        assert torch.equal(logits[i, ids[i]], logits[i].topk(count).values)
        assert len(set(ids[i].tolist())) == count or i == 2
    assert count > 1 or ids[6].tolist() == [3]


class Peak(TorchDispatchMode):
    """Bytes of all tensors made inside, at most alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.users: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {id(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in given:
                storage = tensor.untyped_storage()
                self._add(storage.data_ptr(), storage.nbytes(), tensor)
        return out

    def _add(self, key: int, size: int, tensor: torch.Tensor) -> None:
        if key not in self.users:
            self.now += size
            self.most = max(self.most, self.now)
        self.users[key] = self.users.get(key, 0) + 1
        weakref.finalize(tensor, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.users[key] -= 1
        if not self.users[key]:
            del self.users[key]
            self.now -= size


@pytest.mark.parametrize("name", SHAPES)
def test_memory_stays_within_the_stated_bound(tmp_path, name, monkeypatch):
    """4,000 tokens: whole logits alone would be 63 MB a step, whole scores 250 MB; the bound is half of the former."""
    for constant, size in zip(CHUNKS, (1 << 20, 4 << 20, 1 << 20, 8 << 20), strict=True):
        monkeypatch.setattr(f"eagle3lab.{constant}", size)
    shape = dataclasses.replace(SHAPES[name], draft_vocab=4000, vocab=4000)
    model, sample = make(tmp_path, shape, 4000)
    short = dataclasses.replace(
        sample, input_ids=sample.input_ids[:10], states={k: v[:10] for k, v in sample.states.items()}
    )
    rollout(model, short, READING, 2)  # weights are read once
    gc.collect()
    with Peak() as peak:
        found = rollout(model, sample, READING, 3)
    result = sum(value.nbytes for step in found.steps for value in told(step).values())
    bound = memory_bound(model, sample, READING, 3)
    assert peak.most <= bound + 2 * result  # joined from blocks: for a moment twice
    assert peak.most >= bound / 4  # the bound says something
    assert bound < 32e6
