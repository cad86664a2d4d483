/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the program in this library: all enter and leave a client with each
 * public call, and some wait in it.
 *
 * A process is still if it can begin no operation before one of its open
 * operations ends: threads in waits of this library without a limit of time
 * need that; each other thread sleeps until a thread of this process wakes it.
 * Its sleep is a fact of the kernel: /proc has the state of a thread, its system
 * call and how often it has run. Where that cannot be read the process
 * counts as moving. A thread that sleeps for something from outside, such as a
 * packet, makes the process `quiet` if no thread that ever called this library
 * is outside of it; otherwise the process may go on at any time. */
#include "client/threads.h"
#include "client/op.h"
#include "client/state.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/fnv1a.h"
#include "base/num.h"
#include "base/str.h"

/* Threads that are looked at; a process with more counts as moving. */
#define THREADS_MAX 1024u

/* -------------------------------------------------------------- the process */

static struct {
    pthread_mutex_t lock; /* Of the callers. */
    pid_t callers[THREADS_MAX];
    uint32_t caller_count;
    uint64_t drawn; /* Part of the process number; 0: none yet. */
    /* Of the rest; taken after `lock`. A fork holds it, so calls of threads that
     * other handlers of the fork wait for need it only to open and close. */
    pthread_mutex_t clients_lock;
    struct ps_list clients; /* By of_process. */
    bool watches_forks;
    /* A page that the kernel wipes in a child, however it is made, before any
     * handler runs there: the mark of clients opened since. NULL: no memory. */
    uint32_t *mark;
    uint32_t marks; /* Given so far. */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER,
             .clients_lock = PTHREAD_MUTEX_INITIALIZER,
             .clients = {{&process.clients.head, &process.clients.head}}};

/* Of this thread; 0: it has not called yet. */
static _Thread_local pid_t own_tid;

static void before_fork(void)
{
    pthread_mutex_lock(&process.clients_lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&process.clients_lock);
}

/* In a forked child, whose only thread is the one that forked. */
static void after_fork_in_child(void)
{
    PS_LIST_EACH_OF(struct psc_client, c, of_process, &process.clients)
    {
        c->is_forked = true;
        ps_sock_close_copy(c->sock);
    }
    own_tid = 0;
    process.caller_count = 0;
    ps_list_init(&process.clients);
    pthread_mutex_init(&process.clients_lock, NULL);
    pthread_mutex_init(&process.lock, NULL);
}

/* Returns the mark of a client that this process opens; 0: there is none. */
static uint32_t mark_process(void)
{
    if (process.mark == NULL) {
        uint32_t *page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (page == MAP_FAILED) {
            return 0;
        }
        if (madvise(page, sizeof(*page), MADV_WIPEONFORK) != 0) {
            munmap(page, sizeof(*page));
            return 0;
        }
        process.mark = page;
    }
    if (*process.mark == 0) {
        *process.mark = ++process.marks;
    }
    return *process.mark;
}

bool client_is_forked(const struct psc_client *c)
{
    return c->is_forked || (c->mark != 0 && c->mark != *process.mark);
}

void waiting_note_caller(void)
{
    own_tid = gettid();
    pthread_mutex_lock(&process.lock);
    if (process.drawn == 0) {
        if (getrandom(&process.drawn, sizeof(process.drawn), GRND_NONBLOCK) <
            0) {
            process.drawn = (uint64_t)(uintptr_t)&process;
        }
        process.drawn |= 1;
    }
    if (process.caller_count < THREADS_MAX) {
        process.callers[process.caller_count++] = own_tid;
    }
    pthread_mutex_unlock(&process.lock);
}

uint64_t waiting_process(void)
{
    return process.drawn ^ ((uint64_t)getpid() << 32);
}

bool waiting_add_client(struct psc_client *c)
{
    bool is_watched;

    if (own_tid == 0) {
        waiting_note_caller();
    }
    pthread_mutex_lock(&process.clients_lock);
    process.watches_forks = process.watches_forks ||
                            pthread_atfork(before_fork, after_fork,
                                           after_fork_in_child) == 0;
    is_watched = process.watches_forks;
    if (is_watched) {
        c->mark = mark_process();
        ps_list_push_back(&process.clients, &c->of_process);
    }
    pthread_mutex_unlock(&process.clients_lock);
    return is_watched;
}

