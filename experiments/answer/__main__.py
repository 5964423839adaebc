"""List, build and run the pairs: `python -m experiments.answer` (see --help)."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from . import build, pairs, record, run, table


def main() -> None:
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
    runner.add_argument("--out", type=Path, required=True, help="results, files and caches")
    runner.add_argument("--data", type=Path, help="folder of the public data sets, to build pairs")
    runner.add_argument("--before", type=Path, help="a worktree of revision 69126ad5")
    runner.add_argument("--autogluon", help="the interpreter of AutoGluon's environment")
    runner.add_argument("--workers", type=int, default=1, help="processes that share the work")
    runner.add_argument("--quick", action="store_true", help="six steps for every network: a test")
    runner.add_argument("--frozen", action="store_true", help="the one run of held-out pairs")
    embedder = commands.add_parser("embed", help="compute the features of frozen encoders")
    embedder.add_argument("--pairs", required=True, help="names with commas, all or held_out")
    embedder.add_argument("--seeds", default="0", help="numbers and ranges: 0-4,7")
    embedder.add_argument("--out", type=Path, required=True, help="the folder given to run")
    embedder.add_argument("--data", type=Path, help="folder of the public data sets")
    embedder.add_argument("--workers", type=int, default=1, help="processes that share the work")
    shown = commands.add_parser("table", help="all statistics of the results, as Markdown")
    shown.add_argument("--out", type=Path, required=True, help="the folder given to run, or RECORD")
    commands.add_parser("page", help="write the tables of the committed results into their page")
    packer = commands.add_parser("pack", help="one file of all results, to be committed")
    packer.add_argument("--out", type=Path, required=True, help="the folder given to run")
    packer.add_argument("record", type=Path, metavar="RECORD", help="the file")
    arguments = parser.parse_args()
    declared = pairs()
    if arguments.command == "list":
        for pair in declared.values():
            print(f"{pair.name:20} {pair.kind:6} {pair.effect:6} {pair.about}")
    elif arguments.command == "build":
        for name in chosen_pairs(arguments.names):
            started = time.perf_counter()
            folder = build(name, arguments.data, arguments.out, arguments.seed)
            print(f"{folder / 'job.yaml'} ({time.perf_counter() - started:.0f} s)", flush=True)
    elif arguments.command == "run":
        names = chosen_pairs(arguments.pairs.split(","))
        refused = [name for name in names if declared[name].held_out and not arguments.frozen]
        if refused:
            parser.error(f"{', '.join(refused)}: held out; protocol.md says when --frozen is given")
        methods = [*run.METHODS] if arguments.methods == "all" else arguments.methods.split(",")
        unknown = set(methods) - {*run.METHODS}
        if unknown:
            parser.error(f"unknown method {', '.join(sorted(unknown))}")
        before = arguments.before and arguments.before.resolve()
        data = arguments.data and arguments.data.resolve()
        place = run.Place(
            arguments.out.resolve(),
            data,
            before,
            arguments.autogluon,
            arguments.quick,
        )
        run.run_all(names, numbers(arguments.seeds), methods, place, arguments.workers)
    elif arguments.command == "embed":
        data = arguments.data and arguments.data.resolve()
        place = run.Place(arguments.out.resolve(), data, None, None, quick=False)
        names = chosen_pairs(arguments.pairs.split(","))
        run.embed_all(names, numbers(arguments.seeds), place, arguments.workers)
    elif arguments.command == "pack":
        print(f"{record.pack(arguments.out, arguments.record)} results")
    elif arguments.command == "page":
        table.PAGE.write_text(table.page(), encoding="utf-8")
    else:
        print(table.tables(arguments.out))


def chosen_pairs(names: list[str]) -> list[str]:
    """Names of pairs, where `all` and `held_out` stand for many."""
    declared = pairs()
    groups = {
        "all": [pair.name for pair in declared.values() if not pair.held_out],
        "held_out": [pair.name for pair in declared.values() if pair.held_out],
    }
    chosen = [name for word in names for name in groups.get(word, [word])]
    unknown = set(chosen) - {*declared}
    if unknown:
        raise SystemExit(f"unknown pair {', '.join(sorted(unknown))}; `list` shows them")
    return chosen


def numbers(text: str) -> list[int]:
    """`0-2,7` is 0, 1, 2, 7."""
    values: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        values += range(int(first), int(last or first) + 1)
    return values


if __name__ == "__main__":
    main()
