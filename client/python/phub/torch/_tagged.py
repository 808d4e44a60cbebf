"""Messages of many tags, in one stream for each direction.

A stream for each tag would keep keys and their memory until the group ends, and a program may use
any number of tags. Here all tags share one stream. Messages are sent in the order of the calls,
each after a header with its tag and size. The receiver fetches messages in this order as long as
one of its calls waits. A message that no call waits for yet is kept in separate memory.

Invariant: header and payload alternate on both ranks, so rounds match by their order.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import struct
import threading
import time
from typing import Any, Callable, Optional

import numpy as np
import torch

from ._collectives import Collectives
from ._copy import copy
from ._errors import CollectiveError, CollectiveMismatch
from ._exchange import Exchange
from ._operation import Call, Operation
from ._transfer import move

_HEADER = struct.Struct("<qQH")  # tag, bytes of the payload, bytes of the text
_HEADER_BYTES = 256
_STEP_S = 0.1  # timeouts are rounded up, for people
OWN_MAX = 16  # the tags below have streams of their own: a message is one round there, not two

Ended = Callable[[Operation], None]


def _header_call(timeout: float, place: str, root: int, source: Any, target: Any) -> Call:
    transfer = move(root, _HEADER_BYTES, source, target)
    return Call("message", timeout, f" {place}", transfers=[transfer])


class Sender:
    def __init__(self, exchange: Exchange, place: str, root: int) -> None:
        """place: "from rank 0 to rank 1"; root: index of rank 0 in the exchange."""
        self._exchange = exchange
        self._place = place
        self._root = root
        self._lock = threading.Lock()

    def send(self, tensor: Any, tag: int) -> Operation:
        timeout = self._exchange.timeout
        text = f"{self._place}, tag {tag}"
        call = Collectives.message_call("send", tensor, True, text, timeout, self._root, move)
        description = f"{call.name}{call.details}".encode()
        header = bytearray(_HEADER_BYTES)
        _HEADER.pack_into(header, 0, tag, call.transfers[0].count, len(description))
        header[_HEADER.size : _HEADER.size + len(description)] = description
        source = torch.from_numpy(np.frombuffer(header, dtype=np.uint8))
        with self._lock:
            header_call = _header_call(timeout, self._place, self._root, source, None)
            self._exchange.submit(header_call)
            return self._exchange.submit(call)


@dataclasses.dataclass
class _Receive:
    """A call that waits for a message."""

    call: Call
    operation: Operation  # what the caller waits for; the exchange does not know it

    @property
    def text(self) -> str:
        return f"{self.call.name}{self.call.details}"


@dataclasses.dataclass
class _Message:
    """Received into separate memory: it arrived before its call, or differs from it."""

    text: str
    values: Any
    fetched: Optional[Operation] = None  # complete
    receive: Optional[_Receive] = None


class Receiver:
    def __init__(self, exchange: Exchange, place: str, root: int) -> None:
        self._exchange = exchange
        self._place = place
        self._root = root
        self._lock = threading.RLock()
        self._receives: dict[int, collections.deque[_Receive]] = {}
        self._messages: dict[int, collections.deque[_Message]] = {}
        self._fetching = False  # a header

    def receive(self, tensor: Any, tag: int) -> Operation:
        timeout = self._exchange.timeout
        text = f"{self._place}, tag {tag}"
        call = Collectives.message_call("recv", tensor, False, text, timeout, self._root, move)
        shown = Call("recv", timeout, call.details, result=call.result, targets=call.targets)
        receive = _Receive(call, Operation(0, shown, timeout))
        complete = None
        with self._lock:
            message = _take(self._messages, tag)
            if message is None:
                self._receives.setdefault(tag, collections.deque()).append(receive)
                self._fetch()
            else:
                message.receive = receive
                complete = message if message.fetched is not None else None
        if complete is not None:
            self._deliver(complete)
        return receive.operation

    # ---- REQUIRES: the lock --------------------------------------------------------------------

    def _submit(self, call: Call, ended: Ended) -> Operation:
        """Calls `ended` without the lock when the exchange's operation has ended."""
        submitted: list[Operation] = []

        def end() -> None:
            with self._lock:  # submitted
                operation = submitted[0]
            ended(operation)

        call.releases.append(end)
        submitted.append(self._exchange.submit(call))
        return submitted[0]

    def _fetch(self) -> None:
        """Fetches the next header, if a call waits for a message."""
        waiting = [queue[0].operation for queue in self._receives.values()]
        if self._fetching or not waiting:
            return
        header = torch.zeros(_HEADER_BYTES, dtype=torch.uint8, device="cpu")
        end = min(each.begun + each.timeout for each in waiting)
        left = max(_STEP_S, math.ceil((end - time.monotonic()) / _STEP_S) * _STEP_S)
        operation = self._submit(
            _header_call(left, self._place, self._root, None, header),
            lambda operation: self._arrived(operation, bytes(header.numpy())),
        )
        operation.also_awaited = self._is_awaited
        self._fetching = True

    def _is_awaited(self) -> bool:
        with self._lock:
            receives = [each for queue in self._receives.values() for each in queue]
        return any(each.operation.waiters > 0 for each in receives)

    def _take_payload(self, header: bytes) -> None:
        tag, size, length = _HEADER.unpack_from(header)
        text = header[_HEADER.size : _HEADER.size + length].decode()
        receive = _take(self._receives, tag)
        try:
            if receive is not None and receive.text == text:
                waiting = receive.operation
                self._submit(receive.call, lambda operation: _pass_on(operation, waiting))
                return
            values = torch.empty(size, dtype=torch.uint8, device="cpu")
            message = _Message(text, values, receive=receive)
            name, _, details = text.partition(" ")
            transfers = [move(self._root, size, None, values)]
            call = Call(name, self._exchange.timeout, f" {details}", transfers=transfers)
            self._submit(call, lambda operation: self._fetched(message, operation))
        except Exception:
            if receive is not None:
                self._receives.setdefault(tag, collections.deque()).appendleft(receive)
            raise
        if receive is None:
            self._messages.setdefault(tag, collections.deque()).append(message)

    # ---- When operations of the exchange end ---------------------------------------------------

    def _arrived(self, operation: Operation, header: bytes) -> None:
        error = operation.error
        with self._lock:
            self._fetching = False
            try:
                if error is None:
                    self._take_payload(header)
                    self._fetch()
            except CollectiveError as problem:
                error = problem
            except Exception as problem:  # no memory, for example: later messages cannot arrive
                error = self._error(operation, str(problem))
                self._exchange.on_failure(operation, error)
            if error is None:
                return
            failed = [each for queue in self._receives.values() for each in queue]
            self._receives.clear()
        for receive in failed:
            text = f"{receive.operation.text} waits for a message: {error}"
            failure = self._error(receive.operation, text, type(error))
            failure.rank = error.rank
            receive.operation.complete(failure)

    def _fetched(self, message: _Message, operation: Operation) -> None:
        with self._lock:
            message.fetched = operation
            has_call = message.receive is not None
        if has_call:
            self._deliver(message)

    def _deliver(self, message: _Message) -> None:
        """REQUIRES: fetched, and has a call."""
        receive, fetched = message.receive, message.fetched
        assert receive is not None and fetched is not None
        call, operation = receive.call, receive.operation
        if fetched.error is not None:
            return operation.complete(fetched.error)
        if receive.text != message.text:
            text = f"ranks called different collectives: the sender called {message.text}, the "
            text += f"receiver called {receive.text}"
            return operation.complete(self._error(operation, text, CollectiveMismatch))
        try:
            copy(call.transfers[0].target, message.values)
            arriving = call.finish()
        except Exception as problem:  # for example, the caller has resized the tensor
            return operation.complete(self._error(operation, f"{operation.text}: {problem}"))
        operation.complete(None, arriving)

    def _error(
        self, operation: Operation, text: str, kind: type[CollectiveError] = CollectiveError
    ) -> CollectiveError:
        name, own_rank = self._exchange.job.name, self._exchange.rank
        return kind(text, job=name, own_rank=own_rank, operation=operation.text)


def _take(queues: dict[int, Any], tag: int) -> Any:
    """The oldest of the tag, or None. Tags without any are not kept."""
    queue = queues.get(tag)
    if queue is None:
        return None
    oldest = queue.popleft()
    if not queue:
        del queues[tag]
    return oldest


def _pass_on(done: Operation, waiting: Operation) -> None:
    waiting.complete(done.error, done._arriving)
