/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dependencies point one way: include <- libclient/{driver,wire} <- libclient <- tools, include <-
 * libclient/{driver,wire} <- daemon, kernels <- libclient. Every #include "..." and <gpumem/...> of
 * the tree is held against that table. Run from the top of the tree.
 */
#include <CUnit/Basic.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Who may include whom; a folder may always include itself and include/. First match of `from`
 * wins, so longer paths come first. */
static const struct rule {
        const char *from;
        const char *allowed[8];
} rules[] = {
        {"include/", {NULL}},
        {"kernels/", {NULL}},
        {"libclient/driver/", {NULL}},
        {"libclient/wire/", {NULL}},
        {"libclient/simcuda/", {"libclient/driver/", NULL}},
        {"libclient/", {"libclient/driver/", "libclient/wire/", "kernels/", NULL}},
        {"daemon/", {"libclient/driver/", "libclient/wire/", NULL}},
        {"tools/gpumemctl/", {NULL}},
        {"tools/gen/", {"libclient/driver/", "kernels/", NULL}},
        /* The bench measures the parts themselves. */
        {"tools/bench/", {"libclient/", "daemon/", "kernels/", NULL}},
};

static int files_seen, edges_seen;
static int faults;

static int starts_with(const char *text, const char *prefix)
{
        return strncmp(text, prefix, strlen(prefix)) == 0;
}

static const struct rule *rule_of(const char *path)
{
        for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
                if (starts_with(path, rules[i].from))
                        return &rules[i];
        return NULL;
}

/* The daemon's keeper and bpf folders are parts of the daemon; a folder of tools is a program of
 * its own. */
static int edge_allowed(const struct rule *rule, const char *target)
{
        if (starts_with(target, "include/") || rule_of(target) == rule)
                return 1;
        for (size_t i = 0; rule->allowed[i]; i++)
                if (starts_with(target, rule->allowed[i]))
                        return 1;
        return 0;
}

static int exists(const char *path)
{
        struct stat info;

        return stat(path, &info) == 0;
}

static void check_line(const char *path, const struct rule *rule, const char *line)
{
        char name[256], target[PATH_MAX], folder[PATH_MAX];
        char *slash;

        if (sscanf(line, " # include <gpumem/%255[^>]>", name) == 1)
                snprintf(target, sizeof(target), "include/gpumem/%s", name);
        else if (sscanf(line, " # include \"%255[^\"]\"", name) == 1) {
                snprintf(target, sizeof(target), "%s", name);
                snprintf(folder, sizeof(folder), "%s", path);
                slash = strrchr(folder, '/');
                if (!exists(target) && slash)
                        snprintf(target, sizeof(target), "%.*s/%s", (int)(slash - folder), folder,
                                 name);
        } else
                return;
        edges_seen++;
        if (edge_allowed(rule, target))
                return;
        faults++;
        fprintf(stderr, "%s includes %s: not allowed\n", path, target);
}

static void check_file(const char *path)
{
        const struct rule *rule = rule_of(path);
        char line[4096];
        FILE *file;

        if (!rule)
                return;
        file = fopen(path, "re");
        if (!file)
                return;
        files_seen++;
        while (fgets(line, sizeof(line), file))
                if (strstr(line, "include"))
                        check_line(path, rule, line);
        fclose(file);
}

static void walk(const char *folder)
{
        DIR *dir = opendir(folder);
        struct dirent *entry;

        if (!dir)
                return;
        while ((entry = readdir(dir))) {
                char path[PATH_MAX];
                struct stat info;
                size_t length;

                if (entry->d_name[0] == '.')
                        continue;
                snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
                if (stat(path, &info) < 0)
                        continue;
                length = strlen(path);
                if (S_ISDIR(info.st_mode))
                        walk(path);
                else if (length > 2 && path[length - 2] == '.' && strchr("ch", path[length - 1]))
                        check_file(path);
        }
        closedir(dir);
}

static void test_graph(void)
{
        static const char *const folders[] = {"include", "kernels", "libclient", "daemon", "tools"};

        for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
                walk(folders[i]);
        CU_ASSERT_TRUE(files_seen > 20);
        CU_ASSERT_TRUE(edges_seen > 50);
        CU_ASSERT_EQUAL(faults, 0);
}

/* The checker itself can fail. */
static void test_checker(void)
{
        CU_ASSERT_TRUE(edge_allowed(rule_of("libclient/kv.c"), "kernels/kernels.h"));
        CU_ASSERT_FALSE(edge_allowed(rule_of("kernels/cpu/pool.c"), "libclient/kv.h"));
        CU_ASSERT_FALSE(edge_allowed(rule_of("daemon/frame.c"), "libclient/session.h"));
        CU_ASSERT_FALSE(
                edge_allowed(rule_of("libclient/wire/check.c"), "libclient/driver/driver.h"));
        CU_ASSERT_FALSE(edge_allowed(rule_of("libclient/kv.c"), "daemon/frame.h"));
}

int main(void)
{
        CU_pSuite suite;
        unsigned failures;

        if (CU_initialize_registry() != CUE_SUCCESS)
                return CU_get_error();
        suite = CU_add_suite("include graph", NULL, NULL);
        CU_add_test(suite, "the checker refuses what the table refuses", test_checker);
        CU_add_test(suite, "the tree keeps to the table", test_graph);
        CU_basic_run_tests();
        failures = CU_get_number_of_failures();
        CU_cleanup_registry();
        return failures ? 1 : 0;
}
