#!/usr/bin/env python3
"""Compares the benchmark times of two builds. The builds run in turn, so that a noisy machine slows
both equally.

    compare_builds.py <old build> <new build> [--rounds 7] -- bench_train --device cpu [...]

Each round runs the benchmark from each build's bin/ folder once; the first build alternates. Prints
for each case the median times, the median of the rounds' ratios new/old, and the lowest and highest
ratio. Above 1, the new build is slower. A case is marked "slower" if its ratio is above 1.03 and
above 1 + the relative spread of the old build's times.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
from pathlib import Path


def figures(build, command):
    """Runs the benchmark once; returns the milliseconds of each case by name."""
    program = Path(build) / "bin" / command[0]
    run = subprocess.run([program, *command[1:]], capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{program}: {run.stderr.strip()[-500:]}")
    found = {}
    for line in run.stdout.splitlines():
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        name = "/".join(str(row[key]) for key in ("case", "op", "dtype", "impl") if key in row)
        for key, value in row.items():
            if key == "ms" or key.endswith("_ms"):
                found[f"{name} {key}"] = value
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()

    times = {args.old: {}, args.new: {}}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for turn in range(args.rounds):
            order = (args.old, args.new) if turn % 2 == 0 else (args.new, args.old)
            for build in order:
                for name, ms in figures(build, args.command).items():
                    times[build].setdefault(name, []).append(ms)
    except KeyboardInterrupt:
        print("stopped early")

    print(f"{'case':48} {'old ms':>9} {'new ms':>9} {'ratio':>6}  lowest..highest, rounds")
    for name, new in times[args.new].items():
        old = times[args.old].get(name)
        if not old:
            continue
        ratios = sorted(n / o for n, o in zip(new, old))
        middle = statistics.median(ratios)
        spread = (max(old) - min(old)) / statistics.median(old)
        slower = "  slower" if middle > 1 + max(0.03, spread) else ""
        print(f"{name:48} {statistics.median(old):9.3f} {statistics.median(new):9.3f} {middle:6.3f}"
              f"  {ratios[0]:.3f}..{ratios[-1]:.3f} {len(ratios)}{slower}", flush=True)


if __name__ == "__main__":
    main()
