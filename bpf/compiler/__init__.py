"""Compiling and verifying eBPF C outside the console, in a warm helper process."""

from bpf.compiler.client import Compiler
from bpf.compiler.compiled import Compiled, CompiledProgram
from bpf.compiler.diagnostics import CompileError, Diagnostic
from bpf.compiler.maps import CompiledMap

__all__ = [
    "CompileError",
    "Compiled",
    "CompiledMap",
    "CompiledProgram",
    "Compiler",
    "Diagnostic",
]
