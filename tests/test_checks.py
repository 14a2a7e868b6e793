"""Each finding from a minimal damaged input, and the legitimate look-alikes that must not be called faults.

docs/checks.md must have a section for each code: a code that a user meets is a code that is explained.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from eagle3lab.case import Case, open_case
from eagle3lab.checks import CODES, inputs, serving
from eagle3lab.counts import EngineReport, ServingRun
from eagle3lab.errors import BadFile, BadShape, Blocked
from eagle3lab.records import Finding, Severity

FAIL, WARN, INFO, PASS = Severity.FAIL, Severity.WARN, Severity.INFO, Severity.PASS
Damage = Callable[[Path], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_case(tmp_path).parent


def draft(change: Callable[[tiny.Tensors], Any]) -> Damage:
    return lambda folder: tiny.edit(folder / "draft" / "model.safetensors", change)


def config(**changes: Any) -> Damage:
    return lambda folder: tiny.edit_json(folder / "draft" / "config.json", **changes)


def samples(change: Callable[[tiny.Tensors], Any], **metadata: str) -> Damage:
    def both(folder: Path) -> None:
        for name in tiny.NAMES:
            tiny.edit(folder / "samples" / f"{name}.safetensors", change, **metadata)

    return both


def rebuilt(config_changes: dict[str, Any] | None = None, **shape: Any) -> Damage:
    return lambda folder: tiny.write_folder(
        folder / "draft", tiny.draft_tensors(**shape), tiny.draft_config(**config_changes or {})
    )


def found(folder: Path, stage: str, code: str) -> list[Finding]:
    return [f for f in open_case(folder).findings(stage) if f.code == code]


def put(name: str, value: torch.Tensor) -> Callable[[tiny.Tensors], Any]:
    return lambda tensors: tensors.update({name: value})


def scaled(tensors: tiny.Tensors) -> None:
    """A whole-vocabulary map in another order: unsorted, each id once."""
    order = torch.arange(64).flip(0)
    tensors.update({"d2t": order - torch.arange(64), "lm_head.weight": torch.ones(64, 16)})
    tensors.pop("t2d")


STATIC = {
    "an unknown tensor": ("W001", WARN, draft(put("midlayer.rotary.inv_freq", torch.ones(2))), "rotary.inv_freq"),
    "q_proj takes H": ("W002", FAIL, draft(put("midlayer.self_attn.q_proj.weight", torch.ones(16, 16))), "[16, 16]"),
    "a short t2d": ("W002", FAIL, draft(lambda t: t.update(t2d=t["t2d"][:20])), "[20]"),
    "NaN": ("W003", FAIL, draft(lambda t: t["fc.weight"][0].fill_(float("nan"))), "NaN 6.250%"),
    "infinity": ("W003", FAIL, draft(lambda t: t["fc.weight"][0, 0].fill_(float("inf"))), "infinite 0.130%"),
    "all zero": ("W003", WARN, draft(lambda t: t["fc.weight"].zero_()), "100 % zeros"),
    "a norm without its flag": ("W004", FAIL, draft(put("input_norm.weight", torch.ones(48))), "weight present"),
    "a flag without its norm": ("W004", FAIL, config(fc_norm=True), "fc_norm.0.weight absent"),
    "another head_dim": ("W004", FAIL, config(head_dim=8), "4 heads = 4"),
    "the target's layers": ("W004", WARN, config(num_hidden_layers=36), "1"),
    "tied with a head": ("W004", WARN, config(tie_word_embeddings=True), "true"),
    "another vocab_size": ("W004", WARN, config(vocab_size=100), "100"),
    "two nulls": ("W004", FAIL, config(use_cache=None, num_key_value_heads=None), "null"),
    "two ids": ("W005", FAIL, config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3]}), "[1, 3]"),
    "two lists": ("W005", WARN, config(eagle_aux_hidden_state_layer_ids=[2, 4, 5]), "[2, 4, 5]"),
    "no ids": ("W005", INFO, config(eagle_config=...), "no ids"),
    "an EAGLE-1 fc": ("W005", FAIL, draft(put("fc.weight", torch.ones(16, 32))), "[1, 3, 4]"),
    "no table and another width": ("W006", FAIL, rebuilt({"hidden_size": 20}, hidden=20), "H 20, Ht 16"),
    "no head": ("W006", FAIL, draft(lambda t: t.pop("lm_head.weight")), "Vd 32, V 64"),
    "promised biases": ("W006", WARN, config(attention_bias=True), "absent"),
    "a key of nobody's": ("W008", WARN, config(residual_multiplier=0.22), "residual_multiplier = 0.22"),
    "one that is off": ("W008", INFO, config(use_magic=False), "use_magic = False"),
    "longrope": ("W009", Severity.UNSUPPORTED, config(rope_scaling={"rope_type": "longrope"}), "longrope"),
    "two schemas of RoPE": ("W004", WARN, config(rope_parameters={"rope_theta": 5e5}), "rope_theta = 10000.0"),
    "a short limit": ("W007", WARN, config(max_position_embeddings=30), "40 tokens"),
    "no d2t": ("V001", FAIL, draft(lambda t: t.pop("d2t")), "no d2t"),
    "a short d2t": ("V001", FAIL, draft(lambda t: t.update(d2t=t["d2t"][:20])), "20"),
    "a zero d2t": ("V001", FAIL, draft(lambda t: t["d2t"].zero_()), "all 32 offsets 0"),
    "ids for offsets": ("V001", FAIL, draft(lambda t: t["d2t"].add_(torch.arange(32))), "values + position"),
    "out of range": ("V002", FAIL, draft(lambda t: t["d2t"][-1].add_(50)), "draft id 31 → 112"),
    "one id twice": ("V003", FAIL, draft(lambda t: t["d2t"][1].add_(2)), "31 distinct of 32"),
    "another t2d": ("V004", FAIL, draft(lambda t: t.update(t2d=t["t2d"].roll(1))), "it marks 0"),
    "unsorted beside a t2d": ("V005", WARN, draft(lambda t: t["d2t"].add_(
        torch.tensor([2, -2] + [0] * 30))), "unsorted"),
    "padding": ("V008", WARN, draft(lambda t: (t["d2t"][:20].zero_(), t.pop("t2d"))), "20 of 32"),
    "a small coverage": ("V006", FAIL, draft(lambda t: t["d2t"].add_(1)), "0."),
    "a head like the target's": ("V007", PASS, draft(
        lambda t: t.update({"lm_head.weight": tiny.target_tensors()["lm_head.weight"][::2]})), "1.000 under the map"),
}  # fmt: skip
"""name → code, severity, damage, what the measurement must hold; the weights' and the vocabulary's checks."""


@pytest.mark.parametrize("name", STATIC)
def test_a_static_fault_gives_its_finding(folder, name):
    code, severity, damage, measured = STATIC[name]
    damage(folder)
    hits = [f for f in found(folder, "weights" if code[0] == "W" else "vocab", code) if f.severity == severity]
    assert hits, [(f.code, f.severity, f.title) for f in open_case(folder).findings("weights", "vocab")]
    assert any(measured in f.measured for f in hits)
    assert all(f.title and f.where for f in hits)
    if severity in (FAIL, WARN):
        assert all(f.expected and f.remedy for f in hits)


def test_the_q_proj_case_is_explained_in_words(folder):
    draft(put("midlayer.self_attn.q_proj.weight", torch.ones(16, 16)))(folder)
    (bad,) = [f for f in found(folder, "weights", "W002") if f.severity == FAIL]
    assert bad.where == "model.safetensors: midlayer.self_attn.q_proj.weight"
    assert bad.expected == "[nh·d, 2H] = [16, 32]"
    assert "H = 16" in bad.remedy
    assert "side by side, 2H = 32" in bad.remedy
    (traced,) = found(folder, "forward", "F001")
    assert traced.severity == FAIL
    assert "1. the weight takes H = 16" in traced.remedy


def test_null_fields_are_counted_and_given_their_values(folder):
    config(use_cache=None, num_key_value_heads=None)(folder)
    (bad,) = [f for f in found(folder, "weights", "W004") if f.severity == FAIL]
    assert bad.title == "2 null fields: num_key_value_heads, use_cache"
    assert "set num_key_value_heads to 2, use_cache to true" in bad.remedy


def test_an_eagle_1_fc_is_named(folder):
    draft(put("fc.weight", torch.ones(16, 32)))(folder)
    assert any("EAGLE-1/2" in f.remedy for f in found(folder, "weights", "W005"))


LOOK_ALIKES = {
    "zero d2t, whole vocabulary": rebuilt({"draft_vocab_size": 64}, size=64),
    "no d2t, whole vocabulary": lambda folder: (
        rebuilt({"draft_vocab_size": 64}, size=64)(folder), draft(lambda t: (t.pop("d2t"), t.pop("t2d")))(folder)),
    "no t2d": draft(lambda t: t.pop("t2d")),
    "unsorted d2t without t2d": lambda folder: (config(draft_vocab_size=64)(folder), draft(scaled)(folder)),
    "another width with its own table": lambda folder: tiny.write_folder(
        folder / "draft", tiny.draft_tensors(hidden=20) | {"embed_tokens.weight": torch.ones(64, 20)},
        tiny.draft_config(hidden_size=20)),
    "its own table": draft(put("embed_tokens.weight", torch.ones(64, 16))),
    "layers.0 for midlayer": lambda folder: tiny.write_folder(folder / "draft", {
        n.replace("midlayer", "layers.0"): t for n, t in tiny.draft_tensors().items()}, tiny.draft_config()),
    "a wrapper's prefix": lambda folder: tiny.write_folder(
        folder / "draft", {"model." + n: t for n, t in tiny.draft_tensors().items()}, tiny.draft_config()),
    "two layers": rebuilt({"num_hidden_layers": 2}, layers=2),
    "five states": rebuilt({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3, 4, 6]}}, aux=5),
    "zero biases": draft(put("fc.bias", torch.zeros(16))),
    "a padded vocab_size": config(vocab_size=72),
    "sixteen bits": draft(lambda t: t.update({n: v.bfloat16() for n, v in t.items() if v.is_floating_point()})),
    "a BOM": lambda folder: (folder / "draft" / "config.json").write_bytes(
        b"\xef\xbb\xbf" + (folder / "draft" / "config.json").read_bytes()),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike_is_no_fault(folder, name):
    LOOK_ALIKES[name](folder)
    bad = [f for f in open_case(folder).findings("weights", "vocab") if f.severity == FAIL]
    assert not bad


SAMPLES = {
    "two zero rows": ("S002", FAIL, samples(lambda t: t["h.2"][20:22].zero_()), "2 of 40 rows"),
    "one zero row": ("S002", WARN, samples(lambda t: t["h.2"][20].zero_()), "1 of 40 rows"),
    "infinities": ("S002", FAIL, samples(lambda t: t["h.2"][20].fill_(float("inf"))), "infinite rows 1"),
    "other states as embedding": ("S003", FAIL, samples(lambda t: t.update({"h.0": t["h.2"].clone()})), "largest"),
    "NaN as embedding": ("S003", FAIL, samples(lambda t: t["h.0"][3].fill_(float("nan"))), "nan"),
    "other states at the end": ("S004", FAIL, samples(lambda t: t.update({"h.8": t["h.2"].clone()})), "norm once 0."),
    "the wrong form": ("S004", FAIL, samples(lambda t: t.update(final=t["h.8"]), final_norm="post"), "norm once 1.000"),
    "no reply": ("S006", FAIL, samples(lambda t: t["loss_mask"].zero_()), "all 0"),
    "nothing but reply": ("S006", WARN, samples(lambda t: t["loss_mask"].fill_(1)), "all 1"),
    "twins": ("S007", FAIL, samples(lambda t: t.update({"h.4": t["h.2"].clone()})), "bitwise equal"),
    "another width": ("S008", FAIL, samples(
        lambda t: t.update({n: torch.ones(40, 24) for n in t if n[0] == "h"})), "2 samples of width 24"),
    "increments": ("S009", WARN, samples(
        lambda t: t.update({"h.5": torch.linspace(-1, 1, 640).reshape(40, 16).flip(0)})), "mean cosine"),
    "foreign keys": ("S001", WARN, samples(lambda t: t.update(position_ids=torch.arange(40))), "position_ids"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_a_fault_of_the_recording_gives_its_finding(folder, name):
    code, severity, damage, measured = SAMPLES[name]
    damage(folder)
    hits = [f for f in found(folder, "samples", code) if f.severity == severity]
    assert hits, [(f.code, f.severity, f.title) for f in open_case(folder).findings("samples")]
    assert any(measured in f.measured for f in hits)
    assert all(f.expected and f.remedy for f in hits)


def test_s001_is_one_finding_a_cause_and_names_the_first_file(folder):
    for i in range(14):
        tiny.pointer(folder / "samples" / f"bad_{i:02}.safetensors")
    (folder / "samples" / "dump.npz").write_bytes(b"")
    bad, other = found(folder, "samples", "S001")
    assert (bad.severity, other.severity) == (FAIL, WARN)
    assert bad.where == "bad_00, bad_01, bad_02, bad_03, bad_04 and 9 more"
    assert "git lfs pull" in bad.measured
    assert other.measured == "dump.npz"


def test_s005_says_which_share_is_the_targets_own_choice(folder):
    (greedy,) = found(folder, "samples", "S005")
    assert (greedy.severity, greedy.measured) == (PASS, "1.0000, over all 64 rows")
    samples(lambda t: t["h.8"][:25].copy_(t["h.8"][:25].flip(0)))(folder)
    (sampled,) = found(folder, "samples", "S005")
    assert sampled.severity == WARN
    assert "sampled or foreign text" in sampled.remedy


def test_s010_names_who_lacks_what(folder):
    tiny.edit(folder / "samples" / "first.safetensors", lambda t: t.pop("h.5"))
    (one,) = found(folder, "samples", "S010")
    assert (one.severity, one.where) == (WARN, "first")
    assert one.measured == "lacking 5; held by all: 0, 2, 4, 8"


def test_s003_and_s004_are_blocked_where_rows_are_missing(folder):
    tiny.edit(folder / "target" / "model.safetensors", lambda t: t.pop("model.norm.weight"))
    (form,) = found(folder, "samples", "S004")
    assert form.severity == Severity.BLOCKED
    assert "norm.weight" in form.measured


FORWARD = {
    "the shift": ("F006", Severity.BLOCKED, lambda folder: samples(_later)(folder), "accuracy"),
    "quantised weights": ("F005", Severity.BLOCKED, draft(put("fc.weight", torch.ones(16, 48, dtype=torch.int8))), ""),
    "an unknown activation": ("F005", Severity.BLOCKED, config(hidden_act="swiglu"), ""),
    "an unknown scaling": ("F005", Severity.BLOCKED, config(rope_scaling={"rope_type": "longrope"}), ""),
    "scaling without its factor": ("F005", Severity.BLOCKED, config(rope_scaling={"rope_type": "linear"}), ""),
    "an odd rotation": ("F005", Severity.BLOCKED, config(partial_rotary_factor=0.3), ""),
    "kv heads": ("F001", FAIL, config(num_key_value_heads=4), "width 8"),
    "NaN weights": ("F002", FAIL, draft(lambda t: t["lm_head.weight"][0].fill_(float("nan"))), "108"),
    "noise for states": ("F005", FAIL, samples(lambda t: t.update(
        {n: s.roll(13, 0) for n, s in t.items() if n[0] == "h"})), "best of"),
}  # fmt: skip


def _later(tensors: tiny.Tensors) -> None:
    """Each state one row later than its token."""
    tensors.update({n: s.roll(1, 0) for n, s in tensors.items() if n[0] == "h"})


@pytest.mark.parametrize("name", FORWARD)
def test_a_fault_of_the_forward_gives_its_finding(folder, name):
    code, severity, damage, measured = FORWARD[name]
    damage(folder)
    findings = open_case(folder).findings("forward")
    hits = [f for f in findings if f.code == code and f.severity == severity]
    assert hits, [(f.code, f.severity, f.title, f.measured) for f in findings]
    assert any(measured in f.measured for f in hits)


def toml(**changes: str) -> Damage:
    def write(folder: Path) -> None:
        text = tiny.TOML + tiny.RUN
        for old, new in changes.items():
            text = text.replace({"ids": "[2, 4, 5]", "run": tiny.RUN}[old], new)
        (folder / "case.toml").write_text(text)

    return write


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ("[2, 2, 5]", "repeat"),
        ("[2, 4]", "2 ids [2, 4], but fc takes 3 states"),
        ("[2, 4, 99]", "[99] are never captured"),
    ],
)
def test_f008_says_why_the_engine_would_not_run_it_and_nobody_fails_twice(folder, ids, says):
    """E002 fails no second time; nobody else's default is recommended, and the ids are corrected where they stand."""
    toml(ids=ids)(folder)
    findings = open_case(folder).findings("forward", "serving")
    (one,) = [f for f in findings if f.code == "F008"]
    assert (one.severity, one.where) == (FAIL, "case.toml ([[serving]] aux_ids)")
    assert says in one.title
    assert "aux_ids of run 'a run'" in one.remedy
    assert "it is run by" not in one.remedy
    (two,) = [f for f in findings if f.code == "E002" and says in f.title]
    assert (two.severity, two.remedy) == (Severity.BLOCKED, one.remedy)
    assert "(F008)" in two.title


