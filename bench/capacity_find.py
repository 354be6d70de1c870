"""How long ``capacity find`` takes over 20 regions of 6 zones where every AWS call takes 100 ms. Must stay under 5 s.

Real boto3 clients, parsers and threads; only the wire is replaced: each request sleeps 100 ms and gets a canned answer.
The baseline asks the same calls one region after the other, as the published sample's script does.

    python bench/capacity_find.py            prints the figures and writes bench/results/capacity_find.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

REGIONS = [f"xx-north-{n}" for n in range(1, 21)]
ZONES = "abcdef"
CALL_SECONDS = 0.1
LIMIT_SECONDS = 5.0
RESULT = Path(__file__).parent / "results" / "capacity_find.json"
calls = 0


def answer(operation: str, region: str) -> str:
    """What AWS would say; ids as EC2 writes them."""
    zones = [(f"{region}{z}", f"{region.replace('-', '')}-az{n}") for n, z in enumerate(ZONES, 1)]
    if operation == "DescribeAvailabilityZones":
        items = "".join(
            f"<item><zoneName>{n}</zoneName><zoneId>{i}</zoneId><zoneState>available</zoneState>"
            "<zoneType>availability-zone</zoneType></item>"
            for n, i in zones
        )
        return f"<R><availabilityZoneInfo>{items}</availabilityZoneInfo></R>"
    if operation == "DescribeInstanceTypeOfferings":
        items = "".join(
            f"<item><instanceType>g6.12xlarge</instanceType><location>{i}</location></item>" for _, i in zones
        )
        return f"<R><instanceTypeOfferingSet>{items}</instanceTypeOfferingSet></R>"
    if operation == "GetServiceQuota":
        return json.dumps({"Quota": {"QuotaCode": "L-DB2E81BA", "Value": 960.0}})
    if operation == "GetProducts":
        return json.dumps({"PriceList": []})
    if operation == "GetCallerIdentity":
        return "<R><GetCallerIdentityResult><Account>111122223333</Account></GetCallerIdentityResult></R>"
    return "<R/>"


class _Raw:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self, **_: Any) -> Any:
        yield self._data


def replace_the_wire(session: Any) -> None:
    """Every request of the session sleeps and gets its canned answer."""

    def send(request: Any, event_name: str, **_: Any) -> AWSResponse:
        global calls
        calls += 1
        time.sleep(CALL_SECONDS)
        operation = event_name.rsplit(".", 1)[-1]
        region = request.url.split("//")[1].split(".")[1]
        body = answer(operation, region).encode()
        return AWSResponse(request.url, 200, HTTPHeaders.from_dict({"content-type": "text/xml"}), _Raw(body))

    session.events.register("before-send", send)


def main() -> int:
    """Measures the command and the one-after-the-other baseline; exit code 1 where the limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs of the command; the slowest counts (default: 3)")
    args = parser.parse_args()
    os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="x", AWS_DEFAULT_REGION=REGIONS[0])
    import boto3

    from eks_ray_train.capacity.find import survey_region
    from eks_ray_train.capacity.model import Need
    from eks_ray_train.cli import __main__ as cli
    from eks_ray_train.cli.capacity_account import Account

    make = boto3.Session

    def wired(*a: Any, **k: Any) -> Any:
        session = make(*a, **k)
        replace_the_wire(session)
        return session

    boto3.Session = wired  # type: ignore[misc,assignment]
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    for _ in range(args.repeat):
        start, cpu = time.perf_counter(), time.process_time()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = cli.main(["capacity", "find", "--regions", ",".join(REGIONS), "--json"])
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu)
        assert code == 0, code
    made = calls // args.repeat
    account = Account(REGIONS[0])
    need = Need(instance_type="g6.12xlarge", nodes=2, vcpus_per_node=48, quota_code="L-DB2E81BA")
    start = time.perf_counter()
    for region in REGIONS:
        survey_region(region, account.aws_of(region), need, account.id, None, 0)
    baseline = time.perf_counter() - start
    result = {
        "regions": len(REGIONS),
        "zones": len(ZONES),
        "call_seconds": CALL_SECONDS,
        "calls": made,
        "seconds": [round(s, 2) for s in seconds],
        "cpu_seconds": [round(s, 2) for s in cpu_seconds],
        "one_after_the_other_seconds": round(baseline, 2),
        "limit_seconds": LIMIT_SECONDS,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2), file=sys.stderr)
    return 0 if max(seconds) < LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
