/* The helper: a dpsql process that plans, charges, draws and stores, while DuckDB's rows stay here.
 *
 * It talks over a pair of sockets, in frames of a kind (one letter), a size (u32) and a body. Here one request is sent
 * (B: bind, R: run), and what comes before its answer are errands on this database:
 *
 *   Q  connection (u8), SQL         answered with T (columns), C (rows) ..., Z, or X with what DuckDB says
 *   A  table, columns, rows ...     appends to a table; answered with Z, or X
 *
 * What the helper answers itself: S (columns) to B; C ..., Z to R; E with a sentence to both.
 */
/* for dladdr */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "native.h"

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

extern char **environ;

enum { PROTOCOL = 1 }; /* in step with dpsql/frontends/shell/frames.py */
enum { HOME, PINNED, CONNECTIONS };

struct Helper {
	duckdb_connection connections[CONNECTIONS];
	pthread_mutex_t lock;
	pid_t process; /* 0 where none runs */
	int channel;
};

static char *sentence(const char *format, ...) {
	char *text = malloc(1024);
	if (text) {
		va_list values;
		va_start(values, format);
		vsnprintf(text, 1024, format, values);
		va_end(values);
	}
	return text;
}

Helper *helper_for(duckdb_database database) {
	Helper *helper = calloc(1, sizeof(*helper));
	if (!helper) {
		return NULL;
	}
	helper->channel = -1;
	for (uint32_t i = 0; i < CONNECTIONS; i++) {
		if (duckdb_connect(database, &helper->connections[i]) == DuckDBError) {
			while (i-- > 0) {
				duckdb_disconnect(&helper->connections[i]);
			}
			free(helper);
			return NULL;
		}
	}
	pthread_mutexattr_t kind;
	pthread_mutexattr_init(&kind);
	pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(&helper->lock, &kind);
	pthread_mutexattr_destroy(&kind);
	return helper;
}

bool helper_begin(Helper *helper) {
	return pthread_mutex_lock(&helper->lock) == 0;
}

void helper_end(Helper *helper) {
	pthread_mutex_unlock(&helper->lock);
}

/* Forgets a helper that does not answer; the next request starts another one. */
static char *give_up(Helper *helper) {
	int status = 0;
	close(helper->channel);
	helper->channel = -1;
	const pid_t process = helper->process;
	helper->process = 0;
	kill(process, SIGKILL);
	while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
		return sentence("dpsql's helper could not be started: DPSQL_HELPER, or the file .helper beside the extension, "
		                "names no program; run: dpsql install-extension");
	}
	return sentence("dpsql's helper ended before it answered; what was charged stays, and pays for asking again");
}

static bool send_all(int channel, const void *data, size_t size) {
	const char *rest = data;
	while (size) {
		const ssize_t sent = send(channel, rest, size, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR) {
			continue;
		}
		if (sent <= 0) {
			return false;
		}
		rest += sent;
		size -= (size_t)sent;
	}
	return true;
}

static bool receive_all(int channel, void *data, size_t size) {
	char *rest = data;
	while (size) {
		const ssize_t received = recv(channel, rest, size, 0);
		if (received < 0 && errno == EINTR) {
			continue;
		}
		if (received <= 0) {
			return false;
		}
		rest += received;
		size -= (size_t)received;
	}
	return true;
}

static bool send_frame(Helper *helper, char kind, const Bytes *body) {
	const size_t size = body ? body->size : 0;
	if ((body && body->failed) || size > UINT32_MAX) {
		return false;
	}
	char head[5] = {kind};
	const uint32_t length = (uint32_t)size;
	memcpy(head + 1, &length, sizeof(length));
	return send_all(helper->channel, head, sizeof(head)) && send_all(helper->channel, body ? body->data : NULL, size);
}

