-- What an instance sends to sqlite, for a table with default names. Written by `make ddl`.
-- One entry for each function of msgworker/store, in the order of a message's life; what it sends
-- may depend on what it is given, and on what it has read.

-- ==================== candidates: Candidates for a claim: by age, by instant, by object

-- oldest: Open rows that wait for no instant, in order of age, from `mark` on; without those that run and have
--     no object, since nothing waits behind them
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id >=
    ? ORDER BY msgworker_message.msg_id
 LIMIT ? OFFSET ?;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id >=
    ? AND (msgworker_message.object_id IS NOT NULL OR (msgworker_message.msg_id % ? + ?) % ? BETWEEN ? AND ?)
    ORDER BY msgworker_message.msg_id
 LIMIT ? OFFSET ?;

-- due_after: Rows whose instant has passed, after the (`waits_until`, msg_id) `since`, in that order; None =
--     from the first
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6,
    msgworker_message.available_at AS h7
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now') ORDER BY
    msgworker_message.available_at, msgworker_message.msg_id
 LIMIT ? OFFSET ?;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6,
    msgworker_message.available_at AS h7
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now') AND msgworker_message.available_at
    >= CAST(? AS TEXT) AND (msgworker_message.available_at > CAST(? AS TEXT) OR msgworker_message.msg_id > ?)
    ORDER BY msgworker_message.available_at, msgworker_message.msg_id
 LIMIT ? OFFSET ?;

-- heads: The head of each object behind the object `after` (None = from the first), and the next cursor
WITH RECURSIVE ring(o, k) AS
(SELECT (SELECT f.object_id
FROM msgworker_message AS f
WHERE (f.status IN (0, 1) OR f.status = -1 AND coalesce(f.error_try_times, 0) < 3) AND (f.object_id IS NOT
    NULL OR f.status != 1) AND f.object_id IS NOT NULL ORDER BY f.object_id
 LIMIT 1 OFFSET ?) AS o, 1 AS k UNION ALL SELECT (SELECT n.object_id
FROM msgworker_message AS n
WHERE (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) AND (n.object_id IS NOT
    NULL OR n.status != 1) AND n.object_id > ring.o ORDER BY n.object_id
 LIMIT 1 OFFSET ?) AS anon_1, ring.k + 1 AS anon_2
FROM ring
WHERE ring.o IS NOT NULL AND ring.k < ?)
 SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6, ring.k
FROM ring JOIN msgworker_message ON msgworker_message.msg_id = (SELECT h.msg_id
FROM msgworker_message AS h
WHERE (h.status IN (0, 1) OR h.status = -1 AND coalesce(h.error_try_times, 0) < 3) AND (h.object_id IS NOT
    NULL OR h.status != 1) AND h.object_id = ring.o ORDER BY h.msg_id
 LIMIT 1 OFFSET ?);
WITH RECURSIVE ring(o, k) AS
(SELECT (SELECT f.object_id
FROM msgworker_message AS f
WHERE (f.status IN (0, 1) OR f.status = -1 AND coalesce(f.error_try_times, 0) < 3) AND (f.object_id IS NOT
    NULL OR f.status != 1) AND f.object_id > CAST(? AS TEXT) ORDER BY f.object_id
 LIMIT 1 OFFSET ?) AS o, 1 AS k UNION ALL SELECT (SELECT n.object_id
FROM msgworker_message AS n
WHERE (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) AND (n.object_id IS NOT
    NULL OR n.status != 1) AND n.object_id > ring.o ORDER BY n.object_id
 LIMIT 1 OFFSET ?) AS anon_1, ring.k + 1 AS anon_2
FROM ring
WHERE ring.o IS NOT NULL AND ring.k < ?)
 SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6, ring.k
FROM ring JOIN msgworker_message ON msgworker_message.msg_id = (SELECT h.msg_id
FROM msgworker_message AS h
WHERE (h.status IN (0, 1) OR h.status = -1 AND coalesce(h.error_try_times, 0) < 3) AND (h.object_id IS NOT
    NULL OR h.status != 1) AND h.object_id = ring.o ORDER BY h.msg_id
 LIMIT 1 OFFSET ?);
WITH RECURSIVE ring(o, k) AS
(SELECT (SELECT f.object_id
FROM msgworker_message AS f
WHERE (f.status IN (0, 1) OR f.status = -1 AND coalesce(f.error_try_times, 0) < 3) AND (f.object_id IS NOT
    NULL OR f.status != 1) AND f.object_id IS NOT NULL ORDER BY f.object_id
 LIMIT 1 OFFSET ?) AS o, 1 AS k UNION ALL SELECT (SELECT n.object_id
FROM msgworker_message AS n
WHERE (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) AND (n.object_id IS NOT
    NULL OR n.status != 1) AND n.object_id > ring.o ORDER BY n.object_id
 LIMIT 1 OFFSET ?) AS anon_1, ring.k + 1 AS anon_2
FROM ring
WHERE ring.o IS NOT NULL AND ring.k < ?)
 SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6, ring.k
FROM ring JOIN msgworker_message ON msgworker_message.msg_id = (SELECT h.msg_id
FROM msgworker_message AS h
WHERE (h.status IN (0, 1) OR h.status = -1 AND coalesce(h.error_try_times, 0) < 3) AND (h.object_id IS NOT
    NULL OR h.status != 1) AND h.object_id = ring.o ORDER BY h.msg_id
 LIMIT 1 OFFSET ?)
WHERE ((coalesce((msgworker_message.topic COLLATE BINARY), 'default') COLLATE BINARY) NOT IN (/* each of
    mw_topics */)) OR ring.k >= ?;
WITH RECURSIVE ring(o, k) AS
(SELECT (SELECT f.object_id
FROM msgworker_message AS f
WHERE (f.status IN (0, 1) OR f.status = -1 AND coalesce(f.error_try_times, 0) < 3) AND (f.object_id IS NOT
    NULL OR f.status != 1) AND f.object_id > CAST(? AS TEXT) ORDER BY f.object_id
 LIMIT 1 OFFSET ?) AS o, 1 AS k UNION ALL SELECT (SELECT n.object_id
FROM msgworker_message AS n
WHERE (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) AND (n.object_id IS NOT
    NULL OR n.status != 1) AND n.object_id > ring.o ORDER BY n.object_id
 LIMIT 1 OFFSET ?) AS anon_1, ring.k + 1 AS anon_2
FROM ring
WHERE ring.o IS NOT NULL AND ring.k < ?)
 SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6, ring.k
FROM ring JOIN msgworker_message ON msgworker_message.msg_id = (SELECT h.msg_id
FROM msgworker_message AS h
WHERE (h.status IN (0, 1) OR h.status = -1 AND coalesce(h.error_try_times, 0) < 3) AND (h.object_id IS NOT
    NULL OR h.status != 1) AND h.object_id = ring.o ORDER BY h.msg_id
 LIMIT 1 OFFSET ?)
WHERE ((coalesce((msgworker_message.topic COLLATE BINARY), 'default') COLLATE BINARY) NOT IN (/* each of
    mw_topics */)) OR ring.k >= ?;

-- without_object: Open rows without an object, by msg_id, behind `after` (None = from the first), and the next
--     cursor, None after the last one
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND (msgworker_message.object_id IS NOT NULL OR
    msgworker_message.status != 1) AND msgworker_message.object_id IS NULL AND msgworker_message.msg_id > ?
    ORDER BY msgworker_message.msg_id
 LIMIT ? OFFSET ?;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND (msgworker_message.object_id IS NOT NULL OR
    msgworker_message.status != 1) AND msgworker_message.object_id IS NULL AND msgworker_message.msg_id > ?
    AND (msgworker_message.msg_id % ? + ?) % ? BETWEEN ? AND ? ORDER BY msgworker_message.msg_id
 LIMIT ? OFFSET ?;

