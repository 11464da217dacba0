-- What an instance sends to oracle, for a table with default names. Written by `make ddl`.
-- One entry for each function of msgworker/store, in the order of a message's life; what it sends
-- may depend on what it is given, and on what it has read.

-- ==================== candidates: Candidates for a claim: by age, by instant, by object

-- oldest: Open rows that wait for no instant, in order of age, from `mark` on; without those that run and have
--     no object, since nothing waits behind them
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_oldest) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6
FROM msgworker_message
WHERE (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND CASE WHEN
    ((msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL) THEN
    msgworker_message.msg_id END >= :mark ORDER BY CASE WHEN ((msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_oldest) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6
FROM msgworker_message
WHERE (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND CASE WHEN
    ((msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL) THEN
    msgworker_message.msg_id END >= :mark AND (msgworker_message.object_id IS NOT NULL OR
    mod((mod(msgworker_message.msg_id, :period) + :period), :period) BETWEEN :least AND :most) ORDER BY CASE
    WHEN ((msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL) THEN
    msgworker_message.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY;

-- due_after: Rows whose instant has passed, after the (`waits_until`, msg_id) `since`, in that order; None =
--     from the first
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_due) */ msgworker_message.msg_id AS h0,
    msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, TO_CHAR(CAST(msgworker_message.available_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS h7
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) ORDER BY
    msgworker_message.available_at, msgworker_message.msg_id
 FETCH FIRST :mw_rows ROWS ONLY;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_due) */ msgworker_message.msg_id AS h0,
    msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, TO_CHAR(CAST(msgworker_message.available_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS h7
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) AND
    msgworker_message.available_at >= TO_TIMESTAMP(:at, 'SYYYY-MM-DD HH24:MI:SS.FF6') AND
    (msgworker_message.available_at > TO_TIMESTAMP(:at, 'SYYYY-MM-DD HH24:MI:SS.FF6') OR
    msgworker_message.msg_id > :id) ORDER BY msgworker_message.available_at, msgworker_message.msg_id
 FETCH FIRST :mw_rows ROWS ONLY;

-- heads: The head of each object behind the object `after` (None = from the first), and the next cursor
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, g.o, g.n
FROM (SELECT w.k AS o, min(w.i) AS i, count(*) AS n
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(p msgworker_message_object) */ CASE WHEN (p.status IN (0, 1) OR
    p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN coalesce(p.object_id, CASE WHEN (p.status = 1)
    THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END AS k, CASE WHEN (p.status IN (0, 1) OR
    p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN p.msg_id END AS i
FROM msgworker_message p
WHERE CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN
    coalesce(p.object_id, CASE WHEN (p.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    IS NOT NULL ORDER BY CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) <
    3) THEN coalesce(p.object_id, CASE WHEN (p.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~'
    END) END, CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN
    p.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY) w GROUP BY w.k) g JOIN msgworker_message ON msgworker_message.msg_id = g.i
    ORDER BY g.o;
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, g.o, g.n
FROM (SELECT w.k AS o, min(w.i) AS i, count(*) AS n
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(p msgworker_message_object) */ CASE WHEN (p.status IN (0, 1) OR
    p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN coalesce(p.object_id, CASE WHEN (p.status = 1)
    THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END AS k, CASE WHEN (p.status IN (0, 1) OR
    p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN p.msg_id END AS i
FROM msgworker_message p
WHERE CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN
    coalesce(p.object_id, CASE WHEN (p.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    > :after ORDER BY CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) < 3)
    THEN coalesce(p.object_id, CASE WHEN (p.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~'
    END) END, CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN
    p.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY) w GROUP BY w.k) g JOIN msgworker_message ON msgworker_message.msg_id = g.i
    ORDER BY g.o;
SELECT count(*) AS n, max(w.k) AS last
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(p msgworker_message_object) */ CASE WHEN (p.status IN (0, 1) OR
    p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN coalesce(p.object_id, CASE WHEN (p.status = 1)
    THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END AS k, CASE WHEN (p.status IN (0, 1) OR
    p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN p.msg_id END AS i
FROM msgworker_message p
WHERE CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN
    coalesce(p.object_id, CASE WHEN (p.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    IS NOT NULL ORDER BY CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) <
    3) THEN coalesce(p.object_id, CASE WHEN (p.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~'
    END) END, CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN
    p.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY) w;
SELECT count(*) AS n, max(w.k) AS last
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(p msgworker_message_object) */ CASE WHEN (p.status IN (0, 1) OR
    p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN coalesce(p.object_id, CASE WHEN (p.status = 1)
    THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END AS k, CASE WHEN (p.status IN (0, 1) OR
    p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN p.msg_id END AS i
FROM msgworker_message p
WHERE CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN
    coalesce(p.object_id, CASE WHEN (p.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    > :after ORDER BY CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) < 3)
    THEN coalesce(p.object_id, CASE WHEN (p.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~'
    END) END, CASE WHEN (p.status IN (0, 1) OR p.status = -1 AND coalesce(p.error_try_times, 0) < 3) THEN
    p.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY) w;

-- without_object: Open rows without an object, by msg_id, behind `after` (None = from the first), and the next
--     cursor, None after the last one
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_object) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.object_id, CASE WHEN
    (msgworker_message.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END =
    '~msgworker.none~' AND CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN msgworker_message.msg_id END > :after ORDER BY
    CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN msgworker_message.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_object) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.object_id, CASE WHEN
    (msgworker_message.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END =
    '~msgworker.none~' AND CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN msgworker_message.msg_id END > :after AND
    mod((mod(msgworker_message.msg_id, :period) + :period), :period) BETWEEN :least AND :most ORDER BY CASE
    WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN msgworker_message.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY;

-- oldest_among: `oldest` of these topics alone (but: of all others), among the next `span` rows: a bounded step,
--     however many of other topics are in front
SELECT count(*) AS n, max(w.k) AS last
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_oldest) */ CASE WHEN
    ((msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL) THEN
    msgworker_message.msg_id END AS k
FROM msgworker_message
WHERE (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND CASE WHEN
    ((msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL) THEN
    msgworker_message.msg_id END >= :mark ORDER BY CASE WHEN ((msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :span ROWS ONLY) w;
SELECT w.h0, w.h1, w.h2, w.h3, w.h4, w.h5, w.h6
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_oldest) */ CASE WHEN
    ((msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL) THEN
    msgworker_message.msg_id END AS k, msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1,
    msgworker_message.status AS h2, coalesce(msgworker_message.error_try_times, 0) AS h3,
    coalesce(msgworker_message.crash_times, 0) AS h4, msgworker_message.topic AS h5, CASE WHEN
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME
    ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND CASE WHEN
    ((msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL) THEN
    msgworker_message.msg_id END >= :mark ORDER BY CASE WHEN ((msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :span ROWS ONLY) w
WHERE NVL(w.h5, 'default') IN (/* each of mw_topics */) ORDER BY w.k
 FETCH FIRST :mw_rows ROWS ONLY;
SELECT w.h0, w.h1, w.h2, w.h3, w.h4, w.h5, w.h6
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_oldest) */ CASE WHEN
    ((msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL) THEN
    msgworker_message.msg_id END AS k, msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1,
    msgworker_message.status AS h2, coalesce(msgworker_message.error_try_times, 0) AS h3,
    coalesce(msgworker_message.crash_times, 0) AS h4, msgworker_message.topic AS h5, CASE WHEN
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME
    ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS h6
FROM msgworker_message
WHERE (msgworker_message.object_id IS NOT NULL OR msgworker_message.status != 1) AND CASE WHEN
    ((msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NULL) THEN
    msgworker_message.msg_id END >= :mark ORDER BY CASE WHEN ((msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :span ROWS ONLY) w
WHERE (NVL(w.h5, 'default') NOT IN (/* each of mw_topics */)) ORDER BY w.k
 FETCH FIRST :mw_rows ROWS ONLY;

-- newest: The highest id; `MIN_ID` without one
SELECT max(msgworker_message.msg_id) AS max_1
FROM msgworker_message;

-- heads_of: Those of these messages that are open and the heads of their objects, or have none, by msg_id
SELECT msgworker_message.msg_id AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status IN (0, 1) OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(e
    msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) ORDER BY msgworker_message.msg_id;

-- ==================== ranked: Heads that come out of order of age: those with a priority, and those whose instant has come

-- ranked: Read `limit` rows that have a priority and wait for no instant, behind `after` (None = from the
--     highest on)
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_urgent) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(e
    msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1 END AS head, CASE
    WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END IS NOT NULL
    ORDER BY CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END, CASE WHEN
    ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_urgent) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(e
    msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1 END AS head, CASE
    WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END IS NOT NULL
    AND CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END >= :rank AND
    (CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END > :rank OR
    CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END > :id) ORDER BY
    CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END, CASE WHEN
    ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_urgent) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, coalesce(msgworker_message.shard, 0) AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND
    (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(e msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1 END AS head, CASE
    WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END IS NOT NULL
    ORDER BY CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END, CASE WHEN
    ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_urgent) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, coalesce(msgworker_message.shard, 0) AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND
    (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(e msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1 END AS head, CASE
    WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END IS NOT NULL
    AND CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END >= :rank AND
    (CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END > :rank OR
    CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END > :id) ORDER BY
    CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END, CASE WHEN
    ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_urgent) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, msgworker_message.instance_type AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT /*+ FIRST_ROWS(100) INDEX(e msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1 END AS head, CASE
    WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END IS NOT NULL
    ORDER BY CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END, CASE WHEN
    ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_urgent) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, msgworker_message.instance_type AS v, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS
    (SELECT /*+ FIRST_ROWS(100) INDEX(e msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1 END AS head, CASE
    WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END IS NOT NULL
    AND CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END >= :rank AND
    (CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END > :rank OR
    CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END > :id) ORDER BY
    CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END, CASE WHEN
    ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY;

-- due_and_ranked: `candidates.due_after`, and `ranked` of up to `most` rows, in one statement
SELECT q0.h0, q0.h1, q0.h2, q0.h3, q0.h4, q0.h5, q0.h6, q0.h7, q0.ranked, q0.head, q0.r
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_due) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, TO_CHAR(CAST(msgworker_message.available_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS h7, 0 AS
    ranked, 1 AS head, 0 - CASE WHEN (msgworker_message.priority BETWEEN 1 AND 2147483647) THEN
    msgworker_message.priority ELSE 0 END AS r
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) ORDER BY
    msgworker_message.available_at, msgworker_message.msg_id
 FETCH FIRST :mw_rows ROWS ONLY) q0 UNION ALL SELECT q1.h0, q1.h1, q1.h2, q1.h3, q1.h4, q1.h5, q1.h6, q1.h7,
    q1.ranked, q1.head, q1.r
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_urgent) */ msgworker_message.msg_id
    AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, TO_CHAR(CAST(msgworker_message.available_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS h7, 1 AS
    ranked, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(e
    msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1 END AS head, CASE
    WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END IS NOT NULL
    ORDER BY CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END, CASE WHEN
    ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :most ROWS ONLY) q1;
SELECT q0.h0, q0.h1, q0.h2, q0.h3, q0.h4, q0.h5, q0.h6, q0.h7, q0.ranked, q0.head, q0.r
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_due) */ msgworker_message.msg_id AS
    h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, TO_CHAR(CAST(msgworker_message.available_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS h7, 0 AS
    ranked, 1 AS head, 0 - CASE WHEN (msgworker_message.priority BETWEEN 1 AND 2147483647) THEN
    msgworker_message.priority ELSE 0 END AS r
FROM msgworker_message
WHERE (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.available_at IS NOT NULL AND
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) AND
    msgworker_message.available_at >= TO_TIMESTAMP(:at, 'SYYYY-MM-DD HH24:MI:SS.FF6') AND
    (msgworker_message.available_at > TO_TIMESTAMP(:at, 'SYYYY-MM-DD HH24:MI:SS.FF6') OR
    msgworker_message.msg_id > :id) ORDER BY msgworker_message.available_at, msgworker_message.msg_id
 FETCH FIRST :mw_rows ROWS ONLY) q0 UNION ALL SELECT q1.h0, q1.h1, q1.h2, q1.h3, q1.h4, q1.h5, q1.h6, q1.h7,
    q1.ranked, q1.head, q1.r
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_urgent) */ msgworker_message.msg_id
    AS h0, msgworker_message.object_id AS h1, msgworker_message.status AS h2,
    coalesce(msgworker_message.error_try_times, 0) AS h3, coalesce(msgworker_message.crash_times, 0) AS h4,
    msgworker_message.topic AS h5, CASE WHEN (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN 1 ELSE 0 END AS
    h6, TO_CHAR(CAST(msgworker_message.available_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS h7, 1 AS
    ranked, CASE WHEN (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(e
    msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) THEN 0 ELSE 1 END AS head, CASE
    WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END AS r
FROM msgworker_message
WHERE CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END IS NOT NULL
    ORDER BY CASE WHEN ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN -msgworker_message.priority END, CASE WHEN
    ((msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.priority BETWEEN 1 AND
    2147483647 AND msgworker_message.available_at IS NULL) THEN msgworker_message.msg_id END
 FETCH FIRST :most ROWS ONLY) q1;

-- due_in: Seconds until the first message becomes due, if that is within `linger` seconds, or within
--     `retry_linger` where it has failed before; else None
SELECT (SELECT /*+ FIRST_ROWS(100) INDEX(w msgworker_message_due) */ (EXTRACT(DAY FROM (CAST(SYSTIMESTAMP AT
    TIME ZONE 'UTC' AS TIMESTAMP) - CAST(w.available_at AS TIMESTAMP))) * 86400 + EXTRACT(HOUR FROM
    (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) - CAST(w.available_at AS TIMESTAMP))) * 3600 +
    EXTRACT(MINUTE FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) - CAST(w.available_at AS
    TIMESTAMP))) * 60 + EXTRACT(SECOND FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) -
    CAST(w.available_at AS TIMESTAMP))) * 1) AS anon_1
FROM msgworker_message w
WHERE (w.status = 0 OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND (w.status IN (0, 1) OR
    w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at > CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(e
    msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = w.object_id AND e.msg_id < w.msg_id))) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT /*+
    FIRST_ROWS(100) INDEX(r msgworker_message_guard) */ 1
FROM msgworker_message r
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = w.object_id))) AND w.available_at <= (CAST(SYSTIMESTAMP
    AT TIME ZONE 'UTC' AS TIMESTAMP) + NUMTODSINTERVAL(:linger, 'SECOND')) ORDER BY w.available_at
 FETCH FIRST 1 ROWS ONLY) AS d0, (SELECT /*+ FIRST_ROWS(100) INDEX(w msgworker_message_due) */ (EXTRACT(DAY
    FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) - CAST(w.available_at AS TIMESTAMP))) * 86400 +
    EXTRACT(HOUR FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) - CAST(w.available_at AS
    TIMESTAMP))) * 3600 + EXTRACT(MINUTE FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) -
    CAST(w.available_at AS TIMESTAMP))) * 60 + EXTRACT(SECOND FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP) - CAST(w.available_at AS TIMESTAMP))) * 1) AS anon_2
FROM msgworker_message w
WHERE (w.status = 0 OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND (w.status IN (0, 1) OR
    w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at > CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(e
    msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = w.object_id AND e.msg_id < w.msg_id))) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT /*+
    FIRST_ROWS(100) INDEX(r msgworker_message_guard) */ 1
FROM msgworker_message r
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = w.object_id))) AND w.available_at <= (CAST(SYSTIMESTAMP
    AT TIME ZONE 'UTC' AS TIMESTAMP) + NUMTODSINTERVAL(:retry_linger, 'SECOND')) AND w.status = -1 AND
    coalesce(w.error_try_times, 0) > 0 ORDER BY w.available_at
 FETCH FIRST 1 ROWS ONLY) AS d1 FROM DUAL;
SELECT (SELECT /*+ FIRST_ROWS(100) INDEX(w msgworker_message_due) */ (EXTRACT(DAY FROM (CAST(SYSTIMESTAMP AT
    TIME ZONE 'UTC' AS TIMESTAMP) - CAST(w.available_at AS TIMESTAMP))) * 86400 + EXTRACT(HOUR FROM
    (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) - CAST(w.available_at AS TIMESTAMP))) * 3600 +
    EXTRACT(MINUTE FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) - CAST(w.available_at AS
    TIMESTAMP))) * 60 + EXTRACT(SECOND FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) -
    CAST(w.available_at AS TIMESTAMP))) * 1) AS anon_1
FROM msgworker_message w
WHERE (w.status = 0 OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND (w.status IN (0, 1) OR
    w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at > CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP) AND NVL(w.topic, 'default') IN (/* each of mw_topics */) AND (NVL(w.topic, 'default')
    NOT IN (/* each of mw_paused */)) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100)
    INDEX(e msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = w.object_id AND e.msg_id < w.msg_id))) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT /*+
    FIRST_ROWS(100) INDEX(r msgworker_message_guard) */ 1
FROM msgworker_message r
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = w.object_id))) AND w.available_at <= (CAST(SYSTIMESTAMP
    AT TIME ZONE 'UTC' AS TIMESTAMP) + NUMTODSINTERVAL(:linger, 'SECOND')) ORDER BY w.available_at
 FETCH FIRST 1 ROWS ONLY) AS d0, (SELECT /*+ FIRST_ROWS(100) INDEX(w msgworker_message_due) */ (EXTRACT(DAY
    FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) - CAST(w.available_at AS TIMESTAMP))) * 86400 +
    EXTRACT(HOUR FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) - CAST(w.available_at AS
    TIMESTAMP))) * 3600 + EXTRACT(MINUTE FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) -
    CAST(w.available_at AS TIMESTAMP))) * 60 + EXTRACT(SECOND FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP) - CAST(w.available_at AS TIMESTAMP))) * 1) AS anon_2
