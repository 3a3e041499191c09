/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a command of gpumemctl ended: the program's exit status, and the words for it. Functions that
 * can fail return an outcome and write the sentence for the user into an error.
 */
#ifndef GPUMEMCTL_OUTCOME_H
#define GPUMEMCTL_OUTCOME_H

enum ctl_outcome {
        CTL_OK = 0,
        CTL_REFUSED = 1, /* the daemon said no, the check failed, or the output was not written */
        CTL_USAGE = 2,   /* the command line is wrong; nothing was asked */
        CTL_UNREACHABLE = 3, /* no daemon, no answer in time, or an answer that makes no sense */
};

struct ctl_error {
        char text[1024]; /* whole sentences without a final newline */
};

/* Write the text and return @outcome. */
enum ctl_outcome ctl_fail(struct ctl_error *error, enum ctl_outcome outcome, const char *format,
                          ...) __attribute__((format(printf, 3, 4)));

#endif
