/* SPDX-License-Identifier: Apache-2.0 */
/* One table, a row for each of the scheduler's. Commits go to the write-ahead log
 * and are synchronous. The log and the table are made larger than they need to be
 * at the start, and neither is cut: on a full disk a server that is lost, or a job
 * that ends, still has room for its rows. New jobs and keys are refused before
 * that room is used up. */
#include "psched/store.h"

#include "base/alloc.h"
#include "base/log.h"
#include "common/exit.h"
#include "core/sched/sched.h"
#include "core/sched/store.h"
#include "proto/row.h"

#include <sqlite3.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Room that is kept for changes, in the table and in the log. */
#define RESERVE_BYTES  (1024 * 1024)
/* Pages of the log that are written back at a time: less than the reserve. */
#define CHECKPOINT     "64"
/* Free bytes of the disk below which no job and no key is taken. */
#define ROOM_BYTES     (2ull * RESERVE_BYTES)
/* "PSKV" as SQLite's application id. */
#define APPLICATION_ID 1347636054

#define TEXT(number)   TEXT_OF(number)
#define TEXT_OF(text)  #text

static const char setup[] = "PRAGMA journal_mode = WAL;"
                            "PRAGMA synchronous = FULL;"
                            "PRAGMA wal_autocheckpoint = " CHECKPOINT;
static const char make_table[] =
    "BEGIN IMMEDIATE; PRAGMA application_id = " TEXT(
        APPLICATION_ID) ";"
                        "CREATE TABLE row (kind INTEGER NOT NULL,"
                        " a INTEGER NOT NULL, b INTEGER NOT NULL, value BLOB "
                        "NOT NULL,"
                        " PRIMARY KEY (kind, a, b)) WITHOUT ROWID; COMMIT";

enum statement { BEGIN, PUT, REMOVE, REMOVE_ALL, COMMIT, READ, STATEMENTS };

static const char *const texts[STATEMENTS] = {
    [BEGIN] = "BEGIN IMMEDIATE",
    [PUT] = "INSERT OR REPLACE INTO row VALUES (?1, ?2, ?3, ?4)",
    [REMOVE] = "DELETE FROM row WHERE kind = ?1 AND a = ?2 AND b = ?3",
    [REMOVE_ALL] = "DELETE FROM row WHERE kind = ?1 AND a = ?2",
    [COMMIT] = "COMMIT",
    /* Keys are unsigned numbers, which SQLite has not: rows of one kind come in
     * the order of the keys below 2^63, which are all. Kind 0 is the reserve of a
     * process that died while it made it. */
    [READ] = "SELECT * FROM row WHERE kind != 0 ORDER BY kind, a, b",
};

struct psched_store {
    sqlite3 *db;
    sqlite3_stmt *statement[STATEMENTS];
    char path[PATH_MAX];
    int lock; /* Descriptor of the file beside it, which is locked. */
    bool has_begun;
    bool has_failed;
};

static void add_error(const struct psched_store *t, struct ps_str *why)
{
    ps_str_addf(why, "%s: ", t->path);
    ps_str_add(why, t->db != NULL ? sqlite3_errmsg(t->db) : "no memory");
}

/* -------------------------------------------------------------------- open */

/* Two processes that write rows of one cluster would each go on with half of
 * it. */
static int lock_file(struct psched_store *t, struct ps_str *why)
{
    char path[PATH_MAX];
    const int len = snprintf(path, sizeof(path), "%s.lock", t->path);

    if (len < 0 || len >= (int)sizeof(path)) {
        ps_str_add(why, "the path is too long");
        return PS_E_CONFIG;
    }
    t->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (t->lock >= 0 && flock(t->lock, LOCK_EX | LOCK_NB) == 0) {
        return 0;
    }
    if (t->lock >= 0 && errno == EWOULDBLOCK) {
        ps_str_addf(why,
                    "%s: another psched has it open; give each cluster a "
                    "file of its own",
                    t->path);
        return PS_E_AGAIN;
    }
    ps_str_addf(why, "%s: %s", path, strerror(errno));
    return PS_E_CONFIG;
}

static bool open_db(struct psched_store *t, int flags, struct ps_str *why)
{
    const mode_t mask = umask(077);
    int rc = sqlite3_open_v2(t->path, &t->db, flags, NULL);

    umask(mask);
    if (rc != SQLITE_OK) {
        add_error(t, why);
        return false;
    }
    (void)sqlite3_busy_timeout(t->db, 5000); /* A copy is being made. */
    return true;
}

