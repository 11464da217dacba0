-- What an instance sends to mysql, for a table with default names. Written by `make ddl`.
-- One entry for each function of msgworker/store, in the order of a message's life; what it sends
-- may depend on what it is given, and on what it has read.

-- ==================== candidates: Candidates for a claim: by age, by instant, by object

-- oldest: Open rows that wait for no instant, in order of age, from `mark` on; without those that run and have
--     no object, since nothing waits behind them
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6
FROM msgworker_message FORCE INDEX (msgworker_message_oldest)
WHERE (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id
    >= %s ORDER BY msgworker_message.msg_id
 LIMIT %s;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6
FROM msgworker_message FORCE INDEX (msgworker_message_oldest)
WHERE (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND msgworker_message.msg_id
    >= %s AND (msgworker_message.object_id IS NOT NULL OR (msgworker_message.msg_id %% %s + %s) %% %s BETWEEN
    %s AND %s) ORDER BY msgworker_message.msg_id
 LIMIT %s;

-- due_after: Rows whose instant has passed, after the (`waits_until`, msg_id) `since`, in that order; None =
--     from the first
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6,
    CAST(msgworker_message.available_at AS CHAR) AS h7
FROM msgworker_message FORCE INDEX (msgworker_message_due)
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= utc_timestamp(6) ORDER BY msgworker_message.available_at,
    msgworker_message.msg_id
 LIMIT %s;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6,
    CAST(msgworker_message.available_at AS CHAR) AS h7
FROM msgworker_message FORCE INDEX (msgworker_message_due)
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= utc_timestamp(6) AND msgworker_message.available_at >= %s AND
    (msgworker_message.available_at > %s OR msgworker_message.msg_id > %s) ORDER BY
    msgworker_message.available_at, msgworker_message.msg_id
 LIMIT %s;

-- heads: The head of each object behind the object `after` (None = from the first), and the next cursor
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6, g.o, g.n
FROM (SELECT w.k AS o, min(w.i) AS i, count(*) AS n
FROM (SELECT p.mw_open_object AS k, p.msg_id AS i
FROM msgworker_message AS p FORCE INDEX (msgworker_message_object)
WHERE p.mw_open_object IS NOT NULL ORDER BY p.mw_open_object, p.msg_id
 LIMIT %s) AS w GROUP BY w.k) AS g INNER JOIN msgworker_message ON msgworker_message.msg_id = g.i ORDER BY g.o;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6, g.o, g.n
FROM (SELECT w.k AS o, min(w.i) AS i, count(*) AS n
FROM (SELECT p.mw_open_object AS k, p.msg_id AS i
FROM msgworker_message AS p FORCE INDEX (msgworker_message_object)
WHERE p.mw_open_object > %s ORDER BY p.mw_open_object, p.msg_id
 LIMIT %s) AS w GROUP BY w.k) AS g INNER JOIN msgworker_message ON msgworker_message.msg_id = g.i ORDER BY g.o;
SELECT count(*) AS n, max(w.k) AS last
FROM (SELECT p.mw_open_object AS k, p.msg_id AS i
FROM msgworker_message AS p FORCE INDEX (msgworker_message_object)
WHERE p.mw_open_object IS NOT NULL ORDER BY p.mw_open_object, p.msg_id
 LIMIT %s) AS w;
SELECT count(*) AS n, max(w.k) AS last
FROM (SELECT p.mw_open_object AS k, p.msg_id AS i
FROM msgworker_message AS p FORCE INDEX (msgworker_message_object)
WHERE p.mw_open_object > %s ORDER BY p.mw_open_object, p.msg_id
 LIMIT %s) AS w;

-- without_object: Open rows without an object, by msg_id, behind `after` (None = from the first), and the next
--     cursor, None after the last one
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6
FROM msgworker_message FORCE INDEX (msgworker_message_object)
WHERE msgworker_message.mw_open_object = '~msgworker.none~' AND msgworker_message.msg_id > %s ORDER BY
    msgworker_message.msg_id
 LIMIT %s;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6
FROM msgworker_message FORCE INDEX (msgworker_message_object)
WHERE msgworker_message.mw_open_object = '~msgworker.none~' AND msgworker_message.msg_id > %s AND
    (msgworker_message.msg_id %% %s + %s) %% %s BETWEEN %s AND %s ORDER BY msgworker_message.msg_id
 LIMIT %s;

-- oldest_among: `oldest` of these topics alone (but: of all others), among the next `span` rows: a bounded step,
--     however many of other topics are in front
SELECT count(*) AS n, max(w.k) AS last
FROM (SELECT msgworker_message.msg_id AS k
FROM msgworker_message
WHERE msgworker_message.msg_id >= %s ORDER BY msgworker_message.msg_id
 LIMIT %s) AS w;
SELECT w.h0, w.h1, w.h2, w.h3, w.h4, w.h5, w.h6
FROM (SELECT msgworker_message.msg_id AS k, msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1,
    msgworker_message.status AS h2, coalesce(msgworker_message.error_try_times, 0) AS h3,
    coalesce(msgworker_message.crash_times, 0) AS h4, msgworker_message.topic AS h5, CASE WHEN
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE
    0 END AS h6, CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN 1 END AS u
FROM msgworker_message
WHERE msgworker_message.msg_id >= %s ORDER BY msgworker_message.msg_id
 LIMIT %s) AS w
WHERE (CONVERT(coalesce((CONVERT(w.h5 USING utf8mb4) COLLATE utf8mb4_0900_bin), 'default') USING utf8mb4)
    COLLATE utf8mb4_0900_bin) IN (/* each of mw_topics */) AND w.u IS NOT NULL ORDER BY w.k
 LIMIT %s;
SELECT w.h0, w.h1, w.h2, w.h3, w.h4, w.h5, w.h6
FROM (SELECT msgworker_message.msg_id AS k, msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1,
    msgworker_message.status AS h2, coalesce(msgworker_message.error_try_times, 0) AS h3,
    coalesce(msgworker_message.crash_times, 0) AS h4, msgworker_message.topic AS h5, CASE WHEN
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE
    0 END AS h6, CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN 1 END AS u
FROM msgworker_message
WHERE msgworker_message.msg_id >= %s ORDER BY msgworker_message.msg_id
 LIMIT %s) AS w
WHERE ((CONVERT(coalesce((CONVERT(w.h5 USING utf8mb4) COLLATE utf8mb4_0900_bin), 'default') USING utf8mb4)
    COLLATE utf8mb4_0900_bin) NOT IN (/* each of mw_topics */)) AND w.u IS NOT NULL ORDER BY w.k
 LIMIT %s;

-- newest: The highest id; `MIN_ID` without one
SELECT max(msgworker_message.msg_id) AS max_1
FROM msgworker_message;

-- heads_of: Those of these messages that are open and the heads of their objects, or have none, by msg_id
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) ORDER BY
    msgworker_message.msg_id;

-- ==================== ranked: Heads that come out of order of age: those with a priority, and those whose instant has come

-- ranked: Read `limit` rows that have a priority and wait for no instant, behind `after` (None = from the
--     highest on)
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6, CASE WHEN
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1
    END AS head, msgworker_message.mw_urgent AS r
FROM msgworker_message FORCE INDEX (msgworker_message_urgent)
WHERE msgworker_message.mw_urgent IS NOT NULL ORDER BY msgworker_message.mw_urgent, msgworker_message.msg_id
 LIMIT %s;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6, CASE WHEN
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1
    END AS head, msgworker_message.mw_urgent AS r
FROM msgworker_message FORCE INDEX (msgworker_message_urgent)
WHERE msgworker_message.mw_urgent IS NOT NULL AND msgworker_message.mw_urgent >= %s AND
    (msgworker_message.mw_urgent > %s OR msgworker_message.msg_id > %s) ORDER BY msgworker_message.mw_urgent,
    msgworker_message.msg_id
 LIMIT %s;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6,
    coalesce(msgworker_message.shard, 0) AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1
    END AS head, msgworker_message.mw_urgent AS r
FROM msgworker_message FORCE INDEX (msgworker_message_urgent)
WHERE msgworker_message.mw_urgent IS NOT NULL ORDER BY msgworker_message.mw_urgent, msgworker_message.msg_id
 LIMIT %s;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6,
    coalesce(msgworker_message.shard, 0) AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1
    END AS head, msgworker_message.mw_urgent AS r
FROM msgworker_message FORCE INDEX (msgworker_message_urgent)
WHERE msgworker_message.mw_urgent IS NOT NULL AND msgworker_message.mw_urgent >= %s AND
    (msgworker_message.mw_urgent > %s OR msgworker_message.msg_id > %s) ORDER BY msgworker_message.mw_urgent,
    msgworker_message.msg_id
 LIMIT %s;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6,
    msgworker_message.instance_type AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1
    END AS head, msgworker_message.mw_urgent AS r
FROM msgworker_message FORCE INDEX (msgworker_message_urgent)
WHERE msgworker_message.mw_urgent IS NOT NULL ORDER BY msgworker_message.mw_urgent, msgworker_message.msg_id
 LIMIT %s;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6,
    msgworker_message.instance_type AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1
    END AS head, msgworker_message.mw_urgent AS r
FROM msgworker_message FORCE INDEX (msgworker_message_urgent)
WHERE msgworker_message.mw_urgent IS NOT NULL AND msgworker_message.mw_urgent >= %s AND
    (msgworker_message.mw_urgent > %s OR msgworker_message.msg_id > %s) ORDER BY msgworker_message.mw_urgent,
    msgworker_message.msg_id
 LIMIT %s;

-- due_and_ranked: `candidates.due_after`, and `ranked` of up to `most` rows, in one statement
(SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6,
    CAST(msgworker_message.available_at AS CHAR) AS h7, 0 AS ranked, 1 AS head, 0 - CASE WHEN
    (msgworker_message.priority BETWEEN 1 AND 2147483647) THEN msgworker_message.priority ELSE 0 END AS r
FROM msgworker_message FORCE INDEX (msgworker_message_due)
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= utc_timestamp(6) ORDER BY msgworker_message.available_at,
    msgworker_message.msg_id
 LIMIT %s) UNION ALL (SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1,
    msgworker_message.status AS h2, coalesce(msgworker_message.error_try_times, 0) AS h3,
    coalesce(msgworker_message.crash_times, 0) AS h4, msgworker_message.topic AS h5, CASE WHEN
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE
    0 END AS h6, CAST(msgworker_message.available_at AS CHAR) AS h7, 1 AS ranked, CASE WHEN
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1
    END AS head, msgworker_message.mw_urgent AS r
FROM msgworker_message FORCE INDEX (msgworker_message_urgent)
WHERE msgworker_message.mw_urgent IS NOT NULL ORDER BY msgworker_message.mw_urgent, msgworker_message.msg_id
 LIMIT %s);
(SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE 0 END AS h6,
    CAST(msgworker_message.available_at AS CHAR) AS h7, 0 AS ranked, 1 AS head, 0 - CASE WHEN
    (msgworker_message.priority BETWEEN 1 AND 2147483647) THEN msgworker_message.priority ELSE 0 END AS r
FROM msgworker_message FORCE INDEX (msgworker_message_due)
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= utc_timestamp(6) AND msgworker_message.available_at >= %s AND
    (msgworker_message.available_at > %s OR msgworker_message.msg_id > %s) ORDER BY
    msgworker_message.available_at, msgworker_message.msg_id
 LIMIT %s) UNION ALL (SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1,
    msgworker_message.status AS h2, coalesce(msgworker_message.error_try_times, 0) AS h3,
    coalesce(msgworker_message.crash_times, 0) AS h4, msgworker_message.topic AS h5, CASE WHEN
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= utc_timestamp(6)) THEN 1 ELSE
    0 END AS h6, CAST(msgworker_message.available_at AS CHAR) AS h7, 1 AS ranked, CASE WHEN
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1
    END AS head, msgworker_message.mw_urgent AS r
FROM msgworker_message FORCE INDEX (msgworker_message_urgent)
WHERE msgworker_message.mw_urgent IS NOT NULL ORDER BY msgworker_message.mw_urgent, msgworker_message.msg_id
 LIMIT %s);

