/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of gpumemctl: options, the table of commands, help.
 */
#ifndef GPUMEMCTL_CLI_H
#define GPUMEMCTL_CLI_H

#include <stdio.h>

#define CTL_SOCKET_DEFAULT     "/run/gpumem/admin.sock"
#define CTL_SOCKET_ENVIRONMENT "GPUMEM_ADMIN_SOCKET"

/* The whole program but for the process: returns the exit status (enum ctl_outcome). Not to be run
 * by two threads at once (getopt). */
int ctl_run(int argc, char **argv, FILE *out, FILE *messages);

#endif
