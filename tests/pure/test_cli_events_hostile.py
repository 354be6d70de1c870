"""Events of a user's own script: whatever stands in them, the run is followed, judged and reported to its end."""

from __future__ import annotations

import io
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eks_ray_train.cli.bench_figures import bandwidths, exchanged_bytes
from eks_ray_train.cli.bench_page import write_bench
from eks_ray_train.cli.events import EVENTS, number, parse_event, plain, whole
from eks_ray_train.cli.page_style import duration
from eks_ray_train.cli.run_figures import figures
from eks_ray_train.cli.run_record import RunRecord
from eks_ray_train.cli.run_report import write_report, write_reports
from eks_ray_train.cli.run_view import RunView
from eks_ray_train.cli.spending import observed_step_s
from eks_ray_train.cli.svg_chart import line_chart, nice_ticks, stacked_bars
from eks_ray_train.gate import RunJudge

HUGE = 10**400
# Every field that some event has, as the job, the record, the view and the report know them.
FIELDS = (
    "step", "steps", "loss", "eval_loss", "step_s", "data_wait_s", "tokens", "tokens_per_s", "mfu", "lr", "grad_norm", "peak_memory_gib",
    "time", "seconds", "blocking_seconds", "bytes", "path", "error", "resumed_from", "lost_steps", "world_size", "nodes", "iterations",
    "rank", "node", "nccl_lines", "interface_bytes", "efa_counters", "fi_info", "status", "final_loss", "wall_s", "parameters",
    "warmup_steps", "torch", "device", "backend", "sharding", "precision", "tokens_per_step",
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 9), st.sampled_from([HUGE, -HUGE, 2**53, 2**63, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf]),
        st.floats(), st.text(st.characters(), max_size=8), st.sampled_from(["all", "\ud800", "</title><script>", "2", "NCCL version 2.29"]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=4) | st.sampled_from(["sent", "before", "eth0", "domains", "rank"]), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
# Three of four fields as a job writes them, so that a wrong one meets code behind those that are right.
USUAL: dict[str, Any] = {
    "step": 3, "steps": 9, "loss": 2.5, "step_s": 0.5, "data_wait_s": 0.1, "tokens_per_s": 10.0, "seconds": [0.5, 0.25], "bytes": 1024, "time": 1.8e9,
    "world_size": 2, "nodes": 2, "iterations": 5, "rank": 1, "node": "a", "nccl_lines": ["NCCL version 2.29"], "interface_bytes": {"eth0": {"sent": 5}},
}  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(EVENTS)))
    usual = {name: value for name, value in USUAL.items() if draw(st.booleans())}
    if "step" in usual:
        usual["step"] = draw(st.integers(0, 9))
    odd = draw(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
    return {"event": kind, **usual, **odd}


def strict(text: str) -> Any:
    """What ``text`` says as strict JSON in UTF-8; ValueError where it is none."""

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON")

    found = json.loads(text, parse_constant=refuse)
    json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair cannot be written
    return found


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def followed(told: list[dict[str, Any]], *, out: io.StringIO) -> RunView:
    judge = RunJudge(nodes_expected=2, expected="efa", events_required=True)
    view = RunView(out=out, judge=judge, usd_per_hour=36.0, watch=lambda record: f"{observed_step_s(record)}")
    view.on_lines([json.dumps(event).encode() for event in told])
    view.close()
    assert judge.verdict("SUCCEEDED").outcome == "fail"
    return view


def reported(record: RunRecord, folder: Path, **document: Any) -> tuple[dict[str, Any], str]:
    page = write_report(folder, {"status": "SUCCEEDED", "usd": 1.0, **document}, record).read_bytes().decode()
    for picture in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + picture.split("</svg>")[0] + "</svg>")
    return strict((folder / "report.json").read_text()), page


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(events(), max_size=12), st.booleans())
def test_no_value_in_any_field_of_any_event_ends_the_command(told: list[dict[str, Any]], terminal: bool) -> None:
    before, sys.stderr = sys.stderr, (Terminal() if terminal else io.StringIO())
    try:
        view = followed(told, out=Terminal() if terminal else io.StringIO())
    finally:
        sys.stderr = before
    direct = RunRecord()  # also where nothing went through the parser
    for event in told:
        direct.feed(event)
    for record in (view.record, direct):
        document = {**figures(record, usd=1.0), "final_loss": record.final_loss, "steps": record.steps_done, "failure": view.failure.summary(), "eta": record.eta_s()}
        strict(json.dumps(document))  # what `submit --json` and `bench --json` print of it
        rows = bandwidths(record.bandwidth, line_gbps=100)
        assert exchanged_bytes(record.bandwidth) >= 0
        with tempfile.TemporaryDirectory() as folder:
            reported(record, Path(folder), **document)
            write_bench(Path(folder), {"benchmark": "nccl", "bandwidth": {"none": rows}}, [])
            strict((Path(folder) / "bench.json").read_text())


