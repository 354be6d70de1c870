"""A run whose folder lies on S3 (moto's server), also where the service answers 500, slowly, or breaks off."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.training.fault_results import compare, of_steps, scenario
from tests.training.job_ranks import run_job, write_inputs
from tests.training.test_data_storage import Flaky

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"{host}:{port}"
    moto.stop()


@pytest.fixture
def bucket(server: str) -> str:
    name = f"runs-{uuid.uuid4().hex[:10]}"
    client(server).create_bucket(Bucket=name)
    return name


def client(server: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=f"http://{server}", region_name="us-east-1", aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )  # fmt: skip


def set_environment(values: dict[str, str], _rank: int) -> None:
    os.environ.update(values)


def train(
    inputs: dict[str, Any], bucket: str, endpoint: str, monkeypatch: pytest.MonkeyPatch, *, world: int,
    before: Callable[[dict[str, str], int], None] = set_environment, **more: Any,
) -> Any:  # fmt: skip
    values = {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://{endpoint}"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    flags = {**inputs, "storage_path": f"s3://{bucket}/team", "checkpoint_every": 2, **more}
    return run_job(flags, world=world, name="run", starting_world=2, before=functools.partial(before, values))


def test_a_run_on_s3_saves_resumes_at_another_world_size_and_keeps_the_newest(
    bucket: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = write_inputs(tmp_path)
    whole = run_job({**inputs, "steps": 8}, world=2, name="local")
    first = train(inputs, bucket, server, monkeypatch, world=2, steps=6, keep=2)
    assert [event["committed"] for event in first.of("checkpoint")] == [True] * 3
    assert first.of("checkpoint")[-1]["path"] == f"s3://{bucket}/team/run/checkpoints/step-00000006-a0001"
    listed = client(server).list_objects_v2(Bucket=bucket, Prefix="team/run/")["Contents"]
    folders = {item["Key"].split("/")[3] for item in listed if "/checkpoints/step" in item["Key"]}
    assert folders == {"step-00000004-a0001", "step-00000006-a0001"}
    assert any("/tensorboard/events" in item["Key"] for item in listed)
    second = train(inputs, bucket, server, monkeypatch, world=1, steps=8)
    assert second.of("restart")[0]["step"] == 6
    assert first.losses + second.losses == pytest.approx(whole.losses, rel=1e-5)


def test_a_cut_object_on_s3_is_found_and_passed_over(
    bucket: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = write_inputs(tmp_path)
    train(inputs, bucket, server, monkeypatch, world=2, steps=4)
    key = "team/run/checkpoints/step-00000004-a0001/__0_0.distcp"
    body = client(server).get_object(Bucket=bucket, Key=key)["Body"].read()
    client(server).put_object(Bucket=bucket, Key=key, Body=body[: len(body) // 2])
    second = train(inputs, bucket, server, monkeypatch, world=2, steps=6)
    (restart,) = second.of("restart")
    assert restart["step"] == 2
    assert "__0_0.distcp has" in restart["passed_over"][0]


def no_scratch_at_step_2(values: dict[str, str], rank: int) -> None:
    """Rank 1 has no room to write its files before they go to S3, once."""
    set_environment(values, rank)
    from fsdp_job import checkpoint

    make, calls = tempfile.mkdtemp, []

    class Tempfile:
        @staticmethod
        def mkdtemp(**more: Any) -> str:
            calls.append(1)
            if rank == 1 and len(calls) == 1:
                raise OSError(28, "No space left on device")
            return make(**more)

    checkpoint.tempfile = Tempfile  # type: ignore[assignment]


def test_a_rank_without_room_for_its_upload_costs_one_checkpoint_only(
    bucket: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = write_inputs(tmp_path)
    run = train(inputs, bucket, server, monkeypatch, world=2, before=no_scratch_at_step_2, steps=6, keep=1)
    assert [event["committed"] for event in run.of("checkpoint")] == [False, True, True]
    assert "rank 1: OSError: [Errno 28] No space left" in run.of("checkpoint")[0]["error"]
    listed = client(server).list_objects_v2(Bucket=bucket, Prefix="team/run/checkpoints/")["Contents"]
    assert {item["Key"].split("/")[3] for item in listed} - {""} == {"step-00000006-a0001"}


def test_a_damaged_marker_on_s3_is_passed_over_and_kept(
    bucket: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = write_inputs(tmp_path)
    train(inputs, bucket, server, monkeypatch, world=1, steps=4)
    key = "team/run/checkpoints/step-00000004-a0001/complete.json"
    client(server).put_object(Bucket=bucket, Key=key, Body=b"")
    second = train(inputs, bucket, server, monkeypatch, world=1, steps=6, keep=1)
    assert second.of("restart")[0]["step"] == 2
    assert "complete.json is damaged" in second.of("restart")[0]["passed_over"][0]
    assert client(server).head_object(Bucket=bucket, Key=key)


@pytest.mark.matrix
def test_errors_delays_and_broken_connections_of_the_service_cost_nothing(
    bucket: str, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = write_inputs(tmp_path)
    whole = run_job({**inputs, "steps": 8}, world=2, name="local")
    Flaky.target, Flaky.faults, Flaky.count = server, [], 0
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    did = "every fourth answer of the S3 server between the job and its storage in turn 500, slow, or cut off half-way"
    with scenario("S3 answers 500, slowly, or breaks off", did) as told:
        try:
            through = f"127.0.0.1:{proxy.server_address[1]}"
            first = train(inputs, bucket, through, monkeypatch, world=2, steps=4)
            second = train(inputs, bucket, through, monkeypatch, world=2, steps=8)
        finally:
            proxy.shutdown()
        told["faults_met"] = len(Flaky.faults)
        assert set(Flaky.faults) == {"500", "slow", "cut"}
        compare(told, of_steps([*first.events, *second.events]), dict(of_steps(whole.events)))
        assert len(first.losses + second.losses) == 8
        assert all(event["committed"] for event in first.of("checkpoint") + second.of("checkpoint"))
        assert second.of("restart")[0]["step"] == 4
