/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/window.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WINDOW_BYTES_MIN (UINT64_C(1) << 30)
/*
 * The kernel places the windows below the libraries. 64 GiB twice stays, with any usual address
 * randomisation, inside the range that ThreadSanitizer allows; larger devices ask for more.
 */
#define WINDOW_BYTES_DEFAULT (UINT64_C(64) << 30)
#define WINDOW_BYTES_MAX     (UINT64_C(4) << 40)
#define WINDOW_TIMES_MEMORY  8
#define RESERVATIONS_MAX     65536u
#define AREAS_DEFAULT        65530u
#define AREAS_SPARED         2048u
#define RESERVE_FLAGS        (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

struct reservation {
        uint64_t start, bytes;
        bool implicit;
};

static struct {
        uint64_t device_base, alias_base, bytes; /* written once, before SIM_READY */
        uint64_t granularity;
        unsigned int granule_shift;
        struct mapping **granule;        /* by granule of the window: the mapping there */
        struct mapping *mappings;        /* all of them, as a list */
        struct reservation *reservation; /* sorted by start */
        uint32_t reservations, capacity;
        /* The kernel's areas in the alias window: mappings, and gaps between them. */
        uint64_t areas, areas_max;
        uint64_t
                next; /* where the search for free addresses goes on: freed ones rest for a while */
} window;

/*
 * Areas the alias window may have: the kernel's limit on a process's, less what else the process
 * needs. At the limit itself not even unmapping would work.
 */
static uint64_t areas_allowed(void)
{
        FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
        unsigned long long limit = 0;

        if (!file || fscanf(file, "%llu", &limit) != 1)
                limit = AREAS_DEFAULT;
        if (file)
                fclose(file);
        return limit > 2 * AREAS_SPARED ? limit - AREAS_SPARED : limit / 2;
}

CUresult window_open(uint64_t granularity, uint64_t total_memory_bytes)
{
        uint64_t align = granularity > (2u << 20) ? granularity : 2u << 20;
        uint64_t bytes = WINDOW_BYTES_DEFAULT;
        unsigned char *address = MAP_FAILED;
        void *table;

        while (bytes < total_memory_bytes * WINDOW_TIMES_MEMORY && bytes < WINDOW_BYTES_MAX)
                bytes *= 2;
        for (; bytes >= WINDOW_BYTES_MIN && bytes > total_memory_bytes; bytes /= 2) {
                address = mmap(NULL, 2 * bytes + align, PROT_NONE, RESERVE_FLAGS, -1, 0);
                if (address != MAP_FAILED)
                        break;
        }
        if (address == MAP_FAILED)
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM,
                                "cannot reserve device address space: %s", strerror(errno));

        table = mmap(NULL, bytes / granularity * sizeof(struct mapping *), PROT_READ | PROT_WRITE,
                     RESERVE_FLAGS, -1, 0);
        if (table == MAP_FAILED) {
                int error = errno;

                munmap(address, 2 * bytes + align);
                return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "cannot make the mapping table: %s",
                                strerror(error));
        }
        window.granule = table;
        window.device_base = ((uint64_t)(uintptr_t)address + align - 1) & ~(align - 1);
        window.alias_base = window.device_base + bytes;
        window.bytes = bytes;
        window.granularity = granularity;
        window.granule_shift = (unsigned int)__builtin_ctzll(granularity);
        window.next = window.device_base;
        window.areas = 1;
        window.areas_max = areas_allowed();
        return CUDA_SUCCESS;
}

void window_after_fork(void)
{
        /* The parent's device memory must not be reachable, nor kept, through the child's alias. */
        if (window.bytes != 0)
                (void)mmap((void *)(uintptr_t)window.alias_base, window.bytes, PROT_NONE,
                           RESERVE_FLAGS | MAP_FIXED, -1, 0);
}

static bool inside(uint64_t address, uint64_t bytes)
{
        return address >= window.device_base && bytes <= window.bytes &&
               address - window.device_base <= window.bytes - bytes;
}

static void *alias_of(uint64_t address)
{
        return (void *)(uintptr_t)(address + window.bytes);
}

