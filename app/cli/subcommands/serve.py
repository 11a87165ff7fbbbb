"""`probedeck serve`: the controller as a service."""

from __future__ import annotations

from dataclasses import replace

import click

from app import VERSION
from app.cli.command import GroupedCommand
from app.cli.decorator import takes
from app.cli.subcommands.run import namespace
from app.config.model import Settings
from app.run.options import Options, OutputSpec
from app.run.spec import run_spec
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
@takes(Options, PathOptions, only=_OPTIONS)
def serve(options: Options, paths: PathOptions, settings: Settings) -> None:
    """Run the controller as a service, for consoles that connect.

    The API listens on a Unix socket. Events are lines on standard error, with a priority where the
    journal reads them. Tables are written only into the DIR of -o. Under systemd, the unit may
    have Type=notify and WatchdogSec=.
    """
    # Imported here: other commands start without numpy.
    from app.run import headless

    options = replace(options, cpu=options.usual_cpu)
    options = replace(options, headless=True, api=True)
    if is_unasked := options.owners is None:
        options = replace(options, owners=True)
    options.check(settings.filters)
    paths.check()
    has_tables = options.out != "-"
    output = options.output_spec(settings.filters) if has_tables else OutputSpec.nothing()
    with namespace(options) as listen:
        spec = run_spec(options, VERSION, paths, is_shown=True)
        spec = replace(spec, is_service=is_unasked)
        if spec.api is not None and listen is not None:
            spec = replace(spec, api=replace(spec.api, opened=listen))
        headless.run(spec, output)
