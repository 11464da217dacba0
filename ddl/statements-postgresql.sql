-- What an instance sends to postgresql, for a table with default names. Written by `make ddl`.
-- One entry for each function of msgworker/store, in the order of a message's life; what it sends
-- may depend on what it is given, and on what it has read.

-- ==================== candidates: Candidates for a claim: by age, by instant, by object

-- oldest: Open rows that wait for no instant, in order of age, from `mark` on; without those that run and have
--     no object, since nothing waits behind them
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id >=
    %(mark)s::BIGINT ORDER BY msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id >=
    %(mark)s::BIGINT AND (msgworker_message.object_id IS NOT NULL OR (msgworker_message.msg_id %%
    %(period)s::BIGINT + %(period)s::BIGINT) %% %(period)s::BIGINT BETWEEN %(least)s::BIGINT AND
    %(most)s::BIGINT) ORDER BY msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;

-- due_after: Rows whose instant has passed, after the (`waits_until`, msg_id) `since`, in that order; None =
--     from the first
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6,
    CAST(msgworker_message.available_at AS TEXT) AS h7
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= statement_timestamp() ORDER BY msgworker_message.available_at,
    msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6,
    CAST(msgworker_message.available_at AS TEXT) AS h7
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= statement_timestamp() AND msgworker_message.available_at >=
    CAST(%(at)s::VARCHAR AS TIMESTAMP WITH TIME ZONE) AND (msgworker_message.available_at >
    CAST(%(at)s::VARCHAR AS TIMESTAMP WITH TIME ZONE) OR msgworker_message.msg_id > %(id)s::BIGINT) ORDER BY
    msgworker_message.available_at, msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;

-- heads: The head of each object behind the object `after` (None = from the first), and the next cursor
WITH RECURSIVE ring(o, k) AS
(SELECT (SELECT f.object_id
FROM msgworker_message AS f
WHERE (f.status IN (0, 1) OR f.status = -1 AND coalesce(f.error_try_times, 0) < 3) AND (f.object_id IS NOT
    NULL OR f.status != 1) AND f.object_id IS NOT NULL ORDER BY f.object_id
 LIMIT 1) AS o, 1 AS k UNION ALL SELECT (SELECT n.object_id
FROM msgworker_message AS n
WHERE (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) AND (n.object_id IS NOT
    NULL OR n.status != 1) AND n.object_id > ring.o ORDER BY n.object_id
 LIMIT 1) AS anon_1, ring.k + 1 AS anon_2
FROM ring
WHERE ring.o IS NOT NULL AND ring.k < %(objects)s::INTEGER)
 SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6, ring.k
FROM ring JOIN msgworker_message ON msgworker_message.msg_id = (SELECT h.msg_id
FROM msgworker_message AS h
WHERE (h.status IN (0, 1) OR h.status = -1 AND coalesce(h.error_try_times, 0) < 3) AND (h.object_id IS NOT
    NULL OR h.status != 1) AND h.object_id = ring.o ORDER BY h.msg_id
 LIMIT 1);
WITH RECURSIVE ring(o, k) AS
(SELECT (SELECT f.object_id
FROM msgworker_message AS f
WHERE (f.status IN (0, 1) OR f.status = -1 AND coalesce(f.error_try_times, 0) < 3) AND (f.object_id IS NOT
    NULL OR f.status != 1) AND f.object_id > %(after)s::VARCHAR ORDER BY f.object_id
 LIMIT 1) AS o, 1 AS k UNION ALL SELECT (SELECT n.object_id
FROM msgworker_message AS n
WHERE (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) AND (n.object_id IS NOT
    NULL OR n.status != 1) AND n.object_id > ring.o ORDER BY n.object_id
 LIMIT 1) AS anon_1, ring.k + 1 AS anon_2
FROM ring
WHERE ring.o IS NOT NULL AND ring.k < %(objects)s::INTEGER)
 SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6, ring.k
FROM ring JOIN msgworker_message ON msgworker_message.msg_id = (SELECT h.msg_id
FROM msgworker_message AS h
WHERE (h.status IN (0, 1) OR h.status = -1 AND coalesce(h.error_try_times, 0) < 3) AND (h.object_id IS NOT
    NULL OR h.status != 1) AND h.object_id = ring.o ORDER BY h.msg_id
 LIMIT 1);
WITH RECURSIVE ring(o, k) AS
(SELECT (SELECT f.object_id
FROM msgworker_message AS f
WHERE (f.status IN (0, 1) OR f.status = -1 AND coalesce(f.error_try_times, 0) < 3) AND (f.object_id IS NOT
    NULL OR f.status != 1) AND f.object_id IS NOT NULL ORDER BY f.object_id
 LIMIT 1) AS o, 1 AS k UNION ALL SELECT (SELECT n.object_id
FROM msgworker_message AS n
WHERE (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) AND (n.object_id IS NOT
    NULL OR n.status != 1) AND n.object_id > ring.o ORDER BY n.object_id
 LIMIT 1) AS anon_1, ring.k + 1 AS anon_2
FROM ring
WHERE ring.o IS NOT NULL AND ring.k < %(objects)s::INTEGER)
 SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6, ring.k
FROM ring JOIN msgworker_message ON msgworker_message.msg_id = (SELECT h.msg_id
FROM msgworker_message AS h
WHERE (h.status IN (0, 1) OR h.status = -1 AND coalesce(h.error_try_times, 0) < 3) AND (h.object_id IS NOT
    NULL OR h.status != 1) AND h.object_id = ring.o ORDER BY h.msg_id
 LIMIT 1)
WHERE ((CAST(coalesce((CAST(msgworker_message.topic AS TEXT) COLLATE "C"), 'default') AS TEXT) COLLATE "C")
    NOT IN (/* each of mw_topics */)) OR ring.k >= %(objects)s::INTEGER;
WITH RECURSIVE ring(o, k) AS
(SELECT (SELECT f.object_id
FROM msgworker_message AS f
WHERE (f.status IN (0, 1) OR f.status = -1 AND coalesce(f.error_try_times, 0) < 3) AND (f.object_id IS NOT
    NULL OR f.status != 1) AND f.object_id > %(after)s::VARCHAR ORDER BY f.object_id
 LIMIT 1) AS o, 1 AS k UNION ALL SELECT (SELECT n.object_id
FROM msgworker_message AS n
WHERE (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) AND (n.object_id IS NOT
    NULL OR n.status != 1) AND n.object_id > ring.o ORDER BY n.object_id
 LIMIT 1) AS anon_1, ring.k + 1 AS anon_2
FROM ring
WHERE ring.o IS NOT NULL AND ring.k < %(objects)s::INTEGER)
 SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6, ring.k
FROM ring JOIN msgworker_message ON msgworker_message.msg_id = (SELECT h.msg_id
FROM msgworker_message AS h
WHERE (h.status IN (0, 1) OR h.status = -1 AND coalesce(h.error_try_times, 0) < 3) AND (h.object_id IS NOT
    NULL OR h.status != 1) AND h.object_id = ring.o ORDER BY h.msg_id
 LIMIT 1)
WHERE ((CAST(coalesce((CAST(msgworker_message.topic AS TEXT) COLLATE "C"), 'default') AS TEXT) COLLATE "C")
    NOT IN (/* each of mw_topics */)) OR ring.k >= %(objects)s::INTEGER;

-- without_object: Open rows without an object, by msg_id, behind `after` (None = from the first), and the next
--     cursor, None after the last one
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND (msgworker_message.object_id IS NOT NULL OR
    msgworker_message.status != 1) AND msgworker_message.object_id IS NULL AND msgworker_message.msg_id >
    %(after)s::BIGINT ORDER BY msgworker_message.object_id, msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND (msgworker_message.object_id IS NOT NULL OR
    msgworker_message.status != 1) AND msgworker_message.object_id IS NULL AND msgworker_message.msg_id >
    %(after)s::BIGINT AND (msgworker_message.msg_id %% %(period)s::BIGINT + %(period)s::BIGINT) %%
    %(period)s::BIGINT BETWEEN %(least)s::BIGINT AND %(most)s::BIGINT ORDER BY msgworker_message.object_id,
    msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;

-- oldest_among: `oldest` of these topics alone (but: of all others), among the next `span` rows: a bounded step,
--     however many of other topics are in front
SELECT count(*) AS n, max(w.k) AS last
FROM (SELECT msgworker_message.msg_id AS k
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id >=
    %(mark)s::BIGINT ORDER BY msgworker_message.msg_id
 LIMIT %(span)s::INTEGER) AS w;
SELECT w.h0, w.h1, w.h2, w.h3, w.h4, w.h5, w.h6
FROM (SELECT msgworker_message.msg_id AS k, msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1,
    msgworker_message.status AS h2, coalesce(msgworker_message.error_try_times, 0) AS h3,
    coalesce(msgworker_message.crash_times, 0) AS h4, msgworker_message.topic AS h5, CASE WHEN
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= statement_timestamp()) THEN 1
    ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id >=
    %(mark)s::BIGINT ORDER BY msgworker_message.msg_id
 LIMIT %(span)s::INTEGER) AS w
WHERE (CAST(coalesce((CAST(w.h5 AS TEXT) COLLATE "C"), 'default') AS TEXT) COLLATE "C") IN (/* each of
    mw_topics */) ORDER BY w.k
 LIMIT %(mw_rows)s::INTEGER;
SELECT w.h0, w.h1, w.h2, w.h3, w.h4, w.h5, w.h6
FROM (SELECT msgworker_message.msg_id AS k, msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1,
    msgworker_message.status AS h2, coalesce(msgworker_message.error_try_times, 0) AS h3,
    coalesce(msgworker_message.crash_times, 0) AS h4, msgworker_message.topic AS h5, CASE WHEN
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= statement_timestamp()) THEN 1
    ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id >=
    %(mark)s::BIGINT ORDER BY msgworker_message.msg_id
 LIMIT %(span)s::INTEGER) AS w
