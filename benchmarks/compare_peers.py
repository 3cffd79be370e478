#!/usr/bin/env python3
"""Runs the benchmarks of sash and the same cases in PyTorch, and prints the ratios of their times.

usage: compare_peers.py [--device cpu] [--build build/test] [--threads 2] [--rounds N]
                        [--cases gemm op halves attention sparse widths lengths dropout train models]
                        [--seconds 500] [--dtype bfloat16] [--save figures.jsonl] [--busy]

Each round runs sash, then PyTorch, so that both run under the same conditions. A figure is the
median of the rounds. A ratio is PyTorch's time divided by ours; above 1, sash is faster. If PyTorch
has several implementations of a case, the fastest is marked with a star.

- dtypes: float32, except for attention on cuda over windows ("attention"; "widths" for several head
  widths, "lengths" for lengths from 256 to 16384), other patterns ("sparse") and "dropout", which is
  bfloat16.
  --dtype sets that of all four. "halves": ops of bfloat16 and float16 on the CPU. Training steps on cuda not named fp32 are bfloat16 with float32
  masters; in PyTorch, float32 weights under autocast. "captured": replays of a recorded step, as
  "reduce-overhead" makes in PyTorch.
- TF32: on cuda, both may round products to TF32 in training steps not marked "plain", and in
  products with "tf32" in the case's name.
- MB: the most memory that tensors take in a training step.
- share: our rate divided by that of a plain copy on the device; of a training step: the time that
  its products with weights take alone, divided by ours.
- The last line names the three cases with the lowest ratios, each against PyTorch's fastest
  implementation.
- PyTorch takes tens of seconds to compile each attention pattern. On cuda, allow 200 seconds for
  each kind of attention.
- --busy: each round runs both again beside a process on each processor that never waits. A second
  table has the times and the ratio under this load, what it costs each ("x": time under load
  divided by time without), and the ratio under load divided by that without ("kept").
- --save keeps the JSON lines of all programs. attention_table.py prints them as tables.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from peers.cases import run_peer

PATTERNS = ("attention", "sparse", "widths", "lengths", "dropout")
ROOT = pathlib.Path(__file__).resolve().parent.parent
LINE = "{:10} {:26} {:8} {:16} {:>10} {:>10} {:>7} {:>7} {:>8} {:>8}"
BUSY_LINE = "{:10} {:26} {:8} {:16} {:>10} {:>10} {:>7} {:>8} {:>8} {:>7}"
BUSY_HEAD = ("sash ms", "torch ms", "ratio", "sash x", "torch x", "kept")
HEAD = ("sash ms", "torch ms", "ratio", "share", "sash MB", "torch MB")


def lines_of(command, environment, deadline):
    """Runs `command` until the deadline. Returns the figures printed, and whether it succeeded."""
    left = max(1, deadline - time.monotonic())
    try:
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=left)
        output, good = done.stdout, done.returncode == 0
    except subprocess.TimeoutExpired as late:
        output, good = late.stdout or b"", False
    if not good:
        print(f"compare_peers.py: failed or late: {' '.join(command)}", file=sys.stderr)
    whole = output.decode().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()], good


@contextlib.contextmanager
def busy_processors():
    """A process on each processor that never waits, and leaves with the context."""
    spinners = []
    try:
        for processor in sorted(os.sched_getaffinity(0)):
            spinners.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            os.sched_setaffinity(spinners[-1].pid, {processor})
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def save(path, lines):
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def collect(found, lines):
    """Adds the lines to `found`, as found[kind, case, pass][implementation] = [(ms, line), ...]."""
    for line in lines:
        if line["kind"] == "env":
            print(json.dumps(line), flush=True)
            continue
        impl = line.get("impl", "")
        plain = "plain" if "_no_tf32" in impl else ""
        for key in ("ms", "fwd_ms", "bwd_ms", "fwdbwd_ms"):
            if key in line:
                name = line.get("pass", key.removesuffix("ms").strip("_") or plain)
                case = found.setdefault((line["kind"], line["case"], name), {})
                case.setdefault(impl.replace("_no_tf32", ""), []).append((line[key], line))


def median(figures):
    return statistics.median(ms for ms, _ in figures)


def same_pairs(ours, theirs):
    """Whether the masks' numbers of visible pairs differ by at most 2%, as random blocks may."""
    mine, other = ours.get("pairs"), theirs.get("pairs")
    return mine is None or other is None or abs(mine - other) <= 0.02 * mine


def print_case(key, ours, theirs):
    """Prints a line for each pair of implementations; returns the ratio of the fastest ones, None
    without a peer."""
    best = min(map(median, theirs.values()), default=None)
    for mine, figures in ours.items():
        ms, last = median(figures), figures[-1][1]
        case = f"{key[1]} {mine.removeprefix('sash').strip('_')}".rstrip()
        for impl, other_figures in theirs.items():
            other, line = median(other_figures), other_figures[-1][1]
            if not same_pairs(last, line):
                sys.exit(f"compare_peers.py: the masks of {key[1]} differ: {last}, {line}")
            impl += " *" * (len(theirs) > 1 and other == best)
            cells = (f"{ms:.3f}", f"{other:.3f}", f"{other / ms:.2f}", last.get("share", ""))
            peaks = (last.get("peak_mb", ""), line.get("peak_mb", ""))
            cells = (key[0], case, key[2], impl or "torch", *cells, *peaks)
            print(LINE.format(*cells), flush=True)
        if not theirs:
            cells = (key[0], case, key[2], "", f"{ms:.3f}", "", "", last.get("share", ""), "", "")
            print(LINE.format(*cells), flush=True)
    return best / min(map(median, ours.values())) if theirs else None


