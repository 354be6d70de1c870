"""The attempts of one ``up``: place after place, each cleaned up before the next."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eks_ray_train.capacity.find import Candidate, Verdict, rank
from eks_ray_train.capacity.quota import increase_command
from eks_ray_train.errors import EksRayTrainError, NoCapacityError, UsageError

from . import capacity_view
from .cdk_json import Changes
from .consent import note
from .deployment import Deployment
from .places import Search
from .stack_failure import Kind, clean, show, verdict
from .stack_state import TRAINING

CDK_JSON = Path("cdk.json")


@dataclass
class Attempts:
    """``home``: the region of a network that stood before; it is never taken away."""

    search: Search
    deployment: Deployment
    home: str | None = None
    tried: list[Candidate] = field(default_factory=list)  # verdict and why as they turned out
    # A run lasts up to an hour, in which cdk.json may be edited: only the run's own values are ever put back.
    changes: Changes = field(default_factory=lambda: Changes(CDK_JSON))

    def run(self) -> Candidate:
        """The place that worked. Raises NoCapacityError where none did, EksRayTrainError for any other failure."""
        region = self.home
        while True:
            place = self.search.next(
                region, uuid.uuid4().hex, lambda c: note(f"asking EC2 for the nodes in {c.zone} …")
            )
            if place is not None:
                region = place.region
                if self._attempt(place):
                    return place
            elif region is None:
                self._put_back()
                raise no_place(self.search, self.tried)
            else:
                self._leave(region)
                region = None

    def document(self) -> list[dict[str, Any]]:
        """Every attempt for ``--json``."""
        return [capacity_view.candidate_json(c) for c in self.tried]

    def _attempt(self, place: Candidate) -> bool:
        """True where the deploy worked, False where the place has no capacity and was cleaned up."""
        updates = self.search.updates(place)
        self.deployment.bootstrap(place.region)
        # Before anything is made: a second run goes on here, and `down` finds it.
        try:
            self.changes.write(updates)
        except UsageError as unwritten:
            raise UsageError(f"{unwritten}\n{self._what_stands(place.region)}") from None
        note(f"cdk deploy --all in {place.region}, GPU nodes in {place.zone}")
        failures = self.deployment.deploy(place.region, updates)
        if failures is None:
            self.tried.append(replace(place, verdict=Verdict.PROVEN, why="deployed"))
            return True
        kind = verdict(failures)
        if kind is not Kind.CAPACITY:
            error = self.deployment.explained(f"cdk deploy failed in {place.region}, {place.zone}", failures)
            rest = self._what_stands(place.region)
            if kind is Kind.QUOTA:
                command = increase_command(self.search.need, place.quota, place.region)
                rest = f"ask for quota: {command}\n{rest}"
            raise type(error)(f"{error}\n{rest}")
        note(f"no capacity in {place.zone}:\n{show(failures)}")
        self.tried.append(replace(place, verdict=Verdict.REFUSED, why=clean(failures[0].reason).splitlines()[0][:200]))
        if TRAINING in self.deployment.states(place.region):
            note("taking away the training stack only; network and cluster stay for the next zone")
            self.deployment.destroy(place.region, updates, (TRAINING,), exclusively=True)
        return False

    def _put_back(self) -> None:
        """cdk.json says again what it said; where it cannot, that must not hide why no place was found."""
        try:
            self.changes.put_back()
        except UsageError as error:
            note(f"cdk.json still names the place that was tried last: {error}")

    def _leave(self, region: str) -> None:
        """Takes away what this run made in a region without capacity."""
        others = [c for c in self.search.promising if c.region != region]
        if region == self.home:
            if not others:
                error = no_place(self.search, self.tried)
                raise NoCapacityError(f"{error}\n{self._what_stands(region)}")
            raise NoCapacityError(
                f"{no_place(self.search, self.tried)}\n{others[0].region} may have them, but network and cluster "
                f"stand in {region} "
                f"from before: run `eks-ray-train down`, then `eks-ray-train up --regions {others[0].region}`"
            )
        if self.deployment.states(region):
            note(f"no zone of {region} has the nodes: taking away what was made there")
            self.deployment.destroy(region, {"region": region})

    def _what_stands(self, region: str) -> str:
        try:
            states = [s for s in self.deployment.states(region).values() if s.stands]
        except EksRayTrainError as error:
            return f"what stands in {region} is not known: {error}"
        if not states:
            return f"no stack stands in {region}; run `{self.deployment.again}` again once that is solved"
        return (
            f"standing in {region}: {', '.join(map(str, states))}. They cost money: run `{self.deployment.again}` "
            "once that is solved, "
            "or `eks-ray-train down`"
        )


def no_place(search: Search, tried: Sequence[Candidate]) -> NoCapacityError:
    """Exit code 5 with the ranked table and, where the quota is short, the command that asks for more."""
    every = rank([*tried, *search.candidates])
    lines = [f"no place can start {search.need} now", capacity_view.table(every)]
    for finding in search.findings:
        lines += [f"{finding.region}: {column}: {why}" for column, why in finding.unknown.items()]
    lines += [f"ask for quota: {command}" for command in capacity_view.increases(every, search.need)[:3]]
    lines.append("try more regions (--regions R,R or --all-regions), fewer nodes, another gpu_instance_type, or later")
    return NoCapacityError("\n".join(lines))
