"""A hook of an interface, held by the controller: the chain of its probes, attached."""

from __future__ import annotations

from bpf.attach import Attachment, Hook, attach
from bpf.chain import Chain
from bpf.interface import Interface


class HookPoint:
    """One hook of one interface. Probes join its chain; it passes packets before and after."""

    def __init__(self, interface: Interface, hook: Hook, *, by_link: bool = True) -> None:
        self.interface = interface
        self.hook = hook
        self.chain = Chain(hook.prog_type)
        try:
            self.attachment: Attachment = attach(hook, self.chain.fd, interface, by_link=by_link)
        except BaseException:
            self.chain.close()
            raise

    def close(self) -> None:
        """Detach; the probes have left before."""
        self.attachment.close()
        self.chain.close()
