"""Flows for collectors: IPFIX (RFC 7011) over UDP, TCP and TLS, and NetFlow v9 (RFC 3954)."""