FROM msgworker_message w
WHERE (w.status = 0 OR w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND (w.status IN (0, 1) OR
    w.status = -1 AND coalesce(w.error_try_times, 0) < 3) AND w.available_at > CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP) AND NVL(w.topic, 'default') IN (/* each of mw_topics */) AND (NVL(w.topic, 'default')
    NOT IN (/* each of mw_paused */)) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100)
    INDEX(e msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = w.object_id AND e.msg_id < w.msg_id))) AND NOT (w.object_id IS NOT NULL AND (EXISTS (SELECT /*+
    FIRST_ROWS(100) INDEX(r msgworker_message_guard) */ 1
FROM msgworker_message r
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = w.object_id))) AND w.available_at <= (CAST(SYSTIMESTAMP
    AT TIME ZONE 'UTC' AS TIMESTAMP) + NUMTODSINTERVAL(:retry_linger, 'SECOND')) AND w.status = -1 AND
    coalesce(w.error_try_times, 0) > 0 ORDER BY w.available_at
 FETCH FIRST 1 ROWS ONLY) AS d1 FROM DUAL;

-- ==================== limits: Limits of topics over all instances: what is recorded, and what is free now

-- lock: Lock the limits of a topic until the end of the transaction, and see what is free; None if another
--     transaction has them locked, or they were removed
SELECT msgworker_limit.max_running, msgworker_limit.rate_starts, msgworker_limit.rate_seconds,
    msgworker_limit.burst, msgworker_limit.full_us, (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) -
    TIMESTAMP '1970-01-01 00:00:00')) * 86400000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) -
    TIMESTAMP '1970-01-01 00:00:00')) * 3600000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) -
    TIMESTAMP '1970-01-01 00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) -
    TIMESTAMP '1970-01-01 00:00:00')) * 1000)) AS anon_1
FROM msgworker_limit
WHERE msgworker_limit.table_name = :table_name_1 AND msgworker_limit.topic = :mw_topic FOR UPDATE SKIP LOCKED;

-- take: Take so many tokens
UPDATE msgworker_limit SET full_us=:mw_full WHERE msgworker_limit.table_name = :table_name_1 AND
    msgworker_limit.topic = :mw_topic;

-- declare: Record the limits of a topic, if what stands there is `seen` (None = nothing); whether it was
INSERT INTO msgworker_limit (table_name, topic, max_running, rate_starts, rate_seconds, burst, declared_by,
    declared_at) VALUES (:table_name, :topic, :max_running, :rate_starts, :rate_seconds, :burst, :declared_by,
    CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP));
