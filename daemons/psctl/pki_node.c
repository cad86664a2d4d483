/* SPDX-License-Identifier: Apache-2.0 */
/* Folder with the certificates of a node, which its daemons read: ca.crt,
 * crl.pem, and ROLE.crt and ROLE.key of each daemon there. */
#include "psctl/pki.h"
#include "psctl/answer.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

const char *pki_node_folder(const struct pki_options *o)
{
    return o->output != NULL ? o->output : PKI_DEFAULT_OUTPUT;
}

/* Fails if the folder has a file that must not be overwritten. */
static int check_folder(const char *folder, int dir, enum ps_role role,
                        const char *authority)
{
    char name[32];
    char *present;
    bool same;
    int exit_code;

    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "%s.%s", ps_role_name(role),
                 i == 0 ? "crt" : "key");
        if (pki_file_exists(dir, name)) {
            pki_error("%s/%s exists already; --force replaces it, renew makes "
                      "its successor",
                      folder, name);
            return EXIT_FAILED;
        }
    }
    if (authority == NULL) {
        return 0;
    }
    exit_code = pki_read_file(dir, folder, "ca.crt", &present);
    same = present == NULL || strcmp(present, authority) == 0;
    ps_free(present);
    if (exit_code == 0 && !same) {
        pki_error("%s/ca.crt is that of another authority; --force replaces it",
                  folder);
        exit_code = EXIT_FAILED;
    }
    return exit_code;
}

int pki_node_open(const struct pki_options *o, enum ps_role role,
                  const char *authority, bool force, int *ret_dir)
{
    const char *folder = pki_node_folder(o);
    struct pki_owner owner;
    int exit_code = pki_find_owner(o->owner, &owner);
    int dir;

    if (exit_code == 0) {
        exit_code = pki_open_folder(folder, true, &owner, &dir);
    }
    if (exit_code != 0) {
        return exit_code;
    }
    exit_code = force ? 0 : check_folder(folder, dir, role, authority);
    if (exit_code != 0) {
        close(dir);
        return exit_code;
    }
    *ret_dir = dir;
    return 0;
}

int pki_node_write(const struct pki_options *o, int dir,
                   const struct pki_node *node)
{
    char certificate[32];
    char key[32];
    const struct pki_file files[] = {{"ca.crt", node->authority, 0644},
                                     {"crl.pem", node->crl, 0644},
                                     {key, node->key, 0600},
                                     {certificate, node->certificate, 0644},
                                     {NULL, NULL, 0}};
    struct pki_owner owner;
    int exit_code = pki_find_owner(o->owner, &owner);

    snprintf(key, sizeof(key), "%s.key", ps_role_name(node->role));
    snprintf(certificate, sizeof(certificate), "%s.crt",
             ps_role_name(node->role));
    return exit_code != 0
               ? exit_code
               : pki_write_files(dir, pki_node_folder(o), files, &owner);
}

void pki_node_print(const struct ps_pki_info *info, const char *folder)
{
    char uri[PS_IDENTITY_URI_BYTES];
    char serial[PS_PKI_SERIAL_TEXT];
    int64_t days = (info->period.not_after - pki_now() + PKI_DAY - 1) / PKI_DAY;
    struct ps_str s;

    ps_str_init(&s, uri, sizeof(uri));
    ps_identity_add_uri(&s, &info->identity);
    ps_str_init(&s, serial, sizeof(serial));
    ps_pki_add_hex(&s, info->serial.bytes, PS_PKI_SERIAL_BYTES);
    printf("%s: %s/%s.crt, serial %s, %" PRId64 " day%s\n", uri, folder,
           ps_role_name(info->identity.role), serial, days,
           plural((size_t)days));
}
