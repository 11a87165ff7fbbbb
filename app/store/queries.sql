-- name: talkers
-- The addresses that sent most.
SELECT source, sum(packets) AS packets, sum(bytes) AS bytes
FROM probedeck.sent GROUP BY source ORDER BY bytes DESC LIMIT 10;

-- name: owners
-- The processes with most bytes, by host.
SELECT host, process, sum(packets) AS packets, sum(bytes) AS bytes, uniqExact(destination) AS peers
FROM probedeck.flows WHERE process != '' GROUP BY host, process ORDER BY bytes DESC LIMIT 10;

-- name: distinct
-- Distinct flows of the fleet, exact: a flow that two hosts saw counts once.
SELECT uniqExact((source, destination, source_port, destination_port, protocol)) AS flows
FROM probedeck.flows;

-- name: totals
-- Records, packets and bytes by host, as each probedeck counted them.
SELECT host, count() AS records, sum(packets) AS packets, sum(bytes) AS bytes
FROM probedeck.flows GROUP BY host ORDER BY host;
