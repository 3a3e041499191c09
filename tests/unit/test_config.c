/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config.h"
#include "tests/support/daemon_unit.h"

static struct config config;
static char why[4096];
static char path[64];

static int read_text(const char *text)
{
        FILE *file = fopen(path, "w");

        if (!file || fputs(text, file) < 0 || fclose(file) != 0)
                abort();
        config_init(&config);
        return config_read(&config, path, why, sizeof(why));
}

static void test_defaults(void)
{
        struct config_device device;

        CU_ASSERT_EQUAL(read_text(""), 0);
        CU_ASSERT_STRING_EQUAL(config.client_socket, "/run/gpumem/client.sock");
        CU_ASSERT_STRING_EQUAL(config.admin_socket, "/run/gpumem/admin.sock");
        CU_ASSERT_EQUAL(config.driver, DRIVER_CUDA);
        CU_ASSERT_EQUAL(config.log_level, LOG_LEVEL_INFO);
        CU_ASSERT_DOUBLE_EQUAL(config.gpu_memory_utilization, 0.9, 1e-9);
        CU_ASSERT_FALSE(config.debug);
        device = config_for_device(&config, "GPU-x", 0);
        CU_ASSERT_EQUAL(device.frame_bytes, 0);
        CU_ASSERT(device.watermark_low_auto && device.watermark_high_auto);
        CU_ASSERT_FALSE(device.gpu_direct_rdma);
}