UPDATE msgworker_limit SET max_running=:max_running, rate_starts=:rate_starts, rate_seconds=:rate_seconds,
    burst=:burst, version=(msgworker_limit.version + :version_1), declared_by=:declared_by,
    declared_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_limit.table_name =
    :table_name_1 AND msgworker_limit.topic = :mw_topic AND msgworker_limit.version = :version_2;

-- remove: Forget the limits of a topic; False if it has none
DELETE FROM msgworker_limit WHERE msgworker_limit.table_name = :table_name_1 AND msgworker_limit.topic =
    :mw_topic;

-- ==================== claim: Flag candidates, and read the runs behind the flagged heads

-- flag: Flag the candidates that are unchanged since they were read; return the rows won, by msg_id
SELECT msgworker_message.status, msgworker_message.msg_id AS r0, msgworker_message.object_id AS r1,
    msgworker_message.topic AS r2, CASE WHEN (length(CAST(msgworker_message.payload AS CLOB)) <= 16384) THEN
    CAST(msgworker_message.payload AS CLOB) END AS r3, coalesce(msgworker_message.error_try_times, 0) AS r4,
    coalesce(msgworker_message.crash_times, 0) AS r5, coalesce(msgworker_message.later_times, 0) AS r6,
    TO_CHAR(CAST(msgworker_message.created_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS r7, CASE WHEN
    (length(CAST(msgworker_message.payload AS CLOB)) > 16384) THEN length(CAST(msgworker_message.payload AS
    CLOB)) END AS r8
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME
    ZONE 'UTC' AS TIMESTAMP)) AND NOT (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT /*+
    FIRST_ROWS(100) INDEX(e msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(r
    msgworker_message_guard) */ 1
FROM msgworker_message r
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = msgworker_message.object_id))) ORDER BY
    msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- flag_apart: `flag` in halves, each in its savepoint, down to single rows, so that a refused row affects no
--     other
SELECT msgworker_message.status, msgworker_message.msg_id AS r0, msgworker_message.object_id AS r1,
    msgworker_message.topic AS r2, CASE WHEN (length(CAST(msgworker_message.payload AS CLOB)) <= 16384) THEN
    CAST(msgworker_message.payload AS CLOB) END AS r3, coalesce(msgworker_message.error_try_times, 0) AS r4,
    coalesce(msgworker_message.crash_times, 0) AS r5, coalesce(msgworker_message.later_times, 0) AS r6,
    TO_CHAR(CAST(msgworker_message.created_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS r7, CASE WHEN
    (length(CAST(msgworker_message.payload AS CLOB)) > 16384) THEN length(CAST(msgworker_message.payload AS
    CLOB)) END AS r8
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME
    ZONE 'UTC' AS TIMESTAMP)) AND NOT (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT /*+
    FIRST_ROWS(100) INDEX(e msgworker_message_object) */ 1
FROM msgworker_message e
WHERE CASE WHEN (e.status IN (0, 1) OR e.status = -1 AND coalesce(e.error_try_times, 0) < 3) THEN
    coalesce(e.object_id, CASE WHEN (e.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = msgworker_message.object_id AND e.msg_id < msgworker_message.msg_id))) AND NOT
    (msgworker_message.object_id IS NOT NULL AND (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(r
    msgworker_message_guard) */ 1
FROM msgworker_message r
WHERE CASE WHEN (r.status = 1) THEN r.object_id END = msgworker_message.object_id))) ORDER BY
    msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- read_runs: The run behind each flagged head: head's msg_id -> its next rows, perhaps empty
SELECT x.p, CASE WHEN (m.status = 0 AND (m.available_at IS NULL OR m.available_at <= CAST(SYSTIMESTAMP AT TIME
    ZONE 'UTC' AS TIMESTAMP)) AND coalesce(m.error_try_times, 0) = 0 AND coalesce(m.later_times, 0) = 0 AND
    m.unique_key IS NULL) THEN 1 ELSE 0 END AS s, m.msg_id AS r0, m.object_id AS r1, m.topic AS r2, CASE WHEN
    (length(CAST(m.payload AS CLOB)) <= 16384) THEN CAST(m.payload AS CLOB) END AS r3,
    coalesce(m.error_try_times, 0) AS r4, coalesce(m.crash_times, 0) AS r5, coalesce(m.later_times, 0) AS r6,
    TO_CHAR(CAST(m.created_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS r7, CASE WHEN
    (length(CAST(m.payload AS CLOB)) > 16384) THEN length(CAST(m.payload AS CLOB)) END AS r8
FROM (SELECT q0.p AS p, q0.i AS i
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(n msgworker_message_object) */ :"start" + 0 AS p, CASE WHEN (n.status
    IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN n.msg_id END AS i
FROM msgworker_message n
WHERE CASE WHEN (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN
    coalesce(n.object_id, CASE WHEN (n.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = :o0 ORDER BY CASE WHEN (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN
    n.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY) q0) x JOIN msgworker_message m ON m.msg_id = x.i;
SELECT x.p, CASE WHEN (m.status = 0 AND (m.available_at IS NULL OR m.available_at <= CAST(SYSTIMESTAMP AT TIME
    ZONE 'UTC' AS TIMESTAMP)) AND coalesce(m.error_try_times, 0) = 0 AND coalesce(m.later_times, 0) = 0 AND
    m.unique_key IS NULL) THEN 1 ELSE 0 END AS s, m.msg_id AS r0, m.object_id AS r1, m.topic AS r2, CASE WHEN
    (length(CAST(m.payload AS CLOB)) <= 16384) THEN CAST(m.payload AS CLOB) END AS r3,
    coalesce(m.error_try_times, 0) AS r4, coalesce(m.crash_times, 0) AS r5, coalesce(m.later_times, 0) AS r6,
    TO_CHAR(CAST(m.created_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS r7, CASE WHEN
    (length(CAST(m.payload AS CLOB)) > 16384) THEN length(CAST(m.payload AS CLOB)) END AS r8
FROM (SELECT q0.p AS p, q0.i AS i
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(n msgworker_message_object) */ :"start" + 0 AS p, CASE WHEN (n.status
    IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN n.msg_id END AS i
FROM msgworker_message n
WHERE CASE WHEN (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN
    coalesce(n.object_id, CASE WHEN (n.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = :o0 ORDER BY CASE WHEN (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN
    n.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY) q0 UNION ALL /* 48 more such parts */ UNION ALL SELECT q49.p AS p, q49.i AS i
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(n msgworker_message_object) */ :"start" + 49 AS p, CASE WHEN (n.status
    IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN n.msg_id END AS i
FROM msgworker_message n
WHERE CASE WHEN (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN
    coalesce(n.object_id, CASE WHEN (n.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = :o49 ORDER BY CASE WHEN (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3)
    THEN n.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY) q49) x JOIN msgworker_message m ON m.msg_id = x.i;
SELECT x.p, CASE WHEN (m.status = 0 AND (m.available_at IS NULL OR m.available_at <= CAST(SYSTIMESTAMP AT TIME
    ZONE 'UTC' AS TIMESTAMP)) AND coalesce(m.error_try_times, 0) = 0 AND coalesce(m.later_times, 0) = 0 AND
    m.unique_key IS NULL) THEN 1 ELSE 0 END AS s, m.msg_id AS r0, m.object_id AS r1, m.topic AS r2, CASE WHEN
    (length(CAST(m.payload AS CLOB)) <= 16384) THEN CAST(m.payload AS CLOB) END AS r3,
    coalesce(m.error_try_times, 0) AS r4, coalesce(m.crash_times, 0) AS r5, coalesce(m.later_times, 0) AS r6,
    TO_CHAR(CAST(m.created_at AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS r7, CASE WHEN
    (length(CAST(m.payload AS CLOB)) > 16384) THEN length(CAST(m.payload AS CLOB)) END AS r8
FROM (SELECT q0.p AS p, q0.i AS i
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(n msgworker_message_object) */ :"start" + 0 AS p, CASE WHEN (n.status
    IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN n.msg_id END AS i
FROM msgworker_message n
WHERE CASE WHEN (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN
    coalesce(n.object_id, CASE WHEN (n.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = :o0 ORDER BY CASE WHEN (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN
    n.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY) q0 UNION ALL /* 48 more such parts */ UNION ALL SELECT q49.p AS p, q49.i AS i
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(n msgworker_message_object) */ :"start" + 49 AS p, CASE WHEN (n.status
    IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN n.msg_id END AS i
FROM msgworker_message n
WHERE CASE WHEN (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3) THEN
    coalesce(n.object_id, CASE WHEN (n.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = :o49 ORDER BY CASE WHEN (n.status IN (0, 1) OR n.status = -1 AND coalesce(n.error_try_times, 0) < 3)
    THEN n.msg_id END
 FETCH FIRST :mw_rows ROWS ONLY) q49) x JOIN msgworker_message m ON m.msg_id = x.i;

-- ==================== done: The settle of messages that are done, and the flag's move to the next message of each lane

-- still_mine: Those of `ids` that are flagged by us
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :mw_me;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :mw_me;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :mw_me;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :mw_me;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :mw_me;

-- ==================== settle: Write outcomes and move the flag, only while the flag is still ours

-- settle: Write a batch of settlements; return the result of each, by its msg_id
DECLARE CURSOR mw_rows IS SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) ORDER BY msgworker_message.msg_id FOR UPDATE; BEGIN
    OPEN mw_rows; CLOSE mw_rows; UPDATE msgworker_message SET status=2, claimed_by=NULL,
    finished_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each
    of mw_heads */) AND msgworker_message.status = 1 AND msgworker_message.claimed_by = :mw_me; :mw_ended :=
    SQL%ROWCOUNT; UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=:mw_me,
    claimed_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each
    of mw_nexts */) AND msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)); :mw_moved :=
    SQL%ROWCOUNT; END;;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) ORDER BY msgworker_message.msg_id FOR UPDATE;
DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id IN (/* each of mw_ids */)
    AND msgworker_message.status = 1 AND msgworker_message.claimed_by = :mw_me;
UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=:mw_me, claimed_at=CAST(SYSTIMESTAMP AT
    TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR msgworker_message.available_at
    <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP));
DECLARE CURSOR mw_rows IS SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) ORDER BY msgworker_message.msg_id FOR UPDATE; BEGIN
    OPEN mw_rows; CLOSE mw_rows; UPDATE msgworker_message SET status=2, claimed_by=NULL,
    finished_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each
    of mw_heads */) AND msgworker_message.status = 1 AND msgworker_message.claimed_by = :mw_me; :mw_ended :=
    SQL%ROWCOUNT; END;;
UPDATE msgworker_message SET status=-1, available_at=CASE WHEN (CASE WHEN
    (coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.error_try_times, 0) +
    :coalesce_1 ELSE 3 END >= 3) THEN NULL ELSE (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) +
    NUMTODSINTERVAL(:mw_delay, 'SECOND')) END, finished_at=CASE WHEN (CASE WHEN
    (coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.error_try_times, 0) +
    :coalesce_1 ELSE 3 END >= 3) THEN CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) END,
    last_error=:mw_error, claimed_by=NULL, error_try_times=CASE WHEN
    (coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.error_try_times, 0) +
    :coalesce_1 ELSE 3 END WHERE msgworker_message.msg_id = :mw_id AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :mw_me AND coalesce(msgworker_message.error_try_times, 0) = :mw_tries AND
    coalesce(msgworker_message.later_times, 0) = :mw_times;
SELECT msgworker_message.msg_id, msgworker_message.claimed_at AS anon_1, (SELECT max(l.try_no) AS max_1
FROM msgworker_try l
WHERE l.table_name = :mw_table AND l.msg_id = msgworker_message.msg_id) AS anon_2, CAST(SYSTIMESTAMP AT TIME
    ZONE 'UTC' AS TIMESTAMP) AS mw_now
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */);
UPDATE msgworker_message SET status=-1, available_at=NULL, finished_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP), last_error=:mw_error, claimed_by=NULL, error_try_times=3 WHERE msgworker_message.msg_id =
    :mw_id AND msgworker_message.status = 1 AND msgworker_message.claimed_by = :mw_me AND
    coalesce(msgworker_message.error_try_times, 0) = :mw_tries AND coalesce(msgworker_message.later_times, 0)
    = :mw_times;
UPDATE msgworker_message SET status=CASE WHEN (coalesce(msgworker_message.error_try_times, 0) > 0) THEN -1
    ELSE 0 END, available_at=(CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) + NUMTODSINTERVAL(:mw_delay,
    'SECOND')), later_times=(coalesce(msgworker_message.later_times, 0) + :coalesce_1), last_error=:mw_error,
    claimed_by=NULL WHERE msgworker_message.msg_id = :mw_id AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :mw_me AND coalesce(msgworker_message.error_try_times, 0) = :mw_tries AND
    coalesce(msgworker_message.later_times, 0) = :mw_times;
UPDATE msgworker_message SET status=CASE WHEN (coalesce(msgworker_message.error_try_times, 0) > 0) THEN -1
    ELSE 0 END, available_at=NULL, claimed_by=NULL WHERE msgworker_message.msg_id = :mw_id AND
    msgworker_message.status = 1 AND msgworker_message.claimed_by = :mw_me AND
    coalesce(msgworker_message.error_try_times, 0) = :mw_tries AND coalesce(msgworker_message.later_times, 0)
    = :mw_times;

-- settle_batch: Write that all messages are done; return the next ones that are flagged by us now
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) ORDER BY msgworker_message.msg_id FOR UPDATE;
UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :mw_me;
UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 0 AND
    (msgworker_message.available_at IS NULL OR msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME
    ZONE 'UTC' AS TIMESTAMP)) AND coalesce(msgworker_message.error_try_times, 0) = 0;
UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=:mw_me, claimed_at=CAST(SYSTIMESTAMP AT
    TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR msgworker_message.available_at
    <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP));
SET CONSTRAINTS ALL IMMEDIATE;
DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id IN (/* each of mw_ids */)
    AND msgworker_message.status = 1 AND msgworker_message.claimed_by = :mw_me;
DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id IN (/* each of mw_ids */)
    AND msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) AND
    coalesce(msgworker_message.error_try_times, 0) = 0;

-- settle_one: Write one settlement in the caller's transaction; LOST writes nothing at all
DECLARE CURSOR mw_rows IS SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) ORDER BY msgworker_message.msg_id FOR UPDATE; BEGIN
    OPEN mw_rows; CLOSE mw_rows; UPDATE msgworker_message SET status=2, claimed_by=NULL,
    finished_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each
    of mw_heads */) AND msgworker_message.status = 1 AND msgworker_message.claimed_by = :mw_me; :mw_ended :=
    SQL%ROWCOUNT; UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=:mw_me,
    claimed_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each
    of mw_nexts */) AND msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR
    msgworker_message.available_at <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)); :mw_moved :=
    SQL%ROWCOUNT; END;;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) ORDER BY msgworker_message.msg_id FOR UPDATE;
