"""Merges timelines of several ranks (docs/timeline.md) and draws them as one SVG picture."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from .failure import BenchFailure

Event = dict[str, Any]

# What is drawn, in the order of the legend. The palette of Okabe and Ito is safe for most
# colour-blind readers.
COLOURS = {"queued": "#56B4E9", "push": "#0072B2", "pull": "#E69F00", "wait": "#999999"}
MEANINGS = {"queued": "push, waiting to be sent", "push": "push, being sent",
            "pull": "pull: other ranks, sum, optimizer, reply", "wait": "a thread waits"}
SPANS_MAX = 20_000  # a picture of more spans is some MB, and shows nothing

LABEL_WIDTH = 190
PLOT_WIDTH = 800
ROW_HEIGHT = 16
HEADING_HEIGHT = 24
MARGIN = 12
TICKS_MAX = 8


@dataclasses.dataclass(frozen=True)
class Span:
    kind: str  # a key of COLOURS
    begin_us: float
    end_us: float
    title: str


@dataclasses.dataclass
class Row:
    label: str
    spans: list[Span]


def read(path: Path) -> list[Event]:
    try:
        events = json.loads(path.read_text())
    except OSError as error:
        raise BenchFailure(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise BenchFailure(f"{path} is not a timeline: {error}") from error
    if not isinstance(events, list) or not all(_is_event(event) for event in events):
        raise BenchFailure(f"{path} is not a timeline: it is not an array of phub's trace events")
    return events


def _is_event(event: Any) -> bool:
    """phub wrote this event: the other functions rely on these fields."""
    fields = {"M": {"args"}, "X": {"args", "cat", "ts", "dur"}, "s": {"ts"}, "f": {"ts"}}
    if not isinstance(event, dict) or event.get("ph") not in fields:
        return False
    if not {"pid", "tid", "name"} | fields[event["ph"]] <= event.keys():
        return False
    metadata = {"process_name": {"name"}, "thread_name": {"name"},
                "phub_timeline": {"host", "realtime_minus_monotonic_us"}}
    arguments = event.get("args", {})
    return (isinstance(arguments, dict)
            and metadata.get(event["name"], set()) <= arguments.keys()
            and all(isinstance(event.get(name, 0), (int, float))
                    for name in ("pid", "tid", "ts", "dur")))


def merged(traces: Sequence[list[Event]]) -> list[Event]:
    """All events on the clock of the first trace's host.

    Processes of one host share CLOCK_MONOTONIC. Other hosts are aligned by their wall clocks.
    """
    offsets: dict[str, float] = {}
    result = []
    for events in traces:
        described = next((event["args"] for event in events
                          if event["name"] == "phub_timeline"), None)
        if described is None:
            raise BenchFailure("a timeline has no event phub_timeline, so its clock is unknown")
        own = offsets.setdefault(described["host"], described["realtime_minus_monotonic_us"])
        shift = own - next(iter(offsets.values()))
        result += [event | {"ts": round(event["ts"] + shift, 3)} if "ts" in event else event
                   for event in events]
    return result


def arrows_of(events: Sequence[Event]) -> list[Event]:
    """An arrow from the last push of each round to each other rank's pull of that round.

    A round is complete only after all ranks have pushed, so this is the push that they waited for.
    """
    tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in events
              if event["name"] == "thread_name"}
    rounds: dict[tuple[str, ...], dict[str, list[Event]]] = {}
    for event in events:
        if event["ph"] != "X" or event["name"] not in ("push", "pull"):
            continue
        which = (tracks.get((event["pid"], event["tid"]), ""),
                 *(str(event["args"].get(name)) for name in ("round", "iteration", "operation")))
        rounds.setdefault(which, {"push": [], "pull": []})[event["name"]].append(event)
    arrows: list[Event] = []
    for spans in rounds.values():
        if not spans["push"]:
            continue
        last = max(spans["push"], key=lambda push: push["ts"] + push["dur"])
        # Its end may be noted late, after other ranks have noted the end of their pulls.
        start = last["ts"]
        for pull in spans["pull"]:
            end = pull["ts"] + pull["dur"]
            if pull["pid"] == last["pid"] or end <= start:  # backwards: the clocks differ
                continue
            number = len(arrows) // 2
            arrows += [_arrow("s", number, last, start),
                       _arrow("f", number, pull, (max(start, pull["ts"]) + end) / 2)]
    return arrows


def _arrow(phase: str, number: int, span: Event, at_us: float) -> Event:
    arrow = {"ph": phase, "name": "last push", "cat": "last push", "id": number,
             "pid": span["pid"], "tid": span["tid"], "ts": round(at_us, 3)}
    return arrow | {"bp": "e"} if phase == "f" else arrow


def rows_of(events: Sequence[Event]) -> dict[str, list[Row]]:
    """The rows of each process, in the order of the ranks: its keys, then its threads."""
    processes: dict[int, str] = {}
    rows: dict[tuple[int, int], Row] = {}
    for event in events:
        if event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        elif event["name"] == "thread_name":
            label = event["args"]["name"].split(" (job ")[0]
            rows[event["pid"], event["tid"]] = Row(label, [])
    for event in events:
        row = rows.get((event["pid"], event["tid"]))
        if row is None or event["ph"] != "X":
            continue
        kind = event["name"] if event["name"] in COLOURS else event["cat"]
        if kind in COLOURS:
            row.spans.append(Span(kind, event["ts"], event["ts"] + event["dur"], _title(event)))
    # A thread's number is less than the number of any key's track.
    by_process: dict[str, list[Row]] = {}
    for pid in sorted(processes):
        used = [(tid, row) for (owner, tid), row in rows.items() if owner == pid and row.spans]
        keys_first = sorted(used, key=lambda each: (each[1].spans[0].kind == "wait", each[0]))
        by_process[processes[pid]] = [row for _, row in keys_first]
    return by_process


def svg(events: Sequence[Event], title: str) -> str:
    processes = rows_of(events)
    spans = [span for rows in processes.values() for row in rows for span in row.spans]
    if not spans:
        raise BenchFailure("the timelines have no rounds; did PHUB_TIMELINE_ITERATIONS leave "
                           "out all of them?")
    if len(spans) > SPANS_MAX:
        raise BenchFailure(f"the timelines have {len(spans)} spans, and a picture shows at most "
                           f"{SPANS_MAX}; record fewer iterations (PHUB_TIMELINE_ITERATIONS)")
    first_us = min(span.begin_us for span in spans)
    length_us = max(max(span.end_us for span in spans) - first_us, 1.0)
    per_us = PLOT_WIDTH / length_us
    shapes = [_text(MARGIN, 20, title, size=14, weight="bold"), *_legend(36)]
    top = 46.0
    bars: list[str] = []
    for name, rows in processes.items():
        bars.append(_text(MARGIN, top + 17, name, weight="bold"))
        top += HEADING_HEIGHT
        for row in rows:
            bars.append(_text(MARGIN + LABEL_WIDTH - 8, top + 12, _shortened(row.label),
                              anchor="end"))
            bars += [_bar(span, first_us, per_us, top) for span in _drawn_in_order(row.spans)]
            top += ROW_HEIGHT
    shapes += _axis(length_us, per_us, top) + bars
    width, height = LABEL_WIDTH + PLOT_WIDTH + 3 * MARGIN, top + 40
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
            f'viewBox="0 0 {width} {height:.0f}" font-family="sans-serif" font-size="11">\n'
            f'<rect width="{width}" height="{height:.0f}" fill="white"/>\n'
            + "\n".join(shapes) + "\n</svg>\n")


def _title(event: Event) -> str:
    arguments = event["args"]
    iteration = f", iteration {arguments['iteration']}" if "iteration" in arguments else ""
    return f"{event['name']}{iteration}: {event['dur']:.0f} us"


def _shortened(label: str) -> str:
    length_max = 30
    return label if len(label) <= length_max else label[:length_max - 3] + "..."


def _drawn_in_order(spans: Sequence[Span]) -> list[Span]:
    """`queued` is the first part of a `push`, so it is drawn over it."""
    return sorted(spans, key=lambda span: (span.begin_us, span.kind == "queued"))


def _bar(span: Span, first_us: float, per_us: float, top: float) -> str:
    left = LABEL_WIDTH + MARGIN + (span.begin_us - first_us) * per_us
    width = max((span.end_us - span.begin_us) * per_us, 0.5)  # short spans stay visible
    return (f'<rect x="{left:.1f}" y="{top + 3:.0f}" width="{width:.1f}" '
            f'height="{ROW_HEIGHT - 4}" fill="{COLOURS[span.kind]}">'
            f"<title>{escape(span.title)}</title></rect>")


def _legend(top: float) -> list[str]:
    shapes, left = [], float(LABEL_WIDTH + MARGIN)
    for kind, colour in COLOURS.items():
        shapes.append(f'<rect x="{left:.0f}" y="{top - 9:.0f}" width="11" height="11" '
                      f'fill="{colour}"/>')
        shapes.append(_text(left + 16, top, MEANINGS[kind]))
        left += 40 + 6 * len(MEANINGS[kind])
    return shapes


def _axis(length_us: float, per_us: float, bottom: float) -> list[str]:
    step = _tick_step(length_us)
    decimals = max(0, -math.floor(math.log10(step / 1000)))
    shapes = []
    for number in range(int(length_us / step) + 1):
        x = LABEL_WIDTH + MARGIN + number * step * per_us
        shapes.append(f'<line x1="{x:.1f}" y1="50" x2="{x:.1f}" y2="{bottom + 4:.0f}" '
                      'stroke="#dddddd"/>')
        shapes.append(_text(x, bottom + 18, f"{number * step / 1000:.{decimals}f}",
                            anchor="middle"))
    shapes.append(_text(LABEL_WIDTH + MARGIN + PLOT_WIDTH / 2, bottom + 33, "ms",
                        anchor="middle"))
    return shapes


def _tick_step(length_us: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(length_us / TICKS_MAX))
    return next(power * factor for factor in (1, 2, 5, 10)
                if length_us / (power * factor) <= TICKS_MAX)


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 11,
          weight: str = "normal") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'font-weight="{weight}">{escape(text)}</text>')