-- oldest_among: `oldest` of these topics alone (but: of all others), among the next `span` rows: a bounded step,
--     however many of other topics are in front
SELECT count(*) AS n, max(w.k) AS last
FROM (SELECT msgworker_message.msg_id AS k
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id >=
    ? ORDER BY msgworker_message.msg_id
 LIMIT ? OFFSET ?) AS w;
SELECT w.h0, w.h1, w.h2, w.h3, w.h4, w.h5, w.h6
FROM (SELECT msgworker_message.msg_id AS k, msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1,
    msgworker_message.status AS h2, coalesce(msgworker_message.error_try_times, 0) AS h3,
    coalesce(msgworker_message.crash_times, 0) AS h4, msgworker_message.topic AS h5, CASE WHEN
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f',
    'now')) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id >=
    ? ORDER BY msgworker_message.msg_id
 LIMIT ? OFFSET ?) AS w
WHERE (coalesce((w.h5 COLLATE BINARY), 'default') COLLATE BINARY) IN (/* each of mw_topics */) ORDER BY w.k
 LIMIT ? OFFSET ?;
SELECT w.h0, w.h1, w.h2, w.h3, w.h4, w.h5, w.h6
FROM (SELECT msgworker_message.msg_id AS k, msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1,
    msgworker_message.status AS h2, coalesce(msgworker_message.error_try_times, 0) AS h3,
    coalesce(msgworker_message.crash_times, 0) AS h4, msgworker_message.topic AS h5, CASE WHEN
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f',
    'now')) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL AND
    (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id >=
    ? ORDER BY msgworker_message.msg_id
 LIMIT ? OFFSET ?) AS w
WHERE ((coalesce((w.h5 COLLATE BINARY), 'default') COLLATE BINARY) NOT IN (/* each of mw_topics */)) ORDER BY
    w.k
 LIMIT ? OFFSET ?;

-- newest: The highest id; `MIN_ID` without one
SELECT max(msgworker_message.msg_id) AS max_1
FROM msgworker_message;

-- heads_of: Those of these messages that are open and the heads of their objects, or have none, by msg_id
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND NOT (msgworker_message.object_id IS NOT NULL AND
    (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) ORDER BY msgworker_message.msg_id;

-- ==================== ranked: Heads that come out of order of age: those with a priority, and those whose instant has come

-- ranked: Read `limit` rows that have a priority and wait for no instant, behind `after` (None = from the
--     highest on)
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6, CASE WHEN
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 ORDER BY
    msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT ? OFFSET ?;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6, CASE WHEN
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 AND
    msgworker_message.priority <= 0 - ? AND (msgworker_message.priority < 0 - ? OR msgworker_message.msg_id >
    ?) ORDER BY msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT ? OFFSET ?;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6,
    coalesce(msgworker_message.shard, 0) AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 ORDER BY
    msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT ? OFFSET ?;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6,
    coalesce(msgworker_message.shard, 0) AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 AND
    msgworker_message.priority <= 0 - ? AND (msgworker_message.priority < 0 - ? OR msgworker_message.msg_id >
    ?) ORDER BY msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT ? OFFSET ?;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6,
    msgworker_message.instance_type AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 ORDER BY
    msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT ? OFFSET ?;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6,
    msgworker_message.instance_type AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 AND
    msgworker_message.priority <= 0 - ? AND (msgworker_message.priority < 0 - ? OR msgworker_message.msg_id >
    ?) ORDER BY msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT ? OFFSET ?;

-- due_and_ranked: `candidates.due_after`, and `ranked` of up to `most` rows, in one statement
SELECT q0.h0, q0.h1, q0.h2, q0.h3, q0.h4, q0.h5, q0.h6, q0.h7, q0.ranked, q0.head, q0.r
FROM (SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS
    h2, coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS
    h4, msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6,
    msgworker_message.available_at AS h7, 0 AS ranked, 1 AS head, 0 - CASE WHEN (msgworker_message.priority
    BETWEEN 1 AND 2147483647) THEN msgworker_message.priority ELSE 0 END AS r
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now') ORDER BY
    msgworker_message.available_at, msgworker_message.msg_id
 LIMIT ? OFFSET ?) AS q0 UNION ALL SELECT q1.h0, q1.h1, q1.h2, q1.h3, q1.h4, q1.h5, q1.h6, q1.h7, q1.ranked,
    q1.head, q1.r
FROM (SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS
    h2, coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS
    h4, msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6,
    msgworker_message.available_at AS h7, 1 AS ranked, CASE WHEN (msgworker_message.object_id IS NOT NULL AND
    (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 ORDER BY
    msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT ? OFFSET ?) AS q1;
SELECT q0.h0, q0.h1, q0.h2, q0.h3, q0.h4, q0.h5, q0.h6, q0.h7, q0.ranked, q0.head, q0.r
FROM (SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS
    h2, coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS
    h4, msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6,
    msgworker_message.available_at AS h7, 0 AS ranked, 1 AS head, 0 - CASE WHEN (msgworker_message.priority
    BETWEEN 1 AND 2147483647) THEN msgworker_message.priority ELSE 0 END AS r
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now') AND msgworker_message.available_at
    >= CAST(? AS TEXT) AND (msgworker_message.available_at > CAST(? AS TEXT) OR msgworker_message.msg_id > ?)
    ORDER BY msgworker_message.available_at, msgworker_message.msg_id
 LIMIT ? OFFSET ?) AS q0 UNION ALL SELECT q1.h0, q1.h1, q1.h2, q1.h3, q1.h4, q1.h5, q1.h6, q1.h7, q1.ranked,
    q1.head, q1.r
FROM (SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS
    h2, coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS
    h4, msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN 1 ELSE 0 END AS h6,
    msgworker_message.available_at AS h7, 1 AS ranked, CASE WHEN (msgworker_message.object_id IS NOT NULL AND
    (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) THEN 0 ELSE 1 END AS head, -msgworker_message.priority AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN 1 ELSE 0 END = 1 ORDER BY
    msgworker_message.priority DESC, msgworker_message.msg_id
 LIMIT ? OFFSET ?) AS q1;

-- due_in: Seconds until the first message becomes due, if that is within `linger` seconds, or within
--     `retry_linger` where it has failed before; else None
SELECT (SELECT ((julianday('now') - julianday(w.available_at)) * 86400.0) AS anon_1
FROM msgworker_message AS w
WHERE (w.status > -1 AND w.status < 1 OR w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) <
    3) AND (w.status IN (0, 1) OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at >
    strftime('%Y-%m-%d %H:%M:%f', 'now') AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = w.object_id AND e.msg_id < w.msg_id AND (e.status IN (0, 1) OR e.status = -1 AND
    coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)))) AND NOT (w.object_id
    IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = w.object_id AND r.status = 1))) AND w.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now',
    ? || ' seconds') ORDER BY w.available_at
 LIMIT 1 OFFSET ?) AS d0, (SELECT ((julianday('now') - julianday(w.available_at)) * 86400.0) AS anon_2
FROM msgworker_message AS w
WHERE (w.status > -1 AND w.status < 1 OR w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) <
    3) AND (w.status IN (0, 1) OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at >
    strftime('%Y-%m-%d %H:%M:%f', 'now') AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = w.object_id AND e.msg_id < w.msg_id AND (e.status IN (0, 1) OR e.status = -1 AND
    coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)))) AND NOT (w.object_id
    IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = w.object_id AND r.status = 1))) AND w.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now',
    ? || ' seconds') AND w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) > 0 ORDER BY
    w.available_at
 LIMIT 1 OFFSET ?) AS d1;
