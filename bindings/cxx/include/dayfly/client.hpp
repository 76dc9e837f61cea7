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

// The two forms of functions; see dayfly_function.h.
enum class form : std::uint32_t { plain = DFLY_FORM_PLAIN, checked = DFLY_FORM_CHECKED };

// How far workers are kept from everything else on their host; by itself, as the site has it.
enum class sandbox : std::uint32_t {
    site = DFLY_SANDBOX_SITE,
    process = DFLY_SANDBOX_PROCESS,
    isolated = DFLY_SANDBOX_ISOLATED,
    container = DFLY_SANDBOX_CONTAINER
};

// What to lease.
struct lease_options {
    std::uint32_t workers = 1;
    dayfly::mode mode = dayfly::mode::automatic;
    std::uint32_t cores_per_worker = 1;
    std::uint32_t gpus_per_worker = 0; // each worker sees its own alone, in CUDA_VISIBLE_DEVICES
    std::uint64_t memory_bytes = 0;    // 0 for the node's usual share
    std::chrono::milliseconds duration = std::chrono::hours(1);
    std::chrono::milliseconds hot_for = std::chrono::milliseconds(DFLY_FOR_EVER); // then a hot worker sleeps
    dayfly::sandbox sandbox = dayfly::sandbox::site;
    std::string image = {}; // of a container, a name or path that the site allows; none for the site's first

    // For as long as these options live, whose image it points to.
    dfly_lease_options raw() const {
        dfly_lease_options options;
        detail::check(dfly_lease_options_init(&options));
        options.workers = workers;
        options.cores_per_worker = cores_per_worker;
        options.gpus_per_worker = gpus_per_worker;
        options.memory_bytes = memory_bytes;
        options.duration_ms = static_cast<std::uint64_t>(duration.count());
        options.mode = static_cast<std::uint32_t>(mode);
        options.hot_for_ms = hot_for.count() < DFLY_FOR_EVER ? static_cast<std::uint32_t>(hot_for.count()) : DFLY_FOR_EVER;
        options.sandbox = static_cast<std::uint32_t>(sandbox);
        options.image = image.empty() ? nullptr : image.c_str();
        return options;
    }
};

// How much may be leased straight from nodes.
struct allowance_options {
    std::uint32_t workers = 1;          // of all leases at a time together
    std::uint32_t cores = 0;            // of all of them; 0 for one each
    std::uint64_t memory_bytes = 0;     // of all of them; 0 to leave it to the nodes
    std::uint32_t workers_per_node = 0; // at most; 0 for twice an even share
    std::chrono::milliseconds duration = std::chrono::hours(1); // of the longest lease
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

// Reads what a lease's workers print, from its beginning. It keeps no lease alive, and reads on for a minute after one is over.
class printed {
public:
    explicit printed(dfly_printed *handle) : handle_(handle) {}

    // The next piece, and whether it went to standard error; pieces end anywhere. Empty if nothing came for so long.
    std::pair<std::string, bool> next(std::chrono::milliseconds wait) const {
        std::string text(std::size_t(1) << 16, '\0');
        std::size_t length = 0;
        std::uint32_t stream = DFLY_STREAM_OUT;
        detail::check(dfly_printed_read(handle_.get(), static_cast<std::uint64_t>(std::max<std::int64_t>(wait.count(), 0)),
                                     &text[0], text.size(), &length, &stream));
        text.resize(length);
        return {std::move(text), stream == DFLY_STREAM_ERR};
    }
    // Bytes that the node did not keep until they were read.
    std::uint64_t missed() const noexcept { return dfly_printed_missed(handle_.get()); }
    // Whether the lease is over, and all was read.
    bool is_over() const noexcept { return dfly_printed_is_over(handle_.get()); }

private:
    std::unique_ptr<dfly_printed, detail::closer> handle_;
};

// The right to some workers. Any thread may use it.
class lease {
public:
    explicit lease(dfly_lease *handle) : handle_(handle) {}

    // Sends a shared library to the node, once.
    dfly_code load_library(const std::string &path) const {
        dfly_code code;
        detail::check(dfly_lease_load_library(get(), path.c_str(), &code));
        return code;
    }

    // What the workers print, as far as their node keeps it: the last 256 KiB.
    dayfly::printed output() const {
        dfly_printed *handle = nullptr;
        detail::check(dfly_printed_open(get(), &handle));
        return dayfly::printed(handle);
    }

    void renew(std::chrono::milliseconds duration) const {
        detail::check(dfly_lease_renew(get(), static_cast<std::uint64_t>(duration.count())));
    }
    // Gives the workers back now; else the last handle to anything of this lease does.
    void release() const { detail::check(dfly_lease_release(get())); }

    std::uint32_t workers() const noexcept { return dfly_lease_workers(get()); }
    bool is_hot() const noexcept { return dfly_lease_is_hot(get()); }
    dfly_lease *get() const noexcept { return handle_.get(); }

private:
    std::unique_ptr<dfly_lease, detail::closer> handle_;
};

// Some workers of a lease, for whoever holds this or its text. Made by `invoker::delegate`.
class delegation {
public:
    explicit delegation(dfly_delegation *handle) : handle_(handle) {}
    // Reads what `text` answered, perhaps elsewhere.
    explicit delegation(const std::string &text) : handle_(read(text)) {}

    // To be given to a function as its input. It is as good as a password.
    std::string text() const { return dfly_delegation_text(get()); }

    // Its workers, as a lease that can neither be renewed nor released.
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

// Where leases come from. Any thread may use it.
class client {
public:
    // The configured manager, else an embedded one that ends with this program; or the one that a path names.
    client() : client(open([](dfly_client **handle) { return dfly_client_connect(nullptr, handle); })) {}
    explicit client(const std::string &path)
        : client(open([&](dfly_client **handle) { return dfly_client_connect(path.c_str(), handle); })) {}

    // A manager and node of this program's own, whatever else is configured.
    static client embedded() {
        return client(open([](dfly_client **handle) { return dfly_client_embedded(nullptr, handle); }));
    }
    // One node without a manager, by the allowance that it wrote.
    static client node(const std::string &allowance) {
        return client(open([&](dfly_client **handle) { return dfly_client_node(allowance.c_str(), handle); }));
    }

    dayfly::lease lease(const lease_options &options = {}) const {
        const dfly_lease_options raw = options.raw();
        dfly_lease *handle = nullptr;
        detail::check(dfly_lease_open(get(), &raw, &handle));
        return dayfly::lease(handle);
    }

    // A client whose leases come straight from nodes, under an allowance of the manager's, which hears of them afterwards.
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