static bool receive_frame(Helper *helper, Frame *frame) {
	char head[5];
	bytes_free(&frame->body);
	if (!receive_all(helper->channel, head, sizeof(head))) {
		return false;
	}
	uint32_t size;
	memcpy(&size, head + 1, sizeof(size));
	frame->kind = head[0];
	frame->body.data = malloc(size ? size : 1);
	if (!frame->body.data) {
		return false;
	}
	frame->body.size = frame->body.room = size;
	return receive_all(helper->channel, frame->body.data, size);
}

/* The program: what DPSQL_HELPER names, or the first line of the file .helper beside this library, or dpsql itself. */
static void find_program(char *program, size_t room) {
	const char *named = getenv("DPSQL_HELPER");
	Dl_info library;
	snprintf(program, room, "%s", named && *named ? named : "dpsql");
	if ((named && *named) || !dladdr((const void *)find_program, &library) || !library.dli_fname) {
		return;
	}
	char path[4096];
	const int length = snprintf(path, sizeof(path), "%s.helper", library.dli_fname);
	FILE *file = length > 0 && (size_t)length < sizeof(path) ? fopen(path, "r") : NULL;
	if (file) {
		if (fgets(path, sizeof(path), file) && path[strcspn(path, "\r\n")] != '\0') {
			path[strcspn(path, "\r\n")] = '\0';
		}
		if (*path) {
			snprintf(program, room, "%s", path);
		}
		fclose(file);
	}
}

static int spawn(const char *program, int channel, pid_t *process) {
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t defaults;
	char *const arguments[] = {(char *)program, "helper", NULL};
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	posix_spawn_file_actions_adddup2(&actions, channel, STDIN_FILENO);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	sigemptyset(&defaults);
	sigaddset(&defaults, SIGINT);
	sigaddset(&defaults, SIGPIPE);
	posix_spawnattr_setsigdefault(&attributes, &defaults);
	/* a group of its own: Ctrl-C at the prompt is for the shell */
	posix_spawnattr_setpgroup(&attributes, 0);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
	const int failure = posix_spawnp(process, program, &actions, &attributes, arguments, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return failure;
}

static char *start(Helper *helper) {
	char program[4096];
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0) {
		return sentence("dpsql's helper could not be started: %s", strerror(errno));
	}
	fcntl(ends[0], F_SETFD, FD_CLOEXEC);
	fcntl(ends[1], F_SETFD, FD_CLOEXEC);
	find_program(program, sizeof(program));
	const int failure = spawn(program, ends[1], &helper->process);
	close(ends[1]);
	if (failure) {
		close(ends[0]);
		helper->process = 0;
		return sentence("dpsql's helper could not be started: %s: %s; install dpsql and run: dpsql install-extension",
		                program, strerror(failure));
	}
	helper->channel = ends[0];
	Frame hello = {0};
	if (!receive_frame(helper, &hello)) {
		bytes_free(&hello.body);
		return give_up(helper);
	}
	Reader reader = {hello.body.data, hello.body.size, false};
	const uint32_t protocol = take_u32(&reader);
	const bool understood = hello.kind == 'V' && protocol == PROTOCOL;
	bytes_free(&hello.body);
	if (!understood) {
		free(give_up(helper));
		return sentence("this extension and the installed dpsql are of different versions; run: dpsql install-extension");
	}
	return NULL;
}

static bool send_rows(Helper *helper, duckdb_result *result, const Type *types, uint32_t columns) {
	duckdb_data_chunk chunk;
	bool sent = true;
	while (sent && (chunk = duckdb_fetch_chunk(*result))) {
		Bytes body = {0};
		put_chunk(&body, chunk, types, columns);
		duckdb_destroy_data_chunk(&chunk);
		sent = send_frame(helper, 'C', &body);
		bytes_free(&body);
	}
	return sent && send_frame(helper, 'Z', NULL);
}

