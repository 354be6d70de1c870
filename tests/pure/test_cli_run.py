"""What a run's log becomes: lines, events, a progress line, the reason of a failure, a report. All without a cluster."""

from __future__ import annotations

import io
import itertools
import json
import re
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eks_ray_train.cli.events import EVENTS, parse_event, split_line
from eks_ray_train.cli.failure import FailureFinder
from eks_ray_train.cli.job_log import LineSplitter
from eks_ray_train.cli.run_env import build_env
from eks_ray_train.cli.run_record import MAX_STEPS, RunRecord
from eks_ray_train.cli.run_report import loss_curve, nice_ticks, write_reports
from eks_ray_train.cli.run_view import RunView
from eks_ray_train.cli.runs import RunRequest, entrypoint, flag_value
from eks_ray_train.errors import UsageError


# ---- bytes to lines ------------------------------------------------------------------------------------------------------
@given(st.lists(st.binary(max_size=40), max_size=20), st.randoms(use_true_random=False))
def test_lines_do_not_depend_on_how_the_bytes_arrive(parts: list[bytes], random: Any) -> None:
    data = b"\n".join(parts)
    splitter = LineSplitter()
    got: list[bytes] = []
    at = 0
    while at < len(data):
        size = random.randint(1, 7)
        got += splitter.feed(data[at : at + size])
        at += size
    got += splitter.rest()
    *wanted, rest = data.split(b"\n")
    assert got == [line.removesuffix(b"\r") for line in [*wanted, *([rest] if rest else [])]]


def test_a_line_without_an_end_is_handed_on_in_bounded_pieces() -> None:
    splitter = LineSplitter(max_line=1000)
    pieces = [piece for _ in range(100) for piece in splitter.feed(b"x" * 99)]
    pieces += splitter.rest()
    assert max(map(len, pieces)) < 1100 and sum(map(len, pieces)) == 9900


# ---- events --------------------------------------------------------------------------------------------------------------
def test_every_event_that_the_job_writes_is_read() -> None:
    writer = pytest.importorskip("fsdp_job.events")
    assert set(writer.EVENTS) == EVENTS
    for name in writer.EVENTS:
        line = writer.render(name, step=3, loss=float("nan"), text='a "b" ü')
        assert parse_event(line) == {"event": name, "step": 3, "loss": None, "text": 'a "b" ü'}


@pytest.mark.parametrize(
    "prefix",
    ["", "\x1b[36m(RayTrainWorker pid=12, ip=10.0.0.1)\x1b[0m ", "(RayTrainWorker pid=12) ", "(train_fn pid=1, ip=fd00::1) "],
)
def test_rays_prefixes_are_taken_off(prefix: str) -> None:
    assert parse_event(prefix + '{"event": "step", "step": 1}') == {"event": "step", "step": 1}


@pytest.mark.parametrize(
    "line", ['{"event": "step", "st', '{"event": "other"}', 'see {"event": "step"}', '["event", "step"]', '{"event": 3}', "", "{}"]
)
def test_what_is_no_event_is_none(line: str) -> None:
    assert parse_event(line) is None


def test_a_prefix_says_who_spoke() -> None:
    line = split_line("\x1b[36m(RayTrainWorker pid=12, ip=10.0.0.1)\x1b[0m text")
    assert (line.actor, line.pid, line.ip, line.text) == ("RayTrainWorker", 12, "10.0.0.1", "text")
    assert split_line("(not a prefix) text").pid is None


# ---- the record ----------------------------------------------------------------------------------------------------------
def step(number: int, **fields: Any) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": 10.0 / number, "step_s": 0.5, **fields}


def test_a_step_told_twice_counts_once() -> None:
    record = RunRecord()
    assert [record.feed(step(n)) for n in (1, 2, 2, 1, 3)] == [True, True, False, False, True]
    assert [s["step"] for s in record.steps] == [1, 2, 3]


def test_a_restart_takes_back_the_steps_behind_the_checkpoint() -> None:
    record = RunRecord()
    for number in range(1, 8):
        record.feed(step(number))
    record.feed({"event": "restart", "step": 4, "attempt": 2})
    assert record.feed(step(5, loss=1.0))
    assert [(s["step"], s["loss"]) for s in record.steps][-2:] == [(4, 2.5), (5, 1.0)]


def test_a_long_run_is_thinned_out_evenly_and_keeps_its_shape() -> None:
    record = RunRecord()
    for number in range(1, 3 * MAX_STEPS):
        record.feed(step(number))
    kept = [s["step"] for s in record.steps]
    assert len(kept) <= MAX_STEPS and len({b - a for a, b in itertools.pairwise(kept)}) == 1
    assert record.steps_done == 3 * MAX_STEPS - 1


def test_the_time_left_follows_from_the_last_step() -> None:
    record = RunRecord()
    assert record.eta_s() is None
    record.feed(step(10, steps=30))
    assert record.eta_s() == 10.0


# ---- what a person sees --------------------------------------------------------------------------------------------------
def view(lines: list[str], **kwargs: Any) -> str:
    out = io.StringIO()
    shown = RunView(out=out, **kwargs)
    shown.on_lines([line.encode() for line in lines])
    shown.close()
    return out.getvalue()


