"""Merges timelines of several ranks (docs/timeline.md) and draws them as one SVG picture."""

import dataclasses
import heapq
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
COLOURS = {"queued": "#56B4E9", "push": "#0072B2", "pull": "#E69F00", "wait": "#999999",
           "compute": "#BBCCEE",
           "gradients": "#009E73", "sum": "#F0E442", "update": "#D55E00", "reply": "#CC79A7"}
RANKS_KINDS = ("queued", "push", "pull", "wait", "compute")
DAEMONS_KINDS = ("gradients", "sum", "update", "reply")
MEANINGS = {"queued": "push, waiting to be sent", "push": "push, being sent",
            "pull": "pull: other ranks, sum, optimizer, reply", "wait": "a thread waits",
            "compute": "computes",
            "gradients": "daemon: gradients arrive", "sum": "daemon: sum",
            "update": "daemon: sum, optimizer, reply", "reply": "daemon: reply"}
FIRST_KEY_TRACK = 10_000_000  # tracks with smaller numbers are threads
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
            and _has_clocks(arguments.get("daemons", []))
            and all(isinstance(event.get(name, 0), (int, float))
                    for name in ("pid", "tid", "ts", "dur")))


def _has_clocks(daemons: Any) -> bool:
    return isinstance(daemons, list) and all(
        isinstance(daemon, dict) and {"host", "started_ns"} <= daemon.keys()
        and all(isinstance(daemon.get(name), (int, float))
                for name in ("clock_offset_us", "clock_error_us"))
        for daemon in daemons)


def merged(traces: Sequence[list[Event]]) -> list[Event]:
    """All events on the clock of the first trace's host.

    Processes of one host share CLOCK_MONOTONIC. Between hosts, the ranks have measured the offsets
    to the clocks of their daemons. Other hosts are aligned by their wall clocks.
    """
    described = [_description(events) for events in traces]
    shifts = _measured_shifts(described)
    first = described[0]["realtime_minus_monotonic_us"]
    result = []
    for events, about in zip(traces, described):
        shift = shifts.setdefault(about["host"], about["realtime_minus_monotonic_us"] - first)
        result += [event | {"ts": round(event["ts"] + shift, 3)} if "ts" in event else event
                   for event in events]
    return result


def _description(events: Sequence[Event]) -> dict[str, Any]:
    for event in events:
        if event["name"] == "phub_timeline":
            return dict(event["args"])
    raise BenchFailure("a timeline has no event phub_timeline, so its clock is unknown")


def _measured_shifts(described: Sequence[dict[str, Any]]) -> dict[str, float]:
    """For each host, what to add to its clock to get that of the first host.

    Offsets add up over several hosts, and so do their errors: the path with the least error counts.
    """
    # [from][to]: error, and the clock of `to` minus that of `from`.
    offsets: dict[str, dict[str, tuple[float, float]]] = {}
    for about in described:
        for daemon in about.get("daemons", []):
            error, offset = daemon["clock_error_us"], daemon["clock_offset_us"]
            for start, end, sign in ((about["host"], daemon["host"], 1),
                                     (daemon["host"], about["host"], -1)):
                known = offsets.setdefault(start, {})
                known[end] = min(known.get(end, (math.inf, 0.0)), (error, sign * offset))
    shifts: dict[str, float] = {}
    paths = [(0.0, described[0]["host"], 0.0)]
    while paths:
        error, host, shift = heapq.heappop(paths)
        if host in shifts:
            continue
        shifts[host] = shift
        for other, (more, offset) in offsets.get(host, {}).items():
            heapq.heappush(paths, (error + more, other, shift - offset))
    return shifts


def arrows_of(events: Sequence[Event]) -> list[Event]:
    """Arrows between processes, from each round's pushes to its pulls."""
    arrows = _through_daemons(events) or _from_last_push(events)
    for number, pair in enumerate(arrows):
        for arrow in pair:
            arrow["id"] = number
    return [arrow for pair in arrows for arrow in pair]


def _tracks(events: Sequence[Event]) -> dict[tuple[int, int], str]:
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events
            if event["name"] == "thread_name"}


def _through_daemons(events: Sequence[Event]) -> list[tuple[Event, Event]]:
    """From each push to the round in each daemon, and from there to each pull.

    None without traces of daemons. Then the daemons' part of a round is unknown.
    """
    tracks = _tracks(events)
    about = {event["pid"]: event["args"] for event in events if event["name"] == "phub_timeline"}
    rounds: dict[tuple[str, str], dict[str, list[Event]]] = {}
    for event in events:
        if event["ph"] == "X" and event["name"] in ("push", "pull", "gradients", "update"):
            which = (tracks.get((event["pid"], event["tid"]), ""),
                     str(event["args"].get("round")))
            rounds.setdefault(which, {}).setdefault(event["name"], []).append(event)
    arrows = []
    for spans in rounds.values():
        for push in spans.get("push", []):
            arrows += [_between("sum", push, push["ts"], gradients)
                       for gradients in spans.get("gradients", [])
                       if _uses(about[push["pid"]], about[gradients["pid"]])]
        for update in spans.get("update", []):
            arrows += [_between("new parameters", update, update["ts"], pull)
                       for pull in spans.get("pull", [])
                       if _uses(about[pull["pid"]], about[update["pid"]])]
    return [pair for pair in arrows if pair is not None]