SELECT (SELECT ((julianday('now') - julianday(w.available_at)) * 86400.0) AS anon_1
FROM msgworker_message AS w
WHERE (w.status > -1 AND w.status < 1 OR w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) <
    3) AND (w.status IN (0, 1) OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at >
    strftime('%Y-%m-%d %H:%M:%f', 'now') AND (coalesce(w.topic, 'default') COLLATE BINARY) IN (/* each of
    mw_topics */) AND ((coalesce(w.topic, 'default') COLLATE BINARY) NOT IN (/* each of mw_paused */)) AND NOT
    (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = w.object_id AND e.msg_id < w.msg_id AND (e.status IN (0, 1) OR e.status = -1 AND
    coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)))) AND NOT (w.object_id
    IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = w.object_id AND r.status = 1))) AND w.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now',
    ? || ' seconds') ORDER BY w.available_at
 LIMIT 1 OFFSET ?) AS d0, (SELECT ((julianday('now') - julianday(w.available_at)) * 86400.0) AS anon_2
FROM msgworker_message AS w
WHERE (w.status > -1 AND w.status < 1 OR w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) <
    3) AND (w.status IN (0, 1) OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at >
    strftime('%Y-%m-%d %H:%M:%f', 'now') AND (coalesce(w.topic, 'default') COLLATE BINARY) IN (/* each of
    mw_topics */) AND ((coalesce(w.topic, 'default') COLLATE BINARY) NOT IN (/* each of mw_paused */)) AND NOT
    (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = w.object_id AND e.msg_id < w.msg_id AND (e.status IN (0, 1) OR e.status = -1 AND
    coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status != 1)))) AND NOT (w.object_id
    IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = w.object_id AND r.status = 1))) AND w.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now',
    ? || ' seconds') AND w.status > -2 AND w.status < 0 AND coalesce(w.error_try_times, 0) > 0 ORDER BY
    w.available_at
 LIMIT 1 OFFSET ?) AS d1;

-- ==================== limits: Limits of topics over all instances: what is recorded, and what is free now

-- lock: Lock the limits of a topic until the end of the transaction, and see what is free; None if another
--     transaction has them locked, or they were removed
SELECT msgworker_limit.max_running, msgworker_limit.rate_starts, msgworker_limit.rate_seconds,
    msgworker_limit.burst, msgworker_limit.full_us, CAST(round((julianday('now') - 2440587.5) * 86400000) AS
    INTEGER) AS anon_1
FROM msgworker_limit
WHERE msgworker_limit.table_name = ? AND msgworker_limit.topic = ?;

-- take: Take so many tokens
UPDATE msgworker_limit SET full_us=? WHERE msgworker_limit.table_name = ? AND msgworker_limit.topic = ?;

-- declare: Record the limits of a topic, if what stands there is `seen` (None = nothing); whether it was
INSERT INTO msgworker_limit (table_name, topic, max_running, rate_starts, rate_seconds, burst, declared_by,
    declared_at) VALUES (?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%d %H:%M:%f', 'now'));
UPDATE msgworker_limit SET max_running=?, rate_starts=?, rate_seconds=?, burst=?,
    version=(msgworker_limit.version + ?), declared_by=?, declared_at=strftime('%Y-%m-%d %H:%M:%f', 'now')
    WHERE msgworker_limit.table_name = ? AND msgworker_limit.topic = ? AND msgworker_limit.version = ?;

-- remove: Forget the limits of a topic; False if it has none
DELETE FROM msgworker_limit WHERE msgworker_limit.table_name = ? AND msgworker_limit.topic = ?;

-- ==================== claim: Flag candidates, and read the runs behind the flagged heads

-- flag: Flag the candidates that are unchanged since they were read; return the rows won, by msg_id
SELECT msgworker_message.status, msgworker_message.msg_id AS r0, msgworker_message.object_id AS r1,
    msgworker_message.topic AS r2, CASE WHEN (length(msgworker_message.payload) <= 16384) THEN
    msgworker_message.payload END AS r3, coalesce(msgworker_message.error_try_times, 0) AS r4,
    coalesce(msgworker_message.crash_times, 0) AS r5, coalesce(msgworker_message.later_times, 0) AS r6,
    msgworker_message.created_at AS r7, CASE WHEN (length(msgworker_message.payload) > 16384) THEN
    length(msgworker_message.payload) END AS r8
FROM msgworker_message
WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND (msgworker_message.status > -1 AND msgworker_message.status < 1 OR
    msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) AND NOT (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = msgworker_message.object_id AND r.status = 1))) ORDER BY msgworker_message.msg_id;

-- flag_apart: `flag` in halves, each in its savepoint, down to single rows, so that a refused row affects no
--     other
SELECT msgworker_message.status, msgworker_message.msg_id AS r0, msgworker_message.object_id AS r1,
    msgworker_message.topic AS r2, CASE WHEN (length(msgworker_message.payload) <= 16384) THEN
    msgworker_message.payload END AS r3, coalesce(msgworker_message.error_try_times, 0) AS r4,
    coalesce(msgworker_message.crash_times, 0) AS r5, coalesce(msgworker_message.later_times, 0) AS r6,
    msgworker_message.created_at AS r7, CASE WHEN (length(msgworker_message.payload) > 16384) THEN
    length(msgworker_message.payload) END AS r8
FROM msgworker_message
WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND (msgworker_message.status > -1 AND msgworker_message.status < 1 OR
    msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f', 'now')) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e
WHERE e.object_id = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id AND (e.status IN (0,
    1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) AND (e.object_id IS NOT NULL OR e.status !=
    1)))) AND NOT (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r
WHERE r.object_id = msgworker_message.object_id AND r.status = 1))) ORDER BY msgworker_message.msg_id;

-- read_runs: The run behind each flagged head: head's msg_id -> its next rows, perhaps empty
SELECT j."key" AS p, CASE WHEN (m.status = 0 AND (m.available_at IS NULL OR m.available_at <=
    strftime('%Y-%m-%d %H:%M:%f', 'now')) AND coalesce(m.error_try_times, 0) = 0 AND coalesce(m.later_times,
    0) = 0 AND m.unique_key IS NULL) THEN 1 ELSE 0 END AS s, m.msg_id AS r0, m.object_id AS r1, m.topic AS r2,
    CASE WHEN (length(m.payload) <= 16384) THEN m.payload END AS r3, coalesce(m.error_try_times, 0) AS r4,
    coalesce(m.crash_times, 0) AS r5, coalesce(m.later_times, 0) AS r6, m.created_at AS r7, CASE WHEN
    (length(m.payload) > 16384) THEN length(m.payload) END AS r8
FROM json_each(?) AS j JOIN msgworker_message AS h ON h.msg_id = j.value JOIN msgworker_message AS m ON
    m.msg_id IN (SELECT n.msg_id
FROM msgworker_message AS n
WHERE n.object_id = h.object_id AND (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) <
    3) AND (n.object_id IS NOT NULL OR n.status != 1) ORDER BY n.msg_id
 LIMIT ? OFFSET ?);

-- ==================== done: The settle of messages that are done, and the flag's move to the next message of each lane

-- still_mine: Those of `ids` that are flagged by us
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT);

-- ==================== settle: Write outcomes and move the flag, only while the flag is still ours

-- settle: Write a batch of settlements; return the result of each, by its msg_id
UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE
    msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT);
UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=CAST(? AS TEXT),
    claimed_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f',
    'now'));
DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT);
UPDATE msgworker_message SET status=-1, available_at=CASE WHEN (CASE WHEN
    (coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.error_try_times, 0) +
    ? ELSE 3 END >= 3) THEN NULL ELSE strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds') END,
    finished_at=CASE WHEN (CASE WHEN (coalesce(msgworker_message.error_try_times, 0) < 3) THEN
    coalesce(msgworker_message.error_try_times, 0) + ? ELSE 3 END >= 3) THEN strftime('%Y-%m-%d %H:%M:%f',
    'now') END, last_error=?, claimed_by=NULL, error_try_times=CASE WHEN
    (coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.error_try_times, 0) +
    ? ELSE 3 END WHERE msgworker_message.msg_id = ? AND msgworker_message.status > 0 AND
    msgworker_message.status < 2 AND msgworker_message.claimed_by = CAST(? AS TEXT) AND
    coalesce(msgworker_message.error_try_times, 0) = ? AND coalesce(msgworker_message.later_times, 0) = ?;
