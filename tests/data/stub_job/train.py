"""A job for tests of ``submit``: the first word says what it does. Event lines as the real job writes them."""

import json
import sys
import time


def event(name: str, **fields: object) -> None:
    print(json.dumps({"event": name, **fields}), flush=True)


def steps(count: int) -> None:
    event("config", steps=count, parameters=1_000_000, world_size=2, nodes=2, device="cpu", backend="gloo", tokens_per_step=64)
    for step in range(1, count + 1):
        event("step", step=step, steps=count, loss=4.0 / step, tokens_per_s=1000.0, mfu=0.5, step_s=0.01)
    event("done", status="succeeded", steps=count, final_loss=4.0 / count, wall_s=1.0, error=None)


def lines(count: int, pause_every: int = 0) -> None:
    for number in range(count):
        print(f"line {number} " + "x" * (number % 97))
        if pause_every and number % pause_every == 0:
            sys.stdout.flush()
            time.sleep(0.1)


def binary() -> None:
    out = sys.stdout.buffer
    out.write(b"before\n\xff\xfe\x00\x80 not text\rcarriage\n")
    out.write(b"long " + b"y" * 1024**2 + b"\n")
    out.write(b"after\n")
    out.flush()


def rank_one_raises() -> None:
    import ray.train
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    def worker() -> None:
        import torch
        import torch.distributed as dist

        if ray.train.get_context().get_world_rank() == 1:
            raise ValueError("the second rank met a bad sample")
        dist.all_reduce(torch.ones(1))

    TorchTrainer(worker, scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})).fit()


def main(words: list[str]) -> int:
    what, *rest = words
    if what == "steps":
        steps(int(rest[0]))
    elif what == "lines":
        lines(*map(int, rest))
    elif what == "binary":
        binary()
    elif what == "rank-one-raises":
        rank_one_raises()
    elif what == "sleep":
        print("sleeping", flush=True)
        time.sleep(float(rest[0]))
    elif what == "env":
        import os

        print(json.dumps({name: os.environ.get(name) for name in rest}))
    elif what == "argv":
        print(json.dumps(rest))
    return 3 if what == "fail" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
