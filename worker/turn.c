/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's usual turn in C: send what may be sent, take the results that come, and again.
 *
 * `turn_poll` and `turn_results` do what Engine.poll and Engine.on_results do where nothing out of the ordinary is
 * under way: no loss to repair, no epoch to change, nothing held back. Where that ends they say so, and Python goes
 * on from the same numbers. They do no I/O and ask no clock; `turn` does both around them.
 */
#define _GNU_SOURCE
#include "kernel.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define AT_ONCE 64 /* most messages a system call */

/* Why C gives the turn back; bits. */
enum {
    DUE = 1,       /* a deadline has passed: of a packet, or of an operation */
    HELD = 2,      /* the exponent of the next values is not known */
    COMPLETE = 4,  /* the first operation has all results */
    DIFFERENT = 8, /* the ranks' calls differ */
    UNSENT = 16,   /* the kernel did not take all: see `unsent` */
    UNREAD = 32,   /* the kernel reports an error */
    TIME = 64,     /* the time is up, or somebody asks for the engine */
};

/* worker/turn.py */
struct turn {
    struct ring *ring;
    struct timer *timer;
    struct recovery *recovery;
    struct flow *flow;
    struct operation *running, *unfilled; /* from the first that is not done, that is not filled */
    int64_t unsent;                       /* chunks from here to `next` are still to be sent */
    const uint8_t **picked;               /* room for all rows of the ring, and so have offsets */
    int64_t *offsets;
    int32_t wanted; /* whether somebody waits for the engine; set by other threads */
};

/* worker/udp.py */
struct socket {
    struct mmsghdr *out, *in;
    struct iovec *out_runs, *in_runs;
    size_t messages, segments;
    int32_t fd, wake;
};

static size_t row_of(const struct ring *r, int64_t offset) { return (r->base + (size_t)offset) % (2 * r->window); }

/* ---- worker/timer.py */

static void sample(struct timer *t, double seconds)
{
    double least[SAMPLES / 8 + 1];
    t->samples[t->sampled++ % SAMPLES] = seconds;
    size_t count = MIN(t->sampled, SAMPLES), at = count / 8, n = 0;
    for (size_t i = 0; i < count; i++) {
        double v = t->samples[i];
        if (n > at && v >= least[at])
            continue;
        size_t j = n > at ? at : n++;
        for (; j > 0 && least[j - 1] > v; j--)
            least[j] = least[j - 1];
        least[j] = v;
    }
    t->quickest = least[0];
    t->base = MIN(CAP, MAX(FLOOR, least[0] + 4 * least[at]));
    t->backoff = 1.0;
}

static double patience(const struct timer *t) { return MIN(CAP, t->base * MIN(MOST_BACKOFF, t->backoff)); }

/* ---- worker/recovery.py */

static void hasten(struct turn *t, double now)
{
    struct ring *r = t->ring;
    struct recovery *c = t->recovery;
    double trip = isnan(t->timer->quickest) ? 0.0 : t->timer->quickest;
    for (int64_t g = t->flow->first; g < t->flow->next; g++) {
        size_t row = row_of(r, g);
        if (!(r->deadline[row] < PARKED) || !(r->sent_at[row] < c->overtaken))
            continue;
        double at = now + (r->tries[row] > 1 ? 2 * trip : trip / 2);
        r->deadline[row] = MIN(r->deadline[row], at);
        c->next_check = MIN(c->next_check, at);
    }
}

/* Whether a deadline has passed; if not, sets `next_check` to the next. */
static int some_due(struct turn *t, double now)
{
    double next = INFINITY;
    for (int64_t g = t->flow->first; g < t->flow->next; g++)
        next = MIN(next, t->ring->deadline[row_of(t->ring, g)]);
    if (next <= now)
        return 1;
    t->recovery->next_check = next;
    return 0;
}

