/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds a message's parameters against a Varlink interface definition, so that what a service says
 * of itself and what it sends cannot drift apart.
 */
#ifndef TESTS_SUPPORT_VARLINK_DEFINITION_H
#define TESTS_SUPPORT_VARLINK_DEFINITION_H

#include <json-c/json.h>
#include <stddef.h>

enum varlink_part {
        VARLINK_INPUT,  /* the parameters of a method */
        VARLINK_OUTPUT, /* what it returns */
        VARLINK_ERROR,  /* the parameters of an error */
};

/*
 * Is @parameters what @definition (a whole interface) declares for the method or error @name
 * (without the interface)? Every declared member there (unless it may be absent), of its type,
 * enumerations by their words, nothing else there. 0; 1 with a sentence in @why.
 */
int varlink_definition_check(const char *definition, enum varlink_part part, const char *name,
                             json_object *parameters, char *why, size_t size);

#endif