WHERE ((CAST(coalesce((CAST(w.h5 AS TEXT) COLLATE "C"), 'default') AS TEXT) COLLATE "C") NOT IN (/* each of
    mw_topics */)) ORDER BY w.k
 LIMIT %(mw_rows)s::INTEGER;

-- newest: The highest id; `MIN_ID` without one
SELECT max(msgworker_message.msg_id) AS max_1
FROM msgworker_message;

-- heads_of: Those of these messages that are open and the heads of their objects, or have none, by msg_id
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) ORDER BY msgworker_message.msg_id;

-- ==================== ranked: Heads that come out of order of age: those with a priority, and those whose instant has come

-- ranked: Read `limit` rows that have a priority and wait for no instant, behind `after` (None = from the
--     highest on)
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6, CASE WHEN
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 ORDER BY
    msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6, CASE WHEN
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 AND
    msgworker_message.priority <= 0 - %(rank)s::INTEGER AND (msgworker_message.priority < 0 -
    %(rank)s::INTEGER OR msgworker_message.msg_id > %(id)s::BIGINT) ORDER BY msgworker_message.priority DESC,
    msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6,
    coalesce(msgworker_message.shard, 0) AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 ORDER BY
    msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6,
    coalesce(msgworker_message.shard, 0) AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 AND
    msgworker_message.priority <= 0 - %(rank)s::INTEGER AND (msgworker_message.priority < 0 -
    %(rank)s::INTEGER OR msgworker_message.msg_id > %(id)s::BIGINT) ORDER BY msgworker_message.priority DESC,
    msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6,
    msgworker_message.instance_type AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 ORDER BY
    msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6,
    msgworker_message.instance_type AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 AND
    msgworker_message.priority <= 0 - %(rank)s::INTEGER AND (msgworker_message.priority < 0 -
    %(rank)s::INTEGER OR msgworker_message.msg_id > %(id)s::BIGINT) ORDER BY msgworker_message.priority DESC,
    msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER;

-- due_and_ranked: `candidates.due_after`, and `ranked` of up to `most` rows, in one statement
SELECT q0.h0, q0.h1, q0.h2, q0.h3, q0.h4, q0.h5, q0.h6, q0.h7, q0.ranked, q0.head, q0.r
FROM (SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS
    h2, coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS
    h4, msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6,
    CAST(msgworker_message.available_at AS TEXT) AS h7, 0 AS ranked, 1 AS head, 0 - CASE WHEN
    (msgworker_message.priority BETWEEN 1 AND 2147483647) THEN msgworker_message.priority ELSE 0 END AS r
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= statement_timestamp() ORDER BY msgworker_message.available_at,
    msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER) AS q0 UNION ALL SELECT q1.h0, q1.h1, q1.h2, q1.h3, q1.h4, q1.h5, q1.h6, q1.h7,
    q1.ranked, q1.head, q1.r
FROM (SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS
    h2, coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS
    h4, msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6,
    CAST(msgworker_message.available_at AS TEXT) AS h7, 1 AS ranked, CASE WHEN (msgworker_message.object_id IS
    NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 ORDER BY
    msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT %(most)s::INTEGER) AS q1;
SELECT q0.h0, q0.h1, q0.h2, q0.h3, q0.h4, q0.h5, q0.h6, q0.h7, q0.ranked, q0.head, q0.r
FROM (SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS
    h2, coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS
    h4, msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6,
    CAST(msgworker_message.available_at AS TEXT) AS h7, 0 AS ranked, 1 AS head, 0 - CASE WHEN
    (msgworker_message.priority BETWEEN 1 AND 2147483647) THEN msgworker_message.priority ELSE 0 END AS r
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= statement_timestamp() AND msgworker_message.available_at >=
    CAST(%(at)s::VARCHAR AS TIMESTAMP WITH TIME ZONE) AND (msgworker_message.available_at >
    CAST(%(at)s::VARCHAR AS TIMESTAMP WITH TIME ZONE) OR msgworker_message.msg_id > %(id)s::BIGINT) ORDER BY
    msgworker_message.available_at, msgworker_message.msg_id
 LIMIT %(mw_rows)s::INTEGER) AS q0 UNION ALL SELECT q1.h0, q1.h1, q1.h2, q1.h3, q1.h4, q1.h5, q1.h6, q1.h7,
    q1.ranked, q1.head, q1.r
FROM (SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS
    h2, coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS
    h4, msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) THEN 1 ELSE 0 END AS h6,
    CAST(msgworker_message.available_at AS TEXT) AS h7, 1 AS ranked, CASE WHEN (msgworker_message.object_id IS
    NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 ORDER BY
    msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT %(most)s::INTEGER) AS q1;

-- due_in: Seconds until the first message becomes due, if that is within `linger` seconds, or within
--     `retry_linger` where it has failed before; else None
SELECT (SELECT (CAST(extract(epoch FROM statement_timestamp()) AS float8) - CAST(extract(epoch FROM
    w.available_at) AS float8)) AS anon_1
FROM msgworker_message AS w
WHERE (w.status > -1 AND w.status < 1 OR w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) <
    3) AND (w.status IN (0, 1) OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at >
    statement_timestamp() AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = w.object_id AND e.msg_id < w.msg_id AND (e.status IN (0, 1) OR e.status = -1 AND
    coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = w.object_id AND r.status = 1
 LIMIT ALL OFFSET 0))) AND w.available_at <= (statement_timestamp() + make_interval(secs => %(linger)s)) ORDER
    BY w.available_at
 LIMIT 1) AS d0, (SELECT (CAST(extract(epoch FROM statement_timestamp()) AS float8) - CAST(extract(epoch FROM
    w.available_at) AS float8)) AS anon_2
FROM msgworker_message AS w
WHERE (w.status > -1 AND w.status < 1 OR w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) <
    3) AND (w.status IN (0, 1) OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at >
    statement_timestamp() AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = w.object_id AND e.msg_id < w.msg_id AND (e.status IN (0, 1) OR e.status = -1 AND
    coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = w.object_id AND r.status = 1
 LIMIT ALL OFFSET 0))) AND w.available_at <= (statement_timestamp() + make_interval(secs => %(retry_linger)s))
    AND w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) > 0 ORDER BY w.available_at
 LIMIT 1) AS d1;
SELECT (SELECT (CAST(extract(epoch FROM statement_timestamp()) AS float8) - CAST(extract(epoch FROM
    w.available_at) AS float8)) AS anon_1
FROM msgworker_message AS w
WHERE (w.status > -1 AND w.status < 1 OR w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) <
    3) AND (w.status IN (0, 1) OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at >
    statement_timestamp() AND (CAST(coalesce(w.topic, 'default') AS TEXT) COLLATE "C") IN (/* each of
    mw_topics */) AND ((CAST(coalesce(w.topic, 'default') AS TEXT) COLLATE "C") NOT IN (/* each of mw_paused
    */)) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = w.object_id AND e.msg_id < w.msg_id AND (e.status IN (0, 1) OR e.status = -1 AND
    coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = w.object_id AND r.status = 1
 LIMIT ALL OFFSET 0))) AND w.available_at <= (statement_timestamp() + make_interval(secs => %(linger)s)) ORDER
    BY w.available_at
 LIMIT 1) AS d0, (SELECT (CAST(extract(epoch FROM statement_timestamp()) AS float8) - CAST(extract(epoch FROM
    w.available_at) AS float8)) AS anon_2
FROM msgworker_message AS w
WHERE (w.status > -1 AND w.status < 1 OR w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) <
    3) AND (w.status IN (0, 1) OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at >
    statement_timestamp() AND (CAST(coalesce(w.topic, 'default') AS TEXT) COLLATE "C") IN (/* each of
    mw_topics */) AND ((CAST(coalesce(w.topic, 'default') AS TEXT) COLLATE "C") NOT IN (/* each of mw_paused
    */)) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = w.object_id AND e.msg_id < w.msg_id AND (e.status IN (0, 1) OR e.status = -1 AND
    coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = w.object_id AND r.status = 1
 LIMIT ALL OFFSET 0))) AND w.available_at <= (statement_timestamp() + make_interval(secs => %(retry_linger)s))
    AND w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) > 0 ORDER BY w.available_at
 LIMIT 1) AS d1;

-- ==================== limits: Limits of topics over all instances: what is recorded, and what is free now

-- lock: Lock the limits of a topic until the end of the transaction, and see what is free; None if another
--     transaction has them locked, or they were removed
SELECT msgworker_limit.max_running, msgworker_limit.rate_starts, msgworker_limit.rate_seconds,
    msgworker_limit.burst, msgworker_limit.full_us, CAST(floor(extract(epoch FROM statement_timestamp()) *
    1000) AS BIGINT) AS anon_1
FROM msgworker_limit
WHERE msgworker_limit.table_name = %(table_name_1)s::VARCHAR AND msgworker_limit.topic = %(mw_topic)s::VARCHAR
    FOR UPDATE SKIP LOCKED;

-- take: Take so many tokens
UPDATE msgworker_limit SET full_us=%(mw_full)s::BIGINT WHERE msgworker_limit.table_name =
    %(table_name_1)s::VARCHAR AND msgworker_limit.topic = %(mw_topic)s::VARCHAR;

-- declare: Record the limits of a topic, if what stands there is `seen` (None = nothing); whether it was
INSERT INTO msgworker_limit (table_name, topic, max_running, rate_starts, rate_seconds, burst, declared_by,
    declared_at) VALUES (%(table_name)s::VARCHAR, %(topic)s::VARCHAR, %(max_running)s::INTEGER,
    %(rate_starts)s::INTEGER, %(rate_seconds)s::INTEGER, %(burst)s::INTEGER, %(declared_by)s::VARCHAR,
    statement_timestamp());
