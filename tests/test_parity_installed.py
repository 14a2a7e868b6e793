"""The forward against SpecForge and speculators themselves, where they are installed (they are no requirement)."""

from __future__ import annotations

import pytest
import torch
from golden_cases import CASES, load
from peers import SpecForge, Speculators

from eagle3lab.forward import rollout

STEPS = 4
SPECFORGE = [name for name in CASES if name.startswith("specforge_")]
SPECULATORS = [name for name in CASES if name.startswith("speculators_")]


def compare(name, make) -> None:
    case = load(name)
    for document in case.documents:
        sample = document.sample
        aux = torch.cat([sample.states[int(k)] for k in case.reading.aux], -1)
        theirs: list = []
        peer = make(case)
        peer.run(sample.input_ids, aux, STEPS, lambda state, logits: theirs.append((state, logits)))  # noqa: B023
        mine = rollout(case.model, sample, case.reading, STEPS, keep=("hidden", "logits"))
        # the peers are listened to before their final norm; with norm_output the state handed on comes after it
        same = case.reading.feedback == "pre_norm"
        assert len(theirs) == STEPS
        for step, (state, logits) in zip(mine.steps, theirs, strict=True):
            rows = len(step.rows)
            if same:
                assert (step.hidden - state[:rows]).abs().max() <= 1e-4
            assert (step.logits - logits[:rows]).abs().max() <= 1e-5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SPECFORGE)
def test_specforge(name):
    pytest.importorskip("specforge.modeling.draft.llama3_eagle", exc_type=ImportError)
    compare(name, lambda case: SpecForge(case.model.draft, case.io.get("embed_tokens_weight")))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SPECULATORS)
def test_speculators(name):
    pytest.importorskip("speculators.models.eagle3", exc_type=ImportError)
    compare(name, lambda case: Speculators(case.model.draft))
