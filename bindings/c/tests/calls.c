/* What the C library promises, held against a real manager, node and workers: calls.c <functions.so>. */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static mf_client *client;
static mf_lease *lease;
static mf_code code;

static mf_channel *open_channel(void) {
    mf_channel *channel;
    OK(mf_channel_open(lease, 0, NULL, &channel));
    return channel;
}

static uint16_t load(mf_channel *channel, const char *symbol, uint32_t form) {
    uint16_t index;
    OK(mf_channel_load(channel, &code, symbol, form, &index));
    return index;
}

static void small_and_large_payloads_come_back(void) {
    mf_channel *channel = open_channel();
    uint16_t echo = load(channel, "echo", MF_FORM_CHECKED);
    const size_t sizes[] = {0, 1, 48, 64, 1000, 1008, 1009, 100000, 5000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *in = malloc(sizes[i] + 1), *out = malloc(sizes[i] + 1);
        size_t length = 7;
        memset(in, (int)i + 1, sizes[i] + 1);
        memset(out, 0, sizes[i] + 1);
        OK(mf_channel_call(channel, echo, 0, in, sizes[i], out, sizes[i], &length));
        TRUE(length == sizes[i] && memcmp(in, out, length) == 0);
        free(in), free(out);
    }
    mf_channel_free(channel);
}

static void an_output_that_does_not_fit_is_kept(void) {
    mf_channel *channel = open_channel();
    uint16_t echo = load(channel, "echo", MF_FORM_CHECKED);
    char small[4];
    size_t length = 0;
    const void *output;
    IS(mf_channel_call(channel, echo, 0, "twelve bytes", 12, small, sizeof small, &length), MF_OUTPUT_OVERFLOW);
    TRUE(length == 12);
    OK(mf_channel_output(channel, &output, &length));
    TRUE(length == 12 && memcmp(output, "twelve bytes", 12) == 0);
    OK(mf_channel_done(channel));
    IS(mf_channel_output(channel, &output, &length), MF_NOT_FOUND);
    OK(mf_channel_call(channel, echo, 0, "four", 4, small, sizeof small, &length));
    mf_channel_free(channel);
}

static void buffers_travel_without_a_copy(void) {
    mf_channel *channel = open_channel();
    uint16_t echo = load(channel, "echo", MF_FORM_CHECKED);
    mf_buffer *in, *out;
    size_t length, size = 1 << 20;
    OK(mf_buffer_alloc(channel, size, &in));
    OK(mf_buffer_alloc(channel, size, &out));
    TRUE((uintptr_t)mf_buffer_data(in) % 128 == 0);
    for (int round = 1; round < 20; round++) {
        memset(mf_buffer_data(in), round, size);
        OK(mf_channel_call_into(channel, echo, 0, in, size, out, &length));
        TRUE(length == size && memcmp(mf_buffer_data(in), mf_buffer_data(out), size) == 0);
    }
    IS(mf_channel_call_into(channel, echo, 0, in, size + 1, out, &length), MF_INVALID_REQUEST);
    IS(mf_channel_call_into(channel, echo, 0, in, size, in, &length), MF_INVALID_REQUEST);
    OK(mf_channel_submit_buffer(channel, echo, 0, in, 100000, NULL));
    mf_completion completion;
    OK(mf_channel_wait(channel, 5000, &completion));
    TRUE(completion.status == MF_OK && completion.length == 100000);
    mf_channel_free(channel);
    TRUE(((char *)mf_buffer_data(out))[size - 1] == 19); /* outlives its channel */
    mf_buffer_free(out);
}

static void calls_in_flight_are_answered_in_order(void) {
    mf_channel *channel = open_channel();
    uint16_t echo = load(channel, "echo", MF_FORM_CHECKED);
    uint32_t numbers[64], sequence;
    mf_completion completion;
    char out[4];
    size_t length;
    for (uint32_t i = 0; i < 64; i++) {
        OK(mf_channel_submit(channel, echo, 0, &i, sizeof i, &numbers[i]));
    }
    uint32_t last = 64;
    IS(mf_channel_submit(channel, echo, 0, &last, sizeof last, &sequence), MF_REJECTED);
    IS(mf_channel_call(channel, echo, 0, &last, sizeof last, out, sizeof out, &length), MF_INVALID_REQUEST);
    for (uint32_t i = 0; i < 64; i++) {
        if (i % 2) {
            OK(mf_channel_wait(channel, 5000, &completion));
        } else {
            bool came = false;
            while (!came) {
                OK(mf_channel_poll(channel, &completion, &came));
            }
        }
        TRUE(completion.status == MF_OK && completion.sequence == numbers[i]);
        TRUE(completion.length == 4 && memcmp(completion.output, &i, 4) == 0);
    }
    IS(mf_channel_wait(channel, 1, &completion), MF_INVALID_REQUEST);
    mf_channel_free(channel);
}

