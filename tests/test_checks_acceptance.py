"""Where the draft is right: positions, lengths, blocks of the vocabulary; number formats; from planted recordings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch

from eagle3lab import rope
from eagle3lab.case import open_case
from eagle3lab.checks import positions, precision
from eagle3lab.checks.positions import Row
from eagle3lab.draft import Draft
from eagle3lab.forward import rollout
from eagle3lab.model import Model
from eagle3lab.reading import Reading
from eagle3lab.records import Finding, Sample, Severity
from eagle3lab.target import Target

FAIL, WARN, INFO, PASS = Severity.FAIL, Severity.WARN, Severity.INFO, Severity.PASS
LIMIT, LONG = 60, 150


def found(folder: Path, *codes: str) -> dict[str, list[Finding]]:
    findings = open_case(folder).findings("acceptance")
    return {code: [f for f in findings if f.code == code] for code in codes}


@pytest.fixture(scope="module")
def clamped(tmp_path_factory: pytest.TempPathFactory) -> tiny.Tensors:
    """A sample whose tokens a draft wrote with positions clamped at `LIMIT`: kind K5 of the field's faults."""
    folder = tiny.write_case(tmp_path_factory.mktemp("clamped")).parent
    steep(folder)
    rand = tiny._random(41)
    states = {2: rand(LONG, tiny.H)}
    states[4] = states[2] + 0.6 * rand(LONG, tiny.H)
    states[5] = states[4] + 0.6 * rand(LONG, tiny.H)
    tokens = (rand(LONG) * 100).long().abs() % tiny.V
    model = Model(Draft(folder / "draft", tiny.H, tiny.V), Target(folder / "target"))
    ones, table = torch.ones(LONG, dtype=torch.uint8), rope.table
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rope, "table", lambda r, d, at, *more: table(r, d, at.clamp(max=LIMIT - 1), *more))
        for t in range(LONG - 2):
            seen = {k: s[: t + 2] for k, s in states.items()}
            sample = Sample("s", "s", tokens[: t + 2], ones[: t + 2], seen)
            tokens[t + 2] = (
                rollout(model, sample, Reading(aux=tiny.AUX), 1, rows=torch.tensor([t])).steps[0].top_ids[0, 0]
            )
    mask = torch.zeros(LONG, dtype=torch.uint8)
    mask[tiny.PROMPT :] = 1
    return {"input_ids": tokens, "loss_mask": mask, **{f"h.{k}": s for k, s in states.items()}}


def steep(folder: Path) -> None:
    """Queries and keys three times as large: attention then depends on where a row is."""
    tiny.edit(folder / "draft" / "model.safetensors", lambda t: [
        t[f"midlayer.self_attn.{p}_proj.weight"].mul_(3) for p in "qk"])  # fmt: skip


def case_of(tmp_path: Path, tensors: tiny.Tensors, **config: int) -> Path:
    folder = tiny.write_case(tmp_path).parent
    steep(folder)
    for name in tiny.NAMES:
        (folder / "samples" / f"{name}.safetensors").unlink()
    tiny.write_sample(folder / "samples" / "one.safetensors", tensors)
    tiny.edit_json(folder / "draft" / "config.json", **config)
    return folder


def test_a004_finds_positions_clamped_at_the_configured_limit(tmp_path, clamped):
    ((one,),) = found(case_of(tmp_path, clamped, max_position_embeddings=LIMIT), "A004").values()
    assert one.severity == FAIL
    assert f"falls at position {LIMIT}, where max_position_embeddings ends" in one.title
    assert one.measured.startswith("1.000 of 49 rows before")


def test_a004_names_the_place_where_no_limit_is_known(tmp_path, clamped):
    ((one,),) = found(case_of(tmp_path, clamped, max_position_embeddings=4096), "A004").values()
    assert one.severity == WARN
    assert abs(int(one.title.split("position ")[1].split(",")[0]) - LIMIT) <= 12


def rows(
    count: int, right: float = 0.7, seed: int = 0, sample: str = "s", length: int = 0, start: int = 0
) -> list[Row]:
    draw = torch.Generator().manual_seed(seed)
    hits = torch.rand(count, generator=draw) < right
    tokens = torch.randint(64, (count,), generator=draw)
    return [Row(sample, start + i, length or count, int(tokens[i]), bool(hits[i]), True) for i in range(count)]


def test_a004_lets_accuracy_drift(tmp_path):
    """A slow fall, and a first sentence that is easy: no step."""
    draw = torch.rand(400, generator=torch.Generator().manual_seed(1)).tolist()
    falling = [Row("s", i, 400, 1, draw[i] < 0.75 - 0.0006 * i, True) for i in range(400)]
    (one,) = positions._positions(falling, {200: "max_position_embeddings"})
    assert one.severity == PASS
    for seed in range(20):
        (one,) = positions._positions(rows(300, 0.5, seed), {150: "sliding_window"})
        assert one.severity == PASS, seed


def test_a004_does_not_offer_a_constant_offset(tmp_path):
    folder = tiny.write_case(tmp_path).parent
    assert [f.severity for f in found(folder, "A004")["A004"]] == [PASS]


