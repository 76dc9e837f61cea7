/* Tests of fleets with two nodes of two workers: fleets.c <functions.so> <connection>. Stops after "half": the node n0
 * is then killed, and a line on standard input lets it go on. */
#include "check.h"

static dfly_client *client;
static dfly_fleet *fleet;
static const dfly_pool *pool;

static uint32_t function(const dfly_code *code, const char *symbol) {
    uint32_t id;
    OK(dfly_pool_function(pool, code, symbol, DFLY_FORM_CHECKED, &id));
    return id;
}

static void wrong_options_are_refused(void) {
    dfly_fleet *none;
    dfly_fleet_options options;
    OK(dfly_fleet_options_init(&options));
    TRUE(options.min == 0 && options.max == 16 && options.lease.workers == 4);
    options.max = 0;
    IS(dfly_fleet_open(client, &options, &none), DFLY_INVALID_REQUEST);
    TRUE(none == NULL);
    options.max = 1, options.lease.mode = 9;
    IS(dfly_fleet_open(client, &options, &none), DFLY_INVALID_REQUEST);
    options.lease.mode = DFLY_MODE_WARM, options.size = 1;
    IS(dfly_fleet_open(client, &options, &none), DFLY_INVALID_REQUEST);
    SAYS("dfly_fleet_options_init");
    OK(dfly_fleet_options_init(&options));
    options.lease.size = 1;
    IS(dfly_fleet_open(client, &options, &none), DFLY_INVALID_REQUEST);
    IS(dfly_fleet_open(NULL, NULL, &none), DFLY_INVALID_REQUEST);
    TRUE(dfly_fleet_pool(NULL) == NULL && dfly_fleet_workers(NULL) == 0 && dfly_fleet_nodes(NULL) == 0);
    dfly_fleet_free(NULL);
}

static void workers_have_no_numbers(uint32_t echo) {
    uint64_t call;
    dfly_buffer *buffer;
    dfly_delegation *part;
    dfly_call_options options;
    OK(dfly_call_options_init(&options));
    options.worker = 0;
    IS(dfly_pool_submit(pool, echo, "x", 1, &options, &call), DFLY_INVALID_REQUEST);
    options.incarnation = 1;
    IS(dfly_pool_submit(pool, echo, "x", 1, &options, &call), DFLY_INVALID_REQUEST);
    IS(dfly_pool_buffer_alloc_for(pool, 0, 1, &buffer), DFLY_INVALID_REQUEST);
    IS(dfly_pool_delegate(pool, 1, 1000, NULL, 1000, &part), DFLY_INVALID_REQUEST);
    dfly_pool_free((dfly_pool *)pool); /* the fleet owns it */
}

enum { CALLS = 40, SIZE = 100000 };

/* Submits calls with buffers that they share, and checks the outputs. `between` runs while they are queued. */
static void calls_with_buffers_end(uint32_t echo, void (*between)(void)) {
    dfly_buffer *in, *out[CALLS];
    uint64_t calls[CALLS];
    dfly_output *output;
    dfly_call_options options;
    OK(dfly_call_options_init(&options));
    options.idempotent = 1;
    OK(dfly_pool_buffer_alloc(pool, SIZE, &in, NULL));
    memset(dfly_buffer_data(in), 6, SIZE);
    for (int i = 0; i < CALLS; i++) {
        OK(dfly_pool_buffer_alloc(pool, SIZE, &out[i], NULL));
        OK(dfly_pool_submit_into(pool, echo, in, SIZE, out[i], &options, NULL, NULL, &calls[i]));
    }
    between();
    for (int i = 0; i < CALLS; i++) {
        OK(dfly_pool_wait(pool, calls[i], 20000, &output));
        TRUE(dfly_output_length(output) == SIZE && dfly_output_data(output) == dfly_buffer_data(out[i]));
        dfly_output_free(output);
        TRUE(memcmp(dfly_buffer_data(in), dfly_buffer_data(out[i]), SIZE) == 0);
        dfly_buffer_free(out[i]);
    }
    dfly_buffer_free(in);
}

static void nothing(void) {}

static void lose_a_node(void) {
    char line[8];
    puts("half");
    fflush(stdout);
    TRUE(fgets(line, sizeof line, stdin) != NULL);
}

static int ended;
static void on_end(void *user, dfly_status status, const char *message, const void *output, size_t length) {
    (void)user, (void)message, (void)output, (void)length;
    TRUE(status != DFLY_OK);
    ended++;
}

int main(int argc, char **argv) {
    dfly_fleet_options options;
    dfly_code code;
    TRUE(argc == 3);
    OK(dfly_client_connect(argv[2], &client));
    wrong_options_are_refused();
    OK(dfly_fleet_options_init(&options));
    options.lease.mode = DFLY_MODE_WARM;
    options.lease.workers = 2;
    options.min = 4;
    options.max = 4;
    OK(dfly_fleet_open(client, &options, &fleet));
    pool = dfly_fleet_pool(fleet);
    IS(dfly_fleet_load_library(fleet, "/no/such/file.so", &code), DFLY_NOT_FOUND);
    OK(dfly_fleet_load_library(fleet, argv[1], &code));
    uint32_t echo = function(&code, "echo"), forever = function(&code, "forever");
    calls_with_buffers_end(echo, nothing); /* whatever workers there are */
    OK(dfly_fleet_wait(fleet, 4, 20000));
    TRUE(dfly_fleet_workers(fleet) == 4 && dfly_fleet_nodes(fleet) == 2);
    IS(dfly_fleet_wait(fleet, 5, 1), DFLY_TIMED_OUT);
    workers_have_no_numbers(echo);
    calls_with_buffers_end(echo, lose_a_node);
    OK(dfly_pool_submit_callback(pool, forever, NULL, 0, NULL, on_end, NULL, NULL));
    OK(dfly_fleet_close(fleet));
    while (ended < 1) {
        OK(dfly_pool_drive(pool, 5000, NULL));
    }
    uint64_t call;
    dfly_output *output;
    OK(dfly_pool_submit(pool, echo, "x", 1, NULL, &call));
    TRUE(dfly_pool_wait(pool, call, 20000, &output) != DFLY_OK && output == NULL);
    dfly_fleet_free(fleet);
    dfly_client_free(client);
    puts("all held");
}
