/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which instruction set the kernels use. The answer is the same for the life of the process.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/tile.h"

static bool isa_present(enum kernel_isa isa)
{
        switch (isa) {
        case KERNEL_ISA_PORTABLE:
                return true;
        case KERNEL_ISA_AVX512:
#if defined(__x86_64__)
                /* Includes that the operating system saves the registers. Every CPU with AVX-512
                 * has F16C. */
                return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("fma");
#else
                return false;
#endif
        }
        return false;
}

static enum kernel_isa isa_choose(void)
{
        static const enum kernel_isa best_first[] = {KERNEL_ISA_AVX512, KERNEL_ISA_PORTABLE};
        const size_t n = sizeof(best_first) / sizeof(best_first[0]);
        const char *name = getenv("GPUMEM_CPU_ISA");

        for (size_t i = 0; name && i < n; i++)
                if (strcmp(name, kernel_isa_name(best_first[i])) == 0 && isa_present(best_first[i]))
                        return best_first[i];
        for (size_t i = 0; i < n; i++)
                if (isa_present(best_first[i]))
                        return best_first[i];
        return KERNEL_ISA_PORTABLE;
}

const char *kernel_cpu_isa_mistake(void)
{
        const char *name = getenv("GPUMEM_CPU_ISA");

        if (!name || !*name || strcmp(name, kernel_isa_name(KERNEL_ISA_PORTABLE)) == 0 ||
            strcmp(name, kernel_isa_name(KERNEL_ISA_AVX512)) == 0)
                return NULL;
        return name;
}

enum kernel_isa kernel_cpu_isa(void)
{
        /* Two first callers at once find the same answer, so the order in which they store it is no
         * matter. */
        static atomic_int chosen = -1;
        int isa = atomic_load_explicit(&chosen, memory_order_relaxed);

        if (isa < 0) {
                int none = -1;

                isa = (int)isa_choose();
                if (!atomic_compare_exchange_strong(&chosen, &none, isa))
                        isa = none;
        }
        return (enum kernel_isa)isa;
}

const char *kernel_isa_name(enum kernel_isa isa)
{
        switch (isa) {
        case KERNEL_ISA_PORTABLE:
                return "portable";
        case KERNEL_ISA_AVX512:
                return "avx512";
        }
        return "unknown";
}

const struct kernel_tile_ops *kernel_tile_ops(enum kernel_isa isa)
{
        if (!isa_present(isa))
                return NULL;
        switch (isa) {
        case KERNEL_ISA_PORTABLE:
                return &kernel_tile_portable;
        case KERNEL_ISA_AVX512:
#if defined(__x86_64__)
                return &kernel_tile_avx512;
#else
                return NULL;
#endif
        }
        return NULL;
}
