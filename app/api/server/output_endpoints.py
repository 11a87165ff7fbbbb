"""Requests about outputs: one method a request."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from app.api.models import ExistsError, ForbiddenError
from app.api.server.routing import Endpoints, find, route
from app.exporters.kinds import parse
from probes.output_control import OutputConfig, OutputState, OutputStatus


class OutputEndpoints(Endpoints):
    """Requests about the outputs of the run."""

    @route("GET", "/v1/outputs")
    def outputs(self) -> tuple[OutputStatus, ...]:
        """List all outputs, oldest first, with their undelivered records by reason; those that
        ended, too."""
        return self.plane.outputs.status()

    @route("POST", "/v1/outputs", writes=True, status_code=201)
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

    @route("DELETE", "/v1/outputs/{name}", 404, writes=True)
    def remove_output(self, name: str) -> OutputStatus:
        """End an output, after some seconds for the records that wait; return its last counts."""
        find("output", name, self._running())
        return self.plane.outputs.remove(name)

    def _running(self) -> dict[str, OutputStatus]:
        every = self.plane.outputs.status()
        return {each.name: each for each in every if each.state is not OutputState.ENDED}
