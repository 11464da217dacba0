"""Oracle's views of its catalogue, made in a schema of each database of H2."""

from __future__ import annotations

import re

SCHEMA = "ORACLE_VIEWS"
_IS = "information_schema"
_OWN = "NOT IN ('INFORMATION_SCHEMA', 'ORACLE_VIEWS')"
_INDEX = (
    "CASE i.index_type_name WHEN 'PRIMARY KEY' THEN 'SYS_PK_' || i.table_name"
    " ELSE COALESCE(k.constraint_name, i.index_name) END"
)
_INDEXES = (
    f"{_IS}.indexes i LEFT JOIN {_IS}.table_constraints k"
    " ON k.index_schema = i.index_schema AND k.index_name = i.index_name"
    " AND k.constraint_type = 'UNIQUE'"
)
_CONSTRAINT = (
    "CASE k.constraint_type WHEN 'PRIMARY KEY' THEN 'SYS_PK_' || k.table_name"
    " ELSE k.constraint_name END"
)
_NONE = "CAST(NULL AS VARCHAR(1))"
_DATA_TYPE = (
    "CASE data_type WHEN 'CHARACTER VARYING' THEN CASE WHEN character_maximum_length >= 1000000"
    " THEN 'CLOB' ELSE 'VARCHAR2' END WHEN 'NUMERIC' THEN 'NUMBER' WHEN 'DECFLOAT' THEN 'NUMBER'"
    " WHEN 'TIMESTAMP' THEN CASE datetime_precision WHEN 0 THEN 'DATE' ELSE 'TIMESTAMP(6)' END"
    " WHEN 'CHARACTER' THEN 'CHAR' WHEN 'DOUBLE PRECISION' THEN 'FLOAT' WHEN 'REAL' THEN 'FLOAT'"
    " WHEN 'BINARY VARYING' THEN 'BLOB' WHEN 'BIGINT' THEN 'NUMBER' ELSE data_type END"
)


def _empty(*columns: str) -> str:
    return f"SELECT {', '.join(f'{_NONE} AS {c}' for c in columns)} FROM DUAL WHERE 1 = 0"


