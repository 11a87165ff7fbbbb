"""Programs and filters of a hook, other people's included, as users read them."""

from __future__ import annotations

from dataclasses import dataclass

from bpf.syscall import opened, prog_fd_by_id, prog_info


@dataclass(frozen=True, slots=True)
class HookProgram:
    """A program or filter on a hook."""

    kind: str
    """`XDP`, `TCX`, `clsact`, `cgroup`, or the kind of a filter without a program: `u32`."""
    id: int
    """The program's id, 0 for a filter without a program."""
    name: str
    """The program's name; empty if the kernel does not tell."""

    def __str__(self) -> str:
        """How users read it: `TCX program 'cil_from_netdev' id 12`."""
        if not self.id:
            return f"{self.kind} filter {self.name}"
        return f"{self.kind} program {self.name or '(no name)'!r} id {self.id}"


def described(kind: str, prog_id: int) -> HookProgram:
    """Return a program by its id; without its name if the kernel does not tell."""
    try:
        fd = prog_fd_by_id(prog_id)
    except OSError:  # gone meanwhile, or no CAP_SYS_ADMIN
        return HookProgram(kind, prog_id, "")
    with opened(fd):
        return HookProgram(kind, prog_id, prog_info(fd).name)
