"""A Reading: comparable, printable as a diff, and the same after a trip through JSON."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.reading import CHOICES, FINAL, Reading, Rope, show

numbers = st.floats(0.01, 1e7, allow_nan=False)
scalings = st.dictionaries(
    st.sampled_from(["rope_type", "factor", "mrope_section", "original_max_position_embeddings"]),
    st.one_of(st.just("yarn"), numbers, st.integers(1, 10**6), st.lists(st.integers(1, 64), max_size=3).map(tuple)),
)
ropes = st.builds(
    Rope,
    base=numbers,
    scaling=scalings.map(lambda d: tuple(sorted(d.items()))),
    rule=st.sampled_from(["hf", "specforge"]),
    layout=st.sampled_from(["half", "interleaved"]),
    partial=st.sampled_from([1.0, 0.5, 0.25]),
    limit=st.one_of(st.none(), st.integers(1, 10**6)),
)
readings = st.builds(
    Reading,
    aux=st.one_of(st.just((FINAL,)), st.lists(st.integers(0, 99), min_size=1, max_size=5).map(tuple)),
    rope=ropes,
    dropped=st.lists(st.sampled_from(["fc.bias", "input_norm.weight"]), unique=True).map(tuple),
    shift=st.integers(0, 3),
    window=st.one_of(st.none(), st.integers(1, 4096)),
    logit_scale=numbers,
    **{name: st.sampled_from(words) for name, words in CHOICES.items()},
)
SETTINGS = settings(max_examples=150, derandomize=True, deadline=None, database=None)


@SETTINGS
@given(readings)
def test_json_and_back(reading):
    back = Reading.from_json(reading.to_json())
    assert back == reading
    assert hash(back) == hash(reading)
    assert reading.diff(back) == {}
    assert json.loads(reading.to_json()) == json.loads(json.dumps(reading.to_dict()))


@SETTINGS
@given(readings, readings)
def test_a_diff_turns_one_into_the_other(one, other):
    """Exactly the fields named differ: taking them over gives the other reading; and it is the same backwards."""
    diff = one.diff(other)
    changes = {name: theirs for name, (_, theirs) in diff.items() if not name.startswith("rope.")}
    parts = {name.removeprefix("rope."): theirs for name, (_, theirs) in diff.items() if name.startswith("rope.")}
    rope = Rope(**{**vars(one.rope), **parts})
    assert one.replace(rope=rope, **changes) == other
    assert other.diff(one) == {name: (theirs, mine) for name, (mine, theirs) in diff.items()}
    assert (one.words(other) == "") is (one == other)


def test_every_field_shows_in_a_diff():
    """No field may be forgotten: two readings that differ in it are not the same reading."""
    one = Reading(aux=(0, 15, 27))
    other = Reading(
        aux=(15, 27, 30), aux_norm="fc_norm", fc="skipped", residual="post_norm", feedback="post_norm",
        head_norm="skipped", second_norm="input_layernorm", embedding="own", head="target", vocab_map="ids",
        rope=Rope(500000.0, (("factor", 8.0),), "specforge", "interleaved", 0.5, 4096), dropped=("fc.bias",), shift=2,
        window=512, logit_scale=2.0, dtype="bfloat16",
    )  # fmt: skip
    diff = one.diff(other)
    parts = {f"rope.{f.name}" for f in fields(Rope)}
    assert set(diff) == {f.name for f in fields(Reading) if f.name != "rope"} | parts
    assert diff["aux"] == ((0, 15, 27), (15, 27, 30))
    assert diff["rope.base"] == (10000.0, 500000.0)


def test_words_for_people():
    one = Reading(aux=(15, 27, 30))
    other = one.replace(aux=(0, 15, 27), window=512, rope=Rope(base=500000.0))
    assert one.words(other) == "aux: (15, 27, 30) → (0, 15, 27); rope.base: 10000 → 500000; window: none → 512"
    assert str(one) == "aux (15, 27, 30)"
    assert str(other) == "aux (0, 15, 27), rope.base 500000, window 512"
    # what never changes a number of a sound run is left out of the one-line form, not out of the diff
    quiet = one.replace(rope=Rope(limit=2048, rule="specforge"), dropped=("fc.bias",))
    assert str(quiet) == str(one)
    assert set(one.diff(quiet)) == {"rope.limit", "rope.rule", "dropped"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((0, 15), "(0, 15)"),
        (10000.0, "10000"),
        (0.5, "0.5"),
        (None, "none"),
        ("ids", "ids"),
        ((("a", 1.0),), "((a, 1))"),
    ],
)
def test_show(value, text):
    assert show(value) == text


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"residual": "after"}, ["residual='after'", "pre_norm, post_norm"]),
        ({"aux": ()}, ["aux=()"]),
        ({"aux": (2, -1)}, ["aux=(2, -1)"]),
        ({"aux": (2, "last")}, ["aux=(2, 'last')"]),
        ({"dtype": "float8", "vocab_map": "rows", "aux": (-3,)}, ["dtype='float8'", "vocab_map='rows'", "aux=(-3,)"]),
        ({"shift": -1}, ["shift=-1"]),
        ({"window": 0}, ["window=0"]),
        ({"logit_scale": 0.0}, ["logit_scale=0.0"]),
        ({"rope": Rope(base=0.0, layout="both")}, ["rope.base=0.0", "rope.layout='both'"]),
    ],
)
def test_words_that_no_program_means_are_refused_all_at_once(changes, named):
    with pytest.raises(ValueError) as refused:
        Reading(**({"aux": (0,)} | changes))
    for text in named:
        assert text in str(refused.value)


def test_unknown_fields_of_a_file_are_all_named():
    with pytest.raises(ValueError, match=r"unknown fields norm, residuals, rope\.theta"):
        Reading.from_dict({"aux": [0], "residuals": "pre_norm", "norm": 1, "rope": {"theta": 1e4}})
    with pytest.raises(ValueError, match="'aux' is missing"):
        Reading.from_dict({"shift": 1})


def test_a_short_file_takes_the_plain_reading():
    """What a person writes by hand: the boundaries and what differs."""
    assert Reading.from_dict({"aux": [0, 15, 27]}) == Reading(aux=(0, 15, 27))
    assert Reading.from_dict({"aux": [2], "rope": {"base": 5e5}}) == Reading(aux=(2,), rope=Rope(base=5e5))