static void errors_of_functions_have_their_text(void) {
    mf_channel *channel = open_channel();
    char out[8];
    size_t length;
    uint16_t complain = load(channel, "complain", MF_FORM_CHECKED), index;
    IS(mf_channel_call(channel, complain, 0, NULL, 0, out, sizeof out, &length), MF_FUNCTION_ERROR);
    SAYS("I would rather not");
    IS(mf_channel_call(channel, load(channel, "number", MF_FORM_CHECKED), 0, NULL, 0, out, 8, &length), MF_FUNCTION_ERROR);
    SAYS("42");
    IS(mf_channel_call(channel, load(channel, "boast", MF_FORM_CHECKED), 0, NULL, 0, out, 8, &length), MF_OUTPUT_OVERFLOW);
    IS(mf_channel_call(channel, load(channel, "plain_boast", MF_FORM_PLAIN), 0, NULL, 0, out, 8, &length), MF_OUTPUT_OVERFLOW);
    IS(mf_channel_call(channel, 999, 0, NULL, 0, out, sizeof out, &length), MF_UNKNOWN_FUNCTION);
    IS(mf_channel_load(channel, &code, "no_such_symbol", MF_FORM_PLAIN, &index), MF_LOAD_FAILED);
    SAYS("no_such_symbol");
    IS(mf_channel_load(channel, &code, "echo", 7, &index), MF_INVALID_REQUEST);
    mf_code other;
    memset(&other, 1, sizeof other);
    IS(mf_channel_load(channel, &other, "echo", MF_FORM_PLAIN, &index), MF_LOAD_FAILED);
    mf_completion completion;
    OK(mf_channel_submit(channel, complain, 0, NULL, 0, NULL));
    OK(mf_channel_wait(channel, 5000, &completion));
    TRUE(completion.status == MF_FUNCTION_ERROR && completion.length == strlen("I would rather not"));
    /* The channel still works. */
    OK(mf_channel_call(channel, load(channel, "echo", MF_FORM_CHECKED), 0, "x", 1, out, sizeof out, &length));
    mf_channel_free(channel);
}

static void a_worker_that_dies_is_replaced(const char *symbol, uint32_t form, uint32_t deadline_ms, mf_status status,
                                           const char *words) {
    mf_channel *channel = open_channel();
    char out[8];
    size_t length;
    uint16_t index = load(channel, symbol, form);
    IS(mf_channel_call(channel, index, deadline_ms, NULL, 0, out, sizeof out, &length), status);
    SAYS(words);
    mf_channel_free(channel);
}

static void a_function_sees_its_deadline(void) {
    mf_channel *channel = open_channel();
    uint64_t us;
    size_t length;
    uint16_t left = load(channel, "left", MF_FORM_CHECKED);
    OK(mf_channel_call(channel, left, 0, NULL, 0, &us, sizeof us, &length));
    TRUE(us == UINT64_MAX);
    OK(mf_channel_call(channel, left, 5000, NULL, 0, &us, sizeof us, &length));
    TRUE(us <= 5000000 && us > 1000000);
    mf_channel_free(channel);
}

static int told;
static void on_end(void *user, mf_status status, const char *message, const void *output, size_t length) {
    TRUE(user == &told && *message == 0 && status == MF_OK && length == 4 && memcmp(output, "ping", 4) == 0);
    told++;
}

static void pools_wait_call_cancel_and_tell(void) {
    mf_pool *pool;
    uint32_t echo, missing;
    uint64_t call;
    mf_output *output;
    char out[4];
    size_t length, ended;
    bool cancelled = true;
    OK(mf_pool_open(lease, NULL, &pool));
    OK(mf_pool_function(pool, &code, "echo", MF_FORM_CHECKED, &echo));
    OK(mf_pool_function(pool, &code, "no_such_symbol", MF_FORM_CHECKED, &missing));
    OK(mf_pool_submit(pool, echo, "ping", 4, NULL, &call));
    OK(mf_pool_wait(pool, call, 5000, &output));
    TRUE(mf_output_length(output) == 4 && memcmp(mf_output_data(output), "ping", 4) == 0);
    mf_output_free(output);
    IS(mf_pool_wait(pool, call, 5000, &output), MF_NOT_FOUND);
    TRUE(output == NULL);
    OK(mf_pool_cancel(pool, call, &cancelled));
    TRUE(!cancelled);
    OK(mf_pool_call(pool, echo, "ping", 4, NULL, out, sizeof out, &length));
    IS(mf_pool_call(pool, echo, "longer", 6, NULL, out, sizeof out, &length), MF_OUTPUT_OVERFLOW);
    IS(mf_pool_call(pool, missing, "ping", 4, NULL, out, sizeof out, &length), MF_LOAD_FAILED);
    IS(mf_pool_call(pool, 77, "ping", 4, NULL, out, sizeof out, &length), MF_UNKNOWN_FUNCTION);
    for (int i = 0; i < 100; i++) {
        OK(mf_pool_submit_callback(pool, echo, "ping", 4, NULL, on_end, &told, NULL));
    }
    while (told < 100) {
        OK(mf_pool_drive(pool, 5000, &ended));
        TRUE(ended > 0);
    }
    uint32_t forever;
    mf_call_options options;
    OK(mf_call_options_init(&options));
    options.deadline_ms = 50;
    OK(mf_pool_function(pool, &code, "forever", MF_FORM_CHECKED, &forever));
    OK(mf_pool_submit(pool, forever, NULL, 0, &options, &call));
    IS(mf_pool_wait(pool, call, 0, &output), MF_TIMED_OUT);
    IS(mf_pool_wait(pool, call, 10000, &output), MF_DEADLINE_EXCEEDED);
    mf_pool_free(pool);
}