_QUERIES = {
    "all_tables": (
        f"SELECT table_name, table_schema AS owner, {_NONE} AS tablespace_name,"
        f" {_NONE} AS iot_name, {_NONE} AS duration, {_NONE} AS compression,"
        f" {_NONE} AS compress_for, row_count_estimate AS num_rows FROM {_IS}.tables"
        f" WHERE table_type = 'BASE TABLE' AND table_schema {_OWN}"
    ),
    "all_views": (
        f"SELECT table_name AS view_name, table_schema AS owner FROM {_IS}.views"
        f" WHERE table_schema {_OWN}"
    ),
    "all_mviews": _empty("mview_name", "owner"),
    "all_sequences": (
        f"SELECT sequence_name, sequence_schema AS sequence_owner FROM {_IS}.sequences"
        f" WHERE sequence_schema {_OWN}"
    ),
    "all_objects": (
        "SELECT table_name AS object_name, table_schema AS owner, 'N' AS temporary,"
        " CASE table_type WHEN 'VIEW' THEN 'VIEW' ELSE 'TABLE' END AS object_type"
        f" FROM {_IS}.tables WHERE table_schema {_OWN}"
    ),
    "all_tab_cols": (
        f"SELECT table_schema AS owner, table_name, column_name, {_DATA_TYPE} AS data_type,"
        " character_maximum_length AS char_length, character_octet_length AS data_length,"
        " CASE WHEN data_type = 'BIGINT' THEN 19 WHEN data_type = 'DOUBLE PRECISION' THEN 126"
        " WHEN data_type = 'REAL' THEN 63 WHEN numeric_precision = 38 THEN NULL"
        " WHEN data_type = 'NUMERIC' THEN numeric_precision END AS data_precision,"
        " CASE WHEN data_type IN ('NUMERIC', 'BIGINT') THEN numeric_scale END AS data_scale,"
        " CASE is_nullable WHEN 'YES' THEN 'Y' ELSE 'N' END AS nullable,"
        " CASE WHEN is_identity = 'YES' THEN '\"ISEQ$$_1\".nextval' ELSE column_default END"
        " AS data_default, CASE is_generated WHEN 'ALWAYS' THEN 'YES' ELSE 'NO' END"
        " AS virtual_column, 'NO' AS default_on_null, ordinal_position AS column_id,"
        " CASE WHEN column_name LIKE 'SYS\\_NC\\_%' THEN 'YES' ELSE 'NO' END AS hidden_column"
        f" FROM {_IS}.columns WHERE table_schema {_OWN}"
    ),
    "all_tab_comments": _empty("table_name", "owner", "comments", "table_type"),
    "all_mview_comments": _empty("mview_name", "owner", "comments"),
    "all_col_comments": _empty("table_name", "column_name", "owner", "comments"),
    "all_tab_identity_cols": (
        "SELECT table_schema AS owner, table_name, column_name, 'BY DEFAULT' AS generation_type,"
        f" 'START WITH: 1, INCREMENT BY: 1' AS identity_options FROM {_IS}.columns"
        f" WHERE is_identity = 'YES' AND table_schema {_OWN}"
    ),
    "all_indexes": (
        "SELECT i.table_schema AS table_owner, i.index_schema AS owner, i.table_name,"
        f" {_INDEX} AS index_name, 'NORMAL' AS index_type,"
        " CASE WHEN i.index_type_name IN ('PRIMARY KEY', 'UNIQUE INDEX') THEN 'UNIQUE'"
        f" ELSE 'NONUNIQUE' END AS uniqueness, 'DISABLED' AS compression, {_NONE} AS prefix_length"
        f" FROM {_INDEXES} WHERE i.table_schema {_OWN}"
    ),
    "all_ind_columns": (
        "SELECT i.table_schema AS table_owner, i.index_schema AS index_owner, i.table_name,"
        f" {_INDEX} AS index_name, c.column_name, c.ordinal_position AS column_position,"
        f" 'ASC' AS descend FROM {_INDEXES} JOIN {_IS}.index_columns c"
        " ON c.index_schema = i.index_schema AND c.index_name = i.index_name"
        f" AND c.table_name = i.table_name WHERE i.table_schema {_OWN}"
    ),
    "all_ind_expressions": (
        "SELECT table_schema AS table_owner, index_schema AS index_owner, table_name, index_name,"
        " ordinal_position AS column_position, 'CASE' AS column_expression"
        f" FROM {_IS}.index_columns WHERE column_name LIKE 'SYS\\_NC\\_%'"
    ),
    "all_constraints": (
        f"SELECT k.constraint_schema AS owner, k.table_name, {_CONSTRAINT} AS constraint_name,"
        " CASE k.constraint_type WHEN 'PRIMARY KEY' THEN 'P' WHEN 'UNIQUE' THEN 'U'"
        " WHEN 'FOREIGN KEY' THEN 'R' ELSE 'C' END AS constraint_type,"
        " c.check_clause AS search_condition, c.check_clause AS search_condition_vc,"
        f" 'ENABLED' AS status, {_NONE} AS r_owner, {_NONE} AS r_constraint_name,"
        f" {_NONE} AS delete_rule FROM {_IS}.table_constraints k"
        f" LEFT JOIN {_IS}.check_constraints c ON c.constraint_schema = k.constraint_schema"
        f" AND c.constraint_name = k.constraint_name WHERE k.table_schema {_OWN}"
        " UNION ALL SELECT table_schema, table_name, 'SYS_C' || ordinal_position, 'C',"
        " '\"' || column_name || '\" IS NOT NULL', '\"' || column_name || '\" IS NOT NULL',"
        f" 'ENABLED', {_NONE}, {_NONE}, {_NONE} FROM {_IS}.columns"
        f" WHERE is_nullable = 'NO' AND table_schema {_OWN}"
    ),
    "all_cons_columns": (
        f"SELECT u.constraint_schema AS owner, u.table_name, {_CONSTRAINT} AS constraint_name,"
        f" u.column_name, u.ordinal_position AS position FROM {_IS}.key_column_usage u"
        f" JOIN {_IS}.table_constraints k ON k.constraint_schema = u.constraint_schema"
        f" AND k.constraint_name = u.constraint_name WHERE u.table_schema {_OWN}"
    ),
    "all_triggers": (
        "SELECT event_object_schema AS table_owner, event_object_table AS table_name,"
        " trigger_name, action_timing AS trigger_type, event_manipulation AS triggering_event,"
        f" 'ENABLED' AS status FROM {_IS}.triggers"
    ),
    "user_tables": f"SELECT table_name FROM {_IS}.tables WHERE table_schema = CURRENT_SCHEMA",
    "user_indexes": (
        f"SELECT i.table_name, {_INDEX} AS index_name FROM {_INDEXES}"
        " WHERE i.table_schema = CURRENT_SCHEMA"
    ),
    "user_lobs": _empty("table_name", "segment_name"),
    "user_segments": (
        f"SELECT table_name AS segment_name, 65536 AS bytes FROM {_IS}.tables"
        f" WHERE table_schema = CURRENT_SCHEMA UNION ALL SELECT {_INDEX}, 65536 FROM {_INDEXES}"
        " WHERE i.table_schema = CURRENT_SCHEMA"
    ),
}
VIEWS = [
    f"CREATE SCHEMA {SCHEMA}",
    *(f"CREATE VIEW {SCHEMA}.{name} AS {query}" for name, query in _QUERIES.items()),
]
_HERE = re.compile(
    r"sys_context\(\s*'userenv',\s*'current_schema'\s*\)|(?<![\w.:])user(?=\)|\s*$|\s*,)", re.I
)
_ASKED = re.compile(rf"\b({'|'.join(_QUERIES)}|sys_context)\b", re.I)


def is_asked(sql: str) -> bool:
    return _ASKED.search(sql) is not None


def for_h2(sql: str) -> str:
    return _HERE.sub("CURRENT_SCHEMA", sql)
