"""Draws losses over steps as an SVG picture, without other programs: one panel for each case."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from .context import Context
from .results import Result

# The palette of Okabe and Ito is safe for most colour-blind readers.
COLOURS = ("#999999", "#56B4E9", "#7A4EAB", "#000000", "#E69F00", "#0072B2", "#009E73", "#8FD3BC",
           "#D55E00", "#F0A080", "#CC79A7")
# These lie on each other: their dashes take turns, and only the last one that is drawn has a band.
TAKE_TURNS = ("one-process", "ddp-gloo", "ddp-phub", "float32", "bfloat16", "int8")
DASH = 6
WIDTH, HEIGHT, MARGIN = 630, 320, 48
LEGEND = 200  # to the right of the curves
SMOOTHED = 20  # steps


def smoothed(losses: Sequence[float]) -> list[float]:
    """The mean of the last steps."""
    return [sum(losses[max(0, end - SMOOTHED): end]) / (end - max(0, end - SMOOTHED))
            for end in range(1, len(losses) + 1)]


def _band(row: Result) -> tuple[list[float], list[float], list[float]]:
    """The mean of the seeds' curves, the least and the greatest, for each step."""
    losses: Any = row.more["losses"]
    curves = [smoothed(each) for each in losses]
    steps = list(zip(*curves))
    return ([statistics.fmean(each) for each in steps], [min(each) for each in steps],
            [max(each) for each in steps])


def panel(case: str, rows: Sequence[Result], left: int, colours: dict[str, str]) -> list[str]:
    bands = {row.system: _band(row) for row in rows}
    curves = {name: means for name, (means, _, _) in bands.items()}
    finite = [loss for band in bands.values() for curve in band for loss in curve if loss > 0]
    low, high = math.log(min(finite)), math.log(max(finite))
    steps = max(len(curve) for curve in curves.values())

    def x(step: int) -> float:
        return left + MARGIN + step / max(1, steps - 1) * (WIDTH - MARGIN - LEGEND)

    def y(loss: float) -> float:
        return HEIGHT - MARGIN - (math.log(loss) - low) / (high - low or 1) * (HEIGHT - 2 * MARGIN)

    lines = [f'<text x="{left + WIDTH / 2}" y="24" text-anchor="middle">{escape(case)}</text>',
             f'<path d="M{x(0)},{MARGIN}V{HEIGHT - MARGIN}H{x(steps - 1)}" fill="none" '
             'stroke="black"/>',
             f'<text x="{left + WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>']
    for number in range(5):
        loss = math.exp(low + (high - low) * number / 4)
        lines.append(f'<text x="{x(0) - 4}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.3g}'
                     f'</text><path d="M{x(0)},{y(loss):.1f}H{x(steps - 1)}" stroke="#dddddd"/>')
        step = round((steps - 1) * number / 4)
        lines.append(f'<text x="{x(step):.1f}" y="{HEIGHT - MARGIN + 16}" text-anchor="middle">'
                     f'{step}</text>')
    for number, (row, (name, (curve, least, most))) in enumerate(zip(rows, bands.items())):
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in enumerate(curve)
                          if loss > 0)
        edge = [*enumerate(most), *reversed(list(enumerate(least)))]
        around = " ".join(f"{x(step):.1f},{y(max(loss, min(finite))):.1f}" for step, loss in edge)
        colour = colours[name]
        share = row.more["share"]
        label = f"{name}, {100 * float(str(share)):.3g} % of the bytes" if share else name
        alike = [name for name in TAKE_TURNS if name in bands]
        dashes = _dashes(name, alike)
        if least != most and name not in alike[:-1]:
            lines.append(f'<polygon points="{around}" fill="{colour}" fill-opacity="0.15"/>')
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" '
                     f'stroke-width="1.5"{dashes}/><text x="{x(steps - 1) + 8:.1f}" '
                     f'y="{MARGIN + 8 + 16 * number}" fill="{colour}">'
                     f'{escape(label)}</text>')
    return lines


def _dashes(name: str, names: Sequence[str]) -> str:
    if name not in names or len(names) == 1:
        return ""
    return (f' stroke-dasharray="{DASH},{DASH * (len(names) - 1)}" '
            f'stroke-dashoffset="{-DASH * list(names).index(name)}"')


def draw_curves(context: Context, measured: Sequence[Result], path: Path) -> None:
    cases = list(dict.fromkeys(result.case for result in measured))
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(cases)}" '
             f'height="{HEIGHT}" font-family="sans-serif" font-size="11">',
             '<rect width="100%" height="100%" fill="white"/>']
    systems = dict.fromkeys(result.system for result in measured)
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(systems)}
    for number, case in enumerate(cases):
        rows = [row for row in measured if row.case == case]
        lines += panel(case, rows, number * WIDTH, colours)
    path.write_text("\n".join([*lines, "</svg>"]) + "\n")
    context.say(f"picture: {path}")