void *window_alias(uint64_t address, uint64_t bytes)
{
        return inside(address, bytes) ? alias_of(address) : NULL;
}

bool window_holds_alias(const void *host)
{
        uint64_t address = (uint64_t)(uintptr_t)host;

        return address >= window.alias_base && address - window.alias_base < window.bytes;
}

/* --- reservations -------------------------------------------------------------------------------
 */

/* Number of reservations that start at or before `address`. */
static uint32_t count_up_to(uint64_t address)
{
        uint32_t low = 0, high = window.reservations;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (window.reservation[middle].start <= address)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/* Whether [address, +bytes) is free; if so, *index is where its reservation belongs. */
static bool range_is_free(uint64_t address, uint64_t bytes, uint32_t *index)
{
        uint32_t i = count_up_to(address);

        if (!inside(address, bytes))
                return false;
        if (i > 0 && window.reservation[i - 1].start + window.reservation[i - 1].bytes > address)
                return false;
        if (i < window.reservations && window.reservation[i].start < address + bytes)
                return false;
        *index = i;
        return true;
}

/* First fit at or after `from`. */
static bool find_free(uint64_t from, uint64_t bytes, uint64_t alignment, uint64_t *out,
                      uint32_t *index)
{
        uint64_t address = from;
        uint32_t i = count_up_to(from);

        if (i > 0 && window.reservation[i - 1].start + window.reservation[i - 1].bytes > from)
                address = window.reservation[i - 1].start + window.reservation[i - 1].bytes;
        for (;; i++) {
                address = (address + alignment - 1) & ~(alignment - 1);
                if (!inside(address, bytes))
                        return false;
                if (i == window.reservations || window.reservation[i].start - window.device_base >=
                                                        address - window.device_base + bytes)
                        break;
                address = window.reservation[i].start + window.reservation[i].bytes;
        }
        *out = address;
        *index = i;
        return true;
}

CUresult window_reserve(uint64_t bytes, uint64_t alignment, uint64_t hint, bool implicit,
                        uint64_t *out)
{
        uint64_t address = 0;
        uint32_t index = 0;

        if (alignment < window.granularity)
                alignment = window.granularity;
        if (bytes == 0 || bytes > window.bytes || bytes % window.granularity != 0 ||
            (alignment & (alignment - 1)) != 0)
                return CUDA_ERROR_INVALID_VALUE;
        if (window.reservations == RESERVATIONS_MAX)
                return sim_fail(CUDA_ERROR_OUT_OF_MEMORY, "a process may reserve %u ranges",
                                RESERVATIONS_MAX);
        if (window.reservations == window.capacity) {
                uint32_t capacity = window.capacity ? window.capacity * 2 : 64;
                struct reservation *grown = realloc(window.reservation, capacity * sizeof(*grown));

                if (!grown)
                        return CUDA_ERROR_OUT_OF_MEMORY;
                window.reservation = grown;
                window.capacity = capacity;
        }

        if (hint != 0 && (hint & (alignment - 1)) == 0 && range_is_free(hint, bytes, &index))
                address = hint;
        else if (!find_free(window.next, bytes, alignment, &address, &index) &&
                 !find_free(window.device_base, bytes, alignment, &address, &index))
                return sim_fail(CUDA_ERROR_OUT_OF_MEMORY,
                                "no %llu bytes free in a device address space of %llu",
                                (unsigned long long)bytes, (unsigned long long)window.bytes);

        memmove(&window.reservation[index + 1], &window.reservation[index],
                (window.reservations - index) * sizeof(window.reservation[0]));
        window.reservation[index] =
                (struct reservation){.start = address, .bytes = bytes, .implicit = implicit};
        window.reservations++;
        window.next = address + bytes;
        *out = address;
        return CUDA_SUCCESS;
}

bool window_reservation(uint64_t address, uint64_t *start, uint64_t *bytes, bool *implicit)
{
        uint32_t i = count_up_to(address);
        const struct reservation *reservation;

        if (i == 0)
                return false;
        reservation = &window.reservation[i - 1];
        if (address - reservation->start >= reservation->bytes)
                return false;
        *start = reservation->start;
        *bytes = reservation->bytes;
        *implicit = reservation->implicit;
        return true;
}

static uint64_t granule_of(uint64_t address)
{
        return (address - window.device_base) >> window.granule_shift;
}

CUresult window_unreserve(uint64_t address, uint64_t bytes, bool implicit)
{
        uint32_t i = count_up_to(address);
        uint64_t g;

        if (i == 0 || window.reservation[i - 1].start != address ||
            window.reservation[i - 1].bytes != bytes ||
            window.reservation[i - 1].implicit != implicit)
                return CUDA_ERROR_INVALID_VALUE;
        for (g = granule_of(address); g < granule_of(address + bytes); g++)
                if (window.granule[g])
                        return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                        "address range %#llx is still mapped in part",
                                        (unsigned long long)address);
        window.reservations--;
        memmove(&window.reservation[i - 1], &window.reservation[i],
                (window.reservations - (i - 1)) * sizeof(window.reservation[0]));
        return CUDA_SUCCESS;
}

