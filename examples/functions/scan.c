/* Prefix scan of square matrices of 64-bit numbers under multiplication, modulo 2^64, in the checked form.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libscan.so examples/functions/scan.c
 *
 * The output has as many matrices as the input; each is the product of the input's matrices up to its place. */
#include <stdint.h>
#include <string.h>
#include <dayfly_function.h>

enum { SIDE = 64, CELLS = SIDE * SIDE };

static void multiply(const uint64_t *left, const uint64_t *right, uint64_t *product) {
    memset(product, 0, CELLS * sizeof *product);
    for (int row = 0; row < SIDE; row++) {
        for (int at = 0; at < SIDE; at++) {
            for (int column = 0; column < SIDE; column++) {
                product[row * SIDE + column] += left[row * SIDE + at] * right[at * SIDE + column];
            }
        }
    }
}

DFLY_EXPORT int32_t scan(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                         size_t *out_len) {
    const size_t size = CELLS * sizeof(uint64_t), count = in_len / size;
    const uint64_t *matrices = in;
    if (count == 0 || count * size != in_len) {
        return dfly_set_error(context, "the input is not a whole number of matrices");
    }
    if (in_len > out_capacity && (out = dfly_grow_output(context, 0, in_len)) == NULL) {
        return dfly_set_error(context, "the lease has no memory for so many matrices");
    }
    uint64_t *products = out;
    memcpy(products, matrices, size);
    for (size_t i = 1; i < count; i++) {
        multiply(products + (i - 1) * CELLS, matrices + i * CELLS, products + i * CELLS);
    }
    *out_len = in_len;
    return 0;
}
