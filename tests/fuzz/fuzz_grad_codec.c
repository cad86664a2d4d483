/* SPDX-License-Identifier: Apache-2.0 */
/* Codes from peers: a code that passes the check decodes within its bounds, to
 * the same bits in parts as in a whole. The first bytes have kind, flags,
 * levels, k, and the number of elements. */
#include "kernel/codec.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

#define HEAD 6u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[256] = "";

    if (size < HEAD) {
        return 0;
    }
    const struct ps_codec c = {
        .kind = data[0] == 255
                    ? PS_CODEC_NONE
                    : (enum ps_codec_kind)(1 + data[0] % (PS_CODEC_KINDS - 1)),
        .scaling = (data[1] & 1) != 0,
        .threshold = 0.5f,
        .levels = 1 + data[2] % PS_CODEC_NATURAL_LEVELS_MAX,
        .k = 1 + data[3],
    };
    const uint64_t count = data[0] == 254 ? PS_CODEC_COUNT_MAX + UINT64_C(1)
                                          : (uint64_t)data[4] << 8 | data[5];
    /* Memory of exactly this length, so that a sanitizer sees the border. */
    uint8_t *code = malloc(size - HEAD + 1);

    memcpy(code, data + HEAD, size - HEAD);
    code = realloc(code, size - HEAD > 0 ? size - HEAD : 1);
    int rc = ps_codec_check(&c, code, size - HEAD, count, why, sizeof(why));

    assert(rc == 0 || (rc == PS_E_PROTO && why[0] != '\0'));
    if (rc == 0 && count > 0) {
        float *whole = malloc(count * sizeof(float));
        float *parts = malloc(count * sizeof(float));

        assert(size - HEAD == ps_codec_bytes(&c, count));
        ps_codec_decode(&c, &(struct ps_codec_data){7, code, count}, 0, count,
                        whole);
        for (uint64_t from = 0; from < count; from += 48) {
            uint64_t n = count - from < 48 ? count - from : 48;

            ps_codec_decode(&c, &(struct ps_codec_data){7, code, count}, from,
                            n, parts + from);
        }
        for (uint64_t i = 0; i < count; i++) {
            assert(isnan(whole[i]) ? isnan(parts[i])
                                   : memcmp(&whole[i], &parts[i], 4) == 0);
        }
        free(whole);
        free(parts);
    }
    free(code);
    return 0;
}
