// Tests of futures, of calls before there are workers, and of memory that is not copied, with a real manager, node and
// workers: futures <functions.so>.
#include "../../c/tests/place.h"
#include "check.hpp"

#include <atomic>
#include <cstring>
#include <dayfly/dayfly.hpp>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

using dayfly::future;

static const std::size_t LARGE = std::size_t(1) << 20;

static void declare_all(dayfly::invoker &invoker) {
    for (const char *name : {"echo", "complain", "where", "fill", "capacity", "count", "crash", "forever", "pid"}) {
        invoker.declare(name, dayfly::form::checked);
    }
}

static dayfly::lease_options two_warm_workers() {
    dayfly::lease_options options;
    options.mode = dayfly::mode::warm;
    options.workers = 2;
    return options;
}

static void calls_are_submitted_before_there_are_workers(const char *library) {
    dayfly::invoker invoker;
    int in[2] = {3, 4}, out[2] = {0, 0};
    future<std::uint32_t> started = invoker.start(library, 0, two_warm_workers());
    declare_all(invoker);
    future<std::size_t> first = invoker.submit("echo", &in[0], sizeof(int), &out[0], sizeof(int));
    future<std::size_t> second = invoker.submit<int>("echo", &in[1], sizeof(int), &out[1], sizeof(int));
    HOLDS(!started.is_ready() && !first.is_ready() && invoker.workers() == 0); // a manager starts for longer than that
    HOLDS(first.get() == sizeof(int) && second.get() == 1 && out[0] == 3 && out[1] == 4);
    HOLDS(started.get() == 2 && invoker.workers() == 2);
    HOLDS(thrown_by([&] { started.get(); }) == DFLY_INVALID_REQUEST);

    // What fails at the start fails its calls, and functions that need workers.
    dayfly::invoker other;
    future<std::uint32_t> fails = other.start("/no/such/library.so");
    future<std::size_t> call = other.submit("echo", &in[0], sizeof(int), &out[0], sizeof(int));
    HOLDS(thrown_by([&] { call.get(); }) == DFLY_NOT_FOUND);
    HOLDS(thrown_by([&] { other.allocator<int>(); }) == DFLY_NOT_FOUND);
    HOLDS(thrown_by([&] { fails.get(); }) == DFLY_NOT_FOUND);
    other.start(library).get(); // and again
    other.declare("echo", dayfly::form::checked);
    HOLDS(other.call("echo", &in[1], sizeof(int), &out[0], sizeof(int)) == sizeof(int) && out[0] == 4);

    // A start whose result nobody takes ends with its invoker.
    dayfly::invoker unused;
    unused.start(library);
}

static void memory_of_the_allocator_is_not_copied(dayfly::invoker &invoker) {
    struct place places[2];
    for (std::uint32_t worker = 0; worker < 2; worker++) {
        auto alloc = invoker.allocator<char>(worker);
        const dayfly::copied_bytes before = invoker.copied();
        dayfly::buffer<char> in = alloc.input(LARGE), out = alloc.output(LARGE + sizeof places);
        in[LARGE - 1] = 7;
        HOLDS(invoker.submit("where", in, LARGE, out).get() == out.size() && out[out.size() - 1] == 7);
        std::memcpy(places, out.data(), sizeof places);
        HOLDS(is_same_place(places[0], place_of(in.data())) && is_same_place(places[1], place_of(out.data())));
        HOLDS(invoker.call("where", in, LARGE, out) == out.size());

        std::vector<char, dayfly::allocator<char>> v(LARGE, 3, alloc), w(LARGE + sizeof places, 0, alloc);
        HOLDS(invoker.submit("where", v, w).get() == w.size() && w.back() == 3);
        std::memcpy(places, w.data(), sizeof places);
        HOLDS(is_same_place(places[0], place_of(v.data())) && is_same_place(places[1], place_of(w.data())));
        HOLDS(invoker.copied().input == before.input && invoker.copied().output == before.output);

        // Ordinary memory is copied.
        std::vector<char> x(LARGE, 4), y(LARGE + sizeof places);
        HOLDS(invoker.submit("where", x, y).get() == y.size() && y.back() == 4);
        HOLDS(invoker.copied().input >= before.input + LARGE && invoker.copied().output >= before.output + y.size());
    }
    HOLDS(thrown_by([&] { invoker.allocator<char>(2); }) == DFLY_INVALID_REQUEST);
}

