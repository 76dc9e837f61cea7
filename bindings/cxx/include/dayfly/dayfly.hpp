// Dayfly for C++17: lease workers and invoke functions on them. A header over dayfly.h; link with -ldayfly -pthread.
//
//     dayfly::invoker invoker;                          // finds a manager, or starts an embedded one
//     invoker.allocate("./libtask.so");                 // leases a worker and sends it the library
//     auto alloc = invoker.allocator<double>();
//     dayfly::buffer<double> in = alloc.input(n), out = alloc.output(n);
//     dayfly::future<std::size_t> f = invoker.submit("task", in, n, out);
//     f.get();                                          // number of doubles written to `out`, which was not copied
//     invoker.deallocate();
//
// `invoker` distributes calls over all workers of a lease, from any thread. `channel` connects to one worker directly:
// lowest latency, no copies, one thread at a time. `group` is the ranks that `dayfly run` started. Every function that
// fails throws `dayfly::error`.
#ifndef DAYFLY_DAYFLY_HPP
#define DAYFLY_DAYFLY_HPP

#include "call_options.hpp"
#include "channel.hpp"
#include "client.hpp"
#include "error.hpp"
#include "fleet.hpp"
#include "future.hpp"
#include "group.hpp"
#include "invoker.hpp"
#include "memory.hpp"
#include "offload.hpp"
#include "result.hpp"

#endif
