"""Policies that know owners: their selections follow the sockets of processes and units."""
