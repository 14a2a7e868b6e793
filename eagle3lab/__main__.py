"""The command line: report, check, forward, serve-as, compare, slice-target."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from pathlib import Path

import eagle3lab
from eagle3lab import exported, slicing
from eagle3lab.bars import bar
from eagle3lab.case import Case, open_case
from eagle3lab.casefile import find_case, read_case
from eagle3lab.checks import STAGES
from eagle3lab.console import say, say_json
from eagle3lab.dialects import ENGINES
from eagle3lab.errors import BadCase, BadOption, LabError
from eagle3lab.forward import rollout
from eagle3lab.reading import Reading
from eagle3lab.records import Severity, by_severity, worst
from eagle3lab.views import compare, served
from eagle3lab.views.checked import check_json

DONE, BROKEN, USAGE, GATE = 0, 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code (0 done, 1 something did not run, 2 wrong usage, 3 a gate not met)."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.command(options))
    except (BadCase, BadOption) as error:
        _say(f"eagle3lab: {error}")
        return USAGE
    except LabError as error:
        _say(f"eagle3lab: {error}")
        return BROKEN
    except BrokenPipeError:
        return DONE
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _say(f"eagle3lab: {str(error.filename)[:200]} …: longer than any file's name can be; check the path")
        return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eagle3lab", description="Find out why an EAGLE-3 draft is not accepted.")
    parser.add_argument("--version", action="version", version=f"eagle3lab {eagle3lab.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    report = commands.add_parser("report", help="run all notebooks headless and render pages and an index")
    report.add_argument("cases", nargs="+", metavar="CASE", help="case.toml or its folder")
    report.add_argument("-o", "--out", default="reports", metavar="DIR", help="where pages go (default: reports)")
    report.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    report.add_argument("--only", action="append", default=[], metavar="NN", help="run this notebook only (repeatable)")
    report.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default: 2)")
    report.add_argument("--timeout", type=int, default=3600, help="seconds a cell may take (default: 3600)")
    report.add_argument("--strict", action="store_true", help="exit 3 when any verdict is FAIL")
    report.set_defaults(command=_report)

    check = commands.add_parser("check", help="print the findings without notebooks")
    check.add_argument("case", metavar="CASE")
    check.add_argument("--run", default="", metavar="NAME", help="which serving run (default: the first)")
    check.add_argument("--json", action="store_true", help="for machines: findings and readings on standard output")
    check.add_argument(
        "--stage", action="append", default=[], choices=STAGES, help="check this stage only (repeatable)"
    )
    check.add_argument("--strict", action="store_true", help="exit 3 when anything is FAIL")
    check.add_argument("--fail-on", metavar="SEVERITY", choices=[s.value for s in Severity],
                       help="exit 3 when anything is this bad or worse")  # fmt: skip
    check.add_argument("--device", default="cpu")
    check.set_defaults(command=_check)

    forward = commands.add_parser("forward", help="write the states and logits of a rollout for comparison elsewhere")
    forward.add_argument("case", metavar="CASE")
    forward.add_argument("--sample", default="", metavar="NAME", help="default: the first")
    forward.add_argument("--steps", type=int, default=0, metavar="K", help="default: as the serving run")
    forward.add_argument("--run", default="", metavar="NAME", help="whose reading (default: the first run's)")
    forward.add_argument("--aux", default="", metavar="K,K,K", help="boundaries instead of the configured ones")
    forward.add_argument("--reading", metavar="FILE", help="a Reading as JSON, instead of the configured one")
    forward.add_argument("--fed", choices=("recorded", "self"), default="recorded", help="tokens fed to later steps")
    forward.add_argument("--device", default="cpu")
    forward.add_argument("-o", "--out", required=True, metavar="FILE", help="a .safetensors file")
    forward.set_defaults(command=_forward)

    serve = commands.add_parser(
        "serve-as", help="how each engine would read the checkpoint, and the accept length that gives"
    )
    serve.add_argument("case", metavar="CASE")
    known = f"{', '.join(ENGINES)}; with a version: 'sglang 0.5.9' (repeatable; default: all)"
    serve.add_argument("--engine", action="append", default=[], metavar="ENGINE", help=known)
    serve.add_argument("--json", action="store_true", help="for machines")
    serve.add_argument("--device", default="cpu")
    serve.set_defaults(command=_serve_as)

    pair = commands.add_parser("compare", help="two cases, or two readings of one, on the same positions")
    pair.add_argument("paths", nargs="+", metavar="PATH", help="two cases; or a case and one or two readings (.json)")
    pair.add_argument("--steps", type=int, default=0, metavar="K", help="default: as the serving run")
    pair.add_argument(
        "--fitted", action="store_true", help="each case under its fitted reading, not its configured one"
    )
    pair.add_argument("--json", action="store_true", help="for machines")
    pair.set_defaults(command=_compare)

    slicer = commands.add_parser("slice-target", help="write the target's rows that a case needs, to share it without")
    slicer.add_argument("case", metavar="CASE")
    slicer.add_argument("-o", "--out", required=True, metavar="DIR", help="a folder that is not there yet")
    slicer.set_defaults(command=_slice_target)
    return parser


def _say(line: str) -> None:
    say(line, sys.stderr)


def _report(options: argparse.Namespace) -> int:
    from eagle3lab.report import run_report  # papermill and nbconvert take a second to import

    cases = [find_case(case)[0] for case in options.cases]
    return run_report(
        cases,
        Path(options.out),
        parameters=dict(options.parameter),
        only=options.only,
        strict=options.strict,
        timeout=options.timeout,
        jobs=options.jobs,
        log=_say,
    )


def _check(options: argparse.Namespace) -> int:
    case = open_case(options.case, options.run, device=options.device, progress=_say)
    case.track = bar("statistics") if sys.stderr.isatty() else None
    findings = case.findings(*options.stage)
    if options.json:
        say_json(check_json(case, findings, options.stage), sys.stdout)
    else:
        from eagle3lab import tables

        say(f"{' '.join(case.title.split())}\n\n{tables.findings_text(by_severity(findings))}", sys.stdout)
    gate = Severity(options.fail_on) if options.fail_on else Severity.FAIL if options.strict else None
    if any(f.code == "C001" for f in findings):
        return BROKEN
    return GATE if gate is not None and findings and worst(findings).rank <= gate.rank else DONE


def _serve_as(options: argparse.Namespace) -> int:
    case = open_case(options.case, device=options.device, progress=_say)
    found = served.serve_as(case, options.engine)
    if options.json:
        say_json(found, sys.stdout)
    else:
        say(served.in_words(found), sys.stdout)
    return DONE


def _forward(options: argparse.Namespace) -> int:
    out = Path(options.out)
    exported.check_place(out, read_case(find_case(options.case)[0]))
    case = open_case(options.case, options.run, aux=options.aux, device=options.device, progress=_say)
    reading = _chosen_reading(case, options)
    if options.sample and options.sample not in case.samples:
        raise BadOption(f"--sample {options.sample}: no such sample; found {', '.join(list(case.samples)[:20])}")
    sample = case.sample(options.sample)
    steps = options.steps or case.steps
    most = sample.length - 1 - reading.shift
    if not 1 <= steps <= most:
        rows = f"so 1 to {most} steps have rows" if most > 0 else f"none is left to predict at shift {reading.shift}"
        raise BadOption(f"--steps {steps}: sample {sample.name} has {sample.length} tokens, {rows}")
    result = rollout(case.model, sample, reading, steps, fed=options.fed, keep=("hidden", "logits"))
    exported.write(out, result, reading, sample.name, options.fed)
    _say(f"{out}: {steps} steps of {sample.name} under {reading}")
    for line in exported.remarks(result, reading, sample.length):
        _say(line)
    return BROKEN if result.nonfinite else DONE


def _compare(options: argparse.Namespace) -> int:
    found = compare.compare(options.paths, steps=options.steps, fitted=options.fitted, progress=_say)
    if options.json:
        say_json(found, sys.stdout)
    else:
        say(compare.in_words(found), sys.stdout)
    for line in found["nonfinite"]:
        _say(line)
    return BROKEN if found["nonfinite"] else DONE


def _slice_target(options: argparse.Namespace) -> int:
    case = open_case(options.case, progress=_say)
    if case.target is None:
        raise BadOption(f"{case.file.path}: has no [target] table, so there is nothing to slice")
    found = [case.attempt("configured"), case.attempt("trained"), *(case.attempt("everyone") or {}).values()]
    kinds = {way.reading.vocab_map for way in found if way and way.reading} or {"offsets"}
    tokens, notes = slicing.tokens_of(case.draft, case.samples if case.file.samples else None, kinds)
    written = slicing.write(case.target, tokens, Path(options.out), notes)
    for note in written.notes:
        _say(f"note: {note}")
    files = ", ".join(written.files)
    say(f"{written.folder}: {written.rows} of {written.vocab} rows, {written.nbytes} bytes: {files}", sys.stdout)
    say(f"in case.toml:\n{written.toml(case.root)}", sys.stdout)
    return DONE


def _chosen_reading(case: Case, options: argparse.Namespace) -> Reading:
    if options.reading:
        reading = compare.reading_of(Path(options.reading))
        return reading.replace(aux=case.aux) if case.aux else reading
    if case.configured.reading is None:
        raise LabError(
            f"{case.configured.program} gives no reading: {case.configured.unread}; give --reading, or correct the ids"
        )
    return case.configured.reading


if __name__ == "__main__":
    sys.exit(main())