void waiting_remove_client(struct psc_client *c)
{
    if (client_is_forked(c)) {
        return;
    }
    pthread_mutex_lock(&process.clients_lock);
    ps_list_unlink(&c->of_process);
    pthread_mutex_unlock(&process.clients_lock);
}

/* -------------------------------------------------------------------- calls */

void client_reap_ops(struct psc_client *c)
{
    struct psc_op *op;

    if (c->has_unended_ops) {
        c->has_unended_ops = false;
        op_end_all(c, c->rc, c->text);
    }
    while ((op = PS_LIST_POP(struct psc_op, of_key, &c->ops.deferred_free)) !=
           NULL) {
        op_free(op);
    }
}

int client_enter(struct psc_client *c)
{
    if (c == NULL) {
        return PSC_E_INVAL;
    }
    if (client_is_forked(c)) {
        return PSC_E_FORKED;
    }
    if (own_tid == 0) {
        waiting_note_caller();
    }
    pthread_mutex_lock(&c->lock);
    return 0;
}

int client_enter_with(struct psc_client *c, const void *argument,
                      const char *what)
{
    int rc = client_enter(c);

    if (rc == 0 && argument == NULL) {
        rc = client_error(c, PSC_E_INVAL, "%s: NULL is no argument", what);
        client_leave(c);
    }
    return rc;
}

int client_file_error(struct psc_client *c, int rc, const char *path,
                      const char *what)
{
    if (client_enter(c) == 0) {
        rc = client_error(c, rc, "%s: %s", path, what);
        client_leave(c);
    }
    return rc;
}

void client_leave(struct psc_client *c)
{
    client_reap_ops(c);
    pthread_mutex_unlock(&c->lock);
}

/* -------------------------------------------------------------------- waits */

void waiting_begin(struct psc_client *c, struct waiting *w)
{
    w->tid = own_tid;
    ps_list_push_back(&c->progress.waiting, &w->node);
}

void waiting_end(struct waiting *w)
{
    ps_list_remove(&w->node);
}

/* -------------------------------------------------------------- this library */

/* Knowledge of the process so far. */
struct survey {
    enum ps_stillness still;
    uint64_t moves;
    uint32_t ops;
    pid_t waiting[THREADS_MAX]; /* Threads in waits of this library. */
    uint32_t waiting_count;
    bool has_caller_outside;
    struct ps_str does;
};

/* True: it can end, or begin operations, without the end of another one. */
static bool op_is_moving(const struct psc_op *op)
{
    return op->state == OP_COPYING || op->state == OP_ENDING ||
           op->src.streaming || op->src.is_held;
}

static void describe_wait(struct survey *s, const struct psc_client *c,
                          const struct waiting *w, bool several)
{
    char name[PS_KEY_NAME_MAX + 64];

    op_label(w->until->first(w->until->arg), name, sizeof(name));
    ps_str_add(&s->does, s->does.len > 0 ? " and " : "in ");
    ps_str_add_visible(&s->does, name);
    if (several) {
        ps_str_add(&s->does, " of job ");
        ps_str_add_visible(&s->does, c->options.job);
    }
}

/* Looks at the threads and operations of one client. Locked. */
static bool survey_client(struct survey *s, const struct psc_client *c,
                          bool several)
{
    if (c->rc != 0 || c->reattach.link != LINK_UP ||
        c->keys.unbound_count != 0 || c->colls.join != NULL ||
        c->gpu_transfers > 0 || !ps_list_empty(&c->progress.callbacks)) {
        return false;
    }
    PS_LIST_EACH_OF(const struct psc_op, op, of_client, &c->ops.all)
    {
        if (op_is_moving(op)) {
            return false;
        }
    }
    PS_LIST_EACH_OF(const struct waiting, w, node, &c->progress.waiting)
    {
        if (w->is_limited || w->until->is_over(w->until->arg) ||
            s->waiting_count == THREADS_MAX) {
            return false;
        }
        s->waiting[s->waiting_count++] = w->tid;
        describe_wait(s, c, w, several);
    }
    s->ops += c->ops.sent;
    s->moves += c->ops.next_id + c->stats.ops;
    return true;
}

