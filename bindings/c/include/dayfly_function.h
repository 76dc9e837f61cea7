/* For the functions that run on workers: their two forms, and what a checked one may ask for.
 *
 * Compile as a shared library, which the client sends to the node:
 *     cc -O3 -shared -fPIC -I<include> -o functions.so functions.c
 * Nothing is linked: what a function asks for it reaches through its context.
 *
 * A worker is one process that runs one function at a time, so functions need no locks of their own. Threads, OpenMP
 * and GPU runtimes are started by the first call that needs them, never by a constructor of the library. */
#ifndef DAYFLY_FUNCTION_H
#define DAYFLY_FUNCTION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define DFLY_EXPORT extern "C" __attribute__((visibility("default")))
extern "C" {
#else
#define DFLY_EXPORT __attribute__((visibility("default")))
#endif

/* The plain form (DFLY_FORM_PLAIN): reads `size` bytes, writes its output and answers how many bytes that are. It is not
 * told its room, so it writes into private memory that ends at a page nobody may touch, and that is copied. */
typedef uint32_t dfly_plain_function(void *in, uint32_t size, void *out);

/* What a checked function gets beside its input. Use it by the functions below. */
typedef struct dfly_context dfly_context;

/* The checked form (DFLY_FORM_CHECKED): writes at most `out_capacity` bytes to `out`, where the caller reads them, and says
 * how many by `out_len` (0 unless set). Answers 0, or another number for an error. */
typedef int32_t dfly_checked_function(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                                    size_t *out_len);

struct dfly_context {
    uint32_t version;
    uint32_t reserved;
    void (*set_error)(dfly_context *context, const char *text);
    void *(*grow_output)(dfly_context *context, size_t used, size_t capacity);
    uint64_t (*time_left_us)(dfly_context *context);
};

/* Reports an error: the caller gets this text, which is copied. `return dfly_set_error(context, "...")` ends the function. */
static inline int32_t dfly_set_error(dfly_context *context, const char *text) {
    context->set_error(context, text);
    return 1;
}

/* Asks for room for `capacity` bytes of output and keeps the first `used` bytes that were written. Answers the new start
 * of the output, which replaces `out`, or NULL if the lease has no memory for it (`out` then stays as it is). */
static inline void *dfly_grow_output(dfly_context *context, size_t used, size_t capacity) {
    return context->grow_output(context, used, capacity);
}

/* Microseconds until this call's deadline ends it; UINT64_MAX if it has none. */
static inline uint64_t dfly_time_left_us(dfly_context *context) { return context->time_left_us(context); }

#ifdef __cplusplus
}
#endif

#endif /* DAYFLY_FUNCTION_H */