static void test_everything(void)
{
        static const char uuid[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";
        struct config_device device;

        CU_ASSERT_EQUAL(read_text("# comment\n"
                                  "[gpumemd]\n"
                                  "client_socket = /tmp/c ; inline\n"
                                  "admin_socket=/tmp/a\n"
                                  "log_level = debug\n"
                                  "driver = simulated\n"
                                  "driver_library = /lib/x.so\n"
                                  "gpu_memory_utilization = 0.5\n"
                                  "max_clients = 10\n"
                                  "debug = yes\n"
                                  "\n"
                                  "[device *]\n"
                                  "frame_size = 4M\n"
                                  "watermark_low = 3\n"
                                  "[device 1]\n"
                                  "frame_size = auto\n"
                                  "gpu_direct_rdma = yes\n"
                                  "[device GPU-01234567-89ab-cdef-0123-456789abcdef]\n"
                                  "watermark_low = 5\n"
                                  "watermark_high = 9\n"
                                  "[simulator]\n"
                                  "directory = /dev/shm/x\n"
                                  "mode = 0770\n"
                                  "group = gpumem\n"
                                  "memory = 1GiB\n"
                                  "granularity = 64K\n"),
                        0);
        CU_ASSERT_STRING_EQUAL(why, "");
        CU_ASSERT_STRING_EQUAL(config.client_socket, "/tmp/c");
        CU_ASSERT_STRING_EQUAL(config.admin_socket, "/tmp/a");
        CU_ASSERT_EQUAL(config.log_level, LOG_LEVEL_DEBUG);
        CU_ASSERT_EQUAL(config.driver, DRIVER_SIMULATED);
        CU_ASSERT_STRING_EQUAL(config.driver_library, "/lib/x.so");
        CU_ASSERT_DOUBLE_EQUAL(config.gpu_memory_utilization, 0.5, 1e-9);
        CU_ASSERT_EQUAL(config.max_clients, 10);
        CU_ASSERT(config.debug);
        CU_ASSERT_STRING_EQUAL(config.simulator_directory, "/dev/shm/x");
        CU_ASSERT_EQUAL(config.simulator_mode, 0770);
        CU_ASSERT_STRING_EQUAL(config.simulator_group, "gpumem");
        CU_ASSERT_EQUAL(config.simulator_memory, UINT64_C(1) << 30);
        CU_ASSERT_EQUAL(config.simulator_granularity, 65536);

        device = config_for_device(&config, "GPU-other", 0);
        CU_ASSERT_EQUAL(device.frame_bytes, 4 << 20);
        CU_ASSERT_EQUAL(device.watermark_low, 3);
        CU_ASSERT(device.watermark_high_auto);
        device = config_for_device(&config, "GPU-other", 1);
        CU_ASSERT_EQUAL(device.frame_bytes, 0);
        CU_ASSERT(device.gpu_direct_rdma);
        device = config_for_device(&config, uuid, 1);
        CU_ASSERT_EQUAL(device.frame_bytes, 0);
        CU_ASSERT(device.gpu_direct_rdma);
        CU_ASSERT_EQUAL(device.watermark_low, 5);
        CU_ASSERT_EQUAL(device.watermark_high, 9);
}

/* [tenant NAME]: as said, in order. */
static void test_tenants(void)
{
        const struct tenant_rule *rule;

        CU_ASSERT_EQUAL(read_text("[tenant chat]\n"
                                  "unit = vllm@*.service sglang.service\n"
                                  "uid = 1000-1999\n"
                                  "unit = other.service\n"
                                  "max = 20G\n"
                                  "[tenant pods]\n"
                                  "cgroup = /kubepods*\n"
                                  "max = infinity\n"
                                  "[tenant uid-0]\n"
                                  "max = 1M\n"
                                  "[simulator]\n"
                                  "devices = 2\n"),
                        0);
        CU_ASSERT_STRING_EQUAL(why, "");
        CU_ASSERT_EQUAL(config.tenants.rules_count, 3);
        CU_ASSERT_EQUAL(config.tenants.matches_count, 5);
        rule = tenant_rules_find(&config.tenants, "chat");
        CU_ASSERT_EQUAL(rule->max_bytes, UINT64_C(20) << 30);
        rule = tenant_rules_find(&config.tenants, "pods");
        CU_ASSERT_EQUAL(rule->max_bytes, TENANT_NO_LIMIT);
        CU_ASSERT_EQUAL(config.simulator_devices, 2);
}

static void write_drop_in(const char *name, const char *text)
{
        char file[128];
        FILE *stream;

        snprintf(file, sizeof(file), "%s.d/%s", path, name);
        stream = fopen(file, "w");
        if (!stream || fputs(text, stream) < 0 || fclose(stream) != 0)
                abort();
}

static void remove_drop_in(const char *name)
{
        char file[128];

        snprintf(file, sizeof(file), "%s.d/%s", path, name);
        unlink(file);
}

/* gpumemd.conf.d: in order of names, over the file; a mistake names its own file and line. */
static void test_drop_ins(void)
{
        char directory[80], expected[128];

        snprintf(directory, sizeof(directory), "%s.d", path);
        CU_ASSERT_EQUAL_FATAL(mkdir(directory, 0700), 0);
        write_drop_in("20-b.conf", "[gpumemd]\nmax_clients = 20\n[tenant t]\nmax = 2G\n");
        write_drop_in("10-a.conf", "[gpumemd]\nmax_clients = 10\nlog_level = debug\n"
                                   "[device *]\nwatermark_low = 3\n[tenant t]\nuid = 5\n");
        write_drop_in("30-no.config", "[nonsense]\n");
        write_drop_in(".hidden.conf", "[nonsense]\n");
        CU_ASSERT_EQUAL(read_text("[gpumemd]\nmax_clients = 5\ndebug = yes\n"
                                  "[device *]\nwatermark_low = 1\nwatermark_high = 8\n"
                                  "[tenant t]\nuid = 4\nmax = 1G\n"),
                        0);
        CU_ASSERT_STRING_EQUAL(why, "");
        CU_ASSERT_EQUAL(config.max_clients, 20);
        CU_ASSERT_EQUAL(config.log_level, LOG_LEVEL_DEBUG);
        CU_ASSERT(config.debug);
        CU_ASSERT_EQUAL(config_for_device(&config, "GPU-x", 0).watermark_low, 3);
        CU_ASSERT_EQUAL(config_for_device(&config, "GPU-x", 0).watermark_high, 8);
        CU_ASSERT_EQUAL(config.tenants.rules_count, 1);
        CU_ASSERT_EQUAL(config.tenants.matches_count, 2);
        CU_ASSERT_EQUAL(config.tenants.rules[0].max_bytes, UINT64_C(2) << 30);

        write_drop_in("20-b.conf", "[gpumemd]\n\nmax_clients = none\n");
        CU_ASSERT_EQUAL(read_text(""), -EINVAL);
        snprintf(expected, sizeof(expected), "%s.d/20-b.conf:3: ", path);
        CU_ASSERT_EQUAL(strncmp(why, expected, strlen(expected)), 0);
        write_drop_in("20-b.conf", "[device *]\nwatermark_high = 2\n");
        CU_ASSERT_EQUAL(read_text(""), -EINVAL);
        snprintf(expected, sizeof(expected), "%s.d/20-b.conf:2: [device *]: watermark_low (3)",
                 path);
        CU_ASSERT_EQUAL(strncmp(why, expected, strlen(expected)), 0);
        /* Within one file nothing is said twice. */
        write_drop_in("20-b.conf", "[tenant t]\nmax = 1\nmax = 2\n");
        CU_ASSERT_EQUAL(read_text(""), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "20-b.conf:3: key 'max' in [tenant t] is given twice"));

        /* Without the file itself. */
        write_drop_in("20-b.conf", "[gpumemd]\nmax_clients = 21\n");
        config_init(&config);
        CU_ASSERT_EQUAL(config_read_drop_ins(&config, path, why, sizeof(why)), 0);
        CU_ASSERT_EQUAL(config.max_clients, 21);
        remove_drop_in("10-a.conf");
        remove_drop_in("20-b.conf");
        remove_drop_in("30-no.config");
        remove_drop_in(".hidden.conf");
        rmdir(directory);
}

