/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of a simulated machine, and the control file's place in it: made by the first
 * process if it is not there, and removed by the last one if it was made so.
 *
 * Removing races with attaching. Both are done under the setup lock of the control file, and who
 * gets that lock on a file that is no longer in the directory begins again.
 */
#ifndef GPUMEM_SIMCUDA_DIRECTORY_H
#define GPUMEM_SIMCUDA_DIRECTORY_H

#include "libclient/simcuda/sim.h"

#define DIRECTORY_CONTROL "control"

/*
 * Opens (making what is missing) config->directory and its control file, takes the setup lock, and
 * fills in `machine`: directory, file, device_number, mode. *made: the directory is new. On failure
 * what was opened is in `machine`, for the caller to close.
 */
CUresult directory_open(const struct sim_config *config, bool *made);
/* Ends the setup lock. */
void directory_unlock(void);

/* Takes the setup lock if nobody has it. */
bool directory_try_lock(void);
/* Setup lock held, nobody else attached, nothing alive: removes control file and directory if
 * nothing else is there. */
void directory_remove(const struct sim_config *config);

/* Deletes backing files that no slot knows (left by a simulator of another layout). */
void directory_remove_leftovers(void);

#endif
