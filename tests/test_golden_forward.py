"""The forward against what SpecForge 0.2.0, speculators 0.9.0 and EAGLE computed: every step, every valid row."""

from __future__ import annotations

import pytest
import torch
from golden_cases import CASES, load

from eagle3lab.forward import rollout

STEPS = 5


@pytest.mark.parametrize("name", CASES)
def test_states_and_logits_equal_the_recorded_ones(name):
    case = load(name)
    for document in case.documents:
        result = rollout(case.model, document.sample, case.reading, STEPS, keep=("hidden", "logits"))
        for k, step in enumerate(result.steps):
            rows = document.sample.length - 1 - k
            assert step.rows.tolist() == list(range(rows))
            assert torch.equal(step.tokens, document.sample.input_ids[1 + k :])
            hidden = case.recorded(document, k, "hidden", rows)
            logits = case.recorded(document, k, "logits", rows)
            assert (step.hidden - hidden).abs().max() <= 1e-4, f"step {k}: hidden"
            assert (step.logits - logits).abs().max() <= 1e-5, f"step {k}: logits"


@pytest.mark.parametrize("name", ["eagle_llama_basic", "eagle_llama_target96", "eagle_llama_theta500k"])
def test_eagles_kv_cached_chains_from_every_prefix(name):
    """EAGLE's inference with a KV cache, one token at a time; it reads rope_theta, which its training ignores."""
    case = load(name)
    theta = float(case.model.draft.config.get("rope_theta", 10000.0))
    reading = case.reading.replace(rope=type(case.reading.rope)(base=theta))
    result = rollout(case.model, case.documents[0].sample, reading, STEPS, keep=("hidden", "logits"))
    for k, step in enumerate(result.steps):
        rows = len(step.rows)
        hidden, logits = case.io["infer.chain.hidden"][k, :rows], case.io["infer.chain.logits"][k, :rows]
        known = hidden.isfinite().all(-1)
        assert known.all()
        assert (step.hidden[known] - hidden[known]).abs().max() <= 1e-4
        assert (step.logits[known] - logits[known]).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["eagle_llama_basic", "eagle_llama_target96", "eagle_llama_theta500k"])
def test_eagles_self_fed_chain(name):
    """The greedy chain from the full prefix, fed with its own tokens (target ids), read as EAGLE's inference reads."""
    case = load(name)
    sample = case.documents[0].sample
    theta = float(case.model.draft.config.get("rope_theta", 10000.0))
    reading = case.reading.replace(rope=type(case.reading.rope)(base=theta))
    # the chain starts at the last row that has a next token; later steps have no recorded token to join
    ids = torch.cat([sample.input_ids, sample.input_ids[-1:].repeat(STEPS)])
    longer = type(sample)(
        **{
            **vars(sample),
            "input_ids": ids,
            "states": {k: torch.cat([v, v[-1:].repeat(STEPS, 1)]) for k, v in sample.states.items()},
        }
    )
    row = torch.tensor([sample.length - 2])
    result = rollout(case.model, longer, reading, STEPS, rows=row, fed="self", keep=("hidden", "logits"))
    tokens = [int(step.top_ids[0, 0]) for step in result.steps]
    assert tokens == case.io["infer.greedy.tokens"].tolist()
    for k, step in enumerate(result.steps):
        assert (step.hidden[0] - case.io["infer.greedy.hidden"][k]).abs().max() <= 1e-4
        assert (step.logits[0] - case.io["infer.greedy.logits"][k]).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["speculators_llama_2layers", "specforge_llama_basic"])
def test_chosen_rows_give_what_all_rows_give(name):
    case = load(name)
    sample = case.documents[0].sample
    rows = torch.tensor([0, 3, 17, 18, 30])
    full = rollout(case.model, sample, case.reading, STEPS, keep=("logits",))
    some = rollout(case.model, sample, case.reading, STEPS, rows=rows, keep=("logits",))
    for whole, part in zip(full.steps, some.steps, strict=True):
        assert part.rows.tolist() == rows.tolist()
        torch.testing.assert_close(part.logits, whole.logits[rows], atol=1e-5, rtol=0)


def test_small_chunks_change_nothing(monkeypatch):
    case = load("specforge_llama_basic")
    sample = case.documents[0].sample
    whole = rollout(case.model, sample, case.reading, 3, keep=("logits",))
    monkeypatch.setattr("eagle3lab.readout.LOGITS_BYTES", 2000)
    chunked = rollout(case.model, sample, case.reading, 3, keep=("logits",))
    for a, b in zip(whole.steps, chunked.steps, strict=True):
        torch.testing.assert_close(a.logits, b.logits, atol=1e-5, rtol=0)
