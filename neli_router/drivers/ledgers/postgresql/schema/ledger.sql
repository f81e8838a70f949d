-- The ledgers of all groups: one row of `ledgers` for each, and their records, counted 1, 2, 3 ... without holes.

CREATE TABLE IF NOT EXISTS {schema}.ledgers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- Another one, if a ledger is deleted and made again.
    name text COLLATE "C" NOT NULL UNIQUE,
    since timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Records come and go all the time, so vacuum counts them by the thousand, whatever the size of the table.
CREATE TABLE IF NOT EXISTS {schema}.records (
    ledger bigint NOT NULL,
    "offset" bigint NOT NULL,
    payload bytea NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (ledger, "offset")
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);

-- Append the payloads. Returns the last one's offset, or null if the ledger was deleted.
--
-- The row of the ledger is locked until the transaction has committed and can be seen. The next append counts on from
-- there, so offsets are in the order of the commits, and whoever sees one sees all before it. A lock is waited for in
-- bounded time: otherwise, clients that gave up would leave sessions that wait, until the server has none left.
CREATE OR REPLACE FUNCTION {schema}.append(of_ledger bigint, payloads bytea[], OUT last bigint)
LANGUAGE plpgsql AS $$
BEGIN
    -- What a member has read must not be lost in a crash, whatever the settings of its role.
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM set_config('lock_timeout', '400ms', true);
    PERFORM FROM {schema}.ledgers WHERE id = of_ledger FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT coalesce(max("offset"), 0) INTO last FROM {schema}.records WHERE ledger = of_ledger;
    INSERT INTO {schema}.records (ledger, "offset", payload)
        SELECT of_ledger, last + said.place, said.payload FROM unnest(payloads) WITH ORDINALITY AS said (payload, place);
    last := last + cardinality(payloads);
END $$;

-- The record at `anchor`, if it is there, and up to `most` records from `from_offset` on, of about `bytes_max` in total.
CREATE OR REPLACE FUNCTION {schema}.read(of_ledger bigint, anchor bigint, from_offset bigint, most int, bytes_max bigint)
RETURNS TABLE (is_anchor boolean, "offset" bigint, payload bytea, at double precision)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT true, held."offset", held.payload, extract(epoch FROM held.at)::double precision
        FROM {schema}.records AS held WHERE held.ledger = of_ledger AND held."offset" = anchor
        UNION ALL
        SELECT false, taken."offset", taken.payload, extract(epoch FROM taken.at)::double precision
        FROM (
            SELECT
                held.*,
                sum(octet_length(held.payload)) OVER (ORDER BY held."offset" ROWS UNBOUNDED PRECEDING)
                    - octet_length(held.payload) AS before
            FROM {schema}.records AS held
            WHERE held.ledger = of_ledger AND held."offset" >= from_offset
            ORDER BY held."offset" LIMIT most
        ) AS taken
        WHERE taken.before < bytes_max;
END $$;

-- Delete up to `most` of the records below `before`, the oldest first, but never the last one: the next append counts
-- on from it. Returns whether there is more to delete.
CREATE OR REPLACE FUNCTION {schema}.trim(of_ledger bigint, before bigint, most int, OUT is_more boolean)
LANGUAGE plpgsql AS $$
DECLARE
    first bigint;
BEGIN
    SELECT min("offset"), least(before, max("offset")) INTO first, before
        FROM {schema}.records WHERE ledger = of_ledger;
    DELETE FROM {schema}.records WHERE ledger = of_ledger AND "offset" < least(before, first + most);
    is_more := first + most < before;
END $$;
