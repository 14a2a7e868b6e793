"""``eagle3lab serve-as``, the case's several runs, remedies by engine: planted drafts whose right reading is known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tiny
from naive import Naive
from planted import CASE, VLLM_RUN, Plan, Shape, World, make

from eagle3lab import Reading, open_case, views
from eagle3lab.__main__ import main
from eagle3lab.acceptance import accuracy_interval
from eagle3lab.records import Finding, Severity

IDS = {
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
}
PLAN = Plan(samples=3, length=44, held=(2, 3, 4, 5), trained=True)
POST = PLAN.but(reading=Reading(aux=(2, 4, 5), residual="post_norm"), config={"norm_before_residual": True} | IDS)
SGLANG = 'engine = "sglang"\nversion = "0.5.23"\n'


def sglang(world: World) -> None:
    world.toml = CASE.replace(VLLM_RUN, SGLANG).format(ids=[i - 1 for i in world.ids])


def more_runs(*runs: tuple[str, str, str]):
    def damage(world: World) -> None:
        world.toml = world.toml or CASE.format(ids=list(world.ids))
        for name, engine, ids in runs:
            world.toml += f'[[serving]]\nname = "{name}"\n{engine}aux_ids = {ids}\nsteps = 3\n'

    return damage


def written(folder: Path, plan: Plan, *damage) -> Path:
    world = make(plan)
    for change in damage:
        change(world)
    return world.write(folder)


def found(case: Path, code: str, *stages: str) -> list[Finding]:
    return [f for f in open_case(case).findings(*stages) if f.code == code]


def served(capsys, *arguments: object) -> tuple[int, str, str]:
    code = main(["serve-as", *map(str, arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_serve_as_says_each_engines_reading_and_its_accept_length(tmp_path, capsys):
    """vLLM and llama.cpp keep norm_before_residual, SGLang ignores it; TensorRT-LLM feeds (2, 5, 7), not recorded."""
    case = written(tmp_path, POST)
    code, out, _ = served(capsys, case)
    assert code == 0
    lines = {line.split("  ")[0].strip(): line for line in out.splitlines() if "  (2, " in line}
    assert "as fitted" in lines["vllm 0.33.0 v1"]
    assert "as fitted" in lines["llamacpp 0.3.36"]
    assert lines["sglang 0.5.23"].endswith("(2, 4, 5)  residual: post_norm → pre_norm")
    assert "aux: (2, 4, 5) → (2, 5, 7)" in lines["trtllm 00679c66"]
    assert "–" in lines["trtllm 00679c66"]
    assert "boundary 7 is not recorded" in out
    expected = open_case(case).evaluate(
        Reading.from_dict(json.loads(served(capsys, case, "--json")[1])["fitted"]["reading"])
    )
    assert (
        f"{expected.length.value:.2f} [{expected.length.low:.2f}, {expected.length.high:.2f}]"
        in lines["vllm 0.33.0 v1"]
    )


def test_serve_as_json_holds_the_same_numbers_for_chosen_engines(tmp_path, capsys):
    case = written(tmp_path, POST)
    code, out, _ = served(capsys, case, "--json", "--engine", "sglang 0.5.12", "--engine", "vllm")
    content = json.loads(out)
    assert code == 0
    assert list(content["served"]) == ["sglang 0.5.12", "vllm 0.33.0 v1", "vllm 0.33.0 v2"]
    sglang_row, vllm_row = content["served"]["sglang 0.5.12"], content["served"]["vllm 0.33.0 v1"]
    assert sglang_row["diff"] == {"residual": ["post_norm", "pre_norm"]}
    assert vllm_row["diff"] == {}
    assert vllm_row["accept_length"] == content["fitted"]["accept_length"]
    wrong = Reading.from_dict(sglang_row["reading"])
    assert sglang_row["accept_length"]["value"] == open_case(case).evaluate(wrong).length.value
    assert sglang_row["accept_length"]["high"] < vllm_row["accept_length"]["low"]
    assert "norm_before_residual is ignored" in sglang_row["replaced"][0]


def test_serve_as_without_samples_still_reads(tmp_path, capsys):
    case = tiny.write_case(tmp_path, tiny.TOML.replace('[samples]\npath = "samples"\n', ""))
    code, out, _ = served(capsys, case, "--json")
    content = json.loads(out)
    assert (code, content["fitted"]) == (0, None)
    assert "no [samples] table" in content["why"]
    assert content["served"]["sglang 0.5.23"]["boundaries"] == "(2, 4, 5)"
    assert content["served"]["sglang 0.5.23"]["accept_length"] is None


def test_an_unknown_engine_is_refused_before_any_work(tmp_path, capsys):
    code, out, err = served(capsys, tiny.write_case(tmp_path), "--engine", "nobody")
    assert (code, out) == (2, "")
    assert "'nobody' is not known; known: vllm, sglang" in err


def test_e009_gives_the_accept_length_of_each_engine(tmp_path):
    case = open_case(written(tmp_path, POST))
    (one,) = [f for f in case.findings("serving") if f.code == "E009"]
    ran = {reading for reading, _, fed in case.evaluations.chains if fed == "recorded"}
    assert {r.residual for r in ran} == {"post_norm", "pre_norm"}
    assert len(ran) == 2  # two distinct readings of six programs
    right = case.evaluate(POST.reading.replace(rope=case.fitted.rope)).length
    assert f"vllm 0.33.0 v1: reads (2, 4, 5), as fitted, accept length {right.value:.2f}" in one.measured
    assert "sglang 0.5.23: reads (2, 4, 5), differs in residual, accept length" in one.measured


def test_a_head_that_sglang_makes_up_accepts_nothing(tmp_path, capsys):
    """sglang#27908: Vd = V and no lm_head; trained on the target's head, so vLLM, which takes it, is right."""
    plan = PLAN.but(shape=Shape(vocab=48, draft_vocab=48), config=IDS,
                    reading=Reading(aux=(2, 4, 5), vocab_map="identity", head="target"))  # fmt: skip

    def headless(world: World) -> None:
        sglang(world)
        for name in ("lm_head.weight", "d2t", "t2d"):
            del world.weights[name]

    case = written(tmp_path, plan, headless)
    findings = open_case(case).findings("forward", "acceptance", "serving")
    (field,) = [f for f in findings if f.code == "F006"]
    assert (field.severity, field.where) == (Severity.FAIL, "lm_head")
    assert "set draft_vocab_size to null" in field.remedy
    (length,) = [f for f in findings if f.code == "A001"]
    assert length.severity == Severity.FAIL
    assert length.title.startswith("accept length 1.00 as configured, ")
    assert [f.severity for f in findings if f.code == "E002" and "lm_head of its initial values" in f.title] == [
        Severity.FAIL
    ]
    rows = json.loads(served(capsys, case, "--json")[1])["served"]
    assert rows["sglang 0.5.23"]["accept_length"]["value"] == 1.0
    assert rows["vllm 0.33.0 v1"]["accept_length"]["value"] > 1.5
    assert rows["vllm 0.33.0 v1"]["differs"] == "as fitted"
    assert main(["check", str(case), "--json", "--stage", "weights"]) == 0
    readings = json.loads(capsys.readouterr().out)["readings"]
    assert readings["configured"]["accept_length"]["value"] == 1.0
    assert readings["fitted"]["accept_length"]["value"] > 1.5


