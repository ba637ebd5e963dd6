"""Every time and every peak is of what it says: on a clock that the test moves, and an accelerator that it makes up."""

from __future__ import annotations

import time
from itertools import count
from types import SimpleNamespace

import pytest

import optbuilder.measure as measure
from optbuilder.measure import Call, Memory, peak_memory, seconds_between, stamp, synchronize, timed_call


class Clock:
    """Moves only when told to."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def pass_(self, seconds):
        self.now += seconds


class Pipe:
    """Encodes twice (2 s each), takes three steps (1, 3 and 5 s), decodes once (7 s), and 11 s for all else."""

    def __init__(self, clock, known_total=True):
        self.clock, self.known_total = clock, known_total
        self.vae = SimpleNamespace(decode=lambda: clock.pass_(7) or "decoded")

    def encode_prompt(self):
        """Encodes."""
        self.clock.pass_(2)
        return "encoded"

    def progress_bar(self, iterable=None, total=None):
        raise AssertionError("the watched one is to be used")

    def __call__(self):
        assert self.encode_prompt() == self.encode_prompt() == "encoded"
        self.clock.pass_(11)
        if self.known_total:
            with self.progress_bar(total=3) as bar:
                for seconds in (1, 3, 5):
                    self.clock.pass_(seconds)
                    bar.update()
        else:
            for seconds in self.progress_bar((1, 3, 5)):
                self.clock.pass_(seconds)
        assert self.vae.decode() == "decoded"


@pytest.mark.parametrize("known_total", [True, False])
def test_a_call_is_timed_whole_and_by_its_parts(known_total, monkeypatch):
    clock, steps = Clock(monkeypatch), []
    pipe = Pipe(clock, known_total)
    decode = pipe.vae.decode
    with timed_call(pipe, "cpu", lambda done, total: steps.append((done, total))) as call:
        assert pipe.encode_prompt.__doc__ == "Encodes."
        pipe()
    assert (call.seconds, call.text_encode, call.denoise, call.decode) == (31.0, 4.0, 9.0, 7.0)
    assert call.steps == [1.0, 3.0, 5.0] and steps == [(1, 3), (2, 3), (3, 3)]
    assert call.rss_bytes > 10**7
    assert vars(pipe).keys() == {"clock", "known_total", "vae"} and pipe.vae.decode is decode


def test_what_a_call_replaced_is_put_back_when_it_fails(monkeypatch):
    pipe = Pipe(Clock(monkeypatch))
    decode = pipe.vae.decode
    with pytest.raises(RuntimeError), timed_call(pipe, "cpu", lambda done, total: None):
        raise RuntimeError
    assert vars(pipe).keys() == {"clock", "known_total", "vae"} and pipe.vae.decode is decode


def test_a_pipeline_without_parts_is_timed_whole(monkeypatch):
    clock = Clock(monkeypatch)
    with timed_call(SimpleNamespace(), "cpu", lambda done, total: None) as call:
        clock.pass_(5)
    assert call == Call(5.0, 0, 0, 0, [], call.rss_bytes)
    assert Call() == Call(0.0, 0.0, 0.0, 0.0, [], 0)


class Event:
    """A moment on a device, in milliseconds."""

    moments = count(1000, 250)

    def __init__(self, device, enable_timing=False):
        assert enable_timing and str(device) == "cuda"
        self.at = None

    def record(self):
        self.at = next(self.moments)

    def elapsed_time(self, other):
        return other.at - self.at


def test_a_device_is_stamped_with_its_own_events(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "Event", Event)
    start, end = stamp("cuda:0"), stamp("cuda:0")
    assert start.at is not None and seconds_between(start, end) == 0.25
    assert seconds_between(2.0, 5.0) == 3.0


def test_only_a_device_is_waited_for(monkeypatch):
    import torch

    waited = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    for device in ("cpu", "cuda:1"):
        synchronize(device)
    assert waited == ["cuda:1"]


def test_a_device_is_waited_for_before_and_after_a_call(monkeypatch):
    clock, order = Clock(monkeypatch), []
    monkeypatch.setattr(measure, "synchronize", lambda device: order.append(device) or clock.pass_(1))
    monkeypatch.setattr(measure, "stamp", lambda device: clock.now)
    with timed_call(SimpleNamespace(), "cuda", lambda done, total: None) as call:
        order.append("call")
    assert order == ["cuda", "call", "cuda"] and call.seconds == 1.0  # the wait before is no part of it


def test_peaks_of_a_device_are_its_allocators(monkeypatch):
    import torch

    figures = {"memory_allocated": 1, "max_memory_allocated": 2, "memory_reserved": 3, "max_memory_reserved": 4}
    reset = []
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", reset.append)
    for name, value in figures.items():
        monkeypatch.setattr(torch.accelerator, name, lambda device, value=value: value if device == "cuda:0" else None)
    with peak_memory("cuda:0") as memory:
        assert reset == ["cuda:0"] and memory.device_allocated_bytes is None
    device = [memory.device_allocated_bytes, memory.device_allocated_peak_bytes, memory.device_reserved_bytes,
              memory.device_reserved_peak_bytes]  # fmt: skip
    assert device == [1, 2, 3, 4]
    for kind in ("cpu", "mps"):
        with peak_memory(kind) as memory:
            pass
        assert memory.device_allocated_peak_bytes is None and reset == ["cuda:0"]
    assert Memory() == Memory(0, 0, None, None, None, None)


def test_resident_memory_is_sampled_while_the_block_runs(monkeypatch):
    """A peak that is over when the block ends; nothing samples afterwards, also when the block failed."""
    held = [10]
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=held[0]))
    monkeypatch.setattr(measure.psutil, "Process", lambda: process)
    with pytest.raises(RuntimeError), peak_memory("cpu", period=0.001) as memory:
        assert memory == Memory(10, 10)
        held[0] = 500
        deadline = time.monotonic() + 30
        while memory.rss_peak_bytes < 500 and time.monotonic() < deadline:
            time.sleep(0.001)
        held[0] = 20
        raise RuntimeError
    assert memory == Memory(20, 500)
    held[0] = 900
    time.sleep(0.02)
    assert memory == Memory(20, 500)


def test_memory_is_measured_at_the_start_and_at_the_end_however_short_the_block(monkeypatch):
    held = [700]
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=held[0]))
    monkeypatch.setattr(measure.psutil, "Process", lambda: process)
    with peak_memory("cpu", period=60) as memory:
        held[0] = 30
    assert memory == Memory(30, 700)
    with peak_memory("cpu", period=60) as memory:
        held[0] = 800
    assert memory == Memory(800, 800)
