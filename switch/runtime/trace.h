/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to packets, for people: only programs that switch/emit.py makes with SW_TRACED report it. */
#ifndef P4REDUCE_TRACE_H
#define P4REDUCE_TRACE_H

#include <stddef.h>
#include <stdint.h>

struct sw;

/* As switch.trace.Kind numbers them, with the meaning of a and b, and the words that follow. */
enum {
    SW_T_RECEIVED,     /* port, length; the packet's number */
    SW_T_INGRESS,      /* instance type */
    SW_T_STATE,        /* parser state */
    SW_T_EXTRACT,      /* header, bytes */
    SW_T_PARSER_ERROR, /* error */
    SW_T_CHECKSUM,     /* checksum, whether it is right */
    SW_T_TABLE,        /* table, the entry's handle or 0; the packet's key */
    SW_T_ACTION,       /* action; its arguments */
    SW_T_CONDITION,    /* node, outcome */
    SW_T_MARK,         /* action, position of the primitive that marks to drop */
    SW_T_CLONE,        /* session, copies */
    SW_T_RESUBMIT,
    SW_T_RECIRCULATE,
    SW_T_MULTICAST, /* group, copies */
    SW_T_DIGEST,    /* list */
    SW_T_EGRESS,    /* port, replication id; instance type */
    SW_T_SENT,      /* port, length */
    SW_T_FAULT,     /* addresses of two strings: what and where */
    SW_T_DROPPED    /* why */
};

/* As switch.trace.REASONS. */
enum { SW_D_INGRESS, SW_D_EGRESS, SW_D_FAULT, SW_D_NO_GROUP, SW_D_PRIORITY, SW_D_TOO_LONG, SW_D_BUDGET };

#ifdef SW_TRACED
#define SW_TRACE(s, kind, a, b) sw_trace(s, SW_T_##kind, a, b, NULL, 0)
#define SW_TRACE_WORDS(s, kind, a, b, words, n) sw_trace(s, SW_T_##kind, a, b, words, n)
#else
#define SW_TRACE(s, kind, a, b) ((void)0)
#define SW_TRACE_WORDS(s, kind, a, b, words, n) ((void)0)
#endif

#if defined SW_TRACED || defined SW_RUNTIME
void sw_trace(struct sw *s, uint32_t kind, uint64_t a, uint64_t b, const uint64_t *words, uint32_t n);
#endif

#endif