SELECT msgworker_message.msg_id, CASE WHEN msgworker_message.claimed_at GLOB '[0-9][0-9][0-9][0-9]-*' AND
    julianday(msgworker_message.claimed_at) IS NOT NULL THEN msgworker_message.claimed_at END AS anon_1,
    (SELECT max(l.try_no) AS max_1
FROM msgworker_try AS l
WHERE l.table_name = ? AND l.msg_id = msgworker_message.msg_id) AS anon_2, strftime('%Y-%m-%d %H:%M:%f',
    'now') AS mw_now
FROM msgworker_message
WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?));
UPDATE msgworker_message SET status=-1, available_at=NULL, finished_at=strftime('%Y-%m-%d %H:%M:%f', 'now'),
    last_error=?, claimed_by=NULL, error_try_times=3 WHERE msgworker_message.msg_id = ? AND
    msgworker_message.status > 0 AND msgworker_message.status < 2 AND msgworker_message.claimed_by = CAST(? AS
    TEXT) AND coalesce(msgworker_message.error_try_times, 0) = ? AND coalesce(msgworker_message.later_times,
    0) = ?;
UPDATE msgworker_message SET status=CASE WHEN (coalesce(msgworker_message.error_try_times, 0) > 0) THEN -1
    ELSE 0 END, available_at=strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'),
    later_times=(coalesce(msgworker_message.later_times, 0) + ?), last_error=?, claimed_by=NULL WHERE
    msgworker_message.msg_id = ? AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT) AND coalesce(msgworker_message.error_try_times, 0) = ? AND
    coalesce(msgworker_message.later_times, 0) = ?;
UPDATE msgworker_message SET status=CASE WHEN (coalesce(msgworker_message.error_try_times, 0) > 0) THEN -1
    ELSE 0 END, available_at=NULL, claimed_by=NULL WHERE msgworker_message.msg_id = ? AND
    msgworker_message.status > 0 AND msgworker_message.status < 2 AND msgworker_message.claimed_by = CAST(? AS
    TEXT) AND coalesce(msgworker_message.error_try_times, 0) = ? AND coalesce(msgworker_message.later_times,
    0) = ?;

-- settle_batch: Write that all messages are done; return the next ones that are flagged by us now
UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE
    msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT);
UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE
    msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f',
    'now')) AND coalesce(msgworker_message.error_try_times, 0) = 0;
UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=CAST(? AS TEXT),
    claimed_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f',
    'now'));
DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT);
DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f',
    'now')) AND coalesce(msgworker_message.error_try_times, 0) = 0;

-- settle_one: Write one settlement in the caller's transaction; LOST writes nothing at all
UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE
    msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT);
UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=CAST(? AS TEXT),
    claimed_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= strftime('%Y-%m-%d %H:%M:%f',
    'now'));
DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT);

-- ==================== items: The item table: done items of a fan-out do not run again, and what they send is sent with their records

-- shown: What is recorded of a message, with the first `limit` items; None if nothing is
SELECT w.s, count(*) AS count_1
FROM (SELECT msgworker_item.status AS s, msgworker_item.finished_at AS at, msgworker_item.total AS n
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ?
 LIMIT ? OFFSET ?) AS w GROUP BY w.s;

-- find: Recorded items by key, behind the key `after`; at most bounded.SCAN are read at once
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ? AND msgworker_item.item_key > ? ORDER BY
    msgworker_item.item_key
 LIMIT ? OFFSET ?;
SELECT msgworker_item.item_key
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ? AND msgworker_item.item_key > ? ORDER BY
    msgworker_item.item_key
 LIMIT ? OFFSET ?;
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ? AND msgworker_item.item_key > ? AND
    msgworker_item.status = 2 ORDER BY msgworker_item.item_key
 LIMIT ? OFFSET ?;
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ? AND msgworker_item.item_key > ? AND
    msgworker_item.status != 2 ORDER BY msgworker_item.item_key
 LIMIT ? OFFSET ?;

-- count: How many records the message has, bounded.SCAN at most; at a first try it has none
SELECT count(*) AS count_1
FROM (SELECT msgworker_item.tries AS tries
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ?
 LIMIT ? OFFSET ?) AS w;

-- known: The records of these keys, those that are there
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ? AND msgworker_item.item_key IN (/* each of
    b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ? AND msgworker_item.item_key IN (/* each of
    b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ? AND msgworker_item.item_key IN (/* each of
    b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ? AND msgworker_item.item_key IN (/* each of
    b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = ? AND msgworker_item.msg_id = ? AND msgworker_item.item_key IN (/* each of
    b_keys */);

-- record: Write records, and insert what they send, in the caller's transaction; False, and nothing is written,
--     if the claim is lost
SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') AS at
FROM msgworker_message
WHERE msgworker_message.msg_id = ? AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT);

-- record_one: Write one record beside the item's own writes, in their transaction
SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') AS at
FROM msgworker_message
WHERE msgworker_message.msg_id = ? AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT);

-- ==================== recover: Give back what a dead instance had flagged

-- flagged_by: The msg_ids above `after` flagged by an instance, lowest first, at most `limit`
SELECT f.i
FROM (SELECT a.msg_id + 0 AS i
FROM msgworker_message AS a
WHERE a.status = 1 AND a.claimed_by = CAST(? AS TEXT) AND a.msg_id + 0 > ?) AS f ORDER BY f.i
 LIMIT ? OFFSET ?;

-- owners: All instance ids in running rows
SELECT DISTINCT f.o
FROM (SELECT a.claimed_by AS o
FROM msgworker_message AS a
WHERE a.status = 1 AND a.claimed_by IS NOT NULL) AS f;

-- recover: Give these rows back, each with a try counted; return how many were still flagged by `dead_id` and
--     free to be changed: neither settled meanwhile nor locked
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT) ORDER BY msgworker_message.msg_id;

-- release: Release our own rows without a try; return how many were still ours
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by = CAST(? AS TEXT) ORDER BY msgworker_message.msg_id;

-- foreign: (msg_id, tries) of rows flagged without an owner, lowest first, at most `limit`, above the msg_id
--     `after`
SELECT f.i, f.n
FROM (SELECT a.msg_id + 0 AS i, coalesce(a.error_try_times, 0) AS n
FROM msgworker_message AS a
WHERE a.status = 1 AND a.claimed_by IS NULL AND a.msg_id + 0 > ?) AS f ORDER BY f.i
 LIMIT ? OFFSET ?;
SELECT f.i, f.n
FROM (SELECT a.msg_id + 0 AS i, coalesce(a.error_try_times, 0) AS n
FROM msgworker_message AS a
WHERE a.status = 1 AND a.claimed_by IS NULL AND a.msg_id + 0 > ? AND coalesce(a.claimed_at, a.created_at) <=
    ?) AS f ORDER BY f.i
 LIMIT ? OFFSET ?;

-- undated: The rows flagged without an owner whose age is unknown
SELECT f.i, f.n
FROM (SELECT a.msg_id + 0 AS i, coalesce(a.error_try_times, 0) AS n
FROM msgworker_message AS a
WHERE a.status = 1 AND a.claimed_by IS NULL AND coalesce(a.claimed_at, a.created_at) IS NULL) AS f ORDER BY
    f.i
 LIMIT ? OFFSET ?;