def test_every_run_is_judged(tmp_path):
    """The first run is right; of the others two are wrong alike, one is right, one is refused, one ignores a flag."""
    vllm = VLLM_RUN
    case = written(tmp_path, POST, more_runs(
        ("second", vllm, "[3, 4, 5]"), ("third", vllm, "[2, 4, 5]"), ("fourth", vllm, "[3, 4, 5]"),
        ("fifth", vllm, "[2, 4]"), ("sixth", SGLANG, "[1, 3, 4]"), ("seventh", vllm, "[0, 4, 5]")))  # fmt: skip
    rows = {f.where: f for f in found(case, "F013", "forward")}
    assert {where.removeprefix("case.toml: "): f.severity for where, f in rows.items()} == {
        "runs 'second', 'fourth'": Severity.FAIL, "run 'third'": Severity.PASS, "run 'fifth'": Severity.FAIL,
        "run 'sixth'": Severity.FAIL, "run 'seventh'": Severity.UNDETERMINED,
    }  # fmt: skip
    second = rows["case.toml: runs 'second', 'fourth'"]
    assert "feeds boundaries (3, 4, 5), the draft fits (2, 4, 5)" in second.title
    case_now = open_case(case)
    lengths = [case_now.evaluate(case_now.fitted.replace(aux=aux)).length.value for aux in ((3, 4, 5), (2, 4, 5))]
    assert f"accept length {lengths[0]:.2f} [" in second.measured
    assert f"fitted {lengths[1]:.2f} [" in second.measured
    assert "fc takes 3 states" in rows["case.toml: run 'fifth'"].title
    assert rows["case.toml: run 'sixth'"].remedy.startswith("sglang 0.5.23 ignores norm_before_residual")
    assert "boundary 0 is not recorded" in rows["case.toml: run 'seventh'"].measured


