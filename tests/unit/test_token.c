/* SPDX-License-Identifier: Apache-2.0 */
#include "crypto/token.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static struct ps_fixed_token_claims make_claims(void)
{
    return (struct ps_fixed_token_claims){.id = 0x1234,
                                          .issued_at = 1000,
                                          .not_after = 2000,
                                          .uid = 7,
                                          .rights = 6,
                                          .cluster = "default",
                                          .job = "train"};
}

static void signed_claims_are_read_back(void **state)
{
    EVP_PKEY *key = ps_token_key_new();
    struct ps_fixed_token_claims claims = make_claims();
    struct ps_fixed_token_claims got;
    char text[PS_TOKEN_TEXT_LEN + 1];

    (void)state;
    assert_non_null(key);
    assert_true(ps_token_sign(key, &claims, text));
    assert_int_equal(strlen(text), PS_TOKEN_TEXT_LEN);
    assert_memory_equal(text, "pskv1.", 6);
    assert_true(ps_token_verify(key, text, &got));
    assert_int_equal(got.id, claims.id);
    assert_int_equal(got.not_after, claims.not_after);
    assert_int_equal(got.uid, claims.uid);
    assert_int_equal(got.rights, claims.rights);
    assert_string_equal((const char *)got.cluster, "default");
    assert_string_equal((const char *)got.job, "train");
    ps_token_key_free(key);
}

/* Any other character at any place, and any length, is another text. */
static void token_has_exactly_one_text(void **state)
{
    static const char others[] = "Ab9-_=+/ \n.";
    EVP_PKEY *key = ps_token_key_new();
    struct ps_fixed_token_claims claims = make_claims();
    struct ps_fixed_token_claims got;
    char text[PS_TOKEN_TEXT_LEN + 2] = "";
    char changed[PS_TOKEN_TEXT_LEN + 2];

    (void)state;
    assert_true(ps_token_sign(key, &claims, text));
    for (size_t i = 0; i < PS_TOKEN_TEXT_LEN; i++) {
        for (const char *c = others; *c != '\0'; c++) {
            memcpy(changed, text, sizeof(text));
            changed[i] = *c;
            assert_true(*c == text[i] || !ps_token_verify(key, changed, &got));
        }
        memcpy(changed, text, sizeof(text));
        changed[i] = '\0';
        assert_false(ps_token_verify(key, changed, &got));
    }
    memcpy(changed, text, sizeof(text));
    changed[PS_TOKEN_TEXT_LEN] = 'A';
    assert_false(ps_token_verify(key, changed, &got));
    assert_false(ps_token_verify(key, "", &got));
    ps_token_key_free(key);
}

static void token_of_another_key_does_not_count(void **state)
{
    EVP_PKEY *key = ps_token_key_new();
    EVP_PKEY *other = ps_token_key_new();
    struct ps_fixed_token_claims claims = make_claims();
    char text[PS_TOKEN_TEXT_LEN + 1];

    (void)state;
    assert_true(ps_token_sign(key, &claims, text));
    assert_false(ps_token_verify(other, text, &claims));
    assert_true(ps_token_verify(key, text, &claims));
    ps_token_key_free(key);
    ps_token_key_free(other);
}

/* Even signed ones: a record has one meaning. */
static void invalid_claims_are_refused(void **state)
{
    EVP_PKEY *key = ps_token_key_new();
    struct ps_fixed_token_claims wrong[] = {
        make_claims(), make_claims(), make_claims(),
        make_claims(), make_claims(), make_claims(),
        make_claims(), make_claims(), make_claims()};
    struct ps_fixed_token_claims got;
    char text[PS_TOKEN_TEXT_LEN + 1];

    (void)state;
    wrong[0].id = 0;
    wrong[1].rights = 0;
    wrong[2].rights = 32;
    wrong[3].not_after = wrong[3].issued_at;
    memset(wrong[4].cluster, 0, sizeof(wrong[4].cluster));
    memset(wrong[5].job, 'x', sizeof(wrong[5].job));
    wrong[6].job[40] = 1; /* Behind the end of the name. */
    wrong[7].job[2] = ' ';
    memset(wrong[8].job, 'x', 65);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_true(ps_token_sign(key, &wrong[i], text));
        assert_false(ps_token_verify(key, text, &got));
    }
    wrong[0] = make_claims();
    memset(wrong[0].job, 0, sizeof(wrong[0].job)); /* All jobs. */
    assert_true(ps_token_sign(key, &wrong[0], text));
    assert_true(ps_token_verify(key, text, &got));
    ps_token_key_free(key);
}

