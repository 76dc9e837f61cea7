/* Option prices over shared memory without a copy: the worker reads and writes the buffers of this program.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libblackscholes.so examples/functions/blackscholes.c -lm
 *     cc -I bindings/c/include -o blackscholes examples/c/blackscholes.c -L "$LIB" -Wl,-rpath,"$LIB" -lmayfly
 *     ./blackscholes ./libblackscholes.so */
#include <mayfly.h>
#include <stdio.h>
#include <stdlib.h>

enum { OPTIONS = 100000 };

typedef struct {
    double spot, strike, years, rate, volatility;
} option;

static void check(mf_status status) {
    if (status != MF_OK) {
        fprintf(stderr, "%s [%s] %s\n", mf_last_error_message(), mf_error_name(status), mf_error_remedy(status));
        exit(1);
    }
}

int main(int argc, char **argv) {
    mf_client *client;
    mf_lease *lease;
    mf_channel *channel;
    mf_buffer *in, *out;
    mf_code code;
    uint16_t price;
    size_t length;

    check(mf_client_connect(NULL, &client));
    check(mf_lease_open(client, NULL, &lease));
    check(mf_lease_load_library(lease, argc > 1 ? argv[1] : "./libblackscholes.so", &code));
    check(mf_channel_open(lease, 0, NULL, &channel));
    check(mf_channel_load(channel, &code, "blackscholes", MF_FORM_CHECKED, &price));

    check(mf_buffer_alloc(channel, OPTIONS * sizeof(option), &in));
    check(mf_buffer_alloc(channel, OPTIONS * sizeof(double), &out));
    option *options = mf_buffer_data(in);
    for (int i = 0; i < OPTIONS; i++) {
        options[i] = (option){100, 50 + i * 100.0 / OPTIONS, 1, 0.05, 0.2};
    }
    check(mf_channel_call_into(channel, price, 0, in, OPTIONS * sizeof(option), out, &length));
    printf("%zu prices; at the money %.4f\n", length / sizeof(double), ((double *)mf_buffer_data(out))[OPTIONS / 2]);

    mf_buffer_free(in);
    mf_buffer_free(out);
    mf_channel_free(channel);
    mf_lease_free(lease);
    mf_client_free(client);
}
