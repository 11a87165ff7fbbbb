"""The whole chain on one machine: three hosts, IPFIX, goflow2, Kafka, ClickHouse, Prometheus."""
