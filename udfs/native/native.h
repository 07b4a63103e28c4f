/* Native parts of dpsql, against DuckDB's stable C extension API: one shared library for every DuckDB since v1.2.0.
 *
 * keep.c      the aggregate that bounds contributions in one pass
 * unit.c      the aggregate over a unit's groups: where the choice of groups ends, and how much bounds take away
 * sums.c      the aggregate that adds up a column before and after it is clamped
 * aggregate.c how an aggregate becomes known to DuckDB; aggregate.h has what all of them need
 * functions.c dp_query, dp_explain, CALL dp_protect … as table functions, and dp_count … that say where they belong
 * helper.c    the dpsql process that plans, charges, draws and stores for them, and the frames to it and from it
 * wire.c      bytes: numbers, texts, rows of a DuckDB chunk
 */
#ifndef DPSQL_NATIVE_H
#define DPSQL_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DUCKDB_EXTENSION_API_VERSION_MAJOR 1
#define DUCKDB_EXTENSION_API_VERSION_MINOR 2
#define DUCKDB_EXTENSION_API_VERSION_PATCH 0
#define DUCKDB_EXTENSION_NAME dpsql_native
#include "duckdb_extension.h"

DUCKDB_EXTENSION_EXTERN

bool register_keep(duckdb_connection connection);
bool register_unit(duckdb_connection connection);
bool register_sums(duckdb_connection connection);
/* Registers a set if `whole` says that all its overloads were added, and frees it in any case. */
bool finish_set(duckdb_connection connection, duckdb_aggregate_function_set set, bool whole);

/* ---- wire.c ---- */

/* Bytes that grow. After a failed allocation `failed` is set, and what is added later is dropped. */
typedef struct {
	char *data;
	size_t size;
	size_t room;
	bool failed;
} Bytes;

void bytes_free(Bytes *bytes);
void put_bytes(Bytes *bytes, const void *data, size_t size);
void put_u8(Bytes *bytes, uint8_t value);
void put_u32(Bytes *bytes, uint32_t value);
void put_text(Bytes *bytes, const char *text, size_t size);

/* Bytes that are read from the front. What would lie behind the end is read as zero, and `failed` is set. */
typedef struct {
	const char *data;
	size_t size;
	bool failed;
} Reader;

const char *take(Reader *reader, size_t size);
uint8_t take_u8(Reader *reader);
uint32_t take_u32(Reader *reader);
/* How many things of at least so many bytes follow; a failure where there is no room for them. */
uint32_t take_count(Reader *reader, size_t least);
/* A text with an end, to be freed with `free`; NULL where memory is short. */
char *take_text(Reader *reader);

/* A column's type: an id of DuckDB's; width and scale of a DECIMAL. */
typedef struct {
	uint8_t id;
	uint8_t width;
	uint8_t scale;
} Type;

/* Whether rows of such a column can be put on the wire. */
bool is_flat(Type type);
/* A type of which rows can be; false where what follows is none. */
bool take_type(Reader *reader, Type *type);
Type type_of(duckdb_logical_type type);
duckdb_logical_type logical_type(Type type);
/* Rows of a chunk whose columns are all flat. */
void put_chunk(Bytes *bytes, duckdb_data_chunk chunk, const Type *types, uint32_t columns);
/* The same back, into a chunk of these types; false where the bytes are no such rows. */
bool take_chunk(Reader *reader, duckdb_data_chunk chunk, const Type *types, uint32_t columns);

/* ---- helper.c ---- */

/* The helper of one database, and the connections on which it is let run queries. */
typedef struct Helper Helper;

/* Opens the connections; NULL where that fails. They stay open as long as the process, and the database with them. */
Helper *helper_for(duckdb_database database);

/* One exchange at a time with the helper, which is started where it does not run. False inside of an exchange: a query
 * that the helper asked for is planned on the thread that runs it, and would wait for itself. */
bool helper_begin(Helper *helper);
void helper_end(Helper *helper);

typedef struct {
	char kind;
	Bytes body;
} Frame;

/* Sends a request and runs what queries the helper asks for, up to the frame that answers. False with `error` set to a
 * sentence (to be freed) where the helper cannot be reached, or ended. Between helper_begin and helper_end. */
bool helper_ask(Helper *helper, char kind, const Bytes *request, Frame *answer, char **error);
/* The next frame of an answer that has several. */
bool helper_next(Helper *helper, Frame *answer, char **error);

/* ---- functions.c ---- */

bool register_functions(duckdb_connection connection, Helper *helper);
bool register_reminders(duckdb_connection connection);

#endif
