"""A run whose compile helper cannot be confined, with an API by TCP."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from app.api.address import Remote
from app.api.client import Client
from bpf.errors import UsageError
from tests.app.api.conftest import token_files
from tests.app.api.fake import config
from tests.bpf.compiler import confined
from tests.support.runs import deck, stop
from tests.support.sight import becomes

FINE = "int f(struct xdp_md *ctx) { return XDP_PASS; }\n"


@pytest.mark.slow
@pytest.mark.skipif(not confined.has_landlock(), reason="no Landlock here")
def test_it_says_so_and_takes_sources_from_its_owner_only(tmp_path: Path) -> None:
    """The owner of the Unix socket can read every file anyway."""
    unix, out = tmp_path / "api.sock", tmp_path / "out"
    port = 20_000 + time.monotonic_ns() // 1000 % 10_000
    tokens = token_files(tmp_path)
    api = ("--api-listen", f"127.0.0.1:{port}", "--api-token", tokens["token"])
    arguments = ("run", "--only", "--headless", "--api", "--api-socket", str(unix), *api)
    own = config(source=FINE)
    with deck(
        *arguments, "--views", "events", "-o", str(out),
        preexec_fn=confined.forbid_mounts_and_landlock,
    ) as run:  # fmt: skip
        assert becomes(unix.exists, 20)
        remote = Remote(f"http://127.0.0.1:{port}", tokens["token"])
        with closing(Client(remote)) as client, pytest.raises(UsageError, match="not confined"):
            client.check(own)
        with closing(Client(Remote(f"unix:{unix}"))) as owner, pytest.raises(UsageError) as caught:
            owner.check(own)
        # It came as far as the metrics, of maps that this source does not have.
        assert "no map" in str(caught.value)
        assert stop(run)[0] == 0
