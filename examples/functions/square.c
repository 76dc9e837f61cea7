/* The smallest function, in the plain form: doubles in, their squares out.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libsquare.so examples/functions/square.c */
#include <dayfly_function.h>

DFLY_EXPORT uint32_t square(void *in, uint32_t size, void *out) {
    const double *x = in;
    double *y = out;
    for (uint32_t i = 0; i < size / sizeof *x; i++) {
        y[i] = x[i] * x[i];
    }
    return size;
}

/* Copies its input to its output. */
DFLY_EXPORT int32_t echo(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                       size_t *out_len) {
    if (in_len > out_capacity && (out = dfly_grow_output(context, 0, in_len)) == NULL) {
        return dfly_set_error(context, "the lease has no memory for this output");
    }
    __builtin_memcpy(out, in, in_len);
    *out_len = in_len;
    return 0;
}