static void recover(struct turn *t, const struct taken *taken, double now)
{
    struct ring *r = t->ring;
    struct recovery *c = t->recovery;
    if (taken->in_order) {
        sample(t->timer, MAX(0.0, now - taken->sent_at));
        c->overtaken = MAX(c->overtaken, taken->sent_at);
    }
    if (!isnan(c->probed_at)) {
        c->overtaken = MAX(c->overtaken, c->probed_at);
        c->probed_at = NAN;
        t->timer->backoff = 1.0;
        c->next_check = now + 2 * t->timer->base;
        for (int64_t g = t->flow->first; g < t->flow->next; g++)
            if (r->deadline[row_of(r, g)] < PARKED)
                r->deadline[row_of(r, g)] = c->next_check;
    } else if (taken->first < taken->reached) {
        hasten(t, now);
    }
    double growth = c->window < c->threshold ? (double)taken->count : (double)taken->count / c->window;
    c->window = MIN(c->limit, c->window + growth);
}

/* ---- worker/engine.py */

static void clock_on(struct flow *f, double now)
{
    double passed = now - f->clocked;
    f->clocked = now;
    f->seconds += passed;
    f->packet_seconds += passed * (double)f->in_flight;
    if (f->limited)
        f->limited_seconds += passed;
}

static void count_trip(struct flow *f, double seconds)
{
    double at = seconds > SHORTEST ? BINS_AN_OCTAVE * log2(seconds / SHORTEST) : 0.0;
    f->round_trips[at < BINS_AN_OCTAVE * OCTAVES - 1 ? (int)at : BINS_AN_OCTAVE * OCTAVES - 1]++;
}

/* The end of what can be filled or would be held back. */
static int64_t fillable(const struct turn *t)
{
    const struct flow *f = t->flow;
    int64_t end = f->first;
    for (const struct operation *o = t->unfilled; o; o = o->next) {
        int64_t length = o->end - o->start, ahead = (int64_t)o->stream->ahead, answered, headers;
        answered = MAX(f->first, f->highest + 1) - o->start;
        headers = (int64_t)o->stream->headers;
        end = o->start + (ahead ? MIN(length, MAX(answered, headers) + ahead) : length);
        int is_short = ahead && ahead >= (int64_t)o->stream->chunks;
        if (!o->next || (end < o->end && !is_short))
            break;
        end = o->end;
        if (end >= f->next + (int64_t)t->ring->window)
            break;
    }
    return end;
}

static int64_t sendable(const struct turn *t)
{
    const struct flow *f = t->flow;
    int64_t budget = MAX(1, (int64_t)t->recovery->window) - f->in_flight;
    if (budget <= 0 || !t->unfilled)
        return 0;
    int64_t end = MIN(MIN(fillable(t), f->first + (int64_t)t->ring->window), f->next + budget);
    int64_t count = MAX(0, end - f->next);
    int under_way = 2 * (double)f->in_flight >= t->recovery->window;
    return under_way && SHARE * (double)count < t->recovery->window && end < f->end ? 0 : count;
}

static void fill_headers(const struct operation *o, uint8_t *packets, int64_t at, int64_t k)
{
    int64_t elements = (int64_t)o->stream->elements;
    for (int64_t i = 0; i < k && at + i < (int64_t)o->stream->headers; i++)
        packets[(size_t)i * stride_of(o->stream) + KIND] |= FLAG;
    for (int64_t j = 0; j < CALL_VALUES; j++) {
        int64_t value = CALL_VALUES * (int64_t)o->rank + j, i = value / elements - at;
        if (i >= 0 && i < k) {
            uint32_t v = __builtin_bswap32((uint32_t)o->own_call[j]);
            memcpy(packets + (size_t)i * stride_of(o->stream) + VALUES + 4 * (value % elements), &v, 4);
        }
    }
}

/* Whether the next `count` packets need an exponent that is not known. */
static int some_unknown(const struct turn *t, int64_t count)
{
    int64_t from = t->flow->next, end = from + count;
    for (const struct operation *o = t->unfilled; from < end; from = o->end, o = o->next) {
        const struct stream *s = o->stream;
        int64_t begin = o->start + (int64_t)(s->headers + s->ahead);
        if (s->ahead)
            for (int64_t g = MAX(from, begin); g < MIN(end, o->end); g++)
                if (s->unsendable[g - begin] == UNKNOWN)
                    return 1;
    }
    return 0;
}

