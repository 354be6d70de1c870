"""``eks-ray-train train``: the whole way on this machine. A local Ray cluster, the job submitted to it as on EKS, resumed once."""

from __future__ import annotations

import argparse
import glob
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connect import Target
    from .local_ray import LocalCluster
    from .runs import RunResult

JOB_ARGUMENTS = "unknown"
STEPS = 100
WORKERS = 2
TEXT_BYTES = 8 * 1024**2
# What the job is given unless the user says otherwise (later words win).
MODEL = ("--model-config=configs/qwen2-tiny.json", "--tokenizer=bytes")
DEFAULTS = (*MODEL, "--seq_len=128", "--batch_size=4", "--learning_rate=2e-3", "--warmup-lr-steps=10", "--warmup_steps=3")
PATH_FLAGS = ("--dataset", "--model_config")
HUB_FLAGS = ("--tokenizer", "--model_id")  # a hub's name looks like a path: here only ./… is one

DESCRIPTION = """\
Start a Ray cluster on this machine that is shaped like the deployed one (a head without accelerators, two worker nodes),
submit job/ to it through the code that `submit` uses, train, resume in a second submission, judge, write a report.
Flags that are not listed here go to the job: --steps 200, --batch_size 8 …
"""
EXAMPLES = """\
examples:
  eks-ray-train train
  eks-ray-train train --steps 200 --sharding hybrid
  eks-ray-train train --keep-running          leaves the cluster up until Ctrl-C, to submit to it
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's flags; all others are the job's."""
    parser = subparsers.add_parser(
        "train", help="train and resume job/ on a Ray cluster on this machine", description=DESCRIPTION, epilog=EXAMPLES,
        usage="eks-ray-train train [--keep-running] [--report FILE] [flags of train.py]",
    )  # fmt: skip
    parser.add_argument("--keep-running", action="store_true", help="leave the local cluster up until Ctrl-C")
    parser.add_argument("--report", type=Path, metavar="FILE", help="where the JSON report goes (default: in the run's folder)")
    parser.add_argument("--out", type=Path, default=Path(".demo"), metavar="DIR", help="folder of runs (default: .demo)")
    parser.add_argument("--job-dir", type=Path, default=Path("job"), metavar="DIR", help="the job's folder (default: job)")