UPDATE msgworker_message SET status=2, claimed_by=NULL, finished_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :mw_me;
UPDATE msgworker_message SET status=1, available_at=NULL, claimed_by=:mw_me, claimed_at=CAST(SYSTIMESTAMP AT
    TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND
    msgworker_message.status = 0 AND (msgworker_message.available_at IS NULL OR msgworker_message.available_at
    <= CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP));
SET CONSTRAINTS ALL IMMEDIATE;
DELETE FROM msgworker_message WHERE msgworker_message.last_error IS NULL AND msgworker_message.job_id IS NULL
    AND coalesce(msgworker_message.unique_kept, 0) != 1 AND msgworker_message.msg_id IN (/* each of mw_ids */)
    AND msgworker_message.status = 1 AND msgworker_message.claimed_by = :mw_me;

-- ==================== items: The item table: done items of a fan-out do not run again, and what they send is sent with their records

-- shown: What is recorded of a message, with the first `limit` items; None if nothing is
SELECT w.s, count(*) AS count_1
FROM (SELECT msgworker_item.status AS s, msgworker_item.finished_at AS at, msgworker_item.total AS n
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id
 FETCH FIRST 100000 ROWS ONLY) w GROUP BY w.s;

-- find: Recorded items by key, behind the key `after`; at most bounded.SCAN are read at once
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id AND
    msgworker_item.item_key > :b_after ORDER BY msgworker_item.item_key
 FETCH FIRST 100 ROWS ONLY;
SELECT msgworker_item.item_key
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id AND
    msgworker_item.item_key > :b_after ORDER BY msgworker_item.item_key
 OFFSET 99999 ROWS
 FETCH FIRST 1 ROWS ONLY;
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id AND
    msgworker_item.item_key > :b_after AND msgworker_item.status = 2 ORDER BY msgworker_item.item_key
 FETCH FIRST 100 ROWS ONLY;
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value,
    msgworker_item.last_error, msgworker_item.finished_at
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id AND
    msgworker_item.item_key > :b_after AND msgworker_item.status != 2 ORDER BY msgworker_item.item_key
 FETCH FIRST 100 ROWS ONLY;

-- count: How many records the message has, bounded.SCAN at most; at a first try it has none
SELECT count(*) AS count_1
FROM (SELECT msgworker_item.tries AS tries
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id
 FETCH FIRST 100000 ROWS ONLY) w;

-- known: The records of these keys, those that are there
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id AND
    msgworker_item.item_key IN (/* each of b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id AND
    msgworker_item.item_key IN (/* each of b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id AND
    msgworker_item.item_key IN (/* each of b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id AND
    msgworker_item.item_key IN (/* each of b_keys */);
SELECT msgworker_item.item_key, msgworker_item.status, msgworker_item.tries, msgworker_item.item_value
FROM msgworker_item
WHERE msgworker_item.table_name = :b_table_name AND msgworker_item.msg_id = :b_msg_id AND
    msgworker_item.item_key IN (/* each of b_keys */);

-- record: Write records, and insert what they send, in the caller's transaction; False, and nothing is written,
--     if the claim is lost
SELECT CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) AS at
FROM msgworker_message
WHERE msgworker_message.msg_id = :b_msg AND msgworker_message.status = 1 AND msgworker_message.claimed_by =
    :mw_me FOR UPDATE;

-- record_one: Write one record beside the item's own writes, in their transaction
SELECT CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) AS at
FROM msgworker_message
WHERE msgworker_message.msg_id = :b_msg AND msgworker_message.status = 1 AND msgworker_message.claimed_by =
    :mw_me FOR UPDATE;

-- ==================== recover: Give back what a dead instance had flagged

-- flagged_by: The msg_ids above `after` flagged by an instance, lowest first, at most `limit`
SELECT f.i
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(a msgworker_message_guard) */ a.msg_id + 0 AS i
FROM msgworker_message a
WHERE CASE WHEN (a.status = 1) THEN a.object_id END IS NOT NULL AND a.claimed_by = :who AND a.msg_id + 0 >
    :after UNION ALL SELECT /*+ FIRST_ROWS(100) INDEX(b msgworker_message_object) */ b.msg_id + 0 AS i
