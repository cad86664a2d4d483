/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <errno.h>

const char *ps_strerror(int rc)
{
    switch (rc) {
    case 0:
        return "success";
#define PS_ERR(name, number, text)                                             \
    case -(number):                                                            \
        return text;
#include "base/err.def"
#undef PS_ERR
    default: /* Numbers of peers may be invalid. */
        return "unknown error";
    }
}

const char *ps_err_name(int rc)
{
    switch (rc) {
    case 0:
        return "PS_OK";
#define PS_ERR(name, number, text)                                             \
    case -(number):                                                            \
        return "PS_E_" #name;
#include "base/err.def"
#undef PS_ERR
    default:
        return "PS_E_UNKNOWN";
    }
}

int ps_err_from_errno(int errnum)
{
    switch (errnum) {
    case 0:
        return 0;
    case EINVAL:
    case EBADF:
    case EDOM:
    case ERANGE:
        return PS_E_INVAL;
    case ENOMEM:
    case ENOBUFS:
        return PS_E_NOMEM;
    case E2BIG:
    case EFBIG:
    case EMSGSIZE:
    case ENAMETOOLONG:
    case EOVERFLOW:
        return PS_E_TOOBIG;
    case EPROTO:
    case EBADMSG:
        return PS_E_PROTO;
    case ETIMEDOUT:
        return PS_E_TIMEOUT;
    case ECANCELED:
        return PS_E_CANCELED;
    case ECONNRESET:
    case EPIPE:
    case ENOTCONN:
    case ECONNABORTED:
        return PS_E_CLOSED;
    case ECONNREFUSED:
        return PS_E_REFUSED;
    case EPERM:
    case EACCES:
        return PS_E_PERM;
    case EEXIST:
    case EADDRINUSE:
        return PS_E_EXIST;
    case ENOENT:
    case ENXIO:
    case ENODEV:
        return PS_E_NOENT;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
        return PS_E_UNREACH;
    case EAGAIN:
    case EINTR:
    case EBUSY:
        return PS_E_AGAIN;
    case EMFILE:
    case ENFILE:
        return PS_E_FULL;
    case EIO:
    case ENOSPC:
        return PS_E_IO;
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
        return PS_E_UNSUPPORTED;
    default:
        return PS_E_SYS;
    }
}