def test_f008_of_ids_in_the_config_points_there(folder):
    (folder / "case.toml").write_text((tiny.TOML + tiny.RUN).replace("aux_ids = [2, 4, 5]\n", ""))
    tiny.edit_json(folder / "draft" / "config.json", eagle_aux_hidden_state_layer_ids=[2, 4])
    (one,) = found(folder, "forward", "F008")
    assert (one.where, "it is run by" in one.remedy) == ("config.json", False)
    assert "the list in config.json" in one.remedy


@pytest.mark.parametrize(
    ("ids", "state"), [("[2, 4, 5]", "given its ids in their own numbers"), (None, "as it stands")]
)
def test_f008_names_who_would_run_what_is_not_refused_for_its_ids(folder, ids, state):
    """A norm without its flag: SGLang drops it in silence. Without ids of the run the config's own are asked for."""
    toml(ids=ids)(folder) if ids else (folder / "case.toml").write_text(
        (tiny.TOML + tiny.RUN).replace("aux_ids = [2, 4, 5]\n", "")
    )
    tiny.edit(folder / "draft" / "model.safetensors", put("input_norm.weight", torch.ones(48)))
    tiny.edit_json(folder / "draft" / "config.json", eagle_config=...)  # their defaults are no ids of this draft
    (one,) = found(folder, "forward", "F008")
    assert one.where == "config.json"
    assert "set the flag that goes with the tensors" in one.remedy
    assert f"{state} it is run by sglang 0.5.9" in one.remedy


