"""The engine's numbers and the lab's: arithmetic of the story, published counters, requests round by round."""

from __future__ import annotations

import pytest
import torch
from test_acceptance import rolled, sample_of, table_of

from eagle3lab.acceptance import accept
from eagle3lab.counts import Counts, EngineReport, RequestReport
from eagle3lab.gap import compare_requests, cost, end_effect, length_from_accuracy
from eagle3lab.gap.rounds import RoundDifference, differing


@pytest.mark.parametrize(
    ("accuracy", "steps", "length"),
    [
        # story.md: 74.7 % at depth 0 with equal conditional rates
        (0.747, 5, 3.3),
        (0.747, 6, 3.4),
    ],
)
def test_the_storys_accept_length(accuracy, steps, length):
    assert round(length_from_accuracy([accuracy] * steps), 1) == length


@pytest.mark.parametrize(
    ("rates", "without_bonus"),
    [
        # speculators #788 (faults.md I): EAL, bonus excluded
        ((0.388, 0.337, 0.315), 0.560),
        ((0.406, 0.356, 0.346), 0.601),
    ],
)
def test_published_conditional_rates(rates, without_bonus):
    assert length_from_accuracy(rates) - 1 == pytest.approx(without_bonus, abs=5e-4)


def test_length_from_no_accuracy_is_plain_decoding():
    assert length_from_accuracy([]) == 1
    assert length_from_accuracy([0.0, 1.0, 1.0]) == 1
    assert length_from_accuracy([1.0, 1.0, 1.0]) == 4


@pytest.mark.parametrize(
    ("length", "with_drafts", "plain", "steps"),
    [
        # story.md: 56.8 tok/s at 1.6 tokens a round against 90 without, then 54.8 at 1.8
        (1.6, 56.8, 90, 2.5),
        (1.8, 54.8, 90, 3.0),
    ],
)
def test_the_storys_round_costs(length, with_drafts, plain, steps):
    found = cost(length, with_drafts, plain)
    assert round(found.round_cost, 1) == steps
    assert found.speedup == pytest.approx(with_drafts / plain)
    # at the cost itself speculation breaks even: a round of that many tokens takes as long as plain decoding
    assert cost(found.round_cost, plain, plain).speedup == 1
    assert (found.accept_length < found.round_cost) is (found.speedup < 1)


@pytest.mark.parametrize(
    ("thread", "drafts", "accepted", "reported"),
    [
        # faults.md I: counters and the length that each thread reports
        ("vllm #26191", 4_816, 12_208, 3.53),
        ("vllm #27732 after", 99_407, 148_350, 2.49),
        ("vllm #24243", 43_221, 63_669, 2.47),
        ("vllm-ascend #7038 after", 65, 136, 3.09),
        ("vllm-ascend #12886 run 1", 141, 458, 4.248),
        ("llama.cpp #24536", 87, 167, 2.92),
    ],
)
def test_published_counters(thread, drafts, accepted, reported):
    report = EngineReport("engine", "counters", (), drafts=drafts, accepted=accepted)
    assert report.accept_length == pytest.approx(reported, abs=6e-3)
    assert EngineReport("engine", "counters", (), drafts=0, accepted=0).accept_length is None


@pytest.mark.parametrize(
    ("thread", "rates", "length"),
    [
        # cumulative rates per position; 1 and their sum is the length (the last one is rounded in its thread: 3.09)
        ("vllm #18909", (0.77, 0.55, 0.38, 0.29), 2.99),
        ("speculators #610", (0.5858, 0.2991, 0.1491, 0.0790, 0.0423), 2.156),
        ("unnamed", (0.74, 0.51, 0.43, 0.42), 3.10),
    ],
)
def test_per_position_rates_add_up_to_the_length(thread, rates, length):
    drafts = 10_000
    positions = tuple(round(r * drafts) for r in rates)
    report = EngineReport("vllm", "counters", (), drafts=drafts, accepted=sum(positions), per_position=positions)
    assert report.cumulative == pytest.approx(rates)
    assert report.accept_length == pytest.approx(1 + sum(report.cumulative))
    assert report.accept_length == pytest.approx(length, abs=1e-3)


