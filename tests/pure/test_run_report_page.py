"""The run's report: its numbers, and the page in a real browser, wide and narrow, light and dark."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from eks_ray_train.cli.run_figures import bars, figures, time_line, times_of_steps, versions
from eks_ray_train.cli.run_record import RunRecord
from eks_ray_train.cli.run_report import write_report, write_reports
from eks_ray_train.cli.svg_chart import line_chart, size_text, stacked_bars, thinned
from tests.headless_browser import Page, browser

ARTIFACTS = Path(__file__).resolve().parents[2] / ".artifacts"  # pictures to look at, not committed
LONG = "s3://a-bucket-with-a-very-long-name-that-nobody-can-read/runs/" + "x" * 120


def a_run(steps: int = 200, *, restart_at: int | None = 120, back_to: int = 100, times: bool = False) -> RunRecord:
    """A run of two ranks on two nodes with checkpoints each 50 steps and one restart."""
    record = RunRecord()
    clock = itertools.count(1_795_987_802)  # 2026-11-29 21:30:02 UTC

    def feed(event: dict[str, Any]) -> None:
        record.feed({**event, "time": float(next(clock))} if times else event)

    feed(
        {
            "event": "config",
            "steps": steps,
            "warmup_steps": 2,
            "torch": "2.13.0",
            "dataset": LONG,
            "backend": "nccl",
            "compile": True,
        }
    )

    def step(number: int) -> None:
        feed(
            {
                "event": "step", "step": number, "steps": steps, "loss": 8 / math.sqrt(number), "tokens_per_s": 1000.0 + number, "mfu": 0.41,
                "step_s": 0.5 if number > 2 else 30.0, "data_wait_s": 0.05, "lr": 1e-4, "grad_norm": 1.0, "tokens": 1000 * number, "peak_memory_gib": 12.5,
                **({"eval_loss": 9 / math.sqrt(number)} if number % 50 == 0 else {}),
            }
        )  # fmt: skip
        if number % 50 == 0:
            feed(
                {
                    "event": "checkpoint",
                    "step": number,
                    "seconds": 2.0,
                    "blocking_seconds": 0.2,
                    "bytes": 3 * 2**30,
                    "path": LONG,
                    "error": None,
                }
            )

    for number in range(1, (restart_at or steps) + 1):
        step(number)
    if restart_at:
        feed({"event": "restart", "step": back_to, "attempt": 2, "world_size": 2, "resumed_from": LONG})
        for number in range(back_to + 1, steps + 1):
            step(number)
    lines = [
        "NCCL version 2.29.7+cuda13.0",
        "NET/OFI Initializing aws-ofi-nccl 1.21.1",
        "NET/OFI Using Libfabric version 2.4",
    ]
    for rank in (0, 1):
        feed(
            {
                "event": "transport",
                "rank": rank,
                "node": f"10.0.0.{rank}",
                "nccl_lines": lines,
                "interface_bytes": {"eth0": {"sent": 5_000_000}},
            }
        )
    feed({"event": "done", "status": "succeeded", "steps": steps, "final_loss": 0.5})
    return record


def a_document(**changes: Any) -> dict[str, Any]:
    node = {"node": "ip-10-0-0-1.ec2.internal", "ranks": [0, 1, 2, 3], "transport": "efa", "evidence": ["Channel 00/0 : 0[0] -> 4[0] [send] via NET/Libfabric/0"],
            "efa_bytes": {"sent": 12_300_000_000, "received": 1}}  # fmt: skip
    return {
        "submission_id": "run-20261129-213000-1a2b3c", "status": "SUCCEEDED", "exit_code": 0, "verdict": "pass", "final_loss": 0.5, "steps": 200,
        "wall_time_s": 3723.0, "usd": 9.2, "ray_version": "2.58.0", "cluster": "RayCluster a/b", "failure": None,
        "gate": {"verdict": "pass", "transport": "efa", "expected": "efa", "nodes_expected": 2, "nodes_seen": 2, "ranks_seen": 8,
                 "reasons": [], "nodes": [node, {**node, "node": "ip-10-0-0-2.ec2.internal"}]},
        **changes,
    }  # fmt: skip


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        yield page


FAILED = {
    "status": "FAILED",
    "verdict": "fail",
    "failure": "rank 1 failed first: " + "ValueError " * 60,
    "gate": {"reasons": ["node a: " + "y" * 300], "nodes": []},
}


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("kind", ["good", "failed", "two runs", "nothing"])
def test_the_page_shows_everything_in_a_browser_without_network_or_overflow(
    tab: Page, tmp_path: Path, width: int, dark: bool, kind: str
) -> None:
    if kind == "two runs":
        path = write_reports(
            tmp_path,
            a_document(),
            [("train", a_run(60, restart_at=None)), ("resume", a_run(200))],
            title="Local training run",
        )
    else:
        record = RunRecord() if kind == "nothing" else a_run(times=True)
        path = write_report(
            tmp_path,
            a_document(**(FAILED if kind == "failed" else {"gate": None} if kind == "nothing" else {})),
            record,
        )
    tab.errors.clear()
    tab.requests.clear()
    tab.open(path, width=width, dark=dark)
    assert tab.errors == []
    assert {url.partition(":")[0] for url in tab.requests} <= {"file", "data"}
    assert tab.too_wide() == []
    tab.screenshot(ARTIFACTS / "run-report" / f"{kind.replace(' ', '-')}-{width}-{'dark' if dark else 'light'}.png")
    background = tab.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) is dark
    text = tab.value("document.body.innerText")
    assert "run-20261129-213000-1a2b3c" in text and "Versions, settings, cost" in text
    if kind == "good":
        assert tab.value("document.querySelectorAll('svg').length") == 5
        assert tab.value("document.querySelectorAll('svg path.restart').length") == 2  # in both curves that have marks
        # The smallest text of a chart as it is drawn, in pixels.
        drawn = tab.value(
            "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
        )
        assert drawn >= 10, drawn
        for part in (
            "ip-10-0-0-2.ec2.internal",
            "12.30 / 0.00 GB",
            "aws-ofi-nccl",
            "2.29.7+cuda13.0",
            "20 steps were lost",
            "$9.20",
            "1:02:03",
            "nccl",
            "2026-11-29 21:30:02",
        ):
            assert part in text, part
    if kind == "failed":
        assert "rank 1 failed first" in text and "The gate's reasons" in text


def test_the_numbers_are_those_of_the_steps_after_the_warm_up(tmp_path: Path) -> None:
    write_report(tmp_path, a_document(), a_run())
    told = json.loads((tmp_path / "report.json").read_text())
    found = told["runs"][0]["figures"]
    assert found["median_step_s"] == 0.5 and found["p90_step_s"] == 0.5 and found["mean_step_s"] == pytest.approx(0.5)
    assert found["data_wait_share"] == pytest.approx(0.1)
    assert found["lost_steps"] == 20
    assert found["usd_per_million_tokens"] == pytest.approx(9.2 / 200_000 * 1e6)
    assert told["versions"] == {
        "Ray": "2.58.0",
        "PyTorch": "2.13.0",
        "NCCL": "2.29.7+cuda13.0",
        "aws-ofi-nccl": "1.21.1",
        "libfabric": "2.4",
    }
    assert told["runs"][0]["transports"]["10.0.0.1"]["interfaces"] == {"eth0": 5_000_000}


def test_the_parts_of_a_step_add_up_to_its_time() -> None:
    record = a_run(restart_at=None)
    grouped = bars(record)
    assert len(grouped) <= 60 and grouped[0][0] == 1
    for _, parts in grouped[1:]:
        assert sum(parts) == pytest.approx(0.5)
    stopped = sum(parts[2] for _, parts in grouped)
    assert stopped == pytest.approx(4 * 0.2 / 4)  # four saves, each within a group of four steps


def test_the_time_line_has_saves_and_restarts_in_the_order_of_steps() -> None:
    rows = time_line(a_run())
    # Step 100 was saved once; after the restart there is no second save of it.
    assert [(when.partition(",")[0], what) for when, _, what, _ in rows] == [
        ("step 50", "checkpoint"), ("step 100", "checkpoint"), ("step 100", "restart"), ("step 150", "checkpoint"), ("step 200", "checkpoint"),
    ]  # fmt: skip
    assert "training stopped for 0.20 s" in rows[0][3] and "3,072.0 MiB" in rows[0][3]
    assert {clock for _, clock, _, _ in rows} == {""}  # an older job, which said no times


def test_the_time_line_says_the_hour_and_puts_a_restart_behind_the_steps_that_were_lost() -> None:
    record = RunRecord()
    began = 1_795_995_200.0  # 2026-11-29 23:33:20 UTC
    record.feed({"event": "config", "steps": 9, "world_size": 2, "nodes": 2, "time": began})
    for number in (1, 2, 3, 4):
        record.feed({"event": "step", "step": number, "loss": 1.0, "step_s": 1.0, "time": began + number})
        record.feed({"event": "checkpoint", "step": number, "time": began + number}) if number in (2, 4) else None
    record.feed({"event": "restart", "step": 2, "world_size": 2, "time": began + 90})
    record.feed({"event": "done", "status": "succeeded", "steps": 9, "time": began + 100})
    rows = time_line(record)
    assert [(when.partition(",")[0], clock, what) for when, clock, what, _ in rows] == [
        ("step 0", "2026-11-29 23:33:20", "begin"),
        ("step 2", "2026-11-29 23:33:22", "checkpoint"),
        ("step 4", "2026-11-29 23:33:24", "checkpoint"),
        ("step 2", "2026-11-29 23:34:50", "restart"),
        ("step 9", "2026-11-29 23:35:00", "end"),
    ]


def test_steps_that_were_thinned_out_still_count_on_the_clock() -> None:
    record = RunRecord()
    for number in range(1, 25_001):
        record.feed({"event": "step", "step": number, "loss": 1.0, "step_s": 0.1})
    assert len(record.steps) <= 20_000
    assert times_of_steps(record)[record.steps[-1]["step"]] == pytest.approx(2500, rel=0.01)


def test_a_record_without_steps_gives_no_number_and_no_error() -> None:
    assert bars(RunRecord()) == [] and time_line(RunRecord()) == []
    found = figures(RunRecord(), usd=1.0)
    assert found["mean_step_s"] is None and found["usd_per_million_tokens"] is None
    assert versions([RunRecord()], {}) == {}


def test_thinning_keeps_every_peak_and_the_order() -> None:
    points = [(float(n), 1.0) for n in range(10_000)]
    points[1234], points[7777] = (1234.0, 99.0), (7777.0, -5.0)
    kept = thinned(points)
    assert len(kept) <= 1000 and (1234.0, 99.0) in kept and (7777.0, -5.0) in kept
    assert kept == sorted(kept)


@pytest.mark.parametrize(
    "picture",
    [
        line_chart([("a<&", [(1024.0, 1.0), (2.0**30, 9.0)])], label="b", x_label="bytes", log_x=True, limit=12.0),
        line_chart([("a", [(1.0, 0.0), (2.0, 0.0)])], label="b", x_label="c"),
        line_chart([("a", [(5.0, 3.0)])], label="b", x_label="c", from_zero=True),
        stacked_bars([(1.0, (1.0, 0.0))], ("a", "b"), label="b", x_label="c").partition("<div")[0],
        stacked_bars([(1.0, (0.0, 0.0)), (5.0, (0.0, 0.0))], ("a", "b"), label="b", x_label="c").partition("<div")[0],
    ],
)
def test_every_chart_is_well_formed_and_inside_its_picture(picture: str) -> None:
    root = ElementTree.fromstring(picture)
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(text.get("x", "-1")) <= 480 and 0 <= float(text.get("y", "-1")) <= 270


def test_sizes_are_named_as_people_name_them() -> None:
    assert [size_text(2.0**k) for k in (3, 10, 16, 20, 30)] == ["8", "1K", "64K", "1M", "1G"]