@pytest.mark.parametrize(("long", "severity"), [(0.7, PASS), (0.2, WARN)])
def test_a005_compares_long_texts_with_short_ones(long, severity):
    made = [r for i in range(5) for r in rows(60, 0.7, i, f"a{i}", 60)]
    made += [r for i in range(5) for r in rows(200, long, 50 + i, f"b{i}", 200)]
    (one,) = positions._lengths(made)
    assert one.severity == severity


def test_a005_needs_texts_of_different_lengths():
    assert not positions._lengths([r for i in range(8) for r in rows(60, 0.7, i, f"a{i}", 60)])


def bad_head(kinds=("block",)):
    """What A006 asks of a case: the suspects of its search."""
    return SimpleNamespace(scan=SimpleNamespace(suspects=[SimpleNamespace(kind=kind) for kind in kinds]))


def test_a006_names_the_part_of_the_vocabulary_that_is_never_drafted():
    lost = [Row(r.sample, r.position, r.length, r.token, r.hit and r.token < 32, True) for r in rows(400)]
    (one,) = positions._blocks(bad_head(), lost, 64)
    assert one.severity == FAIL
    assert one.title == "tokens 32 … 39, 40 … 47, 48 … 55, 56 … 63 are almost never drafted"
    (rare,) = positions._blocks(bad_head(kinds=()), lost, 64)
    assert rare.severity == INFO  # the head's rows say nothing else: hard tokens are seldom drafted too
    hard = [
        Row(r.sample, r.position, r.length, r.token, r.hit and (r.token < 32 or i % 4 == 0), True)
        for i, r in enumerate(rows(400))
    ]
    assert [f.severity for f in positions._blocks(bad_head(), hard, 64)] == [PASS]


def test_a007_is_the_product():
    made = [Row("s", i, 100, 1, i < 72, i < 90) for i in range(100)]
    (one,) = positions._three_ways(made)
    assert "accuracy 0.720 over all rows is 0.800 over rows the draft can say × 0.900" in one.title


def test_a_sound_case_passes_all_of_them(tmp_path):
    findings = found(tiny.write_case(tmp_path).parent, "A004", "A008", "A009", "A010")
    assert {code: [f.severity for f in hits] for code, hits in findings.items()} == {
        "A004": [PASS], "A008": [PASS], "A009": [PASS], "A010": [INFO],
    }  # fmt: skip


def test_a008_says_when_float16_overflows(tmp_path):
    folder = tiny.write_case(tmp_path).parent
    for file in (folder / "samples").iterdir():
        tiny.edit(file, lambda t: t.update({n: s * 1e5 for n, s in t.items() if n[0] == "h" and n != "h.0"}))
    hits = found(folder, "A008", "A009")["A008"]
    assert [f.severity for f in hits] == [WARN]
    assert "not finite in float16" in hits[0].title


def test_a008_says_when_an_fp8_cache_costs(tmp_path):
    """Keys of 2,000 times their size under queries of as much less are the same draft, but not to e4m3, which ends at 448."""
    folder = tiny.write_case(tmp_path).parent

    def louder(tensors):
        tensors["midlayer.self_attn.k_proj.weight"] *= 2048.0
        tensors["midlayer.self_attn.q_proj.weight"] /= 2048.0

    (file,) = (folder / "draft").glob("*.safetensors")
    tiny.edit(file, louder)
    case = open_case(folder)
    found = {f.dtype: f for f in precision.flips(case, Reading(aux=tiny.AUX), [case.samples[n] for n in case.samples])}
    assert list(found) == list(precision.FORMATS)
    assert found["bfloat16"].flips <= 2
    assert found["bfloat16 with an fp8 e4m3 cache"].flips > 5 * max(found["bfloat16 with an fp8 e5m2 cache"].flips, 1)
    assert "--kv-cache-dtype auto" in precision._instead([found["bfloat16 with an fp8 e4m3 cache"]])
    assert "float32" in precision._instead(list(found.values()))


def test_a008_reads_a_bounded_part(tmp_path, monkeypatch):
    folder = tiny.write_case(tmp_path).parent
    case = open_case(folder)
    seen = []
    monkeypatch.setattr(
        precision,
        "rollout",
        lambda model, sample, *a, **k: seen.append(sample.length) or rollout(model, sample, *a, **k),
    )
    long = precision.start_of(case.sample(), 20)
    assert (long.length, {len(s) for s in long.states.values()}) == (20, {20})
    monkeypatch.setattr(precision, "TEXT", 30)
    precision.check(case, Reading(aux=tiny.AUX), [case.sample(), case.sample("second")] * 4)
    assert set(seen) == {30}
    assert len(seen) == 2 * 5 + 1


def test_a009_warns_of_a_state_that_grows(tmp_path):
    """An MLP that adds ever more to a state that nothing norms on its way back."""
    folder = tiny.write_case(tmp_path).parent
    case = open_case(folder)
    monkey = [2.0 * 3**k for k in range(6)]
    old = precision.growth
    try:
        precision.growth = lambda *a: monkey
        hits = precision._growth(case, Reading(aux=tiny.AUX), [case.sample()])
    finally:
        precision.growth = old
    assert [f.severity for f in hits] == [WARN]
    assert "grows 243 times over 6 steps" in hits[0].title
