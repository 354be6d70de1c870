"""Batches: who takes what, resuming, evaluation, document boundaries, reading ahead."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_job.data import Batches, Position, PreparedData, SplitName, open_batches
from fsdp_job.data_spec import DataSpec
from fsdp_job.errors import JobError, JobUsageError
from fsdp_job.prepare import prepare

SEQ_LEN = 4
Key = tuple[int, ...]


def make(folder: Path, sequences: int, eval_sequences: int = 0, seed: int = 1) -> PreparedData:
    """One document whose sequences are all different: each is its number in four digits."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("".join(f"{number:04d}" for number in range(sequences)))
    spec = DataSpec(
        dataset=str(folder / "text.txt"), tokenizer="bytes", seq_len=SEQ_LEN, seed=seed, vocab_size=None,
        eval_sequences=eval_sequences, cache_dir=str(folder), storage_path=str(folder),
    )  # fmt: skip
    prepared = prepare(spec)
    assert prepared.n_total == sequences
    return prepared


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return make(tmp_path_factory.mktemp("hundred"), 103, eval_sequences=3)


def rank_step(step: list[dict[str, torch.Tensor]]) -> list[Key]:
    return [tuple(row) for micro in step for row in micro["input_ids"].tolist()]


def job_steps(
    prepared: PreparedData,
    *,
    world: int,
    micro: int,
    accumulate: int,
    steps: int,
    position: Position = Position(),
    split: SplitName = "train",
) -> list[tuple[list[Key], Position]]:
    """For each step the whole job's sequences in order of rank, and the position after it, which all ranks agree on."""
    ranks = []
    for rank in range(world):
        with open_batches(
            prepared,
            split=split,
            rank=rank,
            world_size=world,
            micro_batch=micro,
            accumulate=accumulate,
            position=position,
        ) as batches:
            ranks.append([(rank_step(step), batches.position) for step, _ in zip(batches, range(steps), strict=False)])
    merged = []
    for parts in zip(*ranks, strict=True):
        assert len({position for _, position in parts}) == 1
        merged.append(([key for keys, _ in parts for key in keys], parts[0][1]))
    return merged


