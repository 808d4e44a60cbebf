"""The flight recorder: the last collectives of each group on this rank, and a report of who waits
for whom when a collective fails.

Recording costs one small object for each collective. A report is written to standard error, and
with all that is recorded as text and JSON into the folder in PHUB_FLIGHT_FOLDER.
"""

from __future__ import annotations

import collections
import datetime
import json
import os
import pathlib
import sys
import time
from typing import Any, Iterable, Optional

from .._record import DumpRecord

RECORDS_MAX = 256  # of each group
PUBLISHED = 64  # that other ranks can read, to explain mismatches
FOLDER = "PHUB_FLIGHT_FOLDER"
_LINES = 6  # collectives on standard error
_RANKS = 16  # on standard error
_LOCK_S = 0.5

Published = dict[int, Optional[dict[str, Any]]]  # what the other ranks have published


class Record:
    """One collective. Has no tensors: it lives longer than they do."""

    __slots__ = ("sequence", "text", "time", "begun", "ended", "error")

    def __init__(self, sequence: int, text: str) -> None:
        self.sequence = sequence
        self.text = text
        self.time = time.time()
        self.begun = time.monotonic()
        self.ended: Optional[float] = None
        self.error: Optional[str] = None

    def end(self, error: Optional[BaseException]) -> None:
        self.ended = time.monotonic()
        self.error = None if error is None else str(error)

    @property
    def state(self) -> str:
        if self.ended is None:
            return "waits"
        return "completed" if self.error is None else "failed"

    def seconds(self) -> float:
        return (time.monotonic() if self.ended is None else self.ended) - self.begun

    def values(self) -> dict[str, Any]:
        moment = datetime.datetime.fromtimestamp(self.time, datetime.timezone.utc)
        values = {
            "sequence": self.sequence,
            "operation": self.text,
            "state": self.state,
            "called": moment.isoformat(timespec="milliseconds"),
            "seconds": round(self.seconds(), 6),
        }
        if self.error is not None:
            values["error"] = self.error
        return values


class Recorder:
    """The last collectives of one group. REQUIRES: the lock of its exchange."""

    def __init__(self) -> None:
        self.records: collections.deque[Record] = collections.deque(maxlen=RECORDS_MAX)

    def add(self, sequence: int, text: str) -> Record:
        record = Record(sequence, text)
        self.records.append(record)
        return record

    def waits_in(self) -> Optional[int]:
        """The number of the oldest collective that is not complete."""
        return next((each.sequence for each in self.records if each.ended is None), None)

    def published(self, note: str) -> dict[str, Any]:
        """What other ranks can read of this one."""
        last = list(self.records)[-PUBLISHED:]
        return {
            "operations": [[each.sequence, each.text] for each in last],
            "waits_in": self.waits_in(),
            "note": note,
        }

    def values(self) -> list[dict[str, Any]]:
        return [each.values() for each in self.records]


