#!/usr/bin/env python3
"""Trains the bundled model with AdamW and with Muon for equal times, and draws loss over time.

usage: optimizer_curves.py TRAIN_TRANSFORMER [--seconds 10] [--lr 1e-3 3e-3] [-- FLAGS...] > curves.json
       optimizer_curves.py --draw curves.json > docs/optimizer_curves.svg
       optimizer_curves.py --table curves.json          in Markdown

Each run first times 120 steps, then trains as many as the seconds allow, with the schedule of that
many. A point of a curve is the mean loss of 40 steps.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

COLOURS = {"adamw": "#1f77b4", "muon": "#c0392b"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 340, 52, 130, 28, 44
POINTS = 24


def run(program, optimizer, lr, steps, flags):
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "metrics.jsonl"
        subprocess.run([program, "--optimizer", optimizer, "--lr", str(lr), "--steps", str(steps),
                        "--metrics", metrics, "--generate", "0", "--save-every", "0", *flags],
                       check=True, capture_output=True)
        return [json.loads(line) for line in metrics.read_text().splitlines()]


def curve(rows):
    every, elapsed, points = max(1, len(rows) // POINTS), 0, []
    for i, row in enumerate(rows, 1):
        elapsed += row["ms"]
        if i % every == 0 or i == len(rows):
            window = rows[max(0, i - 40):i]
            points.append([round(elapsed / 1000, 3),
                           round(sum(r["loss"] for r in window) / len(window), 4)])
    return points


def measure(arguments):
    runs = []
    for lr in arguments.lr:
        for optimizer in ("adamw", "muon"):
            times = sorted(r["ms"] for r in run(arguments.program, optimizer, lr, 120, arguments.flags)[60:])
            ms = times[len(times) // 2]
            rows = run(arguments.program, optimizer, lr, int(arguments.seconds * 1000 / ms),
                       arguments.flags)
            runs.append({"optimizer": optimizer, "lr": lr, "steps": len(rows), "ms": round(ms, 3),
                         "curve": curve(rows), "val_loss": round(rows[-1]["val_loss"], 4)})
    return runs


def draw(runs):
    points = [p for r in runs for p in r["curve"]]
    x1, y0 = max(p[0] for p in points), min(p[1] for p in points)
    y1 = min(max(p[1] for p in points), y0 + 1.6)
    at = lambda x, y: (LEFT + x / x1 * (WIDTH - LEFT - RIGHT),
                       HEIGHT - BOTTOM - (min(y, y1) - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12" fill="#1c1b19">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           f'<text x="{LEFT}" y="16">training loss</text>',
           f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">seconds</text>']
    for i in range(5):
        x, y = x1 * i / 4, y0 + (y1 - y0) * i / 4
        left, height = at(x, y)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" '
                   'stroke="#e4e2dc"/>')
        out.append(f'<text x="{LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{y:.2f}</text>')
        out.append(f'<text x="{left:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:.1f}</text>')
    label = TOP
    for i, r in enumerate(sorted(runs, key=lambda r: -r["curve"][-1][1])):
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (at(*p) for p in r["curve"]))
        dash = "" if r["lr"] == min(q["lr"] for q in runs) else ' stroke-dasharray="5 3"'
        out.append(f'<polyline points="{path}" fill="none" stroke-width="1.6" '
                   f'stroke="{COLOURS[r["optimizer"]]}"{dash}/>')
        out.append(f'<text x="{WIDTH - RIGHT + 10}" y="{label + 18 * i}" '
                   f'fill="{COLOURS[r["optimizer"]]}">{r["optimizer"]}, lr {r["lr"]:g}</text>')
    return "\n".join(out + ["</svg>"])


def table(runs):
    lines = ["| optimizer | lr | ms a step | steps | training loss | validation loss |",
             "| --- | --- | --- | --- | --- | --- |"]
    for r in runs:
        lines.append(f"| {r['optimizer']} | {r['lr']:g} | {r['ms']:.2f} | {r['steps']} | "
                     f"{r['curve'][-1][1]:.3f} | {r['val_loss']:.3f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3, 3e-3])
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--table", action="store_true")
    own = sys.argv[1:]
    split = own.index("--") if "--" in own else len(own)  # argparse refuses them after an option
    given = parser.parse_args(own[:split], argparse.Namespace(flags=own[split + 1:]))
    if given.draw or given.table:
        print((draw if given.draw else table)(json.loads(Path(given.program).read_text())))
    else:
        json.dump(measure(given), sys.stdout)
