"""A verdict as JUnit XML, so that any CI shows it: one suite a run, one case for the run and one for every node.

Follows the schema that Jenkins, GitLab and Ant's formatter share (attributes and order of elements):
https://github.com/junit-team/junit5/blob/main/platform-tests/src/test/resources/jenkins-junit.xsd
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from eks_ray_train.gate.answer import NodeVerdict, Verdict

# XML 1.0 has no way to write these, not even escaped.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(
    verdict: Verdict, *, run: str = "run", timestamp: str = "1970-01-01T00:00:00", seconds: float = 0.0
) -> str:
    """The document. ``timestamp``: ISO 8601 without zone, when the verdict was made; ``seconds``: how long the run took.

    A run that fails for itself (job status, too few nodes) fails in its own case, so that a run of which no node was seen
    is red too; names hold no result, so that CI can follow a case over time; a run that is not judged is skipped, unless its job failed.
    """
    cases = [_run_case(verdict, run), *(_node_case(verdict, node, run) for node in verdict.nodes)]
    failures = sum(case.find("failure") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    counts = {"tests": str(len(cases)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    root = Xml.Element("testsuites")
    suite = Xml.SubElement(
        root,
        "testsuite",
        {
            "name": _clean(f"transport gate: {run}"),
            "package": "eks_ray_train.gate",
            "id": "0",
            "hostname": "localhost",
            "timestamp": timestamp,
            "time": f"{seconds:.3f}",
            **counts,
        },
    )
    properties = Xml.SubElement(suite, "properties")
    for name, value in verdict.to_json().items():
        if isinstance(value, str | int):
            Xml.SubElement(properties, "property", {"name": name, "value": _clean(str(value))})
    suite.extend(cases)
    Xml.SubElement(suite, "system-out").text = _clean("\n".join(verdict.reasons))
    Xml.SubElement(suite, "system-err").text = ""
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _clean(text: str) -> str:
    return _ILLEGAL.sub("�", text)


def _case(name: str, run: str) -> Xml.Element:
    return Xml.Element("testcase", {"name": _clean(name), "classname": _clean(f"gate.{run}"), "time": "0.000"})


def _fail(case: Xml.Element, kind: str, reasons: list[str]) -> None:
    failure = Xml.SubElement(case, "failure", {"type": kind, "message": _clean(reasons[0])})
    failure.text = _clean("\n".join(reasons))


def _run_case(verdict: Verdict, run: str) -> Xml.Element:
    case = _case("the run", run)
    if verdict.outcome == "fail":
        _fail(case, "gate", list(verdict.reasons))
    elif verdict.exit_code:
        _fail(case, "job", list(verdict.reasons) or [verdict.job_status])
    elif verdict.outcome == "not-judged":
        Xml.SubElement(case, "skipped", {"message": "not judged: no transport is expected"})
    return case


def _node_case(verdict: Verdict, node: NodeVerdict, run: str) -> Xml.Element:
    case = _case(node.node, run)
    if node.reasons:
        _fail(case, "transport", list(node.reasons))
    elif verdict.outcome == "not-judged":
        Xml.SubElement(case, "skipped", {"message": "not judged: no transport is expected"})
    if node.evidence:
        Xml.SubElement(case, "system-out").text = _clean("\n".join(node.evidence))
    return case