UPDATE msgworker_limit SET max_running=%(max_running)s::INTEGER, rate_starts=%(rate_starts)s::INTEGER,
    rate_seconds=%(rate_seconds)s::INTEGER, burst=%(burst)s::INTEGER, version=(msgworker_limit.version +
    %(version_1)s::BIGINT), declared_by=%(declared_by)s::VARCHAR, declared_at=statement_timestamp() WHERE
    msgworker_limit.table_name = %(table_name_1)s::VARCHAR AND msgworker_limit.topic = %(mw_topic)s::VARCHAR
    AND msgworker_limit.version = %(version_2)s::BIGINT;

-- remove: Forget the limits of a topic; False if it has none
DELETE FROM msgworker_limit WHERE msgworker_limit.table_name = %(table_name_1)s::VARCHAR AND
    msgworker_limit.topic = %(mw_topic)s::VARCHAR;

-- ==================== claim: Flag candidates, and read the runs behind the flagged heads

-- flag: Flag the candidates that are unchanged since they were read; return the rows won, by msg_id
WITH locked AS MATERIALIZED
(SELECT m.msg_id AS msg_id
FROM msgworker_message AS m JOIN unnest(CAST(%(mw_ids)s::VARCHAR AS BIGINT[]), CAST(%(mw_statuses)s::VARCHAR
    AS NUMERIC[]), CAST(%(mw_tries)s::VARCHAR AS NUMERIC[])) AS seen(msg_id, status, tries) ON m.msg_id =
    seen.msg_id
WHERE m.status = seen.status AND coalesce(m.error_try_times, 0) = seen.tries AND (seen.status = 0 OR
    seen.status = -1 AND seen.tries < 3) AND (m.available_at IS NULL OR m.available_at <=
    statement_timestamp()) AND NOT (m.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = m.object_id AND e.msg_id < m.msg_id AND (e.status IN (0, 1) OR e.status = -1 AND
    coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) AND NOT (m.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = m.object_id AND r.status = 1
 LIMIT ALL OFFSET 0))) ORDER BY m.msg_id FOR UPDATE OF m SKIP LOCKED)
 UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=%(mw_me)s::VARCHAR,
    claimed_at=statement_timestamp() FROM locked WHERE msgworker_message.msg_id = locked.msg_id RETURNING
    msgworker_message.msg_id AS r0, msgworker_message.object_id AS r1, msgworker_message.topic AS r2, CASE
    WHEN (length(CAST(msgworker_message.payload AS TEXT)) <= 16384) THEN CAST(msgworker_message.payload AS
    TEXT) END AS r3, coalesce(msgworker_message.error_try_times, 0) AS r4,
    coalesce(msgworker_message.crash_times, 0) AS r5, coalesce(msgworker_message.later_times, 0) AS r6,
    CAST(msgworker_message.created_at AS TEXT) AS r7, CASE WHEN (length(CAST(msgworker_message.payload AS
    TEXT)) > 16384) THEN length(CAST(msgworker_message.payload AS TEXT)) END AS r8;

-- flag_apart: `flag` in halves, each in its savepoint, down to single rows, so that a refused row affects no
--     other
WITH locked AS MATERIALIZED
(SELECT m.msg_id AS msg_id
FROM msgworker_message AS m JOIN unnest(CAST(%(mw_ids)s::VARCHAR AS BIGINT[]), CAST(%(mw_statuses)s::VARCHAR
    AS NUMERIC[]), CAST(%(mw_tries)s::VARCHAR AS NUMERIC[])) AS seen(msg_id, status, tries) ON m.msg_id =
    seen.msg_id
WHERE m.status = seen.status AND coalesce(m.error_try_times, 0) = seen.tries AND (seen.status = 0 OR
    seen.status = -1 AND seen.tries < 3) AND (m.available_at IS NULL OR m.available_at <=
    statement_timestamp()) AND NOT (m.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = m.object_id AND e.msg_id < m.msg_id AND (e.status IN (0, 1) OR e.status = -1 AND
    coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)
 LIMIT ALL OFFSET 0))) AND NOT (m.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = m.object_id AND r.status = 1
 LIMIT ALL OFFSET 0))) ORDER BY m.msg_id FOR UPDATE OF m SKIP LOCKED)
 UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=%(mw_me)s::VARCHAR,
    claimed_at=statement_timestamp() FROM locked WHERE msgworker_message.msg_id = locked.msg_id RETURNING
    msgworker_message.msg_id AS r0, msgworker_message.object_id AS r1, msgworker_message.topic AS r2, CASE
    WHEN (length(CAST(msgworker_message.payload AS TEXT)) <= 16384) THEN CAST(msgworker_message.payload AS
    TEXT) END AS r3, coalesce(msgworker_message.error_try_times, 0) AS r4,
    coalesce(msgworker_message.crash_times, 0) AS r5, coalesce(msgworker_message.later_times, 0) AS r6,
    CAST(msgworker_message.created_at AS TEXT) AS r7, CASE WHEN (length(CAST(msgworker_message.payload AS
    TEXT)) > 16384) THEN length(CAST(msgworker_message.payload AS TEXT)) END AS r8;

-- read_runs: The run behind each flagged head: head's msg_id -> its next rows, perhaps empty
SELECT o.place, r.s, r.r0, r.r1, r.r2, r.r3, r.r4, r.r5, r.r6, r.r7, r.r8
FROM unnest(CAST(%(places)s::VARCHAR AS INTEGER[]), %(objects)s::VARCHAR(190)[] COLLATE "C") AS o(place,
    object_id) JOIN LATERAL (SELECT CASE WHEN (m.status = 0 AND (m.available_at IS NULL OR m.available_at <=
    statement_timestamp()) AND coalesce(m.error_try_times, 0) = 0 AND coalesce(m.later_times, 0) = 0 AND
    m.unique_key IS NULL) THEN 1 ELSE 0 END AS s, m.msg_id AS r0, m.object_id AS r1, m.topic AS r2, CASE WHEN
    (length(CAST(m.payload AS TEXT)) <= 16384) THEN CAST(m.payload AS TEXT) END AS r3,
    coalesce(m.error_try_times, 0) AS r4, coalesce(m.crash_times, 0) AS r5, coalesce(m.later_times, 0) AS r6,
    CAST(m.created_at AS TEXT) AS r7, CASE WHEN (length(CAST(m.payload AS TEXT)) > 16384) THEN
    length(CAST(m.payload AS TEXT)) END AS r8
FROM msgworker_message AS m
WHERE m.object_id = o.object_id AND (m.status IN (0, 1) OR m.status = -1 AND coalesce(m.error_try_times, 0) <
    3) AND (m.object_id IS NOT NULL OR m.status != 1) ORDER BY m.msg_id
 LIMIT %(mw_rows)s::INTEGER) AS r ON true;

-- ==================== done: The settle of messages that are done, and the flag's move to the next message of each lane

-- still_mine: Those of `ids` that are flagged by us
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR;

-- ==================== settle: Write outcomes and move the flag, only while the flag is still ours

-- settle: Write a batch of settlements; return the result of each, by its msg_id
WITH finished AS
(UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=statement_timestamp() WHERE
    msgworker_message.msg_id = %(mw_head)s::BIGINT AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR RETURNING
    msgworker_message.msg_id AS msg_id),
moved AS
(UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=%(mw_me)s::VARCHAR,
    claimed_at=statement_timestamp() FROM finished WHERE finished.msg_id = %(mw_head)s::BIGINT AND
    msgworker_message.msg_id = %(mw_next)s::BIGINT AND msgworker_message.msg_id != finished.msg_id AND
    msgworker_message.status > -1 AND msgworker_message.status < 1 AND (msgworker_message.available_at IS NULL
    OR msgworker_message.available_at <= statement_timestamp()) RETURNING msgworker_message.msg_id AS msg_id)
 SELECT (SELECT moved.msg_id
FROM moved) AS anon_1
FROM finished;
WITH finished AS
(UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=statement_timestamp() WHERE
    msgworker_message.msg_id = any(CAST(%(mw_ids)s::VARCHAR AS BIGINT[])) AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR RETURNING
    msgworker_message.msg_id AS msg_id),
moved AS
(UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=%(mw_me)s::VARCHAR,
    claimed_at=statement_timestamp() FROM finished, unnest(CAST(%(mw_heads)s::VARCHAR AS BIGINT[]),
    CAST(%(mw_nexts)s::VARCHAR AS BIGINT[])) AS pairs(head, next) WHERE finished.msg_id = pairs.head AND
    msgworker_message.msg_id = pairs.next AND msgworker_message.status > -1 AND msgworker_message.status < 1
    AND (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= statement_timestamp())
    RETURNING msgworker_message.msg_id AS msg_id)
 SELECT (SELECT CAST(array_agg(anon_2.msg_id) AS TEXT) AS array_agg_1
FROM (SELECT CAST(finished.msg_id AS BIGINT) AS msg_id
FROM finished ORDER BY msg_id) AS anon_2) AS anon_1, (SELECT CAST(array_agg(anon_4.msg_id) AS TEXT) AS
    array_agg_2
FROM (SELECT CAST(moved.msg_id AS BIGINT) AS msg_id
FROM moved ORDER BY msg_id) AS anon_4) AS anon_3;
WITH finished AS
(DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id = %(mw_head)s::BIGINT AND
    msgworker_message.status > 0 AND msgworker_message.status < 2 AND msgworker_message.claimed_by =
    %(mw_me)s::VARCHAR RETURNING msgworker_message.msg_id AS msg_id),
moved AS
(UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=%(mw_me)s::VARCHAR,
    claimed_at=statement_timestamp() FROM finished WHERE finished.msg_id = %(mw_head)s::BIGINT AND
    msgworker_message.msg_id = %(mw_next)s::BIGINT AND msgworker_message.msg_id != finished.msg_id AND
    msgworker_message.status > -1 AND msgworker_message.status < 1 AND (msgworker_message.available_at IS NULL
    OR msgworker_message.available_at <= statement_timestamp()) RETURNING msgworker_message.msg_id AS msg_id)
 SELECT (SELECT moved.msg_id
FROM moved) AS anon_1
FROM finished;
WITH finished AS
(DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id =
    any(CAST(%(mw_ids)s::VARCHAR AS BIGINT[])) AND msgworker_message.status > 0 AND msgworker_message.status <
    2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR RETURNING msgworker_message.msg_id AS msg_id),
