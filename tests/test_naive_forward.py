"""The forward against the naive reference: golden drafts and drafts of random shapes under random readings.

Tolerance: the lab computes in float32 (eps 6e-8), the reference in float64. A step is about ten products and sums of at
most 200 terms, five steps feed each other: relative errors stay under 200 · 10 · 5 · 6e-8 = 6e-4 in the worst case and
near the square root of that in practice. 1e-4 of the largest value of the row is asked for, argmax where the best two
are further apart than that.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from golden_cases import CASES, load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import Latent, Naive, final_state
from planted import Shape, Source, random_weights, write_draft

from eagle3lab.draft import Draft
from eagle3lab.errors import Blocked
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.reading import FINAL, Reading, Rope
from eagle3lab.records import Sample

CLOSE = 1e-4


def agree(result, chains) -> int:
    """Every row of every step; returns how many rows had a clear argmax."""
    clear = 0
    assert len(result.steps) == len(chains)
    for k, (step, said) in enumerate(zip(result.steps, chains, strict=True)):
        assert step.rows.tolist() == [s.row for s in said]
        assert step.tokens.tolist() == [s.token for s in said]
        for what, mine, theirs in (
            ("hidden", step.hidden, np.stack([s.hidden for s in said])),
            ("logits", step.logits, np.stack([s.logits for s in said])),
        ):
            scale = np.abs(theirs).max(-1, keepdims=True)
            worst = (np.abs(mine.double().numpy() - theirs) / scale).max()
            assert worst <= CLOSE, f"step {k}: {what} off by {worst:.1e} of its size"
        for best, s in zip(step.top_ids[:, 0].tolist(), said, strict=True):
            first, second = np.sort(s.logits)[-1:-3:-1]
            if first - second > CLOSE * np.abs(s.logits).max():
                assert best == s.best
                clear += 1
    return clear


@pytest.mark.parametrize("name", CASES)
def test_golden_drafts(name):
    """The reference itself is judged here too: the golden arrays are what the real programs computed."""
    case = load(name)
    draft = case.model.draft
    weights = {n: draft.weight(n).float().numpy() for n in draft.stored}
    table = case.io["embed_tokens_weight"].numpy() if "embed_tokens_weight" in case.io else None
    naive = Naive(weights, case.reading, draft.arch.heads, draft.arch.head_dim, draft.arch.eps, table=table)
    document = case.documents[0]
    states = {k: v.float().numpy() for k, v in document.sample.states.items()}
    chains = naive.chains(document.sample.input_ids.tolist(), states, 3)
    for k, said in enumerate(chains):
        recorded = case.recorded(document, k, "logits", len(said)).numpy()
        assert np.abs(np.stack([s.logits for s in said]) - recorded).max() <= 1e-5
    result = rollout(case.model, document.sample, case.reading, 3, keep=("hidden", "logits"))
    agree(result, chains)


class Rounded(Naive):
    """Keeps what a cache of ``kept`` gives back: the nearest number it has, its largest beyond that."""

    kept = torch.float8_e4m3fn

    def _plain(self, x, p, position):
        q, k, v = super()._plain(x, p, position)
        most = torch.finfo(self.kept).max
        k, v = (torch.tensor(a).float().clamp(-most, most).to(self.kept).double().numpy() for a in (k, v))
        return q, k, v


@pytest.mark.parametrize("kept", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("name", ["specforge_llama_basic", "speculators_llama_2layers"])
def test_a_cache_in_fp8(name, kept):
    case = load(name)
    draft, document = case.model.draft, case.documents[0]
    weights = {n: draft.weight(n).float().numpy() for n in draft.stored}
    table = case.io["embed_tokens_weight"].numpy() if "embed_tokens_weight" in case.io else None
    naive = Rounded(weights, case.reading, draft.arch.heads, draft.arch.head_dim, draft.arch.eps, table=table)
    naive.kept = kept
    states = {k: v.float().numpy() for k, v in document.sample.states.items()}
    chains = naive.chains(document.sample.input_ids.tolist(), states, 3)
    keep = ("hidden", "logits")
    agree(rollout(case.model, document.sample, case.reading, 3, keep=keep, cache=kept), chains)
    plain = rollout(case.model, document.sample, case.reading, 3, keep=keep)
    with pytest.raises(AssertionError, match="off by"):
        agree(plain, chains)


SCALINGS = (
    {},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    # an old context of 64 puts fast, middle and slow frequencies into all three branches of the rule
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 0.9,
     "beta_fast": 16.0, "beta_slow": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 0.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.3},
)  # fmt: skip


@st.composite
def shapes(draw) -> Shape:
    kv_heads, group = draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2)]))
    latent = draw(st.sampled_from([None, None, Latent(nope=4, rope=8, value=6), Latent(nope=6, rope=4, value=4)]))
    return Shape(
        latent=latent,
        q_rank=draw(st.sampled_from([None, 5])),
        kv_rank=draw(st.sampled_from([3, 6])),
        hidden=draw(st.sampled_from([12, 16])),
        target_hidden=draw(st.sampled_from([8, 12])),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([4, 8])),
        intermediate=draw(st.sampled_from([10, 24])),
        layers=draw(st.sampled_from([1, 1, 2, 3])),
        aux=draw(st.integers(1, 4)),
        vocab=(vocab := draw(st.sampled_from([20, 31]))),
        draft_vocab=draw(st.sampled_from([12, vocab])),
        bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
    )


@st.composite
def readings(draw, shape: Shape) -> Reading:
    skippable = shape.hidden == shape.target_hidden and shape.aux == 1
    boundaries = st.lists(st.integers(0, 5), min_size=shape.aux, max_size=shape.aux).map(tuple)
    aux = draw(st.one_of(boundaries, st.just((FINAL,))) if shape.aux == 1 else boundaries)
    dropped = [*shape.biases, *shape.qk_norms]
    # at least one pair is rotated: d = 4 and a share of one half leave a single pair
    partial, scaling = draw(st.sampled_from([1.0, 0.5])), draw(st.sampled_from(SCALINGS))
    width = (shape.latent.rope if shape.latent else shape.head_dim) * partial
    rope = Rope(
        base=draw(st.sampled_from([100.0, 10000.0])),
        scaling=() if scaling.get("rope_type") == "dynamic" and width == 2 else tuple(sorted(scaling.items())),
        rule=draw(st.sampled_from(["hf", "hf", "specforge"])),
        layout=draw(st.sampled_from(["half", "interleaved"])),
        partial=partial,
        limit=draw(st.sampled_from([8, 512])),  # dynamic scales past it: 14 tokens are past 8
    )
    return Reading(
        aux=aux,
        aux_norm=draw(st.sampled_from(["none", "input_norm", "fc_norm"])),
        fc=draw(st.sampled_from(["applied", "skipped"])) if skippable else "applied",
        residual=draw(st.sampled_from(["pre_norm", "post_norm"])),
        feedback=draw(st.sampled_from(["pre_norm", "post_norm"])),
        head_norm=draw(st.sampled_from(["applied", "skipped"])),
        second_norm=draw(st.sampled_from(["hidden_norm", "input_layernorm"])),
        embedding=draw(st.sampled_from(["own", "target"])) if shape.hidden == shape.target_hidden else "own",
        head=draw(st.sampled_from(["own", "target"])) if shape.hidden == shape.target_hidden else "own",
        vocab_map=draw(st.sampled_from(["offsets", "identity", "t2d"])),
        rope=rope,
        dropped=tuple(draw(st.lists(st.sampled_from(dropped), unique=True))) if dropped else (),
        shift=draw(st.sampled_from([0, 1, 1, 1, 2])),
        window=draw(st.sampled_from([None, None, 2, 5])),
        logit_scale=draw(st.sampled_from([1.0, 0.25])),
    )


@st.composite
def settings_of_a_run(draw):
    shape = draw(shapes())
    return shape, draw(readings(shape)), draw(st.integers(0, 10**6)), draw(st.sampled_from(["recorded", "self"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("random")


@settings(max_examples=60, derandomize=True, deadline=None, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(run=settings_of_a_run())
def test_random_shapes_and_readings(folder, run):
    shape, reading, seed, fed = run
    rng = np.random.default_rng(seed)
    weights = random_weights(shape, rng)
    source = Source.draw(shape, rng)
    write_draft(folder, weights, shape)
    draft = Draft(folder, shape.target_hidden, shape.vocab)
    if shape.latent is None:
        solved = (draft.arch.heads, draft.arch.kv_heads, draft.arch.head_dim)
        assert solved == (shape.heads, shape.kv_heads, shape.head_dim)
    length, steps, last = 14, 4, 5
    tokens = rng.integers(0, shape.vocab, length)
    states = {k: rng.normal(size=(length, shape.target_hidden)).astype(np.float32) for k in range(last + 1)}
    sample = Sample("s", "s.safetensors", torch.tensor(tokens), torch.ones(length, dtype=torch.uint8),
                    {k: torch.tensor(v) for k, v in states.items()}, last=last)  # fmt: skip
    naive = Naive(weights, reading, shape.heads, shape.head_dim, shape.eps, table=source.table,
                  target_head=source.head_rows, latent=shape.latent)  # fmt: skip
    known = {**states, FINAL: final_state(states[last], source.norm_weight.numpy(), source.eps)}
    result = rollout(Model(draft, source), sample, reading, steps, fed=fed, keep=("hidden", "logits"))
    if fed == "recorded":
        agree(result, naive.chains(tokens.tolist(), known, steps))
        return
    # a near-tie may send a self-fed chain elsewhere: the first row of each is followed by its own tokens
    for k, said in enumerate(naive.chains(tokens.tolist(), known, steps, fed="self")):
        mine = result.steps[k]
        same = [i for i, s in enumerate(said) if mine.tokens[i] == s.token]
        assert len(same) >= 0.9 * len(said)
        theirs = np.stack([said[i].logits for i in same])
        assert np.abs(mine.logits[same].double().numpy() - theirs).max() <= CLOSE * np.abs(theirs).max()


def test_the_window_hides_a_chains_own_keys_too(tmp_path):
    """With a window of 1 a token sees itself alone, so a chain's third step cannot depend on its prefix's keys."""
    shape = Shape(hidden=12, target_hidden=12, layers=1)
    rng = np.random.default_rng(3)
    weights, source = random_weights(shape, rng), Source.draw(shape, rng)
    write_draft(tmp_path, weights, shape)
    tokens = rng.integers(0, shape.vocab, 9)
    states = {k: rng.normal(size=(9, 12)).astype(np.float32) for k in range(3)}
    sample = Sample("s", "s", torch.tensor(tokens), torch.ones(9), {k: torch.tensor(v) for k, v in states.items()})
    model = Model(Draft(tmp_path, 12, shape.vocab), source)
    for window in (1, 2, 3):
        reading = Reading(aux=(0, 1, 2), window=window)
        naive = Naive(weights, reading, shape.heads, shape.head_dim, shape.eps, table=source.table)
        result = rollout(model, sample, reading, 4, keep=("hidden", "logits"))
        assert agree(result, naive.chains(tokens.tolist(), states, 4))


@pytest.mark.parametrize(("rule", "limit"), [("hf", 8), ("hf", 64), ("specforge", 64)])
def test_dynamic_rope_scales_by_the_whole_texts_length(tmp_path, rule, limit):
    """Every row and step of a text is turned alike, whichever rows are followed; within the limit hf does not scale."""
    shape = Shape(hidden=12, target_hidden=12)
    rng = np.random.default_rng(4)
    weights, source = random_weights(shape, rng), Source.draw(shape, rng)
    write_draft(tmp_path, weights, shape)
    tokens = rng.integers(0, shape.vocab, 20)
    states = {k: rng.normal(size=(20, 12)).astype(np.float32) for k in range(3)}
    sample = Sample("s", "s", torch.tensor(tokens), torch.ones(20), {k: torch.tensor(v) for k, v in states.items()})
    model = Model(Draft(tmp_path, 12, shape.vocab), source)
    rope = Rope(base=100.0, scaling=(("factor", 4.0), ("rope_type", "dynamic")), rule=rule, limit=limit)
    reading = Reading(aux=(0, 1, 2), rope=rope)
    naive = Naive(weights, reading, shape.heads, shape.head_dim, shape.eps, table=source.table)
    chains = naive.chains(tokens.tolist(), states, 4)
    whole = rollout(model, sample, reading, 4, keep=("hidden", "logits"))
    assert agree(whole, chains)
    first = rollout(model, sample, reading, 4, rows=torch.arange(3), keep=("hidden", "logits"))
    assert agree(first, [said[:3] for said in chains]) > 0
    plain = rollout(model, sample, reading.replace(rope=Rope(base=100.0)), 4, keep=("hidden", "logits"))
    same = torch.allclose(plain.steps[3].logits, whole.steps[3].logits, atol=1e-4)
    assert same == (rule == "hf" and limit == 64)


def test_ids_and_offsets_of_one_map_give_the_same_tokens(tmp_path):
    """d2t stored as ids and read as ids is d2t stored as offsets and read as offsets."""
    shape, rng = Shape(), np.random.default_rng(5)
    weights = random_weights(shape, rng)
    source = Source.draw(shape, rng)
    tokens = torch.tensor(rng.integers(0, shape.vocab, 12))
    states = {k: torch.tensor(rng.normal(size=(12, shape.target_hidden)), dtype=torch.float32) for k in range(3)}
    sample = Sample("s", "s", tokens, torch.ones(12), states)
    as_ids = weights | {"d2t": weights["d2t"] + np.arange(shape.draft_vocab)}
    said = []
    for i, (stored, kind) in enumerate([(weights, "offsets"), (as_ids, "ids")]):
        folder = tmp_path / str(i)
        folder.mkdir()
        write_draft(folder, stored, shape)
        reading = Reading(aux=(0, 1, 2), vocab_map=kind)
        said.append(rollout(Model(Draft(folder, shape.target_hidden, shape.vocab), source), sample, reading, 2))
    for a, b in zip(said[0].steps, said[1].steps, strict=True):
        assert torch.equal(a.top_ids, b.top_ids)
        assert torch.equal(a.truth_rank, b.truth_rank)
    assert set(said[0].steps[0].top_ids[:, 0].tolist()) - set(range(shape.draft_vocab))  # the map is no identity


def test_an_unknown_activation_is_refused_by_name(tmp_path):
    shape, rng = Shape(), np.random.default_rng(0)
    write_draft(tmp_path, random_weights(shape, rng), shape)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "swish9"}))
    sample = Sample("s", "s", torch.arange(5), torch.ones(5),
                    {k: torch.zeros(5, shape.target_hidden) for k in range(3)})  # fmt: skip
    model = Model(Draft(tmp_path, shape.target_hidden, shape.vocab), Source.draw(shape, rng))
    with pytest.raises(Blocked, match="swish9"):
        rollout(model, sample, Reading(aux=(0, 1, 2)), 1)
