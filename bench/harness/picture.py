"""Pictures of results, drawn by gnuplot."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .context import Context
from .failure import BenchFailure
from .results import Result, seconds_text

# In the order of drawing; colours that can be told apart by most people (Okabe and Ito).
COLOURS = {
    "phub": "#0072B2", "phub-usermem": "#56B4E9", "openmpi-shm": "#E69F00",
    "openmpi-tcp": "#D55E00", "gloo-ring": "#009E73", "gloo-hd": "#8FD3BC",
    "torch-gloo": "#CC79A7",
}
OTHER_COLOUR = "#888888"


def draw_ratios(context: Context, measured: Sequence[Result], path: Path, title: str) -> None:
    """A cluster of bars per case: each system's median over phub's; a line at the ceiling."""
    if not shutil.which("gnuplot"):
        context.say("no picture: gnuplot is not installed")
        return
    cases = list(dict.fromkeys(result.case for result in measured))
    by_case = {case: {result.system: result for result in measured if result.case == case}
               for case in cases}
    cases = [case for case in cases if "phub" in by_case[case]]
    systems = [name for name in COLOURS if any(name in by_case[case] for case in cases)]
    systems += sorted({result.system for result in measured} - set(systems) - set(COLOURS))
    if not cases:
        context.say("no picture: it needs phub in each case")
        return
    lines = ["$data << END"]
    for case in cases:
        rows = by_case[case]
        base = rows["phub"].median_s
        cells = [str(rows[name].median_s / base) if name in rows else "0" for name in systems]
        ceiling_s = rows["phub"].ceiling_s
        lines.append("\t".join([_label(case, base), str((ceiling_s or 0) / base), *cells]))
    lines += ["END", f"count = {len(systems)}"]
    lines += _settings(path, title, len(cases))
    width = 0.9 / len(systems)
    bars = []
    for number, name in enumerate(systems):
        shift = (number - (len(systems) - 1) / 2) * width
        bars.append(f"$data using ($0+{shift:.4f}):{number + 3}:({width:.4f}) with boxes "
                    f"linecolor rgb '{COLOURS.get(name, OTHER_COLOUR)}' title '{name}'")
    bars.append("$data using ($0-0.48):2:(0.96):(0):xtic(1) with vectors nohead linewidth 2 "
                "linecolor rgb 'black' title \"the machine's limit\"")
    lines.append("plot " + ", \\\n  ".join(bars))
    answer = subprocess.run(["gnuplot"], input="\n".join(lines) + "\n", text=True,
                            capture_output=True, check=False)
    if answer.returncode != 0:
        raise BenchFailure(f"gnuplot failed: {answer.stderr}")
    context.say(f"picture: {path}")


def _label(case: str, phub_s: float) -> str:
    _, transport, name, workers, kind, work = case.split("/")
    of_type = "" if kind == "f32" else f" {kind}"
    return f'"{name}{of_type} {workers[1:]} x\\n{transport} {work}\\nphub {seconds_text(phub_s)}"'


def _settings(path: Path, title: str, case_count: int) -> list[str]:
    width = 240 + 110 * case_count
    return [
        f"set terminal svg size {width},480 background rgb 'white' font 'sans,12'",
        f"set output '{path}'",
        "set datafile separator tab",
        f'set title "{title}"',
        "set style fill solid 1.0 noborder",
        "set key outside right top",
        "set grid ytics linecolor rgb '#dddddd'",
        "set yrange [0:*]",
        f"set xrange [-0.6:{case_count - 0.4}]",
        "set xtics nomirror scale 0",
    ]
