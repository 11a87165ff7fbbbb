"""Requests about the monitor: one method a request (S2.13)."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Query
from pydantic import WrapValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.models import ExistsError, ShortPolicy, UnknownError
from app.api.server.executor import PlaneExecutor, WholeNumber
from bpf.errors import UsageError, did_you_mean
from probes.monitor.info import MonitorInfo, PolicyInfo
from probes.monitor.policy import Policy

_MANY = 1_000_000


def _parse(value: Any, _: Callable[[Any], Policy]) -> Policy:
    """Parse a policy; errors read like errors of a file."""
    if isinstance(value, bytes):
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a policy is sent as JSON")
    if isinstance(value, dict) and value.keys() == {"short"} and isinstance(value["short"], str):
        return Policy.parse_short(value["short"])
    return Policy.parse(value, "request")


Offered = Annotated[Policy, WrapValidator(_parse, json_schema_input_type=Policy | ShortPolicy)]


class MonitorEndpoints:
    """One method a request."""

    def __init__(self, executor: PlaneExecutor) -> None:
        self._executor = executor
        self._plane = executor.plane

    async def monitor(self) -> MonitorInfo | None:
        """Return the monitor, its policies and applications; null if it does not run."""
        return await self._executor.read(self._plane.monitor)

    async def policies(self) -> tuple[PolicyInfo, ...]:
        """List all policies and their states; empty without a monitor."""
        return await self._executor.read(self._policies)

    async def policy(self, name: str) -> PolicyInfo:
        """Return one policy."""
        return await self._executor.read(self._find, name)

    async def add_policy(self, policy: Offered, response: Response) -> PolicyInfo:
        """Add a policy: an object, or `{"short": "NAME: CONDITION -> RUN"}`."""

        def add() -> PolicyInfo:
            self._executor.may_change()
            if any(info.policy.name == policy.name for info in self._policies()):
                raise ExistsError(f"there is a policy {policy.name}", hint="replace it")
            return self._plane.set_policy(policy)

        response.headers["location"] = f"/v1/monitor/policies/{policy.name}"
        return await self._executor.work(add)

    async def set_policy(self, name: str, policy: Offered, response: Response) -> PolicyInfo:
        """Add a policy, or replace the policy of this name; running applications continue."""

        def put() -> PolicyInfo:
            self._executor.may_change()
            if policy.name != name:
                raise UsageError(f"the policy is {policy.name}, not {name}")
            if all(info.policy.name != name for info in self._policies()):
                response.status_code = HTTPStatus.CREATED
            return self._plane.set_policy(policy)

        return await self._executor.work(put)

    async def remove_policy(self, name: str) -> None:
        """Remove a policy."""
        await self._executor.work(self._change, self._plane.remove_policy, name)

    async def activate_policy(self, name: str) -> PolicyInfo:
        """Run its applications until the policy is deactivated."""
        return await self._executor.work(self._change, self._plane.activate_policy, name)

    async def deactivate_policy(self, name: str) -> PolicyInfo:
        """Stop its applications, however they were started."""
        return await self._executor.work(self._change, self._plane.deactivate_policy, name)

    async def sketch(
        self, windows: Annotated[WholeNumber, Query(ge=1, le=_MANY)] = 1
    ) -> dict[str, int | float | str]:
        """Return the merged registers of the last windows. Registers of several hosts with the same
        seed and bits merge by the larger of each pair."""

        return (await self._executor.read(self._plane.sketch, windows)).to_dict()

    def _policies(self) -> tuple[PolicyInfo, ...]:
        info = self._plane.monitor()
        return info.policies if info else ()

    def _find(self, name: str) -> PolicyInfo:
        infos = {info.policy.name: info for info in self._policies()}
        if name not in infos:
            hint = did_you_mean(name, sorted(infos)) or "there are none"
            raise UnknownError(f"no policy {name!r}", hint=hint)
        return infos[name]

    def _change(self, do: Callable[[str], Any], name: str) -> Any:
        self._executor.may_change()
        self._find(name)
        return do(name)