static bool execute(struct psched_store *t, const char *sql, struct ps_str *why)
{
    if (sqlite3_exec(t->db, sql, NULL, NULL, NULL) == SQLITE_OK) {
        return true;
    }
    add_error(t, why);
    return false;
}

static int64_t number_of(struct psched_store *t, const char *sql)
{
    sqlite3_stmt *s = NULL;
    int64_t n = -1;

    if (sqlite3_prepare_v2(t->db, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW) {
        n = sqlite3_column_int64(s, 0);
    }
    (void)sqlite3_finalize(s);
    return n;
}

/* An old file is not written here: the disk may be full. */
static bool set_up(struct psched_store *t, struct ps_str *why)
{
    if (!execute(t, setup, why)) {
        return false;
    }
    if (number_of(t, "SELECT count(*) FROM sqlite_master") == 0) {
        return execute(t, make_table, why);
    }
    if (number_of(t, "PRAGMA application_id") != APPLICATION_ID) {
        ps_str_addf(why, "%s: it is not a file of psched", t->path);
        return false;
    }
    return true;
}

/* Free bytes of the file's disk; all, if they are not known. */
static uint64_t free_bytes(const struct psched_store *t)
{
    struct statvfs fs;

    return statvfs(t->path, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize
                                      : UINT64_MAX;
}

/* Makes free pages in the table, and as many in the log. Without room for them the
 * rows are still good. */
static void make_reserve(struct psched_store *t)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    int persist = 1;
    char sql[256];

    (void)sqlite3_file_control(t->db, "main", SQLITE_FCNTL_PERSIST_WAL,
                               &persist);
    if (number_of(t, "PRAGMA freelist_count") *
            number_of(t, "PRAGMA page_size") >=
        RESERVE_BYTES) {
        return;
    }
    snprintf(sql, sizeof(sql),
             "BEGIN; INSERT OR REPLACE INTO row VALUES (0, 0, 0, "
             "zeroblob(%d)); COMMIT; DELETE FROM row WHERE kind = 0; "
             "PRAGMA wal_checkpoint(RESTART)",
             RESERVE_BYTES + RESERVE_BYTES / 8);
    if (free_bytes(t) < 3ull * RESERVE_BYTES) {
        ps_str_addf(&why, "%s: the disk has too little room", t->path);
    } else if (execute(t, sql, &why)) {
        return;
    }
    (void)sqlite3_exec(t->db, "ROLLBACK", NULL, NULL, NULL);
    ps_log(PS_LOG_WARNING, "state.file: no reserve for a full disk: %s",
           why.data);
}

static bool prepare(struct psched_store *t, struct ps_str *why)
{
    for (size_t i = 0; i < STATEMENTS; i++) {
        if (sqlite3_prepare_v3(t->db, texts[i], -1, SQLITE_PREPARE_PERSISTENT,
                               &t->statement[i], NULL) != SQLITE_OK) {
            add_error(t, why);
            return false;
        }
    }
    return true;
}

static struct psched_store *store_new(const char *path, struct ps_str *why)
{
    struct psched_store *t = ps_calloc(1, sizeof(*t));

    t->lock = -1;
    if (!ps_str_copy(t->path, sizeof(t->path), path)) {
        ps_str_add(why, "the path is too long");
        ps_free(t);
        return NULL;
    }
    return t;
}

int psched_store_open(const char *path, struct psched_store **ret_store,
                      struct ps_str *why)
{
    struct psched_store *t = store_new(path, why);
    int rc = t != NULL ? lock_file(t, why) : PS_E_CONFIG;

    if (rc == 0 &&
        (!open_db(t, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, why) ||
         !set_up(t, why) || !prepare(t, why))) {
        rc = PS_E_CONFIG;
    }
    if (rc != 0) {
        psched_store_close(t);
        return rc;
    }
    make_reserve(t);
    *ret_store = t;
    return 0;
}

void psched_store_close(struct psched_store *t)
{
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < STATEMENTS; i++) {
        (void)sqlite3_finalize(t->statement[i]);
    }
    (void)sqlite3_close(t->db);
    if (t->lock >= 0) {
        close(t->lock);
    }
    ps_free(t);
}

/* ----------------------------------------------------------------- changes */

static bool run(struct psched_store *t, enum statement which)
{
    sqlite3_stmt *s = t->statement[which];
    const int rc = sqlite3_step(s);

    if (rc != SQLITE_DONE) {
        ps_log(PS_LOG_ERROR, "state.file: %s: %s", t->path,
               sqlite3_errmsg(t->db));
        t->has_failed = true;
    }
    (void)sqlite3_reset(s);
    (void)sqlite3_clear_bindings(s);
    return rc == SQLITE_DONE;
}