def test_one_run_has_no_others(tmp_path):
    assert found(written(tmp_path, POST), "F013", "forward") == []


@pytest.mark.parametrize(
    ("config", "reading", "engine", "says", "never"),
    [
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, {}, "vllm",
         ("set rope_parameters.rope_theta to 10000 (it is 1000000", "rope_theta = 10000.0 stands beside it"), "on the right"),
        ({"rope_theta": 1e6}, {}, "vllm", ("set rope_theta to 10000 (it is 1000000",), "beside it"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 8.0}}, {}, "vllm",
         ('set rope_parameters to {"rope_theta": 10000.0, "rope_type": "default"}',), "rope_scaling"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, {}, "vllm", ("take rope_scaling out",), "rope_parameters"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 8}, {"window": 8}, "sglang",
         ("sglang 0.5.23 ignores sliding_window and layer_types, already so", "serve the draft with vllm",
          "--speculative-draft-window-size 8"), "set sliding_window"),
        ({"norm_before_residual": True}, {"residual": "post_norm"}, "sglang",
         ("ignores norm_before_residual, already so", "serve the draft with vllm, llamacpp", "retrain"), "to true"),
        ({}, {"residual": "post_norm"}, "sglang",
         ("sglang 0.5.23 does not read norm_before_residual", "set norm_before_residual to true"), "already so"),
        ({}, {"residual": "post_norm"}, "vllm", ("set norm_before_residual to true", "read by vllm, llamacpp"), "sglang"),
    ],
)  # fmt: skip
def test_the_remedy_names_the_key_that_counts_and_its_value(tmp_path, config, reading, engine, says, never):
    plan = PLAN.but(config=config, reading=Reading(aux=(2, 4, 5), **reading))
    case = written(tmp_path, plan, *([sglang] if engine == "sglang" else []))
    (one,) = [f for f in found(case, "F006", "forward") if f.severity == Severity.FAIL]
    for words in says:
        assert words in one.remedy
    assert never not in one.remedy


@pytest.mark.parametrize("engine", ["", '[[serving]]\nname = "r"\nengine = "sglang"\nversion = "0.5.23"\n'])
def test_a_draft_with_its_own_table_is_scored_without_a_target(tmp_path, engine):
    """No target, no ids, so that no program's wiring is known: all that the search needs is there all the same."""
    plan = PLAN.but(own_table=True, reading=Reading(aux=(2, 4, 5), embedding="own"))

    def alone(world: World) -> None:
        world.toml = f'title = "p"\n[draft]\npath = "draft"\n[samples]\npath = "samples"\n{engine}'

    findings = open_case(written(tmp_path, plan, alone)).findings("forward", "acceptance")
    by_code = {f.code: f for f in findings}
    assert "C002" not in by_code
    assert by_code["F001"].severity == by_code["F005"].severity == Severity.PASS
    assert by_code["F008"].severity == by_code["F003"].severity == Severity.BLOCKED
    assert by_code["F003"].measured == "accuracy 1.000"
    assert "fits boundaries (2, 4, 5)" in by_code["F003"].title
    assert "A001" in by_code