-- due_in: Seconds until the first message becomes due, if that is within `linger` seconds, or within
--     `retry_linger` where it has failed before; else None
SELECT (SELECT (TIMESTAMPDIFF(MICROSECOND, w.available_at, utc_timestamp(6)) / 1000000.0) AS anon_1
FROM msgworker_message AS w FORCE INDEX (msgworker_message_due)
WHERE (w.status = 0 OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND (w.status IN (0, 1) OR
    w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at > utc_timestamp(6) AND NOT
    (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = w.object_id AND e.msg_id < w.msg_id))) AND NOT (w.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS r FORCE INDEX (msgworker_message_guard)
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = w.object_id))) AND w.available_at <= (utc_timestamp(6) +
    INTERVAL ROUND(%s * 1000000) MICROSECOND) ORDER BY w.available_at
 LIMIT 1) AS d0, (SELECT (TIMESTAMPDIFF(MICROSECOND, w.available_at, utc_timestamp(6)) / 1000000.0) AS anon_2
FROM msgworker_message AS w FORCE INDEX (msgworker_message_due)
WHERE (w.status = 0 OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND (w.status IN (0, 1) OR
    w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at > utc_timestamp(6) AND NOT
    (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = w.object_id AND e.msg_id < w.msg_id))) AND NOT (w.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS r FORCE INDEX (msgworker_message_guard)
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = w.object_id))) AND w.available_at <= (utc_timestamp(6) +
    INTERVAL ROUND(%s * 1000000) MICROSECOND) AND w.status = -1 AND coalesce(w.error_try_times, 0) > 0 ORDER
    BY w.available_at
 LIMIT 1) AS d1;
SELECT (SELECT (TIMESTAMPDIFF(MICROSECOND, w.available_at, utc_timestamp(6)) / 1000000.0) AS anon_1
FROM msgworker_message AS w FORCE INDEX (msgworker_message_due)
WHERE (w.status = 0 OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND (w.status IN (0, 1) OR
    w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at > utc_timestamp(6) AND
    (CONVERT(coalesce(w.topic, 'default') USING utf8mb4) COLLATE utf8mb4_0900_bin) IN (/* each of mw_topics
    */) AND ((CONVERT(coalesce(w.topic, 'default') USING utf8mb4) COLLATE utf8mb4_0900_bin) NOT IN (/* each of
    mw_paused */)) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = w.object_id AND e.msg_id < w.msg_id))) AND NOT (w.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS r FORCE INDEX (msgworker_message_guard)
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = w.object_id))) AND w.available_at <= (utc_timestamp(6) +
    INTERVAL ROUND(%s * 1000000) MICROSECOND) ORDER BY w.available_at
 LIMIT 1) AS d0, (SELECT (TIMESTAMPDIFF(MICROSECOND, w.available_at, utc_timestamp(6)) / 1000000.0) AS anon_2
FROM msgworker_message AS w FORCE INDEX (msgworker_message_due)
WHERE (w.status = 0 OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND (w.status IN (0, 1) OR
    w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at > utc_timestamp(6) AND
    (CONVERT(coalesce(w.topic, 'default') USING utf8mb4) COLLATE utf8mb4_0900_bin) IN (/* each of mw_topics
    */) AND ((CONVERT(coalesce(w.topic, 'default') USING utf8mb4) COLLATE utf8mb4_0900_bin) NOT IN (/* each of
    mw_paused */)) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = w.object_id AND e.msg_id < w.msg_id))) AND NOT (w.object_id IS NOT NULL AND (EXISTS
    (SELECT 1
FROM msgworker_message AS r FORCE INDEX (msgworker_message_guard)
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = w.object_id))) AND w.available_at <= (utc_timestamp(6) +
    INTERVAL ROUND(%s * 1000000) MICROSECOND) AND w.status = -1 AND coalesce(w.error_try_times, 0) > 0 ORDER
    BY w.available_at
 LIMIT 1) AS d1;

-- ==================== limits: Limits of topics over all instances: what is recorded, and what is free now

-- lock: Lock the limits of a topic until the end of the transaction, and see what is free; None if another
--     transaction has them locked, or they were removed
SELECT msgworker_limit.max_running, msgworker_limit.rate_starts, msgworker_limit.rate_seconds,
    msgworker_limit.burst, msgworker_limit.full_us, (TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00',
    utc_timestamp(6)) DIV 1000) AS anon_1
FROM msgworker_limit
WHERE msgworker_limit.table_name = %s AND msgworker_limit.topic = %s FOR UPDATE SKIP LOCKED;

-- take: Take so many tokens
UPDATE msgworker_limit SET full_us=%s WHERE msgworker_limit.table_name = %s AND msgworker_limit.topic = %s;

-- declare: Record the limits of a topic, if what stands there is `seen` (None = nothing); whether it was
INSERT INTO msgworker_limit (table_name, topic, max_running, rate_starts, rate_seconds, burst, declared_by,
    declared_at) VALUES (%s, %s, %s, %s, %s, %s, %s, utc_timestamp(6));