/* Each is refused, naming file, line, and what is wrong. */
static void test_refused(void)
{
        static const struct {
                const char *text;
                unsigned line;
                const char *says;
        } cases[] = {
                {"[gpumemd]\nfoo = 1\n", 2, "unknown key 'foo'"},
                {"[gpumemd]\nfoo = 1\n", 2, "allowed: client_socket, admin_socket"},
                {"[tenant]\nmax = 1\n", 1, "unknown section [tenant]"},
                {"[tenant a/b]\nmax = 1\n", 1, "[tenant NAME] (NAME of letters"},
                {"[tenant x]\nmin = 1\n", 2, "unknown key 'min' in [tenant x]; allowed: unit,"},
                {"[tenant x]\nmax = 1x\n", 2, "'1x' is not allowed; allowed: a size"},
                {"[tenant x]\nmax = 1\nmax = 2\n", 3, "key 'max' in [tenant x] is given twice"},
                {"[tenant x]\nuid = 10-5\n", 2, "'10-5' is not allowed"},
                {"[tenant x]\nuid = 4294967295\n", 2, "is not allowed"},
                {"[tenant x]\ngid = root\n", 2, "allowed: numbers and ranges"},
                {"[tenant x]\nunit =\n", 2, "has no value"},
                {"[tenant x]\ncgroup = system.slice\n", 2, "patterns that begin with '/' or '*'"},
                {"[tenant x]\nmax = 1\n[gpumemd]\n", 2, "[tenant x] is nobody"},
                {"[gpumemd]\n[tenant x]\n", 2, "[tenant x] is nobody"},
                {"[tenant uid-5]\nunit = x\n", 2, "is the tenant of that user id already"},
                {"[tenant uid-x]\nmax = 1\n", 2, "are those of user ids"},
                {"[simulator]\ndevices = 17\n", 2, "a number from 1 to 16"},
                {"[gpumemd]\n\n[tenants x]\n", 3, "unknown section [tenants x]"},
                {"[gpumemd]\n\n[tenants x]\nmin = 1\n", 3, "unknown section"},
                {"driver = cuda\n", 1, "before any section"},
                {"[gpumemd]\ndriver = guess\n", 2, "cuda or simulated"},
                {"[gpumemd]\nlog_level = loud\n", 2, "error, warning, info or debug"},
                {"[gpumemd]\ndebug = true\n", 2, "yes or no"},
                {"[gpumemd]\ngpu_memory_utilization = 0\n", 2, "above 0"},
                {"[gpumemd]\ngpu_memory_utilization = 1.01\n", 2, "at most 1"},
                {"[gpumemd]\ngpu_memory_utilization = nan\n", 2, "'nan' is not allowed"},
                {"[gpumemd]\ngpu_memory_utilization = 0x1p-1\n", 2, "is not allowed"},
                {"[gpumemd]\nmax_clients = 0\n", 2, "1 to 65536"},
                {"[gpumemd]\nmax_clients = -1\n", 2, "1 to 65536"},
                {"[gpumemd]\nmax_clients = 99999999999999999999\n", 2, "1 to 65536"},
                {"[gpumemd]\nclient_socket = relative\n", 2, "absolute path"},
                {"[gpumemd]\ndriver = cuda\ndriver = cuda\n", 3, "given twice"},
                {"[gpumemd]\ndriver\n", 2, "nor key = value"},
                {"[gpumemd\n", 1, "without ']'"},
                {"[gpumemd]\nlog_level = info\n  debug = yes\n", 3, "begin with a blank"},
                {"[device *]\nframe_size = 3M\n", 2, "power of two"},
                {"[device *]\nframe_size = 1K\n", 2, "from 4K"},
                {"[device *]\nframe_size = 2X\n", 2, "suffix"},
                {"[device *]\nwatermark_low = -3\n", 2, "a number of frames"},
                {"[device *]\nwatermark_low = 9\nwatermark_high = 3\n", 3, "above watermark_high"},
                {"[device 0]\nwatermark_low = 9\n[device *]\nwatermark_high = 3\n", 2,
                 "above watermark_high"},
                {"[device]\nframe_size = auto\n", 1, "unknown section"},
                {"[device GPU-xyz]\nframe_size = auto\n", 1, "unknown section"},
                {"[simulator]\nmemory = lots\n", 2, "a size"},
                {"[simulator]\nmemory = 64MB\n", 2, "'64MB' is not allowed"},
                {"[simulator]\nmemory = 1M\n\n", 2, "memory (1048576 bytes) is less than"},
                {"[simulator]\ngranularity = 64M\nmemory = 32M\n", 3, "is less than granularity"},
                {"[simulator]\nmode = 0755\n", 2, "0700, 0770 or 0777"},
                {"[simulator]\nmode = 511\n", 2, "0700, 0770 or 0777"},
                {"[simulator]\ngroup = a b\n", 2, "name or number of a group"},
                {"[gpumemd]\nclient_socket = /run/gpumem/admin.sock\n", 2,
                 "client_socket and admin_socket are the same path"},
                {"[gpumemd]\nadmin_socket = /a\nkeeper_socket = /a\ndebug = no\n", 3,
                 "admin_socket and keeper_socket are the same path, /a"},
                {"[simulator]\ngranularity = auto\n", 2, "power of two"},
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                char place[128];

                snprintf(place, sizeof(place), "%s:%u: ", path, cases[i].line);
                CU_ASSERT_EQUAL(read_text(cases[i].text), -EINVAL);
                if (strncmp(why, place, strlen(place)) != 0 || !strstr(why, cases[i].says)) {
                        printf("\n  case %zu: %s (wanted %s%s)\n", i, why, place, cases[i].says);
                        CU_FAIL("wrong complaint");
                }
        }
}

