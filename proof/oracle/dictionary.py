"""Oracle's views of its catalogue, from those of the engine."""

from __future__ import annotations

import re
from typing import Any

_WORDS = ("select", "order", "group", "rows", "from", "level", "date", "comment", "user", "table")


def _stored(name: str) -> str:
    """A name as Oracle keeps it: in capitals, unless it had to be quoted."""
    plain = f"BINARY {name} REGEXP '^[a-z][a-z0-9_$#]*$' AND {name} NOT IN {_WORDS}"
    return f"CASE WHEN {plain} THEN UPPER({name}) ELSE {name} END"


_OWNER = "UPPER(table_schema) AS owner"
_NAME = _stored("table_name")
_TABLE = f"{_NAME} AS table_name"
_COLUMN = _stored("column_name")
_EVENT = _stored("event_object_table")
_KEY = (
    "CASE constraint_name WHEN 'PRIMARY' THEN CONCAT('SYS_PK_', UPPER(table_name))"
    " ELSE UPPER(constraint_name) END"
)
_INDEX = (
    "CASE index_name WHEN 'PRIMARY' THEN CONCAT('SYS_PK_', UPPER(table_name))"
    " ELSE UPPER(index_name) END"
)
_FROM = "FROM information_schema.{} WHERE table_schema = {}"
_DATA_TYPES = """CASE data_type WHEN 'varchar' THEN 'VARCHAR2' WHEN 'longtext' THEN 'CLOB'
 WHEN 'text' THEN 'CLOB' WHEN 'datetime' THEN 'TIMESTAMP(6)' WHEN 'decimal' THEN 'NUMBER'
 WHEN 'bigint' THEN 'NUMBER' WHEN 'int' THEN 'NUMBER' WHEN 'smallint' THEN 'NUMBER'
 WHEN 'double' THEN 'FLOAT' WHEN 'char' THEN 'CHAR' WHEN 'longblob' THEN 'BLOB'
 WHEN 'float' THEN 'FLOAT' ELSE UPPER(data_type) END"""
_PRECISION = """CASE data_type WHEN 'bigint' THEN 19 WHEN 'decimal' THEN numeric_precision
 WHEN 'double' THEN 126 WHEN 'float' THEN 63 END"""
_SCALE = "CASE WHEN data_type IN ('bigint', 'int', 'smallint') THEN 0 ELSE numeric_scale END"


def _none(*columns: str) -> str:
    """A view without rows."""
    return f"SELECT {', '.join(f'NULL AS {one}' for one in columns)} FROM dual WHERE 1 = 0"


