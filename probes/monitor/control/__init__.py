"""The monitor under a controller: its policies, their traces and their findings."""