FROM msgworker_message b
WHERE CASE WHEN (b.status IN (0, 1) OR b.status = -1 AND coalesce(b.error_try_times, 0) < 3) THEN
    coalesce(b.object_id, CASE WHEN (b.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = '~msgworker.running~' AND b.claimed_by = :who AND b.msg_id + 0 > :after) f ORDER BY f.i
 FETCH FIRST :most ROWS ONLY;

-- owners: All instance ids in running rows
SELECT DISTINCT f.o
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(a msgworker_message_guard) */ a.claimed_by AS o
FROM msgworker_message a
WHERE CASE WHEN (a.status = 1) THEN a.object_id END IS NOT NULL AND a.claimed_by IS NOT NULL UNION ALL SELECT
    /*+ FIRST_ROWS(100) INDEX(b msgworker_message_object) */ b.claimed_by AS o
FROM msgworker_message b
WHERE CASE WHEN (b.status IN (0, 1) OR b.status = -1 AND coalesce(b.error_try_times, 0) < 3) THEN
    coalesce(b.object_id, CASE WHEN (b.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = '~msgworker.running~' AND b.claimed_by IS NOT NULL) f;

-- recover: Give these rows back, each with a try counted; return how many were still flagged by `dead_id` and
--     free to be changed: neither settled meanwhile nor locked
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :param_1 ORDER BY msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- release: Release our own rows without a try; return how many were still ours
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by = :mw_me ORDER BY msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- foreign: (msg_id, tries) of rows flagged without an owner, lowest first, at most `limit`, above the msg_id
--     `after`
SELECT f.i, f.n
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(a msgworker_message_guard) */ a.msg_id + 0 AS i,
    coalesce(a.error_try_times, 0) AS n
FROM msgworker_message a
WHERE CASE WHEN (a.status = 1) THEN a.object_id END IS NOT NULL AND a.claimed_by IS NULL AND a.msg_id + 0 >
    :param_1 UNION ALL SELECT /*+ FIRST_ROWS(100) INDEX(b msgworker_message_object) */ b.msg_id + 0 AS i,
    coalesce(b.error_try_times, 0) AS n
FROM msgworker_message b
WHERE CASE WHEN (b.status IN (0, 1) OR b.status = -1 AND coalesce(b.error_try_times, 0) < 3) THEN
    coalesce(b.object_id, CASE WHEN (b.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = '~msgworker.running~' AND b.claimed_by IS NULL AND b.msg_id + 0 > :param_5) f ORDER BY f.i
 FETCH FIRST 250 ROWS ONLY;
SELECT f.i, f.n
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(a msgworker_message_guard) */ a.msg_id + 0 AS i,
    coalesce(a.error_try_times, 0) AS n
FROM msgworker_message a
WHERE CASE WHEN (a.status = 1) THEN a.object_id END IS NOT NULL AND a.claimed_by IS NULL AND a.msg_id + 0 >
    :param_1 AND coalesce(a.claimed_at, a.created_at) <= :param_2 UNION ALL SELECT /*+ FIRST_ROWS(100) INDEX(b
    msgworker_message_object) */ b.msg_id + 0 AS i, coalesce(b.error_try_times, 0) AS n
FROM msgworker_message b
WHERE CASE WHEN (b.status IN (0, 1) OR b.status = -1 AND coalesce(b.error_try_times, 0) < 3) THEN
    coalesce(b.object_id, CASE WHEN (b.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = '~msgworker.running~' AND b.claimed_by IS NULL AND b.msg_id + 0 > :param_6 AND coalesce(b.claimed_at,
    b.created_at) <= :param_7) f ORDER BY f.i
 FETCH FIRST 250 ROWS ONLY;

-- undated: The rows flagged without an owner whose age is unknown
SELECT f.i, f.n
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(a msgworker_message_guard) */ a.msg_id + 0 AS i,
    coalesce(a.error_try_times, 0) AS n
FROM msgworker_message a
WHERE CASE WHEN (a.status = 1) THEN a.object_id END IS NOT NULL AND a.claimed_by IS NULL AND
    coalesce(a.claimed_at, a.created_at) IS NULL UNION ALL SELECT /*+ FIRST_ROWS(100) INDEX(b
    msgworker_message_object) */ b.msg_id + 0 AS i, coalesce(b.error_try_times, 0) AS n
FROM msgworker_message b
WHERE CASE WHEN (b.status IN (0, 1) OR b.status = -1 AND coalesce(b.error_try_times, 0) < 3) THEN
    coalesce(b.object_id, CASE WHEN (b.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END
    = '~msgworker.running~' AND b.claimed_by IS NULL AND coalesce(b.claimed_at, b.created_at) IS NULL) f ORDER
    BY f.i
 FETCH FIRST 5 ROWS ONLY;

-- recover_foreign: Give these rows of a foreign consumer back, each with a try counted; return how many were
--     still flagged without an owner and with so many tries
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1 AND
    msgworker_message.claimed_by IS NULL AND coalesce(msgworker_message.error_try_times, 0) = :param_1 ORDER
    BY msgworker_message.msg_id FOR UPDATE SKIP LOCKED;

-- ==================== lease: Expiring rights to a name

-- register: Take a new lease
INSERT INTO msgworker_lease (name, kind, term, expires_at, started_at, renewed_at, label, serves) VALUES
    (:name, :kind, 0, (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) + NUMTODSINTERVAL(:param_1,
    'SECOND')), CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP), CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP), :label, :serves);

-- is_kept: Whether a lease just registered reads as it was written: not cut, padded or changed
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = :name_1;

-- renew: Extend our lease; False = it was taken over, or is over
UPDATE msgworker_lease SET term=(msgworker_lease.term + :term_1), expires_at=(CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP) + NUMTODSINTERVAL(:param_1, 'SECOND')), renewed_at=CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP), in_hand=:in_hand, serves=:serves WHERE msgworker_lease.name = :name_1 AND
    msgworker_lease.taken_by IS NULL AND msgworker_lease.expires_at > CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP);
UPDATE msgworker_lease SET term=(msgworker_lease.term + :term_1), expires_at=(CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP) + NUMTODSINTERVAL(:param_1, 'SECOND')), renewed_at=CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP), in_hand=:in_hand WHERE msgworker_lease.name = :name_1 AND msgworker_lease.taken_by IS
    NULL AND msgworker_lease.expires_at > CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP);

-- read_all: All leases of a kind, by name
SELECT msgworker_lease.name, msgworker_lease.kind, msgworker_lease.term, msgworker_lease.taken_by, CASE WHEN
    (msgworker_lease.expires_at > CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)) THEN :param_1 ELSE
    :param_2 END AS anon_1, CASE WHEN (msgworker_lease.renewed_at > (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP) + NUMTODSINTERVAL(:param_3, 'SECOND'))) THEN :param_4 ELSE :param_5 END AS anon_2,
    msgworker_lease.started_at, msgworker_lease.renewed_at, msgworker_lease.expires_at, msgworker_lease.label,
    msgworker_lease.in_hand, msgworker_lease.serves, (EXTRACT(DAY FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC'
    AS TIMESTAMP) - CAST(msgworker_lease.renewed_at AS TIMESTAMP))) * 86400 + EXTRACT(HOUR FROM
    (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) - CAST(msgworker_lease.renewed_at AS TIMESTAMP))) *
    3600 + EXTRACT(MINUTE FROM (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) -
    CAST(msgworker_lease.renewed_at AS TIMESTAMP))) * 60 + EXTRACT(SECOND FROM (CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP) - CAST(msgworker_lease.renewed_at AS TIMESTAMP))) * 1) AS anon_3
FROM msgworker_lease
WHERE msgworker_lease.kind = :of_kind ORDER BY msgworker_lease.name;

-- take_over: Declare the holder of an expired lease dead; True for the one winner
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = :name_1 FOR UPDATE SKIP LOCKED;

-- restart_ttl: Restart a lease's time from now, after the database's clock was set back (`ahead`): it could not
--     be taken over until the clock reaches its old time
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = :name_1 FOR UPDATE SKIP LOCKED;

-- take_over_live: Declare an instance dead although its lease is live: an operator's decision (`release`)
UPDATE msgworker_lease SET term=(msgworker_lease.term + :term_1), taken_by=:taken_by,
    expires_at=(CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) + NUMTODSINTERVAL(:param_1, 'SECOND')),
    renewed_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_lease.name = :name_1 AND
    msgworker_lease.taken_by IS NULL;

-- leave: Expire a lease that we took over: the next recovery continues with it
UPDATE msgworker_lease SET term=(msgworker_lease.term + :term_1), expires_at=CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP) WHERE msgworker_lease.name = :name_1 AND msgworker_lease.taken_by = :taken_by_1;

-- drop: Delete a lease: our own (taken_by None) or one that we took over; a locked one is left
SELECT msgworker_lease.name
FROM msgworker_lease
WHERE msgworker_lease.name = :name_1 FOR UPDATE SKIP LOCKED;

-- ==================== schedules: Schedules: a row each in `msgworker_schedule`, which any instance may fire

-- look: The time of the database, and all schedules of this message table, by name
SELECT CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) AS mw_now, msgworker_schedule.name,
    msgworker_schedule.spec, msgworker_schedule.time_zone, msgworker_schedule.topic,
    msgworker_schedule.object_id, msgworker_schedule.payload, msgworker_schedule.catch_up,
    msgworker_schedule.next_at AS next_at, msgworker_schedule.last_at AS last_at, msgworker_schedule.paused_at
    AS paused_at, msgworker_schedule.paused_by, msgworker_schedule.version, msgworker_schedule.declared_by,
    msgworker_schedule.declared_at AS declared_at, msgworker_schedule.overlap, msgworker_schedule.skipped,
    msgworker_schedule.replaced, msgworker_schedule.paused_reason
FROM msgworker_schedule
WHERE msgworker_schedule.table_name = :table_name_1 ORDER BY msgworker_schedule.name;
SELECT CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) AS mw_now FROM DUAL;

-- insert: Insert a schedule, by column
INSERT INTO msgworker_schedule (table_name, name, spec, time_zone, topic, object_id, payload, catch_up,
    next_at, declared_by, declared_at) VALUES (:table_name, :name, :spec, :time_zone, :topic, :object_id,
    :payload, :catch_up, :next_at, :declared_by, CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP));

-- change: Change the columns in `values`, if the row is as it was seen; False if it is not
UPDATE msgworker_schedule SET spec=:spec, time_zone=:time_zone, topic=:topic, object_id=:object_id,
    payload=:payload, catch_up=:catch_up, next_at=:next_at, last_at=:last_at,
    version=(msgworker_schedule.version + :version_1), declared_by=:declared_by WHERE
    msgworker_schedule.table_name = :table_name_1 AND msgworker_schedule.name = :name_1 AND
    msgworker_schedule.version = :version_2;

-- fire: Send the messages of one or more ticks and move to `next_at`, if the row is as it was seen; None, and
--     nothing is sent, if it is not: another instance has fired them
UPDATE msgworker_schedule SET next_at=:next_at, last_at=:last_at, version=(msgworker_schedule.version +
    :version_1) WHERE msgworker_schedule.table_name = :table_name_1 AND msgworker_schedule.name = :name_1 AND
    msgworker_schedule.version = :version_2;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, scheduled_for)
    VALUES (:b_topic, :b_object_id, 0, 0, :b_payload, :b_shard, :b_scheduled_for);
UPDATE msgworker_schedule SET last_at=:last_at, skipped=(msgworker_schedule.skipped + :skipped_1),
    replaced=(msgworker_schedule.replaced + :replaced_1) WHERE msgworker_schedule.table_name = :table_name_1
    AND msgworker_schedule.name = :name_1;

-- delete: Delete a schedule, if the row is as it was seen
DELETE FROM msgworker_schedule WHERE msgworker_schedule.table_name = :table_name_1 AND msgworker_schedule.name
    = :name_1 AND msgworker_schedule.version = :version_1;

-- tick_of: For which instant a schedule has sent a message; None for other messages, and for a value that is no
--     instant
SELECT TO_CHAR(CAST(msgworker_message.scheduled_for AS TIMESTAMP), 'SYYYY-MM-DD HH24:MI:SS.FF6') AS anon_1
FROM msgworker_message
WHERE msgworker_message.msg_id = :param_1;

