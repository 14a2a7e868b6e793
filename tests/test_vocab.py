"""The vocabulary map: how d2t is read, what is wrong with it, what it covers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import Shape, Source, random_weights, write_draft

from eagle3lab.case import open_case
from eagle3lab.draft import Draft
from eagle3lab.errors import BadFile
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.vocab import VocabMap, ceiling

IDS = torch.tensor([0, 1, 2, 5, 9])
"""Target ids of five draft ids; V = 12."""
OFFSETS = torch.tensor([0, 0, 0, 2, 5])
T2D = torch.zeros(12, dtype=torch.bool).index_fill(0, IDS, True)


@pytest.mark.parametrize(
    ("kind", "d2t", "expected"),
    [
        ("offsets", OFFSETS, IDS),  # target = i + d2t[i]
        ("ids", IDS, IDS),  # GGUF
        ("identity", OFFSETS, torch.arange(5)),  # an engine that found no map
        ("t2d", None, IDS),  # the marked places, in order
        ("ids", OFFSETS, OFFSETS),  # offsets taken for ids: the fault, read as it would be
        ("offsets", OFFSETS.to(torch.int32), IDS),
    ],
)
def test_how_each_program_reads_it(kind, d2t, expected):
    found = VocabMap.read(kind, 5, 12, d2t, T2D)
    assert found.hot_token_id.tolist() == expected.tolist()
    assert (found.size, found.vocab, found.kind) == (5, 12, kind)


def test_the_storys_map():
    """story.md: hot_token_id = d2t + arange(32000); the first ten are 0 … 9, number 1000 is 1787."""
    d2t = torch.zeros(32000, dtype=torch.int64)
    d2t[1000:] = 787
    found = VocabMap.read("offsets", 32000, 129280, d2t, None)
    assert found.hot_token_id[:10].tolist() == list(range(10))
    assert int(found.hot_token_id[1000]) == 1787
    assert found.size == 32000
    assert found.leading_zeros == 1000
    # the same tensor taken for ids says 787 for number 1000, and every id below it as token 0
    assert VocabMap.read("ids", 32000, 129280, d2t, None).repeated == 32000 - 2


@pytest.mark.parametrize(
    ("kind", "d2t", "t2d", "text"),
    [
        ("offsets", None, T2D, "no d2t"),
        ("ids", None, T2D, "no d2t"),
        ("t2d", OFFSETS, None, "no t2d"),
        ("offsets", OFFSETS[:4], T2D, "gives 4 ids, but lm_head has 5 rows"),
        ("offsets", torch.zeros(7, dtype=torch.long), T2D, "gives 7 ids, but lm_head has 5 rows"),
        ("ids", IDS[:4], T2D, "gives 4 ids, but lm_head has 5 rows"),
        ("t2d", OFFSETS, T2D[:9], "gives 4 ids, but lm_head has 5 rows"),
    ],
)
def test_what_cannot_be_read_says_why(kind, d2t, t2d, text):
    with pytest.raises(ValueError, match=text):
        VocabMap.read(kind, 5, 12, d2t, t2d)


def read(ids: list[int], t2d=None, vocab: int = 12) -> VocabMap:
    return VocabMap.read("ids", len(ids), vocab, torch.tensor(ids), t2d)


def test_ids_outside_the_target_are_named():
    assert read([0, 12, 5, -1]).out_of_range.tolist() == [1, 3]
    assert read([0, 11]).out_of_range.tolist() == []
    # ids stored, offsets read (faults.md D: 0.01 to 0.03): i + id passes the end of the vocabulary
    wrong = VocabMap.read("offsets", 3, 12, torch.tensor([4, 9, 11]), None)
    assert wrong.hot_token_id.tolist() == [4, 10, 13]
    assert wrong.out_of_range.tolist() == [2]


def test_repeated_and_unsorted_maps():
    assert read([3, 3, 3, 7]).repeated == 2
    assert read([3, 5, 7]).repeated == 0
    assert read([3, 5, 7]).ascending
    assert not read([3, 7, 5]).ascending  # modelopt keeps frequency order: a WARN, not a fault
    assert not read([3, 3]).ascending


def test_whether_t2d_marks_the_same_tokens():
    assert read(IDS.tolist(), T2D).t2d_agrees is True
    assert read([9, 0, 5, 1, 2], T2D).t2d_agrees is True  # the set counts, not the order
    assert read([0, 1, 2, 5, 8], T2D).t2d_agrees is False
    assert read([0, 1, 2, 5], T2D).t2d_agrees is False  # one token too many is marked
    assert read(IDS.tolist()).t2d_agrees is None


def test_leading_zeros_of_a_padded_corpus():
    """SpecForge pads a short corpus with low ids: they are themselves, so their offsets are 0."""
    assert VocabMap.read("offsets", 5, 12, OFFSETS, None).leading_zeros == 3
    assert VocabMap.read("offsets", 5, 12, torch.zeros(5).long(), None).leading_zeros == 5
    assert VocabMap.read("identity", 5, 12, None, None).leading_zeros == 0


def test_tokens_and_draft_ids_both_ways():
    found = read(IDS.tolist())
    tokens = torch.tensor([[9, 3], [0, 40]])
    assert found.to_draft(tokens).tolist() == [[4, -1], [0, -1]]
    assert found.covers(tokens).tolist() == [[True, False], [True, False]]
    assert found.to_draft(torch.empty(0, dtype=torch.long)).tolist() == []


def test_of_two_rows_with_one_token_the_first_counts():
    """An engine's argmax takes the first of equal logits, and both rows say the same token."""
    assert read([7, 3, 7]).to_draft(torch.tensor([7, 3])).tolist() == [0, 1]


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(st.sets(st.integers(0, 99), min_size=1, max_size=40), st.lists(st.integers(0, 99), min_size=1, max_size=30))
def test_coverage_is_membership(ids, tokens):
    """And a covered token comes back as itself."""
    found = read(sorted(ids), vocab=100)
    asked = torch.tensor(tokens)
    assert found.covers(asked).tolist() == [t in ids for t in tokens]
    inside = asked[found.covers(asked)]
    assert torch.equal(found.hot_token_id[found.to_draft(inside)], inside)