def _uses(rank: dict[str, Any], daemon: dict[str, Any]) -> bool:
    """The rank's job has this daemon; in other racks there are others."""
    return any((each["host"], each["started_ns"]) == (daemon["host"], daemon["daemon_started_ns"])
               for each in rank.get("daemons", []))


def _between(name: str, start: Event, start_us: float,
             span: Event) -> tuple[Event, Event] | None:
    """An arrow to a moment in `span`; none if it would go backwards, because the clocks differ."""
    end_us = span["ts"] + span["dur"]
    if end_us <= start_us:
        return None
    return (_arrow("s", name, start, start_us),
            _arrow("f", name, span, (max(start_us, span["ts"]) + end_us) / 2))


def _from_last_push(events: Sequence[Event]) -> list[tuple[Event, Event]]:
    """An arrow from the last push of each round to each other rank's pull of that round.

    A round is complete only after all ranks have pushed, so this is the push that they waited for.
    """
    tracks = _tracks(events)
    rounds: dict[tuple[str, ...], dict[str, list[Event]]] = {}
    for event in events:
        if event["ph"] != "X" or event["name"] not in ("push", "pull"):
            continue
        which = (tracks.get((event["pid"], event["tid"]), ""),
                 *(str(event["args"].get(name)) for name in ("round", "iteration", "operation")))
        rounds.setdefault(which, {"push": [], "pull": []})[event["name"]].append(event)
    arrows = []
    for spans in rounds.values():
        if not spans["push"]:
            continue
        last = max(spans["push"], key=lambda push: push["ts"] + push["dur"])
        # Its end may be noted late, after other ranks have noted the end of their pulls.
        start = last["ts"]
        for pull in spans["pull"]:
            if pull["pid"] != last["pid"]:
                arrows.append(_between("last push", last, start, pull))
    return [pair for pair in arrows if pair is not None]


def _arrow(phase: str, name: str, span: Event, at_us: float) -> Event:
    arrow = {"ph": phase, "name": name, "cat": name,
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
    by_process: dict[str, list[Row]] = {}
    for pid in sorted(processes):
        used = [(tid, row) for (owner, tid), row in rows.items() if owner == pid and row.spans]
        keys_first = sorted(used, key=lambda each: (each[0] < FIRST_KEY_TRACK, each[0]))
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
    shapes = [_text(MARGIN, 20, title, size=14, weight="bold"), *_legend(36, RANKS_KINDS)]
    first_row = 46.0
    if any(span.kind in DAEMONS_KINDS for span in spans):
        shapes += _legend(52, DAEMONS_KINDS)
        first_row += 16
    top = first_row
    bars: list[str] = []
    for name, rows in processes.items():
        bars.append(_text(MARGIN, top + 17, name, weight="bold"))
        top += HEADING_HEIGHT
        for row in rows:
            bars.append(_text(MARGIN + LABEL_WIDTH - 8, top + 12, _shortened(row.label),
                              anchor="end"))
            bars += [_bar(span, first_us, per_us, top) for span in _drawn_in_order(row.spans)]
            top += ROW_HEIGHT
    shapes += _axis(length_us, per_us, first_row + 8, top) + bars
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


def _legend(top: float, kinds: Sequence[str]) -> list[str]:
    shapes, left = [], float(LABEL_WIDTH + MARGIN)
    for kind in kinds:
        colour = COLOURS[kind]
        shapes.append(f'<rect x="{left:.0f}" y="{top - 9:.0f}" width="11" height="11" '
                      f'fill="{colour}"/>')
        shapes.append(_text(left + 16, top, MEANINGS[kind]))
        left += 40 + 6 * len(MEANINGS[kind])
    return shapes


def _axis(length_us: float, per_us: float, top: float, bottom: float) -> list[str]:
    step = _tick_step(length_us)
    decimals = max(0, -math.floor(math.log10(step / 1000)))
    shapes = []
    for number in range(int(length_us / step) + 1):
        x = LABEL_WIDTH + MARGIN + number * step * per_us
        shapes.append(f'<line x1="{x:.1f}" y1="{top - 4:.0f}" x2="{x:.1f}" y2="{bottom + 4:.0f}" '
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
