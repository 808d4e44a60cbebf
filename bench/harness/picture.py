"""Draws pictures of results with gnuplot."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .context import Context
from .failure import BenchFailure
from .results import Result, seconds_text
from .workload import size_text

# In drawing order. The palette of Okabe and Ito is safe for most colour-blind readers.
COLOURS = {
    "phub": "#0072B2", "phub-usermem": "#56B4E9", "openmpi-shm": "#E69F00",
    "openmpi-tcp": "#D55E00", "gloo-ring": "#009E73", "gloo-hd": "#8FD3BC",
    "torch-gloo": "#CC79A7",
}
OTHER_COLOUR = "#888888"


def draw_ratios(context: Context, measured: Sequence[Result], path: Path, title: str) -> None:
    """Draws a cluster of bars per case (each system's median over phub's) and the ceiling."""
    cases = list(dict.fromkeys(result.case for result in measured))
    by_case = {case: {result.system: result for result in measured if result.case == case}
               for case in cases}
    cases = [case for case in cases if "phub" in by_case[case]]
    systems = [name for name in COLOURS if any(name in by_case[case] for case in cases)]
    systems += sorted({result.system for result in measured} - set(systems) - set(COLOURS))
    if not cases:
        context.say("no picture: no case has results of phub")
        return
    lines = _settings(path, title, [_label(case, by_case[case]["phub"].median_s)
                                    for case in cases])
    bars = []
    for name in systems:
        shown = [(position, result.median_s / by_case[result.case]["phub"].median_s)
                 for position, result in _positions(cases, by_case, systems)
                 if result.system == name]
        lines += [f"${_variable(name)} << END", *(f"{x:.4f} {y:.5f}" for x, y in shown), "END"]
        bars.append(f"${_variable(name)} using 1:2:({0.9 / len(systems):.4f}) with boxes "
                    f"linecolor rgb '{COLOURS.get(name, OTHER_COLOUR)}' title '{name}'")
    limits = [(number, phub.ceiling_s / phub.median_s) for number, case in enumerate(cases)
              if (phub := by_case[case]["phub"]).ceiling_s]
    if limits:
        lines += ["$limit << END", *(f"{x} {y:.5f}" for x, y in limits), "END"]
        bars.append("$limit using ($1-0.48):2:(0.96):(0) with vectors nohead linewidth 2 "
                    "linecolor rgb 'black' title 'ceiling'")
    lines.append("plot " + ", \\\n  ".join(bars))
    _plot(context, lines, path)


def draw_percents(context: Context, measured: Sequence[Result], path: Path, title: str) -> None:
    """Draws a bar per case: the ceiling's time in percent of the median."""
    rows = [result for result in measured if result.ceiling_s]
    if not rows:
        context.say("no picture: nothing was measured")
        return
    lines = ["$data << END"]
    lines += [f'"{row.case}"\t{100 * (row.ceiling_s or 0) / row.median_s:.1f}' for row in rows]
    lines += ["END", f"set terminal svg size 900,{120 + 16 * len(rows)} background rgb 'white' "
              "font 'sans,10'", f"set output '{path}'", "set datafile separator tab",
              f'set title "{title}"', "set style fill solid 1.0 noborder", "unset key",
              "set grid xtics linecolor rgb '#dddddd'", "set xrange [0:*]",
              f"set yrange [{len(rows) - 0.4}:-0.6]", "set ytics nomirror scale 0",
              f"plot $data using ($2/2):0:($2/2):(0.35):yticlabel(1) with boxxyerror "
              f"linecolor rgb '{COLOURS['phub']}'"]
    _plot(context, lines, path)


def _plot(context: Context, lines: Sequence[str], path: Path) -> None:
    if not shutil.which("gnuplot"):
        context.say("no picture: gnuplot is not installed")
        return
    answer = subprocess.run(["gnuplot"], input="\n".join(lines) + "\n", text=True,
                            capture_output=True, check=False)
    if answer.returncode != 0:
        raise BenchFailure(f"gnuplot failed: {answer.stderr}")
    context.say(f"picture: {path}")


def _variable(system: str) -> str:
    return "s_" + system.replace("-", "_")


def _positions(cases: Sequence[str], by_case: dict[str, dict[str, Result]],
               systems: Sequence[str]) -> list[tuple[float, Result]]:
    """The position of each bar. The bars of a case are adjacent and centred on its tic."""
    width = 0.9 / len(systems)
    positions = []
    for number, case in enumerate(cases):
        here = [by_case[case][name] for name in systems if name in by_case[case]]
        positions += [(number + (place - (len(here) - 1) / 2) * width, result)
                      for place, result in enumerate(here)]
    return positions


def _label(case: str, phub_s: float) -> str:
    _, transport, name, workers, kind, work = case.split("/")
    size = size_text(int(name)) if name.isdigit() else name
    of_type = "" if kind == "f32" else f" {kind}"
    return (f"{size}{of_type}, {workers[1:]} workers\\n{transport}, {work}\\n"
            f"phub {seconds_text(phub_s)}")


def _settings(path: Path, title: str, labels: Sequence[str]) -> list[str]:
    tics = ", ".join(f'"{label}" {number}' for number, label in enumerate(labels))
    return [
        f"set terminal svg size {max(680, 260 + 130 * len(labels))},460 background rgb 'white' "
        "font 'sans,12'",
        f"set output '{path}'",
        f'set title "{title}"',
        "set style fill solid 1.0 noborder",
        "set key outside right top",
        "set grid ytics linecolor rgb '#dddddd'",
        "set bmargin 5",
        "set yrange [0:*]",
        f"set xrange [-0.6:{len(labels) - 0.4}]",
        f"set xtics ({tics}) nomirror scale 0",
    ]