static bool survey_clients(struct survey *s, struct psc_client *own)
{
    bool is_still = true;
    bool several;

    if (pthread_mutex_trylock(&process.clients_lock) != 0) {
        return false; /* A fork, or another client begins or ends. */
    }
    several = process.clients.head.next != process.clients.head.prev;
    PS_LIST_EACH_OF(struct psc_client, c, of_process, &process.clients)
    {
        if (c != own && pthread_mutex_trylock(&c->lock) != 0) {
            is_still = false;
            break;
        }
        is_still = survey_client(s, c, several);
        if (c != own) {
            pthread_mutex_unlock(&c->lock);
        }
        if (!is_still) {
            break;
        }
    }
    pthread_mutex_unlock(&process.clients_lock);
    return is_still && s->waiting_count > 0;
}

/* ------------------------------------------------------------ other threads */

/* Reads a file of /proc/self/task/TID; false: it cannot be read. */
static bool read_task(int task, const char *tid, const char *file, char *text,
                      size_t size)
{
    struct ps_str name = PS_STR_ROOM(64);
    ssize_t n;
    int fd;

    ps_str_addf(&name, "%s/%s", tid, file);
    if (name.truncated) {
        return false;
    }
    fd = openat(task, name.data, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    n = read(fd, text, size - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* True: the address is in memory that only this process has. */
static bool is_private_memory(uint64_t address)
{
    FILE *f = fopen("/proc/self/maps", "re");
    bool is_private = false;
    uint64_t from, to;
    char flags[8];
    char line[512];

    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &from, &to, flags) ==
                3 &&
            address >= from && address < to) {
            is_private = flags[3] == 'p';
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return is_private;
}

/* Ends of the sleep of a thread. */
enum sleep {
    SLEEP_LIMITED, /* Time, or it is not known. */
    SLEEP_OUTSIDE, /* Something outside of the process. */
    SLEEP_INSIDE,  /* Another thread of the process. */
};

/* -1, or a null pointer. */
static enum sleep unless_limited(bool is_limited)
{
    return is_limited ? SLEEP_LIMITED : SLEEP_OUTSIDE;
}

static enum sleep sleep_in_futex(const uint64_t *args)
{
    const uint64_t op = args[1] & (uint64_t)FUTEX_CMD_MASK;

    if ((op != FUTEX_WAIT && op != FUTEX_WAIT_BITSET) || args[3] != 0) {
        return SLEEP_LIMITED;
    }
    return (args[1] & FUTEX_PRIVATE_FLAG) != 0 || is_private_memory(args[0])
               ? SLEEP_INSIDE
               : SLEEP_OUTSIDE;
}

static enum sleep sleep_in(long number, const uint64_t *args)
{
    switch (number) {
    case SYS_futex:
        return sleep_in_futex(args);
#ifdef SYS_poll
    case SYS_poll:
        return unless_limited((int)args[2] != -1);
#endif
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
        return unless_limited((int)args[3] != -1);
#endif
#ifdef SYS_select
    case SYS_select:
        return unless_limited(args[4] != 0);
#endif
    case SYS_epoll_pwait:
        return unless_limited((int)args[3] != -1);
    case SYS_ppoll:
        return unless_limited(args[2] != 0);
    case SYS_pselect6:
        return unless_limited(args[4] != 0);
    case SYS_read:
    case SYS_recvfrom:
    case SYS_recvmsg:
    case SYS_accept:
    case SYS_accept4:
    case SYS_wait4:
    case SYS_waitid:
    case SYS_rt_sigsuspend:
        return SLEEP_OUTSIDE;
    default:
        return SLEEP_LIMITED;
    }
}

/* "NUMBER ARG1 ... ARG6 SP PC", or "running". */
static enum sleep read_sleep(int task, const char *tid)
{
    char text[256];
    uint64_t args[6];
    long number;

    if (!read_task(task, tid, "syscall", text, sizeof(text)) ||
        sscanf(text,
               "%ld %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64
               " %" SCNx64,
               &number, &args[0], &args[1], &args[2], &args[3], &args[4],
               &args[5]) != 7) {
        return SLEEP_LIMITED;
    }
    return sleep_in(number, args);
}

/* How often the thread has left a processor; false: it runs, or is not
 * known. */
static bool read_runs(int task, const char *tid, uint64_t *ret_runs)
{
    static const char *const counts[] = {"\nvoluntary_ctxt_switches:",
                                         "\nnonvoluntary_ctxt_switches:"};
    char text[4096];
    const char *at;

    if (!read_task(task, tid, "status", text, sizeof(text)) ||
        (at = strstr(text, "\nState:")) == NULL ||
        at[7 + strspn(at + 7, " \t")] != 'S') {
        return false;
    }
    *ret_runs = 0;
    for (int i = 0; i < 2; i++) {
        at = strstr(text, counts[i]);
        if (at == NULL) {
            return false;
        }
        *ret_runs += strtoull(at + strlen(counts[i]), NULL, 10);
    }
    return true;
}

static bool is_among(pid_t tid, const pid_t *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i] == tid) {
            return true;
        }
    }
    return false;
}