moved AS
(UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=%(mw_me)s::VARCHAR,
    claimed_at=statement_timestamp() FROM finished, unnest(CAST(%(mw_heads)s::VARCHAR AS BIGINT[]),
    CAST(%(mw_nexts)s::VARCHAR AS BIGINT[])) AS pairs(head, next) WHERE finished.msg_id = pairs.head AND
    msgworker_message.msg_id = pairs.next AND msgworker_message.status > -1 AND msgworker_message.status < 1
    AND (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= statement_timestamp())
    RETURNING msgworker_message.msg_id AS msg_id)
 SELECT (SELECT CAST(array_agg(anon_2.msg_id) AS TEXT) AS array_agg_1
FROM (SELECT CAST(finished.msg_id AS BIGINT) AS msg_id
FROM finished ORDER BY msg_id) AS anon_2) AS anon_1, (SELECT CAST(array_agg(anon_4.msg_id) AS TEXT) AS
    array_agg_2
FROM (SELECT CAST(moved.msg_id AS BIGINT) AS msg_id
FROM moved ORDER BY msg_id) AS anon_4) AS anon_3;
UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=statement_timestamp() WHERE
    msgworker_message.msg_id = %(mw_head)s::BIGINT AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR RETURNING
    msgworker_message.msg_id AS msg_id;
UPDATE msgworker_message SET status=-1, available_at=CASE WHEN (CASE WHEN
    (coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.error_try_times, 0) +
    %(coalesce_1)s::SMALLINT ELSE 3 END >= 3) THEN NULL ELSE (statement_timestamp() + make_interval(secs =>
    %(mw_delay)s)) END, finished_at=CASE WHEN (CASE WHEN (coalesce(msgworker_message.error_try_times, 0) < 3)
    THEN coalesce(msgworker_message.error_try_times, 0) + %(coalesce_1)s::SMALLINT ELSE 3 END >= 3) THEN
    statement_timestamp() END, last_error=%(mw_error)s::VARCHAR, claimed_by=NULL, error_try_times=CASE WHEN
    (coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.error_try_times, 0) +
    %(coalesce_1)s::SMALLINT ELSE 3 END WHERE msgworker_message.msg_id = %(mw_id)s::BIGINT AND
    msgworker_message.status > 0 AND msgworker_message.status < 2 AND msgworker_message.claimed_by =
    %(mw_me)s::VARCHAR AND coalesce(msgworker_message.error_try_times, 0) = %(mw_tries)s::INTEGER AND
    coalesce(msgworker_message.later_times, 0) = %(mw_times)s::INTEGER;
SELECT msgworker_message.msg_id, CASE WHEN msgworker_message.claimed_at BETWEEN '0001-01-02' AND '9999-12-30'
    THEN msgworker_message.claimed_at END AS anon_1, (SELECT max(l.try_no) AS max_1
FROM msgworker_try AS l
WHERE l.table_name = %(mw_table)s::VARCHAR AND l.msg_id = msgworker_message.msg_id) AS anon_2,
    statement_timestamp() AS mw_now
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */);
UPDATE msgworker_message SET status=-1, available_at=NULL, finished_at=statement_timestamp(),
    last_error=%(mw_error)s::VARCHAR, claimed_by=NULL, error_try_times=3 WHERE msgworker_message.msg_id =
    %(mw_id)s::BIGINT AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = %(mw_me)s::VARCHAR AND coalesce(msgworker_message.error_try_times, 0) =
    %(mw_tries)s::INTEGER AND coalesce(msgworker_message.later_times, 0) = %(mw_times)s::INTEGER;
UPDATE msgworker_message SET status=CASE WHEN (coalesce(msgworker_message.error_try_times, 0) > 0) THEN -1
    ELSE 0 END, available_at=(statement_timestamp() + make_interval(secs => %(mw_delay)s)),
    later_times=(coalesce(msgworker_message.later_times, 0) + %(coalesce_1)s::SMALLINT),
    last_error=%(mw_error)s::VARCHAR, claimed_by=NULL WHERE msgworker_message.msg_id = %(mw_id)s::BIGINT AND
    msgworker_message.status > 0 AND msgworker_message.status < 2 AND msgworker_message.claimed_by =
    %(mw_me)s::VARCHAR AND coalesce(msgworker_message.error_try_times, 0) = %(mw_tries)s::INTEGER AND
    coalesce(msgworker_message.later_times, 0) = %(mw_times)s::INTEGER;
UPDATE msgworker_message SET status=CASE WHEN (coalesce(msgworker_message.error_try_times, 0) > 0) THEN -1
    ELSE 0 END, available_at=NULL, claimed_by=NULL WHERE msgworker_message.msg_id = %(mw_id)s::BIGINT AND
    msgworker_message.status > 0 AND msgworker_message.status < 2 AND msgworker_message.claimed_by =
    %(mw_me)s::VARCHAR AND coalesce(msgworker_message.error_try_times, 0) = %(mw_tries)s::INTEGER AND
    coalesce(msgworker_message.later_times, 0) = %(mw_times)s::INTEGER;

-- settle_batch: Write that all messages are done; return the next ones that are flagged by us now
WITH locked AS MATERIALIZED
(SELECT msgworker_message.msg_id AS msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id = any(CAST(%(mw_ids)s::VARCHAR AS BIGINT[])) ORDER BY msgworker_message.msg_id
    FOR UPDATE)
 SELECT count(*) AS count_1
FROM locked;
UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=statement_timestamp() WHERE
    msgworker_message.msg_id = any(CAST(%(mw_ids)s::VARCHAR AS BIGINT[])) AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR;
UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=statement_timestamp() WHERE
    msgworker_message.msg_id = any(CAST(%(mw_ids)s::VARCHAR AS BIGINT[])) AND msgworker_message.status > -1
    AND msgworker_message.status < 1 AND (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= statement_timestamp()) AND coalesce(msgworker_message.error_try_times,
    0) = 0;
UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=%(mw_me)s::VARCHAR,
    claimed_at=statement_timestamp() WHERE msgworker_message.msg_id = any(CAST(%(mw_ids)s::VARCHAR AS
    BIGINT[])) AND msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= statement_timestamp());
SET CONSTRAINTS ALL IMMEDIATE;
DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id =
    any(CAST(%(mw_ids)s::VARCHAR AS BIGINT[])) AND msgworker_message.status > 0 AND msgworker_message.status <
    2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR;
DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id =
    any(CAST(%(mw_ids)s::VARCHAR AS BIGINT[])) AND msgworker_message.status > -1 AND msgworker_message.status
    < 1 AND (msgworker_message.available_at IS NULL OR msgworker_message.available_at <=
    statement_timestamp()) AND coalesce(msgworker_message.error_try_times, 0) = 0;

-- settle_one: Write one settlement in the caller's transaction; LOST writes nothing at all
SAVEPOINT msgworker;
WITH finished AS
(UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=statement_timestamp() WHERE
    msgworker_message.msg_id = %(mw_head)s::BIGINT AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR RETURNING
    msgworker_message.msg_id AS msg_id),
moved AS
(UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=%(mw_me)s::VARCHAR,
    claimed_at=statement_timestamp() FROM finished WHERE finished.msg_id = %(mw_head)s::BIGINT AND
    msgworker_message.msg_id = %(mw_next)s::BIGINT AND msgworker_message.msg_id != finished.msg_id AND
    msgworker_message.status > -1 AND msgworker_message.status < 1 AND (msgworker_message.available_at IS NULL
    OR msgworker_message.available_at <= statement_timestamp()) RETURNING msgworker_message.msg_id AS msg_id)
 SELECT (SELECT moved.msg_id
FROM moved) AS anon_1
FROM finished;
SET CONSTRAINTS ALL IMMEDIATE;
WITH finished AS
(DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id = %(mw_head)s::BIGINT AND
    msgworker_message.status > 0 AND msgworker_message.status < 2 AND msgworker_message.claimed_by =
    %(mw_me)s::VARCHAR RETURNING msgworker_message.msg_id AS msg_id),
moved AS
(UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=%(mw_me)s::VARCHAR,
    claimed_at=statement_timestamp() FROM finished WHERE finished.msg_id = %(mw_head)s::BIGINT AND
    msgworker_message.msg_id = %(mw_next)s::BIGINT AND msgworker_message.msg_id != finished.msg_id AND
    msgworker_message.status > -1 AND msgworker_message.status < 1 AND (msgworker_message.available_at IS NULL
    OR msgworker_message.available_at <= statement_timestamp()) RETURNING msgworker_message.msg_id AS msg_id)
 SELECT (SELECT moved.msg_id
FROM moved) AS anon_1
FROM finished;

-- ==================== items: The item table: done items of a fan-out do not run again, and what they send is sent with their records

-- shown: What is recorded of a message, with the first `limit` items; None if nothing is
SELECT w.s, count(*) AS count_1
FROM (SELECT msgworker_item.status AS s, msgworker_item.finished_at AS at, msgworker_item.total AS n
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
 LIMIT %(param_1)s::INTEGER) AS w GROUP BY w.s;

-- find: Recorded items by key, behind the key `after`; at most bounded.SCAN are read at once
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
    AND msgworker_item.item_key > %(b_after)s::VARCHAR ORDER BY msgworker_item.item_key
 LIMIT %(param_1)s::INTEGER;
SELECT msgworker_item.item_key
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
    AND msgworker_item.item_key > %(b_after)s::VARCHAR ORDER BY msgworker_item.item_key
 LIMIT %(param_1)s::INTEGER OFFSET %(param_2)s::INTEGER;
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
    AND msgworker_item.item_key > %(b_after)s::VARCHAR AND msgworker_item.status = 2 ORDER BY
    msgworker_item.item_key
 LIMIT %(param_1)s::INTEGER;
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
    AND msgworker_item.item_key > %(b_after)s::VARCHAR AND msgworker_item.status != 2 ORDER BY
    msgworker_item.item_key
 LIMIT %(param_1)s::INTEGER;

