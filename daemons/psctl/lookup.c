/* SPDX-License-Identifier: Apache-2.0 */
/* Name resolution with a time limit. getaddrinfo() has its own time-outs and
 * cannot be cancelled, so a thread calls it and is abandoned when the limit
 * passes; the program ends soon after. */
#include "psctl/psctl.h"

#include "base/alloc.h"
#include "base/str.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

struct lookup {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool is_done;
    bool is_abandoned; /* The caller has given up; the thread frees this. */
    int rc;
    int error; /* errno with EAI_SYSTEM. */
    struct addrinfo *list;
    struct addrinfo hints;
    char host[256];
    char port[8];
};

static void lookup_free(struct lookup *l)
{
    if (l->list != NULL) {
        freeaddrinfo(l->list);
    }
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->mutex);
    ps_free(l);
}

static void *lookup_request(void *arg)
{
    struct lookup *l = arg;
    struct addrinfo *list = NULL;
    int rc = getaddrinfo(l->host, l->port, &l->hints, &list);
    int error = errno;
    bool left;

    pthread_mutex_lock(&l->mutex);
    l->rc = rc;
    l->error = error;
    l->list = rc == 0 ? list : NULL;
    l->is_done = true;
    left = l->is_abandoned;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    if (left) {
        lookup_free(l);
    }
    return NULL;
}

static struct lookup *lookup_new(const char *host, const char *port)
{
    struct lookup *l = ps_calloc(1, sizeof(*l));
    pthread_condattr_t attr;

    ps_str_copy(l->host, sizeof(l->host), host);
    ps_str_copy(l->port, sizeof(l->port), port);
    l->hints = (struct addrinfo){.ai_family = AF_UNSPEC,
                                 .ai_socktype = SOCK_STREAM,
                                 .ai_flags = AI_NUMERICSERV};
    pthread_mutex_init(&l->mutex, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &attr);
    pthread_condattr_destroy(&attr);
    return l;
}

/* Waits for the result until the deadline. False: the lookup is abandoned, and
 * the thread owns it. */
static bool wait_for_lookup(struct lookup *l, ps_time deadline)
{
    const struct timespec at = {
        .tv_sec = (time_t)(deadline / PS_SECONDS(1)),
        .tv_nsec = (long)(deadline % PS_SECONDS(1)),
    };
    bool done;
    int error = 0;

    pthread_mutex_lock(&l->mutex);
    while (!l->is_done && error == 0) {
        error = pthread_cond_timedwait(&l->changed, &l->mutex, &at);
    }
    done = l->is_done;
    l->is_abandoned = !done;
    pthread_mutex_unlock(&l->mutex);
    return done;
}

bool lookup_name(const char *host, const char *port, ps_time deadline,
                 struct addrinfo **ret_list, const char **ret_why)
{
    struct lookup *l = lookup_new(host, port);
    pthread_t thread;
    bool found;
    int error = pthread_create(&thread, NULL, lookup_request, l);

    if (error != 0) {
        lookup_free(l);
        *ret_why = strerror(error);
        return false;
    }
    if (!wait_for_lookup(l, deadline)) {
        pthread_detach(thread);
        *ret_why = "no answer from the system's name resolution in the time of "
                   "--timeout";
        return false;
    }
    pthread_join(thread, NULL);
    found = l->rc == 0;
    if (found) {
        *ret_list = l->list;
        l->list = NULL;
    } else {
        *ret_why = l->rc == EAI_SYSTEM ? strerror(l->error)
                                       : gai_strerror(l->rc);
    }
    lookup_free(l);
    return found;
}
