/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/rule.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DELAY_US_MAX 60000000u
#define ANY          UINT64_MAX

static bool parse_count(const char *text, uint64_t minimum, uint64_t maximum, uint64_t *out)
{
        char *end;
        unsigned long long value;

        if (!text || text[0] < '0' || text[0] > '9')
                return false;
        errno = 0;
        value = strtoull(text, &end, 10);
        if (errno != 0 || *end != '\0' || value < minimum || value > maximum)
                return false;
        *out = value;
        return true;
}

static CUresult parse_key(struct rule *rule, char *word, bool *has_error)
{
        char *value = strchr(word, '=');
        uint64_t number = 0;
        bool good;

        if (value)
                *value++ = '\0';
        if (strcmp(word, "sticky") == 0 || strcmp(word, "lost") == 0) {
                good = !value;
                if (word[0] == 's')
                        rule->sticky = true;
                else
                        rule->lost = true;
        } else if (strcmp(word, "nth") == 0) {
                good = parse_count(value, 1, ANY - 1, &rule->nth);
        } else if (strcmp(word, "times") == 0) {
                good = true;
                if (value && strcmp(value, "all") == 0)
                        rule->times = ANY;
                else
                        good = parse_count(value, 1, ANY - 1, &rule->times);
        } else if (strcmp(word, "one_in") == 0) {
                good = parse_count(value, 1, UINT32_MAX, &rule->one_in);
        } else if (strcmp(word, "delay") == 0) {
                good = parse_count(value, 0, DELAY_US_MAX, &number);
                rule->delay_us = (uint32_t)number;
        } else if (strcmp(word, "error") == 0) {
                good = value && sim_error_parse(value, &rule->error);
                *has_error = true;
        } else if (strcmp(word, "process") == 0) {
                good = value && value[0] != '\0' && strlen(value) < sizeof(rule->process);
                if (good)
                        snprintf(rule->process, sizeof(rule->process), "%s", value);
        } else {
                return sim_fail(CUDA_ERROR_INVALID_VALUE, "a fault rule has no \"%s\"", word);
        }
        if (!good)
                return sim_fail(CUDA_ERROR_INVALID_VALUE, "%s=%s makes no sense in a fault rule",
                                word, value ? value : "");
        return CUDA_SUCCESS;
}

/* Some word that no call begins with would be a rule that never hits: it is refused. */
static bool call_makes_sense(const char *call)
{
        return call[0] == '\0' || strncmp(call, "cu", strlen(call) < 2 ? 1 : 2) == 0 ||
               strcmp(call, "operation") == 0;
}

static CUresult parse_rule(char *text, struct rule *rule)
{
        static const char blanks[] = " \t\r,";
        char *rest = NULL, *word = strtok_r(text, blanks, &rest);
        CUresult result = CUDA_SUCCESS;
        bool has_error = false;
        size_t length;

        *rule = (struct rule){.nth = 1, .times = 1, .one_in = 1};
        length = strlen(word);
        if (word[length - 1] == '*') {
                rule->prefix = true;
                word[--length] = '\0';
        }
        if (length >= sizeof(rule->call) || !call_makes_sense(word) ||
            (length == 0 && !rule->prefix))
                return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                "\"%s\" is no driver call (of a fault rule)", word);
        snprintf(rule->call, sizeof(rule->call), "%s", word);
        while (result == CUDA_SUCCESS && (word = strtok_r(NULL, blanks, &rest)) != NULL)
                result = parse_key(rule, word, &has_error);
        if (result == CUDA_SUCCESS && !has_error) {
                if (rule->lost)
                        rule->error = CUDA_ERROR_DEVICE_UNAVAILABLE;
                else if (rule->sticky)
                        rule->error = CUDA_ERROR_ILLEGAL_ADDRESS;
                else if (rule->delay_us == 0)
                        rule->error = CUDA_ERROR_UNKNOWN;
        }
        return result;
}

CUresult rules_parse(const char *text, struct rules *out)
{
        char copy[RULES_TEXT_MAX], *rest = NULL, *line;
        struct rules rules = {.count = 0};
        CUresult result = CUDA_SUCCESS;

        if (!text)
                text = "";
        if (strlen(text) >= sizeof(copy))
                return sim_fail(CUDA_ERROR_INVALID_VALUE, "fault rules have more than %zu bytes",
                                sizeof(copy) - 1);
        snprintf(copy, sizeof(copy), "%s", text);
        for (line = strtok_r(copy, ";\n", &rest); line && result == CUDA_SUCCESS;
             line = strtok_r(NULL, ";\n", &rest)) {
                char *comment = strchr(line, '#');

                if (comment)
                        *comment = '\0';
                if (line[strspn(line, " \t\r,")] == '\0')
                        continue;
                if (rules.count == RULES_MAX)
                        return sim_fail(CUDA_ERROR_INVALID_VALUE, "more than %u fault rules",
                                        RULES_MAX);
                result = parse_rule(line, &rules.rule[rules.count++]);
        }
        if (result == CUDA_SUCCESS)
                *out = rules;
        return result;
}

static bool is_this_process(const char *who)
{
        char number[24];

        if (who[0] == '\0' || strcmp(who, program_invocation_short_name) == 0)
                return true;
        snprintf(number, sizeof(number), "%ld", (long)getpid());
        return strcmp(who, number) == 0;
}

static bool is_meant(const struct rule *rule, const char *call)
{
        if (!rule->prefix)
                return sim_call_is(call, rule->call);
        /* What streams run is no call: "*" does not mean it. */
        return strncmp(call, rule->call, strlen(rule->call)) == 0 &&
               (rule->call[0] != '\0' || strcmp(call, "operation") != 0);
}

static bool chance(struct rule *rule)
{
        uint64_t x;

        if (rule->one_in == 1)
                return true;
        if (rule->random == 0)
                rule->random = sim.config.seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
        /* splitmix64 */
        x = rule->random += UINT64_C(0x9e3779b97f4a7c15);
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        return (x ^ (x >> 31)) % rule->one_in == 0;
}

bool rule_hits(struct rule *rule, const char *call)
{
        if (!is_meant(rule, call) || !is_this_process(rule->process))
                return false;
        if (++rule->seen < rule->nth || rule->hits >= rule->times || !chance(rule))
                return false;
        rule->hits++;
        return true;
}
