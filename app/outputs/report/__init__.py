"""The report at the end of a trace: what each hop of each path did, for people and programs."""
