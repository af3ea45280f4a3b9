/* SPDX-License-Identifier: Apache-2.0 */
/* The control calls behind switch/device.py. Python checks names, widths and duplicates and keeps the
 * list of entries; here is what packets see. Each call takes the device's lock; those that change tables
 * must not run at once (device.py sees to it), for they look at a table before they take the lock, so that
 * packets wait for a few steps only. Results: 0 or a pointer where it worked, -1 or NULL where there was no
 * memory. */
#ifndef P4REDUCE_CONTROL_H
#define P4REDUCE_CONTROL_H

#define SW_RUNTIME
#include "runtime.h"

sw *sw_new(uint32_t drop_port, uint64_t seed);
void sw_free(sw *s);
int sw_reset(sw *s);
void sw_lock(sw *s);
void sw_unlock(sw *s);
void sw_set_time(sw *s, uint64_t us);

sw_entry *sw_table_insert(sw *s, uint32_t table, uint64_t handle, const uint64_t *key, const uint64_t *mask,
                          const uint64_t *ranges, int64_t priority, uint32_t action, const uint64_t *args,
                          uint32_t nargs);
int sw_table_modify(sw *s, uint32_t table, sw_entry *e, uint32_t action, const uint64_t *args, uint32_t nargs);
void sw_table_delete(sw *s, uint32_t table, sw_entry *e);
int sw_table_default(sw *s, uint32_t table, int64_t action, const uint64_t *args, uint32_t nargs);
void sw_entry_counter(sw *s, sw_entry *e, uint64_t *packets, uint64_t *bytes, int write);
uint64_t sw_entry_idle_us(sw *s, sw_entry *e);
int sw_entry_meter(sw *s, sw_entry *e, double *rates, uint64_t *bursts, int mode);
/* The bearer of the direct resources of a table's default entry. */
sw_entry *sw_table_miss(sw *s, uint32_t table);
/* Packets and bytes of green, yellow, red. */
void sw_entry_colors(sw *s, sw_entry *e, uint64_t *values, int write);
void sw_meter_colors(sw *s, uint32_t array, uint64_t index, uint64_t *values, int write);
int sw_vset_set(sw *s, uint32_t set, const uint64_t *members, uint32_t n);

sw_member *sw_member_new(sw *s, uint32_t action, const uint64_t *args, uint32_t nargs);
int sw_member_modify(sw *s, sw_member *m, uint32_t action, const uint64_t *args, uint32_t nargs);
void sw_member_delete(sw *s, sw_member *m);
sw_choice *sw_choice_new(sw *s);
int sw_choice_set(sw *s, sw_choice *c, sw_member *const *members, uint32_t n);
void sw_choice_delete(sw *s, sw_choice *c);

void sw_counter_access(sw *s, uint32_t array, uint64_t index, uint64_t n, uint64_t *values, int write);
int sw_meter_access(sw *s, uint32_t array, uint64_t index, double *rates, uint64_t *bursts, int mode);
void sw_register_access(sw *s, uint32_t group, uint32_t lane, uint64_t index, uint64_t n, uint8_t *values, int write);

int sw_multicast_set(sw *s, uint32_t group, const sw_replica *r, uint32_t n, int present);
int sw_session_set(sw *s, uint32_t session, const sw_replica *r, uint32_t n, uint32_t truncate, int present);

uint32_t sw_digest_take(sw *s, uint32_t *list, uint64_t *value, uint32_t words);
int sw_log_take(sw *s, char *line);
int sw_trace_start(sw *s);
size_t sw_trace_take(sw *s, uint64_t *words, uint64_t *lost);
void sw_stats_read(sw *s, sw_stats *out);

/* Batches; see batches.py. What leaves goes into rows that the caller gives, one packet each, as long as they hold
 * it; from the first that does not fit on it is packed into `data`, which grows. */
typedef struct sw_result {
    uint8_t *rows;
    size_t rows_bytes, stride, in_rows; /* in_rows: so many packets are there */
    uint32_t *ports, *lengths;          /* of all packets */
    uint8_t *data;
    size_t n, room, bytes, bytes_room;
    uint32_t longest, failed;           /* failed: 1 where there was no memory */
} sw_result;
#define SW_BEYOND_ROW 2u /* failed: a length beyond its row, and nothing was processed */
void sw_result_free(sw_result *r);
void sw_run_rows(sw *s, size_t n, const uint16_t *ports, const uint32_t *lengths, const uint8_t *data, size_t stride,
                 sw_result *r);
void sw_run_packets(sw *s, size_t n, const uint32_t *ports, const uint32_t *lengths, const uint8_t *data, sw_result *r);
/* Ports and lengths of all packets. */
void sw_result_heads(const sw_result *r, uint16_t *ports, uint32_t *lengths);
/* All packets as rows of another stride. */
void sw_result_rows(const sw_result *r, uint8_t *data, size_t stride);

#endif
