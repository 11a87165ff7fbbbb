"""Requests about the monitor: one method a request (S2.13)."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import WrapValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.models import ExistsError, Registers, ShortPolicy
from app.api.server.routing import Endpoints, WholeNumber, created, endpoint_of, route, serves
from bpf.errors import UsageError
from probes.control_plane import RemoteCalls
from probes.monitor.info import PolicyInfo
from probes.monitor.policy import Policy


def _parse(value: Any, _: Callable[[Any], Policy]) -> Policy:
    """Parse a policy; errors read like errors of a file."""
    if isinstance(value, bytes):
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a policy is sent as JSON")
    if isinstance(value, dict) and value.keys() == {"short"} and isinstance(value["short"], str):
        return Policy.parse_short(value["short"])
    return Policy.parse(value, "request")


Offered = Annotated[Policy, WrapValidator(_parse, json_schema_input_type=Policy | ShortPolicy)]


_POLICIES = "/v1/monitor/policies"
_POLICY = f"{_POLICIES}/{{name}}"


class MonitorEndpoints(Endpoints):
    """Requests about the monitor."""

    monitor = endpoint_of(RemoteCalls.monitor)

    @route("GET", _POLICIES)
    def policies(self) -> tuple[PolicyInfo, ...]:
        """List all policies and their states; empty without a monitor."""
        return tuple(self.policies_by_name().values())

    @route("GET", _POLICY, 404)
    def policy(self, name: str) -> PolicyInfo:
        """Return one policy."""
        return self.find_policy(name)

    @route("POST", _POLICIES, 415, writes=True, status_code=201)
    def add_policy(self, policy: Offered, request: Request, response: Response) -> PolicyInfo:
        """Add a policy: an object, or `{"short": "NAME: CONDITION -> RUN"}`."""
        self.may_act(policy, request)
        response.headers["location"] = f"/v1/monitor/policies/{policy.name}"
        if policy.name in self.policies_by_name():
            raise ExistsError(f"there is a policy {policy.name}", hint="replace it")
        return self.plane.set_policy(policy)

    @serves(RemoteCalls.set_policy, 415, responses=created(PolicyInfo))
    def set_policy(
        self, name: str, policy: Offered, request: Request, response: Response
    ) -> PolicyInfo:
        """Add a policy, or replace the policy of this name; running applications continue."""
        self.may_act(policy, request)
        if policy.name != name:
            raise UsageError(f"the policy is {policy.name}, not {name}")
        if name not in self.policies_by_name():
            response.status_code = HTTPStatus.CREATED
        return self.plane.set_policy(policy)

    remove_policy = endpoint_of(RemoteCalls.remove_policy)

    @serves(RemoteCalls.activate_policy, 404)
    def activate_policy(self, name: str, request: Request) -> PolicyInfo:
        """Run a policy now, until it is deactivated."""
        self.may_act(self.find_policy(name).policy, request)
        return self.plane.activate_policy(name)

    deactivate_policy = endpoint_of(RemoteCalls.deactivate_policy)

    @serves(RemoteCalls.sketch, 409, 422, response_model=Registers)
    def sketch(
        self, windows: Annotated[WholeNumber, Query(ge=1, le=1_000_000)] = 1
    ) -> dict[str, int | float | str]:
        """Return the merged registers of the last windows. Registers of several hosts with the same
        seed and bits merge by the larger of each pair."""
        return self.plane.sketch(windows).to_dict()
