/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/identity.h"
#include "daemon/tenant_rule.h"

static const char *const kind_names[TENANT_MATCH_KIND_COUNT] = {
        [TENANT_MATCH_UNIT] = "unit",
        [TENANT_MATCH_CGROUP] = "cgroup",
        [TENANT_MATCH_UID] = "uid",
        [TENANT_MATCH_GID] = "gid",
};

struct complaint {
        char *why;
        size_t size;
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct complaint *complaint,
                                                        const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(complaint->why, complaint->size, format, arguments);
        va_end(arguments);
        return -EINVAL;
}

bool tenant_name_is_valid(const char *name)
{
        static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "0123456789._-@:";

        return name[0] && name[0] != '-' && name[0] != '.' && strlen(name) < TENANT_NAME_MAX &&
               strspn(name, allowed) == strlen(name);
}

static struct tenant_rule *find(struct tenant_rules *rules, const char *name)
{
        for (uint32_t i = 0; i < rules->rules_count; i++)
                if (strcmp(rules->rules[i].name, name) == 0)
                        return &rules->rules[i];
        return NULL;
}

const struct tenant_rule *tenant_rules_find(const struct tenant_rules *rules, const char *name)
{
        for (uint32_t i = 0; i < rules->rules_count; i++)
                if (strcmp(rules->rules[i].name, name) == 0)
                        return &rules->rules[i];
        return NULL;
}

void tenant_rules_next_file(struct tenant_rules *rules)
{
        for (uint32_t i = 0; i < rules->rules_count; i++) {
                rules->rules[i].max_given = false;
                rules->rules[i].line = 0;
        }
}

static int parse_id(const char *text, size_t length, uint32_t *out)
{
        uint64_t value = 0;

        if (length == 0)
                return -EINVAL;
        for (size_t i = 0; i < length; i++) {
                if (text[i] < '0' || text[i] > '9')
                        return -EINVAL;
                value = value * 10 + (uint64_t)(text[i] - '0');
                if (value >= UINT32_MAX) /* (uid_t)-1 is nobody's */
                        return -ERANGE;
        }
        *out = (uint32_t)value;
        return 0;
}

/* "1000" or "1000-1999". */
static int parse_ids(const char *word, size_t length, struct tenant_match *match)
{
        const char *dash = memchr(word, '-', length);
        size_t first = dash ? (size_t)(dash - word) : length;

        if (parse_id(word, first, &match->first) < 0)
                return -EINVAL;
        match->last = match->first;
        if (dash && parse_id(dash + 1, length - first - 1, &match->last) < 0)
                return -EINVAL;
        return match->first <= match->last ? 0 : -EINVAL;
}

static int parse_glob(const char *word, size_t length, struct tenant_match *match)
{
        if (length >= sizeof(match->glob))
                return -EINVAL;
        memcpy(match->glob, word, length);
        match->glob[length] = '\0';
        /* A control group is named by its path from the root of the hierarchy. */
        if (match->kind == TENANT_MATCH_CGROUP && word[0] != '/' && word[0] != '*')
                return -EINVAL;
        return 0;
}

static int add_matches(struct tenant_rules *rules, struct tenant_rule *rule,
                       enum tenant_match_kind kind, const char *value,
                       const struct complaint *complaint)
{
        static const char blanks[] = " \t";
        const char *word = value + strspn(value, blanks);
        bool ids = kind == TENANT_MATCH_UID || kind == TENANT_MATCH_GID;

        if (!*word)
                return refuse(complaint, "key '%s' in [tenant %s] has no value", kind_names[kind],
                              rule->name);
        for (size_t length; *word; word += length, word += strspn(word, blanks)) {
                struct tenant_match *match = &rules->matches[rules->matches_count];

                length = strcspn(word, blanks);
                if (rules->matches_count == TENANT_MATCHES_MAX)
                        return refuse(complaint, "more than %d values in [tenant ...] sections",
                                      TENANT_MATCHES_MAX);
                *match = (struct tenant_match){
                        .rule = (uint16_t)(rule - rules->rules),
                        .kind = (uint8_t)kind,
                };
                if ((ids ? parse_ids(word, length, match) : parse_glob(word, length, match)) < 0)
                        return refuse(complaint,
                                      "key '%s' in [tenant %s]: '%.*s' is not allowed; allowed: %s",
                                      kind_names[kind], rule->name, (int)length, word,
                                      ids ? "numbers and ranges such as 1000-1999"
                                      : kind == TENANT_MATCH_CGROUP
                                              ? "patterns that begin with '/' or '*'"
                                              : "patterns of at most 159 bytes");
                rules->matches_count++;
        }
        rule->kinds |= 1u << kind;
        return 0;
}