static void options_of_calls_hold(dayfly::invoker &invoker) {
    std::uint64_t number = 0;
    dayfly::call_options options;
    options.room = 3 * LARGE;
    HOLDS(invoker.submit("capacity", nullptr, 0, &number, sizeof number, options).get() == sizeof number);
    HOLDS(number == options.room);
    options = {};
    options.deadline = std::chrono::milliseconds(50);
    auto late = invoker.submit("forever", nullptr, 0, &number, sizeof number, options);
    HOLDS(thrown_by([&] { late.get(); }) == DFLY_DEADLINE_EXCEEDED);
    options = {};
    options.worker = 1;
    options.incarnation = invoker.incarnation(1);
    HOLDS(options.incarnation != 0);
    HOLDS(invoker.call("count", nullptr, 0, &number, sizeof number, options) == sizeof number && number == 1);
    dayfly::call_options crash;
    crash.worker = 1;
    HOLDS(thrown_by([&] { invoker.call("crash", nullptr, 0, &number, sizeof number, crash); }) == DFLY_MAYBE_EXECUTED);
    auto lost = invoker.submit("count", nullptr, 0, &number, sizeof number, options);
    HOLDS(thrown_by([&] { lost.get(); }) == DFLY_STATE_LOST);
    // Too little room for the output.
    auto alloc = invoker.allocator<std::uint64_t>(0);
    dayfly::buffer<std::uint64_t> in = alloc.input(1), out = alloc.output(1000);
    in[0] = 8001;
    auto overflow = invoker.submit("fill", in, 1, out);
    HOLDS(thrown_by([&] { overflow.get(); }) == DFLY_OUTPUT_OVERFLOW);
    in[0] = 8000;
    HOLDS(invoker.submit("fill", in, 1, out).get() == 1000);
}

static void continuations_run_in_order(dayfly::invoker &invoker) {
    int in = 20, out = 0;
    const auto call = [&] { return invoker.submit<int>("echo", &in, sizeof in, &out, sizeof out); };
    HOLDS(call().then([&](std::size_t) { return out + 1; }).then([](int n) { return 2 * n; }).get() == 42);
    // A continuation may return a future, that of a call for example.
    int again = 0;
    auto both = call().then([&](std::size_t) { return invoker.submit<int>("echo", &out, sizeof out, &again, sizeof again); });
    HOLDS(both.get() == 1 && again == 20);
    // Nothing in, and nothing out.
    bool ran = false;
    call().then([](std::size_t) {}).then([&] { ran = true; }).get();
    HOLDS(ran);
    // After the result is there.
    future<std::size_t> ready = call();
    ready.wait();
    HOLDS(ready.is_ready() && ready.then([](std::size_t n) { return n + 1; }).get() == 2);
    HOLDS(!ready.valid() && thrown_by([&] { ready.wait(); }) == DFLY_INVALID_REQUEST);
    // Only movable.
    auto moved = call().then([](std::size_t n) { return std::make_unique<std::size_t>(n); });
    HOLDS(*moved.then([](std::unique_ptr<std::size_t> n) { return n; }).get() == 1);
    // As the standard library's.
    std::future<std::size_t> standard = call();
    HOLDS(standard.get() == 1);
    HOLDS(!future<int>().valid());
    HOLDS(!invoker.submit("forever", nullptr, 0, &out, sizeof out, [] {
        dayfly::call_options options;
        options.deadline = std::chrono::milliseconds(100);
        return options;
    }()).wait_for(std::chrono::milliseconds(1)));
}

static void errors_pass_through_continuations(dayfly::invoker &invoker) {
    char out[8];
    bool ran = false;
    auto skipped = invoker.submit("complain", nullptr, 0, out, sizeof out)
                       .then([&](std::size_t n) {
                           ran = true;
                           return n;
                       })
                       .then([&](std::size_t) { ran = true; });
    HOLDS(thrown_by([&] { skipped.get(); }) == DFLY_FUNCTION_ERROR && !ran);

    auto thrown = invoker.submit("echo", "1", 1, out, sizeof out).then([](std::size_t) -> int {
        throw std::out_of_range("mine");
    });
    std::string text;
    try {
        thrown.then([](int n) { return n; }).get();
    } catch (const std::out_of_range &mine) {
        text = mine.what();
    }
    HOLDS(text == "mine");
    // The future that a continuation returns fails, or has no result.
    auto inner = invoker.submit("echo", "1", 1, out, sizeof out).then([&](std::size_t) {
        return invoker.submit("complain", nullptr, 0, out, sizeof out);
    });
    HOLDS(thrown_by([&] { inner.get(); }) == DFLY_FUNCTION_ERROR);
    auto none = invoker.submit("echo", "1", 1, out, sizeof out).then([](std::size_t) { return future<int>(); });
    HOLDS(thrown_by([&] { none.get(); }) == DFLY_INVALID_REQUEST);
    // The invoker is not taken down by the thread that it owns.
    std::promise<dfly_status> refused;
    invoker.submit("echo", "1", 1, [&](const dayfly::result &) {
        refused.set_value(thrown_by([&] { invoker.deallocate(); }));
    });
    HOLDS(refused.get_future().get() == DFLY_INVALID_REQUEST);
}

