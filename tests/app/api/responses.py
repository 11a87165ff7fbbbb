"""Responses of a server that refuses."""

from __future__ import annotations

from typing import Any

import httpx

from tests.app.api.conftest import body_of


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """A refusal with that status, and with a reason."""
    assert response.status_code == status, response.text
    found: dict[str, Any] = body_of(response)
    assert found["error"]
    return found