static void bind_keys(sqlite3_stmt *s, const struct ps_store_row *row)
{
    (void)sqlite3_bind_int(s, 1, row->kind);
    (void)sqlite3_bind_int64(s, 2, (int64_t)row->a);
    (void)sqlite3_bind_int64(s, 3, (int64_t)row->b);
}

static void put_row(struct psched_store *t, const struct ps_store_row *row)
{
    const struct ps_packet *p = row->value;
    uint8_t *bytes;
    size_t len;
    int rc = ps_row_encode(p->msg, p->slices, p->slice_count, &bytes, &len);

    if (rc != 0) {
        ps_log(PS_LOG_ERROR, "state.file: %s cannot be stored: %s",
               ps_msg_name(p->msg->code), ps_strerror(rc));
        t->has_failed = true;
        return;
    }
    bind_keys(t->statement[PUT], row);
    (void)sqlite3_bind_blob64(t->statement[PUT], 4, bytes, len, SQLITE_STATIC);
    (void)run(t, PUT);
    ps_free(bytes);
}

void psched_store_change(struct psched_store *t,
                         const struct ps_store_row *rows, uint32_t count)
{
    if (!t->has_begun) {
        t->has_begun = true;
        (void)run(t, BEGIN);
    }
    for (uint32_t i = 0; i < count && !t->has_failed; i++) {
        const bool all = rows[i].b == PS_STORE_ALL;

        if (rows[i].value != NULL) {
            put_row(t, &rows[i]);
            continue;
        }
        (void)sqlite3_bind_int(t->statement[all ? REMOVE_ALL : REMOVE], 1,
                               rows[i].kind);
        (void)sqlite3_bind_int64(t->statement[all ? REMOVE_ALL : REMOVE], 2,
                                 (int64_t)rows[i].a);
        if (!all) {
            (void)sqlite3_bind_int64(t->statement[REMOVE], 3,
                                     (int64_t)rows[i].b);
        }
        (void)run(t, all ? REMOVE_ALL : REMOVE);
    }
}

bool psched_store_commit(struct psched_store *t)
{
    if (t->has_begun && !t->has_failed) {
        t->has_begun = false;
        (void)run(t, COMMIT);
    }
    return !t->has_failed;
}

bool psched_store_has_room(void *arg, struct ps_str *why)
{
    const struct psched_store *t = arg;
    const uint64_t bytes = free_bytes(t);

    if (bytes >= ROOM_BYTES) {
        return true;
    }
    ps_str_add(why, "no room in state.file: the disk of ");
    ps_str_add(why, t->path);
    ps_str_add(why, " has ");
    ps_str_add_size(why, bytes);
    ps_str_add(why, " left; free some on the scheduler's host");
    return false;
}

/* -------------------------------------------------------------------- load */

static int load_row(struct ps_sched_load *l, struct ps_decoder *d,
                    sqlite3_stmt *s, struct ps_str *why)
{
    const uint8_t *bytes = sqlite3_column_blob(s, 3);
    const int len = sqlite3_column_bytes(s, 3);
    const int kind = sqlite3_column_int(s, 0);
    const struct ps_sched_row_key key = {
        .kind = (uint8_t)(kind >= 0 && kind <= UINT8_MAX ? kind : 0),
        .a = (uint64_t)sqlite3_column_int64(s, 1),
        .b = (uint64_t)sqlite3_column_int64(s, 2)};
    struct ps_slice payload = {0};
    struct ps_msg msg;
    int rc = bytes != NULL
                 ? ps_row_decode(d, bytes, (size_t)len, &msg, &payload)
                 : PS_E_PROTO;

    ps_str_addf(why, "row %d %" PRIu64 " %" PRIu64 ": ", kind, key.a, key.b);
    if (rc != 0) {
        ps_str_add(why, ps_strerror(rc));
        return rc;
    }
    rc = ps_sched_load_row(l, &key, &msg, payload.buf != NULL ? &payload : NULL,
                           why);
    ps_buf_unref(payload.buf);
    return rc;
}

static int load_rows(struct psched_store *t, struct ps_sched_load *l,
                     struct ps_str *why)
{
    sqlite3_stmt *s = t->statement[READ];
    struct ps_decoder *d = ps_decoder_new();
    int rc = d != NULL ? 0 : PS_E_NOMEM;
    int step = SQLITE_DONE;

