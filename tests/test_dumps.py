"""Every kind of recording opens, and holds what its writer meant: the same three conversations, compared with the truth.

``tests/fixtures/README.md`` says which files the programs themselves wrote and which follow the fact sheets.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3lab.dialects.lab import write_sample
from eagle3lab.dialects.recorded import READERS
from eagle3lab.errors import BadFile
from eagle3lab.recordings import Known
from eagle3lab.records import Sample
from eagle3lab.samples import Samples

FIXTURES = Path(__file__).parent / "fixtures"
KNOWN = Known(layers=8, hidden=16, vocab=64)
TRUTH = load_file(FIXTURES / "truth.safetensors")
USUAL = (2, 4, 5)


@dataclass(frozen=True)
class Dump:
    """One fixture folder and what reading it must give."""

    folder: str
    writer: str
    boundaries: tuple[int, ...] = USUAL
    final: str = "post"
    mask: bool = True
    stated: bool = False
    exact: bool = True
    first: int = 0
    cut: int = 0
    dtype: torch.dtype = torch.bfloat16
    notes: tuple[str, ...] = field(default=())
    known: Known = KNOWN


def said(boundaries: tuple[int, ...], final: str) -> Known:
    """What a case.toml would add."""
    return Known(layers=8, hidden=16, vocab=64, boundaries=boundaries, final=final)


DUMPS = [
    Dump("specforge/features", "specforge"),
    Dump("specforge/features_gz", "specforge"),
    Dump("specforge/features_batch_padded", "specforge", notes=("rows of padding",)),
    Dump("speculators/data", "speculators", (2, 4, 5, 8), "none"),
    Dump("speculators/hidden_states_fp8", "speculators", (2, 4, 5, 8), "none", mask=False, exact=False, notes=("fp8",)),
    Dump("speculators_v1", "speculators-0.3", (3, 5, 6, 8), "none", stated=True),
    Dump("automodel/full", "automodel", USUAL, "none", stated=True, first=1, notes=("token 0 is not recorded", "padding")),
    Dump("automodel/topk", "automodel", USUAL, "none", stated=True, first=1, notes=("token 0 is not recorded", "padding")),
    Dump("facts/modelopt_hf", "modelopt"),
    Dump("facts/modelopt_trt", "modelopt", mask=False),
    Dump("facts/modelopt_vllm", "modelopt", (1, 3, 4, 8), "none", stated=True, known=said((1, 3, 4), "pre")),
    Dump("facts/modelopt_vllm_old", "modelopt", (3, 5, 6, 8), "none", mask=False, stated=True, known=said((3, 5, 6), "pre")),
    Dump("facts/trtllm_raw", "trtllm", mask=False),
    Dump("facts/trtllm_raw_old", "trtllm", mask=False),
    Dump("facts/trtllm_raw_last", "trtllm", mask=False, notes=("repeats the last state",)),
    Dump("facts/angelslim", "angelslim"),
    Dump("facts/vllm_connector", "vllm", (2, 4, 5, 8), "none", mask=False),
    Dump("facts/sglang/*-aux.json", "sglang", USUAL, "none", cut=1, dtype=torch.float32, notes=("has no row",)),
    Dump("facts/speculators_v0", "speculators-research"),
]  # fmt: skip


def opened(dump: Dump, known: Known | None = None) -> Samples:
    return Samples(FIXTURES / dump.folder, FIXTURES, known=known or dump.known)


def conversation(sample: Sample, first: int = 0) -> str:
    """Which of the three conversations a sample is, by its tokens."""
    ids = sample.input_ids[first:]
    fits = [c for c in "abc" if torch.equal(TRUTH[f"{c}.input_ids"][first : first + len(ids)], ids)]
    assert len(fits) == 1, f"{sample.path}: tokens of {fits or 'none'} of the three conversations"
    return fits[0]


@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.folder)
def test_a_dump_holds_what_its_writer_meant(dump):
    samples = opened(dump)
    assert not samples.listing.others
    met = set()
    for name in samples:
        sample = samples[name]
        one = conversation(sample, dump.first)
        met.add(one)
        length = sample.length
        assert length == len(TRUTH[f"{one}.input_ids"]) - dump.cut
        assert (sample.writer, sample.boundaries, sample.final_norm) == (dump.writer, dump.boundaries, dump.final)
        assert sample.unused == ()
        for k, state in sample.states.items():
            wanted = TRUTH[f"{one}.h.{k}"][:length]
            assert state.dtype == dump.dtype
            torch.testing.assert_close(
                state, wanted.bfloat16().to(state.dtype), rtol=0 if dump.exact else 0.07, atol=0 if dump.exact else 0.02
            )
        if dump.final == "post":
            assert sample.final is not None
            assert torch.equal(sample.final, TRUTH[f"{one}.post"][:length].to(sample.final.dtype))
        if dump.writer == "sglang":  # what was generated, the last turn only
            assert sample.spans == [(sample.spans[-1][0], length)]
            assert sample.loss_mask.long().le(TRUTH[f"{one}.loss_mask"][:length]).all()
        elif dump.mask:
            assert torch.equal(sample.loss_mask.long(), TRUTH[f"{one}.loss_mask"][:length])
        else:
            assert sample.loss_mask.all()
            assert any("no loss mask" in note for note in sample.notes)
        assert bool(sample.assumed) != dump.stated
    assert len(met) == len(samples)
    notes = [note for name in samples for note in samples[name].notes]
    assert all(any(word in note for note in notes) for word in dump.notes)


@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.folder)
def test_a_sample_written_in_the_labs_own_format_is_equal_bit_by_bit(dump, tmp_path):
    samples = opened(dump)
    for name in samples:
        sample = samples[name]
        file = write_sample(sample, tmp_path / f"{sample.name.replace('/', '_')}.safetensors")
        again = Samples(file, tmp_path, known=dump.known)[file.stem]
        assert torch.equal(again.input_ids, sample.input_ids)
        assert torch.equal(again.loss_mask, sample.loss_mask)
        assert list(again.states) == list(sample.states)
        assert all(same(again.states[k], sample.states[k]) for k in sample.states)
        assert (again.final_norm, again.last) == (sample.final_norm, sample.last)
        assert (again.final is None) == (sample.final is None)
        assert sample.final is None or same(again.final, sample.final)
        assert (again.distribution is None) == (sample.distribution is None)
        if sample.distribution is not None and again.distribution is not None:
            assert same(again.distribution.probs, sample.distribution.probs)
            assert torch.equal(again.distribution.tokens, sample.distribution.tokens)
            assert torch.equal(again.distribution.covered, sample.distribution.covered)
            assert again.distribution.first == sample.distribution.first
        with pytest.raises(FileExistsError):
            write_sample(sample, file)


def same(a: torch.Tensor | None, b: torch.Tensor) -> bool:
    """Equal bits, NaN included."""
    kind = {2: torch.int16, 4: torch.int32}[b.element_size()]
    return a is not None and a.dtype == b.dtype and torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


@pytest.mark.parametrize("dump", [d for d in DUMPS if "gz" not in d.folder and "fp8" not in d.folder and "sglang" not in d.folder],
                         ids=lambda d: d.folder)  # fmt: skip
def test_states_are_views_of_the_file(dump):
    """Distinct memory behind all states together is no more than the file: nothing was copied on the way."""
    samples = opened(dump)
    name = next(iter(samples))
    sample = samples[name]
    held = {s.untyped_storage().data_ptr(): s.untyped_storage().nbytes() for s in sample.states.values()}
    assert sum(held.values()) <= samples.file(name).stat().st_size
    if len(sample.boundaries) == 3:
        assert len(held) == 1


@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.folder)
def test_pread_gives_what_mmap_gives(dump):
    mapped, read = opened(dump), opened(dump, replace(dump.known, access="pread"))
    for name in mapped:
        a, b = mapped[name], read[name]
        assert all(same(b.states[k], a.states[k]) for k in a.states)
        assert torch.equal(a.input_ids, b.input_ids)


def test_every_reader_has_a_fixture():
    tried = {dump.writer for dump in DUMPS} | {"lab"}
    assert {reader.kind.name for reader in READERS} == tried


# ---- what the case says


def test_the_case_names_boundaries_and_norm():
    known = Known(layers=8, hidden=16, vocab=64, boundaries=(1, 3, 7), final="pre")
    sample = opened(DUMPS[0], known)["data_0"]
    assert sample.boundaries == (1, 3, 7, 8)
    assert (sample.assumed, sample.final, sample.last) == ((), None, 8)
    with_last = Known(layers=8, hidden=16, vocab=64, boundaries=(1, 3, 7, 8), final="post")
    sample = opened(DUMPS[0], with_last)["data_0"]
    assert (sample.boundaries, sample.final_norm) == ((1, 3, 7), "post")
    stacked = opened(DUMPS[3], with_last)["hs_0"]
    assert (stacked.boundaries, stacked.final_norm) == ((1, 3, 7), "post")


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (Known(layers=8, hidden=16, boundaries=(1, 2)), r"holds 3 states side by side.*lists \[1, 2\]"),
        (Known(layers=8, hidden=16, boundaries=(1, 2, 2)), "name one twice"),
        (Known(layers=8, hidden=16, boundaries=(1, 2, 9)), r"boundaries \[9\] lie above 8"),
        (Known(hidden=16), "number of target layers is not known; add boundaries"),
        (Known(layers=8, hidden=16, vocab=10), "outside the vocabulary of 10"),
    ],
)
def test_what_does_not_fit_the_case_is_said(known, says):
    with pytest.raises(BadFile, match=says):
        opened(DUMPS[0], known)["data_0"]


# ---- damage: of every kind, to every kind of file


def archive(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(file: Path) -> None:
        packed = file.name.endswith(".gz")
        with (gzip.open if packed else open)(file, "rb") as stream:
            content = torch.load(stream, weights_only=True)
        for one in content if isinstance(content, list) else [content]:
            change(one)
        with (gzip.open if packed else open)(file, "wb") as stream:
            torch.save(content, stream)

    return apply


def plain(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(file: Path) -> None:
        content = {k: v.clone() for k, v in load_file(file).items()}
        change(content)
        save_file({k: v.contiguous() for k, v in content.items()}, file)

    return apply


def any_kind(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(file: Path) -> None:
        (plain if file.suffix == ".safetensors" else archive)(change)(file)

    return apply


def tokens_of(content: dict[str, Any]) -> str:
    return "token_ids" if "token_ids" in content else "input_ids"


def states_of(content: dict[str, Any]) -> str:
    return next(k for k in ("aux_hidden_state", "aux_hidden_states", "hidden_states", "hidden_state") if k in content)


def shortened(content: dict[str, Any]) -> None:
    key = tokens_of(content)
    content[key] = content[key][..., :-1].clone()


def other_dtype(content: dict[str, Any]) -> None:
    key = states_of(content)
    value = content[key]
    content[key] = [v.long() for v in value] if isinstance(value, list) else value.to(torch.int32)


def other_rank(content: dict[str, Any]) -> None:
    key = tokens_of(content)
    content[key] = torch.stack((content[key].reshape(-1),) * 2)[None]


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda f: f.write_bytes(b""),
    "text": lambda f: f.write_text("<html>404</html>" * 9),
    "lfs pointer": lambda f: f.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    "T mismatch": any_kind(shortened),
    "integer states": any_kind(other_dtype),
    "wrong rank": any_kind(other_rank),
    "no tokens": any_kind(lambda c: c.pop(tokens_of(c))),
    "a link to itself": lambda f: (f.unlink(), f.symlink_to(f.name)),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.folder)
def test_damage_is_named_and_the_others_are_served(dump, damage, tmp_path):
    folder = tmp_path / "dump"
    source = FIXTURES / dump.folder
    shutil.copytree(source if source.is_dir() else source.parent, folder)
    if not source.is_dir():
        folder = folder / source.name
    whole = Samples(folder, tmp_path, known=dump.known)
    name = list(whole)[-1]
    file = whole.file(name)
    if file.suffix == ".json" and damage in ("T mismatch", "integer states", "wrong rank", "no tokens"):
        pytest.skip("JSON has no tensors; its own test is below")
    DAMAGE[damage](file)
    samples = Samples(folder, tmp_path, known=dump.known)
    bad = [n for n in samples if samples.file(n) == file]
    assert bad
    for one in bad:
        with pytest.raises(BadFile) as caught:
            samples[one]
        assert file.name in str(caught.value)
    for other in samples:
        if samples.file(other) != file:
            assert samples[other].length > 3


@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.folder)
def test_a_file_cut_anywhere_is_refused_by_name(dump, tmp_path):
    samples = opened(dump)
    source = samples.file(next(iter(samples)))
    if source.suffix == ".jsonl":
        pytest.skip("a cut line is JSON's own matter; tested below")
    content = source.read_bytes()
    for share in (0.001, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
        file = tmp_path / source.name
        file.write_bytes(content[: max(1, int(len(content) * share))])
        with pytest.raises(BadFile, match=file.name):
            cut = Samples(file, tmp_path, known=dump.known)
            cut[next(iter(cut))]


class Evil:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("suffix", [".ckpt", ".ckpt.gz", ".pt", ".pth"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_would_run_code_does_not_run(suffix, protocol, tmp_path):
    trap, file = tmp_path / "it_ran", tmp_path / f"data_0{suffix}"
    with (gzip.open if suffix.endswith("gz") else open)(file, "wb") as stream:
        pickle.dump({"input_ids": Evil(trap)}, stream, protocol)
    samples = Samples(file, tmp_path, known=KNOWN)
    with pytest.raises(BadFile, match=r"data_0.*(runs no code|torch archive)"):
        samples["data_0"]
    torch.save({"input_ids": Evil(trap)}, tmp_path / "zip.pt")
    with pytest.raises(BadFile, match="runs no code of a file"):
        Samples(tmp_path / "zip.pt", tmp_path, known=KNOWN)["zip"]
    assert not trap.exists()


@pytest.mark.parametrize("name", ["hs_0.safetensors", "a.pt", "a.ckpt", "a.ckpt.gz", "a.json"])
def test_ten_sparse_gigabytes_with_a_hostile_length_fail_at_once(name, tmp_path):
    file = tmp_path / name
    with file.open("wb") as stream:
        stream.write((10**10 - 100).to_bytes(8, "little"))
        stream.truncate(10**10)
    with pytest.raises(BadFile, match=name):
        samples = Samples(file, tmp_path, known=KNOWN)
        samples[next(iter(samples))]


def test_a_small_file_that_unfolds_without_end_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("eagle3lab.tensors.archive.MOST_UNPACKED", 1 << 20)
    file = tmp_path / "data_0.ckpt.gz"
    file.write_bytes(gzip.compress(bytes(40 << 20)))
    with pytest.raises(BadFile, match="unfolds to more than"):
        Samples(file, tmp_path, known=KNOWN)["data_0"]


def test_nan_and_zero_rows_are_read_and_found_by_the_survey(tmp_path):
    shutil.copytree(FIXTURES / "specforge/features", tmp_path / "s")
    file = next((tmp_path / "s").rglob("data_0.ckpt"))

    def spoil(content: dict[str, Any]) -> None:
        content["aux_hidden_state"][0, 5, :16] = float("nan")
        content["aux_hidden_state"][0, 7, 16:32] = 0
        content["aux_hidden_state"][0, 9, 32:] = float("inf")

    archive(spoil)(file)
    from eagle3lab.survey import survey

    found = survey(Samples(tmp_path / "s", tmp_path, known=KNOWN), None)
    assert found.bad_rows["data_0", 2] == (1, 0, 0)
    assert found.bad_rows["data_0", 4] == (0, 0, 1)
    assert found.bad_rows["data_0", 5] == (0, 1, 0)


def test_a_foreign_key_is_named(tmp_path):
    shutil.copytree(FIXTURES / "specforge/features", tmp_path / "s")
    archive(lambda c: c.update(attention=torch.ones(3)))(next((tmp_path / "s").rglob("data_0.ckpt")))
    assert Samples(tmp_path / "s", tmp_path, known=KNOWN)["data_0"].unused == ("attention",)


@pytest.mark.parametrize(
    ("folder", "says"),
    [("eagle1", "EAGLE-1/2 data: a last state only"), ("dspark", "DFlash or DSpark"), ("dflash", "a DFlash dump")],
)
def test_recordings_for_other_drafts_are_refused_by_name(folder, says):
    samples = Samples(FIXTURES / "facts" / folder, FIXTURES, known=KNOWN)
    for name in samples:
        with pytest.raises(BadFile, match=says):
            samples[name]


def test_a_final_state_alone_is_not_enough():
    samples = Samples(FIXTURES / "facts" / "sglang" / "a-final.json", FIXTURES, known=KNOWN)
    with pytest.raises(BadFile, match="only a final state"):
        samples["a-final"]


ANSWER = {
    "no tokens of the prompt": (lambda a: a.pop("input_ids", None), "no prompt token ids; put the request's"),
    "no tokens of the reply": (lambda a: a.pop("output_ids"), "no 'output_ids'"),
    "ragged rows": (lambda a: a["meta_info"]["hidden_states"][0][0].append(1.0), "not rows of numbers of one width"),
    "words for numbers": (lambda a: a["meta_info"]["hidden_states"].append("x"), "not rows of numbers"),
    "rows of a cached prefix missing": (lambda a: (a["meta_info"]["hidden_states"][0].pop(0),
                                                   a["meta_info"].update(cached_tokens=1)), "rows for"),
    "another width": (lambda a: [r.pop() for r in a["meta_info"]["hidden_states"][0]] and [
        r.pop() for r in a["meta_info"]["hidden_states"][1:]], "no multiple of the target's 16"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWER)
def test_an_answer_that_lacks_something_says_what(name, tmp_path):
    change, says = ANSWER[name]
    answer = json.loads((FIXTURES / "facts" / "sglang" / "a-aux.json").read_text())
    one = answer[0] if isinstance(answer, list) else answer
    one["meta_info"].pop("input_token_logprobs", None)
    one.setdefault("input_ids", TRUTH["a.input_ids"][: one["meta_info"]["prompt_tokens"]].tolist())
    change(one)
    file = tmp_path / "a.json"
    file.write_text(json.dumps(answer))
    with pytest.raises(BadFile, match=says):
        Samples(file, tmp_path, known=KNOWN)["a"]


def test_answers_one_a_line_are_samples_of_one_file(tmp_path):
    lines = [(FIXTURES / "facts" / "sglang" / f"{c}-aux.json").read_text() for c in "abc"]
    values = [v[0] if isinstance(v, list) else v for v in map(json.loads, lines)]
    (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, values)))
    samples = Samples(tmp_path / "all.jsonl", tmp_path, known=KNOWN)
    assert [conversation(samples[n]) for n in ("all.0", "all.1", "all.2")] == ["a", "b", "c"]


def test_speculators_data_set_of_other_tokens_is_refused(tmp_path):
    shutil.copytree(FIXTURES / "speculators/data", tmp_path / "d")
    states = tmp_path / "d" / "hidden_states"
    (states / "hs_0.safetensors").rename(states / "x")
    (states / "hs_1.safetensors").rename(states / "hs_0.safetensors")
    (states / "x").rename(states / "hs_9.safetensors")
    samples = Samples(tmp_path / "d", tmp_path, known=KNOWN)
    with pytest.raises(BadFile, match="are not those of row 0 of the Arrow data set"):
        samples["hs_0"]
    assert any("row 9 of the Arrow data set is not there" in note for note in samples["hs_9"].notes)
    (tmp_path / "d" / "data-00000-of-00001.arrow").write_bytes(b"ARROW1")
    with pytest.raises(BadFile, match=r"\.arrow.*not a sound Arrow file"):
        samples["hs_2"]


# ---- what a fresh reader found


def fixture(tmp_path: Path, name: str) -> Path:
    shutil.copytree(FIXTURES / name, tmp_path / "s")
    return tmp_path / "s"


def test_a_folder_whose_first_file_is_damaged_or_holds_one_loses_no_sample(tmp_path):
    requests = torch.load(FIXTURES / "facts/trtllm_raw/states_3.pt", weights_only=True)
    (tmp_path / "s").mkdir()
    torch.save(requests[:1], tmp_path / "s" / "states_1.pt")
    torch.save(requests[1:], tmp_path / "s" / "states_3.pt")
    assert list(Samples(tmp_path / "s", tmp_path, known=KNOWN)) == ["states_1.0", "states_3.0", "states_3.1"]
    (tmp_path / "s" / "states_1.pt").write_bytes(b"garbage")
    samples = Samples(tmp_path / "s", tmp_path, known=KNOWN)
    assert [n for n in samples if samples.readable(n)] == ["states_3.0", "states_3.1"]
    folder = tmp_path / "a"
    shutil.copytree(FIXTURES / "automodel/full", folder)
    (folder / "shard-000000.safetensors").write_bytes((folder / "shard-000000.safetensors").read_bytes()[:500])
    samples = Samples(folder, tmp_path, known=KNOWN)
    assert [n for n in samples if samples.readable(n)] == ["shard-000001"]


def test_a_file_of_several_among_files_of_one_says_so(tmp_path):
    folder = fixture(tmp_path, "facts/modelopt_hf")
    shutil.copy(FIXTURES / "facts/trtllm_raw/states_3.pt", folder / "conv-z.pt")
    notes = Samples(folder, tmp_path, known=KNOWN)["conv-z"].notes
    assert any("holds 3 conversations and its neighbours one each" in note for note in notes)


@pytest.mark.parametrize("value", [torch.ones(37), torch.ones(16), torch.ones(37, 1, 1).long(), torch.ones(36, 1, 1)])
def test_fp8_scales_of_another_shape_are_refused(tmp_path, value):
    folder = fixture(tmp_path, "speculators/hidden_states_fp8")
    plain(lambda c: c.update(hidden_states_scales=value))(folder / "hs_0.safetensors")
    with pytest.raises(BadFile, match=r"hidden_states_scales is .*expected one number a token, \[37, 1, 1\]"):
        Samples(folder, tmp_path, known=KNOWN)["hs_0"]


@pytest.mark.parametrize(
    ("value", "form"), [(True, "pre"), (False, "post"), (torch.tensor(True), "pre"), (1, "pre"), ("False", None),
                        (torch.ones(3), None), (2, None)]
)  # fmt: skip
def test_modelopts_flag_is_taken_as_a_flag_only(tmp_path, value, form):
    folder = fixture(tmp_path, "facts/modelopt_hf")
    archive(lambda c: c.update(hidden_states_prenorm=value))(folder / "conv-a.pt")
    samples = Samples(folder, tmp_path, known=KNOWN)
    if form is None:
        with pytest.raises(BadFile, match="hidden_states_prenorm is"):
            samples["conv-a"]
    else:
        assert (samples["conv-a"].final is None) == (form == "pre")


def test_a_single_padded_row_is_cut_too(tmp_path):
    folder = fixture(tmp_path, "specforge/features")

    def pad(content: dict[str, Any]) -> None:
        for key in ("input_ids", "loss_mask"):
            content[key] = torch.cat((content[key], content[key].new_zeros(1)))
        for key in ("aux_hidden_state", "hidden_state"):
            content[key] = torch.cat((content[key], content[key][:, :1]), 1)

    archive(pad)(next(folder.rglob("data_0.ckpt")))
    sample = Samples(folder, tmp_path, known=KNOWN)["data_0"]
    assert sample.length == 24
    assert any("1 rows of padding" in note for note in sample.notes)


def test_what_the_case_says_against_the_dump_is_said(tmp_path):
    known = replace(KNOWN, boundaries=(0, 1, 2, 3))
    sample = Samples(FIXTURES / "speculators_v1", FIXTURES, known=known)["data_0"]
    assert sample.boundaries == (3, 5, 6, 8)
    assert any("case.toml says boundaries [0, 1, 2, 3], the dump itself [3, 5, 6, 8]" in n for n in sample.notes)


@pytest.mark.parametrize("kind", ["fifo", "device", "loop"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    file = tmp_path / "data_0.jsonl"
    {"fifo": lambda: os.mkfifo(file), "device": lambda: file.symlink_to("/dev/zero"),
     "loop": lambda: file.symlink_to(file.name)}[kind]()  # fmt: skip
    with pytest.raises(BadFile, match=r"data_0\.jsonl.*(no regular file|cannot be read)"):
        samples = Samples(file, tmp_path, known=KNOWN)
        samples[next(iter(samples))]


@pytest.mark.parametrize("value", [torch.ones(1, 24, 48, device="meta"), torch.ones(1, 24, 48).to_sparse()])
def test_tensors_without_plain_numbers_are_refused(tmp_path, value):
    folder = fixture(tmp_path, "specforge/features")
    archive(lambda c: c.update(aux_hidden_state=value))(next(folder.rglob("data_0.ckpt")))
    with pytest.raises(BadFile, match="data_0"):
        Samples(folder, tmp_path, known=KNOWN)["data_0"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a: a["output_ids"].append(2**70), "no 'output_ids'"),
        (lambda a: a["meta_info"]["hidden_states"][1].__setitem__(0, 10**400), "not rows of numbers"),
    ],
)
def test_numbers_too_large_are_named(tmp_path, change, says):
    answer = json.loads((FIXTURES / "facts" / "sglang" / "a-aux.json").read_text())
    one = answer[0] if isinstance(answer, list) else answer
    change(one)
    (tmp_path / "a.json").write_text(json.dumps(answer))
    with pytest.raises(BadFile, match=says):
        Samples(tmp_path / "a.json", tmp_path, known=KNOWN)["a"]


def test_an_answer_without_states_does_not_hide_the_others(tmp_path):
    answers = [{"meta_info": {}, "output_ids": [1]}, json.loads((FIXTURES / "facts/sglang/a-aux.json").read_text())]
    answers = [a[0] if isinstance(a, list) else a for a in answers]
    (tmp_path / "two.json").write_text(json.dumps(answers))
    samples = Samples(tmp_path / "two.json", tmp_path, known=KNOWN)
    assert [samples.readable(n) is not None for n in samples] == [False, True]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["attention_mask"].zero_(), "attention_mask marks no token"),
        (lambda c: c.update(position_mask=c["position_mask"][..., 0]), r"position_mask is \[2, 40\], expected 3 axes"),
        (lambda c: c["attention_mask"][:, 3].zero_(), "attention_mask has gaps"),
    ],
)
def test_automodels_masks_are_checked(tmp_path, change, says):
    folder = fixture(tmp_path, "automodel/full")
    plain(change)(folder / "shard-000000.safetensors")
    with pytest.raises(BadFile, match=says):
        Samples(folder, tmp_path, known=KNOWN)["shard-000000.0"]


def test_an_arrow_file_with_flipped_bytes_is_read_or_refused(tmp_path):
    """Whatever the damage, the error is the file's."""
    folder = fixture(tmp_path, "speculators/data")
    file = folder / "data-00000-of-00001.arrow"
    content = file.read_bytes()
    generator = torch.Generator().manual_seed(0)
    refused = 0
    for _ in range(120):
        damaged = bytearray(content)
        for place in torch.randint(len(content), (2,), generator=generator).tolist():
            damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        samples = Samples(folder, tmp_path, known=KNOWN)
        refused += sum(samples.readable(name) is None for name in samples)
    assert refused > 10


