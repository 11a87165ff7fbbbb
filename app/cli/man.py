"""`probedeck man` and `probedeck completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from app.cli.command import argument
from bpf.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
ASKED = "_PROBEDECK_COMPLETE"
"""The variable by which a shell asks for completions."""


@click.command()
def man() -> None:
    """Print the manual page; read it by: probedeck man | man -l -"""
    from app import VERSION
    from app.cli import manual_page as manual

    print(manual.page(click.get_current_context().find_root().command, VERSION), end="")


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
    root = click.get_current_context().find_root().command
    print(found(root, {}, "probedeck", ASKED).source())