static unsigned count_lines(const char *text)
{
        unsigned lines = 1;

        for (; *text; text++)
                lines += *text == '\n';
        return lines;
}

/* All mistakes of a file are named, in order; what follows from one is not. */
static void test_all_mistakes(void)
{
        char text[4096] = "[gpumemd]\n", expected[128];
        const char *line = why;

        CU_ASSERT_EQUAL(read_text("[gpumemd]\n"
                                  "foo = 1\n"
                                  "nothing\n"
                                  "[unknown]\n"
                                  "bar = 2\n"
                                  "[device *]\n"
                                  " frame_size = 3M\n"
                                  "frame_size = 3M\n"
                                  "watermark_low = 9\n"
                                  "watermark_high = 1\n"),
                        -EINVAL);
        CU_ASSERT_EQUAL(count_lines(why), 5);
        for (size_t i = 0; i < 5; i++) {
                static const unsigned lines[] = {2, 3, 4, 7, 8};

                snprintf(expected, sizeof(expected), "%s:%u: ", path, lines[i]);
                CU_ASSERT_EQUAL(strncmp(line, expected, strlen(expected)), 0);
                line = strchr(line, '\n');
                if (!line)
                        break;
                line++;
        }

        for (int i = 0; i < 30; i++)
                strcat(text, "no\n");
        CU_ASSERT_EQUAL(read_text(text), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, ":21: neither"));
        CU_ASSERT_PTR_NULL(strstr(why, ":22: neither"));
        CU_ASSERT_PTR_NOT_NULL(strstr(why, ":22: and more"));
        CU_ASSERT_PTR_NULL(strstr(why, ":23:"));
}

static void test_long_line(void)
{
        char text[400] = "[gpumemd]\ndriver_library = /";

        memset(text + strlen(text), 'x', 300);
        CU_ASSERT_EQUAL(read_text(text), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, ":2: the line is longer"));
        CU_ASSERT_EQUAL(count_lines(why), 1);
}

static void test_too_many_devices(void)
{
        char text[4096] = "";

        for (int i = 0; i <= CONFIG_DEVICES_MAX; i++)
                snprintf(text + strlen(text), sizeof(text) - strlen(text),
                         "[device %d]\nframe_size = auto\n", i);
        CU_ASSERT_EQUAL(read_text(text), -EINVAL);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "more than 32"));
}

static void test_missing_file(void)
{
        config_init(&config);
        CU_ASSERT_EQUAL(config_read(&config, "/nonexistent/x", why, sizeof(why)), -ENOENT);
        CU_ASSERT_PTR_NOT_NULL(strstr(why, "/nonexistent/x"));
}

