/* SPDX-License-Identifier: Apache-2.0 */
/* One rule of an injected fault, and sets of them. */
#ifndef GPUMEM_SIMCUDA_RULE_H
#define GPUMEM_SIMCUDA_RULE_H

#include "libclient/simcuda/sim.h"

#define RULES_MAX      32
#define RULES_TEXT_MAX 4096

struct rule {
        char call[64]; /* without the '*' of a prefix */
        bool prefix;
        char process[32]; /* empty: every one */
        uint64_t nth, times, one_in;
        CUresult error; /* CUDA_SUCCESS: none */
        bool sticky, lost;
        uint32_t delay_us;
        uint64_t seen, hits, random;
};

struct rules {
        struct rule rule[RULES_MAX];
        uint32_t count;
};

/* CUDA_ERROR_INVALID_VALUE with a detail; `out` is unchanged then. */
CUresult rules_parse(const char *text, struct rules *out);
/* Counts the call; whether the rule hits it. */
bool rule_hits(struct rule *rule, const char *call);

#endif