-- recover_foreign: Give these rows of a foreign consumer back, each with a try counted; return how many were
--     still flagged without an owner and with so many tries
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2 AND
    msgworker_message.claimed_by IS NULL AND coalesce(msgworker_message.error_try_times, 0) = ? ORDER BY
    msgworker_message.msg_id;

-- ==================== lease: Expiring rights to a name

-- register: Take a new lease
INSERT INTO msgworker_lease (name, kind, term, expires_at, started_at, renewed_at, label, serves) VALUES (?,
    ?, 0, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), strftime('%Y-%m-%d %H:%M:%f', 'now'),
    strftime('%Y-%m-%d %H:%M:%f', 'now'), ?, ?);

-- is_kept: Whether a lease just registered reads as it was written: not cut, padded or changed
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = ?;

-- renew: Extend our lease; False = it was taken over, or is over
UPDATE msgworker_lease SET term=(msgworker_lease.term + ?), expires_at=strftime('%Y-%m-%d %H:%M:%f', 'now', ?
    || ' seconds'), renewed_at=strftime('%Y-%m-%d %H:%M:%f', 'now'), in_hand=?, serves=? WHERE
    msgworker_lease.name = ? AND msgworker_lease.taken_by IS NULL AND msgworker_lease.expires_at >
    strftime('%Y-%m-%d %H:%M:%f', 'now');
UPDATE msgworker_lease SET term=(msgworker_lease.term + ?), expires_at=strftime('%Y-%m-%d %H:%M:%f', 'now', ?
    || ' seconds'), renewed_at=strftime('%Y-%m-%d %H:%M:%f', 'now'), in_hand=? WHERE msgworker_lease.name = ?
    AND msgworker_lease.taken_by IS NULL AND msgworker_lease.expires_at > strftime('%Y-%m-%d %H:%M:%f', 'now');

-- read_all: All leases of a kind, by name
SELECT msgworker_lease.name, msgworker_lease.kind, msgworker_lease.term, msgworker_lease.taken_by, CASE WHEN
    (msgworker_lease.expires_at > strftime('%Y-%m-%d %H:%M:%f', 'now')) THEN ? ELSE ? END AS anon_1, CASE WHEN
    (msgworker_lease.renewed_at > strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds')) THEN ? ELSE ? END AS
    anon_2, msgworker_lease.started_at, msgworker_lease.renewed_at, msgworker_lease.expires_at,
    msgworker_lease.label, msgworker_lease.in_hand, msgworker_lease.serves, ((julianday('now') -
    julianday(msgworker_lease.renewed_at)) * 86400.0) AS anon_3
FROM msgworker_lease
WHERE msgworker_lease.kind = ? ORDER BY msgworker_lease.name;

-- take_over: Declare the holder of an expired lease dead; True for the one winner
UPDATE msgworker_lease SET term=(msgworker_lease.term + ?), taken_by=?, expires_at=strftime('%Y-%m-%d
    %H:%M:%f', 'now', ? || ' seconds'), renewed_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE
    msgworker_lease.name = ? AND msgworker_lease.term = ? AND msgworker_lease.expires_at <= strftime('%Y-%m-%d
    %H:%M:%f', 'now');

-- restart_ttl: Restart a lease's time from now, after the database's clock was set back (`ahead`): it could not
--     be taken over until the clock reaches its old time
UPDATE msgworker_lease SET expires_at=strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'),
    renewed_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE msgworker_lease.name = ? AND msgworker_lease.term =
    ? AND msgworker_lease.renewed_at > strftime('%Y-%m-%d %H:%M:%f', 'now');

-- take_over_live: Declare an instance dead although its lease is live: an operator's decision (`release`)
UPDATE msgworker_lease SET term=(msgworker_lease.term + ?), taken_by=?, expires_at=strftime('%Y-%m-%d
    %H:%M:%f', 'now', ? || ' seconds'), renewed_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE
    msgworker_lease.name = ? AND msgworker_lease.taken_by IS NULL;

-- leave: Expire a lease that we took over: the next recovery continues with it
UPDATE msgworker_lease SET term=(msgworker_lease.term + ?), expires_at=strftime('%Y-%m-%d %H:%M:%f', 'now')
    WHERE msgworker_lease.name = ? AND msgworker_lease.taken_by = ?;

-- drop: Delete a lease: our own (taken_by None) or one that we took over; a locked one is left
DELETE FROM msgworker_lease WHERE msgworker_lease.name = ? AND msgworker_lease.taken_by IS NULL;
DELETE FROM msgworker_lease WHERE msgworker_lease.name = ? AND msgworker_lease.taken_by = ?;

-- ==================== schedules: Schedules: a row each in `msgworker_schedule`, which any instance may fire

-- look: The time of the database, and all schedules of this message table, by name
SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') AS mw_now, msgworker_schedule.name, msgworker_schedule.spec,
    msgworker_schedule.time_zone, msgworker_schedule.topic, msgworker_schedule.object_id,
    msgworker_schedule.payload, msgworker_schedule.catch_up, CASE WHEN msgworker_schedule.next_at GLOB
    '[0-9][0-9][0-9][0-9]-*' AND julianday(msgworker_schedule.next_at) IS NOT NULL THEN
    msgworker_schedule.next_at END AS next_at, CASE WHEN msgworker_schedule.last_at GLOB
    '[0-9][0-9][0-9][0-9]-*' AND julianday(msgworker_schedule.last_at) IS NOT NULL THEN
    msgworker_schedule.last_at END AS last_at, CASE WHEN msgworker_schedule.paused_at GLOB
    '[0-9][0-9][0-9][0-9]-*' AND julianday(msgworker_schedule.paused_at) IS NOT NULL THEN
    msgworker_schedule.paused_at END AS paused_at, msgworker_schedule.paused_by, msgworker_schedule.version,
    msgworker_schedule.declared_by, CASE WHEN msgworker_schedule.declared_at GLOB '[0-9][0-9][0-9][0-9]-*' AND
    julianday(msgworker_schedule.declared_at) IS NOT NULL THEN msgworker_schedule.declared_at END AS
    declared_at, msgworker_schedule.overlap, msgworker_schedule.skipped, msgworker_schedule.replaced,
    msgworker_schedule.paused_reason
FROM msgworker_schedule
WHERE msgworker_schedule.table_name = ? ORDER BY msgworker_schedule.name;
SELECT strftime('%Y-%m-%d %H:%M:%f', 'now') AS mw_now;

-- insert: Insert a schedule, by column
INSERT INTO msgworker_schedule (table_name, name, spec, time_zone, topic, object_id, payload, catch_up,
    next_at, declared_by, declared_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%d %H:%M:%f',
    'now'));

-- change: Change the columns in `values`, if the row is as it was seen; False if it is not
UPDATE msgworker_schedule SET spec=?, time_zone=?, topic=?, object_id=?, payload=?, catch_up=?, next_at=?,
    last_at=?, version=(msgworker_schedule.version + ?), declared_by=? WHERE msgworker_schedule.table_name = ?
    AND msgworker_schedule.name = ? AND msgworker_schedule.version = ?;

-- fire: Send the messages of one or more ticks and move to `next_at`, if the row is as it was seen; None, and
--     nothing is sent, if it is not: another instance has fired them
UPDATE msgworker_schedule SET next_at=?, last_at=?, version=(msgworker_schedule.version + ?) WHERE
    msgworker_schedule.table_name = ? AND msgworker_schedule.name = ? AND msgworker_schedule.version = ?;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, scheduled_for)
    VALUES (?, ?, 0, 0, ?, ?, ?);
UPDATE msgworker_schedule SET last_at=?, skipped=(msgworker_schedule.skipped + ?),
    replaced=(msgworker_schedule.replaced + ?) WHERE msgworker_schedule.table_name = ? AND
    msgworker_schedule.name = ?;

-- delete: Delete a schedule, if the row is as it was seen
DELETE FROM msgworker_schedule WHERE msgworker_schedule.table_name = ? AND msgworker_schedule.name = ? AND
    msgworker_schedule.version = ?;

-- tick_of: For which instant a schedule has sent a message; None for other messages, and for a value that is no
--     instant
SELECT msgworker_message.scheduled_for AS anon_1
FROM msgworker_message
WHERE msgworker_message.msg_id = ?;

-- ==================== jobs: Jobs: messages that belong together, and the message that is sent when all of them have ended

-- open_job: Insert a job; return its id
INSERT INTO msgworker_job (table_name, name, on_complete, object_id, opened_by, payload, on_dead, opened_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, strftime('%Y-%m-%d %H:%M:%f', 'now'));

-- lock_open: A job, whose row is locked, shared, until the end of the transaction; None if there is no such one
UPDATE msgworker_job SET name=msgworker_job.name WHERE msgworker_job.job_id = ? AND msgworker_job.table_name =
    ?;
SELECT msgworker_job.name, msgworker_job.sealed_at
FROM msgworker_job
WHERE msgworker_job.job_id = ? AND msgworker_job.table_name = ?;

-- seal: Close a job to further senders; False if it was sealed, or is not there
UPDATE msgworker_job SET sealed_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE msgworker_job.job_id = ? AND
    msgworker_job.table_name = ? AND msgworker_job.sealed_at IS NULL;

-- job_of: The job of a message; None if it belongs to none
SELECT msgworker_message.job_id
FROM msgworker_message
WHERE msgworker_message.msg_id = ?;

-- ended: The sealed jobs of which nothing is unfinished, that have not completed, among the next LOOKED_AT
--     behind `after`; and where to go on, None at the end
SELECT msgworker_job.job_id, CASE WHEN ((EXISTS (SELECT 1
FROM msgworker_message AS j0
WHERE j0.job_id = msgworker_job.job_id AND j0.status > -1 AND j0.status < 1)) OR (EXISTS (SELECT 1
FROM msgworker_message AS j1
WHERE j1.job_id = msgworker_job.job_id AND j1.status > 0 AND j1.status < 2)) OR (EXISTS (SELECT 1
FROM msgworker_message AS j2
WHERE j2.job_id = msgworker_job.job_id AND j2.status > -2 AND j2.status < 0 AND (coalesce(j2.error_try_times,
    0) < 3 OR msgworker_job.on_dead = 'wait' AND msgworker_job.cancelled_at IS NULL AND NOT (j2.status = -1
    AND j2.last_error IS NOT NULL AND (((j2.last_error COLLATE BINARY) LIKE ? || '%' ESCAPE '/') OR
    ((j2.last_error COLLATE BINARY) LIKE ? || '%' ESCAPE '/'))))))) THEN 0 ELSE 1 END AS anon_1
FROM msgworker_job
WHERE msgworker_job.table_name = ? AND msgworker_job.sealed_at IS NOT NULL AND msgworker_job.completed_at IS
    NULL AND msgworker_job.job_id > ? ORDER BY msgworker_job.job_id
 LIMIT 200 OFFSET ?;

-- cancel: Seal a job, and send no message when it has ended; False if that is so, or it has completed
UPDATE msgworker_job SET sealed_at=coalesce(msgworker_job.sealed_at, strftime('%Y-%m-%d %H:%M:%f', 'now')),
    cancelled_at=strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE msgworker_job.job_id = ? AND
    msgworker_job.table_name = ? AND msgworker_job.completed_at IS NULL AND msgworker_job.cancelled_at IS NULL;

-- pause: Let no message of a job start; False if that is so, or it has completed
UPDATE msgworker_job SET paused_at=strftime('%Y-%m-%d %H:%M:%f', 'now'), paused_by=?, paused_reason=? WHERE
    msgworker_job.job_id = ? AND msgworker_job.table_name = ? AND msgworker_job.completed_at IS NULL AND
    msgworker_job.paused_at IS NULL;

-- resume: Let them start again; False if it was not paused
UPDATE msgworker_job SET paused_at=?, paused_by=?, paused_reason=? WHERE msgworker_job.job_id = ? AND
    msgworker_job.table_name = ? AND msgworker_job.paused_at IS NOT NULL;

-- forget: Delete the jobs that have completed before this instant and have no message left, among the next
--     LOOKED_AT behind `after`; returns where to go on, None at the end
SELECT msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = ? AND msgworker_job.completed_at < ? AND msgworker_job.job_id > ? ORDER BY
    msgworker_job.job_id
 LIMIT ? OFFSET ?;

-- complete: Complete a job and send its message, if nothing of it is unfinished and no other has done so
SELECT msgworker_job.name, msgworker_job.on_complete, msgworker_job.object_id, msgworker_job.payload,
    msgworker_job.cancelled_at
FROM msgworker_job
WHERE msgworker_job.job_id = ? AND msgworker_job.table_name = ? AND msgworker_job.sealed_at IS NOT NULL AND
    msgworker_job.completed_at IS NULL;

-- counts: How many messages of a job wait, run, are done and dead, up to `most` of each; "retrying": how many of
--     those that wait have failed; "again": those and edited ones (`Tables.untried`)
SELECT g.n, g.a, g.r, (SELECT count(*) AS count_1
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_1
WHERE msgworker_message_1.job_id = ? AND msgworker_message_1.status = 0
 LIMIT 5 OFFSET ?) AS anon_2) AS anon_1, (SELECT count(*) AS count_2
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_2
WHERE msgworker_message_2.job_id = ? AND msgworker_message_2.status = 1
 LIMIT 5 OFFSET ?) AS anon_4) AS anon_3, (SELECT count(*) AS count_3
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_3
WHERE msgworker_message_3.job_id = ? AND msgworker_message_3.status = 2
 LIMIT 5 OFFSET ?) AS anon_6) AS anon_5