def test_two_reasons_are_told_apart(folder):
    toml(ids="[2, 4]")(folder)
    tiny.edit(folder / "draft" / "model.safetensors", put("input_norm.weight", torch.ones(48)))
    by_where = {f.where: f for f in found(folder, "forward", "F008")}
    assert set(by_where) == {"case.toml ([[serving]] aux_ids)", "config.json"}
    assert "correct the layer ids" in by_where["case.toml ([[serving]] aux_ids)"].remedy
    assert "correct the layer ids" not in by_where["config.json"].remedy


def test_a_transposed_fc_is_one_failure_and_no_fault_of_the_ids(folder):
    draft(lambda t: t.update({"fc.weight": t["fc.weight"].T}))(folder)
    findings = open_case(folder).findings("forward", "serving")
    (one,) = [f for f in findings if f.severity == FAIL]
    assert one.code == "F001"
    assert one.remedy.startswith("1. stored transposed: fc.weight is [48, 16] = [A·Ht, H]")
    assert "transpose it on export" in one.remedy
    (two,) = [f for f in findings if f.code == "E002" and f.severity == Severity.BLOCKED]
    assert "(F001)" in two.title


def test_f007_compares_with_trainings_figure(folder):
    (folder / "case.toml").write_text(tiny.TOML + tiny.RUN + "[training]\naccuracy = [0.5]\n")
    (one,) = found(folder, "forward", "F007")
    assert one.severity == INFO
    assert "above training's figure" in one.title
    assert "training 0.500, here 1.000" in one.measured


