/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "libclient/buffer.h"
#include "libclient/error.h"
#include "libclient/kv_evacuate.h"

#define MS UINT64_C(1000000)

#define FETCH_PAUSE_MIN_MS 50 /* after a grant was refused; doubled each time, up to */
#define FETCH_PAUSE_MAX_MS 1000
#define RECLAIM_PAUSE_MS   1000 /* after memory was asked back */
#define SOCKET_PAUSE_MS    10   /* after the socket woke us for somebody else's reply */
#define SLEEP_MAX_MS       1000
#define WANTED_MS          400 /* a reclaim event holds good: whoever waits longer asks again */
#define WANTED_PAUSE_MS    20
#define OWED_PAUSE_MS      50 /* what could not be told is tried again after */
#define LEAVING_PAUSE_MS   20 /* a buffer waits until mappings may change */
#define BOUNDARY_UNITS_MAX 8  /* emptied before one batch: it waits for the copies */

void grower_init(struct grower *grower)
{
        memset(grower, 0, sizeof(*grower));
        grower->wake_fd = -1;
}

void grower_deinit(struct grower *grower)
{
        if (grower->wake_fd >= 0)
                close(grower->wake_fd);
        grower->wake_fd = -1;
}

void grower_wake(struct grower *grower)
{
        uint64_t one = 1;

        if (grower->wake_fd < 0)
                return; /* not started yet */
        if (atomic_exchange(&grower->woken, true))
                return;
        /* Cannot fail: the counter is far from full and the descriptor is ours. */
        if (write(grower->wake_fd, &one, sizeof(one)) < 0)
                atomic_store(&grower->woken, false);
}

static void read_wake(struct grower *grower)
{
        uint64_t count;

        /* In this order: who comes after the store writes again. */
        atomic_store(&grower->woken, false);
        if (read(grower->wake_fd, &count, sizeof(count)) < 0)
                return; /* EAGAIN: it was read before */
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
        return a < b ? a : b;
}

/* Fetches units up to the reserve. Returns when to look again. */
static uint64_t look_ahead(struct gpumem_kv *kv, uint64_t now)
{
        uint32_t want = 0, ahead, got;
        uint64_t next = UINT64_MAX;
        bool active;
        int r;

        lock_take(&kv->lock, LOCK_POOL);
        ahead = kv->pages.units_empty + kv->units_ready + kv->units_asked;
        active = kv->active && ahead < kv->reserve_units && kv_room(kv) > 0;
        if (active && now >= kv->fetch_not_before_ns)
                want = kv->reserve_units - ahead;
        else if (active)
                next = kv->fetch_not_before_ns;
        lock_release(&kv->lock);
        if (want == 0)
                return next;

        r = kv_fetch(kv, want, 0, &got);

        lock_take(&kv->lock, LOCK_POOL);
        if (r == 0) {
                kv->fetch_pause_ms = 0;
                next = got < want ? now : UINT64_MAX;
        } else {
                kv->fetch_pause_ms =
                        kv->fetch_pause_ms ? 2 * kv->fetch_pause_ms : FETCH_PAUSE_MIN_MS;
                if (kv->fetch_pause_ms > FETCH_PAUSE_MAX_MS)
                        kv->fetch_pause_ms = FETCH_PAUSE_MAX_MS;
                kv->fetch_not_before_ns = wire_now_ns() + kv->fetch_pause_ms * MS;
                next = kv->fetch_not_before_ns;
        }
        lock_release(&kv->lock);
        return next;
}

