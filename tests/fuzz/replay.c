/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target on the files given, or on its corpus (tests/fuzz/corpus/NAME for the program
 * replay_NAME, found from the top of the source tree): what was once found stays found.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

#define INPUT_BYTES_MAX (1u << 20)

static unsigned passed, failed;

static void replay(const char *path)
{
        FILE *file = fopen(path, "rb");
        uint8_t *data = malloc(INPUT_BYTES_MAX);
        size_t bytes;

        if (!file || !data) {
                fprintf(stderr, "%s: %s\n", path, strerror(errno));
                failed++;
        } else {
                bytes = fread(data, 1, INPUT_BYTES_MAX, file);
                /* Said first: a finding ends the process. */
                printf("%s: %zu bytes\n", path, bytes);
                fflush(stdout);
                LLVMFuzzerTestOneInput(data, bytes);
                passed++;
        }
        free(data);
        if (file)
                fclose(file);
}

static void replay_directory(const char *directory)
{
        struct dirent **entries;
        int count = scandir(directory, &entries, NULL, alphasort);

        if (count < 0) {
                fprintf(stderr, "%s: %s (to be run from the top of the source tree)\n", directory,
                        strerror(errno));
                failed++;
        }
        for (int i = 0; i < count; i++) {
                char path[PATH_MAX + 256];
                struct stat status;

                snprintf(path, sizeof(path), "%s/%s", directory, entries[i]->d_name);
                if (stat(path, &status) == 0 && S_ISREG(status.st_mode))
                        replay(path);
                free(entries[i]);
        }
        if (count >= 0)
                free(entries);
}

int main(int argc, char **argv)
{
        const char *name = strrchr(argv[0], '_') ? strstr(argv[0], "replay_") : NULL;
        char directory[PATH_MAX];

        for (int i = 1; i < argc; i++)
                replay(argv[i]);
        if (argc == 1 && name) {
                snprintf(directory, sizeof(directory), "tests/fuzz/corpus/%s",
                         name + strlen("replay_"));
                replay_directory(directory);
        }
        printf("%u passed, %u failed\n", passed, failed);
        return failed > 0 || passed == 0;
}