def test_f004_says_which_neighbours_cannot_be_told_apart(folder):
    noise = torch.Generator().manual_seed(0)
    samples(lambda t: t.update({"h.5": t["h.4"] + 1e-4 * torch.randn(t["h.4"].shape, generator=noise)}))(folder)
    (one,) = found(folder, "forward", "F004")
    assert one.severity == Severity.UNDETERMINED
    assert "4, 5" in one.title


def test_acceptance_has_its_interval_and_names_what_was_left_out(folder):
    tiny.pointer(folder / "samples" / "first.safetensors")
    by_code = {f.code: f for f in open_case(folder).findings("acceptance")}
    assert by_code["A001"].severity == INFO
    assert "rounds" in by_code["A001"].measured
    assert "K=2, greedy chain" in by_code["A001"].evidence
    assert (by_code["A002"].severity, by_code["A002"].where) == (WARN, "first")


def test_a001_fails_where_the_wiring_costs_acceptance(folder):
    toml(ids="[0, 2, 5]")(folder)
    (one,) = found(folder, "acceptance", "A001")
    assert one.severity == FAIL
    assert "configured (0, 2, 5)" in one.measured


def test_a003_warns_of_a_chain_that_does_not_hold(folder):
    samples(lambda t: t["loss_mask"].fill_(1))(folder)  # more rounds: below 30 accepted drafts nothing is said
    (one,) = found(folder, "acceptance", "A003")
    assert one.severity == WARN
    assert one.measured.startswith("conditional 1.000, 0.")


