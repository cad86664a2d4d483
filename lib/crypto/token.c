/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/token.h"

#include "base/limits.h"
#include "crypto/pki.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = "pskv1.";
static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "abcdefghijklmnopqrstuvwxyz0123456789-_";

/* ------------------------------------------------------------------- keys */

EVP_PKEY *ps_token_key_new(void)
{
    return EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
}

void ps_token_key_free(EVP_PKEY *key)
{
    EVP_PKEY_free(key);
}

static EVP_PKEY *key_read(int fd, const char *path, struct ps_str *why)
{
    EVP_PKEY *key;
    struct stat st;
    FILE *f;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        (st.st_mode & 077) != 0) {
        ps_str_addf(why,
                    "%s: it must be a regular file of this user that others "
                    "cannot read or write; chmod 600",
                    path);
        close(fd);
        return NULL;
    }
    f = fdopen(fd, "r");
    if (f == NULL) {
        ps_str_addf(why, "%s: %s", path, strerror(errno));
        close(fd);
        return NULL;
    }
    key = PEM_read_PrivateKey(f, NULL, ps_pki_refuse_password, NULL);
    fclose(f);
    if (key != NULL && EVP_PKEY_is_a(key, "ED25519") == 1) {
        return key;
    }
    EVP_PKEY_free(key);
    ps_str_addf(
        why, "%s: it has no Ed25519 key in PEM; remove it for a new one", path);
    return NULL;
}

/* Writes a new file. */
static bool key_write(EVP_PKEY *key, const char *path, struct ps_str *why)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                  0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool done;

    if (f == NULL) {
        ps_str_addf(why, "%s: %s", path, strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return false;
    }
    done = fchmod(fd, 0600) == 0 &&
           PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) == 1 &&
           fflush(f) == 0 && fsync(fd) == 0;
    if (!done) {
        ps_str_addf(why, "%s: it cannot be written", path);
        (void)unlink(path);
    }
    fclose(f);
    return done;
}

EVP_PKEY *ps_token_key_open(const char *path, struct ps_str *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    EVP_PKEY *key;

    if (fd >= 0) {
        return key_read(fd, path, why);
    }
    if (errno != ENOENT) {
        ps_str_addf(why, "%s: %s", path, strerror(errno));
        return NULL;
    }
    key = ps_token_key_new();
    if (key == NULL) {
        ps_str_addf(why, "%s: OpenSSL cannot make an Ed25519 key", path);
        return NULL;
    }
    if (!key_write(key, path, why)) {
        ps_token_key_free(key);
        return NULL;
    }
    return key;
}

/* ------------------------------------------------------------------ claims */

/* True if a name lies in the field, or none if that is allowed, and zeros
 * follow. */
static bool name_is_valid(const uint8_t *field, size_t size, bool may_be_empty)
{
    const char *name = (const char *)field;
    size_t len = strnlen(name, size);

    for (size_t i = len; i < size; i++) {
        if (field[i] != 0) {
            return false;
        }
    }
    return len < size &&
           (len == 0 ? may_be_empty : ps_str_is_name(name, PS_NAME_MAX));
}

bool ps_token_claims_are_valid(const struct ps_fixed_token_claims *claims)
{
    return claims->not_after > claims->issued_at &&
           name_is_valid(claims->cluster, sizeof(claims->cluster), false) &&
           name_is_valid(claims->job, sizeof(claims->job), true);
}

/* -------------------------------------------------------------------- text */

static void encode(const uint8_t bytes[PS_TOKEN_BYTES], char *out)
{
    uint32_t bits = 0;
    unsigned count = 0;

    for (size_t i = 0; i < PS_TOKEN_BYTES; i++) {
        bits = (bits << 8) | bytes[i];
        for (count += 8; count >= 6; count -= 6) {
            *out++ = digits[(bits >> (count - 6)) & 63];
        }
    }
    if (count > 0) {
        *out++ = digits[(bits << (6 - count)) & 63];
    }
    *out = '\0';
}

static bool decode(const char *text, uint8_t ret_bytes[PS_TOKEN_BYTES])
{
    uint32_t bits = 0;
    unsigned count = 0;
    size_t used = 0;

    if (strnlen(text, PS_TOKEN_TEXT_LEN + 1) != PS_TOKEN_TEXT_LEN ||
        strncmp(text, prefix, sizeof(prefix) - 1) != 0) {
        return false;
    }
    for (text += sizeof(prefix) - 1; *text != '\0'; text++) {
        const char *digit = strchr(digits, *text);

        if (digit == NULL) {
            return false;
        }
        bits = (bits << 6) | (uint32_t)(digit - digits);
        count += 6;
        if (count >= 8) {
            count -= 8;
            ret_bytes[used++] = (uint8_t)(bits >> count);
        }
    }
    /* Bits that are left over are zero, so that there is one text only. */
    return used == PS_TOKEN_BYTES && (bits & ((1u << count) - 1)) == 0;
}

bool ps_token_sign(EVP_PKEY *key, const struct ps_fixed_token_claims *claims,
                   char ret_text[PS_TOKEN_TEXT_LEN + 1])
{
    uint8_t bytes[PS_TOKEN_BYTES];
    size_t len = PS_TOKEN_SIGNATURE_BYTES;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool done;

    ps_fixed_put_token_claims(bytes, claims);
    done = ctx != NULL && EVP_DigestSignInit(ctx, NULL, NULL, NULL, key) == 1 &&
           EVP_DigestSign(ctx, bytes + PS_FIXED_TOKEN_CLAIMS_BYTES, &len, bytes,
                          PS_FIXED_TOKEN_CLAIMS_BYTES) == 1 &&
           len == PS_TOKEN_SIGNATURE_BYTES;
    EVP_MD_CTX_free(ctx);
    if (done) {
        memcpy(ret_text, prefix, sizeof(prefix) - 1);
        encode(bytes, ret_text + sizeof(prefix) - 1);
    }
    return done;
}

bool ps_token_verify(EVP_PKEY *key, const char *text,
                     struct ps_fixed_token_claims *ret_claims)
{
    uint8_t bytes[PS_TOKEN_BYTES];
    struct ps_fixed_token_claims claims;
    EVP_MD_CTX *ctx;
    bool is_signed;

    if (!decode(text, bytes)) {
        return false;
    }
    /* Nothing of the claims is read before the signature holds. */
    ctx = EVP_MD_CTX_new();
    is_signed = ctx != NULL &&
                EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, key) == 1 &&
                EVP_DigestVerify(ctx, bytes + PS_FIXED_TOKEN_CLAIMS_BYTES,
                                 PS_TOKEN_SIGNATURE_BYTES, bytes,
                                 PS_FIXED_TOKEN_CLAIMS_BYTES) == 1;
    EVP_MD_CTX_free(ctx);
    if (!is_signed || !ps_fixed_get_token_claims(bytes, &claims) ||
        !ps_token_claims_are_valid(&claims)) {
        return false;
    }
    *ret_claims = claims;
    return true;
}