def test_every_field_can_be_set_by_hand_at_once(tmp_path):
    case = open_case(written(tmp_path, POST.but(own_table=True)))
    fields = views.fields_of(case, case.sample())
    assert all(len(values) > 1 for values in fields.values())
    assert {"slot_0", "slot_2", "residual", "feedback", "head_norm", "embedding", "head", "vocab_map", "shift", "dtype",
            "rope.base", "rope.layout", "rope.partial"} <= set(fields)  # fmt: skip
    assert not {"fc", "aux_norm", "second_norm", "window", "rope.scaling", "uses fc.bias"} & set(
        fields
    )  # one value each
    starts = views.presets(case, fields)
    assert views.by_hand(case, fields, starts["fitted"]) == case.fitted
    wanted = starts["fitted"] | {"slot_1": "3", "residual": "pre_norm", "rope.base": "500000", "vocab_map": "ids"}
    reading = views.by_hand(case, fields, wanted)
    assert set(case.fitted.diff(reading)) == {"aux", "residual", "rope.base", "vocab_map"}
    told = dict(views.differences(case, reading))["against the fitted reading"]
    assert (
        told
        == "aux: (2, 4, 5) → (2, 3, 5); residual: post_norm → pre_norm; vocab_map: offsets → ids; rope.base: 10000 → 500000"
    )
    assert dict(views.differences(case, case.fitted))["against the fitted reading"] == "the same"
    assert views.by_hand(case, fields, starts["sglang 0.5.9"]).residual == "pre_norm"


def test_the_controls_follow_a_preset_and_redraw_once(tmp_path, monkeypatch):
    from eagle3lab import explore

    case = open_case(written(tmp_path, POST))
    shown: list[object] = []
    monkeypatch.setattr(explore, "display", lambda *things: shown.append(things))
    explore.by_hand(case, False)
    assert len(shown) == 1  # headless: the default, once, without a control
    monkeypatch.setenv(explore.FORCE, "1")
    shown.clear()
    explore.by_hand(case, True)
    row = shown[-1][0].children[0]
    controls = {control.description: control for control in row.children}
    assert controls["residual"].value == "post_norm"
    before = len(shown)
    controls["start from"].value = "sglang 0.5.9"
    assert controls["residual"].value == "pre_norm"
    assert len(shown) == before + 1
    controls["slot 1"].value = "3"
    assert len(shown) == before + 2
    facts = shown[-1][0]
    assert "aux: (2, 4, 5) → (2, 3, 5); residual: post_norm → pre_norm" in facts._repr_html_()


def test_a_boundary_that_few_samples_hold_is_not_compared_with_all(tmp_path, capsys):
    """Of three samples one holds boundary 3: a length from that one beside the fitted one's from three would mislead."""
    case = written(tmp_path, PLAN, more_runs(("other", VLLM_RUN, "[2, 3, 5]")))
    for file in sorted((tmp_path / "samples").iterdir())[1:]:
        tiny.edit(file, lambda t: t.pop("h.3"))
    (one,) = found(case, "F013", "forward")
    assert one.severity is Severity.UNDETERMINED
    assert "boundary 3 is recorded in 1 of 3 samples only" in one.measured


def test_a_run_is_judged_at_its_own_k(tmp_path):
    case = written(tmp_path, PLAN, more_runs(("other", VLLM_RUN, "[3, 4, 5]")))
    text = case.read_text()
    head, tail = text.rsplit("steps = 3", 1)
    case.write_text(head + "steps = 1" + tail)
    (one,) = found(case, "F013", "forward")
    assert "K=1: accept length" in one.measured


