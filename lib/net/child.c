/* SPDX-License-Identifier: Apache-2.0 */
#include "net/child.h"

#include "base/alloc.h"
#include "net/loop.h"
#include "net/uverr.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>
#include <uv.h>

#define HANDLES 3u /* Process, input, output. */

struct ps_child {
    struct ps_child_options opt;
    uv_process_t process;
    uv_pipe_t in;
    uv_pipe_t out;
    uv_write_t write;
    void *input;
    uint32_t open_handles;
    bool has_ended;
    bool has_reported;
    char report[PS_CHILD_REPORT_MAX + 1];
    size_t report_len;
};

static void handle_closed(uv_handle_t *handle)
{
    struct ps_child *c = handle->data;

    assert(c->open_handles > 0);
    if (--c->open_handles == 0) {
        c->opt.ended(c->opt.ctx); /* Last: c may be gone after this. */
    }
}

static void close_handle(uv_handle_t *handle)
{
    if (!uv_is_closing(handle)) {
        uv_close(handle, handle_closed);
    }
}

void ps_child_release(struct ps_child *c)
{
    close_handle((uv_handle_t *)&c->in);
}

void ps_child_abandon(struct ps_child *c)
{
    close_handle((uv_handle_t *)&c->process);
    close_handle((uv_handle_t *)&c->in);
    close_handle((uv_handle_t *)&c->out);
}

/* Closes all once the process has ended and its output, too. */
static void close_if_over(struct ps_child *c)
{
    if (c->has_ended && c->has_reported) {
        ps_child_abandon(c);
    }
}

static void report(struct ps_child *c)
{
    if (c->has_reported) {
        return;
    }
    c->has_reported = true;
    close_handle((uv_handle_t *)&c->out);
    c->opt.reported(c->opt.ctx, c->report);
    close_if_over(c);
}

static void process_ended(uv_process_t *process, int64_t code, int sig)
{
    struct ps_child *c = process->data;

    (void)code;
    (void)sig;
    c->has_ended = true;
    close_handle((uv_handle_t *)&c->process);
    close_handle((uv_handle_t *)&c->in);
    close_if_over(c);
}

static void give_buffer(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct ps_child *c = handle->data;

    (void)suggested;
    *buf = uv_buf_init(ps_loop_scratch(c->opt.loop), PS_LOOP_SCRATCH);
}

static void output_arrived(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct ps_child *c = stream->data;
    size_t space = PS_CHILD_REPORT_MAX - c->report_len;

    if (n < 0) {
        report(c);
        return;
    }
    space = (size_t)n < space ? (size_t)n : space;
    memcpy(c->report + c->report_len, buf->base, space);
    c->report_len += space;
}

static void input_written(uv_write_t *write, int status)
{
    struct ps_child *c = write->data;

    (void)status; /* A process that has gone reports its end. */
    ps_free(c->input);
    c->input = NULL;
}

static void write_input(struct ps_child *c)
{
    uv_buf_t buf;

    c->input = ps_alloc(c->opt.input_len + 1);
    memcpy(c->input, c->opt.input, c->opt.input_len);
    buf = uv_buf_init(c->input, (unsigned)c->opt.input_len);
    c->write.data = c;
    if (uv_write(&c->write, (uv_stream_t *)&c->in, &buf, 1, input_written) !=
        0) {
        input_written(&c->write, -1);
    }
}

static void init_handles(struct ps_child *c, struct uv_loop_s *loop)
{
    /* Neither fails for a pipe of this process. */
    (void)uv_pipe_init(loop, &c->in, 0);
    (void)uv_pipe_init(loop, &c->out, 0);
    c->in.data = c;
    c->out.data = c;
    c->process.data = c;
    c->open_handles = HANDLES;
}

static void discard(void *ctx)
{
    ps_child_free(ctx);
}

int ps_child_start(const struct ps_child_options *opt,
                   struct ps_child **ret_child)
{
    struct ps_child *c = ps_calloc(1, sizeof(*c));
    uv_stdio_container_t stdio[3] = {
        {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE,
         .data.stream = (uv_stream_t *)&c->in},
        {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE,
         .data.stream = (uv_stream_t *)&c->out},
        {.flags = UV_INHERIT_FD, .data.fd = 2},
    };
    const uv_process_options_t options = {
        .exit_cb = process_ended,
        .file = opt->argv[0],
        .args = (char **)(uintptr_t)opt->argv,
        .flags = UV_PROCESS_DETACHED,
        .stdio_count = 3,
        .stdio = stdio,
    };
    int rc;

    c->opt = *opt;
    init_handles(c, ps_loop_uv(opt->loop));
    rc = uv_spawn(ps_loop_uv(opt->loop), &c->process, &options);
    if (rc == 0) {
        rc = uv_read_start((uv_stream_t *)&c->out, give_buffer, output_arrived);
    }
    if (rc != 0) {
        c->opt.ended = discard;
        c->opt.ctx = c;
        ps_child_abandon(c);
        return ps_err_from_uv(rc);
    }
    write_input(c);
    *ret_child = c;
    return 0;
}

void ps_child_free(struct ps_child *c)
{
    ps_free(c->input);
    ps_free(c);
}
