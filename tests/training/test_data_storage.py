"""Shards on storage and in the node's cache: S3, concurrent preparers and readers, damage."""

from __future__ import annotations

import fcntl
import http.client
import json
import logging
import multiprocessing
import os
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
from moto.server import ThreadedMotoServer

from fsdp_job import data_cache, data_store
from fsdp_job.data import Position, PreparedData, open_batches
from fsdp_job.data_cache import localize
from fsdp_job.data_spec import DataSpec
from fsdp_job.errors import JobError, JobUsageError
from fsdp_job.prepare import prepare

TEXT = "".join(f"line {number} of a text to pack\n" for number in range(400))


def spec(dataset: str, storage: str, cache: Path | str, **changes: object) -> DataSpec:
    values: dict = {"tokenizer": "bytes", "seq_len": 32, "seed": 1, "vocab_size": None, "eval_sequences": 2}
    return DataSpec(**(values | {"dataset": dataset, "storage_path": storage, "cache_dir": str(cache)} | changes))


def first_tokens(prepared: PreparedData) -> list[int]:
    with open_batches(
        prepared, split="train", rank=0, world_size=1, micro_batch=8, accumulate=1, position=Position()
    ) as batches:
        (micro,) = next(batches)
    return micro["input_ids"].flatten().tolist()


@pytest.fixture
def text(tmp_path: Path) -> str:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(f"{number} {TEXT}")
    return str(folder)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    name = f"test-{uuid.uuid4().hex[:12]}"
    boto3.client("s3", endpoint_url=s3_server, region_name="us-east-1").create_bucket(Bucket=name)
    return name


def put(bucket: str, key: str, body: bytes) -> None:
    boto3.client("s3", region_name="us-east-1").put_object(Bucket=bucket, Key=key, Body=body)


def keys(bucket: str, prefix: str = "") -> list[str]:
    found = boto3.client("s3", region_name="us-east-1").list_objects_v2(Bucket=bucket, Prefix=prefix)
    return [item["Key"] for item in found.get("Contents", [])]


def test_text_on_s3_is_packed_onto_s3_and_read_through_the_cache(bucket: str, text: str, tmp_path: Path) -> None:
    for path in Path(text).iterdir():
        put(bucket, f"in/{path.name}", path.read_bytes())
    local = prepare(spec(text, str(tmp_path / "local"), tmp_path / "local"))
    remote = prepare(
        spec(f"s3://{bucket}/in", f"s3://{bucket}/runs/one", tmp_path / "cache"), unit_bytes=5000, shard_bytes=6000
    )
    assert remote.folder.startswith(f"s3://{bucket}/runs/one/packed/")
    assert first_tokens(remote) == first_tokens(local)
    assert not [
        key for key in keys(bucket, "runs/one/packed/staging") if not key.endswith("/")
    ]  # Arrow's folder marker
    cached = sorted(path.name for path in (tmp_path / "cache").rglob("*.npy"))
    assert len(cached) > 5
    assert cached == sorted(key.rsplit("/", 1)[-1] for key in keys(bucket) if key.endswith(".npy"))
    before = keys(bucket)
    assert prepare(spec(f"s3://{bucket}/in", f"s3://{bucket}/runs/one", tmp_path / "cache")) == remote
    assert keys(bucket) == before


def test_pattern_and_single_object_on_s3(bucket: str, tmp_path: Path) -> None:
    for name in ("a/x.jsonl", "a/y.jsonl", "b/z.jsonl"):
        put(bucket, name, json.dumps({"text": f"{name} " * 20}).encode() + b"\n")
    documents = {
        dataset: prepare(spec(f"s3://{bucket}/{dataset}", str(tmp_path), tmp_path)).documents
        for dataset in ("a/x.jsonl", "a/*.jsonl", "**/*.jsonl", "*/[yz].jsonl", "")
    }
    assert documents == {"a/x.jsonl": 1, "a/*.jsonl": 2, "**/*.jsonl": 3, "*/[yz].jsonl": 2, "": 3}


