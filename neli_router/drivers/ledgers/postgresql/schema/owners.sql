-- Owners: members write here what they lead, and anything that speaks SQL can ask for it.
--
--     publish --one transaction that locks the group's row--> layouts, holders, holdings --NOTIFY--> who listens
--     owners  --a view: the holdings of holders that have not expired
--
-- A partition names its holder, and the holder has the expiry: so a member with a thousand partitions renews one row. A
-- released partition keeps its term; otherwise a lower term could come after it.

CREATE TABLE IF NOT EXISTS {schema}.layouts (
    group_name text PRIMARY KEY,
    slots bigint NOT NULL CHECK (slots > 0),
    partitions bigint NOT NULL CHECK (partitions > 0),
    tags boolean NOT NULL,
    since uuid NOT NULL DEFAULT gen_random_uuid(),  -- another one if the group's table was made again
    revision bigint NOT NULL DEFAULT 0              -- counts the changes; with `since`, the version that readers compare
);

CREATE TABLE IF NOT EXISTS {schema}.holders (
    group_name text,
    holder text CHECK (holder <> ''),               -- the identity of one life of a member
    name text NOT NULL,
    address text NOT NULL,
    weight bigint NOT NULL,
    zone text NOT NULL,
    began timestamptz NOT NULL,                     -- the first claim, and below the end of the last one
    expires timestamptz NOT NULL,
    PRIMARY KEY (group_name, holder)
);

CREATE TABLE IF NOT EXISTS {schema}.holdings (
    group_name text,
    partition bigint CHECK (partition >= 0),
    term bigint NOT NULL,
    holder text NOT NULL,                           -- empty if the partition was released
    revision bigint NOT NULL,                       -- the change that wrote this row
    PRIMARY KEY (group_name, partition)
);

-- For `WHERE partition = {schema}.partition(...)`: without it, the function would run once for each row.
CREATE INDEX IF NOT EXISTS holdings_by_partition ON {schema}.holdings (partition);

CREATE OR REPLACE VIEW {schema}.owners AS
    SELECT group_name, partition, name AS owner, address, term, zone, weight, expires
    FROM {schema}.holdings JOIN {schema}.holders USING (group_name, holder)
    WHERE expires > clock_timestamp();

-- Where the changes of a group are announced, as `GROUP REVISION`. A hash, because the name of a channel must be short.
CREATE OR REPLACE FUNCTION {schema}.owners_channel(in_group text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN 'neli_owners_' || {schema}.hash(convert_to('{schema}.' || in_group, 'UTF8'));
END
$$;

-- A holder says what it leads and what it has released, both as partition -> term. That counts for `ttl_ms`; with 0, the
-- holder has ended. The answer is the version of the table, the layout that counts, and the partitions that the holder
-- does not have, because a higher term is known.
--
-- A claim with another layout begins a new table if all its terms are higher than all others, as they are once the ledger
-- was made again. Otherwise it changes nothing, and the answer has the layout that stays.
CREATE OR REPLACE FUNCTION {schema}.publish(in_group text, claim jsonb) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    said record;
    known {schema}.layouts;
    moment timestamptz;
    expired timestamptz;
    is_new boolean;
    written bigint;
    released bigint;
    refused jsonb;
BEGIN
    -- The table is a copy: do not wait for the disk while the other members wait for our lock. And give up before the
    -- client does: otherwise its session would go on waiting, and with each new try there would be one more.
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '400ms', true);
    SELECT * INTO said FROM jsonb_to_record(claim) AS claimed(
        slots bigint, partitions bigint, tags boolean, led jsonb, released jsonb, ttl_ms bigint,
        holder text, name text, address text, weight bigint, zone text
    );
    INSERT INTO {schema}.layouts (group_name, slots, partitions, tags)
        VALUES (in_group, said.slots, said.partitions, said.tags) ON CONFLICT DO NOTHING;
    SELECT * INTO known FROM {schema}.layouts WHERE group_name = in_group FOR UPDATE;
    moment := clock_timestamp();  -- Not earlier: the wait for the lock may have been long.

    IF (known.slots, known.partitions, known.tags) <> (said.slots, said.partitions, said.tags) THEN
        IF (SELECT min(value::bigint) FROM jsonb_each_text(said.led))
            > (SELECT coalesce(max(term), 0) FROM {schema}.holdings WHERE group_name = in_group)
        THEN
            DELETE FROM {schema}.holdings WHERE group_name = in_group;
            DELETE FROM {schema}.holders WHERE group_name = in_group;
            UPDATE {schema}.layouts SET slots = said.slots, partitions = said.partitions, tags = said.tags,
                since = gen_random_uuid(), revision = 0 WHERE group_name = in_group RETURNING * INTO known;
        ELSE
            RETURN to_jsonb(known) || '{"refused": []}';
        END IF;
    END IF;

    INSERT INTO {schema}.holdings (group_name, partition, term, holder, revision)
        SELECT in_group, key::bigint, value::bigint, said.holder, known.revision + 1
        FROM jsonb_each_text(said.led)
        LEFT JOIN {schema}.holdings AS was ON was.group_name = in_group AND was.partition = key::bigint
        WHERE was.term IS NULL OR was.term < value::bigint OR (was.term = value::bigint AND was.holder = '')
        ON CONFLICT (group_name, partition) DO UPDATE
        SET term = excluded.term, holder = excluded.holder, revision = excluded.revision;
    GET DIAGNOSTICS written = ROW_COUNT;
    UPDATE {schema}.holdings AS was SET holder = '', revision = known.revision + 1
        FROM jsonb_each_text(said.released)
        WHERE group_name = in_group AND partition = key::bigint AND term = value::bigint AND was.holder = said.holder;
    GET DIAGNOSTICS released = ROW_COUNT;
    SELECT coalesce(jsonb_agg(partition ORDER BY partition), '[]') INTO refused
        FROM jsonb_each_text(said.led) JOIN {schema}.holdings AS held ON partition = key::bigint
        WHERE group_name = in_group AND (term, held.holder) <> (value::bigint, said.holder);

    SELECT expires INTO expired FROM {schema}.holders WHERE group_name = in_group AND holder = said.holder;
    is_new := expired IS NULL;
    IF said.ttl_ms = 0 THEN
        DELETE FROM {schema}.holders WHERE group_name = in_group AND holder = said.holder;
    ELSE
        INSERT INTO {schema}.holders (group_name, holder, name, address, weight, zone, began, expires)
            VALUES (in_group, said.holder, said.name, said.address, said.weight, said.zone, moment,
                moment + said.ttl_ms * interval '1 millisecond')
            ON CONFLICT (group_name, holder) DO UPDATE
            SET name = excluded.name, address = excluded.address, weight = excluded.weight, zone = excluded.zone,
                expires = excluded.expires;
        IF is_new THEN
            -- Who has been silent for a day is forgotten. Its partitions keep their terms.
            DELETE FROM {schema}.holders WHERE group_name = in_group AND expires < moment - interval '1 day';
        END IF;
    END IF;

    -- A renewal is no change: no reader has to read anything because of it.
    IF written + released > 0 OR is_new <> (said.ttl_ms = 0) OR (said.ttl_ms > 0 AND expired <= moment) THEN
        UPDATE {schema}.layouts SET revision = known.revision + 1 WHERE group_name = in_group RETURNING * INTO known;
        PERFORM pg_notify({schema}.owners_channel(in_group), in_group || ' ' || known.revision);
    END IF;
    RETURN to_jsonb(known) || jsonb_build_object('refused', refused);
END
$$;
