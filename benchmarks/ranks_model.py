#!/usr/bin/env python3
"""What data parallel training costs on many cards, by a model fitted to two (docs/notes/several_gpus.md).
Prints the fit and a table as Markdown."""

import math

# All-reduce over two H100 with NVLink, NCCL 2.28: MiB and milliseconds.
MEASURED = [(16, 0.083), (64, 0.261), (256, 0.905), (1024, 3.30)]
HOST = 8  # cards of a host, with the links of the two
NETWORK_GB_S, NETWORK_MS = 45.0, 0.015  # assumed: 90 % of 400 Gb/s a card, and a hop's time
BUCKET_MB = 26.2
# Measured: milliseconds of a step on one card, and on two; megabytes of gradients.
STEPS = {"gpt2_124m": (29.37, 30.51, 249), "long16k": (21.14, 21.85, 48), "llama_160m": (35.38, 36.35, 325)}


def fit():
    """Milliseconds of a call, and GB/s, by least squares of relative errors."""
    rows = [(mib * 1.048576, ms) for mib, ms in MEASURED]
    a = sum(1 / t**2 for _, t in rows)
    b = sum(m / t**2 for m, t in rows)
    c = sum(m * m / t**2 for m, t in rows)
    d, e = sum(1 / t for _, t in rows), sum(m / t for m, t in rows)
    start = (d * c - e * b) / (a * c - b * b)
    slope = (a * e - b * d) / (a * c - b * b)
    return start, 1 / slope


def all_reduce_ms(cards, megabytes, start, speed):
    """A reduce-scatter in each host, an all-reduce of the parts between hosts, an all-gather."""
    inside = min(cards, HOST)
    hosts = cards // inside
    ms = 2 * (inside - 1) * start / 2 + 2 * (inside - 1) / inside * megabytes / speed
    if hosts > 1:
        ms += 2 * (hosts - 1) / hosts * megabytes / inside / NETWORK_GB_S
        ms += 2 * math.ceil(math.log2(hosts)) * NETWORK_MS
    return ms


def reduced_ms(cards, megabytes, start, speed):
    """All buckets of a step, one after the other."""
    buckets = max(1, round(megabytes / BUCKET_MB))
    return buckets * all_reduce_ms(cards, megabytes / buckets, start, speed)


def main():
    start, speed = fit()
    print(f"fit: {start:.3f} ms and {speed:.0f} GB/s")
    for mib, ms in MEASURED:
        print(f"  {mib} MiB: {ms} ms measured, {start + mib * 1.048576 / speed:.3f} ms by the fit")
    print("| model | reduction, 2 cards | seen of it | 8 cards | 64 cards | 1,024 cards |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, (alone, two, megabytes) in STEPS.items():
        hidden = (two - alone) / reduced_ms(2, megabytes, start, speed)
        row = [f"{reduced_ms(2, megabytes, start, speed):.2f} ms", f"{two - alone:.2f} ms"]
        for cards in (8, 64, 1024):
            step = alone + hidden * reduced_ms(cards, megabytes, start, speed)
            row.append(f"{100 * alone / step:.1f} %")
        print(f"| {name} | " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
