// Tests of invokers over fleets with two nodes of two workers: fleets <functions.so> <connection>. Stops after "half":
// the node n0 is then killed, and a line on standard input lets it go on.
#include "check.hpp"

#include <cstring>
#include <dayfly/dayfly.hpp>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

static void calls_end_although_a_node_is_lost(dayfly::invoker &invoker) {
    std::vector<int> in(2000), out(2000);
    std::iota(in.begin(), in.end(), 0);
    std::vector<dayfly::future<std::size_t>> calls;
    dayfly::call_options options;
    options.idempotent = true;
    for (std::size_t i = 0; i < in.size(); i++) {
        calls.push_back(invoker.submit<int>("echo", &in[i], sizeof(int), &out[i], sizeof(int), options));
    }
    std::cout << "half" << std::endl;
    std::string line;
    HOLDS(static_cast<bool>(std::getline(std::cin, line)));
    HOLDS(dayfly::when_all(std::move(calls)).get() == std::vector<std::size_t>(in.size(), 1));
    HOLDS(out == in);
}

static void buffers_of_a_fleet_are_used(dayfly::invoker &invoker) {
    auto memory = invoker.allocator<char>();
    dayfly::buffer<char> in = memory.input(100000), out = memory.output(100000);
    std::memset(in.data(), 8, in.size());
    HOLDS(invoker.submit("echo", in, in.size(), out).get() == out.size() && out[99999] == 8);
    std::vector<char, dayfly::allocator<char>> v(3, 'v', memory), w(3, 'w', memory);
    HOLDS(invoker.submit("echo", v, w).get() == 3 && w == v);
}

int main(int argc, char **argv) {
    HOLDS(argc == 3);
    dayfly::client client{std::string(argv[2])};
    dayfly::fleet_options options;
    HOLDS(options.lease.workers == 4);
    options.max = 0;
    HOLDS(thrown_by([&] { dayfly::fleet(client, options); }) == DFLY_INVALID_REQUEST);
    options.min = options.max = 4;
    options.lease.workers = 2;
    options.lease.mode = dayfly::mode::warm;

    dayfly::invoker invoker{dayfly::client(std::string(argv[2]))};
    HOLDS(thrown_by([&] { invoker.allocate("/no/such/file.so", options); }) == DFLY_NOT_FOUND);
    invoker.allocate(argv[1], options);
    for (const char *name : {"echo", "forever"}) {
        invoker.declare(name, dayfly::form::checked);
    }
    buffers_of_a_fleet_are_used(invoker);
    calls_end_although_a_node_is_lost(invoker);
    dayfly::call_options named;
    named.worker = 0;
    HOLDS(thrown_by([&] { invoker.call("echo", "x", 1, nullptr, 0, named); }) == DFLY_INVALID_REQUEST);
    HOLDS(invoker.workers() > 0);
    char small[1];
    auto stuck = invoker.submit("forever", nullptr, 0, small, sizeof small);
    invoker.deallocate();
    HOLDS(thrown_by([&] { stuck.get(); }) != DFLY_OK);
    HOLDS(invoker.workers() == 0);

    // A fleet by itself, for pools of the C library.
    options.min = options.max = 1;
    dayfly::fleet fleet(client, options);
    fleet.load_library(argv[1]);
    fleet.wait_for_workers(1, std::chrono::seconds(20));
    HOLDS(fleet.workers() == 1 && fleet.nodes() == 1 && fleet.pool() != nullptr);
    HOLDS(thrown_by([&] { fleet.wait_for_workers(2, std::chrono::milliseconds(1)); }) == DFLY_TIMED_OUT);
    fleet.close();
    std::puts("all held");
}
