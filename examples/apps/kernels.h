/* The computations of the applications here, for the functions of workers and for the programs alike: both run the same
 * machine code, so that they differ only in where it runs. */
#ifndef DAYFLY_APPS_KERNELS_H
#define DAYFLY_APPS_KERNELS_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* An option of 24 bytes, and a price of 4: ten million take 229 MiB and 38 MiB, as the native input of PARSEC's
 * benchmark. */
typedef struct {
    float spot, strike, rate, volatility, years;
    int32_t is_put;
} app_option;

static inline float app_normal(float x) { return 0.5f * erfcf(-x * 0.70710678f); }

static inline float app_price(const app_option *o) {
    const float spread = o->volatility * sqrtf(o->years);
    const float d1 = (logf(o->spot / o->strike) + (o->rate + 0.5f * o->volatility * o->volatility) * o->years) / spread;
    const float later = o->strike * expf(-o->rate * o->years);
    const float call = o->spot * app_normal(d1) - later * app_normal(d1 - spread);
    return o->is_put ? call - o->spot + later : call;
}

/* Multiplies `rows` rows of n numbers each with an n by n matrix. */
static inline void app_multiply(const double *left, const double *right, double *product, size_t rows, size_t n) {
    enum { BLOCK = 64 };
    memset(product, 0, rows * n * sizeof *product);
    for (size_t from = 0; from < n; from += BLOCK) {
        const size_t to = from + BLOCK < n ? from + BLOCK : n;
        for (size_t row = 0; row < rows; row++) {
            double *out = product + row * n;
            for (size_t at = from; at < to; at++) {
                const double factor = left[row * n + at];
                const double *in = right + at * n;
                for (size_t column = 0; column < n; column++) {
                    out[column] += factor * in[column];
                }
            }
        }
    }
}

/* One step of Jacobi's method for the unknowns from `first` on, whose rows of the matrix and of the right-hand side are
 * given. Four sums let the processor add in parallel. */
static inline void app_jacobi(const double *matrix, const double *right, const double *x, double *next, size_t first,
                              size_t rows, size_t n) {
    for (size_t row = 0; row < rows; row++) {
        const double *a = matrix + row * n;
        double sums[4] = {0, 0, 0, 0};
        size_t column = 0;
        for (; column + 4 <= n; column += 4) {
            for (size_t i = 0; i < 4; i++) {
                sums[i] += a[column + i] * x[column + i];
            }
        }
        for (; column < n; column++) {
            sums[0] += a[column] * x[column];
        }
        const double diagonal = a[first + row];
        const double all = sums[0] + sums[1] + sums[2] + sums[3];
        next[row] = (right[row] - (all - diagonal * x[first + row])) / diagonal;
    }
}

enum { APP_SIDE = 64, APP_CELLS = APP_SIDE * APP_SIDE };

/* Multiplies two square matrices modulo 2^64. */
static inline void app_combine(const uint64_t *left, const uint64_t *right, uint64_t *product) {
    memset(product, 0, APP_CELLS * sizeof *product);
    for (int row = 0; row < APP_SIDE; row++) {
        for (int at = 0; at < APP_SIDE; at++) {
            for (int column = 0; column < APP_SIDE; column++) {
                product[row * APP_SIDE + column] += left[row * APP_SIDE + at] * right[at * APP_SIDE + column];
            }
        }
    }
}

/* Scans `count` matrices: each product is that of all matrices up to its place. */
static inline void app_scan(const uint64_t *in, uint64_t *out, size_t count) {
    memcpy(out, in, APP_CELLS * sizeof *out);
    for (size_t i = 1; i < count; i++) {
        app_combine(out + (i - 1) * APP_CELLS, in + i * APP_CELLS, out + i * APP_CELLS);
    }
}

#endif
