"""From options to the parameters of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from app.cli.options import INGRESS, Options, byte_count
from app.run.monitor import Policies, policies_of, receiver_of
from app.run.output_spec import SOCKET_TABLES
from app.run.spec import RunSpec, probes_of
from bpf.errors import UsageError
from probes.monitor.options import Input, MonitorOptions
from probes.output_control import OutputConfig
from probes.path.options import PathOptions
from probes.switches import SWITCHES
from probes.tunnels import Tunnels

if TYPE_CHECKING:
    from app.api.server.listener import Api
    from probes.config.model import ProbeConfig


def run_spec(
    options: Options, interface: str, version: str, paths: PathOptions | None = None
) -> RunSpec:
    """Return the parameters of a run on `interface`. Raises UsageError."""
    if not options.only and not interface:
        raise UsageError("nothing to watch", hint="give -i NAME, or --only with --probe FILE")
    probes = probes_of(options.probe, interface, options.interval)
    monitor, policies = _monitor(options, interface, probes)
    addresses: tuple[str, ...] = ()
    if options.trace:
        from app import resolve

        addresses = tuple(each for name in options.trace for each in resolve.addresses(name))
        resolve.check_routes(addresses)
    looks = _looks_for_owners(options)
    paths, usual = paths or PathOptions(), PathOptions()
    # Options win over the file of policies.
    kept = {k: v for k, v in policies.paths.items() if getattr(paths, k) == getattr(usual, k)}
    spec = RunSpec(
        interface=interface,
        interval=options.interval,
        ingress=INGRESS[options.ingress],
        tunnels=Tunnels(options.tunnels),
        capture=options.checked_capture(),
        duration=options.duration,
        probes=tuple(probe for probe in probes if probe not in policies.applications),
        force=options.force,
        flows=not options.only,
        read_only="started with --read-only" if options.read_only else "",
        probe_memory=byte_count("--probe-memory", options.probe_memory),
        api=_api(options, version),
        trace=addresses,
        paths=replace(paths, **kept),
        describe=options.describe(),
        names=not options.no_names,
        switches=tuple(
            name
            for name, each in SWITCHES.items()
            if (looks if name == "sockets" else getattr(options, each.option))
        ),
        memory=byte_count("--memory", options.memory) if options.memory else 0,
        ready_file=options.ready_file,
        outputs=tuple(map(OutputConfig, options.output)),
        monitor=monitor,
        policies=policies,
    )
    spec.check()
    return spec


def _looks_for_owners(options: Options) -> bool:
    wanted = [name for name in (options.views or "").split(",") if name in SOCKET_TABLES]
    if wanted and options.owners is False:
        hint = "leave out --no-owners"
        raise UsageError(f"--views {wanted[0]}: owners of flows are off", hint=hint)
    return bool(wanted or not options.headless) if options.owners is None else options.owners


def _monitor(
    options: Options, interface: str, probes: Sequence[ProbeConfig]
) -> tuple[MonitorOptions | None, Policies]:
    """Return options and policies; `probes` may contain applications of the policies."""
    if not options.monitors:
        return None, Policies()
    if not interface:
        raise UsageError("nothing for the monitor to watch", hint="give -i NAME")
    policies, said = policies_of(options.policies, options.policy, probes)
    applications = tuple(each.on(interface) for each in policies.applications)
    given = {
        "bits": options.bits,
        "input": options.input and Input(options.input),
        "receivers": tuple(map(receiver_of, options.receiver)) or None,
        "drop_others": options.drop_others or None,
        "offload": options.offload or None,
        "ingress": INGRESS[options.ingress],
        "tunnels": Tunnels(options.tunnels) if options.tunnels != Tunnels.OUTER else None,
        "seed": options.seed() or None,
    }
    over = {name: value for name, value in given.items() if value is not None}
    found = MonitorOptions(**{"interval": options.interval, **said, **over})
    found.check()
    return found, replace(policies, applications=applications)


def _api(options: Options, version: str) -> Api | None:
    if not (options.api or options.api_socket or options.api_listen):
        return None
    from app.api.server.listener import Api
    from app.api.sockets import DEFAULT_SOCKET

    return Api(
        version,
        options.api_socket or (DEFAULT_SOCKET if options.api or not options.api_listen else ""),
        options.api_group,
        options.api_listen,
        options.api_token,
        options.api_read_token,
        options.api_cert,
        options.api_key,
    )
