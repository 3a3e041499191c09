/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libclient/error.h"
#include "libclient/pin.h"
#include "libclient/wire/wire.h"

/* How long a stream is waited for whose end cannot be recorded. */
#define PIN_STREAM_MS 2000

static struct pin *pin_of(struct pin_table *table, uint64_t number)
{
        return &table->ring[number % PIN_WINDOW];
}

int pin_table_init(struct pin_table *table, const struct driver *driver, atomic_uint *session_pins,
                   void (*over)(void *payload))
{
        memset(table, 0, sizeof(*table));
        table->driver = driver;
        table->session_pins = session_pins;
        table->over = over;
        table->oldest = table->next = 1;
        table->ring = calloc(PIN_WINDOW, sizeof(*table->ring));
        table->spare = calloc(PIN_WINDOW, sizeof(*table->spare));
        if (!table->ring || !table->spare) {
                pin_table_deinit(table);
                return client_error(GPUMEM_E_NO_MEMORY, "host memory for a table of pins");
        }
        return 0;
}

void pin_table_deinit(struct pin_table *table)
{
        for (uint32_t i = 0; table->spare && i < table->spare_count; i++)
                table->driver->event_destroy(table->spare[i]);
        table->spare_count = 0;
        free(table->ring);
        free(table->spare);
        table->ring = NULL;
        table->spare = NULL;
}

static int take_event(struct pin_table *table, CUevent *event)
{
        CUresult result;

        if (table->spare_count > 0) {
                *event = table->spare[--table->spare_count];
                return 0;
        }
        result = table->driver->event_create(event, CU_EVENT_DISABLE_TIMING);
        if (result != CUDA_SUCCESS)
                return client_error_driver(table->driver, result, "cuEventCreate");
        return 0;
}

int pin_begin(struct pin_table *table, void *payload, uint64_t *number)
{
        struct pin *pin;
        int r;

        if (pin_outstanding(table) == PIN_WINDOW)
                pin_poll(table);
        if (pin_outstanding(table) == PIN_WINDOW)
                return client_error(GPUMEM_E_AGAIN,
                                    "%d batches of this pool are not over; end them, or wait for "
                                    "their streams",
                                    PIN_WINDOW);
        pin = pin_of(table, table->next);
        r = take_event(table, &pin->event);
        if (r < 0)
                return r;
        pin->state = PIN_BEGUN;
        pin->payload = payload;
        table->begun++;
        atomic_fetch_add(table->session_pins, 1);
        *number = table->next++;
        return 0;
}

/* Passes over every pin at the old end that is over. */
static void advance(struct pin_table *table)
{
        while (table->oldest < table->next && pin_of(table, table->oldest)->state == PIN_OVER)
                table->oldest++;
}

static void finish(struct pin_table *table, struct pin *pin)
{
        void *payload = pin->payload;

        /* The ring has as many places as there can be events. */
        table->spare[table->spare_count++] = pin->event;
        pin->event = NULL;
        pin->payload = NULL;
        pin->state = PIN_OVER;
        atomic_fetch_sub(table->session_pins, 1);
        if (payload)
                table->over(payload);
}

int pin_end(struct pin_table *table, uint64_t number, CUstream stream)
{
        uint64_t deadline_ns = wire_deadline_ns(PIN_STREAM_MS);
        struct pin *pin = pin_of(table, number);
        CUresult result;
        int r;

        table->begun--;
        result = table->driver->event_record(pin->event, stream);
        if (result == CUDA_SUCCESS) {
                pin->state = PIN_ENDED;
                return 0;
        }
        r = client_error_driver(table->driver, result, "cuEventRecord");
        /* (The driver's own wait has no deadline.) */
        while ((result = table->driver->stream_query(stream)) == CUDA_ERROR_NOT_READY) {
                if (wire_now_ns() >= deadline_ns) {
                        /* Nobody can say when it is over: its pages are never used again. */
                        table->begun++;
                        return r;
                }
                nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        }
        /* Should this fail too, the context is lost and runs nothing more. */
        if (result != CUDA_SUCCESS)
                table->lost = result;
        pin->state = PIN_ABANDONED;
        pin_poll(table);
        return r;
}

void pin_drop(struct pin_table *table, uint64_t number)
{
        table->begun--;
        finish(table, pin_of(table, number));
        advance(table);
}

void pin_abandon(struct pin_table *table)
{
        for (uint64_t number = table->oldest; number < table->next; number++) {
                struct pin *pin = pin_of(table, number);

                if (pin->state != PIN_BEGUN)
                        continue;
                table->begun--;
                pin->state = PIN_ABANDONED;
        }
        pin_poll(table);
}

int pin_query(struct pin_table *table, uint64_t number)
{
        struct pin *pin = pin_of(table, number);
        CUresult result = table->lost;

        if (result == CUDA_SUCCESS && number >= table->oldest && pin->state != PIN_OVER) {
                if (pin->state == PIN_BEGUN)
                        return 1;
                result = pin->state == PIN_ENDED ? table->driver->event_query(pin->event)
                                                 : CUDA_ERROR_UNKNOWN;
                if (result == CUDA_ERROR_NOT_READY)
                        return 1;
                if (pin->state == PIN_ENDED && result != CUDA_SUCCESS)
                        table->lost = result;
        }
        if (result == CUDA_SUCCESS)
                return 0;
        return client_error_driver(table->driver, result, "cuEventQuery");
}

void pin_poll(struct pin_table *table)
{
        for (; table->oldest < table->next; table->oldest++) {
                struct pin *pin = pin_of(table, table->oldest);
                CUresult result;

                switch (pin->state) {
                case PIN_OVER:
                        continue;
                case PIN_BEGUN:
                        return;
                case PIN_ENDED:
                        result = table->driver->event_query(pin->event);
                        if (result == CUDA_ERROR_NOT_READY)
                                return;
                        /* An error here is a lost context's: the end as well. */
                        if (result != CUDA_SUCCESS)
                                table->lost = result;
                        break;
                case PIN_ABANDONED:
                        break;
                }
                finish(table, pin);
        }
}
