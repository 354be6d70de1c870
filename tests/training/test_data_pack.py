"""Documents to packed sequences and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_job.data_cache import localize
from fsdp_job.data_pack import Part, plan_shards, record_dtype, sequence_count
from fsdp_job.data_readers import ShardReader
from fsdp_job.data_spec import DataSpec, PreparedData
from fsdp_job.errors import JobUsageError
from fsdp_job.prepare import prepare
from fsdp_job.tokenizer import BYTES_EOS, ByteTokenizer, load_tokenizer, token_dtype


def spec(folder: Path, dataset: Path | str, **changes: object) -> DataSpec:
    values: dict = {"tokenizer": "bytes", "seq_len": 16, "seed": 1, "vocab_size": None, "eval_sequences": 0}
    values |= {"cache_dir": str(folder), "storage_path": str(folder), "dataset": str(dataset)}
    return DataSpec(**(values | changes))


def write_texts(folder: Path, texts: list[str]) -> Path:
    folder.mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"{number:03d}.txt").write_bytes(text.encode())
    return folder


def stream(prepared: PreparedData) -> tuple[np.ndarray, np.ndarray]:
    """All records end to end without the overlap: the token stream with padding, and where documents begin."""
    folder, index = localize(prepared)
    reader = ShardReader(folder, index)
    tokens, starts = reader.read(np.arange(prepared.n_total))
    reader.close()
    return np.append(tokens[:, :-1].ravel(), tokens[-1, -1]), np.append(starts[:, :-1].ravel(), starts[-1, -1])


@pytest.fixture(scope="module")
def word_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A byte-pair tokenizer of our own in a local folder, with BOS added by default as Llama's has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([Path(__file__).read_text()], trainer)
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return str(folder)


TEXTS = st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(texts=TEXTS, seq_len=st.integers(1, 40), unit_bytes=st.integers(1, 200), shard_bytes=st.integers(1, 500))
def test_packed_tokens_decode_back_to_the_documents(
    texts: list[str], seq_len: int, unit_bytes: int, shard_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    texts = [text.replace("\0", "0") for text in texts]  # a file with zero bytes is refused as not text
    dataset = write_texts(folder / "texts", texts)
    prepared = prepare(spec(folder / "s", dataset, seq_len=seq_len), unit_bytes=unit_bytes, shard_bytes=shard_bytes)
    tokens, starts = stream(prepared)
    assert prepared.tokens == sum(len(text.encode()) + 1 for text in texts)
    assert prepared.documents == len(texts)
    assert prepared.n_train == sequence_count(prepared.tokens, seq_len)
    real = tokens[: prepared.tokens].tolist()
    begins = np.flatnonzero(starts[: prepared.tokens]).tolist()
    got = [ByteTokenizer().decode(real[a:b]) for a, b in zip(begins, [*begins[1:], len(real)], strict=True)]
    assert got == texts
    assert starts[prepared.tokens :].all() and (tokens[prepared.tokens :] == BYTES_EOS).all()


def test_hugging_face_tokens_decode_back_and_begin_with_the_tokenizers_bos(tmp_path: Path, word_tokenizer: str) -> None:
    texts = ["def f():\n    return 1\n", "naïve café ☕", "x"]
    prepared = prepare(spec(tmp_path / "s", write_texts(tmp_path / "t", texts), tokenizer=word_tokenizer, seq_len=5))
    tokens, starts = stream(prepared)
    tokenizer = load_tokenizer(word_tokenizer)
    begins = np.flatnonzero(starts[: prepared.tokens]).tolist()
    pieces = [tokens[a:b].tolist() for a, b in zip(begins, [*begins[1:], prepared.tokens], strict=True)]
    assert [tokenizer.decode(piece) for piece in pieces] == texts
    assert all(piece[0] == 0 and piece[-1] == 1 for piece in pieces)


def test_result_does_not_depend_on_units_or_shards(tmp_path: Path) -> None:
    dataset = write_texts(tmp_path / "t", [f"document {n} " * (n % 7 + 1) for n in range(50)])
    one = prepare(spec(tmp_path / "one", dataset))
    many = prepare(spec(tmp_path / "many", dataset), unit_bytes=100, shard_bytes=600)
    assert len(list(Path(many.folder).glob("*.npy"))) > 5 > len(list(Path(one.folder).glob("*.npy")))
    assert one.fingerprint == many.fingerprint
    for first, second in zip(stream(one), stream(many), strict=True):
        assert np.array_equal(first, second)


def test_shards_are_numpy_files_that_can_be_memory_mapped(tmp_path: Path) -> None:
    prepared = prepare(spec(tmp_path / "s", write_texts(tmp_path / "t", ["hello world, hello packing"]), seq_len=8))
    (path,) = Path(prepared.folder).glob("*.npy")
    records = np.load(path, mmap_mode="r")
    assert records.dtype == record_dtype(8, "<u2")
    assert bytes(records["tokens"][0].astype(np.uint8)) == b"hello wor"


def test_no_staging_file_is_left_behind(tmp_path: Path) -> None:
    prepare(spec(tmp_path / "s", write_texts(tmp_path / "t", ["some text to pack"])))
    assert [path.name for path in (tmp_path / "s" / "packed" / "staging").glob("*")] == []


def test_sequences_cover_the_stream_with_one_overlap() -> None:
    assert [sequence_count(tokens, 4) for tokens in (0, 1, 2, 4, 5, 6, 9, 10)] == [0, 0, 1, 1, 1, 2, 2, 3]


@settings(max_examples=50, deadline=None)
@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=20), seq_len=st.integers(1, 20), each=st.integers(1, 10)
)
def test_shard_plans_name_all_and_only_the_parts_they_need(counts: list[int], seq_len: int, each: int) -> None:
    parts = [Part(uri=str(number), tokens=count, documents=1) for number, count in enumerate(counts)]
    plans = plan_shards(parts, seq_len=seq_len, each=each)
    assert sum(plan.sequences for plan in plans) == sequence_count(sum(counts), seq_len)
    for plan in plans:
        low, high = plan.first * seq_len, min(sum(counts), (plan.first + plan.sequences) * seq_len + 1)
        assert plan.before <= low
        assert plan.before + sum(part.tokens for part in plan.parts) >= high
        assert plan.before == sum(counts[: int(plan.parts[0].uri)])


def test_fingerprint_changes_with_text_tokenizer_length_seed_and_held_out(tmp_path: Path, word_tokenizer: str) -> None:
    dataset = write_texts(tmp_path / "t", ["some text to pack " * 20])
    base = spec(tmp_path / "s", dataset)
    prints = [prepare(base).fingerprint]
    for changes in ({"seq_len": 8}, {"seed": 2}, {"eval_sequences": 1}, {"tokenizer": word_tokenizer}):
        prints.append(prepare(spec(tmp_path / "s", dataset, **changes)).fingerprint)
    (dataset / "000.txt").write_text("other text to pack " * 20)
    prints.append(prepare(base).fingerprint)
    assert len(set(prints)) == len(prints)


def test_fingerprint_survives_a_copy_with_new_times_elsewhere(tmp_path: Path) -> None:
    first = prepare(spec(tmp_path / "a", write_texts(tmp_path / "one" / "t", ["text", "more text"]), seq_len=4))
    second = prepare(spec(tmp_path / "b", write_texts(tmp_path / "two" / "t", ["text", "more text"]), seq_len=4))
    assert first.fingerprint == second.fingerprint


def test_second_prepare_writes_nothing(tmp_path: Path) -> None:
    wanted = spec(tmp_path / "s", write_texts(tmp_path / "t", ["some text to pack"]))
    prepared = prepare(wanted)
    before = {path: path.stat().st_mtime_ns for path in Path(prepared.folder).iterdir()}
    assert prepare(wanted) == prepared
    assert {path: path.stat().st_mtime_ns for path in Path(prepared.folder).iterdir()} == before


def test_prepared_data_travels_as_json(tmp_path: Path) -> None:
    prepared = prepare(spec(tmp_path / "s", write_texts(tmp_path / "t", ["some text to pack"])))
    assert PreparedData.from_json(prepared.to_json()) == prepared


def test_vocabulary_larger_than_the_models_is_refused(tmp_path: Path, word_tokenizer: str) -> None:
    dataset = write_texts(tmp_path / "t", ["some text to pack"])
    with pytest.raises(
        JobUsageError, match=r"ids up to 256, but the model's vocab_size is 256; set vocab_size to at least 257"
    ):
        prepare(spec(tmp_path / "s", dataset, vocab_size=256))
    with pytest.raises(JobUsageError, match="at least 400"):
        prepare(spec(tmp_path / "s", dataset, vocab_size=399, tokenizer=word_tokenizer))
    assert prepare(spec(tmp_path / "s", dataset, vocab_size=257)).n_train == 2


def test_ids_that_need_four_bytes_get_them() -> None:
    tokenizer = ByteTokenizer()
    assert token_dtype(tokenizer) == "<u2"
    tokenizer.n_tokens = 65537
    assert token_dtype(tokenizer) == "<u4"


def test_tokenizer_that_cannot_be_loaded_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(JobUsageError, match=r"tokenizer .*nowhere cannot be loaded: .*--tokenizer bytes"):
        load_tokenizer(str(tmp_path / "nowhere"))


def test_tokenizer_without_end_of_text_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))).save_pretrained(
        tmp_path
    )
    with pytest.raises(JobUsageError, match="has no end-of-text token"):
        load_tokenizer(str(tmp_path))


def test_all_wrong_values_of_a_spec_are_told_at_once() -> None:
    with pytest.raises(JobUsageError) as caught:
        spec(Path("x"), "", seq_len=0, eval_sequences=-1, vocab_size=0)
    assert all(word in str(caught.value) for word in ("--dataset", "--seq_len", "--eval-sequences", "vocab_size"))
