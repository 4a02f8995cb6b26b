"""``python -m benchmarks [NAME...] [--quick] [--repeat N] [--json FILE]``."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from retryflow.conf.backend import select_threading

# Before anything imports oslo.messaging, which would settle on the other backend.
select_threading()

from benchmarks import place  # noqa: E402
from benchmarks.measure import Figure, Sample, as_json, conditions, figures, table  # noqa: E402

NAMES = ("drain", "idle_tick", "tasks", "submit", "lateness", "tracking", "stop", "start", "recovery", "peers")


def main(argv: list[str] | None = None) -> int:
    """Measure what is named, all by default, and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(NAMES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes, once each: whether it works, not how fast")
    parser.add_argument("--repeat", type=int, help="runs of each benchmark; 3 by default, 1 with --quick")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go as JSON")
    parser.add_argument("--database", action="append", choices=place.KINDS, help="only this kind; may be repeated")
    arguments = parser.parse_args(argv)
    place.chosen = arguments.database or place.chosen
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    repeat = arguments.repeat or (1 if arguments.quick else 3)
    before = conditions()
    found: list[Figure] = []
    for name in arguments.names or NAMES:
        run = importlib.import_module(f"benchmarks.{name}").run
        samples: list[Sample] = []
        for turn in range(repeat):
            began = time.monotonic()
            samples += run(quick=arguments.quick)
            print(f"{name}: run {turn + 1} of {repeat} took {time.monotonic() - began:.0f} s", file=sys.stderr)
        found += figures(name, samples)
    after = conditions()
    print(f"{before['cpus']} CPUs, load {before['load'][0]} before and {after['load'][0]} after, {before['system']}")
    print(", ".join(f"{library} {version}" for library, version in before["versions"].items()))
    print(table(found))
    if arguments.json:
        written = {"before": before, "after": after, "quick": arguments.quick, "figures": as_json(found)}
        arguments.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
