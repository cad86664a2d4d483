/* SPDX-License-Identifier: Apache-2.0 */
/* Intrusive doubly linked list. A node is in one list or in none; removing an
 * unlinked node asserts. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

struct ps_list_node {
    struct ps_list_node *prev;
    struct ps_list_node *next;
};

struct ps_list {
    struct ps_list_node head;
};

#define PS_CONTAINER(ptr, type, member)                                        \
    ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void ps_list_init(struct ps_list *l)
{
    l->head.prev = &l->head;
    l->head.next = &l->head;
}

static inline bool ps_list_empty(const struct ps_list *l)
{
    return l->head.next == &l->head;
}

static inline bool ps_list_linked(const struct ps_list_node *n)
{
    return n->next != NULL;
}

static inline void ps_list_push_back(struct ps_list *l, struct ps_list_node *n)
{
    assert(n->next == NULL && n->prev == NULL);
    n->prev = l->head.prev;
    n->next = &l->head;
    l->head.prev->next = n;
    l->head.prev = n;
}

static inline void ps_list_push_front(struct ps_list *l, struct ps_list_node *n)
{
    assert(n->next == NULL && n->prev == NULL);
    n->next = l->head.next;
    n->prev = &l->head;
    l->head.next->prev = n;
    l->head.next = n;
}

static inline void ps_list_insert(struct ps_list_node *before,
                                  struct ps_list_node *n)
{
    assert(before->next != NULL && n->next == NULL && n->prev == NULL);
    n->prev = before->prev;
    n->next = before;
    before->prev->next = n;
    before->prev = n;
}

static inline void ps_list_remove(struct ps_list_node *n)
{
    assert(n->next != NULL && n->prev != NULL);
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->next = NULL;
    n->prev = NULL;
}

/* Removes a node that may be in no list. */
static inline void ps_list_unlink(struct ps_list_node *n)
{
    if (ps_list_linked(n)) {
        ps_list_remove(n);
    }
}

static inline struct ps_list_node *ps_list_first(const struct ps_list *l)
{
    return ps_list_empty(l) ? NULL : l->head.next;
}

static inline struct ps_list_node *ps_list_next(const struct ps_list *l,
                                                const struct ps_list_node *n)
{
    return n->next == &l->head ? NULL : n->next;
}

/* The same, from the end. */
static inline struct ps_list_node *ps_list_last(const struct ps_list *l)
{
    return ps_list_empty(l) ? NULL : l->head.prev;
}

static inline struct ps_list_node *ps_list_prev(const struct ps_list *l,
                                                const struct ps_list_node *n)
{
    return n->prev == &l->head ? NULL : n->prev;
}

/* Moves all nodes of `from` to the end of `to`. */
static inline void ps_list_move_all(struct ps_list *from, struct ps_list *to)
{
    if (ps_list_empty(from)) {
        return;
    }
    to->head.prev->next = from->head.next;
    from->head.next->prev = to->head.prev;
    from->head.prev->next = &to->head;
    to->head.prev = from->head.prev;
    ps_list_init(from);
}

/* Removes and returns the first node; NULL: empty. For loops whose body changes
 * the list. */
static inline struct ps_list_node *ps_list_pop(struct ps_list *l)
{
    struct ps_list_node *n = ps_list_first(l);

    if (n != NULL) {
        ps_list_remove(n);
    }
    return n;
}

/* The body must not change the list. */
#define PS_LIST_EACH(node, list)                                               \
    for (struct ps_list_node *node = ps_list_first(list); node != NULL;        \
         node = ps_list_next(list, node))

static inline void *ps_list_entry(struct ps_list_node *n, size_t offset)
{
    return n == NULL ? NULL : (char *)n - offset;
}

/* The same with the structs that have the nodes as their `member`; NULL: there
 * is none. */
#define PS_LIST_FIRST(type, member, list)                                      \
    ((type *)ps_list_entry(ps_list_first(list), offsetof(type, member)))
#define PS_LIST_NEXT(type, entry, member, list)                                \
    ((type *)ps_list_entry(ps_list_next(list, &(entry)->member),               \
                           offsetof(type, member)))
#define PS_LIST_POP(type, member, list)                                        \
    ((type *)ps_list_entry(ps_list_pop(list), offsetof(type, member)))
#define PS_LIST_EACH_OF(type, entry, member, list)                             \
    for (type *entry = PS_LIST_FIRST(type, member, list); entry != NULL;       \
         entry = PS_LIST_NEXT(type, entry, member, list))

/* The body may remove the entry, and change nothing else of the list. */
#define PS_LIST_EACH_SAFE(type, entry, member, list)                           \
    for (type *entry = PS_LIST_FIRST(type, member, list),                      \
              *entry##_next = NULL;                                            \
         entry != NULL &&                                                      \
         (entry##_next = PS_LIST_NEXT(type, entry, member, list), true);       \
         entry = entry##_next)
