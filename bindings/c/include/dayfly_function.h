/* Functions that run on workers: their two forms, and the services of the checked form.
 *
 * Compile as a shared library, which the client sends to the node:
 *     cc -O3 -shared -fPIC -I<include> -o functions.so functions.c
 * Link no library of Dayfly: a function reaches its services through its context.
 *
 * A worker is one process that runs one function at a time, so functions need no locks of their own. Start threads,
 * OpenMP and GPU runtimes in the first call that needs them, never in a constructor of the library. */
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

/* The plain form (DFLY_FORM_PLAIN): reads `size` bytes of `in`, writes its output to `out`, and returns the number of
 * bytes written. The function does not know the size of `out`: `out` is private memory before a guard page, and
 * is copied. */
typedef uint32_t dfly_plain_function(void *in, uint32_t size, void *out);

/* The services of a call of a checked function. Use it with the functions below. */
typedef struct dfly_context dfly_context;

/* The checked form (DFLY_FORM_CHECKED): writes at most `out_capacity` bytes to `out`, in the memory that the caller
 * reads, and stores their number in `out_len`, which is 0 at the start. Returns 0, or another number for an error. */
typedef int32_t dfly_checked_function(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                                    size_t *out_len);

struct dfly_context {
    uint32_t version;
    uint32_t reserved;
    void (*set_error)(dfly_context *context, const char *text);
    void *(*grow_output)(dfly_context *context, size_t used, size_t capacity);
    uint64_t (*time_left_us)(dfly_context *context);
};

/* Sets the message of an error; the text is copied. Returns 1, so that a function can end with
 * `return dfly_set_error(context, "...")`. */
static inline int32_t dfly_set_error(dfly_context *context, const char *text) {
    context->set_error(context, text);
    return 1;
}

/* Grows the output to `capacity` bytes and keeps the first `used` bytes. Returns the new address of the output, which
 * replaces `out`, or NULL if the lease has no memory for it; `out` is then still valid. */
static inline void *dfly_grow_output(dfly_context *context, size_t used, size_t capacity) {
    return context->grow_output(context, used, capacity);
}

/* Returns the microseconds until this call's deadline; UINT64_MAX if it has none. */
static inline uint64_t dfly_time_left_us(dfly_context *context) { return context->time_left_us(context); }

#ifdef __cplusplus
}
#endif

#endif /* DAYFLY_FUNCTION_H */
