/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/object.h"
#include "tests/support/daemon_unit.h"

static struct object_table table;

static struct object *make(void)
{
        struct object *object = NULL;

        CU_ASSERT_EQUAL(object_new(&object, &table, NULL, GPUMEM_OBJECT_BUFFER, 2, 8, "name"), 0);
        return object;
}

static void test_life(void)
{
        struct object *object;

        object_table_init(&table);
        object = make();
        CU_ASSERT_PTR_EQUAL(object_find(&table, object->id), object);
        CU_ASSERT_STRING_EQUAL(object->name, "name");
        CU_ASSERT_EQUAL(object->unit_frames, 2);
        CU_ASSERT_EQUAL(object->frames.count, 0);
        CU_ASSERT_EQUAL(table.count, 1);
        CU_ASSERT_PTR_NULL(object_free(object, &table));
        CU_ASSERT_PTR_NULL(object_free(NULL, &table));
        CU_ASSERT_EQUAL(table.count, 0);
        object_table_deinit(&table);
        object_table_deinit(&table);
        CU_ASSERT_PTR_NULL(object_find(&table, 0));
}

static void test_ids_are_never_reused(void)
{
        uint64_t seen[1000];

        object_table_init(&table);
        for (int i = 0; i < 1000; i++) {
                struct object *object = make();

                seen[i] = object->id;
                CU_ASSERT_NOT_EQUAL(object->id, 0);
                if (i > 0)
                        CU_ASSERT(seen[i] > seen[i - 1]);
                object_free(object, &table);
        }
        for (int i = 0; i < 1000; i++)
                CU_ASSERT_PTR_NULL(object_find(&table, seen[i]));
        object_table_deinit(&table);
}

static void test_full(void)
{
        struct object *objects[OBJECTS_MAX], *one_more;

        object_table_init(&table);
        for (int i = 0; i < OBJECTS_MAX; i++)
                objects[i] = make();
        CU_ASSERT_EQUAL(object_new(&one_more, &table, NULL, GPUMEM_OBJECT_BUFFER, 1, 1, ""),
                        OBJECT_E_TABLE_FULL);
        CU_ASSERT_PTR_NULL(one_more);
        for (int i = 0; i < OBJECTS_MAX; i++)
                CU_ASSERT_PTR_EQUAL(object_find(&table, objects[i]->id), objects[i]);
        object_free(objects[100], &table);
        one_more = make();
        CU_ASSERT_PTR_EQUAL(object_find(&table, one_more->id), one_more);
        CU_ASSERT_EQUAL(table.count, OBJECTS_MAX);
        object_table_deinit(&table); /* frees the rest */
        CU_ASSERT_EQUAL(table.count, 0);
}

static void test_unknown_ids(void)
{
        struct object *object;

        object_table_init(&table);
        object = make();
        for (uint64_t i = 0; i < 64; i++) {
                CU_ASSERT_PTR_NULL(object_find(&table, object->id ^ UINT64_C(1) << i));
        }
        CU_ASSERT_PTR_NULL(object_find(&table, UINT64_MAX));
        object_table_deinit(&table);
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"life", test_life},
                {"ids are never reused", test_ids_are_never_reused},
                {"a full table", test_full},
                {"unknown ids", test_unknown_ids},
        };

        return UNIT_RUN("object", tests);
}
