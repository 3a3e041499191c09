/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/config_value.h"

/* inih cuts lines longer than its buffer in pieces; we refuse them instead. */
#define LINE_BYTES 190
/* So many mistakes of a file are named. */
#define MISTAKES_MAX 20
/* The simulator's own defaults. */
#define SIMULATOR_MEMORY      (UINT64_C(1) << 30)
#define SIMULATOR_GRANULARITY (UINT64_C(2) << 20)

enum section {
        SECTION_GPUMEMD,
        SECTION_DEVICE,
        SECTION_SIMULATOR,
        SECTION_TENANT, /* its keys are tenant_rule.c's */
        SECTION_COUNT,
};

enum kind {
        KIND_PATH, /* absolute; `maximum` is the size of the array */
        KIND_LEVEL,
        KIND_DRIVER,
        KIND_FRACTION, /* above 0, at most 1 */
        KIND_COUNT,    /* uint32_t, minimum..maximum */
        KIND_BOOL,
        KIND_BYTES,     /* uint64_t, power of two if minimum says so */
        KIND_FRAME,     /* uint64_t: auto (0) or bytes */
        KIND_WATERMARK, /* uint32_t: auto or frames */
        KIND_MODE,      /* uint32_t: of a directory */
        KIND_NAME,      /* of a group; `maximum` is the size of the array */
};

struct key {
        enum section section;
        const char *name;
        enum kind kind;
        size_t offset; /* in struct config, or in struct config_device */
        uint64_t minimum, maximum;
        const char *allowed;
};

#define OF(field)        offsetof(struct config, field)
#define OF_DEVICE(field) offsetof(struct config_device, field)
#define SIZE_OF(field)   sizeof(((struct config *)0)->field)

static const struct key keys[] = {
        {SECTION_GPUMEMD, "client_socket", KIND_PATH, OF(client_socket), 0, SIZE_OF(client_socket),
         "an absolute path of at most 107 bytes"},
        {SECTION_GPUMEMD, "admin_socket", KIND_PATH, OF(admin_socket), 0, SIZE_OF(admin_socket),
         "an absolute path of at most 107 bytes"},
        {SECTION_GPUMEMD, "log_level", KIND_LEVEL, OF(log_level), 0, 0,
         "error, warning, info or debug"},
        {SECTION_GPUMEMD, "driver", KIND_DRIVER, OF(driver), 0, 0, "cuda or simulated"},
        {SECTION_GPUMEMD, "driver_library", KIND_PATH, OF(driver_library), 0,
         SIZE_OF(driver_library), "an absolute path"},
        {SECTION_GPUMEMD, "gpu_memory_utilization", KIND_FRACTION, OF(gpu_memory_utilization), 0, 0,
         "a number above 0 and at most 1"},
        {SECTION_GPUMEMD, "max_clients", KIND_COUNT, OF(max_clients), 1, CONFIG_CLIENTS_MAX,
         "a number from 1 to 65536"},
        {SECTION_GPUMEMD, "keeper", KIND_BOOL, OF(keeper), 0, 0, "yes or no"},
        {SECTION_GPUMEMD, "keeper_socket", KIND_PATH, OF(keeper_socket), 0, SIZE_OF(keeper_socket),
         "an absolute path of at most 107 bytes"},
        {SECTION_GPUMEMD, "debug", KIND_BOOL, OF(debug), 0, 0, "yes or no"},
        {SECTION_DEVICE, "frame_size", KIND_FRAME, OF_DEVICE(frame_bytes), 4096, UINT64_C(1) << 40,
         "auto, or a power of two from 4K to 1T, with suffix K, M, G or T"},
        {SECTION_DEVICE, "watermark_low", KIND_WATERMARK, OF_DEVICE(watermark_low), 0,
         CONFIG_FRAMES_MAX, "auto, or a number of frames from 0 to 1048576"},
        {SECTION_DEVICE, "watermark_high", KIND_WATERMARK, OF_DEVICE(watermark_high), 0,
         CONFIG_FRAMES_MAX, "auto, or a number of frames from 0 to 1048576"},
        {SECTION_DEVICE, "gpu_direct_rdma", KIND_BOOL, OF_DEVICE(gpu_direct_rdma), 0, 0,
         "yes or no"},
        {SECTION_SIMULATOR, "directory", KIND_PATH, OF(simulator_directory), 0,
         SIZE_OF(simulator_directory), "an absolute path in a tmpfs"},
        {SECTION_SIMULATOR, "mode", KIND_MODE, OF(simulator_mode), 0, 0, "0700, 0770 or 0777"},
        {SECTION_SIMULATOR, "group", KIND_NAME, OF(simulator_group), 0, SIZE_OF(simulator_group),
         "the name or number of a group"},
        {SECTION_SIMULATOR, "memory", KIND_BYTES, OF(simulator_memory), 4096, UINT64_C(1) << 42,
         "a size from 4K to 4T, with suffix K, M, G or T"},
        {SECTION_SIMULATOR, "devices", KIND_COUNT, OF(simulator_devices), 1, 16,
         "a number from 1 to 16"},
        {SECTION_SIMULATOR, "granularity", KIND_FRAME, OF(simulator_granularity), 4096,
         UINT64_C(1) << 30, "a power of two from 4K to 1G, with suffix K, M or G"},
};
#define KEYS_COUNT (sizeof(keys) / sizeof(keys[0]))
_Static_assert(KEYS_COUNT <= 32, "given is a bit per key");

