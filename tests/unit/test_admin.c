/* SPDX-License-Identifier: Apache-2.0 */
/* The admin interface's definition and the building of its replies, without a daemon. */
#include "daemon/admin.h"
#include "daemon/admin_internal.h"
#include "tests/support/varlink_definition.h"

#include <CUnit/Basic.h>
#include <stdlib.h>
#include <string.h>

#define DEFINITION_PATH "include/gpumem/io.gpumemd.varlink"

/* What is built in is what is in the tree. */
static void test_text(void)
{
        FILE *file = fopen(DEFINITION_PATH, "re");
        char text[65536];
        size_t length;

        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        length = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
        text[length] = '\0';
        CU_ASSERT(length > 1000);
        CU_ASSERT_STRING_EQUAL(admin_interface_text, text);
        CU_ASSERT_PTR_NOT_NULL(strstr(text, "\ninterface io.gpumemd\n"));
}

static int check(enum varlink_part part, const char *name, const char *json)
{
        json_object *parameters = json_tokener_parse(json);
        char why[256] = "";
        int r;

        CU_ASSERT_PTR_NOT_NULL_FATAL(parameters);
        r = varlink_definition_check(admin_interface_text, part, name, parameters, why,
                                     sizeof(why));
        json_object_put(parameters);
        CU_ASSERT_EQUAL(r != 0, why[0] != '\0');
        return r;
}

#define TENANT                                                                                     \
        "\"tenant\":\"a\",\"charged_bytes\":1,\"granted_bytes\":1,\"draining_bytes\":0,"           \
        "\"ready_bytes\":0,\"dirty_bytes\":0,\"releasing_bytes\":0"
#define STATES                                                                                     \
        "{\"free\":1,\"fresh\":1,\"granted\":1,\"dirty\":1,\"ready\":1,\"draining\":1,"            \
        "\"quarantined\":1}"
#define MEMORY(bytes, tenants)                                                                     \
        "{\"devices\":[{\"uuid\":\"a\",\"name\":\"b\",\"frame_bytes\":" bytes                      \
        ",\"total_bytes\":1,\"managed_bytes\":1,\"outside_bytes\":1,\"frames\":" STATES            \
        ",\"bytes\":" STATES                                                                       \
        ",\"fresh_low_frames\":1,\"fresh_high_frames\":1,\"tenants\":[" tenants "]}]}"

/* The definition parses, and the checker of the integration tests can say no. */
static void test_definition(void)
{
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":true,\"report\":[\"x\"]}"), 0);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":1,\"report\":[]}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":true,\"report\":[1]}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":true,\"report\":{}}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":true}"), 1);
        CU_ASSERT_EQUAL(
                check(VARLINK_OUTPUT, "DebugCheck", "{\"ok\":true,\"report\":[],\"more\":1}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "DebugCheck", "[]"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_INPUT, "DebugCheck", "{}"), 0);
        CU_ASSERT_EQUAL(check(VARLINK_INPUT, "DebugCheck", "{\"x\":1}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_INPUT, "ListSessions", "{}"), 0);
        CU_ASSERT_EQUAL(check(VARLINK_INPUT, "ListSessions", "{\"after\":7}"), 0);
        CU_ASSERT_EQUAL(check(VARLINK_INPUT, "ListSessions", "{\"after\":\"7\"}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetMemInfo", MEMORY("1", "{" TENANT "}")), 0);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetMemInfo", MEMORY("1", "")), 0);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetMemInfo", MEMORY("1.5", "{" TENANT "}")), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetMemInfo", MEMORY("1", "{" TENANT ",\"x\":1}")),
                        1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetMemInfo", MEMORY("1", "{\"tenant\":\"a\"}")), 1);
        CU_ASSERT_EQUAL(check(VARLINK_ERROR, "DeviceNotFound", "{\"device\":\"a\"}"), 0);
        CU_ASSERT_EQUAL(check(VARLINK_ERROR, "DeviceNotFound", "{}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "NoSuchMethod", "{}"), 1);
        CU_ASSERT_EQUAL(check(VARLINK_ERROR, "GetStatus", "{}"), 1);
}

static void test_enumeration(void)
{
        static const char status[] =
                "{\"version\":\"1\",\"uptime_us\":1,\"epoch\":1,\"driver\":\"%s\",\"devices\":[],"
                "\"sessions\":0,\"waiting_grants\":0}";
        char text[512];

        snprintf(text, sizeof(text), status, "simulated");
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetStatus", text), 0);
        snprintf(text, sizeof(text), status, "simulate");
        CU_ASSERT_EQUAL(check(VARLINK_OUTPUT, "GetStatus", text), 1);
}

static void test_reply_building(void)
{
        static const struct {
                const char *in, *out;
        } texts[] = {
                {"plain", "plain"},
                {"", ""},
                {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
                {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
                {"\xff"
                 "a",
                 "?a"},
                {"cut \xc3", "cut ?"},
                {"cut \xf0\x9f\x98", "cut ???"},
                {"\xc0\x80", "??"},           /* overlong */
                {"\xed\xa0\x80", "???"},      /* surrogate */
                {"\xf4\x90\x80\x80", "????"}, /* beyond the last code point */
                {"\xc3\xbc\xff", "???"},      /* one wrong byte, and none is trusted */
        };
        struct admin_reply reply;
        json_object *list, *parsed;

        admin_reply_init(&reply);
        list = admin_add_array(&reply, reply.parameters, "texts");
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
                admin_append_text(&reply, list, texts[i].in);
        admin_add_int(&reply, reply.parameters, "large", UINT64_MAX);
        CU_ASSERT_FALSE(reply.failed);
        parsed = json_tokener_parse(json_object_to_json_string(reply.parameters));
        CU_ASSERT_PTR_NOT_NULL_FATAL(parsed);
        list = json_object_object_get(parsed, "texts");
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
                CU_ASSERT_STRING_EQUAL(json_object_get_string(json_object_array_get_idx(list, i)),
                                       texts[i].out);
        CU_ASSERT_EQUAL(json_object_get_int64(json_object_object_get(parsed, "large")), INT64_MAX);
        json_object_put(parsed);

        /* A container that could not be made is remembered, and adding to it is harmless. */
        admin_add_int(&reply, NULL, "x", 1);
        CU_ASSERT(reply.failed);
        admin_append_text(&reply, NULL, "x");
        CU_ASSERT_PTR_NULL(admin_append_object(&reply, NULL));
        json_object_put(reply.parameters);
}

int main(void)
{
        CU_pSuite suite;
        unsigned int failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return 1;
        suite = CU_add_suite("admin", NULL, NULL);
        CU_add_test(suite, "built-in definition", test_text);
        CU_add_test(suite, "definition and checker", test_definition);
        CU_add_test(suite, "enumeration", test_enumeration);
        CU_add_test(suite, "building replies", test_reply_building);
        CU_basic_set_mode(CU_BRM_NORMAL);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures > 0;
}
