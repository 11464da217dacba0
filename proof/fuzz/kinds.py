"""The types that a column of an old table may have, per database, and what may be said of it."""

from __future__ import annotations

REQUIRED = {
    "msg_id": "msgID",
    "object_id": "objectID",
    "status": "msgState",
    "error_try_times": "tryTimes",
}
OPTIONAL = {
    "topic": "msgKind",
    "payload": "msgBody",
    "available_at": "dueAt",
    "claimed_by": "takenBy",
    "claimed_at": "takenAt",
    "crash_times": "crashTimes",
    "later_times": "laterTimes",
    "last_error": "lastError",
    "created_at": "madeAt",
    "finished_at": "endedAt",
}
NAMES = REQUIRED | OPTIONAL
NUMBERS = ("msg_id", "status", "error_try_times", "crash_times", "later_times")
INSTANTS = ("available_at", "claimed_at", "created_at", "finished_at")

FINE: dict[str, dict[str, tuple[str, ...]]] = {
    "sqlite": {
        "msg_id": ("INTEGER", "BIGINT NOT NULL", "INT NOT NULL"),
        "number": ("INTEGER", "SMALLINT", "INT", "BIGINT", "TINYINT", "NUMERIC"),
        "text": ("TEXT", "VARCHAR(100)", "VARCHAR(2000)", "CLOB", "NVARCHAR(64)"),
        "instant": ("TEXT", "DATETIME", "TIMESTAMP", "VARCHAR(30)"),
    },
    "postgresql": {
        "msg_id": ("bigint", "integer", "bigserial", "serial", "numeric(18)"),
        "number": ("smallint", "integer", "bigint", "numeric(5)", "numeric"),
        "text": ("text", "varchar(2000)", "varchar(100)", 'text COLLATE "C"'),
        "instant": ("timestamptz", "timestamp", "timestamptz(3)", "timestamp(0)"),
    },
    "mariadb": {
        "msg_id": ("BIGINT", "INT", "BIGINT AUTO_INCREMENT", "INT UNSIGNED", "DECIMAL(18)"),
        "number": ("SMALLINT", "INT", "BIGINT", "MEDIUMINT", "DECIMAL(5)", "TINYINT"),
        "text": (
            "VARCHAR(2000)",
            "VARCHAR(100) COLLATE utf8mb4_bin",
            "VARCHAR(64) CHARACTER SET latin1",
            "TEXT",
            "LONGTEXT",
        ),
        "instant": ("DATETIME(6)", "DATETIME", "TIMESTAMP NULL", "DATETIME(3)"),
    },
}

ANY: dict[str, tuple[str, ...]] = {
    "sqlite": (
        *("INTEGER", "INT", "TINYINT", "UNSIGNED BIG INT", "BIGINT", "NUMERIC", "DECIMAL(10,2)"),
        *("REAL", "DOUBLE", "FLOAT", "BOOLEAN", "TEXT", "CHAR(1)", "VARCHAR(10)", "STRING"),
        *("CLOB", "BLOB", "", "ANY", "UUID", "JSON", "DATE", "TIME", "DATETIME", "TIMESTAMP"),
        *("TEXT COLLATE NOCASE", "TEXT COLLATE RTRIM", "VARCHAR(64) COLLATE BINARY", "MONEY"),
    ),
    "postgresql": (
        *("smallint", "integer", "bigint", "serial", "numeric", "numeric(1)", "numeric(3,2)"),
        *("numeric(20,4)", "real", "double precision", "boolean", "money", '"char"', "char(1)"),
        *("char(64)", "varchar(1)", "varchar(10)", "varchar(63)", "varchar(64)", "varchar", "text"),
        *("name", "uuid", "bytea", "json", "jsonb", "xml", "inet", "bit(8)", "varbit", "oid"),
        *("date", "time", "timetz", "interval", "timestamp", "timestamptz", "timestamptz(0)"),
        *("int4range", "integer[]", "text[]", "tsvector", "point", "msg_state", "small_domain"),
        *("text_domain", 'text COLLATE "C"', 'text COLLATE "und-x-icu"', "text COLLATE folds"),
    ),
    "mariadb": (
        *("TINYINT", "TINYINT(1)", "BOOLEAN", "TINYINT UNSIGNED", "SMALLINT UNSIGNED", "SMALLINT"),
        *("MEDIUMINT", "INT ZEROFILL", "INT", "BIGINT", "BIGINT UNSIGNED", "DECIMAL(1)"),
        *("DECIMAL(5,2)", "DECIMAL(3,3)", "FLOAT", "DOUBLE", "BIT(1)", "BIT(8)", "YEAR"),
        *("CHAR(1)", "CHAR(36)", "CHAR(64)", "VARCHAR(1)", "VARCHAR(10)", "VARCHAR(63)"),
        *("VARCHAR(64)", "VARCHAR(64) CHARACTER SET latin1", "VARCHAR(64) CHARACTER SET ucs2"),
        *("VARCHAR(64) COLLATE utf8mb4_bin", "VARCHAR(64) COLLATE utf8mb4_unicode_ci"),
        *("VARCHAR(190) CHARACTER SET utf8mb3", "VARCHAR(64) CHARACTER SET ascii"),
        *("TINYTEXT", "TEXT", "MEDIUMTEXT", "BINARY(16)", "VARBINARY(64)", "BLOB", "JSON", "INET6"),
        *("ENUM('0','1','2')", "ENUM('a','b')", "SET('a','b')", "UUID"),
        *("DATE", "TIME", "TIME(6)", "DATETIME", "DATETIME(6)", "TIMESTAMP", "TIMESTAMP(6) NULL"),
        "TIMESTAMP NULL DEFAULT NULL ON UPDATE CURRENT_TIMESTAMP",
    ),
}

