"""Rows that are copies of others, rows that were normed, and samples that cannot be read for one cause: each said once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from faults.kinds import BASE, WIDE, _every_state, _normed, _repeated_tail, _twice
from planted import Plan, World, make

from eagle3lab import open_case
from eagle3lab.recordings.rows import before_copies, copied, normed, runs, sizes
from eagle3lab.records import Finding, Severity

FAIL, WARN, BLOCKED = Severity.FAIL, Severity.WARN, Severity.BLOCKED
FREE = WIDE.but(linked=0, samples=5, length=64)
ALL = "at boundaries 1, 2, 3, 4, 5, 6"
Change = Callable[[np.ndarray], np.ndarray]


def said(tmp_path: Path, plan: Plan, damage: Callable[[World], None], *stages: str) -> dict[str, list[Finding]]:
    world = make(plan)
    damage(world)
    out: dict[str, list[Finding]] = {}
    for finding in open_case(world.write(tmp_path)).findings(*(stages or ("samples", "forward", "acceptance"))):
        out.setdefault(finding.code, []).append(finding)
    return out


def failed(found: dict[str, list[Finding]]) -> set[str]:
    return {code for code, findings in found.items() if any(f.severity == FAIL for f in findings)}


def some(change: Change, boundaries: tuple[int, ...] = (), samples: int | None = None) -> Callable[[World], None]:
    def damage(world: World) -> None:
        for _, states in world.texts[:samples]:
            states |= {k: change(states[k]) for k in boundaries or states}

    return damage


def inside(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows[:20], np.repeat(rows[19:20], 10, 0), rows[30:]])


def long_tail(rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows[:16], np.repeat(rows[15:16], len(rows) - 16, 0)])


def test_a_tail_of_copies_is_named_cut_off_and_blamed_on_nothing_else(tmp_path):
    found = said(tmp_path, FREE, _every_state(_repeated_tail))
    (one,) = found["S018"]
    assert (one.severity, one.where) == (FAIL, "planted_0: h.*")
    assert one.title.endswith(f"planted_3, planted_4: rows 40 … 63 are copies of row 39 {ALL}")
    assert "as many rows as tokens" in one.remedy
    assert failed(found) == {"S018"}
    assert [f.severity for f in found["C004"]] == [BLOCKED]
    assert [f.severity for f in found["F003"]] == [Severity.PASS]


BLOCKING: dict[str, tuple[Change, tuple[int, ...], str]] = {
    "a buffer stored twice": (_twice, (), f"rows 32 … 63 repeat rows 0 … 31 {ALL}"),
    "a buffer stored four times": (lambda v: np.tile(v[:16], (4, 1)), (), "rows 16 … 63 repeat rows 0 … 15 over and over"),
    "a stretch inside": (inside, (), f"rows 20 … 29 are copies of row 19 {ALL}"),
    "a stretch of one boundary": (inside, (4,), "rows 20 … 29 are copies of row 19 at boundary 4"),
    "most of the text": (long_tail, (), f"rows 16 … 63 are copies of row 15 {ALL}"),
    "every row twice": (lambda v: np.repeat(v[:32], 2, 0), (), f"32 of 64 rows are copies of the row before {ALL}"),
    "one row throughout": (lambda v: np.repeat(v[7:8], 64, 0), (), f"rows 1 … 63 are copies of row 0 {ALL}"),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKING)
def test_copies_inside_a_text_block_the_verdict(tmp_path, name):
    change, boundaries, words = BLOCKING[name]
    found = said(tmp_path, FREE, some(change, boundaries))
    (one,) = found["S018"]
    assert one.severity == FAIL
    assert words in one.title
    assert failed(found) == {"S018"}
    for code in ("F003", "F006", "A001"):
        (late,) = found[code]
        assert late.severity == BLOCKED
        assert "(S018 blocks this)" in late.title


def test_a_sample_with_copies_is_left_out_and_the_others_are_searched(tmp_path):
    found = said(tmp_path, FREE, some(inside, samples=1), "samples", "forward")
    assert [f.title for f in found["S018"]] == [f"planted_0: rows 20 … 29 are copies of row 19 {ALL}"]
    assert failed(found) == {"S018"}
    assert [f.severity for f in found["F003"]] == [Severity.PASS]
    assert "of 4 samples" in found["F003"][0].evidence


def test_copies_at_other_rows_in_each_sample_are_one_finding(tmp_path):
    def damage(world: World) -> None:
        for i, (_, states) in enumerate(world.texts):
            states |= {k: np.concatenate([v[: 40 + i], np.repeat(v[39 + i : 40 + i], 24 - i, 0)]) for k, v in states.items()}  # fmt: skip

    (one,) = said(tmp_path, FREE, damage, "samples")["S018"]
    assert one.title.endswith(f"planted_4: rows N … N are copies of row N {ALL}")
    assert "planted_1: rows 41 … 63 are copies of row 40" in one.measured


def test_zeros_are_no_copies(tmp_path):
    found = said(tmp_path, FREE, some(lambda v: np.concatenate([v[:40], 0 * v[40:]])), "samples")
    assert failed(found) == {"S002"}


def draw(length: int = 64, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    return torch.randn(length, width, generator=random), torch.arange(length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [16, 7])
def test_copies_are_found_in_any_form(dtype, width):
    state, tokens = draw(width=width)
    state = state.to(dtype)
    assert not runs(copied(state, tokens, 3))
    state[40:] = state[39]
    lags = copied(state, tokens, 3)
    assert [c.words for c in runs(lags)] == ["rows 40 … 63 are copies of row 39"]
    assert before_copies(lags, 64) == 40
    wide = torch.cat([torch.zeros(64, 3), state.float()], 1).to(dtype)  # a view that starts between two words
    assert torch.equal(copied(wide[:, 3:], tokens, 3), lags)


def test_equal_tokens_excuse_equal_rows_at_boundary_0_only():
    state, tokens = draw()
    tokens[20:30], state[20:30] = tokens[20], state[20]
    assert not runs(copied(state, tokens, 0))
    assert [(c.first, c.last) for c in runs(copied(state, tokens, 2))] == [(21, 29)]


def test_a_state_that_is_the_embedding_under_another_number_is_judged_like_it():
    table, tokens = draw()[0], torch.arange(64) % 9
    assert not runs(copied(table[tokens], tokens, 3))
    state = draw()[0]
    state[40:], tokens[40:] = state[39], 5  # padded with one token: no function of the others
    assert [(c.first, c.last) for c in runs(copied(state, tokens, 3))] == [(40, 63)]


def test_equal_tokens_that_begin_a_text_have_equal_rows():
    """Each attends to copies of itself alone."""
    state, tokens = draw()
    tokens[:6], state[:6] = tokens[0], state[0]
    assert not runs(copied(state, tokens, 2))
    state[:9] = state[0]
    assert [(c.first, c.last) for c in runs(copied(state, tokens, 2))] == [(6, 8)]


def test_equal_rows_past_an_attention_window_are_let_pass():
    state, tokens = draw(300)
    tokens[50:], state[200:] = 7, state[200]
    assert not runs(copied(state, tokens, 2))
    tokens[50:150] = torch.arange(100)
    assert [(c.first, c.last) for c in runs(copied(state, tokens, 2))] == [(201, 299)]


def test_normed_states_are_named_and_block_the_verdict(tmp_path):
    found = said(tmp_path, FREE, _every_state(_normed))
    (one,) = found["S026"]
    assert one.severity == FAIL
    assert one.title.startswith("5 of 5 samples: all rows of boundaries 1, 2, 3, 4, 5, 6 have one RMS")
    assert "RMS 1, largest and smallest row 0.00% apart" in one.measured
    assert failed(found) == {"S026"}
    for code in ("F003", "F006", "A001"):
        assert [f.severity for f in found[code]] == [BLOCKED]
        assert "(S026 blocks this)" in found[code][0].title


def test_one_normed_sample_is_left_out(tmp_path):
    found = said(tmp_path, FREE, some(_normed, samples=1), "samples", "forward")
    assert [f.severity for f in found["S026"]] == [WARN]
    assert "1 of 5 samples" in found["S026"][0].title
    assert [f.severity for f in found["F003"]] == [Severity.PASS]


def weighted(rows: np.ndarray) -> np.ndarray:
    return (_normed(rows) * np.linspace(0.5, 1.5, rows.shape[1])).astype(np.float32)


@pytest.mark.parametrize(("change", "boundaries"), [(weighted, ()), (lambda v: v, ()), (_normed, (0,))])
def test_of_rows_normed_with_a_weight_or_of_embedding_rows_nothing_is_said(tmp_path, change, boundaries):
    plan = FREE.but(held=(0, 1, 2, 3, 4, 5, 6)) if boundaries else FREE
    assert "S026" not in said(tmp_path, plan, some(change, boundaries), "samples")


def test_sizes_are_read_of_rows_that_are_no_copies():
    state, tokens = draw(width=2048)
    lags = copied(state, tokens, 1)
    assert not normed(sizes(state, lags))
    one = torch.nn.functional.normalize(state, dim=1)
    assert normed(sizes(one, lags))
    assert normed(sizes(one.bfloat16(), lags))
    state[1:] = state[0]  # one row has one size, and says nothing
    assert sizes(state, copied(state, tokens, 1)) is None
    assert sizes(one[:23], lags[:23]) is None


def unreadable(tmp_path: Path, change: Callable[[tiny.Tensors], object], count: int = 5) -> list[Finding]:
    case = make(BASE.but(samples=5)).write(tmp_path)
    for file in sorted((tmp_path / "samples").iterdir())[:count]:
        tiny.edit(file, change)
    return [f for f in open_case(case).findings("samples") if f.code == "S001"]


def states(tensors: tiny.Tensors) -> list[str]:
    return [name for name in tensors if name[0] == "h"]


UNREADABLE: dict[str, tuple[Callable[[tiny.Tensors], object], str, str]] = {
    "float64": (lambda t: t.update({n: t[n].double() for n in states(t)}),
                "h.2, h.3, h.4, h.5: each is F64 [44, 32], expected BF16, F16 or F32 [T, Ht]", "record them again"),
    "ids with a batch axis": (lambda t: t.update(input_ids=t["input_ids"][None]),
                              "input_ids is I64 [1, 44], expected I64 [T]; squeeze the batch axis", "squeeze the batch axis"),
    "ids as a column": (lambda t: t.update(input_ids=t["input_ids"][:, None]),
                        "input_ids is I64 [44, 1], expected I64 [T]; squeeze the axis of one", "squeeze the batch axis"),
    "states with a batch axis": (lambda t: t.update({n: t[n][None] for n in states(t)}),
                                 "h.5: each is F32 [1, 44, 32], expected BF16, F16 or F32 [T, Ht]; squeeze the batch axis",
                                 "squeeze the batch axis"),
    "everything with a batch axis": (lambda t: t.update({n: v[None] for n, v in t.items()}),
                                     "loss_mask is U8 [1, 44], expected U8 [T]; squeeze the batch axis", "squeeze the batch axis"),
    "one token": (lambda t: t.update(input_ids=t["input_ids"][:1]), "1 tokens are too few", "record them again"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE)
def test_one_cause_is_one_finding_that_says_what_to_do(tmp_path, name):
    change, words, remedy = UNREADABLE[name]
    (one,) = unreadable(tmp_path, change)
    assert (one.severity, one.title) == (FAIL, "5 samples cannot be read and are left out")
    assert one.where == "planted_0, planted_1, planted_2, planted_3, planted_4"
    assert one.measured.startswith("samples/planted_0.safetensors: ")
    assert words in one.measured
    assert remedy in one.remedy
    assert "accept length" not in one.measured


def test_the_accept_length_is_suspected_where_rows_are_too_few(tmp_path):
    (one,) = unreadable(tmp_path, lambda t: t.update({n: t[n][:22] for n in states(t)}), 2)
    assert one.title == "2 samples cannot be read and are left out"
    assert "has 22 rows for 44 tokens; expected one row a token (ratio 0.50; one over the accept length" in one.measured


def test_causes_that_differ_in_more_than_numbers_are_told_apart(tmp_path):
    case = make(BASE.but(samples=5)).write(tmp_path)
    files = sorted((tmp_path / "samples").iterdir())
    for i, file in enumerate(files[:4]):
        tiny.edit(file, lambda t, i=i: t.update({n: t[n][: 30 + i] for n in states(t)} if i % 2 else {"input_ids": t["input_ids"][None]}))  # fmt: skip
    found = [f for f in open_case(case).findings("samples") if f.code == "S001"]
    assert [(f.title, f.where) for f in found] == [
        ("2 samples cannot be read and are left out", "planted_0, planted_2"),
        ("2 samples cannot be read and are left out", "planted_1, planted_3"),
    ]


def test_fourteen_files_with_one_fault_are_one_finding(tmp_path):
    folder = tiny.write_case(tmp_path).parent
    for i in range(14):
        tiny.pointer(folder / "samples" / f"bad_{i:02}.safetensors")
    (one,) = [f for f in open_case(folder).findings("samples") if f.code == "S001"]
    assert (one.severity, one.title) == (FAIL, "14 samples cannot be read and are left out")
    assert one.where == "bad_00, bad_01, bad_02, bad_03, bad_04 and 9 more"
    assert "git lfs pull" in one.measured


def test_unknown_keys_of_many_samples_are_one_finding(tmp_path):
    (one,) = unreadable(tmp_path, lambda t: t.update(position_ids=t["input_ids"].clone()))
    assert (one.severity, one.measured) == (WARN, "position_ids")
    assert one.title.startswith("5 samples hold keys")


def test_of_many_causes_ten_are_spelt_out(tmp_path):
    folder = tiny.write_case(tmp_path).parent
    for letter in "abcdefghijkl":
        tiny.edit(tiny.write_sample(folder / "samples" / f"bad_{letter}.safetensors", tiny.sample_tensors()),
                  lambda t, letter=letter: t.update({f"h.{'lost' + letter}": t["h.2"].clone()}, input_ids=t["input_ids"].float())
                  or [t.pop(name) for name in states(t) if "lost" not in name], format=f"of program {letter}")  # fmt: skip
    found = [f for f in open_case(folder).findings("samples") if f.code == "S001" and f.severity == FAIL]
    assert len(found) == 11
    assert (found[-1].title, found[-1].where) == ("2 more samples cannot be read and are left out", "bad_k, bad_l")
    assert found[-1].measured == "12 of 14, for 12 reasons"