/* Fill `count` packets from `next` on. */
static void advance(struct turn *t, int64_t count, double now)
{
    struct ring *r = t->ring;
    struct flow *f = t->flow;
    double deadline = now + patience(t->timer);
    if (count)
        t->recovery->next_check = MIN(t->recovery->next_check, deadline);
    while (count > 0) {
        struct operation *o = t->unfilled;
        size_t row = row_of(r, f->next);
        int64_t at = f->next - o->start, k = MIN(MIN(count, (int64_t)(2 * r->window - row)), o->end - f->next);
        uint8_t *packets = r->packets + row * r->stride;
        fill(o->stream, o->source, packets, (uint64_t)at, (size_t)k);
        if (at < (int64_t)o->stream->headers)
            fill_headers(o, packets, at, k);
        for (int64_t i = 0; i < k; i++) {
            r->offset[row + (size_t)i] = f->next + i;
            r->sent_at[row + (size_t)i] = now + STEP * (double)i;
            r->deadline[row + (size_t)i] = deadline;
            r->tries[row + (size_t)i] = 1;
            r->held[row + (size_t)i] = 0;
        }
        f->next += k;
        f->in_flight += k;
        f->sent += k;
        count -= k;
        if (f->next == o->end)
            t->unfilled = o->next;
    }
}

/* Fill what may be sent now: chunks `unsent`..`next` - 1 of the ring. */
int turn_poll(struct turn *t, double now)
{
    struct flow *f = t->flow;
    clock_on(f, now);
    t->unsent = f->next;
    if (now >= f->stall_at || (now >= t->recovery->next_check && some_due(t, now)))
        return DUE;
    int64_t count = MIN(sendable(t), BURST);
    if (some_unknown(t, count))
        return HELD;
    advance(t, count, now);
    f->limited = f->next < f->end;
    return 0;
}

static void deliver_headers(struct operation *o, const uint8_t *packet, int64_t at)
{
    size_t elements = o->stream->elements;
    for (size_t j = 0; j < elements; j++) {
        uint32_t v;
        memcpy(&v, packet + VALUES + 4 * j, 4);
        o->calls[(size_t)at * elements + j] = (int32_t)__builtin_bswap32(v);
    }
    o->headers_missing--;
}

static int calls_differ(const struct operation *o)
{
    for (uint32_t rank = 0; rank < o->stream->workers; rank++)
        if (memcmp(o->calls + CALL_VALUES * rank, o->own_call, CALL_VALUES * sizeof(int32_t)) != 0)
            return 1;
    return 0;
}

static int deliver_to(struct operation *o, const uint8_t **picked, int64_t *offsets, size_t count)
{
    int why = 0;
    size_t begin = 0;
    o->lacking -= (int64_t)count;
    for (size_t i = 0; i < count; i++)
        offsets[i] -= o->start;
    for (size_t i = 0; o->headers_missing && i < count; i++) {
        if (offsets[i] >= (int64_t)o->stream->headers)
            continue;
        deliver_run(o->stream, o->target, picked + begin, offsets + begin, i - begin);
        begin = i + 1;
        deliver_headers(o, picked[i], offsets[i]);
        if (!o->headers_missing && calls_differ(o))
            why = DIFFERENT;
    }
    deliver_run(o->stream, o->target, picked + begin, offsets + begin, count - begin);
    return why;
}

static int results_end(struct turn *t, struct taken *taken, double now)
{
    struct flow *f = t->flow;
    take_end(t->ring, f->next, taken);
    if (taken->in_order)
        count_trip(f, now - taken->sent_at);
    recover(t, taken, now);
    f->highest = taken->reached;
    f->in_flight -= taken->count;
    f->received += taken->count;
    f->progress_at = now;
    int why = 0;
    struct operation *o = t->running;
    for (size_t i = 0, n = (size_t)taken->count; i < n;) {
        size_t begin = i;
        if (t->offsets[i] < o->start)
            o = t->running;
        while (t->offsets[i] >= o->end)
            o = o->next;
        while (i < n && t->offsets[i] >= o->start && t->offsets[i] < o->end)
            i++;
        why |= deliver_to(o, t->picked + begin, t->offsets + begin, i - begin);
    }
    f->first = taken->first;
    return why | (t->running->lacking ? 0 : COMPLETE);
}