UPDATE msgworker_limit SET max_running=%s, rate_starts=%s, rate_seconds=%s, burst=%s,
    version=(msgworker_limit.version + %s), declared_by=%s, declared_at=utc_timestamp(6) WHERE
    msgworker_limit.table_name = %s AND msgworker_limit.topic = %s AND msgworker_limit.version = %s;

-- remove: Forget the limits of a topic; False if it has none
DELETE FROM msgworker_limit WHERE msgworker_limit.table_name = %s AND msgworker_limit.topic = %s;

-- ==================== claim: Flag candidates, and read the runs behind the flagged heads

-- flag: Flag the candidates that are unchanged since they were read; return the rows won, by msg_id
SELECT msgworker_message.status, msgworker_message.msg_id AS r0, msgworker_message.object_id AS r1,
    msgworker_message.topic AS r2, CASE WHEN (length(CAST(msgworker_message.payload AS CHAR)) <= 16384) THEN
    CAST(msgworker_message.payload AS CHAR) END AS r3, coalesce(msgworker_message.error_try_times, 0) AS r4,
    coalesce(msgworker_message.crash_times, 0) AS r5, coalesce(msgworker_message.later_times, 0) AS r6,
    CAST(msgworker_message.created_at AS CHAR) AS r7, CASE WHEN (length(CAST(msgworker_message.payload AS
    CHAR)) > 16384) THEN length(CAST(msgworker_message.payload AS CHAR)) END AS r8
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= utc_timestamp(6)) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r FORCE INDEX (msgworker_message_guard)
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = msgworker_message.object_id))) ORDER BY
    msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- flag_apart: `flag` in halves, each in its savepoint, down to single rows, so that a refused row affects no
--     other
SELECT msgworker_message.status, msgworker_message.msg_id AS r0, msgworker_message.object_id AS r1,
    msgworker_message.topic AS r2, CASE WHEN (length(CAST(msgworker_message.payload AS CHAR)) <= 16384) THEN
    CAST(msgworker_message.payload AS CHAR) END AS r3, coalesce(msgworker_message.error_try_times, 0) AS r4,
    coalesce(msgworker_message.crash_times, 0) AS r5, coalesce(msgworker_message.later_times, 0) AS r6,
    CAST(msgworker_message.created_at AS CHAR) AS r7, CASE WHEN (length(CAST(msgworker_message.payload AS
    CHAR)) > 16384) THEN length(CAST(msgworker_message.payload AS CHAR)) END AS r8
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= utc_timestamp(6)) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS e FORCE INDEX (msgworker_message_object)
WHERE e.mw_open_object = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT 1
FROM msgworker_message AS r FORCE INDEX (msgworker_message_guard)
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = msgworker_message.object_id))) ORDER BY
    msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- read_runs: The run behind each flagged head: head's msg_id -> its next rows, perhaps empty
SELECT x.p, CASE WHEN (m.status = 0 AND (m.available_at IS NULL OR m.available_at <= utc_timestamp(6)) AND
    coalesce(m.error_try_times, 0) = 0 AND coalesce(m.later_times, 0) = 0 AND m.unique_key IS NULL) THEN 1
    ELSE 0 END AS s, m.msg_id AS r0, m.object_id AS r1, m.topic AS r2, CASE WHEN (length(CAST(m.payload AS
    CHAR)) <= 16384) THEN CAST(m.payload AS CHAR) END AS r3, coalesce(m.error_try_times, 0) AS r4,
    coalesce(m.crash_times, 0) AS r5, coalesce(m.later_times, 0) AS r6, CAST(m.created_at AS CHAR) AS r7, CASE
    WHEN (length(CAST(m.payload AS CHAR)) > 16384) THEN length(CAST(m.payload AS CHAR)) END AS r8
FROM (SELECT %s + 0 AS p, n.msg_id AS i
FROM msgworker_message AS n FORCE INDEX (msgworker_message_object)
WHERE n.mw_open_object = %s ORDER BY n.msg_id
 LIMIT %s) AS x INNER JOIN msgworker_message AS m ON m.msg_id = x.i;
SELECT x.p, CASE WHEN (m.status = 0 AND (m.available_at IS NULL OR m.available_at <= utc_timestamp(6)) AND
    coalesce(m.error_try_times, 0) = 0 AND coalesce(m.later_times, 0) = 0 AND m.unique_key IS NULL) THEN 1
    ELSE 0 END AS s, m.msg_id AS r0, m.object_id AS r1, m.topic AS r2, CASE WHEN (length(CAST(m.payload AS
    CHAR)) <= 16384) THEN CAST(m.payload AS CHAR) END AS r3, coalesce(m.error_try_times, 0) AS r4,
    coalesce(m.crash_times, 0) AS r5, coalesce(m.later_times, 0) AS r6, CAST(m.created_at AS CHAR) AS r7, CASE
    WHEN (length(CAST(m.payload AS CHAR)) > 16384) THEN length(CAST(m.payload AS CHAR)) END AS r8
FROM ((SELECT %s + 0 AS p, n.msg_id AS i
FROM msgworker_message AS n FORCE INDEX (msgworker_message_object)
WHERE n.mw_open_object = %s ORDER BY n.msg_id
 LIMIT %s) UNION ALL /* 48 more such parts */ UNION ALL (SELECT %s + 49 AS p, n.msg_id AS i
FROM msgworker_message AS n FORCE INDEX (msgworker_message_object)
WHERE n.mw_open_object = %s ORDER BY n.msg_id
 LIMIT %s)) AS x INNER JOIN msgworker_message AS m ON m.msg_id = x.i;
SELECT x.p, CASE WHEN (m.status = 0 AND (m.available_at IS NULL OR m.available_at <= utc_timestamp(6)) AND
    coalesce(m.error_try_times, 0) = 0 AND coalesce(m.later_times, 0) = 0 AND m.unique_key IS NULL) THEN 1
    ELSE 0 END AS s, m.msg_id AS r0, m.object_id AS r1, m.topic AS r2, CASE WHEN (length(CAST(m.payload AS
    CHAR)) <= 16384) THEN CAST(m.payload AS CHAR) END AS r3, coalesce(m.error_try_times, 0) AS r4,
    coalesce(m.crash_times, 0) AS r5, coalesce(m.later_times, 0) AS r6, CAST(m.created_at AS CHAR) AS r7, CASE
    WHEN (length(CAST(m.payload AS CHAR)) > 16384) THEN length(CAST(m.payload AS CHAR)) END AS r8
FROM ((SELECT %s + 0 AS p, n.msg_id AS i
FROM msgworker_message AS n FORCE INDEX (msgworker_message_object)
WHERE n.mw_open_object = %s ORDER BY n.msg_id
 LIMIT %s) UNION ALL /* 48 more such parts */ UNION ALL (SELECT %s + 49 AS p, n.msg_id AS i
FROM msgworker_message AS n FORCE INDEX (msgworker_message_object)
WHERE n.mw_open_object = %s ORDER BY n.msg_id
 LIMIT %s)) AS x INNER JOIN msgworker_message AS m ON m.msg_id = x.i;

-- ==================== done: The settle of messages that are done, and the flag's move to the next message of each lane

-- still_mine: Those of `ids` that are flagged by us
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s;

-- ==================== settle: Write outcomes and move the flag, only while the flag is still ours

-- settle: Write a batch of settlements; return the result of each, by its msg_id
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET available_at=CASE WHEN (msgworker_message.status = 1) THEN
    msgworker_message.available_at ELSE NULL END, claimed_at=CASE WHEN (msgworker_message.status = 1) THEN
    msgworker_message.claimed_at ELSE utc_timestamp(6) END, claimed_by=CASE WHEN (msgworker_message.status =
    1) THEN NULL ELSE %s END, finished_at=CASE WHEN (msgworker_message.status = 1) THEN utc_timestamp(6) ELSE
    msgworker_message.finished_at END, status=CASE WHEN (msgworker_message.status = 1) THEN 2 ELSE 1 END WHERE
    msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.msg_id IN (/* each of mw_heads
    */) AND msgworker_message.status = 1 AND msgworker_message.claimed_by = %s OR msgworker_message.msg_id IN
    (/* each of mw_nexts */) AND msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6))) AND 1 ORDER BY msgworker_message.object_id ,
    msgworker_message.msg_id;
