/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal's native protocol: the same messages that log.h writes as lines, as fields that can
 * be searched (journalctl GPUMEM_SESSION=3, MESSAGE_ID=...). Our own few lines instead of
 * sd_journal_sendv(), because that one waits when the journal's queue is full, and logging must
 * never stall the daemon.
 *
 * Every entry has PRIORITY, SYSLOG_IDENTIFIER=gpumemd and MESSAGE (the sentence with its fields as
 * text); each field of the message also stands alone as GPUMEM_ and its key in capitals. The
 * protocol: systemd.io/JOURNAL_NATIVE_PROTOCOL.
 */
#ifndef GPUMEMD_JOURNAL_H
#define GPUMEMD_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

/*
 * What MESSAGE_ID may be: one for each kind of event that somebody may want to wait for. They never
 * change their meaning. The fields that come along are named without GPUMEM_; gpumemd(8) has the
 * same table.
 */
/* Memory is there, clients are served. driver, devices, frames, fresh, client_socket */
#define MESSAGE_ID_READY "b38f3af8de66418a83eaaa05cb90e2f7"
/* The daemon was told to end. signal */
#define MESSAGE_ID_STOPPING "d0366b796a734600897f00cdedba1b6d"
/* It could not start, and why stands in the errors before. error */
#define MESSAGE_ID_START_FAILED "2919fbc723e94947ab4590e23bc6d27a"
/* A device is in use. device, name, frame_bytes, ... */
#define MESSAGE_ID_DEVICE_OPENED "6ae3e1e87a8d44678bb9640059811557"
/* A driver call failed; device_is says what that makes of the device. device, call, error */
#define MESSAGE_ID_DRIVER_FAILED "7e2e35f6f4b2480eab7e30c6cb298eb5"
/* The device is full with what others than the daemon allocated. device, free_frames */
#define MESSAGE_ID_DEVICE_EXHAUSTED "696aeeee896542319b4d032b222ea1bd"
/* A process said hello. session, pid, uid, engine, device */
#define MESSAGE_ID_SESSION_OPENED "923ab2f505904ea19d69bb6c4d52304a"
/* Its connection is closed. session, pid, engine, why, process, frames */
#define MESSAGE_ID_SESSION_CLOSED "a938f89c44714f29925f8cf7fe7ab87b"
/* A client broke the protocol. session, pid, uid, problem, suppressed */
#define MESSAGE_ID_CLIENT_MISBEHAVED "6872ef1d62f84fb8b279a411dc9cd1f8"
/* A connection could not be accepted. error, sessions, suppressed */
#define MESSAGE_ID_CLIENT_REFUSED "b20196bad3f44389af771da539e41d69"

/* Where the journal takes native messages. */
#define JOURNAL_SOCKET "/run/systemd/journal/socket"

struct log_field;

/* Zeroed is closed. */
struct journal {
        bool open;
        int fd;
        struct sockaddr_un address;
};

/*
 * Opens it if `stream_fd` (stderr) is the one that JOURNAL_STREAM in the environment names, that
 * is, if what is written there goes to the journal anyway. `path` is JOURNAL_SOCKET but for tests.
 * 0; -ENOENT: it is something else; other negative errno. On failure nothing is open.
 */
int journal_open(struct journal *journal, int stream_fd, const char *path);

/* Idempotent. */
void journal_close(struct journal *journal);

/*
 * One entry; `message` has `length` bytes, `fields` (may be NULL) ends with a key that is NULL,
 * `dropped` is left out when 0. Never waits. What does not fit into an entry is left out, whole
 * fields from the end. 0; -EAGAIN: the journal does not take it now; other negative errno.
 */
int journal_send(struct journal *journal, int priority, const char *message, size_t length,
                 const struct log_field *fields, uint64_t dropped);

#endif
