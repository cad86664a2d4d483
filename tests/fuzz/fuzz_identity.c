/* SPDX-License-Identifier: Apache-2.0 */
/* A name in a certificate, of any bytes: it is refused, or it is the one URI of
 * the identity that was read from it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "crypto/identity.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char again[PS_IDENTITY_URI_BYTES];
    struct ps_identity id;
    struct ps_str s;
    char *uri = malloc(size + 1);

    assert(uri != NULL);
    if (size > 0) {
        memcpy(uri, data, size);
    }
    uri[size] = '\0';
    if (ps_identity_from_uri(uri, &id)) {
        assert(ps_identity_is_valid(&id));
        assert(strlen(id.cluster) <= PS_NAME_MAX);
        assert(strlen(id.name) <= PS_NAME_MAX);
        ps_str_init(&s, again, sizeof(again));
        ps_identity_add_uri(&s, &id);
        assert(!s.truncated && strcmp(again, uri) == 0);
    }
    free(uri);
    return 0;
}