-- count: How many records the message has, bounded.SCAN at most; at a first try it has none
SELECT count(*) AS count_1
FROM (SELECT msgworker_item.tries AS tries
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
 LIMIT %(param_1)s::INTEGER) AS w;

-- known: The records of these keys, those that are there
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
    AND msgworker_item.item_key IN (/* each of b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
    AND msgworker_item.item_key IN (/* each of b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
    AND msgworker_item.item_key IN (/* each of b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
    AND msgworker_item.item_key IN (/* each of b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = %(b_table_name)s::VARCHAR AND msgworker_item.msg_id = %(b_msg_id)s::BIGINT
    AND msgworker_item.item_key IN (/* each of b_keys */);

-- record: Write records, and insert what they send, in the caller's transaction; False, and nothing is written,
--     if the claim is lost
SELECT statement_timestamp() AS at
FROM msgworker_message
WHERE msgworker_message.msg_id = %(b_msg)s::BIGINT AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR FOR SHARE;

-- record_one: Write one record beside the item's own writes, in their transaction
SELECT statement_timestamp() AS at
FROM msgworker_message
WHERE msgworker_message.msg_id = %(b_msg)s::BIGINT AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR FOR SHARE;

-- ==================== recover: Give back what a dead instance had flagged

-- flagged_by: The msg_ids above `after` flagged by an instance, lowest first, at most `limit`
SELECT f.i
FROM (SELECT a.msg_id + 0 AS i
FROM msgworker_message AS a
WHERE a.status = 1 AND a.claimed_by = %(who)s::VARCHAR AND a.msg_id + 0 > %(after)s::BIGINT) AS f ORDER BY f.i
 LIMIT %(most)s::INTEGER;

-- owners: All instance ids in running rows
SELECT DISTINCT f.o
FROM (SELECT a.claimed_by AS o
FROM msgworker_message AS a
WHERE a.status = 1 AND a.claimed_by IS NOT NULL) AS f;

-- recover: Give these rows back, each with a try counted; return how many were still flagged by `dead_id` and
--     free to be changed: neither settled meanwhile nor locked
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = %(param_1)s::VARCHAR ORDER BY
    msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- release: Release our own rows without a try; return how many were still ours
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = %(mw_me)s::VARCHAR ORDER BY
    msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- foreign: (msg_id, tries) of rows flagged without an owner, lowest first, at most `limit`, above the msg_id
--     `after`
SELECT f.i, f.n
FROM (SELECT a.msg_id + 0 AS i, coalesce(a.error_try_times, 0) AS n
FROM msgworker_message AS a
WHERE a.status = 1 AND a.claimed_by IS NULL AND a.msg_id + 0 > %(param_1)s::BIGINT) AS f ORDER BY f.i
 LIMIT %(param_2)s::INTEGER;
SELECT f.i, f.n
FROM (SELECT a.msg_id + 0 AS i, coalesce(a.error_try_times, 0) AS n
FROM msgworker_message AS a
WHERE a.status = 1 AND a.claimed_by IS NULL AND a.msg_id + 0 > %(param_1)s::BIGINT AND coalesce(a.claimed_at,
    a.created_at) <= %(param_2)s::TIMESTAMP WITH TIME ZONE) AS f ORDER BY f.i
 LIMIT %(param_3)s::INTEGER;

-- undated: The rows flagged without an owner whose age is unknown
SELECT f.i, f.n
FROM (SELECT a.msg_id + 0 AS i, coalesce(a.error_try_times, 0) AS n
FROM msgworker_message AS a
WHERE a.status = 1 AND a.claimed_by IS NULL AND coalesce(a.claimed_at, a.created_at) IS NULL) AS f ORDER BY
    f.i
 LIMIT %(param_1)s::INTEGER;

-- recover_foreign: Give these rows of a foreign consumer back, each with a try counted; return how many were
--     still flagged without an owner and with so many tries
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by IS NULL AND
    coalesce(msgworker_message.error_try_times, 0) = %(param_1)s::INTEGER ORDER BY msgworker_message.msg_id
    FOR UPDATE SKIP LOCKED;

-- ==================== lease: Expiring rights to a name

-- register: Take a new lease
INSERT INTO msgworker_lease (name, kind, term, expires_at, started_at, renewed_at, label, serves) VALUES
    (%(name)s::VARCHAR, %(kind)s::VARCHAR, 0, (statement_timestamp() + make_interval(secs => %(param_1)s)),
    statement_timestamp(), statement_timestamp(), %(label)s::VARCHAR, %(serves)s::VARCHAR);

-- is_kept: Whether a lease just registered reads as it was written: not cut, padded or changed
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = %(name_1)s::VARCHAR;

-- renew: Extend our lease; False = it was taken over, or is over
UPDATE msgworker_lease SET term=(msgworker_lease.term + %(term_1)s::BIGINT), expires_at=(statement_timestamp()
    + make_interval(secs => %(param_1)s)), renewed_at=statement_timestamp(), in_hand=%(in_hand)s::INTEGER,
    serves=%(serves)s::VARCHAR WHERE msgworker_lease.name = %(name_1)s::VARCHAR AND msgworker_lease.taken_by
    IS NULL AND msgworker_lease.expires_at > statement_timestamp();
UPDATE msgworker_lease SET term=(msgworker_lease.term + %(term_1)s::BIGINT), expires_at=(statement_timestamp()
    + make_interval(secs => %(param_1)s)), renewed_at=statement_timestamp(), in_hand=%(in_hand)s::INTEGER
    WHERE msgworker_lease.name = %(name_1)s::VARCHAR AND msgworker_lease.taken_by IS NULL AND
    msgworker_lease.expires_at > statement_timestamp();

-- read_all: All leases of a kind, by name
SELECT msgworker_lease.name, msgworker_lease.kind, msgworker_lease.term, msgworker_lease.taken_by, CASE WHEN
    (msgworker_lease.expires_at > statement_timestamp()) THEN %(param_1)s::INTEGER ELSE %(param_2)s::INTEGER
    END AS anon_1, CASE WHEN (msgworker_lease.renewed_at > (statement_timestamp() + make_interval(secs =>
    %(param_3)s))) THEN %(param_4)s::INTEGER ELSE %(param_5)s::INTEGER END AS anon_2,
    msgworker_lease.started_at, msgworker_lease.renewed_at, msgworker_lease.expires_at, msgworker_lease.label,
    msgworker_lease.in_hand, msgworker_lease.serves, (CAST(extract(epoch FROM statement_timestamp()) AS
    float8) - CAST(extract(epoch FROM msgworker_lease.renewed_at) AS float8)) AS anon_3
FROM msgworker_lease
WHERE msgworker_lease.kind = %(of_kind)s::VARCHAR ORDER BY msgworker_lease.name;

-- take_over: Declare the holder of an expired lease dead; True for the one winner
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = %(name_1)s::VARCHAR FOR UPDATE SKIP LOCKED;

-- restart_ttl: Restart a lease's time from now, after the database's clock was set back (`ahead`): it could not
--     be taken over until the clock reaches its old time
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = %(name_1)s::VARCHAR FOR UPDATE SKIP LOCKED;

-- take_over_live: Declare an instance dead although its lease is live: an operator's decision (`release`)
UPDATE msgworker_lease SET term=(msgworker_lease.term + %(term_1)s::BIGINT), taken_by=%(taken_by)s::VARCHAR,
    expires_at=(statement_timestamp() + make_interval(secs => %(param_1)s)), renewed_at=statement_timestamp()
    WHERE msgworker_lease.name = %(name_1)s::VARCHAR AND msgworker_lease.taken_by IS NULL;

-- leave: Expire a lease that we took over: the next recovery continues with it
UPDATE msgworker_lease SET term=(msgworker_lease.term + %(term_1)s::BIGINT), expires_at=statement_timestamp()
    WHERE msgworker_lease.name = %(name_1)s::VARCHAR AND msgworker_lease.taken_by = %(taken_by_1)s::VARCHAR;

-- drop: Delete a lease: our own (taken_by None) or one that we took over; a locked one is left
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = %(name_1)s::VARCHAR FOR UPDATE SKIP LOCKED;

-- ==================== schedules: Schedules: a row each in `msgworker_schedule`, which any instance may fire

-- look: The time of the database, and all schedules of this message table, by name
SELECT statement_timestamp() AS mw_now, msgworker_schedule.name, msgworker_schedule.spec,
    msgworker_schedule.time_zone, msgworker_schedule.topic, msgworker_schedule.object_id,
    msgworker_schedule.payload, msgworker_schedule.catch_up, CASE WHEN msgworker_schedule.next_at BETWEEN
    '0001-01-02' AND '9999-12-30' THEN msgworker_schedule.next_at END AS next_at, CASE WHEN
    msgworker_schedule.last_at BETWEEN '0001-01-02' AND '9999-12-30' THEN msgworker_schedule.last_at END AS
    last_at, CASE WHEN msgworker_schedule.paused_at BETWEEN '0001-01-02' AND '9999-12-30' THEN
    msgworker_schedule.paused_at END AS paused_at, msgworker_schedule.paused_by, msgworker_schedule.version,
    msgworker_schedule.declared_by, CASE WHEN msgworker_schedule.declared_at BETWEEN '0001-01-02' AND
    '9999-12-30' THEN msgworker_schedule.declared_at END AS declared_at, msgworker_schedule.overlap,
    msgworker_schedule.skipped, msgworker_schedule.replaced, msgworker_schedule.paused_reason
FROM msgworker_schedule
WHERE msgworker_schedule.table_name = %(table_name_1)s::VARCHAR ORDER BY msgworker_schedule.name;
SELECT statement_timestamp() AS mw_now;