static void a_forked_child_is_refused_and_harms_nobody(void) {
    mf_channel *channel = open_channel();
    uint16_t echo = load(channel, "echo", MF_FORM_CHECKED);
    char out[4];
    size_t length;
    pid_t child = fork();
    if (child == 0) {
        mf_status status = mf_channel_call(channel, echo, 0, "ping", 4, out, sizeof out, &length);
        mf_channel_free(channel);
        mf_lease_free(lease);
        mf_client_free(client);
        _exit(status == MF_FORKED ? 0 : 1);
    }
    int status;
    TRUE(waitpid(child, &status, 0) == child && status == 0);
    OK(mf_channel_call(channel, echo, 0, "ping", 4, out, sizeof out, &length));
    mf_channel_free(channel);
}

static void a_lease_that_cannot_be_says_why(void) {
    mf_lease *other;
    mf_channel *channel;
    mf_lease_options options;
    OK(mf_lease_options_init(&options));
    options.workers = 100000;
    IS(mf_lease_open(client, &options, &other), MF_INVALID_REQUEST);
    TRUE(other == NULL);
    options.workers = 1;
    options.mode = 9;
    IS(mf_lease_open(client, &options, &other), MF_INVALID_REQUEST);
    options.mode = MF_MODE_WARM;
    options.memory_bytes = UINT64_MAX / 4;
    TRUE(mf_lease_open(client, &options, &other) == MF_TOO_LARGE || mf_last_error() == MF_NO_CAPACITY);
    IS(mf_lease_load_library(lease, "/no/such/file.so", &code), MF_NOT_FOUND);
    IS(mf_channel_open(lease, 77, NULL, &channel), MF_NOT_FOUND);
    mf_channel *first = open_channel();
    IS(mf_channel_open(lease, 0, NULL, &channel), MF_WORKER_BUSY);
    mf_channel_free(first);
}

static void leases_come_straight_from_nodes_as_far_as_is_allowed(void) {
    mf_client *direct;
    mf_lease *first, *second;
    mf_allowance_options allowance;
    mf_lease_options options;
    OK(mf_allowance_options_init(&allowance));
    allowance.workers_per_node = 100000;
    IS(mf_client_allowance(client, &allowance, &direct), MF_INVALID_REQUEST);
    allowance.workers_per_node = 1;
    allowance.sandbox = 9;
    IS(mf_client_allowance(client, &allowance, &direct), MF_INVALID_REQUEST);
    allowance.sandbox = MF_SANDBOX_SITE;
    OK(mf_client_allowance(client, &allowance, &direct));
    OK(mf_lease_options_init(&options));
    options.mode = MF_MODE_WARM;
    OK(mf_lease_open(direct, &options, &first));
    TRUE(mf_lease_workers(first) == 1);
    // The node has its share, and hears that all of it is used up as soon as the manager does.
    mf_status refused = mf_lease_open(direct, &options, &second);
    TRUE(refused == MF_NO_CAPACITY || refused == MF_QUOTA_EXCEEDED);
    mf_lease_free(first);
    mf_client_free(direct);
}

int main(int argc, char **argv) {
    mf_lease_options options;
    TRUE(argc == 2);
    OK(mf_client_connect(NULL, &client));
    OK(mf_lease_options_init(&options));
    options.mode = MF_MODE_WARM;
    OK(mf_lease_open(client, &options, &lease));
    OK(mf_lease_load_library(lease, argv[1], &code));
    small_and_large_payloads_come_back();
    an_output_that_does_not_fit_is_kept();
    buffers_travel_without_a_copy();
    calls_in_flight_are_answered_in_order();
    errors_of_functions_have_their_text();
    a_function_sees_its_deadline();
    a_worker_that_dies_is_replaced("crash", MF_FORM_CHECKED, 0, MF_MAYBE_EXECUTED, "SIGSEGV");
    a_worker_that_dies_is_replaced("overrun", MF_FORM_PLAIN, 0, MF_MAYBE_EXECUTED, "SIGSEGV");
    a_worker_that_dies_is_replaced("leave", MF_FORM_CHECKED, 0, MF_MAYBE_EXECUTED, "status 3");
    a_worker_that_dies_is_replaced("forever", MF_FORM_CHECKED, 50, MF_DEADLINE_EXCEEDED, "deadline");
    pools_wait_call_cancel_and_tell();
    a_forked_child_is_refused_and_harms_nobody();
    a_lease_that_cannot_be_says_why();
    leases_come_straight_from_nodes_as_far_as_is_allowed();
    OK(mf_lease_release(lease));
    mf_channel *channel;
    TRUE(mf_channel_open(lease, 0, NULL, &channel) != MF_OK);
    mf_lease_free(lease);
    mf_client_free(client);
    puts("all held");
}
