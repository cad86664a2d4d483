/* SPDX-License-Identifier: Apache-2.0 */
/* From an agent that was lost to the next one. What an agent knows of this
 * process, the process knows itself: memory that it shares, keys with the
 * rounds whose end it has heard, and operations that have not ended. So the
 * client goes on with any agent that its job lets take over:
 *
 *     UP        the stream ends. What the agent had is taken back, as if it
 *               had not been sent; new operations queue behind it
 *     LOST      the socket is dialled, at growing distances
 *     GREETING  somebody is there: l_hello says which rank of which job this is
 *     UP        l_welcome has come. Memory, what concerns the whole job, keys
 *               and the barrier are said again; the operations on a key leave
 *               when the agent has answered for it
 *
 * The reader does all this in its turns, which do not wait: a timer beside the
 * socket makes it come back in time. Results of the lost agent stay mapped
 * while an operation shows them. */
#include "client/state.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/str.h"

#define RETRY_FIRST_MS 10
#define RETRY_MOST_MS  1000
/* Descriptors that an agent may have kept here. */
#define KEEPS_MAX      64u

bool resume_wanted(const struct psc_options *o)
{
    return o->num_servers > 0 && o->mode == PSC_MODE_SYNC &&
           o->on_loss == PSC_ON_LOSS_WAIT && o->agent_retry_ms > 0;
}

bool resume_can(const struct psc_client *c)
{
    return c->welcome && c->gen != 0 && resume_wanted(&c->options);
}

/* ------------------------------------------------------------- kept memory */

static bool is_same_file(int fd, int other)
{
    struct stat a;
    struct stat b;

    return fstat(fd, &a) == 0 && fstat(other, &b) == 0 &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* An agent that was given it has another number for it than the one before. */
static struct keep *keep_of(const struct psc_client *c, const struct keep *keep)
{
    for (uint32_t i = 0; i < c->keep_count; i++) {
        if (c->keeps[i].number == keep->number ||
            is_same_file(c->keeps[i].fd, keep->fd)) {
            return &c->keeps[i];
        }
    }
    return NULL;
}

static int add_keep(struct psc_client *c, const struct keep *keep)
{
    struct keep *known = keep_of(c, keep);
    struct keep *grown;

    if (known != NULL) {
        close(known->fd);
        *known = *keep;
        return 0;
    }
    if (c->keep_count == KEEPS_MAX) {
        return PSC_E_FULL;
    }
    grown = realloc(c->keeps, (c->keep_count + 1) * sizeof(*grown));
    if (grown == NULL) {
        return PSC_E_NOMEM;
    }
    c->keeps = grown;
    c->keeps[c->keep_count++] = *keep;
    return 0;
}

void resume_keep(struct psc_client *c, const struct ps_msg_l_keep *m, int fd)
{
    int rc = resume_can(c) ? add_keep(c, &(struct keep){.number = m->keep,
                                                        .size = m->size,
                                                        .fd = fd})
                           : PSC_E_UNSUPPORTED;

    if (rc != 0) {
        close(fd); /* The agent's own descriptor is all it needs by itself. */
    }
    if (rc == PSC_E_FULL) {
        client_fail(c, PSC_E_PROTO, "the agent leaves too much memory here");
    } else if (rc == PSC_E_NOMEM) {
        client_fail(c, rc, "no memory to keep what the agent leaves here");
    }
}

void resume_fini(struct psc_client *c)
{
    for (uint32_t i = 0; i < c->keep_count; i++) {
        close(c->keeps[i].fd);
    }
    free(c->keeps);
}

static int give_back(struct psc_client *c, const struct keep *k)
{
    const struct ps_msg m = {.code = PS_MSG_L_KEEP,
                             .l_keep = {.keep = k->number, .size = k->size}};
    int fd = fcntl(k->fd, F_DUPFD_CLOEXEC, 0);
    int rc = fd < 0 ? PSC_E_SYS : ps_sock_put(c->sock, &m, fd);

    if (rc != 0 && fd >= 0) {
        close(fd);
    }
    return rc;
}

/* ------------------------------------------------------------------ losing */

static void answer_whys(struct psc_client *c)
{
    PS_LIST_EACH(n, &c->whys)
    {
        struct why *w = PS_CONTAINER(n, struct why, node);

        w->answered = w->answered ||
                      resume_why(c, NULL, w->text, sizeof(w->text));
    }
}

static ps_time give_up_at(const struct psc_client *c)
{
    return c->lost_at + PS_MILLIS(c->options.agent_retry_ms);
}

/* After `text` has stood in the way. */
static void retry(struct psc_client *c, const char *text)
{
    ps_time now = client_now();
    int rc;

    ps_str_copy(c->lost_text, sizeof(c->lost_text), text);
    if (now >= give_up_at(c)) {
        client_fail(c, PSC_E_CLOSED,
                    "the agent closed the connection, and none has taken this "
                    "worker up on '%s' for %d.%d s: %s",
                    c->options.socket, c->options.agent_retry_ms / 1000,
                    c->options.agent_retry_ms % 1000 / 100, text);
        return;
    }
    c->retry_at = ps_time_min(now + PS_MILLIS(c->retry_ms), give_up_at(c));
    rc = ps_sock_alarm(
        c->sock, (int)((c->retry_at - now + PS_MILLIS(1) - 1) / PS_MILLIS(1)));
    if (rc != 0) {
        client_fail(c, rc,
                    "the agent closed the connection, and there is no "
                    "timer to wait for another one: %s",
                    ps_strerror(rc));
    }
    c->retry_ms = c->retry_ms * 2 < RETRY_MOST_MS ? c->retry_ms * 2
                                                  : RETRY_MOST_MS;
}

static void drop_ring(struct psc_client *c)
{
    if (c->ring_memory != NULL) {
        munmap(c->ring_memory, ps_ring_bytes());
    }
    c->ring_memory = NULL;
    c->ring_full = false;
    c->ring_given = false;
}

static void lose(struct psc_client *c, const char *text)
{
    ps_sock_hang_up(c->sock);
    drop_ring(c);
    op_take_back(c);
    key_lose_all(c);
    c->link = LINK_LOST;
    retry(c, text);
    answer_whys(c);
    client_changed(c);
}

void resume_lose(struct psc_client *c)
{
    if (c->link == LINK_UP) {
        c->retry_ms = RETRY_FIRST_MS;
        if (c->away == 0) {
            c->lost_at = client_now();
        }
    }
    lose(c, "it hung up");
}

/* ----------------------------------------------------------------- dialling */

static int greet(struct psc_client *c)
{
    struct ps_msg m;
    int rc;

    client_hello(c, &m);
    m.l_hello.rank = (int32_t)c->rank;
    m.l_hello.gen = c->gen;
    m.l_hello.keys = c->away;
    m.l_hello.barriers = c->barriers;
    rc = ps_sock_put(c->sock, &m, -1);
    if (rc == 0) {
        rc = ps_sock_alarm(c->sock, -1);
    }
    if (rc != 0) {
        ps_sock_hang_up(c->sock);
    }
    return rc;
}

void resume_dial(struct psc_client *c)
{
    int errnum = 0;
    int rc;

    if (client_now() < c->retry_at) {
        return;
    }
    rc = ps_sock_dial(c->sock, c->options.socket, &errnum);
    if (rc == 0) {
        rc = greet(c);
    }
    if (rc == 0) {
        c->link = LINK_GREETING;
        client_flush(c);
        return;
    }
    /* Whatever it is: a socket is first made and then opened to others, and
     * memory and descriptors may be had a moment later. */
    retry(c, errnum != 0 ? strerror(errnum) : ps_strerror(rc));
}

/* ------------------------------------------------------------- saying again */

static int say_all(struct psc_client *c, uint32_t ring)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < c->keep_count; i++) {
        rc = give_back(c, &c->keeps[i]);
    }
    if (rc == 0) {
        rc = ps_shm_offer(&c->shm);
    }
    if (rc == 0) {
        client_open_ring(c, ring);
        rc = op_pump_words(c);
    }
    if (rc == 0) {
        rc = key_offer_all(c);
    }
    if (rc == 0) {
        op_pump_barriers(c);
    }
    return rc;
}