-- ==================== jobs: Jobs: messages that belong together, and the message that is sent when all of them have ended

-- open_job: Insert a job; return its id
INSERT INTO msgworker_job (table_name, name, on_complete, object_id, opened_by, payload, on_dead, opened_at)
    VALUES (:table_name, :name, :on_complete, :object_id, :opened_by, :payload, :on_dead, CAST(SYSTIMESTAMP AT
    TIME ZONE 'UTC' AS TIMESTAMP)) RETURNING msgworker_job.job_id INTO :ret_0;

-- lock_open: A job, whose row is locked, shared, until the end of the transaction; None if there is no such one
SELECT msgworker_job.name, msgworker_job.sealed_at
FROM msgworker_job
WHERE msgworker_job.job_id = :mw_job AND msgworker_job.table_name = :table_name_1 FOR UPDATE;

-- seal: Close a job to further senders; False if it was sealed, or is not there
UPDATE msgworker_job SET sealed_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) WHERE
    msgworker_job.job_id = :mw_job AND msgworker_job.table_name = :table_name_1 AND msgworker_job.sealed_at IS
    NULL;

-- job_of: The job of a message; None if it belongs to none
SELECT msgworker_message.job_id
FROM msgworker_message
WHERE msgworker_message.msg_id = :mw_id;

-- ended: The sealed jobs of which nothing is unfinished, that have not completed, among the next LOOKED_AT
--     behind `after`; and where to go on, None at the end
SELECT msgworker_job.job_id, CASE WHEN ((EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(j0 msgworker_message_job) */
    1
FROM msgworker_message j0
WHERE j0.job_id = msgworker_job.job_id AND CASE WHEN (j0.job_id IS NOT NULL) THEN j0.status END = 0)) OR
    (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(j1 msgworker_message_job) */ 1
FROM msgworker_message j1
WHERE j1.job_id = msgworker_job.job_id AND CASE WHEN (j1.job_id IS NOT NULL) THEN j1.status END = 1)) OR
    (EXISTS (SELECT /*+ FIRST_ROWS(100) INDEX(j2 msgworker_message_job) */ 1
FROM msgworker_message j2
WHERE j2.job_id = msgworker_job.job_id AND CASE WHEN (j2.job_id IS NOT NULL) THEN j2.status END = -1 AND
    (coalesce(j2.error_try_times, 0) < 3 OR msgworker_job.on_dead = 'wait' AND msgworker_job.cancelled_at IS
    NULL AND NOT (j2.status = -1 AND j2.last_error IS NOT NULL AND ((j2.last_error LIKE :param_2 || '%' ESCAPE
    '/') OR (j2.last_error LIKE :param_3 || '%' ESCAPE '/'))))))) THEN 0 ELSE 1 END AS anon_1
FROM msgworker_job
WHERE msgworker_job.table_name = :table_name_1 AND msgworker_job.sealed_at IS NOT NULL AND
    msgworker_job.completed_at IS NULL AND msgworker_job.job_id > :mw_after ORDER BY msgworker_job.job_id
 FETCH FIRST 200 ROWS ONLY;

-- cancel: Seal a job, and send no message when it has ended; False if that is so, or it has completed
UPDATE msgworker_job SET sealed_at=coalesce(msgworker_job.sealed_at, CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP)), cancelled_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP) WHERE msgworker_job.job_id =
    :mw_job AND msgworker_job.table_name = :table_name_1 AND msgworker_job.completed_at IS NULL AND
    msgworker_job.cancelled_at IS NULL;

-- pause: Let no message of a job start; False if that is so, or it has completed
UPDATE msgworker_job SET paused_at=CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP), paused_by=:paused_by,
    paused_reason=:paused_reason WHERE msgworker_job.job_id = :mw_job AND msgworker_job.table_name =
    :table_name_1 AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at IS NULL;

-- resume: Let them start again; False if it was not paused
UPDATE msgworker_job SET paused_at=:paused_at, paused_by=:paused_by, paused_reason=:paused_reason WHERE
    msgworker_job.job_id = :mw_job AND msgworker_job.table_name = :table_name_1 AND msgworker_job.paused_at IS
    NOT NULL;

-- forget: Delete the jobs that have completed before this instant and have no message left, among the next
--     LOOKED_AT behind `after`; returns where to go on, None at the end
SELECT msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = :table_name_1 AND msgworker_job.completed_at < :param_1 AND
    msgworker_job.job_id > :job_id_1 ORDER BY msgworker_job.job_id
 FETCH FIRST 200 ROWS ONLY;

-- complete: Complete a job and send its message, if nothing of it is unfinished and no other has done so
SELECT msgworker_job.name, msgworker_job.on_complete, msgworker_job.object_id, msgworker_job.payload,
    msgworker_job.cancelled_at
FROM msgworker_job
WHERE msgworker_job.job_id = :mw_job AND msgworker_job.table_name = :table_name_1 AND msgworker_job.sealed_at
    IS NOT NULL AND msgworker_job.completed_at IS NULL FOR UPDATE SKIP LOCKED;

-- counts: How many messages of a job wait, run, are done and dead, up to `most` of each; "retrying": how many of
--     those that wait have failed; "again": those and edited ones (`Tables.untried`)
SELECT g.n, g.a, g.r, (SELECT count(*) AS count_1
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message_1 msgworker_message_job) */ 1 AS one
FROM msgworker_message msgworker_message_1
WHERE msgworker_message_1.job_id = :mw_job AND CASE WHEN (msgworker_message_1.job_id IS NOT NULL) THEN
    msgworker_message_1.status END = 0
 FETCH FIRST 5 ROWS ONLY) anon_2) AS anon_1, (SELECT count(*) AS count_2
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message_2 msgworker_message_job) */ 1 AS one
FROM msgworker_message msgworker_message_2
WHERE msgworker_message_2.job_id = :mw_job AND CASE WHEN (msgworker_message_2.job_id IS NOT NULL) THEN
    msgworker_message_2.status END = 1
 FETCH FIRST 5 ROWS ONLY) anon_4) AS anon_3, (SELECT count(*) AS count_3
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message_3 msgworker_message_job) */ 1 AS one
FROM msgworker_message msgworker_message_3
WHERE msgworker_message_3.job_id = :mw_job AND CASE WHEN (msgworker_message_3.job_id IS NOT NULL) THEN
    msgworker_message_3.status END = 2
 FETCH FIRST 5 ROWS ONLY) anon_6) AS anon_5
FROM (SELECT count(*) AS n, sum(f.a) AS a, sum(f.r) AS r
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message_4 msgworker_message_job) */ CASE WHEN
    (coalesce(msgworker_message_4.error_try_times, 0) < 3) THEN 1 ELSE 0 END AS a, CASE WHEN
    (msgworker_message_4.status = -1 AND coalesce(msgworker_message_4.error_try_times, 0) = 0) THEN 0 ELSE
    CASE WHEN (coalesce(msgworker_message_4.error_try_times, 0) < 3) THEN 1 ELSE 0 END END AS r
FROM msgworker_message msgworker_message_4
WHERE msgworker_message_4.job_id = :mw_job AND CASE WHEN (msgworker_message_4.job_id IS NOT NULL) THEN
    msgworker_message_4.status END = -1
 FETCH FIRST 100000 ROWS ONLY) f) g;
SELECT g.n, g.a, g.r, (SELECT count(*) AS count_1
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message_1 msgworker_message_job) */ 1 AS one
FROM msgworker_message msgworker_message_1
WHERE msgworker_message_1.job_id = :mw_job AND CASE WHEN (msgworker_message_1.job_id IS NOT NULL) THEN
    msgworker_message_1.status END = 0
 FETCH FIRST 5 ROWS ONLY) anon_2) AS anon_1, (SELECT count(*) AS count_2
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message_2 msgworker_message_job) */ 1 AS one
FROM msgworker_message msgworker_message_2
WHERE msgworker_message_2.job_id = :mw_job AND CASE WHEN (msgworker_message_2.job_id IS NOT NULL) THEN
    msgworker_message_2.status END = 1
 FETCH FIRST 5 ROWS ONLY) anon_4) AS anon_3
FROM (SELECT count(*) AS n, sum(f.a) AS a, sum(f.r) AS r
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message_3 msgworker_message_job) */ CASE WHEN
    (coalesce(msgworker_message_3.error_try_times, 0) < 3) THEN 1 ELSE 0 END AS a, CASE WHEN
    (msgworker_message_3.status = -1 AND coalesce(msgworker_message_3.error_try_times, 0) = 0) THEN 0 ELSE
    CASE WHEN (coalesce(msgworker_message_3.error_try_times, 0) < 3) THEN 1 ELSE 0 END END AS r
FROM msgworker_message msgworker_message_3
WHERE msgworker_message_3.job_id = :mw_job AND CASE WHEN (msgworker_message_3.job_id IS NOT NULL) THEN
    msgworker_message_3.status END = -1
 FETCH FIRST 100000 ROWS ONLY) f) g;

-- given_up: How many messages of a job are dead and not discarded, among its first DEAD_LOOKED_AT failed ones
SELECT count(*) AS count_1, sum(d.d) AS sum_1
FROM (SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message_1 msgworker_message_job) */ CASE WHEN
    (coalesce(msgworker_message_1.error_try_times, 0) >= 3 AND NOT (msgworker_message_1.status = -1 AND
    msgworker_message_1.last_error IS NOT NULL AND ((msgworker_message_1.last_error LIKE :param_1 || '%'
    ESCAPE '/') OR (msgworker_message_1.last_error LIKE :param_2 || '%' ESCAPE '/')))) THEN 1 ELSE 0 END AS d
FROM msgworker_message msgworker_message_1
WHERE msgworker_message_1.job_id = :param_3 AND CASE WHEN (msgworker_message_1.job_id IS NOT NULL) THEN
    msgworker_message_1.status END = -1
 FETCH FIRST 10000 ROWS ONLY) d;

-- awaited: How many of these an open job waits for (on_dead="wait"), and others do not
SELECT 1
FROM msgworker_job
WHERE msgworker_job.job_id = :mw_job AND msgworker_job.table_name = :table_name_1 AND
    msgworker_job.completed_at IS NULL AND msgworker_job.cancelled_at IS NULL AND msgworker_job.on_dead =
    'wait';

