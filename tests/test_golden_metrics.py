"""What each trainer reported of its own golden case, computed again from the lab's rollout by that trainer's rules.

The rules are those of the READMEs beside the cases and of engines.md 3.3, trainers.md 2.8: three programs, three
meanings of accuracy. Counts must be equal; means to float32's rounding.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator

import pytest
import torch
from golden_cases import CASES, GOLDEN, load

from eagle3lab.forward import rollout

STEPS = 5
SPECFORGE = [name for name in CASES if name.startswith("specforge_")]
EAGLE = [name for name in CASES if name.startswith("eagle_")]
SPECULATORS = [name for name in CASES if name.startswith("speculators_")]


def reported(name: str) -> dict:
    return json.loads((GOLDEN / name / "metrics.json").read_text())


def rolled(case, keep=("logits",)) -> Iterator:
    for document in case.documents:
        yield document, rollout(case.model, document.sample, case.reading, STEPS, keep=keep)


class Sums:
    """SpecForge's and EAGLE's sums of one step: row i predicts the target's own choice at i+1+K, mask taken at i+K."""

    def __init__(self, hot: torch.Tensor):
        self.hot, self.correct, self.denominator, self.loss, self.overlap, self.covered = hot, 0.0, 0.0, 0.0, 0.0, 0

    def add(self, step, k: int, target: torch.Tensor, mask: torch.Tensor) -> None:
        rows = len(step.rows)
        wanted, used = target[1 + k : 1 + k + rows], mask[k : k + rows].bool()
        choice = wanted.argmax(-1)
        assert step.logits.shape[1] == len(self.hot)
        self.correct += int(((step.top_ids[:, 0] == choice) & used).sum())
        self.denominator += float(mask[k:].sum())
        inside = used & torch.isin(choice, self.hot)
        restricted, said = wanted[:, self.hot].softmax(-1), step.logits.log_softmax(-1)
        self.loss -= float(((restricted * said).sum(-1) * inside).double().sum())
        overlap = torch.minimum(wanted.softmax(-1)[:, self.hot], said.exp()).sum(-1)
        self.overlap += float((overlap * inside).double().sum())
        self.covered += int(inside.sum())


def sums(name: str, mask: str) -> tuple[list[Sums], int]:
    case = load(name)
    hot = case.model.vocab_map(case.reading).hot_token_id
    out = [Sums(hot) for _ in range(STEPS)]
    for document, result in rolled(case):
        masks = case.io[mask][document.batch].flatten()[: document.sample.length]
        for k, step in enumerate(result.steps):
            out[k].add(step, k, case.io["target_logits"][document.batch], masks)
    return out, case.io["input_ids"].numel()


@pytest.mark.parametrize("name", SPECFORGE)
def test_specforges_own_numbers(name):
    found, rows = sums(name, "loss_mask_used")
    said = reported(name)
    assert [s.correct for s in found] == said["correct"]
    assert [s.denominator for s in found] == said["denom"]
    assert [s.correct / s.denominator for s in found] == pytest.approx(said["acc"], rel=1e-6)
    assert [s.loss / rows for s in found] == pytest.approx(said["ploss"], rel=1e-5)
    assert [s.overlap / s.covered for s in found] == pytest.approx(said["acceptance_rate"], rel=1e-5)


@pytest.mark.parametrize("name", EAGLE)
def test_eagles_own_numbers(name):
    """EAGLE leaves the mask's last entry standing, so each step also scores the row that has no next token."""
    found, rows = sums(name, "loss_mask")
    said = reported(name)
    assert [s.correct / (s.denominator + 1e-6) for s in found] == pytest.approx(said["ttt_acc"], rel=1e-6)
    case = load(name)
    sample = case.documents[0].sample
    assert case.io["loss_mask"][0, -1] == 1
    # that row is fed token 0, and its target is uniform over the draft vocab: zeros pad ids and logits alike
    states = {k: torch.cat([v, v[-1:]]) for k, v in sample.states.items()}
    padded = dataclasses.replace(sample, input_ids=torch.cat([sample.input_ids, torch.zeros(1, dtype=torch.long)]),
                                 loss_mask=torch.ones(rows + 1), states=states)  # fmt: skip
    result = rollout(case.model, padded, case.reading, STEPS, keep=("logits",))
    for k, step in enumerate(result.steps):
        assert step.tokens[-1] == 0
        assert (step.logits[-1] - case.io[f"ttt.step{k}.logits"][0, rows - 1 - k]).abs().max() <= 1e-5
        found[k].loss -= float(step.logits[-1].log_softmax(-1).mean()) * bool(case.io["t2d"][0])
    assert [s.loss / rows for s in found] == pytest.approx(said["ttt_ploss"], rel=1e-5)


@pytest.mark.parametrize("name", SPECULATORS)
def test_speculators_own_numbers(name):
    case, said = load(name), reported(name)
    hot = case.model.vocab_map(case.reading).hot_token_id
    choice = hot[case.io["target_logits_draftvocab"][0].argmax(-1)]  # [T-1], best within the draft vocab
    mask = case.io["in.loss_mask"][0].bool()
    length = len(mask)
    right, results = mask.clone(), list(rolled(case))
    for k in range(STEPS):
        hits = torch.zeros(length, dtype=torch.bool)
        for document, result in results:
            step = result.steps[k]
            rows = step.rows + document.start
            hits[rows] = step.top_ids[:, 0] == choice[rows + k]
        before, total = int(right[: length - k].sum()), int(mask[k:].sum())
        right = right & hits & torch.cat((mask[k:], mask.new_zeros(k)))
        assert int(right.sum()) == said[f"full_acc_{k}_sum"] == said[f"cond_acc_{k}_sum"], k
        assert total == said[f"full_acc_{k}_total"]
        assert before == said[f"cond_acc_{k}_total"]


def test_two_definitions_on_one_rollout():
    """cross_metrics_llama_basic: SpecForge's draft and sample judged by both programs' rules."""
    said = json.loads((GOLDEN / "cross_metrics_llama_basic" / "metrics.json").read_text())
    found, _ = sums("specforge_llama_basic", "loss_mask_used")
    assert [s.correct / s.denominator for s in found] == pytest.approx(said["specforge_acc"], rel=1e-6)
    case = load("specforge_llama_basic")
    hot = case.model.vocab_map(case.reading).hot_token_id
    target, mask = case.io["target_logits"][0], case.io["loss_mask"][0].flatten().bool()
    choice = hot[target[:, hot].argmax(-1)]
    ((_, result),) = rolled(case)
    right = mask[1:].clone()
    for k, step in enumerate(result.steps):
        before, rows = int(right[: len(right) - k].sum()), len(step.rows)
        hits = torch.zeros_like(right)
        hits[:rows] = (step.top_ids[:, 0] == choice[1 + k : 1 + k + rows]) & mask[1 + k : 1 + k + rows]
        right &= hits
        assert int(right.sum()) / int(mask[1 + k :].sum()) == pytest.approx(said["speculators_full_acc"][k], rel=1e-6)
        assert int(right.sum()) / before == pytest.approx(said["speculators_cond_acc"][k], rel=1e-6)
    assert int((~torch.isin(target.argmax(-1), hot)).sum()) == said["targets_outside_draft_vocab"]
