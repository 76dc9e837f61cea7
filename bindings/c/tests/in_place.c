/* Tests of calls on memory of the caller, with a real manager, node and workers:
 * in_place.c <functions.so> <directory for files>. */
#include "check.h"
#include "place.h"

#include <unistd.h>

static dfly_lease *lease;
static dfly_code code;
static dfly_pool *pool;

enum { LARGE = 1 << 20 };

struct copies {
    uint64_t input, output;
};

static struct copies copied(void) {
    struct copies now;
    OK(dfly_pool_copied(pool, &now.input, &now.output));
    return now;
}

static void open_pool(void) {
    OK(dfly_pool_open(lease, NULL, &pool));
}

static uint32_t function(const char *symbol) {
    uint32_t id;
    OK(dfly_pool_function(pool, &code, symbol, DFLY_FORM_CHECKED, &id));
    return id;
}

static dfly_buffer *buffer_of(uint32_t worker, size_t length) {
    dfly_buffer *buffer;
    OK(dfly_pool_buffer_alloc_for(pool, worker, length, &buffer));
    TRUE(dfly_buffer_length(buffer) == length);
    return buffer;
}

static dfly_call_options of_worker(uint32_t worker) {
    dfly_call_options options;
    OK(dfly_call_options_init(&options));
    TRUE(options.incarnation == 0 && options.room == 0);
    options.worker = worker;
    return options;
}

/* Waits for a call and returns the length of its output. */
static size_t wait_for(uint64_t call) {
    dfly_output *output;
    OK(dfly_pool_wait(pool, call, 20000, &output));
    size_t length = dfly_output_length(output);
    dfly_output_free(output);
    return length;
}

/* Calls `where` and returns whether the function saw the input and the output at the places of these buffers. */
static void call_where(dfly_buffer *in, dfly_buffer *out, const dfly_call_options *options, bool *input, bool *output) {
    uint64_t call;
    struct place places[2];
    OK(dfly_pool_submit_into(pool, function("where"), in, LARGE, out, options, NULL, NULL, &call));
    TRUE(wait_for(call) == sizeof places + LARGE);
    memcpy(places, dfly_buffer_data(out), sizeof places);
    TRUE(memcmp((char *)dfly_buffer_data(out) + sizeof places, dfly_buffer_data(in), LARGE) == 0);
    *input = is_same_place(places[0], place_of(dfly_buffer_data(in)));
    *output = is_same_place(places[1], place_of(dfly_buffer_data(out)));
}

static void buffers_travel_both_ways_without_a_copy(void) {
    bool input, output;
    open_pool();
    for (uint32_t worker = 0; worker < 2; worker++) {
        dfly_buffer *in = buffer_of(worker, LARGE), *out = buffer_of(worker, LARGE + 64);
        for (int round = 1; round <= 3; round++) {
            memset(dfly_buffer_data(in), round, LARGE);
            call_where(in, out, NULL, &input, &output);
            TRUE(input && output);
        }
        dfly_buffer_free(in), dfly_buffer_free(out);
    }
    TRUE(copied().input == 0 && copied().output == 0);
    dfly_pool_free(pool);
}

static void ordinary_memory_is_copied_and_counted(void) {
    uint64_t call;
    dfly_output *output;
    struct place places[2];
    char *in = calloc(1, LARGE), *out = malloc(LARGE + sizeof places);
    size_t length;
    open_pool();
    OK(dfly_pool_submit(pool, function("where"), in, LARGE, NULL, &call));
    OK(dfly_pool_wait(pool, call, 20000, &output));
    TRUE(dfly_output_length(output) == sizeof places + LARGE);
    memcpy(places, dfly_output_data(output), sizeof places);
    TRUE(places[0].inode != 0 && place_of(in).inode == 0); /* shared with the worker, unlike the caller's memory */
    /* The output is read where the worker wrote it. */
    TRUE(is_same_place(places[1], place_of(dfly_output_data(output))));
    dfly_output_free(output);
    TRUE(copied().input >= LARGE && copied().output == 0);
    struct copies before = copied();
    OK(dfly_pool_call(pool, function("where"), in, LARGE, NULL, out, LARGE + sizeof places, &length));
    TRUE(copied().input >= before.input + LARGE && copied().output >= LARGE);
    free(in), free(out);
    dfly_pool_free(pool);
}