def test_llama_cpps_counters_are_of_one_run():
    """87 drafts, 167 accepted, 0.805 / 0.632 / 0.483: whole counts with these rates exist and add up (70, 55, 42)."""
    positions = tuple(round(r * 87) for r in (0.805, 0.632, 0.483))
    assert (positions, sum(positions)) == ((70, 55, 42), 167)
    report = EngineReport("llama.cpp", "counters", (), drafts=87, accepted=167, per_position=positions)
    assert [round(c, 3) for c in report.cumulative] == [0.805, 0.632, 0.483]
    assert round(report.accept_length, 2) == 2.92


def test_cumulative_rates_of_serving_as_conditional_ones():
    """speculators #613: serving 0.843/0.452/0.201/0.116 is 0.843/0.536/0.445/0.577 given the position before."""
    rounds, positions = 1000, (843, 452, 201, 116)
    none = (0,) * 4
    counts = Counts(4, none, none, none, none, rounds, sum(positions), positions, (157, 391, 251, 85, 116))
    assert [round(c, 3) for c in counts.conditional] == [0.843, 0.536, 0.445, 0.577]


def request(part, sample, accepted=None, prompt=None, reply=None) -> RequestReport:
    a, b = sample.spans[0]
    ids = sample.input_ids.tolist()
    return RequestReport(
        prompt_ids=tuple(ids[:a]) if prompt is None else prompt,
        token_ids=tuple(ids[a:b]) if reply is None else reply,
        accepted=tuple(r.accepted for r in part.rounds) if accepted is None else accepted,
        drafted=(),
    )


@pytest.fixture
def compared():
    """Reply tokens 4 … 10 of 14; rounds start at rows 3, 6 and 7 and accept 2, 0 and 2 of 3, 3 and 2."""
    sample = sample_of([(4, 11)], 14)
    part = accept(rolled(table_of({3: "11", 7: "11"}, 14, 3), 14), sample)
    assert [(r.row, r.accepted, r.offered) for r in part.rounds] == [(3, 2, 3), (6, 0, 3), (7, 2, 2)]
    return part, sample


def one(compared, accepted):
    part, sample = compared
    (match,) = compare_requests([request(part, sample, accepted)], {"s": part}, {"s": sample}).matches
    return match


def test_equal_rounds(compared):
    match = one(compared, (2, 0, 2))
    assert (match.equal, match.last_only, match.first) == (True, False, None)
    assert match.predicted == match.measured == (2, 0, 2)


def test_a_last_round_that_counts_past_the_end(compared):
    """vllm_measured.md 3.4: the engine's third draft there went past the reply's end."""
    match = one(compared, (2, 0, 3))
    assert (match.equal, match.last_only, match.first) == (False, True, 2)


def test_a_round_more_at_the_end(compared):
    match = one(compared, (2, 0, 2, 0))
    assert (match.equal, match.last_only, match.first) == (False, True, 3)


def test_a_difference_in_the_middle(compared):
    match = one(compared, (1, 0, 2))
    assert (match.equal, match.last_only, match.first) == (False, False, 0)


def test_a_difference_early_that_ends_alike_is_not_the_last_only(compared):
    match = one(compared, (2, 1, 1, 0, 0))
    assert (match.equal, match.last_only, match.first) == (False, False, 1)


