/* Functions with every behaviour that a caller must handle. */
#include "place.h"

#include <dayfly_function.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECKED(name)                                                                                                  \
    DFLY_EXPORT int32_t name(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,         \
                           size_t *out_len)
#define UNUSED (void)context, (void)in, (void)in_len, (void)out, (void)out_capacity, (void)out_len

CHECKED(echo) {
    if (in_len > out_capacity && (out = dfly_grow_output(context, 0, in_len)) == NULL) {
        return dfly_set_error(context, "no memory");
    }
    if (in_len > 0) {
        memcpy(out, in, in_len);
    }
    *out_len = in_len;
    return 0;
}
CHECKED(complain) {
    UNUSED;
    return dfly_set_error(context, "I would rather not");
}
CHECKED(number) {
    UNUSED;
    return 42;
}
CHECKED(boast) {
    UNUSED;
    *out_len = out_capacity + 1;
    return 0;
}
CHECKED(crash) {
    UNUSED;
    volatile int *volatile nowhere = NULL;
    *nowhere = 1;
    return 0;
}
CHECKED(leave) {
    UNUSED;
    exit(3);
}
CHECKED(forever) {
    UNUSED;
    for (;;) {
        pause();
    }
}
CHECKED(left) {
    UNUSED;
    uint64_t us = dfly_time_left_us(context);
    memcpy(out, &us, sizeof us);
    *out_len = sizeof us;
    return 0;
}
CHECKED(pid) {
    UNUSED;
    int32_t own = (int32_t)getpid();
    memcpy(out, &own, sizeof own);
    *out_len = sizeof own;
    return 0;
}
/* Returns the places of its input and of its output, then its input. */
CHECKED(where) {
    struct place places[2] = {place_of(in), {0, 0}};
    const size_t length = sizeof places + in_len;
    if (length > out_capacity && (out = dfly_grow_output(context, 0, length)) == NULL) {
        return dfly_set_error(context, "no memory");
    }
    places[1] = place_of(out);
    memcpy(out, places, sizeof places);
    if (in_len > 0) {
        memcpy((char *)out + sizeof places, in, in_len);
    }
    *out_len = length;
    return 0;
}
/* Returns as many bytes as its input, a number, states, without growing its output. */
CHECKED(fill) {
    uint64_t length = 0;
    if (in_len < sizeof length) {
        return dfly_set_error(context, "no number");
    }
    memcpy(&length, in, sizeof length);
    memset(out, 9, length < out_capacity ? length : out_capacity);
    *out_len = length;
    return 0;
}
CHECKED(capacity) {
    UNUSED;
    const uint64_t bytes = out_capacity;
    memcpy(out, &bytes, sizeof bytes);
    *out_len = sizeof bytes;
    return 0;
}
/* Counts the calls of this worker. */
CHECKED(count) {
    static uint64_t calls;
    UNUSED;
    calls++;
    memcpy(out, &calls, sizeof calls);
    *out_len = sizeof calls;
    return 0;
}
/* Ends its worker if it can make the file that its input names, and otherwise returns its input. */
CHECKED(crash_once) {
    if (in_len == 0 || ((const char *)in)[in_len - 1] != 0) {
        return dfly_set_error(context, "no name of a file");
    }
    if (open((const char *)in, O_CREAT | O_EXCL | O_WRONLY, 0600) >= 0) {
        abort();
    }
    if (in_len > out_capacity) {
        return dfly_set_error(context, "no room");
    }
    memcpy(out, in, in_len);
    *out_len = in_len;
    return 0;
}
DFLY_EXPORT uint32_t overrun(void *in, uint32_t size, void *out) {
    (void)in, (void)size;
    memset(out, 7, 64u << 20);
    return 1;
}
DFLY_EXPORT uint32_t plain_boast(void *in, uint32_t size, void *out) {
    (void)in, (void)size, (void)out;
    return 4294967295u;
}