FROM (SELECT count(*) AS n, sum(f.a) AS a, sum(f.r) AS r
FROM (SELECT CASE WHEN (coalesce(msgworker_message_4.error_try_times, 0) < 3) THEN 1 ELSE 0 END AS a, CASE
    WHEN (msgworker_message_4.status = -1 AND coalesce(msgworker_message_4.error_try_times, 0) = 0) THEN 0
    ELSE CASE WHEN (coalesce(msgworker_message_4.error_try_times, 0) < 3) THEN 1 ELSE 0 END END AS r
FROM msgworker_message AS msgworker_message_4
WHERE msgworker_message_4.job_id = ? AND msgworker_message_4.status = -1
 LIMIT 100000 OFFSET ?) AS f) AS g;
SELECT g.n, g.a, g.r, (SELECT count(*) AS count_1
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_1
WHERE msgworker_message_1.job_id = ? AND msgworker_message_1.status = 0
 LIMIT 5 OFFSET ?) AS anon_2) AS anon_1, (SELECT count(*) AS count_2
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_2
WHERE msgworker_message_2.job_id = ? AND msgworker_message_2.status = 1
 LIMIT 5 OFFSET ?) AS anon_4) AS anon_3
FROM (SELECT count(*) AS n, sum(f.a) AS a, sum(f.r) AS r
FROM (SELECT CASE WHEN (coalesce(msgworker_message_3.error_try_times, 0) < 3) THEN 1 ELSE 0 END AS a, CASE
    WHEN (msgworker_message_3.status = -1 AND coalesce(msgworker_message_3.error_try_times, 0) = 0) THEN 0
    ELSE CASE WHEN (coalesce(msgworker_message_3.error_try_times, 0) < 3) THEN 1 ELSE 0 END END AS r
FROM msgworker_message AS msgworker_message_3
WHERE msgworker_message_3.job_id = ? AND msgworker_message_3.status = -1
 LIMIT 100000 OFFSET ?) AS f) AS g;

