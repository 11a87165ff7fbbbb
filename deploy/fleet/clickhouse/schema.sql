-- Flows of many hosts: one row for each record that a probedeck exported (a flow, a direction, a
-- window). Addresses stay texts as goflow2 writes them; IPv4 and IPv6 share a column.
CREATE DATABASE IF NOT EXISTS probedeck;

-- What comes in, field by field as goflow2 writes it: texts of further elements in hexadecimal
-- digits. The table keeps nothing.
CREATE TABLE IF NOT EXISTS probedeck.flows_in
(
    sampler_address    String,
    sampling_rate      UInt64,
    time_flow_start_ns UInt64,
    time_flow_end_ns   UInt64,
    direction          UInt8,
    etype              UInt16,
    proto              UInt8,
    src_addr           String,
    dst_addr           String,
    src_port           UInt16,
    dst_port           UInt16,
    in_if              UInt32,
    out_if             UInt32,
    vlan_id            UInt16,
    ip_tos             UInt8,
    tcp_flags          UInt16,
    packets            UInt64,
    bytes              UInt64,
    src_process        String,
    dst_process        String,
    unit               String,
    pod                String,
    rtt_us             UInt32
)
ENGINE = Null;

CREATE TABLE IF NOT EXISTS probedeck.flows
(
    host        LowCardinality(String) COMMENT 'address of the probedeck that counted the packets',
    start       DateTime64(3, 'UTC')   COMMENT 'first packet',
    end         DateTime64(3, 'UTC')   COMMENT 'last packet',
    direction   Enum8('in' = 0, 'out' = 1) COMMENT 'seen from the host',
    ip_version  UInt8,
    protocol    UInt8                  COMMENT 'IANA number',
    source      String,
    destination String,
    source_port UInt16,
    destination_port UInt16,
    interface   UInt32                 COMMENT 'index on the host',
    vlan        UInt16,
    tos         UInt8,
    tcp_flags   UInt16,
    packets     UInt64,
    bytes       UInt64                 COMMENT 'of frames without FCS',
    process     LowCardinality(String) COMMENT 'owner on the host; empty: unknown',
    unit        LowCardinality(String),
    pod         LowCardinality(String),
    rtt_us      UInt32                 COMMENT 'smoothed round-trip time of TCP; 0: unknown'
)
ENGINE = MergeTree
PARTITION BY toDate(end)
ORDER BY (host, end)
TTL toDateTime(end) + INTERVAL 30 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS probedeck.flows_of_records TO probedeck.flows AS
SELECT
    sampler_address AS host,
    fromUnixTimestamp64Milli(intDiv(time_flow_start_ns, 1000000), 'UTC') AS start,
    fromUnixTimestamp64Milli(intDiv(time_flow_end_ns, 1000000), 'UTC') AS end,
    CAST(direction, 'Enum8(\'in\' = 0, \'out\' = 1)') AS direction,
    if(etype = 0x86DD, 6, 4) AS ip_version,
    proto AS protocol,
    src_addr AS source,
    dst_addr AS destination,
    src_port AS source_port,
    dst_port AS destination_port,
    if(direction = 0, in_if, out_if) AS interface,
    vlan_id AS vlan,
    ip_tos AS tos,
    tcp_flags,
    packets,
    bytes,
    unhex(if(src_process != '', src_process, dst_process)) AS process,
    unhex(unit) AS unit,
    unhex(pod) AS pod,
    rtt_us
FROM probedeck.flows_in;

-- Sums a minute, for long times: as many rows as conversations.
CREATE TABLE IF NOT EXISTS probedeck.minutes
(
    host LowCardinality(String), minute DateTime('UTC'), direction Enum8('in' = 0, 'out' = 1),
    protocol UInt8, source String, destination String, process LowCardinality(String),
    packets UInt64, bytes UInt64
)
ENGINE = SummingMergeTree((packets, bytes))
PARTITION BY toYYYYMM(minute)
ORDER BY (host, minute, direction, protocol, source, destination, process)
TTL minute + INTERVAL 400 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS probedeck.minutes_of_flows TO probedeck.minutes AS
SELECT host, toStartOfMinute(end) AS minute, direction, protocol, source, destination, process,
       sum(packets) AS packets, sum(bytes) AS bytes
FROM probedeck.flows
GROUP BY host, minute, direction, protocol, source, destination, process;

-- A packet between two watched hosts has a row at each. `sent` has what hosts sent, and what came
-- from addresses that no watched host has: each packet once, unless it passes a third watched host.
CREATE VIEW IF NOT EXISTS probedeck.sent AS
SELECT * FROM probedeck.flows
WHERE direction = 'out'
   OR source NOT IN (SELECT DISTINCT source FROM probedeck.flows WHERE direction = 'out');
