/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

unsigned fuzz_count_descriptors(void)
{
        DIR *directory = opendir("/proc/self/fd");
        struct dirent *entry;
        unsigned count = 0;

        FUZZ_REQUIRE(directory);
        while ((entry = readdir(directory))) {
                char target[16] = "";

                if (readlinkat(dirfd(directory), entry->d_name, target, sizeof(target) - 1) > 0 &&
                    strncmp(target, "pipe:", 5) != 0)
                        count++;
        }
        closedir(directory);
        return count;
}