def run(args: argparse.Namespace) -> int:
    """Train and resume. Exit code: the worse one of both runs (0, 3 or 4)."""
    import json
    import time

    from .connect import connect
    from .job_check import check_job
    from .local_ray import LocalCluster
    from .package_dir import build_package
    from .runs import flag_value, new_submission_id
    from .writable import check_writable, told_as_usage

    check_writable(args.out, "--out", folder=True)
    if args.report:
        check_writable(args.report, "--report")
    total = total_steps(args.job_args)
    given = seen_from_here(args.job_args, args.job_dir)
    defaults = DEFAULTS if flag_value(given, "--model_id") is None else DEFAULTS[len(MODEL) :]
    check_job("train", args.job_dir, [*defaults, *given, f"--steps={total}"])
    package = build_package(args.job_dir)
    name = new_submission_id("demo")
    folder = args.out.absolute() / name
    job_args = list(defaults)
    if flag_value(given, "--dataset") is None:
        with told_as_usage("--out", folder):
            job_args.append(f"--dataset={write_text(folder / 'text')}")
    job_args += [f"--storage-path={folder / 'checkpoints'}", f"--run-name={name}", *given]

    began = time.monotonic()
    print("starting Ray on this machine: a head without CPUs and two worker nodes", file=sys.stderr, flush=True)
    with LocalCluster(workers=WORKERS, env={"EKS_RAY_TRAIN_CACHE_DIR": str(folder / "cache")}) as cluster:
        print(f"Ray is up at {cluster.address} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        with connect(cluster.address, token=cluster.token) as target:
            results = train_and_resume(target, job_args, total=total, package=package, name=name, as_json=args.json)
        document = report(results, folder, args.report, about=target.to_json())
        if args.json:
            print(json.dumps(document), flush=True)
        if args.keep_running:
            _keep(cluster, args.job_dir)
    return int(document["exit_code"])


def total_steps(job_args: list[str]) -> int:
    """Steps of both submissions together. Raises UsageError for fewer than two, before anything is started."""
    from eks_ray_train.errors import UsageError

    from .runs import flag_value, whole_number

    text = flag_value(job_args, "--steps") or str(STEPS)
    if (steps := whole_number(text)) is None or steps < 2:
        raise UsageError(f"--steps must be at least 2 here (some to train, the rest to resume), got {text[:40]!r}; for example --steps 20")
    return steps


def seen_from_here(job_args: list[str], job_dir: Path) -> list[str]:
    """The job's flags, with paths that are there from the user's folder, and not from the job's, made absolute.

    The job runs in its own folder: what lies there is meant as before.
    """
    from .runs import flag_value

    found = list(job_args)
    for flag in (*PATH_FLAGS, *HUB_FLAGS):
        value = flag_value(job_args, flag)
        if value is None or value == "random" or "://" in value or (flag in HUB_FLAGS and not value.startswith(".")):
            continue
        if _is_there(value, job_dir) or not _is_there(value, Path()):
            continue
        here = Path.cwd()
        # A folder's own name may hold what a pattern would take for one of its signs.
        absolute = str(here / value) if Path(value).exists() else os.path.join(glob.escape(str(here)), value)  # noqa: PTH118
        found.append(f"{flag}={absolute}")  # later words win
    return found


def _is_there(path: str, folder: Path) -> bool:
    return (folder / path).exists() or any(glob.iglob(path, root_dir=folder, recursive=True))  # noqa: PTH207


def train_and_resume(
    target: Target, job_args: list[str], *, total: int, package: Any, name: str, as_json: bool
) -> list[RunResult]:
    """Two submissions of the same run: three quarters of the steps, then the rest from the checkpoint.

    Ctrl-C is never asked about, unlike in ``submit``: no run outlives the cluster, which ends with this command.
    """
    from .follow import follow
    from .run_view import RunView
    from .runs import RunRequest, finish_run, make_judge, submit_run, tell_result

    results: list[RunResult] = []
    for part, steps in (("train", max(1, total * 3 // 4)), ("resume", total)):
        request = RunRequest(job_args=[*job_args, f"--steps={steps}"], package=package, expect="none")
        submission_id = f"{name}-{part}"
        what = f"train to step {steps}" if part == "train" else f"resume in a new submission, to step {steps}"
        print(f"\n{what}", file=sys.stderr, flush=True)
        submit_run(target, request, submission_id=submission_id, tell=sys.stderr)
        judge = make_judge(target, request)
        view = RunView(out=sys.stderr if as_json else sys.stdout, judge=judge)
        try:
            end = follow(target.client, submission_id, on_lines=view.on_lines, notice=view.notice)
        except KeyboardInterrupt:
            view.notice(f"stopping {submission_id} and the local cluster")
            raise
        finally:
            view.close()
        result = finish_run(end, submission_id=submission_id, view=view, judge=judge)
        tell_result(result, sys.stderr)
        results.append(result)
        if result.exit_code:
            break
    return results


def report(results: list[RunResult], folder: Path, copy: Path | None, *, about: dict[str, Any]) -> dict[str, Any]:
    """Write the report of both runs and of the cluster (``about``); returns its document. Raises JobFailedError where the second run did not resume."""
    from eks_ray_train.errors import ExitCode, JobFailedError

    from .events import number
    from .run_report import write_reports
    from .writable import told_as_usage

    code = max((int(result.exit_code) for result in results), default=0)
    records = [result.record for result in results]
    first, last = (number(steps[0].get("loss")) if steps else None for steps in (records[0].steps, records[-1].steps[-1:]))
    document: dict[str, Any] = {
        **results[-1].to_json(),
        **about,
        "started_utc": results[0].to_json()["started_utc"],
        "exit_code": code,
        "submissions": [result.submission_id for result in results],
        "first_loss": first,
        "trained_steps": records[0].steps_done,
        "resumed_from_step": records[-1].restarts[0].get("step") if len(results) > 1 and records[-1].restarts else None,
        "wall_time_s": sum(result.info.seconds or 0.0 for result in results),
        "folder": str(folder),
    }
    names = ["train", "resume"]
    page = write_reports(folder, document, list(zip(names, records, strict=False)), title="Local training run")
    if copy is not None:
        with told_as_usage("--report", copy):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((folder / "report.json").read_bytes())
    if code == ExitCode.OK and len(results) > 1 and document["resumed_from_step"] != document["trained_steps"]:
        raise JobFailedError(
            f"the second submission did not go on from step {document['trained_steps']} "
            f"(it said {document['resumed_from_step']}); see {folder / 'report.json'}"
        )
    if first is not None and last is not None:
        print(
            f"loss {first:.3f} at step {records[0].steps[0]['step']} -> {last:.3f} at step {records[-1].steps[-1]['step']}"
            + (f", resumed at step {document['resumed_from_step']}" if document["resumed_from_step"] is not None else ""),
            file=sys.stderr,
        )
    print(f"report: {page} (numbers: {folder / 'report.json'})", file=sys.stderr, flush=True)
    return document


def write_text(folder: Path, *, limit_bytes: int = TEXT_BYTES) -> Path:
    """Real text that every machine with Python has: the sources of its standard library, one document a file, as JSON lines.

    Sorted by name, so the same Python gives the same data. Raises UsageError where there are none.
    """
    import json
    import sysconfig

    from eks_ray_train.errors import UsageError

    library = Path(sysconfig.get_paths()["stdlib"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python-stdlib.jsonl"
    written = 0
    with path.open("w", encoding="utf-8") as out:
        for source in sorted(library.rglob("*.py")):
            if {"site-packages", "test", "tests", "idlelib"} & set(source.relative_to(library).parts):
                continue
            text = source.read_text(encoding="utf-8", errors="replace")
            if written + len(text) > limit_bytes:
                break
            if text.strip():
                out.write(json.dumps({"text": text}) + "\n")
                written += len(text)
    if not written:
        raise UsageError(f"this Python has no sources of its standard library in {library}; give the job --dataset FILE")
    print(f"text: {written / 1024**2:.1f} MiB of Python's standard library ({path})", file=sys.stderr, flush=True)
    return path


def _keep(cluster: LocalCluster, job_dir: Path) -> None:
    import shlex

    from .dashboard import wait_for_interrupt

    own = "" if job_dir == Path("job") else f" --job-dir {shlex.quote(str(job_dir))}"
    model = " ".join(MODEL).replace("=", " ")  # without it the job takes a model of 1.5 B parameters from the hub
    print(
        f"\nthe cluster stays up until Ctrl-C; in another terminal:\n  export RAY_AUTH_TOKEN={cluster.token}\n"
        f"  eks-ray-train submit --address {cluster.address}{own} -- {model} --steps 5",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    wait_for_interrupt()
