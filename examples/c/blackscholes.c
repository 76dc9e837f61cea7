/* Option prices over shared memory without a copy: the worker reads and writes the buffers of this program.
 *
 *     cc -O3 -shared -fPIC -I bindings/c/include -o libblackscholes.so examples/functions/blackscholes.c -lm
 *     cc -I bindings/c/include -o blackscholes examples/c/blackscholes.c -L "$LIB" -Wl,-rpath,"$LIB" -ldayfly
 *     ./blackscholes ./libblackscholes.so */
#include <dayfly.h>
#include <stdio.h>
#include <stdlib.h>

enum { OPTIONS = 100000 };

typedef struct {
    double spot, strike, years, rate, volatility;
} option;

static void check(dfly_status status) {
    if (status != DFLY_OK) {
        fprintf(stderr, "%s [%s] %s\n", dfly_last_error_message(), dfly_error_name(status), dfly_error_remedy(status));
        exit(1);
    }
}

int main(int argc, char **argv) {
    dfly_client *client;
    dfly_lease *lease;
    dfly_channel *channel;
    dfly_buffer *in, *out;
    dfly_code code;
    uint16_t price;
    size_t length;

    check(dfly_client_connect(NULL, &client));
    check(dfly_lease_open(client, NULL, &lease));
    check(dfly_lease_load_library(lease, argc > 1 ? argv[1] : "./libblackscholes.so", &code));
    check(dfly_channel_open(lease, 0, NULL, &channel));
    check(dfly_channel_load(channel, &code, "blackscholes", DFLY_FORM_CHECKED, &price));

    check(dfly_buffer_alloc(channel, OPTIONS * sizeof(option), &in));
    check(dfly_buffer_alloc(channel, OPTIONS * sizeof(double), &out));
    option *options = dfly_buffer_data(in);
    for (int i = 0; i < OPTIONS; i++) {
        options[i] = (option){100, 50 + i * 100.0 / OPTIONS, 1, 0.05, 0.2};
    }
    check(dfly_channel_call_into(channel, price, 0, in, OPTIONS * sizeof(option), out, &length));
    printf("%zu prices; at the money %.4f\n", length / sizeof(double), ((double *)dfly_buffer_data(out))[OPTIONS / 2]);

    dfly_buffer_free(in);
    dfly_buffer_free(out);
    dfly_channel_free(channel);
    dfly_lease_free(lease);
    dfly_client_free(client);
}
