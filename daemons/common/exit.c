/* SPDX-License-Identifier: Apache-2.0 */
#include "common/exit.h"

#include "base/err.h"
#include "base/file_check.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>

/* errno of the write to standard output that failed; 0: none. */
static int output_error;

bool ps_exit_flush(void)
{
    errno = 0;
    if ((fflush(stdout) != 0 || ferror(stdout) != 0) && output_error == 0) {
        output_error = errno != 0 ? errno : EIO;
    }
    return output_error == 0;
}

int ps_exit_with_output(const char *program, int code)
{
    /* A program that prints nothing may have no standard output. */
    const bool has_printed = __fpending(stdout) > 0 || ferror(stdout) != 0;
    const int closed = ps_file_close(stdout);
    const int error = output_error != 0 ? output_error : closed;

    if (error == 0 || (error == EBADF && !has_printed)) {
        return code;
    }
    fprintf(stderr, "%s: standard output: %s\n", program, strerror(error));
    return code == PS_EXIT_OK ? PS_EXIT_IOERR : code;
}

int ps_exit_code(int rc)
{
    switch (rc) {
    case PS_E_INVAL:
    case PS_E_CONFIG:
        return PS_EXIT_CONFIG;
    case PS_E_PERM:
        return PS_EXIT_NOPERM;
    case PS_E_EXIST:
    case PS_E_NOENT:
        return PS_EXIT_CANTCREAT;
    case PS_E_AGAIN:
    case PS_E_FULL:
    case PS_E_VERSION:
        return PS_EXIT_TEMPFAIL;
    case PS_E_IO:
        return PS_EXIT_IOERR;
    case PS_E_UNREACH:
    case PS_E_TIMEOUT:
        return PS_EXIT_UNAVAILABLE;
    default:
        return PS_EXIT_FAILURE;
    }
}

int ps_exit_refused(const char *verb, const char *object, int rc)
{
    ps_log(PS_LOG_ERROR, "%s %s: %s", verb, object, ps_strerror(rc));
    return ps_exit_code(rc);
}
