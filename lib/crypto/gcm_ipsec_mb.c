/* SPDX-License-Identifier: Apache-2.0 */
/* The library is loaded at run time. Its functions are in a table whose layout
 * belongs to the version of the header. */
#include "crypto/gcm.h"

#ifndef PS_HAVE_IPSEC_MB

const struct ps_gcm_ops *ps_gcm_ipsec_mb(void)
{
    return NULL;
}

#else

#include "base/alloc.h"

#include <dlfcn.h>
#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <string.h>

#define LIBRARY "libIPSec_MB.so.1"
#define FEATURES                                                               \
    (IMB_FEATURE_AVX512_SKX | IMB_FEATURE_VAES | IMB_FEATURE_VPCLMULQDQ)

/* Functions of a key length. */
struct functions {
    aes_gcm_pre_t pre;
    aes_gcm_init_t init;
    aes_gcm_enc_dec_update_t update[2]; /* To decrypt, to encrypt. */
    aes_gcm_enc_dec_finalize_t finish[2];
};

struct mb_key {
    struct gcm_key_data key; /* First: it is aligned. */
    struct gcm_context_data message;
    const struct functions *functions;
    bool encrypts;
    void *memory;
};

static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static struct functions functions_of_16;
static struct functions functions_of_32;
static bool is_usable;

static void take_functions(const IMB_MGR *m)
{
    functions_of_16 = (struct functions){
        .pre = m->gcm128_pre,
        .init = m->gcm128_init,
        .update = {m->gcm128_dec_update, m->gcm128_enc_update},
        .finish = {m->gcm128_dec_finalize, m->gcm128_enc_finalize}};
    functions_of_32 = (struct functions){
        .pre = m->gcm256_pre,
        .init = m->gcm256_init,
        .update = {m->gcm256_dec_update, m->gcm256_enc_update},
        .finish = {m->gcm256_dec_finalize, m->gcm256_enc_finalize}};
}

static void load(void)
{
    unsigned (*version)(void);
    IMB_MGR *(*alloc)(uint64_t flags);
    void (*init)(IMB_MGR *, IMB_ARCH *);
    void (*release)(IMB_MGR *);
    const struct {
        const char *name;
        void *place;
    } symbols[] = {{"imb_get_version", &version},
                   {"alloc_mb_mgr", &alloc},
                   {"init_mb_mgr_auto", &init},
                   {"free_mb_mgr", &release}};
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = dlsym(library, symbols[i].name);

        if (symbol == NULL) {
            return;
        }
        memcpy(symbols[i].place, &symbol, sizeof(symbol));
    }
    IMB_MGR *m = version() == IMB_VERSION_NUM ? alloc(0) : NULL;

    if (m == NULL) {
        return;
    }
    init(m, NULL);
    is_usable = (m->features & FEATURES) == FEATURES;
    take_functions(m);
    release(m);
}

static void mb_close(void *ctx)
{
    struct mb_key *k = ctx;
    void *memory = k->memory;

    OPENSSL_cleanse(k, sizeof(*k));
    ps_free(memory);
}

static void *mb_open(const uint8_t *key, size_t len, bool encrypts)
{
    const size_t alignment = _Alignof(struct mb_key);
    void *memory = ps_calloc(1, sizeof(struct mb_key) + alignment - 1);
    uintptr_t at = (uintptr_t)memory + alignment - 1;
    struct mb_key *k = (struct mb_key *)(at - at % alignment);

    k->memory = memory;
    k->encrypts = encrypts;
    k->functions = len == 16 ? &functions_of_16 : &functions_of_32;
    k->functions->pre(key, &k->key);
    return k;
}

static bool mb_begin(void *ctx, const uint8_t *nonce, const uint8_t *aad,
                     size_t aad_len)
{
    struct mb_key *k = ctx;

    k->functions->init(&k->key, &k->message, nonce, aad, aad_len);
    return true;
}

static bool mb_update(void *ctx, uint8_t *out, const uint8_t *in, size_t len)
{
    struct mb_key *k = ctx;

    k->functions->update[k->encrypts](&k->key, &k->message, out, in, len);
    return true;
}

static bool mb_finish(void *ctx, uint8_t *tag)
{
    struct mb_key *k = ctx;
    uint8_t own[PS_GCM_TAG];

    if (k->encrypts) {
        k->functions->finish[1](&k->key, &k->message, tag, PS_GCM_TAG);
        return true;
    }
    k->functions->finish[0](&k->key, &k->message, own, PS_GCM_TAG);
    return CRYPTO_memcmp(own, tag, PS_GCM_TAG) == 0;
}

static const struct ps_gcm_ops ipsec_mb = {
    .name = "libIPSec_MB " IMB_VERSION_STR,
    .open = mb_open,
    .close = mb_close,
    .begin = mb_begin,
    .update = mb_update,
    .finish = mb_finish,
};

const struct ps_gcm_ops *ps_gcm_ipsec_mb(void)
{
    (void)pthread_once(&loaded, load);
    return is_usable ? &ipsec_mb : NULL;
}

#endif
