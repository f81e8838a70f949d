-- From a key to its partition, in SQL: the same numbers as neli_router/core/keyspace.py gives.
--
--     key --hash: murmur3_x86_32, seed 0--> 32 bits --mod slots--> slot --mod partitions--> partition
--
-- A text counts as its UTF-8 bytes, whatever the database's encoding is.

-- The factors are those of MurmurHash3, two of them as negative numbers: modulo 2^32 they are the same, and so no product
-- leaves the 64 bits of a bigint.
CREATE OR REPLACE FUNCTION {schema}.hash(key bytea) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    low CONSTANT bigint := 4294967295;
    size CONSTANT integer := length(key);
    padded CONSTANT bytea := key || '\x00000000';
    h bigint := 0;
    k bigint;
BEGIN
    -- The last turn is the tail. Without one it reads zeros, which change nothing.
    FOR i IN 0 .. size BY 4 LOOP
        k := get_byte(padded, i) + 256 * get_byte(padded, i + 1) + 65536 * get_byte(padded, i + 2)
            + 16777216::bigint * get_byte(padded, i + 3);
        k := (k * -862048943) & low;
        k := ((k << 15) | (k >> 17)) & low;
        h := h # ((k * 461845907) & low);
        EXIT WHEN i + 4 > size;
        h := ((h << 13) | (h >> 19)) & low;
        h := (h * 5 + 3864292196) & low;
    END LOOP;
    h := h # size;
    h := ((h # (h >> 16)) * -2048144789) & low;
    h := ((h # (h >> 13)) * -1028477387) & low;
    RETURN h # (h >> 16);
END
$$;

-- With `tags`, only the part between the first { and the first } after it is hashed, if there is such a part.
CREATE OR REPLACE FUNCTION {schema}.slot(key bytea, slots bigint DEFAULT 16384, tags boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    behind bytea;
    size integer := 0;
BEGIN
    IF tags AND position('\x7b' IN key) > 0 THEN
        behind := substring(key FROM position('\x7b' IN key) + 1);
        size := position('\x7d' IN behind) - 1;
    END IF;
    RETURN {schema}.hash(CASE WHEN size > 0 THEN substring(behind FROM 1 FOR size) ELSE key END) % slots;
END
$$;

CREATE OR REPLACE FUNCTION {schema}.slot(key text, slots bigint DEFAULT 16384, tags boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN {schema}.slot(convert_to(key, 'UTF8'), slots, tags);
END
$$;

-- The partition of a key in a group whose members publish what they lead (`ownership`). Without a name it is the only
-- group of this schema. Before any group has published, the layout is the one that a group has by default.
CREATE OR REPLACE FUNCTION {schema}.partition(key bytea, in_group text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
DECLARE
    layout record;
    known text;
BEGIN
    SELECT slots, partitions, tags, count(*) OVER () AS candidates INTO layout
        FROM {schema}.layouts WHERE in_group IS NULL OR group_name = in_group LIMIT 1;
    IF layout.candidates = 1 THEN
        RETURN {schema}.slot(key, layout.slots, layout.tags) % layout.partitions;
    END IF;
    SELECT string_agg(group_name, ', ' ORDER BY group_name) INTO known FROM {schema}.layouts;
    IF known IS NULL THEN
        RETURN {schema}.slot(key) % 256;
    END IF;
    RAISE EXCEPTION 'a group was wanted, but % was given: name one of %', coalesce(quote_literal(in_group), 'none'), known
        USING ERRCODE = 'invalid_parameter_value';
END
$$;

CREATE OR REPLACE FUNCTION {schema}.partition(key text, in_group text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
    RETURN {schema}.partition(convert_to(key, 'UTF8'), in_group);
END
$$;
