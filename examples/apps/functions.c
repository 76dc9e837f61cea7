/* What leased workers run for the applications here, in the checked form.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libapps.so examples/apps/functions.c -lm */
#include "kernels.h"

#include <dayfly_function.h>
#include <stdlib.h>
#include <unistd.h>

/* Returns memory for `bytes` of output; NULL if the lease has none. */
static void *room(dfly_context *context, void *out, size_t capacity, size_t bytes) {
    return bytes <= capacity ? out : dfly_grow_output(context, 0, bytes);
}

static int32_t no_room(dfly_context *context) {
    return dfly_set_error(context, "the lease has no memory for this output");
}

/* Copies its input: what a call costs that computes nothing. */
DFLY_EXPORT int32_t echo(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                         size_t *out_len) {
    if ((out = room(context, out, out_capacity, in_len)) == NULL) {
        return no_room(context);
    }
    memcpy(out, in, in_len);
    *out_len = in_len;
    return 0;
}

/* Options in, prices out. */
DFLY_EXPORT int32_t price(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                          size_t *out_len) {
    const app_option *options = in;
    const size_t count = in_len / sizeof *options;
    if (count * sizeof *options != in_len) {
        return dfly_set_error(context, "the input is not a whole number of options");
    }
    float *prices = room(context, out, out_capacity, count * sizeof *prices);
    if (prices == NULL) {
        return no_room(context);
    }
    for (size_t i = 0; i < count; i++) {
        prices[i] = app_price(&options[i]);
    }
    *out_len = count * sizeof *prices;
    return 0;
}

/* Input: the numbers of rows and of columns, then the right matrix, then the rows of the left one. */
DFLY_EXPORT int32_t multiply(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                             size_t *out_len) {
    const uint64_t *sizes = in;
    const size_t rows = in_len >= 16 ? sizes[0] : 0, n = in_len >= 16 ? sizes[1] : 0;
    if (rows == 0 || n == 0 || rows > 1u << 16 || n > 1u << 16 || in_len != 16 + (n + rows) * n * sizeof(double)) {
        return dfly_set_error(context, "the input is not a matrix and rows of its width");
    }
    const size_t bytes = rows * n * sizeof(double);
    if ((out = room(context, out, out_capacity, bytes)) == NULL) {
        return no_room(context);
    }
    const double *right = (const double *)(sizes + 2);
    app_multiply(right + n * n, right, out, rows, n);
    *out_len = bytes;
    return 0;
}

/* Part of a linear system. This memory belongs to the worker, and is lost with it: callers name its incarnation. */
static struct {
    size_t first, rows, n;
    double *right, *matrix;
} kept;

/* Input: first row, number of rows and of columns, then the right-hand side and the matrix of these rows. */
DFLY_EXPORT int32_t keep(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                         size_t *out_len) {
    (void)out, (void)out_capacity;
    const uint64_t *sizes = in;
    const size_t rows = in_len >= 24 ? sizes[1] : 0, n = in_len >= 24 ? sizes[2] : 0;
    if (rows == 0 || n == 0 || rows > 1u << 16 || n > 1u << 16 || in_len != 24 + (rows + rows * n) * sizeof(double)) {
        return dfly_set_error(context, "the input is not a part of a linear system");
    }
    if (sizes[0] > n || rows > n - sizes[0]) {
        return dfly_set_error(context, "the system does not have these rows");
    }
    double *memory = realloc(kept.right, (rows + rows * n) * sizeof *memory);
    if (memory == NULL) {
        return dfly_set_error(context, "no memory for this part of the system");
    }
    memcpy(memory, sizes + 3, (rows + rows * n) * sizeof *memory);
    kept.first = sizes[0], kept.rows = rows, kept.n = n;
    kept.right = memory, kept.matrix = memory + rows;
    *out_len = 0;
    return 0;
}

/* An approximation in, the next one for the rows that are kept out. */
DFLY_EXPORT int32_t sweep(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                          size_t *out_len) {
    if (kept.rows == 0 || in_len != kept.n * sizeof(double)) {
        return dfly_set_error(context, "this worker keeps no part of such a system");
    }
    const size_t bytes = kept.rows * sizeof(double);
    if ((out = room(context, out, out_capacity, bytes)) == NULL) {
        return no_room(context);
    }
    app_jacobi(kept.matrix, kept.right, in, out, kept.first, kept.rows, kept.n);
    *out_len = bytes;
    return 0;
}

/* Ends the worker, as a failure of its host would: what it kept is lost. */
DFLY_EXPORT int32_t fall(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                         size_t *out_len) {
    (void)context, (void)in, (void)in_len, (void)out, (void)out_capacity, (void)out_len;
    _exit(1);
}

/* Matrices in, their products up to each place out. */
DFLY_EXPORT int32_t scan(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                         size_t *out_len) {
    const size_t size = APP_CELLS * sizeof(uint64_t), count = in_len / size;
    if (count == 0 || count * size != in_len) {
        return dfly_set_error(context, "the input is not a whole number of matrices");
    }
    if ((out = room(context, out, out_capacity, in_len)) == NULL) {
        return no_room(context);
    }
    app_scan(in, out, count);
    *out_len = in_len;
    return 0;
}
