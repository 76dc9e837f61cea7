/* Tests of the C library with a real manager, node and workers: calls.c <functions.so>. */
#include "check.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static dfly_client *client;
static dfly_lease *lease;
static dfly_code code;

static dfly_channel *open_channel(void) {
    dfly_channel *channel;
    OK(dfly_channel_open(lease, 0, NULL, &channel));
    return channel;
}

static uint16_t load(dfly_channel *channel, const char *symbol, uint32_t form) {
    uint16_t index;
    OK(dfly_channel_load(channel, &code, symbol, form, &index));
    return index;
}

static void small_and_large_payloads_are_returned(void) {
    dfly_channel *channel = open_channel();
    uint16_t echo = load(channel, "echo", DFLY_FORM_CHECKED);
    const size_t sizes[] = {0, 1, 48, 64, 1000, 1008, 1009, 100000, 5000000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *in = malloc(sizes[i] + 1), *out = malloc(sizes[i] + 1);
        size_t length = 7;
        memset(in, (int)i + 1, sizes[i] + 1);
        memset(out, 0, sizes[i] + 1);
        OK(dfly_channel_call(channel, echo, 0, in, sizes[i], out, sizes[i], &length));
        TRUE(length == sizes[i] && memcmp(in, out, length) == 0);
        free(in), free(out);
    }
    dfly_channel_free(channel);
}

static void output_that_does_not_fit_is_kept(void) {
    dfly_channel *channel = open_channel();
    uint16_t echo = load(channel, "echo", DFLY_FORM_CHECKED);
    char small[4];
    size_t length = 0;
    const void *output;
    IS(dfly_channel_call(channel, echo, 0, "twelve bytes", 12, small, sizeof small, &length), DFLY_OUTPUT_OVERFLOW);
    TRUE(length == 12);
    OK(dfly_channel_output(channel, &output, &length));
    TRUE(length == 12 && memcmp(output, "twelve bytes", 12) == 0);
    OK(dfly_channel_done(channel));
    IS(dfly_channel_output(channel, &output, &length), DFLY_NOT_FOUND);
    OK(dfly_channel_call(channel, echo, 0, "four", 4, small, sizeof small, &length));
    dfly_channel_free(channel);
}

static void buffers_are_passed_without_a_copy(void) {
    dfly_channel *channel = open_channel();
    uint16_t echo = load(channel, "echo", DFLY_FORM_CHECKED);
    dfly_buffer *in, *out;
    size_t length, size = 1 << 20;
    OK(dfly_buffer_alloc(channel, size, &in));
    OK(dfly_buffer_alloc(channel, size, &out));
    TRUE((uintptr_t)dfly_buffer_data(in) % 128 == 0);
    for (int round = 1; round < 20; round++) {
        memset(dfly_buffer_data(in), round, size);
        OK(dfly_channel_call_into(channel, echo, 0, in, size, out, &length));
        TRUE(length == size && memcmp(dfly_buffer_data(in), dfly_buffer_data(out), size) == 0);
    }
    IS(dfly_channel_call_into(channel, echo, 0, in, size + 1, out, &length), DFLY_INVALID_REQUEST);
    IS(dfly_channel_call_into(channel, echo, 0, in, size, in, &length), DFLY_INVALID_REQUEST);
    OK(dfly_channel_submit_buffer(channel, echo, 0, in, 100000, NULL));
    dfly_completion completion;
    OK(dfly_channel_wait(channel, 5000, &completion));
    TRUE(completion.status == DFLY_OK && completion.length == 100000);
    dfly_channel_free(channel);
    TRUE(((char *)dfly_buffer_data(out))[size - 1] == 19); /* outlives its channel */
    dfly_buffer_free(out);
}

static void outstanding_calls_complete_in_order(void) {
    dfly_channel *channel = open_channel();
    uint16_t echo = load(channel, "echo", DFLY_FORM_CHECKED);
    uint32_t numbers[64], sequence;
    dfly_completion completion;
    char out[4];
    size_t length;
    for (uint32_t i = 0; i < 64; i++) {
        OK(dfly_channel_submit(channel, echo, 0, &i, sizeof i, &numbers[i]));
    }
    uint32_t last = 64;
    IS(dfly_channel_submit(channel, echo, 0, &last, sizeof last, &sequence), DFLY_REJECTED);
    IS(dfly_channel_call(channel, echo, 0, &last, sizeof last, out, sizeof out, &length), DFLY_INVALID_REQUEST);
    for (uint32_t i = 0; i < 64; i++) {
        if (i % 2) {
            OK(dfly_channel_wait(channel, 5000, &completion));
        } else {
            bool came = false;
            while (!came) {
                OK(dfly_channel_poll(channel, &completion, &came));
            }
        }
        TRUE(completion.status == DFLY_OK && completion.sequence == numbers[i]);
        TRUE(completion.length == 4 && memcmp(completion.output, &i, 4) == 0);
    }
    IS(dfly_channel_wait(channel, 1, &completion), DFLY_INVALID_REQUEST);
    dfly_channel_free(channel);
}

