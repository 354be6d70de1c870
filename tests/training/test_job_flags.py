"""The job's command line is public: its flags are frozen here, and mistakes get one clear message at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_job.config import JobConfig, plan_batch
from fsdp_job.errors import JobUsageError
from fsdp_job.flags import build_parser, parse_args
from fsdp_job.optim import learning_rate

FLAGS = {
    "--model-id", "--model-config", "--steps", "--seq-len", "--batch-size", "--learning-rate", "--num-workers",
    "--warmup-steps", "--dataset", "--tokenizer", "--sharding", "--activation-checkpointing", "--compile", "--no-compile",
    "--precision", "--accumulate", "--max-grad-norm", "--warmup-lr-steps", "--schedule", "--seed", "--checkpoint-every",
    "--keep", "--storage-path", "--run-name", "--resume", "--max-failures", "--min-workers", "--eval-every",
    "--eval-sequences", "--profile", "--export", "--wait-seconds", "--collective-timeout-seconds", "--help",
}  # fmt: skip
SAMPLE = "--model_id Qwen/Qwen2.5-1.5B --steps 5 --seq_len 128 --batch_size 1 --learning_rate 2e-5 --num_workers 8 --warmup_steps 3"


def train(*words: str) -> tuple[subprocess.CompletedProcess[str], float]:
    script = Path(__file__).resolve().parents[2] / "job" / "train.py"
    began = time.monotonic()
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=120)
    return done, time.monotonic() - began


def test_flags_are_exactly_those_of_the_contract() -> None:
    have = {option for action in build_parser()._actions for option in action.option_strings if option.startswith("--")}
    assert have == FLAGS


def test_the_samples_command_line_works_as_it_is() -> None:
    cfg = parse_args(SAMPLE.split())
    assert (cfg.model_id, cfg.steps, cfg.seq_len, cfg.batch_size) == ("Qwen/Qwen2.5-1.5B", 5, 128, 1)
    assert (cfg.learning_rate, cfg.num_workers, cfg.warmup_steps, cfg.dataset) == (2e-5, 8, 3, "random")
    assert parse_args([]) == JobConfig()


@settings(deadline=None)
@given(st.sampled_from(sorted(FLAGS - {"--compile", "--no-compile", "--help"})), st.data())
def test_every_flag_takes_dashes_and_underscores(name: str, data: st.DataObject) -> None:
    kinds = {a.option_strings[0]: a for a in build_parser()._actions if a.option_strings}
    action = kinds[name]
    value = action.choices[0] if action.choices else {int: "3", float: "0.5"}.get(action.type, "x")  # type: ignore[index, arg-type, call-overload]
    spelled = "--" + "".join(data.draw(st.sampled_from("-_")) if c == "-" else c for c in name[2:])
    together = data.draw(st.booleans())
    words = [f"{spelled}={value}"] if together else [spelled, value]
    assert parse_args(words) == parse_args([name, value])


def test_values_keep_their_underscores_and_may_begin_with_dashes_after_an_equals_sign() -> None:
    assert parse_args(["--run_name=my_run", "--dataset", "a_b/c_d.txt"]).run_name == "my_run"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--stepz", "4"], "unknown flag --stepz (did you mean --steps?)"),
        (["--step", "4"], "unknown flag --step (did you mean --steps?)"),
        (["stray"], "unexpected argument stray"),
        (["--steps", "many"], "invalid int value: 'many'"),
        (["--sharding", "half"], "invalid choice: 'half'"),
        (["--steps", "0", "--seq-len", "0"], "--steps must be at least 1, got 0; leave it out to get the default (5)\n--seq-len must be at least 1"),
        (["--num-workers", "0"], "--num-workers must be at least 1, got 0; leave it out to get what fits the cluster"),
        (["--steps", "9" * 30], "--steps must be at most 2147483647, got 99999999999999999999…"),
        (["--steps", "9" * 9999], "argument --steps: invalid int value"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--run-name", ".."], "--run-name must be a plain folder name, got '..'"),
        (["--learning-rate", "nan"], "--learning-rate must be a positive number, got nan"),
        (["--min-workers", "4", "--num-workers", "2"], "--min-workers must be at most --num-workers (2), got 4"),
        (["--model-id", "a", "--model-config", "b"], "exclude each other"),
        (["--run-name", "a/b"], "--run-name must be a plain folder name, got 'a/b'"),
    ],
)
def test_mistakes_are_named_with_the_remedy(words: list[str], said: str) -> None:
    with pytest.raises(JobUsageError) as caught:
        parse_args(words)
    assert said in str(caught.value)
    for problem in str(caught.value).splitlines():
        assert re.search(r"leave .*out|lower|give|see python train\.py --help", problem), problem


def test_help_and_mistakes_answer_at_once_without_torch() -> None:
    done, seconds = train("--help")
    assert done.returncode == 0
    assert "--checkpoint-every" in done.stdout
    assert seconds < 2
    done, seconds = train("--no-such-flag")
    assert done.returncode == 2
    assert seconds < 2
    assert "Traceback" not in done.stderr
    event = json.loads(done.stdout)
    assert (event["event"], event["status"], event["exit_code"]) == ("done", "failed", 2)


def test_a_missing_model_config_is_exit_2_with_a_done_event() -> None:
    done, seconds = train("--model-config", "nowhere.json")
    assert done.returncode == 2
    assert seconds < 2
    assert "no such file: nowhere.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["error"]["type"] == "ModelError"


def test_numbers_of_a_step() -> None:
    cfg = JobConfig(batch_size=2, accumulate=3, seq_len=128)
    assert cfg.sequences_per_step(8) == 48
    assert cfg.tokens_per_step(8) == 48 * 128
    assert JobConfig().effective_max_failures == 0
    assert JobConfig(checkpoint_every=5).effective_max_failures == 3
    assert JobConfig(checkpoint_every=5, max_failures=0).effective_max_failures == 0


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 16))
def test_any_cut_of_the_global_batch_keeps_it_and_never_needs_more_memory(world: int, batch: int, start: int) -> None:
    total = batch * start
    if total % world:
        with pytest.raises(JobUsageError, match="world sizes that divide it"):
            plan_batch(global_batch=total, batch_size=batch, world_size=world)
        return
    plan = plan_batch(global_batch=total, batch_size=batch, world_size=world)
    assert plan.global_batch == total
    assert plan.micro_batch <= batch


def test_the_learning_rate_warms_up_and_decays_as_said() -> None:
    more: dict[str, Any] = {"learning_rate": 1.0, "warmup_lr_steps": 4, "steps": 14}
    constant = JobConfig(**more)
    assert [learning_rate(constant, step) for step in (1, 2, 4, 5, 14)] == [0.25, 0.5, 1.0, 1.0, 1.0]
    cosine = JobConfig(**more, schedule="cosine")
    values = [learning_rate(cosine, step) for step in range(4, 15)]
    assert values == sorted(values, reverse=True)
    assert values[0] == 1.0
    assert values[-1] == pytest.approx(0.1)
