#!/usr/bin/env python3
"""Draws the figures of bench_kinds: time over tokens, both axes logarithmic.

usage: kinds_plot.py figures.csv > docs/attention_kinds.svg
       kinds_plot.py --table figures.csv        prints them as a table in Markdown
"""

import csv
import math
import sys
from html import escape

PASSES = {"forward": "Forward pass", "step": "Training step"}
COLOURS = {
    "full": "#52514e",
    "local:3": "#1f77b4",
    "local:256": "#6baed6",
    "linear": "#2a9d54",
    "clustered": "#e07b00",
    "improved": "#c0392b",
    "top_k": "#7d4fb3",
}
INK, MUTED, GRID = "#1c1b19", "#6b6963", "#e4e2dc"
WIDTH, HEIGHT = 460, 360  # of a panel with its margins
LEFT, RIGHT, TOP, BOTTOM = 58, 112, 52, 48
LINE = 14  # between labels


def name_of(kind):
    """A label: the parameters that tell kinds apart."""
    return kind.split(",")[0].replace("improved_clustered", "improved")


def colour_of(kind):
    name = name_of(kind)
    return COLOURS.get(name) or COLOURS.get(name.split(":")[0], INK)


def read(path):
    """{pass: {kind: [(tokens, ms), ...]}} and the device and dtype of the first row."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    figures = {name: {} for name in PASSES}
    for row in rows:
        points = figures[row["pass"]].setdefault(row["kind"], [])
        points.append((int(row["tokens"]), float(row["ms"])))
    return figures, f"{rows[0]['device']}, {rows[0]['dtype']}"


def number(value):
    return f"{value:g}"


def spread(places, lowest, highest):
    """Moves labels apart, in the order of their places, and into the panel."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    for before, at in zip(order, order[1:]):
        moved[at] = max(moved[at], moved[before] + LINE)
    excess = max(0, moved[order[-1]] - highest)
    for i, at in enumerate(reversed(order)):
        moved[at] = min(moved[at], highest - i * LINE) if excess else moved[at]
    return [max(lowest, y) for y in moved]


def panel(title, kinds, left, span, out):
    (x0, x1), (y0, y1) = span
    at_x = lambda n: left + LEFT + (math.log2(n / x0) / math.log2(x1 / x0)) * (WIDTH - LEFT - RIGHT)
    at_y = lambda t: HEIGHT - BOTTOM - math.log10(t / y0) / math.log10(y1 / y0) * (HEIGHT - TOP - BOTTOM)
    text = lambda x, y, words, more="": out.append(
        f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>')
    text(left + LEFT, TOP - 22, title, f'font-weight="600" font-size="14" fill="{INK}"')
    decade = y0
    while decade <= y1 * 1.001:
        y = at_y(decade)
        out.append(f'<line x1="{left + LEFT}" x2="{left + WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                   f'stroke="{GRID}"/>')
        text(left + LEFT - 8, y + 4, number(decade), f'text-anchor="end" fill="{MUTED}"')
        decade *= 10
    tokens = x0
    while tokens <= x1:
        text(at_x(tokens), HEIGHT - BOTTOM + 18, str(tokens), f'text-anchor="middle" fill="{MUTED}"')
        tokens *= 2
    text((at_x(x0) + at_x(x1)) / 2, HEIGHT - 10, "tokens", f'text-anchor="middle" fill="{MUTED}"')
    text(left + LEFT - 8, TOP - 9, "ms", f'text-anchor="end" fill="{MUTED}"')
    ends = [at_y(points[-1][1]) for points in kinds.values()]
    for (kind, points), y in zip(kinds.items(), spread(ends, TOP, HEIGHT - BOTTOM)):
        colour = colour_of(kind)
        line = " ".join(f"{at_x(n):.1f},{at_y(t):.1f}" for n, t in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" '
                   'stroke-linejoin="round"/>')
        end_x, end_y = at_x(points[-1][0]), at_y(points[-1][1])
        out.append(f'<circle cx="{end_x:.1f}" cy="{end_y:.1f}" r="3.5" fill="{colour}"/>')
        text(end_x + 9, y + 4, name_of(kind), f'fill="{colour}" font-weight="600"')


def draw(figures, about):
    shown = {name: {kind: sorted(points) for kind, points in figures[name].items()}
             for name in PASSES if figures[name]}
    points = [p for kinds in shown.values() for line in kinds.values() for p in line]
    tokens = [n for n, _ in points]
    times = [t for _, t in points]
    span = ((min(tokens), max(tokens)),
            (10 ** math.floor(math.log10(min(times))), 10 ** math.ceil(math.log10(max(times)))))
    width, top = WIDTH * len(shown), 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + top}" '
           f'width="{width}" height="{HEIGHT + top}" font-family="system-ui, sans-serif" '
           'font-size="12">',
           f'<rect width="{width}" height="{HEIGHT + top}" fill="#fcfcfa"/>',
           f'<text x="{LEFT}" y="26" font-size="15" font-weight="600" fill="{INK}">'
           f'{escape("Encoder of 12 layers, 8 heads of 64, batch 1: " + about)}</text>',
           f'<g transform="translate(0 {top})">']
    for i, (name, kinds) in enumerate(shown.items()):
        panel(PASSES[name], kinds, i * WIDTH, span, out)
    return "\n".join(out + ["</g>", "</svg>"])


def table(figures, about):
    """Milliseconds by kind and tokens, and the growth from 2048 to 8192 tokens."""
    for name, kinds in figures.items():
        if not kinds:
            continue
        tokens = sorted({n for points in kinds.values() for n, _ in points})
        print(f"\n{PASSES[name]}, ms ({about})\n")
        print("| kind | " + " | ".join(map(str, tokens)) + " | 8192 / 2048 |")
        print("| --- |" + " ---: |" * (len(tokens) + 1))
        for kind, points in kinds.items():
            ms = dict(points)
            growth = f"{ms[8192] / ms[2048]:.2f}" if {2048, 8192} <= set(ms) else ""
            cells = [f"{ms[n]:.3g}" if n in ms else "" for n in tokens]
            print(f"| `{kind}` | " + " | ".join(cells) + f" | {growth} |")


def main():
    arguments = [a for a in sys.argv[1:] if a != "--table"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    figures, about = read(arguments[0])
    if "--table" in sys.argv:
        table(figures, about)
    else:
        print(draw(figures, about))


if __name__ == "__main__":
    main()
