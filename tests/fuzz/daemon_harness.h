/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole daemon in this process, on the fake driver, for targets that talk to it. It is kept from
 * one input to the next; what an input did to it is undone, and must be undoable.
 */
#ifndef TESTS_FUZZ_DAEMON_HARNESS_H
#define TESTS_FUZZ_DAEMON_HARNESS_H

#include <stdbool.h>

#include "daemon/daemon.h"
#include "daemon/device.h"

#define HARNESS_FRAMES 24

/* The daemon, started if there is none, with a full pool of fresh frames. */
struct daemon *harness_daemon(void);

/* Its only device. */
struct device *harness_device(void);

/* Dispatches until nothing is there to be dispatched, and no worker is at work. */
void harness_run(void);

/* Between inputs: no session is left, nothing is granted, the debug check is clean, and no
 * descriptor of an input is open. A device that was made to fail is given up with its daemon. */
void harness_settle(void);

/* Does the device work as it did at the start? */
bool harness_is_unharmed(void);

#endif
