/* SPDX-License-Identifier: Apache-2.0 */
/* The file of tokens has one token_claims for each token and eight bytes behind
 * it: 1, little-endian, if the token was revoked, else 0. It is replaced as a
 * whole. */
#include "psched/tokens.h"

#include "base/alloc.h"
#include "base/file_check.h"
#include "base/log.h"
#include "crypto/token.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORD_BYTES (PS_FIXED_TOKEN_CLAIMS_BYTES + 8u)

_Static_assert(PS_TOKEN_TEXT_LEN <= PS_TOKEN_TEXT_MAX,
               "a message has room for a token");

struct psched_tokens {
    EVP_PKEY *key;
    struct ps_token_ops ops;
    char path[PATH_MAX]; /* Of the tokens; "": none. */
    struct ps_token_record *stored;
    uint32_t stored_count;
};

/* ------------------------------------------------------------------- file */

/* Reads the whole file into `ret`, of `cap` bytes. Returns their number; -1 with
 * errno: it cannot be read, or has more. */
static ssize_t read_file(const char *path, uint8_t *ret, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    ssize_t n;

    if (fd < 0) {
        return -1;
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        (st.st_mode & 077) != 0) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    n = ps_file_read(fd, ret, cap);
    close(fd);
    return n;
}

static bool record_decode(const uint8_t *in, struct ps_token_record *ret)
{
    static const uint8_t zero[7];
    const uint8_t *state = in + PS_FIXED_TOKEN_CLAIMS_BYTES;

    if (state[0] > 1 || memcmp(state + 1, zero, sizeof(zero)) != 0 ||
        !ps_fixed_get_token_claims(in, &ret->claims) ||
        !ps_token_claims_are_valid(&ret->claims)) {
        return false;
    }
    ret->is_revoked = state[0] == 1;
    return true;
}

static bool tokens_load(struct psched_tokens *t, struct ps_str *why)
{
    const size_t cap = PS_TOKENS_MAX * (size_t)RECORD_BYTES + 1;
    uint8_t *bytes = ps_alloc(cap);
    ssize_t len = read_file(t->path, bytes, cap);
    bool is_valid = len >= 0 && (size_t)len < cap &&
                    (size_t)len % RECORD_BYTES == 0;

    if (len < 0 && errno == ENOENT) {
        ps_free(bytes);
        return true;
    }
    if (len < 0) {
        ps_str_addf(why, "%s: %s", t->path, strerror(errno));
    }
    t->stored = ps_calloc(PS_TOKENS_MAX, sizeof(*t->stored));
    for (size_t at = 0; is_valid && at < (size_t)len; at += RECORD_BYTES) {
        is_valid = record_decode(bytes + at, &t->stored[t->stored_count++]);
    }
    if (!is_valid && len >= 0) {
        ps_str_addf(why,
                    "%s: it is not a list of tokens; remove it and the key "
                    "beside it, which ends all tokens",
                    t->path);
    }
    ps_free(bytes);
    return is_valid;
}

/* ---------------------------------------------------------- for the machine */

static bool tokens_sign(void *arg, const struct ps_fixed_token_claims *claims,
                        char ret_text[PS_TOKEN_TEXT_MAX + 1])
{
    const struct psched_tokens *t = arg;

    return ps_token_sign(t->key, claims, ret_text);
}

static bool tokens_verify(void *arg, const char *text,
                          struct ps_fixed_token_claims *ret_claims)
{
    const struct psched_tokens *t = arg;

    return ps_token_verify(t->key, text, ret_claims);
}

static bool tokens_save(void *arg, const struct ps_token_record *list,
                        uint32_t count)
{
    const struct psched_tokens *t = arg;
    uint8_t *bytes;
    int error;

    if (t->path[0] == '\0') {
        return true;
    }
    bytes = ps_calloc(count + 1u, RECORD_BYTES);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *at = bytes + i * (size_t)RECORD_BYTES;

        ps_fixed_put_token_claims(at, &list[i].claims);
        at[PS_FIXED_TOKEN_CLAIMS_BYTES] = list[i].is_revoked;
    }
    error = ps_file_replace(t->path, bytes, count * (size_t)RECORD_BYTES, 0600,
                            PS_FILE_DURABLE);
    if (error != 0) {
        ps_log(PS_LOG_ERROR, "tokens not stored in %s: %s", t->path,
               strerror(error));
    }
    ps_free(bytes);
    return error == 0;
}

/* -------------------------------------------------------------------- life */

struct psched_tokens *psched_tokens_open(const char *path, struct ps_str *why)
{
    struct psched_tokens *t = ps_calloc(1, sizeof(*t));

    t->ops = (struct ps_token_ops){.arg = t,
                                   .sign = tokens_sign,
                                   .verify = tokens_verify,
                                   .save = tokens_save};
    if (path[0] == '\0') {
        t->key = ps_token_key_new();
        if (t->key == NULL) {
            ps_str_add(why, "OpenSSL cannot make an Ed25519 key");
        }
    } else if (snprintf(t->path, sizeof(t->path), "%s.tokens", path) >=
               (int)sizeof(t->path)) {
        ps_str_addf(why, "%s.tokens: %s", path, strerror(ENAMETOOLONG));
    } else {
        t->key = ps_token_key_open(path, why);
    }
    if (t->key == NULL || (path[0] != '\0' && !tokens_load(t, why))) {
        psched_tokens_free(t);
        return NULL;
    }
    return t;
}

void psched_tokens_free(struct psched_tokens *t)
{
    if (t != NULL) {
        ps_token_key_free(t->key);
        ps_free(t->stored);
        ps_free(t);
    }
}

const struct ps_token_ops *psched_tokens_ops(const struct psched_tokens *t)
{
    return &t->ops;
}

const struct ps_token_record *
psched_tokens_stored(const struct psched_tokens *t, uint32_t *ret_count)
{
    *ret_count = t->stored_count;
    return t->stored;
}
