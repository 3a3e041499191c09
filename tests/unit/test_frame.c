/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "daemon/frame.h"
#include "tests/support/daemon_unit.h"

static uint32_t count_list(const struct frame_table *table, const struct frame_list *list)
{
        uint32_t count = 0, previous = FRAME_NONE;

        for (uint32_t i = list->first; i != FRAME_NONE; i = table->frames[i].next) {
                CU_ASSERT_EQUAL(table->frames[i].previous, previous);
                previous = i;
                count++;
        }
        CU_ASSERT_EQUAL(list->last, previous);
        CU_ASSERT_EQUAL(list->count, count);
        return count;
}

static void test_table(void)
{
        struct frame_table table;
        struct frame_list list;

        CU_ASSERT_EQUAL(frame_table_init(&table, 100, 4096, &list), 0);
        CU_ASSERT_EQUAL(table.states[FRAME_FREE], 100);
        CU_ASSERT_EQUAL(table.works[FRAME_IDLE], 100);
        CU_ASSERT_EQUAL(count_list(&table, &list), 100);
        CU_ASSERT_EQUAL(list.first, 0);
        CU_ASSERT_EQUAL(table.frames[99].fd, -1);
        frame_table_deinit(&table);
        frame_table_deinit(&table);
        CU_ASSERT_PTR_NULL(table.frames);
        CU_ASSERT_EQUAL(frame_table_init(&table, FRAME_NONE, 4096, &list), -EINVAL);
        CU_ASSERT_EQUAL(list.count, 0);
}

static void test_lists(void)
{
        struct frame_table table;
        struct frame_list free_list, list;

        CU_ASSERT_EQUAL(frame_table_init(&table, 5, 4096, &free_list), 0);
        frame_list_init(&list);
        /* From the middle, the front and the back. */
        frame_list_remove(&table, &free_list, 2);
        frame_list_append(&table, &list, 2);
        frame_list_remove(&table, &free_list, 0);
        frame_list_append(&table, &list, 0);
        frame_list_remove(&table, &free_list, 4);
        frame_list_push(&table, &list, 4);
        CU_ASSERT_EQUAL(count_list(&table, &free_list), 2);
        CU_ASSERT_EQUAL(count_list(&table, &list), 3);
        CU_ASSERT_EQUAL(frame_list_pop(&table, &list), 4);
        CU_ASSERT_EQUAL(frame_list_pop(&table, &list), 2);
        CU_ASSERT_EQUAL(frame_list_pop(&table, &list), 0);
        CU_ASSERT_EQUAL(frame_list_pop(&table, &list), FRAME_NONE);
        CU_ASSERT_EQUAL(count_list(&table, &list), 0);
        frame_table_deinit(&table);
}

static void test_counters(void)
{
        struct frame_table table;
        struct frame_list list;
        uint32_t sum = 0;

        CU_ASSERT_EQUAL(frame_table_init(&table, 10, 4096, &list), 0);
        for (uint32_t i = 0; i < 10; i++)
                frame_set_state(&table, i, (enum frame_state)(i % FRAME_STATE_COUNT));
        for (unsigned i = 0; i < FRAME_STATE_COUNT; i++)
                sum += table.states[i];
        CU_ASSERT_EQUAL(sum, 10);
        CU_ASSERT_EQUAL(table.states[FRAME_FREE], 2);
        CU_ASSERT_EQUAL(table.states[FRAME_QUARANTINED], 1);
        frame_set_work(&table, 3, FRAME_SCRUBBING);
        CU_ASSERT_EQUAL(table.works[FRAME_IDLE], 9);
        CU_ASSERT_EQUAL(table.works[FRAME_SCRUBBING], 1);
        frame_set_work(&table, 3, FRAME_IDLE);
        CU_ASSERT_EQUAL(table.works[FRAME_IDLE], 10);
        frame_table_deinit(&table);
}

static void test_size(void)
{
        /* 131,072 frames, a quarter of the 32 MiB they may have. */
        CU_ASSERT(sizeof(struct frame) * 131072 <= (8 << 20));
}

static void test_names(void)
{
        for (unsigned i = 0; i < FRAME_STATE_COUNT; i++)
                CU_ASSERT(strcmp(frame_state_name((enum frame_state)i), "unknown") != 0);
        for (unsigned i = 0; i < FRAME_STEP_COUNT; i++)
                CU_ASSERT(strcmp(frame_step_name((enum frame_step)i), "unknown") != 0);
        CU_ASSERT_STRING_EQUAL(frame_state_name(FRAME_STATE_COUNT), "unknown");
}

static void test_receipts(void)
{
        struct account account = {0}, other = {0};
        struct charge a = {0}, b = {0};

        charge_take(&a, &account, 10);
        charge_take(&b, &account, 5);
        CU_ASSERT_EQUAL(account.bytes, 15);
        CU_ASSERT_EQUAL(account.charges, 2);
        CU_ASSERT_FALSE(account_is_balanced(&account));
        charge_refund(&a);
        charge_refund(&a);
        CU_ASSERT_EQUAL(account.bytes, 5);
        charge_take(&a, &other, 7);
        charge_refund(&b);
        CU_ASSERT(account_is_balanced(&account));
        CU_ASSERT_EQUAL(other.bytes, 7);
        charge_refund(&a);
        CU_ASSERT(account_is_balanced(&other));
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"a table of free frames", test_table},
                {"lists", test_lists},
                {"counters per state and work", test_counters},
                {"frames are small", test_size},
                {"names", test_names},
                {"receipts", test_receipts},
        };

        return UNIT_RUN("frame", tests);
}
