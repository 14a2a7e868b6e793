"""Planted damage to recordings: whose rows they are, what the mask marks, how large states are; and the look-alikes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from eagle3lab.case import open_case
from eagle3lab.records import Finding, Severity

FAIL, WARN, INFO, PASS = Severity.FAIL, Severity.WARN, Severity.INFO, Severity.PASS
LONG = 120
"""Tokens of the long samples below: enough rows for a step to show."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_case(tmp_path).parent


def long_tensors(seed: int = 5, length: int = LONG) -> tiny.Tensors:
    """A sound recording of ``length`` tokens: boundary 0 embeds them, boundary 8 leads to the next one."""
    rand = tiny._random(seed)
    rows = tiny.target_tensors()
    tokens = (rand(length) * 100).long().abs() % tiny.V
    states = {2: rand(length, tiny.H)}
    states[4] = states[2] + 0.3 * rand(length, tiny.H)
    states[5] = states[4] + 0.3 * rand(length, tiny.H)
    following = torch.cat((tokens[1:], tokens[:1]))
    states[0] = rows["model.embed_tokens.weight"][tokens]
    states[8] = 5 * rows["lm_head.weight"][following] / rows["model.norm.weight"] + 0.01 * states[5]
    mask = torch.zeros(length, dtype=torch.uint8)
    mask[tiny.PROMPT :] = 1
    return {"input_ids": tokens, "loss_mask": mask, **{f"h.{k}": states[k] for k in tiny.HELD}}


def long_samples(folder: Path, count: int = 3) -> list[Path]:
    for name in tiny.NAMES:
        (folder / "samples" / f"{name}.safetensors").unlink()
    return [tiny.write_sample(folder / "samples" / f"s{i}.safetensors", long_tensors(20 + i)) for i in range(count)]


def found(folder: Path, code: str, stage: str = "samples") -> list[Finding]:
    return [f for f in open_case(folder).findings(stage) if f.code == code]


def failed(folder: Path) -> set[str]:
    return {f.code for f in open_case(folder).findings("samples") if f.severity == FAIL}


def states(tensors: tiny.Tensors) -> list[str]:
    return [n for n in tensors if n[0] == "h"]


def test_a_sound_recording_fails_nothing(folder):
    assert not [f for f in open_case(folder).findings("samples") if f.severity in (FAIL, WARN)]
    long_samples(folder)
    assert not [f for f in open_case(folder).findings("samples") if f.severity in (FAIL, WARN)]
    assert [f.severity for f in found(folder, "S017")] == [PASS]


@pytest.mark.parametrize("lag", [7, -1])
def test_s017_finds_the_lag_and_names_nothing_else(folder, lag):
    for file in long_samples(folder):
        tiny.edit(file, lambda t: t.update({n: t[n].roll(-lag, 0) for n in states(t)}))
    (one,) = found(folder, "S017")
    assert (one.severity, one.measured) == (FAIL, f"lag {lag:+d}")
    assert ("the first 7 rows are missing" if lag > 0 else "1 rows late") in one.title
    assert failed(folder) == {"S017"}


def test_s017_finds_the_lag_by_the_last_state_alone(folder):
    for file in long_samples(folder):
        tiny.edit(file, lambda t: (t.pop("h.0"), t.update({n: t[n].roll(-3, 0) for n in states(t)})))
    (one,) = found(folder, "S017")
    assert (one.severity, one.measured) == (FAIL, "lag +3")
    assert "the last state predicts" in one.evidence


def test_s017_finds_one_boundary_that_lies_apart(folder):
    for file in long_samples(folder):
        tiny.edit(file, lambda t: t.update({"h.4": t["h.4"].roll(2, 0)}))
    (one,) = found(folder, "S017")
    assert (one.severity, one.where) == (FAIL, "s0, s1, s2: h.4")
    assert one.title == "boundary 4 lies 2 rows late beside the others in 3 samples"
    for file in sorted((folder / "samples").iterdir()):  # of two alone, none can be said to be the late one
        tiny.edit(file, lambda t: [t.pop(name) for name in ("h.5", "h.8")])
    hits = found(folder, "S017")
    assert "boundaries 2 and 4 lie 2 rows apart in 3 samples" in hits[0].title