static bool survey_thread(struct survey *s, int task, const char *name)
{
    pid_t tid = (pid_t)strtol(name, NULL, 10);
    enum sleep sleep;
    uint64_t runs;

    if (is_among(tid, s->waiting, s->waiting_count)) {
        return true;
    }
    /* Its runs last: it has not run since what was read before. */
    sleep = read_sleep(task, name);
    if (sleep == SLEEP_LIMITED || !read_runs(task, name, &runs)) {
        return false;
    }
    s->has_caller_outside = s->has_caller_outside ||
                            process.caller_count == THREADS_MAX ||
                            is_among(tid, process.callers,
                                     process.caller_count);
    if (sleep == SLEEP_OUTSIDE) {
        s->still = PS_STILLNESS_QUIET;
    }
    s->moves += ps_fnv1a_64(ps_fnv1a_64(PS_FNV1A_64, &tid, sizeof(tid)), &runs,
                            sizeof(runs));
    return true;
}

static bool survey_threads(struct survey *s)
{
    DIR *list = opendir("/proc/self/task");
    const struct dirent *one;
    uint32_t count = 0;
    bool is_still = list != NULL;

    while (is_still && (one = readdir(list)) != NULL) {
        if (one->d_name[0] != '.') {
            is_still = ++count <= THREADS_MAX &&
                       survey_thread(s, dirfd(list), one->d_name);
        }
    }
    if (list != NULL) {
        closedir(list);
    }
    return is_still &&
           (s->still == PS_STILLNESS_STILL || !s->has_caller_outside);
}

/* True: a signal of a timer is due, whose handler may do anything. */
static bool has_timer(void)
{
    struct itimerval t;

    for (int which = ITIMER_REAL; which <= ITIMER_PROF; which++) {
        if (getitimer((__itimer_which_t)which, &t) != 0 ||
            t.it_value.tv_sec != 0 || t.it_value.tv_usec != 0) {
            return true;
        }
    }
    return false;
}

void waiting_answer(struct psc_client *c, const struct ps_msg_l_wait_query *m)
{
    struct survey *s = calloc(1, sizeof(*s));
    char does[160];
    struct ps_msg r = {.code = PS_MSG_L_WAIT_STATE,
                       .l_wait_state = {.request = m->request}};

    if (s == NULL) {
        return; /* Not answered: it counts as moving. */
    }
    s->still = PS_STILLNESS_STILL;
    ps_str_init(&s->does, does, sizeof(does));
    pthread_mutex_lock(&process.lock);
    if (!survey_clients(s, c) || has_timer() || !survey_threads(s)) {
        s->still = PS_STILLNESS_MOVING;
    }
    pthread_mutex_unlock(&process.lock);
    r.l_wait_state.still = (uint8_t)s->still;
    r.l_wait_state.moves = s->moves;
    r.l_wait_state.ops = s->ops;
    r.l_wait_state.does = does;
    if (client_send(c, &r) != 0) {
        /* The agent is lost; the reader sees that, too. */
    }
    free(s);
}