@given(st.text(st.characters(), max_size=60), st.text(max_size=3))
def test_no_line_that_looks_like_an_event_raises(text: str, before: str) -> None:
    for line in (f'{before}{{"event": {text}', f'{before}{{"event": "step", {text}}}', f'(a pid=1) {{"event": "step", "x": "{text}"}}'):
        event = parse_event(line)
        assert event is None or strict(json.dumps(event)) == event


@pytest.mark.parametrize(
    "line",
    [
        '{"event": ' + "[" * 200_000, '{"event": "step", "x": ' + "[" * 200_000 + "]" * 200_000 + "}", '{"event": ["step"]}', '{"event": {}}',
        '{"event": "step", "step": ' + "9" * 5000 + "}", "(a pid=" + "9" * 5000 + ') {"event": "step"}',
    ],
    ids=["cut off", "deep", "list", "object", "5000 digits", "pid of 5000 digits"],
)  # fmt: skip
def test_what_python_cannot_read_is_no_event_and_a_line_like_any_other(line: str) -> None:
    assert parse_event(line) is None
    out = io.StringIO()
    view = RunView(out=out)
    view.on_lines([line.encode(), line.replace("(a", "x (ip=a,").replace(") {", ") world_rank=1 {").encode(), b"next"])
    assert out.getvalue().endswith("\nnext\n")


def test_what_json_or_utf8_cannot_say_is_none_or_a_question_mark() -> None:
    line = f'{{"event": "step", "a": NaN, "b": [-Infinity, 1e999, {HUGE}], "c": {{"\\ud800": "x\\udfff", "d": true}}, "e": 2, "f": "\\ud83d\\ude00"}}'
    assert parse_event(line) == {"event": "step", "a": None, "b": [None, None, None], "c": {"?": "x?", "d": True}, "e": 2, "f": "😀"}
    assert plain([[[1]]], depth=2) == [[None]]


@pytest.mark.parametrize(("value", "as_number", "as_whole"), [
    (3, 3.0, 3), (0, 0.0, 0), (-1, -1.0, None), (2.0, 2.0, None), (True, None, None), ("3", None, None), (None, None, None), (math.nan, None, None),
    (math.inf, None, None), (HUGE, None, None), (2**53, 2.0**53, None), ([1], None, None),
])  # fmt: skip
def test_a_number_is_a_number_and_a_count_is_a_count(value: Any, as_number: float | None, as_whole: int | None) -> None:
    assert (number(value), whole(value)) == (as_number, as_whole)


def record_of(*told: dict[str, Any]) -> RunRecord:
    record = RunRecord()
    for event in told:
        record.feed(event)
    return record


def test_a_field_of_a_wrong_kind_is_ignored_and_the_rest_of_its_event_counts() -> None:
    record = record_of(
        {"event": "config", "steps": "many", "nodes": [2]},
        {"event": "step", "step": 1, "loss": 2.0, "steps": "a", "step_s": -5.0},
        {"event": "step", "step": "2"}, {"event": "step", "step": True}, {"event": "step", "step": HUGE}, {"event": "step", "step": -1},
        {"event": "step", "step": 2, "loss": HUGE},
        {"event": "transport", "rank": 0, "node": "a", "interface_bytes": [1], "nccl_lines": 5, "fi_info": {"domains": 3}},
        {"event": "transport", "rank": [1], "node": "a", "interface_bytes": {"eth0": {"sent": 7}, "eth1": {"sent": "x"}}, "nccl_lines": ["NCCL version 2.29"]},
        {"event": "restart", "step": 1, "lost_steps": "many"}, {"event": "restart", "step": "x", "lost_steps": 5},
        {"event": "done", "steps": "all", "final_loss": math.nan},
    )  # fmt: skip
    assert (record.steps_done, record.total_steps, record.eta_s(), record.final_loss) == (1, None, None, 2.0)
    assert record.steps == [{"step": 1, "loss": 2.0, "steps": None, "step_s": None}]
    assert record.transports == {"a": {"ranks": [0], "versions": {"NCCL": "2.29"}, "interfaces": {"eth0": 7}, "efa": None}}
    assert [restart.get("lost_steps") for restart in record.restarts] == [1, None]


def test_a_run_beyond_the_steps_that_it_announced_has_no_known_end() -> None:
    assert record_of({"event": "step", "step": 5, "steps": 9, "step_s": 2.0}).eta_s() == 8.0
    beyond = record_of({"event": "step", "step": 5, "steps": 3, "step_s": 2.0})
    assert (beyond.total_steps, beyond.eta_s()) == (None, None)