PROM = """vllm:spec_decode_num_drafts_total {drafts}
vllm:spec_decode_num_draft_tokens_total {drafted}
vllm:spec_decode_num_accepted_tokens_total {accepted}
"""


@pytest.mark.parametrize(("accepted", "severity"), [(107, PASS), (20, WARN), (190, INFO)])
def test_e001_compares_the_engines_length_with_the_prediction(folder, accepted, severity):
    (folder / "m.prom").write_text(PROM.format(drafts=100, drafted=200, accepted=accepted))
    toml(run=tiny.RUN + 'metrics = ["m.prom"]\n')(folder)
    (one,) = found(folder, "serving", "E001")
    assert one.severity == severity
    assert f"engine {1 + accepted / 100:.3f} (100 rounds), predicted 2.0" in one.measured


def test_e004_and_e007_do_their_arithmetic(folder):
    (folder / "m.prom").write_text(PROM.format(drafts=100, drafted=200, accepted=107))
    base = '[[serving]]\nname = "none"\nengine = "vllm"\nsteps = 0\nseconds = 10.0\ntokens = 400\n'
    run = tiny.RUN + 'metrics = ["m.prom"]\nseconds = 20.0\ntokens = 400\n'
    (folder / "case.toml").write_text(tiny.TOML + run + base + "[training]\naccuracy = [0.5, 0.5]\n")
    by_code = {f.code: f for f in open_case(folder).findings("serving")}
    assert by_code["E004"].severity == WARN
    assert "0.50×; a round costs 4.14 plain steps" in by_code["E004"].measured
    assert "accept length 1.75 at K=2" in by_code["E007"].title


