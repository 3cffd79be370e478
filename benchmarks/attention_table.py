#!/usr/bin/env python3
"""Prints the figures of attention of one run as Markdown tables; docs/speed.md explains the columns.

usage: attention_table.py figures.jsonl...

The input is what compare_peers.py --save writes: the JSON lines of bench_attention and of the
peers. If a case was timed several times, the median is used.
"""

import json
import statistics
import sys

OPERATIONS = 790e12  # per second, large bfloat16 matrix products; measured on an H200
BYTES = 4.3e12  # per second, read plus written by a copy; measured on an H200
HALVES = ("bfloat16", "float16")
GROUPS = {
    "peers": "Windows and causal masks",
    "sparse": "Sparse patterns, packed sequences, grouped heads",
    "widths": "One window, heads of every width",
}
PEERS = {"flex": "flex", "flex 64": "flex, blocks of 64", "flash2": "FA2", "sdpa": "SDPA"}
PASSES = {"fwd_ms": (2, 4), "bwd_ms": (5, 8)}  # matrix products, tensors read or written

HEAD = """
## {title}

| case | B, H, S, D | forward ms | share | ratio | backward ms | share | ratio | MiB |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def read(paths):
    """Our lines by (group, case), in input order; the peers' by case and name; torch and device."""
    ours, peers, about = {}, {}, {"torch": "(not timed)", "device": "an unknown device"}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.strip()]
        for line in lines:
            if line["kind"] == "env":
                about |= {key: line[key] for key in ("torch", "device") if key in line}
            elif line["kind"] == "attention" and line["impl"] == "sash":
                ours.setdefault((line["group"], line["case"]), []).append(line)
            elif line["kind"] == "attention":
                case = peers.setdefault(line["case"], {})
                case.setdefault(line["impl"], []).append(line)
    return ours, peers, about


def median(lines, key):
    return statistics.median(line[key] for line in lines)


def limit_ms(line, key):
    """Lower bound on the time of a pass; None for dtypes other than the half types."""
    if line["dtype"] not in HALVES:
        return None
    batch, heads, length, dim = line["shape"]
    products, tensors = PASSES[key]
    elements = batch * length * dim * (heads + line["kv_heads"]) * tensors // 2
    return 1e3 * max(products * 2 * dim * line["pairs"] / OPERATIONS, 2 * elements / BYTES)


def cells_of(lines, peers, key):
    """Milliseconds, lower bound / time, and time of the fastest peer / time."""
    ms = median(lines, key)
    limit = limit_ms(lines[-1], key)
    share = f"{limit / ms:.0%}" if limit else ""
    times = {impl: median(timed, key) for impl, timed in peers.items()}
    fastest = min(times, key=times.get, default=None)
    ratio = f"{times[fastest] / ms:.2f} {PEERS.get(fastest, fastest)}" if fastest else ""
    return [f"{ms:.3f}", share, ratio]


def row_of(case, lines, peers):
    last = lines[-1]
    shape = ", ".join(map(str, last["shape"]))
    if last["kv_heads"] != last["shape"][1]:
        shape += f" ({last['kv_heads']} key heads)"
    if last["dtype"] != "bfloat16":
        shape += f" {last['dtype']}"
    cells = [case, shape, *cells_of(lines, peers, "fwd_ms"), *cells_of(lines, peers, "bwd_ms")]
    return "| " + " | ".join([*cells, f"{median(lines, 'peak_mb'):.0f}"]) + " |"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    ours, peers, about = read(sys.argv[1:])
    print("{device}, PyTorch {torch}".format(**about))
    for group, title in GROUPS.items():
        rows = [
            row_of(case, lines, peers.get(case, {}))
            for (of, case), lines in ours.items()
            if of == group
        ]
        if rows:
            print(HEAD.format(title=title), *rows, sep="\n")


if __name__ == "__main__":
    main()
