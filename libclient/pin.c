/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "libclient/context_wait.h"
#include "libclient/error.h"
#include "libclient/pin.h"

/* A thread that waits for a context which is lost, as all pins are over: it ends at once. */
#define DEINIT_WAIT_MS 1000

static struct pin *pin_of(struct pin_table *table, uint64_t number)
{
        return &table->ring[number % PIN_WINDOW];
}

int pin_table_init(struct pin_table *table, const struct driver *driver, CUcontext context,
                   atomic_uint *session_pins, void (*over)(void *payload))
{
        memset(table, 0, sizeof(*table));
        table->driver = driver;
        table->context = context;
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
        if (table->wait)
                context_wait_join(table->wait, DEINIT_WAIT_MS);
        table->wait = NULL;
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

static void wait_for_context(struct pin_table *table)
{
        struct client_message why = client_message_keep();

        /* If there is no thread now, the next call tries again. */
        if (context_wait_start(&table->wait, table->driver, table->context) == 0)
                table->drift_waited = table->drift_newest;
        client_message_restore(0, &why);
}

static void set_adrift(struct pin_table *table, struct pin *pin)
{
        pin->state = PIN_ADRIFT;
        pin->drift = ++table->drift_newest;
        if (!table->wait)
                wait_for_context(table);
}

/* Is all work done that was submitted before the pin was adrift? */
static bool drift_is_over(struct pin_table *table, const struct pin *pin)
{
        CUresult result;

        if (table->wait && context_wait_poll(table->wait, &result)) {
                table->wait = NULL;
                if (driver_error_is_sticky(result))
                        table->lost = result;
                if (result == CUDA_SUCCESS)
                        table->drift_over = table->drift_waited;
        }
        if (table->lost != CUDA_SUCCESS || pin->drift <= table->drift_over)
                return true;
        if (!table->wait)
                wait_for_context(table);
        return false;
}

int pin_end(struct pin_table *table, uint64_t number, CUstream stream)
{
        struct pin *pin = pin_of(table, number);
        CUresult result;

        table->begun--;
        result = table->driver->event_record(pin->event, stream);
        if (result == CUDA_SUCCESS) {
                pin->state = PIN_ENDED;
                return 0;
        }
        if (driver_error_is_sticky(result)) {
                table->lost = result;
                pin->state = PIN_ABANDONED;
        } else {
                set_adrift(table, pin);
        }
        pin_poll(table);
        client_message_driver(table->driver, result, "cuEventRecord");
        if (result != CUDA_ERROR_INVALID_HANDLE && result != CUDA_ERROR_INVALID_VALUE &&
            result != CUDA_ERROR_INVALID_CONTEXT)
                return GPUMEM_E_DEVICE;
        client_message_prefix("the stream is none of this session's context; what the batch used "
                              "stays pinned until all of the context's work of now is done");
        return GPUMEM_E_INVALID;
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

/* Has its event happened? Otherwise CUDA_ERROR_NOT_READY (then it may be adrift now), or the
 * context is lost. */
static CUresult query(struct pin_table *table, struct pin *pin)
{
        CUresult result = table->driver->event_query(pin->event);

        if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)
                return result;
        if (driver_error_is_sticky(result)) {
                table->lost = result;
                return result;
        }
        set_adrift(table, pin);
        return CUDA_ERROR_NOT_READY;
}

int pin_query(struct pin_table *table, uint64_t number)
{
        struct pin *pin = pin_of(table, number);
        CUresult result = table->lost;

        if (result == CUDA_SUCCESS && number >= table->oldest && pin->state != PIN_OVER) {
                if (pin->state == PIN_BEGUN)
                        return 1;
                if (pin->state == PIN_ENDED)
                        result = query(table, pin);
                if (pin->state == PIN_ADRIFT)
                        result = drift_is_over(table, pin) ? table->lost : CUDA_ERROR_NOT_READY;
                if (pin->state == PIN_ABANDONED)
                        result = CUDA_ERROR_UNKNOWN;
                if (result == CUDA_ERROR_NOT_READY)
                        return 1;
        }
        if (result == CUDA_SUCCESS)
                return 0;
        return client_error_driver(table->driver, result, "cuEventQuery");
}

void pin_poll(struct pin_table *table)
{
        for (; table->oldest < table->next; table->oldest++) {
                struct pin *pin = pin_of(table, table->oldest);

                switch (pin->state) {
                case PIN_OVER:
                        continue;
                case PIN_BEGUN:
                        return;
                case PIN_ENDED:
                        /* (A lost context is the end as well.) */
                        if (query(table, pin) == CUDA_ERROR_NOT_READY)
                                return;
                        break;
                case PIN_ADRIFT:
                        if (!drift_is_over(table, pin))
                                return;
                        break;
                case PIN_ABANDONED:
                        break;
                }
                finish(table, pin);
        }
}