@pytest.mark.parametrize(
    ("coverage", "steps", "length"),
    [
        (1.0, 5, 6.0),  # a perfect draft: K and the bonus
        (0.0, 5, 1.0),  # none of the tokens can be said
        (0.5, 3, 1 + 0.5 + 0.25 + 0.125),
        (0.975, 5, 1 + 0.975 + 0.95063 + 0.92686 + 0.90369 + 0.88110),  # the demo's coverage on topics it has seen
        (0.9, 0, 1.0),
    ],
)
def test_the_ceiling_that_coverage_sets(coverage, steps, length):
    assert ceiling(coverage, steps) == pytest.approx(length, abs=5e-4)


def test_the_targets_rows_follow_the_map(tmp_path):
    """A reading whose head is the target's takes the rows of its own map's tokens, whatever was asked before."""
    shape, rng = Shape(), np.random.default_rng(1)
    write_draft(tmp_path, random_weights(shape, rng), shape)
    source = Source.draw(shape, rng)
    model = Model(Draft(tmp_path, shape.target_hidden, shape.vocab), source)
    for kind in ("offsets", "identity", "t2d"):
        reading = Reading(aux=(0, 1, 2), head="target", vocab_map=kind)
        rows = torch.tensor(source.head_rows)[model.vocab_map(reading).hot_token_id]
        assert torch.equal(model.head(reading, torch.float32), rows)


def test_a_faulty_map_names_the_folder(tmp_path):
    shape, rng = Shape(), np.random.default_rng(1)
    weights = random_weights(shape, rng)
    write_draft(tmp_path, {**weights, "d2t": weights["d2t"][:-2]}, shape)
    assert "draft_vocab_size" in json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(BadFile, match="gives 30 ids, but lm_head has 32 rows"):
        Draft(tmp_path, shape.target_hidden, shape.vocab).vocab_map("offsets")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int32])
def test_maps_of_any_integers_are_read(tmp_path, dtype):
    """torch holds unsigned integers and can do little with them."""
    case = tiny.write_case(tmp_path)
    file = case.parent / "draft" / "model.safetensors"
    tiny.edit(file, lambda t: t.update(d2t=t["d2t"].to(dtype), t2d=t["t2d"].to(dtype)))
    found = Draft(case.parent / "draft").vocab_map()
    assert torch.equal(found.hot_token_id, 2 * torch.arange(32))
    assert found.t2d_agrees
    codes = {f.code: f.severity.value for f in open_case(case).findings("weights", "vocab", "forward")}
    assert (codes["V001"], codes["V004"]) == ("PASS", "PASS")
    assert "C001" not in codes
