/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/varlink_definition.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
        DEPTH_MAX = 32, /* of types within types */
        WORD_MAX = 64,
};

struct check {
        const char *definition;
        char *why;
        size_t size;
        bool failed;
};

static void fail(struct check *check, const char *where, const char *what)
{
        if (!check->failed)
                snprintf(check->why, check->size, "%s: %s", where, what);
        check->failed = true;
}

static const char *skip(const char *p)
{
        for (;;) {
                while (isspace((unsigned char)*p))
                        p++;
                if (*p != '#')
                        return p;
                p += strcspn(p, "\n");
        }
}

/* The word at @p goes to @word; returns what follows it. */
static const char *word_at(const char *p, char word[WORD_MAX])
{
        size_t length = 0;

        p = skip(p);
        while (isalnum((unsigned char)p[length]) || p[length] == '_')
                length++;
        snprintf(word, WORD_MAX, "%.*s", (int)length, p);
        return p + length;
}

/* Where the declaration "keyword name" goes on, or NULL. */
static const char *find(const char *definition, const char *keyword, const char *name)
{
        char word[WORD_MAX];
        const char *p = skip(definition);

        while (*p != '\0') {
                const char *next = word_at(p, word);

                if (next > p && strcmp(word, keyword) == 0) {
                        next = word_at(next, word);
                        if (strcmp(word, name) == 0)
                                return skip(next);
                }
                p = skip(next > p ? next : p + 1);
        }
        return NULL;
}

static const char *check_type(struct check *check, const char *p, json_object *value, bool judge,
                              const char *where, int depth);

/* @p is behind '('. With @judge false it only finds the end. */
static const char *check_struct(struct check *check, const char *p, json_object *value, bool judge,
                                const char *where, int depth)
{
        size_t found = 0;

        if (judge && !json_object_is_type(value, json_type_object)) {
                fail(check, where, "is not an object");
                judge = false;
        }
        p = skip(p);
        while (*p != ')' && *p != '\0') {
                char name[WORD_MAX], inner[256];
                json_object *member = NULL;
                bool there;

                p = skip(word_at(p, name));
                snprintf(inner, sizeof(inner), "%s.%s", where, name);
                there = judge && json_object_object_get_ex(value, name, &member);
                found += there;
                p = skip(*p == ':' ? p + 1 : p);
                if (judge && !there && *p != '?')
                        fail(check, inner, "is missing");
                p = skip(check_type(check, p, member, there, inner, depth + 1));
                if (*p == ',')
                        p = skip(p + 1);
        }
        if (judge && found != (size_t)json_object_object_length(value))
                fail(check, where, "has members that are not declared");
        return *p == ')' ? p + 1 : p;
}

static const char *check_enum(struct check *check, const char *p, json_object *value, bool judge,
                              const char *where)
{
        const char *text = judge && json_object_is_type(value, json_type_string)
                                   ? json_object_get_string(value)
                                   : NULL;
        bool found = false;

        p = skip(p);
        while (*p != ')' && *p != '\0') {
                char name[WORD_MAX];

                p = skip(word_at(p, name));
                found = found || (text != NULL && strcmp(text, name) == 0);
                p = *p == ',' ? skip(p + 1) : p;
        }
        if (judge && !found)
                fail(check, where, "is not a word of its enumeration");
        return *p == ')' ? p + 1 : p;
}

static const char *check_named(struct check *check, const char *p, json_object *value, bool judge,
                               const char *where, int depth)
{
        static const struct {
                const char *name;
                json_type type;
        } basic[] = {{"bool", json_type_boolean},
                     {"int", json_type_int},
                     {"float", json_type_double},
                     {"string", json_type_string},
                     {"object", json_type_object}};
        char name[WORD_MAX];
        const char *next = word_at(p, name), *declaration;

        if (name[0] == '\0') {
                fail(check, where, "has no type in the definition");
                return next + strlen(next);
        }
        for (size_t i = 0; i < sizeof(basic) / sizeof(basic[0]); i++) {
                if (strcmp(name, basic[i].name) != 0)
                        continue;
                if (judge && !json_object_is_type(value, basic[i].type))
                        fail(check, where, "is of another type");
                return next;
        }
        declaration = find(check->definition, "type", name);
        if (declaration == NULL)
                fail(check, where, "is of a type that the definition lacks");
        else if (judge)
                check_type(check, declaration, value, true, where, depth + 1);
        return next;
}

static const char *check_type(struct check *check, const char *p, json_object *value, bool judge,
                              const char *where, int depth)
{
        char word[WORD_MAX];
        const char *end;

        p = skip(p);
        if (depth > DEPTH_MAX) {
                fail(check, where, "is nested too deeply");
                return p + strlen(p);
        }
        if (*p == '?') {
                p = skip(p + 1);
                judge = judge && value != NULL;
        }
        if (strncmp(p, "[]", 2) == 0) {
                end = check_type(check, p + 2, NULL, false, where, depth + 1);
                if (judge && !json_object_is_type(value, json_type_array)) {
                        fail(check, where, "is not an array");
                } else if (judge) {
                        for (size_t i = 0; i < json_object_array_length(value); i++)
                                check_type(check, p + 2, json_object_array_get_idx(value, i), true,
                                           where, depth + 1);
                }
                return end;
        }
        if (*p != '(')
                return check_named(check, p, value, judge, where, depth);
        end = skip(word_at(p + 1, word));
        if (*end == ':' || word[0] == '\0')
                return check_struct(check, p + 1, value, judge, where, depth);
        return check_enum(check, p + 1, value, judge, where);
}

int varlink_definition_check(const char *definition, enum varlink_part part, const char *name,
                             json_object *parameters, char *why, size_t size)
{
        struct check check = {definition, why, size, false};
        const char *p = find(definition, part == VARLINK_ERROR ? "error" : "method", name);

        if (p == NULL) {
                fail(&check, name, "is not declared");
                return 1;
        }
        if (part == VARLINK_OUTPUT) {
                p = skip(check_type(&check, p, NULL, false, name, 0));
                if (strncmp(p, "->", 2) != 0) {
                        fail(&check, name, "returns nothing in the definition");
                        return 1;
                }
                p += 2;
        }
        check_type(&check, p, parameters, true, name, 0);
        return check.failed;
}
