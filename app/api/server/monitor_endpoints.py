"""Requests about the monitor: one method a request (S2.13)."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from fastapi import Query
from pydantic import WrapValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.models import ExistsError, Registers, ShortPolicy
from app.api.server.routing import CHANGE, Endpoints, WholeNumber, created, find, route
from bpf.errors import UsageError
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.policy import Policy

_T = TypeVar("_T")


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

    @route("GET", "/v1/monitor")
    def monitor(self) -> MonitorInfo | None:
        """Return the monitor, its policies and applications; null if it does not run."""
        return self.plane.monitor()

    @route("GET", _POLICIES)
    def policies(self) -> tuple[PolicyInfo, ...]:
        """List all policies and their states; empty without a monitor."""
        return self._policies()

    @route("GET", _POLICY, 404)
    def policy(self, name: str) -> PolicyInfo:
        """Return one policy."""
        return self._find(name)

    @route("POST", _POLICIES, *CHANGE, 415, status_code=201)
    def add_policy(self, policy: Offered, response: Response) -> PolicyInfo:
        """Add a policy: an object, or `{"short": "NAME: CONDITION -> RUN"}`."""
        response.headers["location"] = f"/v1/monitor/policies/{policy.name}"
        self.may_change()
        if any(info.policy.name == policy.name for info in self._policies()):
            raise ExistsError(f"there is a policy {policy.name}", hint="replace it")
        return self.plane.set_policy(policy)

    @route("PUT", _POLICY, *CHANGE, 415, responses=created(PolicyInfo))
    def set_policy(self, name: str, policy: Offered, response: Response) -> PolicyInfo:
        """Add a policy, or replace the policy of this name; running applications continue."""
        self.may_change()
        if policy.name != name:
            raise UsageError(f"the policy is {policy.name}, not {name}")
        if all(info.policy.name != name for info in self._policies()):
            response.status_code = HTTPStatus.CREATED
        return self.plane.set_policy(policy)

    @route("DELETE", _POLICY, *CHANGE, 404, status_code=204)
    def remove_policy(self, name: str) -> None:
        """Remove a policy."""
        self._change(self.plane.remove_policy, name)

    @route("POST", f"{_POLICY}/activate", *CHANGE, 404)
    def activate_policy(self, name: str) -> PolicyInfo:
        """Run its applications until the policy is deactivated."""
        return self._change(self.plane.activate_policy, name)

    @route("POST", f"{_POLICY}/deactivate", *CHANGE, 404)
    def deactivate_policy(self, name: str) -> PolicyInfo:
        """Stop its applications, however they were started."""
        return self._change(self.plane.deactivate_policy, name)

    @route("GET", "/v1/monitor/sketch", 409, 422, response_model=Registers)
    def sketch(
        self, windows: Annotated[WholeNumber, Query(ge=1, le=1_000_000)] = 1
    ) -> dict[str, int | float | str]:
        """Return the merged registers of the last windows. Registers of several hosts with the same
        seed and bits merge by the larger of each pair."""
        return self.plane.sketch(windows).to_dict()

    def _policies(self) -> tuple[PolicyInfo, ...]:
        info = self.plane.monitor()
        return info.policies if info else ()

    def _find(self, name: str) -> PolicyInfo:
        return find("policy", name, {info.policy.name: info for info in self._policies()})

    def _change(self, do: Callable[[str], _T], name: str) -> _T:
        self.may_change()
        self._find(name)
        return do(name)
