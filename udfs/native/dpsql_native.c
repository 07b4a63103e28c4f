/* Where DuckDB enters the library. */
#include <stdlib.h>

#include "native.h"

/* dpsql itself loads the library for the aggregate alone: it needs no helper, and no connections that keep its
 * database open. */
static bool is_for_the_aggregate_alone(void) {
	const char *value = getenv("DPSQL_AGGREGATE_ONLY");
	return value && *value;
}

static bool register_all(duckdb_database database, duckdb_connection connection) {
	if (!register_keep(connection) || !register_unit(connection) || !register_sums(connection)) {
		return false;
	}
	if (is_for_the_aggregate_alone()) {
		return true;
	}
	Helper *helper = helper_for(database);
	return helper && register_functions(connection, helper) && register_reminders(connection);
}

DUCKDB_EXTENSION_ENTRYPOINT_CUSTOM(duckdb_extension_info info, struct duckdb_extension_access *access) {
	duckdb_database *database = access->get_database(info);
	duckdb_connection connection;
	if (!database || duckdb_connect(*database, &connection) == DuckDBError) {
		access->set_error(info, "dpsql could not open a connection to the database");
		return false;
	}
	const bool done = register_all(*database, connection);
	duckdb_disconnect(&connection);
	if (!done) {
		access->set_error(info, "dpsql could not register its functions");
	}
	return done;
}
