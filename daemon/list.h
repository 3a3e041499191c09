/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive doubly linked list of structs. A node that is in no list is linked to itself, so
 * unlinking is idempotent.
 */
#ifndef GPUMEMD_LIST_H
#define GPUMEMD_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
        struct list *next, *previous;
};

static inline void list_init(struct list *list)
{
        list->next = list->previous = list;
}

static inline bool list_is_empty(const struct list *list)
{
        return list->next == list;
}

static inline void list_append(struct list *list, struct list *node)
{
        node->previous = list->previous;
        node->next = list;
        list->previous->next = node;
        list->previous = node;
}

static inline void list_unlink(struct list *node)
{
        node->previous->next = node->next;
        node->next->previous = node->previous;
        list_init(node);
}

#define list_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

#define list_for_each(node, head)                                                                  \
        for (struct list *node = (head)->next; node != (head); node = node->next)

/* The body may unlink `node`, but no other. */
#define list_for_each_safe(node, head)                                                             \
        for (struct list *node = (head)->next, *node##_next = node->next; node != (head);          \
             node = node##_next, node##_next = node->next)

#endif