def test_means_of_the_largest_numbers_are_not_known_rather_than_infinite() -> None:
    record = record_of(*({"event": "step", "step": n, "tokens_per_s": 1.7e308, "mfu": 1.7e308, "step_s": 1e300} for n in (1, 2)))
    found = figures(record, usd=None)
    assert (found["median_tokens_per_s"], found["median_mfu"], found["mean_step_s"]) == (None, None, None)
    assert [duration(seconds) for seconds in (math.inf, math.nan, None, 61.0)] == ["–", "–", "–", "1:01 min"]


def test_only_what_was_measured_is_a_bandwidth() -> None:
    good = {"event": "bandwidth", "bytes": 1024, "seconds": [0.5, None], "world_size": 2, "nodes": 2, "iterations": 5}
    wrong = [{**good, name: value} for name, value in (("bytes", "x"), ("bytes", 0), ("seconds", 3), ("seconds", ["x"]), ("world_size", 0), ("iterations", None))]
    assert record_of(good, *wrong).bandwidth == [{name: value for name, value in good.items() if name != "event"}]
    (row,) = bandwidths([{**good, "seconds": [0.5, 5e-324, 0.0, -1.0]}], line_gbps=None)
    assert (row["seconds"]["count"], row["bus_gb_s"]["median"]) == (1, 1024 / 0.5 / 1e9)


def test_the_report_is_strict_json_and_utf8_whatever_it_is_told(tmp_path: Path) -> None:
    record = record_of(
        {"event": "config", "steps": 2, "torch": "\ud800", "note": math.nan}, {"event": "step", "step": 1, "loss": math.nan},
        {"event": "checkpoint", "step": 1, "path": "\udfff", "seconds": math.inf}, {"event": "done", "final_loss": math.inf},
    )  # fmt: skip
    told, page = reported(record, tmp_path, failure="rank 0: \ud800", final_loss=math.nan)
    assert told["runs"][0]["steps"] == [{"step": 1, "loss": None}] and told["final_loss"] is None
    assert told["runs"][0]["config"] == {"steps": 2, "torch": "?", "note": None} and "rank 0: ?" in page
    write_reports(tmp_path, {"failure": "\ud800"}, [("\ud800", record)], title="\ud800")
    write_bench(tmp_path, {"benchmark": "transport", "transports": {}, "cluster": "\ud800", "ratio": math.inf}, [])
    assert strict((tmp_path / "bench.json").read_text())["ratio"] is None


@pytest.mark.parametrize(
    "values",
    [(1e308, -1e308), (1.7e308, 1.7e308), (5e-324, 5e-324), (0.0, 5e-324), (0.0, 1e-320), (1e100, math.nextafter(1e100, math.inf)), (-1.0, -2.0),
     (math.nan, 1.0), (math.inf, 1.0), (math.nan, math.inf), (-0.0, 0.0)],
)  # fmt: skip
@pytest.mark.parametrize("from_zero", [False, True])
def test_a_chart_of_any_numbers_is_inside_its_picture(values: tuple[float, float], from_zero: bool) -> None:
    picture = line_chart([("a", list(enumerate(values)))], label="b", x_label="c", from_zero=from_zero)
    inside(picture)
    assert ("<svg" in picture) == any(map(math.isfinite, values))
    inside(line_chart([("a", [(1e17, value) for value in values])], label="b", x_label="c", from_zero=from_zero))
    bars = stacked_bars([(0.0, values), (1.0, values)], ("a", "b"), label="b", x_label="c").partition("<div")[0]
    inside(bars)
    assert bars.count("<rect") == 2 * sum(math.isfinite(value) and value > 0 for value in values)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_any_two_numbers_make_a_chart_with_ticks(one: float, two: float, from_zero: bool) -> None:
    inside(line_chart([("a", [(1.0, one), (2.0, two)])], label="b", x_label="c", from_zero=from_zero))
    assert nice_ticks(min(one, two), max(one, two))


def inside(picture: str) -> None:
    root = ElementTree.fromstring(picture)
    assert "nan" not in picture and "inf" not in picture
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 <= float(text.get("x", "-1")) <= 480 and 0 <= float(text.get("y", "-1")) <= 270
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        if path.get("fill") == "none":
            for pair in path.get("d", "")[1:].split("L"):
                x, y = map(float, pair.split())
                assert 0 <= x <= 480 and 0 <= y <= 270, (x, y)


def test_ticks_of_small_numbers_are_not_rounded_to_zero() -> None:
    assert nice_ticks(0.0, 5e-12) == [0.0, 1e-12, 2e-12, 3e-12, 4e-12, 5e-12]