-- given_up: How many messages of a job are dead and not discarded, among its first DEAD_LOOKED_AT failed ones
SELECT count(*) AS count_1, sum(d.d) AS sum_1
FROM (SELECT CASE WHEN (coalesce(msgworker_message_1.error_try_times, 0) >= 3 AND NOT
    (msgworker_message_1.status = -1 AND msgworker_message_1.last_error IS NOT NULL AND
    (((msgworker_message_1.last_error COLLATE BINARY) LIKE ? || '%' ESCAPE '/') OR
    ((msgworker_message_1.last_error COLLATE BINARY) LIKE ? || '%' ESCAPE '/')))) THEN 1 ELSE 0 END AS d
FROM msgworker_message AS msgworker_message_1
WHERE msgworker_message_1.job_id = ? AND msgworker_message_1.status = -1
 LIMIT ? OFFSET ?) AS d;

-- awaited: How many of these an open job waits for (on_dead="wait"), and others do not
SELECT 1
FROM msgworker_job
WHERE msgworker_job.job_id = ? AND msgworker_job.table_name = ? AND msgworker_job.completed_at IS NULL AND
    msgworker_job.cancelled_at IS NULL AND msgworker_job.on_dead = 'wait';

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
 LIMIT ? OFFSET ?;
SELECT msgworker_message.msg_id, msgworker_message.object_id
FROM msgworker_message
WHERE msgworker_message.instance_type = ? AND CASE WHEN ((msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.status != 1) THEN 1 ELSE 0 END = 1 AND (msgworker_message.status > -1 AND
    msgworker_message.status < 1 OR msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) ORDER BY msgworker_message.msg_id
 LIMIT ? OFFSET ?;

-- flags: The flags of unfinished messages, and of how many each
SELECT msgworker_message.instance_type, count(*) AS count_1
FROM msgworker_message
WHERE msgworker_message.instance_type IS NOT NULL AND CASE WHEN ((msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.status != 1) THEN 1 ELSE 0 END = 1 GROUP BY msgworker_message.instance_type;

-- flags_of: The flag of the first unfinished message of each object that has one
SELECT msgworker_message.object_id, msgworker_message.instance_type
FROM msgworker_message
WHERE msgworker_message.object_id IN (__[POSTCOMPILE_objects~~CAST(~~REPL~~ AS TEXT)~~]) AND
    (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND (msgworker_message.object_id IS NOT NULL OR
    msgworker_message.status != 1) AND msgworker_message.instance_type IS NOT NULL ORDER BY
    msgworker_message.msg_id;

-- deal: Give messages that still have no flag this one; how many that were
UPDATE msgworker_message SET instance_type=? WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND (msgworker_message.status > -1 AND msgworker_message.status < 1 OR
    msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL;

-- take_back: Remove this flag from messages that still have it; how many that were
UPDATE msgworker_message SET instance_type=? WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND (msgworker_message.status > -1 AND msgworker_message.status < 1 OR
    msgworker_message.status > -2 AND msgworker_message.status < 0 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type = ?;

-- there: Those of the names that have their rows
SELECT msgworker_lock.name
FROM msgworker_lock
WHERE msgworker_lock.name IN (/* each of mw_names */);

-- acquire: Take those of some locks that are free or expired, in one statement; name -> new token
UPDATE msgworker_lock SET owner=?, token=(msgworker_lock.token + ?), claim_id=?,
    since_ms=CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER),
    expires_ms=(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) + ?) WHERE
    msgworker_lock.name IN (/* each of mw_names */) AND (msgworker_lock.owner IS NULL OR
    msgworker_lock.expires_ms <= CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER));
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = ? AND msgworker_lock.expires_ms > CAST(round((julianday('now') - 2440587.5) *
    86400000) AS INTEGER) AND msgworker_lock.claim_id = ?;

-- acquired: What an acquire has got and still holds: name -> token
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = ? AND msgworker_lock.expires_ms > CAST(round((julianday('now') - 2440587.5) *
    86400000) AS INTEGER) AND msgworker_lock.claim_id = ?;

-- renew: Extend a lock from now on; False = it is no longer held under this owner and token, and never will be
UPDATE msgworker_lock SET expires_ms=(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) + ?)
    WHERE msgworker_lock.name = ? AND msgworker_lock.owner = ? AND msgworker_lock.token = ? AND
    msgworker_lock.expires_ms > CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER);

-- renew_all: Extend all that an owner holds, in one statement; name -> token of what it holds now
UPDATE msgworker_lock SET expires_ms=(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) + ?)
    WHERE msgworker_lock.owner = ? AND msgworker_lock.expires_ms > CAST(round((julianday('now') - 2440587.5) *
    86400000) AS INTEGER);
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = ? AND msgworker_lock.expires_ms > CAST(round((julianday('now') - 2440587.5) *
    86400000) AS INTEGER);

-- release: Free a lock at once; False if it is not held under this owner and token: nothing changes
UPDATE msgworker_lock SET owner=NULL, claim_id=NULL, expires_ms=0 WHERE msgworker_lock.name = ? AND
    msgworker_lock.owner = ? AND msgworker_lock.token = ?;

-- held: The locks that are held and not expired, of names that begin so, by name
SELECT msgworker_lock.name, msgworker_lock.owner, msgworker_lock.token, CAST(round((julianday('now') -
    2440587.5) * 86400000) AS INTEGER) - msgworker_lock.since_ms AS anon_1, msgworker_lock.expires_ms -
    CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) AS anon_2
FROM msgworker_lock
WHERE msgworker_lock.owner IS NOT NULL AND (msgworker_lock.name LIKE ? || '%' ESCAPE '/') AND
    msgworker_lock.expires_ms > CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) ORDER BY
    msgworker_lock.name;

-- holder: Who holds a lock now, None if it is free or expired
SELECT msgworker_lock.name, msgworker_lock.owner, msgworker_lock.token, CAST(round((julianday('now') -
    2440587.5) * 86400000) AS INTEGER) - msgworker_lock.since_ms AS anon_1, msgworker_lock.expires_ms -
    CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) AS anon_2
FROM msgworker_lock
WHERE msgworker_lock.owner IS NOT NULL AND msgworker_lock.name = ? AND msgworker_lock.expires_ms >
    CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) ORDER BY msgworker_lock.name;

-- ==================== controls: What operators ask of running instances, which read it in their heartbeat: topics and jobs that are paused, and requests to cancel running messages

-- paused_job_ids: The jobs that are paused; none where there are no jobs
SELECT msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = ? AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at IS NOT
    NULL;

-- paused_jobs: The jobs that are paused, the newest first, MOST_JOBS at most; or this one, if it is
SELECT msgworker_job.job_id, msgworker_job.name, CASE WHEN msgworker_job.paused_at GLOB
    '[0-9][0-9][0-9][0-9]-*' AND julianday(msgworker_job.paused_at) IS NOT NULL THEN msgworker_job.paused_at
    END AS paused_at, msgworker_job.paused_by, msgworker_job.paused_reason
FROM msgworker_job
WHERE msgworker_job.table_name = ? AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at IS NOT
    NULL ORDER BY msgworker_job.job_id DESC
 LIMIT ? OFFSET ?;

-- held_among: Those of these messages (at most `max_ids`) whose job is paused
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.job_id IN (SELECT msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = ? AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at IS NOT
    NULL);

-- look: All in one statement, of the tables that are there
SELECT 0 AS n, msgworker_pause.topic AS x
FROM msgworker_pause
WHERE msgworker_pause.table_name = ? UNION ALL SELECT DISTINCT 1 AS n, msgworker_cancel.table_name AS x
FROM msgworker_cancel
WHERE msgworker_cancel.table_name = ? UNION ALL SELECT DISTINCT 2 AS n, msgworker_limit.table_name AS x
FROM msgworker_limit
WHERE msgworker_limit.table_name = ?;