def test_large_jsonl_on_s3_is_cut_into_units(bucket: str, tmp_path: Path) -> None:
    texts = [f"row {number} " * 5 for number in range(200)]
    put(bucket, "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    whole = prepare(spec(f"s3://{bucket}/a.jsonl", str(tmp_path / "a"), tmp_path / "a"))
    cut = prepare(spec(f"s3://{bucket}/a.jsonl", str(tmp_path / "b"), tmp_path / "b"), unit_bytes=777)
    assert whole.documents == cut.documents == 200
    assert first_tokens(whole) == first_tokens(cut)


class Flaky(BaseHTTPRequestHandler):
    """A proxy before the S3 server that spoils some requests in turn: an error, a slow answer, a cut connection."""

    protocol_version = "HTTP/1.1"
    target = ""
    count = 0
    faults: list[str] = []

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                continue
        Flaky.count += 1
        fault = ""
        if Flaky.count % 4 == 0:
            fault = ("500", "slow", "cut")[len(Flaky.faults) % 3]
            fault = fault if fault != "cut" or self.command == "GET" else ""
        if fault:
            Flaky.faults.append(fault)
        if fault == "500":
            self.send_response(500)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if fault == "slow":
            time.sleep(0.3)
        connection = http.client.HTTPConnection(self.target)
        sent = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
        connection.request(
            self.command, self.path, body, sent | {"Content-Length": str(len(body)), "Connection": "close"}
        )
        answer = connection.getresponse()
        content = answer.read()
        if fault == "cut":
            content = content[: len(content) // 2]
            self.close_connection = True
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        return None

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def test_errors_slow_answers_and_cut_connections_of_s3_are_ridden_out(
    s3_server: str, bucket: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Flaky.target, Flaky.count, Flaky.faults = s3_server.removeprefix("http://"), 0, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    expected = first_tokens(prepare(spec(text, str(tmp_path / "local"), tmp_path / "local")))
    for path in Path(text).iterdir():
        put(bucket, f"in/{path.name}", path.read_bytes())
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    prepared = prepare(spec(f"s3://{bucket}/in", f"s3://{bucket}/runs", tmp_path / "cache"), shard_bytes=20_000)
    assert first_tokens(prepared) == expected
    assert {"500", "slow", "cut"} <= set(Flaky.faults)
    server.shutdown()
    server.server_close()


def test_dead_s3_is_an_error_that_another_attempt_may_survive(
    bucket: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(spec(text, f"s3://{bucket}/runs", tmp_path / "cache"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(data_store, "ATTEMPTS", 2)
    with pytest.raises(JobError, match=r"index\.json cannot be read") as caught:
        first_tokens(prepared)
    assert caught.value.retryable


def test_cached_data_needs_no_storage_any_more(
    bucket: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(spec(text, f"s3://{bucket}/runs", tmp_path / "cache"))
    tokens = first_tokens(prepared)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert first_tokens(prepared) == tokens


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("s3://{bucket}/nothing", r"s3://.*/nothing cannot be listed: .*check bucket, prefix, region"),
        ("s3://{bucket}/x/*.txt", r"no object matches the pattern under s3://"),
        ("s3://{bucket}-none/x", r"cannot be listed"),
        ("s3://", r"s3:// names no bucket; write s3://bucket/prefix"),
    ],
)
def test_nothing_on_s3_is_one_message(bucket: str, tmp_path: Path, dataset: str, message: str) -> None:
    put(bucket, "x/a.jsonl", b'{"text": "a"}\n')
    with pytest.raises(JobUsageError, match=message) as caught:
        prepare(spec(dataset.format(bucket=bucket), str(tmp_path), tmp_path))
    assert "\n" not in str(caught.value)


def test_storage_that_cannot_be_written_is_named(text: str, tmp_path: Path, bucket: str) -> None:
    with pytest.raises(JobError, match=rf"s3://{bucket}-none/.*: "):
        prepare(spec(text, f"s3://{bucket}-none/runs", tmp_path))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JobError, match=r"/file/"):
        prepare(spec(text, str(tmp_path / "file"), tmp_path))
    with pytest.raises(JobUsageError, match=r"gs://x/y: unknown kind of storage; allowed: s3://"):
        prepare(spec(text, "gs://x/y", tmp_path))


def test_corrupt_object_is_found_by_its_checksum_and_never_cached(bucket: str, text: str, tmp_path: Path) -> None:
    prepared = prepare(spec(text, f"s3://{bucket}/runs", tmp_path / "cache"))
    (key,) = [key for key in keys(bucket) if key.endswith(".npy")]
    client = boto3.client("s3", region_name="us-east-1")
    body = bytearray(client.get_object(Bucket=bucket, Key=key)["Body"].read())
    body[-1] ^= 1
    put(bucket, key, bytes(body))
    with pytest.raises(JobError, match=rf"{key.rsplit('/', 1)[-1]} has checksum"):
        first_tokens(prepared)
    assert not list((tmp_path / "cache").rglob("*.npy"))
    client.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(JobError, match=rf"{key.rsplit('/', 1)[-1]} cannot be opened"):
        first_tokens(prepared)


def test_truncated_shard_is_named_when_read_and_packed_again_when_prepared(text: str, tmp_path: Path) -> None:
    wanted = spec(text, str(tmp_path / "s"), tmp_path / "s")
    prepared = prepare(wanted)
    tokens = first_tokens(prepared)
    (shard,) = Path(prepared.folder).glob("*.npy")
    os.truncate(shard, 1000)
    with pytest.raises(JobError, match=rf"{shard.name} is 1000 of \d+ bytes; start the job again"):
        first_tokens(prepared)
    assert first_tokens(prepare(wanted)) == tokens


def test_damaged_index_is_named_with_the_remedy(text: str, tmp_path: Path) -> None:
    wanted = spec(text, str(tmp_path / "s"), tmp_path / "s")
    index = Path(prepare(wanted).folder) / "index.json"
    index.write_text(index.read_text()[:50])
    with pytest.raises(JobError, match=r"index\.json is damaged .*remove its folder"):
        prepare(wanted)


def test_shared_folder_is_copied_to_the_cache_and_a_damaged_copy_replaced(text: str, tmp_path: Path) -> None:
    prepared = prepare(spec(text, str(tmp_path / "shared"), tmp_path / "node"))
    tokens = first_tokens(prepared)
    (copy,) = (tmp_path / "node").rglob("*.npy")
    os.truncate(copy, 100)
    assert first_tokens(prepared) == tokens
    assert copy.stat().st_size > 100


def test_data_that_was_never_prepared_is_told(text: str, tmp_path: Path) -> None:
    prepared = replace(prepare(spec(text, str(tmp_path), tmp_path)), folder=str(tmp_path / "other"))
    with pytest.raises(
        JobUsageError, match=r"index\.json is not there; it must be on s3:// or a folder that all nodes share"
    ):
        first_tokens(prepared)


def test_one_reader_downloads_and_the_others_wait(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(spec(text, str(tmp_path / "shared"), tmp_path / "node"), shard_bytes=5000)
    fetched: list[str] = []
    real = data_cache._fetch

    def count(source: str, folder: Path, shard: data_cache.Shard) -> None:
        fetched.append(shard.name)
        time.sleep(0.02)
        real(source, folder, shard)

    monkeypatch.setattr(data_cache, "_fetch", count)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: localize(prepared)[0], range(8)))
    assert len(set(folders)) == 1
    assert len(fetched) == len(set(fetched)) == len(list(folders[0].glob("*.npy"))) > 5


def test_waiting_for_the_first_reader_is_bounded(text: str, tmp_path: Path) -> None:
    prepared = prepare(spec(text, str(tmp_path / "shared"), tmp_path / "node"))
    folder = tmp_path / "node" / "packed" / Path(prepared.folder).name
    folder.mkdir(parents=True)
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = time.monotonic()
        with pytest.raises(JobError, match=r"waited 0 s for another process of this node"):
            localize(prepared, wait_s=0.3)
        assert time.monotonic() - started < 2
    assert localize(prepared, wait_s=0.3)[0] == folder  # the lock ended with its holder


def test_full_disk_is_told_before_the_download(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(spec(text, str(tmp_path / "shared"), tmp_path / "node"))
    usage = data_cache.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(data_cache.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(JobUsageError, match=r"has 0 MiB free, but 1 shards of packed data need .*larger disk"):
        localize(prepared)


def test_concurrent_preparers_agree_and_leave_one_whole_result(text: str, tmp_path: Path) -> None:
    wanted = spec(text, str(tmp_path / "s"), tmp_path / "s")
    answers: list[PreparedData] = []
    barrier = threading.Barrier(6)

    def run() -> None:
        barrier.wait()
        answers.append(prepare(wanted, unit_bytes=5000, shard_bytes=2000))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6 and len(set(answers)) == 1
    index = json.loads((Path(answers[0].folder) / "index.json").read_text())
    named = {shard["name"] for shard in index["shards"]}
    assert named <= {path.name for path in Path(answers[0].folder).iterdir()}
    assert not list((tmp_path / "s" / "packed" / "staging").iterdir())
    assert first_tokens(answers[0]) == first_tokens(prepare(spec(text, str(tmp_path / "t"), tmp_path / "t")))


def test_preparer_that_comes_second_leaves_the_first_ones_result_alone(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp_job import prepare as module

    wanted = spec(text, str(tmp_path / "s"), tmp_path / "s")
    real, first = module._publish, []

    def late(*arguments: Any) -> object:
        monkeypatch.setattr(module, "_publish", real)
        first.append(prepare(wanted))
        return real(*arguments)

    monkeypatch.setattr(module, "_publish", late)
    second = prepare(wanted)
    assert [second] == first
    assert len(list(Path(second.folder).glob("*.npy"))) == 1


def test_killed_preparer_leaves_nothing_that_counts(text: str, tmp_path: Path) -> None:
    wanted = spec(text, str(tmp_path / "s"), tmp_path / "s")
    context = multiprocessing.get_context("fork")
    process = context.Process(target=die_while_packing, args=(wanted,))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    assert list((tmp_path / "s").rglob("*.tokens")) and not list((tmp_path / "s").rglob("index.json"))
    prepared = prepare(wanted)
    assert prepared.n_train > 100
    left = next(path for path in (tmp_path / "s" / "packed" / "staging").iterdir())
    for path in left.iterdir():
        os.utime(path, (1, 1))
    data_store.remove_older(str(left.parent), 24)
    assert not left.exists()


def die_while_packing(wanted: DataSpec) -> None:
    from fsdp_job import prepare as module

    module.build_shard = lambda **arguments: os._exit(9)  # type: ignore[assignment]
    prepare(wanted)


def test_fresh_staging_folders_are_kept(tmp_path: Path) -> None:
    for name, age in (("old", 25 * 3600), ("fresh", 3600)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").write_text("x")
        os.utime(tmp_path / name / "part", (time.time() - age, time.time() - age))
    data_store.remove_older(str(tmp_path), 24)
    assert [path.name for path in tmp_path.iterdir()] == ["fresh"]


def test_write_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    data_store.write_bytes(str(target), b"before")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data_store.os, "fsync", full)
    with pytest.raises(JobError, match=r"file cannot be written \(5 bytes\): .*No space left"):
        data_store.write_bytes(str(target), b"after")
    assert target.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_checksums_of_the_index_are_those_of_the_files(text: str, tmp_path: Path) -> None:
    import zlib

    prepared = prepare(spec(text, str(tmp_path), tmp_path), shard_bytes=4000)
    _, index = localize(prepared)
    assert len(index.shards) > 3
    for shard in index.shards:
        data = (Path(prepared.folder) / shard.name).read_bytes()
        assert (len(data), zlib.crc32(data)) == (shard.bytes, shard.crc32)
        assert len(np.load(Path(prepared.folder) / shard.name)) == shard.sequences
