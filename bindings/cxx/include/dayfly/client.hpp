// Clients and leases.
#ifndef DAYFLY_CLIENT_HPP
#define DAYFLY_CLIENT_HPP

#include "error.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace dayfly {

enum class mode : std::uint32_t { automatic = DFLY_MODE_AUTO, hot = DFLY_MODE_HOT, warm = DFLY_MODE_WARM };

enum class transport : std::uint32_t {
    best = DFLY_TRANSPORT_BEST,
    shm = DFLY_TRANSPORT_SHM,
    tcp = DFLY_TRANSPORT_TCP,
    tls = DFLY_TRANSPORT_TLS,
    libfabric = DFLY_TRANSPORT_LIBFABRIC
};

// The two forms of functions: see dayfly_function.h.
enum class form : std::uint32_t { plain = DFLY_FORM_PLAIN, checked = DFLY_FORM_CHECKED };

// How workers are isolated from their host. `site`: the site's policy chooses.
enum class sandbox : std::uint32_t {
    site = DFLY_SANDBOX_SITE,
    process = DFLY_SANDBOX_PROCESS,
    isolated = DFLY_SANDBOX_ISOLATED,
    container = DFLY_SANDBOX_CONTAINER
};

// Options of a lease.
struct lease_options {
    std::uint32_t workers = 1;
    dayfly::mode mode = dayfly::mode::automatic;
    std::uint32_t cores_per_worker = 1;       // whole cores
    std::uint32_t milli_cores_per_worker = 0; // thousandths of a core beside them
    std::uint32_t gpus_per_worker = 0;        // set in each worker's CUDA_VISIBLE_DEVICES
    std::uint64_t memory_bytes = 0;           // of the whole lease; 0 for the node's usual share
    std::chrono::milliseconds duration = std::chrono::hours(1);
    std::chrono::milliseconds hot_for = std::chrono::milliseconds(DFLY_FOR_EVER); // polling time of a hot worker
    dayfly::sandbox sandbox = dayfly::sandbox::site;
    std::string image = {}; // of a container: a name or path that the site allows; empty for the site's first
    std::chrono::microseconds poll_for = std::chrono::microseconds(0); // polling time of a warm worker

    // Returns the options for the C library. The result points into this object and is valid as long as it.
    dfly_lease_options raw() const {
        dfly_lease_options options;
        detail::check(dfly_lease_options_init(&options));
        options.workers = workers;
        options.cores_per_worker = cores_per_worker;
        options.milli_cores_per_worker = milli_cores_per_worker;
        options.gpus_per_worker = gpus_per_worker;
        options.memory_bytes = memory_bytes;
        options.duration_ms = static_cast<std::uint64_t>(duration.count());
        options.mode = static_cast<std::uint32_t>(mode);
        options.hot_for_ms = hot_for.count() < DFLY_FOR_EVER ? static_cast<std::uint32_t>(hot_for.count()) : DFLY_FOR_EVER;
        options.sandbox = static_cast<std::uint32_t>(sandbox);
        options.poll_for_us = static_cast<std::uint32_t>(poll_for.count());
        options.image = image.empty() ? nullptr : image.c_str();
        return options;
    }
};

// Terms of a renewal. What is not set stays as it is.
class renew_options {
public:
    renew_options() { detail::check(dfly_renew_options_init(&raw_)); }

    // Number of workers. Memory follows in proportion.
    renew_options &workers(std::uint32_t number) {
        raw_.workers = number;
        return *this;
    }
    // The fewest workers to accept if there is no room for all.
    renew_options &min_workers(std::uint32_t number) {
        raw_.min_workers = number;
        return *this;
    }
    renew_options &mode(dayfly::mode mode) {
        raw_.mode = static_cast<std::uint32_t>(mode);
        return *this;
    }
    // Polling time of a hot worker.
    renew_options &hot_for(std::chrono::milliseconds time) {
        raw_.hot_for_ms = time.count() < DFLY_UNCHANGED ? static_cast<std::uint32_t>(time.count()) : DFLY_FOR_EVER;
        return *this;
    }
    // Polling time of a warm worker.
    renew_options &poll_for(std::chrono::microseconds time) {
        raw_.poll_for_us = static_cast<std::uint32_t>(time.count());
        return *this;
    }
    dfly_renew_options raw(std::chrono::milliseconds duration) const {
        dfly_renew_options options = raw_;
        options.duration_ms = static_cast<std::uint64_t>(duration.count());
        return options;
    }

private:
    dfly_renew_options raw_;
};

// Limits of the leases under an allowance.
struct allowance_options {
    std::uint32_t workers = 1;          // of all concurrent leases together
    std::uint32_t cores = 0;            // of all workers; 0 for one per worker
    std::uint64_t memory_bytes = 0;     // of all workers; 0 for the nodes' usual share
    std::uint32_t workers_per_node = 0; // maximum; 0 for twice an even share
    std::chrono::milliseconds duration = std::chrono::hours(1); // maximum of a lease
    dayfly::sandbox sandbox = dayfly::sandbox::site;

    dfly_allowance_options raw() const {
        dfly_allowance_options options;
        detail::check(dfly_allowance_options_init(&options));
        options.workers = workers;
        options.cores = cores;
        options.memory_bytes = memory_bytes;
        options.workers_per_node = workers_per_node;
        options.duration_ms = static_cast<std::uint64_t>(duration.count());
        options.sandbox = static_cast<std::uint32_t>(sandbox);
        return options;
    }
};

// Reader of the output of a lease's workers, from the beginning of the lease. It does not keep the lease alive, and can
// read for one minute after the lease has ended.
class printed {
public:
    explicit printed(dfly_printed *handle) : handle_(handle) {}

