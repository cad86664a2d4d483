/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the seed corpora of the protocol's fuzz targets from the samples of
 * all messages, and a few inputs that once revealed bugs.
 *
 *   fuzz_seeds DIRECTORY     (tests/fuzz/corpus; its folders must exist) */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/msg_codec.h"
#include "proto/ps_samples.h"

static const char *directory;

static void write_seed(const char *target, const char *name,
                       const uint8_t *lead, size_t lead_len,
                       const uint8_t *data, size_t len)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s/%s", directory, target, name);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(lead, 1, lead_len, f) != lead_len ||
        fwrite(data, 1, len, f) != len || fclose(f) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
}

/* Roles between which the message may travel, as fuzz_frame reads them. */
static void choose_roles(unsigned code, uint8_t roles[2])
{
    for (unsigned from = PS_ROLE_SCHED; from <= PS_ROLE_CTL; from++) {
        for (unsigned to = PS_ROLE_SCHED; to <= PS_ROLE_CTL; to++) {
            if (ps_msg_allowed(code, from, to)) {
                roles[0] = (uint8_t)(from - PS_ROLE_SCHED);
                roles[1] = (uint8_t)(to - PS_ROLE_SCHED);
                return;
            }
        }
    }
}

static void write_sample(const struct ps_msg *msg)
{
    uint8_t code = (uint8_t)msg->code;
    const char *name = ps_msg_name(code);
    uint8_t frame[2048];
    uint8_t roles[2] = {0, 0};
    size_t len;

    if (ps_msg_encode(msg, PS_PROTOCOL, 0, frame, sizeof(frame), &len) != 0) {
        fprintf(stderr, "%s: cannot be encoded\n", name);
        exit(1);
    }
    choose_roles(code, roles);
    write_seed("frame", name, roles, sizeof(roles), frame, len);
    write_seed("msg", name, &code, 1, frame + PS_FRAME_PREFIX,
               len - PS_FRAME_PREFIX);
}

/* Bytes that make msgpack-c reserve gigabytes, and similar ones. */
static const struct {
    const char *name;
    const char *bytes;
    size_t len;
} bombs[] = {
#define ROW(name, text)                                                        \
    {                                                                          \
        name, text, sizeof(text) - 1                                           \
    }
    ROW("bomb_array", "\xdd\x10\x00\x00\x00"),
    ROW("bomb_map", "\x8a\xff\xff\xff\xdf\xff\xff\xff\xff"),
    ROW("bomb_str", "\x81\x08\xdb\xff\xff\xff\xff"),
    ROW("bomb_bin", "\x81\x08\xc6\xff\xff\xff\xff"),
    ROW("bomb_depth", "\x91\x91\x91\x91\x91\x91\x91\x91\x91\x90"),
    ROW("bomb_ext", "\x81\x08\xc9\xff\xff\xff\xff\x01"),
    ROW("bomb_shared", "\x94\x94\x94\x94\x00\x00\x00\x00\x00\x00"),
    ROW("twice", "\x82\x08\x01\x08\x01"),
    ROW("every_scalar", "\xdc\x00\x11\xc0\xc2\xc3\xcc\x01\xcd\x01\x01\xce\x01"
                        "\x01\x01\x01\xcf\x01\x01\x01\x01\x01\x01\x01\x01\xd0"
                        "\x01\xd1\x01\x01\xd2\x01\x01\x01\x01\xd3\x01\x01\x01"
                        "\x01\x01\x01\x01\x01\xca\x01\x01\x01\x01\xcb\x01\x01"
                        "\x01\x01\x01\x01\x01\x01\xd9\x01z\xda\x00\x01z\xc4"
                        "\x01z\x7f\xe0"),
    ROW("containers", "\x83\x01\xdc\x00\x01\x90\xde\x00\x01\x80\x02\xa0\x03"
                      "\xdf\x00\x00\x00\x01\xa1z\xdd\x00\x00\x00\x01\x05"),
#undef ROW
};

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fuzz_seeds DIRECTORY\n");
        return 2;
    }
    directory = argv[1];
    for (size_t i = PS_SAMPLE_TYPICAL; i < ps_samples_count(); i += 3) {
        write_sample(ps_sample(i));
    }
    for (size_t i = 0; i < sizeof(bombs) / sizeof(bombs[0]); i++) {
        const uint8_t *bytes = (const uint8_t *)bombs[i].bytes;

        write_seed("scan", bombs[i].name, NULL, 0, bytes, bombs[i].len);
        write_seed("msg", bombs[i].name, (const uint8_t *)"\x10", 1, bytes,
                   bombs[i].len);
    }
    return 0;
}
