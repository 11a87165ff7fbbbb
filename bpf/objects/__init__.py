"""Sources for libbpf and ready objects: clang compiles and libbpf loads them, in a helper."""

from bpf.objects.client import ObjectCompiler
from bpf.objects.dialect import is_for_libbpf, object_sections, packet_types, source_sections

__all__ = [
    "ObjectCompiler",
    "is_for_libbpf",
    "object_sections",
    "packet_types",
    "source_sections",
]
