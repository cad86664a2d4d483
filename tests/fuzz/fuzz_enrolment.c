/* SPDX-License-Identifier: Apache-2.0 */
/* Enrolment. The first byte chooses what the rest is: the text of a code, the
 * file of an authority's codes, the bytes that a node sends (they reach a list
 * with one code), or those that an authority sends. A text that is read is the
 * one text of its content, and no bytes are a right secret or certificate. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/enrolment.h"
#include "fuzz.h"
#include "psctl/pki_limit.h"

#define NOW INT64_C(1800000000)

static void check_code(const char *text)
{
    char again[PS_ENROLMENT_CODE_TEXT];
    struct ps_enrolment_code code;
    struct ps_str s;

    if (ps_enrolment_read_code(text, &code)) {
        ps_str_init(&s, again, sizeof(again));
        ps_enrolment_add_code(&s, &code);
        assert(!s.truncated && strcmp(again, text) == 0);
    }
}

static void check_list(const char *text)
{
    const uint8_t secret[PS_ENROLMENT_SECRET_BYTES] = {1};
    struct ps_enrolment_record *record = NULL;
    struct ps_enrolment_list list;
    size_t line = 0;
    char *again;

    if (ps_enrolment_list_read(text, &list, &line) != 0) {
        assert(line > 0);
        return;
    }
    assert(list.count <= PS_ENROLMENT_CODES_MAX);
    again = ps_enrolment_list_format(&list);
    assert(strcmp(again, text) == 0);
    ps_free(again);
    while (list.count > 0) {
        size_t count = list.count;
        enum ps_enrolment_verdict v = ps_enrolment_list_try(
            &list, list.records[0].id, secret, NOW, &record);

        assert(v == PS_ENROLMENT_WRONG || v == PS_ENROLMENT_VOID);
        assert(list.count == count - (v == PS_ENROLMENT_VOID));
    }
    ps_enrolment_list_fini(&list);
}

static struct ps_decoder *shared_decoder(void)
{
    static struct ps_decoder *decoder;

    if (decoder == NULL) {
        decoder = ps_decoder_new();
        assert(decoder != NULL);
    }
    return decoder;
}

/* The path of the bytes of a node in the service. */
static void check_request(const uint8_t *bytes, size_t size)
{
    static const struct ps_enrolment_code code = {
        .role = PS_ROLE_AGENT, .id = 7, .secret = {'s'}};
    const struct ps_enrolment_record r = {.role = PS_ROLE_AGENT,
                                          .name = "n1",
                                          .ends_at = NOW + 60,
                                          .hosts = (char *)"-"};
    struct ps_enrolment_record *found = NULL;
    struct ps_enrolment_list list = {0};
    EVP_PKEY *key = NULL;
    struct ps_msg msg;
    char why[256];
    struct ps_str s;

    if (pki_message_read(shared_decoder(), PS_MSG_ENROL, bytes, size, &msg) !=
            0 ||
        msg.enrol.secret.len != PS_ENROLMENT_SECRET_BYTES) {
        return;
    }
    ps_str_init(&s, why, sizeof(why));
    if (ps_pki_read_csr(msg.enrol.request, &key, &s) == 0) {
        ps_pki_key_free(key);
    }
    assert(ps_enrolment_list_add(&list, &code, &r, NOW) == 0);
    if (ps_enrolment_list_try(&list, msg.enrol.id, msg.enrol.secret.data, NOW,
                              &found) == PS_ENROLMENT_GOOD) {
        assert(msg.enrol.id == code.id);
        assert(memcmp(msg.enrol.secret.data, code.secret,
                      sizeof(code.secret)) == 0);
        ps_free(ps_enrolment_list_remove(&list, found).hosts);
        assert(ps_enrolment_list_try(&list, msg.enrol.id, msg.enrol.secret.data,
                                     NOW, &found) == PS_ENROLMENT_UNKNOWN);
    }
    ps_enrolment_list_fini(&list);
}

/* The path of the bytes of an authority in a node. */
static void check_answer(const uint8_t *bytes, size_t size)
{
    static const struct ps_enrolment_code code = {.role = PS_ROLE_AGENT};
    static EVP_PKEY *key;
    struct ps_pki_info info;
    struct ps_msg msg;
    char why[512];
    struct ps_str s;

    ps_str_init(&s, why, sizeof(why));
    if (key == NULL) {
        assert(ps_pki_key_new(&key, &s) == 0);
    }
    if (pki_message_read(shared_decoder(), PS_MSG_ENROLLED, bytes, size,
                         &msg) == 0) {
        const struct ps_enrolment_answer a = {
            msg.enrolled.certificate, msg.enrolled.authority, msg.enrolled.crl};

        assert(ps_enrolment_check_answer(&code, key, &a, NOW, &info, &s) != 0);
        assert(s.len > 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;

    if (size == 0) {
        return 0;
    }
    if (data[0] % 4 == 2) {
        check_request(data + 1, size - 1);
        return 0;
    }
    if (data[0] % 4 == 3) {
        check_answer(data + 1, size - 1);
        return 0;
    }
    text = strndup((const char *)data + 1, size - 1);
    assert(text != NULL);
    if (data[0] % 4 == 0) {
        check_code(text);
    } else {
        check_list(text);
    }
    free(text);
    return 0;
}
