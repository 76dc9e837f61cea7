/* Black-Scholes prices of European call options, in the checked form: the function grows its output, and reports errors
 * in its input.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libblackscholes.so examples/functions/blackscholes.c -lm
 *
 * An option is five doubles: spot, strike, years to expiry, interest rate, volatility. A price is one double. */
#include <math.h>
#include <dayfly_function.h>

typedef struct {
    double spot, strike, years, rate, volatility;
} option;

static double normal(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }

static double call_price(const option *o) {
    double spread = o->volatility * sqrt(o->years);
    double d1 = (log(o->spot / o->strike) + (o->rate + 0.5 * o->volatility * o->volatility) * o->years) / spread;
    return o->spot * normal(d1) - o->strike * exp(-o->rate * o->years) * normal(d1 - spread);
}

DFLY_EXPORT int32_t blackscholes(dfly_context *context, const void *in, size_t in_len, void *out, size_t out_capacity,
                               size_t *out_len) {
    const option *options = in;
    size_t count = in_len / sizeof *options;
    if (count * sizeof *options != in_len) {
        return dfly_set_error(context, "an option is five doubles, and the input is not a whole number of options");
    }
    double *prices = out;
    if (count * sizeof *prices > out_capacity) {
        prices = dfly_grow_output(context, 0, count * sizeof *prices);
        if (prices == NULL) {
            return dfly_set_error(context, "the lease has no memory for so many prices");
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (!(options[i].spot > 0 && options[i].strike > 0 && options[i].years > 0 && options[i].volatility > 0)) {
            return dfly_set_error(context, "spot, strike, years and volatility must be positive");
        }
        prices[i] = call_price(&options[i]);
    }
    *out_len = count * sizeof *prices;
    return 0;
}
