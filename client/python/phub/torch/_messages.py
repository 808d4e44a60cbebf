"""send and recv: a stream of messages for each pair of ranks, direction and tag.

A stream is a group of two ranks in the job of its torch group (phub/group.h). It is made at its
first message on this rank, without a call to the other rank: the two meet in the daemon. Streams
have a group each because the members of a group add its keys in one order, and programs may use
tags and directions in a different order on each rank.

Tags from OWN_MAX on share a stream (phub.torch._tagged).
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional

from ._collectives import Collectives
from ._exchange import Exchange
from ._operation import Operation
from ._tagged import OWN_MAX, Receiver, Sender
from ._transfer import message

# Makes the stream of this name from rank `source` to rank `target`.
Open = Callable[[str, int, int], Exchange]


def _is_shared(tag: int) -> bool:
    """The tag shares a stream with others. The same on both ranks."""
    return not 0 <= tag < OWN_MAX


class Messages:
    """Of one torch group."""

    def __init__(self, rank: int, size: int, open: Open) -> None:
        self._rank, self._size = rank, size
        self._open: Optional[Open] = open
        self._lock = threading.Lock()
        self._streams: dict[str, Exchange] = {}
        self._senders: dict[int, Sender] = {}  # by peer, for tags that share a stream
        self._receivers: dict[int, Receiver] = {}

    def send(self, tensor: Any, peer: int, tag: int) -> Operation:
        place = f"from rank {self._rank} to rank {peer}"
        stream = self._stream("send", self._rank, peer, tag)
        root = stream.ranks.index(self._rank)
        if _is_shared(tag):
            with self._lock:
                sender = self._senders.setdefault(peer, Sender(stream, place, root))
            return sender.send(tensor, tag)
        text = f"{place}, tag {tag}"
        return stream.submit(
            Collectives.message_call("send", tensor, True, text, stream.timeout, root, message)
        )

    def receive(self, tensor: Any, peer: int, tag: int) -> Operation:
        place = f"from rank {peer} to rank {self._rank}"
        stream = self._stream("recv", peer, self._rank, tag)
        root = stream.ranks.index(peer)
        if _is_shared(tag):
            with self._lock:
                receiver = self._receivers.setdefault(peer, Receiver(stream, place, root))
            return receiver.receive(tensor, tag)
        text = f"{place}, tag {tag}"
        return stream.submit(
            Collectives.message_call("recv", tensor, False, text, stream.timeout, root, message)
        )

    def close(self) -> list[Exchange]:
        """Ends sending and receiving. Returns the streams."""
        with self._lock:
            self._open = None  # it refers to the owner of this object
            return list(self._streams.values())

    def _stream(self, name: str, source: int, target: int, tag: int) -> Exchange:
        peer = target if source == self._rank else source
        if not 0 <= peer < self._size or peer == self._rank:
            raise ValueError(
                f"{name}: rank {peer} is not another rank of the group of {self._size}"
            )
        text = f"{source}-{target}.{'tags' if _is_shared(tag) else tag}"
        with self._lock:
            stream = self._streams.get(text)
            if stream is None:
                if self._open is None:
                    raise ValueError(f"{name}: rank {self._rank} has left the group")
                stream = self._streams[text] = self._open(text, source, target)
            return stream