def test_e006_puts_the_repaired_run_beside(folder):
    (folder / "m.prom").write_text(PROM.format(drafts=100, drafted=200, accepted=107))
    wrong = tiny.RUN.replace("a run", "wrong").replace("[2, 4, 5]", "[0, 2, 8]")
    toml(run=wrong + tiny.RUN + 'metrics = ["m.prom"]\n')(folder)
    by_code = {f.code: f for f in open_case(folder).findings("serving")}
    assert "measured accept length 2.07 (run 'a run')" in by_code["E006"].title
    assert "vllm 0.33.0 v1: reads" in by_code["E009"].measured


class Reports:
    """A case whose engine files say what the test says."""

    def __init__(self, case: Case, *reports: EngineReport):
        self.case, self.said = case, list(reports)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.case, name)

    def reports(self, run: ServingRun) -> list[EngineReport]:
        return self.said


@pytest.mark.parametrize(("ids", "severity"), [((2, 4, 5), PASS), ((2, 4, 8), FAIL)])
def test_e005_and_e008_come_from_the_log(folder, ids, severity):
    said = EngineReport("vllm", "log", ("x.log",), ids=ids, notes=("partial: cut off",))
    by_code = {f.code: f for f in serving.check(Reports(open_case(folder), said))}
    assert by_code["E005"].severity == severity
    assert by_code["E008"].title == "partial: cut off"
    assert by_code["E001"].severity == Severity.BLOCKED


