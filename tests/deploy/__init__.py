"""Tests of the files in deploy/, each by its own tool."""
