/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/gpumemctl/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tools/gpumemctl/text.h"

void ctl_table_init(struct ctl_table *table, const struct ctl_column *columns)
{
        *table = (struct ctl_table){.columns = columns};
        while (table->column_count < CTL_TABLE_COLUMNS_MAX &&
               columns[table->column_count].title != NULL)
                table->column_count++;
}

void ctl_table_deinit(struct ctl_table *table)
{
        for (size_t i = 0; i < table->cell_count; i++)
                free(table->cells[i]);
        free(table->cells);
        table->cells = NULL;
        table->cell_count = table->cell_capacity = 0;
}

void ctl_table_add(struct ctl_table *table, const char *format, ...)
{
        char text[512], printable[512];
        va_list arguments;
        char *cell;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        cell = strdup(ctl_printable(printable, sizeof(printable), text));
        if (cell != NULL && table->cell_count == table->cell_capacity) {
                size_t capacity = table->cell_capacity > 0 ? 2 * table->cell_capacity : 64;
                char **cells = realloc(table->cells, capacity * sizeof(*cells));

                if (cells == NULL) {
                        free(cell);
                        cell = NULL;
                } else {
                        table->cells = cells;
                        table->cell_capacity = capacity;
                }
        }
        if (cell == NULL) {
                table->failed = true;
                return;
        }
        table->cells[table->cell_count++] = cell;
}

/* One line. @row has @count cells. */
static void print_row(const struct ctl_table *table, const char *const *row, size_t count,
                      const size_t *widths, FILE *out, int indent)
{
        size_t pending = (size_t)indent; /* spaces owed before the next text */

        for (size_t i = 0; i < count; i++) {
                size_t width = ctl_width(row[i]);
                size_t padding = widths[i] > width ? widths[i] - width : 0;

                if (table->columns[i].right)
                        pending += padding;
                if (width > 0) {
                        fprintf(out, "%*s%s", (int)pending, "", row[i]);
                        pending = 0;
                }
                pending += (table->columns[i].right ? 0 : padding) + 2;
        }
        fputc('\n', out);
}

void ctl_table_print(const struct ctl_table *table, FILE *out, int indent)
{
        const char *row[CTL_TABLE_COLUMNS_MAX];
        size_t widths[CTL_TABLE_COLUMNS_MAX] = {0};
        size_t columns = table->column_count;
        bool titled = false;

        if (columns == 0)
                return;
        for (size_t i = 0; i < columns; i++) {
                row[i] = table->columns[i].title;
                widths[i] = ctl_width(row[i]);
                titled = titled || row[i][0] != '\0';
        }
        for (size_t i = 0; i < table->cell_count; i++) {
                size_t width = ctl_width(table->cells[i]);

                if (width > widths[i % columns])
                        widths[i % columns] = width;
        }
        if (titled)
                print_row(table, row, columns, widths, out, indent);
        for (size_t i = 0; i < table->cell_count; i += columns) {
                size_t count = table->cell_count - i < columns ? table->cell_count - i : columns;

                for (size_t k = 0; k < count; k++)
                        row[k] = table->cells[i + k];
                print_row(table, row, count, widths, out, indent);
        }
}