@pytest.mark.parametrize(
    ("world", "micro", "accumulate"), [(1, 3, 1), (2, 3, 2), (3, 2, 1), (4, 1, 3), (8, 2, 1), (1, 1, 100)]
)
def test_every_sequence_is_trained_once_an_epoch(
    hundred: PreparedData, world: int, micro: int, accumulate: int
) -> None:
    batch = world * micro * accumulate
    epochs = 2
    steps = -(-epochs * hundred.n_train // batch)
    seen = [
        key
        for keys, _ in job_steps(hundred, world=world, micro=micro, accumulate=accumulate, steps=steps)
        for key in keys
    ]
    n = hundred.n_train
    first, second = seen[:n], seen[n : 2 * n]
    assert len(set(first)) == n and set(first) == set(second)
    assert first != second


def test_held_out_sequences_are_never_trained_and_evaluated_once(hundred: PreparedData) -> None:
    trained = {key for keys, _ in job_steps(hundred, world=1, micro=10, accumulate=1, steps=10) for key in keys}
    held_out = [
        key for keys, _ in job_steps(hundred, world=1, micro=3, accumulate=1, steps=9, split="eval") for key in keys
    ]
    assert len(held_out) == 3 and not trained & set(held_out)
    assert len(trained | set(held_out)) == 103


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_step_is_the_same_set_at_every_world_size_and_resume_continues_exactly(
    hundred: PreparedData, data: st.DataObject
) -> None:
    shapes = [(w, m, 12 // (w * m)) for w in (1, 2, 3, 4, 6, 12) for m in (1, 2, 3) if 12 % (w * m) == 0]
    world, micro, accumulate = data.draw(st.sampled_from(shapes))
    reference = job_steps(hundred, world=1, micro=12, accumulate=1, steps=20)
    stop = data.draw(st.integers(0, 12))
    position = reference[stop - 1][1] if stop else Position()
    resumed = job_steps(hundred, world=world, micro=micro, accumulate=accumulate, steps=6, position=position)
    for (keys, at), (wanted, wanted_at) in zip(resumed, reference[stop:], strict=False):
        assert Counter(keys) == Counter(wanted)
        assert keys == wanted  # even in the same order over ranks
        assert at == wanted_at


def test_position_across_the_epochs_end_counts_what_was_used(hundred: PreparedData) -> None:
    positions = [at for _, at in job_steps(hundred, world=2, micro=15, accumulate=1, steps=4)]
    assert positions == [Position(0, 30), Position(0, 60), Position(0, 90), Position(1, 20)]


def test_shapes_types_and_shifted_labels(hundred: PreparedData) -> None:
    with open_batches(
        hundred, split="train", rank=1, world_size=2, micro_batch=3, accumulate=2, position=Position()
    ) as batches:
        step = next(batches)
    assert len(step) == 2
    for micro in step:
        assert set(micro) == {"input_ids", "labels", "position_ids"}
        assert all(tensor.shape == (3, SEQ_LEN) and tensor.dtype == torch.int64 for tensor in micro.values())
        assert torch.equal(micro["labels"][:, :-1], micro["input_ids"][:, 1:])
        assert torch.equal(micro["position_ids"], torch.arange(SEQ_LEN).expand(3, -1))


def test_documents_do_not_predict_each_other_and_positions_restart(tmp_path: Path) -> None:
    for name, text in (("a", b"abc"), ("b", b"de"), ("c", b"fghijk")):
        (tmp_path / f"{name}.txt").write_bytes(text)
    spec = DataSpec(
        dataset=str(tmp_path), tokenizer="bytes", seq_len=6, seed=1, vocab_size=None, eval_sequences=0,
        cache_dir=str(tmp_path / "s"), storage_path=str(tmp_path / "s"),
    )  # fmt: skip
    with open_batches(
        prepare(spec), split="train", rank=0, world_size=1, micro_batch=1, accumulate=1, position=Position()
    ) as batches:
        rows = {}
        for _ in range(3):
            (micro,) = next(batches)
            rows[micro["input_ids"][0, 0].item()] = {name: tensor[0].tolist() for name, tensor in micro.items()}
    end, none = 256, -100
    # The stream: a b c EOS d e | EOS f g h i j | k EOS: 14 tokens, 13 with a successor, so 3 sequences of 6.
    assert rows[ord("a")] == {
        "input_ids": [*b"abc", end, *b"de"], "labels": [*b"bc", end, none, *b"e", end],
        "position_ids": [0, 1, 2, 3, 0, 1],
    }  # fmt: skip
    assert rows[end] == {"input_ids": [end, *b"fghij"], "labels": [none, *b"ghijk"], "position_ids": [0, 0, 1, 2, 3, 4]}
    assert rows[ord("k")] == {
        "input_ids": [*b"k", *[end] * 5], "labels": [end, *[none] * 5], "position_ids": [0, 1, 0, 0, 0, 0],
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_last_label_is_ignored_where_it_belongs_to_the_other_split(seed: int, tmp_path: Path) -> None:
    data = make(tmp_path, 12, eval_sequences=4, seed=seed)

    def rows(split: SplitName, count: int) -> dict[int, int]:
        with open_one(data, split=split, micro_batch=1) as batches:
            micros = [micro for (micro,), _ in zip(batches, range(count), strict=False)]
        return {int(bytes(micro["input_ids"][0].tolist())): int(micro["labels"][0, -1]) for micro in micros}

    trained, held_out = rows("train", data.n_train), rows("eval", data.n_eval)
    assert len(trained) == 8 and len(held_out) == 4
    for number, label in (trained | held_out).items():
        crosses = number != 11 and (number in held_out) != (number + 1 in held_out)
        assert (label == -100) == crosses, number


def test_evaluation_is_one_pass_of_equal_steps_filled_with_ignored_labels(hundred: PreparedData) -> None:
    for world in (1, 2, 4, 8):
        counts, seen = [], []
        for rank in range(world):
            with open_batches(
                hundred, split="eval", rank=rank, world_size=world, micro_batch=1, accumulate=1, position=Position()
            ) as batches:
                expected = len(batches)
                steps = list(batches)
            counts.append(len(steps))
            assert len(steps) == expected
            seen += [tuple(micro["input_ids"][0].tolist()) for (micro,) in steps if (micro["labels"] != -100).any()]
        assert set(counts) == {-(-3 // world)}
        assert len(seen) == 3 == len(set(seen))


def test_evaluation_without_held_out_sequences_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobUsageError, match="set --eval-sequences to at least 1"):
        open_batches(
            make(tmp_path, 4), split="eval", rank=0, world_size=1, micro_batch=1, accumulate=1, position=Position()
        )


def test_too_few_sequences_for_one_global_batch_are_refused_with_the_numbers(hundred: PreparedData) -> None:
    with pytest.raises(
        JobUsageError, match=r"takes 104 sequences .* only 100 of 4 tokens .* give more text, or lower --batch_size"
    ):
        open_batches(hundred, split="train", rank=0, world_size=8, micro_batch=13, accumulate=1, position=Position())


def test_position_of_other_data_is_refused(hundred: PreparedData) -> None:
    with pytest.raises(JobUsageError, match=r"Position\(epoch=0, index=101\) lies outside the train split of 100"):
        open_batches(
            hundred, split="train", rank=0, world_size=1, micro_batch=1, accumulate=1, position=Position(0, 101)
        )


def test_impossible_ranks_and_sizes_are_refused(hundred: PreparedData) -> None:
    for wrong in ({"rank": 2}, {"micro_batch": 0}, {"accumulate": 0}, {"prefetch": 0}):
        values: dict = {"rank": 0, "world_size": 2, "micro_batch": 1, "accumulate": 1} | wrong
        with pytest.raises(ValueError, match="sizes must be at least 1"):
            open_batches(hundred, split="train", position=Position(), **values)


def random_data(seed: int = 3, vocab_size: int | None = 1000) -> PreparedData:
    return prepare(
        DataSpec(
            dataset="random", tokenizer="bytes", seq_len=32, seed=seed, vocab_size=vocab_size, eval_sequences=8,
            cache_dir="unused", storage_path="unused",
        )
    )  # fmt: skip


def test_random_tokens_depend_on_seed_and_sequence_alone() -> None:
    data = random_data()
    one = job_steps(data, world=1, micro=8, accumulate=1, steps=3)
    assert one == job_steps(data, world=4, micro=1, accumulate=2, steps=3)
    assert one == job_steps(random_data(), world=2, micro=4, accumulate=1, steps=3)
    assert one != job_steps(random_data(seed=4), world=1, micro=8, accumulate=1, steps=3)
    tokens = np.array([key for keys, _ in one for key in keys])
    assert tokens.min() >= 0 and tokens.max() < 1000 and len(np.unique(tokens)) > 400


def test_random_needs_no_file_and_labels_are_shifted_throughout() -> None:
    with open_batches(
        random_data(vocab_size=None),
        split="train",
        rank=0,
        world_size=1,
        micro_batch=2,
        accumulate=1,
        position=Position(),
    ) as batches:
        (micro,) = next(batches)
    assert torch.equal(micro["labels"][:, :-1], micro["input_ids"][:, 1:])
    assert (micro["labels"] >= 0).all() and int(micro["input_ids"].max()) < 257
    assert not Path("unused").exists()


def open_one(prepared: PreparedData, **changes: object) -> Batches:
    values: dict = {
        "split": "train",
        "rank": 0,
        "world_size": 1,
        "micro_batch": 2,
        "accumulate": 1,
        "position": Position(),
    }
    return open_batches(prepared, **(values | changes))


def test_error_while_reading_surfaces_with_the_file_named(tmp_path: Path) -> None:
    prepared = make(tmp_path, 50)
    batches = open_one(prepared, prefetch=1)
    (shard,) = Path(prepared.folder).glob("*.npy")
    with shard.open("r+b") as file:
        file.truncate(200)
    with pytest.raises(JobError, match=rf"{shard.name} is cut short"):
        for _ in range(100):
            next(batches)
    with pytest.raises(JobError, match="cut short"):  # asking again does not hang
        next(batches)
    batches.close()


def test_reading_ahead_hides_the_time_of_reading(hundred: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_job import data_readers

    real = data_readers.ShardReader.read

    def slow(self: data_readers.ShardReader, ids: np.ndarray) -> data_readers.Arrays:
        time.sleep(0.02)
        return real(self, ids)

    monkeypatch.setattr(data_readers.ShardReader, "read", slow)
    with open_one(hundred, prefetch=2) as batches:
        next(batches)
        hidden = []
        for _ in range(5):
            time.sleep(0.06)
            next(batches)
            hidden.append(batches.data_wait_s)
        bare = []
        for _ in range(8):
            next(batches)
            bare.append(batches.data_wait_s)
    assert sorted(bare)[4] > 0.01  # truly measured where the step was not ready
    assert sorted(hidden)[2] < sorted(bare)[4] / 3  # and next to nothing where it was


def test_no_more_steps_are_read_ahead_than_asked_for(hundred: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_job import data_readers

    calls: list[int] = []
    real = data_readers.ShardReader.read

    def counted(self: data_readers.ShardReader, ids: np.ndarray) -> data_readers.Arrays:
        calls.append(len(ids))
        return real(self, ids)

    monkeypatch.setattr(data_readers.ShardReader, "read", counted)
    with open_one(hundred, prefetch=3) as batches:
        next(batches)
        deadline = time.monotonic() + 5
        while len(calls) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert len(calls) == 5  # one taken, three ready, one in the thread's hand


def test_close_is_prompt_and_ends_the_thread(hundred: PreparedData) -> None:
    before = threading.active_count()
    batches = open_one(hundred)
    next(batches)
    started = time.monotonic()
    batches.close()
    assert time.monotonic() - started < 0.5
    assert threading.active_count() == before
    assert list(batches) == []
    batches.close()


def test_training_batches_have_no_length(hundred: PreparedData) -> None:
    with open_one(hundred) as batches, pytest.raises(TypeError):
        len(batches)


def test_seed_changes_the_order_but_not_the_set(tmp_path: Path) -> None:
    one, two = make(tmp_path, 40, seed=1), make(tmp_path, 40, seed=2)
    assert one.folder == two.folder  # packed once
    first, second = (job_steps(data, world=1, micro=40, accumulate=1, steps=1)[0][0] for data in (one, two))
    assert first != second and sorted(first) == sorted(second)


def test_reading_is_faster_than_fifty_megabytes_of_tokens_a_second_and_core(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(bytes(range(32, 127)) * 40_000)
    spec = DataSpec(
        dataset=str(tmp_path / "t.txt"), tokenizer="bytes", seq_len=512, seed=1, vocab_size=None, eval_sequences=8,
        cache_dir=str(tmp_path), storage_path=str(tmp_path),
    )  # fmt: skip
    with open_one(prepare(spec), micro_batch=16) as batches:
        best = 0.0
        for _ in range(5):
            started, steps = time.process_time(), 100
            for _ in range(steps):
                next(batches)
            best = max(best, steps * 16 * 512 * 8 / (time.process_time() - started))
    assert best > 50e6
