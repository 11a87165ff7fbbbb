"""The request of Prometheus and other scrapers of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Header
from starlette.responses import Response

from app.api.server.routing import Endpoints, Executor, route
from app.exporters.openmetrics.control_samples import control_samples

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
