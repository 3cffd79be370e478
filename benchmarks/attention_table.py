#!/usr/bin/env python3
"""Makes docs/attention_speed.md of figures that were timed in one run.

usage: attention_table.py figures.jsonl... > docs/attention_speed.md

The lines are those of bench_attention, and of the peers in the same run, as compare_peers.py saves
them. A case that was timed several times counts by its median.
"""

import json
import statistics
import sys

OPERATIONS = 790e12  # a second, of products of large bfloat16 matrices; measured on an H200
BYTES = 4.3e12  # a second, read and written by a copy; measured there too
HALVES = ("bfloat16", "float16")
GROUPS = {
    "peers": "Windows and causal masks",
    "sparse": "Sparse patterns, packed sequences, grouped heads",
    "widths": "One window, heads of every width",
}
PEERS = {"flex": "flex", "flex 64": "flex, blocks of 64", "flash2": "FA2", "sdpa": "SDPA"}
PASSES = {"fwd_ms": (2, 4), "bwd_ms": (5, 8)}  # products, and tensors read or written

PAGE = """# How fast attention is

Times of one run on {device}, with PyTorch {torch} timed on the same cases. What sash computes was
checked against plain sums in float64 before it was timed. Without another word, all is bfloat16.

- **ms**: the median of at least ten runs of calls in a row, forward and backward apart. Where the
  host takes longer to make the calls than the card to work them off, that is what was timed: so it
  may be for the peers of short calls.
- **limit**: the part that is reached of what the card could do. No kernel can be faster than the
  larger of two times: that of the products over the visible pairs of queries and keys alone
  (forward 2 products of 2 D operations a pair, backward 5) at {operations:.0f} TFLOP/s, and that of
  reading and writing each operand once (forward q, k, v, o; backward also their gradients) at
  {bytes:.1f} TB/s. Both rates were measured on an H200: of large bfloat16 products, and of a copy.
- **peer**: PyTorch's time over ours, above 1 where sash is faster; against the fastest for this pass
  of compiled flex attention ("flex"), FlashAttention-2 ("FA2") and scaled_dot_product_attention
  ("SDPA"), as far as they can run the case.
- **MiB**: the most memory that both passes held at once, inputs apart.
"""
HOW = """
## Made by

    python3 benchmarks/compare_peers.py --device cuda --build build/cuda \\
        --cases attention sparse widths --seconds 600 --save figures.jsonl
    python3 benchmarks/attention_table.py figures.jsonl > docs/attention_speed.md
"""
HEAD = """
## {title}

| case | B, H, S, D | forward ms | limit | peer | backward ms | limit | peer | MiB |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


def read(paths):
    """Lines of ours by case, in their order; those of peers by case and name; descriptions."""
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
    """What a pass takes at least, or None where the rates are not those of the dtype."""
    if line["dtype"] not in HALVES:
        return None
    batch, heads, length, dim = line["shape"]
    products, tensors = PASSES[key]
    elements = batch * length * dim * (heads + line["kv_heads"]) * tensors // 2
    return 1e3 * max(products * 2 * dim * line["pairs"] / OPERATIONS, 2 * elements / BYTES)


def cells_of(lines, peers, key):
    """Milliseconds, share of the limit, and the ratio to the fastest peer."""
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
    print(PAGE.format(operations=OPERATIONS / 1e12, bytes=BYTES / 1e12, **about), end="")
    for group, title in GROUPS.items():
        rows = [
            row_of(case, lines, peers.get(case, {}))
            for (of, case), lines in ours.items()
            if of == group
        ]
        if rows:
            print(HEAD.format(title=title), *rows, sep="\n")
    print(HOW, end="")


if __name__ == "__main__":
    main()