PARENTS = "CREATE TABLE parents (id VARCHAR(100) PRIMARY KEY)"
TYPES_MADE = {
    "sqlite": (PARENTS,),
    "mariadb": (PARENTS, "INSERT INTO parents VALUES ('a'), ('b')"),
    "postgresql": (
        PARENTS,
        "INSERT INTO parents VALUES ('a'), ('b')",
        "CREATE SCHEMA elsewhere",
        "CREATE TYPE msg_state AS ENUM ('0', '1', '2', '-1')",
        "CREATE DOMAIN small_domain AS integer CHECK (VALUE BETWEEN 0 AND 2)",
        "CREATE DOMAIN text_domain AS text CHECK (length(VALUE) < 60)",
        "CREATE COLLATION folds"
        " (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    ),
}
"""What types and keys are made from, once in a database."""

SAID = (
    *("NOT NULL", "NULL", "DEFAULT NULL", "UNIQUE"),
    *("CHECK ({c} IS NOT NULL)", "CHECK ({c} IS NULL)"),
)
OF_NUMBERS = (
    *("DEFAULT 0", "DEFAULT '0'", "DEFAULT 1", "NOT NULL DEFAULT 0", "NOT NULL DEFAULT 1"),
    *("CHECK ({c} IN (0, 1, 2))", "CHECK ({c} >= 0)", "CHECK ({c} <> 1)", "CHECK ({c} < 3)"),
    *("CHECK ({c} = 0 OR {c} = 2)", "CHECK ({c} IN (-1, 0, 1, 2))", "CHECK ({c} > -5)"),
)
OF_TEXTS = (
    *("DEFAULT ''", "NOT NULL DEFAULT ''", "NOT NULL DEFAULT CURRENT_TIMESTAMP"),
    *("DEFAULT CURRENT_TIMESTAMP", "CHECK (length({c}) < 20)", "CHECK (length({c}) < 60)"),
    *("CHECK ({c} <> '')", "CHECK ({c} > '2')", "CHECK (length({c}) > 1)"),
)
"""What may stand behind a type, of numbers and of all else. {c}: the column."""

GENERATED = {
    "sqlite": ("GENERATED ALWAYS AS (0) VIRTUAL", "AS ('0') STORED", "AS (NULL) VIRTUAL"),
    "postgresql": ("GENERATED ALWAYS AS (NULL) STORED", "GENERATED ALWAYS AS IDENTITY"),
    "mariadb": ("AS (0) VIRTUAL", "AS (NULL) PERSISTENT", "INVISIBLE"),
}

WHOLE = {
    "sqlite": ("", "", "", "WITHOUT ROWID", "STRICT"),
    "postgresql": ("", "", "", "WITH (fillfactor = 50)"),
    "mariadb": ("", "", "", "ENGINE=MyISAM", "WITH SYSTEM VERSIONING",
                "PARTITION BY KEY(`msgID`) PARTITIONS 2", "CHARACTER SET latin1",
                "CHARACTER SET utf8mb3", "COLLATE utf8mb4_unicode_ci"),
}  # fmt: skip
"""What may stand behind the columns."""

KEYS = ("", "", "", "UNIQUE ({id}, {object})", "FOREIGN KEY ({object}) REFERENCES parents (id)")
"""Constraints that may stand among the columns."""

ACTS: dict[str, dict[str, tuple[str, ...]]] = {
    "sqlite": {
        "refuses": (
            "CREATE TRIGGER act BEFORE UPDATE ON {t} WHEN {when} BEGIN "
            "SELECT RAISE(ABORT, 'not so'); END",
        ),
        "passes over": (
            "CREATE TRIGGER act BEFORE UPDATE ON {t} WHEN {when} BEGIN SELECT RAISE(IGNORE); END",
        ),
        "sets back": (
            "CREATE TRIGGER act AFTER UPDATE ON {t} WHEN {when} BEGIN "
            "UPDATE {t} SET {status} = OLD.{status} WHERE {id} = NEW.{id}; END",
        ),
        "is unique": ("CREATE UNIQUE INDEX once{n} ON {t} ({object}) WHERE {status} = {value}",),
    },
    "postgresql": {
        deed: (
            "CREATE OR REPLACE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {does}; RETURN {gives}; END $$",
            "CREATE TRIGGER act BEFORE UPDATE ON {t} FOR EACH ROW WHEN ({when}) "
            "EXECUTE FUNCTION act()",
        )
        for deed, does, gives in (
            ("refuses", "RAISE EXCEPTION 'not so'", "NEW"),
            ("passes over", "NULL", "NULL"),
            ("sets back", "NEW.{status} := OLD.{status}", "NEW"),
        )
    }
    | {
        "is ruled": ("CREATE RULE act AS ON UPDATE TO {t} WHERE {when} DO INSTEAD NOTHING",),
        "is unique": ("CREATE UNIQUE INDEX once{n} ON {t} ({object}) WHERE {status} = {value}",),
    },
    "mariadb": {
        deed: (
            "CREATE TRIGGER act BEFORE UPDATE ON {t} FOR EACH ROW "
            f"BEGIN IF {{when}} THEN {does}; END IF; END",
        )
        for deed, does in (
            ("refuses", "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not so'"),
            ("sets back", "SET NEW.{status} = OLD.{status}"),
        )
    },
}
"""What may be done to an UPDATE, and how."""

SESSIONS: dict[str, tuple[dict[str, str], ...]] = {
    "sqlite": ({}, {}, {"pool": "NullPool"}, {"pool": "StaticPool"}, {"isolation": "SERIALIZABLE"}),
    "postgresql": (
        *({}, {}, {"pool": "NullPool"}, {"pool": "StaticPool"}, {"isolation": "AUTOCOMMIT"}),
        *({"isolation": "SERIALIZABLE"}, {"isolation": "REPEATABLE READ"}, {"pool": "of one"}),
        {"session": "SET TIME ZONE 'Asia/Shanghai'"},
        {"session": "SET TIME ZONE 'America/New_York'"},
        {"session": "SET search_path TO elsewhere, public"},
        {"session": "SET DateStyle TO 'SQL, DMY'"},
        {"session": "SET default_transaction_isolation TO 'serializable'"},
    ),
    "mariadb": (
        *({}, {}, {"pool": "NullPool"}, {"pool": "StaticPool"}, {"isolation": "AUTOCOMMIT"}),
        *({"isolation": "SERIALIZABLE"}, {"isolation": "READ UNCOMMITTED"}, {"pool": "of one"}),
        {"session": "SET time_zone = '+08:00'"},
        {"session": "SET time_zone = '-05:00'"},
        {"session": "SET sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_UNSIGNED_SUBTRACTION'"},
        {"session": "SET sql_mode = ''"},
        {"session": "SET tx_isolation = 'SERIALIZABLE'"},
    ),
}
"""Of the Engine that an App is given: pool, isolation level, a statement at each connect."""
