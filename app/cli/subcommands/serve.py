"""`probedeck serve`: the controller as a service."""

from __future__ import annotations

from dataclasses import replace

import click

from app import VERSION
from app.cli.command import GroupedCommand, option
from app.cli.decorator import takes
from app.config.model import Settings
from app.run.options import GENERAL, Options, OutputSpec
from app.run.spec import run_spec
from bpf.attach.group import is_group
from probes.config.options import settings_of
from probes.path.options import PathOptions

EXAMPLES = """\b
Examples:
  probedeck serve
  probedeck serve -i eth0 --api-group probedeck --policies /etc/probedeck/policies.toml
  probedeck console"""

_OF_SCREENS = {"headless", "plain", "api", "no_names"}
_OPTIONS = tuple({*settings_of(Options), *settings_of(PathOptions)} - _OF_SCREENS)


@click.command(cls=GroupedCommand, epilog=EXAMPLES)
@option(
    "-i", "--interface", metavar="NAME", default="", group=GENERAL,
    usual="the default route's", help="Interface to monitor.",
)  # fmt: skip
@takes(Options, PathOptions, only=_OPTIONS)
def serve(options: Options, paths: PathOptions, settings: Settings, interface: str) -> None:
    """Run the controller as a service, for consoles that connect.

    The API listens on a Unix socket. Events are lines on standard error, with a priority where the
    journal reads them. Tables are written only into the DIR of -o. Under systemd, the unit may
    have Type=notify and WatchdogSec=.
    """
    # Imported here: other commands start without numpy.
    from app import resolve
    from app.run import headless

    options = replace(options, headless=True, api=True)
    if is_unasked := options.owners is None:
        options = replace(options, owners=True)
    options.check(settings.filters)
    if not (interface or options.only):
        interface = resolve.default_interface()
    paths.check()
    spec = run_spec(options, interface, VERSION, paths)
    has_tables = options.out != "-"
    several = is_group(interface)
    output = OutputSpec.nothing()
    if has_tables:
        output = options.output_spec(settings.filters, several=several)
    headless.run(replace(spec, is_service=is_unasked), output)