-- insert: Insert a schedule, by column
INSERT INTO msgworker_schedule (table_name, name, spec, time_zone, topic, object_id, payload, catch_up,
    next_at, declared_by, declared_at) VALUES (%(table_name)s::VARCHAR, %(name)s::VARCHAR, %(spec)s::VARCHAR,
    %(time_zone)s::VARCHAR, %(topic)s::VARCHAR, %(object_id)s::VARCHAR, %(payload)s::VARCHAR,
    %(catch_up)s::VARCHAR, %(next_at)s::TIMESTAMP WITH TIME ZONE, %(declared_by)s::VARCHAR,
    statement_timestamp());

-- change: Change the columns in `values`, if the row is as it was seen; False if it is not
UPDATE msgworker_schedule SET spec=%(spec)s::VARCHAR, time_zone=%(time_zone)s::VARCHAR,
    topic=%(topic)s::VARCHAR, object_id=%(object_id)s::VARCHAR, payload=%(payload)s::VARCHAR,
    catch_up=%(catch_up)s::VARCHAR, next_at=%(next_at)s::TIMESTAMP WITH TIME ZONE,
    last_at=%(last_at)s::TIMESTAMP WITH TIME ZONE, version=(msgworker_schedule.version +
    %(version_1)s::BIGINT), declared_by=%(declared_by)s::VARCHAR WHERE msgworker_schedule.table_name =
    %(table_name_1)s::VARCHAR AND msgworker_schedule.name = %(name_1)s::VARCHAR AND msgworker_schedule.version
    = %(version_2)s::BIGINT;

-- fire: Send the messages of one or more ticks and move to `next_at`, if the row is as it was seen; None, and
--     nothing is sent, if it is not: another instance has fired them
UPDATE msgworker_schedule SET next_at=%(next_at)s::TIMESTAMP WITH TIME ZONE, last_at=%(last_at)s::TIMESTAMP
    WITH TIME ZONE, version=(msgworker_schedule.version + %(version_1)s::BIGINT) WHERE
    msgworker_schedule.table_name = %(table_name_1)s::VARCHAR AND msgworker_schedule.name =
    %(name_1)s::VARCHAR AND msgworker_schedule.version = %(version_2)s::BIGINT;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, scheduled_for)
    VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0, %(b_payload)s::VARCHAR,
    %(b_shard)s::SMALLINT, %(b_scheduled_for)s::TIMESTAMP WITH TIME ZONE);
UPDATE msgworker_schedule SET last_at=%(last_at)s::TIMESTAMP WITH TIME ZONE,
    skipped=(msgworker_schedule.skipped + %(skipped_1)s::BIGINT), replaced=(msgworker_schedule.replaced +
    %(replaced_1)s::BIGINT) WHERE msgworker_schedule.table_name = %(table_name_1)s::VARCHAR AND
    msgworker_schedule.name = %(name_1)s::VARCHAR;

-- delete: Delete a schedule, if the row is as it was seen
DELETE FROM msgworker_schedule WHERE msgworker_schedule.table_name = %(table_name_1)s::VARCHAR AND
    msgworker_schedule.name = %(name_1)s::VARCHAR AND msgworker_schedule.version = %(version_1)s::BIGINT;

-- tick_of: For which instant a schedule has sent a message; None for other messages, and for a value that is no
--     instant
SELECT CAST(msgworker_message.scheduled_for AS TEXT) AS anon_1
FROM msgworker_message
WHERE msgworker_message.msg_id = %(param_1)s::BIGINT;

-- ==================== jobs: Jobs: messages that belong together, and the message that is sent when all of them have ended

-- open_job: Insert a job; return its id
INSERT INTO msgworker_job (table_name, name, on_complete, object_id, opened_by, payload, on_dead, opened_at)
    VALUES (%(table_name)s::VARCHAR, %(name)s::VARCHAR, %(on_complete)s::VARCHAR, %(object_id)s::VARCHAR,
    %(opened_by)s::VARCHAR, %(payload)s::VARCHAR, %(on_dead)s::VARCHAR, statement_timestamp()) RETURNING
    msgworker_job.job_id;

-- lock_open: A job, whose row is locked, shared, until the end of the transaction; None if there is no such one
SELECT msgworker_job.name, msgworker_job.sealed_at
FROM msgworker_job
WHERE msgworker_job.job_id = %(mw_job)s::BIGINT AND msgworker_job.table_name = %(table_name_1)s::VARCHAR FOR
    SHARE;

-- seal: Close a job to further senders; False if it was sealed, or is not there
UPDATE msgworker_job SET sealed_at=statement_timestamp() WHERE msgworker_job.job_id = %(mw_job)s::BIGINT AND
    msgworker_job.table_name = %(table_name_1)s::VARCHAR AND msgworker_job.sealed_at IS NULL;

-- job_of: The job of a message; None if it belongs to none
SELECT msgworker_message.job_id
FROM msgworker_message
WHERE msgworker_message.msg_id = %(mw_id)s::BIGINT;

-- ended: The sealed jobs of which nothing is unfinished, that have not completed, among the next LOOKED_AT
--     behind `after`; and where to go on, None at the end
SELECT msgworker_job.job_id, CASE WHEN ((EXISTS (SELECT 1
FROM msgworker_message AS j0
WHERE j0.job_id = msgworker_job.job_id AND j0.status > -1 AND j0.status < 1
 LIMIT ALL OFFSET 0)) OR (EXISTS (SELECT 1
FROM msgworker_message AS j1
WHERE j1.job_id = msgworker_job.job_id AND j1.status > 0 AND j1.status < 2
 LIMIT ALL OFFSET 0)) OR (EXISTS (SELECT 1
FROM msgworker_message AS j2
WHERE j2.job_id = msgworker_job.job_id AND j2.status > -2 AND j2.status < 0 AND (coalesce(j2.error_try_times,
    0) < 3 OR msgworker_job.on_dead = 'wait' AND msgworker_job.cancelled_at IS NULL AND NOT (j2.status = -1
    AND j2.last_error IS NOT NULL AND (((CAST(j2.last_error AS TEXT) COLLATE "C") LIKE %(param_2)s::VARCHAR ||
    '%%' ESCAPE '/') OR ((CAST(j2.last_error AS TEXT) COLLATE "C") LIKE %(param_3)s::VARCHAR || '%%' ESCAPE
    '/'))))
 LIMIT ALL OFFSET 0))) THEN 0 ELSE 1 END AS anon_1
FROM msgworker_job
WHERE msgworker_job.table_name = %(table_name_1)s::VARCHAR AND msgworker_job.sealed_at IS NOT NULL AND
    msgworker_job.completed_at IS NULL AND msgworker_job.job_id > %(mw_after)s::BIGINT ORDER BY
    msgworker_job.job_id
 LIMIT 200;

-- cancel: Seal a job, and send no message when it has ended; False if that is so, or it has completed
UPDATE msgworker_job SET sealed_at=coalesce(msgworker_job.sealed_at, statement_timestamp()),
    cancelled_at=statement_timestamp() WHERE msgworker_job.job_id = %(mw_job)s::BIGINT AND
    msgworker_job.table_name = %(table_name_1)s::VARCHAR AND msgworker_job.completed_at IS NULL AND
    msgworker_job.cancelled_at IS NULL;

-- pause: Let no message of a job start; False if that is so, or it has completed
UPDATE msgworker_job SET paused_at=statement_timestamp(), paused_by=%(paused_by)s::VARCHAR,
    paused_reason=%(paused_reason)s::VARCHAR WHERE msgworker_job.job_id = %(mw_job)s::BIGINT AND
    msgworker_job.table_name = %(table_name_1)s::VARCHAR AND msgworker_job.completed_at IS NULL AND
    msgworker_job.paused_at IS NULL;

-- resume: Let them start again; False if it was not paused
UPDATE msgworker_job SET paused_at=%(paused_at)s::TIMESTAMP WITH TIME ZONE, paused_by=%(paused_by)s::VARCHAR,
    paused_reason=%(paused_reason)s::VARCHAR WHERE msgworker_job.job_id = %(mw_job)s::BIGINT AND
    msgworker_job.table_name = %(table_name_1)s::VARCHAR AND msgworker_job.paused_at IS NOT NULL;

-- forget: Delete the jobs that have completed before this instant and have no message left, among the next
--     LOOKED_AT behind `after`; returns where to go on, None at the end
SELECT msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = %(table_name_1)s::VARCHAR AND msgworker_job.completed_at <
    %(param_1)s::TIMESTAMP WITH TIME ZONE AND msgworker_job.job_id > %(job_id_1)s::BIGINT ORDER BY
    msgworker_job.job_id
 LIMIT %(param_2)s::INTEGER;

-- complete: Complete a job and send its message, if nothing of it is unfinished and no other has done so
SELECT msgworker_job.name, msgworker_job.on_complete, msgworker_job.object_id, msgworker_job.payload,
    msgworker_job.cancelled_at
FROM msgworker_job
WHERE msgworker_job.job_id = %(mw_job)s::BIGINT AND msgworker_job.table_name = %(table_name_1)s::VARCHAR AND
    msgworker_job.sealed_at IS NOT NULL AND msgworker_job.completed_at IS NULL FOR UPDATE SKIP LOCKED;

-- counts: How many messages of a job wait, run, are done and dead, up to `most` of each; "retrying": how many of
--     those that wait have failed; "again": those and edited ones (`Tables.untried`)
SELECT g.n, g.a, g.r, (SELECT count(*) AS count_1
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_1
WHERE msgworker_message_1.job_id = %(mw_job)s::BIGINT AND msgworker_message_1.status = 0
 LIMIT 5) AS anon_2) AS anon_1, (SELECT count(*) AS count_2
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_2
WHERE msgworker_message_2.job_id = %(mw_job)s::BIGINT AND msgworker_message_2.status = 1
 LIMIT 5) AS anon_4) AS anon_3, (SELECT count(*) AS count_3
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_3
WHERE msgworker_message_3.job_id = %(mw_job)s::BIGINT AND msgworker_message_3.status = 2
 LIMIT 5) AS anon_6) AS anon_5