SELECT msgworker_message.msg_id
FROM msgworker_message FORCE INDEX (PRIMARY)
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) ORDER BY msgworker_message.msg_id FOR UPDATE;
DELETE FROM msgworker_message USING msgworker_message FORCE INDEX (PRIMARY) WHERE msgworker_message.last_error
    IS NULL AND msgworker_message.job_id IS NULL AND coalesce(msgworker_message.unique_kept, 0) != 1 AND
    msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s;
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=1, available_at=NULL, claimed_by=%s,
    claimed_at=utc_timestamp(6) WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR msgworker_message.available_at
    <= utc_timestamp(6)) AND 1 ORDER BY msgworker_message.object_id , msgworker_message.msg_id;
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=2, claimed_by=NULL, finished_at=utc_timestamp(6)
    WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s;
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=-1, available_at=CASE WHEN (CASE WHEN
    (coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.error_try_times, 0) +
    %s ELSE 3 END >= 3) THEN NULL ELSE (utc_timestamp(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND) END,
    finished_at=CASE WHEN (CASE WHEN (coalesce(msgworker_message.error_try_times, 0) < 3) THEN
    coalesce(msgworker_message.error_try_times, 0) + %s ELSE 3 END >= 3) THEN utc_timestamp(6) END,
    last_error=%s, claimed_by=NULL, error_try_times=CASE WHEN (coalesce(msgworker_message.error_try_times, 0)
    < 3) THEN coalesce(msgworker_message.error_try_times, 0) + %s ELSE 3 END WHERE msgworker_message.msg_id =
    %s AND msgworker_message.status = 1 AND msgworker_message.claimed_by = %s AND
    coalesce(msgworker_message.error_try_times, 0) = %s AND coalesce(msgworker_message.later_times, 0) = %s;
SELECT msgworker_message.msg_id, CASE WHEN msgworker_message.claimed_at BETWEEN '0001-01-02' AND '9999-12-30'
    THEN msgworker_message.claimed_at END AS anon_1, (SELECT max(l.try_no) AS max_1
FROM msgworker_try AS l
WHERE l.table_name = %s AND l.msg_id = msgworker_message.msg_id) AS anon_2, utc_timestamp(6) AS mw_now
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */);
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=-1, available_at=NULL, finished_at=utc_timestamp(6),
    last_error=%s, claimed_by=NULL, error_try_times=3 WHERE msgworker_message.msg_id = %s AND
    msgworker_message.status = 1 AND msgworker_message.claimed_by = %s AND
    coalesce(msgworker_message.error_try_times, 0) = %s AND coalesce(msgworker_message.later_times, 0) = %s;
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=CASE WHEN
    (coalesce(msgworker_message.error_try_times, 0) > 0) THEN -1 ELSE 0 END, available_at=(utc_timestamp(6) +
    INTERVAL ROUND(%s * 1000000) MICROSECOND), later_times=(coalesce(msgworker_message.later_times, 0) + %s),
    last_error=%s, claimed_by=NULL WHERE msgworker_message.msg_id = %s AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s AND coalesce(msgworker_message.error_try_times, 0) = %s AND
    coalesce(msgworker_message.later_times, 0) = %s;
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=CASE WHEN
    (coalesce(msgworker_message.error_try_times, 0) > 0) THEN -1 ELSE 0 END, available_at=NULL,
    claimed_by=NULL WHERE msgworker_message.msg_id = %s AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s AND coalesce(msgworker_message.error_try_times, 0) = %s AND
    coalesce(msgworker_message.later_times, 0) = %s;

-- settle_batch: Write that all messages are done; return the next ones that are flagged by us now
SELECT msgworker_message.msg_id
FROM msgworker_message FORCE INDEX (PRIMARY)
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) ORDER BY msgworker_message.msg_id FOR UPDATE;
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=2, claimed_by=NULL, finished_at=utc_timestamp(6)
    WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s;
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=2, claimed_by=NULL, finished_at=utc_timestamp(6)
    WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 0 AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= utc_timestamp(6)) AND
    coalesce(msgworker_message.error_try_times, 0) = 0;
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=1, available_at=NULL, claimed_by=%s,
    claimed_at=utc_timestamp(6) WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR msgworker_message.available_at
    <= utc_timestamp(6)) AND 1 ORDER BY msgworker_message.object_id , msgworker_message.msg_id;
DELETE FROM msgworker_message USING msgworker_message FORCE INDEX (PRIMARY) WHERE msgworker_message.last_error
    IS NULL AND msgworker_message.job_id IS NULL AND coalesce(msgworker_message.unique_kept, 0) != 1 AND
    msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s;
DELETE FROM msgworker_message USING msgworker_message FORCE INDEX (PRIMARY) WHERE msgworker_message.last_error
    IS NULL AND msgworker_message.job_id IS NULL AND coalesce(msgworker_message.unique_kept, 0) != 1 AND
    msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 0 AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= utc_timestamp(6)) AND
    coalesce(msgworker_message.error_try_times, 0) = 0;

-- settle_one: Write one settlement in the caller's transaction; LOST writes nothing at all
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET available_at=CASE WHEN (msgworker_message.status = 1) THEN
    msgworker_message.available_at ELSE NULL END, claimed_at=CASE WHEN (msgworker_message.status = 1) THEN
    msgworker_message.claimed_at ELSE utc_timestamp(6) END, claimed_by=CASE WHEN (msgworker_message.status =
    1) THEN NULL ELSE %s END, finished_at=CASE WHEN (msgworker_message.status = 1) THEN utc_timestamp(6) ELSE
    msgworker_message.finished_at END, status=CASE WHEN (msgworker_message.status = 1) THEN 2 ELSE 1 END WHERE
    msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.msg_id IN (/* each of mw_heads
    */) AND msgworker_message.status = 1 AND msgworker_message.claimed_by = %s OR msgworker_message.msg_id IN
    (/* each of mw_nexts */) AND msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= utc_timestamp(6))) AND 1 ORDER BY msgworker_message.object_id ,
    msgworker_message.msg_id;
SELECT msgworker_message.msg_id
FROM msgworker_message FORCE INDEX (PRIMARY)
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) ORDER BY msgworker_message.msg_id FOR UPDATE;
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=2, claimed_by=NULL, finished_at=utc_timestamp(6)
    WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s;
UPDATE msgworker_message FORCE INDEX (PRIMARY) SET status=1, available_at=NULL, claimed_by=%s,
    claimed_at=utc_timestamp(6) WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR msgworker_message.available_at
    <= utc_timestamp(6)) AND 1 ORDER BY msgworker_message.object_id , msgworker_message.msg_id;
DELETE FROM msgworker_message USING msgworker_message FORCE INDEX (PRIMARY) WHERE msgworker_message.last_error
    IS NULL AND msgworker_message.job_id IS NULL AND coalesce(msgworker_message.unique_kept, 0) != 1 AND
    msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s;

-- ==================== items: The item table: done items of a fan-out do not run again, and what they send is sent with their records

-- shown: What is recorded of a message, with the first `limit` items; None if nothing is
SELECT w.s, count(*) AS count_1
FROM (SELECT msgworker_item.status AS s, msgworker_item.finished_at AS at, msgworker_item.total AS n
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s
 LIMIT %s) AS w GROUP BY w.s;

-- find: Recorded items by key, behind the key `after`; at most bounded.SCAN are read at once
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s AND msgworker_item.item_key > %s ORDER BY
    msgworker_item.item_key
 LIMIT %s;
SELECT msgworker_item.item_key
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s AND msgworker_item.item_key > %s ORDER BY
    msgworker_item.item_key
 LIMIT %s, %s;
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s AND msgworker_item.item_key > %s AND
    msgworker_item.status = 2 ORDER BY msgworker_item.item_key
 LIMIT %s;
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s AND msgworker_item.item_key > %s AND
    msgworker_item.status != 2 ORDER BY msgworker_item.item_key
 LIMIT %s;

-- count: How many records the message has, bounded.SCAN at most; at a first try it has none
SELECT count(*) AS count_1
FROM (SELECT msgworker_item.tries AS tries
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s
 LIMIT %s) AS w;

-- known: The records of these keys, those that are there
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s AND msgworker_item.item_key IN (/* each of
    b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s AND msgworker_item.item_key IN (/* each of
    b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s AND msgworker_item.item_key IN (/* each of
    b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s AND msgworker_item.item_key IN (/* each of
    b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = %s AND msgworker_item.msg_id = %s AND msgworker_item.item_key IN (/* each of
    b_keys */);

