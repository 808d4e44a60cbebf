"""What a program adds when an administrator asks what its rank is doing (phubctl job dump)."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any, Callable

from ._library import RECORDER, lib


@dataclasses.dataclass(frozen=True)
class DumpRecord:
    """A program's part of the record of its rank; see :meth:`phub.Job.set_recorder`."""

    headline: str = ""  # one line, what the program does
    text: str = ""  # lines for people, the most important first; cut if too long
    json: str = ""  # for programs; left out if too long


def c_recorder(recorder: Callable[[int], DumpRecord]) -> Any:
    """The function that libphub calls. It must be referred to as long as libphub may call it."""

    def call(context: Any, record: Any, bytes_max: int) -> None:
        try:
            made = recorder(bytes_max)
            texts = [made.headline, made.text, made.json]
        except BaseException as error:  # ctypes would print it
            texts = [f"its recorder failed: {error!r}", "", ""]
        setters = [
            lib.phub_record_set_headline,
            lib.phub_record_set_text,
            lib.phub_record_set_json,
        ]
        for setter, text in zip(setters, texts):
            setter(record, str(text).encode(errors="replace"))

    return RECORDER(call)


NO_RECORDER = ctypes.cast(0, RECORDER)
