"""CUDA tensors: copied to pinned memory of this host and back, on two streams of their own.

When a collective is called, its tensors are copied to the host after the work that is queued on the
caller's current stream. Nobody waits for that on the caller's thread: the thread "phub-cuda" does,
and then starts the collective's rounds. When the rounds are complete, the results are copied back.
Work.wait() returns when that copy is queued, and the caller's current stream waits for it.

So the copies of one collective overlap the rounds of others: each direction has a stream.
"""

from __future__ import annotations

import collections
import contextlib
import queue
import threading
from typing import Any, Callable, Iterable, Iterator, Optional

import torch

from ._errors import NotServed
from ._receivers import receivers

_PORTABLE, _READ_ONLY = 1, 8  # flags of cudaHostRegister
_SUCCESS = 0


class _Streams:
    def __init__(self, device: Any) -> None:
        self.out = torch.cuda.Stream(device)
        self.back = torch.cuda.Stream(device)


_lock = threading.Lock()
_streams: dict[Any, _Streams] = {}
# Memory that copies to a device read, with the event of the copy's end. It may be phub's own, which
# torch's allocators do not know.
_lent: collections.deque[tuple[Any, Any]] = collections.deque()


def _streams_of(device: Any) -> _Streams:
    with _lock:
        streams = _streams.get(device)
        if streams is None:
            streams = _streams[device] = _Streams(device)
        return streams


def _check_not_captured() -> None:
    if torch.cuda.is_current_stream_capturing():
        raise NotServed(
            "collectives of CUDA tensors are not served while a CUDA graph is captured: their "
            "rounds run on the host. Call them outside of the capture"
        )


def on_device(tensor: Any) -> bool:
    return bool(tensor.device.type != "cpu")


class Staging:
    """One tensor of the caller, its memory on this host, and the copies in both directions."""

    def __init__(self, tensor: Any, read: bool, memory: Optional[Any]) -> None:
        """read: the tensor is copied to the host. memory: flat memory of its type and size on the
        host; None: pinned memory of torch."""
        _check_not_captured()
        self.device = tensor.device
        self._tensor = tensor
        self._streams = _streams_of(tensor.device)
        self._out: Any = None
        if memory is None:
            memory = receivers.take(tensor.dtype, tensor.numel(), pinned=True)
        self.host = memory.view(tensor.shape)
        with torch.cuda.device(self.device):
            # Also if the tensor is not read: its result must not overtake the caller's own work.
            self._called = torch.cuda.Event()
            self._called.record(torch.cuda.current_stream())
            if read:
                self._copy_out()

    def _copy_out(self) -> None:
        with torch.cuda.stream(self._streams.out), torch.no_grad():
            self._streams.out.wait_event(self._called)
            self.host.copy_(self._tensor, non_blocking=True)
            self._tensor.record_stream(self._streams.out)
            self._out = torch.cuda.Event(blocking=True)
            self._out.record()

    def ready(self) -> bool:
        """The host's memory has the tensor's values."""
        return self._out is None or bool(self._out.query())

    def wait(self) -> None:
        """Blocks until ready(). Releases the interpreter lock."""
        if self._out is not None:
            self._out.synchronize()

    def copy_back(self, source: Optional[Any]) -> Any:
        """Queues the copy of the result. Returns the event of its end. source: other memory of the
        host that has the result."""
        tensor = self._tensor
        host = self.host if source is None else source.view(tensor.shape)
        with torch.cuda.stream(self._streams.back), torch.no_grad():
            self._streams.back.wait_event(self._called)
            with torch.inference_mode(tensor.is_inference()):
                tensor.copy_(host, non_blocking=True)
            tensor.record_stream(self._streams.back)
            done = torch.cuda.Event()
            done.record()
        if source is not None:
            with _lock:
                _lent.append((done, source))
        return done


def return_memory() -> None:
    """Releases phub's memory that copies no longer read."""
    with _lock:
        while _lent and _lent[0][0].query():
            _lent.popleft()


@contextlib.contextmanager
def after_results(devices: Iterable[Any]) -> Iterator[None]:
    """What is done inside follows the results that were copied to these devices before."""
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.cuda.stream(_streams_of(device).back))
        yield


# ---- Memory of keys --------------------------------------------------------------------------


class Pins:
    """Memory of phub, pinned: copies are fast and asynchronous. Without, they work, too."""

    def __init__(self) -> None:
        self._addresses: list[int] = []

    def add(self, address: int, size: int, read_only: bool) -> None:
        """Whole pages. The system or the driver may refuse. read_only: devices only read it."""
        flags = _PORTABLE | (_READ_ONLY if read_only else 0)
        if int(torch.cuda.cudart().cudaHostRegister(address, size, flags)) == _SUCCESS:
            self._addresses.append(address)
            return
        try:  # the next kernel would report the error
            torch.zeros(1, device="cuda")
        except RuntimeError:
            pass

    def end(self) -> None:
        """REQUIRES: no copy uses the memory."""
        for address in self._addresses:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._addresses.clear()


def await_copies() -> None:
    """Blocks until no copy uses memory of the host."""
    with _lock:
        streams = list(_streams.values())
    try:
        for each in streams:
            each.out.synchronize()
            each.back.synchronize()
        return_memory()
    except RuntimeError:  # an error of the program's kernels ended the device's work, copies too
        pass


# ---- Waiting for copies ----------------------------------------------------------------------


class _Waiter:
    """Waits for copies to the host, in the order in which collectives were called."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[list[Any], Callable[[Any], None]]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._run, name="phub-cuda", daemon=True).start()

    def add(self, buffers: list[Any], call: Callable[[Any], None]) -> None:
        self._queue.put((buffers, call))

    def _run(self) -> None:
        while True:
            buffers, call = self._queue.get()
            problem = None
            try:
                for buffer in buffers:
                    buffer.wait()
            except Exception as error:  # CUDA reports errors of the program's kernels here
                problem = error
            call(problem)
            del buffers, call, problem


_waiter: Optional[_Waiter] = None


def when_ready(buffers: list[Any], call: Callable[[Any], None]) -> None:
    """Calls call(None) on another thread when all buffers are ready, or call(exception)."""
    global _waiter
    with _lock:
        if _waiter is None:
            _waiter = _Waiter()
        waiter = _waiter
    waiter.add(buffers, call)
