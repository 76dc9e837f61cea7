// Tests of the C++ headers with a real manager, node and workers: calls <functions.so>.
#include "check.hpp"

#include <atomic>
#include <cstring>
#include <dayfly/dayfly.hpp>
#include <numeric>
#include <vector>

static void futures_and_callbacks(const char *library) {
    dayfly::invoker invoker;
    HOLDS(thrown_by([&] { invoker.allocator<double>(); }) == DFLY_INVALID_REQUEST);
    invoker.allocate(library, 64, dayfly::invoker::ALWAYS_WARM, 2);
    invoker.declare("echo", dayfly::form::checked);
    invoker.declare("complain", dayfly::form::checked);
    invoker.declare("forever", dayfly::form::checked);

    auto alloc = invoker.allocator<double>();
    dayfly::buffer<double> in = alloc.input(5000), out = alloc.output(5000);
    std::iota(in.begin(), in.end(), 0.0);
    HOLDS(invoker.submit("echo", in, 4000, out).get() == 4000);
    HOLDS(out[3999] == 3999.0 && out[4000] == 0.0);
    HOLDS(thrown_by([&] { invoker.submit("echo", in, 5001, out); }) == DFLY_INVALID_REQUEST);

    std::vector<double, dayfly::allocator<double>> v(100, 2.0, alloc), w(100, 0.0, alloc);
    HOLDS(invoker.submit("echo", v, w).get() == 100 && w[99] == 2.0);
    v.resize(1000, 3.0); // grows like any vector
    w = v;
    HOLDS(w.back() == 3.0);

    std::vector<std::future<std::size_t>> futures;
    std::vector<int> numbers(5000), answers(5000);
    std::iota(numbers.begin(), numbers.end(), 0);
    for (std::size_t i = 0; i < numbers.size(); i++) {
        futures.push_back(invoker.submit("echo", &numbers[i], sizeof(int), &answers[i], sizeof(int)));
    }
    for (auto &future : futures) {
        HOLDS(future.get() == sizeof(int));
    }
    HOLDS(answers == numbers);

    std::promise<dfly_status> told;
    invoker.submit("complain", nullptr, 0, [&](const dayfly::result &result) {
        HOLDS(std::strcmp(result.message(), "I would rather not") == 0);
        told.set_value(result.status());
    });
    HOLDS(told.get_future().get() == DFLY_FUNCTION_ERROR);
    char small[2];
    auto overflow = invoker.submit("echo", "1234", 4, small, sizeof small);
    HOLDS(thrown_by([&] { overflow.get(); }) == DFLY_OUTPUT_OVERFLOW);
    auto unknown = invoker.submit("no_such_symbol", "1234", 4, small, sizeof small);
    HOLDS(thrown_by([&] { unknown.get(); }) == DFLY_LOAD_FAILED);
    HOLDS(invoker.call("echo", "12", 2, small, sizeof small) == 2 && small[1] == '2');

    // A call that runs when its workers are released ends with an error at once.
    auto stuck = invoker.submit("forever", nullptr, 0, small, sizeof small);
    invoker.deallocate();
    HOLDS(thrown_by([&] { stuck.get(); }) != DFLY_OK);
    HOLDS(thrown_by([&] { alloc.input(1); }) == DFLY_LEASE_ENDED);
    HOLDS(in[4999] == 4999.0); // buffers outlive their invoker
    invoker.deallocate();
    invoker.allocate(library); // and again
    HOLDS(invoker.workers() == 1);
}