def test_a_step_line_has_loss_speed_share_of_peak_time_left_and_price(monkeypatch: pytest.MonkeyPatch) -> None:
    line = json.dumps(step(4, steps=10, tokens_per_s=12345.6, mfu=0.3141, loss=2.5))
    assert view([line]) == "step 4/10  loss 2.5000  12,346 tokens/s  MFU 31.4 %  ETA 0:03\n"
    now = time.monotonic()
    shown = RunView(out=io.StringIO(), usd_per_hour=36.0)
    monkeypatch.setattr(time, "monotonic", lambda: now + 600)
    assert shown.usd() == pytest.approx(6.0, abs=0.01)


def test_on_a_terminal_a_bar_shows_the_same_and_log_lines_stand_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out, error = Terminal(), Terminal()
    monkeypatch.setattr("sys.stderr", error)
    shown = RunView(out=out, usd_per_hour=36.0)
    shown.on_lines([json.dumps(step(4, steps=10, tokens_per_s=12345.6, mfu=0.3141, loss=2.5)).encode(), b"a line of the job"])
    shown.close()
    assert out.getvalue() == "a line of the job\n"
    bar = error.getvalue()
    for part in ("4/10", "loss 2.5000", "12,346 tokens/s", "MFU 31.4 %", "$0.0"):
        assert part in bar, bar


def test_numbers_that_are_missing_are_left_out() -> None:
    assert view([json.dumps({"event": "step", "step": 1, "loss": None, "mfu": None, "tokens_per_s": None})]) == "step 1\n"


def test_many_steps_a_second_show_the_first_and_the_last_before_what_follows() -> None:
    lines = [json.dumps(step(n, steps=50, step_s=0)) for n in range(1, 51)]
    done = json.dumps({"event": "done", "status": "succeeded", "steps": 50, "final_loss": 0.2, "wall_s": 61.0})
    assert view([*lines, done]).splitlines() == [
        "step 1/50  loss 10.0000", "step 50/50  loss 0.2000", "job: succeeded after 50 steps, final loss 0.2000, 1:01 wall time"
    ]  # fmt: skip


def test_other_lines_come_as_they_are_in_order() -> None:
    assert view(["a", "  b\t", "", "\x1b[31mred\x1b[0m", "ü"]) == "a\n  b\t\n\n\x1b[31mred\x1b[0m\nü\n"


def test_the_gate_gets_every_byte_even_those_that_are_no_text() -> None:
    class Judge:
        got = b""

        def feed_chunk(self, chunk: bytes) -> None:
            self.got += chunk

    judge = Judge()
    shown = RunView(out=io.StringIO(), judge=judge)
    shown.on_lines([b"\xff\xfe", b'{"event": "step", "step": 1}'])
    assert judge.got == b'\xff\xfe\n{"event": "step", "step": 1}\n'


def test_a_hundred_thousand_lines_take_about_a_second() -> None:
    lines = [f"(RayTrainWorker pid={n % 64}, ip=10.0.0.{n % 8}) line {n}".encode() for n in range(100_000)]
    shown = RunView(out=io.StringIO())
    began = time.process_time()
    shown.on_lines(lines)
    assert time.process_time() - began < 3


# ---- why a job failed ----------------------------------------------------------------------------------------------------
def trace(prefix: str, last: str) -> list[str]:
    return [
        f"{prefix}Traceback (most recent call last):", f'{prefix}  File "train.py", line 3, in worker',
        f"{prefix}    step()", f"{prefix}{last}",
    ]  # fmt: skip


WORKERS = [
    "(TrainController pid=7) Started training worker group of size 2: ",
    "(TrainController pid=7) - (ip=10.0.0.1, pid=11) world_rank=0, local_rank=0, node_rank=0",
    "(TrainController pid=7) - (ip=10.0.0.2, pid=22) world_rank=1, local_rank=0, node_rank=1",
]


def reason(lines: list[str]) -> str | None:
    finder = FailureFinder()
    for line in lines:
        event = parse_event(line)
        if event:
            finder.feed_event(event)
        else:
            finder.feed(split_line(line))
    return finder.summary()


def test_the_rank_that_raised_stands_above_the_noise_of_those_that_waited() -> None:
    zero, one = "(RayTrainWorker pid=11, ip=10.0.0.1) ", "(RayTrainWorker pid=22, ip=10.0.0.2) "
    noise = trace(zero, "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error")
    cause = trace(one, "ValueError: bad sample 17")
    for order in (noise + cause, cause + noise, [x for pair in zip(noise, cause, strict=True) for x in pair]):
        said = reason([*WORKERS, *order, *trace("", "ray.train.TrainingFailedError: Training failed due to worker errors")])
        assert said is not None and said.startswith("rank 1 on node 10.0.0.2 raised first: ValueError: bad sample 17\n")
        assert 'File "train.py", line 3' in said


