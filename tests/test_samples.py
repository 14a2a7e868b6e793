"""Recorded samples: every fault of a file at once, with its numbers; good ones are read around bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from eagle3lab.errors import BadFile
from eagle3lab.recordings import Known
from eagle3lab.samples import Samples, read_sample, reply_rows


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tiny.write_sample(tmp_path / "samples" / "one.safetensors", tiny.sample_tensors())


def refused(file: Path, **known: int) -> str:
    with pytest.raises(BadFile) as caught:
        read_sample(file, file.parents[1], Known(**known))
    assert file.name in str(caught.value)
    return str(caught.value)


def test_a_sample_is_read_with_its_states_mapped(file):
    sample = read_sample(file, file.parents[1], Known(layers=8, vocab=64))
    assert (sample.name, sample.path) == ("one", "samples/one.safetensors")
    assert (sample.length, sample.width, sample.boundaries) == (40, 16, (0, 2, 4, 5, 8))
    assert (sample.last, sample.final, sample.final_norm, sample.unused) == (8, None, "none", ())
    assert sample.spans == [(12, 40)]
    assert reply_rows(sample).tolist() == list(range(11, 38))
    assert sample.finite


CHANGES = {
    "a state of another T": (lambda t: t.update({"h.2": t["h.2"][:30]}), "h.2 has 30 rows for 40 tokens", "0.75"),
    "a mask of another T": (lambda t: t.update(loss_mask=t["loss_mask"][:30]), "loss_mask has [30]", "input_ids 40"),
    "ids as floats": (lambda t: t.update(input_ids=t["input_ids"].float()), "input_ids is F32 [40]", "I64 [T]"),
    "ids with a batch": (lambda t: t.update(input_ids=t["input_ids"][None]), "input_ids is I64 [1, 40]", "I64 [T]"),
    "a mask of floats": (lambda t: t.update(loss_mask=t["loss_mask"].float()), "loss_mask is F32 [40]", "U8 [T]"),
    "a mask of twos": (lambda t: t["loss_mask"].mul_(2), "loss_mask holds [2, 2", "1 on reply tokens"),
    "integer states": (lambda t: t.update({"h.2": t["h.2"].long()}), "h.2 is I64 [40, 16]", "BF16, F16 or F32 [T, Ht]"),
    "double states": (lambda t: t.update({"h.2": t["h.2"].double()}), "h.2 is F64", "BF16, F16 or F32"),
    "states with a batch": (lambda t: t.update({"h.2": t["h.2"][None]}), "h.2 is F32 [1, 40, 16]", "[T, Ht]"),
    "a state that is a number": (lambda t: t.update({"h.2": torch.tensor(1.0)}), "h.2 is F32 []", "[T, Ht]"),
    "two widths": (lambda t: t.update({"h.2": torch.ones(40, 24)}), "widths [16, 24]", "one width Ht"),
    "no width": (lambda t: t.update({n: s[:, :0] for n, s in t.items() if n[0] == "h"}), "widths [0]", "above 0"),
    "no tokens": (lambda t: t.update({n: s[:0] for n, s in t.items()}), "0 tokens are too few", "two tokens after"),
    "one token": (lambda t: t.update({n: s[:1] for n, s in t.items()}), "1 tokens are too few", "two tokens after"),
    "no mask": (lambda t: t.pop("loss_mask"), "key 'loss_mask' is missing", "found h.0"),
    "no tokens' key": (lambda t: t.pop("input_ids"), "key 'input_ids' is missing", "found h.0"),
    "no state": (lambda t: [t.pop(n) for n in list(t) if n[0] == "h"], "no state 'h.K' is there", "found input_ids"),
    "negative ids": (lambda t: t["input_ids"].__setitem__(3, -1), "input_ids holds [-1]", "vocabulary"),
    "a final of another T": (lambda t: t.update(final=t["h.8"][:3]), "final has 3 rows for 40", "one row a token"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_fault_says_what_was_found_and_expected(file, name):
    change, found, expected = CHANGES[name]
    text = refused(tiny.edit(file, change))
    assert found in text
    assert expected in text


def test_all_faults_are_one_error(file):
    def several(t):
        t["h.2"], t["h.4"], t["loss_mask"] = t["h.2"][:30], t["h.4"].long(), t["loss_mask"][:3]

    text = refused(tiny.edit(file, several))
    assert all(key in text for key in ("h.2 has 30", "h.4 is I64", "loss_mask has [3]"))


def test_a_file_of_another_format_is_said_to_be_one(file):
    from safetensors.torch import save_file

    save_file({"hidden": torch.ones(3, 4)}, file, metadata={"format": "pt"})
    text = refused(file)
    assert "expected 'eagle3lab-sample/1'" in text
    assert "found hidden" in text
    save_file({"latents": torch.ones(3, 4)}, file)
    assert "holds latents: no known kind of recording" in refused(file)
    assert "'final_norm' is 'maybe'" in refused(tiny.write_sample(file, tiny.sample_tensors(), final_norm="maybe"))


def test_tokens_and_boundaries_that_the_target_lacks(file):
    tiny.edit(file, lambda t: t["input_ids"].__setitem__(3, 64))
    assert "holds [64], outside the vocabulary of 64" in refused(file, vocab=64)
    assert read_sample(file, file.parent, Known(vocab=65)).length == 40
    text = refused(file, layers=4, vocab=65)
    assert "boundaries [5, 8] lie above 4" in text


def test_keys_that_the_format_does_not_know_are_kept_by_name(file):
    tiny.edit(file, lambda t: t.update({"attention_mask": torch.ones(40), "h.02": t["h.2"].clone()}))
    sample = read_sample(file, file.parent)
    assert sample.unused == ("attention_mask", "h.02")
    assert sample.boundaries == (0, 2, 4, 5, 8)


def test_a_folder_a_file_and_a_pattern(file):
    folder = file.parent
    tiny.write_sample(folder / "two.safetensors", tiny.sample_tensors())
    assert list(Samples(folder, folder)) == ["one", "two"]
    assert list(Samples(file, folder)) == ["one"]
    found = Samples(folder / "t*", folder, exclude=["tw*"])
    assert (list(found), found.headline, len(found)) == (["two"], [], 1)


def test_names_are_any_file_names(file):
    name = 'it\'s <b>x & "q" ü'
    file.rename(file.with_name(f"{name}.safetensors"))
    samples = Samples(file.parent, file.parents[1])
    assert samples[name].name == name
    assert name in samples


def test_a_bad_sample_does_not_hide_the_good_ones(file):
    tiny.pointer(file.with_name("bad.safetensors"))
    samples = Samples(file.parent, file.parents[1])
    assert samples["one"].length == 40
    with pytest.raises(BadFile, match=r"bad\.safetensors.*git lfs pull"):
        samples["bad"]
    with pytest.raises(BadFile, match="no sample 'nope'; found bad, one"):
        samples["nope"]
    assert "nope" not in samples


def test_what_is_no_folder_of_samples(tmp_path):
    with pytest.raises(BadFile, match=r"check \[samples\] path"):
        Samples(tmp_path / "nowhere", tmp_path)
    (tmp_path / "x").mkdir()
    with pytest.raises(BadFile, match="an empty folder"):
        Samples(tmp_path / "x", tmp_path)
    (tmp_path / "x" / "a.npz").write_bytes(b"")
    with pytest.raises(BadFile, match=r"found a\.npz; expected recorded samples"):
        Samples(tmp_path / "x", tmp_path)


def test_recordings_of_other_programs_are_not_passed_over_in_silence(file):
    for name in ("a.arrow", "b.npz", "index.json"):
        (file.parent / name).write_bytes(b"")
    samples = Samples(file.parent, file.parent)
    assert samples.listing.others == ("a.arrow", "b.npz")
    assert list(samples) == ["one"]


def test_two_files_of_one_name_are_told_apart_by_their_folders(file):
    other = tiny.write_sample(file.parent / "more" / "one.safetensors", tiny.sample_tensors(12))
    samples = Samples(file.parent, file.parent)
    assert list(samples) == ["more/one", "one"]
    assert samples.file("more/one") == other
    assert samples.listing.repeated == ("one",)