static void all_of_many_have_one_result(dayfly::invoker &invoker) {
    std::vector<int> in(200), out(200);
    std::iota(in.begin(), in.end(), 0);
    const auto call = [&](std::size_t i) { return invoker.submit<int>("echo", &in[i], sizeof(int), &out[i], sizeof(int)); };
    std::vector<future<int>> values;
    for (std::size_t i = 0; i < in.size(); i++) {
        values.push_back(call(i).then([&, i](std::size_t) { return out[i]; }));
    }
    HOLDS(dayfly::when_all(std::move(values)).get() == in);
    HOLDS(dayfly::when_all(call(0), call(1), call(2)).get() == std::vector<std::size_t>(3, 1));
    HOLDS(dayfly::when_all(std::vector<future<int>>()).get().empty());
    const auto nothing = [](std::size_t) {};
    dayfly::when_all(call(3).then(nothing), call(4).then(nothing)).get();

    // It waits for all, and fails with the first error in order.
    char small[1];
    std::atomic<int> ended{0};
    const auto count = [&](std::size_t n) {
        ended++;
        return n;
    };
    auto mixed = dayfly::when_all(call(0).then(count), invoker.submit("no_such_symbol", "1", 1, small, sizeof small),
                                  invoker.submit("complain", nullptr, 0, small, sizeof small), call(1).then(count));
    HOLDS(thrown_by([&] { mixed.get(); }) == DFLY_LOAD_FAILED && ended == 2);
    future<std::size_t> taken = call(0);
    taken.get();
    std::vector<future<std::size_t>> invalid;
    invalid.push_back(std::move(taken));
    HOLDS(thrown_by([&] { dayfly::when_all(std::move(invalid)); }) == DFLY_INVALID_REQUEST);
}

// The memory of calls whose results nobody takes is used again.
static void dropped_futures_return_their_buffers(dayfly::invoker &invoker) {
    static char out[8]; // a dropped call may end later
    std::set<std::uint64_t> positions;
    for (int round = 0; round < 60; round++) {
        auto alloc = invoker.allocator<char>(0);
        dayfly::buffer<char> in = alloc.input(16 * LARGE), room = alloc.output(16 * LARGE);
        positions.insert(place_of(in.data()).position);
        positions.insert(place_of(room.data()).position);
        {
            auto dropped = invoker.submit("capacity", in, in.size(), room);
            auto continued = invoker.submit("pid", nullptr, 0, out, sizeof out).then([](std::size_t n) { return n; });
        }
        if (round % 2 == 0) {
            in = {}, room = {}; // while the call uses them
        }
        char own[8];
        HOLDS(invoker.call("pid", nullptr, 0, own, sizeof own) == 4);
    }
    HOLDS(positions.size() <= 16);
}

#ifdef DAYFLY_HAS_COROUTINES
static future<int> sum_of(dayfly::invoker &invoker, int a, int b) {
    int first = 0, second = 0;
    co_await invoker.submit("echo", &a, sizeof a, &first, sizeof first);
    co_await invoker.submit("echo", &b, sizeof b, &second, sizeof second);
    co_return first + second;
}

static future<void> complain(dayfly::invoker &invoker) {
    char out[8];
    co_await invoker.submit("complain", nullptr, 0, out, sizeof out);
}

static future<int> all_together(dayfly::invoker &invoker) {
    std::vector<future<int>> sums;
    for (int i = 0; i < 50; i++) {
        sums.push_back(sum_of(invoker, i, 1));
    }
    int total = 0;
    for (int sum : co_await dayfly::when_all(std::move(sums))) {
        total += sum;
    }
    dfly_status status = DFLY_OK;
    try {
        co_await complain(invoker);
    } catch (const dayfly::error &error) {
        status = error.code();
    }
    co_return status == DFLY_FUNCTION_ERROR ? total : -1;
}

static void coroutines_await_calls(dayfly::invoker &invoker) {
    HOLDS(sum_of(invoker, 20, 22).get() == 42);
    HOLDS(all_together(invoker).get() == 49 * 50 / 2 + 50);
    HOLDS(thrown_by([&] { complain(invoker).get(); }) == DFLY_FUNCTION_ERROR);
}
#endif

int main(int argc, char **argv) {
    HOLDS(argc == 2);
    calls_are_submitted_before_there_are_workers(argv[1]);
    dayfly::invoker invoker;
    invoker.allocate(argv[1], 0, two_warm_workers());
    declare_all(invoker);
    memory_of_the_allocator_is_not_copied(invoker);
    options_of_calls_hold(invoker);
    continuations_run_in_order(invoker);
    errors_pass_through_continuations(invoker);
    all_of_many_have_one_result(invoker);
    dropped_futures_return_their_buffers(invoker);
#ifdef DAYFLY_HAS_COROUTINES
    coroutines_await_calls(invoker);
    std::puts("coroutines held");
#endif
    std::puts("all held");
}