def test_each_round_is_held_against_the_row_it_began_at(compared):
    """From rows 3, 4, 5, 6, 7, 8 the draft accepts 2, 0, 0, 0, 2 and 0; the reply's last draft is judged at row 8."""
    part, _ = compared
    assert differing(part, (2, 0, 2)) == ()
    # one draft less in round 0: the engine then stands at row 5, where 0 is right, at row 6, and is back in step
    assert differing(part, (1, 0, 0, 2)) == (RoundDifference(0, 3, 2, 1, False),)
    # the last round may hold 2 drafts of the reply; a third went past its end
    assert differing(part, (2, 0, 3)) == (RoundDifference(2, 7, 2, 3, True),)
    # more than the reply shows, but not past its end: rows 6 and 8 accept 0
    assert differing(part, (2, 1, 1)) == (RoundDifference(1, 6, 0, 1, False), RoundDifference(2, 8, 0, 1, False))
    assert differing(part, (2, 0, 2, 0)) == (), "a round on the last row holds no draft that the recording could show"
    assert RoundDifference(1, 6, 0, 1, False).step == 0


def test_an_answer_without_rounds_is_no_difference(compared):
    part, sample = compared
    found = compare_requests([request(part, sample, ())], {"s": part}, {"s": sample})
    assert (found.matches, found.silent, found.unmatched, found.counts["matched"]) == ((), 1, 0, 0)


def test_requests_are_paired_by_their_tokens(compared):
    part, sample = compared
    requests = [
        request(part, sample),
        request(part, sample, reply=(4, 5, 6)),  # another reply to the same prompt
        request(part, sample, prompt=(9, 9)),  # another prompt
        request(part, sample, prompt=(), reply=()),  # an engine that gave no ids
    ]
    found = compare_requests(requests, {"s": part}, {"s": sample})
    assert [m.sample for m in found.matches] == ["s"]
    assert found.unmatched == 3
    assert found.counts == {"requests": 4, "matched": 1, "equal": 1, "last_round_only": 0}


def test_a_conversation_of_several_replies_is_not_one_request():
    """Its later prompts hold its earlier replies; one request cannot be all of it."""
    sample = sample_of([(2, 5), (7, 10)], 12)
    part = accept(rolled(table_of({}, 12, 2), 12), sample)
    assert compare_requests([request(part, sample)], {"s": part}, {"s": sample}).matches == ()


def test_what_a_recordings_end_can_hide():
    """K 3. A last round offered fewer than K may have more drafts accepted by the engine, past the reply's end."""
    length = 14
    # rounds (3, 2 of 3), (6, 0 of 3), (7, 2 of 2): the last one was offered one draft less than K, and took all
    taken = accept(rolled(table_of({3: "11", 7: "11"}, length, 3), length), sample_of([(4, 11)], length))
    # rounds (3, 2 of 3), (6, 0 of 3), (7, 1 of 2): a draft was refused, so nothing after it can count
    refused = accept(rolled(table_of({3: "11", 7: "10"}, length, 3), length), sample_of([(4, 11)], length))
    # one round, all K: (3, 3 of 3) of a reply of five tokens
    full = accept(rolled(table_of({3: "111"}, length, 3), length), sample_of([(4, 9)], length))
    assert [len(p.rounds) for p in (taken, refused, full)] == [3, 3, 1]
    assert end_effect([taken], 3) == pytest.approx(1 / 3)
    assert end_effect([refused], 3) == 0
    assert end_effect([full], 3) == 0
    # of 7 rounds together one may have one draft more: the length rises by at most 1/7
    parts = [taken, refused, full]
    assert end_effect(parts, 3) == pytest.approx(1 / 7)
    accepted, rounds = sum(p.counts.accepted for p in parts), sum(p.counts.rounds for p in parts)
    assert (accepted + 1) / rounds == pytest.approx(accepted / rounds + end_effect(parts, 3))
    assert end_effect([], 3) == 0


def test_requests_compare_whatever_the_ids_type():
    """Recorded ids are int64 tensors, an engine's are JSON numbers."""
    sample = sample_of([(4, 11)], 14)
    sample.input_ids = torch.arange(100, 114)
    part = accept(rolled(table_of({}, 14, 2), 14), sample)
    assert compare_requests([request(part, sample)], {"s": part}, {"s": sample}).counts["equal"] == 1
