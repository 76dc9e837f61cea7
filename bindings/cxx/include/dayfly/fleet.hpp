// Workers on many nodes behind one queue.
#ifndef DAYFLY_FLEET_HPP
#define DAYFLY_FLEET_HPP

#include "client.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace dayfly {

// Bounds and times of a fleet, and the terms of its leases.
struct fleet_options {
    std::uint32_t min = 0;  // workers that the fleet holds also without calls
    std::uint32_t max = 16; // maximum
    lease_options lease = four_workers(); // of each lease; `workers` is the maximum of one lease
    std::chrono::milliseconds patience{10};   // how long calls must have waited before the fleet grows
    std::chrono::milliseconds idle{10000};    // how long a lease must have been idle before the fleet gives it back
    std::chrono::milliseconds wait{60000};    // how long calls wait while the fleet cannot lease any worker

    // Returns the options for the C library. The result points into this object and is valid as long as it.
    dfly_fleet_options raw() const {
        dfly_fleet_options options;
        detail::check(dfly_fleet_options_init(&options));
        options.lease = lease.raw();
        options.min = min;
        options.max = max;
        options.patience_ms = static_cast<std::uint64_t>(patience.count());
        options.idle_ms = static_cast<std::uint64_t>(idle.count());
        options.wait_ms = static_cast<std::uint64_t>(wait.count());
        return options;
    }

private:
    static lease_options four_workers() {
        lease_options options;
        options.workers = 4;
        return options;
    }
};

// Leases on many nodes, which grow and shrink with the calls. Thread-safe. Calls move from nodes that are lost or taken
// back to others, if they have not begun or are idempotent. `invoker::allocate` with `fleet_options` calls functions on a
// fleet; this class is for programs that use the C library's pools.
class fleet {
public:
    // Returns at once; the first worker serves calls while others are started.
    explicit fleet(const client &source, const fleet_options &options = {}) : fleet(source, options.raw()) {}
    fleet(const client &source, const dfly_fleet_options &options) : handle_(open(source, options)) {}

    // Sends a shared library to all nodes, also to those that join later. Returns its identity.
    dfly_code load_library(const std::string &path) const {
        dfly_code code;
        detail::check(dfly_fleet_load_library(get(), path.c_str(), &code));
        return code;
    }
    // Waits at most `limit` for so many workers. Throws DFLY_TIMED_OUT, with the reason of the last refused lease.
    void wait_for_workers(std::uint32_t workers, std::chrono::milliseconds limit) const {
        const std::uint32_t millis =
            limit.count() < DFLY_FOR_EVER ? static_cast<std::uint32_t>(limit.count()) : DFLY_FOR_EVER;
        detail::check(dfly_fleet_wait(get(), workers, millis));
    }

    std::uint32_t workers() const noexcept { return dfly_fleet_workers(get()); }
    std::uint32_t nodes() const noexcept { return dfly_fleet_nodes(get()); }
    // Releases all workers now. Calls that have not ended fail.
    void close() const { detail::check(dfly_fleet_close(get())); }

    const dfly_pool *pool() const noexcept { return dfly_fleet_pool(get()); }
    dfly_fleet *get() const noexcept { return handle_.get(); }

private:
    static dfly_fleet *open(const client &source, const dfly_fleet_options &options) {
        dfly_fleet *handle = nullptr;
        detail::check(dfly_fleet_open(source.get(), &options, &handle));
        return handle;
    }

    std::unique_ptr<dfly_fleet, detail::closer> handle_;
};

} // namespace dayfly

#endif