static void channels(const char *library) {
    dayfly::client client;
    dayfly::lease_options options;
    options.mode = dayfly::mode::warm;
    dayfly::lease lease = client.lease(options);
    dfly_code code = lease.load_library(library);
    for (dayfly::transport transport : {dayfly::transport::shm, dayfly::transport::tcp, dayfly::transport::tls}) {
        dayfly::channel_options how;
        how.transport = transport;
        dayfly::channel channel(lease, 0, how);
        HOLDS(channel.transport() == transport);
        dayfly::function echo = channel.load(code, "echo", dayfly::form::checked);
        dayfly::channel::vector<long> in(100000, 7, channel.allocator<long>()), out(100000, channel.allocator<long>());
        HOLDS(channel.call(echo, in, out) == in.size() && out == in);
        std::vector<long> ordinary(10);
        dayfly::channel::vector<long> empty(channel.allocator<long>());
        HOLDS(thrown_by([&] { channel.call(echo, empty, out); }) == DFLY_INVALID_REQUEST);
        auto from = channel.allocator<int>().input(3), to = channel.allocator<int>().output(3);
        from[2] = 5;
        HOLDS(channel.call(echo, from, 3, to) == 3 && to[2] == 5);
        std::uint32_t first = channel.submit(echo, "abc", 3);
        dfly_completion completion = channel.wait(std::chrono::seconds(5));
        HOLDS(completion.sequence == first && completion.length == 3);
        dayfly::channel moved = std::move(channel);
        char output[3];
        HOLDS(moved.call(echo, "xyz", 3, output, sizeof output) == 3 && output[0] == 'x');
    }
    HOLDS(thrown_by([&] { dayfly::channel(lease, 9); }) == DFLY_NOT_FOUND);
}

static void leases_straight_from_nodes(const char *library) {
    dayfly::client client;
    dayfly::allowance_options allowance;
    allowance.workers = 2;
    dayfly::lease_options options;
    options.mode = dayfly::mode::warm;
    options.workers = 2;
    client.lease(options); // the node has reached its manager
    dayfly::client direct = client.allowance(allowance);
    dayfly::lease lease = direct.lease(options);
    dfly_code code = lease.load_library(library);
    dayfly::channel channel(lease, 0);
    dayfly::function echo = channel.load(code, "echo", dayfly::form::checked);
    char output[3];
    HOLDS(channel.call(echo, "xyz", 3, output, sizeof output) == 3 && output[2] == 'z');
}

static void parts_of_a_lease(const char *library) {
    dayfly::invoker whole;
    dayfly::lease_options options;
    options.mode = dayfly::mode::warm;
    options.workers = 2;
    whole.allocate(library, options);
    whole.declare("echo", dayfly::form::checked);
    dayfly::delegation part = whole.delegate(1, std::chrono::minutes(1));
    dayfly::invoker other;
    char output[4];
    other.use(dayfly::delegation(part.text()), library);
    other.declare("echo", dayfly::form::checked);
    HOLDS(other.workers() == 1);
    HOLDS(other.call("echo", "part", 4, output, sizeof output) == 4 && output[3] == 't');
    HOLDS(whole.call("echo", "rest", 4, output, sizeof output) == 4 && output[3] == 't');
    whole.take_back(part);
    HOLDS(thrown_by([&] { whole.take_back(part); }) == DFLY_NOT_FOUND);
    HOLDS(thrown_by([&] { dayfly::delegation("nonsense"); }) == DFLY_INVALID_REQUEST);
}

static void renewed_leases(const char *library) {
    dayfly::client client;
    dayfly::lease_options options;
    options.mode = dayfly::mode::warm;
    options.poll_for = std::chrono::microseconds(100);
    dayfly::lease lease = client.lease(options);
    lease.load_library(library);
    lease.renew(std::chrono::minutes(1), dayfly::renew_options().workers(2).poll_for(std::chrono::microseconds(0)));
    HOLDS(lease.workers() == 2 && !lease.is_hot());
    lease.renew(std::chrono::minutes(1), dayfly::renew_options().workers(1));
    HOLDS(lease.workers() == 1);
    auto beyond = dayfly::renew_options().workers(1000);
    HOLDS(thrown_by([&] { lease.renew(std::chrono::minutes(1), beyond); }) != DFLY_OK);
    lease.renew(std::chrono::minutes(1), beyond.min_workers(2));
    HOLDS(lease.workers() >= 2);
}

int main(int argc, char **argv) {
    HOLDS(argc == 2);
    renewed_leases(argv[1]);
    channels(argv[1]);
    futures_and_callbacks(argv[1]);
    parts_of_a_lease(argv[1]);
    leases_straight_from_nodes(argv[1]);
    std::puts("all held");
}
