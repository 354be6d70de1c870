"""Small steps are recorded once and replayed with the inputs of each step; others run plainly. CUDA is played by stand-ins: what a
graph computes is checked on GPUs (bench/speed.md)."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fsdp_job import step_graph  # noqa: E402
from fsdp_job.errors import JobError  # noqa: E402
from fsdp_job.step_graph import StepGraph, host_bound  # noqa: E402


class Device:
    """Stands in for torch.cuda: a recorded step is run again, into the same tensor, at each replay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.recording = False
        self.recorded = self.replayed = 0
        self.used = 0.1
        stream = object()
        values: dict[str, Any] = {
            "CUDAGraph": lambda: SimpleNamespace(replay=self.replay), "graph": self.graph, "synchronize": lambda: None,
            "empty_cache": lambda: None, "current_stream": lambda: stream, "default_stream": object, "get_sync_debug_mode": lambda: 0,
            "set_sync_debug_mode": lambda _mode: None, "max_memory_allocated": lambda _device: self.used,
            "get_device_properties": lambda _device: SimpleNamespace(total_memory=1.0),
        }  # fmt: skip
        for name, value in values.items():
            monkeypatch.setattr(torch.cuda, name, value)

    @contextlib.contextmanager
    def graph(self, *_: Any, **__: Any) -> Iterator[None]:
        self.recording = True
        yield
        self.recording = False
        self.recorded += 1

    def replay(self) -> None:
        self.replayed += 1
        self.values.copy_(self.function(*self.arguments))

    def compute(self, inputs: Any, count: Any) -> Any:
        def function(inputs: Any, count: Any) -> Any:
            return torch.stack([batch["input_ids"].sum() for batch in inputs]).sum() / count

        values = function(inputs, count)
        if self.recording:
            self.function, self.arguments, self.values = function, (inputs, count), values
        return values


def batch(number: int, length: int = 4) -> list[dict[str, Any]]:
    return [{"input_ids": torch.full((2, length), float(number))}]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


def test_the_fourth_step_is_recorded_and_each_replay_reads_its_own_inputs(device: Device) -> None:
    graph = StepGraph(torch.nn.Linear(1, 1))
    seen = [float(graph.run(device.compute, batch(n), torch.tensor(2.0 + n))) for n in range(1, 8)]
    assert seen == pytest.approx([8 * n / (2 + n) for n in range(1, 8)])
    assert (device.recorded, device.replayed) == (1, 4)


def test_a_step_of_another_shape_runs_plainly_and_the_recording_stays(device: Device) -> None:
    graph = StepGraph(torch.nn.Linear(1, 1))
    for n in range(4):
        graph.run(device.compute, batch(n), torch.tensor(1.0))
    assert float(graph.run(device.compute, batch(5, length=3), torch.tensor(1.0))) == 30
    assert float(graph.run(device.compute, batch(6), torch.tensor(1.0))) == 48
    assert (device.recorded, device.replayed) == (1, 2)


@pytest.mark.filterwarnings("ignore:called a synchronizing")
def test_a_step_that_waits_for_the_device_is_never_recorded(device: Device) -> None:
    def waiting(inputs: Any, count: Any) -> Any:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return device.compute(inputs, count)

    graph = StepGraph(torch.nn.Linear(1, 1))
    for n in range(6):
        graph.run(waiting, batch(n), torch.tensor(1.0))
    assert device.recorded == 0


def test_a_step_that_takes_much_of_the_memory_is_never_recorded(device: Device) -> None:
    device.used = step_graph.MOST_MEMORY + 0.01
    graph = StepGraph(torch.nn.Linear(1, 1))
    for n in range(6):
        graph.run(device.compute, batch(n), torch.tensor(1.0))
    assert device.recorded == 0


def test_a_step_that_cannot_be_recorded_names_the_flag_that_turns_recording_off(device: Device) -> None:
    def failing(inputs: Any, count: Any) -> Any:
        if device.recording:
            raise RuntimeError("operation not permitted when stream is capturing")
        return device.compute(inputs, count)

    graph = StepGraph(torch.nn.Linear(1, 1))
    with pytest.raises(JobError, match="--no-compile"):
        for n in range(4):
            graph.run(failing, batch(n), torch.tensor(1.0))


def test_only_small_micro_batches_are_recorded() -> None:
    assert host_bound(parameters=1_543_714_304, blocks=28, tokens=128)
    assert not host_bound(parameters=1_543_714_304, blocks=28, tokens=8 * 2048)