static void function_errors_keep_their_text(void) {
    dfly_channel *channel = open_channel();
    char out[8];
    size_t length;
    uint16_t complain = load(channel, "complain", DFLY_FORM_CHECKED), index;
    IS(dfly_channel_call(channel, complain, 0, NULL, 0, out, sizeof out, &length), DFLY_FUNCTION_ERROR);
    SAYS("I would rather not");
    IS(dfly_channel_call(channel, load(channel, "number", DFLY_FORM_CHECKED), 0, NULL, 0, out, 8, &length), DFLY_FUNCTION_ERROR);
    SAYS("42");
    IS(dfly_channel_call(channel, load(channel, "boast", DFLY_FORM_CHECKED), 0, NULL, 0, out, 8, &length), DFLY_OUTPUT_OVERFLOW);
    IS(dfly_channel_call(channel, load(channel, "plain_boast", DFLY_FORM_PLAIN), 0, NULL, 0, out, 8, &length), DFLY_OUTPUT_OVERFLOW);
    IS(dfly_channel_call(channel, 999, 0, NULL, 0, out, sizeof out, &length), DFLY_UNKNOWN_FUNCTION);
    IS(dfly_channel_load(channel, &code, "no_such_symbol", DFLY_FORM_PLAIN, &index), DFLY_LOAD_FAILED);
    SAYS("no_such_symbol");
    IS(dfly_channel_load(channel, &code, "echo", 7, &index), DFLY_INVALID_REQUEST);
    dfly_code other;
    memset(&other, 1, sizeof other);
    IS(dfly_channel_load(channel, &other, "echo", DFLY_FORM_PLAIN, &index), DFLY_LOAD_FAILED);
    dfly_completion completion;
    OK(dfly_channel_submit(channel, complain, 0, NULL, 0, NULL));
    OK(dfly_channel_wait(channel, 5000, &completion));
    TRUE(completion.status == DFLY_FUNCTION_ERROR && completion.length == strlen("I would rather not"));
    /* The channel remains usable after the errors. */
    OK(dfly_channel_call(channel, load(channel, "echo", DFLY_FORM_CHECKED), 0, "x", 1, out, sizeof out, &length));
    dfly_channel_free(channel);
}

static void dead_worker_is_replaced(const char *symbol, uint32_t form, uint32_t deadline_ms, dfly_status status,
                                           const char *words) {
    dfly_channel *channel = open_channel();
    char out[8];
    size_t length;
    uint16_t index = load(channel, symbol, form);
    IS(dfly_channel_call(channel, index, deadline_ms, NULL, 0, out, sizeof out, &length), status);
    SAYS(words);
    dfly_channel_free(channel);
}

static void function_reads_its_deadline(void) {
    dfly_channel *channel = open_channel();
    uint64_t us;
    size_t length;
    uint16_t left = load(channel, "left", DFLY_FORM_CHECKED);
    OK(dfly_channel_call(channel, left, 0, NULL, 0, &us, sizeof us, &length));
    TRUE(us == UINT64_MAX);
    OK(dfly_channel_call(channel, left, 5000, NULL, 0, &us, sizeof us, &length));
    TRUE(us <= 5000000 && us > 1000000);
    dfly_channel_free(channel);
}

static int told;
static void on_end(void *user, dfly_status status, const char *message, const void *output, size_t length) {
    TRUE(user == &told && *message == 0 && status == DFLY_OK && length == 4 && memcmp(output, "ping", 4) == 0);
    told++;
}