/* --- mappings -----------------------------------------------------------------------------------
 */

struct mapping *window_mapping(uint64_t address)
{
        return inside(address, 1) ? window.granule[granule_of(address)] : NULL;
}

static CUresult mapping_error(int error, const char *what)
{
        return sim_fail(CUDA_ERROR_OPERATING_SYSTEM, "%s: %s%s", what, strerror(error),
                        error == ENOMEM ? " (a process may have vm.max_map_count mappings)" : "");
}

static bool is_mapped(uint64_t granule)
{
        return granule < window.bytes >> window.granule_shift && window.granule[granule];
}

/* Gaps more that a mapping there makes (-1 to 1): it splits the one it lies in, or fills its ends.
 */
static int gaps_more(uint64_t address, uint64_t bytes)
{
        uint64_t g = granule_of(address);

        return (g == 0 || !is_mapped(g - 1)) + !is_mapped(granule_of(address + bytes)) - 1;
}

CUresult window_map(uint64_t address, uint64_t bytes, struct allocation *allocation, bool implicit)
{
        uint64_t start, reserved, g;
        struct mapping *mapping;
        bool reserved_implicitly;

        if (bytes == 0 || address % window.granularity != 0 || bytes % window.granularity != 0 ||
            bytes > allocation->bytes)
                return CUDA_ERROR_INVALID_VALUE;
        if (!window_reservation(address, &start, &reserved, &reserved_implicitly) ||
            reserved_implicitly != implicit || bytes > reserved - (address - start))
                return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                "%#llx + %llu does not lie in one reserved range",
                                (unsigned long long)address, (unsigned long long)bytes);
        for (g = granule_of(address); g < granule_of(address + bytes); g++)
                if (window.granule[g])
                        return sim_fail(CUDA_ERROR_INVALID_VALUE, "%#llx is already mapped",
                                        (unsigned long long)address);

        if (window.areas + 2 > window.areas_max)
                return sim_fail(
                        CUDA_ERROR_OPERATING_SYSTEM,
                        "cannot map: a process may have vm.max_map_count mappings, and %llu "
                        "are all that device memory may have of them",
                        (unsigned long long)window.areas_max);
        mapping = malloc(sizeof(*mapping));
        if (!mapping)
                return CUDA_ERROR_OUT_OF_MEMORY;
        *mapping = (struct mapping){
                .address = address, .bytes = bytes, .allocation = allocation, .implicit = implicit};
        if (mmap(alias_of(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, 0) ==
            MAP_FAILED) {
                int error = errno;

                free(mapping);
                return mapping_error(error, "cannot map");
        }
        allocation->mappings++;
        window.areas += (uint64_t)(1 + gaps_more(address, bytes));
        mapping->next = window.mappings;
        mapping->link = &window.mappings;
        if (mapping->next)
                mapping->next->link = &mapping->next;
        window.mappings = mapping;
        for (g = granule_of(address); g < granule_of(address + bytes); g++)
                window.granule[g] = mapping;
        return CUDA_SUCCESS;
}