FROM (SELECT count(*) AS n, sum(f.a) AS a, sum(f.r) AS r
FROM (SELECT CASE WHEN (coalesce(msgworker_message_4.error_try_times, 0) < 3) THEN 1 ELSE 0 END AS a, CASE
    WHEN (msgworker_message_4.status = -1 AND coalesce(msgworker_message_4.error_try_times, 0) = 0) THEN 0
    ELSE CASE WHEN (coalesce(msgworker_message_4.error_try_times, 0) < 3) THEN 1 ELSE 0 END END AS r
FROM msgworker_message AS msgworker_message_4
WHERE msgworker_message_4.job_id = %(mw_job)s::BIGINT AND msgworker_message_4.status = -1
 LIMIT 100000) AS f) AS g;
SELECT g.n, g.a, g.r, (SELECT count(*) AS count_1
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_1
WHERE msgworker_message_1.job_id = %(mw_job)s::BIGINT AND msgworker_message_1.status = 0
 LIMIT 5) AS anon_2) AS anon_1, (SELECT count(*) AS count_2
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_2
WHERE msgworker_message_2.job_id = %(mw_job)s::BIGINT AND msgworker_message_2.status = 1
 LIMIT 5) AS anon_4) AS anon_3
FROM (SELECT count(*) AS n, sum(f.a) AS a, sum(f.r) AS r
FROM (SELECT CASE WHEN (coalesce(msgworker_message_3.error_try_times, 0) < 3) THEN 1 ELSE 0 END AS a, CASE
    WHEN (msgworker_message_3.status = -1 AND coalesce(msgworker_message_3.error_try_times, 0) = 0) THEN 0
    ELSE CASE WHEN (coalesce(msgworker_message_3.error_try_times, 0) < 3) THEN 1 ELSE 0 END END AS r
FROM msgworker_message AS msgworker_message_3
WHERE msgworker_message_3.job_id = %(mw_job)s::BIGINT AND msgworker_message_3.status = -1
 LIMIT 100000) AS f) AS g;

-- given_up: How many messages of a job are dead and not discarded, among its first DEAD_LOOKED_AT failed ones
SELECT count(*) AS count_1, sum(d.d) AS sum_1
FROM (SELECT CASE WHEN (coalesce(msgworker_message_1.error_try_times, 0) >= 3 AND NOT
    (msgworker_message_1.status = -1 AND msgworker_message_1.last_error IS NOT NULL AND
    (((CAST(msgworker_message_1.last_error AS TEXT) COLLATE "C") LIKE %(param_1)s::VARCHAR || '%%' ESCAPE '/')
    OR ((CAST(msgworker_message_1.last_error AS TEXT) COLLATE "C") LIKE %(param_2)s::VARCHAR || '%%' ESCAPE
    '/')))) THEN 1 ELSE 0 END AS d
FROM msgworker_message AS msgworker_message_1
WHERE msgworker_message_1.job_id = %(param_3)s::BIGINT AND msgworker_message_1.status = -1
 LIMIT %(param_4)s::INTEGER) AS d;

-- awaited: How many of these an open job waits for (on_dead="wait"), and others do not
SELECT 1
FROM msgworker_job
WHERE msgworker_job.job_id = %(mw_job)s::BIGINT AND msgworker_job.table_name = %(table_name_1)s::VARCHAR AND
    msgworker_job.completed_at IS NULL AND msgworker_job.cancelled_at IS NULL AND msgworker_job.on_dead =
    'wait';

-- ==================== locks: Locks with tokens, and the dealing of messages to instance types

-- undealt: Messages without an instance type, or with this one, that may be claimed, oldest first; behind
--     `after`
SELECT msgworker_message.msg_id, msgworker_message.object_id
FROM msgworker_message
WHERE msgworker_message.instance_type IS NULL AND CASE WHEN ((msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.status != 1) THEN 1 ELSE 0 END = 1 AND (msgworker_message.status > -1 AND
    msgworker_message.status < 1 OR msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) ORDER BY msgworker_message.msg_id
 LIMIT %(param_1)s::INTEGER;
SELECT msgworker_message.msg_id, msgworker_message.object_id
FROM msgworker_message
WHERE msgworker_message.instance_type = %(instance_type_1)s::VARCHAR AND CASE WHEN ((msgworker_message.status
    IN (0, 1) OR msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.status != 1) THEN 1 ELSE 0 END = 1 AND (msgworker_message.status > -1 AND
    msgworker_message.status < 1 OR msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) ORDER BY msgworker_message.msg_id
 LIMIT %(param_1)s::INTEGER;

-- flags: The flags of unfinished messages, and of how many each
SELECT msgworker_message.instance_type, count(*) AS count_1
FROM msgworker_message
WHERE msgworker_message.instance_type IS NOT NULL AND CASE WHEN ((msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.status != 1) THEN 1 ELSE 0 END = 1 GROUP BY msgworker_message.instance_type;

-- flags_of: The flag of the first unfinished message of each object that has one
SELECT msgworker_message.object_id, msgworker_message.instance_type
FROM msgworker_message
WHERE msgworker_message.object_id IN (__[POSTCOMPILE_objects~~~~REPL~~~~]) AND (msgworker_message.status IN
    (0, 1) OR msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND
    msgworker_message.instance_type IS NOT NULL ORDER BY msgworker_message.msg_id;

-- deal: Give messages that still have no flag this one; how many that were
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status > -1 AND
    msgworker_message.status < 1 OR msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL FOR UPDATE
    SKIP LOCKED;
UPDATE msgworker_message SET instance_type=%(instance_type)s::VARCHAR WHERE msgworker_message.msg_id IN (/*
    each of mw_ids */) AND (msgworker_message.status > -1 AND msgworker_message.status < 1 OR
    msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL;

-- take_back: Remove this flag from messages that still have it; how many that were
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status > -1 AND
    msgworker_message.status < 1 OR msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type =
    %(instance_type_1)s::VARCHAR FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=%(instance_type)s::VARCHAR WHERE msgworker_message.msg_id IN (/*
    each of mw_ids */) AND (msgworker_message.status > -1 AND msgworker_message.status < 1 OR
    msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type =
    %(instance_type_1)s::VARCHAR;

-- there: Those of the names that have their rows
SELECT msgworker_lock.name
FROM msgworker_lock
WHERE msgworker_lock.name IN (/* each of mw_names */);

-- acquire: Take those of some locks that are free or expired, in one statement; name -> new token
UPDATE msgworker_lock SET owner=%(owner)s::VARCHAR, token=(msgworker_lock.token + %(token_1)s::BIGINT),
    claim_id=%(claim_id)s::VARCHAR, since_ms=CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS
    BIGINT), expires_ms=(CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT) +
    %(param_1)s::BIGINT) WHERE msgworker_lock.name IN (/* each of mw_names */) AND (msgworker_lock.owner IS
    NULL OR msgworker_lock.expires_ms <= CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS
    BIGINT));
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = %(owner_1)s::VARCHAR AND msgworker_lock.expires_ms > CAST(floor(extract(epoch
    FROM statement_timestamp()) * 1000) AS BIGINT) AND msgworker_lock.claim_id = %(claim_id_1)s::VARCHAR;

-- acquired: What an acquire has got and still holds: name -> token
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = %(owner_1)s::VARCHAR AND msgworker_lock.expires_ms > CAST(floor(extract(epoch
    FROM statement_timestamp()) * 1000) AS BIGINT) AND msgworker_lock.claim_id = %(claim_id_1)s::VARCHAR;

-- renew: Extend a lock from now on; False = it is no longer held under this owner and token, and never will be
UPDATE msgworker_lock SET expires_ms=(CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT)
    + %(param_1)s::BIGINT) WHERE msgworker_lock.name = %(name_1)s::VARCHAR AND msgworker_lock.owner =
    %(owner_1)s::VARCHAR AND msgworker_lock.token = %(token_1)s::BIGINT AND msgworker_lock.expires_ms >
    CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT);

-- renew_all: Extend all that an owner holds, in one statement; name -> token of what it holds now
UPDATE msgworker_lock SET expires_ms=(CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT)
    + %(param_1)s::BIGINT) WHERE msgworker_lock.owner = %(owner_1)s::VARCHAR AND msgworker_lock.expires_ms >
    CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT);
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = %(owner_1)s::VARCHAR AND msgworker_lock.expires_ms > CAST(floor(extract(epoch
    FROM statement_timestamp()) * 1000) AS BIGINT);

-- release: Free a lock at once; False if it is not held under this owner and token: nothing changes
UPDATE msgworker_lock SET owner=NULL, claim_id=NULL, expires_ms=0 WHERE msgworker_lock.name =
    %(name_1)s::VARCHAR AND msgworker_lock.owner = %(owner_1)s::VARCHAR AND msgworker_lock.token =
    %(token_1)s::BIGINT;

-- held: The locks that are held and not expired, of names that begin so, by name
SELECT msgworker_lock.name, msgworker_lock.owner, msgworker_lock.token, CAST(floor(extract(epoch FROM
    statement_timestamp()) * 1000) AS BIGINT) - msgworker_lock.since_ms AS anon_1, msgworker_lock.expires_ms -
    CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT) AS anon_2
FROM msgworker_lock
WHERE msgworker_lock.owner IS NOT NULL AND (msgworker_lock.name LIKE %(name_1)s::VARCHAR || '%%' ESCAPE '/')
    AND msgworker_lock.expires_ms > CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT)
    ORDER BY msgworker_lock.name;

-- holder: Who holds a lock now, None if it is free or expired
SELECT msgworker_lock.name, msgworker_lock.owner, msgworker_lock.token, CAST(floor(extract(epoch FROM
    statement_timestamp()) * 1000) AS BIGINT) - msgworker_lock.since_ms AS anon_1, msgworker_lock.expires_ms -
    CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT) AS anon_2
FROM msgworker_lock
WHERE msgworker_lock.owner IS NOT NULL AND msgworker_lock.name = %(name_1)s::VARCHAR AND
    msgworker_lock.expires_ms > CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT) ORDER
    BY msgworker_lock.name;