static void pool_waits_calls_cancels_and_notifies(void) {
    dfly_pool *pool;
    uint32_t echo, missing;
    uint64_t call;
    dfly_output *output;
    char out[4];
    size_t length, ended;
    bool cancelled = true;
    OK(dfly_pool_open(lease, NULL, &pool));
    OK(dfly_pool_function(pool, &code, "echo", DFLY_FORM_CHECKED, &echo));
    OK(dfly_pool_function(pool, &code, "no_such_symbol", DFLY_FORM_CHECKED, &missing));
    OK(dfly_pool_submit(pool, echo, "ping", 4, NULL, &call));
    OK(dfly_pool_wait(pool, call, 5000, &output));
    TRUE(dfly_output_length(output) == 4 && memcmp(dfly_output_data(output), "ping", 4) == 0);
    dfly_output_free(output);
    IS(dfly_pool_wait(pool, call, 5000, &output), DFLY_NOT_FOUND);
    TRUE(output == NULL);
    OK(dfly_pool_cancel(pool, call, &cancelled));
    TRUE(!cancelled);
    OK(dfly_pool_call(pool, echo, "ping", 4, NULL, out, sizeof out, &length));
    IS(dfly_pool_call(pool, echo, "longer", 6, NULL, out, sizeof out, &length), DFLY_OUTPUT_OVERFLOW);
    IS(dfly_pool_call(pool, missing, "ping", 4, NULL, out, sizeof out, &length), DFLY_LOAD_FAILED);
    IS(dfly_pool_call(pool, 77, "ping", 4, NULL, out, sizeof out, &length), DFLY_UNKNOWN_FUNCTION);
    for (int i = 0; i < 100; i++) {
        OK(dfly_pool_submit_callback(pool, echo, "ping", 4, NULL, on_end, &told, NULL));
    }
    while (told < 100) {
        OK(dfly_pool_drive(pool, 5000, &ended));
        TRUE(ended > 0);
    }
    uint32_t forever;
    dfly_call_options options;
    OK(dfly_call_options_init(&options));
    options.deadline_ms = 50;
    OK(dfly_pool_function(pool, &code, "forever", DFLY_FORM_CHECKED, &forever));
    OK(dfly_pool_submit(pool, forever, NULL, 0, &options, &call));
    IS(dfly_pool_wait(pool, call, 0, &output), DFLY_TIMED_OUT);
    IS(dfly_pool_wait(pool, call, 10000, &output), DFLY_DEADLINE_EXCEEDED);
    dfly_pool_free(pool);
}

static void forked_child_is_refused(void) {
    dfly_channel *channel = open_channel();
    uint16_t echo = load(channel, "echo", DFLY_FORM_CHECKED);
    char out[4];
    size_t length;
    pid_t child = fork();
    if (child == 0) {
        dfly_status status = dfly_channel_call(channel, echo, 0, "ping", 4, out, sizeof out, &length);
        dfly_channel_free(channel);
        dfly_lease_free(lease);
        dfly_client_free(client);
        _exit(status == DFLY_FORKED ? 0 : 1);
    }
    int status;
    TRUE(waitpid(child, &status, 0) == child && status == 0);
    OK(dfly_channel_call(channel, echo, 0, "ping", 4, out, sizeof out, &length));
    dfly_channel_free(channel);
}

static void impossible_lease_gives_its_reason(void) {
    dfly_lease *other;
    dfly_channel *channel;
    dfly_lease_options options;
    OK(dfly_lease_options_init(&options));
    options.workers = 100000;
    IS(dfly_lease_open(client, &options, &other), DFLY_INVALID_REQUEST);
    TRUE(other == NULL);
    options.workers = 1;
    options.mode = 9;
    IS(dfly_lease_open(client, &options, &other), DFLY_INVALID_REQUEST);
    options.mode = DFLY_MODE_WARM;
    options.memory_bytes = UINT64_MAX / 4;
    TRUE(dfly_lease_open(client, &options, &other) == DFLY_TOO_LARGE || dfly_last_error() == DFLY_NO_CAPACITY);
    IS(dfly_lease_load_library(lease, "/no/such/file.so", &code), DFLY_NOT_FOUND);
    IS(dfly_channel_open(lease, 77, NULL, &channel), DFLY_NOT_FOUND);
    dfly_channel *first = open_channel();
    IS(dfly_channel_open(lease, 0, NULL, &channel), DFLY_WORKER_BUSY);
    dfly_channel_free(first);
}

static void direct_lease_respects_its_allowance(void) {
    dfly_client *direct;
    dfly_lease *first, *second;
    dfly_allowance_options allowance;
    dfly_lease_options options;
    OK(dfly_allowance_options_init(&allowance));
    allowance.workers_per_node = 100000;
    IS(dfly_client_allowance(client, &allowance, &direct), DFLY_INVALID_REQUEST);
    allowance.workers_per_node = 1;
    allowance.sandbox = 9;
    IS(dfly_client_allowance(client, &allowance, &direct), DFLY_INVALID_REQUEST);
    allowance.sandbox = DFLY_SANDBOX_SITE;
    OK(dfly_client_allowance(client, &allowance, &direct));
    OK(dfly_lease_options_init(&options));
    options.mode = DFLY_MODE_WARM;
    OK(dfly_lease_open(direct, &options, &first));
    TRUE(dfly_lease_workers(first) == 1);
    // The node has received its share. The node and the manager both refuse once it is used up.
    dfly_status refused = dfly_lease_open(direct, &options, &second);
    TRUE(refused == DFLY_NO_CAPACITY || refused == DFLY_QUOTA_EXCEEDED);
    dfly_lease_free(first);
    dfly_client_free(direct);
}

