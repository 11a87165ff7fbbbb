"""The request that explains a conversation."""

from __future__ import annotations

from app.api.models import UnknownError
from app.api.server.routing import Endpoints, route
from app.explain import Explanation, choose, explain, far_end, nothing_passes


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
