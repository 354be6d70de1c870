"""--dataset: which files, which documents, and what the user is told where there are none."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_job.data_formats import documents
from fsdp_job.data_sources import find_sources, glob_to_regex, group_units
from fsdp_job.data_spec import DataSpec
from fsdp_job.errors import JobError, JobUsageError
from fsdp_job.prepare import prepare


def read(dataset: Path | str, unit_bytes: int = 1 << 20) -> list[bytes]:
    units = group_units(find_sources(str(dataset)), unit_bytes)
    return [document for unit in units for piece in unit for document in documents(piece)]


def pack(dataset: Path | str, folder: Path) -> None:
    place = str(folder / "storage")
    prepare(
        DataSpec(
            dataset=str(dataset), tokenizer="bytes", seq_len=8, seed=0, vocab_size=None, eval_sequences=0,
            cache_dir=place, storage_path=place,
        )
    )  # fmt: skip


def test_one_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n\ny = 2\n")
    assert read(tmp_path / "a.py") == [b"x = 1\n\ny = 2\n"]


def test_folder_is_read_in_the_order_of_names_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/b/c.py", ".git/x.txt", "a/__pycache__/y.py", "picture.png", "empty.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name == "empty.txt" else name)
    assert read(tmp_path) == [b"a/b/c.py", b"a/z.md", b"b.txt"]


def test_pattern_selects_files(tmp_path: Path) -> None:
    for name in ("one.txt", "two.md", "sub/three.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(f"{tmp_path}/*.txt") == [b"one.txt"]
    assert read(f"{tmp_path}/**/*.txt") == [b"one.txt", b"sub/three.txt"]


def test_file_whose_name_looks_like_a_pattern_is_found(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("x")
    assert read(tmp_path / "a[1].txt") == [b"x"]


def test_relative_path_is_found_in_the_working_directory_of_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "t.txt").write_text("text")
    monkeypatch.chdir(tmp_path / "here")
    units = group_units(find_sources("t.txt"), 1000)
    (tmp_path / "here").rename(tmp_path / "elsewhere")  # where that node unpacked the job's folder
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert list(documents(units[0][0])) == [b"text"]


@pytest.mark.parametrize("column", ["text", "content"])
def test_jsonl_documents_are_one_a_line(tmp_path: Path, column: str) -> None:
    rows = [{column: "naïve ☕", "id": 1}, {column: ""}, {column: None}, {column: "two\nlines"}]
    body = "\ufeff" + "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n"
    (tmp_path / "a.jsonl").write_bytes(body.encode())
    assert read(tmp_path / "a.jsonl") == ["naïve ☕".encode(), b"two\nlines"]


def test_jsonl_with_a_lone_surrogate_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b"}\n')
    assert read(tmp_path / "a.jsonl") == [b"a?b"]


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=30), unit_bytes=st.integers(1, 300))
def test_jsonl_cut_anywhere_gives_the_same_documents(
    texts: list[str], unit_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert read(path, unit_bytes) == [text.encode("utf-8", "replace") for text in texts]


def write_parquet(path: Path, column: str, texts: list[str | None], group: int = 100) -> None:
    pq.write_table(pa.table({"id": range(len(texts)), column: texts}), path, row_group_size=group)


@pytest.mark.parametrize("column", ["text", "content"])
def test_parquet_documents_are_the_rows_that_have_text(tmp_path: Path, column: str) -> None:
    write_parquet(tmp_path / "a.parquet", column, ["eins", None, "", "zwei"])
    assert read(tmp_path / "a.parquet") == [b"eins", b"zwei"]


@pytest.mark.parametrize("unit_bytes", [1, 300, 1 << 20])
def test_parquet_split_by_row_groups_gives_the_same_documents(tmp_path: Path, unit_bytes: int) -> None:
    texts: list[str | None] = [f"row {number}" for number in range(250)]
    write_parquet(tmp_path / "a.parquet", "text", texts, group=20)
    units = group_units(find_sources(str(tmp_path / "a.parquet")), unit_bytes)
    assert (len(units) > 1) == (unit_bytes < 1000)
    assert read(tmp_path / "a.parquet", unit_bytes) == [str(text).encode() for text in texts]


def test_parquet_of_dictionary_and_large_strings_is_read(tmp_path: Path) -> None:
    for name, kind in (("a", pa.dictionary(pa.int32(), pa.string())), ("b", pa.large_string())):
        pq.write_table(pa.table({"text": pa.array([f"{name}1", f"{name}2"]).cast(kind)}), tmp_path / f"{name}.parquet")
    assert read(tmp_path) == [b"a1", b"a2", b"b1", b"b2"]


def test_gzip_of_text_and_jsonl_is_read_concatenated_members_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "three"}\n{"text": "four"}\n'))
    assert read(tmp_path / "a.txt.gz") == [b"one two"]
    assert read(tmp_path / "b.jsonl.gz", unit_bytes=4) == [b"three", b"four"]


def test_folder_with_data_files_ignores_its_cards_and_metadata(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "a.jsonl").write_text('{"text": "data"}\n')
    assert read(tmp_path) == [b"data"]


def test_small_files_share_a_unit_and_large_ones_get_several(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("x" * 30)
    assert [len(unit) for unit in group_units(find_sources(str(tmp_path)), 100)] == [4, 4, 2]


def as_nobody(call: Callable[[], Any]) -> str:
    """The message of what `call` raises in a process that mode bits stop (tests may run as root, whom they don't)."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            os.write(theirs, repr(call()).encode())
        except BaseException as error:
            os.write(theirs, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as answer:  # noqa: PTH123  # a descriptor
        os.waitpid(child, 0)
        return answer.read().decode()


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("form", ["{}", "{}/**/*.txt", "{}/*/*.txt", "{}/**", "{}/sub/*"])
def test_a_subfolder_that_may_not_be_read_is_named(open_path: Path, form: str) -> None:
    (open_path / "a.txt").write_text("hello")
    (open_path / "sub").mkdir()
    (open_path / "sub" / "b.txt").write_text("secret")
    (open_path / "sub").chmod(0)
    told = as_nobody(lambda: find_sources(form.format(open_path)))
    (open_path / "sub").chmod(0o755)
    assert told.startswith("JobUsageError: --dataset") and "sub" in told.split("cannot be read")[0].rpartition(":")[2]
    assert "cannot be read: Permission denied; check its permissions" in told


def test_what_a_volume_keeps_for_itself_need_not_be_readable(open_path: Path) -> None:
    (open_path / "a.txt").write_text("hello")
    for name in ("lost+found", ".snapshots"):
        (open_path / name).mkdir(mode=0)
    assert "name='a.txt'" in as_nobody(lambda: find_sources(str(open_path)))


@pytest.mark.parametrize("form", ["", "/**/*.jsonl", "/**"])
def test_a_link_to_a_folder_above_counts_nothing_twice(tmp_path: Path, form: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "once"}\n')
    (tmp_path / "0").symlink_to(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.jsonl").write_text('{"text": "below"}\n')
    assert [source.name for source in find_sources(f"{tmp_path}{form}")] == ["a.jsonl", "sub/b.jsonl"]


@pytest.mark.parametrize("form", ["", "/**/*.txt"])
def test_a_linked_subfolder_is_read_like_any_other(tmp_path: Path, form: str) -> None:
    for name in ("data", "real"):
        (tmp_path / name).mkdir()
    (tmp_path / "real" / "b.txt").write_text("linked")
    (tmp_path / "data" / "a.txt").write_text("own")
    (tmp_path / "data" / "more").symlink_to(tmp_path / "real")
    (tmp_path / "data" / "again").symlink_to(tmp_path / "real")
    found = find_sources(f"{tmp_path}/data{form}")
    assert [source.name for source in found] == ["a.txt", "again/b.txt"]


@pytest.mark.parametrize("form", ["", "/*.txt", "/**"])
def test_a_file_of_several_names_is_read_once_by_the_name_that_tells_its_kind(tmp_path: Path, form: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "blob").write_text("kept elsewhere, as the hub's cache does")
    (tmp_path / "data" / "z.txt").write_text("real")
    (tmp_path / "data" / "a.txt").symlink_to("z.txt")
    (tmp_path / "data" / "b.txt").symlink_to(tmp_path / "blob")
    (tmp_path / "data" / "self.txt").symlink_to("self.txt")
    assert [source.name for source in find_sources(f"{tmp_path}/data{form}")] == ["b.txt", "z.txt"]


def test_the_jobs_own_output_is_not_read_through_a_link_either(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("text")
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "log.txt").write_text("not data")
    (tmp_path / "data" / "out").symlink_to(tmp_path / "storage")
    for form in ("", "/**"):
        assert [s.name for s in find_sources(f"{tmp_path}/data{form}", own=[str(tmp_path / "storage")])] == ["a.txt"]


def test_endings_count_without_regard_to_case(tmp_path: Path) -> None:
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(b'{"text": "one"}\n{"text": "two"}\n'))
    assert read(tmp_path) == read(tmp_path / "A.JSONL.GZ") == [b"one", b"two"]
    (tmp_path / "A.JSONL.GZ").rename(tmp_path / "kept.bin")
    (tmp_path / "C.TXT.Gz").write_bytes(gzip.compress(b"hello"))
    assert read(tmp_path) == read(tmp_path / "C.TXT.Gz") == [b"hello"]
    (tmp_path / "t.parquet.GZ").write_bytes(b"")
    with pytest.raises(JobUsageError, match="of a kind that is not read"):
        find_sources(str(tmp_path / "t.parquet.GZ"))


def test_the_jobs_own_output_inside_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text to pack")
    pack(tmp_path, tmp_path)
    (tmp_path / "storage" / "log.txt").write_text("not data")
    own = [str(tmp_path / "storage")]
    assert [source.name for source in find_sources(str(tmp_path), own=own)] == ["a.txt"]
    pack(tmp_path, tmp_path)
    assert len(list((tmp_path / "storage" / "packed").glob("*/index.json"))) == 1


WRONG = {
    "missing": ("nothing.txt", r"nothing\.txt does not exist .*hf://owner/name.*s3://"),
    "no match": ("*.txt", r"no file matches the pattern"),
    "unknown scheme": ("gs://bucket/x", r"unknown kind of place; allowed: a path.*s3://"),
    "empty folder": ("empty", r"holds no readable file, but no file at all; allowed: parquet"),
    "only others": ("others", r"holds no readable file, but 2 other files \(\.bin, \.png\)"),
    "other kind": ("table.csv", r"table\.csv is of a kind that is not read; allowed: parquet or jsonl"),
    "binary": ("binary.txt", r"binary\.txt is not text \(it holds zero bytes\)"),
    "no column": ("columns.parquet", r"columns\.parquet has no column text or content; its columns: id, body"),
    "numbers": ("numbers.parquet", r"numbers\.parquet: column text cannot be read as text"),
    "no parquet": ("broken.parquet", r"broken\.parquet is not a whole parquet file"),
    "no key": ("keys.jsonl", r"keys\.jsonl, byte 14 has no column text or content; its columns: body"),
    "no json": ("bad.jsonl", r"bad\.jsonl, byte 0: not a JSON object on one line"),
    "deep json": ("deep.jsonl", r"deep\.jsonl, byte 14: not a JSON object on one line \(maximum recursion depth"),
    "a list": ("list.jsonl", r"list\.jsonl, byte 0: expected a JSON object, got list"),
    "no string": ("number.jsonl", r"number\.jsonl, byte 0: text must be a string, got int"),
    "no text": ("blank", r"holds 1 files but no text"),
}


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    for name in ("empty", "others", "blank"):
        (tmp_path / name).mkdir()
    (tmp_path / "others" / "a.bin").write_bytes(b"x")
    (tmp_path / "others" / "b.png").write_bytes(b"x")
    (tmp_path / "blank" / "a.txt").write_bytes(b"")
    (tmp_path / "table.csv").write_text("a,b\n")
    (tmp_path / "binary.txt").write_bytes(b"abc\0def")
    pq.write_table(pa.table({"id": [1], "body": ["x"]}), tmp_path / "columns.parquet")
    pq.write_table(pa.table({"text": [[1, 2]]}), tmp_path / "numbers.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is no parquet file PAR1")
    (tmp_path / "keys.jsonl").write_text('{"text": "a"}\n{"body": "b"}\n')
    (tmp_path / "bad.jsonl").write_text("{oops\n")
    (tmp_path / "deep.jsonl").write_text('{"text": "a"}\n{"text": "b", "more": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    (tmp_path / "list.jsonl").write_text("[1]\n")
    (tmp_path / "number.jsonl").write_text('{"text": 1}\n')
    return tmp_path


@pytest.mark.parametrize("case", WRONG)
def test_unusable_data_set_is_one_message_with_the_remedy(wrong: Path, case: str) -> None:
    name, message = WRONG[case]
    dataset = name if "://" in name else str(wrong / ("empty/*.txt" if case == "no match" else name))
    with pytest.raises(JobUsageError, match=message) as caught:
        pack(dataset, wrong / "out")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert not list((wrong / "out").rglob("index.json")), "nothing half done"


def test_truncated_gzip_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(1000).hex().encode())
    (tmp_path / "a.txt.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(JobError, match=r"a\.txt\.gz is not a whole gzip file"):
        pack(tmp_path, tmp_path / "out")


def test_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("secret")

    def refuse(self: Path, *arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)  # tests may run as root, whom no mode bits stop
    with pytest.raises(JobUsageError, match=r"a\.txt cannot be read: Permission denied; check its permissions"):
        find_sources(str(tmp_path))


def test_data_that_changes_while_it_is_packed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_job import prepare as module

    (tmp_path / "a.txt").write_text("some text to pack")
    real = module.tokenize_unit

    def slow_writer(**arguments: Any) -> object:
        part = real(**arguments)
        (tmp_path / "a.txt").write_text("other text came in")
        return part

    monkeypatch.setattr(module, "tokenize_unit", slow_writer)
    with pytest.raises(JobUsageError, match="changed while it was packed"):
        pack(tmp_path / "a.txt", tmp_path)
    assert not list(tmp_path.rglob("*.npy")) and not list(tmp_path.rglob("index.json"))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/*.txt", ["a/b.txt"], ["a/b/c.txt", "a/btxt"]),
        ("**/*.txt", ["b.txt", "a/b/c.txt"], ["a.md"]),
        ("a/**", ["a/b", "a/b/c"], ["b/a"]),
        ("part-[0-4]?.jsonl", ["part-03.jsonl"], ["part-51.jsonl"]),
    ],
)
def test_patterns_for_object_names_follow_the_shells(pattern: str, yes: list[str], no: list[str]) -> None:
    regex = glob_to_regex(pattern)
    assert [name for name in yes + no if regex.fullmatch(name)] == yes


SHA = "0123456789abcdef0123456789abcdef01234567"
HUB_FILES = {
    "owner/plain": {
        "README.md": b"card",
        "data/train-00001.jsonl": b'{"text": "two"}\n',
        "data/train-00000.jsonl": b'{"text": "one"}\n',
        "data/validation.jsonl": b'{"text": "held out"}\n',
    },
    "owner/several": {"first/train.jsonl": b'{"text": "a"}\n', "second/train.jsonl": b'{"text": "b"}\n'},
}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as listing a data set and fetching its files needs."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        for repo, files in HUB_FILES.items():
            if path.startswith(f"/api/datasets/{repo}"):
                siblings = [{"rfilename": name, "size": len(body)} for name, body in files.items()]
                return self._answer(
                    json.dumps({"id": repo, "sha": SHA, "siblings": siblings}).encode(), "application/json"
                )
            for name, body in files.items():
                if path == f"/datasets/{repo}/resolve/{SHA}/{name}":
                    return self._answer(body, "application/octet-stream")
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        return self.end_headers()

    do_HEAD = do_GET

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "X-Repo-Commit": SHA,
            "ETag": f'"{hash(body)}"',
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_hub_data_set_is_its_training_files_at_one_revision(hub: str) -> None:
    assert read("hf://owner/plain") == [b"one", b"two"]
    sources = find_sources("hf://owner/plain")
    assert sources[0].location == f"hf://owner/plain@{SHA}/data/train-00000.jsonl"
    assert {source.stamp for source in sources} == {f"revision {SHA}"}


def test_hub_address_may_name_files(hub: str) -> None:
    assert read("hf://datasets/owner/plain/data/validation.jsonl") == [b"held out"]
    assert read("hf://owner/several/second") == [b"b"]
    assert read("hf://owner/several/**") == [b"a", b"b"]


def test_hub_data_set_with_several_configurations_asks_for_one(hub: str) -> None:
    with pytest.raises(
        JobUsageError, match=r"several configurations: first, second; name one, for example hf://owner/several/first"
    ):
        find_sources("hf://owner/several")


def test_unknown_hub_data_set_and_file_are_named(hub: str) -> None:
    with pytest.raises(JobUsageError, match=r"hf://owner/none cannot be reached on the hub: .*HF_TOKEN"):
        find_sources("hf://owner/none")
    with pytest.raises(JobUsageError, match=r"no file of owner/plain matches test; name one of README\.md, data/train-00000"):
        find_sources("hf://owner/plain/test")
    with pytest.raises(JobUsageError, match="is not of the form hf://owner/name"):
        find_sources("hf://")


def test_unreachable_hub_is_told_within_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(JobUsageError, match=r"cannot be reached on the hub: .*s3:// or a shared folder"):
        find_sources("hf://owner/plain")


def test_missing_hub_client_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(JobUsageError, match="needs the package huggingface_hub, which is not installed"):
        find_sources("hf://owner/plain")
