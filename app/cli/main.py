"""The command line: its commands, and errors as one line with the right exit code."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import resource
import signal
import sys
import threading
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import get_completion_class, shell_complete

from app import VERSION
from app.cli.command import ALIASES, CommandGroup, GroupedCommand, argument, option
from bpf.errors import MORE_FILES, KernelError, ProbedeckError, TextError, UsageError

EXIT_CODES = (
    "Exit codes: 0 ok, 1 runtime, 2 usage, 3 expectation, 4 privilege or kernel, 130 ctrl-C before"
    " the run measures."
)
SHELLS = ("bash", "zsh", "fish")
ASKED = "_PROBEDECK_COMPLETE"
"""The variable by which a shell asks for completions."""
_AGAIN_S = 0.01
_MODULES = {
    "run": "run", "lab": "run", "tour": "run", "trace": "trace", "explain": "trace",
    "segment": "segment", "serve": "run", "console": "run", "replay": "run", "fleet": "run",
    "doctor": "", "version": "", "test": "", "bench": "bench",
    "probe": "probe", "policy": "policy", "tape": "tape",
    "record": "record", "open": "open", "sql": "sql", "config": "config", "man": "",
    "completion": "",
}  # fmt: skip
"""Commands in the order of the help, and the module of each in `subcommands`; empty: this one."""


class _Program(CommandGroup):
    """All commands. A module is imported for its own commands alone: a run needs no others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        known = ALIASES.get(name, name)
        if known not in self.commands and (module := _MODULES.get(known)):
            found = import_module(f"app.cli.subcommands.{module}")
            self.add_command(getattr(found, known))
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None:
            for name in _MODULES:  # click proposes only commands that it knows
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


@click.command(
    "probedeck", cls=_Program, epilog=EXIT_CODES, invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)  # fmt: skip
@click.version_option(
    VERSION,
    prog_name="probedeck",
    message="%(prog)s %(version)s",
    help="Print the version and exit.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Live network monitoring with eBPF: a console, and the control plane behind it."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@click.command(cls=GroupedCommand, epilog="\b\nExample:\n  probedeck doctor -i eth0")
@option(
    "-i", "--interface", metavar="NAME", default=None, help="Check this interface, too; or any."
)
@option("--cost", is_flag=True, help="Measure the cost of a packet on that interface; as root.")
@option("--policies", metavar="FILE", help="Measure the cost of these policies, too; as root.")
@option("--config", metavar="FILE", default="", help="Check the outputs of this file.")
def doctor(interface: str | None, cost: bool, policies: str, config: str) -> int:
    """Check the requirements of monitoring, and name remedies."""
    from app import doctor as examination
    from app.config.load import load
    from app.doctor.outputs import check_outputs
    from app.run.options import SECTIONS

    if cost and interface is None:
        raise UsageError("--cost needs an interface", hint="give -i NAME")
    loaded = load(config, SECTIONS)
    outputs = check_outputs(loaded.settings.outputs, loaded.problems)
    return examination.run(interface, policies, outputs, cost=cost)


@click.command()
def version() -> None:
    """Print the version."""
    print(f"probedeck {VERSION}")


@click.command()
def test() -> None:
    """Run the test suite; arguments go to pytest. Only through the launcher ./probedeck."""
    raise UsageError("the tests are run by the launcher", hint="./probedeck test")


@click.command()
def man() -> None:
    """Print the manual page; read it by: probedeck man | man -l -"""
    from app.cli import manual_page

    print(manual_page.page(cli, VERSION), end="")


@click.command()
@argument("shell", "|".join(SHELLS), "Your shell.")
def completion(shell: str) -> None:
    """Print the completion of a shell.

    \b
    bash: eval "$(probedeck completion bash)" in ~/.bashrc
    zsh:  eval "$(probedeck completion zsh)" in ~/.zshrc
    fish: probedeck completion fish > ~/.config/fish/completions/probedeck.fish
    """
    if shell not in SHELLS or (found := get_completion_class(shell)) is None:
        raise UsageError(f"no shell {shell!r}", hint=f"there are {', '.join(SHELLS)}")
    print(found(cli, {}, "probedeck", ASKED).source())


for each in (doctor, version, test, man, completion):
    cli.add_command(each)


def _allow_open_files() -> None:
    """Raise the soft limit of open files to the hard one: each host, policy and output needs some.

    Waits on descriptors that may be above 1023 use poll(2), since select(2) knows none of these.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _interrupt_again(ignored: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that Python dropped because it came in a callback, such as an import's."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        # Later, because this hook may not raise either.
        threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(ignored)


def program() -> NoReturn:
    """Run the command line as a whole process, and end the process while its threads still run.

    At its end, Python stops daemon threads where they wait for it. In code that is not Python's, as
    pydantic's, that aborts the process. Other handlers of the end run before `leave`.
    """
    code: Any = 1

    def leave() -> None:
        if any(each.daemon for each in threading.enumerate()):
            with suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()
            os._exit(code)

    atexit.register(leave)
    try:
        main()
    except SystemExit as end:
        code = end.code
        raise


def main() -> NoReturn:
    """Run the command line; a ProbedeckError becomes one line on standard error."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.unraisablehook = _interrupt_again
    _allow_open_files()
    # The BLAS of numpy would start a thread for each CPU, which spins for 50 ms; no matrix here is
    # large. `os.environ` stays without the variable, and the user's programs get `os.environ`.
    os.putenv("OPENBLAS_NUM_THREADS", "1")
    # Objects between two looks for garbage: with Python's 700, imports take longer.
    gc.set_threshold(20_000)
    # Of regular expressions that the user writes: `[[` may mean something else in a later Python.
    warnings.simplefilter("ignore", FutureWarning)
    try:
        if asked := os.environ.get(ASKED, ""):
            code: int | None = shell_complete(cli, {}, "probedeck", ASKED, asked)
        else:
            # cli.main() would exit with 1 if a pipe breaks.
            with cli.make_context("probedeck", sys.argv[1:]) as context:
                code = cli.invoke(context)
        print(end="", flush=True)
    except click.exceptions.Exit as end:
        code = end.exit_code
    except ProbedeckError as error:
        for each in error.mistakes:
            # An error with FILE:LINE starts with it, as the errors of compilers do.
            print(each if each.placed else f"probedeck: {each}", file=sys.stderr)
            if isinstance(each, TextError) and each.marked:
                print(each.marked, file=sys.stderr)
        code = error.exit_code
    except BrokenPipeError:
        from app.run.headless import fall_silent

        fall_silent()
        code = 0
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        print(f"probedeck: {error.strerror}; {MORE_FILES}", file=sys.stderr)
        code = KernelError.exit_code
    except KeyboardInterrupt:
        # Ctrl-C during the start: nothing to clean up.
        code = 128 + signal.SIGINT
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        code = error.exit_code
    except click.ClickException as error:
        message = error.format_message().replace("not a valid float", "no number")
        # A message that asks "Did you mean ...?" says enough.
        hint = "" if message.endswith(("?", "?)")) else "; see --help"
        print(f"probedeck: {message.rstrip('.') if hint else message}{hint}", file=sys.stderr)
        code = UsageError.exit_code
    sys.exit(code or 0)