def print_busy(quiet, busy):
    """Prints what the load costs each case of `ours` and `theirs`."""
    print(BUSY_LINE.format("kind", "case", "pass", "peer", *BUSY_HEAD), flush=True)
    for key, figures in busy[0].items():
        (ours,) = figures.values()
        (before,) = quiet[0][key].values()
        for impl, theirs in busy[1].get(key, {}).items():
            mine, other = median(ours), median(theirs)
            slower = mine / median(before), other / median(quiet[1][key][impl])
            cells = f"{mine:.3f}", f"{other:.3f}", f"{other / mine:.2f}"
            losses = (f"{loss:.2f}" for loss in (*slower, slower[1] / slower[0]))
            print(BUSY_LINE.format(*key, impl or "torch", *cells, *losses), flush=True)


def groups_of(cases, cuda):
    """The kinds that one process runs. On cuda, gemm and op share one: starting PyTorch takes
    longer than running them."""
    ops = [kind for kind in cases if kind in ("gemm", "op", "halves")]
    groups = [ops] if cuda and ops else [[kind] for kind in ops]
    return groups + [[kind] for kind in PATTERNS + ("train", "models") if kind in cases]


def command_of(kinds, options):
    """The command line of our benchmark of `kinds`."""
    attention = ["--dtype", options.dtype] if options.dtype else []
    commands = {
        "train": ["bench_train"],
        "models": ["bench_train", "--kind", "models"],
        "attention": ["bench_attention", "--group", "peers", *attention],
        "sparse": ["bench_attention", "--group", "sparse", *attention],
        "widths": ["bench_attention", "--group", "widths", *attention],
        "lengths": ["bench_attention", "--group", "lengths", *attention],
        "dropout": ["bench_attention", "--group", "dropout", *attention],
    }
    program, *flags = commands.get(kinds[0], ["bench_ops", "--kind", *kinds])
    return [f"{options.build}/bin/{program}", *flags, "--device", options.device]


def options_of(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--build", default=str(ROOT / "build/test"))
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--rounds", type=int, help="default 3 on the CPU, 1 on cuda")
    parser.add_argument("--cases", nargs="+", default=["gemm", "op", "attention", "train"])
    parser.add_argument("--seconds", type=float, help="limit; default 500 on cuda, none on the CPU")
    parser.add_argument("--dtype", help="of attention: float32, bfloat16, float16")
    parser.add_argument("--busy", action="store_true", help="compare beside busy processes too")
    parser.add_argument("--save", help="file for the JSON lines")
    parser.add_argument("--peer", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    cuda = options.device == "cuda"
    options.rounds = options.rounds or (1 if cuda else 3)
    options.seconds = options.seconds or (500 if cuda else 1e6)
    return options


def main():
    options = options_of(sys.argv[1:])
    deadline = time.monotonic() + options.seconds
    cuda = options.device == "cuda"
    if options.peer:
        return run_peer(options.peer, options.device, deadline, options.dtype)
    environment = dict(os.environ)
    if not cuda:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "SASH_NUM_THREADS"):
            environment[name] = str(options.threads)
    if options.save:
        pathlib.Path(options.save).write_text("", encoding="utf-8")
    worst, all_good = [], True
    for kinds in groups_of(options.cases, cuda):
        command = command_of(kinds, options)
        peer = [sys.executable, __file__, "--device", options.device, "--peer", *kinds]
        peer += ["--dtype", options.dtype] if options.dtype else []
        quiet, busy = ({}, {}), ({}, {})
        for _ in range(options.rounds):
            for results in (quiet, busy) if options.busy else (quiet,):
                with busy_processors() if results is busy else contextlib.nullcontext():
                    for found, run in zip(results, (command, peer)):
                        if run is peer:
                            run = [*peer, "--seconds", str(max(1, deadline - time.monotonic()))]
                        lines, good = lines_of(run, environment, deadline)
                        collect(found, lines)
                        if options.save:
                            save(options.save, lines)
                        all_good = all_good and good
        ours, theirs = quiet
        print(LINE.format("kind", "case", "pass", "peer", *HEAD), flush=True)
        for key, figures in ours.items():
            ratio = print_case(key, figures, theirs.get(key, {}))
            if ratio is not None and key[0] != "copy":
                worst.append((ratio, " ".join(filter(None, key))))
        if options.busy:
            print_busy(quiet, busy)
    named = ", ".join(f"{name} {ratio:.2f}" for ratio, name in sorted(worst)[:3])
    print(f"worst three: {named}")
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