-- record: Write records, and insert what they send, in the caller's transaction; False, and nothing is written,
--     if the claim is lost
SELECT utc_timestamp(6) AS at
FROM msgworker_message
WHERE msgworker_message.msg_id = %s AND msgworker_message.status = 1 AND msgworker_message.claimed_by = %s
    LOCK IN SHARE MODE;

-- record_one: Write one record beside the item's own writes, in their transaction
SELECT utc_timestamp(6) AS at
FROM msgworker_message
WHERE msgworker_message.msg_id = %s AND msgworker_message.status = 1 AND msgworker_message.claimed_by = %s
    LOCK IN SHARE MODE;

-- ==================== recover: Give back what a dead instance had flagged

-- flagged_by: The msg_ids above `after` flagged by an instance, lowest first, at most `limit`
SELECT f.i
FROM (SELECT a.msg_id + 0 AS i
FROM msgworker_message AS a FORCE INDEX (msgworker_message_guard)
WHERE (CASE WHEN (a.status = 1) THEN a.object_id END >= '' OR CASE WHEN (a.status = 1) THEN a.object_id END <
    '') AND a.claimed_by = %s AND a.msg_id + 0 > %s UNION ALL SELECT b.msg_id + 0 AS i
FROM msgworker_message AS b FORCE INDEX (msgworker_message_object)
WHERE b.mw_open_object = '~msgworker.running~' AND b.claimed_by = %s AND b.msg_id + 0 > %s) AS f ORDER BY f.i
 LIMIT %s;

-- owners: All instance ids in running rows
SELECT DISTINCT f.o
FROM (SELECT a.claimed_by AS o
FROM msgworker_message AS a FORCE INDEX (msgworker_message_guard)
WHERE (CASE WHEN (a.status = 1) THEN a.object_id END >= '' OR CASE WHEN (a.status = 1) THEN a.object_id END <
    '') AND a.claimed_by IS NOT NULL UNION ALL SELECT b.claimed_by AS o
FROM msgworker_message AS b FORCE INDEX (msgworker_message_object)
WHERE b.mw_open_object = '~msgworker.running~' AND b.claimed_by IS NOT NULL) AS f;

-- recover: Give these rows back, each with a try counted; return how many were still flagged by `dead_id` and
--     free to be changed: neither settled meanwhile nor locked
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s ORDER BY msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- release: Release our own rows without a try; return how many were still ours
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = %s ORDER BY msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- foreign: (msg_id, tries) of rows flagged without an owner, lowest first, at most `limit`, above the msg_id
--     `after`
SELECT f.i, f.n
FROM (SELECT a.msg_id + 0 AS i, coalesce(a.error_try_times, 0) AS n
FROM msgworker_message AS a FORCE INDEX (msgworker_message_guard)
WHERE (CASE WHEN (a.status = 1) THEN a.object_id END >= '' OR CASE WHEN (a.status = 1) THEN a.object_id END <
    '') AND a.claimed_by IS NULL AND a.msg_id + 0 > %s UNION ALL SELECT b.msg_id + 0 AS i,
    coalesce(b.error_try_times, 0) AS n
FROM msgworker_message AS b FORCE INDEX (msgworker_message_object)
WHERE b.mw_open_object = '~msgworker.running~' AND b.claimed_by IS NULL AND b.msg_id + 0 > %s) AS f ORDER BY
    f.i
 LIMIT %s;
SELECT f.i, f.n
FROM (SELECT a.msg_id + 0 AS i, coalesce(a.error_try_times, 0) AS n
FROM msgworker_message AS a FORCE INDEX (msgworker_message_guard)
WHERE (CASE WHEN (a.status = 1) THEN a.object_id END >= '' OR CASE WHEN (a.status = 1) THEN a.object_id END <
    '') AND a.claimed_by IS NULL AND a.msg_id + 0 > %s AND coalesce(a.claimed_at, a.created_at) <= %s UNION
    ALL SELECT b.msg_id + 0 AS i, coalesce(b.error_try_times, 0) AS n
FROM msgworker_message AS b FORCE INDEX (msgworker_message_object)
WHERE b.mw_open_object = '~msgworker.running~' AND b.claimed_by IS NULL AND b.msg_id + 0 > %s AND
    coalesce(b.claimed_at, b.created_at) <= %s) AS f ORDER BY f.i
 LIMIT %s;

-- undated: The rows flagged without an owner whose age is unknown
SELECT f.i, f.n
FROM (SELECT a.msg_id + 0 AS i, coalesce(a.error_try_times, 0) AS n
FROM msgworker_message AS a FORCE INDEX (msgworker_message_guard)
WHERE (CASE WHEN (a.status = 1) THEN a.object_id END >= '' OR CASE WHEN (a.status = 1) THEN a.object_id END <
    '') AND a.claimed_by IS NULL AND coalesce(a.claimed_at, a.created_at) IS NULL UNION ALL SELECT b.msg_id +
    0 AS i, coalesce(b.error_try_times, 0) AS n
FROM msgworker_message AS b FORCE INDEX (msgworker_message_object)
WHERE b.mw_open_object = '~msgworker.running~' AND b.claimed_by IS NULL AND coalesce(b.claimed_at,
    b.created_at) IS NULL) AS f ORDER BY f.i
 LIMIT %s;

-- recover_foreign: Give these rows of a foreign consumer back, each with a try counted; return how many were
--     still flagged without an owner and with so many tries
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by IS NULL AND coalesce(msgworker_message.error_try_times, 0) = %s ORDER BY
    msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- ==================== lease: Expiring rights to a name