-- requests: The requests, or those of some messages (at most `max_ids`), with what has become of each message;
--     none where the table is not there
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, (CASE typeof(msgworker_message.claimed_by) WHEN 'text' THEN
    ifnull(CAST(substr(CAST(msgworker_message.claimed_by AS BLOB), 1, 8004) AS TEXT), '') WHEN 'blob' THEN
    ifnull(substr(msgworker_message.claimed_by, 1, 8004), x'') ELSE msgworker_message.claimed_by END) AS o,
    CASE WHEN (msgworker_message.status = -1 AND msgworker_message.last_error IS NOT NULL AND
    (((msgworker_message.last_error COLLATE BINARY) LIKE ? || '%' ESCAPE '/') OR
    ((msgworker_message.last_error COLLATE BINARY) LIKE ? || '%' ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = ? ORDER BY msgworker_cancel.msg_id
 LIMIT ? OFFSET ?;
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, (CASE typeof(msgworker_message.claimed_by) WHEN 'text' THEN
    ifnull(CAST(substr(CAST(msgworker_message.claimed_by AS BLOB), 1, 8004) AS TEXT), '') WHEN 'blob' THEN
    ifnull(substr(msgworker_message.claimed_by, 1, 8004), x'') ELSE msgworker_message.claimed_by END) AS o,
    CASE WHEN (msgworker_message.status = -1 AND msgworker_message.last_error IS NOT NULL AND
    (((msgworker_message.last_error COLLATE BINARY) LIKE ? || '%' ESCAPE '/') OR
    ((msgworker_message.last_error COLLATE BINARY) LIKE ? || '%' ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = ? AND msgworker_cancel.msg_id IN (SELECT value
FROM json_each(?)) ORDER BY msgworker_cancel.msg_id;
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, (CASE typeof(msgworker_message.claimed_by) WHEN 'text' THEN
    ifnull(CAST(substr(CAST(msgworker_message.claimed_by AS BLOB), 1, 8004) AS TEXT), '') WHEN 'blob' THEN
    ifnull(substr(msgworker_message.claimed_by, 1, 8004), x'') ELSE msgworker_message.claimed_by END) AS o,
    CASE WHEN (msgworker_message.status = -1 AND msgworker_message.last_error IS NOT NULL AND
    (((msgworker_message.last_error COLLATE BINARY) LIKE ? || '%' ESCAPE '/') OR
    ((msgworker_message.last_error COLLATE BINARY) LIKE ? || '%' ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = ? AND (coalesce(msgworker_message.status, 0) != 1 OR
    msgworker_message.claimed_by = CAST(? AS TEXT)) ORDER BY msgworker_cancel.msg_id
 LIMIT ? OFFSET ?;

-- running: The running ones among these messages, with their owner (None if unknown) and tries; at most
--     `max_ids` ids
SELECT msgworker_message.msg_id, (CASE typeof(msgworker_message.claimed_by) WHEN 'text' THEN
    ifnull(CAST(substr(CAST(msgworker_message.claimed_by AS BLOB), 1, 8004) AS TEXT), '') WHEN 'blob' THEN
    ifnull(substr(msgworker_message.claimed_by, 1, 8004), x'') ELSE msgworker_message.claimed_by END) AS o,
    coalesce(msgworker_message.error_try_times, 0) AS n
FROM msgworker_message
WHERE msgworker_message.msg_id IN (SELECT value
FROM json_each(?)) AND msgworker_message.status > 0 AND msgworker_message.status < 2;

-- request_cancel: Request that running messages are cancelled, given by id with their owner and tries, as they
--     were locked; returns of how many
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = ? AND msgworker_cancel.msg_id IN (SELECT
    value
FROM json_each(?));
INSERT INTO msgworker_cancel (requested_at) VALUES (strftime('%Y-%m-%d %H:%M:%f', 'now'));

-- drop_requests: Delete the requests of these messages
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = ? AND msgworker_cancel.msg_id IN (SELECT
    value
FROM json_each(?));

-- drop_seen: Delete this request; False if it is gone, or another one has taken its place
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = ? AND msgworker_cancel.msg_id = ? AND
    msgworker_cancel.seen_owner = ? AND msgworker_cancel.seen_tries = ?;

-- pauses: The topics that are paused, by name; none where the table is not there
SELECT msgworker_pause.topic, msgworker_pause.actor, msgworker_pause.reason, msgworker_pause.paused_at
FROM msgworker_pause
WHERE msgworker_pause.table_name = ? ORDER BY msgworker_pause.topic;

-- pause: Pause a topic; False if it is paused already
SELECT msgworker_pause.topic, msgworker_pause.actor, msgworker_pause.reason, msgworker_pause.paused_at
FROM msgworker_pause
WHERE msgworker_pause.table_name = ? ORDER BY msgworker_pause.topic;
INSERT INTO msgworker_pause (table_name, topic, actor, reason, paused_at) VALUES (?, ?, ?, ?,
    strftime('%Y-%m-%d %H:%M:%f', 'now'));

-- resume: Resume a topic; False if it was not paused
DELETE FROM msgworker_pause WHERE msgworker_pause.table_name = ? AND msgworker_pause.topic = ?;

-- ==================== send: Insert messages in the caller's transaction; with a unique key, if no other message holds it

-- insert_many: Insert messages that all have the same keys, in order
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority) VALUES (?,
    ?, 0, 0, ?, ?, ?);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (?, ?, 0, 0, ?, ?, ?, ?);

-- insert_one: Insert one message; return its msg_id as the database gave it, None where it gave none
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority) VALUES (?,
    ?, 0, 0, ?, ?, ?);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (?, ?, 0, 0, ?, ?, ?, ?);

-- send: Insert a message that has a key, unless another one holds it; return the msg_id of the one that does
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE unique_key IS
    NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO NOTHING
    RETURNING msg_id;
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.unique_key = CAST(? AS TEXT) AND msgworker_message.unique_key IS NOT NULL AND
    (msgworker_message.unique_kept = 1 OR msgworker_message.status IN (0, 1) OR msgworker_message.status = -1
    AND msgworker_message.finished_at IS NULL);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (?, ?, 0, 0, ?, strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'), ?, ?,
    ?) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR
    status = -1 AND finished_at IS NULL) DO NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (?, ?, 0, 0, ?, ?, ?, ?, ?, ?) ON CONFLICT (unique_key) WHERE
    unique_key IS NOT NULL AND (unique_kept = 1 OR status IN (0, 1) OR status = -1 AND finished_at IS NULL) DO
    NOTHING RETURNING msg_id;

-- replace: Give a message that was never claimed what the new one says; whether that was done
UPDATE msgworker_message SET payload=?, available_at=NULL, priority=?, unique_kept=?, headers=NULL WHERE
    msgworker_message.msg_id = ? AND msgworker_message.unique_key = CAST(? AS TEXT) AND
    msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;
UPDATE msgworker_message SET payload=?, available_at=strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds'),
    priority=?, headers=NULL WHERE msgworker_message.msg_id = ? AND msgworker_message.unique_key = CAST(? AS
    TEXT) AND msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;
UPDATE msgworker_message SET payload=?, available_at=?, priority=?, unique_kept=?, headers=NULL WHERE
    msgworker_message.msg_id = ? AND msgworker_message.unique_key = CAST(? AS TEXT) AND
    msgworker_message.status > -1 AND msgworker_message.status < 1 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;

-- give_up: Free the key of a message that holds it while it is open
UPDATE msgworker_message SET unique_key=NULL WHERE msgworker_message.msg_id = ? AND
    msgworker_message.unique_key = CAST(? AS TEXT) AND coalesce(msgworker_message.unique_kept, 0) != 1 AND
    msgworker_message.unique_key IS NOT NULL AND (msgworker_message.unique_kept = 1 OR
    msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND msgworker_message.finished_at IS
    NULL);
