#!/usr/bin/env python3
"""Generates docs/attention_speed.md from the figures of one run.

usage: attention_table.py figures.jsonl... > docs/attention_speed.md

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

PAGE = """# Speed of attention

Times of one run on {device}. PyTorch {torch} was timed on the same cases in the same
run. Results of sash are checked against a plain float64 implementation before timing. The dtype is
bfloat16 unless stated otherwise.

- **ms**: median of at least ten runs. Each run times several calls in a row. Forward and backward
  are given separately. If the host needs longer to launch the calls than the GPU to execute them,
  the figure is the host's time. This can affect the peers in short cases.
- **limit**: the lower bound on the time, divided by the measured time; 100% is the best possible.
  The lower bound is the larger of two times. The first is that of the matrix products over visible
  query-key pairs (forward 2 products, backward 5, each of 2 D operations per pair) at
  {operations:.0f} TFLOP/s. The second is that of reading or writing each operand once (forward q, k,
  v, o; backward also their gradients) at {bytes:.1f} TB/s. Both rates were measured on an H200, with
  large bfloat16 products and with a copy.
- **peer**: PyTorch's time divided by ours; above 1, sash is faster. PyTorch's time is that of its
  implementation that is fastest for this pass, of those that can run the case: compiled flex
  attention ("flex"), FlashAttention-2 ("FA2") or scaled_dot_product_attention ("SDPA").
- **MiB**: peak memory of forward and backward together, without the inputs.
"""
HOW = """
## Beside FlashAttention-3, FlashAttention-4 and cuDNN

A later state than that of the tables above, one run, bfloat16, ms; ours calls in a row and, in brackets, a graph of 20 calls; the others graphs of 20 calls,
each checked first. FlashAttention-3 is left out where the run's time was over. The backward passes of windows are slower than in the tables above, by
0.04 ms of 0.28 (s8k_d64_w256sym); the cause is not known for certain, the likely one is that the result's rows are since then fetched to L2 one by one,
because they need not be contiguous.

| case | forward | best of the others | backward | best of the others | best deterministic |
| --- | ---: | ---: | ---: | ---: | ---: |
| s4k_d64_w128sym | 0.073 (0.071) | 0.097 FA4 | 0.237 (0.235) | 0.227 FA4 | 0.238 FA4 |
| s8k_d64_w256sym | 0.109 (0.109) | 0.130 FA4 | 0.329 (0.331) | 0.300 FA3 | 0.312 FA4 |
| s8k_d128_w512causal | 0.161 (0.173) | 0.153 FA3 | 0.497 (0.536) | 0.510 FA3 | 0.543 FA4 |
| s64k_d128_w1024causal | 0.995 (1.123) | 1.096 FA3 | 3.60 (3.54) | 3.22 FA3 | 3.32 FA4 |
| s64k_d64_w256sym | 0.307 (0.323) | 0.393 FA4 | 0.976 (0.966) | 0.902 FA4 | 0.934 FA4 |
| s8k_d128_causal_full | 0.874 (0.986) | 0.899 FA4 | 3.13 (3.04) | 2.54 FA4 | 2.65 FA4 |
| heads32_8_s8192_w1024 | 0.259 (0.281) | 0.258 FA4 | 0.820 (0.843) | 0.848 FA4 | 0.925 FA4 |
| char | 0.021 (0.020) | 0.028 FA4 | 0.061 (0.057) | 0.071 FA4 | 0.082 FA4 |
| char, causal | 0.022 (0.021) | 0.030 FA4 | 0.063 (0.059) | 0.073 FA4 | 0.079 FA4 |

## What was tried

NVIDIA H200, bfloat16, ms, each line from one run. A head has the same bits in any batch, so shapes
alone choose the kernels, not how many heads there are.

| short calls | B, H, S, D | forward before / now | backward before / now |
| --- | --- | ---: | ---: |
| causal | 64, 6, 256, 64 | 0.022 / 0.022 | 0.086 / 0.063 |
| window (64, 0) | 64, 6, 256, 64 | 0.021 / 0.021 | 0.083 / 0.061 |
| causal, dropout 0.2 | 64, 6, 256, 64 | 0.067 / 0.051 | 0.187 / 0.099 |
| causal | 16, 12, 1024, 64 | 0.078 / 0.078 | 0.256 / 0.235 |
| window (256, 0) | 16, 12, 1024, 64 | 0.056 / 0.056 | 0.194 / 0.157 |
| causal, dropout 0.1 | 16, 12, 1024, 64 | 0.335 / 0.228 | 0.881 / 0.446 |
| causal, 12 heads in all | 1, 12, 1024, 64 | 0.024 / 0.024 | 0.049 / 0.052 |

What did not pay:

- One pass of five products for long calls. Two passes / one, added in the best order found:
  s8k_d128_causal_full 3.09 / 3.03, s64k_d128_w1024causal 3.55 / 3.45, s8k_d128_w512causal 0.498 /
  0.524, s8k_d64_w256sym 0.333 / 0.321. Without adding to dq at all, causal_full takes 2.61 and
  s8k_d128_w512causal 0.483: products of 64 x 64 read shared memory at its full rate, and both groups
  wait for each other at each step.
- Parts of dq added by bulk copies from shared memory instead of by `red` from registers:
  causal_full 3.25 to 3.03, 16, 12, 1024, 64 unchanged. It takes the shared memory of a stage.
- Orders of the additions. Tiles of all heads in turn, keys ascending: 3.25; runs of four tiles
  descending: 3.50; head after head, descending: 24.6 (causal_full).
- Forward, heads of 128: one buffer of queries and five stages 0.166 (now 0.160,
  s8k_d128_w512causal), 0.959 (0.866, causal_full); two blocks of keys a step for all masks 0.166.
  Heads of 64: 128 keys a step with three lines 0.120, with two 0.131 (now 0.109, s8k_d64_w256sym).

## How to reproduce

    python3 benchmarks/compare_peers.py --device cuda --build build/cuda \\
        --cases attention sparse widths --seconds 600 --save figures.jsonl
    python3 benchmarks/attention_table.py figures.jsonl > docs/attention_speed.md
"""
HEAD = """
## {title}

| case | B, H, S, D | forward ms | limit | peer | backward ms | limit | peer | MiB |
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
