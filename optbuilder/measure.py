"""Time and memory. Every timed region starts and ends with the device idle."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import pairwise
from typing import Any

import psutil


def synchronize(device: str) -> None:
    """Wait until the device has done all it was asked to; the CPU always has."""
    if not device.startswith("cpu"):
        import torch

        torch.accelerator.synchronize(device)


def stamp(device: str) -> Any:
    """A moment on the device's own clock, taken without waiting for it."""
    if device.startswith("cpu"):
        return time.perf_counter()
    import torch

    event = torch.Event(torch.device(device).type, enable_timing=True)
    event.record()
    return event


def seconds_between(start: Any, end: Any) -> float:
    """Seconds between two stamps; those of an accelerator only after `synchronize`."""
    return end - start if isinstance(start, float) else start.elapsed_time(end) / 1e3


@dataclass
class Memory:
    """Bytes at the end of a phase and at its peak: the process's resident memory, and what the device's allocator gave
    out and holds (None where there is no such allocator)."""

    rss_bytes: int = 0
    rss_peak_bytes: int = 0
    device_allocated_bytes: int | None = None
    device_allocated_peak_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_reserved_peak_bytes: int | None = None


@contextmanager
def peak_memory(device: str, period: float = 0.01) -> Iterator[Memory]:
    """Measure the peaks of a block. Resident memory is sampled every `period` seconds: the system's own high-water mark
    never falls, so that it would show the peak of an earlier phase."""
    memory, process, done = Memory(), psutil.Process(), threading.Event()

    def sample() -> None:
        memory.rss_bytes = process.memory_info().rss
        memory.rss_peak_bytes = max(memory.rss_peak_bytes, memory.rss_bytes)

    def sampler() -> None:
        while not done.wait(period):
            sample()

    sample()
    accelerator = _reset_peaks(device)
    thread = threading.Thread(target=sampler, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        done.set()
        thread.join()
        sample()
        if accelerator:
            memory.device_allocated_bytes = accelerator.memory_allocated(device)
            memory.device_allocated_peak_bytes = accelerator.max_memory_allocated(device)
            memory.device_reserved_bytes = accelerator.memory_reserved(device)
            memory.device_reserved_peak_bytes = accelerator.max_memory_reserved(device)


def _reset_peaks(device: str) -> Any:
    """torch's module of peak counters for the device, reset; None for the CPU and for mps, which has none."""
    if device.startswith(("cpu", "mps")):
        return None
    import torch

    torch.accelerator.reset_peak_memory_stats(device)
    return torch.accelerator


@dataclass
class Call:
    """The times of one pipeline call in seconds, and the process's resident bytes after it. `steps` has one entry per
    step of the denoising loop."""

    seconds: float = 0.0
    text_encode: float = 0.0
    denoise: float = 0.0
    decode: float = 0.0
    steps: list[float] = field(default_factory=list)
    rss_bytes: int = 0


@contextmanager
def timed_call(pipe: Any, device: str, on_step: Callable[[int, int], None]) -> Iterator[Call]:
    """Time one call of `pipe`, and within it the text encoding, the denoising loop, its steps, and the decoding.

    For the block, the pipeline's own seams are watched: `encode_prompt`, `progress_bar` (which every pipeline opens at
    the start of its loop and advances after each step) and the VAE's `decode`. Nothing waits for the device in between.
    `on_step(done, total)` is called after each step.
    """
    spans: dict[str, list[tuple[Any, Any]]] = {"text_encode": [], "decode": []}
    loop: list[Any] = []
    with (
        _replaced(
            pipe, "progress_bar", lambda iterable=None, total=None: _Steps(iterable, total, device, loop, on_step)
        ),
        _watched(pipe, "encode_prompt", device, spans["text_encode"]),
        _watched(getattr(pipe, "vae", None), "decode", device, spans["decode"]),
    ):
        call = Call()
        synchronize(device)
        start = time.perf_counter()
        yield call
        synchronize(device)
        call.seconds = time.perf_counter() - start
        call.rss_bytes = psutil.Process().memory_info().rss
    call.text_encode, call.decode = (
        sum(seconds_between(*span) for span in spans[k]) for k in ("text_encode", "decode")
    )
    call.steps = [seconds_between(a, b) for a, b in pairwise(loop)]
    call.denoise = sum(call.steps)


class _Steps:
    """Stands in for a pipeline's progress bar: stamps the start of the loop and the end of each step."""

    def __init__(
        self, iterable: Any, total: int | None, device: str, loop: list[Any], on_step: Callable[[int, int], None]
    ):
        self.iterable, self.device, self.loop, self.on_step = iterable, device, loop, on_step
        self.total = total if total is not None else len(iterable)
        loop.append(stamp(device))

    def __enter__(self) -> _Steps:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        for item in self.iterable:
            yield item
            self.update()

    def update(self, n: int = 1) -> None:
        self.loop.append(stamp(self.device))
        self.on_step(len(self.loop) - 1, self.total)


@contextmanager
def _replaced(owner: Any, name: str, method: Any) -> Iterator[None]:
    """Set a method on the instance for the block, and put back what was there."""
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, method)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def _watched(owner: Any, name: str, device: str, spans: list[tuple[Any, Any]]) -> Iterator[None]:
    method = getattr(owner, name, None)
    if method is None:
        yield
        return

    @wraps(method)
    def watched(*args: Any, **kwargs: Any) -> Any:
        start = stamp(device)
        result = method(*args, **kwargs)
        spans.append((start, stamp(device)))
        return result

    with _replaced(owner, name, watched):
        yield