-- ==================== locks: Locks with tokens, and the dealing of messages to instance types

-- undealt: Messages without an instance type, or with this one, that may be claimed, oldest first; behind
--     `after`
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_flag) */ msgworker_message.msg_id,
    msgworker_message.object_id
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN msgworker_message.instance_type END IS NULL AND
    CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.object_id, CASE WHEN
    (msgworker_message.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END IS NOT NULL AND
    (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) ORDER BY msgworker_message.msg_id
 FETCH FIRST 1000 ROWS ONLY;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_flag) */ msgworker_message.msg_id,
    msgworker_message.object_id
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN msgworker_message.instance_type END = :param_1
    AND CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.object_id, CASE WHEN
    (msgworker_message.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END IS NOT NULL AND
    (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) ORDER BY msgworker_message.msg_id
 FETCH FIRST 1000 ROWS ONLY;

-- flags: The flags of unfinished messages, and of how many each
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_flag) */ CASE WHEN
    (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN msgworker_message.instance_type END AS anon_1,
    count(*) AS count_1
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN msgworker_message.instance_type END IS NOT NULL
    AND CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.object_id, CASE WHEN
    (msgworker_message.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END IS NOT NULL
    GROUP BY CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN msgworker_message.instance_type END;

-- flags_of: The flag of the first unfinished message of each object that has one
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_object) */ msgworker_message.object_id,
    msgworker_message.instance_type
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.object_id, CASE WHEN
    (msgworker_message.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END IN (/* each of
    objects */) AND msgworker_message.instance_type IS NOT NULL ORDER BY msgworker_message.msg_id;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_object) */ msgworker_message.object_id,
    msgworker_message.instance_type
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.object_id, CASE WHEN
    (msgworker_message.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END IN (/* each of
    objects */) AND msgworker_message.instance_type IS NOT NULL ORDER BY msgworker_message.msg_id;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_object) */ msgworker_message.object_id,
    msgworker_message.instance_type
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.object_id, CASE WHEN
    (msgworker_message.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END IN (/* each of
    objects */) AND msgworker_message.instance_type IS NOT NULL ORDER BY msgworker_message.msg_id;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_object) */ msgworker_message.object_id,
    msgworker_message.instance_type
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.object_id, CASE WHEN
    (msgworker_message.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END IN (/* each of
    objects */) AND msgworker_message.instance_type IS NOT NULL ORDER BY msgworker_message.msg_id;
SELECT /*+ FIRST_ROWS(100) INDEX(msgworker_message msgworker_message_object) */ msgworker_message.object_id,
    msgworker_message.instance_type
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) THEN coalesce(msgworker_message.object_id, CASE WHEN
    (msgworker_message.status = 1) THEN '~msgworker.running~' ELSE '~msgworker.none~' END) END IN (/* each of
    objects */) AND msgworker_message.instance_type IS NOT NULL ORDER BY msgworker_message.msg_id;

-- deal: Give messages that still have no flag this one; how many that were
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type IS NULL FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=:instance_type WHERE msgworker_message.msg_id IN (/* each of mw_ids
    */) AND (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type IS NULL FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=:instance_type WHERE msgworker_message.msg_id IN (/* each of mw_ids
    */) AND (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type IS NULL FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=:instance_type WHERE msgworker_message.msg_id IN (/* each of mw_ids
    */) AND (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type IS NULL FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=:instance_type WHERE msgworker_message.msg_id IN (/* each of mw_ids
    */) AND (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type IS NULL FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=:instance_type WHERE msgworker_message.msg_id IN (/* each of mw_ids
    */) AND (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type IS NULL;

-- take_back: Remove this flag from messages that still have it; how many that were
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type = :instance_type_1 FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=:instance_type WHERE msgworker_message.msg_id IN (/* each of mw_ids
    */) AND (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type = :instance_type_1;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type = :instance_type_1 FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=:instance_type WHERE msgworker_message.msg_id IN (/* each of mw_ids
    */) AND (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type = :instance_type_1;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type = :instance_type_1 FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=:instance_type WHERE msgworker_message.msg_id IN (/* each of mw_ids
    */) AND (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type = :instance_type_1;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type = :instance_type_1 FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=:instance_type WHERE msgworker_message.msg_id IN (/* each of mw_ids
    */) AND (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type = :instance_type_1;
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND (msgworker_message.status = 0 OR
    msgworker_message.status = -1 AND coalesce(msgworker_message.error_try_times, 0) < 3) AND
    msgworker_message.instance_type = :instance_type_1 FOR UPDATE SKIP LOCKED;
UPDATE msgworker_message SET instance_type=:instance_type WHERE msgworker_message.msg_id IN (/* each of mw_ids
    */) AND (msgworker_message.status = 0 OR msgworker_message.status = -1 AND
    coalesce(msgworker_message.error_try_times, 0) < 3) AND msgworker_message.instance_type = :instance_type_1;

-- there: Those of the names that have their rows
SELECT msgworker_lock.name
FROM msgworker_lock
WHERE msgworker_lock.name IN (/* each of mw_names */);

-- acquire: Take those of some locks that are free or expired, in one statement; name -> new token
UPDATE msgworker_lock SET owner=:owner, token=(msgworker_lock.token + :token_1), claim_id=:claim_id,
    since_ms=(EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 86400000 +
    EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000 +
    EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000 +
    FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000)),
    expires_ms=((EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) *
    86400000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000
    + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000 +
    FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000)) +
    :param_1) WHERE msgworker_lock.name IN (/* each of mw_names */) AND (msgworker_lock.owner IS NULL OR
    msgworker_lock.expires_ms <= (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 86400000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 3600000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 1000)));
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = :owner_1 AND msgworker_lock.expires_ms > (EXTRACT(DAY FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 86400000 + EXTRACT(HOUR FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000 + EXTRACT(MINUTE FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000)) AND msgworker_lock.claim_id =
    :claim_id_1;

-- acquired: What an acquire has got and still holds: name -> token
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = :owner_1 AND msgworker_lock.expires_ms > (EXTRACT(DAY FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 86400000 + EXTRACT(HOUR FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000 + EXTRACT(MINUTE FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000)) AND msgworker_lock.claim_id =
    :claim_id_1;

-- renew: Extend a lock from now on; False = it is no longer held under this owner and token, and never will be
UPDATE msgworker_lock SET expires_ms=((EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 86400000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 3600000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 1000)) + :param_1) WHERE msgworker_lock.name = :name_1 AND msgworker_lock.owner = :owner_1
    AND msgworker_lock.token = :token_1 AND msgworker_lock.expires_ms > (EXTRACT(DAY FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 86400000 + EXTRACT(HOUR FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000 + EXTRACT(MINUTE FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000));

-- renew_all: Extend all that an owner holds, in one statement; name -> token of what it holds now
UPDATE msgworker_lock SET expires_ms=((EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 86400000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 3600000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 1000)) + :param_1) WHERE msgworker_lock.owner = :owner_1 AND msgworker_lock.expires_ms >
    (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 86400000 +
    EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000 +
    EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000 +
    FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000));
SELECT msgworker_lock.name, msgworker_lock.token
FROM msgworker_lock
WHERE msgworker_lock.owner = :owner_1 AND msgworker_lock.expires_ms > (EXTRACT(DAY FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 86400000 + EXTRACT(HOUR FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000 + EXTRACT(MINUTE FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000));

-- release: Free a lock at once; False if it is not held under this owner and token: nothing changes
UPDATE msgworker_lock SET owner=NULL, claim_id=NULL, expires_ms=0 WHERE msgworker_lock.name = :name_1 AND
    msgworker_lock.owner = :owner_1 AND msgworker_lock.token = :token_1;

-- held: The locks that are held and not expired, of names that begin so, by name
SELECT msgworker_lock.name, msgworker_lock.owner, msgworker_lock.token, (EXTRACT(DAY FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 86400000 + EXTRACT(HOUR FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000 + EXTRACT(MINUTE FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000)) - msgworker_lock.since_ms AS
    anon_1, msgworker_lock.expires_ms - (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP
    '1970-01-01 00:00:00')) * 86400000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP
    '1970-01-01 00:00:00')) * 3600000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP
    '1970-01-01 00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP
    '1970-01-01 00:00:00')) * 1000)) AS anon_2
FROM msgworker_lock
WHERE msgworker_lock.owner IS NOT NULL AND (msgworker_lock.name LIKE :name_1 || '%' ESCAPE '/') AND
    msgworker_lock.expires_ms > (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 86400000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 3600000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01
    00:00:00')) * 1000)) ORDER BY msgworker_lock.name;

-- holder: Who holds a lock now, None if it is free or expired
SELECT msgworker_lock.name, msgworker_lock.owner, msgworker_lock.token, (EXTRACT(DAY FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 86400000 + EXTRACT(HOUR FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000 + EXTRACT(MINUTE FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM
    (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000)) - msgworker_lock.since_ms AS
    anon_1, msgworker_lock.expires_ms - (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP
    '1970-01-01 00:00:00')) * 86400000 + EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP
    '1970-01-01 00:00:00')) * 3600000 + EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP
    '1970-01-01 00:00:00')) * 60000 + FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP
    '1970-01-01 00:00:00')) * 1000)) AS anon_2
FROM msgworker_lock
WHERE msgworker_lock.owner IS NOT NULL AND msgworker_lock.name = :name_1 AND msgworker_lock.expires_ms >
    (EXTRACT(DAY FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 86400000 +
    EXTRACT(HOUR FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 3600000 +
    EXTRACT(MINUTE FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 60000 +
    FLOOR(EXTRACT(SECOND FROM (SYS_EXTRACT_UTC(SYSTIMESTAMP) - TIMESTAMP '1970-01-01 00:00:00')) * 1000))
    ORDER BY msgworker_lock.name;

-- ==================== controls: What operators ask of running instances, which read it in their heartbeat: topics and jobs that are paused, and requests to cancel running messages

-- paused_job_ids: The jobs that are paused; none where there are no jobs
SELECT msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = :param_1 AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at
    IS NOT NULL;

-- paused_jobs: The jobs that are paused, the newest first, MOST_JOBS at most; or this one, if it is
SELECT msgworker_job.job_id, msgworker_job.name, msgworker_job.paused_at AS paused_at,
    msgworker_job.paused_by, msgworker_job.paused_reason
FROM msgworker_job
WHERE msgworker_job.table_name = :param_1 AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at
    IS NOT NULL ORDER BY msgworker_job.job_id DESC
 FETCH FIRST 1000 ROWS ONLY;

-- held_among: Those of these messages (at most `max_ids`) whose job is paused
SELECT msgworker_message.msg_id
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.job_id IN (SELECT
    msgworker_job.job_id
FROM msgworker_job
WHERE msgworker_job.table_name = :param_1 AND msgworker_job.completed_at IS NULL AND msgworker_job.paused_at
    IS NOT NULL);

-- look: All in one statement, of the tables that are there
SELECT 0 AS n, msgworker_pause.topic AS x
FROM msgworker_pause
WHERE msgworker_pause.table_name = :table_name_1 UNION ALL SELECT DISTINCT 1 AS n, msgworker_cancel.table_name
    AS x
FROM msgworker_cancel
WHERE msgworker_cancel.table_name = :table_name_2 UNION ALL SELECT DISTINCT 2 AS n, msgworker_limit.table_name
    AS x
FROM msgworker_limit
WHERE msgworker_limit.table_name = :table_name_3;

-- requests: The requests, or those of some messages (at most `max_ids`), with what has become of each message;
--     none where the table is not there
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, substr(msgworker_message.claimed_by, 1, 2001) AS o, CASE WHEN (msgworker_message.status = -1 AND
    msgworker_message.last_error IS NOT NULL AND ((msgworker_message.last_error LIKE :param_1 || '%' ESCAPE
    '/') OR (msgworker_message.last_error LIKE :param_2 || '%' ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = :table_name_1 ORDER BY msgworker_cancel.msg_id
 FETCH FIRST 1000 ROWS ONLY;
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, substr(msgworker_message.claimed_by, 1, 2001) AS o, CASE WHEN (msgworker_message.status = -1 AND
    msgworker_message.last_error IS NOT NULL AND ((msgworker_message.last_error LIKE :param_1 || '%' ESCAPE
    '/') OR (msgworker_message.last_error LIKE :param_2 || '%' ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = :table_name_1 AND msgworker_cancel.msg_id IN (/* each of mw_ids */) ORDER
    BY msgworker_cancel.msg_id;
SELECT msgworker_cancel.msg_id, msgworker_cancel.actor, msgworker_cancel.reason,
    msgworker_cancel.requested_at, msgworker_cancel.seen_owner, msgworker_cancel.seen_tries,
    msgworker_message.msg_id AS m, msgworker_message.status, coalesce(msgworker_message.error_try_times, 0) AS
    n, substr(msgworker_message.claimed_by, 1, 2001) AS o, CASE WHEN (msgworker_message.status = -1 AND
    msgworker_message.last_error IS NOT NULL AND ((msgworker_message.last_error LIKE :param_1 || '%' ESCAPE
    '/') OR (msgworker_message.last_error LIKE :param_2 || '%' ESCAPE '/'))) THEN 1 ELSE 0 END AS g
FROM msgworker_cancel LEFT OUTER JOIN msgworker_message ON msgworker_cancel.msg_id = msgworker_message.msg_id
WHERE msgworker_cancel.table_name = :table_name_1 AND (coalesce(msgworker_message.status, 0) != 1 OR
    msgworker_message.claimed_by = :mw_me) ORDER BY msgworker_cancel.msg_id
 FETCH FIRST 1000 ROWS ONLY;

-- running: The running ones among these messages, with their owner (None if unknown) and tries; at most
--     `max_ids` ids
SELECT msgworker_message.msg_id, substr(msgworker_message.claimed_by, 1, 2001) AS o,
    coalesce(msgworker_message.error_try_times, 0) AS n
FROM msgworker_message
WHERE msgworker_message.msg_id IN (/* each of mw_ids */) AND msgworker_message.status = 1;

-- request_cancel: Request that running messages are cancelled, given by id with their owner and tries, as they
--     were locked; returns of how many
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = :table_name_1 AND msgworker_cancel.msg_id IN
    (/* each of mw_ids */);
INSERT INTO msgworker_cancel (requested_at) VALUES (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP));

-- drop_requests: Delete the requests of these messages
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = :table_name_1 AND msgworker_cancel.msg_id IN
    (/* each of mw_ids */);

-- drop_seen: Delete this request; False if it is gone, or another one has taken its place
DELETE FROM msgworker_cancel WHERE msgworker_cancel.table_name = :table_name_1 AND msgworker_cancel.msg_id =
    :msg_id_1 AND msgworker_cancel.seen_owner = :seen_owner_1 AND msgworker_cancel.seen_tries = :seen_tries_1;

-- pauses: The topics that are paused, by name; none where the table is not there
SELECT msgworker_pause.topic, msgworker_pause.actor, msgworker_pause.reason, msgworker_pause.paused_at
FROM msgworker_pause
WHERE msgworker_pause.table_name = :table_name_1 ORDER BY msgworker_pause.topic;

-- pause: Pause a topic; False if it is paused already
SELECT msgworker_pause.topic, msgworker_pause.actor, msgworker_pause.reason, msgworker_pause.paused_at
FROM msgworker_pause
WHERE msgworker_pause.table_name = :table_name_1 ORDER BY msgworker_pause.topic;
INSERT INTO msgworker_pause (table_name, topic, actor, reason, paused_at) VALUES (:table_name, :topic, :actor,
    :reason, CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP));

-- resume: Resume a topic; False if it was not paused
DELETE FROM msgworker_pause WHERE msgworker_pause.table_name = :table_name_1 AND msgworker_pause.topic =
    :topic_1;

-- ==================== send: Insert messages in the caller's transaction; with a unique key, if no other message holds it

-- insert_many: Insert messages that all have the same keys, in order
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority) VALUES
    (:b_topic, :b_object_id, 0, 0, :b_payload, :b_shard, :b_priority);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (:b_topic, :b_object_id, 0, 0, :b_payload, (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP) + NUMTODSINTERVAL(:b_delay, 'SECOND')), :b_shard, :b_priority);
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (:b_topic, :b_object_id, 0, 0, :b_payload, :b_at, :b_shard, :b_priority);

-- insert_one: Insert one message; return its msg_id as the database gave it, None where it gave none
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority) VALUES
    (:b_topic, :b_object_id, 0, 0, :b_payload, :b_shard, :b_priority) RETURNING msgworker_message.msg_id INTO
    :ret_0;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (:b_topic, :b_object_id, 0, 0, :b_payload, (CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP) + NUMTODSINTERVAL(:b_delay, 'SECOND')), :b_shard, :b_priority) RETURNING
    msgworker_message.msg_id INTO :ret_0;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority) VALUES (:b_topic, :b_object_id, 0, 0, :b_payload, :b_at, :b_shard, :b_priority) RETURNING
    msgworker_message.msg_id INTO :ret_0;

-- send: Insert a message that has a key, unless another one holds it; return the msg_id of the one that does
SELECT msgworker_message.msg_id, msgworker_message.topic, msgworker_message.object_id,
    msgworker_message.unique_kept
FROM msgworker_message
WHERE CASE WHEN (msgworker_message.unique_key IS NOT NULL AND (msgworker_message.unique_kept = 1 OR
    msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND msgworker_message.finished_at IS
    NULL)) THEN msgworker_message.unique_key END = :mw_key;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, shard, priority,
    unique_key, unique_kept) VALUES (:b_topic, :b_object_id, 0, 0, :b_payload, :b_shard, :b_priority,
    :b_unique_key, :b_unique_kept) RETURNING msgworker_message.msg_id INTO :ret_0;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key) VALUES (:b_topic, :b_object_id, 0, 0, :b_payload, (CAST(SYSTIMESTAMP AT TIME ZONE
    'UTC' AS TIMESTAMP) + NUMTODSINTERVAL(:b_delay, 'SECOND')), :b_shard, :b_priority, :b_unique_key)
    RETURNING msgworker_message.msg_id INTO :ret_0;
INSERT INTO msgworker_message (topic, object_id, status, error_try_times, payload, available_at, shard,
    priority, unique_key, unique_kept) VALUES (:b_topic, :b_object_id, 0, 0, :b_payload, :b_at, :b_shard,
    :b_priority, :b_unique_key, :b_unique_kept) RETURNING msgworker_message.msg_id INTO :ret_0;

-- replace: Give a message that was never claimed what the new one says; whether that was done
UPDATE msgworker_message SET payload=:b_payload, available_at=NULL, priority=:b_priority,
    unique_kept=:b_unique_kept, headers=NULL WHERE msgworker_message.msg_id = :msg_id_1 AND
    msgworker_message.unique_key = :param_1 AND msgworker_message.status = 0 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;
UPDATE msgworker_message SET payload=:b_payload, available_at=(CAST(SYSTIMESTAMP AT TIME ZONE 'UTC' AS
    TIMESTAMP) + NUMTODSINTERVAL(:b_delay, 'SECOND')), priority=:b_priority, headers=NULL WHERE
    msgworker_message.msg_id = :msg_id_1 AND msgworker_message.unique_key = :param_1 AND
    msgworker_message.status = 0 AND coalesce(msgworker_message.error_try_times, 0) = 0 AND
    msgworker_message.claimed_at IS NULL AND coalesce(msgworker_message.later_times, 0) = 0 AND
    msgworker_message.job_id IS NULL;
UPDATE msgworker_message SET payload=:b_payload, available_at=:b_at, priority=:b_priority,
    unique_kept=:b_unique_kept, headers=NULL WHERE msgworker_message.msg_id = :msg_id_1 AND
    msgworker_message.unique_key = :param_1 AND msgworker_message.status = 0 AND
    coalesce(msgworker_message.error_try_times, 0) = 0 AND msgworker_message.claimed_at IS NULL AND
    coalesce(msgworker_message.later_times, 0) = 0 AND msgworker_message.job_id IS NULL;

-- give_up: Free the key of a message that holds it while it is open
UPDATE msgworker_message SET unique_key=NULL WHERE msgworker_message.msg_id = :msg_id_1 AND
    msgworker_message.unique_key = :param_1 AND coalesce(msgworker_message.unique_kept, 0) != 1 AND
    msgworker_message.unique_key IS NOT NULL AND (msgworker_message.unique_kept = 1 OR
    msgworker_message.status IN (0, 1) OR msgworker_message.status = -1 AND msgworker_message.finished_at IS
    NULL);