/* One reading of one file. */
struct reading {
        struct config *config;
        FILE *file;
        const char *path;
        unsigned line;
        uint32_t given;                       /* keys outside [device] */
        unsigned socket_line, simulator_line; /* of the last key that says where, and how large */
        unsigned mistakes;
        bool skip_section; /* its header was refused: its keys say nothing */
        char *why;
        size_t size;
};

void config_init(struct config *config)
{
        *config = (struct config){
                .client_socket = "/run/gpumem/client.sock",
                .admin_socket = "/run/gpumem/admin.sock",
                .log_level = LOG_LEVEL_INFO,
                .driver = DRIVER_CUDA,
                .gpu_memory_utilization = 0.9,
                .max_clients = 2048,
                .keeper = true,
        };
}

/* One more line of `why`, as far as it has room. */
__attribute__((format(printf, 2, 3))) static void complain(struct reading *reading,
                                                           const char *format, ...)
{
        size_t length = reading->size > 0 ? strlen(reading->why) : 0;
        char *why = reading->why + length;
        size_t size = reading->size - length;
        va_list arguments;
        int n;

        if (++reading->mistakes > MISTAKES_MAX + 1 || size < 2)
                return;
        n = snprintf(why, size, "%s%s:%u: ", length > 0 ? "\n" : "", reading->path, reading->line);
        if (n < 0 || (size_t)n >= size) {
                why[0] = '\0';
                return;
        }
        if (reading->mistakes > MISTAKES_MAX) {
                snprintf(why + n, size - (size_t)n, "and more that is wrong, here or below");
                return;
        }
        va_start(arguments, format);
        vsnprintf(why + n, size - (size_t)n, format, arguments);
        va_end(arguments);
}