def test_neighbours_of_a_boundary_that_is_not_recorded_may_stand_in(tmp_path):
    """The run's ids are right, boundary 4 was not recorded, and training's figure is reached by its neighbour."""
    case = written(tmp_path, PLAN.but(walk=0.2, held=(2, 3, 5)))
    opened = open_case(case)
    here = accuracy_interval(list(opened.evaluate(opened.fitted).parts.values()))
    assert here.high > here.value + 0.01 and here.value < 0.99
    case.write_text(case.read_text() + f"[training]\naccuracy = [{here.value + 0.01}]\n")
    (one,) = found(case, "F003", "forward")
    assert one.severity is Severity.UNDETERMINED, one
    # that a boundary is missing which the draft was not trained with convicts the run still
    wrong = written(tmp_path / "b", PLAN.but(ids=(2, 5, 7)))
    wrong.write_text(wrong.read_text() + "[training]\naccuracy = [0.9]\n")
    (two,) = found(wrong, "F003", "forward")
    assert two.severity is Severity.FAIL and "fits (2, 4, 5)" in two.title


STRANGE = '[[serving]]\nname = "lcpp"\nengine = "exllama"\nsteps = 3\n'
KNOWN = "engine 'exllama' is not known; known: vllm, sglang, trtllm, llamacpp"


def strange(world: World) -> None:
    world.toml = CASE.format(ids=list(world.ids)) + STRANGE


def coded(findings: list[Finding]) -> dict[str, Finding]:
    return {f.code: f for f in findings}


def test_a_run_that_was_asked_for_is_never_judged_by_another_ones_engine(tmp_path):
    case = open_case(written(tmp_path, PLAN, strange), run="lcpp")
    assert case.configured.reading is None
    assert KNOWN in case.configured.source
    by_code = coded(case.findings("forward"))
    assert by_code["F008"].severity is by_code["F003"].severity is Severity.BLOCKED
    assert KNOWN in by_code["F008"].title
    assert "fits boundaries (2, 4, 5)" in by_code["F003"].title
    assert "F006" not in by_code
    assert "run 'run': vllm 0.32.0 v1 reads the draft as it fits" in by_code["F013"].title  # which is another run
    by_hand = open_case(tmp_path / "case.toml", run="lcpp", aux="2,4,5")
    by_code = coded(by_hand.findings("forward"))
    assert by_code["F003"].severity is Severity.PASS
    assert "F008" not in by_code


def test_a_run_of_an_unknown_engine_is_named_where_another_one_is_judged(tmp_path):
    case = written(tmp_path, PLAN, strange)
    (one,) = found(case, "F013", "forward")
    assert one.severity is Severity.BLOCKED
    assert "run 'lcpp' (engine 'exllama')" in one.title
    assert coded(open_case(case).findings("forward"))["F003"].severity is Severity.PASS
    head, serving = case.read_text().split("[[serving]]", 1)  # the unknown one first, a nameless engine last
    case.write_text(
        head + STRANGE + "[[serving]]" + serving.removesuffix(STRANGE) + '[[serving]]\nname = "x"\nsteps = 2\n'
    )
    by_code = coded(open_case(case).findings("forward"))
    assert by_code["F003"].severity is Severity.PASS
    assert "runs 'lcpp' (engine 'exllama'), 'x' (no engine named)" in by_code["F013"].title
    case.write_text(re.sub(r"(?s)\[samples\].*?\n(?=\[\[)", "", case.read_text()))  # nor does it take a recording
    assert "'lcpp'" in coded(open_case(case).findings("forward"))["F013"].title