def test_e003_without_a_shared_text_is_not_comparable(folder):
    from eagle3lab.counts import RequestReport

    said = EngineReport("vllm", "responses", ("r",), 2, 1, 2, 0, requests=(RequestReport((1,), (2,), (0,), (2,)),))
    by_code = {f.code: f for f in serving.check(Reports(open_case(folder), said))}
    assert by_code["E003"].severity == Severity.NOT_COMPARABLE


def test_one_cause_is_one_finding():
    cut = BadFile("/case/draft/model.safetensors", "cut off; copy it again")
    shape = BadShape("fc", "a", "b", ["c"])
    out = inputs.stopped([("weights", cut), ("vocab", BadFile(cut.path, cut.faults)), ("forward", shape),
                          ("serving", Blocked("no samples"))])  # fmt: skip
    assert [(f.code, f.severity) for f in out] == [
        ("C001", FAIL),
        ("C002", Severity.BLOCKED),
        ("C002", Severity.BLOCKED),
    ]
    assert out[0].evidence == "not checked: weights, vocab"
    assert out[0].title == "model.safetensors cannot be used: cut off"
    again = inputs.finding(cut, ["serving"])
    (joined, other) = inputs.merged([out[0], out[1], again])
    assert joined.evidence == "not checked: weights, vocab, serving"
    assert other == out[1]
    assert inputs.relative([joined], Path("/case"))[0].where == "draft/model.safetensors"


def test_every_code_has_its_page(repo):
    text = (repo / "docs" / "checks.md").read_text(encoding="utf-8")
    headed = re.findall(r"^### ([A-Z]\d{3}) ", text, re.MULTILINE)
    assert headed == list(CODES), "one section '### CODE title' for each code, in the order of eagle3lab.checks.CODES"
    for code, section in zip(headed, re.split(r"^### [A-Z]\d{3} ", text, flags=re.MULTILINE)[1:], strict=True):
        for word in ("**Example**", "**Do**"):
            assert word in section, f"docs/checks.md, {code}: no {word}"


def test_a_key_that_changes_nothing_is_said_to(tmp_path):
    file = tiny.write_case(tmp_path)
    file.write_text(file.read_text() + '\n[scan]\npath = "states"\n')
    (tmp_path / "states").mkdir(exist_ok=True)
    found = [f for f in open_case(file).findings("weights") if f.code == "C003"]
    assert [f.severity for f in found] == [Severity.INFO]
    assert "[scan]" in found[0].title


def test_q_proj_is_explained_where_nobody_is_known_to_run_the_draft(tmp_path):
    file = tiny.write_case(tmp_path, tiny.TOML + '[training]\nprogram = "own"\n')

    def half(tensors):
        return tensors.update(
            {
                k: v[:, : tiny.H]
                for k, v in tensors.items()
                if k.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
            }
        )

    tiny.edit(tmp_path / "draft" / "model.safetensors", half)
    by_code = {f.code: f for f in open_case(file).findings("forward")}
    assert by_code["F008"].severity == Severity.BLOCKED
    assert by_code["F001"].severity == Severity.FAIL
    assert "2H" in by_code["F001"].remedy
