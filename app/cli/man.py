"""What helps with the command line itself: the manual page, and completion by the shell."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from bpf.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
ASKED = "_PROBEDECK_COMPLETE"
"""What a shell that completes sets in the environment."""
manual_cli = typer.Typer()


@manual_cli.command()
def man() -> None:
    """Print the manual page; read it by: probedeck man | man -l -"""
    from app import VERSION
    from app.cli import manual_page as manual
    from app.cli.main import cli

    print(manual.page(typer.main.get_command(cli), VERSION), end="")


@manual_cli.command()
def completion(
    shell: Annotated[str, typer.Argument(metavar="|".join(SHELLS), help="Whose it is.")],
) -> None:
    """Print the completion of a shell.

    \b
    bash: eval "$(probedeck completion bash)" in ~/.bashrc
    zsh:  eval "$(probedeck completion zsh)" in ~/.zshrc
    fish: probedeck completion fish > ~/.config/fish/completions/probedeck.fish
    """
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise UsageError(f"no shell {shell!r}", hint=f"there are {', '.join(SHELLS)}")
    print(get_completion_script(prog_name="probedeck", complete_var=ASKED, shell=shell))


def get_ready() -> None:
    """Know the shells, where one asks what a command line could be completed by."""
    if ASKED in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