def test_what_stands_in_for_an_unknown_engine_is_said_to_be_a_guess(tmp_path):
    """Its aux_ids are numbers of an engine that nobody knows: specforge's defaults, (2, 5, 7), convict nobody."""
    wide = PLAN.but(held=(2, 3, 4, 5, 7))

    def only(world: World) -> None:
        world.toml = CASE.replace(VLLM_RUN, 'engine = "lmdeploy"\n').format(ids=list(world.ids))

    case = open_case(written(tmp_path / "guess", wide, only))
    by_code = coded(case.findings("forward"))
    assert by_code["F003"].severity is Severity.UNDETERMINED
    assert "specforge (a guess: engine 'lmdeploy' is not known)" in by_code["F003"].title
    assert "feeds boundaries" not in by_code["F003"].title
    assert by_code["F008"].severity is Severity.BLOCKED
    assert "aux_ids [2, 4, 5]" in by_code["F008"].title
    assert "trained reading of specforge, which the checkpoint looks like, stands in" in by_code["F008"].title
    assert "F013" not in by_code

    fits = open_case(written(tmp_path / "fits", wide.but(config=IDS), only))
    by_code = coded(fits.findings("forward"))
    assert by_code["F003"].severity is Severity.PASS
    assert "as read by specforge (a guess" in by_code["F003"].title
    assert by_code["F008"].severity is Severity.BLOCKED
    none = tmp_path / "fits" / "case.toml"
    none.write_text(none.read_text().split("[[serving]]")[0])  # no run at all: configured = trained, and no guess
    assert open_case(none).configured == open_case(none).trained


def test_a_chosen_run_that_drafts_nothing_says_who_is_judged(tmp_path):
    case = written(tmp_path, PLAN)
    case.write_text(case.read_text() + '[[serving]]\nname = "none"\nengine = "vllm"\nsteps = 0\n')
    assert "F013" not in coded(open_case(case).findings("forward"))
    one = coded(open_case(case, run="none").findings("forward"))["F013"]
    assert (one.severity, "judge run 'run'" in one.title) == (Severity.INFO, True)


@pytest.mark.parametrize(
    ("engine", "name"),
    [("llama.cpp", "llamacpp"), ("llama-cpp", "llamacpp"), ("tensorrt-llm", "trtllm"), ("TensorRT_LLM", "trtllm"),
     ("trt-llm", "trtllm"), ("vLLM", "vllm"), ("SGLang", "sglang"), ("exLlama", "exLlama")],
)  # fmt: skip
def test_engines_may_be_spelled_as_usual(tmp_path, capsys, engine, name):
    file = tiny.write_case(tmp_path, tiny.TOML + tiny.RUN.replace('"vllm"', f'"{engine}"'))
    file.write_text(file.read_text() + '[training]\nprogram = "SpecForge"\n')
    case = open_case(file)
    assert case.run.engine == name
    assert case.trainer == "specforge"
    assert case.configured.program.startswith("specforge (a guess" if name == "exLlama" else f"{name} ")
    if name != "exLlama":
        assert list(json.loads(served(capsys, file, "--json", "--engine", engine)[1])["served"])[0].startswith(name)


