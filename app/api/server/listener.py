"""The API's listening sockets, their rights, and the thread that serves them."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import ExitStack
from ipaddress import ip_address

import uvicorn

from app.api import sockets
from app.api.server.app import create
from app.api.server.auth import Rights
from app.api.server.broadcaster import Broadcaster
from app.api.server.command_endpoints import CommandRunner
from app.api.server.connections import ConnectionLimiter
from app.api.sockets import Api
from app.exporters.openmetrics.metric_state import MetricState
from bpf.errors import Closing, UsageError
from probes.config.trusted_file import check_regular, read_secret
from probes.control_plane import ControlPlane

_OF_TCP = {
    "token": "token", "read_token": "read token", "action_token": "action token",
    "cert": "certificate", "key": "key",
}  # fmt: skip
_PATIENCE_S = 1.0
"""Seconds for running requests when the listener closes."""


class ApiListener(Closing):
    """The API of one control plane, until it is closed. Its thread runs a private event loop."""

    def __init__(
        self,
        plane: ControlPlane,
        options: Api,
        console: CommandRunner | None = None,
        metrics: MetricState | None = None,
    ) -> None:
        """Commands run on `console`, if there is one. `metrics` has the series since the start of
        the run; without it they begin now. Raises UsageError for contradictory options, and for
        unavailable addresses."""
        for name, words in _OF_TCP.items():
            if getattr(options, name) and not options.listen:
                raise UsageError(f"a {words} for the API needs an address too")
        if options.group and not options.socket:
            raise UsageError("a group for the API needs a Unix socket too")
        self.address: tuple[str, int] | None = None
        self._plane = plane
        self._console = console
        self._options = options
        self._broadcaster = Broadcaster()
        self._offers: list[tuple[sockets.Listening, Rights, ssl.SSLContext | None]] = []
        with ExitStack() as undo:
            if options.socket:
                unix = undo.enter_context(sockets.unix(options.socket, options.group))
                self._offers.append((unix, Rights(owner_only=not options.group), None))
            if options.listen:
                rights, tls = _rights(options), _tls(options)
                tcp = undo.enter_context(options.opened(options.listen))
                host, port = tcp.socket.getsockname()[:2]
                self.address = host, port
                if tls is None and not ip_address(host).is_loopback:
                    raise UsageError(
                        f"the API on {options.listen} needs TLS: others can reach it",
                        hint="give a certificate and its key with --api-cert and --api-key",
                    )
                self._offers.append((tcp, rights, tls))
            self._sockets = undo.pop_all()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)
        self._stop = asyncio.Event()
        self._accepts = False
        """Before that, the applications are made: that takes seconds on a loaded machine."""
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)
        plane.listen(self._broadcaster.publish)
        if metrics is None:
            metrics = MetricState()
            plane.listen(metrics.take)
        self._metrics = metrics
        self._thread.start()

    def close(self) -> None:
        """End every connection, and close the sockets; a second call does nothing."""
        self._broadcaster.close()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            if self._accepts:
                self._thread.join()
        self._sockets.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        limiters = [self._limiter(*offer) for offer in self._offers]
        accepting = [asyncio.create_task(limiter.accept()) for limiter in limiters]
        self._accepts = True
        await self._stop.wait()
        for task in accepting:
            task.cancel()
        await asyncio.gather(*(limiter.close(_PATIENCE_S) for limiter in limiters))

    def _limiter(
        self, listening: sockets.Listening, rights: Rights, tls: ssl.SSLContext | None
    ) -> ConnectionLimiter:
        # One application a socket: a flood on one leaves the worker threads of the other alone.
        application = create(
            self._plane, self._broadcaster, rights, self._options.version, self._metrics,
            self._console,
        )  # fmt: skip
        config = uvicorn.Config(
            application,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=30,
        )
        config.load()
        return ConnectionLimiter(listening.socket, config, tls, self._options.limits)


def _rights(options: Api) -> Rights:
    if not options.token:
        raise UsageError(
            f"the API on {options.listen} needs a token", hint="give its file with --api-token"
        )
    paths = options.token, options.read_token, options.action_token
    token, read, acts = (sockets.read_token(path) if path else b"" for path in paths)
    given = [*filter(None, (token, read, acts))]
    if len({*given}) < len(given):
        raise UsageError("two tokens of the API are the same")
    return Rights(token, read, acts)


def _tls(options: Api) -> ssl.SSLContext | None:
    if not options.cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        check_regular(options.cert)
        # A group may read the key, such as Debian's ssl-cert.
        read_secret(options.key or options.cert, 0o027)
        # Without this, OpenSSL would ask for a password on the terminal.
        context.load_cert_chain(options.cert, options.key or None, password=lambda: b"")
    except ssl.SSLError as error:
        hint = "give a certificate and its key, both PEM, without a password"
        reason = error.reason or error.args[-1]
        problem = f"cannot use {options.cert} for TLS: {reason}"
        raise UsageError(problem, hint=hint) from None
    except OSError as error:
        raise UsageError(f"cannot use {options.cert} for TLS: {error.strerror}") from None
    return context
