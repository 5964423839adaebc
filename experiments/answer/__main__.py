"""List, build and run the pairs: `python -m experiments.answer` (see --help)."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from . import build, candidates, pairs, record, run, table


def main() -> None:
    parser = argument_parser()
    options = parser.parse_args()
    if options.command == "list":
        for pair in pairs().values():
            print(f"{pair.name:20} {pair.kind:6} {pair.effect:6} {pair.about}")
    elif options.command == "build":
        for name in chosen_pairs(options.names):
            started = time.perf_counter()
            folder = build(name, options.data, options.out, options.seed)
            print(f"{folder / 'job.yaml'} ({time.perf_counter() - started:.0f} s)", flush=True)
    elif options.command == "run":
        run_methods(parser, options)
    elif options.command == "pack":
        print(f"{record.pack(options.out, options.record)} results")
    elif options.command == "page":
        for part in (table, candidates):
            part.PAGE.write_text(part.page(), encoding="utf-8")
    else:
        print(table.tables(options.out))


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.answer", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name, kind, expected effect and question of every pair")
    builder = commands.add_parser("build", help="write pairs as files with a job")
    builder.add_argument("names", nargs="+", metavar="NAME", help="names of pairs, all or held_out")
    builder.add_argument("--data", type=Path, required=True, help="folder of the public data sets")
    builder.add_argument("--out", type=Path, required=True, help="a folder NAME is made in here")
    builder.add_argument("--seed", type=int, default=0, help="seed of the job (default: 0)")
    runner = commands.add_parser("run", help="run methods on pairs and seeds")
    runner.add_argument("--pairs", required=True, help="names with commas, all or held_out")
    runner.add_argument("--seeds", default="0", help="numbers and ranges: 0-4,7")
    runner.add_argument("--methods", default="default", help=f"all, or of {', '.join(run.METHODS)}")
    runner.add_argument("--out", type=absolute, required=True, help="results, files and caches")
    runner.add_argument("--data", type=absolute, help="folder of the public data sets")
    runner.add_argument("--autogluon", help="the interpreter of AutoGluon's environment")
    runner.add_argument("--workers", type=int, default=1, help="processes that share the work")
    runner.add_argument("--quick", action="store_true", help="six steps for every network: a test")
    runner.add_argument("--frozen", action="store_true", help="the one run of held-out pairs")
    shown = commands.add_parser("table", help="all statistics of the results, as Markdown")
    shown.add_argument("--out", type=Path, required=True, help="the folder given to run, or RECORD")
    commands.add_parser("page", help="write the tables of the committed results into their pages")
    packer = commands.add_parser("pack", help="one file of all results, to be committed")
    packer.add_argument("--out", type=Path, required=True, help="the folder given to run")
    packer.add_argument("record", type=Path, metavar="RECORD", help="the file")
    return parser


def absolute(text: str) -> Path:
    """A path that stays the same in another folder: the runner works in the checkout's root."""
    return Path(text).resolve()


def run_methods(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    declared = pairs()
    names = chosen_pairs(options.pairs.split(","))
    refused = [name for name in names if declared[name].held_out]
    if refused and not options.frozen:
        parser.error(f"{', '.join(refused)}: held out; protocol.md says when --frozen is given")
    methods = options.methods.split(",")
    if options.methods == "all":
        methods = [*run.METHODS]
    unknown = set(methods).difference(run.METHODS)
    if unknown:
        parser.error(f"unknown method {', '.join(sorted(unknown))}")
    place = run.Place(options.out, options.data, options.autogluon, options.quick)
    run.run_all(names, numbers(options.seeds), methods, place, options.workers)


def chosen_pairs(words: list[str]) -> list[str]:
    """Names of pairs, where `all` and `held_out` stand for many."""
    declared = pairs()
    groups: dict[str, list[str]] = {name: [name] for name in declared}
    groups["held_out"] = [name for name, pair in declared.items() if pair.held_out]
    groups["all"] = [name for name, pair in declared.items() if not pair.held_out]
    unknown = set(words) - groups.keys()
    if unknown:
        raise SystemExit(f"unknown pair {', '.join(sorted(unknown))}; `list` shows them")
    names = []
    for word in words:
        names += groups[word]
    return names


def numbers(text: str) -> list[int]:
    """`0-2,7` is 0, 1, 2, 7."""
    values: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        values += range(int(first), int(last or first) + 1)
    return values


if __name__ == "__main__":
    main()
