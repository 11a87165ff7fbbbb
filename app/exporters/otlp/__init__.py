"""OTLP: metrics and logs to a collector of OpenTelemetry, by HTTP."""