static int set_max(struct tenant_rule *rule, const char *value, const struct complaint *complaint)
{
        if (rule->max_given)
                return refuse(complaint, "key 'max' in [tenant %s] is given twice", rule->name);
        rule->max_given = true;
        if (strcmp(value, "max") == 0 || strcmp(value, "infinity") == 0) {
                rule->max_bytes = TENANT_NO_LIMIT;
                return 0;
        }
        if (config_parse_bytes(value, &rule->max_bytes) < 0 || rule->max_bytes == TENANT_NO_LIMIT)
                return refuse(complaint,
                              "key 'max' in [tenant %s]: '%s' is not allowed; allowed: a size, "
                              "with suffix K, M, G or T, or max",
                              rule->name, value);
        return 0;
}

int tenant_rules_section(struct tenant_rules *rules, const char *name, unsigned line, char *why,
                         size_t size)
{
        const struct complaint complaint = {why, size};
        struct tenant_rule *rule = find(rules, name);

        if (!rule) {
                if (rules->rules_count == TENANT_RULES_MAX)
                        return refuse(&complaint, "more than %d [tenant ...] sections",
                                      TENANT_RULES_MAX);
                rule = &rules->rules[rules->rules_count++];
                *rule = (struct tenant_rule){.max_bytes = TENANT_NO_LIMIT};
                snprintf(rule->name, sizeof(rule->name), "%s", name);
        }
        rule->line = line;
        return 0;
}

int tenant_rules_key(struct tenant_rules *rules, const char *name, const char *key,
                     const char *value, unsigned line, char *why, size_t size)
{
        const struct complaint complaint = {why, size};
        struct tenant_rule *rule;

        if (tenant_rules_section(rules, name, line, why, size) < 0)
                return -EINVAL;
        rule = find(rules, name);
        if (strcmp(key, "max") == 0)
                return set_max(rule, value, &complaint);
        for (int kind = 0; kind < TENANT_MATCH_KIND_COUNT; kind++)
                if (strcmp(key, kind_names[kind]) == 0)
                        return add_matches(rules, rule, (enum tenant_match_kind)kind, value,
                                           &complaint);
        return refuse(&complaint,
                      "unknown key '%s' in [tenant %s]; allowed: unit, cgroup, uid, gid, max", key,
                      name);
}

int tenant_rules_check(const struct tenant_rules *rules, unsigned *line, char *why, size_t size)
{
        const struct complaint complaint = {why, size};
        const size_t prefix = strlen(TENANT_DEFAULT_PREFIX);

        for (uint32_t i = 0; i < rules->rules_count; i++) {
                const struct tenant_rule *rule = &rules->rules[i];
                bool is_default = strncmp(rule->name, TENANT_DEFAULT_PREFIX, prefix) == 0;
                uint32_t uid;

                if (rule->line == 0)
                        continue;
                *line = rule->line;
                if (is_default && parse_id(rule->name + prefix, strlen(rule->name + prefix), &uid))
                        return refuse(&complaint,
                                      "[tenant %s]: names that begin with '" TENANT_DEFAULT_PREFIX
                                      "' are those of user ids, such as uid-1000",
                                      rule->name);
                if (is_default && rule->kinds != 0)
                        return refuse(&complaint,
                                      "[tenant %s] is the tenant of that user id already: no unit, "
                                      "cgroup, uid or gid can be given",
                                      rule->name);
                if (!is_default && rule->kinds == 0)
                        return refuse(&complaint,
                                      "[tenant %s] is nobody: give unit, cgroup, uid or gid",
                                      rule->name);
        }
        return 0;
}

static bool has_group(const struct identity *identity, const struct tenant_match *match)
{
        if (identity->gid >= match->first && identity->gid <= match->last)
                return true;
        for (size_t i = 0; i < identity->groups_count; i++)
                if (identity->groups[i] >= match->first && identity->groups[i] <= match->last)
                        return true;
        return false;
}

static bool value_matches(const struct tenant_match *match, const struct identity *identity)
{
        switch ((enum tenant_match_kind)match->kind) {
        case TENANT_MATCH_UNIT:
                return identity->unit && fnmatch(match->glob, identity->unit, FNM_NOESCAPE) == 0;
        case TENANT_MATCH_CGROUP:
                return identity->cgroup &&
                       fnmatch(match->glob, identity->cgroup, FNM_NOESCAPE) == 0;
        case TENANT_MATCH_UID:
                return identity->uid >= match->first && identity->uid <= match->last;
        case TENANT_MATCH_GID:
                return has_group(identity, match);
        case TENANT_MATCH_KIND_COUNT:
                break;
        }
        return false;
}

const struct tenant_rule *tenant_rules_match(const struct tenant_rules *rules,
                                             const struct identity *identity)
{
        for (uint32_t i = 0; i < rules->rules_count; i++) {
                const struct tenant_rule *rule = &rules->rules[i];
                uint32_t matched = 0;

                if (rule->kinds == 0)
                        continue;
                for (uint32_t m = 0; m < rules->matches_count; m++) {
                        const struct tenant_match *match = &rules->matches[m];

                        if (match->rule == i && !(matched & 1u << match->kind) &&
                            value_matches(match, identity))
                                matched |= 1u << match->kind;
                }
                if (matched == rule->kinds)
                        return rule;
        }
        return NULL;
}
