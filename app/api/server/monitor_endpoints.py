"""Requests about the monitor (S2.13), outputs, metrics, segments and explanations: one method a
request."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Header, Query, Request
from pydantic import WrapValidator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.models import (
    ExistsError,
    ForbiddenError,
    Registers,
    SegmentRequest,
    ShortPolicy,
    UnknownError,
)
from app.api.server.routing import (
    Endpoints,
    Executor,
    WholeNumber,
    created,
    endpoint_of,
    find,
    route,
    serves,
)
from app.explain import Explanation, choose, explain, far_end, nothing_passes
from app.exporters.kinds import parse
from app.exporters.openmetrics.exposition import control_samples
from bpf.errors import UsageError
from probes.control_plane import OutputCalls, RemoteCalls
from probes.monitor.info import PolicyInfo
from probes.monitor.policy import Policy
from probes.reports import OutputConfig, OutputState, OutputStatus
from probes.segment.options import SegmentOptions, SegmentStatus


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


class OutputEndpoints(Endpoints):
    """Requests about the outputs of the run."""

    @serves(OutputCalls.status)
    def outputs(self) -> tuple[OutputStatus, ...]:
        """List all outputs, oldest first, with their undelivered records by reason; those that
        ended, too."""
        return self.plane.outputs.status()

    @serves(OutputCalls.add, status_code=201)
    def add_output(
        self, config: OutputConfig, request: Request, response: Response
    ) -> OutputStatus:
        """Start an output. Outputs that reach programs or files of the host are taken from a
        Unix socket without a group only."""
        checked = parse(config)
        if checked.is_local and not request.state.owner:
            raise ForbiddenError(
                f"output {checked.kind.scheme} reaches programs or files of the host",
                hint="add it by a Unix socket without a group, --output or the configuration file",
            )
        if checked.name in self._running():
            raise ExistsError(f"there is an output {checked.name}", hint="remove it first")
        added = self.plane.outputs.add(config)
        response.headers["location"] = f"/v1/outputs/{added.name}"
        return added

    @serves(OutputCalls.remove, 404)
    def remove_output(self, name: str) -> OutputStatus:
        """End an output, after some seconds for the records that wait; return its last counts."""
        find("output", name, self._running())
        return self.plane.outputs.remove(name)

    def _running(self) -> dict[str, OutputStatus]:
        every = self.plane.outputs.status()
        return {each.name: each for each in every if each.state is not OutputState.ENDED}


if TYPE_CHECKING:
    from app.exporters.openmetrics.metric_state import MetricState

_TEXT = {"schema": {"type": "string"}}
_CONTENT: dict[str, Any] = {
    "description": "OpenMetrics 1.0 if `Accept` names it, else the text format of Prometheus.",
    "content": {"application/openmetrics-text": _TEXT, "text/plain": _TEXT},
}


class MetricsEndpoints(Endpoints):
    """The request of scrapers. It changes nothing."""

    def __init__(self, executor: Executor, metrics: MetricState) -> None:
        super().__init__(executor)
        self._metrics = metrics

    @route("GET", "/metrics", response_class=Response, responses={200: _CONTENT})
    def scrape(self, accept: Annotated[str, Header()] = "") -> Response:
        """Return all metrics. Their number is bounded: no series belongs to a flow."""
        # Imported here: runs that nobody scrapes start without prometheus-client.
        from app.exporters.openmetrics.exposition import exposition

        text, media_type = exposition(
            accept, self._metrics.samples, lambda: control_samples(self.plane)
        )
        return Response(text, media_type=media_type)


class SegmentEndpoints(Endpoints):
    """Requests about the segment probe. Its tables have the name `segment`."""

    @serves(RemoteCalls.measure_segment)
    def measure(self, wanted: SegmentRequest) -> SegmentStatus:
        """Record digests on the watched interface from now on. The same request again renews the
        lease, and changes nothing else. DELETE /v1/probes/segment ends the probe."""
        options = SegmentOptions(wanted.key, wanted.ratio, wanted.filter, wanted.interval)
        return self.plane.measure_segment(options, wanted.lease)


class ExplainEndpoints(Endpoints):
    """The request that explains a conversation. It changes nothing."""

    @route("GET", "/v1/explain", 404, 422)
    def explain(self, filter: str = "") -> Explanation:  # noqa: A002 - as clients say it
        """Explain the largest conversation that passes a filter: its owner, its limit, and the hop
        where its packets wait.

        The numbers cover the last minute. Owners and limits need `--owners`. The path needs
        a trace of the far end: POST /v1/paths starts one.
        """
        items = self.plane.history.snapshots()
        choice = choose(items, filter)
        if choice.conversation is None:
            raise nothing_passes(choice, filter, UnknownError)
        far = far_end(choice.conversation)
        traced = any(each.destination == far for each in self.plane.traced())
        untraced = "" if traced else f"the path to {far} is not traced"
        return explain(choice.conversation, items, untraced=untraced)