static void buffers_of_another_worker_are_copied(void) {
    bool input, output;
    open_pool();
    dfly_buffer *in = buffer_of(0, LARGE), *out = buffer_of(0, LARGE + 64);
    dfly_call_options other = of_worker(1);
    memset(dfly_buffer_data(in), 5, LARGE);
    call_where(in, out, &other, &input, &output);
    TRUE(!input && !output);
    TRUE(copied().input == LARGE && copied().output == LARGE + sizeof(struct place[2]));
    dfly_buffer_free(in), dfly_buffer_free(out);
    dfly_pool_free(pool);
}

static void busy_worker_leaves_its_calls_to_others(void) {
    uint64_t call;
    bool input, output;
    dfly_output *none;
    dfly_call_options options = of_worker(0);
    open_pool();
    dfly_buffer *in = buffer_of(0, LARGE), *out = buffer_of(0, LARGE + 64);
    OK(dfly_pool_submit(pool, function("forever"), NULL, 0, &options, &call));
    usleep(5000); /* far longer than a copy takes */
    call_where(in, out, NULL, &input, &output);
    TRUE(!input && !output && copied().input == LARGE);
    options.worker = 1; /* an option outweighs the buffers */
    call_where(in, out, &options, &input, &output);
    OK(dfly_pool_kill(pool, call));
    IS(dfly_pool_wait(pool, call, 20000, &none), DFLY_CANCELLED);
    dfly_buffer_free(in), dfly_buffer_free(out);
    dfly_pool_free(pool);
}

static void small_outputs_are_copied_from_their_slot(void) {
    uint64_t call;
    struct place places[2];
    open_pool();
    dfly_buffer *in = buffer_of(0, 64), *out = buffer_of(0, 128);
    OK(dfly_pool_submit_into(pool, function("where"), in, 64, out, NULL, NULL, NULL, &call));
    TRUE(wait_for(call) == sizeof places + 64);
    memcpy(places, dfly_buffer_data(out), sizeof places);
    TRUE(is_same_place(places[0], place_of(dfly_buffer_data(in))) && copied().input == 0);
    TRUE(!is_same_place(places[1], place_of(dfly_buffer_data(out))) && copied().output == sizeof places + 64);
    /* Without an input. */
    OK(dfly_pool_submit_into(pool, function("where"), NULL, 0, out, NULL, NULL, NULL, &call));
    TRUE(wait_for(call) == sizeof places);
    /* Without room for the output. */
    dfly_output *output;
    OK(dfly_pool_submit_into(pool, function("where"), in, 64, NULL, NULL, NULL, NULL, &call));
    OK(dfly_pool_wait(pool, call, 20000, &output));
    TRUE(dfly_output_length(output) == sizeof places + 64);
    dfly_output_free(output);
    dfly_buffer_free(in), dfly_buffer_free(out);
    dfly_pool_free(pool);
}

static void buffer_in_use_is_refused(void) {
    uint64_t call, other;
    open_pool();
    uint32_t forever = function("forever"), where = function("where");
    dfly_buffer *in = buffer_of(0, LARGE), *out = buffer_of(0, 2 * LARGE);
    OK(dfly_pool_submit_into(pool, forever, in, LARGE, out, NULL, NULL, NULL, &call));
    IS(dfly_pool_submit_into(pool, where, NULL, 0, out, NULL, NULL, NULL, &other), DFLY_INVALID_REQUEST);
    SAYS("uses this buffer");
    IS(dfly_pool_submit_into(pool, where, out, 1, NULL, NULL, NULL, NULL, &other), DFLY_INVALID_REQUEST);
    IS(dfly_pool_submit_into(pool, where, in, LARGE + 1, NULL, NULL, NULL, NULL, &other), DFLY_INVALID_REQUEST);
    IS(dfly_pool_submit_into(pool, where, in, 1, in, NULL, NULL, NULL, &other), DFLY_INVALID_REQUEST);
    IS(dfly_pool_submit_into(pool, where, NULL, 0, NULL, NULL, NULL, NULL, NULL), DFLY_INVALID_REQUEST);
    IS(dfly_buffer_resize(out, 1), DFLY_INVALID_REQUEST);
    /* Another call may read what a call reads. */
    dfly_call_options second = of_worker(1);
    OK(dfly_pool_submit_into(pool, where, in, LARGE, NULL, &second, NULL, NULL, &other));
    TRUE(wait_for(other) > LARGE);
    OK(dfly_pool_kill(pool, call));
    dfly_output *output;
    IS(dfly_pool_wait(pool, call, 20000, &output), DFLY_CANCELLED);
    OK(dfly_buffer_resize(out, LARGE)); /* free again */
    dfly_buffer_free(in), dfly_buffer_free(out);
    dfly_pool_free(pool);
}