/* Take runs of received packets as results. */
static int results(struct turn *t, const struct iovec *runs, size_t count, double now)
{
    struct flow *f = t->flow;
    struct taken taken = {.highest = f->highest, .reached = f->highest, .first = f->first};
    size_t all = 0;
    clock_on(f, now);
    for (size_t i = 0; i < count; i++) {
        size_t m = runs[i].iov_len / t->ring->stride;
        all += m;
        take_run(t->ring, runs[i].iov_base, m, t->picked, t->offsets, &taken);
    }
    f->strays += taken.strays;
    f->duplicates += (int64_t)all - taken.strays - taken.count;
    return taken.count ? results_end(t, &taken, now) : 0;
}

int turn_results(struct turn *t, uint8_t *packets, size_t m, double now)
{
    struct iovec run = {packets, m * t->ring->stride};
    return m ? results(t, &run, 1, now) : 0;
}

/* ---- worker/udp.py and worker/driver.py */

static double clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Send chunks `unsent`..`next` - 1; false where the kernel took less, which Python deals with. */
static int send_all(struct turn *t, struct socket *s)
{
    struct ring *r = t->ring;
    while (t->unsent < t->flow->next) {
        size_t count = 0;
        int64_t from = t->unsent, end = t->flow->next, sizes[AT_ONCE];
        while (from < end && count < MIN(s->messages, AT_ONCE)) {
            size_t row = row_of(r, from);
            int64_t k = MIN(MIN(end - from, (int64_t)s->segments), (int64_t)(2 * r->window - row));
            s->out_runs[count].iov_base = r->packets + row * r->stride;
            s->out_runs[count].iov_len = (size_t)k * r->stride;
            sizes[count++] = k;
            from += k;
        }
        int sent = sendmmsg(s->fd, s->out, (unsigned)count, MSG_DONTWAIT);
        if (sent <= 0)
            return 0;
        for (int i = 0; i < sent; i++)
            t->unsent += sizes[i];
    }
    return 1;
}

static void pause_until(const struct socket *s, short events, double until)
{
    double left = until - clock_now();
    left = MAX(0.0, left);
    struct timespec limit = {(time_t)left, (long)(1e9 * (left - floor(left)))};
    struct pollfd waits[2] = {{.fd = s->wake, .events = POLLIN}, {.fd = s->fd, .events = events}};
    ppoll(waits, events ? 2 : 1, &limit, NULL);
}

/* Carry on until something is out of the ordinary, or `until` (CLOCK_MONOTONIC). Says why it ended. Sends and
 * receives once at least, so that who only looks in now and then gets on, too. */
int turn(struct turn *t, struct socket *s, double until)
{
    struct flow *f = t->flow;
    for (int again = 0;; again = 1) {
        double now = clock_now();
        if ((again && now >= until) || __atomic_load_n(&t->wanted, __ATOMIC_RELAXED))
            return TIME;
        int why = turn_poll(t, now);
        if (why)
            return why;
        if (t->unsent < f->next && !send_all(t, s))
            return UNSENT;
        double wake = MIN(until, MIN(f->stall_at, t->recovery->next_check));
        double lull = LULL * (isnan(t->timer->quickest) ? 0.0 : t->timer->quickest);
        if (lull >= LEAST_LULL && 2 * (double)f->in_flight >= t->recovery->window && !sendable(t))
            pause_until(s, 0, MIN(wake, now + lull));
        int count = recvmmsg(s->fd, s->in, (unsigned)MIN(s->messages, AT_ONCE), MSG_DONTWAIT, NULL);
        if (count < 0 && errno == EAGAIN) {
            if (sendable(t))
                continue;
            pause_until(s, POLLIN, wake);
            count = recvmmsg(s->fd, s->in, (unsigned)MIN(s->messages, AT_ONCE), MSG_DONTWAIT, NULL);
        }
        if (count < 0 && errno != EAGAIN)
            return UNREAD;
        if (count <= 0)
            continue;
        struct iovec runs[AT_ONCE];
        for (int i = 0; i < count; i++)
            runs[i] = (struct iovec){s->in_runs[i].iov_base, s->in[i].msg_len};
        if ((why = results(t, runs, (size_t)count, clock_now())))
            return why;
    }
}
