/* SPDX-License-Identifier: Apache-2.0 */
/* Names of jobs as users write and read them: the name, and that of the owner
 * where two users have a job of one name; and jobs that have daemons of their
 * own. */
#include "psctl/answer.h"

#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool find_user(const char *text, size_t len, uint32_t *ret_uid)
{
    char name[65];
    const struct passwd *user;
    unsigned long uid;
    char *end;

    if (len == 0 || len >= sizeof(name)) {
        return false;
    }
    memcpy(name, text, len);
    name[len] = '\0';
    user = getpwnam(name);
    if (user != NULL) {
        *ret_uid = user->pw_uid;
        return true;
    }
    errno = 0;
    uid = strtoul(name, &end, 10);
    if (name[0] < '0' || name[0] > '9' || *end != '\0' || errno != 0 ||
        uid >= UINT32_MAX) {
        return false;
    }
    *ret_uid = (uint32_t)uid;
    return true;
}

static bool has_open_job(const struct rows *jobs, const char *name)
{
    for (size_t i = 0; i < jobs->count; i++) {
        const struct ps_msg_job_row *j = &jobs->row[i]->job_row;

        if (job_is_open(j) && strcmp(j->name, name) == 0) {
            return true;
        }
    }
    return false;
}

int job_name_parse(struct wire *w, const char *text, struct job_name *ret)
{
    const char *slash = strchr(text, '/');
    struct report report = {0};
    uint32_t owner;
    int rc;

    *ret = (struct job_name){.name = text};
    if (slash == NULL || !find_user(text, (size_t)(slash - text), &owner)) {
        return 0;
    }
    rc = wire_query(w, PS_QUERY_JOBS, NULL, &report);
    if (rc == 0 && !has_open_job(&report.rows_of[PS_QUERY_JOBS], text)) {
        *ret = (struct job_name){
            .name = slash + 1, .has_owner = true, .owner = owner};
    }
    report_fini(&report);
    return rc;
}

static bool is_name_shared(const struct report *r, const char *name,
                           uint32_t uid)
{
    const struct rows *jobs = &r->rows_of[PS_QUERY_JOBS];
    const struct rows *stalls = &r->rows_of[PS_QUERY_STALL];

    for (size_t i = 0; i < jobs->count; i++) {
        const struct ps_msg_job_row *j = &jobs->row[i]->job_row;

        if (j->uid != uid && strcmp(j->name, name) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < stalls->count; i++) {
        const struct ps_msg_stall_row *s = &stalls->row[i]->stall_row;

        if (s->uid != uid && strcmp(s->job, name) == 0) {
            return true;
        }
    }
    return false;
}

void add_job_name(struct ps_str *s, const struct report *r, const char *name,
                  uint32_t uid)
{
    if (is_name_shared(r, name, uid)) {
        const struct passwd *user = getpwuid(uid);

        if (user != NULL) {
            add_printable(s, user->pw_name, 64);
        } else {
            ps_str_addf(s, "%u", uid);
        }
        ps_str_add(s, "/");
    }
    add_printable(s, name, 64);
}

size_t list_private_jobs(struct private_job list[PRIVATE_MAX])
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    char folder[sizeof(list->endpoint)];
    size_t count = 0;
    struct dirent *d;
    DIR *dir = NULL;

    if (run != NULL && snprintf(folder, sizeof(folder), "%s/pskv/jobs", run) <
                           (int)sizeof(folder)) {
        dir = opendir(folder);
    }
    while (dir != NULL && count < PRIVATE_MAX && (d = readdir(dir)) != NULL) {
        struct private_job *job = &list[count];

        if (d->d_name[0] != '.' &&
            snprintf(job->endpoint, sizeof(job->endpoint), "unix:%s/%s", folder,
                     d->d_name) < (int)sizeof(job->endpoint) &&
            wire_is_listening(job->endpoint + 5)) {
            ps_str_copy(job->name, sizeof(job->name), d->d_name);
            count++;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

void show_private_jobs(FILE *out)
{
    struct private_job jobs[PRIVATE_MAX];
    const size_t count = list_private_jobs(jobs);

    for (size_t i = 0; i < count; i++) {
        fprintf(out,
                "private  job %s has daemons of its own: psctl -e %s status\n",
                jobs[i].name, jobs[i].endpoint);
    }
}