/* Whether the range consists of whole mappings, of the given sort, without gaps. */
static bool whole_mappings(uint64_t address, uint64_t bytes, bool implicit)
{
        uint64_t end = address + bytes;

        if (bytes == 0 || !inside(address, bytes))
                return false;
        while (address < end) {
                const struct mapping *mapping = window.granule[granule_of(address)];

                if (!mapping || mapping->address != address || mapping->implicit != implicit ||
                    mapping->bytes > end - address)
                        return false;
                address += mapping->bytes;
        }
        return true;
}

CUresult window_unmap(uint64_t address, uint64_t bytes, bool implicit)
{
        uint64_t end = address + bytes, g;

        if (!whole_mappings(address, bytes, implicit))
                return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                "%#llx + %llu is not made of whole mappings",
                                (unsigned long long)address, (unsigned long long)bytes);
        if (mmap(alias_of(address), bytes, PROT_NONE, RESERVE_FLAGS | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
                return mapping_error(errno, "cannot unmap");
        while (address < end) {
                struct mapping *mapping = window.granule[granule_of(address)];

                for (g = granule_of(address); g < granule_of(address + mapping->bytes); g++)
                        window.granule[g] = NULL;
                window.areas -= (uint64_t)(1 + gaps_more(address, mapping->bytes));
                address += mapping->bytes;
                *mapping->link = mapping->next;
                if (mapping->next)
                        mapping->next->link = mapping->link;
                store_end_mapping(mapping->allocation);
                free(mapping);
        }
        return CUDA_SUCCESS;
}

/* The alias gives what any device may do. */
static int protection(const struct mapping *mapping)
{
        uint8_t flags = 0;
        uint32_t i;

        for (i = 0; i < sim.config.devices; i++)
                flags |= mapping->access[i];
        return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
               : flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? PROT_READ
                                                           : PROT_NONE;
}

CUresult window_set_access(uint64_t address, uint64_t bytes, bool implicit, const uint8_t *devices,
                           const uint8_t *flags, size_t count)
{
        uint64_t end = address + bytes, at, run = address;
        int wanted = -1;
        size_t i;

        if (!whole_mappings(address, bytes, implicit))
                return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                "%#llx + %llu is not made of whole mappings",
                                (unsigned long long)address, (unsigned long long)bytes);
        for (at = address; at < end;) {
                struct mapping *mapping = window.granule[granule_of(at)];
                int next;

                for (i = 0; i < count; i++)
                        mapping->access[devices[i]] = flags[i];
                next = protection(mapping);
                if (wanted != -1 && next != wanted) {
                        if (mprotect(alias_of(run), at - run, wanted) != 0)
                                return mapping_error(errno, "cannot set access");
                        run = at;
                }
                wanted = next;
                at += mapping->bytes;
        }
        if (mprotect(alias_of(run), end - run, wanted) != 0)
                return mapping_error(errno, "cannot set access");
        return CUDA_SUCCESS;
}

void window_restore_page(uintptr_t alias_page)
{
        const uint64_t page_bytes = 4096;
        uint64_t address = (uint64_t)alias_page - window.bytes;
        struct mapping *mapping = window_mapping(address);

        if (mapping && store_retain(mapping->allocation) == CUDA_SUCCESS) {
                (void)mmap((void *)alias_page, page_bytes, protection(mapping),
                           MAP_SHARED | MAP_FIXED, mapping->allocation->fd,
                           (off_t)(address - mapping->address));
                store_end_handle(mapping->allocation);
        } else {
                (void)mmap((void *)alias_page, page_bytes, PROT_NONE, RESERVE_FLAGS | MAP_FIXED, -1,
                           0);
        }
}

bool window_accessible(int device, uint64_t address, uint64_t bytes, bool write)
{
        uint8_t needed = write ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
        uint64_t end = address + bytes;

        if (!inside(address, bytes))
                return false;
        while (address < end) {
                const struct mapping *mapping = window.granule[granule_of(address)];

                if (!mapping || (mapping->access[device] & needed) != needed)
                        return false;
                address = mapping->address + mapping->bytes;
        }
        return true;
}
