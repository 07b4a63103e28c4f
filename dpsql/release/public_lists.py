"""Public lists of keys, as the policy declares them or as releases were made by them."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from dpsql.engine import Engine, Sandbox, digest, from_stream, to_stream
from dpsql.errors import PolicyError, SchemaError
from dpsql.model.rows import BINS, ListedRows, PublicKeys
from dpsql.operations.row_sql import one_spelling, total_condition_sql, total_sql
from dpsql.state import Domain, Policy, ReleaseHistory

MAX_PUBLIC_KEYS = 1_000_000


@dataclass(frozen=True)
class PublicLists:
    """The public lists of columns.

    Attributes:
        policy: says where a list comes from.
        engine, sandbox: read and spell its values.
        past: lists that releases were made by.
        moment: when those were made; None for the lists of now.

    """

    policy: Policy
    engine: Engine
    sandbox: Sandbox
    past: ReleaseHistory | None = None
    moment: dt.datetime | None = None

    def public_keys(self, columns: Sequence[tuple[str, str]], types: Sequence[str]) -> PublicKeys:
        """The product of the columns' public lists as it is now, as a digest and a count."""
        lists = self.lists(columns, types)
        with_null = tuple(values.null_count > 0 for values in lists)
        digests = tuple(hashlib.sha256(list_blob(values)).hexdigest() for values in lists)
        return PublicKeys(tuple(columns), tuple(map(len, lists)), digest(self._product(lists)), with_null, digests)

    def lists_at(self, moment: dt.datetime) -> Self:
        """The same, with the public lists of keys that releases were made by at a moment."""
        return replace(self, moment=moment)

    def keys_of_rows(self, rows: ListedRows, types: Sequence[str]) -> PublicKeys | None:
        """Return the keys that public rows have now, or had when a release was made by them.

        Return None if there are more than a million keys, or if the rows are gone and no release was made by them.
        """
        table = self._distinct(rows, types)
        if table is None or table.num_rows > MAX_PUBLIC_KEYS:
            return None
        with_null = tuple(column.null_count > 0 for column in table.columns)
        list_digest = hashlib.sha256(table_blob(table)).hexdigest()
        return PublicKeys((rows.name,), (table.num_rows,), digest(table), with_null, (list_digest,), rows)

    def public_key_table(self, public: PublicKeys, types: Sequence[str]) -> pa.Table:
        """The keys as they are now, with columns key_0, key_1, …

        Raises:
            PolicyError: there are more than a million keys.

        """
        if not public.rows:
            return self._product(self.lists(public.columns, types))
        table = self._distinct(public.rows, types)
        if table is None or table.num_rows > MAX_PUBLIC_KEYS:
            raise PolicyError(
                f"the public rows that list the keys are gone, or have more than {MAX_PUBLIC_KEYS:,} keys"
            )
        return table

    def blobs(self, public: PublicKeys, types: Sequence[str]) -> list[bytes]:
        """Return each list of keys as it is now, as Arrow."""
        if public.rows:
            return [table_blob(self.public_key_table(public, types))]
        return [*map(list_blob, self.lists(public.columns, types))]

    def _distinct(self, rows: ListedRows, types: Sequence[str]) -> pa.Table | None:
        if self.past and self.moment:
            blob = self.past.list_at(*rows.name, ", ".join(types), self.moment)
            if blob is not None:
                return from_stream(blob)
        if not rows.relation:
            return None
        keys = [
            one_spelling(f"CAST({total_sql(sql, rows.types)} AS {kind})", kind)
            for sql, kind in zip(rows.keys, types, strict=True)
        ]
        conditions = [total_condition_sql(sql, rows.types) for sql in rows.filters]
        return self.engine.distinct_rows(rows.relation, keys, conditions, MAX_PUBLIC_KEYS + 1)

    def lists(self, columns: Sequence[tuple[str, str]], types: Sequence[str]) -> list[pa.Array]:
        """Return the columns' public lists.

        Raises:
            PolicyError: their product has more than a million keys.

        """
        lists = []
        for (table, column), key_type in zip(columns, types, strict=True):
            if table == BINS:
                lists.append(self.sandbox.literals(tuple(map(str, range(int(column)))), key_type))
                continue
            domain = self.policy.domain(table, column)
            if not domain:
                raise PolicyError(f"column {column!r} has no public keys")
            lists.append(self._kept(table, column, key_type) or self._values(domain, key_type))
        count = math.prod(map(len, lists))
        if count > MAX_PUBLIC_KEYS:
            raise PolicyError(f"the public keys multiply to {count:,}; at most {MAX_PUBLIC_KEYS:,} are supported")
        return lists

    def _kept(self, table: str, column: str, key_type: str) -> pa.Array | None:
        if not self.past or not self.moment:
            return None
        blob = self.past.list_at(table, column, key_type, self.moment)
        return None if blob is None else from_stream(blob).column(0).combine_chunks()

    def _product(self, lists: Sequence[pa.Array]) -> pa.Table:
        tables = {f"list_{i}": pa.table({f"key_{i}": values}) for i, values in enumerate(lists)}
        names = ", ".join(f"list_{i}.key_{i}" for i in range(len(lists)))
        return self.sandbox.run(f"SELECT {names} FROM {', '.join(tables)} ORDER BY ALL", tables)

    def _values(self, domain: Domain, key_type: str) -> pa.Array:
        if domain.keys:
            return self.sandbox.literals(domain.keys, key_type)
        if not domain.keys_from:
            raise PolicyError(f"column {domain.column!r} has no public keys")
        table, column = domain.keys_from
        schema = self.engine.find(table)
        if not (schema and self.policy.public_table(schema.canonical) and schema.column(column)):
            raise SchemaError(
                f"the public table {table!r} that lists keys is gone.", hint="The curator declares it again."
            )
        return self.engine.column_values(schema, column, key_type)


def list_blob(values: pa.Array) -> bytes:
    """A list of keys as Arrow."""
    return table_blob(pa.table({"key": values}))


def table_blob(table: pa.Table) -> bytes:
    """Combinations of keys as Arrow."""
    return bytes(to_stream(table))
