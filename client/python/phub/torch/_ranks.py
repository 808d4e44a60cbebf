"""Ranks in messages."""

from __future__ import annotations

from typing import Sequence

_LISTED_MAX = 8


def listed_ranks(ranks: Sequence[int]) -> str:
    """"rank 1", or "ranks 1, 2 and 5 others"."""
    shown = ", ".join(str(rank) for rank in ranks[:_LISTED_MAX])
    word = "rank" if len(ranks) == 1 else "ranks"
    more = f" and {len(ranks) - _LISTED_MAX} others" if len(ranks) > _LISTED_MAX else ""
    return f"{word} {shown}{more}"