-- register: Take a new lease
INSERT INTO msgworker_lease (name, kind, term, expires_at, started_at, renewed_at, label, serves) VALUES (%s,
    %s, 0, (utc_timestamp(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND), utc_timestamp(6), utc_timestamp(6),
    %s, %s);

-- is_kept: Whether a lease just registered reads as it was written: not cut, padded or changed
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = %s;

-- renew: Extend our lease; False = it was taken over, or is over
UPDATE msgworker_lease SET term=(msgworker_lease.term + %s), expires_at=(utc_timestamp(6) + INTERVAL ROUND(%s
    * 1000000) MICROSECOND), renewed_at=utc_timestamp(6), in_hand=%s, serves=%s WHERE msgworker_lease.name =
    %s AND msgworker_lease.taken_by IS NULL AND msgworker_lease.expires_at > utc_timestamp(6);
UPDATE msgworker_lease SET term=(msgworker_lease.term + %s), expires_at=(utc_timestamp(6) + INTERVAL ROUND(%s
    * 1000000) MICROSECOND), renewed_at=utc_timestamp(6), in_hand=%s WHERE msgworker_lease.name = %s AND
    msgworker_lease.taken_by IS NULL AND msgworker_lease.expires_at > utc_timestamp(6);

-- read_all: All leases of a kind, by name
SELECT msgworker_lease.name, msgworker_lease.kind, msgworker_lease.term, msgworker_lease.taken_by, CASE WHEN
    (msgworker_lease.expires_at > utc_timestamp(6)) THEN %s ELSE %s END AS anon_1, CASE WHEN
    (msgworker_lease.renewed_at > (utc_timestamp(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND)) THEN %s ELSE
    %s END AS anon_2, msgworker_lease.started_at, msgworker_lease.renewed_at, msgworker_lease.expires_at,
    msgworker_lease.label, msgworker_lease.in_hand, msgworker_lease.serves, (TIMESTAMPDIFF(MICROSECOND,
    msgworker_lease.renewed_at, utc_timestamp(6)) / 1000000.0) AS anon_3
FROM msgworker_lease
WHERE msgworker_lease.kind = %s ORDER BY msgworker_lease.name;

-- take_over: Declare the holder of an expired lease dead; True for the one winner
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = %s FOR UPDATE SKIP LOCKED;

-- restart_ttl: Restart a lease's time from now, after the database's clock was set back (`ahead`): it could not
--     be taken over until the clock reaches its old time
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = %s FOR UPDATE SKIP LOCKED;

-- take_over_live: Declare an instance dead although its lease is live: an operator's decision (`release`)
UPDATE msgworker_lease SET term=(msgworker_lease.term + %s), taken_by=%s, expires_at=(utc_timestamp(6) +
    INTERVAL ROUND(%s * 1000000) MICROSECOND), renewed_at=utc_timestamp(6) WHERE msgworker_lease.name = %s AND
    msgworker_lease.taken_by IS NULL;

-- leave: Expire a lease that we took over: the next recovery continues with it
UPDATE msgworker_lease SET term=(msgworker_lease.term + %s), expires_at=utc_timestamp(6) WHERE
    msgworker_lease.name = %s AND msgworker_lease.taken_by = %s;

-- drop: Delete a lease: our own (taken_by None) or one that we took over; a locked one is left
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = %s FOR UPDATE SKIP LOCKED;

-- ==================== schedules: Schedules: a row each in `msgworker_schedule`, which any instance may fire

-- look: The time of the database, and all schedules of this message table, by name
SELECT utc_timestamp(6) AS mw_now, msgworker_schedule.name, msgworker_schedule.spec,
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
WHERE msgworker_schedule.table_name = %s ORDER BY msgworker_schedule.name;
SELECT utc_timestamp(6) AS mw_now;

-- insert: Insert a schedule, by column
INSERT INTO msgworker_schedule (table_name, name, spec, time_zone, topic, object_id, payload, catch_up,
    next_at, declared_by, declared_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, utc_timestamp(6));

-- change: Change the columns in `values`, if the row is as it was seen; False if it is not
UPDATE msgworker_schedule SET spec=%s, time_zone=%s, topic=%s, object_id=%s, payload=%s, catch_up=%s,
    next_at=%s, last_at=%s, version=(msgworker_schedule.version + %s), declared_by=%s WHERE
    msgworker_schedule.table_name = %s AND msgworker_schedule.name = %s AND msgworker_schedule.version = %s;

-- fire: Send the messages of one or more ticks and move to `next_at`, if the row is as it was seen; None, and
--     nothing is sent, if it is not: another instance has fired them
UPDATE msgworker_schedule SET next_at=%s, last_at=%s, version=(msgworker_schedule.version + %s) WHERE
    msgworker_schedule.table_name = %s AND msgworker_schedule.name = %s AND msgworker_schedule.version = %s;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, scheduled_for)
    VALUES (%s, %s, 0, 0, %s, %s, %s);
UPDATE msgworker_schedule SET last_at=%s, skipped=(msgworker_schedule.skipped + %s),
    replaced=(msgworker_schedule.replaced + %s) WHERE msgworker_schedule.table_name = %s AND
    msgworker_schedule.name = %s;

-- delete: Delete a schedule, if the row is as it was seen
DELETE FROM msgworker_schedule WHERE msgworker_schedule.table_name = %s AND msgworker_schedule.name = %s AND
    msgworker_schedule.version = %s;

-- tick_of: For which instant a schedule has sent a message; None for other messages, and for a value that is no
--     instant
SELECT CAST(msgworker_message.scheduled_for AS CHAR) AS anon_1
FROM msgworker_message
WHERE msgworker_message.msg_id = %s;

-- ==================== jobs: Jobs: messages that belong together, and the message that is sent when all of them have ended

-- open_job: Insert a job; return its id
INSERT INTO msgworker_job (table_name, name, on_complete, object_id, opened_by, payload, on_dead, opened_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, utc_timestamp(6));

-- lock_open: A job, whose row is locked, shared, until the end of the transaction; None if there is no such one
SELECT msgworker_job.name, msgworker_job.sealed_at
FROM msgworker_job
WHERE msgworker_job.job_id = %s AND msgworker_job.table_name = %s LOCK IN SHARE MODE;

-- seal: Close a job to further senders; False if it was sealed, or is not there
UPDATE msgworker_job SET sealed_at=utc_timestamp(6) WHERE msgworker_job.job_id = %s AND
    msgworker_job.table_name = %s AND msgworker_job.sealed_at IS NULL;

-- job_of: The job of a message; None if it belongs to none
SELECT msgworker_message.job_id
FROM msgworker_message
WHERE msgworker_message.msg_id = %s;

-- ended: The sealed jobs of which nothing is unfinished, that have not completed, among the next LOOKED_AT
--     behind `after`; and where to go on, None at the end
SELECT msgworker_job.job_id, CASE WHEN ((EXISTS (SELECT 1
FROM msgworker_message AS j0 FORCE INDEX (msgworker_message_job)
WHERE j0.job_id = msgworker_job.job_id AND j0.mw_job_status = 0)) OR (EXISTS (SELECT 1
FROM msgworker_message AS j1 FORCE INDEX (msgworker_message_job)
WHERE j1.job_id = msgworker_job.job_id AND j1.mw_job_status = 1)) OR (EXISTS (SELECT 1
FROM msgworker_message AS j2 FORCE INDEX (msgworker_message_job)
WHERE j2.job_id = msgworker_job.job_id AND j2.mw_job_status = -1 AND (coalesce(j2.error_try_times, 0) < 3 OR
    msgworker_job.on_dead = 'wait' AND msgworker_job.cancelled_at IS NULL AND NOT (j2.status = -1 AND
    j2.last_error IS NOT NULL AND (((CONVERT(j2.last_error USING utf8mb4) COLLATE utf8mb4_0900_bin) LIKE
    concat(%s, '%%') ESCAPE '/') OR ((CONVERT(j2.last_error USING utf8mb4) COLLATE utf8mb4_0900_bin) LIKE
    concat(%s, '%%') ESCAPE '/'))))))) THEN 0 ELSE 1 END AS anon_1
FROM msgworker_job
WHERE msgworker_job.table_name = %s AND msgworker_job.sealed_at IS NOT NULL AND msgworker_job.completed_at IS
    NULL AND msgworker_job.job_id > %s ORDER BY msgworker_job.job_id
 LIMIT 200;

-- cancel: Seal a job, and send no message when it has ended; False if that is so, or it has completed
UPDATE msgworker_job SET sealed_at=coalesce(msgworker_job.sealed_at, utc_timestamp(6)),
    cancelled_at=utc_timestamp(6) WHERE msgworker_job.job_id = %s AND msgworker_job.table_name = %s AND
    msgworker_job.completed_at IS NULL AND msgworker_job.cancelled_at IS NULL;

-- pause: Let no message of a job start; False if that is so, or it has completed
UPDATE msgworker_job SET paused_at=utc_timestamp(6), paused_by=%s, paused_reason=%s WHERE msgworker_job.job_id
    = %s AND msgworker_job.table_name = %s AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at
    IS NULL;

-- resume: Let them start again; False if it was not paused
UPDATE msgworker_job SET paused_at=%s, paused_by=%s, paused_reason=%s WHERE msgworker_job.job_id = %s AND
    msgworker_job.table_name = %s AND msgworker_job.paused_at IS NOT NULL;

-- forget: Delete the jobs that have completed before this instant and have no message left, among the next
--     LOOKED_AT behind `after`; returns where to go on, None at the end
SELECT msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = %s AND msgworker_job.completed_at < %s AND msgworker_job.job_id > %s ORDER BY
    msgworker_job.job_id
 LIMIT %s;

-- complete: Complete a job and send its message, if nothing of it is unfinished and no other has done so
SELECT msgworker_job.name, msgworker_job.on_complete, msgworker_job.object_id, msgworker_job.payload,
    msgworker_job.cancelled_at
FROM msgworker_job
WHERE msgworker_job.job_id = %s AND msgworker_job.table_name = %s AND msgworker_job.sealed_at IS NOT NULL AND
    msgworker_job.completed_at IS NULL FOR UPDATE SKIP LOCKED;

-- counts: How many messages of a job wait, run, are done and dead, up to `most` of each; "retrying": how many of
--     those that wait have failed; "again": those and edited ones (`Tables.untried`)
SELECT g.n, g.a, g.r, (SELECT count(*) AS count_1
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_1 FORCE INDEX (msgworker_message_job)
WHERE msgworker_message_1.job_id = %s AND msgworker_message_1.mw_job_status = 0
 LIMIT 5) AS anon_2) AS anon_1, (SELECT count(*) AS count_2
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_2 FORCE INDEX (msgworker_message_job)
WHERE msgworker_message_2.job_id = %s AND msgworker_message_2.mw_job_status = 1
 LIMIT 5) AS anon_4) AS anon_3, (SELECT count(*) AS count_3
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_3 FORCE INDEX (msgworker_message_job)
WHERE msgworker_message_3.job_id = %s AND msgworker_message_3.mw_job_status = 2
 LIMIT 5) AS anon_6) AS anon_5
FROM (SELECT count(*) AS n, sum(f.a) AS a, sum(f.r) AS r
FROM (SELECT CASE WHEN (coalesce(msgworker_message_4.error_try_times, 0) < 3) THEN 1 ELSE 0 END AS a, CASE
    WHEN (msgworker_message_4.status = -1 AND coalesce(msgworker_message_4.error_try_times, 0) = 0) THEN 0
    ELSE CASE WHEN (coalesce(msgworker_message_4.error_try_times, 0) < 3) THEN 1 ELSE 0 END END AS r
FROM msgworker_message AS msgworker_message_4 FORCE INDEX (msgworker_message_job)
WHERE msgworker_message_4.job_id = %s AND msgworker_message_4.mw_job_status = -1
 LIMIT 100000) AS f) AS g;
