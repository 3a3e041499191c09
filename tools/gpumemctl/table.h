/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of text in aligned columns, two spaces apart. Filled cell by cell, printed once complete,
 * so that an answer that turns out wrong half-way leaves nothing half-printed.
 */
#ifndef GPUMEMCTL_TABLE_H
#define GPUMEMCTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define CTL_TABLE_COLUMNS_MAX 16

struct ctl_column {
        const char *title; /* NULL ends the list; "" everywhere: no line of titles */
        bool right;        /* numbers */
};

struct ctl_table {
        const struct ctl_column *columns;
        size_t column_count;
        char **cells;
        size_t cell_count, cell_capacity;
        bool failed; /* out of memory at some cell */
};

/* @columns is borrowed and ends with a NULL title; at most CTL_TABLE_COLUMNS_MAX. */
void ctl_table_init(struct ctl_table *table, const struct ctl_column *columns);
void ctl_table_deinit(struct ctl_table *table);

/* The next cell, row by row. The text is made printable. */
void ctl_table_add(struct ctl_table *table, const char *format, ...)
        __attribute__((format(printf, 2, 3)));

/* Each line starts with @indent spaces and ends without spaces. A last row that is not full is
 * printed as far as it goes. */
void ctl_table_print(const struct ctl_table *table, FILE *out, int indent);

#endif