static void output_without_room_gives_its_error(void) {
    uint64_t call, length = LARGE + 1;
    dfly_output *output;
    open_pool();
    dfly_buffer *in = buffer_of(0, sizeof length), *out = buffer_of(0, LARGE);
    for (uint32_t worker = 0; worker < 2; worker++) { /* in place, and with a copy */
        dfly_call_options options = of_worker(worker);
        memcpy(dfly_buffer_data(in), &length, sizeof length);
        OK(dfly_pool_submit_into(pool, function("fill"), in, sizeof length, out, &options, NULL, NULL, &call));
        IS(dfly_pool_wait(pool, call, 20000, &output), DFLY_OUTPUT_OVERFLOW);
        length--;
        memcpy(dfly_buffer_data(in), &length, sizeof length);
        OK(dfly_pool_submit_into(pool, function("fill"), in, sizeof length, out, &options, NULL, NULL, &call));
        TRUE(wait_for(call) == LARGE && ((char *)dfly_buffer_data(out))[LARGE - 1] == 9);
        length++;
        /* A function that grows its output is stopped by the caller's bound too. */
        OK(dfly_buffer_resize(out, 32));
        OK(dfly_pool_submit_into(pool, function("where"), in, sizeof length, out, &options, NULL, NULL, &call));
        IS(dfly_pool_wait(pool, call, 20000, &output), DFLY_OUTPUT_OVERFLOW);
        OK(dfly_buffer_resize(out, LARGE));
    }
    dfly_buffer_free(in), dfly_buffer_free(out);
    dfly_pool_free(pool);
}

static void room_is_the_capacity_of_the_function(void) {
    uint64_t bytes = 0;
    size_t length;
    dfly_call_options options = of_worker(DFLY_ANY_WORKER);
    open_pool();
    options.room = 3 * LARGE;
    OK(dfly_pool_call(pool, function("capacity"), NULL, 0, &options, &bytes, sizeof bytes, &length));
    TRUE(length == sizeof bytes && bytes == options.room);
    dfly_pool_free(pool);
}

static void state_of_a_replaced_worker_is_lost(void) {
    uint64_t calls = 0;
    size_t length;
    dfly_call_options options = of_worker(1);
    open_pool();
    options.incarnation = dfly_pool_incarnation(pool, 1);
    TRUE(options.incarnation != 0);
    OK(dfly_pool_call(pool, function("count"), NULL, 0, &options, &calls, sizeof calls, &length));
    OK(dfly_pool_call(pool, function("count"), NULL, 0, &options, &calls, sizeof calls, &length));
    TRUE(calls == 2);
    dfly_call_options crash = of_worker(1);
    IS(dfly_pool_call(pool, function("crash"), NULL, 0, &crash, &calls, sizeof calls, &length), DFLY_MAYBE_EXECUTED);
    IS(dfly_pool_call(pool, function("count"), NULL, 0, &options, &calls, sizeof calls, &length), DFLY_STATE_LOST);
    TRUE(calls == 2);
    options.incarnation = dfly_pool_incarnation(pool, 1);
    OK(dfly_pool_call(pool, function("count"), NULL, 0, &options, &calls, sizeof calls, &length));
    TRUE(calls == 1);
    options.worker = DFLY_ANY_WORKER;
    IS(dfly_pool_call(pool, function("count"), NULL, 0, &options, &calls, sizeof calls, &length), DFLY_INVALID_REQUEST);
    TRUE(dfly_pool_incarnation(pool, 77) == 0);
    dfly_pool_free(pool);
}