SELECT g.n, g.a, g.r, (SELECT count(*) AS count_1
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_1 FORCE INDEX (msgworker_message_job)
WHERE msgworker_message_1.job_id = %s AND msgworker_message_1.mw_job_status = 0
 LIMIT 5) AS anon_2) AS anon_1, (SELECT count(*) AS count_2
FROM (SELECT 1 AS one
FROM msgworker_message AS msgworker_message_2 FORCE INDEX (msgworker_message_job)
WHERE msgworker_message_2.job_id = %s AND msgworker_message_2.mw_job_status = 1
 LIMIT 5) AS anon_4) AS anon_3
FROM (SELECT count(*) AS n, sum(f.a) AS a, sum(f.r) AS r
FROM (SELECT CASE WHEN (coalesce(msgworker_message_3.error_try_times, 0) < 3) THEN 1 ELSE 0 END AS a, CASE
    WHEN (msgworker_message_3.status = -1 AND coalesce(msgworker_message_3.error_try_times, 0) = 0) THEN 0
    ELSE CASE WHEN (coalesce(msgworker_message_3.error_try_times, 0) < 3) THEN 1 ELSE 0 END END AS r
FROM msgworker_message AS msgworker_message_3 FORCE INDEX (msgworker_message_job)
WHERE msgworker_message_3.job_id = %s AND msgworker_message_3.mw_job_status = -1
 LIMIT 100000) AS f) AS g;

-- given_up: How many messages of a job are dead and not discarded, among its first DEAD_LOOKED_AT failed ones
SELECT count(*) AS count_1, sum(d.d) AS sum_1
FROM (SELECT CASE WHEN (coalesce(msgworker_message_1.error_try_times, 0) >= 3 AND NOT
    (msgworker_message_1.status = -1 AND msgworker_message_1.last_error IS NOT NULL AND
    (((CONVERT(msgworker_message_1.last_error USING utf8mb4) COLLATE utf8mb4_0900_bin) LIKE concat(%s, '%%')
    ESCAPE '/') OR ((CONVERT(msgworker_message_1.last_error USING utf8mb4) COLLATE utf8mb4_0900_bin) LIKE
    concat(%s, '%%') ESCAPE '/')))) THEN 1 ELSE 0 END AS d
FROM msgworker_message AS msgworker_message_1 FORCE INDEX (msgworker_message_job)
WHERE msgworker_message_1.job_id = %s AND msgworker_message_1.mw_job_status = -1
 LIMIT %s) AS d;

-- awaited: How many of these an open job waits for (on_dead="wait"), and others do not
SELECT 1
FROM msgworker_job
WHERE msgworker_job.job_id = %s AND msgworker_job.table_name = %s AND msgworker_job.completed_at IS NULL AND
    msgworker_job.cancelled_at IS NULL AND msgworker_job.on_dead = 'wait';

-- ==================== locks: Locks with tokens, and the dealing of messages to instance types

-- undealt: Messages without an instance type, or with this one, that may be claimed, oldest first; behind
--     `after`
SELECT msgworker_message.msg_id, msgworker_message.object_id
FROM msgworker_message FORCE INDEX (msgworker_message_flag)
WHERE msgworker_message.instance_type IS NULL AND msgworker_message.mw_open_object IS NOT NULL AND
    (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) ORDER BY msgworker_message.msg_id
 LIMIT %s;
SELECT msgworker_message.msg_id, msgworker_message.object_id
FROM msgworker_message FORCE INDEX (msgworker_message_flag)
WHERE msgworker_message.instance_type = %s AND msgworker_message.mw_open_object IS NOT NULL AND
    (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) ORDER BY msgworker_message.msg_id
 LIMIT %s;

-- flags: The flags of unfinished messages, and of how many each
SELECT msgworker_message.instance_type, count(*) AS count_1
FROM msgworker_message FORCE INDEX (msgworker_message_flag)
WHERE msgworker_message.instance_type IS NOT NULL AND msgworker_message.mw_open_object IS NOT NULL GROUP BY
    msgworker_message.instance_type;

-- flags_of: The flag of the first unfinished message of each object that has one
SELECT msgworker_message.object_id, msgworker_message.instance_type
FROM msgworker_message FORCE INDEX (msgworker_message_object)
WHERE msgworker_message.mw_open_object IN (/* each of objects */) AND msgworker_message.instance_type IS NOT
    NULL ORDER BY msgworker_message.msg_id;
SELECT msgworker_message.object_id, msgworker_message.instance_type
FROM msgworker_message FORCE INDEX (msgworker_message_object)
WHERE msgworker_message.mw_open_object IN (/* each of objects */) AND msgworker_message.instance_type IS NOT
    NULL ORDER BY msgworker_message.msg_id;
SELECT msgworker_message.object_id, msgworker_message.instance_type
FROM msgworker_message FORCE INDEX (msgworker_message_object)
WHERE msgworker_message.mw_open_object IN (/* each of objects */) AND msgworker_message.instance_type IS NOT
    NULL ORDER BY msgworker_message.msg_id;

-- deal: Give messages that still have no flag this one; how many that were
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type IS NULL FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=%s WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type IS NULL FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=%s WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type IS NULL FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=%s WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL;

-- take_back: Remove this flag from messages that still have it; how many that were
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type = %s FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=%s WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type = %s;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type = %s FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=%s WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type = %s;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type = %s FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=%s WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type = %s;

-- there: Those of the names that have their rows
SELECT msgworker_lock.name
FROM msgworker_lock
WHERE msgworker_lock.name IN (/* each of mw_names */);

