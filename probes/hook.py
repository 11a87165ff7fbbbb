"""A hook of an interface, held by the controller: the chain of its probes, and its attachment."""

from __future__ import annotations

from bpf.attach import Attachment, Hook, attach
from bpf.chain import Chain
from bpf.interface import Interface


class HookPoint:
    """One hook of one interface. Packets pass it, with probes in its chain and without."""

    def __init__(self, interface: Interface, hook: Hook) -> None:
        self.interface = interface
        self.hook = hook
        self.chain = Chain(hook.prog_type)
        self.attachment: Attachment | None = None
        """None before `attach`: only PROG_TEST_RUN brings packets then."""

    def attach(self, *, by_link: bool = True) -> Attachment:
        """Have the interface's packets go through the chain. Raises as bpf.attach.attach does."""
        self.attachment = attach(self.hook, self.chain.fd, self.interface, by_link=by_link)
        return self.attachment

    @property
    def mode(self) -> str:
        """How it is attached."""
        return self.attachment.mode if self.attachment else "not attached"

    def close(self) -> None:
        """Detach; the probes have left before."""
        if self.attachment:
            self.attachment.close()
        self.chain.close()