static int parse_value(const struct key *key, const char *text, void *base)
{
        void *field = (char *)base + key->offset;
        uint64_t number;
        int r;

        switch (key->kind) {
        case KIND_PATH:
                return config_parse_path(text, field, (size_t)key->maximum);
        case KIND_LEVEL:
                return log_level_parse(text, field);
        case KIND_DRIVER:
                return driver_kind_parse(text, field);
        case KIND_FRACTION:
                return config_parse_fraction(text, field);
        case KIND_BOOL:
                return config_parse_bool(text, field);
        case KIND_MODE:
                return config_parse_mode(text, field);
        case KIND_NAME:
                return config_parse_name(text, field, (size_t)key->maximum);
        case KIND_WATERMARK:
                if (strcmp(text, "auto") == 0) {
                        *(uint32_t *)field = UINT32_MAX;
                        return 0;
                }
                /* fall through */
        case KIND_COUNT:
                r = config_parse_count(text, key->minimum, key->maximum, &number);
                if (r == 0)
                        *(uint32_t *)field = (uint32_t)number;
                return r;
        case KIND_FRAME:
                if (strcmp(text, "auto") == 0 && key->section == SECTION_DEVICE) {
                        *(uint64_t *)field = 0;
                        return 0;
                }
                r = config_parse_bytes(text, &number);
                if (r == 0 && (number < key->minimum || number > key->maximum ||
                               (number & (number - 1)) != 0))
                        r = -ERANGE;
                if (r == 0)
                        *(uint64_t *)field = number;
                return r;
        case KIND_BYTES:
                r = config_parse_bytes(text, &number);
                if (r == 0 && (number < key->minimum || number > key->maximum))
                        r = -ERANGE;
                if (r == 0)
                        *(uint64_t *)field = number;
                return r;
        }
        return -EINVAL;
}