static void renewal_changes_the_terms(void) {
    dfly_lease *own;
    dfly_lease_options options;
    dfly_renew_options terms;
    dfly_pool *pool;
    uint32_t echo;
    char out[4];
    size_t length;
    OK(dfly_lease_options_init(&options));
    /* Programs of earlier releases have this size, and a pad in place of the newest field. */
    TRUE(sizeof options == 72 && offsetof(dfly_lease_options, image) == 64 && options.poll_for_us == 0);
    options.mode = DFLY_MODE_WARM;
    options.poll_for_us = 10001;
    IS(dfly_lease_open(client, &options, &own), DFLY_TOO_LARGE);
    options.poll_for_us = 100;
    OK(dfly_lease_open(client, &options, &own));
    OK(dfly_pool_open(own, NULL, &pool));
    OK(dfly_pool_function(pool, &code, "echo", DFLY_FORM_CHECKED, &echo));
    OK(dfly_renew_options_init(&terms));
    TRUE(terms.workers == DFLY_UNCHANGED && terms.mode == DFLY_UNCHANGED && terms.duration_ms == 3600000);
    OK(dfly_lease_renew_with(own, NULL));
    TRUE(dfly_lease_workers(own) == 1);
    terms.workers = 3;
    terms.poll_for_us = 0;
    OK(dfly_lease_renew_with(own, &terms));
    TRUE(dfly_lease_workers(own) == 3 && dfly_pool_incarnation(pool, 2) == 1);
    for (uint32_t worker = 0; worker < 3; worker++) {
        dfly_call_options of;
        OK(dfly_call_options_init(&of));
        of.worker = worker;
        OK(dfly_pool_call(pool, echo, "ping", 4, &of, out, sizeof out, &length));
    }
    terms.workers = 1;
    OK(dfly_lease_renew_with(own, &terms));
    TRUE(dfly_lease_workers(own) == 1);
    OK(dfly_pool_call(pool, echo, "ping", 4, NULL, out, sizeof out, &length));
    terms.workers = 1024;
    dfly_status refused = dfly_lease_renew_with(own, &terms);
    TRUE(refused == DFLY_TOO_LARGE || refused == DFLY_NO_CAPACITY);
    terms.workers = 100000;
    IS(dfly_lease_renew_with(own, &terms), DFLY_INVALID_REQUEST);
    terms.workers = DFLY_UNCHANGED;
    terms.mode = 9;
    IS(dfly_lease_renew_with(own, &terms), DFLY_INVALID_REQUEST);
    terms.size = 0;
    IS(dfly_lease_renew_with(own, &terms), DFLY_INVALID_REQUEST);
    SAYS("dfly_renew_options_init");
    dfly_pool_free(pool);
    dfly_lease_free(own);
}

int main(int argc, char **argv) {
    dfly_lease_options options;
    TRUE(argc == 2);
    OK(dfly_client_connect(NULL, &client));
    OK(dfly_lease_options_init(&options));
    options.mode = DFLY_MODE_WARM;
    OK(dfly_lease_open(client, &options, &lease));
    OK(dfly_lease_load_library(lease, argv[1], &code));
    small_and_large_payloads_are_returned();
    output_that_does_not_fit_is_kept();
    buffers_are_passed_without_a_copy();
    outstanding_calls_complete_in_order();
    function_errors_keep_their_text();
    function_reads_its_deadline();
    dead_worker_is_replaced("crash", DFLY_FORM_CHECKED, 0, DFLY_MAYBE_EXECUTED, "SIGSEGV");
    dead_worker_is_replaced("overrun", DFLY_FORM_PLAIN, 0, DFLY_MAYBE_EXECUTED, "SIGSEGV");
    dead_worker_is_replaced("leave", DFLY_FORM_CHECKED, 0, DFLY_MAYBE_EXECUTED, "status 3");
    dead_worker_is_replaced("forever", DFLY_FORM_CHECKED, 50, DFLY_DEADLINE_EXCEEDED, "deadline");
    pool_waits_calls_cancels_and_notifies();
    forked_child_is_refused();
    impossible_lease_gives_its_reason();
    direct_lease_respects_its_allowance();
    renewal_changes_the_terms();
    OK(dfly_lease_release(lease));
    dfly_channel *channel;
    TRUE(dfly_channel_open(lease, 0, NULL, &channel) != DFLY_OK);
    dfly_lease_free(lease);
    dfly_client_free(client);
    puts("all held");
}