def test_noise_alone_is_still_told() -> None:
    said = reason([*WORKERS, *trace("(RayTrainWorker pid=11) ", "RuntimeError: Connection closed by peer")])
    assert said is not None and said.startswith("rank 0 on node 10.0.0.1 raised first: RuntimeError: Connection closed")


def test_a_process_of_rays_own_is_never_blamed_before_a_rank() -> None:
    own = trace("(PlacementGroupCleaner pid=9) ", "ConnectionError: Found multiple active Ray instances")
    said = reason([*WORKERS, *own, *trace("(RayTrainWorker pid=22, ip=10.0.0.2) ", "KeyError: 'x'")])
    assert said is not None and said.startswith("rank 1")


def test_what_the_job_itself_says_comes_first() -> None:
    done = {"event": "done", "status": "failed", "error": {"rank": 3, "node": "10.0.0.9", "type": "ValueError", "message": "nan"}}
    assert reason([json.dumps(done)]) == "rank 3 on node 10.0.0.9 failed first: ValueError: nan"


def test_a_driver_that_raises_is_named() -> None:
    said = reason(trace("", "SystemExit: 3"))
    assert said is not None and said.startswith("the driver raised first: SystemExit: 3")


def test_a_log_without_an_exception_gives_no_reason() -> None:
    assert reason(["all is well", "Error: not an exception"]) is None


# ---- the environment and the command -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("expect", "allow_tcp", "net"),
    [("efa", False, "Libfabric"), ("efa", True, None), ("tcp", False, "Socket"), ("none", False, None)],
)
def test_nccl_is_told_its_network(expect: Any, allow_tcp: bool, net: str | None) -> None:
    assert build_env(user={}, expect=expect, allow_tcp=allow_tcp, gate=True).get("NCCL_NET") == net


def test_what_the_user_sets_stays() -> None:
    user = {"NCCL_NET": "IB", "NCCL_DEBUG": "TRACE", "RAY_DEDUP_LOGS": "1", "X": "y"}
    assert build_env(user=user, expect="efa", allow_tcp=False, gate=True).items() >= user.items()


def test_a_quiet_nccl_is_refused_only_where_the_gate_would_be_blind() -> None:
    quiet = {"NCCL_DEBUG": "WARN"}
    with pytest.raises(UsageError, match="NCCL_DEBUG=INFO"):
        build_env(user=quiet, expect="efa", allow_tcp=False, gate=True)
    assert build_env(user=quiet, expect="efa", allow_tcp=False, gate=False)["NCCL_DEBUG"] == "WARN"
    assert build_env(user=quiet, expect="none", allow_tcp=False, gate=True)["NCCL_DEBUG"] == "WARN"


@pytest.mark.parametrize(
    ("words", "value"),
    [(["--num_workers", "4"], "4"), (["--num-workers=4"], "4"), (["--x", "1"], None), (["--num_workers", "1", "--num-workers", "8"], "8")],
)
def test_a_flag_of_the_job_is_found_however_it_is_written(words: list[str], value: str | None) -> None:
    assert flag_value(words, "--num_workers") == value


def test_the_command_survives_the_shell() -> None:
    assert entrypoint(["--a", "it's $HOME; `x`"]) == "python train.py --a 'it'\"'\"'s $HOME; `x`'"


def test_a_request_without_a_known_cluster_expects_nothing() -> None:
    from unittest.mock import Mock

    from eks_ray_train.cli.connect import Target

    target = Target(client=Mock(), name="x", ray_version="2.58.0")
    assert RunRequest(job_args=[], package=None).expected(target) == "none"
    assert RunRequest(job_args=[], package=None, expect="tcp").expected(target) == "tcp"


# ---- the report ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("curves", [[("a", [(1, 5.0), (2, 4.0)])], [("a", [(1, 1.0)])], [("a<&", [(1, 2.0)]), ("b", [(2, 1.0), (9, 1.0)])]])
def test_the_curve_is_well_formed_and_within_its_picture(curves: Any) -> None:
    root = ElementTree.fromstring(loss_curve(curves))
    numbers = [float(n) for p in root.iter("{http://www.w3.org/2000/svg}path") for n in re.findall(r"-?\d+\.\d|-?\d+", p.get("d", ""))]
    assert numbers and min(numbers) >= 0 and max(numbers) <= 760


def test_ticks_are_round_and_inside() -> None:
    assert nice_ticks(1.93, 5.61) == [2.0, 3.0, 4.0, 5.0]
    assert nice_ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]


def test_the_report_needs_no_network_and_escapes_what_it_shows(tmp_path: Path) -> None:
    record = RunRecord()
    record.feed(step(1))
    document = {"status": "FAILED", "failure": "<script>alert(1)</script>", "gate": {"reasons": ["a < b"]}}
    page = write_reports(tmp_path / "r", document, [("train", record)], title="A & B").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page and "a &lt; b" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    numbers = json.loads((tmp_path / "r" / "report.json").read_text())
    assert numbers["runs"][0]["steps"] == [{"step": 1, "loss": 10.0, "step_s": 0.5}]


def test_a_report_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the report"):
        write_reports(tmp_path / "file" / "x", {}, [], title="t")
