"""BPF iterators: the kernel runs a program for each of its objects, and returns its records.

Kernel 5.8 has them, with BTF (Documentation/bpf/bpf_iterators.rst).
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import Any, Self

import numpy as np

from bpf.abi import AttachType
from bpf.compiler import Compiled
from bpf.errors import KernelError
from bpf.kernel_types import kernel_types
from bpf.links import iterator_open, link_create
from bpf.programs.program import Program

_READ_BYTES = 4096
"""Of one system call: the kernel visits objects until the program has written as much."""


class KernelIterator:
    """Runs a program for each object, a slice at a time. One thread at a time may use it."""

    def __init__(
        self, compiled: Compiled, function: str, objects: str, record: np.dtype[Any]
    ) -> None:
        """Load the program; `objects` is the kernel's name, such as `task_file`.

        The program writes records of one size with bpf_seq_write. Raises KernelError if the kernel
        lacks the iterator, and VerifierError.
        """
        target = f"bpf_iter_{objects}"
        number = kernel_types().function(target)
        program = Program(
            compiled, function, attach_type=AttachType.TRACE_ITER, attach_btf_id=number
        )
        with closing(program):
            try:
                self._link = link_create(program.fd, 0, AttachType.TRACE_ITER)
            except OSError as error:
                raise KernelError(f"the iterator {target}: {error.strerror}") from None
        self._record = record
        self._pass = -1
        self._rest = b""
        """The beginning of a record that the last read has cut."""
        self.passes = 0
        """Passes over all objects so far that came to their end."""

    def read(self, budget_s: float) -> np.ndarray[tuple[int, ...], np.dtype[Any]]:
        """Continue the pass for some `budget_s` of CPU time, or to its end: records, shape (n,).

        The next call continues, or begins the next pass. Raises OSError.
        """
        parts = [self._rest]
        end = time.thread_time() + budget_s
        if self._pass < 0:
            self._pass = iterator_open(self._link)
        while part := os.read(self._pass, _READ_BYTES):
            parts.append(part)
            if time.thread_time() >= end:
                break
        else:
            self._end_pass()
        data = b"".join(parts)
        whole = len(data) - len(data) % self._record.itemsize
        self._rest = data[whole:]
        return np.frombuffer(data[:whole], self._record).copy()

    def close(self) -> None:
        """Unload the program."""
        if self._pass >= 0:
            os.close(self._pass)
        os.close(self._link)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_pass(self) -> None:
        os.close(self._pass)
        self._pass = -1
        self.passes += 1
