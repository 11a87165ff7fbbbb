"""Commands that install the compiler's packages, by the package manager of this machine."""

from __future__ import annotations

from typing import Literal

Need = Literal["bcc", "clang", "headers", "libbpf"]

_COMMANDS: dict[str, tuple[str, dict[Need, str]]] = {
    "apt-get": (
        "apt install",
        {
            "bcc": "python3-bpfcc",
            "headers": "linux-libc-dev",
            "clang": "clang libbpf-dev",
            "libbpf": "libbpf1",
        },
    ),
    "dnf": (
        "dnf install",
        {
            "bcc": "python3-bcc",
            "headers": "kernel-headers",
            "clang": "clang libbpf-devel",
            "libbpf": "libbpf",
        },
    ),
    "pacman": (
        "pacman -S",
        {
            "bcc": "python-bcc",
            "headers": "linux-api-headers",
            "clang": "clang libbpf",
            "libbpf": "libbpf",
        },
    ),
}


def install(*needs: Need) -> str:
    """Return the command that installs `needs`; on an unknown distribution, each one's command."""
    import shutil  # a run that compiles nothing needs none of its archives

    known = [name for name in _COMMANDS if shutil.which(name)][:1] or list(_COMMANDS)
    commands = (_COMMANDS[name] for name in known)
    return ", or ".join(
        f"{command} {' '.join(names[need] for need in needs)}" for command, names in commands
    )