def rewritten(world: World, remedy: str) -> dict[str, np.ndarray]:
    """The draft's weights after doing what the remedy says, to the letter."""
    weights, width = dict(world.weights), world.plan.shape.target_hidden
    old = np.split(weights["fc.weight"], weights["fc.weight"].shape[1] // width, axis=1)
    norms = {name: w for name, w in weights.items() if name.startswith("fc_norm.")}
    if "multiply the columns of each by its own old fc_norm.k" in remedy:
        ones = re.search(r"new ((?:fc_norm\.\d(?:, )?)+) = ones", remedy)[1].split(", ")
    else:
        ones = []
    new = []
    for j, (slots, _) in enumerate(
        re.findall(r"new block \d = ((?:old block \d(?: \+ )?)+) \(boundary (\d+)\)", remedy)
    ):
        parts = [int(i) for i in re.findall(r"\d", slots)]
        scaled = f"fc_norm.{j}" in ones
        new.append(sum(old[i] * norms[f"fc_norm.{i}.weight"] if scaled else old[i] for i in parts))
    weights["fc.weight"] = np.concatenate(new, 1)
    for name in norms:
        del weights[name]
    for j, i in re.findall(r"new fc_norm\.(\d) = old fc_norm\.(\d)", remedy):
        weights[f"fc_norm.{j}.weight"] = norms[f"fc_norm.{i}.weight"]
    weights |= {f"{name}.weight": np.ones(width, np.float32) for name in ones}
    if "entries of input_norm.weight in the same blocks" in remedy:
        blocks = np.split(weights["input_norm.weight"], len(old))
        order = [int(i) for i in re.findall(r"new block \d = old block (\d)", remedy)]
        weights["input_norm.weight"] = np.concatenate([blocks[i] for i in order])
    return weights


def logits(world: World, weights: dict[str, np.ndarray], reading: Reading) -> np.ndarray:
    """What the naive forward says of the first text, teacher-forced."""
    shape, (tokens, states) = world.plan.shape, world.texts[0]
    naive = Naive(weights, reading, shape.heads, shape.head_dim, shape.eps, table=world.source.table,
                  target_head=world.source.head_rows)  # fmt: skip
    caches = naive.caches()
    return np.stack([naive.feed(caches, int(tokens[t + 1]), naive.fuse([states[k][t] for k in reading.aux]), t)[1]
                     for t in range(len(tokens) - 1)])  # fmt: skip


FC_NORM = {"norms": "fc_norm", "config": {"fc_norm": True}}
ALL_NORM = {"norms": "input_norm", "config": {"norm_before_fc": True}}
REORDERED = {
    "another order": ((5, 4, 2), "none", {}, (2, 4, 5)),
    "another order, a norm each": ((4, 5, 2), "fc_norm", FC_NORM, (2, 4, 5)),
    "another order, one norm": ((4, 5, 2), "input_norm", ALL_NORM, (2, 4, 5)),
    "a boundary twice": ((2, 2, 4), "none", {"ids": (2, 3, 4)}, (2, 4)),
    "twice and in another order": ((5, 2, 5), "none", {}, (2, 5)),
    "twice, a norm each": ((4, 2, 4), "fc_norm", FC_NORM, (2, 4)),
}


@pytest.mark.parametrize("name", REORDERED)
def test_a_wiring_that_no_ids_give_is_rewritten_and_predicts_the_same(tmp_path, name):
    aux, aux_norm, more, order = REORDERED[name]
    world = make(PLAN.but(reading=Reading(aux=aux, aux_norm=aux_norm), **more))
    (one,) = [f for f in open_case(world.write(tmp_path)).findings("forward") if f.code == "F003"]
    assert one.severity is Severity.FAIL
    assert "not expressible" not in one.remedy
    assert f'vllm: "eagle_aux_hidden_state_layer_ids": {list(order)}' in one.remedy
    reading = world.plan.reading
    before = logits(world, world.weights, reading)
    after = logits(world, rewritten(world, one.remedy), reading.replace(aux=order))
    np.testing.assert_allclose(after, before, atol=2e-5)
    untouched = world.weights if len(order) == len(aux) else None
    assert untouched is None or np.abs(logits(world, untouched, reading.replace(aux=order)) - before).max() > 0.1
    assert ("llamacpp" in one.remedy.split("served with")[-1]) is (aux_norm != "fc_norm")  # it has no fc_norm


def test_a_boundary_twice_under_one_norm_is_not_said_to_be_mended_by_an_edit(tmp_path):
    case = written(tmp_path, PLAN.but(reading=Reading(aux=(2, 2, 4), aux_norm="input_norm"), ids=(2, 3, 4), **ALL_NORM))
    (one,) = found(case, "F003", "forward")
    assert "permute" not in one.remedy
    assert "no edit of the file" in one.remedy
    assert 'serve the file with llamacpp: "eagle_aux_hidden_state_layer_ids": [2, 2, 4]' in one.remedy