-- ==================== controls: What operators ask of running instances, which read it in their heartbeat: topics and jobs that are paused, and requests to cancel running messages

-- paused_job_ids: The jobs that are paused; none where there are no jobs
SELECT msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = %(param_1)s::VARCHAR AND msgworker_job.completed_at IS NULL AND
    msgworker_job.paused_at IS NOT NULL;

-- paused_jobs: The jobs that are paused, the newest first, MOST_JOBS at most; or this one, if it is
SELECT msgworker_job.job_id, msgworker_job.name, CASE WHEN msgworker_job.paused_at BETWEEN '0001-01-02' AND
    '9999-12-30' THEN msgworker_job.paused_at END AS paused_at, msgworker_job.paused_by,
    msgworker_job.paused_reason
FROM msgworker_job
WHERE msgworker_job.table_name = %(param_1)s::VARCHAR AND msgworker_job.completed_at IS NULL AND
    msgworker_job.paused_at IS NOT NULL ORDER BY msgworker_job.job_id DESC
 LIMIT %(param_2)s::INTEGER;

-- held_among: Those of these messages (at most `max_ids`) whose job is paused
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.job_id IN (SELECT
    msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = %(param_1)s::VARCHAR AND msgworker_job.completed_at IS NULL AND
    msgworker_job.paused_at IS NOT NULL);

-- look: All in one statement, of the tables that are there
SELECT 0 AS n, msgworker_pause.topic AS x
FROM msgworker_pause
WHERE msgworker_pause.table_name = %(table_name_1)s::VARCHAR UNION ALL SELECT DISTINCT 1 AS n,
    msgworker_cancel.table_name AS x
FROM msgworker_cancel
WHERE msgworker_cancel.table_name = %(table_name_2)s::VARCHAR UNION ALL SELECT DISTINCT 2 AS n,
    msgworker_limit.table_name AS x
FROM msgworker_limit
WHERE msgworker_limit.table_name = %(table_name_3)s::VARCHAR;

-- requests: The requests, or those of some messages (at most `max_ids`), with what has become of each message;
--     none where the table is not there
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, substr(CAST(msgworker_message.claimed_by AS TEXT), 1, 2001) AS o, CASE WHEN (msgworker_message.status =
    -1 AND msgworker_message.last_error IS NOT NULL AND (((CAST(msgworker_message.last_error AS TEXT) COLLATE
    "C") LIKE %(param_1)s::VARCHAR || '%%' ESCAPE '/') OR ((CAST(msgworker_message.last_error AS TEXT) COLLATE
    "C") LIKE %(param_2)s::VARCHAR || '%%' ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = %(table_name_1)s::VARCHAR ORDER BY msgworker_cancel.msg_id
 LIMIT %(param_3)s::INTEGER;
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, substr(CAST(msgworker_message.claimed_by AS TEXT), 1, 2001) AS o, CASE WHEN (msgworker_message.status =
    -1 AND msgworker_message.last_error IS NOT NULL AND (((CAST(msgworker_message.last_error AS TEXT) COLLATE
    "C") LIKE %(param_1)s::VARCHAR || '%%' ESCAPE '/') OR ((CAST(msgworker_message.last_error AS TEXT) COLLATE
    "C") LIKE %(param_2)s::VARCHAR || '%%' ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = %(table_name_1)s::VARCHAR AND msgworker_cancel.msg_id IN (/* each of
    mw_ids */) ORDER BY msgworker_cancel.msg_id;
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, substr(CAST(msgworker_message.claimed_by AS TEXT), 1, 2001) AS o, CASE WHEN (msgworker_message.status =
    -1 AND msgworker_message.last_error IS NOT NULL AND (((CAST(msgworker_message.last_error AS TEXT) COLLATE
    "C") LIKE %(param_1)s::VARCHAR || '%%' ESCAPE '/') OR ((CAST(msgworker_message.last_error AS TEXT) COLLATE
    "C") LIKE %(param_2)s::VARCHAR || '%%' ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = %(table_name_1)s::VARCHAR AND (coalesce(msgworker_message.status, 0) != 1
    OR msgworker_message.claimed_by = %(mw_me)s::VARCHAR) ORDER BY msgworker_cancel.msg_id
 LIMIT %(param_3)s::INTEGER;

-- running: The running ones among these messages, with their owner (None if unknown) and tries; at most
--     `max_ids` ids
SELECT msgworker_message.msg_id, substr(CAST(msgworker_message.claimed_by AS TEXT), 1, 2001) AS o,
    coalesce(msgworker_message.error_try_times, 0) AS n
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status > 0 AND
    msgworker_message.status < 2;

-- request_cancel: Request that running messages are cancelled, given by id with their owner and tries, as they
--     were locked; returns of how many
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = %(table_name_1)s::VARCHAR AND
    msgworker_cancel.msg_id IN (/* each of mw_ids */);
INSERT INTO msgworker_cancel (requested_at) VALUES (statement_timestamp());

-- drop_requests: Delete the requests of these messages
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = %(table_name_1)s::VARCHAR AND
    msgworker_cancel.msg_id IN (/* each of mw_ids */);

-- drop_seen: Delete this request; False if it is gone, or another one has taken its place
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = %(table_name_1)s::VARCHAR AND
    msgworker_cancel.msg_id = %(msg_id_1)s::BIGINT AND msgworker_cancel.seen_owner = %(seen_owner_1)s::VARCHAR
    AND msgworker_cancel.seen_tries = %(seen_tries_1)s::SMALLINT;

-- pauses: The topics that are paused, by name; none where the table is not there
SELECT msgworker_pause.topic, msgworker_pause.actor, msgworker_pause.reason, msgworker_pause.paused_at
FROM msgworker_pause
WHERE msgworker_pause.table_name = %(table_name_1)s::VARCHAR ORDER BY msgworker_pause.topic;

-- pause: Pause a topic; False if it is paused already
SELECT msgworker_pause.topic, msgworker_pause.actor, msgworker_pause.reason, msgworker_pause.paused_at
FROM msgworker_pause
WHERE msgworker_pause.table_name = %(table_name_1)s::VARCHAR ORDER BY msgworker_pause.topic;
INSERT INTO msgworker_pause (table_name, topic, actor, reason, paused_at) VALUES (%(table_name)s::VARCHAR,
    %(topic)s::VARCHAR, %(actor)s::VARCHAR, %(reason)s::VARCHAR, statement_timestamp());

-- resume: Resume a topic; False if it was not paused
DELETE FROM msgworker_pause WHERE msgworker_pause.table_name = %(table_name_1)s::VARCHAR AND
    msgworker_pause.topic = %(topic_1)s::VARCHAR;

-- ==================== send: Insert messages in the caller's transaction; with a unique key, if no other message holds it

-- insert_many: Insert messages that all have the same keys, in order
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority) VALUES
    (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0, %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0, %(b_payload)s::VARCHAR,
    (statement_timestamp() + make_interval(secs => %(b_delay)s)), %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0, %(b_payload)s::VARCHAR,
    %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT);

-- insert_one: Insert one message; return its msg_id as the database gave it, None where it gave none
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority) VALUES
    (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0, %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT) RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0, %(b_payload)s::VARCHAR,
    (statement_timestamp() + make_interval(secs => %(b_delay)s)), %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT) RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0, %(b_payload)s::VARCHAR,
    %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT) RETURNING
    msgworker_message.msg_id;

-- send: Insert a message that has a key, unless another one holds it; return the msg_id of the one that does
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR,
    %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR
    status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msgworker_message.msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = %(mw_key)s::VARCHAR AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, (statement_timestamp() + make_interval(secs => %(b_delay)s)),
    %(b_shard)s::SMALLINT, %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%(b_topic)s::VARCHAR, %(b_object_id)s::VARCHAR, 0, 0,
    %(b_payload)s::VARCHAR, %(b_at)s::TIMESTAMP WITH TIME ZONE, %(b_shard)s::SMALLINT,
    %(b_priority)s::SMALLINT, %(b_unique_key)s::VARCHAR, %(b_unique_kept)s::SMALLINT) ON CONFLICT (unique_key)
    WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS
    NULL) DO NOTHING RETURNING msgworker_message.msg_id;

-- replace: Give a message that was never claimed what the new one says; whether that was done
UPDATE msgworker_message SET payload=%(b_payload)s::VARCHAR, available_at=NULL,
    priority=%(b_priority)s::SMALLINT, unique_kept=%(b_unique_kept)s::SMALLINT, headers=NULL WHERE
    msgworker_message.msg_id = %(msg_id_1)s::BIGINT AND msgworker_message.unique_key = %(param_1)s::VARCHAR
    AND msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;
UPDATE msgworker_message SET payload=%(b_payload)s::VARCHAR, available_at=(statement_timestamp() +
    make_interval(secs => %(b_delay)s)), priority=%(b_priority)s::SMALLINT, headers=NULL WHERE
    msgworker_message.msg_id = %(msg_id_1)s::BIGINT AND msgworker_message.unique_key = %(param_1)s::VARCHAR
    AND msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;
UPDATE msgworker_message SET payload=%(b_payload)s::VARCHAR, available_at=%(b_at)s::TIMESTAMP WITH TIME ZONE,
    priority=%(b_priority)s::SMALLINT, unique_kept=%(b_unique_kept)s::SMALLINT, headers=NULL WHERE
    msgworker_message.msg_id = %(msg_id_1)s::BIGINT AND msgworker_message.unique_key = %(param_1)s::VARCHAR
    AND msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;

-- give_up: Free the key of a message that holds it while it is open
UPDATE msgworker_message SET unique_key=NULL WHERE msgworker_message.msg_id = %(msg_id_1)s::BIGINT AND
    msgworker_message.unique_key = %(param_1)s::VARCHAR AND coalesce(msgworker_message.unique_kept, 0) != 1
    AND msgworker_message.unique_key IS NOT NULL AND (msgworker_message.unique_kept = 1 OR
    msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND msgworker_message.finished_at IS
    NULL);