/* ------------------------------------------------------------------- files */

static char folder[] = "/tmp/test_token.XXXXXX";
static char path[64];

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    snprintf(path, sizeof(path), "%s/key", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(folder);
}

static void expect_refused(const char *name, const char *reason)
{
    char text[256] = "";
    struct ps_str why;

    ps_str_init(&why, text, sizeof(text));
    assert_null(ps_token_key_open(name, &why));
    if (strstr(text, reason) == NULL) {
        fail_msg("'%s' is not in: %s", reason, text);
    }
}

static void key_file_is_made_once_and_kept(void **state)
{
    struct ps_fixed_token_claims claims = make_claims();
    char token[PS_TOKEN_TEXT_LEN + 1];
    char text[256] = "";
    EVP_PKEY *key;
    struct ps_str why;
    struct stat st;
    mode_t mask = umask(0);

    (void)state;
    ps_str_init(&why, text, sizeof(text));
    key = ps_token_key_open(path, &why);
    umask(mask);
    assert_non_null(key);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(ps_token_sign(key, &claims, token));
    ps_token_key_free(key);
    key = ps_token_key_open(path, &why);
    assert_non_null(key);
    assert_true(ps_token_verify(key, token, &claims));
    ps_token_key_free(key);
}

static void unsafe_and_foreign_key_files_are_refused(void **state)
{
    static const char garbage[] = "no key\n";
    char link[80];
    FILE *f;

    (void)state;
    for (int bit = 0; bit < 6; bit++) {
        assert_int_equal(chmod(path, (mode_t)(0600 | (1 << bit))), 0);
        expect_refused(path, "others cannot read or write");
    }
    assert_int_equal(chmod(path, 0600), 0);
    expect_refused(folder, "it must be a regular file");
    snprintf(link, sizeof(link), "%s.link", path);
    assert_int_equal(symlink(path, link), 0);
    expect_refused(link, link);
    assert_int_equal(unlink(link), 0);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(garbage, f);
    fclose(f);
    expect_refused(path, "no Ed25519 key in PEM");
    expect_refused("/proc/none/key", "/proc/none/key: ");
}

/* A daemon does not ask at its terminal. */
static void encrypted_key_is_refused_without_a_question(void **state)
{
    static const char password[] = "secret\n";
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    int input = dup(STDIN_FILENO);
    int pipe_of[2];
    FILE *f;

    (void)state;
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fchmod(fileno(f), 0600), 0);
    assert_int_equal(PEM_write_PrivateKey(f, key, EVP_aes_128_cbc(), NULL, 0,
                                          NULL, (void *)"secret"),
                     1);
    fclose(f);
    EVP_PKEY_free(key);
    assert_int_equal(pipe(pipe_of), 0);
    assert_int_equal(write(pipe_of[1], password, sizeof(password) - 1),
                     sizeof(password) - 1);
    close(pipe_of[1]);
    assert_true(dup2(pipe_of[0], STDIN_FILENO) >= 0);
    expect_refused(path, "no Ed25519 key in PEM");
    assert_true(input < 0 || dup2(input, STDIN_FILENO) >= 0);
    close(pipe_of[0]);
    close(input);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signed_claims_are_read_back),
        cmocka_unit_test(token_has_exactly_one_text),
        cmocka_unit_test(token_of_another_key_does_not_count),
        cmocka_unit_test(invalid_claims_are_refused),
        cmocka_unit_test(key_file_is_made_once_and_kept),
        cmocka_unit_test(unsafe_and_foreign_key_files_are_refused),
        cmocka_unit_test(encrypted_key_is_refused_without_a_question),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
