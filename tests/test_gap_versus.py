"""Two readings or two checkpoints on the same positions, and the texts of two recordings paired by their tokens."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import tiny
import torch
from test_acceptance import rolled, sample_of, table_of

from eagle3lab import open_case, views
from eagle3lab.__main__ import main
from eagle3lab.acceptance import Evaluation, accept
from eagle3lab.errors import BadOption, Blocked
from eagle3lab.gap.pairing import overlap
from eagle3lab.gap.versus import versus
from eagle3lab.reading import Reading
from eagle3lab.textkinds import KINDS, kind_of

LENGTH, SPAN = 14, (4, 12)
READING = Reading(aux=(0,))


def evaluation(hits: dict[str, dict[int, str]], steps: int = 2) -> Evaluation:
    parts = {
        name: accept(rolled(table_of(rows, LENGTH, steps), LENGTH), sample_of([SPAN], LENGTH, name))
        for name, rows in hits.items()
    }
    return Evaluation(READING, steps, parts, {})


def test_differences_by_hand():
    """Span [4, 12): draft 1 is scored on rows 3 … 9. The first is right at 3 and 4, the second at 3, 5 and 6: one row
    only the first's, two only the second's, 3/7 - 2/7."""
    names = [f"s{i}" for i in range(5)]
    first = evaluation({n: {3: "1", 4: "1"} for n in names})
    second = evaluation({n: {3: "1", 5: "1", 6: "11"} for n in names})
    kinds = {n: ["number" if t % 2 else "word start" for t in range(LENGTH)] for n in names}
    found = versus(first, second, kinds)
    one = found.by_step[0]
    assert (one.first, one.second) == (pytest.approx(2 / 7), pytest.approx(3 / 7))
    assert (one.only_first, one.only_second, one.change.n) == (5, 10, 35)
    # every sample is the same, so no draw of samples differs
    assert one.change.low == pytest.approx(one.change.value) and one.change.high == pytest.approx(one.change.value)
    # row t's first draft is token t + 2: of rows 3 … 9 tokens 5, 7, 9, 11 are odd and 6, 8, 10 even
    assert {d.name: d.change.n for d in found.by_kind} == {"number": 20, "word start": 15}
    by = {d.name: (d.first, d.second) for d in found.by_kind}
    assert by["number"] == (pytest.approx(1 / 4), pytest.approx(2 / 4))
    assert [d.name for d in found.by_position] == ["tokens 1 … 16"]
    # walks: the first accepts at 3 and goes on at 5 … 9 without any: rounds 3, 5, 6, 7, 8, 9
    assert found.length.first == pytest.approx(1 + 1 / 6)
    assert "paired" in found.length.change.method


def test_readings_of_another_shift_are_held_against_each_other_token_by_token():
    """Rows 3 … 9 of the first say tokens 5 … 11, of the second, whose shift is 2, tokens 6 … 12: both say 6 … 11. Of
    these the first has token 6 (row 4), the second 6, 8 and 9 (rows 3, 5 and 6)."""
    first = evaluation({f"s{i}": {3: "1", 4: "1"} for i in range(5)})
    second = evaluation({f"s{i}": {3: "1", 5: "1", 6: "1"} for i in range(5)})
    kinds = {f"s{i}": ["number" if t in (6, 8) else "word start" for t in range(LENGTH)] for i in range(5)}
    found = versus(first, dataclasses.replace(second, reading=READING.replace(shift=2)), kinds)
    one = found.by_step[0]
    assert (one.first, one.second, one.change.n) == (pytest.approx(1 / 6), pytest.approx(3 / 6), 30)
    assert (one.only_first, one.only_second) == (0, 10)
    assert {d.name: (d.first, d.second) for d in found.by_kind} == {"number": (0.5, 1.0), "word start": (0.0, 0.25)}


def test_few_samples_have_no_interval_and_different_k_no_comparison():
    first, second = evaluation({"s": {3: "1"}}), evaluation({"s": {3: "1"}, "t": {}})
    found = versus(first, second)
    assert math.isnan(found.by_step[0].change.low) and "1 samples are too few" in found.by_step[0].change.method
    assert found.left_out == {"t": "only one of the two has it"} and found.by_kind == ()
    with pytest.raises(Blocked, match="no sample in common"):
        versus(first, evaluation({"t": {}}))
    with pytest.raises(ValueError, match="K 2 and 3"):
        versus(first, evaluation({"s": {}}, 3))


@pytest.mark.parametrize(
    ("text", "before", "kind"),
    [
        (" gravity", " is", "word start"), ("ity", "grav", "inside word"), ("Hello", "\n", "word start"),
        ("42", " ", "number"), (" 3.14", "", "number"), (",", "a", "punctuation"), ("...", "a", "punctuation"),
        ("{", "", "code"), (" self._x", "", "code"), ("==", "", "code"), ("\n\n", "", "whitespace"), (" ", "", "whitespace"),
        ("<|im_end|>", "", "special"), ("<s>", "", "special"), ("[PAD]", "", "special"), ("日本", " ", "word start"),
        ("", "", "other"), ("\u0301", "a", "other"),
    ],
)  # fmt: skip
def test_kinds_of_tokens(text, before, kind):
    assert kind_of(text, before) == kind and kind in KINDS


def test_texts_are_paired_by_their_tokens():
    tokens = torch.arange(100, 140)
    texts = {"other": torch.arange(40), "same": tokens, "longer": torch.cat([torch.arange(7), tokens])}
    whole = overlap(tokens, texts)
    assert (whole.name, whole.first, whole.second, whole.length) == ("same", 0, 0, 40)
    # the beginning came from a cache: the dump begins inside the text
    inside = overlap(tokens[12:], texts)
    assert (inside.name, inside.second, inside.length) == ("same", 12, 28)
    # another question after the same system prompt
    parted = overlap(torch.cat([tokens[:20], torch.arange(10)]), texts)
    assert (parted.second, parted.length) == (0, 20)
    assert overlap(torch.arange(500, 540), texts) is None
    assert overlap(tokens[:5], texts) is None


@pytest.fixture
def case(tmp_path):
    return tiny.write_case(tmp_path / "one")


@pytest.fixture
def run(capsys):
    def command(*arguments):
        code = main([str(a) for a in arguments])
        out = capsys.readouterr()
        return code, out.out, out.err

    return command


def test_compare_two_readings_of_a_case(run, case, tmp_path):
    for name, aux in (("right", [2, 4, 5]), ("wrong", [0, 4, 5])):
        (tmp_path / f"{name}.json").write_text(Reading(aux=tuple(aux)).to_json())
    code, out, _ = run("compare", case, tmp_path / "wrong.json", tmp_path / "right.json", "--json")
    content = json.loads(out)
    assert code == 0 and (content["first"], content["second"]) == ("wrong.json", "right.json")
    rows = {row["name"]: row for row in content["differences"]}
    assert rows["accuracy, draft 1"]["second"] == 1 > rows["accuracy, draft 1"]["first"]
    assert rows["accuracy, draft 1"]["low"] is None  # two samples
    assert (
        content["steps"] == 2
        and content["samples"] == ["first", "second"]
        and "bonus included" in content["definition"]
    )
    code, out, _ = run("compare", case, tmp_path / "wrong.json")
    assert code == 0 and out.startswith("first:  configured\nsecond: wrong.json\n2 samples")


def test_compare_two_checkpoints_on_the_texts_they_share(run, case, tmp_path):
    other = tiny.write_case(tmp_path / "two")
    tiny.edit(other.parent / "draft" / "model.safetensors", lambda t: t["lm_head.weight"].mul_(-1))
    (other.parent / "samples" / "second.safetensors").rename(other.parent / "samples" / "renamed.safetensors")
    found = views.cases_compared(open_case(case), open_case(other))
    assert found.samples == ("first", "second")  # paired by tokens, not by name
    assert found.by_step[0].first == 1 and found.by_step[0].second < 0.5
    code, out, _ = run("compare", case, other)
    assert code == 0 and "accept length" in out


def test_compare_says_what_it_takes(run, case, tmp_path):
    (tmp_path / "bad.json").write_text("{")
    assert run("compare", case)[0] == 2
    assert run("compare", case, case, case)[0] == 2
    code, _, err = run("compare", case, tmp_path / "bad.json")
    assert code == 1 and "not a Reading as JSON" in err
    other = tiny.write_case(tmp_path / "two")
    for name in tiny.NAMES:
        tiny.edit(other.parent / "samples" / f"{name}.safetensors", lambda t: t["input_ids"].add_(1).remainder_(tiny.V))
    code, _, err = run("compare", case, other)
    assert code == 1 and "no recorded text in common" in err


def test_given_costs_are_three_numbers(case):
    opened = open_case(case)
    assert views.tuning(opened, "1.0, 0.2, 0.02")["best"] is not None
    with pytest.raises(BadOption, match="expected three numbers"):
        views.tuning(opened, "1.0, 0.2")
    with pytest.raises(Blocked, match="no run was timed"):
        views.tuning(opened)