-- acquire: Take those of some locks that are free or expired, in one statement; name -> new token
UPDATE msgworker_lock SET owner=%s, token=(msgworker_lock.token + %s), claim_id=%s,
    since_ms=(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000),
    expires_ms=((TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000) + %s) WHERE
    msgworker_lock.name IN (/* each of mw_names */) AND (msgworker_lock.owner IS NULL OR
    msgworker_lock.expires_ms <= (TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV
    1000));
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = %s AND msgworker_lock.expires_ms > (TIMESTAMPDIFF(MICROSECOND, '1970-01-01
    00:00:00', utc_timestamp(6)) DIV 1000) AND msgworker_lock.claim_id = %s;

-- acquired: What an acquire has got and still holds: name -> token
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = %s AND msgworker_lock.expires_ms > (TIMESTAMPDIFF(MICROSECOND, '1970-01-01
    00:00:00', utc_timestamp(6)) DIV 1000) AND msgworker_lock.claim_id = %s;

-- renew: Extend a lock from now on; False = it is no longer held under this owner and token, and never will be
UPDATE msgworker_lock SET expires_ms=((TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV
    1000) + %s) WHERE msgworker_lock.name = %s AND msgworker_lock.owner = %s AND msgworker_lock.token = %s AND
    msgworker_lock.expires_ms > (TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000);

-- renew_all: Extend all that an owner holds, in one statement; name -> token of what it holds now
UPDATE msgworker_lock SET expires_ms=((TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV
    1000) + %s) WHERE msgworker_lock.owner = %s AND msgworker_lock.expires_ms > (TIMESTAMPDIFF(MICROSECOND,
    '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000);
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = %s AND msgworker_lock.expires_ms > (TIMESTAMPDIFF(MICROSECOND, '1970-01-01
    00:00:00', utc_timestamp(6)) DIV 1000);

-- release: Free a lock at once; False if it is not held under this owner and token: nothing changes
UPDATE msgworker_lock SET owner=NULL, claim_id=NULL, expires_ms=0 WHERE msgworker_lock.name = %s AND
    msgworker_lock.owner = %s AND msgworker_lock.token = %s;

-- held: The locks that are held and not expired, of names that begin so, by name
SELECT msgworker_lock.name, msgworker_lock.owner, msgworker_lock.token, (TIMESTAMPDIFF(MICROSECOND,
    '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000) - msgworker_lock.since_ms AS anon_1,
    msgworker_lock.expires_ms - (TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000)
    AS anon_2
FROM msgworker_lock
WHERE msgworker_lock.owner IS NOT NULL AND (msgworker_lock.name LIKE concat(%s, '%%') ESCAPE '/') AND
    msgworker_lock.expires_ms > (TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000)
    ORDER BY msgworker_lock.name;

-- holder: Who holds a lock now, None if it is free or expired
SELECT msgworker_lock.name, msgworker_lock.owner, msgworker_lock.token, (TIMESTAMPDIFF(MICROSECOND,
    '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000) - msgworker_lock.since_ms AS anon_1,
    msgworker_lock.expires_ms - (TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000)
    AS anon_2
FROM msgworker_lock
WHERE msgworker_lock.owner IS NOT NULL AND msgworker_lock.name = %s AND msgworker_lock.expires_ms >
    (TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', utc_timestamp(6)) DIV 1000) ORDER BY
    msgworker_lock.name;

-- ==================== controls: What operators ask of running instances, which read it in their heartbeat: topics and jobs that are paused, and requests to cancel running messages

-- paused_job_ids: The jobs that are paused; none where there are no jobs
SELECT msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = %s AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at IS NOT
    NULL;

-- paused_jobs: The jobs that are paused, the newest first, MOST_JOBS at most; or this one, if it is
SELECT msgworker_job.job_id, msgworker_job.name, CASE WHEN msgworker_job.paused_at BETWEEN '0001-01-02' AND
    '9999-12-30' THEN msgworker_job.paused_at END AS paused_at, msgworker_job.paused_by,
    msgworker_job.paused_reason
FROM msgworker_job
WHERE msgworker_job.table_name = %s AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at IS NOT
    NULL ORDER BY msgworker_job.job_id DESC
 LIMIT %s;

-- held_among: Those of these messages (at most `max_ids`) whose job is paused
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.job_id IN (SELECT
    msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = %s AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at IS NOT
    NULL);

-- look: All in one statement, of the tables that are there
SELECT 0 AS n, msgworker_pause.topic AS x
FROM msgworker_pause
WHERE msgworker_pause.table_name = %s UNION ALL SELECT DISTINCT 1 AS n, msgworker_cancel.table_name AS x
FROM msgworker_cancel
WHERE msgworker_cancel.table_name = %s UNION ALL SELECT DISTINCT 2 AS n, msgworker_limit.table_name AS x
FROM msgworker_limit
WHERE msgworker_limit.table_name = %s;

-- requests: The requests, or those of some messages (at most `max_ids`), with what has become of each message;
--     none where the table is not there
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, substr(msgworker_message.claimed_by, 1, 2001) AS o, CASE WHEN (msgworker_message.status = -1 AND
    msgworker_message.last_error IS NOT NULL AND (((CONVERT(msgworker_message.last_error USING utf8mb4)
    COLLATE utf8mb4_0900_bin) LIKE concat(%s, '%%') ESCAPE '/') OR ((CONVERT(msgworker_message.last_error
    USING utf8mb4) COLLATE utf8mb4_0900_bin) LIKE concat(%s, '%%') ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = %s ORDER BY msgworker_cancel.msg_id
 LIMIT %s;
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, substr(msgworker_message.claimed_by, 1, 2001) AS o, CASE WHEN (msgworker_message.status = -1 AND
    msgworker_message.last_error IS NOT NULL AND (((CONVERT(msgworker_message.last_error USING utf8mb4)
    COLLATE utf8mb4_0900_bin) LIKE concat(%s, '%%') ESCAPE '/') OR ((CONVERT(msgworker_message.last_error
    USING utf8mb4) COLLATE utf8mb4_0900_bin) LIKE concat(%s, '%%') ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = %s AND msgworker_cancel.msg_id IN (/* each of mw_ids */) ORDER BY
    msgworker_cancel.msg_id;
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, substr(msgworker_message.claimed_by, 1, 2001) AS o, CASE WHEN (msgworker_message.status = -1 AND
    msgworker_message.last_error IS NOT NULL AND (((CONVERT(msgworker_message.last_error USING utf8mb4)
    COLLATE utf8mb4_0900_bin) LIKE concat(%s, '%%') ESCAPE '/') OR ((CONVERT(msgworker_message.last_error
    USING utf8mb4) COLLATE utf8mb4_0900_bin) LIKE concat(%s, '%%') ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = %s AND (coalesce(msgworker_message.status, 0) != 1 OR
    msgworker_message.claimed_by = %s) ORDER BY msgworker_cancel.msg_id
 LIMIT %s;

-- running: The running ones among these messages, with their owner (None if unknown) and tries; at most
--     `max_ids` ids
SELECT msgworker_message.msg_id, substr(msgworker_message.claimed_by, 1, 2001) AS o,
    coalesce(msgworker_message.error_try_times, 0) AS n
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1;

-- request_cancel: Request that running messages are cancelled, given by id with their owner and tries, as they
--     were locked; returns of how many
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = %s AND msgworker_cancel.msg_id IN (/* each of
    mw_ids */);
INSERT INTO msgworker_cancel (requested_at) VALUES (utc_timestamp(6));

-- drop_requests: Delete the requests of these messages
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = %s AND msgworker_cancel.msg_id IN (/* each of
    mw_ids */);

-- drop_seen: Delete this request; False if it is gone, or another one has taken its place
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = %s AND msgworker_cancel.msg_id = %s AND
    msgworker_cancel.seen_owner = %s AND msgworker_cancel.seen_tries = %s;

-- pauses: The topics that are paused, by name; none where the table is not there
SELECT msgworker_pause.topic, msgworker_pause.actor, msgworker_pause.reason, msgworker_pause.paused_at
FROM msgworker_pause
WHERE msgworker_pause.table_name = %s ORDER BY msgworker_pause.topic;

-- pause: Pause a topic; False if it is paused already
SELECT msgworker_pause.topic, msgworker_pause.actor, msgworker_pause.reason, msgworker_pause.paused_at
FROM msgworker_pause
WHERE msgworker_pause.table_name = %s ORDER BY msgworker_pause.topic;
INSERT INTO msgworker_pause (table_name, topic, actor, reason, paused_at) VALUES (%s, %s, %s, %s,
    utc_timestamp(6));

-- resume: Resume a topic; False if it was not paused
DELETE FROM msgworker_pause WHERE msgworker_pause.table_name = %s AND msgworker_pause.topic = %s;

-- ==================== send: Insert messages in the caller's transaction; with a unique key, if no other message holds it

-- insert_many: Insert messages that all have the same keys, in order
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority) VALUES
    (%s, %s, 0, 0, %s, %s, %s);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (%s, %s, 0, 0, %s, (utc_timestamp(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND), %s, %s);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (%s, %s, 0, 0, %s, %s, %s, %s);

-- insert_one: Insert one message; return its msg_id as the database gave it, None where it gave none
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority) VALUES
    (%s, %s, 0, 0, %s, %s, %s);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (%s, %s, 0, 0, %s, (utc_timestamp(6) + INTERVAL ROUND(%s * 1000000) MICROSECOND), %s, %s);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (%s, %s, 0, 0, %s, %s, %s, %s);

-- send: Insert a message that has a key, unless another one holds it; return the msg_id of the one that does
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE msgworker_message.mw_unique = %s;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (%s, %s, 0, 0, %s, %s, %s, %s, %s);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (%s, %s, 0, 0, %s, (utc_timestamp(6) + INTERVAL ROUND(%s * 1000000)
    MICROSECOND), %s, %s, %s);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (%s, %s, 0, 0, %s, %s, %s, %s, %s, %s);

-- replace: Give a message that was never claimed what the new one says; whether that was done
UPDATE msgworker_message SET payload=%s, available_at=NULL, priority=%s, unique_kept=%s, headers=NULL WHERE
    msgworker_message.msg_id = %s AND msgworker_message.unique_key = %s AND msgworker_message.status = 0 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;
UPDATE msgworker_message SET payload=%s, available_at=(utc_timestamp(6) + INTERVAL ROUND(%s * 1000000)
    MICROSECOND), priority=%s, headers=NULL WHERE msgworker_message.msg_id = %s AND
    msgworker_message.unique_key = %s AND msgworker_message.status = 0 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;
UPDATE msgworker_message SET payload=%s, available_at=%s, priority=%s, unique_kept=%s, headers=NULL WHERE
    msgworker_message.msg_id = %s AND msgworker_message.unique_key = %s AND msgworker_message.status = 0 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;

-- give_up: Free the key of a message that holds it while it is open
UPDATE msgworker_message SET unique_key=NULL WHERE msgworker_message.msg_id = %s AND
    msgworker_message.unique_key = %s AND coalesce(msgworker_message.unique_kept, 0) != 1 AND
    msgworker_message.unique_key IS NOT NULL AND (msgworker_message.unique_kept = 1 OR
    msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND msgworker_message.finished_at IS
    NULL);
