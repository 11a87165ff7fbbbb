"""The extent of paths: the length of each flow's, whole and guarded probes, and hidden hops."""