    while (rc == 0 && (step = sqlite3_step(s)) == SQLITE_ROW) {
        ps_str_init(why, why->data, why->cap);
        ps_str_addf(why, "%s: ", t->path);
        rc = load_row(l, d, s, why);
    }
    if (rc == 0) {
        ps_str_init(why, why->data, why->cap);
    }
    if (rc == 0 && step != SQLITE_DONE) {
        add_error(t, why);
        rc = PS_E_IO;
    }
    (void)sqlite3_reset(s);
    ps_decoder_free(d);
    return rc;
}

int psched_store_load(struct psched_store *t, struct ps_sched *s, ps_time now,
                      struct ps_str *why)
{
    struct ps_sched_load *l = ps_sched_load_begin(s, now);
    int rc = load_rows(t, l, why);
    int end = ps_sched_load_end(l, rc == 0, why);

    return rc != 0 ? rc : end;
}

/* ------------------------------------------------------------ check and copy */

/* The cluster that the file says; the rows are of one. */
static void read_cluster(struct psched_store *t, char ret[PS_NAME_MAX + 1])
{
    struct ps_decoder *d = ps_decoder_new();
    sqlite3_stmt *s = t->statement[READ];
    struct ps_slice payload = {0};
    struct ps_msg msg;

    *ret = '\0';
    if (d != NULL && sqlite3_step(s) == SQLITE_ROW &&
        sqlite3_column_blob(s, 3) != NULL &&
        ps_row_decode(d, sqlite3_column_blob(s, 3),
                      (size_t)sqlite3_column_bytes(s, 3), &msg,
                      &payload) == 0 &&
        msg.code == PS_MSG_ROW_META) {
        ps_str_copy(ret, PS_NAME_MAX + 1,
                    ps_str_or_empty(msg.row_meta.cluster));
    }
    ps_buf_unref(payload.buf);
    (void)sqlite3_reset(s);
    ps_decoder_free(d);
}

static int check_rows(struct psched_store *t, struct ps_str *why)
{
    struct ps_sched_options o = {.instance = 1, .seed = 1};
    struct ps_sched *s;
    int rc;

    read_cluster(t, o.cluster);
    ps_str_copy(o.name, sizeof(o.name), "psched");
    s = ps_sched_new(&o, 1);
    rc = psched_store_load(t, s, 1, why);
    if (rc == 0) {
        printf("%s: epoch %u, %u jobs, of cluster '%s'\n", t->path,
               ps_sched_epoch(s), ps_sched_job_count(s), o.cluster);
    }
    ps_sched_free(s);
    return rc;
}

static struct psched_store *open_to_read(const char *path, struct ps_str *why)
{
    struct psched_store *t = store_new(path, why);

    if (t == NULL) {
        return NULL;
    }
    if (!open_db(t, SQLITE_OPEN_READONLY, why) || !prepare(t, why)) {
        psched_store_close(t);
        return NULL;
    }
    return t;
}

static int check_file(const char *path)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct psched_store *t = open_to_read(path, &why);
    int rc = t != NULL ? check_rows(t, &why) : PS_E_NOENT;

    psched_store_close(t);
    if (rc != 0) {
        fprintf(stderr, "psched: %s\n", why.data);
    }
    return ps_exit_with_output("psched", rc == 0 ? PS_EXIT_OK : PS_EXIT_CONFIG);
}

static bool copy_rows(struct psched_store *t, const char *to,
                      struct ps_str *why)
{
    const mode_t mask = umask(077);
    sqlite3_stmt *s = NULL;
    bool ok = sqlite3_prepare_v2(t->db, "VACUUM INTO ?1", -1, &s, NULL) ==
                  SQLITE_OK &&
              sqlite3_bind_text(s, 1, to, -1, SQLITE_STATIC) == SQLITE_OK &&
              sqlite3_step(s) == SQLITE_DONE;

    if (!ok) {
        add_error(t, why);
    }
    (void)sqlite3_finalize(s);
    umask(mask);
    return ok;
}

static int copy_file(const char *from, const char *to)
{
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);
    struct psched_store *t = open_to_read(from, &why);
    bool ok = t != NULL && copy_rows(t, to, &why);

    psched_store_close(t);
    if (!ok) {
        fprintf(stderr, "psched: %s\n", why.data);
    }
    return ok ? check_file(to) : PS_EXIT_CANTCREAT;
}

int psched_store_main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--check-state") == 0) {
        return check_file(argv[2]);
    }
    if (argc == 4 && strcmp(argv[1], "--copy-state") == 0) {
        return copy_file(argv[2], argv[3]);
    }
    fprintf(stderr, "psched: --check-state takes a FILE, --copy-state a file "
                    "and the copy's name\n");
    return PS_EXIT_USAGE;
}
