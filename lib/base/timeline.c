/* SPDX-License-Identifier: Apache-2.0 */
#include "base/timeline.h"

#include "base/str.h"

#include <inttypes.h>
#include <string.h>

uint32_t ps_timeline_place(struct ps_timeline_lanes *l, int64_t begin,
                           int64_t end)
{
    uint32_t lane = 0;

    while (lane < l->count && l->busy_until[lane] > begin) {
        lane++;
    }
    if (lane == l->max) {
        return UINT32_MAX;
    }
    l->count = lane == l->count ? lane + 1 : l->count;
    l->busy_until[lane] = end;
    return lane;
}

void ps_timeline_begin(struct ps_timeline *t, FILE *out)
{
    *t = (struct ps_timeline){.out = out};
    fputs("{\"traceEvents\":[", out);
}

void ps_timeline_text(struct ps_timeline *t, const char *text)
{
    size_t len = strlen(text);

    fputc('"', t->out);
    while (len > 0) {
        const size_t n = ps_str_visible(text, len);

        if (n == 0) {
            fprintf(t->out, "\\u%04x", (unsigned char)*text);
        } else {
            fprintf(t->out, "%s%.*s", *text == '"' || *text == '\\' ? "\\" : "",
                    (int)n, text);
        }
        text += n != 0 ? n : 1;
        len -= n != 0 ? n : 1;
    }
    fputc('"', t->out);
}

void ps_timeline_event(struct ps_timeline *t, const char *phase,
                       const char *name, uint32_t process, uint32_t thread)
{
    fprintf(t->out,
            "%s{\"ph\":\"%s\",\"name\":", t->events++ > 0 ? ",\n" : "\n",
            phase);
    ps_timeline_text(t, name);
    fprintf(t->out, ",\"pid\":%" PRIu32 ",\"tid\":%" PRIu32, process, thread);
}

void ps_timeline_time(struct ps_timeline *t, const char *field, int64_t ns)
{
    fprintf(t->out, ",\"%s\":%" PRId64 ".%03d", field, ns / 1000,
            (int)(ns % 1000));
}

void ps_timeline_name(struct ps_timeline *t, const char *what, uint32_t process,
                      uint32_t thread, const char *name)
{
    ps_timeline_event(t, "M", what, process, thread);
    fputs(",\"args\":{\"name\":", t->out);
    ps_timeline_text(t, name);
    fputs("}}", t->out);
}

void ps_timeline_end(struct ps_timeline *t)
{
    fputs("\n],\"displayTimeUnit\":\"ms\"", t->out);
}
