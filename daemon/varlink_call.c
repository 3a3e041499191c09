/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a message to its answer: parsing, finding the method, checking parameters, replies and
 * errors, and the built-in interface org.varlink.service.
 */
#include "daemon/varlink_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVICE "org.varlink.service"

/* Names are echoed in errors, so they have a bound of their own. */
#define NAME_BYTES_MAX 255

static const char service_description[] =
        "# Every Varlink service has this interface. It says what the service is and which\n"
        "# interfaces it offers.\n"
        "interface org.varlink.service\n"
        "\n"
        "# What the service is, and the names of its interfaces.\n"
        "method GetInfo() -> (\n"
        "  vendor: string,\n"
        "  product: string,\n"
        "  version: string,\n"
        "  url: string,\n"
        "  interfaces: []string\n"
        ")\n"
        "\n"
        "# The definition of one interface, as text.\n"
        "method GetInterfaceDescription(interface: string) -> (description: string)\n"
        "\n"
        "# The interface is not offered here.\n"
        "error InterfaceNotFound (interface: string)\n"
        "\n"
        "# The interface has no such method.\n"
        "error MethodNotFound (method: string)\n"
        "\n"
        "# The interface has the method, the service does not offer it.\n"
        "error MethodNotImplemented (method: string)\n"
        "\n"
        "# A parameter is unknown, missing, of the wrong type or out of range.\n"
        "error InvalidParameter (parameter: string)\n"
        "\n"
        "# The caller may not do that.\n"
        "error PermissionDenied ()\n"
        "\n"
        "# The method answers several times and has to be called with more.\n"
        "error ExpectedMore ()\n";

static void put_object(json_object **object)
{
        json_object_put(*object);
}

#define auto_object __attribute__((cleanup(put_object))) json_object *

/* Add @value under @key; both are taken. A NULL value is a failed allocation. */
static int object_take(json_object *object, const char *key, json_object *value)
{
        if (value == NULL)
                return -ENOMEM;
        if (json_object_object_add(object, key, value) < 0) {
                json_object_put(value);
                return -ENOMEM;
        }
        return 0;
}

/* --- answers --- */

const struct varlink_peer *varlink_call_peer(const struct varlink_call *call)
{
        return varlink_connection_peer(call->connection);
}

bool varlink_call_wants_more(const struct varlink_call *call)
{
        return call->more && !call->oneway;
}

static int answer(struct varlink_call *call, const char *error, json_object *parameters_take,
                  bool continues)
{
        auto_object parameters = parameters_take;
        auto_object message = NULL;
        const char *text;
        size_t length;
        int r;

        if (call->answered)
                return -EALREADY;
        if (continues && !varlink_call_wants_more(call) && !call->oneway)
                return -EINVAL;
        if (!continues)
                call->answered = true;
        if (call->oneway)
                return 0;

        message = json_object_new_object();
        if (message == NULL)
                return -ENOMEM;
        if (parameters == NULL)
                parameters = json_object_new_object();
        if (error != NULL) {
                r = object_take(message, "error", json_object_new_string(error));
                if (r < 0)
                        return r;
        }
        r = object_take(message, "parameters", json_object_get(parameters));
        if (r < 0)
                return r;
        if (continues) {
                r = object_take(message, "continues", json_object_new_boolean(true));
                if (r < 0)
                        return r;
        }
        text = json_object_to_json_string_length(
                message, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &length);
        if (text == NULL)
                return -ENOMEM;
        return varlink_connection_queue(call->connection, text, length);
}

int varlink_call_reply(struct varlink_call *call, json_object *parameters)
{
        return answer(call, NULL, parameters, false);
}

int varlink_call_reply_continues(struct varlink_call *call, json_object *parameters)
{
        return answer(call, NULL, parameters, true);
}

int varlink_call_error(struct varlink_call *call, const char *error, json_object *parameters)
{
        return answer(call, error, parameters, false);
}

static int error_naming(struct varlink_call *call, const char *error, const char *key,
                        const char *value)
{
        json_object *parameters = json_object_new_object();
        int r;

        if (parameters == NULL)
                return -ENOMEM;
        r = object_take(parameters, key, json_object_new_string(value));
        if (r < 0) {
                json_object_put(parameters);
                return r;
        }
        return varlink_call_error(call, error, parameters);
}

int varlink_call_error_invalid_parameter(struct varlink_call *call, const char *name)
{
        return error_naming(call, SERVICE ".InvalidParameter", "parameter", name);
}

