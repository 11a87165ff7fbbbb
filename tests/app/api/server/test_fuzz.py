"""Requests made up from the API's own description (issue 3: "API fuzzed from its own OpenAPI")."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import positive_data_acceptance

from app.api.server.listener import ApiListener
from app.api.sockets import Api
from probes.monitor.policy import Policy
from tests.app.api.conftest import TOKEN, token_files
from tests.app.api.fake import FakePlane, config

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
SAME_BODIES = ["/v1/compile", "/v1/probes/{name}"]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSchema]:
    """The API on a real socket, as it describes itself."""
    directory: Path = tmp_path_factory.mktemp("fuzz")
    plane = FakePlane()
    plane.add(config())
    plane.export("counter")
    plane.set_policy(Policy.parse_short("flood: flows > 500 hold 5s -> dns, trace:2 on port:53"))
    options = Api("1", socket="", listen="127.0.0.1:0", token=token_files(directory)["token"])
    with ApiListener(plane, options) as listener:
        assert listener.address is not None
        url = f"http://127.0.0.1:{listener.address[1]}"
        made_up = {
            # The token is given with each request: none must be made up beside it.
            "generation": {"with-security-parameters": False},
            # They have the bodies of POST /v1/probes, with a thousand wrong ones.
            "operations": [
                {"include-path": path, "phases": {"coverage": {"enabled": False}}}
                for path in SAME_BODIES
            ],
        }
        yield schemathesis.openapi.from_url(
            f"{url}/openapi.json",
            headers=AUTHORIZED,
            config=schemathesis.Config.from_dict(made_up),
        )


schema = schemathesis.pytest.from_fixture("described")


@pytest.mark.slow
@schema.parametrize()
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_brings_it_down_and_each_answer_is_as_described(case: Case[Any]) -> None:
    """S1.1. Every check but one: what a schema allows need not compile."""
    case.call_and_validate(
        headers=AUTHORIZED,
        timeout=10,
        excluded_checks=[positive_data_acceptance],
    )