void resume_welcome(struct psc_client *c, const struct ps_msg_l_welcome *m)
{
    int rc;

    if (c->link != LINK_GREETING || m->gen != c->gen || m->rank != c->rank ||
        m->num_workers != c->size) {
        client_fail(c, PSC_E_PROTO,
                    "the agent on '%s' takes rank %u of %u for rank %u of %u "
                    "(job generation %llu for %llu): start the job again",
                    c->options.socket, c->rank, c->size, m->rank,
                    m->num_workers, (unsigned long long)c->gen,
                    (unsigned long long)m->gen);
        return;
    }
    c->link = LINK_UP;
    rc = say_all(c, m->ring);
    if (rc != 0) {
        /* What it has heard it forgets when this hangs up. */
        c->link = LINK_GREETING;
        lose(c, ps_strerror(rc));
        return;
    }
    c->resumes++;
    client_changed(c);
}

bool resume_why(const struct psc_client *c, const struct key *k, char *text,
                size_t size)
{
    ps_time lost_for;

    if (c->rc != 0 || (c->link == LINK_UP && (k == NULL || !k->away))) {
        return false;
    }
    lost_for = (client_now() - c->lost_at) / PS_MILLIS(1);
    snprintf(text, size, "the agent on '%s' was lost %llu.%llu s ago; %s%s",
             c->options.socket, (unsigned long long)(lost_for / 1000),
             (unsigned long long)(lost_for % 1000 / 100),
             c->link == LINK_LOST       ? "none is there: "
             : c->link == LINK_GREETING ? "one is there, and has not yet taken "
                                          "this worker up"
                                        : "one is there, and has not yet taken "
                                          "the key up",
             c->link == LINK_LOST ? c->lost_text : "");
    return true;
}
