/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/simcuda/profile.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENTRIES_MAX    64
#define LATENCY_US_MAX 1e6

struct entry {
        char call[64];
        uint32_t ns;
};

/* Written once, before SIM_READY. */
static struct {
        struct entry entry[ENTRIES_MAX];
        _Atomic(uint32_t) entries;
        uint64_t late_return_ns;
} profile;

/* The short names of the file, and the entries they stand for. */
static const struct {
        const char *word, *call;
} words[] = {
        {"reserve", "cuMemAddressReserve"},
        {"free", "cuMemAddressFree"},
        {"create", "cuMemCreate"},
        {"release", "cuMemRelease"},
        {"map", "cuMemMap"},
        {"unmap", "cuMemUnmap"},
        {"set_access", "cuMemSetAccess"},
        {"export", "cuMemExportToShareableHandle"},
        {"import", "cuMemImportFromShareableHandle"},
};

static char *trim(char *text)
{
        size_t length;

        while (isspace((unsigned char)*text))
                text++;
        length = strlen(text);
        while (length > 0 && isspace((unsigned char)text[length - 1]))
                text[--length] = '\0';
        return text;
}

/* "name = microseconds"; false if it is not. */
static bool read_setting(char *line)
{
        char *equals = strchr(line, '='), *word, *number, *end;
        struct entry *entry;
        double us;
        size_t i;

        if (!equals)
                return false;
        *equals = '\0';
        word = trim(line);
        number = trim(equals + 1);
        us = strtod(number, &end);
        if (end == number || *end != '\0' || !(us >= 0 && us <= LATENCY_US_MAX))
                return false;
        if (strcmp(word, "late_return") == 0) {
                profile.late_return_ns = (uint64_t)(us * 1000);
                return true;
        }
        for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
                if (strcmp(word, words[i].word) == 0)
                        break;
        if (i < sizeof(words) / sizeof(words[0]))
                word = (char *)(uintptr_t)words[i].call;
        else if (strncmp(word, "cu", 2) != 0)
                return false;
        if (profile.entries == ENTRIES_MAX || strlen(word) >= sizeof(entry->call))
                return false;
        entry = &profile.entry[profile.entries];
        snprintf(entry->call, sizeof(entry->call), "%s", word);
        entry->ns = (uint32_t)(us * 1000);
        if (entry->ns != 0)
                profile.entries++;
        return true;
}

/* The file of a name that is no path. False: there is none. */
static bool find_file(const char *name, char path[PATH_MAX])
{
        static const char *const folders[] = {"profiles", "../share/gpumem/profiles",
                                              "../../share/gpumem/profiles"};
        const char *slash;
        Dl_info library;
        size_t i;

        if (dladdr((void *)&profile_read, &library) == 0 || !library.dli_fname)
                return false;
        slash = strrchr(library.dli_fname, '/');
        for (i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
                int length = slash ? snprintf(path, PATH_MAX, "%.*s/%s/%s.profile",
                                              (int)(slash - library.dli_fname), library.dli_fname,
                                              folders[i], name)
                                   : snprintf(path, PATH_MAX, "%s/%s.profile", folders[i], name);

                if (length > 0 && length < PATH_MAX && access(path, R_OK) == 0)
                        return true;
        }
        return false;
}

CUresult profile_read(void)
{
        const char *name = getenv("GPUMEM_SIM_PROFILE");
        char path[PATH_MAX], line[256];
        unsigned int number = 0;
        CUresult result = CUDA_SUCCESS;
        FILE *file;

        profile.entries = 0;
        profile.late_return_ns = 0;
        if (!name || name[0] == '\0' || strcmp(name, "none") == 0)
                return CUDA_SUCCESS;
        if (!strchr(name, '/')) {
                if (!find_file(name, path))
                        return sim_fail(CUDA_ERROR_INVALID_VALUE,
                                        "GPUMEM_SIM_PROFILE=%s: there is no %s.profile in "
                                        "profiles/ beside the library or in share/gpumem/profiles",
                                        name, name);
                name = path;
        }
        file = fopen(name, "re");
        if (!file)
                return sim_fail(CUDA_ERROR_INVALID_VALUE, "GPUMEM_SIM_PROFILE=%s: %s", name,
                                strerror(errno));
        while (result == CUDA_SUCCESS && fgets(line, sizeof(line), file)) {
                char *comment = strchr(line, '#'), *text;

                number++;
                if (comment)
                        *comment = '\0';
                text = trim(line);
                if (*text != '\0' && !read_setting(text))
                        result = sim_fail(CUDA_ERROR_INVALID_VALUE,
                                          "%s:%u is not \"call = microseconds\"", name, number);
        }
        fclose(file);
        return result;
}

uint32_t profile_latency_ns(const char *call)
{
        uint32_t count = atomic_load_explicit(&profile.entries, memory_order_relaxed), i;

        if (count == 0 || atomic_load_explicit(&sim.state, memory_order_acquire) != SIM_READY)
                return 0;
        for (i = 0; i < count; i++)
                if (sim_call_is(call, profile.entry[i].call))
                        return profile.entry[i].ns;
        return 0;
}

uint64_t profile_late_return_ns(void)
{
        return profile.late_return_ns;
}
