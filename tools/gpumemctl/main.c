/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gpumemctl/cli.h"

int main(int argc, char **argv)
{
        return ctl_run(argc, argv, stdout, stderr);
}