static bool send_result(Helper *helper, duckdb_result *result) {
	const uint32_t columns = (uint32_t)duckdb_column_count(result);
	Type *types = calloc(columns + 1, sizeof(*types));
	Bytes head = {0};
	bool flat = types != NULL;
	put_u32(&head, columns);
	for (uint32_t i = 0; types && i < columns; i++) {
		duckdb_logical_type type = duckdb_column_logical_type(result, i);
		const char *name = duckdb_column_name(result, i);
		types[i] = type_of(type);
		duckdb_destroy_logical_type(&type);
		put_text(&head, name, strlen(name));
		put_bytes(&head, &types[i], sizeof(types[i]));
		flat = flat && is_flat(types[i]);
	}
	/* the helper sees by the types that the rows are missing, and asks for them as texts */
	const bool sent = types && send_frame(helper, 'T', &head) &&
	                  (flat ? send_rows(helper, result, types, columns) : send_frame(helper, 'Z', NULL));
	bytes_free(&head);
	free(types);
	return sent;
}

static bool send_failure(Helper *helper, const char *text) {
	Bytes body = {0};
	put_text(&body, text ? text : "", text ? strlen(text) : 0);
	const bool sent = send_frame(helper, 'X', &body);
	bytes_free(&body);
	return sent;
}

static bool run_query(Helper *helper, Reader *reader) {
	const uint8_t place = take_u8(reader);
	char *sql = take_text(reader);
	bool sent = false;
	if (sql && !reader->failed && place < CONNECTIONS) {
		duckdb_result result;
		if (duckdb_query(helper->connections[place], sql, &result) == DuckDBError) {
			sent = send_failure(helper, duckdb_result_error(&result));
		} else {
			sent = send_result(helper, &result);
		}
		duckdb_destroy_result(&result);
	}
	free(sql);
	return sent;
}

static bool append(duckdb_appender appender, Reader *reader) {
	const uint32_t columns = take_count(reader, sizeof(Type));
	Type *types = calloc((size_t)columns + 1, sizeof(*types));
	duckdb_logical_type *logical = calloc((size_t)columns + 1, sizeof(*logical));
	bool done = types && logical;
	for (uint32_t i = 0; done && i < columns; i++) {
		if ((done = take_type(reader, &types[i]))) {
			logical[i] = logical_type(types[i]);
		}
	}
	for (uint32_t chunks = done ? take_u32(reader) : 0; done && chunks; chunks--) {
		duckdb_data_chunk chunk = duckdb_create_data_chunk(logical, columns);
		done = take_chunk(reader, chunk, types, columns) && duckdb_append_data_chunk(appender, chunk) == DuckDBSuccess;
		duckdb_destroy_data_chunk(&chunk);
	}
	for (uint32_t i = 0; logical && i < columns; i++) {
		duckdb_destroy_logical_type(&logical[i]);
	}
	free(logical);
	free(types);
	return done && !reader->failed;
}

static bool append_rows(Helper *helper, Reader *reader) {
	char *table = take_text(reader);
	duckdb_appender appender = NULL;
	bool done = table && duckdb_appender_create_ext(helper->connections[PINNED], "temp", "main", table, &appender) ==
	                         DuckDBSuccess;
	done = done && append(appender, reader) && duckdb_appender_close(appender) == DuckDBSuccess;
	duckdb_appender_destroy(&appender);
	free(table);
	return done ? send_frame(helper, 'Z', NULL) : send_failure(helper, "rows could not be appended");
}

bool helper_next(Helper *helper, Frame *answer, char **error) {
	while (receive_frame(helper, answer)) {
		Reader reader = {answer->body.data, answer->body.size, false};
		bool done;
		switch (answer->kind) {
		case 'Q':
			done = run_query(helper, &reader);
			break;
		case 'A':
			done = append_rows(helper, &reader);
			break;
		default:
			return true;
		}
		if (!done) {
			break;
		}
	}
	bytes_free(&answer->body);
	*error = give_up(helper);
	return false;
}

bool helper_ask(Helper *helper, char kind, const Bytes *request, Frame *answer, char **error) {
	if (!helper->process && (*error = start(helper))) {
		return false;
	}
	if (!send_frame(helper, kind, request)) {
		*error = give_up(helper);
		return false;
	}
	return helper_next(helper, answer, error);
}