/* Gives back what has been idle for long enough. Returns when to look again. */
static uint64_t trim_idle(struct gpumem_kv *kv, uint64_t now)
{
        uint64_t period = kv->idle_trim_ms * MS;
        uint64_t units = 0, next = UINT64_MAX, bytes;

        if (kv->idle_trim_ms == UINT32_MAX)
                return UINT64_MAX;
        lock_take(&kv->lock, LOCK_POOL);
        if ((kv->active || kv->loose) && now >= kv->last_use_ns + period) {
                CONTEXT_SCOPE(scope, kv->session->driver, kv->session->context);

                kv_poll(kv);
                units = UINT64_MAX;
                if (pin_outstanding(&kv->pins) > 0) {
                        /* A batch is longer than the period: that is use, too. */
                        kv->last_use_ns = now;
                        units = 0;
                } else {
                        kv->active = kv->loose = false;
                }
        } else if (kv->active && now >= kv->window_ns + period) {
                uint32_t surplus = kv->pages.units_empty_min;

                if (surplus > kv->reserve_units)
                        units = surplus - kv->reserve_units;
                kv->window_ns = now;
                kv->pages.units_empty_min = kv->pages.units_empty;
        }
        if (kv->active)
                next = sooner(kv->last_use_ns, kv->window_ns) + period;
        else if (kv->loose)
                next = kv->last_use_ns + period;
        lock_release(&kv->lock);
        if (units == UINT64_MAX)
                kv_shrink(kv, units, &bytes);
        else if (units > 0)
                kv_give_back(kv, units, &bytes);
        return next;
}

uint64_t grower_reclaim(struct gpumem *session, const struct gpumem_kv *except, uint64_t bytes,
                        bool evacuate)
{
        uint64_t got = 0;

        for (struct gpumem_kv *kv = session_next_pool(session, NULL); kv;
             kv = session_next_pool(session, kv)) {
                uint64_t units = UINT64_MAX, given = 0;

                if (kv == except)
                        continue;
                if (bytes > 0 && got >= bytes)
                        units = 0;
                else if (bytes > 0)
                        units = (bytes - got + kv->geometry.unit_bytes - 1) /
                                kv->geometry.unit_bytes;
                lock_take(&kv->lock, LOCK_POOL);
                kv->fetch_not_before_ns = wire_now_ns() + RECLAIM_PAUSE_MS * MS;
                lock_release(&kv->lock);
                if (units > 0 && evacuate)
                        kv_shrink(kv, units, &given);
                else if (units > 0)
                        kv_give_back(kv, units, &given);
                got += given;
        }
        return got;
}

void grower_batch_boundary(struct gpumem_kv *kv)
{
        struct grower *grower = &kv->session->grower;
        uint64_t wanted = atomic_load(&grower->wanted_bytes), units;
        uint32_t emptied;
        bool busy;

        if (wanted == 0 || wire_now_ns() >= atomic_load(&grower->wanted_until_ns))
                return;
        lock_take(&kv->lock, LOCK_POOL);
        kv_poll(kv);
        busy = pin_outstanding(&kv->pins) > 0;
        lock_release(&kv->lock);
        if (busy)
                return;
        units = (wanted - 1) / kv->geometry.unit_bytes + 1;
        if (units > BOUNDARY_UNITS_MAX)
                units = BOUNDARY_UNITS_MAX;
        /* A failure is one of the device, and the batch's to tell. */
        kv_evacuate(kv, units, &emptied);
        if (emptied > 0)
                grower_wake(grower);
}

/* Gives back what has become empty since memory was asked back. Returns when to look again. */
static uint64_t serve_wanted(struct gpumem *session)
{
        struct grower *grower = &session->grower;
        uint64_t wanted = atomic_load(&grower->wanted_bytes), got, now = wire_now_ns();

        if (wanted == 0)
                return UINT64_MAX;
        got = grower_reclaim(session, NULL, wanted, false);
        if (got >= wanted || now >= atomic_load(&grower->wanted_until_ns)) {
                atomic_store(&grower->wanted_bytes, 0);
                return UINT64_MAX;
        }
        atomic_store(&grower->wanted_bytes, wanted - got);
        return now + WANTED_PAUSE_MS * MS;
}

static void serve_events(struct gpumem *session)
{
        struct connection_events events;

        if (!client_connection_take_events(&session->connection, &events))
                return;
        if (events.device_state != 0)
                atomic_store(&session->device_state, events.device_state);
        if (events.reclaim) {
                uint64_t got = grower_reclaim(session, NULL, events.reclaim_bytes, true);

                if (got >= events.reclaim_bytes)
                        return;
                atomic_store(&session->grower.wanted_until_ns, wire_now_ns() + WANTED_MS * MS);
                atomic_store(&session->grower.wanted_bytes, events.reclaim_bytes - got);
                grower_wake(&session->grower);
        }
}

