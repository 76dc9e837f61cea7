// Mayfly for C++17: lease workers and invoke functions on them. A header over mayfly.h; link with -lmayfly -pthread.
//
//     mayfly::invoker invoker;                          // finds a manager, or starts one of its own
//     invoker.allocate("./libtask.so");                 // leases a worker and sends it the library
//     auto alloc = invoker.allocator<double>();
//     mayfly::buffer<double> in = alloc.input(n), out = alloc.output(n);
//     std::future<std::size_t> f = invoker.submit("task", in, n, out);
//     f.get();                                          // how many doubles came
//     invoker.deallocate();
//
// `invoker` spreads calls over all workers of a lease, from any thread. `channel` is the way to one worker with nothing in
// between: the shortest latency, no copies, one thread at a time. `group` is the ranks that `mayfly run` started this program
// on. Everything that fails throws `mayfly::error`.
#ifndef MAYFLY_MAYFLY_HPP
#define MAYFLY_MAYFLY_HPP

#include "channel.hpp"
#include "client.hpp"
#include "error.hpp"
#include "group.hpp"
#include "invoker.hpp"
#include "memory.hpp"

#endif
