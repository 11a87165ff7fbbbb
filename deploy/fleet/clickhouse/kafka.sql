-- Reads goflow2's topic. ClickHouse commits an offset after its rows are in the table.
CREATE TABLE IF NOT EXISTS probedeck.flows_queue AS probedeck.flows_in
ENGINE = Kafka
SETTINGS kafka_broker_list = 'kafka:9092',
         kafka_topic_list = 'flow-messages',
         kafka_group_name = 'clickhouse',
         kafka_format = 'JSONEachRow',
         kafka_handle_error_mode = 'stream',
         input_format_skip_unknown_fields = 1;

CREATE MATERIALIZED VIEW IF NOT EXISTS probedeck.flows_of_queue TO probedeck.flows_in AS
SELECT * FROM probedeck.flows_queue WHERE length(_error) = 0;

-- Messages that could not be read, counted by reason.
CREATE TABLE IF NOT EXISTS probedeck.unread
(at DateTime DEFAULT now(), error String, message String)
ENGINE = MergeTree ORDER BY at TTL at + INTERVAL 7 DAY;

CREATE MATERIALIZED VIEW IF NOT EXISTS probedeck.unread_of_queue TO probedeck.unread AS
SELECT _error AS error, _raw_message AS message
FROM probedeck.flows_queue WHERE length(_error) > 0;