static void test_bytes(void)
{
        uint64_t bytes = 0;

        CU_ASSERT_EQUAL(config_parse_bytes("4096", &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 4096);
        CU_ASSERT_EQUAL(config_parse_bytes("2M", &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 2 << 20);
        CU_ASSERT_EQUAL(config_parse_bytes("2 MiB", &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 2 << 20);
        CU_ASSERT_EQUAL(config_parse_bytes("3gb", &bytes), -EINVAL);
        CU_ASSERT_EQUAL(config_parse_bytes("3GB", &bytes), -EINVAL);
        CU_ASSERT_EQUAL(config_parse_bytes("3B", &bytes), -EINVAL);
        CU_ASSERT_EQUAL(config_parse_bytes("2mi", &bytes), 0);
        CU_ASSERT_EQUAL(bytes, 2 << 20);
        CU_ASSERT_EQUAL(config_parse_bytes("3G", &bytes), 0);
        CU_ASSERT_EQUAL(bytes, UINT64_C(3) << 30);
        CU_ASSERT_EQUAL(config_parse_bytes("16777216T", &bytes), -ERANGE);
        CU_ASSERT_EQUAL(config_parse_bytes("99999999999999999999", &bytes), -ERANGE);
        CU_ASSERT_EQUAL(config_parse_bytes("", &bytes), -EINVAL);
        CU_ASSERT_EQUAL(config_parse_bytes("-1", &bytes), -EINVAL);
        CU_ASSERT_EQUAL(config_parse_bytes("1MM", &bytes), -EINVAL);
}

static void test_shipped_file(void)
{
        config_init(&config);
        CU_ASSERT_EQUAL(config_read(&config, "systemd/gpumemd.conf", why, sizeof(why)), 0);
        CU_ASSERT_STRING_EQUAL(why, "");
}

static void test_simulator_environment(void)
{
        unsetenv("GPUMEM_SIM_DIR");
        unsetenv("GPUMEM_SIM_MEMORY");
        unsetenv("GPUMEM_SIM_GRANULARITY");
        unsetenv("GPUMEM_SIM_MODE");
        unsetenv("GPUMEM_SIM_GROUP");
        CU_ASSERT_EQUAL(read_text("[gpumemd]\ndriver = simulated\n[simulator]\nmemory = 8M\n"), 0);
        CU_ASSERT_EQUAL(config_export_simulator(&config), 0);
        CU_ASSERT_STRING_EQUAL(getenv("GPUMEM_SIM_MEMORY"), "8388608");
        CU_ASSERT_PTR_NULL(getenv("GPUMEM_SIM_DIR"));
        CU_ASSERT_PTR_NULL(getenv("GPUMEM_SIM_GRANULARITY"));
        CU_ASSERT_PTR_NULL(getenv("GPUMEM_SIM_MODE"));
        unsetenv("GPUMEM_SIM_MEMORY");

        CU_ASSERT_PTR_NULL(config_slow_simulator(&config));
        CU_ASSERT_EQUAL(read_text("[gpumemd]\ndriver = simulated\n"
                                  "[simulator]\nmode = 0777\ngroup = 5\ndirectory = /proc/x\n"),
                        0);
        CU_ASSERT_STRING_EQUAL(config_slow_simulator(&config), "/proc/x");
        CU_ASSERT_EQUAL(config_export_simulator(&config), 0);
        CU_ASSERT_STRING_EQUAL(getenv("GPUMEM_SIM_MODE"), "0777");
        CU_ASSERT_STRING_EQUAL(getenv("GPUMEM_SIM_GROUP"), "5");
        unsetenv("GPUMEM_SIM_MODE");
        unsetenv("GPUMEM_SIM_GROUP");
        unsetenv("GPUMEM_SIM_DIR");
}

int main(void)
{
        static const struct unit_test tests[] = {
                {"defaults", test_defaults},
                {"every key", test_everything},
                {"tenants", test_tenants},
                {"drop-ins", test_drop_ins},
                {"what is refused, and how", test_refused},
                {"all mistakes at once", test_all_mistakes},
                {"a long line", test_long_line},
                {"too many devices", test_too_many_devices},
                {"a missing file", test_missing_file},
                {"sizes", test_bytes},
                {"the file that is shipped", test_shipped_file},
                {"the simulator's environment", test_simulator_environment},
        };
        int status;

        snprintf(path, sizeof(path), "/tmp/gpumem-test-config-XXXXXX");
        close(mkstemp(path));
        status = UNIT_RUN("config", tests);
        unlink(path);
        return status;
}