static void retried_call_reads_and_writes_its_buffers(const char *directory) {
    uint64_t call;
    open_pool();
    dfly_buffer *in = buffer_of(0, LARGE), *out = buffer_of(0, LARGE);
    char *name = dfly_buffer_data(in);
    snprintf(name, LARGE, "%s/crashed", directory);
    name[LARGE - 1] = 0;
    dfly_call_options options = of_worker(DFLY_ANY_WORKER);
    options.idempotent = 1;
    OK(dfly_pool_submit_into(pool, function("crash_once"), in, LARGE, out, &options, NULL, NULL, &call));
    TRUE(wait_for(call) == LARGE && memcmp(dfly_buffer_data(in), dfly_buffer_data(out), LARGE) == 0);
    dfly_buffer_free(in), dfly_buffer_free(out);
    dfly_pool_free(pool);
}

/* Seven times the memory of a channel passes through it, by calls whose outcomes nobody takes. */
static void abandoned_calls_return_their_buffers(void) {
    uint64_t call;
    bool cancelled;
    dfly_pool_options options;
    OK(dfly_pool_options_init(&options));
    options.channel.bulk_bytes = 256 * LARGE;
    OK(dfly_pool_open(lease, &options, &pool));
    for (int round = 0; round < 60; round++) {
        dfly_buffer *in = buffer_of(0, 16 * LARGE), *out = buffer_of(0, 16 * LARGE);
        OK(dfly_pool_submit_into(pool, function("capacity"), in, 16 * LARGE, out, NULL, NULL, NULL, &call));
        dfly_buffer_free(in), dfly_buffer_free(out); /* while the call uses them */
        if (round % 3 == 0) {
            OK(dfly_pool_cancel(pool, call, &cancelled));
        }
        if (round % 3 == 1) {
            TRUE(wait_for(call) == 8);
        } else {
            OK(dfly_pool_forget(pool, call));
        }
        char small[8];
        size_t length;
        OK(dfly_pool_call(pool, function("pid"), NULL, 0, NULL, small, sizeof small, &length));
    }
    dfly_pool_free(pool);
}

static int ended;
static void on_end(void *user, dfly_status status, const char *message, const void *output, size_t length) {
    dfly_buffer *out = user;
    (void)message, (void)length;
    if (status == DFLY_OK) {
        TRUE(output == dfly_buffer_data(out));
    }
    OK(dfly_buffer_resize(out, dfly_buffer_length(out) - 1)); /* the call uses it no more */
    ended++;
}

static void callback_may_use_the_buffers_again(void) {
    open_pool();
    dfly_buffer *out = buffer_of(0, LARGE);
    OK(dfly_pool_submit_into(pool, function("where"), NULL, 0, out, NULL, on_end, out, NULL));
    while (ended < 1) {
        OK(dfly_pool_drive(pool, 5000, NULL));
    }
    OK(dfly_pool_submit_into(pool, function("forever"), NULL, 0, out, NULL, on_end, out, NULL));
    dfly_pool_free(pool);
    TRUE(ended == 2 && dfly_buffer_length(out) == LARGE - 2);
    dfly_buffer_free(out);
}

int main(int argc, char **argv) {
    dfly_client *client;
    dfly_lease_options options;
    TRUE(argc == 3);
    OK(dfly_client_connect(NULL, &client));
    OK(dfly_lease_options_init(&options));
    options.mode = DFLY_MODE_WARM;
    options.workers = 2;
    OK(dfly_lease_open(client, &options, &lease));
    OK(dfly_lease_load_library(lease, argv[1], &code));
    buffers_travel_both_ways_without_a_copy();
    ordinary_memory_is_copied_and_counted();
    buffers_of_another_worker_are_copied();
    busy_worker_leaves_its_calls_to_others();
    small_outputs_are_copied_from_their_slot();
    buffer_in_use_is_refused();
    output_without_room_gives_its_error();
    room_is_the_capacity_of_the_function();
    state_of_a_replaced_worker_is_lost();
    retried_call_reads_and_writes_its_buffers(argv[2]);
    abandoned_calls_return_their_buffers();
    callback_may_use_the_buffers_again();
    dfly_lease_free(lease);
    dfly_client_free(client);
    puts("all held");
}
