"""List or build the pairs: `python -m experiments.answer` (see --help)."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from . import build, pairs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.answer", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name, kind, expected effect and question of every pair")
    builder = commands.add_parser("build", help="write pairs as files with a job")
    builder.add_argument("names", nargs="+", metavar="NAME", help="names of pairs, all or held_out")
    builder.add_argument("--data", type=Path, required=True, help="folder of the public data sets")
    builder.add_argument("--out", type=Path, required=True, help="a folder NAME is made in here")
    builder.add_argument("--seed", type=int, default=0, help="seed of the job (default: 0)")
    arguments = parser.parse_args()
    declared = pairs()
    if arguments.command == "list":
        for pair in declared.values():
            print(f"{pair.name:20} {pair.kind:6} {pair.effect:6} {pair.about}")
        return
    groups = {
        "all": [pair.name for pair in declared.values() if not pair.held_out],
        "held_out": [pair.name for pair in declared.values() if pair.held_out],
    }
    names = [name for given in arguments.names for name in groups.get(given, [given])]
    for name in names:
        started = time.perf_counter()
        folder = build(name, arguments.data, arguments.out, arguments.seed)
        print(f"{folder / 'job.yaml'} ({time.perf_counter() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