def test_s017_says_where_too_few_rows_belong(folder):
    file = long_samples(folder)[0]
    tiny.edit(file, lambda t: t.update({n: t[n][7:] for n in states(t)}))
    (one,) = [f for f in found(folder, "S001") if f.severity == FAIL]
    assert "its 113 rows are those of tokens 7 … 119" in one.evidence
    assert "the first 7 tokens have none" in one.evidence
    tiny.edit(file, lambda t: t.pop("h.0"))
    (one,) = [f for f in found(folder, "S001") if f.severity == FAIL]
    assert "tokens 7 … 119" in one.evidence


def _other_half(tensors: tiny.Tensors) -> None:
    other = long_tensors(99)
    for name in states(tensors):
        tensors[name][60:] = other[name][60:]


def test_s018_names_the_row_from_which_states_are_another_places(folder):
    file = long_samples(folder)[1]
    tiny.edit(file, _other_half)
    (one,) = found(folder, "S018")
    assert (one.severity, one.where) == (FAIL, "s1: h.*")
    assert "rows from row 60 on do not belong to these tokens" in one.title
    assert failed(folder) == {"S018"}
    tiny.edit(file, lambda t: t.pop("h.0"))  # then the last state tells
    (one,) = found(folder, "S018")
    assert "rows from row 60 on" in one.title
    tiny.edit(file, lambda t: t.pop("h.8"))  # all boundaries moved together, and none can be checked against tokens
    assert not found(folder, "S018")


def test_s018_sees_one_boundary_change_place_without_any_target(folder):
    file = long_samples(folder)[1]
    tiny.edit(file, lambda t: t["h.4"][60:].copy_(long_tensors(99)["h.4"][60:]))
    (one,) = found(folder, "S018")
    assert one.severity == FAIL
    assert "rows from row 60 on of boundary 2 or 4" in one.title


def test_s018_names_samples_that_were_swapped(folder):
    files = long_samples(folder, 5)
    first, second = (long_tensors(20 + i) for i in (1, 3))
    for file, other in ((files[1], second), (files[3], first)):
        tiny.edit(file, lambda t, other=other: t.update({n: other[n] for n in states(t) if n != "h.0"}))
    (one,) = found(folder, "S018")
    assert one.severity == FAIL
    assert one.title.startswith("s1, s3: ")
    assert failed(folder) == {"S018"}


def test_s018_lets_sampled_text_pass(folder):
    """Every third token is not the target's own choice: neither lag nor foreign rows."""
    for file in long_samples(folder):
        tiny.edit(file, lambda t: t["h.8"][::3].copy_(t["h.8"][::3].flip(0)))
    assert failed(folder) == set()
    assert [f.severity for f in found(folder, "S005")] == [WARN]


def test_s018_lets_a_prompt_pass_that_no_mask_tells_from_the_reply(folder):
    """A user's own words are not the model's choice: without a mask they look like rows of another place."""
    for file in long_samples(folder):
        tiny.edit(file, lambda t: (t.pop("h.0"), t["loss_mask"].fill_(1), t["h.8"][:40].copy_(t["h.8"][:40].flip(0))))
    assert failed(folder) == set()


def test_s019_names_equal_column_blocks(folder):
    for file in long_samples(folder):
        tiny.edit(file, lambda t: t.update({"h.4": t["h.4"][:, :4].repeat(1, 4)}))
    (one,) = found(folder, "S019")
    assert (one.severity, one.measured) == (FAIL, "4 equal blocks of 4 columns")
    assert "3 samples" in one.title


@pytest.mark.parametrize(
    ("change", "severity", "says"),
    [
        (lambda t: t.update({"h.4": t["h.4"] * 3}), FAIL, "scaled"),
        (lambda t: t["h.4"].add_(0), None, ""),
        (lambda t: t.update({n: t[n].bfloat16() for n in states(t)}), None, ""),
        (lambda t: t.update({"h.4": t["h.4"] @ torch.linalg.qr(tiny._random(3)(16, 16))[0]}), FAIL, "rotated"),
    ],
    ids=["another scale", "a copy", "bfloat16", "a rotated basis"],
)
def test_s020_compares_recordings_of_the_same_tokens(folder, change, severity, says):
    long_samples(folder)
    tiny.write_sample(folder / "samples" / "s0_again.safetensors", long_tensors(20))
    tiny.edit(folder / "samples" / "s0_again.safetensors", change)
    hits = found(folder, "S020")
    assert [f.severity for f in hits] == ([severity] if severity else [])
    assert not severity or says in hits[0].title
    assert [f.severity for f in found(folder, "S014")] == [WARN]