static int error_internal(struct varlink_call *call, const char *interface, int code)
{
        char error[NAME_BYTES_MAX + sizeof(".InternalError")];
        json_object *parameters = json_object_new_object();
        int r;

        if (parameters == NULL)
                return -ENOMEM;
        r = object_take(parameters, "code", json_object_new_int(code));
        if (r >= 0)
                r = object_take(parameters, "message", json_object_new_string(strerror(code)));
        if (r < 0) {
                json_object_put(parameters);
                return r;
        }
        snprintf(error, sizeof(error), "%.*s.InternalError", NAME_BYTES_MAX, interface);
        return varlink_call_error(call, error, parameters);
}

/* --- org.varlink.service --- */

static int get_info(struct varlink_call *call, json_object *unused, void *userdata)
{
        struct varlink_server *server = userdata;
        auto_object reply = json_object_new_object();
        json_object *names;
        int r;

        (void)unused;
        if (reply == NULL)
                return -ENOMEM;
        const struct {
                const char *key, *value;
        } texts[] = {
                {"vendor", server->identity.vendor},
                {"product", server->identity.product},
                {"version", server->identity.version},
                {"url", server->identity.url},
        };
        for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
                r = object_take(reply, texts[i].key, json_object_new_string(texts[i].value));
                if (r < 0)
                        return r;
        }
        names = json_object_new_array();
        r = object_take(reply, "interfaces", names);
        if (r < 0)
                return r;
        if (json_object_array_add(names, json_object_new_string(SERVICE)) < 0)
                return -ENOMEM;
        for (const struct varlink_interface *i = server->interfaces; i->name != NULL; i++) {
                if (json_object_array_add(names, json_object_new_string(i->name)) < 0)
                        return -ENOMEM;
        }
        return varlink_call_reply(call, json_object_get(reply));
}

static const struct varlink_interface service_interface;

static const struct varlink_interface *find_interface(const struct varlink_server *server,
                                                      const char *name, size_t length)
{
        if (length == strlen(SERVICE) && memcmp(name, SERVICE, length) == 0)
                return &service_interface;
        for (const struct varlink_interface *i = server->interfaces; i->name != NULL; i++) {
                if (strlen(i->name) == length && memcmp(i->name, name, length) == 0)
                        return i;
        }
        return NULL;
}

/* The text of a JSON string that is a plausible name: bounded, no NUL inside. Or NULL. */
static const char *name_of(json_object *string)
{
        const char *text = json_object_get_string(string);
        size_t length = (size_t)json_object_get_string_len(string);

        if (text == NULL || length == 0 || length > NAME_BYTES_MAX || strlen(text) != length)
                return NULL;
        return text;
}

static int get_interface_description(struct varlink_call *call, json_object *parameters,
                                     void *userdata)
{
        struct varlink_server *server = userdata;
        auto_object reply = NULL;
        const struct varlink_interface *interface;
        const char *name = name_of(json_object_object_get(parameters, "interface"));
        int r;

        if (name == NULL)
                return varlink_call_error_invalid_parameter(call, "interface");
        interface = find_interface(server, name, strlen(name));
        if (interface == NULL)
                return error_naming(call, SERVICE ".InterfaceNotFound", "interface", name);
        reply = json_object_new_object();
        if (reply == NULL)
                return -ENOMEM;
        r = object_take(reply, "description", json_object_new_string(interface->description));
        if (r < 0)
                return r;
        return varlink_call_reply(call, json_object_get(reply));
}

static const struct varlink_parameter get_interface_description_parameters[] = {
        {"interface", json_type_string, true},
        {0},
};

static const struct varlink_method service_methods[] = {
        {"GetInfo", NULL, get_info},
        {"GetInterfaceDescription", get_interface_description_parameters,
         get_interface_description},
        {0},
};

static const struct varlink_interface service_interface = {SERVICE, service_description,
                                                           service_methods};

/* --- dispatch --- */

/* The name of the first parameter that does not fit the table, or NULL. The name is the message's
 * or the table's own. */
static const char *misfit(const struct varlink_parameter *table, json_object *parameters)
{
        static const struct varlink_parameter none[] = {{0}};

        if (table == NULL)
                table = none;
        json_object_object_foreach(parameters, key, value)
        {
                const struct varlink_parameter *p = table;

                while (p->name != NULL && strcmp(p->name, key) != 0)
                        p++;
                if (p->name == NULL || (value != NULL && !json_object_is_type(value, p->type)))
                        return key;
        }
        for (const struct varlink_parameter *p = table; p->name != NULL; p++) {
                if (p->required && json_object_object_get(parameters, p->name) == NULL)
                        return p->name;
        }
        return NULL;
}

