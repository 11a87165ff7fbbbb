"""Sources for libbpf and ready objects: clang compiles and libbpf loads them, in a helper."""
