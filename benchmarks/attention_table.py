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

A later state than that of the tables above, one run, bfloat16, ms; calls in a row and, in brackets, a graph of 20 calls, median of five replays; of the
others, each checked first, the fastest in a graph. Ours is deterministic. FlashAttention-3 lacks the last three cases. Heads of 128 run at the card's power
limit (700 W; 1.70 of 1.98 GHz in s8k_d128_causal_full, 1.89 GHz in s8k_d64_w256sym), the more so the longer they run: that is what graphs add.
Shares of the limit, forward / backward, are of calls in a row.

| case | forward | best of the others | backward | best of the others | best deterministic | our share of the limit, % |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| s4k_d64_w128sym | 0.072 (0.072) | 0.098 (0.097) FA4 | 0.189 (0.187) | 0.229 (0.227) FA4 | (0.239) FA4 | 44 / 33 |
| s8k_d64_w256sym | 0.107 (0.109) | 0.131 (0.129) FA4 | 0.285 (0.285) | 0.311 (0.301) FA3 | (0.310) FA4 | 40 / 38 |
| s8k_d128_w512causal | 0.153 (0.157) | 0.161 (0.151) FA3 | 0.479 (0.516) | 0.499 (0.506) FA4 | (0.547) FA4 | 55 / 44 |
| s64k_d128_w1024causal | 0.946 (1.054) | 0.979 (1.090) FA3 | 3.46 (3.32) | 3.17 (3.15) FA3 | (3.34) FA4 | 73 / 50 |
| s64k_d64_w256sym | 0.305 (0.317) | 0.381 (0.378) FA4 | 0.781 (0.850) | 0.898 (0.895) FA3 | (0.919) FA4 | 42 / 41 |
| s8k_d128_causal_full | 0.851 (0.954) | 0.781 (0.865) FA3 | 3.11 (3.01) | 2.41 (2.40) FA3 | (2.63) FA4 | 82 / 56 |
| heads32_8_s8192_w1024 | 0.248 (0.267) | 0.282 (0.247) FA4 | 0.799 (0.812) | 0.806 (0.827) FA4 | (0.913) FA4 | 66 / 51 |
| char | 0.021 (0.020) | 0.028 (0.027) cuDNN | 0.060 (0.056) | 0.074 (0.072) FA4 | (0.081) FA4 | 56 / 39 |
| char, causal | 0.022 (0.021) | 0.027 (0.024) cuDNN | 0.062 (0.059) | 0.074 (0.073) FA4 | (0.079) FA4 |  |

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
- ptxas moves a wait for products ahead of arithmetic that does not depend on it, so that exponentials run after the products that were to run beside them.
  Held behind them by a branch: causal_full forward 0.860 to 0.845, where there are two groups; with three or four nothing (s8k_d64_w256sym 0.110 / 0.112,
  backward 0.289 / 0.297), so it is done for the two alone. Nor did it help to start a step's sums beside the next one's scores in the kernel of dq.
- A softmax without a maximum in most steps (a third fewer instructions), reading what the next step is before its keys are there, and queries that each
  group gives back as soon as it is done with them (which leaves heads of 128 five stages of keys): all within 2 %. What did pay: sums that are rescaled only
  when a maximum grows by more than 2^8, s64k_d128_w1024causal 1.006 to 0.951, heads32_8_s8192_w1024 0.261 to 0.250.

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