static int dispatch(struct varlink_call *call, json_object *parameters)
{
        struct varlink_server *server = call->server;
        const char *dot = strrchr(call->method, '.');
        const struct varlink_interface *interface;
        const struct varlink_method *method;
        const char *name;
        int r;

        if (dot == NULL || dot == call->method || dot[1] == '\0')
                return varlink_call_error_invalid_parameter(call, "method");
        interface = find_interface(server, call->method, (size_t)(dot - call->method));
        if (interface == NULL) {
                char interface_name[NAME_BYTES_MAX + 1];

                snprintf(interface_name, sizeof(interface_name), "%.*s", (int)(dot - call->method),
                         call->method);
                return error_naming(call, SERVICE ".InterfaceNotFound", "interface",
                                    interface_name);
        }
        for (method = interface->methods; method->name != NULL; method++) {
                if (strcmp(method->name, dot + 1) == 0)
                        break;
        }
        if (method->name == NULL)
                return error_naming(call, SERVICE ".MethodNotFound", "method", call->method);
        if (method->handle == NULL)
                return error_naming(call, SERVICE ".MethodNotImplemented", "method", call->method);
        name = misfit(method->parameters, parameters);
        if (name != NULL) {
                char bounded[NAME_BYTES_MAX + 1];
                size_t length = strlen(name);

                /* A longer key cannot be cut without knowing its UTF-8, and is nobody's parameter.
                 */
                snprintf(bounded, sizeof(bounded), "%s",
                         length <= NAME_BYTES_MAX ? name : "parameters");
                return varlink_call_error_invalid_parameter(call, bounded);
        }

        r = method->handle(call, parameters,
                           interface == &service_interface ? (void *)server : server->userdata);
        if (call->answered || r == -ENOBUFS)
                return r;
        if (interface == &service_interface)
                return r < 0 ? r : -EIO;
        return error_internal(call, interface->name, r < 0 ? -r : EIO);
}

/* An optional boolean member of the message: 0 and its value, or -EBADMSG. */
static int read_flag(json_object *message, const char *key, bool *value)
{
        json_object *member = json_object_object_get(message, key);

        *value = false;
        if (member == NULL)
                return 0;
        if (!json_object_is_type(member, json_type_boolean))
                return -EBADMSG;
        *value = json_object_get_boolean(member);
        return 0;
}

static json_object *parse(const struct varlink_limits *limits, const char *text, size_t length)
{
        struct json_tokener *tokener;
        json_object *message;

        while (length > 0 && strchr(" \t\r\n", text[length - 1]) != NULL)
                length--;
        if (varlink_scan(text, length, limits->depth, limits->values) < 0)
                return NULL;
        tokener = json_tokener_new_ex((int)limits->depth + 1);
        if (tokener == NULL)
                return NULL;
        json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
        message = json_tokener_parse_ex(tokener, text, (int)length);
        if (message != NULL && (json_tokener_get_error(tokener) != json_tokener_success ||
                                json_tokener_get_parse_end(tokener) != length)) {
                json_object_put(message);
                message = NULL;
        }
        json_tokener_free(tokener);
        return message;
}

int varlink_message_handle(struct varlink_connection *connection, const char *text, size_t length)
{
        struct varlink_server *server = varlink_connection_server(connection);
        struct varlink_call call = {.server = server, .connection = connection};
        auto_object message = parse(&server->limits, text, length);
        auto_object parameters = NULL;
        json_object *member;
        bool upgrade;

        if (message == NULL || !json_object_is_type(message, json_type_object))
                return -EBADMSG;
        member = json_object_object_get(message, "method");
        if (!json_object_is_type(member, json_type_string))
                return -EBADMSG;
        if (read_flag(message, "more", &call.more) < 0 ||
            read_flag(message, "oneway", &call.oneway) < 0 ||
            read_flag(message, "upgrade", &upgrade) < 0)
                return -EBADMSG;

        server->statistics.calls++;
        call.method = name_of(member);
        if (call.method == NULL)
                return varlink_call_error_invalid_parameter(&call, "method");
        /* A caller that upgrades expects another protocol after the answer, and we have none. */
        if (upgrade)
                return varlink_call_error_invalid_parameter(&call, "upgrade");
        member = json_object_object_get(message, "parameters");
        if (member == NULL)
                parameters = json_object_new_object();
        else if (json_object_is_type(member, json_type_object))
                parameters = json_object_get(member);
        else
                return varlink_call_error_invalid_parameter(&call, "parameters");
        if (parameters == NULL)
                return -ENOMEM;
        return dispatch(&call, parameters);
}
