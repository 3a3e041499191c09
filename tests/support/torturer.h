/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that behaves as badly as a seed tells it to, on a real daemon's sockets: valid, mutated,
 * truncated and oversized messages, any descriptors, requests at the wrong moment, answers not read
 * or read slowly, connections dropped half-way, garbage on the admin socket. For a process of its
 * own, which may be killed at any instruction.
 */
#ifndef TESTS_SUPPORT_TORTURER_H
#define TESTS_SUPPORT_TORTURER_H

#include <stdint.h>

struct torture {
        const char *client_socket, *admin_socket;
        uint8_t device_uuid[16];
        uint64_t granularity;
        uint32_t frames; /* of the device */
};

/* Goes on until the deadline (wire_now_ns()). 0; or negative errno if the daemon did what it must
 * not: an answer that is not well-formed, none at all, or a socket that cannot be connected to.
 * Then a sentence is on stderr. */
int torture_run(const struct torture *torture, uint64_t seed, uint64_t deadline_ns);

/* The next number of a seed's series (splitmix64). */
uint64_t torture_random(uint64_t *state);

#endif
