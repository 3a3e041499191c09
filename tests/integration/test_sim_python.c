/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program not written by us on the simulated driver: sim_python.sh does it, this gives it a place
 * among the tests. Run from the top of the tree.
 */
#include <stdio.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

int main(void)
{
        if (SANITIZED) {
                puts("skipped: Python cannot load a library built with a sanitizer\n"
                     "0 passed, 0 failed, 1 skipped");
                return 0;
        }
        execl("/bin/sh", "sh", "tests/integration/sim_python.sh", (char *)NULL);
        perror("/bin/sh");
        return 1;
}