def test_a_folder_of_all_that_is_odd_gives_findings_and_no_traceback(tmp_path, capsys):
    """As a user would meet it: the command line over links that loop, names that are no text, a damaged shard."""
    from eagle3lab.__main__ import main

    folder = fixture(tmp_path, "specforge/features") / "rows_0-2000"
    (folder / "a.ckpt").symlink_to("b.ckpt")
    (folder / "b.ckpt").symlink_to("a.ckpt")
    (folder / "gone.ckpt").symlink_to("nowhere")
    (folder / "again").symlink_to(folder)
    (folder / os.fsdecode(b"x\xff.ckpt")).write_bytes(b"x")
    (folder / "bad.safetensors").write_bytes((8).to_bytes(8, "little") + b'{"a":1} ')
    os.mkfifo(folder / "pipe.ckpt")
    case = tmp_path / "case.toml"
    case.write_bytes(
        b"\xef\xbb\xbf"
        + f"""title = "odd"
[draft]
path = "{FIXTURES / "specforge/export_sglang"}"
[target]
path = "{FIXTURES / "target"}"
[samples]
path = "s"
""".encode()
    )
    for option in ([], ["--json"]):
        assert main(["check", str(case), *option]) == 0
        said = capsys.readouterr().out
        for name in ("a.ckpt", "gone.ckpt", "pipe.ckpt", "bad.safetensors"):
            assert name in said