def dump_record(recorder: Recorder, lock: Any, bytes_max: int) -> DumpRecord:
    """For `phubctl job dump`: the last collectives of the group, the newest first. lock: that of
    its exchange. A thread that starts a collective may hold it for long."""
    if not lock.acquire(timeout=_LOCK_S):
        return DumpRecord("starts a collective, and has waited for the daemon meanwhile")
    try:
        records = list(recorder.records)
        waits_in = recorder.waits_in()
        values = [each.values() for each in reversed(records)]
    finally:
        lock.release()
    waiting = next((each for each in records if each.sequence == waits_in), None)
    if waiting is not None:
        headline = f"waits in operation {waiting.sequence}, {waiting.text}"
    elif records:
        last = records[-1]
        headline = f"last called operation {last.sequence}, {last.text}; waits in none"
    else:
        headline = "has called no collective"
    lines = _that_fit(_operation_lines(values), bytes_max // 2)
    texts = _that_fit([json.dumps(each) for each in values], bytes_max // 2 - 64)
    text = json.dumps({"waits_in": waits_in})[:-1] + f', "operations": [{", ".join(texts)}]}}'
    return DumpRecord(headline, "\n".join(["last operations, the newest first:", *lines]), text)


def _that_fit(texts: list[str], bytes_max: int) -> list[str]:
    """The first ones that have at most bytes_max bytes together."""
    kept = []
    for text in texts:
        bytes_max -= len(text.encode()) + 2
        if bytes_max < 0:
            break
        kept.append(text)
    return kept


def ranks_of(own_rank: int, own: dict[str, Any], others: Published) -> list[dict[str, Any]]:
    """Where each rank is, and for which ranks it waits, as far as they have published it."""
    places = []
    published: Published = dict(others)
    published[own_rank] = own
    for rank in sorted(published):
        values = published[rank]
        operations = values["operations"] if values else []
        places.append(
            {
                "rank": rank,
                "known": values is not None,
                "last_called": operations[-1] if operations else None,
                "waits_in": values.get("waits_in") if values else None,
                "waits_for": [],
                "note": values.get("note", "") if values else "",
            }
        )
    called = {each["rank"]: (each["last_called"] or [0])[0] for each in places}
    for each in places:
        if each["waits_in"] is not None:
            each["waits_for"] = [rank for rank in called if called[rank] < each["waits_in"]]
    return places


def _place_text(place: dict[str, Any], texts: dict[int, str]) -> str:
    rank, number = place["rank"], place["waits_in"]
    if not place["known"]:
        return f"rank {rank} has not reported a collective that waits"
    if number is not None:
        late = place["waits_for"]
        missing = ", ".join(str(each) for each in late[:_RANKS])
        missing += f" and {len(late) - _RANKS} more" if len(late) > _RANKS else ""
        words = f" for rank{'s' if len(late) > 1 else ''} {missing}"
        words = words if late else "; all ranks have called it"
        return f"rank {rank} waits in operation {number}, {texts.get(number, '?')}{words}"
    if place["last_called"] is None:
        return f"rank {rank} has called nothing"
    sequence, text = place["last_called"]
    return f"rank {rank} has called operation {sequence}, {text}, and waits in none"


def _operation_lines(operations: Iterable[dict[str, Any]]) -> list[str]:
    return [
        f"  {each['sequence']:>6}  {each['state']:<9}  {each['seconds']:>9.3f} s  "
        f"{each['operation']}"
        for each in operations
    ]


class Report:
    """What this rank knows when a collective fails."""

    def __init__(self, exchange: Any, reason: str, others: Published) -> None:
        """REQUIRES: the lock of the exchange."""
        recorder: Recorder = exchange.recorder
        own = recorder.published("")
        published: Published = dict(others)
        published[exchange.rank] = own
        self._name = f"{exchange.job.name}.rank-{exchange.rank}"
        self._texts = {
            rank: {number: text for number, text in (values or {}).get("operations", [])}
            for rank, values in published.items()
        }
        moment = datetime.datetime.now(datetime.timezone.utc)
        self.values: dict[str, Any] = {
            "job": exchange.job.name,
            "rank": exchange.rank,
            "world_size": len(exchange.ranks),
            "time": moment.isoformat(timespec="milliseconds"),
            "reason": reason,
            "ranks": ranks_of(exchange.rank, own, others),
            "operations": recorder.values(),
        }

    def text(self, lines: Optional[int] = None) -> str:
        """lines: how many collectives; None: all."""
        values = self.values
        ranks = values["ranks"] if lines is None else values["ranks"][:_RANKS]
        operations = values["operations"] if lines is None else values["operations"][-lines:]
        return "\n".join(
            [
                f"phub: flight record of rank {values['rank']} of job {values['job']}, "
                f"{values['time']}: {values['reason']}",
                *(f"  {_place_text(each, self._texts[each['rank']])}" for each in ranks),
                f"  last operations of rank {values['rank']}:",
                *_operation_lines(operations),
            ]
        )

    def write(self) -> None:
        """To standard error, and into the folder if there is one."""
        print(self.text(_LINES), file=sys.stderr, flush=True)
        folder = os.environ.get(FOLDER)
        if not folder:
            return
        path = pathlib.Path(folder) / self._name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(path.name + ".txt").write_text(self.text() + "\n")
            path.with_name(path.name + ".json").write_text(json.dumps(self.values, indent=1) + "\n")
        except OSError as error:
            print(f"phub: cannot write the flight record ({FOLDER}): {error}", file=sys.stderr)