/* Everything there is to do now. Returns when there may be more. */
static uint64_t work(struct gpumem *session)
{
        uint64_t next = UINT64_MAX;

        serve_events(session);
        next = serve_wanted(session);
        if (buffers_leave(session))
                next = sooner(next, wire_now_ns() + LEAVING_PAUSE_MS * MS);
        if (owed_retry(session))
                next = sooner(next, wire_now_ns() + OWED_PAUSE_MS * MS);
        for (struct gpumem_kv *kv = session_next_pool(session, NULL); kv;
             kv = session_next_pool(session, kv)) {
                uint64_t now = wire_now_ns();

                if (atomic_load(&session->grower.stop)) {
                        session_leave_pool(kv);
                        break;
                }
                next = sooner(next, trim_idle(kv, now));
                next = sooner(next, look_ahead(kv, now));
        }
        return next;
}

static void *run(void *userdata)
{
        struct grower *grower = userdata;
        struct gpumem *session = grower->session;
        uint64_t socket_not_before_ns = 0;

        while (!atomic_load(&grower->stop)) {
                uint64_t next = work(session);
                uint64_t now = wire_now_ns();
                uint64_t sleep_ns = SLEEP_MAX_MS * MS;
                bool listen = now >= socket_not_before_ns;
                struct pollfd sources[2] = {
                        {.fd = grower->wake_fd, .events = POLLIN},
                        {.fd = session->connection.fd, .events = POLLIN},
                };

                if (client_connection_is_down(&session->connection))
                        listen = false;
                else if (!listen)
                        sleep_ns = sooner(sleep_ns, socket_not_before_ns - now);
                sleep_ns = next <= now ? 0 : sooner(sleep_ns, next - now);
                if (ppoll(sources, listen ? 2 : 1,
                          &(struct timespec){.tv_sec = (time_t)(sleep_ns / 1000000000u),
                                             .tv_nsec = (long)(sleep_ns % 1000000000u)},
                          NULL) <= 0)
                        continue;
                if (sources[0].revents)
                        read_wake(grower);
                if (!listen || !sources[1].revents)
                        continue;
                if (!client_connection_try_turn(&session->connection)) {
                        /* Somebody is reading: most likely it was that reply. */
                        socket_not_before_ns = wire_now_ns() + SOCKET_PAUSE_MS * MS;
                        continue;
                }
                client_connection_drain(&session->connection);
                client_connection_pass_turn(&session->connection);
                if (!client_connection_has_events(&session->connection))
                        socket_not_before_ns = wire_now_ns() + SOCKET_PAUSE_MS * MS;
        }
        return NULL;
}

int grower_start(struct grower *grower, struct gpumem *session)
{
        sigset_t all, before;
        int r;

        grower->session = session;
        grower->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (grower->wake_fd < 0)
                return client_error(GPUMEM_E_NO_MEMORY, "eventfd: %s", strerror(errno));
        /* The program's signals are for its own threads; faults are for whoever makes them. */
        sigfillset(&all);
        sigdelset(&all, SIGSEGV);
        sigdelset(&all, SIGBUS);
        sigdelset(&all, SIGFPE);
        sigdelset(&all, SIGILL);
        sigdelset(&all, SIGTRAP);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        r = pthread_create(&grower->thread, NULL, run, grower);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (r != 0)
                return client_error(GPUMEM_E_NO_MEMORY, "cannot start a thread: %s", strerror(r));
        grower->running = true;
        pthread_setname_np(grower->thread, "gpumem");
        return 0;
}

void grower_stop(struct grower *grower)
{
        if (!grower->running)
                return;
        atomic_store(&grower->stop, true);
        grower_wake(grower);
        pthread_join(grower->thread, NULL);
        grower->running = false;
}

int grower_safe_point(struct gpumem *session)
{
        CONTEXT_SCOPE(scope, session->driver, session->context);
        int result = 0;

        if (scope.result != CUDA_SUCCESS)
                return client_error_driver(session->driver, scope.result, "cuCtxPushCurrent");
        for (struct gpumem_kv *kv = session_next_pool(session, NULL); kv;
             kv = session_next_pool(session, kv)) {
                int r;

                lock_take(&kv->lock, LOCK_POOL);
                kv_poll(kv);
                r = kv_map_ready(kv);
                lock_release(&kv->lock);
                if (r < 0)
                        result = r;
        }
        buffers_leave(session);
        serve_events(session);
        return result;
}