def test_s021_finds_a_doubled_prompt(folder):
    file = long_samples(folder)[0]
    tiny.edit(file, lambda t: t["input_ids"][:6].copy_(torch.tensor([1, 2, 3, 1, 2, 3])))
    (one,) = found(folder, "S021")
    assert one.severity == WARN
    assert "s0: its first 3 tokens" in one.measured


def test_s021_lets_one_repeated_token_pass(folder):
    tiny.edit(long_samples(folder)[0], lambda t: t["input_ids"][:8].fill_(5))
    assert not found(folder, "S021")


def ends(folder: Path, **config: Any) -> None:
    tiny.edit_json(folder / "target" / "config.json", **config)


def tokens(*places: tuple[int, int], mask: tuple[int, int] | None = None):
    def change(t: tiny.Tensors) -> None:
        t["input_ids"][t["input_ids"] == 60] = 61
        for place, token in places:
            t["input_ids"][place] = token
        if mask:
            t["loss_mask"][:] = 0
            t["loss_mask"][mask[0] : mask[1]] = 1

    return change


MASKS = {
    "one in a hundred": (WARN, [tokens(mask=(50, 52))], "0.0167 to 0.0167"),
    "padding at the end": (WARN, [tokens((-1, 0)), tokens((-1, 0)), tokens((-1, 0))], "3 tokens 0 at the ends of 3"),
    "past its end by two": (WARN, [tokens((-3, 60))] * 3, "passed by 3"),
    "past its end by a line break": (INFO, [tokens((-2, 60))] * 3, "passed by 3"),
    "two templates": (WARN, [tokens((-1, 60)), tokens((-1, 60), mask=(12, 119))], "inside 1, right after 1"),
    "no end token inside": (INFO, [tokens((-1, 60), mask=(12, 119))] * 3, "right after 3"),
    "an end token each": (PASS, [tokens((-1, 60))] * 3, "inside 3"),
    "cut at a length": (PASS, [tokens()] * 3, "ends without one 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_s022_audits_the_mask(folder, name):
    severity, changes, says = MASKS[name]
    ends(folder, eos_token_id=[60], pad_token_id=None)
    for file, change in zip(long_samples(folder, len(changes)), changes, strict=True):
        tiny.edit(file, change)
    hits = [f for f in found(folder, "S022") if f.severity == severity]
    assert hits, [(f.severity, f.title) for f in found(folder, "S022")]
    assert says in hits[0].measured


def test_s022_pad_tokens_that_end_replies_are_no_padding(folder):
    ends(folder, eos_token_id=0, pad_token_id=0)
    for file in long_samples(folder):
        tiny.edit(file, tokens((-1, 0)))
    assert [f.severity for f in found(folder, "S022")] == [PASS]


def test_s023_counts_what_float16_cannot_hold(folder):
    for file in long_samples(folder):
        tiny.edit(file, lambda t: t["h.4"][3, 2].fill_(7e4))
    (one,) = [f for f in found(folder, "S023") if f.severity == WARN]
    assert "up to 70,000 at boundary 4" in one.measured
    for file in (folder / "samples").iterdir():
        tiny.edit(file, lambda t: t["h.4"][3, 2].fill_(100))
    assert {f.severity for f in found(folder, "S023")} == {PASS}


def test_s002_counts_clamped_float16_and_a_state_of_zeros(folder):
    file = long_samples(folder)[0]
    tiny.edit(file, lambda t: t.update({n: t[n].half() for n in states(t)}))
    assert [f.severity for f in found(folder, "S002")] == [PASS]
    tiny.edit(file, lambda t: (t["h.4"][17, 2].fill_(65504), t["h.2"].zero_()))
    clamped, zero = found(folder, "S002")
    assert (clamped.severity, clamped.measured) == (FAIL, "1 of 120 rows")
    assert "65504" in clamped.title
    assert (zero.measured, zero.severity) == ("120 of 120 rows", FAIL)
    assert "never captured" in zero.remedy


def test_s023_warns_of_a_slot_that_drowns_the_others(folder):
    for file in long_samples(folder):
        tiny.edit(file, lambda t: t["h.5"].mul_(50))
    (one,) = found(folder, "S023")
    assert one.severity == WARN
    assert "slot h.5 carries 100% of the energy" in one.title
    tiny.edit(folder / "draft" / "model.safetensors", lambda t: t.update({"input_norm.weight": torch.full((48,), 0.9)}))
    tiny.edit_json(folder / "draft" / "config.json", norm_before_fc=True)
    assert [f.severity for f in found(folder, "S023")] == [PASS]


def test_s024_plans_the_bytes_of_more(folder):
    long_samples(folder)
    (one,) = found(folder, "S024")
    assert one.severity == INFO
    assert "320 B a token (5 states of 16)" in one.measured
    assert "1,000 38.4 MB, 10,000 384 MB, 100,000 3.84 GB" in one.measured


def test_s004_knows_a_norm_that_multiplies_by_one_plus_w(folder):
    """The weights are stored as w - 1, Gemma's way, under a model type that multiplies by w."""
    tiny.edit(folder / "target" / "model.safetensors", lambda t: t["model.norm.weight"].sub_(1))
    (one,) = found(folder, "S004")
    assert one.severity == FAIL
    assert "read as 1 + w" in one.title
    tiny.edit_json(folder / "target" / "config.json", model_type="gemma2")
    assert [f.severity for f in found(folder, "S004")] == [PASS]


def test_s014_says_when_one_reply_is_in_two_samples(folder):
    first, second = long_samples(folder, 2)
    reply = long_tensors(20)["input_ids"][tiny.PROMPT :]
    tiny.edit(second, lambda t: t["input_ids"][tiny.PROMPT :].copy_(reply))
    assert [(f.severity, f.where) for f in found(folder, "S014")] == [(INFO, "s0 = s1")]


def test_c004_says_what_an_unsound_recording_blocks(folder):
    for file in (folder / "samples").iterdir():
        tiny.edit(file, lambda t: t.update({n: t[n].roll(-2, 0) for n in states(t)}))
    (one,) = [f for f in open_case(folder).findings("samples", "forward") if f.code == "C004"]
    assert one.severity == Severity.BLOCKED
    assert "the recording is not sound (S017" in one.title
    assert not [f for f in open_case(folder).findings("samples") if f.code == "C004"]


def test_the_survey_reads_each_head_row_once(folder, monkeypatch):
    from eagle3lab.target import Target

    calls = []
    lens = Target.lens
    monkeypatch.setattr(Target, "lens", lambda self, *given, **named: calls.append(1) or lens(self, *given, **named))
    long_samples(folder, 8)
    found(folder, "S004")
    assert len(calls) <= 5, "four forms on a probe and one pass: never once a sample, since each reads the whole head"


def test_json_has_the_new_codes(folder, capsys):
    from eagle3lab.__main__ import main

    main(["check", str(folder), "--json", "--stage", "samples"])
    said = json.loads(capsys.readouterr().out)
    assert {"S017", "S022", "S024"} <= set(said["checked"])


def test_s009_is_undetermined_where_far_boundaries_share_nothing(folder):
    for i, file in enumerate(long_samples(folder)):
        tiny.edit(
            file, lambda t, i=i: (t.pop("h.5"), t.pop("h.8"), t.update({"h.4": tiny._random(60 + i)(LONG, tiny.H)}))
        )
    assert [f.severity for f in found(folder, "S009")] == [Severity.UNDETERMINED]
    for i, file in enumerate(sorted((folder / "samples").iterdir())):
        tiny.edit(file, lambda t, i=i: t.update({"h.4": t["h.2"] + 2 * tiny._random(60 + i)(LONG, tiny.H)}))
    assert not found(folder, "S009")


def test_notebook_03_shows_what_the_checks_saw(folder):
    from eagle3lab import views

    for file in long_samples(folder):
        tiny.edit(file, lambda t: t.update({n: t[n].roll(-7, 0) for n in states(t)}))
    case = open_case(folder)
    shares = views.lags(case)
    assert max(shares, key=lambda lag: shares[lag][0] / shares[lag][1]) == 7
    assert [row["lag"] for row in views.agreement(case)] == [7, 7, 7]
    assert [(row["start"], row["end"], row["following"]) for row in views.spans(case)] == [(12, 120, "")] * 3
    assert dict(views.plan(case))["a token"] == "320 B"