    // Returns the next piece, and whether it is of standard error. Pieces end at arbitrary bytes. Waits up to `wait`,
    // and at most a few seconds; then the piece is empty.
    std::pair<std::string, bool> next(std::chrono::milliseconds wait) const {
        std::string text(std::size_t(1) << 16, '\0');
        std::size_t length = 0;
        std::uint32_t stream = DFLY_STREAM_OUT;
        detail::check(dfly_printed_read(handle_.get(), static_cast<std::uint64_t>(std::max<std::int64_t>(wait.count(), 0)),
                                     &text[0], text.size(), &length, &stream));
        text.resize(length);
        return {std::move(text), stream == DFLY_STREAM_ERR};
    }
    // Returns the number of bytes that the node discarded before they were read.
    std::uint64_t missed() const noexcept { return dfly_printed_missed(handle_.get()); }
    // Returns whether the lease has ended and all output was read.
    bool is_over() const noexcept { return dfly_printed_is_over(handle_.get()); }

private:
    std::unique_ptr<dfly_printed, detail::closer> handle_;
};

// The right to some workers. Thread-safe. The lease is released when the last object that uses it is destroyed.
class lease {
public:
    explicit lease(dfly_lease *handle) : handle_(handle) {}

    // Sends a shared library to the node, unless the node already has it. Returns its identity.
    dfly_code load_library(const std::string &path) const {
        dfly_code code;
        detail::check(dfly_lease_load_library(get(), path.c_str(), &code));
        return code;
    }

    // Returns a reader of the workers' output. Their node keeps the last 256 KiB.
    dayfly::printed output() const {
        dfly_printed *handle = nullptr;
        detail::check(dfly_printed_open(get(), &handle));
        return dayfly::printed(handle);
    }

    void renew(std::chrono::milliseconds duration) const {
        detail::check(dfly_lease_renew(get(), static_cast<std::uint64_t>(duration.count())));
    }
    // Renews the lease and changes its terms. Returns when added workers serve.
    void renew(std::chrono::milliseconds duration, const renew_options &terms) const {
        const dfly_renew_options options = terms.raw(duration);
        detail::check(dfly_lease_renew_with(get(), &options));
    }
    // Releases the workers now. Closes all channels, and stops running calls.
    void release() const { detail::check(dfly_lease_release(get())); }

    std::uint32_t workers() const noexcept { return dfly_lease_workers(get()); }
    bool is_hot() const noexcept { return dfly_lease_is_hot(get()); }
    dfly_lease *get() const noexcept { return handle_.get(); }

private:
    std::unique_ptr<dfly_lease, detail::closer> handle_;
};

// The right to use some workers of a lease, for the holder of this object or of its text. Made by `invoker::delegate`.
class delegation {
public:
    explicit delegation(dfly_delegation *handle) : handle_(handle) {}
    // Parses a text that `text()` returned, possibly in another process.
    explicit delegation(const std::string &text) : handle_(read(text)) {}

    // Returns the delegation as text, to pass to a function as input. The text is a credential: keep it secret.
    std::string text() const { return dfly_delegation_text(get()); }

    // Opens the workers as a lease, which cannot be renewed or released.
    dayfly::lease open() const {
        dfly_lease *handle = nullptr;
        detail::check(dfly_delegation_open(get(), &handle));
        return dayfly::lease(handle);
    }
    dfly_delegation *get() const noexcept { return handle_.get(); }

private:
    static dfly_delegation *read(const std::string &text) {
        dfly_delegation *handle = nullptr;
        detail::check(dfly_delegation_read(text.c_str(), &handle));
        return handle;
    }

    std::unique_ptr<dfly_delegation, detail::closer> handle_;
};

// A connection to a manager or a node, for leases. Thread-safe.
class client {
public:
    // Connects to the configured manager, else starts an embedded one that ends with this program. `path` names a
    // connection file or a state directory instead.
    client() : client(open([](dfly_client **handle) { return dfly_client_connect(nullptr, handle); })) {}
    explicit client(const std::string &path)
        : client(open([&](dfly_client **handle) { return dfly_client_connect(path.c_str(), handle); })) {}

    // Starts an embedded manager and node, regardless of the configuration.
    static client embedded() {
        return client(open([](dfly_client **handle) { return dfly_client_embedded(nullptr, handle); }));
    }
    // Leases from one node without a manager. `allowance` is the path of the file `allowance.json` that the node wrote.
    static client node(const std::string &allowance) {
        return client(open([&](dfly_client **handle) { return dfly_client_node(allowance.c_str(), handle); }));
    }

    dayfly::lease lease(const lease_options &options = {}) const {
        const dfly_lease_options raw = options.raw();
        dfly_lease *handle = nullptr;
        detail::check(dfly_lease_open(get(), &raw, &handle));
        return dayfly::lease(handle);
    }

    // Returns a client that leases directly from nodes, under an allowance of the manager. The nodes report the leases
    // to the manager afterwards.
    client allowance(const allowance_options &options = {}) const {
        const dfly_allowance_options raw = options.raw();
        return client(open([&](dfly_client **handle) { return dfly_client_allowance(get(), &raw, handle); }));
    }

    std::string describe() const { return dfly_client_describe(get()); }
    dfly_client *get() const noexcept { return handle_.get(); }

private:
    explicit client(dfly_client *handle) : handle_(handle) {}

    template <typename Open> static dfly_client *open(Open how) {
        dfly_client *handle = nullptr;
        detail::check(how(&handle));
        return handle;
    }

    std::unique_ptr<dfly_client, detail::closer> handle_;
};

} // namespace dayfly

#endif