_MARIADB = {
    "all_tables": (
        f"SELECT {_TABLE}, {_OWNER}, NULL AS tablespace_name, NULL AS iot_name, NULL AS duration,"
        " NULL AS compression, NULL AS compress_for,"
        f" table_rows AS num_rows {_FROM.format('tables', '{schema}')}"
        " AND table_type = 'BASE TABLE'"
    ),
    "all_views": (
        f"SELECT {_NAME} AS view_name, {_OWNER} {_FROM.format('tables', '{schema}')}"
        " AND table_type = 'VIEW'"
    ),
    "all_mviews": _none("mview_name", "owner"),
    "all_sequences": _none("sequence_name", "sequence_owner"),
    "all_objects": (
        f"SELECT {_NAME} AS object_name, {_OWNER}, 'N' AS temporary,"
        " CASE table_type WHEN 'VIEW' THEN 'VIEW' ELSE 'TABLE' END AS object_type"
        f" {_FROM.format('tables', '{schema}')}"
    ),
    "all_tab_cols": (
        f"SELECT {_OWNER}, {_TABLE}, {_COLUMN} AS column_name, {_DATA_TYPES} AS data_type,"
        " character_maximum_length AS char_length, character_octet_length AS data_length,"
        f" {_PRECISION} AS data_precision, {_SCALE} AS data_scale,"
        " CASE is_nullable WHEN 'YES' THEN 'Y' ELSE 'N' END AS nullable,"
        " CASE WHEN extra LIKE '%auto_increment%' THEN '\"ISEQ$$_1\".nextval'"
        " WHEN column_default = 'NULL' THEN NULL ELSE column_default END AS data_default,"
        " CASE WHEN extra LIKE '%GENERATED%' THEN 'YES' ELSE 'NO' END AS virtual_column,"
        " 'NO' AS default_on_null, ordinal_position AS column_id,"
        " CASE WHEN column_name LIKE 'sys\\_nc\\_%' ESCAPE '\\' THEN 'YES' ELSE 'NO' END"
        f" AS hidden_column {_FROM.format('columns', '{schema}')}"
    ),
    "all_tab_comments": _none("table_name", "owner", "comments", "table_type"),
    "all_mview_comments": _none("mview_name", "owner", "comments"),
    "all_col_comments": _none("table_name", "column_name", "owner", "comments"),
    "all_tab_identity_cols": (
        f"SELECT {_OWNER}, {_TABLE}, {_COLUMN} AS column_name,"
        " 'BY DEFAULT' AS generation_type, 'START WITH: 1, INCREMENT BY: 1' AS identity_options"
        f" {_FROM.format('columns', '{schema}')} AND extra LIKE '%auto_increment%'"
    ),
    "all_indexes": (
        "SELECT UPPER(table_schema) AS table_owner, UPPER(table_schema) AS owner,"
        f" {_TABLE}, {_INDEX} AS index_name, 'NORMAL' AS index_type,"
        " CASE WHEN MIN(non_unique) = 0 THEN 'UNIQUE' ELSE 'NONUNIQUE' END AS uniqueness,"
        " 'DISABLED' AS compression, NULL AS prefix_length"
        f" {_FROM.format('statistics', '{schema}')}"
        " GROUP BY table_schema, table_name, index_name"
    ),
    "all_ind_columns": (
        "SELECT UPPER(table_schema) AS table_owner, UPPER(table_schema) AS index_owner,"
        f" {_TABLE}, {_INDEX} AS index_name, {_COLUMN} AS column_name,"
        f" seq_in_index AS column_position, 'ASC' AS descend"
        f" {_FROM.format('statistics', '{schema}')}"
    ),
    "all_ind_expressions": (
        "SELECT UPPER(s.table_schema) AS table_owner, UPPER(s.table_schema) AS index_owner,"
        " UPPER(s.table_name) AS table_name, UPPER(s.index_name) AS index_name,"
        " s.seq_in_index AS column_position, 'CASE' AS column_expression"
        " FROM information_schema.statistics s WHERE s.table_schema = {schema}"
        " AND s.column_name LIKE 'sys\\_nc\\_%' ESCAPE '\\'"
    ),
    "all_constraints": (
        f"SELECT UPPER(constraint_schema) AS owner, {_TABLE},"
        f" {_KEY} AS constraint_name,"
        " CASE constraint_type WHEN 'PRIMARY KEY' THEN 'P' WHEN 'UNIQUE' THEN 'U'"
        " WHEN 'FOREIGN KEY' THEN 'R' ELSE 'X' END AS constraint_type,"
        " NULL AS search_condition, NULL AS search_condition_vc, 'ENABLED' AS status,"
        " NULL AS r_owner, NULL AS r_constraint_name, NULL AS delete_rule"
        f" {_FROM.format('table_constraints', '{schema}')} AND constraint_type <> 'CHECK'"
        f" UNION ALL SELECT UPPER(constraint_schema), {_NAME}, UPPER(constraint_name),"
        " 'C', check_clause, check_clause, 'ENABLED', NULL, NULL, NULL"
        " FROM information_schema.check_constraints WHERE constraint_schema = {schema}"
        f" UNION ALL SELECT UPPER(table_schema), {_NAME}, CONCAT('SYS_C',"
        f" ordinal_position), 'C', CONCAT('\"', {_COLUMN}, '\" IS NOT NULL'),"
        f" CONCAT('\"', {_COLUMN}, '\" IS NOT NULL'), 'ENABLED', NULL, NULL, NULL"
        f" {_FROM.format('columns', '{schema}')} AND is_nullable = 'NO'"
    ),
    "all_cons_columns": (
        f"SELECT UPPER(constraint_schema) AS owner, {_TABLE},"
        f" {_KEY} AS constraint_name, {_COLUMN} AS column_name,"
        f" ordinal_position AS position {_FROM.format('key_column_usage', '{schema}')}"
    ),
    "all_triggers": (
        f"SELECT UPPER(event_object_schema) AS table_owner, {_EVENT} AS table_name,"
        " trigger_name, action_timing AS trigger_type, event_manipulation AS triggering_event,"
        " 'ENABLED' AS status FROM information_schema.triggers"
        " WHERE event_object_schema = {schema}"
    ),
    "user_tables": f"SELECT {_TABLE} {_FROM.format('tables', '{schema}')}",
    "user_indexes": (
        f"SELECT DISTINCT {_TABLE}, {_INDEX} AS index_name {_FROM.format('statistics', '{schema}')}"
    ),
    "user_lobs": _none("table_name", "segment_name"),
    "user_segments": (
        f"SELECT {_NAME} AS segment_name, data_length AS bytes"
        f" {_FROM.format('tables', '{schema}')}"
        " UNION ALL SELECT CONCAT('SYS_PK_', UPPER(table_name)), index_length"
        f" {_FROM.format('tables', '{schema}')}"
    ),
}


_ASKED = re.compile(rf"\b({'|'.join(_MARIADB)}|sys_context)\b", re.I)


def is_asked(sql: str) -> bool:
    return _ASKED.search(sql) is not None


def for_mariadb(sql: str, values: dict[str, Any]) -> str:
    """A query of the catalogue. Each view is limited to one schema: to ask for all of them would
    open the tables of all databases of the server."""
    owners = [value for name, value in values.items() if name.startswith(("OWNER", "SCHEMA"))]
    owner = next((str(owner) for owner in owners if owner), None)
    schema = "DATABASE()" if owner is None else "'" + owner.lower().replace("'", "''") + "'"
    here = r"sys_context\(\s*'userenv',\s*'current_schema'\s*\)|(?<![\w.:])user(?=\)|\s*$|\s*,)"
    sql = re.sub(here, "UPPER(DATABASE())", sql, flags=re.I)
    sql = re.sub(r"\b(local|remote)(?=\.| ON\b)", r"a_\1", sql)  # words of MariaDB's
    views = "|".join(sorted(_MARIADB, key=len, reverse=True))

    def derived(found: re.Match[str]) -> str:
        name = found[1].lower()
        query = _MARIADB[name].replace("{schema}", schema)
        return f"({query}) {found[2] or name}"

    return re.sub(rf"\b({views})\b(?! \.)(?:\s+(a_\w+))?(?!\s*\.)", derived, sql, flags=re.I)