static bool is_uuid(const char *text)
{
        static const char shape[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";

        if (strlen(text) != sizeof(shape) - 1)
                return false;
        for (size_t i = 0; shape[i]; i++) {
                if (shape[i] == 'x' ? !strchr("0123456789abcdef", text[i]) : shape[i] != text[i])
                        return false;
        }
        return true;
}

/* Which section a header names; *match points at the device's or tenant's name. SECTION_COUNT:
 * none. */
static enum section section_parse(const char *name, const char **match)
{
        uint64_t index;

        *match = NULL;
        if (strcmp(name, "gpumemd") == 0)
                return SECTION_GPUMEMD;
        if (strcmp(name, "simulator") == 0)
                return SECTION_SIMULATOR;
        if (strncmp(name, "tenant ", 7) == 0) {
                *match = name + 7 + strspn(name + 7, " ");
                return tenant_name_is_valid(*match) ? SECTION_TENANT : SECTION_COUNT;
        }
        if (strncmp(name, "device ", 7) != 0)
                return SECTION_COUNT;
        *match = name + 7 + strspn(name + 7, " ");
        if (strcmp(*match, "*") == 0 || is_uuid(*match) ||
            config_parse_count(*match, 0, 4095, &index) == 0)
                return SECTION_DEVICE;
        return SECTION_COUNT;
}

static void complain_section(struct reading *reading, const char *name)
{
        complain(
                reading,
                "unknown section [%s]; allowed: [gpumemd], [device *], [device INDEX], "
                "[device GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx], [simulator], [tenant NAME] (NAME "
                "of letters, digits and ._-@:)",
                name);
}

static void complain_key(struct reading *reading, enum section section, const char *section_name,
                         const char *name)
{
        char allowed[256] = "";

        for (size_t i = 0; i < KEYS_COUNT; i++) {
                size_t length = strlen(allowed);

                if (keys[i].section == section)
                        snprintf(allowed + length, sizeof(allowed) - length, "%s%s",
                                 length ? ", " : "", keys[i].name);
        }
        complain(reading, "unknown key '%s' in [%s]; allowed: %s", name, section_name, allowed);
}

static struct config_device *device_section(struct config *config, const char *match)
{
        struct config_device *device;

        for (uint32_t i = 0; i < config->devices_count; i++)
                if (strcmp(config->devices[i].match, match) == 0)
                        return &config->devices[i];
        if (config->devices_count == CONFIG_DEVICES_MAX)
                return NULL;
        device = &config->devices[config->devices_count++];
        *device = (struct config_device){0};
        snprintf(device->match, sizeof(device->match), "%s", match);
        return device;
}

static int on_tenant_key(struct reading *reading, const char *tenant, const char *name,
                         const char *value)
{
        char text[512];

        if (tenant_rules_key(&reading->config->tenants, tenant, name, value, reading->line, text,
                             sizeof(text)) < 0)
                complain(reading, "%s", text);
        return 1;
}

/* inih's handler: 1 is success. Complaints are kept in `reading` instead. */
static int on_key(void *userdata, const char *section_name, const char *name, const char *value)
{
        struct reading *reading = userdata;
        const char *match;
        enum section section = section_parse(section_name, &match);
        uint32_t *given = &reading->given;
        void *base = reading->config;
        size_t i;

        if (reading->skip_section)
                return 1;
        if (section_name[0] == '\0') {
                complain(reading, "key '%s' stands before any section", name);
                return 1;
        }
        if (section == SECTION_COUNT) {
                complain_section(reading, section_name);
                return 1;
        }
        if (section == SECTION_TENANT)
                return on_tenant_key(reading, match, name, value);
        for (i = 0; i < KEYS_COUNT; i++)
                if (keys[i].section == section && strcmp(keys[i].name, name) == 0)
                        break;
        if (i == KEYS_COUNT) {
                complain_key(reading, section, section_name, name);
                return 1;
        }
        if (section == SECTION_DEVICE) {
                struct config_device *device = device_section(reading->config, match);

                if (!device) {
                        complain(reading, "more than %d [device ...] sections", CONFIG_DEVICES_MAX);
                        return 1;
                }
                base = device;
                device->line = reading->line;
                device->given |= UINT32_C(1) << i;
                given = &device->given_here;
        }
        if (*given & (UINT32_C(1) << i)) {
                complain(reading, "key '%s' in [%s] is given twice", name, section_name);
                return 1;
        }
        *given |= UINT32_C(1) << i;
        if (section == SECTION_GPUMEMD && strstr(name, "_socket"))
                reading->socket_line = reading->line;
        if (section == SECTION_SIMULATOR)
                reading->simulator_line = reading->line;
        if (parse_value(&keys[i], value, base) != 0)
                complain(reading, "key '%s' in [%s]: '%s' is not allowed; allowed: %s", name,
                         section_name, value, keys[i].allowed);
        return 1;
}

/* inih takes the line for empty: what was wrong with it is said already. */
static char *blank(char *text)
{
        text[0] = '\n';
        text[1] = '\0';
        return text;
}

static void skip_line(FILE *file)
{
        int byte;

        do
                byte = getc(file);
        while (byte != '\n' && byte != EOF);
}

/* A section's header, which inih tells of only through its keys. */
static char *read_header(struct reading *reading, char *text)
{
        char section[LINE_BYTES + 1], why[512];
        size_t end = strcspn(text, "]");
        const char *match;
        enum section kind;

        reading->skip_section = true;
        if (text[end] != ']') {
                complain(reading, "section header without ']'");
                return blank(text);
        }
        snprintf(section, sizeof(section), "%.*s", (int)(end - 1), text + 1);
        kind = section_parse(section, &match);
        if (end - 1 >= 50 || kind == SECTION_COUNT) {
                complain_section(reading, section);
                return blank(text);
        }
        if (kind == SECTION_TENANT && tenant_rules_section(&reading->config->tenants, match,
                                                           reading->line, why, sizeof(why)) < 0) {
                complain(reading, "%s", why);
                return blank(text);
        }
        reading->skip_section = false;
        return text;
}

/* "key = value" or "key: value", before any comment. */
static bool is_assignment(const char *text)
{
        for (size_t i = 0; text[i]; i++) {
                if (text[i] == '=' || text[i] == ':')
                        return true;
                if (text[i] == ';' && i > 0 && (text[i - 1] == ' ' || text[i - 1] == '\t'))
                        return false;
        }
        return false;
}

/* inih's reader: counts lines, and refuses those that inih would misunderstand. */
static char *read_line(char *text, int size, void *stream)
{
        struct reading *reading = stream;
        size_t length;

        if (!fgets(text, size, reading->file))
                return NULL;
        reading->line++;
        length = strlen(text);
        if (length > LINE_BYTES) {
                if (text[length - 1] != '\n')
                        skip_line(reading->file);
                complain(reading, "the line is longer than %d bytes", LINE_BYTES);
                return blank(text);
        }
        if (text[0] == '[')
                return read_header(reading, text);
        if (!text[strspn(text, " \t\r\n")] || strchr(";#", text[strspn(text, " \t")]))
                return text;
        if (text[0] == ' ' || text[0] == '\t') {
                /* inih would take it as a continuation of the value before. */
                complain(reading, "a line must not begin with a blank");
                return blank(text);
        }
        if (!is_assignment(text)) {
                complain(reading, "neither a section, nor key = value, nor a comment");
                return blank(text);
        }
        return text;
}

static void check_devices(struct reading *reading)
{
        for (uint32_t i = 0; i < reading->config->devices_count; i++) {
                struct config_device *device = &reading->config->devices[i];
                struct config_device merged =
                        config_for_device(reading->config, device->match, UINT32_MAX);

                if (device->line == 0)
                        continue;
                reading->line = device->line;
                if (!merged.watermark_low_auto && !merged.watermark_high_auto &&
                    merged.watermark_low > merged.watermark_high)
                        complain(reading,
                                 "[device %s]: watermark_low (%u) is above watermark_high (%u)",
                                 device->match, merged.watermark_low, merged.watermark_high);
        }
}

static void check_sockets(struct reading *reading)
{
        const struct config *config = reading->config;
        const struct {
                const char *name, *path;
        } sockets[] = {{"client_socket", config->client_socket},
                       {"admin_socket", config->admin_socket},
                       {"keeper_socket", config->keeper_socket}};

        if (reading->socket_line == 0)
                return;
        reading->line = reading->socket_line;
        for (int i = 0; i < 3; i++)
                for (int j = i + 1; j < 3; j++)
                        if (strcmp(sockets[i].path, sockets[j].path) == 0)
                                complain(reading, "%s and %s are the same path, %s",
                                         sockets[i].name, sockets[j].name, sockets[i].path);
}

/* What the environment says is checked by the simulator itself. */
static void check_simulator(struct reading *reading)
{
        uint64_t memory = reading->config->simulator_memory;
        uint64_t granularity = reading->config->simulator_granularity;

        if (memory == 0)
                memory = getenv("GPUMEM_SIM_MEMORY") ? UINT64_MAX : SIMULATOR_MEMORY;
        if (granularity == 0)
                granularity = getenv("GPUMEM_SIM_GRANULARITY") ? 0 : SIMULATOR_GRANULARITY;
        if (reading->simulator_line == 0 || memory >= granularity)
                return;
        reading->line = reading->simulator_line;
        complain(reading, "[simulator]: memory (%llu bytes) is less than granularity (%llu bytes)",
                 (unsigned long long)memory, (unsigned long long)granularity);
}

static void check_tenants(struct reading *reading)
{
        char text[512];

        if (tenant_rules_check(&reading->config->tenants, &reading->line, text, sizeof(text)) < 0)
                complain(reading, "%s", text);
}

/* What was given in files before may be given again. */
static void next_file(struct config *config)
{
        for (uint32_t i = 0; i < config->devices_count; i++) {
                config->devices[i].given_here = 0;
                config->devices[i].line = 0;
        }
        tenant_rules_next_file(&config->tenants);
}

static int read_file(struct config *config, const char *path, char *why, size_t size)
{
        struct reading reading = {
                .config = config,
                .path = path,
                .why = why,
                .size = size,
        };
        int r;

        if (size > 0)
                why[0] = '\0';
        reading.file = fopen(path, "re");
        if (!reading.file) {
                r = -errno;
                snprintf(why, size, "%s: cannot be opened: %s", path, strerror(-r));
                return r;
        }
        next_file(config);
        r = ini_parse_stream(read_line, &reading, on_key, &reading);
        if (ferror(reading.file)) {
                fclose(reading.file);
                snprintf(why, size, "%s: cannot be read", path);
                return -EIO;
        }
        fclose(reading.file);
        if (r < 0) {
                snprintf(why, size, "%s: out of memory", path);
                return -ENOMEM;
        }
        if (reading.mistakes == 0 && r > 0) {
                reading.line = (unsigned)r;
                complain(&reading, "neither a section, nor key = value, nor a comment");
        }
        /* What belongs together is looked at only where each part is right. */
        if (reading.mistakes == 0) {
                check_sockets(&reading);
                check_devices(&reading);
                check_simulator(&reading);
                check_tenants(&reading);
        }
        return reading.mistakes > 0 ? -EINVAL : 0;
}

/* "NAME.conf", and neither hidden nor an editor's. */
static int is_drop_in(const struct dirent *entry)
{
        size_t length = strlen(entry->d_name);

        return entry->d_name[0] != '.' && length > 5 &&
               strcmp(entry->d_name + length - 5, ".conf") == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
        return strcmp((*a)->d_name, (*b)->d_name);
}

int config_read_drop_ins(struct config *config, const char *path, char *why, size_t size)
{
        char directory[PATH_MAX], file[PATH_MAX + NAME_MAX + 2];
        struct dirent **entries;
        int count, r = 0;

        if (size > 0)
                why[0] = '\0';
        if (snprintf(directory, sizeof(directory), "%s.d", path) >= (int)sizeof(directory)) {
                snprintf(why, size, "%s.d: the name is too long", path);
                return -ENAMETOOLONG;
        }
        count = scandir(directory, &entries, is_drop_in, by_name);
        if (count < 0) {
                r = -errno;
                if (r == -ENOENT)
                        return 0;
                snprintf(why, size, "%s: cannot be read: %s", directory, strerror(-r));
                return r;
        }
        for (int i = 0; i < count; i++) {
                snprintf(file, sizeof(file), "%s/%s", directory, entries[i]->d_name);
                if (r == 0)
                        r = read_file(config, file, why, size);
                free(entries[i]);
        }
        free(entries);
        return r;
}

int config_read(struct config *config, const char *path, char *why, size_t size)
{
        int r = read_file(config, path, why, size);

        return r < 0 ? r : config_read_drop_ins(config, path, why, size);
}

static void merge(struct config_device *into, const struct config_device *from)
{
        for (size_t i = 0; i < KEYS_COUNT; i++) {
                const struct key *key = &keys[i];
                char *to = (char *)into + key->offset;
                const char *source = (const char *)from + key->offset;

                if (key->section != SECTION_DEVICE || !(from->given & (UINT32_C(1) << i)))
                        continue;
                switch (key->kind) {
                case KIND_FRAME:
                        memcpy(to, source, sizeof(uint64_t));
                        break;
                case KIND_WATERMARK:
                        memcpy(to, source, sizeof(uint32_t));
                        break;
                default:
                        memcpy(to, source, sizeof(bool));
                        break;
                }
        }
}

struct config_device config_for_device(const struct config *config, const char *uuid,
                                       unsigned index)
{
        struct config_device out = {
                .watermark_low = UINT32_MAX,
                .watermark_high = UINT32_MAX,
        };
        char number[16];

        snprintf(number, sizeof(number), "%u", index);
        snprintf(out.match, sizeof(out.match), "%s", uuid);
        for (int pass = 0; pass < 3; pass++) {
                const char *match = pass == 0 ? "*" : pass == 1 ? number : uuid;

                for (uint32_t i = 0; i < config->devices_count; i++)
                        if (strcmp(config->devices[i].match, match) == 0)
                                merge(&out, &config->devices[i]);
        }
        out.watermark_low_auto = out.watermark_low == UINT32_MAX;
        out.watermark_high_auto = out.watermark_high == UINT32_MAX;
        return out;
}
