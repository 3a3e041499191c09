/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenant rules: the [tenant NAME] sections of the configuration. Each names a tenant, says who
 * belongs to it and what it may have.
 *
 * Rules are tried in the order in which their sections first appear; the first that matches
 * decides. Of the kinds of key a rule gives (unit, cgroup, uid, gid) every one must match; of
 * several values of one kind, one. A rule without any matches nobody by itself: it is for the
 * tenant that is named so by default ("uid-1000"), and sets its limits.
 *
 * A client that no rule matches belongs to the tenant of its user id.
 */
#ifndef GPUMEMD_TENANT_RULE_H
#define GPUMEMD_TENANT_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define TENANT_NAME_MAX    43 /* with the NUL: what inih takes of a section's name */
#define TENANT_GLOB_MAX    160
#define TENANT_RULES_MAX   64
#define TENANT_MATCHES_MAX 256 /* all rules together */
#define TENANT_NO_LIMIT    UINT64_MAX

/* What names a tenant that no rule made; a rule may only name it, not match. */
#define TENANT_DEFAULT_PREFIX "uid-"

struct identity;

enum tenant_match_kind {
        TENANT_MATCH_UNIT,   /* glob over the systemd unit */
        TENANT_MATCH_CGROUP, /* glob over the control group's path; '*' also matches '/' */
        TENANT_MATCH_UID,
        TENANT_MATCH_GID, /* of the primary and the supplementary groups */
        TENANT_MATCH_KIND_COUNT,
};

struct tenant_match {
        uint16_t rule; /* index */
        uint8_t kind;  /* enum tenant_match_kind */
        union {
                char glob[TENANT_GLOB_MAX];
                struct {
                        uint32_t first, last; /* ids, both included */
                };
        };
};

struct tenant_rule {
        char name[TENANT_NAME_MAX];
        uint64_t max_bytes; /* of VRAM on each device; TENANT_NO_LIMIT */
        uint32_t kinds;     /* bit per enum tenant_match_kind that it gives */
        bool max_given;     /* in the file that is being read */
        unsigned line;      /* of its last line in that file; 0: none */
};

struct tenant_rules {
        struct tenant_rule rules[TENANT_RULES_MAX];
        uint32_t rules_count;
        struct tenant_match matches[TENANT_MATCHES_MAX];
        uint32_t matches_count;
};

/* May a tenant be called so? Letters, digits and "._-@:", not beginning with '-' or '.'. */
bool tenant_name_is_valid(const char *name);

/* Between files: what may be given once a file may be given again. */
void tenant_rules_next_file(struct tenant_rules *rules);

/* The header of a section. 0, or -EINVAL and why not (file and line are the caller's) in `why`. */
int tenant_rules_section(struct tenant_rules *rules, const char *name, unsigned line, char *why,
                         size_t size);

/*
 * A key of [tenant `name`]. 0 or -EINVAL.
 * Values of match keys may be several, separated by blanks, and the key may be repeated.
 */
int tenant_rules_key(struct tenant_rules *rules, const char *name, const char *key,
                     const char *value, unsigned line, char *why, size_t size);

/* After a file: does every rule of it match somebody? 0, or -EINVAL with *line and `why`. */
int tenant_rules_check(const struct tenant_rules *rules, unsigned *line, char *why, size_t size);

/* The first rule that matches; NULL: none. */
const struct tenant_rule *tenant_rules_match(const struct tenant_rules *rules,
                                             const struct identity *identity);

/* The rule of that name; NULL: none. */
const struct tenant_rule *tenant_rules_find(const struct tenant_rules *rules, const char *name);

#endif
