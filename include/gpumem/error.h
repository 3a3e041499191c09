/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error codes. One list for the public API (returned as 0 or a negative code) and for the wire
 * protocol (sent as the positive number). Codes are stable: new ones are added at the end.
 */
#ifndef GPUMEM_ERROR_H
#define GPUMEM_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

enum gpumem_error {
        GPUMEM_OK = 0,
        GPUMEM_E_INVALID = -1,     /* an argument is wrong; nothing was done */
        GPUMEM_E_AGAIN = -2,       /* cannot be had now without waiting; nothing was done; try again
                                      later, or free something */
        GPUMEM_E_NO_MEMORY = -3,   /* more than this device, tenant or limit can ever give; or host
                                      memory ran out */
        GPUMEM_E_DOWN = -4,        /* the daemon cannot be reached, or the connection broke */
        GPUMEM_E_UNSUPPORTED = -5, /* this driver, build or format cannot do it */
        GPUMEM_E_TIMEOUT = -6,     /* a deadline passed; the message names whom it waited for */
        GPUMEM_E_PROTOCOL = -7,    /* the peer sent something that the protocol does not allow */
        GPUMEM_E_NOT_FOUND = -8,   /* no such object, sequence, session or device */
        GPUMEM_E_BUSY = -9,        /* in use: pinned, shared, or not empty */
        GPUMEM_E_LIMIT =
                -10, /* a table is full: objects, sequences, sessions, frames per message */
        GPUMEM_E_PERMISSION = -11, /* this identity may not do that */
        GPUMEM_E_DEVICE = -12,     /* the driver failed; the device is degraded or lost */
        GPUMEM_E_MISMATCH =
                -13, /* version, driver kind, device or frame size differ between the two sides */
        GPUMEM_E_FORKED =
                -14, /* the handle was made before fork(); it is valid in the parent only */
        GPUMEM_E_STATE = -15, /* the call does not fit the state of the object or session */
};

#ifdef __cplusplus
}
#endif
#endif
